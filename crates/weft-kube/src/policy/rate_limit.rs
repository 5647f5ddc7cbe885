//! `HTTPLocalRateLimitPolicy`.

use super::{authorization::IdentityDomain, reference::ObjectRef, status::Conditions};
use crate::{
    kind::Kind,
    meta::{Meta, nullable},
};
use serde::Deserialize;
use std::sync::Arc;
use weft_model::{inbound::RateLimit, meta};

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct HttpLocalRateLimitPolicy {
    pub metadata: Meta,
    pub spec: RateLimitSpec,
    #[serde(default, deserialize_with = "nullable")]
    pub status: Conditions,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitSpec {
    pub target_ref: ObjectRef,
    pub total: Option<Limit>,
    pub identity: Option<Limit>,
    #[serde(default, deserialize_with = "nullable")]
    pub overrides: Vec<Override>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    pub requests_per_second: u32,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Override {
    pub requests_per_second: u32,
    #[serde(default, deserialize_with = "nullable")]
    pub client_refs: Vec<ObjectRef>,
}

impl Kind for HttpLocalRateLimitPolicy {
    const GROUP: &'static str = "policy.linkerd.io";
    const VERSION: &'static str = "v1alpha1";
    const KIND: &'static str = "HTTPLocalRateLimitPolicy";
    const PLURAL: &'static str = "httplocalratelimitpolicies";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl HttpLocalRateLimitPolicy {
    pub fn limit(&self, domain: IdentityDomain<'_>) -> RateLimit {
        let local = &self.metadata.namespace;
        RateLimit {
            meta: Arc::new(meta::Meta::Resource(meta::Resource {
                group: Self::GROUP.into(),
                kind: Self::KIND.into(),
                namespace: local.clone(),
                name: self.metadata.name.clone(),
                ..Default::default()
            })),
            total: self.spec.total.map(|l| l.requests_per_second),
            per_identity: self.spec.identity.map(|l| l.requests_per_second),
            overrides: self
                .spec
                .overrides
                .iter()
                .map(|o| {
                    let clients = o
                        .client_refs
                        .iter()
                        .filter(|r| r.is("", "ServiceAccount"))
                        .filter_map(|r| {
                            let account = r.resolve(local);
                            domain.service_account(&account.namespace, &account.name)
                        })
                        .collect();
                    (clients, o.requests_per_second)
                })
                .collect(),
        }
    }

    /// What is wrong with it, whatever else there is: the field and the reason.
    pub fn flaw(&self) -> Option<String> {
        let spec = &self.spec;
        let local = &self.metadata.namespace;
        if !spec.target_ref.is(Self::GROUP, "Server") || spec.target_ref.resolve(local).namespace != *local {
            return Some("spec.targetRef: the target must be a Server of the same namespace".to_owned());
        }
        if spec.total.is_none() && spec.identity.is_none() && spec.overrides.is_empty() {
            return Some("spec: it limits nothing; give total, identity or overrides".to_owned());
        }
        let total = spec.total.map(|l| l.requests_per_second);
        let rates = [
            ("spec.total".to_owned(), total),
            ("spec.identity".to_owned(), spec.identity.map(|l| l.requests_per_second)),
        ];
        let overrides = spec.overrides.iter().enumerate();
        let overrides =
            overrides.map(|(at, o)| (format!("spec.overrides[{at}]"), Some(o.requests_per_second)));
        for (field, rate) in rates.into_iter().chain(overrides) {
            let Some(rate) = rate else { continue };
            if rate == 0 {
                return Some(format!(
                    "{field}.requestsPerSecond: 0 would refuse everything; use a Server's accessPolicy for that"
                ));
            }
            if total.is_some_and(|total| rate > total) {
                return Some(format!(
                    "{field}.requestsPerSecond: {rate} is above spec.total, which is reached first"
                ));
            }
        }
        for (at, limit) in spec.overrides.iter().enumerate() {
            if let Some(n) = limit.client_refs.iter().position(|r| !r.is("", "ServiceAccount")) {
                return Some(format!(
                    "spec.overrides[{at}].clientRefs[{n}]: a client must be a ServiceAccount"
                ));
            }
        }
        None
    }
}
