//! Logs, exec and attach: streams between a client and the node agent.
//!
//! exec and attach speak the WebSocket protocols `v5.channel.k8s.io` and `v4.channel.k8s.io`: each binary message
//! begins with the number of its channel.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{SinkExt, StreamExt, TryStreamExt};
use http::header::{CONTENT_TYPE, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::error::{ApiError, FieldError};
use super::kubelet::{AttachQuery, ExecQuery, ExecStreams, ExitCode, Kubelet, LogQuery, TerminalSize};
use super::request::{Address, Query};
use super::respond::{self, Body};
use super::websocket::{self, Handshake, PING_EVERY, Socket, SocketError, message};
use super::{Api, left_out, meta};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// Version 5 only: the next byte names a channel that the client has closed.
const CLOSE: u8 = 255;

/// In order of preference.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// How many pieces of a stream wait in each direction.
const QUEUE: usize = 16;

/// A pod that exists, and one of its containers.
struct Target {
    pod_uid: String,
    container: String,
    /// Whether the container asks for an input that clients may attach to.
    input: bool,
    /// Whether the pod has a node.
    bound: bool,
}

impl Target {
    fn find(api: &Api, address: &Address, query: &Query) -> Result<Self, ApiError> {
        let pod = api
            .store
            .get("pods", &address.namespace, &address.name)
            .ok_or_else(|| ApiError::not_found("pods", &address.name))?;
        let lists = ["/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers"];
        let names: Vec<&str> = lists
            .iter()
            .flat_map(|list| meta::items(&pod, list))
            .map(|container| meta::text(container, "/name"))
            .collect();
        let own = meta::items(&pod, "/spec/containers");
        let container = match query.get("container").filter(|name| !name.is_empty()) {
            Some(name) if names.contains(&name) => name,
            Some(name) => {
                let message = format!("container {name} is not valid for pod {}", address.name);
                return Err(ApiError::bad_request(message));
            }
            None if own.len() == 1 => meta::text(&own[0], "/name"),
            None => {
                let choices: Vec<&str> = own.iter().map(|container| meta::text(container, "/name")).collect();
                return Err(ApiError::bad_request(format!(
                    "a container name must be specified for pod {}, choose one of: [{}]",
                    address.name,
                    choices.join(" ")
                )));
            }
        };
        Ok(Self {
            pod_uid: meta::uid(&pod).to_owned(),
            container: container.to_owned(),
            input: own.iter().any(|known| known["name"] == container && known["stdin"] == json!(true)),
            bound: !meta::text(&pod, "/spec/nodeName").is_empty(),
        })
    }
}

pub(super) fn kubelet(api: &Api) -> Result<&Arc<dyn Kubelet>, ApiError> {
    api.kubelet.get().ok_or_else(|| {
        ApiError::new(503, "ServiceUnavailable", "no node agent is connected to this API server")
    })
}

/// `…/pods/NAME/log`.
pub(super) async fn logs(
    api: &Arc<Api>,
    address: &Address,
    query: &Query,
) -> Result<Response<Body>, ApiError> {
    let target = Target::find(api, address, query)?;
    let mut errors = Vec::new();
    for (field, least) in [("limitBytes", 1), ("sinceSeconds", 1), ("tailLines", 0)] {
        if let Some(number) = query.number(field)?.filter(|number| *number < least) {
            let why = format!("must be greater than {}", if least == 0 { "or equal to 0" } else { "0" });
            errors.push(FieldError::invalid(field, number, why));
        }
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid("PodLogOptions", &address.name, &errors));
    }
    if !target.bound {
        let mut response = Response::new(respond::full(""));
        *response.status_mut() = StatusCode::NO_CONTENT;
        return Ok(response);
    }
    let since = match (query.number("sinceSeconds")?, query.get("sinceTime")) {
        (Some(seconds), _) => Some(jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds)),
        (None, Some(time)) => Some(
            meta::parse_time(time)
                .ok_or_else(|| ApiError::bad_request(format!("sinceTime: no time: {time:?}")))?,
        ),
        (None, None) => None,
    };
    let query = LogQuery {
        namespace: address.namespace.clone(),
        pod: address.name.clone(),
        pod_uid: target.pod_uid,
        container: target.container,
        follow: query.flag("follow"),
        previous: query.flag("previous"),
        timestamps: query.flag("timestamps"),
        since,
        tail_lines: query.number("tailLines")?.and_then(|lines| usize::try_from(lines).ok()),
        limit_bytes: query.number("limitBytes")?.and_then(|bytes| u64::try_from(bytes).ok()),
    };
    let lines = kubelet(api)?.logs(query).await?;
    let mut response = Response::new(StreamBody::new(lines.map_ok(Frame::data)).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}

/// `…/exec` and `…/attach`: checks what can be checked, then turns the connection into a WebSocket.
pub(super) fn upgrade(
    api: &Arc<Api>,
    address: &Address,
    query: &Query,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    let target = Target::find(api, address, query)?;
    if !target.bound {
        return Err(ApiError::bad_request(format!("pod {} does not have a host assigned", address.name)));
    }
    if !request.headers().contains_key(UPGRADE) {
        return Err(ApiError::bad_request("Upgrade request required"));
    }
    let command = query.all("command").to_vec();
    let (stdin, tty) = (query.flag("stdin"), query.flag("tty"));
    let exec = address.subresource == "exec";
    if exec && command.is_empty() {
        return Err(ApiError::bad_request("you must specify at least 1 command for the container"));
    }
    if !exec && stdin && target.input {
        return Err(left_out::input());
    }
    let handshake = Handshake::of(&request, &PROTOCOLS)?;

    let kubelet = kubelet(api)?.clone();
    let (namespace, pod) = (address.namespace.clone(), address.name.clone());
    let (pod_uid, container) = (target.pod_uid, target.container);
    tokio::spawn(async move {
        let Some(socket) = websocket::accept(request).await else { return };
        let (ends, streams) = Ends::pair();
        let running = if exec {
            kubelet.exec(ExecQuery { namespace, pod, pod_uid, container, command, stdin, tty }, streams)
        } else {
            kubelet.attach(AttachQuery { namespace, pod, pod_uid, container, stdin, tty }, streams)
        };
        if let Err(error) = session(socket, ends, running).await {
            tracing::debug!(%error, "exec or attach session ended early");
        }
    });

    handshake.response()
}

/// This side's ends of a command's streams.
struct Ends {
    /// `None`: end of input.
    stdin: Option<mpsc::Sender<Bytes>>,
    stdout: mpsc::Receiver<Bytes>,
    stderr: mpsc::Receiver<Bytes>,
    resize: mpsc::Sender<TerminalSize>,
}

impl Ends {
    fn pair() -> (Self, ExecStreams) {
        let (stdin, stdin_rx) = mpsc::channel(QUEUE);
        let (stdout_tx, stdout) = mpsc::channel(QUEUE);
        let (stderr_tx, stderr) = mpsc::channel(QUEUE);
        let (resize, resize_rx) = mpsc::channel(QUEUE);
        let streams =
            ExecStreams { stdin: stdin_rx, stdout: stdout_tx, stderr: stderr_tx, resize: resize_rx };
        (Self { stdin: Some(stdin), stdout, stderr, resize }, streams)
    }
}

/// Carries bytes both ways until the command ends or the client goes. A client that stops reading holds its command
/// back, as a terminal does: there is no deadline on that, only the ping.
async fn session(
    mut socket: Socket,
    mut ends: Ends,
    mut running: BoxFuture<'_, Result<ExitCode, ApiError>>,
) -> Result<(), SocketError> {
    // Tells the client that the connection stands.
    socket.send(message(STDOUT, b"")).await?;
    let mut input: Option<Bytes> = None;
    let mut ping = tokio::time::interval(PING_EVERY);
    let ended = loop {
        let stdin = ends.stdin.clone();
        tokio::select! {
            Some(data) = ends.stdout.recv() => socket.send(message(STDOUT, &data)).await?,
            Some(data) = ends.stderr.recv() => socket.send(message(STDERR, &data)).await?,
            ended = &mut running => break ended,
            // Input is read only when the last piece found room, so a busy command holds its client back.
            permit = reserve(stdin.as_ref()), if input.is_some() => {
                match (permit, input.take()) {
                    (Some(permit), Some(data)) => permit.send(data),
                    // The command closed its input: the rest is dropped, as on a closed pipe.
                    _ => ends.stdin = None,
                }
            }
            received = socket.next(), if input.is_none() => match received {
                Some(Ok(Message::Binary(data))) => input = receive(&mut ends, data),
                Some(Ok(Message::Close(_))) | None => return Ok(()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
            },
            _ = ping.tick() => socket.send(Message::Ping(Bytes::new())).await?,
        }
    };
    // The agent has sent everything and dropped its ends; what is queued goes out before the verdict.
    while let Ok(data) = ends.stdout.try_recv() {
        socket.send(message(STDOUT, &data)).await?;
    }
    while let Ok(data) = ends.stderr.try_recv() {
        socket.send(message(STDERR, &data)).await?;
    }
    socket.send(message(ERROR, verdict(ended).to_string().as_bytes())).await?;
    // kubectl takes a close without this code for a failure.
    socket.close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() })).await?;
    // Until the client answers the close, or a little while.
    let drained = async { while let Some(Ok(_)) = socket.next().await {} };
    let _ = tokio::time::timeout(Duration::from_secs(5), drained).await;
    Ok(())
}

async fn reserve(stdin: Option<&mpsc::Sender<Bytes>>) -> Option<mpsc::Permit<'_, Bytes>> {
    stdin?.reserve().await.ok()
}

/// Sorts a client's message; input is returned to wait for room.
fn receive(ends: &mut Ends, data: Bytes) -> Option<Bytes> {
    let rest = data.slice(1.min(data.len())..);
    match data.first().copied()? {
        STDIN if !rest.is_empty() => return Some(rest),
        RESIZE => {
            if let Ok(size) = serde_json::from_slice(&rest) {
                // A full queue of sizes only misses intermediate ones.
                let _ = ends.resize.try_send(size);
            }
        }
        CLOSE if rest.first() == Some(&STDIN) => ends.stdin = None,
        _ => {}
    }
    None
}

/// The Status that ends a session.
fn verdict(ended: Result<ExitCode, ApiError>) -> Value {
    match ended {
        Ok(ExitCode(0)) => json!({ "metadata": {}, "status": "Success" }),
        Ok(ExitCode(code)) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "reason": "NonZeroExitCode",
            "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
        }),
        Err(error) => error.to_status(),
    }
}
