//! `Destination.GetProfile`: what an address or a name is.

use super::{
    address::{Holder, holder},
    beside::Workload,
    endpoints::{EndpointsOf, EndpointsView},
    requirement,
    service_port::ServicePort,
    workload::{external_endpoint, pod_endpoint, zone_of},
};
use crate::{
    config::ControllerConfig,
    index::{reader::Reader, registry::Subject},
};
use std::{net::SocketAddr, sync::Arc};
use weft_kube::{core::service::Service, meta::ObjectName, policy::service_profile::ServiceProfile};
use weft_model::{
    identity::{Identity, PeerIdentity},
    meta::{Meta, Resource},
    outbound::{Endpoint, Endpoints},
    profile::{self as model, Profile},
};

/// The identity given for an address that two pods claim. Nobody can have it (RFC 2606), so whoever connects fails in
/// the handshake, with a name that says why, instead of talking to the wrong pod.
const CONTESTED: &str = "address-claimed-by-two-pods.invalid";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProfileOf {
    pub target: ProfileTarget,
    pub client_node: Option<String>,
    /// Whose ServiceProfiles come first.
    pub client_namespace: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProfileTarget {
    Addr(SocketAddr),
    Service {
        service: ObjectName,
        port: u16,
    },
    /// A member of a headless Service.
    Member {
        service: ObjectName,
        hostname: String,
        port: u16,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum ProfileView {
    Profile(Arc<Profile>),
    NoSuchName,
}

impl Subject for ProfileOf {
    type View = ProfileView;

    fn compute(&self, reader: &Reader<'_>, config: &ControllerConfig) -> ProfileView {
        let profile = match &self.target {
            ProfileTarget::Addr(addr) => self.of_address(reader, config, *addr),
            ProfileTarget::Service { service, port } => match reader.service(service) {
                Some(service) => self.of_service(reader, config, service, *port),
                None => return ProfileView::NoSuchName,
            },
            ProfileTarget::Member { service, hostname, port } => {
                let members = EndpointsOf {
                    service: service.clone(),
                    port: *port,
                    hostname: Some(hostname.clone()),
                    client_node: self.client_node.clone(),
                };
                match members.compute(reader, config) {
                    EndpointsView::Endpoints(Endpoints::Known(found)) if !found.is_empty() => {
                        self.of_address(reader, config, found[0].addr)
                    }
                    _ => return ProfileView::NoSuchName,
                }
            }
        };
        ProfileView::Profile(Arc::new(profile))
    }
}

impl ProfileOf {
    fn of_address(&self, reader: &Reader<'_>, config: &ControllerConfig, addr: SocketAddr) -> Profile {
        let zone = zone_of(reader, self.client_node.as_deref());
        match holder(reader, config, addr.ip(), Some(addr.port())) {
            Holder::Service(service) => self.of_service(reader, config, service, addr.port()),
            Holder::Pod(pod) => {
                let requirement = requirement::of_namespace(reader, &pod.metadata.namespace);
                let endpoint = pod_endpoint(reader, config, pod, addr, zone);
                Profile {
                    opaque: Workload::Pod(pod).is_opaque(reader, config, addr.port()),
                    endpoint: Some(Arc::new(requirement::held_to(requirement.as_ref(), endpoint))),
                    ..Profile::default()
                }
            }
            Holder::HostPort(pod, port) => {
                // The machine forwards to the container's port, where the pod's proxy takes it; the proxy's own port is
                // not published.
                let inside = SocketAddr::new(addr.ip(), port);
                let endpoint = Endpoint {
                    addr,
                    transport_port: None,
                    ..pod_endpoint(reader, config, pod, inside, zone)
                };
                Profile {
                    opaque: Workload::Pod(pod).is_opaque(reader, config, port),
                    endpoint: Some(Arc::new(endpoint)),
                    ..Profile::default()
                }
            }
            Holder::Contested(..) => {
                Profile { endpoint: Some(Arc::new(contested_endpoint(addr))), ..Profile::default() }
            }
            Holder::External(external) => Profile {
                opaque: Workload::External(external).is_opaque(reader, config, addr.port()),
                endpoint: Some(Arc::new(external_endpoint(reader, config, external, addr))),
                ..Profile::default()
            },
            Holder::Node | Holder::Nobody => Profile {
                opaque: config.default_opaque_ports.contains_number(addr.port()),
                endpoint: Some(Arc::new(Endpoint::bare(addr, PeerIdentity::Unmeshed))),
                ..Profile::default()
            },
        }
    }

    fn of_service(
        &self,
        reader: &Reader<'_>,
        config: &ControllerConfig,
        service: &Service,
        port: u16,
    ) -> Profile {
        // The outbound policy answers for a port that the Service does not define.
        let Some(said) = ServicePort::find(reader, config, service, port, &self.client_namespace) else {
            return Profile::default();
        };
        let meta = &service.metadata;
        Profile {
            opaque: said.is_opaque(),
            endpoint: None,
            parent: Some(Arc::new(service_meta(service, port))),
            service: said.profile.map(|p| routes(config, p, port)).unwrap_or_default(),
            fully_qualified_name: Some(config.service_name(&meta.namespace, &meta.name)),
        }
    }
}

fn routes(config: &ControllerConfig, profile: &ServiceProfile, port: u16) -> model::ServiceProfile {
    // It was read before, to be chosen.
    let Ok(read) = profile.read() else { return model::ServiceProfile::default() };
    let share = |(authority, weight): (String, u32)| {
        let authority = match authority.rsplit_once(':') {
            Some(_) => authority,
            None => format!("{}:{port}", authority.trim_end_matches('.')),
        };
        let meta = service_of_authority(config, &authority).map(Arc::new);
        model::Override { authority, weight, meta }
    };
    model::ServiceProfile {
        routes: read.routes,
        budget: read.budget,
        overrides: read.shares.into_iter().map(share).collect(),
    }
}

/// The Service that `name.namespace.svc.DOMAIN:port` stands for.
fn service_of_authority(config: &ControllerConfig, authority: &str) -> Option<Meta> {
    let (host, port) = authority.rsplit_once(':')?;
    let (name, namespace) = host.strip_suffix(&format!(".svc.{}", config.cluster_domain))?.split_once('.')?;
    Some(Meta::Resource(Resource {
        group: "core".to_owned(),
        kind: "Service".to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        section: String::new(),
        port: port.parse().ok()?,
    }))
}

pub(super) fn service_meta(service: &Service, port: u16) -> Meta {
    Meta::Resource(Resource {
        group: "core".to_owned(),
        kind: "Service".to_owned(),
        namespace: service.metadata.namespace.clone(),
        name: service.metadata.name.clone(),
        section: String::new(),
        port,
    })
}

/// Fails closed: see [`CONTESTED`].
pub(super) fn contested_endpoint(addr: SocketAddr) -> Endpoint {
    let identity = match Identity::parse(CONTESTED) {
        Ok(id) => PeerIdentity::Meshed { server_name: id.clone(), id },
        Err(_) => PeerIdentity::Unknown(weft_model::identity::Unknown::LookupFailed),
    };
    Endpoint::bare(addr, identity)
}
