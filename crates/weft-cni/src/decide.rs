//! Whether a pod is redirected, and how: a pure function of the pod, its namespace and the configuration.

use crate::{
    config::{Linkerd, configured, list, networks},
    error::{CniError, Kind},
};
use serde::Deserialize;
use std::collections::BTreeMap;
use weft_net::redirect::{PortRange, Redirect};

const PREFIX: &str = "config.linkerd.io/";
/// Tap and admin of the proxy: never redirected to the proxy itself.
const OWN_PORTS: PortRange = PortRange { first: 4190, last: 4191 };

/// What the plugin reads of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    pub(crate) metadata: Metadata,
    pub(crate) spec: Spec,
}

/// What it reads of a namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Namespace {
    pub(crate) metadata: Metadata,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Metadata {
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Spec {
    containers: Vec<Container>,
    init_containers: Vec<Container>,
}

#[derive(Clone, Debug, Deserialize)]
struct Container {
    name: String,
}

/// Whether this plugin has to act: there is a proxy, and nothing in the pod that sets the rules itself.
pub(crate) fn concerns(pod: &Pod) -> bool {
    let all = || pod.spec.init_containers.iter().chain(&pod.spec.containers);
    all().any(|c| c.name == "linkerd-proxy") && !all().any(|c| c.name == "linkerd-init")
}

/// The pod's redirect: the configuration, overridden by the namespace's annotations and those by the pod's.
pub(crate) fn redirect(conf: &Linkerd, pod: &Pod, namespace: &Namespace) -> Result<Redirect, CniError> {
    let set = |name: &str| {
        let key = format!("{PREFIX}{name}");
        let of = |m: &Metadata, whose: &str| {
            m.annotations.get(&key).map(|v| (format!("annotation {key} of the {whose}"), v.trim().to_owned()))
        };
        of(&pod.metadata, "pod").or_else(|| of(&namespace.metadata, "namespace"))
    };
    let port = |name, own: u16| match set(name) {
        Some((origin, text)) => number(&origin, &text, 1).map(|port: u16| port),
        None => Ok(own),
    };
    let mut inbound = configured("inbound-ports-to-ignore", &conf.inbound_ports_to_ignore)?;
    if !(OWN_PORTS.first..=OWN_PORTS.last).all(|p| inbound.iter().any(|r| (r.first..=r.last).contains(&p))) {
        inbound.push(OWN_PORTS);
    }
    if let Some((origin, text)) = set("skip-inbound-ports") {
        inbound.extend(list::<PortRange>(&origin, &text)?);
    }
    let outbound = match set("skip-outbound-ports") {
        Some((origin, text)) => list(&origin, &text)?,
        None => configured("outbound-ports-to-ignore", &conf.outbound_ports_to_ignore)?,
    };
    let subnets = match set("skip-subnets") {
        Some((origin, text)) => list(&origin, &text)?,
        None => networks("subnets-to-ignore", &conf.subnets_to_ignore)?,
    };
    let gid = match set("proxy-gid") {
        Some((origin, text)) => number(&origin, &text, -1)?,
        None => conf.proxy_gid,
    };
    Ok(Redirect {
        incoming_proxy_port: port("inbound-port", conf.incoming_proxy_port)?,
        outgoing_proxy_port: port("outbound-port", conf.outgoing_proxy_port)?,
        proxy_uid: Some(match set("proxy-uid") {
            Some((origin, text)) => number(&origin, &text, 0)?,
            None => conf.proxy_uid,
        }),
        proxy_gid: if gid < 0 { None } else { Some(number("proxy-gid", &gid.to_string(), 0)?) },
        proxy_mark: None,
        ports_to_redirect: configured("ports-to-redirect", &conf.ports_to_redirect)?,
        inbound_ports_to_ignore: inbound,
        outbound_ports_to_ignore: outbound,
        subnets_to_ignore: subnets,
        ipv6: conf.ipv6,
    })
}

fn number<T: TryFrom<i64>>(origin: &str, text: &str, least: i64) -> Result<T, CniError> {
    let parsed = text.parse::<i64>().ok().filter(|n| *n >= least).and_then(|n| T::try_from(n).ok());
    parsed.ok_or_else(|| {
        CniError::new(Kind::InvalidConfig, format!("{origin}: `{text}` is no number that fits here"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(annotations: serde_json::Value, init: &[&str], containers: &[&str]) -> Pod {
        let named = |names: &[&str]| names.iter().map(|n| json!({"name": n})).collect::<Vec<_>>();
        let spec = json!({"initContainers": named(init), "containers": named(containers)});
        serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": spec})).unwrap()
    }

    #[test]
    fn only_pods_with_a_proxy_and_without_linkerd_init() {
        assert!(concerns(&pod(json!({}), &[], &["app", "linkerd-proxy"])));
        // A native sidecar.
        assert!(concerns(&pod(json!({}), &["linkerd-network-validator", "linkerd-proxy"], &["app"])));
        assert!(!concerns(&pod(json!({}), &["linkerd-init"], &["app", "linkerd-proxy"])));
        assert!(!concerns(&pod(json!({}), &[], &["app"])));
    }

    #[test]
    fn the_pods_annotations_come_before_the_namespaces_and_those_before_the_configuration() {
        let conf: Linkerd = serde_json::from_value(json!({
            "inbound-ports-to-ignore": ["4190", "4191", "7"],
            "outbound-ports-to-ignore": ["8"],
            "subnets-to-ignore": ["10.0.0.0/8"],
        }))
        .unwrap();
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"annotations": {
            "config.linkerd.io/skip-outbound-ports": "25,465",
            "config.linkerd.io/skip-inbound-ports": "100",
            "config.linkerd.io/proxy-uid": "2200",
            "config.linkerd.io/inbound-port": "5143",
        }}}))
        .unwrap();
        let plain = redirect(&conf, &pod(json!({}), &[], &[]), &Namespace::default()).unwrap();
        assert_eq!(plain.inbound_ports_to_ignore.len(), 3);
        assert_eq!((plain.outbound_ports_to_ignore.len(), plain.subnets_to_ignore.len()), (1, 1));
        assert_eq!((plain.proxy_uid, plain.proxy_gid), (Some(2102), None));

        let pod = pod(
            json!({
                "config.linkerd.io/skip-outbound-ports": "3306",
                "config.linkerd.io/skip-subnets": "192.168.0.0/16, fd00::/8",
                "config.linkerd.io/outbound-port": "5140",
                "config.linkerd.io/proxy-gid": "2201",
            }),
            &[],
            &[],
        );
        let all = redirect(&conf, &pod, &namespace).unwrap();
        // Replaced by the pod's, appended by the namespace's.
        assert_eq!(all.outbound_ports_to_ignore, ["3306".parse().unwrap()]);
        assert_eq!(all.inbound_ports_to_ignore.last(), Some(&"100".parse().unwrap()));
        assert_eq!(all.inbound_ports_to_ignore.len(), 4);
        assert_eq!(all.subnets_to_ignore.len(), 2);
        assert_eq!((all.proxy_uid, all.proxy_gid), (Some(2200), Some(2201)));
        assert_eq!((all.incoming_proxy_port, all.outgoing_proxy_port), (5143, 5140));
    }

    #[test]
    fn the_proxys_own_ports_are_never_redirected() {
        let conf = Linkerd::default();
        let redirect = redirect(&conf, &Pod::default(), &Namespace::default()).unwrap();
        assert_eq!(redirect.inbound_ports_to_ignore, [OWN_PORTS]);
    }

    #[test]
    fn an_annotation_that_cannot_be_used_is_named() {
        let bad = |key: &str, value: &str| {
            let pod = pod(json!({ (format!("config.linkerd.io/{key}")): value }), &[], &[]);
            redirect(&Linkerd::default(), &pod, &Namespace::default()).unwrap_err()
        };
        for (key, value) in [
            ("skip-inbound-ports", "9-8"),
            ("skip-subnets", "10.0.0.0"),
            ("proxy-uid", "-1"),
            ("inbound-port", "0"),
            ("outbound-port", "70000"),
            ("proxy-gid", "x"),
        ] {
            let error = bad(key, value);
            assert_eq!(error.kind, Kind::InvalidConfig, "{key}");
            assert!(
                error.message.contains(&format!("config.linkerd.io/{key} of the pod")),
                "{}",
                error.message
            );
        }
    }
}
