//! Does the API server accept the webhooks' certificates?

use super::{
    super::{
        Answer, Category, Check, Reply,
        facts::{Facts, Hook, Read, Unread},
        names::{HOOK_SECRET, HOOKS},
    },
    identity::{SOON, date},
};
use std::time::{Duration, SystemTime};

const MEANS: &str = "The API server cannot call the webhook: the certificate in its Secret is not one that the webhook's configuration vouches for, not for its name, or not valid now.";
const REMEDY: &str = "weft's controller keeps the two together: delete the Secret and it makes both anew. With cert-manager or a chart, see that Secret and `caBundle` come from the same CA.";
const SOON_MEANS: &str = "The webhook's certificate expires soon. weft's controller renews its own 60 days before their end, so something keeps it from that, or somebody else keeps the certificate.";
const SOON_REMEDY: &str = "Read the controller's log; with cert-manager or a chart, renew it there.";

pub(in super::super) const WEBHOOKS: Category = Category {
    name: "linkerd-webhooks-and-apisvc-tls",
    checks: &[
        Check::error(
            "l5d-proxy-injector-webhook-cert-valid",
            "proxy-injector webhook has valid cert",
            |facts| valid(facts, 0),
        )
        .fatal()
        .doc(MEANS, REMEDY),
        Check::warning(
            "l5d-proxy-injector-webhook-cert-not-expiring-soon",
            "proxy-injector cert is valid for at least 60 days",
            |facts| soon(facts, 0),
        )
        .doc(SOON_MEANS, SOON_REMEDY),
        Check::error("l5d-sp-validator-webhook-cert-valid", "sp-validator webhook has valid cert", |facts| {
            valid(facts, 1)
        })
        .fatal()
        .doc(MEANS, REMEDY),
        Check::warning(
            "l5d-sp-validator-webhook-cert-not-expiring-soon",
            "sp-validator cert is valid for at least 60 days",
            |facts| soon(facts, 1),
        )
        .doc(SOON_MEANS, SOON_REMEDY),
        Check::error(
            "l5d-policy-validator-webhook-cert-valid",
            "policy-validator webhook has valid cert",
            |facts| valid(facts, 2),
        )
        .fatal()
        .doc(MEANS, REMEDY),
        Check::warning(
            "l5d-policy-validator-webhook-cert-not-expiring-soon",
            "policy-validator cert is valid for at least 60 days",
            |facts| soon(facts, 2),
        )
        .doc(SOON_MEANS, SOON_REMEDY),
    ],
};

fn hook(facts: &Facts, at: usize) -> Read<Option<&Hook>> {
    Ok(facts.plane.hooks[at].as_ref()?.as_ref())
}

fn valid(facts: &Facts, at: usize) -> Reply {
    let name = HOOKS[at];
    match hook(facts, at)? {
        None => {
            Answer::bad(format!("there is no Secret {name}{HOOK_SECRET}, or no webhook that names {name}"))
        }
        Some(hook) => match &hook.accepted {
            Ok(_) => Ok(Answer::Good),
            Err(why) => Answer::bad(format!("the API server does not accept its certificate: {why}")),
        },
    }
}

fn soon(facts: &Facts, at: usize) -> Reply {
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(facts.now_unix_ms);
    let until = hook(facts, at)?.and_then(|hook| hook.accepted.as_ref().ok());
    let until = until.ok_or(Unread::NotAsked("there is no valid certificate"))?;
    Answer::if_so(*until >= now + SOON, || format!("valid until {}", date(*until)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::healthy::{DAY, healthy};

    #[test]
    fn certificates_of_webhooks_are_judged_one_by_one() {
        let mut facts = healthy();
        for check in WEBHOOKS.checks {
            assert_eq!(check.answer(&facts), Answer::Good, "{}", check.id);
        }
        facts.plane.hooks[1] = Ok(Some(Hook { accepted: Err("signed by somebody else".into()) }));
        facts.plane.hooks[2] = Ok(None);
        facts.now_unix_ms += u64::try_from((DAY * 320).as_millis()).unwrap();
        let answers: Vec<String> =
            WEBHOOKS.checks.iter().map(|c| format!("{:?}", c.answer(&facts))).collect();
        let wanted = [
            "Good",
            "valid until",
            "signed by somebody else",
            "Unknown",
            "no Secret linkerd-policy-validator-k8s-tls",
            "Unknown",
        ];
        for (answer, wanted) in answers.iter().zip(wanted) {
            assert!(answer.contains(wanted), "{answer} {wanted}");
        }
    }
}
