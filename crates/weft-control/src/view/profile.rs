//! `Destination.GetProfile`: what an address or a name is.

use super::{
    address::{Holder, holder},
    endpoints::{EndpointsOf, EndpointsView},
    workload::{external_endpoint, is_opaque, is_opaque_service, pod_endpoint, zone_of},
};
use crate::{
    config::ControllerConfig,
    index::{reader::Reader, registry::Subject},
};
use std::{net::SocketAddr, sync::Arc};
use weft_kube::{core::service::Service, meta::ObjectName};
use weft_model::{
    identity::{Identity, PeerIdentity},
    meta::{Meta, Resource},
    outbound::{Endpoint, Endpoints},
    profile::Profile,
};

/// The identity given for an address that two pods claim. Nobody can have it (RFC 2606), so whoever connects fails in
/// the handshake, with a name that says why, instead of talking to the wrong pod.
const CONTESTED: &str = "address-claimed-by-two-pods.invalid";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProfileOf {
    pub target: ProfileTarget,
    pub client_node: Option<String>,
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
                Some(service) => of_service(reader, config, service, *port),
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
            Holder::Service(service) => of_service(reader, config, service, addr.port()),
            Holder::Pod(pod) => Profile {
                opaque: is_opaque(reader, config, pod, addr.port()),
                endpoint: Some(Arc::new(pod_endpoint(reader, config, pod, addr, zone))),
                ..Profile::default()
            },
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
                    opaque: is_opaque(reader, config, pod, port),
                    endpoint: Some(Arc::new(endpoint)),
                    ..Profile::default()
                }
            }
            Holder::Contested(..) => {
                Profile { endpoint: Some(Arc::new(contested_endpoint(addr))), ..Profile::default() }
            }
            Holder::External(external) => Profile {
                endpoint: Some(Arc::new(external_endpoint(config, external, addr))),
                ..Profile::default()
            },
            Holder::Node | Holder::Nobody => Profile {
                opaque: config.default_opaque_ports.contains_number(addr.port()),
                endpoint: Some(Arc::new(Endpoint::bare(addr, PeerIdentity::Unmeshed))),
                ..Profile::default()
            },
        }
    }
}

fn of_service(reader: &Reader<'_>, config: &ControllerConfig, service: &Service, port: u16) -> Profile {
    // The outbound policy answers for a port that the Service does not define.
    if service.port(port).is_none() && !service.is_headless() {
        return Profile::default();
    }
    let name = &service.metadata;
    Profile {
        fully_qualified_name: Some(config.service_name(&name.namespace, &name.name)),
        opaque: is_opaque_service(reader, config, service, port),
        endpoint: None,
        parent: Some(Arc::new(service_meta(service, port))),
        ..Profile::default()
    }
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
