//! `weft.dev.v1.Mesh`: confirmations, filters that the stock protocol cannot carry, and reported faults.

use super::outbound::OutboundService;
use crate::{
    index::store::Store,
    serve::Peer,
    view::confirm::{State, confirm},
};
use std::sync::Arc;
use tonic::{Request, Response, Status};
use weft_model::extension::extensions;
use weft_wire::{
    destination::{endpoint_to_api, socket_from_api},
    extension,
    mesh::{
        self, ConfirmRequest, ConfirmResponse, ExtensionsRequest, ExtensionsResponse, ReportRequest,
        ReportResponse, server::Mesh,
    },
};

#[derive(Clone, Debug)]
pub struct MeshService {
    store: Arc<Store>,
}

impl MeshService {
    pub fn new(store: Arc<Store>) -> Self {
        MeshService { store }
    }
}

#[tonic::async_trait]
impl Mesh for MeshService {
    async fn confirm(&self, request: Request<ConfirmRequest>) -> Result<Response<ConfirmResponse>, Status> {
        let addr = request.into_inner().addr.ok_or_else(|| Status::invalid_argument("no address"))?;
        let addr = socket_from_api(addr).map_err(|invalid| Status::invalid_argument(invalid.to_string()))?;
        let confirmed = self.store.look(|reader, config| confirm(reader, config, addr));
        let (state, endpoint) = match confirmed.state {
            State::Meshed(endpoint) => (mesh::State::Meshed, Some(endpoint_to_api(&endpoint))),
            State::Unmeshed => (mesh::State::Unmeshed, None),
            State::Unknown => (mesh::State::Unknown, None),
        };
        Ok(Response::new(ConfirmResponse {
            state: state.into(),
            endpoint,
            pod: confirmed.pod.unwrap_or_default(),
            reason: confirmed.reason,
        }))
    }

    async fn extensions(
        &self,
        request: Request<ExtensionsRequest>,
    ) -> Result<Response<ExtensionsResponse>, Status> {
        let target = request.into_inner().target.ok_or_else(|| Status::invalid_argument("no target"))?;
        let view = OutboundService::new(self.store.clone()).subscribe(target)?;
        let filters = match view.borrow().as_deref() {
            Some(policy) => extensions(policy).iter().filter_map(extension::to_api).collect(),
            None => Vec::new(),
        };
        Ok(Response::new(ExtensionsResponse { filters }))
    }

    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        // A pod may call itself anything; what it proved is kept beside.
        let proved = request.extensions().get::<Peer>().and_then(|peer| peer.identity.clone());
        let report = request.into_inner();
        let (entries, unread) = report.read();
        if unread > 0 || report.dropped > 0 {
            tracing::debug!(pod = report.pod, unread, dropped = report.dropped, "faults lost on the way");
        }
        for mut entry in entries {
            entry.source.clone_from(&report.pod);
            let own = proved.as_ref().and_then(|id| id.service_account());
            let namespace = report.pod.split_once('/').map(|(namespace, _)| namespace);
            if own.map(|(namespace, _)| namespace) != namespace {
                entry.text.push_str(match &proved {
                    Some(_) => " (reported by an identity of another namespace)",
                    None => " (reported without an identity)",
                });
            }
            self.store.journal.add(entry);
        }
        Ok(Response::new(ReportResponse {}))
    }
}
