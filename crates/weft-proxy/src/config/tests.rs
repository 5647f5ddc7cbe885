//! Whole environments, good and bad.

use super::{Config, ControlAddr, LogFormat};
use std::{collections::HashMap, net::SocketAddr, time::Duration};
use weft_fault::Code;
use weft_model::{
    identity::{ClientTls, Identity, NoTls},
    inbound::{Authn, Caller},
};

/// The least that starts a proxy, with changes: `NAME=value`, or `NAME=` to unset one.
fn read(changes: &[&str]) -> Result<Config, Vec<weft_fault::Fault>> {
    let mut all: HashMap<String, String> = [
        "DESTINATION_SVC_ADDR=localhost.:8086",
        "POLICY_SVC_ADDR=127.0.0.1:8090",
        "IDENTITY_SVC_ADDR=[::1]:8080",
        "POLICY_WORKLOAD={\"ns\":\"shop\",\"pod\":\"web-0\"}",
        "IDENTITY_LOCAL_NAME=web.shop.serviceaccount.identity.linkerd.cluster.local",
        "IDENTITY_TRUST_ANCHORS=(PEM)",
        "IDENTITY_TOKEN_FILE=/token",
    ]
    .iter()
    .chain(changes)
    .map(|pair| pair.split_once('=').expect("a pair"))
    .map(|(name, value)| (format!("LINKERD2_PROXY_{name}"), value.to_string()))
    .collect();
    all.retain(|_, value| !value.is_empty());
    Config::from_lookup(|name| all.get(name).map(Into::into))
}

/// What is wrong, as `NAME value`.
fn wrong(changes: &[&str]) -> Vec<String> {
    let Err(faults) = read(changes) else { return Vec::new() };
    let told = faults.iter().map(|fault| {
        assert_eq!(fault.code(), Code::BadVariable);
        let record = fault.record();
        assert!(record.fact("expected").is_some());
        let subject = record.subject.clone().unwrap_or_default();
        let name = subject.strip_prefix("LINKERD2_PROXY_").expect("the full name");
        format!("{name} {}", record.fact("value").unwrap_or_default())
    });
    told.collect()
}

#[test]
fn the_defaults_are_linkerds() {
    let config = read(&[]).unwrap();
    assert_eq!(config.inbound.listen, SocketAddr::from(([0, 0, 0, 0], 4143)));
    assert_eq!(config.outbound.listen, [SocketAddr::from(([127, 0, 0, 1], 4140))]);
    assert_eq!(config.inbound.connect_timeout, Duration::from_millis(300));
    assert_eq!(config.outbound.connect_timeout, Duration::from_secs(1));
    assert_eq!(config.outbound.discovery_idle, Duration::from_secs(5));
    assert_eq!(config.inbound.default_policy.meta.name(), "all-unauthenticated");
    assert_eq!(config.profile_suffixes, ["svc.cluster.local"]);
    assert_eq!(config.shutdown_grace, Duration::from_secs(120));
    assert_eq!(config.log.format, LogFormat::Plain);
    assert!(config.inbound.ports.contains(&4191), "the admin port is always watched");
    assert_eq!(config.pod_name(), "shop/web-0");
    let identity = ControlAddr { host: "::1".into(), port: 8080, name: None };
    assert_eq!(config.control.identity, identity);
}

#[test]
fn an_injected_environment_is_understood() {
    let config = read(&[
        "INBOUND_LISTEN_ADDR=[::]:4143",
        "OUTBOUND_LISTEN_ADDRS=127.0.0.1:4140,[::1]:4140",
        "DESTINATION_SVC_ADDR=linkerd-dst-headless.linkerd.svc.cluster.local.:8086",
        "DESTINATION_SVC_NAME=linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local",
        "INBOUND_PORTS=80,8000-8002,9000",
        "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION=25,3306",
        "INBOUND_IPS=10.77.0.9,fd00::9",
        "INBOUND_DETECT_TIMEOUT=365d",
        "INBOUND_ACCEPT_KEEPALIVE=10000ms",
        "POLICY_CLUSTER_NETWORKS=10.77.0.0/16,fd00::/8",
        "DESTINATION_PROFILE_NETWORKS=10.78.0.0/16",
        "INBOUND_DEFAULT_POLICY=cluster-authenticated",
        "LOG_FORMAT=json",
    ])
    .unwrap();
    assert_eq!(config.outbound.listen.len(), 2);
    let destination = &config.control.destination;
    assert_eq!(destination.host, "linkerd-dst-headless.linkerd.svc.cluster.local");
    assert!(destination.name.is_some());
    assert_eq!(config.inbound.ports.iter().copied().collect::<Vec<_>>(), [80, 4191, 8000, 8001, 8002, 9000]);
    assert_eq!(config.inbound.sockets.accept_keepalive, Some(Duration::from_secs(10)));
    assert!(config.in_cluster("10.77.3.4".parse().unwrap()));
    assert!(config.in_cluster("10.78.3.4".parse().unwrap()), "profile networks are in the cluster too");
    assert!(!config.in_cluster("192.0.2.1".parse().unwrap()));
    assert!(config.is_own_listener("10.77.0.9:4143".parse().unwrap()));
    assert!(!config.is_own_listener("10.77.0.8:4143".parse().unwrap()));
    assert!(config.is_own_listener("127.0.0.1:4140".parse().unwrap()));
    assert_eq!(config.log.format, LogFormat::Json);

    let policy = &config.inbound.default_policy;
    let allows = |ip: &str, tls: &ClientTls| {
        policy.authorizations.iter().any(|a| a.allows(&Caller { addr: ip.parse().unwrap(), tls }))
    };
    let known = ClientTls::Terminated(Some(Identity::parse("a.b").unwrap()));
    assert!(allows("10.77.0.1", &known));
    assert!(!allows("192.0.2.1", &known));
    assert!(!allows("10.77.0.1", &ClientTls::None(NoTls::NoTlsFromRemote)));
}

#[test]
fn every_mistake_is_told_at_once() {
    let told = wrong(&[
        "INBOUND_DETECT_TIMEOUT=10",
        "OUTBOUND_LISTEN_ADDRS=127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
        "INBOUND_PORTS=80-79",
        "INBOUND_DEFAULT_POLICY=cluster-authenticated",
        "DESTINATION_SVC_ADDR=controller:8086",
        "POLICY_SVC_ADDR=",
        "POLICY_WORKLOAD=",
        "IDENTITY_LOCAL_NAME=not a name",
        "CONTROL_STREAM_INITIAL_TIMEOUT=5s",
        "CONTROL_STREAM_LIFETIME=1s",
        "IDENTITY_DISABLED=1",
    ]);
    for expected in [
        "INBOUND_DETECT_TIMEOUT \"10\"",
        "INBOUND_PORTS \"80-79\"",
        "INBOUND_DEFAULT_POLICY \"cluster-authenticated\"",
        "DESTINATION_SVC_NAME (not set)",
        "POLICY_SVC_ADDR (not set)",
        "POLICY_WORKLOAD (not set)",
        "IDENTITY_LOCAL_NAME \"not a name\"",
        "IDENTITY_DISABLED \"1\"",
    ] {
        assert_eq!(told.iter().filter(|told| told.as_str() == expected).count(), 1, "{expected}: {told:?}");
    }
    assert!(told.iter().any(|told| told.starts_with("OUTBOUND_LISTEN_ADDRS")), "{told:?}");
    assert!(told.iter().any(|told| told.starts_with("CONTROL_STREAM_INITIAL_TIMEOUT")), "{told:?}");
    assert_eq!(told.len(), 10, "{told:?}");
}

#[test]
fn a_uri_identity_needs_a_server_name() {
    assert_eq!(wrong(&["IDENTITY_SERVER_ID=spiffe://a/b"]), ["IDENTITY_SERVER_NAME (not set)"]);
    let config = read(&["IDENTITY_SERVER_ID=spiffe://a/b", "IDENTITY_SERVER_NAME=web.shop"]).unwrap();
    assert!(config.identity.local_name.is_uri());
    assert_eq!(config.identity.server_name.as_str(), "web.shop");
}

#[test]
fn the_default_policies_are_all_known() {
    for name in ["deny", "all-authenticated", "all-unauthenticated"] {
        assert_eq!(wrong(&[&format!("INBOUND_DEFAULT_POLICY={name}")]), Vec::<String>::new());
    }
    for name in ["cluster-authenticated", "cluster-unauthenticated", "audit"] {
        let policy = format!("INBOUND_DEFAULT_POLICY={name}");
        assert_eq!(wrong(&[&policy]).len(), 1);
        let config = read(&[&policy, "POLICY_CLUSTER_NETWORKS=10.0.0.0/8"]).unwrap();
        assert_eq!(config.inbound.default_policy.audit, name == "audit");
    }
    let deny = read(&["INBOUND_DEFAULT_POLICY=deny"]).unwrap().inbound.default_policy;
    assert!(deny.authorizations.is_empty());
    let open = read(&[]).unwrap().inbound.default_policy;
    assert_eq!(open.authorizations[0].authn, Authn::Unauthenticated);
}
