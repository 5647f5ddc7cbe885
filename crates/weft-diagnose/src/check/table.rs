//! Which checks there are, in the order in which they are asked and shown.

use super::{
    Category, Check,
    answers::{
        api, clocks, cni, config, data_plane, discovery, existence, extension, faults, identity, leaves,
        network, policy, pre, proxies, stalls, version, webhooks,
    },
};

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// May it be installed here?
    Pre,
    /// Only whether the kinds are defined.
    Definitions,
    /// The control plane, and what the data plane says of itself.
    ControlPlane,
    /// The data plane besides.
    Proxies,
}

const PRE: &[Category] = &[api::API, api::VERSION, pre::PRE, version::LATEST];

const DEFINITIONS: &[Category] = &[api::API, api::VERSION, api::GATEWAY, api::DEFINED, version::LATEST];

const CONTROL_PLANE: &[Category] = &[
    api::API,
    api::VERSION,
    api::GATEWAY,
    version::LATEST,
    config::CONFIG,
    existence::EXISTENCE,
    identity::IDENTITY,
    webhooks::WEBHOOKS,
    proxies::CONTROL_PLANE,
    version::CONTROL_PLANE,
    extension::EXTENSIONS,
    cni::PLUGIN,
    extension::HA,
    proxies::ANSWER,
    discovery::DISCOVERY,
    faults::ERRORS,
    stalls::STALLS,
    leaves::CERTIFICATES,
    clocks::CLOCK,
    policy::POLICY,
    network::NETWORK,
];

const PROXIES: &[Category] = &[
    api::API,
    api::VERSION,
    api::GATEWAY,
    version::LATEST,
    config::CONFIG,
    existence::EXISTENCE,
    identity::IDENTITY,
    webhooks::WEBHOOKS,
    proxies::CONTROL_PLANE,
    data_plane::DATA_PLANE,
    data_plane::OPAQUE,
    data_plane::IDENTITY,
    cni::PLUGIN,
    extension::HA,
    proxies::ANSWER,
    discovery::DISCOVERY,
    faults::ERRORS,
    stalls::STALLS,
    leaves::CERTIFICATES,
    clocks::CLOCK,
    policy::POLICY,
    network::NETWORK,
];

impl Scope {
    pub fn categories(self) -> &'static [Category] {
        match self {
            Scope::Pre => PRE,
            Scope::Definitions => DEFINITIONS,
            Scope::ControlPlane => CONTROL_PLANE,
            Scope::Proxies => PROXIES,
        }
    }
}

/// Every category once, as documents list them.
pub fn all() -> Vec<&'static Category> {
    let mut all: Vec<&Category> = Vec::new();
    for scope in [Scope::Pre, Scope::Definitions, Scope::ControlPlane, Scope::Proxies] {
        for category in scope.categories() {
            if all.iter().all(|known| known.name != category.name) {
                all.push(category);
            }
        }
    }
    all
}

/// The check of this id that tells most about it.
pub fn find(id: &str) -> Option<&'static Check> {
    let mut checks = all().into_iter().flat_map(|category| category.checks);
    checks.find(|check| check.id.eq_ignore_ascii_case(id) && !check.means.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_id_says_what_it_means_and_what_to_do() {
        for check in all().iter().flat_map(|category| category.checks) {
            let found = find(check.id).unwrap_or_else(|| panic!("{} is not explained", check.id));
            assert!(!found.remedy.is_empty(), "{}", check.id);
            assert!(check.says.len() < 80, "{}: {}", check.id, check.says);
        }
    }

    #[test]
    fn within_a_category_checks_can_be_told_apart() {
        for category in all() {
            let says: BTreeSet<&str> = category.checks.iter().map(|check| check.says).collect();
            assert_eq!(says.len(), category.checks.len(), "{}", category.name);
        }
    }

    #[test]
    fn ids_are_those_that_runbooks_name() {
        // Golden: pipelines and alerts select by them.
        let ids: BTreeSet<&str> =
            all().iter().flat_map(|category| category.checks).map(|check| check.id).collect();
        let text: String = ids.into_iter().flat_map(|id| [id, "\n"]).collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/check-ids.txt");
        if std::env::var_os("WEFT_WRITE_DOCS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(path).unwrap_or_default(),
            text,
            "WEFT_WRITE_DOCS=1 writes it anew"
        );
    }
}
