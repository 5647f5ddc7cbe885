//! What the runtime hands over: the network configuration on standard input, and the `CNI_*` variables.

use crate::error::{CniError, Kind};
use serde::Deserialize;
use serde_json::Value;
use std::{collections::BTreeMap, path::PathBuf};
use weft_net::redirect::{PortRange, Subnet, set_up::Mode};

/// The versions of the specification that this plugin speaks.
pub(crate) const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The newest, for errors before the version is known.
pub(crate) const NEWEST: &str = "1.1.0";

/// The configuration, with the field names of `linkerd-cni`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NetConf {
    pub(crate) cni_version: String,
    /// What the plugin before this one did: handed on as it is.
    #[serde(default)]
    pub(crate) prev_result: Option<Value>,
    #[serde(default)]
    pub(crate) kubernetes: Kubernetes,
    #[serde(default)]
    pub(crate) linkerd: Linkerd,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Kubernetes {
    /// The file that leads to the API server.
    #[serde(default)]
    pub(crate) kubeconfig: PathBuf,
}

/// The mesh's own settings, which annotations may override.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct Linkerd {
    pub(crate) incoming_proxy_port: u16,
    pub(crate) outgoing_proxy_port: u16,
    pub(crate) proxy_uid: u32,
    /// Negative: none.
    pub(crate) proxy_gid: i64,
    pub(crate) ports_to_redirect: Vec<Ports>,
    pub(crate) inbound_ports_to_ignore: Vec<Ports>,
    pub(crate) outbound_ports_to_ignore: Vec<Ports>,
    pub(crate) subnets_to_ignore: Vec<String>,
    pub(crate) simulate: bool,
    pub(crate) iptables_mode: String,
    pub(crate) ipv6: bool,
}

impl Default for Linkerd {
    fn default() -> Self {
        Linkerd {
            incoming_proxy_port: 4143,
            outgoing_proxy_port: 4140,
            proxy_uid: 2102,
            proxy_gid: -1,
            ports_to_redirect: Vec::new(),
            inbound_ports_to_ignore: Vec::new(),
            outbound_ports_to_ignore: Vec::new(),
            subnets_to_ignore: Vec::new(),
            simulate: false,
            iptables_mode: "nft".to_owned(),
            ipv6: true,
        }
    }
}

/// Configurations write ports as numbers and as text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Ports {
    Number(u16),
    Text(String),
}

impl Linkerd {
    pub(crate) fn mode(&self) -> Result<Mode, CniError> {
        self.iptables_mode
            .parse()
            .map_err(|e| CniError::new(Kind::InvalidConfig, format!("iptables-mode: {e}")))
    }
}

/// A list of ports in the configuration.
pub(crate) fn configured(field: &str, ports: &[Ports]) -> Result<Vec<PortRange>, CniError> {
    let mut ranges = Vec::new();
    for port in ports {
        match port {
            Ports::Number(port) => ranges.extend(list::<PortRange>(field, &port.to_string())?),
            Ports::Text(text) => ranges.extend(list::<PortRange>(field, text)?),
        }
    }
    Ok(ranges)
}

/// Networks in the configuration.
pub(crate) fn networks(field: &str, subnets: &[String]) -> Result<Vec<Subnet>, CniError> {
    Ok(subnets.iter().map(|s| list(field, s)).collect::<Result<Vec<_>, _>>()?.concat())
}

/// A list with commas, as configurations and annotations write it.
pub(crate) fn list<T>(origin: &str, text: &str) -> Result<Vec<T>, CniError>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    items
        .map(|item| item.parse().map_err(|e| CniError::new(Kind::InvalidConfig, format!("{origin}: {e}"))))
        .collect()
}

/// Reads the configuration; its version is checked first, since everything else depends on it.
pub(crate) fn read(text: &[u8]) -> Result<NetConf, CniError> {
    let undecodable = |e: serde_json::Error| {
        CniError::new(Kind::Decode, "the network configuration on standard input cannot be read")
            .details(e.to_string())
    };
    let value: Value = serde_json::from_slice(text).map_err(undecodable)?;
    let version = value["cniVersion"].as_str().unwrap_or_default();
    if !VERSIONS.contains(&version) {
        let known = VERSIONS.join(", ");
        return Err(CniError::new(
            Kind::IncompatibleVersion,
            format!("the configuration's cniVersion `{version}` is none of {known}"),
        ));
    }
    serde_json::from_value(value).map_err(undecodable)
}

/// The pod for which the runtime calls, if it is Kubernetes that calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// `CNI_ARGS`: `IgnoreUnknown=1;K8S_POD_NAMESPACE=…;K8S_POD_NAME=…`.
pub(crate) fn pod_name(arguments: &str) -> Option<PodName> {
    let pairs: BTreeMap<&str, &str> = arguments.split(';').filter_map(|pair| pair.split_once('=')).collect();
    let of = |key: &str| pairs.get(key).filter(|v| !v.is_empty()).map(|v| (*v).to_owned());
    Some(PodName { namespace: of("K8S_POD_NAMESPACE")?, name: of("K8S_POD_NAME")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_of_linkerd_cni_is_read() {
        let text = br#"{"cniVersion": "0.3.1", "name": "linkerd-cni", "type": "linkerd-cni", "log_level": "info",
            "prevResult": {"ips": []},
            "policy": {"type": "k8s"},
            "kubernetes": {"kubeconfig": "/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig"},
            "linkerd": {"incoming-proxy-port": 4143, "outgoing-proxy-port": 4140, "proxy-uid": 2102, "proxy-gid": 7,
              "ports-to-redirect": [80], "inbound-ports-to-ignore": ["4190", "4191-4192"],
              "outbound-ports-to-ignore": ["443,6443"], "simulate": false, "use-wait-flag": false,
              "iptables-mode": "plain", "ipv6": false}}"#;
        let conf = read(text).unwrap();
        assert_eq!(conf.linkerd.mode(), Ok(Mode::Plain));
        assert_eq!(conf.linkerd.proxy_gid, 7);
        let ports = |p: &[Ports]| configured("x", p).unwrap().len();
        assert_eq!(ports(&conf.linkerd.ports_to_redirect), 1);
        assert_eq!(ports(&conf.linkerd.inbound_ports_to_ignore), 2);
        assert_eq!(ports(&conf.linkerd.outbound_ports_to_ignore), 2);
    }

    #[test]
    fn what_cannot_be_used_has_the_specifications_code() {
        let kind = |text: &str| read(text.as_bytes()).unwrap_err().kind;
        assert_eq!(kind("{"), Kind::Decode);
        assert_eq!(kind(r#"{"cniVersion": "0.2.0"}"#), Kind::IncompatibleVersion);
        assert_eq!(kind(r#"{"cniVersion": "1.0.0", "linkerd": {"proxy-uid": "x"}}"#), Kind::Decode);
        let bad = configured("inbound-ports-to-ignore", &[Ports::Text("9-8".into())]).unwrap_err();
        assert_eq!(bad.kind, Kind::InvalidConfig);
        assert!(bad.message.contains("inbound-ports-to-ignore"), "{}", bad.message);
    }

    #[test]
    fn the_pod_is_named_by_the_arguments() {
        let pod = pod_name(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1;K8S_POD_INFRA_CONTAINER_ID=x",
        );
        assert_eq!(pod, Some(PodName { namespace: "shop".into(), name: "web-1".into() }));
        assert_eq!(pod_name(""), None);
        assert_eq!(pod_name("K8S_POD_NAMESPACE=;K8S_POD_NAME=a"), None);
    }
}
