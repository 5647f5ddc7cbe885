//! What the backends of a route stand for.

use super::profile::service_meta;
use crate::{
    config::ControllerConfig,
    index::reader::{Reader, RouteRef},
};
use std::sync::Arc;
use weft_kube::{core::service::Service, meta::ObjectName, policy::route::BackendRef};
use weft_model::meta::Meta;

#[derive(Clone, Copy, Debug)]
pub enum Resolved<'i> {
    Service(&'i Service, u16),
    /// The route's own EgressNetwork: on to where the traffic was going.
    Onward,
}

/// Why a backend cannot be used: a reason of the Gateway API, and words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    pub reason: &'static str,
    pub message: String,
}

/// What a backend stands for. `parents` are the parents of its route: traffic that goes there already needs no permission.
pub fn resolve<'i>(
    reader: &Reader<'i>,
    route: &RouteRef<'_>,
    backend: &BackendRef,
) -> Result<Resolved<'i>, Unresolved> {
    let local = &route.meta.namespace;
    let name = backend.resolve(local);
    let no = |reason, message| Err(Unresolved { reason, message });
    let is_parent = |group, kind| {
        route.parents.iter().any(|parent| parent.is(group, kind) && parent.resolve(local) == name)
    };
    if backend.is_egress_network() {
        return match is_parent("policy.linkerd.io", "EgressNetwork") {
            true => Ok(Resolved::Onward),
            false => no(
                "InvalidKind",
                format!("EgressNetwork {name} is a backend only of routes whose parent it is"),
            ),
        };
    }
    if !backend.is_service() {
        return no("InvalidKind", format!("backend {name} is not a Service"));
    }
    if name.namespace != *local && !is_parent("", "Service") && !granted(reader, route, &name) {
        let (group, kind) = (route.group, route.kind.as_str());
        return no(
            "RefNotPermitted",
            format!(
                "no ReferenceGrant in {} lets {kind} ({group}) of {local} refer to Service {}",
                name.namespace, name.name
            ),
        );
    }
    let Some(service) = reader.service(&name).filter(|s| !s.is_external_name()) else {
        return no("BackendNotFound", format!("Service {name} does not exist"));
    };
    match backend.port {
        None => no("BackendNotFound", format!("the backend Service {name} lacks a port")),
        Some(port) if service.port(port).is_none() && !service.is_headless() => {
            no("BackendNotFound", format!("Service {name} does not define port {port}"))
        }
        Some(port) => Ok(Resolved::Service(service, port)),
    }
}

fn granted(reader: &Reader<'_>, route: &RouteRef<'_>, service: &ObjectName) -> bool {
    let (group, kind, namespace) = (route.group, route.kind.as_str(), &route.meta.namespace);
    reader.grants(&service.namespace).any(|grant| grant.allows(group, kind, namespace, &service.name))
}

/// Where copies of requests go. What cannot be resolved is not copied.
pub fn mirror(
    reader: &Reader<'_>,
    config: &ControllerConfig,
    route: &RouteRef<'_>,
    backend: &BackendRef,
) -> Option<(Arc<Meta>, String)> {
    match resolve(reader, route, backend) {
        Ok(Resolved::Service(service, port)) => {
            Some((Arc::new(service_meta(service, port)), authority(config, service, port)))
        }
        Ok(Resolved::Onward) | Err(_) => None,
    }
}

/// `store.shop.svc.cluster.local:80`
pub fn authority(config: &ControllerConfig, service: &Service, port: u16) -> String {
    let meta = &service.metadata;
    format!("{}:{port}", config.service_name(&meta.namespace, &meta.name))
}
