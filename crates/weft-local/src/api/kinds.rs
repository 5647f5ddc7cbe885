//! The kinds that are served: a table of built-in ones, and those that CustomResourceDefinitions add.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, autoscaling::v1 as autoscaling_v1,
    autoscaling::v2 as autoscaling, batch::v1 as batch, coordination::v1 as coordination, core::v1 as core,
    discovery::v1 as discovery, events::v1 as events, networking::v1 as networking, node::v1 as node,
    policy::v1 as policy, rbac::v1 as rbac, scheduling::v1 as scheduling, storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions;
use parking_lot::RwLock;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::ApiError;
use super::rules::Rules;
use super::{left_out, meta};

/// What is known of a built-in kind by its type.
#[derive(Debug, Clone, Copy)]
pub struct Typed {
    /// Reads an object as its type and writes it again: checks types, drops unknown fields.
    pub decode: fn(&Value) -> Result<Value, String>,
    /// Its schema's name in OpenAPI documents.
    pub schema_name: fn() -> Cow<'static, str>,
    /// Adds its schema, and those that this one refers to, to a generator's.
    pub define: fn(&mut SchemaGenerator),
}

/// One kind in one version, as clients address it.
#[derive(Debug, Clone)]
pub struct Kind {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub singular: String,
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    /// `plural.group`, or `plural` in the core group: the store's name for it, and that of error messages.
    pub resource: Arc<str>,
    /// Whether `…/status` is served apart.
    pub status: bool,
    /// Whether `…/scale` is.
    pub scale: bool,
    /// Whether `metadata.generation` counts changes of the specification.
    pub generation: bool,
    /// Whether an update may leave open which version of the object it replaces.
    pub unconditional: bool,
    /// The version in which objects are stored.
    pub stored: String,
    /// Where this is another view of the stored objects: the names of fields here, and as they are stored.
    pub renamed: &'static [(&'static str, &'static str)],
    /// What is said to whoever uses this version.
    pub deprecated: Option<String>,
    /// Fields beside name and namespace that a field selector may use.
    pub selectable: Vec<String>,
    /// Of custom kinds.
    pub rules: Arc<Rules>,
    pub form: Form,
}

/// Where a kind's shape comes from.
#[derive(Debug, Clone)]
pub enum Form {
    BuiltIn(Typed),
    /// The version's entry in the CustomResourceDefinition.
    Custom(Arc<Value>),
}

impl Kind {
    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// The kind as validation messages name it: `Deployment.apps`.
    pub fn qualified(&self) -> String {
        // Views are named like what they are views of.
        let plain = self.group.is_empty() || !self.renamed.is_empty();
        if plain { self.kind.clone() } else { format!("{}.{}", self.kind, self.group) }
    }

    pub fn is_custom(&self) -> bool {
        matches!(self.form, Form::Custom(_))
    }

    /// The OpenAPI schema of a custom kind.
    pub fn schema(&self) -> Option<&Value> {
        match &self.form {
            Form::BuiltIn(_) => None,
            Form::Custom(version) => version.pointer("/schema/openAPIV3Schema"),
        }
    }

    /// Why none is made, if it is one that nothing acts on.
    pub(super) fn not_run(&self) -> Option<ApiError> {
        if self.is_custom() { None } else { left_out::kind(&self.kind) }
    }

    /// The verbs, in the order a real server lists them.
    pub fn verbs(&self) -> &'static [&'static str] {
        match self.plural.as_str() {
            _ if self.is_custom() => {
                &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]
            }
            "namespaces" => &["create", "delete", "get", "list", "patch", "update", "watch"],
            _ => &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        }
    }
}

const fn typed<T: DeserializeOwned + Serialize + JsonSchema>() -> Typed {
    Typed {
        decode: decode::<T>,
        schema_name: T::schema_name,
        define: |schemas| drop(schemas.subschema_for::<T>()),
    }
}

fn decode<T: DeserializeOwned + Serialize>(object: &Value) -> Result<Value, String> {
    let typed: T =
        serde_path_to_error::deserialize(object).map_err(|e| format!("{}: {}", e.path(), e.inner()))?;
    serde_json::to_value(typed).map_err(|e| e.to_string())
}

/// What a row of the table says beside names.
#[derive(Clone, Copy)]
struct Traits {
    namespaced: bool,
    status: bool,
    scale: bool,
    generation: bool,
}

const NAMESPACED: Traits = Traits { namespaced: true, status: false, scale: false, generation: false };
const CLUSTER: Traits = Traits { namespaced: false, ..NAMESPACED };
const WITH_STATUS: Traits = Traits { status: true, ..NAMESPACED };
const WORKLOAD: Traits = Traits { status: true, scale: true, generation: true, namespaced: true };

/// Group, version, plural, kind, short names, category `all`, traits, type, selectable fields.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    bool,
    Traits,
    Typed,
    &'static [&'static str],
);

/// Everything that `weft up` runs or stores, and what is only looked for ([`left_out::KINDS`]).
#[rustfmt::skip]
fn table() -> Vec<Row> {
    let rbac_group = "rbac.authorization.k8s.io";
    let hooks = "admissionregistration.k8s.io";
    let generation = Traits { generation: true, ..NAMESPACED };
    let cluster_generation = Traits { generation: true, ..CLUSTER };
    vec![
        ("", "v1", "configmaps", "ConfigMap", &["cm"], false, NAMESPACED, typed::<core::ConfigMap>(), &[]),
        ("", "v1", "endpoints", "Endpoints", &["ep"], false, NAMESPACED, typed::<core::Endpoints>(), &[]),
        ("", "v1", "events", "Event", &["ev"], false, NAMESPACED, typed::<core::Event>(), &[
            "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
            "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
            "reason", "reportingComponent", "source", "type",
        ]),
        // The same objects as `events` of the core group, under other names.
        ("events.k8s.io", "v1", "events", "Event", &["ev"], false, NAMESPACED, typed::<events::Event>(), &[
            "regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid", "regarding.apiVersion",
            "regarding.resourceVersion", "regarding.fieldPath", "reason", "reportingController", "type",
        ]),
        ("", "v1", "limitranges", "LimitRange", &["limits"], false, NAMESPACED, typed::<core::LimitRange>(), &[]),
        ("", "v1", "namespaces", "Namespace", &["ns"], false, Traits { status: true, ..CLUSTER }, typed::<core::Namespace>(), &["status.phase"]),
        ("", "v1", "nodes", "Node", &["no"], false, Traits { status: true, ..CLUSTER }, typed::<core::Node>(), &["spec.unschedulable"]),
        ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", &["pvc"], false, WITH_STATUS, typed::<core::PersistentVolumeClaim>(), &[]),
        ("", "v1", "persistentvolumes", "PersistentVolume", &["pv"], false, Traits { status: true, ..CLUSTER }, typed::<core::PersistentVolume>(), &[]),
        ("", "v1", "pods", "Pod", &["po"], true, Traits { generation: true, ..WITH_STATUS }, typed::<core::Pod>(), &[
            "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
            "status.phase", "status.podIP", "status.nominatedNodeName",
        ]),
        ("", "v1", "replicationcontrollers", "ReplicationController", &["rc"], true, WORKLOAD, typed::<core::ReplicationController>(), &["status.replicas"]),
        ("", "v1", "resourcequotas", "ResourceQuota", &["quota"], false, WITH_STATUS, typed::<core::ResourceQuota>(), &[]),
        ("", "v1", "secrets", "Secret", &[], false, NAMESPACED, typed::<core::Secret>(), &["type"]),
        ("", "v1", "serviceaccounts", "ServiceAccount", &["sa"], false, NAMESPACED, typed::<core::ServiceAccount>(), &[]),
        ("", "v1", "services", "Service", &["svc"], true, WITH_STATUS, typed::<core::Service>(), &["spec.clusterIP", "spec.type"]),
        ("apps", "v1", "daemonsets", "DaemonSet", &["ds"], true, Traits { scale: false, ..WORKLOAD }, typed::<apps::DaemonSet>(), &[]),
        ("apps", "v1", "deployments", "Deployment", &["deploy"], true, WORKLOAD, typed::<apps::Deployment>(), &[]),
        ("apps", "v1", "replicasets", "ReplicaSet", &["rs"], true, WORKLOAD, typed::<apps::ReplicaSet>(), &["status.replicas"]),
        ("apps", "v1", "statefulsets", "StatefulSet", &["sts"], true, WORKLOAD, typed::<apps::StatefulSet>(), &[]),
        ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", &["hpa"], true, WITH_STATUS, typed::<autoscaling::HorizontalPodAutoscaler>(), &[]),
        ("autoscaling", "v1", "horizontalpodautoscalers", "HorizontalPodAutoscaler", &["hpa"], true, WITH_STATUS, typed::<autoscaling_v1::HorizontalPodAutoscaler>(), &[]),
        ("batch", "v1", "cronjobs", "CronJob", &["cj"], true, Traits { scale: false, ..WORKLOAD }, typed::<batch::CronJob>(), &[]),
        ("batch", "v1", "jobs", "Job", &[], true, Traits { scale: false, ..WORKLOAD }, typed::<batch::Job>(), &["status.successful"]),
        // A budget bounds evictions, and nothing is evicted here: it holds by itself.
        ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", &["pdb"], false, Traits { status: true, ..generation }, typed::<policy::PodDisruptionBudget>(), &[]),
        ("networking.k8s.io", "v1", "ingressclasses", "IngressClass", &[], false, cluster_generation, typed::<networking::IngressClass>(), &[]),
        ("networking.k8s.io", "v1", "ingresses", "Ingress", &["ing"], false, Traits { generation: true, ..WITH_STATUS }, typed::<networking::Ingress>(), &[]),
        ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", &["netpol"], false, Traits { generation: true, ..NAMESPACED }, typed::<networking::NetworkPolicy>(), &[]),
        (rbac_group, "v1", "clusterrolebindings", "ClusterRoleBinding", &[], false, CLUSTER, typed::<rbac::ClusterRoleBinding>(), &[]),
        (rbac_group, "v1", "clusterroles", "ClusterRole", &[], false, CLUSTER, typed::<rbac::ClusterRole>(), &[]),
        (rbac_group, "v1", "rolebindings", "RoleBinding", &[], false, NAMESPACED, typed::<rbac::RoleBinding>(), &[]),
        (rbac_group, "v1", "roles", "Role", &[], false, NAMESPACED, typed::<rbac::Role>(), &[]),
        (hooks, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", &[], false, cluster_generation, typed::<admission::MutatingWebhookConfiguration>(), &[]),
        (hooks, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", &[], false, Traits { generation: true, ..CLUSTER }, typed::<admission::ValidatingWebhookConfiguration>(), &[]),
        ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", &["crd", "crds"], false, Traits { status: true, generation: true, ..CLUSTER }, typed::<extensions::CustomResourceDefinition>(), &[]),
        // Only the range that the server was started with.
        ("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", &[], false, Traits { status: true, ..CLUSTER }, typed::<networking::ServiceCIDR>(), &[]),
        ("coordination.k8s.io", "v1", "leases", "Lease", &[], false, NAMESPACED, typed::<coordination::Lease>(), &[]),
        ("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", &[], false, CLUSTER, typed::<node::RuntimeClass>(), &[]),
        ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", &["pc"], false, cluster_generation, typed::<scheduling::PriorityClass>(), &[]),
        ("storage.k8s.io", "v1", "storageclasses", "StorageClass", &["sc"], false, CLUSTER, typed::<storage::StorageClass>(), &[]),
        ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", &[], false, generation, typed::<discovery::EndpointSlice>(), &[]),
    ]
}

/// How `events.k8s.io` names what the core group's events hold.
const EVENT_FIELDS: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Kinds of which an update must say what it replaces, beside all custom ones.
const CONDITIONAL: [&str; 5] = [
    "leases",
    "poddisruptionbudgets",
    "customresourcedefinitions",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
];

/// All kinds; lookups are by group, version and plural.
#[derive(Debug)]
pub struct Kinds {
    built_in: Vec<Arc<Kind>>,
    /// By the CustomResourceDefinition's name.
    custom: RwLock<BTreeMap<String, Vec<Arc<Kind>>>>,
}

impl Default for Kinds {
    fn default() -> Self {
        let built_in = table().into_iter().map(|row| Arc::new(from_row(row))).collect();
        Self { built_in, custom: RwLock::default() }
    }
}

impl Kinds {
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        self.all().into_iter().find(|k| k.group == group && k.version == version && k.plural == plural)
    }

    /// A kind by its name in manifests: `apps/v1`, `Deployment`.
    pub fn find_kind(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        self.all().into_iter().find(|k| k.kind == kind && k.api_version() == api_version)
    }

    /// Any served version of a resource, given as the store names it.
    pub fn of_resource(&self, resource: &str) -> Option<Arc<Kind>> {
        self.all().into_iter().find(|k| *k.resource == *resource)
    }

    /// Whether the group is one of the server's own.
    pub fn is_built_in(&self, group: &str) -> bool {
        self.built_in.iter().any(|kind| kind.group == group)
            || super::reviews::REVIEWS.iter().any(|review| review.group == group)
    }

    /// All kinds: the built-in ones in the order of the table, then the custom ones.
    pub fn all(&self) -> Vec<Arc<Kind>> {
        let custom = self.custom.read();
        self.built_in.iter().chain(custom.values().flatten()).cloned().collect()
    }

    /// Serves the versions of a CustomResourceDefinition.
    pub fn define(&self, definition: &Value) {
        let kinds = from_definition(definition);
        self.custom.write().insert(meta::name(definition).to_owned(), kinds);
    }

    /// Stops serving a CustomResourceDefinition.
    pub fn undefine(&self, name: &str) {
        self.custom.write().remove(name);
    }
}

fn from_row(row: Row) -> Kind {
    let (group, version, plural, kind, short_names, all, traits, typed, selectable) = row;
    let strings = |list: &[&str]| list.iter().map(|&s| s.to_owned()).collect();
    let view = group == "events.k8s.io";
    Kind {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        singular: kind.to_lowercase(),
        list_kind: format!("{kind}List"),
        short_names: strings(short_names),
        categories: match group {
            "admissionregistration.k8s.io" | "apiextensions.k8s.io" => vec!["api-extensions".to_owned()],
            _ if all => vec!["all".to_owned()],
            _ => Vec::new(),
        },
        namespaced: traits.namespaced,
        resource: if view { plural.into() } else { resource_name(plural, group).into() },
        unconditional: !CONDITIONAL.contains(&plural),
        stored: if view { version.to_owned() } else { api_version(group, version) },
        renamed: if view { EVENT_FIELDS } else { &[] },
        // A real server says so of this one kind of those that are served here.
        deprecated: (plural == "endpoints").then(|| {
            "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_owned()
        }),
        status: traits.status,
        scale: traits.scale,
        generation: traits.generation,
        selectable: strings(selectable),
        rules: Arc::default(),
        form: Form::BuiltIn(typed),
    }
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn resource_name(plural: &str, group: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

/// The served versions of a CustomResourceDefinition, the preferred one first.
fn from_definition(definition: &Value) -> Vec<Arc<Kind>> {
    let group = meta::text(definition, "/spec/group").to_owned();
    let names = &definition["spec"]["names"];
    let strings = |pointer: &str| -> Vec<String> {
        meta::items(names, pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let plural = meta::text(names, "/plural").to_owned();
    let mut versions: Vec<&Value> = meta::items(definition, "/spec/versions")
        .iter()
        .filter(|v| v["served"] == Value::Bool(true))
        .collect();
    versions.sort_by_key(|version| std::cmp::Reverse(version_rank(meta::text(version, "/name"))));
    let kind = meta::text(names, "/kind");
    let shown = |version: &Value| format!("{group}/{} {kind}", meta::text(version, "/name"));
    let current =
        versions.iter().find(|version| version["deprecated"] != Value::Bool(true)).map(|v| shown(v));
    let deprecated = |version: &Value| {
        (version["deprecated"] == Value::Bool(true)).then(|| match version["deprecationWarning"].as_str() {
            Some(text) => text.to_owned(),
            None => match &current {
                Some(current) => format!("{} is deprecated; use {current}", shown(version)),
                None => format!("{} is deprecated", shown(version)),
            },
        })
    };
    let stored = meta::items(definition, "/spec/versions").iter().find(|v| v["storage"] == Value::Bool(true));
    let stored = api_version(&group, stored.map_or("", |version| meta::text(version, "/name")));
    versions
        .into_iter()
        .map(|version| {
            let selectable = meta::items(version, "/selectableFields")
                .iter()
                .map(|field| meta::text(field, "/jsonPath").trim_start_matches('.').to_owned());
            Arc::new(Kind {
                group: group.clone(),
                version: meta::text(version, "/name").to_owned(),
                kind: meta::text(names, "/kind").to_owned(),
                plural: plural.clone(),
                singular: meta::text(names, "/singular").to_owned(),
                list_kind: meta::text(names, "/listKind").to_owned(),
                short_names: strings("/shortNames"),
                categories: strings("/categories"),
                namespaced: meta::text(definition, "/spec/scope") == "Namespaced",
                resource: resource_name(&plural, &group).into(),
                status: version.pointer("/subresources/status").is_some(),
                scale: version.pointer("/subresources/scale").is_some(),
                generation: true,
                unconditional: false,
                stored: stored.clone(),
                renamed: &[],
                deprecated: deprecated(version),
                selectable: selectable.collect(),
                rules: Arc::new(Rules::of(&version["schema"]["openAPIV3Schema"])),
                form: Form::Custom(Arc::new(version.clone())),
            })
        })
        .collect()
}

/// Orders versions as discovery does: v2, v1, v1beta2, v1beta1, v1alpha1, then the rest.
pub fn version_rank(version: &str) -> (u8, u32, u32) {
    let number = |text: &str| text.parse::<u32>().ok();
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    if let Some(major) = number(rest) {
        return (3, major, 0);
    }
    for (stage, rank) in [("beta", 2), ("alpha", 1)] {
        if let Some((major, minor)) = rest.split_once(stage)
            && let (Some(major), Some(minor)) = (number(major), number(minor))
        {
            return (rank, major, minor);
        }
    }
    (0, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_stability() {
        let mut versions = ["v1alpha1", "v1", "v1beta2", "v2", "v1beta1", "odd"];
        versions.sort_by_key(|version| std::cmp::Reverse(version_rank(version)));
        assert_eq!(versions, ["v2", "v1", "v1beta2", "v1beta1", "v1alpha1", "odd"]);
    }

    #[test]
    fn kinds_are_found_by_every_name() {
        let kinds = Kinds::default();
        assert_eq!(&*kinds.find("apps", "v1", "deployments").unwrap().resource, "deployments.apps");
        assert_eq!(kinds.find_kind("v1", "Pod").unwrap().plural, "pods");
        assert!(kinds.find("apps", "v1", "controllerrevisions").is_none());
    }
}
