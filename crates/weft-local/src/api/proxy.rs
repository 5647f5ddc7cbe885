//! `…/pods/NAME:PORT/proxy/…` and `…/services/NAME:PORT/proxy/…`: plain HTTP to a pod, by way of the API.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::error::ApiError;
use super::request::Address;
use super::respond::Body;
use super::{Api, meta};

/// How long a pod may take to accept a connection, and then to begin its answer.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(60);

/// Forwards a request and streams the answer back.
pub(super) async fn forward(
    api: &Arc<Api>,
    address: &Address,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    let target = target(api, address)?;
    let unavailable = |why: String| {
        ApiError::new(503, "ServiceUnavailable", format!("error trying to reach service: {why}"))
    };
    let stream = dial(api, target).await.map_err(|e| unavailable(format!("dial tcp {target}: {e}")))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| unavailable(e.to_string()))?;
    // Ends when the answer's body has been read, or when that is dropped.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%target, %error, "proxied connection ended");
        }
    });

    let (mut parts, body) = request.into_parts();
    let query = parts.uri.query().map_or(String::new(), |query| format!("?{query}"));
    let path = format!("/{}{query}", address.rest.as_deref().unwrap_or(""));
    parts.uri = path.parse::<Uri>().map_err(|e| ApiError::bad_request(e.to_string()))?;
    parts.version = http::Version::HTTP_11;
    // The caller's credentials are for the API, not for the pod.
    for header in
        [AUTHORIZATION, CONNECTION, UPGRADE, TRANSFER_ENCODING, HeaderName::from_static("keep-alive")]
    {
        parts.headers.remove(header);
    }
    let host = HeaderValue::from_str(&target.to_string()).map_err(|e| ApiError::internal(e.to_string()))?;
    parts.headers.insert(HOST, host);
    let sent = tokio::time::timeout(ANSWER, sender.send_request(Request::from_parts(parts, body))).await;
    let response = match sent {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(unavailable(error.to_string())),
        Err(_) => return Err(unavailable("no answer in time".to_owned())),
    };
    let mut response = response.map(|body| body.map_err(std::io::Error::other).boxed_unsync());
    for header in [CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        response.headers_mut().remove(header);
    }
    Ok(response)
}

/// Connects into the node's network.
pub(super) async fn dial(api: &Api, target: SocketAddr) -> std::io::Result<TcpStream> {
    let connect = async {
        match api.kubelet.get() {
            Some(kubelet) => kubelet.dial(target.ip(), target.port()).await,
            None => TcpStream::connect(target).await,
        }
    };
    match tokio::time::timeout(CONNECT, connect).await {
        Ok(connected) => connected,
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut)),
    }
}

/// `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`; only plain HTTP is spoken.
fn target(api: &Api, address: &Address) -> Result<SocketAddr, ApiError> {
    let parts: Vec<&str> = address.name.split(':').collect();
    let (name, port) = match parts.as_slice() {
        [name] => (*name, ""),
        [name, port] | ["" | "http", name, port] => (*name, *port),
        _ => {
            let message =
                format!("invalid pod or service request {:?}: only plain HTTP is forwarded", address.name);
            return Err(ApiError::bad_request(message));
        }
    };
    if address.plural == "services" {
        // A Service of which nobody has looked for endpoints is not there yet, as far as a real server knows.
        if api.store.get("services", &address.namespace, name).is_none()
            || !api.has_slices(&address.namespace, name)
        {
            return Err(ApiError::not_found("services", name));
        }
        return api.endpoint_of(&address.namespace, name, port).ok_or_else(|| {
            let message = format!("no endpoints available for service {name:?}");
            ApiError::new(503, "ServiceUnavailable", message)
        });
    }
    let pod =
        api.store.get("pods", &address.namespace, name).ok_or_else(|| ApiError::not_found("pods", name))?;
    let ip: IpAddr = meta::text(&pod, "/status/podIP")
        .parse()
        .map_err(|_| ApiError::bad_request("address not allowed"))?;
    let ports =
        meta::items(&pod, "/spec/containers").iter().flat_map(|container| meta::items(container, "/ports"));
    let number = match port {
        "" => ports.filter_map(|port| port["containerPort"].as_u64()).next().unwrap_or(80),
        port => match port.parse() {
            Ok(number) => number,
            Err(_) => ports
                .filter(|known| meta::text(known, "/name") == port)
                .find_map(|known| known["containerPort"].as_u64())
                .ok_or_else(|| ApiError::bad_request(format!("pod {name:?} has no port {port:?}")))?,
        },
    };
    let number = u16::try_from(number).map_err(|_| ApiError::bad_request(format!("no port: {number}")))?;
    Ok(SocketAddr::new(ip, number))
}
