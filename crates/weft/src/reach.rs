//! Reaching what runs in pods: a proxy's admin port through the API, and any port of a pod through a port-forward, which
//! comes out on the pod's loopback. Every step has a deadline, every answer a bound, and what the user may not do is named.

use crate::apply::api_message;
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _, client::UpgradeConnectionError};
use std::time::Duration;
use tokio::{io::DuplexStream, time::timeout};
use weft_fault::{Code, Fault};
use weft_kube::api::{self, ApiError};

/// The port under which every proxy tells about itself.
pub(crate) const ADMIN: u16 = 4191;
/// The proxy's container.
pub(crate) const PROXY: &str = "linkerd-proxy";
/// On every pod with a proxy; its value is the namespace of its control plane.
pub(crate) const CONTROL_NS: &str = "linkerd.io/control-plane-ns";

const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(10);
/// A page of metrics may be long; what is longer than this is none.
const ANSWER_BYTES: usize = 64 << 20;

/// What the user would have to be allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Right {
    pub(crate) verb: &'static str,
    pub(crate) resource: &'static str,
}

pub(crate) const FORWARD: Right = Right { verb: "create", resource: "pods/portforward" };
pub(crate) const PROXIED: Right = Right { verb: "get", resource: "pods/proxy" };

impl Right {
    /// The failure of a request that needs this right in `namespace`.
    pub(crate) fn missing(self, namespace: &str, why: impl Into<String>) -> Fault {
        let Right { verb, resource } = self;
        Fault::new(Code::ApiRequestFailed)
            .about(format!("{verb} {resource} in namespace {namespace}"))
            .fact("answer", why.into())
            .fact("check", format!("kubectl auth can-i {verb} {resource} -n {namespace}"))
    }
}

/// `shop/web-1`.
pub(crate) fn title(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

pub(crate) fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        && pod.metadata.deletion_timestamp.is_none()
}

pub(crate) fn is_meshed(pod: &Pod) -> bool {
    pod.labels().contains_key(CONTROL_NS)
}

/// A connection to a port of a pod, as from inside it.
pub(crate) async fn forward(client: &Client, pod: &Pod, port: u16) -> Result<DuplexStream> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let late = || unreachable(pod, port, format!("no answer in {} s", CONNECT.as_secs()));
    let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let mut forwarder = match timeout(CONNECT, api.portforward(&name, &[port])).await.map_err(|_| late())? {
        Ok(forwarder) => forwarder,
        Err(kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(status)))
            if status == StatusCode::FORBIDDEN || status == StatusCode::UNAUTHORIZED =>
        {
            return Err(FORWARD.missing(&namespace, status.to_string()).into());
        }
        Err(kube::Error::Api(status)) if status.code == 403 => {
            return Err(FORWARD.missing(&namespace, &status.message).into());
        }
        Err(error) => return Err(unreachable(pod, port, api_message(&error)).into()),
    };
    forwarder.take_stream(port).with_context(|| format!("no stream to port {port} of {}", title(pod)))
}

fn unreachable(pod: &Pod, port: u16, why: String) -> Fault {
    Fault::new(Code::ApiRequestFailed).about(format!("port {port} of pod {}", title(pod))).fact("why", why)
}

/// What a pod's admin port answers when the API carries the question: for what everybody may read.
pub(crate) async fn read_admin(client: &Client, pod: &Pod, path: &str) -> Result<String> {
    read_port(client, pod, ADMIN, path).await
}

/// The same of any port that answers in plain HTTP.
pub(crate) async fn read_port(client: &Client, pod: &Pod, port: u16, path: &str) -> Result<String> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let through = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy{path}");
    let request = Request::get(through).body(Vec::new()).context("a path")?;
    let answer = async {
        let response = api::send(client, request).await?;
        api::read(response.into_body(), ANSWER_BYTES).await
    };
    match answer.await {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(ApiError::Status { code: 403, reason, message, .. }) if reason == "Forbidden" => {
            Err(PROXIED.missing(&namespace, message).into())
        }
        Err(ApiError::Status { code: 403, message, .. }) => {
            bail!("the policy of port {port} of {} does not let it be read ({})", title(pod), message.trim())
        }
        Err(ApiError::Status { code: 404, .. }) => {
            bail!("{} has no page {}: it is of another version", title(pod), path_of(path))
        }
        Err(error) => Err(unreachable(pod, port, words(&error)).into()),
    }
}

fn path_of(path: &str) -> &str {
    path.split('?').next().unwrap_or(path)
}

/// An error and its causes, in one line.
pub(crate) fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// What came from inside a pod.
pub(crate) struct Inside {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

/// Asks a pod's admin port from inside the pod: for what only those within may do.
pub(crate) async fn ask_inside(
    client: &Client,
    pod: &Pod,
    method: Method,
    path: &str,
    body: &str,
) -> Result<Inside> {
    let io = forward(client, pod, ADMIN).await?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, "localhost")
        .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
        .context("a path")?;
    let asked = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
        // It ends when the answer was read, or with the command.
        tokio::spawn(connection);
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body =
            Limited::new(body, ANSWER_BYTES).collect().await.map_err(|error| anyhow::anyhow!(error))?;
        let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        anyhow::Ok(Inside { status: head.status, headers: head.headers, body })
    };
    match timeout(ANSWER, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(unreachable(pod, ADMIN, format!("{error:#}")).into()),
        Err(_) => Err(unreachable(pod, ADMIN, format!("no answer in {} s", ANSWER.as_secs())).into()),
    }
}
