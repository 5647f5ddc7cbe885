//! The shop's page. `GET /` for people, `GET /api/items` for programs, `POST /buy` for both.

use crate::{
    Error,
    call::Caller,
    catalogue::{
        api::{CatalogueClient, ListReply},
        is_sku,
    },
    lifecycle::{Lifecycle, LifecycleOptions},
    serve::{self, Version, body, health, html, json, plain},
    text::{cents, escape, hostname, say},
};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use std::{fmt::Write as _, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

const ROLE: &str = "web";

#[derive(clap::Args, Debug)]
pub struct Options {
    /// Where to listen
    #[arg(long, env = "SHOP_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// The catalogue, gRPC
    #[arg(long, env = "SHOP_CATALOGUE", default_value = "http://catalogue:50051")]
    pub catalogue: String,
    /// The checkout, HTTP
    #[arg(long, env = "SHOP_CHECKOUT", default_value = "http://checkout:8080")]
    pub checkout: String,
    /// The page's title
    #[arg(long, env = "SHOP_TITLE", default_value = "The shop")]
    pub title: String,
    /// A file with a line to show below the title; read at every page, so it may change
    #[arg(long, env = "SHOP_BANNER_FILE")]
    pub banner_file: Option<PathBuf>,
    /// The name that pages carry
    #[arg(long, env = "POD_NAME")]
    pub name: Option<String>,
    /// How long each call to another service may take
    #[arg(long, env = "SHOP_TIMEOUT", default_value = "5s", value_parser = crate::text::duration)]
    pub timeout: Duration,
    #[command(flatten)]
    pub life: LifecycleOptions,
}

struct Web {
    catalogue: CatalogueClient,
    checkout: Caller,
    title: String,
    banner_file: Option<PathBuf>,
    name: String,
    life: Lifecycle,
}

pub async fn run(options: Options) -> Result<(), Error> {
    let life = Lifecycle::start(ROLE, &options.life)?;
    let web = Arc::new(Web {
        catalogue: CatalogueClient::new("catalogue", &options.catalogue, options.timeout)?,
        checkout: Caller::new("checkout", &options.checkout, options.timeout)?,
        title: options.title,
        banner_file: options.banner_file,
        name: options.name.unwrap_or_else(hostname),
        life: life.clone(),
    });
    let listener = serve::listen(options.listen).await?;
    serve::serve(ROLE, listener, Version::Http1, life, move |request| answer(web.clone(), request)).await
}

async fn answer(web: Arc<Web>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/") => web.page().await,
        (&Method::GET, "/api/items") => web.items().await,
        (&Method::GET, path) if path.starts_with("/api/items/") => {
            web.item(&path["/api/items/".len()..]).await
        }
        (&Method::POST, "/buy") => match body(request).await {
            Ok(form) => web.buy(&form).await,
            Err(refusal) => refusal,
        },
        (&Method::GET, "/healthz") => health(&web.life),
        _ => plain(StatusCode::NOT_FOUND, "no such page\n"),
    }
}

impl Web {
    async fn page(&self) -> Response<Full<Bytes>> {
        match self.catalogue.list(100).await {
            Ok(reply) => {
                let banner = self.banner().await;
                html(StatusCode::OK, page(&self.title, &banner, &self.name, &reply))
            }
            Err(error) => broken("list the items", &error),
        }
    }

    async fn items(&self) -> Response<Full<Bytes>> {
        match self.catalogue.list(100).await {
            Ok(reply) => {
                let items: Vec<_> = reply
                    .items
                    .iter()
                    .map(|item| serde_json::json!({ "sku": item.sku, "name": item.name, "cents": item.price_cents }))
                    .collect();
                let by = serde_json::json!({ "web": self.name, "catalogue": reply.served_by });
                json(StatusCode::OK, &serde_json::json!({ "items": items, "served_by": by }))
            }
            Err(error) => broken("list the items", &error),
        }
    }

    async fn item(&self, sku: &str) -> Response<Full<Bytes>> {
        if !is_sku(sku) {
            return plain(StatusCode::BAD_REQUEST, "a sku is made of a-z, 0-9 and -\n");
        }
        match self.catalogue.get(sku).await {
            Ok(Some(item)) => json(
                StatusCode::OK,
                &serde_json::json!({ "sku": item.sku, "name": item.name, "cents": item.price_cents }),
            ),
            Ok(None) => plain(StatusCode::NOT_FOUND, "no such item\n"),
            Err(error) => broken("look up an item", &error),
        }
    }

    async fn buy(&self, form: &[u8]) -> Response<Full<Bytes>> {
        let form = String::from_utf8_lossy(form);
        let Some(sku) = form.split('&').find_map(|pair| pair.strip_prefix("sku=")).filter(|sku| is_sku(sku))
        else {
            return plain(StatusCode::BAD_REQUEST, "send sku=SKU\n");
        };
        let order = serde_json::json!({ "sku": sku, "quantity": 1 });
        match self.checkout.post_json("/orders", &[], &order).await {
            Ok((StatusCode::CREATED, placed)) => plain(StatusCode::CREATED, placed),
            Ok((StatusCode::NOT_FOUND, _)) => plain(StatusCode::NOT_FOUND, "no such item\n"),
            Ok((status, body)) => broken("take the order", &self.checkout.unexpected(status, &body)),
            Err(error) => broken("take the order", &error),
        }
    }

    async fn banner(&self) -> String {
        let Some(path) = &self.banner_file else { return String::new() };
        tokio::fs::read_to_string(path).await.unwrap_or_else(|error| {
            say(ROLE, format_args!("cannot read {}: {error}", path.display()));
            String::new()
        })
    }
}

fn broken(what: &str, error: &Error) -> Response<Full<Bytes>> {
    say(ROLE, format_args!("cannot {what}: {}", error.chain()));
    plain(StatusCode::BAD_GATEWAY, format!("cannot {what}\n"))
}

fn page(title: &str, banner: &str, name: &str, reply: &ListReply) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body{{font:1rem/1.5 system-ui;max-width:44rem;margin:2rem auto;padding:0 1rem}}\
         table{{width:100%;border-collapse:collapse}}td{{padding:.25rem;border-top:1px solid #ddd}}\
         td.price{{text-align:right}}footer{{color:#666;margin-top:2rem}}</style></head>\n\
         <body><h1>{title}</h1>\n<p>{banner}</p>\n<table>\n",
        title = escape(title),
        banner = escape(banner.trim()),
    );
    if reply.items.is_empty() {
        page.push_str("<tr><td>Nothing for sale yet: the import has not run.</td></tr>\n");
    }
    for item in &reply.items {
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"price\">{}</td><td><form method=\"post\" action=\"/buy\">\
             <button name=\"sku\" value=\"{}\">Buy</button></form></td></tr>",
            escape(&item.name),
            cents(item.price_cents.into()),
            escape(&item.sku),
        );
    }
    let _ = write!(
        page,
        "</table>\n<footer>Page by {}, items by {}.</footer></body></html>\n",
        escape(name),
        escape(&reply.served_by),
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::api::Item;

    #[test]
    fn the_page_shows_items_and_who_served_it() {
        let item = Item { sku: "pan".into(), name: "Pan <24 cm>".into(), price_cents: 1800 };
        let reply = ListReply { items: vec![item], served_by: "catalogue-1".into() };
        let page = page("Shop", "Open\n", "web-1", &reply);
        assert!(page.contains("Pan &lt;24 cm&gt;</td><td class=\"price\">18.00"), "{page}");
        assert!(page.contains("value=\"pan\""), "{page}");
        assert!(page.contains("Page by web-1, items by catalogue-1."), "{page}");
    }
}
