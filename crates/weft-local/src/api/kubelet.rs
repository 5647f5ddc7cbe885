//! What the API asks of the node agent: logs, exec, attach and connections to pods.
//!
//! A real API server proxies these to the kubelet over HTTPS; here both live in one process, so a trait suffices.
//! The API has already checked that the pod and the container exist when it calls.

use std::io;
use std::net::IpAddr;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::error::ApiError;

/// Marks pods that only stand for something which their node runs by itself.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// The node agent as seen by the API server.
pub trait Kubelet: Send + Sync {
    /// The log of one container: raw lines, each ended by `\n`. With `follow` the stream ends when the container
    /// does; dropping it ends the work behind it.
    fn logs(&self, query: LogQuery)
    -> BoxFuture<'_, Result<BoxStream<'static, io::Result<Bytes>>, ApiError>>;

    /// Runs a command in a container and returns when it has exited and its output was sent.
    /// Dropping the future kills the command (the client went away).
    fn exec(&self, query: ExecQuery, streams: ExecStreams) -> BoxFuture<'_, Result<ExitCode, ApiError>>;

    /// Follows the output of a container's main process, and feeds its stdin if it has one.
    fn attach(&self, query: AttachQuery, streams: ExecStreams) -> BoxFuture<'_, Result<ExitCode, ApiError>>;

    /// Connects to an address inside the node's network: `…/proxy`.
    fn dial(&self, ip: IpAddr, port: u16) -> BoxFuture<'_, io::Result<TcpStream>>;

    /// Connects to the loopback of a pod, from inside it: `…/portforward`.
    fn connect<'a>(&'a self, pod_uid: &'a str, port: u16) -> BoxFuture<'a, io::Result<TcpStream>>;
}

/// `GET …/pods/NAME/log`.
#[derive(Debug, Clone, Default)]
pub struct LogQuery {
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    /// Always set: the API fills in the default container.
    pub container: String,
    pub follow: bool,
    /// The log of the run before the last restart.
    pub previous: bool,
    pub timestamps: bool,
    pub since: Option<jiff::Timestamp>,
    pub tail_lines: Option<usize>,
    pub limit_bytes: Option<u64>,
}

/// `…/pods/NAME/exec`.
#[derive(Debug, Clone, Default)]
pub struct ExecQuery {
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    pub container: String,
    pub command: Vec<String>,
    /// Whether the client will send input; without it the command's stdin is empty.
    pub stdin: bool,
    /// A terminal: stderr is merged into stdout.
    pub tty: bool,
}

/// `…/pods/NAME/attach`.
#[derive(Debug, Clone, Default)]
pub struct AttachQuery {
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    pub container: String,
    pub stdin: bool,
    pub tty: bool,
}

/// The agent's ends of a command's streams. All are bounded; a closed `stdin` is end of file.
#[derive(Debug)]
pub struct ExecStreams {
    pub stdin: mpsc::Receiver<Bytes>,
    pub stdout: mpsc::Sender<Bytes>,
    pub stderr: mpsc::Sender<Bytes>,
    pub resize: mpsc::Receiver<TerminalSize>,
}

/// What a client's terminal measures, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TerminalSize {
    pub width: u16,
    pub height: u16,
}

/// How a command ended: its exit status, or 128 + the number of the signal that killed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitCode(pub i32);
