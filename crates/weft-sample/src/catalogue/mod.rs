//! What is on sale: a gRPC service that reads the store. Its health is on a port of its own.

pub mod api;

use crate::{
    Error,
    kv::StoreClient,
    lifecycle::{Lifecycle, LifecycleOptions},
    serve::{self, Version},
    text::{hostname, say},
};
use api::{GetRequest, Item, ListReply, ListRequest};
use http::{Request, Response};
use hyper::body::Incoming;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tonic::{Status, body::Body, server::Grpc};
use tonic_prost::ProstCodec;
use tower::service_fn;

const ROLE: &str = "catalogue";
const MESSAGE_BYTES: usize = 64 * 1024;

#[derive(clap::Args, Debug)]
pub struct Options {
    /// Where to listen for gRPC (HTTP/2 without TLS)
    #[arg(long, env = "SHOP_LISTEN", default_value = "0.0.0.0:50051")]
    pub listen: SocketAddr,
    /// Where to answer `/healthz`
    #[arg(long, env = "SHOP_HEALTH", default_value = "0.0.0.0:8081")]
    pub health: SocketAddr,
    /// The store's HOST:PORT
    #[arg(long, env = "SHOP_STORE", default_value = "store:7000")]
    pub store: String,
    /// How long a command to the store may take
    #[arg(long, env = "SHOP_TIMEOUT", default_value = "3s", value_parser = crate::text::duration)]
    pub timeout: Duration,
    /// The name that replies carry
    #[arg(long, env = "POD_NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub life: LifecycleOptions,
}

pub async fn run(options: Options) -> Result<(), Error> {
    let life = Lifecycle::start(ROLE, &options.life)?;
    let catalogue = Arc::new(Catalogue {
        store: StoreClient::new(&options.store, options.timeout),
        name: options.name.unwrap_or_else(hostname),
    });
    let grpc = serve::listen(options.listen).await?;
    let health = serve::listen(options.health).await?;
    let serving = serve(grpc, life.clone(), catalogue);
    tokio::try_join!(serving, serve::serve_health(ROLE, health, life))?;
    Ok(())
}

pub(crate) struct Catalogue {
    pub(crate) store: StoreClient,
    pub(crate) name: String,
}

pub(crate) async fn serve(
    listener: TcpListener,
    life: Lifecycle,
    catalogue: Arc<Catalogue>,
) -> Result<(), Error> {
    let handler = move |request| answer(catalogue.clone(), request);
    serve::serve(ROLE, listener, Version::Http2, life, handler).await
}

async fn answer(catalogue: Arc<Catalogue>, request: Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        api::LIST => {
            let call = service_fn(move |request: tonic::Request<ListRequest>| {
                let catalogue = catalogue.clone();
                async move { catalogue.list(request.into_inner().limit).await.map(tonic::Response::new) }
            });
            let codec = ProstCodec::<ListReply, ListRequest>::default();
            Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES).unary(call, request).await
        }
        api::GET => {
            let call = service_fn(move |request: tonic::Request<GetRequest>| {
                let catalogue = catalogue.clone();
                async move { catalogue.get(&request.get_ref().sku).await.map(tonic::Response::new) }
            });
            let codec = ProstCodec::<Item, GetRequest>::default();
            Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES).unary(call, request).await
        }
        other => Status::unimplemented(format!("no call {other}")).into_http(),
    }
}

impl Catalogue {
    async fn list(&self, limit: u32) -> Result<ListReply, Status> {
        let limit = if limit == 0 { 100 } else { limit as usize };
        let found = self.store.list("item/", limit).await.map_err(unavailable)?;
        let items = found.iter().filter_map(|(key, value)| Item::read(key, value)).collect();
        Ok(ListReply { items, served_by: self.name.clone() })
    }

    async fn get(&self, sku: &str) -> Result<Item, Status> {
        if !is_sku(sku) {
            return Err(Status::invalid_argument("a sku is made of a-z, 0-9 and -"));
        }
        let key = format!("item/{sku}");
        let value = self.store.get(&key).await.map_err(unavailable)?;
        value
            .and_then(|value| Item::read(&key, &value))
            .ok_or_else(|| Status::not_found(format!("no item {sku}")))
    }
}

fn unavailable(error: Error) -> Status {
    say(ROLE, format_args!("cannot ask the store: {}", error.chain()));
    Status::unavailable("the store does not answer")
}

impl Item {
    /// From `item/SKU` and `NAME|CENTS`.
    fn read(key: &str, value: &str) -> Option<Item> {
        let (name, price) = value.rsplit_once('|')?;
        let sku = key.strip_prefix("item/")?.to_string();
        Some(Item { sku, name: name.to_string(), price_cents: price.parse().ok()? })
    }
}

/// What may stand in a key of the store.
pub(crate) fn is_sku(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{serve::listen, store};
    use api::CatalogueClient;

    #[tokio::test]
    async fn lists_what_the_store_holds() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let shelf = listen(any).await.unwrap();
        let shelf_at = shelf.local_addr().unwrap().to_string();
        let (life, end) = Lifecycle::for_test();
        let store = tokio::spawn(store::serve(shelf, life.clone()));
        let limit = Duration::from_secs(5);
        let client = StoreClient::new(&shelf_at, limit);
        client.set("item/kettle", "Kettle, 1 l|2499").await.unwrap();
        client.set("item/broken", "no price").await.unwrap();
        client.set("order/1", "kettle|1").await.unwrap();

        let listener = listen(any).await.unwrap();
        let at = format!("http://{}", listener.local_addr().unwrap());
        let catalogue = Catalogue { store: StoreClient::new(&shelf_at, limit), name: "here".into() };
        let server = tokio::spawn(serve(listener, life, Arc::new(catalogue)));
        let client = CatalogueClient::new("catalogue", &at, limit).unwrap();
        let kettle = Item { sku: "kettle".into(), name: "Kettle, 1 l".into(), price_cents: 2499 };
        let reply = client.list(0).await.unwrap();
        assert_eq!(reply, ListReply { items: vec![kettle.clone()], served_by: "here".into() });
        assert_eq!(client.get("kettle").await.unwrap(), Some(kettle));
        assert_eq!(client.get("sieve").await.unwrap(), None);
        assert!(matches!(
            client.get("no such\nsku").await,
            Err(Error::Grpc { code: tonic::Code::InvalidArgument, .. })
        ));

        end();
        server.await.unwrap().unwrap();
        store.await.unwrap().unwrap();
    }
}
