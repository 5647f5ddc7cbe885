//! The messages and calls of `proto/shop.proto`, written by hand: no code generator is needed to build weft.

use crate::Error;
use http::uri::PathAndQuery;
use std::time::Duration;
use tonic::{
    Code, Request,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

pub(crate) const LIST: &str = "/shop.v1.Catalogue/List";
pub(crate) const GET: &str = "/shop.v1.Catalogue/Get";

#[derive(Clone, PartialEq, prost::Message)]
pub struct ListRequest {
    #[prost(uint32, tag = "1")]
    pub limit: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ListReply {
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<Item>,
    #[prost(string, tag = "2")]
    pub served_by: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct GetRequest {
    #[prost(string, tag = "1")]
    pub sku: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Item {
    #[prost(string, tag = "1")]
    pub sku: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(uint32, tag = "3")]
    pub price_cents: u32,
}

/// The catalogue as its callers see it. Connects when first used, and again when needed.
#[derive(Clone, Debug)]
pub(crate) struct CatalogueClient {
    channel: Channel,
    to: String,
    limit: Duration,
}

impl CatalogueClient {
    pub(crate) fn new(flag: &'static str, to: &str, limit: Duration) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(to.to_string()).map_err(|_| Error::Flag {
            flag,
            value: to.to_string(),
            expected: "expected http://HOST:PORT",
        })?;
        let channel = endpoint
            .connect_timeout(limit)
            .timeout(limit)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10))
            .keep_alive_while_idle(true)
            .connect_lazy();
        Ok(CatalogueClient { channel, to: to.to_string(), limit })
    }

    pub(crate) async fn list(&self, limit: u32) -> Result<ListReply, Error> {
        self.call(LIST, ListRequest { limit }).await
    }

    /// One item, or none.
    pub(crate) async fn get(&self, sku: &str) -> Result<Option<Item>, Error> {
        match self.call(GET, GetRequest { sku: sku.to_string() }).await {
            Ok(item) => Ok(Some(item)),
            Err(Error::Grpc { code: Code::NotFound, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn call<Q, R>(&self, path: &'static str, message: Q) -> Result<R, Error>
    where
        Q: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let failed = |code, message: String| Error::Grpc { to: self.to.clone(), code, message };
        let exchange = async {
            let mut grpc = Grpc::new(self.channel.clone());
            grpc.ready().await.map_err(|e| failed(Code::Unavailable, e.to_string()))?;
            let path = PathAndQuery::from_static(path);
            let reply = grpc
                .unary(Request::new(message), path, ProstCodec::<Q, R>::default())
                .await
                .map_err(|status| failed(status.code(), status.message().to_string()))?;
            Ok(reply.into_inner())
        };
        crate::error::within("a gRPC call", self.limit, exchange).await
    }
}
