//! `Destination.Get`: the addresses behind a name.

use super::{
    address::{Holder, holder},
    profile::contested_endpoint,
    workload::{external_endpoint, pod_endpoint, served_family, zone_of},
};
use crate::{
    config::ControllerConfig,
    index::{reader::Reader, registry::Subject},
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};
use weft_kube::{
    core::{
        endpoint_slice::{EndpointAddress, EndpointSlice},
        service::Service,
    },
    meta::ObjectName,
};
use weft_model::{
    identity::{Identity, PeerIdentity},
    outbound::{Endpoint, Endpoints},
};

/// A name that clients balance over, as one client sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointsOf {
    pub service: ObjectName,
    pub port: u16,
    /// One member of a headless Service.
    pub hostname: Option<String>,
    /// The node that the client runs on.
    pub client_node: Option<String>,
}

/// What a name resolves to.
#[derive(Clone, Debug, PartialEq)]
pub enum EndpointsView {
    Endpoints(Endpoints),
    /// An ExternalName Service has no addresses: clients are told to resolve it themselves.
    ExternalName,
}

impl Subject for EndpointsOf {
    type View = EndpointsView;

    fn compute(&self, reader: &Reader<'_>, config: &ControllerConfig) -> EndpointsView {
        let Some(service) = reader.service(&self.service) else {
            return EndpointsView::Endpoints(Endpoints::NoSuchService);
        };
        if service.is_external_name() {
            return EndpointsView::ExternalName;
        }
        let Some(port) = self.target_port(service) else {
            // The Service does not define it: its cluster address refuses the port, and so does its name.
            return EndpointsView::Endpoints(Endpoints::Known(Arc::default()));
        };
        let candidates = self.candidates(reader, config, &port);
        let chosen = self.near_client(reader, service, candidates);
        let zone = zone_of(reader, self.client_node.as_deref());
        let mut by_addr = BTreeMap::new();
        for candidate in chosen {
            if let Some(mut endpoint) = candidate.endpoint(reader, config, zone) {
                self.label(&mut endpoint);
                by_addr.insert(endpoint.addr, Arc::new(endpoint));
            }
        }
        EndpointsView::Endpoints(Endpoints::Known(Arc::new(by_addr.into_values().collect())))
    }
}

/// How the port is found in a slice.
enum TargetPort<'a> {
    /// By the name of the Service's port.
    Named(&'a str),
    /// Taken as it stands: headless Services have addresses of pods, which serve whatever they serve.
    Number(u16),
}

struct Candidate<'i> {
    slice: &'i EndpointSlice,
    endpoint: &'i EndpointAddress,
    addr: SocketAddr,
}

impl EndpointsOf {
    fn target_port<'s>(&self, service: &'s Service) -> Option<TargetPort<'s>> {
        match service.port(self.port) {
            Some(port) => Some(TargetPort::Named(&port.name)),
            None if service.is_headless() => Some(TargetPort::Number(self.port)),
            None => None,
        }
    }

    fn candidates<'i>(
        &self,
        reader: &Reader<'i>,
        config: &ControllerConfig,
        port: &TargetPort<'_>,
    ) -> Vec<Candidate<'i>> {
        let mut found = Vec::new();
        for slice in reader.slices_of(&self.service) {
            let number = match port {
                TargetPort::Number(number) => Some(*number),
                TargetPort::Named(name) => slice
                    .ports
                    .iter()
                    .find(|p| p.name == *name && p.protocol.as_deref().is_none_or(|p| p == "TCP"))
                    .and_then(|p| p.port),
            };
            let Some(number) = number else { continue };
            for endpoint in slice.endpoints.iter().filter(|e| e.is_ready()) {
                if self.hostname.is_some() && self.hostname != endpoint.hostname {
                    continue;
                }
                let addresses = endpoint.addresses.iter().filter_map(|a| a.parse::<IpAddr>().ok());
                if let Some(ip) = addresses.into_iter().find(|ip| served_family(config, *ip)) {
                    found.push(Candidate { slice, endpoint, addr: SocketAddr::new(ip, number) });
                }
            }
        }
        found
    }

    /// Traffic policy first, then topology hints, which count only if every candidate has some and one of them is the
    /// client's zone.
    fn near_client<'i>(
        &self,
        reader: &Reader<'i>,
        service: &Service,
        mut candidates: Vec<Candidate<'i>>,
    ) -> Vec<Candidate<'i>> {
        if self.client_node.is_some() && service.spec.internal_traffic_policy.as_deref() == Some("Local") {
            candidates.retain(|c| c.endpoint.node_name == self.client_node);
            return candidates;
        }
        let Some(zone) = zone_of(reader, self.client_node.as_deref()) else { return candidates };
        let hinted = |c: &Candidate<'_>| c.endpoint.hints.as_ref().is_some_and(|h| !h.for_zones.is_empty());
        let here = |c: &Candidate<'_>| {
            c.endpoint.hints.as_ref().is_some_and(|h| h.for_zones.iter().any(|z| z.name == zone))
        };
        if candidates.iter().all(hinted) && candidates.iter().any(here) {
            candidates.retain(here);
        }
        candidates
    }

    fn label(&self, endpoint: &mut Endpoint) {
        let labels = Arc::make_mut(&mut endpoint.labels);
        labels.insert("service".to_owned(), self.service.name.clone());
        labels.insert("namespace".to_owned(), self.service.namespace.clone());
    }
}

impl Candidate<'_> {
    /// `None` for an address whose pod is not there, or not any more: a slice may be ahead of or behind its pods, and an
    /// endpoint without an identity would be dialled in plaintext.
    fn endpoint(
        &self,
        reader: &Reader<'_>,
        config: &ControllerConfig,
        client_zone: Option<&str>,
    ) -> Option<Endpoint> {
        let namespace = &self.slice.metadata.namespace;
        match &self.endpoint.target_ref {
            Some(target) if target.kind == "Pod" => {
                let pod = reader.pod(&ObjectName::new(namespace, &target.name))?;
                let holds = !pod.is_finished() && pod.ips().contains(&self.addr.ip());
                holds.then(|| pod_endpoint(reader, config, pod, self.addr, client_zone))
            }
            Some(target) if target.kind == "ExternalWorkload" => {
                let external = reader.external(&ObjectName::new(namespace, &target.name))?;
                Some(external_endpoint(config, external, self.addr))
            }
            _ => Some(self.unreferenced(reader, config, client_zone)),
        }
    }

    /// An address that somebody wrote into a slice: a gateway, a pod, or a thing outside the cluster.
    fn unreferenced(
        &self,
        reader: &Reader<'_>,
        config: &ControllerConfig,
        client_zone: Option<&str>,
    ) -> Endpoint {
        let meta = &self.slice.metadata;
        if let Some(id) = meta.annotation("mirror.linkerd.io/remote-gateway-identity") {
            return match Identity::parse(id) {
                Ok(id) => Endpoint {
                    identity: PeerIdentity::Meshed { server_name: id.clone(), id },
                    hint: weft_model::outbound::ProtocolHint::H2,
                    authority_override: meta
                        .annotation("mirror.linkerd.io/remote-svc-fq-name")
                        .map(|name| format!("{name}:{}", self.addr.port())),
                    ..Endpoint::bare(self.addr, PeerIdentity::Unmeshed)
                },
                Err(_) => {
                    Endpoint::bare(self.addr, PeerIdentity::Unknown(weft_model::identity::Unknown::Malformed))
                }
            };
        }
        match holder(reader, config, self.addr.ip(), None) {
            Holder::Pod(pod) => pod_endpoint(reader, config, pod, self.addr, client_zone),
            Holder::Contested(..) => contested_endpoint(self.addr),
            Holder::External(external) => external_endpoint(config, external, self.addr),
            Holder::Service(_) | Holder::HostPort(..) | Holder::Node | Holder::Nobody => {
                Endpoint::bare(self.addr, PeerIdentity::Unmeshed)
            }
        }
    }
}
