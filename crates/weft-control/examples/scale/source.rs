//! The API as the controller sees it: lists by page, watches that say what changed.

use crate::objects::Shape;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{body::Frame, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use serde_json::Value;
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::{
    net::TcpListener,
    sync::{broadcast, mpsc},
};
use tokio_stream::wrappers::ReceiverStream;

/// Changes that a watch may be behind before it is told that its version is gone.
const BEHIND: usize = 1 << 14;

type Body = BoxBody<Bytes, Infallible>;

pub(crate) struct Source {
    pub(crate) shape: Shape,
    /// Which endpoints of each service are ready.
    ready: Mutex<Vec<Vec<bool>>>,
    version: AtomicU64,
    changes: broadcast::Sender<Bytes>,
    /// Issuer and trust roots.
    fixed: Vec<Value>,
}

impl Source {
    pub(crate) fn new(shape: Shape, fixed: Vec<Value>) -> Arc<Self> {
        let ready = Mutex::new(vec![vec![true; shape.each]; shape.services]);
        Arc::new(Source {
            shape,
            ready,
            version: AtomicU64::new(1),
            changes: broadcast::Sender::new(BEHIND),
            fixed,
        })
    }

    pub(crate) async fn serve(self: &Arc<Self>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let source = self.clone();
        tokio::spawn(async move {
            loop {
                let Ok((tcp, _)) = listener.accept().await else { continue };
                let _ = tcp.set_nodelay(true);
                let source = source.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request: Request<Incoming>| {
                        let answer = source.answer(&request);
                        async move { Ok::<_, Infallible>(answer) }
                    });
                    let _ =
                        Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(tcp), service).await;
                });
            }
        });
        addr
    }

    /// Turns one endpoint's readiness over; returns how many of the service are ready then.
    pub(crate) fn toggle(&self, service: usize, n: usize) -> usize {
        let mut ready = self.ready.lock().expect("unpoisoned");
        ready[service][n] = !ready[service][n];
        let version = self.version.fetch_add(1, Ordering::Relaxed) + 1;
        let object = self.shape.slice(service, version, &ready[service]);
        // In order: the lock is held.
        let _ = self.changes.send(format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n").into());
        ready[service].iter().filter(|ready| **ready).count()
    }

    pub(crate) fn ready(&self, service: usize) -> Vec<SocketAddr> {
        let ready = self.ready.lock().expect("unpoisoned");
        let addr = |n| SocketAddr::new(self.shape.ip(service, n).into(), 8080);
        (0..self.shape.each).filter(|n| ready[service][*n]).map(addr).collect()
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let query = request.uri().query().unwrap_or_default();
        let get = |name: &str| {
            query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
        };
        let path = request.uri().path();
        if path == "/version" {
            return whole(StatusCode::OK, "{}".to_owned());
        }
        let last = path.rsplit('/').next().unwrap_or_default();
        if let Some(object) = self.fixed.iter().find(|o| o["metadata"]["name"] == last) {
            return whole(StatusCode::OK, object.to_string());
        }
        if path.contains("/leases") {
            return whole(StatusCode::NOT_FOUND, "{}".to_owned());
        }
        if get("watch").is_some() {
            return self.watch(last == "endpointslices");
        }
        let number = |name: &str| get(name).and_then(|n| n.parse::<usize>().ok());
        self.list(last, number("limit").unwrap_or(usize::MAX), number("continue").unwrap_or(0))
    }

    fn list(&self, plural: &str, limit: usize, from: usize) -> Response<Body> {
        let shape = self.shape;
        let version = self.version.load(Ordering::Relaxed);
        let page = |all: usize, make: &dyn Fn(usize) -> String| {
            let to = all.min(from.saturating_add(limit));
            let items: Vec<String> = (from..to).map(make).collect();
            let next = if to < all { to.to_string() } else { String::new() };
            format!(
                r#"{{"metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":[{}]}}"#,
                items.join(",")
            )
        };
        let (nodes, namespaces) = (Shape::nodes(), Shape::namespaces());
        let body = match plural {
            "pods" => page(shape.services * shape.each, &|n| shape.pod(n / shape.each, n % shape.each)),
            "services" => page(shape.services, &Shape::service),
            "replicasets" => page(shape.services, &Shape::replica_set),
            "endpointslices" => {
                let ready = self.ready.lock().expect("unpoisoned");
                page(shape.services, &|n| shape.slice(n, 1, &ready[n]))
            }
            "nodes" => page(nodes.len(), &|n| nodes[n].clone()),
            "namespaces" => page(namespaces.len(), &|n| namespaces[n].clone()),
            _ => page(0, &|_| String::new()),
        };
        whole(StatusCode::OK, body)
    }

    fn watch(&self, slices: bool) -> Response<Body> {
        let (out, body) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(256);
        let mut changes = self.changes.subscribe();
        tokio::spawn(async move {
            if !slices {
                return out.closed().await;
            }
            loop {
                let line = match changes.recv().await {
                    Ok(line) => line,
                    Err(broadcast::error::RecvError::Closed) => return,
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        let gone =
                            r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}"#;
                        let _ = out.send(Ok(Frame::data(format!("{gone}\n").into()))).await;
                        return;
                    }
                };
                if out.send(Ok(Frame::data(line))).await.is_err() {
                    return;
                }
            }
        });
        Response::new(BodyExt::boxed(StreamBody::new(ReceiverStream::new(body))))
    }
}

fn whole(status: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Full::from(body).boxed());
    *response.status_mut() = status;
    response
}
