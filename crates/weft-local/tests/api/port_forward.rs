//! `…/portforward`: `kubectl`, the `kube` crate's channels, and a client of its own that speaks SPDY inside a WebSocket.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;

use flate2::{Compress, Compression, FlushCompress};
use futures_util::{SinkExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::ChildStdout;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message};

use super::{CEILING, Cluster};

/// Answers with what it is sent, until the end of that.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                // The end of a client is the end of its connection.
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    port
}

/// A port that nobody listens on.
async fn closed() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

async fn with_pod() -> Cluster {
    let cluster = Cluster::start().await;
    let pod =
        json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c", "image": "c:1" }] } });
    cluster.create::<Pod>("default", pod).await;
    let pods = cluster.api::<Pod>("default");
    super::until(&pods, "p", |pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running"))
        .await;
    cluster
}

#[tokio::test]
async fn ports_are_channels_of_a_websocket() {
    let cluster = with_pod().await;
    let (open, shut) = (echo().await, closed().await);
    let pods = cluster.api::<Pod>("default");
    let mut ports = pods.portforward("p", &[open, shut]).await.unwrap();
    let mut stream = ports.take_stream(open).unwrap();
    // More than all queues on the way hold.
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
    let (mut from, mut to) = tokio::io::split(&mut stream);
    let mut received = vec![0; sent.len()];
    let both = async { tokio::join!(to.write_all(&sent), from.read_exact(&mut received)) };
    let (wrote, read) = tokio::time::timeout(CEILING, both).await.unwrap();
    wrote.unwrap();
    read.unwrap();
    assert!(sent == received);
    let why = tokio::time::timeout(CEILING, ports.take_error(shut).unwrap()).await.unwrap().unwrap();
    assert!(why.contains(&format!("failed to connect to localhost:{shut}")), "{why}");
    assert!(why.contains("connection refused"), "{why}");
}

type Stream = TlsStream<TcpStream>;

async fn tls(cluster: &Cluster) -> Stream {
    let authority = cluster.server.api().authority();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(cluster.address).await.unwrap();
    let name = ServerName::from(cluster.address.ip());
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

type Opened = Result<WebSocketStream<Stream>, tungstenite::Error>;

async fn websocket(cluster: &Cluster, pod: &str, query: &str, protocol: &str) -> Opened {
    let url = format!("wss://{}/api/v1/namespaces/default/pods/{pod}/portforward{query}", cluster.address);
    let mut request = url.into_client_request().unwrap();
    let token = format!("Bearer {}", cluster.server.api().admin_token());
    request.headers_mut().insert("authorization", token.parse().unwrap());
    request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
    tokio_tungstenite::client_async(request, tls(cluster).await).await.map(|(socket, _)| socket)
}

/// A client of SPDY/3.1 in a WebSocket. Its header blocks are packed without the protocol's dictionary, which is allowed.
struct Tunnel {
    socket: WebSocketStream<Stream>,
    deflate: Compress,
}

const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;

#[derive(Debug, PartialEq)]
enum Frame {
    Control(u16, Vec<u8>),
    Data(u32, Vec<u8>, bool),
}

impl Tunnel {
    async fn open(cluster: &Cluster) -> Self {
        let socket = websocket(cluster, "p", "", TUNNEL).await.unwrap();
        Self { socket, deflate: Compress::new(Compression::fast(), true) }
    }

    /// In messages of a few bytes: frames have nothing to do with messages.
    async fn send(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(7) {
            self.socket.send(Message::Binary(piece.to_vec().into())).await.unwrap();
        }
    }

    async fn control(&mut self, kind: u16, body: &[u8]) {
        let mut frame = [0x8003_u16.to_be_bytes(), kind.to_be_bytes()].concat();
        frame.extend((body.len() as u32).to_be_bytes());
        frame.extend(body);
        self.send(&frame).await;
    }

    async fn stream(&mut self, id: u32, headers: &[(&str, &str)]) {
        let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend((text.len() as u32).to_be_bytes());
            plain.extend(text.as_bytes());
        }
        let mut block = Vec::with_capacity(1024);
        self.deflate.compress_vec(&plain, &mut block, FlushCompress::Sync).unwrap();
        let mut body = id.to_be_bytes().to_vec();
        body.extend([0; 6]);
        body.extend(block);
        self.control(1, &body).await;
    }

    async fn pair(&mut self, error: u32, port: u16) {
        let (port, request) = (port.to_string(), error.to_string());
        for (id, kind) in [(error, "error"), (error + 2, "data")] {
            self.stream(id, &[("streamtype", kind), ("port", &port), ("requestid", &request)]).await;
        }
    }

    async fn data(&mut self, id: u32, data: &[u8], end: bool) {
        let mut frame = id.to_be_bytes().to_vec();
        frame.extend(((data.len() as u32) | u32::from(end) << 24).to_be_bytes());
        frame.extend(data);
        self.send(&frame).await;
    }

    async fn message(&mut self) -> Message {
        tokio::time::timeout(CEILING, self.socket.next()).await.unwrap().unwrap().unwrap()
    }

    /// The next frame; this server sends each in a message of its own.
    async fn frame(&mut self) -> Frame {
        loop {
            let Message::Binary(bytes) = self.message().await else { continue };
            let (head, body) = bytes.split_at(8);
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            assert_eq!(number(4) & 0xff_ffff, body.len() as u32);
            return match number(0) {
                control if control >> 31 == 1 => Frame::Control(control as u16, body.to_vec()),
                stream => Frame::Data(stream, body.to_vec(), head[4] & 1 == 1),
            };
        }
    }

    async fn accepted(&mut self) {
        assert!(matches!(self.frame().await, Frame::Control(SYN_REPLY, _)));
    }
}

#[tokio::test]
async fn connections_are_pairs_of_streams_in_a_tunnel() {
    let cluster = with_pod().await;
    let mut tunnel = Tunnel::open(&cluster).await;
    tunnel.pair(1, echo().await).await;
    tunnel.accepted().await;
    tunnel.accepted().await;
    tunnel.data(1, b"", true).await;
    tunnel.data(3, b"hello", false).await;
    assert_eq!(tunnel.frame().await, Frame::Data(3, b"hello".to_vec(), false));
    tunnel.control(PING, &5_u32.to_be_bytes()).await;
    assert_eq!(tunnel.frame().await, Frame::Control(PING, 5_u32.to_be_bytes().to_vec()));

    // A second connection, to a port that nobody listens on, does not disturb the first.
    let shut = closed().await;
    tunnel.pair(5, shut).await;
    tunnel.accepted().await;
    tunnel.accepted().await;
    let Frame::Data(5, why, false) = tunnel.frame().await else { panic!("no reason") };
    let why = String::from_utf8(why).unwrap();
    assert!(why.contains("pod p") && why.contains("connection refused"), "{why}");
    assert_eq!(tunnel.frame().await, Frame::Data(5, Vec::new(), true));
    assert_eq!(tunnel.frame().await, Frame::Data(7, Vec::new(), true));

    // The client's end is passed on, and the pod's comes back.
    tunnel.data(3, b" again", true).await;
    assert_eq!(tunnel.frame().await, Frame::Data(3, b" again".to_vec(), false));
    assert_eq!(tunnel.frame().await, Frame::Data(1, Vec::new(), true));
    assert_eq!(tunnel.frame().await, Frame::Data(3, Vec::new(), true));

    // A client that resets its stream is told the end of the error stream all the same.
    tunnel.pair(9, echo().await).await;
    tunnel.accepted().await;
    tunnel.accepted().await;
    tunnel.control(RST_STREAM, &[0, 0, 0, 11, 0, 0, 0, 5]).await;
    assert_eq!(tunnel.frame().await, Frame::Data(9, Vec::new(), true));
    assert_eq!(tunnel.frame().await, Frame::Data(11, Vec::new(), true));

    // What is no port-forward stream is refused alone.
    for headers in [
        [("streamtype", "data"), ("port", "0"), ("requestid", "9")],
        [("streamtype", "odd"), ("port", "80"), ("requestid", "9")],
        [("streamtype", "data"), ("port", "80"), ("x", "9")],
    ] {
        tunnel.stream(21, &headers).await;
        assert_eq!(tunnel.frame().await, Frame::Control(RST_STREAM, vec![0, 0, 0, 21, 0, 0, 0, 1]));
    }
    // What is no SPDY ends the session, and says so.
    tunnel.send(&[0xff; 16]).await;
    let closed = loop {
        if let Message::Close(Some(frame)) = tunnel.message().await {
            break frame;
        }
    };
    assert_eq!(closed.code, CloseCode::Protocol);
    assert!(closed.reason.contains("SPDY/3"), "{}", closed.reason);
}

/// A client that opens the second stream of a pair behind more data than is kept would wait for itself.
#[tokio::test]
async fn half_a_pair_keeps_little_and_holds_up_nobody() {
    let cluster = with_pod().await;
    let mut tunnel = Tunnel::open(&cluster).await;
    let port = echo().await;
    let text = port.to_string();
    let headers = |kind| [("streamtype", kind), ("port", text.as_str()), ("requestid", "1")];
    tunnel.stream(1, &headers("data")).await;
    tunnel.accepted().await;
    tunnel.data(1, b"early", false).await;
    tunnel.stream(3, &headers("error")).await;
    tunnel.accepted().await;
    assert_eq!(tunnel.frame().await, Frame::Data(1, b"early".to_vec(), false));

    let headers = |kind| [("streamtype", kind), ("port", text.as_str()), ("requestid", "2")];
    tunnel.stream(5, &headers("data")).await;
    tunnel.accepted().await;
    for _ in 0..100 {
        tunnel.data(5, b"more and more", false).await;
    }
    assert_eq!(tunnel.frame().await, Frame::Control(RST_STREAM, vec![0, 0, 0, 5, 0, 0, 0, 3]));
    tunnel.data(1, b"still", false).await;
    assert_eq!(tunnel.frame().await, Frame::Data(1, b"still".to_vec(), false));
}

#[tokio::test]
async fn what_cannot_be_forwarded_is_refused_with_a_reason() {
    let cluster = with_pod().await;
    for (pod, query, protocol, status, why) in [
        ("none", "", TUNNEL, 404, "pods \\\"none\\\" not found"),
        ("p", "", "v4.channel.k8s.io", 400, "query parameter \\\"ports\\\" is required"),
        ("p", "?ports=http", "portforward.k8s.io", 400, "as a port"),
        ("p", "", "v1.odd", 400, "none of the offered protocols"),
    ] {
        let Err(tungstenite::Error::Http(refused)) = websocket(&cluster, pod, query, protocol).await else {
            panic!("{pod}{query} was not refused");
        };
        let body = String::from_utf8(refused.body().clone().unwrap_or_default()).unwrap();
        assert_eq!(refused.status().as_u16(), status, "{body}");
        assert!(body.contains(why), "{body}");
    }
    // SPDY itself, as kubectl before 1.31 spoke it.
    let mut stream = tls(&cluster).await;
    let request = format!(
        "POST /api/v1/namespaces/default/pods/p/portforward HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         connection: Upgrade\r\nupgrade: SPDY/3.1\r\nx-stream-protocol-version: portforward.k8s.io\r\n\
         content-length: 0\r\n\r\n",
        cluster.server.api().admin_token()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    while !answer.contains("kubectl 1.31 or newer") {
        let mut piece = [0; 4096];
        let n = tokio::time::timeout(CEILING, stream.read(&mut piece)).await.unwrap().unwrap();
        assert!(n > 0, "{answer}");
        answer.push_str(std::str::from_utf8(&piece[..n]).unwrap());
    }
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

/// `kubectl port-forward` as long as it lives, and where it listens.
struct Forwarding {
    child: tokio::process::Child,
    at: SocketAddr,
    /// It ends when nobody could read any more what it says of each connection.
    _said: Lines<BufReader<ChildStdout>>,
}

impl Forwarding {
    async fn start(kubeconfig: &str, target: &str, port: u16) -> Self {
        let mut child = tokio::process::Command::new("kubectl")
            .env("KUBECONFIG", kubeconfig)
            .env("HOME", std::env::temp_dir())
            .args(["port-forward", "--address=127.0.0.1", target, &format!("0:{port}")])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(CEILING, lines.next_line()).await.unwrap().unwrap();
        let Some(line) = line else {
            let mut why = String::new();
            child.stderr.take().unwrap().read_to_string(&mut why).await.unwrap();
            panic!("kubectl port-forward {target}: {why}");
        };
        // "Forwarding from 127.0.0.1:34567 -> 80"
        let at = line.split(' ').nth(2).and_then(|at| at.parse().ok());
        Self { child, at: at.unwrap_or_else(|| panic!("{line}")), _said: lines }
    }

    async fn echoes(&self, text: &[u8]) {
        let exchange = async {
            let mut stream = TcpStream::connect(self.at).await.unwrap();
            let (mut from, mut to) = stream.split();
            let mut received = Vec::new();
            let send = async {
                to.write_all(text).await?;
                to.shutdown().await
            };
            let (sent, read) = tokio::join!(send, from.read_to_end(&mut received));
            sent.unwrap();
            read.unwrap();
            assert!(received == text);
        };
        tokio::time::timeout(CEILING, exchange).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_forwards_ports() {
    if std::process::Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        eprintln!("SKIPPED: kubectl is not installed");
        return;
    }
    let cluster = with_pod().await;
    let (open, shut) = (echo().await, closed().await);
    let service = json!({ "metadata": { "name": "s" }, "spec": {
        "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": open }] } });
    cluster.create::<k8s_openapi::api::core::v1::Service>("default", service).await;
    let deployments = cluster.api::<k8s_openapi::api::apps::v1::Deployment>("default");
    cluster.create::<k8s_openapi::api::apps::v1::Deployment>("default", super::web(1, "web:1")).await;
    super::until(&deployments, "web", super::rolled_out).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, cluster.server.kubeconfig(cluster.address)).unwrap();
    let path = path.to_str().unwrap();

    let large = vec![b'x'; 2_000_000];
    for (target, port) in [("pod/p", open), ("service/s", 80), ("deployment/web", open)] {
        let forwarding = Forwarding::start(path, target, port).await;
        forwarding.echoes(b"hello").await;
        // Several at once, one of them large.
        tokio::join!(forwarding.echoes(&large), forwarding.echoes(b"a"), forwarding.echoes(b"b"));
    }

    let mut forwarding = Forwarding::start(path, "pod/p", shut).await;
    let mut stream = TcpStream::connect(forwarding.at).await.unwrap();
    let mut nothing = Vec::new();
    // A reset and an end are the same to the user: nobody is there.
    let _ = tokio::time::timeout(CEILING, stream.read_to_end(&mut nothing)).await.unwrap();
    assert!(nothing.is_empty());
    let mut lines = BufReader::new(forwarding.child.stderr.take().unwrap()).lines();
    let told = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("connection refused") {
                return;
            }
        }
        panic!("kubectl does not say that the connection was refused");
    };
    tokio::time::timeout(CEILING, told).await.unwrap();
}
