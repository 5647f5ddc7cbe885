//! What a proxy beside an ExternalWorkload needs to know: what the injector puts into a pod, for a machine that nobody
//! injects.

use super::{
    containers::init_args,
    decide::{Annotations, CONFIG_PREFIX, effective},
    environment::environment,
    settings::Settings,
};
use crate::{authority::ROOTS_KEY, config::ControllerConfig};
use serde_json::{Value, json};
use weft_fault::{Code, Fault};
use weft_kube::policy::external_workload::ExternalWorkload;

/// Its token, in the folder.
pub const TOKEN_FILE: &str = "token";
/// Where a SPIRE agent listens unless its operator says otherwise.
pub const SPIRE_SOCKET: &str = "unix:///tmp/spire-agent/public/api.sock";

/// One machine, and how it differs from a pod.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    pub external: &'a ExternalWorkload,
    /// Of its namespace.
    pub namespace: &'a Annotations,
    /// The trust anchors in PEM.
    pub roots: &'a str,
    /// The folder on the machine that holds what is not in the environment.
    pub folder: &'a str,
    /// Where the control plane is reached, if its names in the cluster cannot be resolved there.
    pub host: Option<&'a str>,
    /// The SPIRE agent that proves its identity, if no token does.
    pub spire: Option<&'a str>,
}

/// Who proves that a machine is what its ExternalWorkload says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A token of this ServiceAccount, of the workload's own namespace.
    ServiceAccount(String),
    /// A SPIRE agent: the identity is nobody's whom the controller knows.
    Spire,
}

/// Who can prove the identity of an ExternalWorkload. One that belongs to a ServiceAccount of another namespace nobody
/// can: whoever may write ExternalWorkloads in one namespace must not speak for another.
pub fn proof(external: &ExternalWorkload, config: &ControllerConfig) -> Result<Proof, Fault> {
    let identity = external.spec.mesh_tls.identity.as_str();
    let refused = |why: String| {
        Fault::new(Code::NotProvable)
            .about(external.metadata.key())
            .fact("spec.meshTLS.identity", identity.to_owned())
            .fact("why", why)
    };
    if identity.starts_with("spiffe://") {
        return Ok(Proof::Spire);
    }
    let domain = format!(".serviceaccount.identity.{}.{}", config.control_namespace, config.trust_domain);
    let account = identity.strip_suffix(&domain).and_then(|account| account.split_once('.'));
    match account.filter(|(name, _)| !name.is_empty()) {
        Some((name, namespace)) if namespace == external.metadata.namespace => {
            Ok(Proof::ServiceAccount(name.to_owned()))
        }
        Some((_, namespace)) => {
            Err(refused(format!("it belongs to a ServiceAccount of namespace {namespace:?}")))
        }
        None => Err(refused(format!(
            "it is neither a SPIFFE ID nor NAME.{}{domain}",
            external.metadata.namespace
        ))),
    }
}

/// What a machine is set up with.
#[derive(Clone, Debug)]
pub struct SetUp {
    /// The proxy's variables, in order.
    pub variables: Vec<(String, String)>,
    /// The arguments of the program that redirects connections into it.
    pub redirect: Vec<String>,
    /// What its annotations say and nobody can do.
    pub warnings: Vec<String>,
}

pub fn set_up(config: &ControllerConfig, machine: &Machine<'_>) -> Result<SetUp, Fault> {
    let external = machine.external;
    let meta = &external.metadata;
    let proof = proof(external, config)?;
    let inbound = external.inbound_port();
    let mut annotations = effective((*meta.annotations).clone(), machine.namespace, false);
    // The port that peers dial.
    annotations.insert(format!("{CONFIG_PREFIX}inbound-port"), inbound.to_string());
    let settings = Settings::new(config, &annotations);
    let ports: Vec<u16> =
        external.spec.ports.iter().map(|port| port.port).filter(|port| *port != inbound).collect();
    let mut variables: Vec<(String, String)> = environment(&settings, &ports, machine.roots)
        .iter()
        // Fields of a pod: there is none.
        .filter_map(|variable| Some((text(&variable["name"])?, text(&variable["value"])?)))
        .collect();
    let mut put = |name: &str, value: Option<String>| {
        let name = format!("LINKERD2_PROXY_{name}");
        let known = variables.iter().position(|(known, _)| *known == name);
        match (known, value) {
            (Some(at), Some(value)) => variables[at].1 = value,
            (Some(at), None) => drop(variables.remove(at)),
            (None, Some(value)) => variables.push((name, value)),
            (None, None) => {}
        }
    };
    let ips: Vec<String> = external.ips().iter().map(ToString::to_string).collect();
    put("DESTINATION_CONTEXT", Some(json!({"ns": meta.namespace}).to_string()));
    put("POLICY_WORKLOAD", Some(json!({"ns": meta.namespace, "external_workload": meta.name}).to_string()));
    put("INBOUND_IPS", Some(ips.join(",")));
    put("IDENTITY_LOCAL_NAME", None);
    put("IDENTITY_SERVER_ID", Some(external.spec.mesh_tls.identity.clone()));
    put("IDENTITY_SERVER_NAME", Some(external.spec.mesh_tls.server_name.clone()));
    // Made for the files of a pod's volumes.
    put("IDENTITY_DIR", None);
    put("TRACE_ATTRIBUTES_PATH", None);
    let folder = machine.folder.trim_end_matches('/');
    put("WEFT_IDENTITY_TRUST_ANCHORS_FILE", Some(format!("{folder}/{ROOTS_KEY}")));
    match (&proof, machine.spire) {
        (Proof::ServiceAccount(_), None) => {
            put("IDENTITY_TOKEN_FILE", Some(format!("{folder}/{TOKEN_FILE}")))
        }
        (_, socket) => {
            for name in ["IDENTITY_SVC_ADDR", "IDENTITY_SVC_NAME", "IDENTITY_TOKEN_FILE"] {
                put(name, None);
            }
            let socket = socket.unwrap_or(SPIRE_SOCKET);
            put("IDENTITY_SPIRE_WORKLOAD_API_ADDRESS", Some(socket.to_owned()));
        }
    }
    if let Some(host) = machine.host {
        for (name, address) in &mut variables {
            if CONTROLLERS.contains(&name.as_str())
                && let Some((_, port)) = address.rsplit_once(':')
            {
                *address = format!("{host}:{port}");
            }
        }
    }
    let redirect = init_args(&settings);
    Ok(SetUp { variables, redirect, warnings: settings.into_warnings() })
}

/// The variables that say where the control plane is.
const CONTROLLERS: [&str; 3] = [
    "LINKERD2_PROXY_DESTINATION_SVC_ADDR",
    "LINKERD2_PROXY_POLICY_SVC_ADDR",
    "LINKERD2_PROXY_IDENTITY_SVC_ADDR",
];

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn external(identity: &str) -> ExternalWorkload {
        serde_json::from_value(json!({"metadata": {"name": "vm", "namespace": "shop",
                "annotations": {"config.linkerd.io/proxy-log-level": "debug",
                    "config.linkerd.io/skip-outbound-ports": "5432",
                    "config.linkerd.io/proxy-cpu-limit": "2000m"}},
            "spec": {"meshTLS": {"identity": identity, "serverName": "vm.shop.example"},
                "ports": [{"name": "http", "port": 8080}, {"name": "linkerd-proxy", "port": 4243}],
                "workloadIPs": [{"ip": "192.0.2.7"}]}}))
        .unwrap()
    }

    const ACCOUNT: &str = "vm.shop.serviceaccount.identity.linkerd.cluster.local";

    fn of(identity: &str, spire: Option<&str>, host: Option<&str>) -> (BTreeMap<String, String>, SetUp) {
        let config = crate::index::tests::config();
        let external = external(identity);
        let namespace: Annotations = [
            ("config.linkerd.io/proxy-log-level".to_owned(), "trace".to_owned()),
            ("config.linkerd.io/default-inbound-policy".to_owned(), "all-authenticated".to_owned()),
            ("config.linkerd.io/proxy-log-format".to_owned(), "xml".to_owned()),
        ]
        .into();
        let machine = Machine {
            external: &external,
            namespace: &namespace,
            roots: "ROOTS",
            folder: "/etc/weft/",
            host,
            spire,
        };
        let set_up = set_up(&config, &machine).unwrap();
        let short = |name: &str| name.strip_prefix("LINKERD2_PROXY_").unwrap_or(name).to_owned();
        (set_up.variables.iter().map(|(name, value)| (short(name), value.clone())).collect(), set_up)
    }

    #[test]
    fn a_machine_gets_what_a_pod_gets_but_for_what_names_a_pod() {
        let (env, set_up) = of(ACCOUNT, None, None);
        for (name, value) in [
            ("DESTINATION_CONTEXT", r#"{"ns":"shop"}"#),
            ("IDENTITY_SERVER_ID", ACCOUNT),
            ("IDENTITY_SERVER_NAME", "vm.shop.example"),
            ("IDENTITY_TOKEN_FILE", "/etc/weft/token"),
            ("WEFT_IDENTITY_TRUST_ANCHORS_FILE", "/etc/weft/ca-bundle.crt"),
            ("IDENTITY_TRUST_ANCHORS", "ROOTS"),
            ("INBOUND_LISTEN_ADDR", "0.0.0.0:4243"),
            ("INBOUND_IPS", "192.0.2.7"),
            ("INBOUND_PORTS", "8080"),
            // Its own annotation, and its namespace's where it has none.
            ("LOG", "debug"),
            ("INBOUND_DEFAULT_POLICY", "all-authenticated"),
            ("CORES", "2"),
            ("DESTINATION_SVC_ADDR", "linkerd-dst-headless.linkerd.svc.cluster.local.:8086"),
        ] {
            assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
        }
        for absent in
            ["IDENTITY_LOCAL_NAME", "IDENTITY_DIR", "IDENTITY_SPIRE_WORKLOAD_API_ADDRESS", "_pod_ns"]
        {
            assert!(!env.contains_key(absent), "{absent}");
        }
        assert!(env.values().all(|value| !value.contains("$(")), "{env:?}");
        assert!(set_up.warnings.iter().any(|w| w.contains("proxy-log-format")), "{:?}", set_up.warnings);
        let redirect = set_up.redirect.join(" ");
        assert!(redirect.contains("--incoming-proxy-port 4243"), "{redirect}");
        assert!(redirect.contains("--outbound-ports-to-ignore 5432"), "{redirect}");
    }

    #[test]
    fn where_spire_proves_it_nobody_asks_for_a_token() {
        for (identity, given, socket) in [
            ("spiffe://root.example/vm", None, SPIRE_SOCKET),
            ("spiffe://root.example/vm", Some("unix:///run/spire.sock"), "unix:///run/spire.sock"),
            (ACCOUNT, Some("unix:///run/spire.sock"), "unix:///run/spire.sock"),
        ] {
            let (env, _) = of(identity, given, None);
            assert_eq!(env["IDENTITY_SPIRE_WORKLOAD_API_ADDRESS"], socket);
            assert!(!env.contains_key("IDENTITY_TOKEN_FILE") && !env.contains_key("IDENTITY_SVC_ADDR"));
        }
    }

    #[test]
    fn the_control_plane_may_be_reached_at_another_host() {
        let (env, _) = of(ACCOUNT, None, Some("mesh.example"));
        for (name, port) in [("DESTINATION", 8086), ("POLICY", 8090), ("IDENTITY", 8080)] {
            assert_eq!(env[&format!("{name}_SVC_ADDR")], format!("mesh.example:{port}"));
            // It must prove the same identity there.
            assert!(env[&format!("{name}_SVC_NAME")].contains(".linkerd.serviceaccount.identity."));
        }
    }

    #[test]
    fn an_identity_is_proved_in_its_own_namespace_or_by_spire() {
        let config = crate::index::tests::config();
        let proof = |identity: &str| proof(&external(identity), &config);
        assert_eq!(proof(ACCOUNT).unwrap(), Proof::ServiceAccount("vm".to_owned()));
        assert_eq!(proof("spiffe://root.example/vm").unwrap(), Proof::Spire);
        for (identity, why) in [
            ("admin.prod.serviceaccount.identity.linkerd.cluster.local", "namespace \"prod\""),
            (".shop.serviceaccount.identity.linkerd.cluster.local", "neither"),
            ("vm.shop.serviceaccount.identity.linkerd.other.domain", "neither"),
            ("vm.example", "neither"),
        ] {
            let fault = proof(identity).unwrap_err();
            assert_eq!(fault.code(), Code::NotProvable);
            assert!(fault.record().fact("why").unwrap().contains(why), "{fault:?}");
        }
    }
}
