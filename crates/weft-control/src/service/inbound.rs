//! `io.linkerd.proxy.inbound.InboundServerPolicies`.

use super::{
    client::workload,
    stream::{Messages, of_view},
};
use crate::{index::store::Store, view::inbound::InboundOf};
use linkerd2_proxy_api::inbound::{PortSpec, Server, inbound_server_policies_server::InboundServerPolicies};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::timeout};
use tonic::{Request, Response, Status};
use weft_model::inbound::ServerPolicy;
use weft_wire::inbound as wire;

/// A proxy may ask before its workload was heard of: it started a moment ago.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct InboundService {
    store: Arc<Store>,
}

impl InboundService {
    pub fn new(store: Arc<Store>) -> Self {
        InboundService { store }
    }

    async fn subscribe(&self, spec: &PortSpec) -> Result<watch::Receiver<Option<Arc<ServerPolicy>>>, Status> {
        let workload = workload(&spec.workload)?;
        let port = u16::try_from(spec.port)
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| Status::invalid_argument(format!("{} is not a port", spec.port)))?;
        let mut view = self.store.subscribe(InboundOf { workload, port });
        // Whether it came or not is seen in the view itself.
        let _ = timeout(PATIENCE, view.wait_for(Option::is_some)).await;
        Ok(view)
    }
}

fn message(view: &Option<Arc<ServerPolicy>>) -> Result<Server, Status> {
    view.as_deref().map(wire::to_api).ok_or_else(|| Status::not_found("no such workload"))
}

#[tonic::async_trait]
impl InboundServerPolicies for InboundService {
    type WatchPortStream = Messages<Server>;

    async fn get_port(&self, request: Request<PortSpec>) -> Result<Response<Server>, Status> {
        let view = self.subscribe(request.get_ref()).await?;
        let answer = message(&view.borrow())?;
        Ok(Response::new(answer))
    }

    async fn watch_port(
        &self,
        request: Request<PortSpec>,
    ) -> Result<Response<Self::WatchPortStream>, Status> {
        let view = self.subscribe(request.get_ref()).await?;
        message(&view.borrow())?;
        Ok(Response::new(of_view(view, |view| Ok(vec![message(view)?]))))
    }
}
