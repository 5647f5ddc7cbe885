//! The program itself: its exit codes, readiness and end.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};
use weft_testkit::{
    controller::Controller,
    pki::{Pki, identity},
    raw,
};

fn proxy(changes: &[(&str, String)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft-proxy"));
    command.env_clear().stdin(Stdio::null());
    for (name, value) in changes {
        command.env(format!("LINKERD2_PROXY_{name}"), value);
    }
    command
}

/// Ends the process when the test ends, however it ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = (self.0.kill(), self.0.wait());
    }
}

#[test]
fn every_mistake_in_the_environment_is_told_and_the_exit_code_is_linkerds() {
    let changes = [("INBOUND_PORTS", "x".to_string()), ("INBOUND_CONNECT_TIMEOUT", "10".to_string())];
    let output = proxy(&changes).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let told = String::from_utf8(output.stderr).unwrap();
    for name in ["INBOUND_PORTS", "INBOUND_CONNECT_TIMEOUT", "DESTINATION_SVC_ADDR", "IDENTITY_LOCAL_NAME"] {
        assert!(told.contains(&format!("LINKERD2_PROXY_{name} ")), "{name}: {told}");
    }
    assert!(told.lines().all(|line| line.starts_with("CFG-001 ")), "{told}");
}

/// A proxy with a controller of its own.
struct Served {
    running: Running,
    controller: Controller,
    admin: SocketAddr,
    inbound: SocketAddr,
    _token: tempfile::TempDir,
}

async fn served(pki: &Arc<Pki>, certified: bool, log: Stdio) -> Served {
    let controller = Controller::start(pki.clone()).await;
    controller.certify((!certified).then(|| tonic::Status::unavailable("later")));
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "a token").unwrap();
    let (admin, inbound, outbound) = (raw::refused().await, raw::refused().await, raw::refused().await);
    let addr = controller.addr.to_string();
    let command = &mut proxy(&[
        ("DESTINATION_SVC_ADDR", addr.clone()),
        ("POLICY_SVC_ADDR", addr.clone()),
        ("IDENTITY_SVC_ADDR", addr),
        ("POLICY_WORKLOAD", "shop:web-0".into()),
        ("IDENTITY_LOCAL_NAME", identity("web", "shop").to_string()),
        ("IDENTITY_TRUST_ANCHORS", pki.anchors_pem()),
        ("IDENTITY_TOKEN_FILE", token.display().to_string()),
        ("INBOUND_LISTEN_ADDR", inbound.to_string()),
        ("OUTBOUND_LISTEN_ADDR", outbound.to_string()),
        ("ADMIN_LISTEN_ADDR", admin.to_string()),
        ("SHUTDOWN_ENDPOINT_ENABLED", "true".into()),
        ("INBOUND_DETECT_TIMEOUT", "2m".into()),
    ]);
    let running = Running(command.stdout(log).spawn().unwrap());
    Served { running, controller, admin, inbound, _token: dir }
}

impl Running {
    async fn ended(&mut self) -> Option<i32> {
        let ended = async {
            loop {
                match self.0.try_wait().unwrap() {
                    Some(status) => return status,
                    None => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        tokio::time::timeout(raw::PATIENCE, ended).await.expect("it ends in time").code()
    }

    fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        // It may be gone.
        let _sent = Command::new("kill").args([name, &pid]).stderr(Stdio::null()).status().unwrap();
    }
}

#[tokio::test]
async fn it_becomes_ready_with_a_certificate_and_ends_on_request() {
    let mut proxy = served(&Arc::new(Pki::new()), false, Stdio::null()).await;
    let (admin, controller) = (proxy.admin, &proxy.controller);

    // It serves probes before it is ready, and says why it is not.
    until(admin, "GET /ready?verbose", |answer| {
        answer.starts_with("HTTP/1.1 503") && answer.contains("CTL-003")
    })
    .await;
    controller.certify(None);
    until(admin, "GET /ready", |answer| answer.starts_with("HTTP/1.1 200")).await;
    // The admin port's policy is watched from the start.
    assert!(controller.asked("WatchPort", &admin.port().to_string()) > 0);

    until(admin, "POST /shutdown", |answer| answer.starts_with("HTTP/1.1 200")).await;
    assert_eq!(proxy.running.ended().await, Some(0));
}

/// B30 (c): SIGTERM again changes nothing. Whoever does not want to wait interrupts it.
#[tokio::test]
async fn a_drain_takes_its_time_however_often_it_is_asked_for_and_ends_at_once_when_interrupted() {
    let mut proxy = served(&Arc::new(Pki::new()), true, Stdio::piped()).await;
    until(proxy.admin, "GET /ready", |answer| answer.starts_with("HTTP/1.1 200")).await;
    let lines = BufReader::new(proxy.running.0.stdout.take().unwrap()).lines();
    let (say, mut said) = tokio::sync::mpsc::channel(16);
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if say.blocking_send(line).is_err() {
                return;
            }
        }
    });
    let mut says = async |text: &str| {
        let looking = async { while !said.recv().await.expect("it runs").contains(text) {} };
        tokio::time::timeout(raw::PATIENCE, looking).await.expect(text);
    };
    // A connection that holds the drain for as long as the grace period, which is two minutes.
    let _held = tokio::net::TcpStream::connect(proxy.inbound).await.unwrap();
    proxy.running.signal("-TERM");
    says("draining").await;
    proxy.running.signal("-TERM");
    says("SIGTERM again").await;
    until(proxy.admin, "GET /live", |answer| answer.starts_with("HTTP/1.1 200")).await;
    proxy.running.signal("-INT");
    says("connections are cut").await;
    assert_eq!(proxy.running.ended().await, Some(0));
}

/// Asks until the answer is the one wanted; the process may not listen yet.
async fn until(admin: SocketAddr, question: &str, wanted: impl Fn(&str) -> bool) {
    let request = format!("{question} HTTP/1.1\r\nhost: admin\r\n\r\n");
    let asked = async {
        loop {
            if let Ok((head, body)) = raw::http(admin, &request).await
                && wanted(&format!("{head}{}", String::from_utf8_lossy(&body)))
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(raw::PATIENCE, asked).await.is_ok(), "{question}: never as wanted");
}

/// B30: a proxy that waits for everything ends when it is told to, and being told twice changes nothing.
#[tokio::test]
async fn b30_a_proxy_that_never_became_ready_ends_at_once_and_twice() {
    let pki = Pki::new();
    let (admin, nobody) = (raw::refused().await, raw::refused().await.to_string());
    let command = &mut proxy(&[
        ("DESTINATION_SVC_ADDR", nobody.clone()),
        ("POLICY_SVC_ADDR", nobody.clone()),
        ("IDENTITY_SVC_ADDR", nobody),
        ("POLICY_WORKLOAD", "shop:web-0".into()),
        ("IDENTITY_LOCAL_NAME", identity("web", "shop").to_string()),
        ("IDENTITY_TRUST_ANCHORS", pki.anchors_pem()),
        ("IDENTITY_TOKEN_FILE", "/nonexistent".into()),
        ("INBOUND_LISTEN_ADDR", raw::refused().await.to_string()),
        ("OUTBOUND_LISTEN_ADDR", raw::refused().await.to_string()),
        ("ADMIN_LISTEN_ADDR", admin.to_string()),
    ]);
    let mut running = Running(command.stdout(Stdio::null()).spawn().unwrap());
    until(admin, "GET /live", |answer| answer.starts_with("HTTP/1.1 200")).await;
    until(admin, "GET /ready", |answer| answer.starts_with("HTTP/1.1 503")).await;
    for _ in 0..2 {
        running.signal("-TERM");
    }
    assert_eq!(running.ended().await, Some(0));
}
