//! The policy that holds for a port until the controller speaks.

use super::parse::Vars;
use ipnet::IpNet;
use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};
use weft_model::{
    inbound::{Authn, Authorization, HttpPolicy, Network, Protocol, ServerPolicy, Suffix},
    meta::Meta,
};

pub(super) fn default_policy(
    vars: &mut Vars<'_>,
    cluster: &[IpNet],
    detect_timeout: Option<Duration>,
) -> Option<ServerPolicy> {
    let detect_timeout = detect_timeout.unwrap_or_default();
    vars.parse("INBOUND_DEFAULT_POLICY", |name| server_policy(name, cluster, detect_timeout))
}

/// The same, for ports that require an identity: what is allowed to all is allowed to those that prove one.
pub(super) fn identity_policy(
    vars: &mut Vars<'_>,
    cluster: &[IpNet],
    detect_timeout: Option<Duration>,
) -> Option<ServerPolicy> {
    let detect_timeout = detect_timeout.unwrap_or_default();
    vars.parse("INBOUND_DEFAULT_POLICY", |name| {
        server_policy(&name.replace("unauthenticated", "authenticated"), cluster, detect_timeout)
    })
}

/// The policy that one of Linkerd's default policy names stands for.
pub(super) fn server_policy(name: &str, cluster: &[IpNet], detect_timeout: Duration) -> Option<ServerPolicy> {
    let anywhere = || -> Vec<IpNet> {
        vec![
            IpNet::new(IpAddr::from([0u8; 4]), 0).expect("a prefix of 0 is valid"),
            IpNet::new(IpAddr::from([0u8; 16]), 0).expect("a prefix of 0 is valid"),
        ]
    };
    let any_identity = || Authn::Identities { exact: BTreeSet::new(), suffixes: vec![Suffix(String::new())] };
    let (networks, authn) = match name {
        "deny" => (Vec::new(), None),
        "all-authenticated" => (anywhere(), Some(any_identity())),
        "all-unauthenticated" => (anywhere(), Some(Authn::Unauthenticated)),
        "cluster-authenticated" if !cluster.is_empty() => (cluster.to_vec(), Some(any_identity())),
        "cluster-unauthenticated" if !cluster.is_empty() => (cluster.to_vec(), Some(Authn::Unauthenticated)),
        "audit" if !cluster.is_empty() => (anywhere(), Some(any_identity())),
        _ => return None,
    };
    let meta = Arc::new(Meta::default_named(name));
    let networks: Vec<Network> =
        networks.into_iter().map(|net| Network { net, except: Vec::new() }).collect();
    let authorizations = authn.into_iter().map(|authn| Authorization {
        meta: meta.clone(),
        networks: networks.clone(),
        authn,
    });
    Some(ServerPolicy {
        authorizations: authorizations.collect(),
        audit: name == "audit",
        protocol: Protocol::Detect { timeout: detect_timeout, http: HttpPolicy::default() },
        meta,
    })
}
