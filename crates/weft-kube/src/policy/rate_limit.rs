//! `HTTPLocalRateLimitPolicy`.

use super::{authorization::IdentityDomain, reference::ObjectRef};
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
}
