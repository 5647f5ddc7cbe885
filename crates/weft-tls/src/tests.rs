//! Whole handshakes over in-memory pipes, and the certificate authority's rules.

use crate::{
    authority::{BACKDATE, Ca, Issued, Validity},
    bundle::TrustBundle,
    certificate::Facts,
    credentials::{Client, Credentials},
    handshake::{Offer, accept, accept_named, connect},
    hello::{Hello, peek},
    keys::Key,
    named::{NamedServer, Names},
    request::SigningRequest,
};
use proptest::prelude::*;
use rcgen::{CertificateParams, DnType, SanType};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use weft_fault::{Code, Fault};
use weft_model::identity::Identity;

const DAY: Duration = Duration::from_secs(86_400);

fn id(name: &str) -> Identity {
    Identity::parse(&format!("{name}.shop.serviceaccount.identity.linkerd.cluster.local")).unwrap()
}

struct Pki {
    issuer: Ca,
    roots: TrustBundle,
}

fn pki() -> Pki {
    let root = Ca::root("root.linkerd.cluster.local", DAY * 3650).unwrap();
    let issuer = root.issuer("identity.linkerd.cluster.local", DAY * 365).unwrap();
    let roots = TrustBundle::parse(&root.certificate_pem()).unwrap();
    Pki { issuer, roots }
}

impl Pki {
    fn issue(&self, id: &Identity) -> (Key, Issued) {
        let key = Key::generate().unwrap();
        let request = SigningRequest::parse(&key.certificate_request(id).unwrap(), id).unwrap();
        let issued = self.issuer.sign(&request, Validity::of(DAY), SystemTime::now()).unwrap();
        (key, issued)
    }
    fn credentials(&self, id: &Identity) -> Credentials {
        let (key, issued) = self.issue(id);
        Credentials::new(id.clone(), id.clone(), &key, issued.leaf, issued.intermediates, &self.roots)
            .unwrap()
    }
}

/// RFC 7301, 3.2: a server with protocols of its own refuses a client that offers only others. Proxies of either make must
/// get along all the same.
#[tokio::test]
async fn weft_proxies_know_each_other_and_others_see_what_they_always_saw() {
    let pki = pki();
    let (web, store) = (pki.credentials(&id("web")), pki.credentials(&id("store")));
    // A weft client at each kind of server: weft's two ports, and a Linkerd proxy's, which knows one protocol or none.
    for (offer, config, expected) in [
        (Offer::Weft, None, (true, false)),
        (Offer::Weft, Some(&store.server), (false, false)),
        (Offer::Transport, Some(&store.direct_server), (false, true)),
        (Offer::Transport, Some(&store.weft_direct_server), (true, true)),
    ] {
        let (near, far) = duplex(64 * 1024);
        let accepting = async {
            match config {
                None => accept(&store, false, Offer::Weft, far).await.map(|accepted| accepted.weft),
                Some(config) => {
                    let accepted = tokio_rustls::TlsAcceptor::from(config.clone()).accept(far).await;
                    Ok(accepted.is_ok())
                }
            }
        };
        let (connected, accepted) =
            tokio::join!(connect(web.client(), near, store.id(), store.server_name(), offer), accepting);
        let connected = connected.unwrap();
        assert!(accepted.unwrap());
        assert_eq!((connected.weft, connected.transport), expected, "{offer:?}");
    }
    // A Linkerd client at weft's ports: no protocol at all, or the transport header's alone.
    for (direct, alpn) in [(false, None), (true, Some(b"transport.l5d.io/v1"))] {
        let (near, far) = duplex(64 * 1024);
        let mut config = rustls::ClientConfig::clone(&web.client().plain);
        config.alpn_protocols = alpn.into_iter().map(|name| name.to_vec()).collect();
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        let name = rustls_pki_types::ServerName::try_from(store.server_name().as_str().to_owned()).unwrap();
        let (connected, accepted) =
            tokio::join!(connector.connect(name, near), accept(&store, direct, Offer::Nothing, far));
        let accepted = accepted.unwrap();
        assert_eq!((accepted.weft, accepted.transport), (false, direct));
        connected.unwrap();
    }
}

/// One handshake; both ends' results.
async fn handshake(
    client: &Client,
    server: &Credentials,
    expected: &Identity,
    direct: bool,
    offer: Offer,
) -> (Result<bool, Fault>, Result<(Option<Identity>, bool), Fault>) {
    let (near, far) = duplex(64 * 1024);
    let connecting = async {
        let mut connected = connect(client, near, expected, server.server_name(), offer).await?;
        connected.stream.write_all(b"hi").await.unwrap();
        connected.stream.shutdown().await.unwrap();
        Ok(connected.transport)
    };
    let accepting = async {
        let mut accepted = accept(server, direct, offer, far).await?;
        let mut text = String::new();
        // A client that refuses the server's identity drops the connection, so an error is no news here.
        let _ = accepted.stream.read_to_string(&mut text).await;
        assert!(text == "hi" || text.is_empty());
        Ok((accepted.client, accepted.transport))
    };
    tokio::join!(connecting, accepting)
}

#[tokio::test]
async fn both_ends_learn_who_the_other_is() {
    let pki = pki();
    let (web, store) = (pki.credentials(&id("web")), pki.credentials(&id("store")));
    let (connected, accepted) = handshake(web.client(), &store, store.id(), false, Offer::Nothing).await;
    assert!(!connected.unwrap());
    assert_eq!(accepted.unwrap(), (Some(id("web")), false));
    let (connected, accepted) = handshake(web.client(), &store, store.id(), true, Offer::Transport).await;
    assert!(connected.unwrap());
    assert_eq!(accepted.unwrap(), (Some(id("web")), true));
    // Either side alone does not make a transport header.
    let (connected, accepted) = handshake(web.client(), &store, store.id(), false, Offer::Transport).await;
    assert!(!connected.unwrap() && !accepted.unwrap().1);
    let (connected, accepted) = handshake(web.client(), &store, store.id(), true, Offer::Nothing).await;
    assert!(!connected.unwrap() && !accepted.unwrap().1);
}

#[tokio::test]
async fn a_client_without_a_certificate_is_served_and_is_nobody() {
    let pki = pki();
    let store = pki.credentials(&id("store"));
    let (connected, accepted) =
        handshake(&Client::anonymous(&pki.roots), &store, store.id(), false, Offer::Nothing).await;
    assert!(connected.is_ok());
    assert_eq!(accepted.unwrap().0, None);
}

#[tokio::test]
async fn another_identity_is_refused_with_both_names() {
    let pki = pki();
    let (web, store) = (pki.credentials(&id("web")), pki.credentials(&id("store")));
    let (connected, _) = handshake(web.client(), &store, &id("other"), false, Offer::Nothing).await;
    let fault = connected.unwrap_err();
    assert_eq!(fault.code(), Code::IdentityMismatch);
    let record = fault.record();
    assert_eq!(record.fact("expected"), Some(id("other").as_str()));
    assert_eq!(record.fact("actual"), Some(id("store").as_str()));
}

#[tokio::test]
async fn foreign_anchors_are_told_apart_by_each_side() {
    let (ours, theirs) = (pki(), pki());
    let (web, store) = (ours.credentials(&id("web")), theirs.credentials(&id("store")));
    let (connected, accepted) = handshake(web.client(), &store, store.id(), false, Offer::Nothing).await;
    assert_eq!(connected.unwrap_err().code(), Code::CertificateUntrusted);
    let fault = accepted.unwrap_err();
    assert_eq!(fault.code(), Code::CertificateUntrusted, "{fault:?}");
    assert!(fault.record().fact("alert").is_some());
}

/// A cluster beside this one: its roots vouch for its own workloads, and for nobody here.
#[tokio::test]
async fn a_foreign_bundle_is_valid_for_its_own_trust_domain_only() {
    let (ours, theirs) = (pki(), pki());
    let foreign = Identity::parse("web.shop.serviceaccount.identity.linkerd.east.example").unwrap();
    let both = ours.roots.clone().with_foreign("East.example", theirs.roots.clone()).unwrap();
    assert_ne!(both, ours.roots);
    let (key, issued) = ours.issue(&id("store"));
    let store =
        Credentials::new(id("store"), id("store"), &key, issued.leaf, issued.intermediates, &both).unwrap();
    let trusting = theirs.roots.clone().with_foreign("cluster.local", ours.roots.clone()).unwrap();
    let client = |pki: &Pki, id: &Identity| {
        let (key, issued) = pki.issue(id);
        let own = pki.roots.clone();
        let made =
            Credentials::new(id.clone(), id.clone(), &key, issued.leaf, issued.intermediates, &own).unwrap();
        // Whom it trusts is not what is tested; it is to get as far as to show its certificate.
        made.under(&trusting.joined(&own).unwrap()).unwrap().0
    };
    let shown = async |client: Credentials| {
        let (_, accepted) = handshake(client.client(), &store, store.id(), false, Offer::Nothing).await;
        accepted.map(|(client, _)| client).map_err(|fault| fault.code())
    };
    assert_eq!(shown(client(&theirs, &foreign)).await, Ok(Some(foreign.clone())));
    assert_eq!(shown(client(&ours, &id("web"))).await, Ok(Some(id("web"))));
    assert_eq!(
        shown(client(&theirs, &id("web"))).await,
        Err(Code::CertificateUntrusted),
        "theirs, for one of ours"
    );
    assert_eq!(
        shown(client(&ours, &foreign)).await,
        Err(Code::CertificateUntrusted),
        "ours, for one of theirs"
    );

    // The same seen from the client: a server of their domain, by their root and by ours.
    for (pki, fine) in [(&theirs, true), (&ours, false)] {
        let (key, issued) = pki.issue(&foreign);
        let server = Credentials::new(
            foreign.clone(),
            foreign.clone(),
            &key,
            issued.leaf,
            issued.intermediates,
            &pki.roots.joined(&both).unwrap(),
        );
        let (connected, _) =
            handshake(store.client(), &server.unwrap(), &foreign, false, Offer::Nothing).await;
        assert_eq!(connected.is_ok(), fine);
    }
    // One certificate for both domains, by their root: whoever could be named first is nobody.
    let key = Key::generate().unwrap();
    let names = [foreign.as_str(), id("web").as_str()].map(str::to_owned);
    let issued = theirs.issuer.issue(&key, &[&names[0], &names[1]], DAY, SystemTime::now()).unwrap();
    let (two, own) = (foreign.clone(), theirs.roots.clone());
    let made = Credentials::new(two.clone(), two, &key, issued.leaf, issued.intermediates, &own).unwrap();
    assert_eq!(shown(made.under(&trusting).unwrap().0).await, Err(Code::CertificateUntrusted));
    assert!(ours.roots.clone().with_foreign("no domain", theirs.roots.clone()).is_err());
}

#[tokio::test]
async fn a_peer_that_speaks_something_else_is_named() {
    let pki = pki();
    let web = pki.credentials(&id("web"));
    for (answer, code) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], Code::PeerNotTls),
        (&b""[..], Code::HandshakeEof),
        // A fatal unrecognized_name alert.
        (&[21, 3, 3, 0, 2, 2, 112][..], Code::ForeignServerName),
    ] {
        let (near, mut far) = duplex(64 * 1024);
        let x = id("x");
        let serving = async {
            let mut hello = [0; 64];
            far.read_exact(&mut hello).await.unwrap();
            far.write_all(answer).await.unwrap();
            far.shutdown().await.unwrap();
        };
        let (connected, ()) = tokio::join!(connect(web.client(), near, &x, &x, Offer::Nothing), serving);
        assert_eq!(connected.unwrap_err().code(), code);
    }
}

/// B33: whichever clock is wrong, the message holds both times and how far they are apart.
#[tokio::test]
async fn b33_a_peer_outside_of_its_validity_is_told_with_both_times_and_their_difference() {
    let (pki, store) = (pki(), id("store"));
    let client = pki.credentials(&id("web"));
    let now = SystemTime::now();
    for (issued_at, lifetime, edge, words) in [
        (now - Duration::from_secs(30), Duration::from_secs(10), "valid-until", " s past its end"),
        (now + DAY, DAY, "valid-from", " s before its begin"),
    ] {
        let key = Key::generate().unwrap();
        let issued = pki.issuer.issue(&key, &[store.as_str()], lifetime, issued_at).unwrap();
        let server = NamedServer::single(&store, &key, &issued, &pki.roots).unwrap();
        let (near, far) = duplex(64 * 1024);
        let connecting = connect(client.client(), near, &store, &store, Offer::Nothing);
        let (connected, accepted) = tokio::join!(connecting, accept_named(&server, far));
        let fault = connected.expect_err("refused");
        assert_eq!(fault.code(), Code::CertificateExpired);
        let record = fault.record();
        for fact in [edge, "clock"] {
            let at = record.fact(fact).unwrap_or_default();
            assert!(at.starts_with("20") && at.ends_with('Z'), "{fact}: {at}");
        }
        let skew = record.fact("skew").unwrap_or_default();
        let seconds = skew.strip_prefix("this clock is ").and_then(|rest| rest.strip_suffix(words));
        let seconds: u64 = seconds.unwrap_or_else(|| panic!("{skew}")).parse().unwrap();
        // 20 s ago or more, as long as this test takes; or almost a day ahead.
        let expected = if edge == "valid-until" { 19..=DAY.as_secs() } else { 80_000..=DAY.as_secs() };
        assert!(expected.contains(&seconds), "{skew}");
        // The peer hears what is wrong, and that it is its own certificate.
        assert!(accepted.is_err());
    }
}

/// TLS-011: a server whose side of the handshake makes no sense, although it speaks TLS.
#[tokio::test]
async fn a_handshake_that_makes_no_sense_is_named() {
    let client = pki().credentials(&id("web"));
    let (near, mut far) = duplex(64 * 1024);
    // A Finished message where a ServerHello has to be (RFC 8446, 4.4.4).
    let nonsense = [22, 3, 3, 0, 4, 20, 0, 0, 0];
    let answering = async move {
        far.write_all(&nonsense).await.unwrap();
        far
    };
    let store = id("store");
    let connecting = connect(client.client(), near, &store, &store, Offer::Nothing);
    let (connected, _far) = tokio::join!(connecting, answering);
    assert_eq!(connected.expect_err("refused").code(), Code::HandshakeFailed);
}

#[tokio::test]
async fn a_named_server_picks_by_sni() {
    let pki = pki();
    let (a, b) = (id("linkerd-destination"), id("linkerd-identity"));
    let mut names = Names::default();
    for name in [&a, &b] {
        let (key, issued) = pki.issue(name);
        names.add(name.as_str(), &key, &issued).unwrap();
    }
    let server: NamedServer = names.server(&pki.roots, &[b"h2"]).unwrap();
    let web = pki.credentials(&id("web"));
    for name in [&a, &b] {
        let (near, far) = duplex(64 * 1024);
        let (connected, accepted) =
            tokio::join!(connect(web.client(), near, name, name, Offer::Nothing), accept_named(&server, far));
        connected.unwrap();
        assert_eq!(accepted.unwrap().client, Some(id("web")));
    }
    let (near, far) = duplex(64 * 1024);
    let unknown = id("unknown");
    let (connected, _) = tokio::join!(connect(web.client(), near, &a, &unknown, Offer::Nothing), async {
        accept_named(&server, far).await.map(|_| ())
    });
    assert!(connected.is_err());
}

#[test]
fn credentials_are_checked_before_use() {
    let pki = pki();
    let (key, issued) = pki.issue(&id("web"));
    let make = |name: &str, key: &Key, roots: &TrustBundle| {
        Credentials::new(id(name), id(name), key, issued.leaf.clone(), issued.intermediates.clone(), roots)
            .map(|_| ())
            .map_err(|f| f.code())
    };
    assert_eq!(make("web", &key, &pki.roots), Ok(()));
    assert_eq!(make("store", &key, &pki.roots), Err(Code::IdentityMismatch));
    assert_eq!(make("web", &Key::generate().unwrap(), &pki.roots), Err(Code::AnswerInvalid));
    assert_eq!(make("web", &key, &self::pki().roots), Err(Code::CertificateUntrusted));
}

#[test]
fn a_leaf_is_back_dated_and_never_outlives_its_issuer() {
    let root = Ca::root("root", DAY * 2).unwrap();
    let issuer = root.issuer("issuer", Duration::from_secs(3600)).unwrap();
    let key = Key::generate().unwrap();
    let now = SystemTime::now();
    let leaf = issuer.issue(&key, &["a.b"], DAY, now).unwrap();
    assert_eq!(leaf.not_after, issuer.facts().not_after);
    assert!(leaf.not_before <= now - BACKDATE + Duration::from_secs(1));
    let facts = Facts::of(&leaf.leaf).unwrap();
    assert_eq!(facts.names, ["a.b"]);
    assert!(!facts.is_ca && facts.issuer == issuer.facts().subject);
    let again = issuer.issue(&key, &["a.b"], DAY, now).unwrap();
    assert_ne!(Facts::of(&again.leaf).unwrap().serial, facts.serial);
    let late = issuer.issue(&key, &["a.b"], DAY, now + DAY).unwrap_err();
    assert_eq!(late.code(), Code::IssuerUnusable);
}

#[test]
fn a_leaf_allows_for_clocks_that_differ_and_ends_with_the_first_of_its_chain() {
    let pki = pki();
    let request = Key::generate().unwrap().certificate_request(&id("web")).unwrap();
    let request = SigningRequest::parse(&request, &id("web")).unwrap();
    let now = SystemTime::now();
    let (hour, skew) = (Duration::from_secs(3600), Duration::from_secs(20));
    let leaf = pki.issuer.sign(&request, Validity::with_skew(hour, skew), now).unwrap();
    assert_eq!((leaf.not_before, leaf.not_after), (now - skew, now + hour + skew));
    let facts = Facts::of(&leaf.leaf).unwrap();
    assert_eq!(facts.not_after.duration_since(facts.not_before).unwrap(), hour + skew * 2);
    // An issuer above ends before the one that signs: what was signed would be refused from then on.
    let above = Ca::root("root", DAY).unwrap().issuer("above", hour).unwrap();
    let key = Key::generate().unwrap();
    let long = Ca::root("unlike", DAY).unwrap();
    let chain = format!("{}{}", long.certificate_pem(), above.certificate_pem());
    let issuer = Ca::from_pem(&chain, &long.key_pem()).unwrap();
    assert_eq!(issuer.issue(&key, &["a.b"], DAY, now).unwrap().not_after, above.facts().not_after);
}

#[test]
fn an_issuer_survives_its_secret_and_is_checked() {
    let pki = pki();
    let (pem, key) = (pki.issuer.certificate_pem(), pki.issuer.key_pem());
    let loaded = Ca::from_pem(&pem.replace('\n', "\r\n"), &key).unwrap();
    assert!(loaded.check(&pki.roots, SystemTime::now()).is_ok());
    let foreign = loaded.check(&self::pki().roots, SystemTime::now()).unwrap_err();
    assert_eq!(foreign.code(), Code::IssuerUnusable);
    assert!(foreign.record().causes[0].starts_with("TLS-004"), "{foreign:?}");
    assert_eq!(
        Ca::from_pem(&pem, &Key::generate().unwrap().to_pem()).unwrap_err().code(),
        Code::IssuerUnusable
    );
    let (key, leaf) = pki.issue(&id("web"));
    let leaf_pem = crate::certificate::to_pem("CERTIFICATE", &leaf.leaf);
    assert_eq!(Ca::from_pem(&leaf_pem, &key.to_pem()).unwrap_err().code(), Code::IssuerUnusable);
}

#[test]
fn a_key_is_read_in_either_form() {
    // SEC1, as `openssl ecparam -genkey` writes it; made for this test and used nowhere else.
    let sec1 = [
        "-----BEGIN EC PRIVATE KEY-----",
        "MHcCAQEEIGdjT0W7qSuEMLOdXRkzsk7GUq3/h1RlgtArSdCiFW9QoAoGCCqGSM49",
        "AwEHoUQDQgAEtdsAR1mJdkpdz3YAL7aUb7obCbmG+frd10V0T0rT87CEYgm1Imy3",
        "gyBuhpsr6bfz4bOeK3/O3AZ9t7qEyfOOEA==",
        "-----END EC PRIVATE KEY-----",
    ];
    assert!(Key::from_pem(&sec1.join("\n")).is_ok());
    let key = Key::generate().unwrap();
    assert!(Key::from_pem(&key.to_pem()).is_ok());
    assert!(Key::from_pem("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").is_err());
    assert!(Key::from_pkcs8(b"nonsense").is_err());
}

#[test]
fn only_the_identity_itself_may_be_asked_for() {
    let me = id("web");
    let key = Key::generate().unwrap();
    assert!(SigningRequest::parse(&key.certificate_request(&me).unwrap(), &me).is_ok());
    let refused = |change: &dyn Fn(&mut CertificateParams)| {
        let mut params = CertificateParams::new(vec![me.as_str().to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        change(&mut params);
        let der = params.serialize_request(key.pair()).unwrap().der().to_vec();
        SigningRequest::parse(&der, &me).map(|_| ()).map_err(|f| f.code()) == Err(Code::CertifyRefused)
    };
    assert!(!refused(&|_| {}));
    assert!(refused(&|p| p.subject_alt_names.push(SanType::DnsName("other.example".try_into().unwrap()))));
    assert!(refused(&|p| p.subject_alt_names.push(SanType::IpAddress([10, 0, 0, 1].into()))));
    assert!(refused(&|p| p.subject_alt_names = vec![SanType::Rfc822Name("a@b.c".try_into().unwrap())]));
    assert!(refused(&|p| p.subject_alt_names.clear()));
    assert!(refused(&|p| p.distinguished_name.push(DnType::CommonName, "other")));
    assert!(refused(&|p| p.distinguished_name.push(DnType::OrganizationName, "org")));
    assert!(refused(&|p| p.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained)));
    // A changed byte breaks the signature.
    let mut der = key.certificate_request(&me).unwrap();
    *der.last_mut().unwrap() ^= 1;
    assert!(SigningRequest::parse(&der, &me).is_err());
    assert!(SigningRequest::parse(b"", &me).is_err());
}

#[test]
fn bundles_are_read_as_people_write_them() {
    let (a, b) = (Ca::root("a", DAY).unwrap(), Ca::root("b", DAY).unwrap());
    let (pa, pb) = (a.certificate_pem(), b.certificate_pem());
    let indented: String = pb.lines().map(|l| format!("    {l}\n")).collect();
    let sloppy = format!("# old root\r\n{}\n\n# new\n{indented}\n{pa}\n\n\n", pa.replace('\n', "\r\n"));
    let bundle = TrustBundle::parse(&sloppy).unwrap();
    assert_eq!(bundle.anchors().len(), 2);
    assert!(bundle.warnings().is_empty());
    assert_eq!(TrustBundle::parse(&bundle.to_pem()).unwrap(), bundle);
    assert!(TrustBundle::parse("").is_err());
    assert!(TrustBundle::parse("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").is_err());
    let key = Key::generate().unwrap();
    let mut old = CertificateParams::new(vec!["old".into()]).unwrap();
    old.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    old.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let old = old.self_signed(key.pair()).unwrap().pem();
    let bundle = TrustBundle::parse(&format!("{old}{pa}")).unwrap();
    assert_eq!((bundle.anchors().len(), bundle.warnings().len()), (2, 1));
}

/// The ClientHello that rustls writes for `name`.
fn client_hello(name: &str) -> Vec<u8> {
    let config = Client::anonymous(&pki().roots).plain;
    let name = rustls_pki_types::ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = rustls::ClientConnection::new(config, name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

#[test]
fn the_server_name_is_found_as_soon_as_the_hello_is_whole() {
    let hello = client_hello("app.example");
    assert!(hello.len() > 1200, "a post-quantum share makes it long: {}", hello.len());
    for cut in 0..hello.len() {
        assert_eq!(peek(&hello[..cut]), Hello::Incomplete, "{cut}");
    }
    let found = Hello::Client { sni: Some("app.example".into()), weft: Offer::Nothing };
    assert_eq!(peek(&hello), found);
    assert_eq!(peek(&[&hello[..], b"more"].concat()), found);
    // The same message in three records.
    let message = &hello[5..];
    let mut split = Vec::new();
    for part in message.chunks(message.len() / 3 + 1) {
        // The minor half of the version means nothing (RFC 8446, 5.1).
        split.extend([22, 3, split.len() as u8]);
        split.extend(u16::try_from(part.len()).unwrap().to_be_bytes());
        split.extend(part);
    }
    assert_eq!(peek(&split), found);
    // An address has no server name.
    assert_eq!(peek(&client_hello("192.0.2.1")), Hello::Client { sni: None, weft: Offer::Nothing });
}

#[test]
fn what_is_no_hello_is_told_early() {
    for bytes in [&b"GET / HTTP/1.1"[..], &[1, 2, 3, 4], &[22, 2], &[22, 3, 1, 0, 4, 2], &[22, 3, 1, 0, 0]] {
        assert_eq!(peek(bytes), Hello::NotTls, "{bytes:?}");
    }
    assert_eq!(peek(&[]), Hello::Incomplete);
    assert_eq!(peek(&[22, 3, 1, 64, 0, 1, 0, 255, 255]), Hello::NotTls);
}

proptest! {
    #[test]
    fn peeking_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0_usize..1500) {
        peek(&bytes);
        let mut hello = client_hello("app.example");
        let at = at.min(hello.len());
        let end = (at + bytes.len()).min(hello.len());
        let count = end - at;
        hello[at..end].copy_from_slice(&bytes[..count]);
        peek(&hello);
    }
}
