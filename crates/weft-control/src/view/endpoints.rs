//! `Destination.Get`: the addresses behind a name.

use super::{
    address::{Holder, holder},
    profile::contested_endpoint,
    requirement,
    workload::{external_endpoint, pod_endpoint, served_family, zone_of},
};
use crate::{
    config::ControllerConfig,
    index::{reader::Reader, registry::Subject},
};
use std::{
    collections::{BTreeMap, HashSet},
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
    identity::{Identity, PeerIdentity, Unknown},
    outbound::{Endpoint, Endpoints, ProtocolHint},
};

/// On a mirrored Service: the cluster that it is in.
const CLUSTER_NAME: &str = "mirror.linkerd.io/cluster-name";
/// On a mirrored Service and its slices: its name there.
const REMOTE_NAME: &str = "mirror.linkerd.io/remote-svc-fq-name";
/// On the slices of a mirrored Service: who the other cluster's gateway is.
const GATEWAY_IDENTITY: &str = "mirror.linkerd.io/remote-gateway-identity";

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
        let candidates = one_family(self.candidates(reader, config, &port));
        let chosen = self.near_client(reader, service, candidates);
        let zone = zone_of(reader, self.client_node.as_deref());
        let requirement = requirement::of_service(reader, service);
        let mut by_addr = BTreeMap::new();
        for candidate in chosen {
            if let Some(endpoint) = self.endpoint(&candidate, reader, config, service, zone) {
                let mut endpoint = requirement::held_to(requirement.as_ref(), endpoint);
                self.label(&mut endpoint, service);
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

    fn label(&self, endpoint: &mut Endpoint, service: &Service) {
        let labels = Arc::make_mut(&mut endpoint.labels);
        labels.insert("service".to_owned(), self.service.name.clone());
        labels.insert("namespace".to_owned(), self.service.namespace.clone());
        let meta = &service.metadata;
        if let Some(cluster) = meta.label(CLUSTER_NAME) {
            labels.insert("target_cluster".to_owned(), cluster.to_owned());
            // `store.shop.svc.east.example`
            let mut name = meta.annotation(REMOTE_NAME).unwrap_or_default().split('.');
            if let (Some(service), Some(namespace)) = (name.next(), name.next()) {
                labels.insert("target_service".to_owned(), service.to_owned());
                labels.insert("target_service_namespace".to_owned(), namespace.to_owned());
            }
        }
    }

    /// `None` for an address whose workload is not there, or not any more: a slice may be ahead of or behind its pods,
    /// and an endpoint without an identity would be dialled in plaintext.
    fn endpoint(
        &self,
        candidate: &Candidate<'_>,
        reader: &Reader<'_>,
        config: &ControllerConfig,
        service: &Service,
        client_zone: Option<&str>,
    ) -> Option<Endpoint> {
        let (namespace, addr) = (&candidate.slice.metadata.namespace, candidate.addr);
        match &candidate.endpoint.target_ref {
            Some(target) if target.kind == "Pod" => {
                let pod = reader.pod(&ObjectName::new(namespace, &target.name))?;
                let holds = !pod.is_finished() && pod.ips().contains(&addr.ip());
                holds.then(|| pod_endpoint(reader, config, pod, addr, client_zone))
            }
            Some(target) if target.kind == "ExternalWorkload" => {
                let external = reader.external(&ObjectName::new(namespace, &target.name))?;
                let holds = external.ips().contains(&addr.ip());
                holds.then(|| external_endpoint(reader, config, external, addr))
            }
            _ => {
                let mut endpoint = unreferenced(candidate, reader, config, client_zone);
                // The gateway routes by the name in its own cluster.
                let name = [&candidate.slice.metadata, &service.metadata]
                    .into_iter()
                    .find_map(|meta| meta.annotation(REMOTE_NAME));
                endpoint.authority_override = name.map(|name| format!("{name}:{}", self.port));
                Some(endpoint)
            }
        }
    }
}

/// A workload with addresses of both families is one endpoint, reached by IPv6 where that is served.
fn one_family(candidates: Vec<Candidate<'_>>) -> Vec<Candidate<'_>> {
    let workload = |c: &Candidate<'_>| {
        let target = c.endpoint.target_ref.as_ref()?;
        Some((target.kind.clone(), c.slice.metadata.namespace.clone(), target.name.clone(), c.addr.port()))
    };
    let preferred: HashSet<_> = candidates.iter().filter(|c| c.addr.is_ipv6()).filter_map(workload).collect();
    if preferred.is_empty() {
        return candidates;
    }
    let keep = |c: &Candidate<'_>| {
        c.addr.is_ipv6() || workload(c).is_none_or(|workload| !preferred.contains(&workload))
    };
    candidates.into_iter().filter(keep).collect()
}

/// An address that somebody wrote into a slice: a gateway, a pod, or a thing outside the cluster.
fn unreferenced(
    candidate: &Candidate<'_>,
    reader: &Reader<'_>,
    config: &ControllerConfig,
    client_zone: Option<&str>,
) -> Endpoint {
    let addr = candidate.addr;
    if let Some(id) = candidate.slice.metadata.annotation(GATEWAY_IDENTITY) {
        return match Identity::parse(id) {
            Ok(id) => Endpoint {
                identity: PeerIdentity::Meshed { server_name: id.clone(), id },
                hint: ProtocolHint::H2,
                http2: config.http2,
                ..Endpoint::bare(addr, PeerIdentity::Unmeshed)
            },
            Err(_) => Endpoint::bare(addr, PeerIdentity::Unknown(Unknown::Malformed)),
        };
    }
    match holder(reader, config, addr.ip(), None) {
        Holder::Pod(pod) => pod_endpoint(reader, config, pod, addr, client_zone),
        Holder::Contested(..) => contested_endpoint(addr),
        Holder::External(external) => external_endpoint(reader, config, external, addr),
        Holder::Service(_) | Holder::HostPort(..) | Holder::Node | Holder::Nobody => {
            Endpoint::bare(addr, PeerIdentity::Unmeshed)
        }
    }
}
