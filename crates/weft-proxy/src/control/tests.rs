//! The way to a controller and back, over loopback.

use super::{
    Dialer, Service, Whom, backoff,
    connection::Connection,
    dns::{Resolver, tests as names},
    lookup::{Limits, Lookup, Open, Told},
    report,
};
use crate::{config::ControlAddr, identity::Handle, metrics::Metrics, record::Recorder};
use linkerd2_proxy_api::destination as dst;
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::io::AsyncReadExt;
use weft_fault::{Code, Fault};
use weft_testkit::{
    controller::{Controller, Step},
    pki::{Pki, identity},
    raw::{self, PATIENCE},
};
use weft_wire::{mesh::ConfirmResponse, record::Direction};

fn service(port: u16, pki: &Pki) -> Service {
    let addr = ControlAddr { host: "127.0.0.1".into(), port, name: None };
    Service::start(Dialer::new("destination", addr, pki.anchors()))
}

#[tokio::test]
async fn a_controller_that_is_down_is_named_with_the_reason_and_found_when_it_comes() {
    crate::log::to_test_output();
    let pki = Arc::new(Pki::new());
    let addr = raw::refused().await;
    let service = service(addr.port(), &pki);
    let fault = service.connection(Instant::now() + Duration::from_millis(500)).await.unwrap_err();
    assert_eq!(fault.code(), Code::ControllerUnreachable);
    let causes = fault.record().causes.join("\n");
    assert!(causes.contains("NET-001"), "{causes}");
    let controller = Controller::start_on(&addr.to_string(), pki.clone(), None).await;
    let connection = service.connection(Instant::now() + PATIENCE).await.unwrap();
    assert_eq!(connection.peer(), controller.addr);
    assert!(service.is_connected());
}

#[tokio::test]
async fn faults_reach_the_journal_of_a_weft_controller() {
    crate::log::to_test_output();
    let pki = Arc::new(Pki::new());
    let controller = Controller::start(pki.clone()).await;
    controller.confirm("10.0.0.1:80".parse().unwrap(), ConfirmResponse::default());
    let metrics = Metrics::new(Duration::from_secs(600));
    let (recorder, entries) = Recorder::new(metrics.clone(), "shop/web-0".into(), &identity("web", "shop"));
    tokio::spawn(report::run(service(controller.addr.port(), &pki), "shop/web-0".into(), entries, metrics));
    let story = recorder.story(Direction::Inbound, "10.0.0.9:1".parse().unwrap(), None);
    story.service("web.shop:80");
    story.fault(&Fault::new(Code::NoRuleAllows).fact("tried", "callers"));
    let told = async {
        loop {
            match controller.journal().pop() {
                Some(entry) => return entry,
                None => tokio::task::yield_now().await,
            }
        }
    };
    let entry = tokio::time::timeout(PATIENCE, told).await.expect("reported in time");
    assert_eq!((entry.source.as_str(), entry.subject.as_str()), ("shop/web-0", "web.shop:80"));
    assert_eq!(entry.fault.unwrap().fact("tried"), Some("callers"));
}

#[test]
fn delays_double_up_to_the_last() {
    for (failures, expected) in [(1, 100), (2, 200), (4, 800), (8, 10_000), (60, 10_000)] {
        let delay = backoff((Duration::from_millis(100), Duration::from_secs(10)), failures).as_millis();
        assert!((expected * 9 / 10..=expected * 11 / 10).contains(&delay), "{failures}: {delay}");
    }
}

const NAME: &str = "dst.linkerd.test";

/// A service behind a name that leads to these addresses, each of which has to prove itself.
async fn replicated(pki: &Pki, addrs: &[SocketAddr]) -> Service {
    let records = addrs.iter().map(|addr| {
        let target = format!("{}.{NAME}.", addr.ip().to_string().replace('.', "-"));
        names::srv(&format!("{NAME}."), &target, addr.port())
    });
    let server = names::server(Arc::new(Mutex::new(records.collect())), 1, false).await;
    let addr = ControlAddr { host: NAME.into(), port: 8086, name: Some(controller_id()) };
    let dns = Resolver::asking(server);
    Service::start(Dialer { dns, ..Dialer::new("destination", addr, pki.anchors()) })
}

fn controller_id() -> weft_model::identity::Identity {
    identity("linkerd-destination", "linkerd")
}

fn get(service: &Service, path: &str, limits: Limits) -> Lookup<dst::Update> {
    let request = dst::GetDestination { path: path.into(), ..Default::default() };
    let open: Open<_> = Arc::new(move |connection: Connection| {
        let request = request.clone();
        Box::pin(async move {
            let mut client = dst::destination_client::DestinationClient::new(connection);
            client.get(request).await.map(tonic::Response::into_inner)
        })
    });
    Lookup::new(service.clone(), format!("Get {path}"), limits, open)
}

async fn next(lookup: &mut Lookup<dst::Update>) -> Told<dst::Update> {
    tokio::time::timeout(PATIENCE, lookup.next()).await.expect("something comes of it in time")
}

/// Waits for a stream's first message; `false` if the way there was not clear.
async fn first(lookup: &mut Lookup<dst::Update>) -> bool {
    let mut clear = true;
    loop {
        match next(lookup).await {
            Told::First(_) => return clear,
            Told::Failed(_) => clear = false,
            Told::Next(_) | Told::Slow(_) => {}
        }
    }
}

/// B02 of the field reports: a connection that was opened and that nothing drives is silent until the peer gives up.
#[tokio::test]
async fn whatever_is_opened_says_something_without_being_needed() {
    crate::log::to_test_output();
    let pki = Pki::new();
    let (mut listeners, mut addrs) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let (listener, addr) = raw::listener().await;
        listeners.push(listener);
        addrs.push(addr);
    }
    // Nobody asks it anything.
    let _service = replicated(&pki, &addrs).await;
    let greeted = listeners.into_iter().map(|listener| async move {
        // The first connection is held and never answered; the next one is made when that has failed.
        let mut held = Vec::new();
        for _ in 0..2 {
            let (mut io, _) = listener.accept().await.unwrap();
            let mut first = [0];
            io.read_exact(&mut first).await.unwrap();
            assert_eq!(first, [0x16], "a TLS record with a ClientHello");
            held.push(io);
        }
    });
    tokio::time::timeout(PATIENCE, futures_util::future::join_all(greeted))
        .await
        .expect("all of them in time");
}

#[tokio::test]
async fn replicas_share_the_questions_and_the_rest_takes_over() {
    crate::log::to_test_output();
    let pki = Arc::new(Pki::new());
    let one = Controller::start_tls(pki.clone(), &controller_id()).await;
    let two = Controller::start_tls(pki.clone(), &controller_id()).await;
    let service = replicated(&pki, &[one.addr, two.addr]).await;
    let both = async {
        while service.state.borrow().up.len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, both).await.expect("both connected");
    let mut lookups = Vec::new();
    for n in 0..6 {
        let mut lookup = get(&service, &format!("n{n}:80"), Limits::default());
        assert!(first(&mut lookup).await);
        lookups.push(lookup);
    }
    let asked =
        |controller: &Controller| (0..6).map(|n| controller.asked("Get", &format!("n{n}:80"))).sum::<usize>();
    assert_eq!((asked(&one), asked(&two)), (3, 3));
    for n in 0..6 {
        one.endpoints(&format!("n{n}:80"), Step::End(tonic::Code::Unavailable));
    }
    // A replica that only fails has the fewest streams, and is not chosen for it. Streams that ended are asked for again, of the other replica.
    let moved = async {
        let all = lookups.iter_mut().map(first);
        let _never = futures_util::future::join_all(all).await;
    };
    let arrived = async {
        while asked(&two) < 6 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = moved => {}
        arrived = tokio::time::timeout(PATIENCE, arrived) => arrived.expect("all of them moved"),
    }
    assert_eq!(asked(&two), 6);
}

#[tokio::test]
async fn a_replica_that_accepts_and_says_nothing_is_passed_over() {
    crate::log::to_test_output();
    let pki = Arc::new(Pki::new());
    let (listener, silent) = raw::listener().await;
    let tls = pki.server(&controller_id());
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((io, _)) = listener.accept().await {
            held.push(weft_tls::handshake::accept_named(&tls, io).await);
        }
    });
    let good = Controller::start_tls(pki.clone(), &controller_id()).await;
    let service = replicated(&pki, &[silent, good.addr]).await;
    for n in 0..4 {
        let mut lookup = get(&service, &format!("n{n}:80"), Limits::default());
        // Not by the failure of the first question, which would take as long as its limit.
        assert!(first(&mut lookup).await);
    }
}

#[tokio::test]
async fn a_stream_is_renewed_when_it_is_old_or_silent_and_keeps_what_it_said() {
    crate::log::to_test_output();
    let pki = Arc::new(Pki::new());
    let controller = Controller::start(pki.clone()).await;
    let service = service(controller.addr.port(), &pki);
    let short = Some(Duration::from_millis(30));
    for (path, limits) in [
        ("old:80", Limits { lifetime: short, ..Limits::default() }),
        ("silent:80", Limits { idle: short, ..Limits::default() }),
    ] {
        let mut lookup = get(&service, path, limits);
        for _ in 0..3 {
            // Never a failure in between: the old stream is open until the new one has answered.
            assert!(first(&mut lookup).await);
        }
        assert!(controller.asked("Get", path) >= 3);
    }
}

#[tokio::test]
async fn what_is_missing_before_the_first_certificate_is_told() {
    let pki = Pki::new();
    let addr = ControlAddr { host: "127.0.0.1".into(), port: 1, name: Some(controller_id()) };
    let (handle, publisher) = Handle::new(identity("web", "shop"));
    publisher.waits(Some(Arc::new(Fault::new(Code::TokenRejected).fact("step", "read").record())));
    let service = Service::start(Dialer {
        whom: Whom::Certified(handle),
        ..Dialer::new("policy", addr, pki.anchors())
    });
    let fault = service.connection(Instant::now()).await.unwrap_err();
    let causes = fault.record().causes.join("\n");
    assert_eq!(fault.code(), Code::ControllerUnreachable);
    assert!(
        causes.contains(Code::NoCertificateYet.id()) && causes.contains(Code::TokenRejected.id()),
        "{causes}"
    );
}

#[tokio::test]
async fn every_replica_that_was_tried_is_named() {
    crate::log::to_test_output();
    let pki = Pki::new();
    let (one, two) = (raw::refused().await, raw::refused().await);
    let service = replicated(&pki, &[one, two]).await;
    let told = async {
        loop {
            let fault = service.down().record();
            if let Some(tried) = fault.fact("tried")
                && tried.contains(", ")
            {
                return tried.to_owned();
            }
            tokio::task::yield_now().await;
        }
    };
    let tried = tokio::time::timeout(PATIENCE, told).await.expect("both were tried");
    for addr in [one, two] {
        assert!(tried.contains(&format!("{addr} NET-001")), "{tried}");
    }
}
