//! What every lookup of the agent shares.

use super::{memory::Memory, settle::Confirmed};
use crate::{
    control::{
        Service,
        lookup::{Limits, Lookup, Open},
    },
    record::Recorder,
};
use ipnet::IpNet;
use linkerd2_proxy_api::{destination as dst, inbound, net::TcpAddress, outbound};
use parking_lot::Mutex;
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};
use weft_fault::Fault;
use weft_model::extension::Extension;
use weft_wire::mesh::{ConfirmRequest, ExtensionsRequest, client::MeshClient};

/// An update may hold thousands of endpoints.
const MESSAGE_BYTES: usize = 64 << 20;

pub(crate) struct Context {
    pub(crate) destination: Service,
    pub(crate) policy: Service,
    pub(crate) workload: String,
    pub(crate) token: String,
    pub(crate) profile_networks: Vec<IpNet>,
    pub(crate) cluster_networks: Vec<IpNet>,
    /// Of streams, where they are configured.
    pub(crate) limits: Limits,
    /// Older answers about destinations are asked for anew.
    pub(crate) max_age: Option<Duration>,
    pub(crate) memory: Mutex<Memory>,
    pub(crate) confirmer: Confirmer,
    pub(crate) recorder: Arc<Recorder>,
}

impl Context {
    pub(crate) fn in_cluster(&self, ip: IpAddr) -> bool {
        let within = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&ip));
        within(&self.cluster_networks) || within(&self.profile_networks)
    }

    /// `GetProfile` of an address, if it is within the networks that have profiles.
    pub(crate) fn profile(&self, addr: SocketAddr) -> Option<Lookup<dst::DestinationProfile>> {
        if !self.profile_networks.iter().any(|net| net.contains(&addr.ip())) {
            return None;
        }
        Some(self.profile_of_name(&addr.to_string()))
    }

    /// `GetProfile` of a name (`host:port`).
    pub(crate) fn profile_of_name(&self, name: &str) -> Lookup<dst::DestinationProfile> {
        let request = self.get_destination(name.to_string());
        let open: Open<_> = Arc::new(move |connection| {
            let request = request.clone();
            Box::pin(async move {
                let client = dst::destination_client::DestinationClient::new(connection);
                let mut client = client.max_decoding_message_size(MESSAGE_BYTES);
                client.get_profile(request).await.map(tonic::Response::into_inner)
            })
        });
        self.lookup(&self.destination, format!("GetProfile {name}"), open)
    }

    /// `Destination.Get` of a name.
    pub(crate) fn endpoints(&self, path: &str) -> Lookup<dst::Update> {
        let request = self.get_destination(path.to_string());
        let open: Open<_> = Arc::new(move |connection| {
            let request = request.clone();
            Box::pin(async move {
                let client = dst::destination_client::DestinationClient::new(connection);
                let mut client = client.max_decoding_message_size(MESSAGE_BYTES);
                client.get(request).await.map(tonic::Response::into_inner)
            })
        });
        self.lookup(&self.destination, format!("Get {path}"), open)
    }

    /// `OutboundPolicies.Watch` of an address.
    pub(crate) fn outbound(&self, addr: SocketAddr) -> Lookup<outbound::OutboundPolicy> {
        let target = outbound::traffic_spec::Target::Addr(TcpAddress::from(addr));
        self.outbound_of(target, &addr.to_string())
    }

    /// `OutboundPolicies.Watch` of a name (`host:port`).
    pub(crate) fn outbound_of_name(&self, name: &str) -> Lookup<outbound::OutboundPolicy> {
        self.outbound_of(outbound::traffic_spec::Target::Authority(name.to_string()), name)
    }

    /// The question for an outbound policy.
    pub(crate) fn spec(&self, target: outbound::traffic_spec::Target) -> outbound::TrafficSpec {
        outbound::TrafficSpec { source_workload: self.workload.clone(), target: Some(target) }
    }

    fn outbound_of(
        &self,
        target: outbound::traffic_spec::Target,
        subject: &str,
    ) -> Lookup<outbound::OutboundPolicy> {
        let request = self.spec(target);
        let open: Open<_> = Arc::new(move |connection| {
            let request = request.clone();
            Box::pin(async move {
                let client = outbound::outbound_policies_client::OutboundPoliciesClient::new(connection);
                let mut client = client.max_decoding_message_size(MESSAGE_BYTES);
                client.watch(request).await.map(tonic::Response::into_inner)
            })
        });
        self.lookup(&self.policy, format!("OutboundPolicies.Watch {subject}"), open)
    }

    /// `WatchPort` of one of this workload's ports.
    pub(crate) fn inbound(&self, port: u16) -> Lookup<inbound::Server> {
        let request = inbound::PortSpec { workload: self.workload.clone(), port: port.into() };
        let open: Open<_> = Arc::new(move |connection| {
            let request = request.clone();
            Box::pin(async move {
                let client =
                    inbound::inbound_server_policies_client::InboundServerPoliciesClient::new(connection);
                let mut client = client.max_decoding_message_size(MESSAGE_BYTES);
                client.watch_port(request).await.map(tonic::Response::into_inner)
            })
        });
        self.lookup(&self.policy, format!("WatchPort {port}"), open)
    }

    fn get_destination(&self, path: String) -> dst::GetDestination {
        dst::GetDestination { scheme: "k8s".to_string(), path, context_token: self.token.clone() }
    }

    fn lookup<M: Send + 'static>(&self, service: &Service, subject: String, open: Open<M>) -> Lookup<M> {
        let limits = if service.on_loopback() { Limits::default() } else { self.limits };
        Lookup::new(service.clone(), subject, limits, open)
    }
}

/// Asks a weft controller whether a pod is meshed, and finds out whether the controller is weft's.
pub(crate) struct Confirmer {
    service: Service,
    token: String,
    kind: Mutex<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unasked,
    Weft,
    /// It does not know the service. It may be replaced by one that does.
    Stock(Instant),
}

const CONFIRM_DEADLINE: Duration = Duration::from_millis(1_000);
const ASK_STOCK_AGAIN: Duration = Duration::from_secs(300);

impl Confirmer {
    pub(crate) fn new(service: Service, token: String) -> Self {
        Confirmer { service, token, kind: Mutex::new(Kind::Unasked) }
    }

    pub(crate) fn is_weft(&self) -> bool {
        *self.kind.lock() == Kind::Weft
    }

    pub(crate) fn is_worth_asking(&self) -> bool {
        !matches!(*self.kind.lock(), Kind::Stock(until) if Instant::now() < until)
    }

    /// Filters that the stock protocol has no words for. `None` when there was no answer; of a controller that does not
    /// know the question, there are none.
    pub(crate) async fn extensions(&self, target: outbound::TrafficSpec) -> Option<Vec<Extension>> {
        let deadline = Instant::now() + CONFIRM_DEADLINE;
        let connection = self.service.connection(deadline).await.ok()?;
        let mut client = MeshClient::new(connection);
        let request = ExtensionsRequest { target: Some(target) };
        match tokio::time::timeout_at(deadline.into(), client.extensions(request)).await.ok()? {
            Ok(answer) => {
                let read = |filter| match weft_wire::extension::from_api(filter) {
                    Ok(extension) => Some(extension),
                    Err(invalid) => {
                        tracing::warn!("a filter is left out: {:?}", Fault::from(invalid));
                        None
                    }
                };
                Some(answer.into_inner().filters.into_iter().filter_map(read).collect())
            }
            Err(status) if status.code() == tonic::Code::Unimplemented => Some(Vec::new()),
            Err(_) => None,
        }
    }

    /// `None` when there was no answer.
    pub(crate) async fn confirm(&self, addr: SocketAddr) -> Option<Confirmed> {
        let deadline = Instant::now() + CONFIRM_DEADLINE;
        let connection = self.service.connection(deadline).await.ok()?;
        let mut client = MeshClient::new(connection);
        let request = ConfirmRequest { addr: Some(addr.into()), context_token: self.token.clone() };
        match tokio::time::timeout_at(deadline.into(), client.confirm(request)).await.ok()? {
            Ok(answer) => {
                *self.kind.lock() = Kind::Weft;
                Some(super::settle::confirmed(answer.into_inner()))
            }
            Err(status) if status.code() == tonic::Code::Unimplemented => {
                *self.kind.lock() = Kind::Stock(Instant::now() + ASK_STOCK_AGAIN);
                None
            }
            Err(_) => None,
        }
    }
}
