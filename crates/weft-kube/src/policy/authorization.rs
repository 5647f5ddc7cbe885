//! Who may call: AuthorizationPolicy and the two kinds of authentication it refers to.

use super::reference::ObjectRef;
use crate::{
    kind::Kind,
    meta::{Meta, nullable},
};
use ipnet::IpNet;
use serde::Deserialize;
use std::{collections::BTreeSet, net::IpAddr};
use weft_model::{
    identity::Identity,
    inbound::{Authn, Network, Suffix},
};

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct AuthorizationPolicy {
    pub metadata: Meta,
    pub spec: AuthorizationSpec,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorizationSpec {
    pub target_ref: ObjectRef,
    /// All of them must hold; none at all allows everybody.
    #[serde(default, deserialize_with = "nullable")]
    pub required_authentication_refs: Vec<ObjectRef>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct MeshTlsAuthentication {
    pub metadata: Meta,
    pub spec: MeshTlsSpec,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeshTlsSpec {
    #[serde(default, deserialize_with = "nullable")]
    pub identities: Vec<String>,
    #[serde(default, deserialize_with = "nullable")]
    pub identity_refs: Vec<ObjectRef>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct NetworkAuthentication {
    pub metadata: Meta,
    pub spec: NetworkSpec,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct NetworkSpec {
    #[serde(default, deserialize_with = "nullable")]
    pub networks: Vec<NetworkMatch>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct NetworkMatch {
    pub cidr: Cidr,
    #[serde(default, deserialize_with = "nullable")]
    pub except: Vec<Cidr>,
}

/// A network, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Cidr(pub IpNet);

impl TryFrom<String> for Cidr {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse::<IpNet>()
            .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
            .map(|net| Cidr(net.trunc()))
            .map_err(|_| format!("{text:?} is neither a network nor an address"))
    }
}

macro_rules! kind {
    ($name:ident, $kind:literal, $plural:literal) => {
        impl Kind for $name {
            const GROUP: &'static str = "policy.linkerd.io";
            const VERSION: &'static str = "v1alpha1";
            const KIND: &'static str = $kind;
            const PLURAL: &'static str = $plural;
            fn meta(&self) -> &Meta {
                &self.metadata
            }
        }
    };
}
kind!(AuthorizationPolicy, "AuthorizationPolicy", "authorizationpolicies");
kind!(MeshTlsAuthentication, "MeshTLSAuthentication", "meshtlsauthentications");
kind!(NetworkAuthentication, "NetworkAuthentication", "networkauthentications");

impl NetworkAuthentication {
    pub fn networks(&self) -> Vec<Network> {
        self.spec
            .networks
            .iter()
            .map(|n| Network { net: n.cidr.0, except: n.except.iter().map(|e| e.0).collect() })
            .collect()
    }
}

/// Where the identities of a cluster end.
#[derive(Clone, Copy, Debug)]
pub struct IdentityDomain<'a> {
    pub control_namespace: &'a str,
    pub trust_domain: &'a str,
}

impl IdentityDomain<'_> {
    pub fn service_account(&self, namespace: &str, name: &str) -> Option<Identity> {
        Identity::of_service_account(name, namespace, self.control_namespace, self.trust_domain).ok()
    }

    pub fn namespace(&self, namespace: &str) -> Suffix {
        Suffix(format!(
            "{namespace}.serviceaccount.identity.{}.{}",
            self.control_namespace, self.trust_domain
        ))
    }
}

impl MeshTlsAuthentication {
    /// An identity that cannot be read allows nobody.
    pub fn authn(&self, domain: IdentityDomain<'_>) -> Authn {
        let mut exact = BTreeSet::new();
        let mut suffixes = Vec::new();
        for text in &self.spec.identities {
            match text.strip_prefix('*') {
                Some("") => suffixes.push(Suffix(String::new())),
                Some(rest) => {
                    if let Some(suffix) = rest.strip_prefix('.').filter(|s| Identity::parse(s).is_ok()) {
                        suffixes.push(Suffix(suffix.to_ascii_lowercase()));
                    }
                }
                None => exact.extend(Identity::parse(text).ok()),
            }
        }
        for reference in &self.spec.identity_refs {
            if reference.is("", "ServiceAccount") {
                let account = reference.resolve(&self.metadata.namespace);
                exact.extend(domain.service_account(&account.namespace, &account.name));
            } else if reference.is("", "Namespace") {
                suffixes.push(domain.namespace(&reference.name));
            }
        }
        Authn::Identities { exact, suffixes }
    }
}

/// A ServiceAccount that an AuthorizationPolicy names without a MeshTLSAuthentication between.
pub fn service_account_authn(reference: &ObjectRef, local: &str, domain: IdentityDomain<'_>) -> Authn {
    let account = reference.resolve(local);
    Authn::Identities {
        exact: domain.service_account(&account.namespace, &account.name).into_iter().collect(),
        suffixes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const DOMAIN: IdentityDomain<'static> =
        IdentityDomain { control_namespace: "linkerd", trust_domain: "cluster.local" };

    #[test]
    fn identities_stars_and_references() {
        let object: MeshTlsAuthentication = serde_json::from_value(json!({
            "metadata": {"name": "m", "namespace": "shop"},
            "spec": {
                "identities": ["*", "*.shop.serviceaccount.identity.linkerd.cluster.local", "*bad", "a b",
                    "spiffe://example/web"],
                "identityRefs": [
                    {"kind": "ServiceAccount", "name": "web"},
                    {"kind": "ServiceAccount", "name": "web", "namespace": "other"},
                    {"group": "core", "kind": "Namespace", "name": "jobs"},
                    {"kind": "Surprise", "name": "x"},
                ],
            },
        }))
        .unwrap();
        let Authn::Identities { exact, suffixes } = object.authn(DOMAIN) else { panic!("identities") };
        let exact: Vec<_> = exact.iter().map(Identity::as_str).collect();
        assert_eq!(
            exact,
            [
                "spiffe://example/web",
                "web.other.serviceaccount.identity.linkerd.cluster.local",
                "web.shop.serviceaccount.identity.linkerd.cluster.local",
            ]
        );
        let suffixes: Vec<_> = suffixes.iter().map(|s| s.0.as_str()).collect();
        assert_eq!(
            suffixes,
            [
                "",
                "shop.serviceaccount.identity.linkerd.cluster.local",
                "jobs.serviceaccount.identity.linkerd.cluster.local"
            ]
        );
    }

    #[test]
    fn networks_may_be_addresses() {
        let object: NetworkAuthentication = serde_json::from_value(json!({
            "metadata": {"name": "n", "namespace": "shop"},
            "spec": {"networks": [{"cidr": "10.77.0.1"}, {"cidr": "10.77.3.4/16", "except": ["10.77.9.0/24"]}]},
        }))
        .unwrap();
        let networks = object.networks();
        assert_eq!(networks[0].net.to_string(), "10.77.0.1/32");
        assert_eq!(networks[1].net.to_string(), "10.77.0.0/16");
        assert!(!networks[1].contains("10.77.9.1".parse().unwrap()));
        assert!(
            serde_json::from_value::<NetworkAuthentication>(json!({
                "metadata": {}, "spec": {"networks": [{"cidr": "x"}]}
            }))
            .is_err()
        );
    }
}
