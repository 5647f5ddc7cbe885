//! Takes orders: `POST /orders` writes the store and sends mail; `GET /admin/orders` is for nobody in the shop.

use crate::{
    Error,
    call::Caller,
    catalogue::is_sku,
    kv::StoreClient,
    lifecycle::{Lifecycle, LifecycleOptions},
    serve::{self, Version, body, health, json, plain},
    text::{cents, say},
};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde::Deserialize;
use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

const ROLE: &str = "checkout";

#[derive(clap::Args, Debug)]
pub struct Options {
    /// Where to listen
    #[arg(long, env = "SHOP_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// The store's HOST:PORT
    #[arg(long, env = "SHOP_STORE", default_value = "store:7000")]
    pub store: String,
    /// Where mail is sent
    #[arg(long, env = "SHOP_MAIL", default_value = "http://mail:8025")]
    pub mail: String,
    /// What mail asks for, if it asks for anything
    #[arg(long, env = "SHOP_MAIL_TOKEN", hide_env_values = true)]
    pub mail_token: Option<String>,
    /// Exists while this program is ready, for probes that run a command
    #[arg(long, env = "SHOP_READY_FILE")]
    pub ready_file: Option<PathBuf>,
    /// How long each call to another service may take
    #[arg(long, env = "SHOP_TIMEOUT", default_value = "3s", value_parser = crate::text::duration)]
    pub timeout: Duration,
    #[command(flatten)]
    pub life: LifecycleOptions,
}

struct Checkout {
    store: StoreClient,
    mail: Caller,
    mail_token: String,
    orders: AtomicU64,
    started: u64,
    life: Lifecycle,
}

pub async fn run(options: Options) -> Result<(), Error> {
    let life = Lifecycle::start(ROLE, &options.life)?;
    let started = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let checkout = Arc::new(Checkout {
        store: StoreClient::new(&options.store, options.timeout),
        mail: Caller::new("mail", &options.mail, options.timeout)?,
        mail_token: options.mail_token.unwrap_or_default(),
        orders: AtomicU64::new(0),
        started,
        life: life.clone(),
    });
    let listener = serve::listen(options.listen).await?;
    if let Some(path) = options.ready_file {
        let file = |source| Error::File { path: path.display().to_string(), source };
        tokio::fs::write(&path, "ready\n").await.map_err(file)?;
        let life = life.clone();
        tokio::spawn(async move {
            life.leaving().await;
            let _ = tokio::fs::remove_file(&path).await;
        });
    }
    serve::serve(ROLE, listener, Version::Http1, life, move |request| answer(checkout.clone(), request)).await
}

async fn answer(checkout: Arc<Checkout>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => health(&checkout.life),
        (&Method::POST, "/orders") => match body(request).await {
            Ok(body) => checkout.order(&body).await,
            Err(refusal) => refusal,
        },
        (&Method::GET, "/admin/orders") => checkout.orders().await,
        _ => plain(StatusCode::NOT_FOUND, "no such page\n"),
    }
}

#[derive(Deserialize)]
struct Order {
    sku: String,
    #[serde(default = "one")]
    quantity: u32,
    #[serde(default = "nobody")]
    email: String,
}

fn one() -> u32 {
    1
}

fn nobody() -> String {
    "somebody@shop.example".to_string()
}

impl Checkout {
    async fn order(&self, body: &[u8]) -> Response<Full<Bytes>> {
        let order = match serde_json::from_slice::<Order>(body) {
            Ok(order)
                if is_sku(&order.sku) && (1..=100).contains(&order.quantity) && order.email.len() <= 200 =>
            {
                order
            }
            Ok(_) => return plain(StatusCode::BAD_REQUEST, "a sku, a quantity of 1 to 100 and an address\n"),
            Err(error) => return plain(StatusCode::BAD_REQUEST, format!("not an order: {error}\n")),
        };
        match self.place(&order).await {
            Ok(Some(placed)) => json(StatusCode::CREATED, &placed),
            Ok(None) => plain(StatusCode::NOT_FOUND, format!("no item {}\n", order.sku)),
            Err(error) => {
                say(ROLE, format_args!("cannot take an order for {}: {}", order.sku, error.chain()));
                plain(StatusCode::BAD_GATEWAY, "the order could not be taken\n")
            }
        }
    }

    async fn place(&self, order: &Order) -> Result<Option<serde_json::Value>, Error> {
        // 1. What does it cost? The store is asked, not the caller.
        let value = self.store.get(&format!("item/{}", order.sku)).await?;
        let priced = value.as_deref().and_then(|value| value.rsplit_once('|'));
        let Some((name, price)) = priced.and_then(|(name, price)| Some((name, price.parse::<u64>().ok()?)))
        else {
            return Ok(None);
        };
        let total = price * u64::from(order.quantity);

        // 2. Write it down. Numbers are unique per start of this program, which is enough for a sample.
        let number = self.orders.fetch_add(1, Ordering::Relaxed) + 1;
        let id = format!("{}-{number}", self.started);
        self.store.set(&format!("order/{id}"), &format!("{}|{}|{total}", order.sku, order.quantity)).await?;

        // 3. Tell the customer. An order stands although the mail fails; the answer says so.
        let letter = serde_json::json!({
            "to": order.email,
            "subject": format!("Your order {id}"),
            "text": format!("{} × {name}, {} in all.", order.quantity, cents(total)),
        });
        let headers = [("x-mail-token", self.mail_token.as_str())];
        let mailed = match self.mail.post_json("/send", &headers, &letter).await {
            Ok((StatusCode::ACCEPTED, _)) => true,
            Ok((status, body)) => {
                say(ROLE, format_args!("order {id}: {}", self.mail.unexpected(status, &body)));
                false
            }
            Err(error) => {
                say(ROLE, format_args!("order {id}: no mail: {}", error.chain()));
                false
            }
        };
        say(ROLE, format_args!("order {id}: {} × {}, {}", order.quantity, order.sku, cents(total)));
        Ok(Some(serde_json::json!({ "order": id, "total": cents(total), "mailed": mailed })))
    }

    async fn orders(&self) -> Response<Full<Bytes>> {
        match self.store.list("order/", 100).await {
            Ok(orders) => {
                let orders: Vec<_> =
                    orders.into_iter().map(|(key, value)| format!("{key} {value}")).collect();
                json(StatusCode::OK, &serde_json::json!({ "orders": orders }))
            }
            Err(error) => {
                say(ROLE, format_args!("cannot list orders: {}", error.chain()));
                plain(StatusCode::BAD_GATEWAY, "the store does not answer\n")
            }
        }
    }
}
