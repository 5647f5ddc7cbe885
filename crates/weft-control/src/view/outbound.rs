//! `OutboundPolicies`: where traffic to an address or name goes.

pub mod egress;
mod parent;

use self::parent::{Otherwise, Parent, balanced};
use super::{
    address::{Holder, holder},
    profile::service_meta,
    routes::{Outlet, ParentKind},
    service_port::ServicePort,
};
use crate::{
    config::ControllerConfig,
    index::{reader::Reader, registry::Subject},
};
use std::{net::SocketAddr, sync::Arc};
use weft_kube::{core::service::Service, meta::ObjectName};
use weft_model::{
    meta::Meta,
    outbound::{Distribution, OpaqueRoute, OpaqueRoutes, OutboundPolicy, OutboundProtocol, Refusal},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutboundOf {
    pub target: OutboundTarget,
    pub client_namespace: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OutboundTarget {
    Addr(SocketAddr),
    Service { service: ObjectName, port: u16 },
}

impl Subject for OutboundOf {
    /// `None`: the policy API has no say; proxies go by the profile.
    type View = Option<Arc<OutboundPolicy>>;

    fn compute(&self, reader: &Reader<'_>, config: &ControllerConfig) -> Self::View {
        let policy = match &self.target {
            OutboundTarget::Service { service, port } => {
                let service = reader.service(service).filter(|s| !s.is_external_name())?;
                self.of_service(reader, config, service, *port)?
            }
            OutboundTarget::Addr(addr) => match holder(reader, config, addr.ip(), Some(addr.port())) {
                Holder::Service(service) => {
                    self.of_service(reader, config, service, addr.port()).unwrap_or_else(undefined_port)
                }
                // Whoever is known has a profile with an identity, which a policy would hide.
                Holder::Pod(_) | Holder::HostPort(..) | Holder::Contested(..) | Holder::External(_) => {
                    return None;
                }
                Holder::Node | Holder::Nobody => {
                    match egress::network_of(reader, config, *addr, &self.client_namespace) {
                        Some(network) => {
                            egress::by_network(reader, config, network, *addr, &self.client_namespace)
                        }
                        None if config.in_cluster(addr.ip()) => return None,
                        None => egress::fallback(reader, config, *addr),
                    }
                }
            },
        };
        Some(Arc::new(policy))
    }
}

impl OutboundOf {
    /// `None` for a port that the Service does not define.
    fn of_service(
        &self,
        reader: &Reader<'_>,
        config: &ControllerConfig,
        service: &Service,
        port: u16,
    ) -> Option<OutboundPolicy> {
        let said = ServicePort::find(reader, config, service, port, &self.client_namespace)?;
        let name = service.metadata.key();
        let parent = Parent {
            reader,
            config,
            outlet: Outlet {
                kind: ParentKind::Service,
                name: &name,
                port: Some(port),
                declared: said.declared,
            },
            annotations: &service.metadata.annotations,
            backend: balanced(config, service, port, &service.metadata.annotations),
            otherwise: Otherwise::Default,
            client_namespace: &self.client_namespace,
        };
        Some(OutboundPolicy { meta: Arc::new(service_meta(service, port)), protocol: parent.protocol() })
    }
}

/// A cluster address behaves as declared: other ports are refused.
fn undefined_port() -> OutboundPolicy {
    let meta = Arc::new(Meta::default_named("undefined-port"));
    let route = OpaqueRoute {
        meta: meta.clone(),
        hosts: Vec::new(),
        backends: Distribution::Empty,
        refuses: Some(Refusal::Forbidden),
    };
    OutboundPolicy { meta, protocol: OutboundProtocol::Opaque(OpaqueRoutes { routes: vec![route] }) }
}
