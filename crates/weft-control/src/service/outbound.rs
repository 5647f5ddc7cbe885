//! `io.linkerd.proxy.outbound.OutboundPolicies`.

use super::{
    client::{Target, target, workload},
    stream::{Messages, of_view},
};
use crate::{
    index::store::Store,
    view::outbound::{OutboundOf, OutboundTarget},
};
use linkerd2_proxy_api::outbound::{
    OutboundPolicy as Message, TrafficSpec, outbound_policies_server::OutboundPolicies, traffic_spec,
};
use std::sync::Arc;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use weft_model::outbound::OutboundPolicy;
use weft_wire::{destination::socket_from_api, outbound as wire};

#[derive(Clone, Debug)]
pub struct OutboundService {
    store: Arc<Store>,
}

impl OutboundService {
    pub fn new(store: Arc<Store>) -> Self {
        OutboundService { store }
    }

    pub(super) fn subscribe(
        &self,
        spec: TrafficSpec,
    ) -> Result<watch::Receiver<Option<Arc<OutboundPolicy>>>, Status> {
        let client_namespace = workload(&spec.source_workload)?.object().namespace.clone();
        let target = match spec.target {
            None => return Err(Status::invalid_argument("no target")),
            Some(traffic_spec::Target::Addr(addr)) => OutboundTarget::Addr(
                socket_from_api(addr).map_err(|invalid| Status::invalid_argument(invalid.to_string()))?,
            ),
            Some(traffic_spec::Target::Authority(path)) => {
                match target(&path, &self.store.config.cluster_domain)? {
                    Target::Addr(addr) => OutboundTarget::Addr(addr),
                    Target::Service { service, port } => OutboundTarget::Service { service, port },
                    // A member of a headless Service has a profile of its own.
                    Target::Member { .. } => return Err(none()),
                }
            }
        };
        Ok(self.store.subscribe(OutboundOf { target, client_namespace }))
    }
}

/// Proxies then go by the profile.
fn none() -> Status {
    Status::not_found("no policy for this target")
}

fn message(view: &Option<Arc<OutboundPolicy>>) -> Result<Message, Status> {
    view.as_deref().map(wire::to_api).ok_or_else(none)
}

#[tonic::async_trait]
impl OutboundPolicies for OutboundService {
    type WatchStream = Messages<Message>;

    async fn get(&self, request: Request<TrafficSpec>) -> Result<Response<Message>, Status> {
        let view = self.subscribe(request.into_inner())?;
        let answer = message(&view.borrow())?;
        Ok(Response::new(answer))
    }

    async fn watch(&self, request: Request<TrafficSpec>) -> Result<Response<Self::WatchStream>, Status> {
        let view = self.subscribe(request.into_inner())?;
        message(&view.borrow())?;
        Ok(Response::new(of_view(view, |view| Ok(vec![message(view)?]))))
    }
}
