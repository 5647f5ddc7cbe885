//! Is there a Kubernetes API, and is it one that a mesh can use?

use super::super::{
    Answer, Category, Check, Reply,
    facts::Facts,
    names::{DEFINITIONS, GATEWAY_DEFINITIONS},
};

pub(in super::super) const API: Category = Category {
    name: "kubernetes-api",
    checks: &[
        Check::error("k8s-api", "can initialize the client", client).fatal().doc(
            "There is no usable kubeconfig: it is missing, names no such context, or its credentials cannot be read.",
            "Give `--kubeconfig` and `--context` as kubectl would take them. Without them, the mesh of `weft up` on this machine is asked.",
        ),
        Check::error("k8s-api", "can query the Kubernetes API", answers).fatal().doc(
            "The API server does not answer, or does not know the user.",
            "Try `kubectl version` with the same kubeconfig: network, VPN, certificates and credentials are the usual causes.",
        ),
    ],
};

pub(in super::super) const VERSION: Category = Category {
    name: "kubernetes-version",
    checks: &[Check::error("k8s-version", "is running the minimum Kubernetes API version", version).doc(
        "The API server is older than 1.30: the webhooks use conditions that it does not know.",
        "Upgrade Kubernetes.",
    )],
};

pub(in super::super) const GATEWAY: Category = Category {
    name: "gateway-api-crd",
    checks: &[Check::error("gateway-api-crd", "the Gateway API's definitions are installed", gateway)
        .fatal()
        .doc(
            "HTTPRoutes and GRPCRoutes of `gateway.networking.k8s.io` are not defined, so routes cannot be written and an installation refuses.",
            "`weft install --crds | kubectl apply -f -` brings them where they are missing; or install the Gateway API's own.",
        )],
};

pub(in super::super) const DEFINED: Category = Category {
    name: "linkerd-crd",
    checks: &[Check::error(
        "l5d-existence-crd",
        "control plane CustomResourceDefinitions exist",
        definitions,
    )
    .fatal()
    .retried()
    .doc(
        "Kinds that the control plane reads are not defined.",
        "`weft install --crds | kubectl apply -f -`.",
    )],
};

/// The oldest minor version of Kubernetes 1.
const OLDEST: u32 = 30;

fn client(facts: &Facts) -> Reply {
    match &facts.client {
        Ok(()) => Ok(Answer::Good),
        Err(why) => Answer::bad(why),
    }
}

fn answers(facts: &Facts) -> Reply {
    match &facts.kubernetes {
        Ok(_) => Ok(Answer::Good),
        // Nobody's silence is worse than the API's.
        Err(unread) => Answer::bad(unread.to_string()),
    }
}

fn version(facts: &Facts) -> Reply {
    let text = facts.kubernetes.as_ref()?;
    let mut numbers = text.trim_start_matches('v').split(['.', '-', '+']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => {
            Answer::if_so((major, minor) >= (1, OLDEST), || format!("it is {text}, and 1.{OLDEST} is needed"))
        }
        _ => Ok(Answer::Unknown(format!("{text:?} is no version"))),
    }
}

fn gateway(facts: &Facts) -> Reply {
    missing(facts, &GATEWAY_DEFINITIONS)
}

/// Also asked about in `linkerd-config`.
pub(super) fn definitions(facts: &Facts) -> Reply {
    missing(facts, &DEFINITIONS)
}

fn missing(facts: &Facts, wanted: &[&str]) -> Reply {
    let defined = facts.definitions.as_ref()?;
    let missing: Vec<&str> = wanted.iter().filter(|name| !defined.contains(**name)).copied().collect();
    Answer::if_so(missing.is_empty(), || format!("missing: {}", missing.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::{Unread, healthy::healthy};

    #[test]
    fn versions_are_compared_as_numbers() {
        let of = |text: &str| {
            let mut facts = healthy();
            facts.kubernetes = Ok(text.into());
            version(&facts).unwrap()
        };
        assert_eq!(of("v1.33.1"), Answer::Good);
        assert_eq!(of("v1.30.0-gke.100+x"), Answer::Good);
        assert_eq!(of("v2.0.0"), Answer::Good);
        assert!(matches!(of("v1.9.0"), Answer::Bad(why) if why.contains("v1.9.0")));
        assert!(matches!(of("unreleased"), Answer::Unknown(_)));
    }

    #[test]
    fn a_silent_api_is_no_good_one() {
        let mut facts = healthy();
        facts.kubernetes = Err(Unread::Silent("connection refused".into()));
        assert_eq!(answers(&facts), Ok(Answer::Bad("connection refused".into())));
        assert!(version(&facts).is_err());
        facts.client = Err("no kubeconfig".into());
        assert_eq!(client(&facts), Ok(Answer::Bad("no kubeconfig".into())));
    }

    #[test]
    fn definitions_that_are_missing_are_named() {
        let mut facts = healthy();
        assert_eq!((gateway(&facts), definitions(&facts)), (Ok(Answer::Good), Ok(Answer::Good)));
        facts.definitions.as_mut().unwrap().remove("servers.policy.linkerd.io");
        assert_eq!(definitions(&facts), Ok(Answer::Bad("missing: servers.policy.linkerd.io".into())));
    }
}
