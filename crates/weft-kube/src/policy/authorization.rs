//! Who may call: AuthorizationPolicy and the two kinds of authentication it refers to.

use super::{
    reference::{GATEWAY_GROUP, ObjectRef, POLICY_GROUP},
    status::Conditions,
};
use crate::{
    kind::Kind,
    meta::{Meta, ObjectName, nullable},
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
    #[serde(default, deserialize_with = "nullable")]
    pub status: Conditions,
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
    #[serde(default, deserialize_with = "nullable")]
    pub status: Conditions,
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
    #[serde(default, deserialize_with = "nullable")]
    pub status: Conditions,
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

impl NetworkMatch {
    pub fn network(&self) -> Network {
        Network { net: self.cidr.0, except: self.except.iter().map(|e| e.0).collect() }
    }
}

/// What is wrong with a list of networks, if anything.
pub(super) fn network_flaw(field: &str, networks: &[NetworkMatch]) -> Option<String> {
    for (at, network) in networks.iter().enumerate() {
        let net = network.cidr.0;
        for (n, except) in network.except.iter().enumerate() {
            let except = except.0;
            if except.contains(&net) {
                return Some(format!("{field}[{at}].except[{n}]: {except} leaves nothing of {net}"));
            }
            if !net.contains(&except) {
                return Some(format!("{field}[{at}].except[{n}]: {except} is not within {net}"));
            }
        }
    }
    None
}

impl AuthorizationPolicy {
    /// What is wrong with it, whatever else there is: the field and the reason. It then allows nobody.
    pub fn flaw(&self) -> Option<String> {
        let target = &self.spec.target_ref;
        let local = &self.metadata.namespace;
        if target.is("", "Namespace") {
            if target.name != *local {
                return Some(format!(
                    "spec.targetRef.name: a Namespace as target must be the policy's own, {local:?}"
                ));
            }
        } else if ![
            (POLICY_GROUP, "Server"),
            (POLICY_GROUP, "HTTPRoute"),
            (GATEWAY_GROUP, "HTTPRoute"),
            (GATEWAY_GROUP, "GRPCRoute"),
        ]
        .iter()
        .any(|(group, kind)| target.is(group, kind))
        {
            return Some(format!(
                "spec.targetRef: {} of group {:?} is no Server, Namespace, HTTPRoute or GRPCRoute",
                target.kind, target.group
            ));
        }
        if target.resolve(local).namespace != *local {
            return Some(
                "spec.targetRef.namespace: a target must be in the policy's own namespace".to_owned(),
            );
        }
        let mut networks = 0;
        let mut identities = 0;
        for (at, reference) in self.spec.required_authentication_refs.iter().enumerate() {
            let field = format!("spec.requiredAuthenticationRefs[{at}]");
            let count = if reference.is(POLICY_GROUP, "NetworkAuthentication") {
                &mut networks
            } else if reference.is(POLICY_GROUP, "MeshTLSAuthentication")
                || reference.is("", "ServiceAccount")
            {
                &mut identities
            } else {
                return Some(format!(
                    "{field}: {} of group {:?} is no MeshTLSAuthentication, NetworkAuthentication or ServiceAccount",
                    reference.kind, reference.group
                ));
            };
            *count += 1;
            if *count > 1 {
                return Some(format!(
                    "{field}: there may be one NetworkAuthentication, and one MeshTLSAuthentication or ServiceAccount"
                ));
            }
        }
        None
    }
}

impl MeshTlsAuthentication {
    /// What is wrong with it, if anything. What can be read of it holds.
    pub fn flaw(&self) -> Option<String> {
        if let Some(flaw) = identity_flaw("spec.identities", &self.spec.identities) {
            return Some(flaw);
        }
        for (at, reference) in self.spec.identity_refs.iter().enumerate() {
            let field = format!("spec.identityRefs[{at}]");
            if reference.is("", "Namespace") {
                if reference.namespace.is_some() {
                    return Some(format!("{field}.namespace: a Namespace is in none"));
                }
            } else if !reference.is("", "ServiceAccount") {
                return Some(format!(
                    "{field}: {} of group {:?} is no ServiceAccount or Namespace",
                    reference.kind, reference.group
                ));
            }
        }
        let nobody = self.spec.identities.is_empty() && self.spec.identity_refs.is_empty();
        nobody.then(|| "spec: it names nobody; give identities or identityRefs".to_owned())
    }
}

pub(super) fn identity_flaw(field: &str, texts: &[String]) -> Option<String> {
    let bad = texts.iter().position(|text| identity_pattern(text).is_none())?;
    Some(format!("{field}[{bad}]: {:?} is no DNS name, *.SUFFIX, * or SPIFFE id", texts[bad]))
}

impl NetworkAuthentication {
    /// What is wrong with it, if anything.
    pub fn flaw(&self) -> Option<String> {
        if self.spec.networks.is_empty() {
            return Some("spec.networks: it needs at least one".to_owned());
        }
        network_flaw("spec.networks", &self.spec.networks)
    }

    pub fn networks(&self) -> Vec<Network> {
        self.spec.networks.iter().map(NetworkMatch::network).collect()
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
        let of_kind = |kind: &'static str| {
            self.spec.identity_refs.iter().filter(move |reference| reference.is("", kind))
        };
        let accounts = of_kind("ServiceAccount").map(|r| r.resolve(&self.metadata.namespace));
        let namespaces = of_kind("Namespace").map(|r| r.name.as_str());
        identities(&self.spec.identities, accounts, namespaces, domain)
    }
}

/// Callers by their identities: as such, by ServiceAccount, and all those of a namespace.
pub(super) fn identities<'n>(
    texts: &[String],
    accounts: impl IntoIterator<Item = ObjectName>,
    namespaces: impl IntoIterator<Item = &'n str>,
    domain: IdentityDomain<'_>,
) -> Authn {
    let mut exact = BTreeSet::new();
    let mut suffixes = Vec::new();
    for text in texts {
        match identity_pattern(text) {
            Some(Pattern::Exact(id)) => {
                exact.insert(id);
            }
            Some(Pattern::Suffix(suffix)) => suffixes.push(suffix),
            None => {}
        }
    }
    exact.extend(accounts.into_iter().filter_map(|a| domain.service_account(&a.namespace, &a.name)));
    suffixes.extend(namespaces.into_iter().map(|namespace| domain.namespace(namespace)));
    Authn::Identities { exact, suffixes }
}

/// An identity as policies write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    Exact(Identity),
    Suffix(Suffix),
}

/// `None`: neither a DNS name, with or without a star in front, nor a SPIFFE id.
pub fn identity_pattern(text: &str) -> Option<Pattern> {
    match text.strip_prefix('*') {
        Some("") => Some(Pattern::Suffix(Suffix(String::new()))),
        Some(rest) => rest
            .strip_prefix('.')
            .filter(|suffix| Identity::parse(suffix).is_ok())
            .map(|suffix| Pattern::Suffix(Suffix(suffix.to_ascii_lowercase()))),
        None => Identity::parse(text).ok().map(Pattern::Exact),
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
