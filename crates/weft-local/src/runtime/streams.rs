//! What the API asks of this node: logs, exec, attach, connections.

use super::{
    Container, Pod, Runtime, explain,
    process::{self, Joining, exit_code},
};
use crate::api::{
    error::ApiError,
    kubelet::{AttachQuery, ExecQuery, ExecStreams, ExitCode, Kubelet, LogQuery, TerminalSize},
};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::mpsc,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use weft_net::{
    namespace::{Enter, enter},
    process::Terminal,
};

/// How long a connection into a pod may take.
const DIAL_DEADLINE: Duration = Duration::from_secs(10);
/// How long output may go on after its command has ended: only processes that it left behind still hold it.
const DRAIN: Duration = Duration::from_millis(500);

impl Kubelet for Runtime {
    fn logs(
        &self,
        query: LogQuery,
    ) -> BoxFuture<'_, Result<BoxStream<'static, io::Result<Bytes>>, ApiError>> {
        async move {
            let container = self.container(&query.pod_uid, &query.pod, &query.container)?;
            let run =
                if query.previous { container.and_then(|c| c.before) } else { container.map(|c| c.now) };
            let Some(run) = run else {
                let what = if query.previous { "previous terminated container" } else { "container" };
                let text = format!("{what} \"{}\" in pod \"{}\" not found", query.container, query.pod);
                return Err(ApiError::bad_request(text));
            };
            let (to, from) = mpsc::channel(16);
            tokio::spawn(run.log.clone().read(query, to));
            Ok(ReceiverStream::new(from).boxed())
        }
        .boxed()
    }

    fn exec(&self, query: ExecQuery, streams: ExecStreams) -> BoxFuture<'_, Result<ExitCode, ApiError>> {
        async move {
            let container = self.container(&query.pod_uid, &query.pod, &query.container)?;
            let running = container.filter(|c| !c.now.is_over()).and_then(|c| c.now.process.clone());
            let Some(running) = running else {
                return Err(ApiError::internal(format!("container not found (\"{}\")", query.container)));
            };
            let joining = Joining { command: query.command, stdin: query.stdin, tty: query.tty };
            let joined = process::join(running, joining).await;
            let joined = joined.map_err(|f| ApiError::internal(format!("exec failed: {}", explain(&f))))?;
            let code = match joined.terminal {
                Some(terminal) => on_terminal(joined.child, terminal, streams).await,
                None => on_pipes(joined.child, streams).await,
            };
            code.map(ExitCode).map_err(|e| ApiError::internal(format!("exec: {e}")))
        }
        .boxed()
    }

    fn attach(&self, query: AttachQuery, streams: ExecStreams) -> BoxFuture<'_, Result<ExitCode, ApiError>> {
        async move {
            let container = self.container(&query.pod_uid, &query.pod, &query.container)?;
            let Some(Container { now: run, .. }) = container else {
                return Err(ApiError::internal(format!("container not found (\"{}\")", query.container)));
            };
            // Containers have no standard input here: attaching is following the output from now on.
            let follow = LogQuery { follow: true, tail_lines: Some(0), ..LogQuery::default() };
            let (to, mut from) = mpsc::channel(16);
            tokio::spawn(run.log.clone().read(follow, to));
            while let Some(Ok(part)) = from.recv().await {
                if streams.stdout.send(part).await.is_err() {
                    break;
                }
            }
            Ok(ExitCode(0))
        }
        .boxed()
    }

    fn dial(&self, ip: IpAddr, port: u16) -> BoxFuture<'_, io::Result<TcpStream>> {
        async move {
            let connected = timeout(DIAL_DEADLINE, TcpStream::connect((ip, port))).await;
            connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        }
        .boxed()
    }

    fn connect<'a>(&'a self, pod_uid: &'a str, port: u16) -> BoxFuture<'a, io::Result<TcpStream>> {
        async move {
            let pod = self.pod(pod_uid).map_err(|_| io::Error::other("the pod does not run"))?;
            let v4 = connect_inside(&pod, (Ipv4Addr::LOCALHOST, port).into()).await;
            match v4 {
                // A server may listen on one family only.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    connect_inside(&pod, (Ipv6Addr::LOCALHOST, port).into()).await.map_err(|_| e)
                }
                other => other,
            }
        }
        .boxed()
    }
}

/// Connects from inside a pod's network namespace: a socket stays in the one in which it was made.
async fn connect_inside(pod: &Pod, to: SocketAddr) -> io::Result<TcpStream> {
    let sandbox = pod.sandbox.clone();
    let make = move || {
        let inside = Enter { net: Some(sandbox.namespaces.net()), ..Enter::default() };
        enter(inside, || if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() })
    };
    let made = tokio::task::spawn_blocking(make).await.map_err(io::Error::other)?;
    let socket = made.map_err(|fault| io::Error::other(explain(&fault)))?;
    let connected = timeout(DIAL_DEADLINE, socket.connect(to)).await;
    connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl Runtime {
    /// A container's runs, if it ever had one.
    fn container(&self, uid: &str, pod: &str, container: &str) -> Result<Option<Container>, ApiError> {
        let found = self.pod(uid).map_err(|_| {
            ApiError::bad_request(format!("container \"{container}\" in pod \"{pod}\" is waiting to start"))
        })?;
        Ok(found.container(container))
    }
}

/// Serves a command through pipes. Dropping the future kills it.
async fn on_pipes(mut child: tokio::process::Child, streams: ExecStreams) -> io::Result<i32> {
    let ExecStreams { mut stdin, stdout, stderr, resize: _resize } = streams;
    let input = child.stdin.take();
    let feed = async {
        let Some(mut input) = input else { return };
        while let Some(part) = stdin.recv().await {
            if input.write_all(&part).await.is_err() {
                return;
            }
        }
        // Dropped here: the command reads end of file.
    };
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let output = async { tokio::join!(pass_on(out, stdout), pass_on(err, stderr)) };
    tokio::pin!(feed, output);
    let (mut fed, mut drained) = (false, false);
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            () = &mut feed, if !fed => fed = true,
            _ = &mut output, if !drained => drained = true,
        }
    };
    if !drained {
        let _ = timeout(DRAIN, output).await;
    }
    Ok(exit_code(status))
}

async fn pass_on(from: Option<impl AsyncRead + Unpin>, to: mpsc::Sender<Bytes>) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; 32 * 1024];
    while let Ok(n) = from.read(&mut buffer).await {
        if n == 0 || to.send(Bytes::copy_from_slice(&buffer[..n])).await.is_err() {
            return;
        }
    }
}

/// Serves a command on a terminal, whose output is one stream.
async fn on_terminal(
    mut child: tokio::process::Child,
    terminal: File,
    streams: ExecStreams,
) -> io::Result<i32> {
    let ExecStreams { mut stdin, stdout, stderr: _stderr, mut resize } = streams;
    let terminal = Terminal::new(terminal)?;
    let feed = async {
        loop {
            tokio::select! {
                part = stdin.recv() => match part {
                    Some(part) => terminal.write_all(&part).await?,
                    // End of transmission: what the user's Ctrl-D would be.
                    None => {
                        terminal.write_all(&[4]).await?;
                        break;
                    }
                },
                size = resize.recv() => match size {
                    Some(TerminalSize { width, height }) => terminal.set_size(height, width)?,
                    None => continue,
                },
            }
        }
        Ok::<(), io::Error>(())
    };
    let output = async {
        let mut buffer = vec![0; 32 * 1024];
        loop {
            // A terminal whose other end is closed answers EIO.
            match terminal.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(n) => {
                    if stdout.send(Bytes::copy_from_slice(&buffer[..n])).await.is_err() {
                        return;
                    }
                }
            }
        }
    };
    tokio::pin!(feed, output);
    let (mut fed, mut drained) = (false, false);
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            _ = &mut feed, if !fed => fed = true,
            () = &mut output, if !drained => drained = true,
        }
    };
    if !drained {
        let _ = timeout(DRAIN, output).await;
    }
    Ok(exit_code(status))
}
