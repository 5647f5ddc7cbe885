//! A proxy beside an ingress: requests say which service they are for.

use crate::{
    harness::{Proxy, app, balance, destination, policy},
    retries::{PATH, counted, dst, error_of, known, plain},
};
use weft_fault::{Code, Fault};
use weft_model::outbound::BackendKind;
use weft_testkit::{pki::Pki, raw};

fn client(pki: &Pki) -> Proxy {
    crate::harness::proxy(pki, "ingress", dst(), dst(), &[("INGRESS_MODE", "true")])
}

async fn ask(proxy: &Proxy, headers: &str) -> String {
    raw::http(proxy.outbound, &format!("GET /a HTTP/1.1\r\nHost: s\r\n{headers}\r\n")).await.unwrap().0
}

#[tokio::test(flavor = "local")]
async fn a_request_goes_to_the_service_that_it_names_or_where_it_was_going() {
    let (pki, named, original) = (Pki::new(), app().await, app().await);
    let proxy = client(&pki);
    proxy.told.destination(destination(dst(), policy(BackendKind::Forward(plain(original.addr))), false));
    proxy.told.named("web.shop.svc.cluster.local:80", Ok(destination(dst(), policy(balance(PATH)), false)));
    proxy.told.endpoints(PATH, known(&[plain(named.addr)]));
    assert!(
        ask(&proxy, "l5d-dst-override: Web.shop.svc.cluster.local:80\r\n").await.starts_with("HTTP/1.1 200")
    );
    assert_eq!((named.count(), original.count()), (1, 0));
    assert!(!named.last().headers.contains_key("l5d-dst-override"), "it ends here");
    assert!(ask(&proxy, "").await.starts_with("HTTP/1.1 200"));
    assert_eq!((named.count(), original.count()), (1, 1));
    let of = "peer=\"dst\"";
    let page = proxy.metrics().await;
    let opened = |reason: &str| {
        let mut of = page.lines().filter(|line| line.starts_with("tcp_open_total{") && line.contains(of));
        of.any(|line| line.contains(reason))
    };
    assert!(opened("no_tls_reason=\"ingress_without_override\""));
    assert!(opened("no_tls_reason=\"not_provided_by_service_discovery\""));
    assert_eq!(counted(&proxy, "request_total", "authority=\"store").await, 1);
}

#[tokio::test(flavor = "local")]
async fn a_name_that_leads_nowhere_is_refused_and_not_replaced_by_the_address() {
    let (pki, original) = (Pki::new(), app().await);
    let proxy = client(&pki);
    proxy.told.destination(destination(dst(), policy(BackendKind::Forward(plain(original.addr))), false));
    proxy.told.named("gone.shop.svc.cluster.local:80", Err(Fault::new(Code::ServiceUnknown).record()));
    for (value, status, code) in [
        ("gone.shop.svc.cluster.local:80", "503", Code::ServiceUnknown),
        ("gone.example:80", "500", Code::NameNotKnown),
        ("no port", "400", Code::BadRequest),
        (":80", "400", Code::BadRequest),
    ] {
        let head = ask(&proxy, &format!("l5d-dst-override: {value}\r\n")).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{value}: {head}");
        // The application beside an ingress proxy is asked from outside: it is told nothing unless it is configured so.
        assert_eq!(error_of(&head), "");
        let recorded = proxy.record(|record| record.fault.is_some()).await;
        assert_eq!(recorded.fault.unwrap().code, code.id(), "{value}");
    }
    assert_eq!(original.count(), 0);
}
