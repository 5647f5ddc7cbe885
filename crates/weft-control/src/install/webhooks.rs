//! The webhooks' configurations.

use super::{
    objects::labels,
    rbac::{GATEWAY_ROUTES, POLICY_KINDS},
    template::{base64, namespace, value, when},
};
use crate::admission::{decide::INJECT, opt_in::OPT_IN_LABEL};
use serde_json::{Map, Value, json};

/// One per webhook: its Service, its configuration, and its values.
pub const SERVICES: [&str; 3] =
    ["linkerd-proxy-injector", "linkerd-sp-validator", "linkerd-policy-validator"];
pub const CONFIGURATIONS: [&str; 3] = [
    "linkerd-proxy-injector-webhook-config",
    "linkerd-sp-validator-webhook-config",
    "linkerd-policy-validator-webhook-config",
];
pub const SECRETS: [&str; 3] =
    ["linkerd-proxy-injector-k8s-tls", "linkerd-sp-validator-k8s-tls", "linkerd-policy-validator-k8s-tls"];
pub const VALUES: [&str; 3] = ["proxyInjector", "profileValidator", "policyValidator"];

/// The configurations, in the order of [`SERVICES`]. `failure_policy` holds for whoever opted in.
pub fn objects(failure_policy: &Value, timeout: &Value) -> [Value; 3] {
    let hook = Hook { failure_policy, timeout };
    let policy = [
        ("policy.linkerd.io", &POLICY_KINDS[..], &["*"][..]),
        ("gateway.networking.k8s.io", &GATEWAY_ROUTES[..], &["*"][..]),
    ];
    [
        configuration(0, "MutatingWebhookConfiguration", &hook.injector()),
        configuration(
            1,
            "ValidatingWebhookConfiguration",
            &[hook.validator(
                1,
                "linkerd-sp-validator.linkerd.io",
                &[("linkerd.io", &["serviceprofiles"], &["*"])],
            )],
        ),
        configuration(
            2,
            "ValidatingWebhookConfiguration",
            &[hook.validator(2, "linkerd-policy-validator.linkerd.io", &policy)],
        ),
    ]
}

fn configuration(at: usize, kind: &str, webhooks: &[Value]) -> Value {
    let mut metadata = json!({"name": CONFIGURATIONS[at], "labels": labels()});
    let ca = |from: &str| value(&format!("{}.{from}", VALUES[at]));
    let annotation = |name: &str, from: &str| {
        when(
            &format!("{}.{from}", VALUES[at]),
            json!({(format!("cert-manager.io/{name}")): ca(from)}),
            Value::Null,
        )
    };
    // cert-manager has one annotation or the other; both together make no sense.
    metadata["annotations"] = when(
        &format!("{}.injectCaFrom", VALUES[at]),
        json!({"cert-manager.io/inject-ca-from": ca("injectCaFrom")}),
        annotation("inject-ca-from-secret", "injectCaFromSecret"),
    );
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata, "webhooks": webhooks})
}

struct Hook<'v> {
    failure_policy: &'v Value,
    timeout: &'v Value,
}

/// Group, resources and versions.
type Rule<'a> = (&'a str, &'a [&'a str], &'a [&'a str]);

impl Hook<'_> {
    /// Pods that opted in, by namespace or by themselves, are subject to the failure policy; all others are asked about
    /// if the injector is there, and start as they are if it is not.
    fn injector(&self) -> Vec<Value> {
        let opted_in = requirement(OPT_IN_LABEL, "In", &["enabled"]);
        let others = requirement(OPT_IN_LABEL, "NotIn", &["enabled"]);
        let annotation = format!("object.metadata.?annotations[?'{INJECT}'].orValue('')");
        let wanted = format!("{annotation} in ['enabled', 'ingress']");
        let ignore = json!("Ignore");
        let pods: Rule<'_> = ("", &["pods"], &["v1"]);
        let entry = |name: &str,
                     namespaces: Option<Value>,
                     policy: &Value,
                     rule: Rule<'_>,
                     condition: Option<String>| {
            let mut hook = self.entry(
                0,
                &format!("{name}linkerd-proxy-injector.linkerd.io"),
                policy,
                &[rule],
                &["CREATE"],
            );
            hook.insert("namespaceSelector".to_owned(), selector(namespaces, true));
            hook.insert(
                "objectSelector".to_owned(),
                json!({"matchExpressions": [
                    {"key": "linkerd.io/control-plane-component", "operator": "DoesNotExist"},
                    {"key": "linkerd.io/cni-resource", "operator": "DoesNotExist"},
                ]}),
            );
            hook.insert("reinvocationPolicy".to_owned(), json!("IfNeeded"));
            if let Some(expression) = condition {
                let conditions = json!([{"name": "opted-in", "expression": expression}]);
                hook.insert("matchConditions".to_owned(), conditions);
            }
            Value::Object(hook)
        };
        vec![
            entry(
                "",
                Some(opted_in.clone()),
                self.failure_policy,
                pods,
                Some(format!("{annotation} != 'disabled'")),
            ),
            entry("pods.", Some(others.clone()), self.failure_policy, pods, Some(wanted.clone())),
            // These two only note opaque ports.
            entry("others.", Some(others), &ignore, pods, Some(format!("!({wanted})"))),
            entry("disabled.", Some(opted_in), &ignore, pods, Some(format!("{annotation} == 'disabled'"))),
            entry("services.", None, &ignore, ("", &["services"], &["v1"]), None),
        ]
    }

    fn validator(&self, at: usize, name: &str, rules: &[Rule<'_>]) -> Value {
        let mut hook = self.entry(at, name, self.failure_policy, rules, &["CREATE", "UPDATE"]);
        hook.insert("namespaceSelector".to_owned(), selector(None, false));
        Value::Object(hook)
    }

    fn entry(
        &self,
        at: usize,
        name: &str,
        policy: &Value,
        rules: &[Rule<'_>],
        operations: &[&str],
    ) -> Map<String, Value> {
        let rules: Vec<Value> = rules
            .iter()
            .map(|(group, resources, versions)| {
                json!({"operations": operations, "apiGroups": [group], "apiVersions": versions,
                    "resources": resources, "scope": "Namespaced"})
            })
            .collect();
        let bundle = format!("{}.caBundle", VALUES[at]);
        let entry = json!({
            "name": name,
            "admissionReviewVersions": ["v1", "v1beta1"],
            "clientConfig": {
                "service": {"name": SERVICES[at], "namespace": namespace(), "path": "/", "port": 443},
                // The controller writes it, unless somebody else keeps the certificates.
                "caBundle": when(&bundle, base64(&bundle), Value::Null),
            },
            "failurePolicy": policy,
            "matchPolicy": "Equivalent",
            "rules": rules,
            // Events on owners, and not for rehearsals.
            "sideEffects": if at == 0 { "NoneOnDryRun" } else { "None" },
            "timeoutSeconds": self.timeout,
        });
        match entry {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}

fn requirement(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": operator, "values": values})
}

/// Namespaces that the mesh does not touch are never waited for.
fn selector(more: Option<Value>, without_own: bool) -> Value {
    let mut all = vec![requirement("config.linkerd.io/admission-webhooks", "NotIn", &["disabled"])];
    if without_own {
        all.push(json!({"key": "kubernetes.io/metadata.name", "operator": "NotIn",
            "values": ["kube-system", "cert-manager", namespace()]}));
    }
    all.extend(more);
    json!({"matchExpressions": all})
}
