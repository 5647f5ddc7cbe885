//! Whole environments, good and bad.

use super::{Config, ControlAddr, LogFormat, table};
use std::{collections::BTreeSet, collections::HashMap, net::SocketAddr, time::Duration};
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
    .map(|(name, value)| (table::full(name), value.to_string()))
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
    assert_eq!(config.socket_mark, None);
    assert_eq!(config.pod_name(), "shop/web-0");
    let identity = ControlAddr { host: "::1".into(), port: 8080, name: None };
    assert_eq!(config.control.identity, Some(identity));
    assert!(config.tap.is_none() && config.trace.is_none() && config.access_log.is_none());
    assert_eq!(config.warnings.len(), 1, "an open default policy is told: {:?}", config.warnings);
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
    // Ports that require an identity have the authenticated kind of it.
    for (name, of_all, of_identity) in [
        ("all-unauthenticated", "all-unauthenticated", "all-authenticated"),
        ("all-authenticated", "all-authenticated", "all-authenticated"),
        ("deny", "deny", "deny"),
    ] {
        let name = format!("INBOUND_DEFAULT_POLICY={name}");
        let inbound = read(&[&name, "INBOUND_PORTS_REQUIRE_IDENTITY=8080,9000-9001"]).unwrap().inbound;
        assert_eq!(inbound.default_policy.meta.name(), of_all);
        assert_eq!(inbound.identity_policy.meta.name(), of_identity);
        assert_eq!(inbound.identity_ports, [8080, 9000, 9001].into());
    }
    let deny = read(&["INBOUND_DEFAULT_POLICY=deny"]).unwrap().inbound.default_policy;
    assert!(deny.authorizations.is_empty());
    let open = read(&[]).unwrap().inbound.default_policy;
    assert_eq!(open.authorizations[0].authn, Authn::Unauthenticated);
}

#[test]
fn every_variable_of_the_table_is_read_and_no_other() {
    let read = super::parse::Vars::names_read();
    let declared: BTreeSet<String> = table::GROUPS
        .iter()
        .flat_map(|(_, variables)| *variables)
        .filter(|variable| variable.form != table::Form::Dead)
        .flat_map(table::Variable::names)
        .collect();
    assert_eq!(read, declared);
}

#[test]
fn variables_that_do_nothing_are_named_with_what_may_be_meant() {
    let names = ["INBOUND_PORTS_REQUIRE_TLS", "INBOUND_DETECT_TIMEOUTS", "NONSENSE", "CORES"];
    let mut warnings = Vec::new();
    let names = names.map(|name| format!("LINKERD2_PROXY_{name}").into());
    super::env::useless(names.into_iter().chain(["PATH".into()]), &mut warnings);
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[0].contains("is LINKERD2_PROXY_INBOUND_DETECT_TIMEOUT meant?"), "{warnings:?}");
    assert!(warnings[1].contains("REQUIRE_TLS has no effect"), "{warnings:?}");
    assert!(warnings[2].contains("NONSENSE is not known"), "{warnings:?}");
}

#[test]
fn a_gateways_own_port_is_watched() {
    let config = read(&["INBOUND_GATEWAY_SUFFIXES=svc.cluster.local."]).unwrap();
    assert!(config.inbound.ports.contains(&4143));
    assert!(!read(&[]).unwrap().inbound.ports.contains(&4143));
}

#[test]
fn spire_needs_a_uri_and_nothing_of_the_identity_service() {
    let spire = "IDENTITY_SPIRE_SOCKET=unix:///run/spire/agent.sock";
    let less = ["IDENTITY_SVC_ADDR=", "IDENTITY_TOKEN_FILE=", "IDENTITY_TRUST_ANCHORS=", spire];
    assert!(wrong(&less)[0].starts_with("IDENTITY_SERVER_ID "), "{:?}", wrong(&less));
    let uri = ["IDENTITY_SERVER_ID=spiffe://a/b", "IDENTITY_SERVER_NAME=web.shop"];
    let config = read(&[&less[..], &uri].concat()).unwrap();
    assert_eq!(config.identity.spire.unwrap().to_str(), Some("/run/spire/agent.sock"));
    assert_eq!(config.control.identity, None);
}

#[test]
fn spans_are_described_by_the_strongest_source() {
    let dir = tempfile::tempdir().unwrap();
    let labels = dir.path().join("labels");
    std::fs::write(&labels, "app=\"web\"\nservice.name=\"pod\"\nrack=\"a\"\n").unwrap();
    let config = read(&[
        "TRACE_COLLECTOR_SVC_ADDR=127.0.0.1:4317",
        "TRACE_SERVICE_NAME=plain",
        &format!("TRACE_ATTRIBUTES_PATH={}", labels.display()),
        "TRACE_EXTRA_ATTRIBUTES=rack=b\napp=extra",
        "OTEL_RESOURCE_ATTRIBUTES=app=otel, zone=z",
    ])
    .unwrap();
    let attributes = config.trace.unwrap().attributes;
    let expected = [("app", "otel"), ("rack", "b"), ("service.name", "pod"), ("zone", "z")];
    assert_eq!(attributes, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    assert_eq!(wrong(&["TRACE_COLLECTOR_SVC_ADDR=collector:4317"]), ["TRACE_COLLECTOR_SVC_NAME (not set)"]);
}

#[test]
fn limits_of_http2_are_those_of_its_rfc() {
    let told =
        wrong(&["INBOUND_SERVER_HTTP2_MAX_FRAME_SIZE=100", "HTTP2_INITIAL_STREAM_WINDOW_SIZE=2147483648"]);
    assert!(told.iter().any(|told| told.starts_with("INBOUND_SERVER_HTTP2_MAX_FRAME_SIZE")), "{told:?}");
    assert!(told.iter().any(|told| told.starts_with("HTTP2_INITIAL_STREAM_WINDOW_SIZE")), "{told:?}");
    let h2 = read(&[
        "HTTP2_INITIAL_STREAM_WINDOW_SIZE=1000",
        "INBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE=2000",
    ]);
    let h2 = h2.unwrap();
    assert_eq!(
        (h2.inbound.h2.initial_stream_window, h2.outbound.h2.initial_stream_window),
        (Some(2000), Some(1000))
    );
}

#[test]
fn the_reference_page_is_what_the_table_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
    let page = super::page();
    if std::env::var_os("WEFT_WRITE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/config.md is not what the table says; run WEFT_WRITE_DOCS=1 cargo test -p weft-proxy --lib config"
    );
}
