//! What is counted of the conversations with one service of the control plane.

use crate::{
    config::ControlAddr,
    metrics::{
        ControlService, Count, Metrics,
        balancer::{Balancer, Endpoints, Waiting},
        labels::Labels,
        series::{Counter, HttpSeries},
    },
};
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use weft_fault::Phase;

/// The service's families, resolved once.
#[derive(Clone)]
pub struct Counts {
    metrics: Arc<Metrics>,
    balancer: Arc<Balancer>,
    endpoints: Arc<Mutex<Endpoints>>,
    requests: Arc<HttpSeries>,
    /// By record type: found, not found.
    resolutions: [[Arc<Counter>; 2]; 2],
}

impl Counts {
    #[must_use]
    pub fn of(metrics: &Arc<Metrics>, service: ControlService, addr: &ControlAddr) -> Counts {
        let labels = Labels::new().with("addr", format_args!("{}:{}", addr.host, addr.port));
        let of_requests = match &addr.name {
            Some(id) => labels.clone().with("tls", "true").with("server_id", id),
            None => labels.clone().with("tls", "no_identity").with("no_tls_reason", "loopback"),
        };
        let resolutions = |record_type: &str| {
            ["ok", "not_found"].map(|result| {
                let labels = Labels::new().with("client", service.as_str());
                let labels = labels.with("record_type", record_type).with("result", result);
                metrics.counter(Count::ControlDnsResolutions, &labels)
            })
        };
        let balancer = metrics.control_balancer(service, &labels);
        Counts {
            metrics: metrics.clone(),
            endpoints: Arc::new(Mutex::new(Endpoints::new(&balancer))),
            balancer,
            requests: metrics.control_http(&of_requests),
            resolutions: [resolutions("SRV"), resolutions("A/AAAA")],
        }
    }

    /// The name was asked for; `by_srv`: by the records of its replicas.
    pub(super) fn resolved(&self, by_srv: bool, found: bool) {
        self.resolutions[usize::from(!by_srv)][usize::from(!found)].add(1);
    }

    /// The replicas that the name leads to have changed.
    pub(super) fn replicas(&self, first: bool, added: usize, removed: usize) {
        self.balancer.updated(first, added, removed);
    }

    pub(super) fn connected(&self, all: usize, up: usize) {
        self.endpoints.lock().say(all, up);
    }

    /// Somebody wants a connection.
    pub(super) fn asked(&self, patience: Duration) -> Waiting {
        self.balancer.clone().asked(patience)
    }

    pub(super) fn request(&self) {
        self.requests.request();
    }

    /// A response has begun. Watches end rarely, so their end would tell nothing.
    pub(super) fn response(&self, response: &http::response::Parts, begun: Instant) {
        let status = tonic::Status::from_header_map(&response.headers);
        let code = status.map(|status| status.code() as i32).and_then(|code| u8::try_from(code).ok());
        let took = begun.elapsed();
        let success = response.status.is_success() && code.is_none_or(|code| code == 0);
        self.requests.response(response.status.as_u16(), code, success, took);
        self.metrics.phase(Phase::Control, took);
    }
}
