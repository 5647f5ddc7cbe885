//! The trust anchors and the issuer.

use super::super::{
    Answer, Category, Check, Findings, Reply,
    facts::{Facts, Issuer, Read, Roots, Unread},
};
use jiff::Timestamp;
use std::time::{Duration, SystemTime};
use weft_tls::certificate::Facts as Certificate;

/// What expires sooner deserves a word.
pub(super) const SOON: Duration = Duration::from_secs(60 * 24 * 3600);

const ROTATE: &str = "`weft identity rotate` replaces root and issuer in checked steps, without a restart; after the end, `weft identity rotate --recover`.";

pub(in super::super) const IDENTITY: Category = Category {
    name: "linkerd-identity",
    checks: &[
        Check::error("l5d-identity-cert-config-valid", "certificate config is valid", config).fatal().doc(
            "The ConfigMap `linkerd-identity-trust-roots` or the Secret `linkerd-identity-issuer` is missing, or cannot be read as certificates and key.",
            "Restore them from where they are kept (cert-manager, trust-manager, your repository), or install again.",
        ),
        Check::error(
            "l5d-identity-trustAnchors-use-supported-crypto",
            "trust anchors are using supported crypto algorithm",
            anchors_crypto,
        )
        .fatal()
        .doc("Proxies cannot verify signatures of an anchor's key.", "Use ECDSA P-256 keys for root and issuer."),
        Check::error(
            "l5d-identity-trustAnchors-are-time-valid",
            "trust anchors are within their validity period",
            anchors_valid,
        )
        .fatal()
        .doc(
            "A trust anchor has expired or is not valid yet: certificates below it are refused. Or this machine's clock is wrong.",
            ROTATE,
        ),
        Check::warning(
            "l5d-identity-trustAnchors-not-expiring-soon",
            "trust anchors are valid for at least 60 days",
            anchors_soon,
        )
        .doc("A trust anchor expires soon; with the last one, the whole mesh stops.", ROTATE),
        Check::error(
            "l5d-identity-issuer-cert-uses-supported-crypto",
            "issuer cert is using supported crypto algorithm",
            issuer_crypto,
        )
        .fatal()
        .doc("The issuer's key is of a kind that the controller cannot sign with.", "Use an ECDSA P-256 key."),
        Check::error(
            "l5d-identity-issuer-cert-is-time-valid",
            "issuer cert is within its validity period",
            issuer_valid,
        )
        .fatal()
        .doc(
            "The issuer has expired: proxies get no new certificate, and end with the ones they have. Or this machine's clock is wrong.",
            ROTATE,
        ),
        Check::warning(
            "l5d-identity-issuer-cert-not-expiring-soon",
            "issuer cert is valid for at least 60 days",
            issuer_soon,
        )
        .doc(
            "The issuer expires soon. Where cert-manager renews it, that is late enough to look whether it does.",
            ROTATE,
        ),
        Check::error(
            "l5d-identity-issuer-cert-issued-by-trust-anchor",
            "issuer cert is issued by the trust anchor",
            issued_by_anchor,
        )
        .doc(
            "What the issuer signs is not accepted by whoever trusts the anchors: the two were replaced at different times, or come from different places.",
            "Put the root above the issuer into the bundle (`linkerd-identity-trust-roots`), or the issuer below one of its roots into `linkerd-identity-issuer`; `weft identity` shows both.",
        ),
    ],
};

fn roots(facts: &Facts) -> Read<&Roots> {
    facts.plane.roots.as_ref()?.as_ref().ok_or(Unread::NotAsked("there are no trust anchors"))
}

fn issuer(facts: &Facts) -> Read<&Issuer> {
    facts.plane.issuer.as_ref()?.as_ref().ok_or(Unread::NotAsked("there is no issuer"))
}

fn certificate(facts: &Facts) -> Read<&Certificate> {
    issuer(facts)?.certificate.as_ref().ok_or(Unread::NotAsked("the issuer's certificate cannot be read"))
}

fn config(facts: &Facts) -> Reply {
    let mut found = Findings::default();
    match &facts.plane.roots {
        Ok(None) => found.problem("ConfigMap linkerd-identity-trust-roots is missing"),
        Ok(Some(roots)) => {
            found
                .problems
                .extend(roots.flaw.as_ref().map(|why| format!("linkerd-identity-trust-roots: {why}")));
        }
        Err(unread) => found.unknown(unread.to_string()),
    }
    match &facts.plane.issuer {
        Ok(None) => found.problem("Secret linkerd-identity-issuer is missing"),
        Ok(Some(issuer)) => {
            found.problems.extend(issuer.flaw.as_ref().map(|why| format!("linkerd-identity-issuer: {why}")));
        }
        Err(unread) => found.unknown(unread.to_string()),
    }
    found.reply("not usable:")
}

/// Keys whose signatures proxies verify.
fn is_supported(key: &str) -> bool {
    match key.strip_prefix("RSA ").map(str::parse::<u32>) {
        Some(bits) => bits.is_ok_and(|bits| (2048..=8192).contains(&bits)),
        None => matches!(key, "ECDSA P-256" | "ECDSA P-384" | "ECDSA P-521" | "Ed25519"),
    }
}

fn anchors_crypto(facts: &Facts) -> Reply {
    let anchors = roots(facts)?.anchors.iter().filter(|anchor| !is_supported(&anchor.key));
    anchors
        .map(|anchor| format!("{} has a key of kind {}", named(anchor), anchor.key))
        .collect::<Findings>()
        .reply("not supported:")
}

fn issuer_crypto(facts: &Facts) -> Reply {
    let (certificate, issuer) = (certificate(facts)?, issuer(facts)?);
    // weft's controller makes P-256 signatures; whoever else signs has keys of its own.
    let usable = match issuer.proved {
        Some(_) => certificate.key == "ECDSA P-256",
        None => is_supported(&certificate.key) && facts.plane()? == Some(super::super::facts::Plane::Linkerd),
    };
    Answer::if_so(usable, || format!("{} has a key of kind {}", named(certificate), certificate.key))
}

/// What a certificate is called in an answer.
fn named(certificate: &Certificate) -> String {
    format!("{} (SHA-256 {})", certificate.subject, certificate.sha256.get(..12).unwrap_or_default())
}

fn now(facts: &Facts) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(facts.now_unix_ms)
}

/// `2026-12-01 00:00:00 UTC`.
pub(super) fn date(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| format!("{at:?}"), |at| at.strftime("%F %T UTC").to_string())
}

fn not_valid(certificate: &Certificate, now: SystemTime) -> Option<String> {
    let name = named(certificate);
    if now < certificate.not_before {
        return Some(format!("{name}: not valid before {}", date(certificate.not_before)));
    }
    (now >= certificate.not_after).then(|| format!("{name}: expired on {}", date(certificate.not_after)))
}

fn ends_soon(certificate: &Certificate, now: SystemTime) -> Option<String> {
    (certificate.not_after < now + SOON)
        .then(|| format!("{}: valid until {}", named(certificate), date(certificate.not_after)))
}

fn anchors_valid(facts: &Facts) -> Reply {
    let anchors = roots(facts)?.anchors.iter();
    anchors.filter_map(|anchor| not_valid(anchor, now(facts))).collect::<Findings>().reply("not valid now:")
}

fn anchors_soon(facts: &Facts) -> Reply {
    let anchors = roots(facts)?.anchors.iter();
    anchors
        .filter_map(|anchor| ends_soon(anchor, now(facts)))
        .collect::<Findings>()
        .reply("less than 60 days:")
}

fn issuer_valid(facts: &Facts) -> Reply {
    not_valid(certificate(facts)?, now(facts)).into_iter().collect::<Findings>().reply("not valid now:")
}

fn issuer_soon(facts: &Facts) -> Reply {
    ends_soon(certificate(facts)?, now(facts)).into_iter().collect::<Findings>().reply("less than 60 days:")
}

fn issued_by_anchor(facts: &Facts) -> Reply {
    roots(facts)?;
    Ok(match &issuer(facts)?.proved {
        Some(Ok(_)) => Answer::Good,
        Some(Err(why)) => {
            Answer::Bad(format!("{} leads to none of the trust anchors: {why}", named(certificate(facts)?)))
        }
        None => Answer::Unknown(format!(
            "a signature of {} cannot be tried here: its key is of kind {}",
            named(certificate(facts)?),
            certificate(facts)?.key
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::healthy::{DAY, healthy, with_identity};
    use weft_tls::authority::Ca;

    fn bad(facts: &Facts) -> Vec<&'static str> {
        let is_bad = |check: &&Check| matches!(check.answer(facts), Answer::Bad(_));
        IDENTITY.checks.iter().filter(is_bad).map(|check| check.id).collect()
    }

    #[test]
    fn a_good_issuer_is_good_in_every_respect() {
        for check in IDENTITY.checks {
            assert_eq!(check.answer(&healthy()), Answer::Good, "{}", check.id);
        }
    }

    #[test]
    fn expiry_is_told_by_date() {
        let (root, mut facts) = (Ca::root("root", DAY * 300).unwrap(), healthy());
        let issuer = root.issuer("issuer", DAY * 30).unwrap();
        with_identity(&mut facts, &root.certificate_pem(), &issuer);
        assert_eq!(bad(&facts), ["l5d-identity-issuer-cert-not-expiring-soon"]);
        facts.now_unix_ms += u64::try_from((DAY * 31).as_millis()).unwrap();
        let expired =
            ["l5d-identity-issuer-cert-is-time-valid", "l5d-identity-issuer-cert-not-expiring-soon"];
        assert_eq!(bad(&facts), expired);
        assert!(
            matches!(issuer_valid(&facts), Ok(Answer::Bad(why)) if why.contains("CN=issuer") && why.contains("expired on 20"))
        );
        facts.now_unix_ms = 0;
        assert!(bad(&facts).contains(&"l5d-identity-trustAnchors-are-time-valid"));
    }

    #[test]
    fn a_foreign_issuer_is_found() {
        let (root, foreign, mut facts) =
            (Ca::root("root", DAY * 300).unwrap(), Ca::root("foreign", DAY * 300).unwrap(), healthy());
        let issuer = foreign.issuer("issuer", DAY * 200).unwrap();
        with_identity(&mut facts, &root.certificate_pem(), &issuer);
        assert_eq!(bad(&facts), ["l5d-identity-issuer-cert-issued-by-trust-anchor"]);
    }

    #[test]
    fn what_is_missing_or_may_not_be_read_is_told_apart() {
        let mut facts = healthy();
        facts.plane.issuer = Ok(None);
        assert_eq!(bad(&facts), ["l5d-identity-cert-config-valid"]);
        facts.plane.issuer = Err(Unread::Silent("no rights".into()));
        assert!(bad(&facts).is_empty());
        assert!(matches!(config(&facts), Ok(Answer::Unknown(why)) if why.contains("no rights")));
        assert!(issuer_valid(&facts).is_err());
    }

    #[test]
    fn keys_that_proxies_verify() {
        for good in ["ECDSA P-256", "Ed25519", "RSA 2048", "RSA 4096"] {
            assert!(is_supported(good), "{good}");
        }
        for bad in ["RSA 1024", "RSA", "ECDSA on curve 1.3.132.0.10", "1.2.840.10040.4.1"] {
            assert!(!is_supported(bad), "{bad}");
        }
    }
}
