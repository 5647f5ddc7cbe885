//! Rotation of the mesh's trust root, as a pure function: from what the cluster holds and its proxies say to what comes next.
//!
//! ```text
//! 1. both roots are trusted          the bundle {old} becomes {old, new}; wait until every proxy trusts the new one
//! 2. the new issuer signs            wait until every proxy's certificate leads to the new root
//! 3. the old root is no longer trusted
//! ```
//!
//! Nothing is kept beside the cluster's own objects, so whoever is interrupted calls the command again.

use std::{collections::BTreeSet, fmt};

/// SHA-256 of a certificate, in hexadecimal.
pub(crate) type Fingerprint = String;

/// What one proxy says of itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    Roots {
        trusts: BTreeSet<Fingerprint>,
        /// The root that its certificate leads to; `None`: to none that it trusts.
        certificate: Option<Fingerprint>,
    },
    /// It has no such metrics: another proxy, which reads its roots at the start only.
    Nothing,
    Silent(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProxyRoots {
    /// `shop/web-0`
    pub(crate) pod: String,
    pub(crate) told: Told,
}

/// The state of a rotation.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The bundle.
    pub(crate) roots: Vec<Fingerprint>,
    /// The root that the issuer in use leads to, if it leads to one of the bundle's.
    pub(crate) issuer: Option<Fingerprint>,
    /// The root of the issuer that is to follow.
    pub(crate) next: Option<Fingerprint>,
    /// The roots that this rotation is to replace.
    pub(crate) leaving: BTreeSet<Fingerprint>,
    pub(crate) proxies: Vec<ProxyRoots>,
}

/// What stands between this state and the next step: pods, and why each.
pub(crate) type Missing = Vec<(String, &'static str)>;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Nothing is under way.
    Begin,
    /// The next root is to be trusted.
    Trust(Fingerprint),
    /// Its issuer is to sign, once nobody is missing.
    Sign { root: Fingerprint, missing: Missing },
    /// These roots are to go, once nobody is missing.
    Remove { roots: BTreeSet<Fingerprint>, missing: Missing },
}

impl State {
    pub(crate) fn step(&self) -> Step {
        if let Some(next) = &self.next {
            if !self.roots.contains(next) {
                return Step::Trust(next.clone());
            }
            let missing = self
                .missing(|trusts, _| (!trusts.contains(next)).then_some("does not trust the new root yet"));
            return Step::Sign { root: next.clone(), missing };
        }
        let leaving: BTreeSet<Fingerprint> =
            self.leaving.iter().filter(|root| self.roots.contains(root)).cloned().collect();
        if leaving.is_empty() {
            return Step::Begin;
        }
        let missing = self.missing(|_, certificate| match certificate {
            Some(root) if !leaving.contains(root) => None,
            Some(_) => Some("has a certificate of the old root"),
            None => Some("has a certificate of no trusted root"),
        });
        Step::Remove { roots: leaving, missing }
    }

    fn missing(
        &self,
        lacks: impl Fn(&BTreeSet<Fingerprint>, Option<&Fingerprint>) -> Option<&'static str>,
    ) -> Missing {
        let why = |told: &Told| match told {
            Told::Roots { trusts, certificate } => lacks(trusts, certificate.as_ref()),
            Told::Nothing => Some("reads its roots at the start only: restart it"),
            Told::Silent(_) => Some("does not answer"),
        };
        self.proxies.iter().filter_map(|proxy| Some((proxy.pod.clone(), why(&proxy.told)?))).collect()
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Begin => f.write_str("no rotation is under way"),
            Step::Trust(_) => f.write_str("the new root is to be trusted"),
            Step::Sign { missing, .. } if missing.is_empty() => f.write_str("the new issuer can sign"),
            Step::Sign { .. } => f.write_str("waiting until every proxy trusts the new root"),
            Step::Remove { missing, .. } if missing.is_empty() => f.write_str("the old root can go"),
            Step::Remove { .. } => f.write_str("waiting until no proxy has a certificate of the old root"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(pod: &str, trusts: &[&str], certificate: Option<&str>) -> ProxyRoots {
        let trusts = trusts.iter().map(ToString::to_string).collect();
        ProxyRoots {
            pod: pod.into(),
            told: Told::Roots { trusts, certificate: certificate.map(str::to_owned) },
        }
    }

    fn state(roots: &[&str], issuer: &str, next: Option<&str>, leaving: &[&str]) -> State {
        State {
            roots: roots.iter().map(ToString::to_string).collect(),
            issuer: Some(issuer.to_owned()),
            next: next.map(str::to_owned),
            leaving: leaving.iter().map(ToString::to_string).collect(),
            proxies: Vec::new(),
        }
    }

    #[test]
    fn steps_follow_each_other_and_name_who_is_missing() {
        let mut now = state(&["a"], "a", None, &[]);
        assert_eq!(now.step(), Step::Begin);

        // Interrupted right after the new issuer was made.
        now = state(&["a"], "a", Some("b"), &["a"]);
        assert_eq!(now.step(), Step::Trust("b".into()));

        now = state(&["a", "b"], "a", Some("b"), &["a"]);
        now.proxies = vec![
            proxy("s/ready", &["a", "b"], Some("a")),
            proxy("s/late", &["a"], Some("a")),
            ProxyRoots { pod: "s/stock".into(), told: Told::Nothing },
            ProxyRoots { pod: "s/stopped".into(), told: Told::Silent("timeout".into()) },
        ];
        let Step::Sign { root, missing } = now.step() else { panic!("{}", now.step()) };
        assert_eq!(root, "b");
        let pods: Vec<&str> = missing.iter().map(|(pod, _)| pod.as_str()).collect();
        assert_eq!(pods, ["s/late", "s/stock", "s/stopped"]);

        now = state(&["b", "a"], "b", None, &["a"]);
        now.proxies = vec![proxy("s/new", &["a", "b"], Some("b")), proxy("s/old", &["a", "b"], Some("a"))];
        let Step::Remove { roots, missing } = now.step() else { panic!("{}", now.step()) };
        assert!(roots.contains("a") && roots.len() == 1);
        assert_eq!(missing, [("s/old".to_owned(), "has a certificate of the old root")]);

        assert_eq!(state(&["b"], "b", None, &["a"]).step(), Step::Begin);
    }

    #[test]
    fn roots_that_are_trusted_for_other_reasons_stay() {
        // Another cluster's root is in the bundle for good.
        assert_eq!(state(&["a", "foreign"], "a", None, &[]).step(), Step::Begin);
        let now = state(&["b", "a", "foreign"], "b", None, &["a"]);
        let Step::Remove { roots, .. } = now.step() else { panic!("{}", now.step()) };
        assert_eq!(roots, BTreeSet::from(["a".to_owned()]));
    }
}
