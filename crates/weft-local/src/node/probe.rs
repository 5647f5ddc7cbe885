//! Probes: when they run, what a run of results means, and how one is made.

use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tokio::net::TcpStream;

use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;

/// The outcome of a run of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    Failure,
}

/// Counts results against a probe's thresholds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thresholds {
    success: u32,
    failure: u32,
    run: u32,
    last: Option<Outcome>,
}

impl Thresholds {
    pub(crate) fn of(probe: &Probe) -> Self {
        let at_least_one = |n: Option<i32>, default| u32::try_from(n.unwrap_or(default)).unwrap_or(1).max(1);
        Thresholds {
            success: at_least_one(probe.success_threshold, 1),
            failure: at_least_one(probe.failure_threshold, 3),
            run: 0,
            last: None,
        }
    }

    /// Adds one result; the outcome once enough equal ones followed each other.
    pub(crate) fn observe(&mut self, result: Outcome) -> Option<Outcome> {
        if self.last != Some(result) {
            self.last = Some(result);
            self.run = 0;
        }
        self.run = self.run.saturating_add(1);
        let needed = if result == Outcome::Success { self.success } else { self.failure };
        (self.run >= needed).then_some(result)
    }
}

/// When a probe runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) delay: Duration,
    pub(crate) period: Duration,
    pub(crate) timeout: Duration,
}

impl Timing {
    pub(crate) fn of(probe: &Probe) -> Self {
        let seconds = |n: Option<i32>, default: u64| n.and_then(|n| u64::try_from(n).ok()).unwrap_or(default);
        Timing {
            delay: Duration::from_secs(seconds(probe.initial_delay_seconds, 0)),
            period: Duration::from_secs(seconds(probe.period_seconds, 10).max(1)),
            timeout: Duration::from_secs(seconds(probe.timeout_seconds, 1).max(1)),
        }
    }
}

/// The number of a port that a probe or hook names.
pub(crate) fn port_of(container: &Container, port: &IntOrString) -> Result<u16, String> {
    match port {
        IntOrString::Int(n) => u16::try_from(*n).map_err(|_| format!("port {n} is out of range")),
        IntOrString::String(name) => {
            if let Ok(n) = name.parse() {
                return Ok(n);
            }
            let named = container.ports.iter().flatten().find(|p| p.name.as_deref() == Some(name));
            named
                .and_then(|p| u16::try_from(p.container_port).ok())
                .ok_or_else(|| format!("the container has no port named {name}"))
        }
    }
}

/// Connects, as `tcpSocket` asks.
pub(crate) async fn tcp(to: SocketAddr) -> Result<(), String> {
    TcpStream::connect(to).await.map(drop).map_err(|e| format!("dial tcp {to}: {e}"))
}

/// One GET; any status from 200 to 399 is success. The caller sets the deadline.
pub(crate) async fn http_get(
    container: &Container,
    pod_ip: Ipv4Addr,
    get: &HTTPGetAction,
) -> Result<(), String> {
    let port = port_of(container, &get.port)?;
    let host = get.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| pod_ip.to_string());
    if get.scheme.as_deref() == Some("HTTPS") {
        // The certificate of a probe is never verified; that the TLS port answers is what can be seen without a client that
        // skips verification.
        return tcp(resolve(&host, port).await?).await;
    }
    let to = resolve(&host, port).await?;
    let stream = TcpStream::connect(to).await.map_err(|e| format!("dial tcp {to}: {e}"))?;
    let mut request = http::Request::get(get.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/"))
        .header(http::header::USER_AGENT, "kube-probe/1.36")
        .header(http::header::ACCEPT, "*/*")
        .header(http::header::CONNECTION, "close");
    let mut has_host = false;
    for header in get.http_headers.iter().flatten() {
        has_host |= header.name.eq_ignore_ascii_case("host");
        request = request.header(header.name.as_str(), header.value.as_str());
    }
    if !has_host {
        request = request.header(http::header::HOST, format!("{host}:{port}"));
    }
    let request = request.body(Empty::<bytes::Bytes>::new()).map_err(|e| e.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let status = response.status();
        // Read to the end, so that the application does not see a broken pipe; a page is small.
        let body = Limited::new(response.into_body(), 64 * 1024).collect().await;
        if (200..400).contains(&status.as_u16()) {
            return Ok(());
        }
        let body = body.map(|b| b.to_bytes()).unwrap_or_default();
        let shown: String = String::from_utf8_lossy(&body).chars().take(120).collect();
        Err(format!("HTTP probe failed with statuscode: {} {}", status.as_u16(), shown.trim()))
    };
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        ended = connection => match ended {
            Ok(()) => answer.await,
            Err(e) => Err(format!("Get http://{host}:{port}: {e}")),
        },
    }
}

async fn resolve(host: &str, port: u16) -> Result<SocketAddr, String> {
    if let Ok(ip) = host.parse::<std::net::IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let found = tokio::net::lookup_host((host, port)).await.map_err(|e| format!("lookup {host}: {e}"))?;
    found.into_iter().next().ok_or_else(|| format!("lookup {host}: no address"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn thresholds_count_runs() {
        let probe: Probe =
            serde_json::from_value(json!({"successThreshold": 2, "failureThreshold": 3})).unwrap();
        let mut t = Thresholds::of(&probe);
        let mut see = |text: &str| -> Vec<Option<Outcome>> {
            let result = |c| if c == '+' { Outcome::Success } else { Outcome::Failure };
            text.chars().map(|c| t.observe(result(c))).collect()
        };
        let (s, f) = (Some(Outcome::Success), Some(Outcome::Failure));
        assert_eq!(see("+-++"), [None, None, None, s]);
        assert_eq!(see("+--+---+"), [s, None, None, None, None, None, f, None]);
    }

    async fn answer(response: &'static str) -> Result<(), String> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = async {
            let (mut s, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 1000];
            let n = s.read(&mut request).await.unwrap();
            s.write_all(response.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&request[..n]).to_string()
        };
        let container: Container =
            serde_json::from_value(json!({"name": "c", "ports": [{"name": "web", "containerPort": port}]}))
                .unwrap();
        let get: HTTPGetAction = serde_json::from_value(
            json!({"port": "web", "path": "/healthz?x=1", "httpHeaders": [{"name": "X-A", "value": "b"}]}),
        )
        .unwrap();
        let (request, result) = tokio::join!(server, http_get(&container, Ipv4Addr::LOCALHOST, &get));
        assert!(
            request.starts_with("GET /healthz?x=1 HTTP/1.1\r\n") && request.contains("kube-probe/"),
            "{request}"
        );
        assert!(request.contains(&format!("host: 127.0.0.1:{port}")), "{request}");
        result
    }

    #[tokio::test]
    async fn http_statuses() {
        assert_eq!(answer("HTTP/1.1 204 No Content\r\n\r\n").await, Ok(()));
        assert_eq!(answer("HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n").await, Ok(()));
        let refused = answer("HTTP/1.1 503 x\r\ncontent-length: 4\r\n\r\ndown").await.unwrap_err();
        assert_eq!(refused, "HTTP probe failed with statuscode: 503 down");
        assert!(answer("garbage").await.is_err());
    }

    #[tokio::test]
    async fn unknown_ports_say_so() {
        let container = Container { name: "c".into(), ..Default::default() };
        let e = port_of(&container, &IntOrString::String("web".into())).unwrap_err();
        assert!(e.contains("web"), "{e}");
        assert!(tcp(([127, 0, 0, 1], 1).into()).await.is_err());
    }
}
