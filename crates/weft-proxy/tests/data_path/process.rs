//! The program itself: its exit codes, readiness and end.

use std::{
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

#[tokio::test]
async fn it_becomes_ready_with_a_certificate_and_ends_on_request() {
    let pki = Arc::new(Pki::new());
    let controller = Controller::start(pki.clone()).await;
    controller.certify(Some(tonic::Status::unavailable("later")));
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
    ]);
    let mut running = Running(command.stdout(Stdio::null()).spawn().unwrap());

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
    let ended = async {
        loop {
            match running.0.try_wait().unwrap() {
                Some(status) => return status,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let status = tokio::time::timeout(raw::PATIENCE, ended).await.expect("it ends in time");
    assert_eq!(status.code(), Some(0));
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
    let pid = running.0.id().to_string();
    for _ in 0..2 {
        // The second may find it gone.
        let _sent = Command::new("kill").args(["-TERM", &pid]).stderr(Stdio::null()).status().unwrap();
    }
    let ended = async {
        loop {
            match running.0.try_wait().unwrap() {
                Some(status) => return status,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let status = tokio::time::timeout(raw::PATIENCE, ended).await.expect("it ends in time");
    assert_eq!(status.code(), Some(0));
}
