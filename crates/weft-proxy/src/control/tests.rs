//! The way to a controller and back, over loopback.

use super::{CONNECT_BACKOFF, Dialer, Service, backoff, report};
use crate::{config::ControlAddr, metrics::Metrics, record::Recorder};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use weft_fault::{Code, Fault};
use weft_testkit::{
    controller::Controller,
    pki::{Pki, identity},
    raw::{self, PATIENCE},
};
use weft_wire::{mesh::ConfirmResponse, record::Direction};

fn service(port: u16, pki: &Pki) -> Service {
    let addr = ControlAddr { host: "127.0.0.1".into(), port, name: None };
    Service::start(Dialer { name: "destination", addr, anchors: pki.anchors(), present: None })
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
        let delay = backoff(CONNECT_BACKOFF, failures).as_millis();
        assert!((expected * 9 / 10..=expected * 11 / 10).contains(&delay), "{failures}: {delay}");
    }
}
