//! What is said about one port of a Service, by itself, its namespace and a ServiceProfile. Profiles and outbound policies
//! look here, so that they cannot disagree.

use super::{beside::OPAQUE_PORTS, routes::Declared};
use crate::{config::ControllerConfig, index::reader::Reader, ports::PortSet};
use weft_kube::{core::service::Service, meta::ObjectName, policy::service_profile::ServiceProfile};

#[derive(Clone, Copy, Debug)]
pub struct ServicePort<'i> {
    pub declared: Declared,
    pub profile: Option<&'i ServiceProfile>,
}

impl<'i> ServicePort<'i> {
    /// `None` for a port that the Service does not define; a headless one names pods, which serve what they serve.
    pub fn find(
        reader: &Reader<'i>,
        config: &ControllerConfig,
        service: &Service,
        port: u16,
        client_namespace: &str,
    ) -> Option<Self> {
        let defined = service.port(port);
        if defined.is_none() && !service.is_headless() {
            return None;
        }
        let meta = &service.metadata;
        let name = config.service_name(&meta.namespace, &meta.name);
        let profile = readable_profile(reader, &name, [client_namespace, &meta.namespace]);
        let profiled =
            |p: &ServiceProfile| PortSet::parse(&p.spec.opaque_ports.join(",")).contains_number(port);
        let declared = match defined.and_then(|p| p.app_protocol.as_deref()) {
            Some("http") => Declared::Http1,
            Some("kubernetes.io/h2c") => Declared::Http2,
            // Any other name is a protocol that is not looked into.
            Some(_) => Declared::Opaque,
            None if is_listed(reader, config, service, port) || profile.is_some_and(profiled) => {
                Declared::Opaque
            }
            None => Declared::Nothing,
        };
        Some(ServicePort { declared, profile })
    }

    pub fn is_opaque(&self) -> bool {
        self.declared == Declared::Opaque
    }
}

/// Among the opaque ports of its annotation, else of its namespace's, else of the default list.
fn is_listed(reader: &Reader<'_>, config: &ControllerConfig, service: &Service, port: u16) -> bool {
    let named = |name: &str| service.spec.ports.iter().find(|p| p.name == name).map(|p| p.port);
    let own = service.metadata.annotation(OPAQUE_PORTS);
    let text = own.or_else(|| {
        reader.namespace(&service.metadata.namespace).and_then(|ns| ns.metadata.annotation(OPAQUE_PORTS))
    });
    match text {
        Some(text) => PortSet::parse(text).contains(port, named),
        None => config.default_opaque_ports.contains_number(port),
    }
}

/// The client's own ServiceProfile, else the service's. One that cannot be read is as good as absent.
fn readable_profile<'i>(
    reader: &Reader<'i>,
    name: &str,
    namespaces: [&str; 2],
) -> Option<&'i ServiceProfile> {
    namespaces
        .into_iter()
        .filter_map(|namespace| reader.profile(&ObjectName::new(namespace, name)))
        .find(|profile| profile.read().is_ok())
        .map(|profile| &**profile)
}
