//! `io.linkerd.proxy.destination.Destination`.

use super::{
    client::{Context, Target, target},
    stream::{Messages, of_view},
};
use crate::{
    index::store::Store,
    view::{
        endpoints::{EndpointsOf, EndpointsView},
        profile::{ProfileOf, ProfileTarget, ProfileView},
    },
};
use linkerd2_proxy_api::destination::{
    DestinationProfile, GetDestination, Update, destination_server::Destination,
};
use std::sync::Arc;
use tonic::{Request, Response, Status};
use weft_wire::destination as wire;

#[derive(Clone, Debug)]
pub struct DestinationService {
    store: Arc<Store>,
}

impl DestinationService {
    pub fn new(store: Arc<Store>) -> Self {
        DestinationService { store }
    }
}

#[tonic::async_trait]
impl Destination for DestinationService {
    type GetStream = Messages<Update>;
    type GetProfileStream = Messages<DestinationProfile>;

    async fn get(&self, request: Request<GetDestination>) -> Result<Response<Self::GetStream>, Status> {
        let request = request.into_inner();
        let client_node = Context::parse(&request.context_token).node_name;
        let subject = match target(&request.path, &self.store.config.cluster_domain)? {
            Target::Addr(_) => {
                return Err(Status::invalid_argument("an address has no endpoints; ask for its profile"));
            }
            Target::Service { service, port } => EndpointsOf { service, port, hostname: None, client_node },
            Target::Member { service, hostname, port } => {
                EndpointsOf { service, port, hostname: Some(hostname), client_node }
            }
        };
        let mut sent = None;
        let stream = of_view(self.store.subscribe(subject), move |view: &EndpointsView| match view {
            EndpointsView::ExternalName => {
                Err(Status::invalid_argument("the service is an ExternalName: resolve it by DNS"))
            }
            EndpointsView::Endpoints(endpoints) => {
                let updates = wire::to_api(sent.as_ref(), endpoints);
                sent = Some(endpoints.clone());
                Ok(updates)
            }
        });
        Ok(Response::new(stream))
    }

    async fn get_profile(
        &self,
        request: Request<GetDestination>,
    ) -> Result<Response<Self::GetProfileStream>, Status> {
        let request = request.into_inner();
        let target = match target(&request.path, &self.store.config.cluster_domain)? {
            Target::Addr(addr) => ProfileTarget::Addr(addr),
            Target::Service { service, port } => ProfileTarget::Service { service, port },
            Target::Member { service, hostname, port } => ProfileTarget::Member { service, hostname, port },
        };
        let client = Context::parse(&request.context_token);
        let subject = ProfileOf { target, client_node: client.node_name, client_namespace: client.ns };
        let stream = of_view(self.store.subscribe(subject), |view: &ProfileView| match view {
            ProfileView::NoSuchName => Err(Status::not_found("no such service")),
            ProfileView::Profile(profile) => Ok(vec![weft_wire::profile::to_api(profile)]),
        });
        Ok(Response::new(stream))
    }
}
