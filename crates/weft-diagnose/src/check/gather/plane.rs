//! The control plane's own objects.

use super::{
    super::{
        facts::{Asked, Config, ControlPlane, Hook, Issuer, Read, Roots, Workload},
        names::{COMPONENT, CONFIG_MAP, CREATED_BY, HOOK_SECRET, HOOKS, ISSUER, ROOTS, ROOTS_KEY},
    },
    ask::Asker,
    names, objects,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use std::time::SystemTime;

const HOOKS_API: &str = "/apis/admissionregistration.k8s.io/v1";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

pub(super) async fn read(ask: &Asker<'_>, asked: &Asked) -> ControlPlane {
    let namespace = &asked.control_namespace;
    let core = |rest: &str| format!("/api/v1/namespaces/{namespace}/{rest}");
    let config_path = core(&format!("configmaps/{CONFIG_MAP}"));
    let roots_path = core(&format!("configmaps/{ROOTS}"));
    let issuer_path = core(&format!("secrets/{ISSUER}"));
    let accounts_path = core("serviceaccounts");
    let secret_paths = HOOKS.map(|hook| core(&format!("secrets/{hook}{HOOK_SECRET}")));
    let (role_path, binding_path) = (format!("{RBAC}/clusterroles"), format!("{RBAC}/clusterrolebindings"));
    let mutating_path = format!("{HOOKS_API}/mutatingwebhookconfigurations");
    let validating_path = format!("{HOOKS_API}/validatingwebhookconfigurations");
    let (config, roots, issuer, accounts, roles, bindings, mutating, validating, workloads, secrets) = tokio::join!(
        ask.get(&config_path),
        ask.get(&roots_path),
        ask.get(&issuer_path),
        ask.list(&accounts_path),
        ask.list(&role_path),
        ask.list(&binding_path),
        ask.list(&mutating_path),
        ask.list(&validating_path),
        workloads(ask, namespace),
        async {
            tokio::join!(ask.get(&secret_paths[0]), ask.get(&secret_paths[1]), ask.get(&secret_paths[2]))
        },
    );
    let roots = roots.map(|map| map.and_then(|map| Some(map["data"][ROOTS_KEY].as_str()?.to_owned())));
    let now = SystemTime::now();
    let configurations = [mutating.as_ref(), validating.as_ref(), validating.as_ref()];
    let secrets: [Read<Option<Value>>; 3] = secrets.into();
    let hooks: Vec<Read<Option<Hook>>> = secrets
        .into_iter()
        .zip(configurations)
        .zip(HOOKS)
        .map(|((secret, all), name)| Ok(hook(secret?.as_ref(), all?, name, namespace, now)))
        .collect();
    let hooks = hooks.try_into().unwrap_or([Ok(None), Ok(None), Ok(None)]);
    ControlPlane {
        config: config.map(|map| map.as_ref().map(settings)),
        accounts: accounts.map(|all| names(&all)),
        cluster_roles: roles.map(|all| names(&all)),
        cluster_role_bindings: bindings.map(|all| names(&all)),
        issuer: match (issuer, &roots) {
            (Ok(secret), Ok(roots)) => Ok(secret.map(|secret| {
                let entry = |keys: [&str; 2]| {
                    keys.iter().find_map(|key| decoded(&secret["data"][*key])).unwrap_or_default()
                };
                let (certificates, key) = (entry(["crt.pem", "tls.crt"]), entry(["key.pem", "tls.key"]));
                Issuer::read(&certificates, &key, roots.as_deref().unwrap_or_default(), now)
            })),
            (Err(unread), _) => Err(unread),
            (_, Err(unread)) => Err(unread.clone()),
        },
        roots: roots.map(|pem| pem.map(|pem| Roots::read(&pem))),
        hooks,
        mutating: mutating.map(|all| names(&all)),
        validating: validating.map(|all| names(&all)),
        workloads,
    }
}

/// Deployments of the control plane, and their ReplicaSets that want pods.
async fn workloads(ask: &Asker<'_>, namespace: &str) -> Read<Vec<Workload>> {
    let path = |plural: &str| format!("/apis/apps/v1/namespaces/{namespace}/{plural}");
    let (deployment_path, set_path) = (path("deployments"), path("replicasets"));
    let (deployments, sets) = tokio::join!(ask.list(&deployment_path), ask.list(&set_path));
    // Whatever else is in the namespace is not the control plane.
    let own = |object: &&Value| object["spec"]["template"]["metadata"]["labels"][COMPONENT].is_string();
    let deployments = deployments?;
    let mut all: Vec<Workload> =
        deployments.iter().filter(own).map(|object| objects::workload("Deployment", object)).collect();
    let sets = sets?;
    let sets = sets.iter().filter(own).map(|object| objects::workload("ReplicaSet", object));
    all.extend(sets.filter(|set| set.wanted > 0));
    Ok(all)
}

fn settings(map: &Value) -> Config {
    let text = map["data"]["values"].as_str().unwrap_or_default();
    let created_by = map["metadata"]["annotations"][CREATED_BY].as_str().unwrap_or_default().to_owned();
    let (values, flaw) = match serde_saphyr::from_str::<Value>(text) {
        Ok(values) => (values, None),
        Err(error) => (Value::Null, Some(format!("its values are no YAML: {}", error.without_snippet()))),
    };
    Config { created_by, values, flaw }
}

/// Base64 of a text.
fn decoded(value: &Value) -> Option<String> {
    String::from_utf8(STANDARD.decode(value.as_str()?).ok()?).ok()
}

/// A webhook's certificate against the configuration that names it; `None` if either is missing.
fn hook(
    secret: Option<&Value>,
    configurations: &[Value],
    name: &str,
    namespace: &str,
    now: SystemTime,
) -> Option<Hook> {
    let data = &secret?["data"];
    let chain = decoded(&data["tls.crt"]).or_else(|| decoded(&data["crt.pem"]))?;
    let mut calls = configurations
        .iter()
        .flat_map(|configuration| configuration["webhooks"].as_array().into_iter().flatten())
        .map(|webhook| &webhook["clientConfig"])
        .filter(|call| call["service"]["name"] == name && call["service"]["namespace"] == namespace);
    let ca = decoded(&calls.next()?["caBundle"]).unwrap_or_default();
    Some(Hook::read(&chain, &ca, &format!("{name}.{namespace}.svc"), now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;
    use weft_tls::{authority::Ca, certificate::to_pem, keys::Key};

    #[test]
    fn a_webhook_is_judged_with_the_ca_that_names_it() {
        let day = Duration::from_secs(24 * 3600);
        let (ca, now) = (Ca::root("hooks", day).unwrap(), SystemTime::now());
        let issued =
            ca.issue(&Key::generate().unwrap(), &["linkerd-sp-validator.mesh.svc"], day / 2, now).unwrap();
        let secret = json!({"data": {"tls.crt": STANDARD.encode(to_pem("CERTIFICATE", &issued.leaf))}});
        let call = |name: &str, bundle: String| json!({"webhooks": [{"clientConfig": {"service": {"name": name, "namespace": "mesh"}, "caBundle": bundle}}]});
        let all = [
            call("another", String::new()),
            call("linkerd-sp-validator", STANDARD.encode(ca.certificate_pem())),
        ];
        let of = |configurations: &[Value]| {
            hook(Some(&secret), configurations, "linkerd-sp-validator", "mesh", now)
        };
        assert!(of(&all).unwrap().accepted.is_ok());
        assert!(of(&all[..1]).is_none(), "nobody calls it");
        let told_nothing = [call("linkerd-sp-validator", String::new())];
        assert!(of(&told_nothing).unwrap().accepted.is_err());
        assert!(hook(None, &all, "linkerd-sp-validator", "mesh", now).is_none());
    }

    #[test]
    fn settings_that_are_no_yaml_are_a_flaw() {
        let map = |text: &str| json!({"metadata": {"annotations": {"linkerd.io/created-by": "weft/cli 1"}}, "data": {"values": text}});
        let fine = settings(&map("clusterDomain: a.b\n"));
        assert_eq!(
            (fine.created_by.as_str(), fine.values["clusterDomain"].as_str()),
            ("weft/cli 1", Some("a.b"))
        );
        assert!(settings(&map("a: [")).flaw.is_some());
    }
}
