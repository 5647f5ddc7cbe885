//! Who calls, and what they may.
//!
//! Everybody shows a bearer token: the administrator the one in the kubeconfig, pods their ServiceAccount's. The
//! administrator may do everything; others what RBAC objects grant them, beside discovery and asking about themselves.

use serde_json::{Value, json};

use super::error::ApiError;
use super::meta;
use super::store::Store;
use super::tokens::{BadToken, ISSUER, TokenSigner};

/// Members may do everything.
pub const MASTERS: &str = "system:masters";

/// An authenticated caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// Further facts, like the pod a token is bound to.
    pub extra: Vec<(String, String)>,
}

impl User {
    pub fn admin() -> Self {
        Self {
            name: "kubernetes-admin".into(),
            groups: vec![MASTERS.into(), "system:authenticated".into()],
            ..Self::default()
        }
    }

    /// One of the server's own controllers.
    pub fn controller(name: &str) -> Self {
        Self { name: format!("system:controller:{name}"), groups: vec![MASTERS.into()], ..Self::default() }
    }

    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }

    /// `authentication.k8s.io/v1` UserInfo.
    pub fn to_info(&self) -> Value {
        let mut info = json!({ "username": self.name });
        if !self.uid.is_empty() {
            info["uid"] = json!(self.uid);
        }
        if !self.groups.is_empty() {
            info["groups"] = json!(self.groups);
        }
        for (key, value) in &self.extra {
            info["extra"][key] = json!([value]);
        }
        info
    }
}

/// Reads a ServiceAccount token: the account and what it is bound to must still exist.
pub fn service_account(
    signer: &TokenSigner,
    store: &Store,
    token: &str,
    audiences: &[String],
) -> Result<(User, Vec<String>), BadToken> {
    let claims = signer.verify(token)?;
    let held: Vec<String> =
        meta::items(&claims, "/aud").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let accepted: Vec<String> =
        if audiences.is_empty() { vec![ISSUER.to_owned()] } else { audiences.to_vec() };
    let common: Vec<String> = accepted.iter().filter(|wanted| held.contains(wanted)).cloned().collect();
    if common.is_empty() {
        let quoted = |list: &[String]| list.iter().map(|a| format!("{a:?}")).collect::<Vec<_>>().join(" ");
        return Err(BadToken(format!(
            "[invalid bearer token, token audiences [{}] is invalid for the target audiences [{}]]",
            quoted(&held),
            quoted(&accepted)
        )));
    }
    let invalidated =
        || BadToken("[invalid bearer token, service account token has been invalidated]".to_owned());
    let about = &claims["kubernetes.io"];
    let namespace = meta::text(about, "/namespace");
    let (name, uid) = (meta::text(about, "/serviceaccount/name"), meta::text(about, "/serviceaccount/uid"));
    let account = store.get("serviceaccounts", namespace, name).ok_or_else(invalidated)?;
    if meta::uid(&account) != uid {
        return Err(invalidated());
    }
    let mut extra = vec![(
        "authentication.kubernetes.io/credential-id".to_owned(),
        format!("JTI={}", meta::text(&claims, "/jti")),
    )];
    if let Some(secret) = about.get("secret") {
        let found = store.get("secrets", namespace, meta::text(secret, "/name")).ok_or_else(invalidated)?;
        if meta::uid(&found) != meta::text(secret, "/uid") {
            return Err(invalidated());
        }
    }
    if let Some(pod) = about.get("pod") {
        let (pod_name, pod_uid) = (meta::text(pod, "/name"), meta::text(pod, "/uid"));
        let found = store.get("pods", namespace, pod_name).ok_or_else(invalidated)?;
        if meta::uid(&found) != pod_uid {
            return Err(invalidated());
        }
        extra.push(("authentication.kubernetes.io/pod-name".into(), pod_name.to_owned()));
        extra.push(("authentication.kubernetes.io/pod-uid".into(), pod_uid.to_owned()));
    }
    let user = User {
        name: format!("system:serviceaccount:{namespace}:{name}"),
        uid: uid.to_owned(),
        groups: vec![
            "system:serviceaccounts".into(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".into(),
        ],
        extra,
    };
    Ok((user, common))
}

/// What somebody wants to do.
#[derive(Debug, Clone, Default)]
pub struct Action<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// A path outside the resources, like `/version`.
    pub path: Option<&'a str>,
}

impl Action<'_> {
    /// The sentence with which a real server refuses.
    pub fn refusal(&self, user: &User) -> ApiError {
        if let Some(path) = self.path {
            let message = format!("forbidden: User {:?} cannot {} path {path:?}", user.name, self.verb);
            return ApiError::new(403, "Forbidden", message).with_details(json!({}));
        }
        let resource = match self.subresource {
            "" => self.resource.to_owned(),
            subresource => format!("{}/{subresource}", self.resource),
        };
        let place = match self.namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        let why = format!(
            "User {:?} cannot {} resource {resource:?} in API group {:?} {place}",
            user.name, self.verb, self.group
        );
        let qualified = match self.group {
            "" => self.resource.to_owned(),
            group => format!("{}.{group}", self.resource),
        };
        ApiError::forbidden(&qualified, self.name, &why)
    }
}

/// Whether the user may: a member of `system:masters`, or somebody to whom RBAC objects grant it.
pub fn may(store: &Store, user: &User, action: &Action<'_>) -> bool {
    permission(store, user, action).is_some()
}

/// Why the user may, in the words of a real server; a member of `system:masters` needs no reason.
pub fn permission(store: &Store, user: &User, action: &Action<'_>) -> Option<String> {
    if user.is_master() {
        return Some(String::new());
    }
    // What a real server has as objects is built in here.
    let granted_to_all = |role: &str| {
        let group = "system:authenticated";
        Some(format!(
            "RBAC: allowed by ClusterRoleBinding {role:?} of ClusterRole {role:?} to Group {group:?}"
        ))
    };
    let authenticated = user.groups.iter().any(|group| group == "system:authenticated");
    if let Some(path) = action.path {
        let public = ["/healthz", "/livez", "/readyz", "/version"];
        let discovery = ["/api", "/apis", "/openapi"];
        let below =
            |prefix: &&str| path == *prefix || path.strip_prefix(*prefix).is_some_and(|p| p.starts_with('/'));
        if authenticated && (public.iter().any(below) || discovery.iter().any(below)) {
            return granted_to_all("system:discovery");
        }
        if public.iter().any(below) {
            return granted_to_all("system:public-info-viewer");
        }
    }
    let about_oneself = ["selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"];
    if authenticated && action.verb == "create" && about_oneself.contains(&action.resource) {
        return granted_to_all("system:basic-user");
    }
    let granted = |binding: &Value, namespace: &str| {
        let subject = binds(binding, user, namespace)?;
        let role = role_of(store, binding, namespace)?;
        meta::items(&role, "/rules").iter().find(|rule| allows(rule, action))?;
        let (sort, name) = match namespace {
            "" => ("ClusterRoleBinding", meta::name(binding).to_owned()),
            namespace => ("RoleBinding", format!("{}/{namespace}", meta::name(binding))),
        };
        let (role_kind, role) = (meta::text(binding, "/roleRef/kind"), meta::text(binding, "/roleRef/name"));
        Some(format!("RBAC: allowed by {sort} {name:?} of {role_kind} {role:?} to {subject}"))
    };
    let cluster = store.list("clusterrolebindings.rbac.authorization.k8s.io", None).0;
    if let Some(reason) = cluster.iter().find_map(|binding| granted(binding, "")) {
        return Some(reason);
    }
    let namespace = action.namespace;
    if namespace.is_empty() {
        return None;
    }
    let own = store.list("rolebindings.rbac.authorization.k8s.io", Some(namespace)).0;
    own.iter().find_map(|binding| granted(binding, namespace))
}

/// Everything that the user may in a namespace, as the status of a SelfSubjectRulesReview.
pub fn rules(store: &Store, user: &User, namespace: &str) -> Value {
    let mut rules = Vec::new();
    if user.is_master() {
        rules.push(json!({ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }));
        rules.push(json!({ "verbs": ["*"], "nonResourceURLs": ["*"] }));
    }
    // What is built in, as `permission` has it.
    if user.groups.iter().any(|group| group == "system:authenticated") {
        for (group, resources) in [
            ("authentication.k8s.io", &["selfsubjectreviews"][..]),
            ("authorization.k8s.io", &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
        ] {
            rules.push(json!({ "verbs": ["create"], "apiGroups": [group], "resources": resources }));
        }
        let paths = ["/api", "/apis", "/openapi", "/healthz", "/livez", "/readyz", "/version"];
        let below = paths[..3].iter().map(|path| format!("{path}/*"));
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).chain(below).collect();
        rules.push(json!({ "verbs": ["get"], "nonResourceURLs": paths }));
    }
    for (bindings, home) in [
        (store.list("clusterrolebindings.rbac.authorization.k8s.io", None).0, ""),
        (store.list("rolebindings.rbac.authorization.k8s.io", Some(namespace)).0, namespace),
    ] {
        let granted = bindings.iter().filter(|binding| binds(binding, user, home).is_some());
        for role in granted.filter_map(|binding| role_of(store, binding, home)) {
            rules.extend_from_slice(meta::items(&role, "/rules"));
        }
    }
    let (paths, resources): (Vec<Value>, Vec<Value>) =
        rules.into_iter().partition(|rule| rule.get("nonResourceURLs").is_some());
    json!({ "resourceRules": resources, "nonResourceRules": paths, "incomplete": false })
}

/// The subject by which a binding is about the user.
fn binds(binding: &Value, user: &User, namespace: &str) -> Option<String> {
    let subjects = meta::items(binding, "/subjects");
    let found = subjects.iter().find(|subject| {
        let name = meta::text(subject, "/name");
        match meta::text(subject, "/kind") {
            "User" => name == user.name,
            "Group" => user.groups.iter().any(|group| group == name),
            "ServiceAccount" => {
                let home = match meta::text(subject, "/namespace") {
                    "" => namespace,
                    given => given,
                };
                user.name == format!("system:serviceaccount:{home}:{name}")
            }
            _ => false,
        }
    })?;
    let (kind, name) = (meta::text(found, "/kind"), meta::text(found, "/name"));
    let name = match (kind, meta::text(found, "/namespace")) {
        ("ServiceAccount", home) if !home.is_empty() => format!("{name}/{home}"),
        _ => name.to_owned(),
    };
    Some(format!("{kind} {name:?}"))
}

fn role_of(store: &Store, binding: &Value, namespace: &str) -> Option<std::sync::Arc<Value>> {
    let name = meta::text(binding, "/roleRef/name");
    match meta::text(binding, "/roleRef/kind") {
        "ClusterRole" => store.get("clusterroles.rbac.authorization.k8s.io", "", name),
        "Role" => store.get("roles.rbac.authorization.k8s.io", namespace, name),
        _ => None,
    }
}

fn allows(rule: &Value, action: &Action<'_>) -> bool {
    let holds = |pointer: &str, wanted: &str| {
        meta::items(rule, pointer)
            .iter()
            .filter_map(Value::as_str)
            .any(|entry| entry == "*" || entry == wanted)
    };
    if !holds("/verbs", action.verb) {
        return false;
    }
    if let Some(path) = action.path {
        return meta::items(rule, "/nonResourceURLs").iter().filter_map(Value::as_str).any(|pattern| {
            pattern.strip_suffix('*').map_or(pattern == path, |prefix| path.starts_with(prefix))
        });
    }
    let resource = match action.subresource {
        "" => action.resource.to_owned(),
        subresource => format!("{}/{subresource}", action.resource),
    };
    let any_of_subresource = format!("*/{}", action.subresource);
    let resource_fits = holds("/resources", &resource)
        || (!action.subresource.is_empty() && holds("/resources", &any_of_subresource));
    let names = meta::items(rule, "/resourceNames");
    let name_fits = names.is_empty() || names.iter().any(|name| name == action.name);
    holds("/apiGroups", action.group) && resource_fits && name_fits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Store {
        let store = Store::default();
        let role = json!({ "metadata": { "name": "reader", "namespace": "n" }, "rules": [
            { "apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"] },
            { "apiGroups": [""], "resources": ["secrets"], "verbs": ["*"], "resourceNames": ["one"] },
        ] });
        let binding = json!({ "metadata": { "name": "b", "namespace": "n" },
            "roleRef": { "kind": "Role", "name": "reader" },
            "subjects": [{ "kind": "ServiceAccount", "name": "app" }] });
        store.insert(&"roles.rbac.authorization.k8s.io".into(), role).unwrap();
        store.insert(&"rolebindings.rbac.authorization.k8s.io".into(), binding).unwrap();
        store
    }

    #[test]
    fn what_a_role_grants_and_nothing_else() {
        let store = store();
        let app = User {
            name: "system:serviceaccount:n:app".into(),
            groups: vec!["system:authenticated".into()],
            ..User::default()
        };
        let check = |verb, resource, subresource, namespace, name| {
            may(&store, &app, &Action { verb, resource, subresource, namespace, name, ..Action::default() })
        };
        assert!(check("get", "pods", "", "n", "a") && check("get", "pods", "log", "n", "a"));
        assert!(check("delete", "secrets", "", "n", "one"));
        assert!(!check("delete", "secrets", "", "n", "two"));
        assert!(!check("create", "pods", "", "n", "") && !check("get", "pods", "exec", "n", "a"));
        assert!(!check("get", "pods", "", "other", "a") && !check("list", "pods", "", "", ""));
        let listed = rules(&store, &app, "n")["resourceRules"].clone();
        let listed: Vec<&Value> = listed.as_array().unwrap().iter().map(|rule| &rule["resources"]).collect();
        assert_eq!(listed[2..], [&json!(["pods", "pods/log"]), &json!(["secrets"])]);
        assert_eq!(rules(&store, &app, "other")["resourceRules"].as_array().unwrap().len(), 2);
        assert_eq!(rules(&store, &User::admin(), "n")["resourceRules"][0]["resources"], json!(["*"]));
        assert!(may(&store, &app, &Action { verb: "get", path: Some("/apis/apps/v1"), ..Action::default() }));
        assert!(!may(&store, &app, &Action { verb: "get", path: Some("/metrics"), ..Action::default() }));
        assert!(may(
            &store,
            &User::admin(),
            &Action { verb: "delete", resource: "nodes", ..Action::default() }
        ));
    }
}
