//! Everything that is no route.

use super::{
    Write,
    condition::{ACCEPTED, Condition, empty, of_object},
    overlap,
};
use crate::{
    config::ControllerConfig,
    index::reader::{Reader, RouteRef},
    view::{authorization::required, inbound::limited, service_settings::problems},
};
use jiff::Timestamp;
use serde_json::json;
use std::sync::Arc;
use weft_kube::{
    core::service::Service,
    policy::{
        authorization::AuthorizationPolicy, rate_limit::HttpLocalRateLimitPolicy, reference::POLICY_GROUP,
        server::Server,
    },
};

pub(super) fn servers(reader: &Reader<'_>, _: &ControllerConfig, now: Timestamp) -> Vec<Write> {
    let wanted = |server: &Server| {
        let overlap = overlap::of_server(reader, server);
        let mut conditions = vec![match server.flaw() {
            None if overlap.is_void() => {
                Condition::no(ACCEPTED, "ServerOverlap", "older Servers have all ports that it selects")
            }
            flaw => Condition::accepted(flaw),
        }];
        conditions.extend(overlap.condition());
        conditions
    };
    let all = reader.index().servers.all();
    all.filter_map(|s| of_object(&**s, &s.status, &wanted(s), now)).collect()
}

pub(super) fn server_authorizations(
    reader: &Reader<'_>,
    config: &ControllerConfig,
    now: Timestamp,
) -> Vec<Write> {
    let all = reader.index().server_authorizations.all();
    all.filter_map(|object| {
        let accepted = match object.flaw(config.identities()) {
            None if !reader.servers(&object.metadata.namespace).any(|s| object.names(s)) => Condition::no(
                ACCEPTED,
                "NoMatchingTarget",
                "spec.server: there is no such Server in this namespace",
            ),
            flaw => Condition::accepted(flaw),
        };
        of_object(&**object, &object.status, &[accepted], now)
    })
    .collect()
}

pub(super) fn authorization_policies(
    reader: &Reader<'_>,
    config: &ControllerConfig,
    now: Timestamp,
) -> Vec<Write> {
    let wanted = |policy: &AuthorizationPolicy| {
        if let Some(flaw) = policy.flaw() {
            return Condition::accepted(Some(flaw));
        }
        if let Some(missing) = missing_target(reader, policy) {
            return Condition::no(ACCEPTED, "NoMatchingTarget", missing);
        }
        match required(reader, config, policy) {
            Ok(_) => Condition::yes(ACCEPTED),
            Err(why) => Condition::no(ACCEPTED, "AuthenticationNotFound", why),
        }
    };
    let all = reader.index().authorizations.all();
    all.filter_map(|p| of_object(&**p, &p.status, &[wanted(p)], now)).collect()
}

fn missing_target(reader: &Reader<'_>, policy: &AuthorizationPolicy) -> Option<String> {
    let target = &policy.spec.target_ref;
    let namespace = &policy.metadata.namespace;
    let found = if target.is("", "Namespace") {
        true
    } else if target.is(POLICY_GROUP, "Server") {
        reader.servers(namespace).any(|s| s.metadata.name == target.name)
    } else {
        let is_it = |r: &RouteRef<'_>| target.is(r.group, r.kind.as_str()) && r.meta.name == target.name;
        reader.routes(namespace).iter().any(is_it)
    };
    (!found).then(|| format!("spec.targetRef: {} {namespace}/{} does not exist", target.kind, target.name))
}

pub(super) fn authentications(reader: &Reader<'_>, _: &ControllerConfig, now: Timestamp) -> Vec<Write> {
    let index = reader.index();
    let mesh_tls = index.mesh_tls.all();
    let mesh_tls = mesh_tls.filter_map(|o| of_object(&**o, &o.status, &[Condition::accepted(o.flaw())], now));
    let networks = index.networks.all();
    let networks = networks.filter_map(|o| of_object(&**o, &o.status, &[Condition::accepted(o.flaw())], now));
    mesh_tls.chain(networks).collect()
}

pub(super) fn rate_limits(reader: &Reader<'_>, _: &ControllerConfig, now: Timestamp) -> Vec<Write> {
    let all = reader.index().rate_limits.all();
    all.filter_map(|limit| {
        let accepted = rate_limit(reader, limit);
        let mut write = of_object(&**limit, &limit.status, &[accepted], now)?;
        let target = &limit.spec.target_ref;
        write.status["targetRef"] = json!({"group": target.group, "kind": target.kind, "name": target.name});
        Some(write)
    })
    .collect()
}

fn rate_limit(reader: &Reader<'_>, limit: &Arc<HttpLocalRateLimitPolicy>) -> Condition {
    if let Some(flaw) = limit.flaw() {
        return Condition::accepted(Some(flaw));
    }
    let (namespace, name) = (&limit.metadata.namespace, &limit.spec.target_ref.name);
    let Some(server) = reader.servers(namespace).find(|s| s.metadata.name == *name) else {
        return Condition::no(
            ACCEPTED,
            "NoMatchingTarget",
            format!("Server {namespace}/{name} does not exist"),
        );
    };
    match limited(reader, server) {
        Err(why) => Condition::no(ACCEPTED, "UnsupportedValue", why),
        Ok(Some(first)) if first.metadata.name != limit.metadata.name => Condition::no(
            ACCEPTED,
            "RateLimitReasonAlreadyExists",
            format!("{} is older and limits Server {name}", first.metadata.name),
        ),
        Ok(_) => Condition::yes(ACCEPTED),
    }
}

pub(super) fn egress_networks(reader: &Reader<'_>, config: &ControllerConfig, now: Timestamp) -> Vec<Write> {
    let all = reader.index().egress_networks.all();
    all.filter_map(|network| {
        let annotated = problems(&network.metadata.annotations).into_iter().next();
        let annotated = annotated.map(|problem| format!("metadata.annotations: {problem}"));
        let accepted = match network.flaw().or(annotated) {
            Some(flaw) => Condition::accepted(Some(flaw)),
            None => match overlap::with_cluster(network, &config.cluster_networks) {
                Some(why) => Condition::no(ACCEPTED, "EgressReasonNetworkOverlap", why),
                None => Condition::yes(ACCEPTED),
            },
        };
        let conflict = overlap::of_egress_network(reader, network);
        let wanted: Vec<Condition> = std::iter::once(accepted).chain(conflict).collect();
        of_object(&**network, &network.status, &wanted, now)
    })
    .collect()
}

pub(super) fn service_profiles(reader: &Reader<'_>, _: &ControllerConfig, now: Timestamp) -> Vec<Write> {
    let all = reader.index().profiles.all();
    all.filter_map(|p| of_object(&**p, &p.status, &[Condition::accepted(p.flaw())], now)).collect()
}

/// Annotations of Services that cannot be read. A Service's status is its cluster's, so there are only warnings.
pub(super) fn services(reader: &Reader<'_>, _: &ControllerConfig, _: Timestamp) -> Vec<Write> {
    let all = reader.index().services.all();
    all.filter_map(|service| {
        let problems = problems(&service.metadata.annotations);
        let warnings: Vec<_> = problems.into_iter().map(|p| ("InvalidAnnotation".to_owned(), p)).collect();
        (!warnings.is_empty()).then(|| Write { warnings, ..empty::<Service>(&service.metadata) })
    })
    .collect()
}
