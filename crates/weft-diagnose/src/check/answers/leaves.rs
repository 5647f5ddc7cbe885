//! The proxies' own certificates, against what the control plane has now.

use super::{
    super::{
        Answer, Category, Check, Findings, Reply,
        facts::{Facts, Proxy},
    },
    data_plane::trusted,
    identity::date,
    proxies,
};
use std::time::{Duration, SystemTime};
use weft_kube::meta::ObjectName;

pub(in super::super) const CERTIFICATES: Category = Category {
    name: "weft-certificates",
    checks: &[
        Check::error("weft-leaf-valid", "every proxy holds a certificate that is valid", valid).doc(
            "A proxy has no certificate or one that has expired: nobody reaches its pod over the mesh, nor it anybody.",
            "The proxy's log says why the controller or the network refuses it one: an issuer that cannot sign, a token that is refused, an identity service that is not reached.",
        ),
        Check::warning("weft-leaf-renewed", "every proxy renews its certificate in time", renewed).doc(
            "A proxy's certificate is past nine tenths of its life without having been renewed: renewals fail, and it will stop when it ends.",
            "The proxy's log says why; see the checks of the issuer and of NetworkPolicies.",
        ),
        Check::error("weft-leaf-anchor", "every proxy's certificate leads to an anchor that is trusted", anchored).doc(
            "A proxy's certificate leads to a root that is no longer in the bundle: peers that follow the bundle refuse it.",
            "It renews by itself within a minute if the controller signs below a root of the bundle; otherwise restart the pod. `weft identity` shows who depends on which.",
        ),
        Check::error("weft-issuer-trusted", "every proxy trusts the root above the issuer", issuer_trusted).doc(
            "Certificates that the controller signs now are refused by this proxy, as it does not trust their root: it started before the root was added and does not follow the bundle.",
            "Restart the pod, or put the former root's issuer back until all proxies trust the new one; `weft identity rotate` does it in that order.",
        ),
        Check::error("weft-issuer-loaded", "the controller signs with the issuer of its Secret", loaded)
            .retried()
            .doc(
                "The Secret holds another issuer than the controller signs with: it could not use what was written there, and went on with what it had, which will end.",
                "The controller's log and its event IssuerValidationFailed say what is wrong with the Secret. See l5d-identity-issuer-cert-issued-by-trust-anchor.",
            ),
    ],
};

const EXPIRES: [&str; 2] =
    ["control_identity_cert_expiration_timestamp_seconds", "identity_cert_expiration_timestamp_seconds"];
const REFRESHED: &str = "control_identity_cert_refresh_timestamp_seconds";
const ANCHOR: &str = "weft_identity_cert_anchor";

/// Asks every proxy that answered, and says of which nothing is known.
fn each(facts: &Facts, heading: &str, ask: impl Fn(&ObjectName, &Proxy, &mut Findings)) -> Reply {
    if facts.proxies.is_empty() {
        return Ok(Answer::Idle);
    }
    let mut found = Findings::default();
    for (pod, read) in &facts.proxies {
        if let Ok(proxy) = read {
            ask(pod, proxy, &mut found);
        }
    }
    proxies::unknown(facts, &mut found);
    found.reply(heading)
}

fn expires(proxy: &Proxy) -> Option<f64> {
    EXPIRES.iter().find_map(|name| proxy.value(name))
}

fn seconds(now_unix_ms: u64) -> f64 {
    Duration::from_millis(now_unix_ms).as_secs_f64()
}

fn valid(facts: &Facts) -> Reply {
    let now = seconds(facts.now_unix_ms);
    each(facts, "without a valid certificate:", |pod, proxy, found| match expires(proxy) {
        Some(until) if until > now => {}
        Some(until) if until > 0.0 => {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(until.min(1e12));
            found.problem(format!("{pod}: expired on {}", date(at)));
        }
        Some(_) => found.problem(format!("{pod}: it has none")),
        None => found.unknown(format!("{pod}: its proxy does not tell")),
    })
}

fn renewed(facts: &Facts) -> Reply {
    let now = seconds(facts.now_unix_ms);
    each(facts, "late:", |pod, proxy, found| {
        let (Some(until), Some(since)) = (expires(proxy), proxy.value(REFRESHED)) else { return };
        let (life, age) = (until - since, now - since);
        if life > 0.0 && since > 0.0 && age > life * 0.9 {
            let minutes = (until - now).max(0.0) / 60.0;
            found.problem(format!("{pod}: it ends in {minutes:.0} min"));
        }
    })
}

fn anchored(facts: &Facts) -> Reply {
    let bundle = facts.plane.roots.as_ref()?;
    each(facts, "certificates that lead to no trusted anchor:", |pod, proxy, found| {
        let mut standing = proxy.family(ANCHOR).filter(|sample| sample.value != 0.0);
        // A stock proxy does not say.
        let Some(anchor) = standing.next().map(|sample| sample.label("sha256")) else { return };
        let known =
            bundle.as_ref().is_some_and(|roots| roots.anchors.iter().any(|root| root.sha256 == anchor));
        if anchor == "none" {
            found.problem(format!("{pod}: to none that it trusts itself"));
        } else if !known {
            found.problem(format!(
                "{pod}: to {}, which is not in the bundle",
                anchor.get(..12).unwrap_or(anchor)
            ));
        }
    })
}

fn issuer_trusted(facts: &Facts) -> Reply {
    let issuer = facts.plane.issuer.as_ref()?.as_ref().and_then(|issuer| issuer.proved.as_ref());
    // Another check tells of an issuer that leads nowhere.
    let Some(Ok(root)) = issuer else { return Ok(Answer::Idle) };
    let mut found = Findings::default();
    for pod in facts.meshed_pods()?.filter(|pod| pod.runs()) {
        if trusted(facts, pod).is_some_and(|anchors| !anchors.contains(root)) {
            found.problem(pod.name().to_string());
        }
    }
    proxies::unknown(facts, &mut found);
    found.reply(&format!("proxies that do not trust {}:", root.get(..12).unwrap_or(root)))
}

/// What the controller counts down to the end of its issuer.
const ISSUER_ENDS: &str = "issuer_cert_ttl_seconds";
/// The two are read at different moments, by clocks that may differ.
const SAME_SECONDS: f64 = 60.0;

fn loaded(facts: &Facts) -> Reply {
    let Some(controller) = &facts.controller else { return Ok(Answer::Idle) };
    let issuer = facts.plane.issuer.as_ref()?.as_ref().and_then(|issuer| issuer.certificate.as_ref());
    let Some(certificate) = issuer else { return Ok(Answer::Idle) };
    let mut samples = controller.as_ref()?.samples.iter();
    let Some(left) = samples.find(|sample| sample.name == ISSUER_ENDS).map(|sample| sample.value) else {
        return Ok(Answer::Unknown("the controller does not tell which issuer it signs with".into()));
    };
    let until =
        certificate.not_after.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let own = seconds(facts.now_unix_ms) + left;
    // One that has ended counts down no further.
    let both_ended = left <= 0.0 && until <= seconds(facts.now_unix_ms);
    Answer::if_so(both_ended || (own - until).abs() < SAME_SECONDS, || {
        let loaded = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(own.clamp(0.0, 1e12));
        format!(
            "the Secret's {} is valid until {}, and the controller signs with one that is valid until {}",
            certificate.subject,
            date(certificate.not_after),
            date(loaded)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        check::facts::healthy::{DAY, healthy, with_identity},
        prom,
    };
    use weft_tls::authority::Ca;

    fn with(metrics: &str) -> Facts {
        let mut facts = healthy();
        let web = facts.proxies.get_mut(&ObjectName::new("shop", "web-1")).unwrap().as_mut().unwrap();
        web.samples = prom::parse(metrics, |_| true);
        facts
    }

    fn bad(facts: &Facts) -> Vec<String> {
        let said = CERTIFICATES.checks.iter().filter_map(|check| match check.answer(facts) {
            Answer::Bad(why) => Some(format!("{} {why}", check.id)),
            Answer::Good => None,
            other => panic!("{} {other:?}", check.id),
        });
        said.collect()
    }

    fn stamps(facts: &Facts, until: f64, since: f64) -> String {
        let now = seconds(facts.now_unix_ms);
        format!("{} {}\n{REFRESHED} {}\n", EXPIRES[0], now + until, now + since)
    }

    #[test]
    fn certificates_that_end_are_told_before_and_after() {
        let now = healthy();
        assert!(bad(&now).is_empty());
        let late = bad(&with(&stamps(&now, 300.0, -86_000.0)));
        assert_eq!(late, ["weft-leaf-renewed late:\n* shop/web-1: it ends in 5 min"]);
        let ended = bad(&with(&stamps(&now, -1.0, -86_400.0)));
        assert!(
            ended[0].contains("weft-leaf-valid") && ended[0].contains("shop/web-1: expired on"),
            "{ended:?}"
        );
        let none = bad(&with(&format!("{} 0\n", EXPIRES[0])));
        assert!(none[0].contains("shop/web-1: it has none"), "{none:?}");
    }

    #[test]
    fn anchors_of_leaves_and_bundle_are_compared() {
        let now = healthy();
        let fine = stamps(&now, 80_000.0, -100.0);
        let lost = bad(&with(&format!("{fine}{ANCHOR}{{sha256=\"none\"}} 1\n")));
        assert!(lost[0].contains("weft-leaf-anchor") && lost[0].contains("none that it trusts"), "{lost:?}");
        let old = bad(&with(&format!("{fine}{ANCHOR}{{sha256=\"aaaaaaaaaaaaaaaa\"}} 1\n")));
        assert!(old[0].contains("aaaaaaaaaaaa, which is not in the bundle"), "{old:?}");
    }

    #[test]
    fn a_controller_that_did_not_take_over_the_issuer_of_its_secret() {
        let mut facts = healthy();
        assert_eq!(loaded(&facts), Ok(Answer::Good));
        let root = Ca::root("new", DAY * 300).unwrap();
        with_identity(&mut facts, &root.certificate_pem(), &root.issuer("issuer", DAY * 200).unwrap());
        assert!(matches!(loaded(&facts), Ok(Answer::Bad(why)) if why.contains("CN=issuer is valid until")));
        facts.controller.as_mut().unwrap().as_mut().unwrap().samples.clear();
        assert!(matches!(loaded(&facts), Ok(Answer::Unknown(_))));
    }

    #[test]
    fn a_proxy_that_does_not_trust_the_issuers_root() {
        let mut facts = healthy();
        let root = Ca::root("new", DAY * 300).unwrap();
        with_identity(&mut facts, &root.certificate_pem(), &root.issuer("issuer", DAY * 200).unwrap());
        let said = issuer_trusted(&facts);
        assert!(
            matches!(said, Ok(Answer::Bad(why)) if why.contains("shop/web-1") && why.contains("shop/store-1"))
        );
    }
}
