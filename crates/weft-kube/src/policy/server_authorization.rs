//! ServerAuthorization: allows callers of Servers, chosen by name or labels.

use super::{
    authorization::{IdentityDomain, NetworkMatch, identities, identity_flaw, network_flaw},
    reference::POLICY_GROUP,
    server::Server,
    status::Conditions,
};
use crate::{
    kind::Kind,
    meta::{Meta, ObjectName, nullable},
    selector::LabelSelector,
};
use serde::Deserialize;
use weft_model::inbound::{Authn, Network};

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ServerAuthorization {
    pub metadata: Meta,
    pub spec: ServerAuthorizationSpec,
    #[serde(default, deserialize_with = "nullable")]
    pub status: Conditions,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ServerAuthorizationSpec {
    pub server: ServerChoice,
    pub client: Client,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServerChoice {
    pub name: Option<String>,
    pub selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Client {
    #[serde(deserialize_with = "nullable")]
    pub networks: Vec<NetworkMatch>,
    #[serde(deserialize_with = "nullable")]
    pub unauthenticated: bool,
    #[serde(rename = "meshTLS")]
    pub mesh_tls: Option<MeshTlsClients>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MeshTlsClients {
    #[serde(rename = "unauthenticatedTLS", deserialize_with = "nullable")]
    pub unauthenticated_tls: bool,
    #[serde(deserialize_with = "nullable")]
    pub identities: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub service_accounts: Vec<Account>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Account {
    pub name: String,
    pub namespace: Option<String>,
}

impl Kind for ServerAuthorization {
    const GROUP: &'static str = POLICY_GROUP;
    const VERSION: &'static str = "v1beta1";
    const KIND: &'static str = "ServerAuthorization";
    const PLURAL: &'static str = "serverauthorizations";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl ServerAuthorization {
    /// Whether it is about this Server of its namespace.
    pub fn names(&self, server: &Server) -> bool {
        match (&self.spec.server.name, &self.spec.server.selector) {
            (Some(name), None) => *name == server.metadata.name,
            (None, Some(selector)) => selector.selects(&server.metadata.labels),
            // Which of them is meant cannot be known.
            (Some(_), Some(_)) | (None, None) => false,
        }
    }

    /// `None`: the cluster's networks.
    pub fn networks(&self) -> Option<Vec<Network>> {
        let all: Vec<Network> = self.spec.client.networks.iter().map(NetworkMatch::network).collect();
        (!all.is_empty()).then_some(all)
    }

    /// Who is allowed, or why it cannot be said: then nobody is.
    pub fn authn(&self, domain: IdentityDomain<'_>) -> Result<Authn, String> {
        let client = &self.spec.client;
        let Some(tls) = &client.mesh_tls else {
            return match client.unauthenticated {
                true => Ok(Authn::Unauthenticated),
                false => Err("spec.client: neither unauthenticated nor meshTLS is given".to_owned()),
            };
        };
        if client.unauthenticated {
            return Err("spec.client: unauthenticated and meshTLS exclude each other".to_owned());
        }
        let names_somebody = !tls.identities.is_empty() || !tls.service_accounts.is_empty();
        match (tls.unauthenticated_tls, names_somebody) {
            (true, true) => Err("spec.client.meshTLS: unauthenticatedTLS excludes identities".to_owned()),
            (true, false) => Ok(Authn::AnyTls),
            (false, false) => Err("spec.client.meshTLS: it names nobody".to_owned()),
            (false, true) => {
                let local = &self.metadata.namespace;
                let accounts = tls
                    .service_accounts
                    .iter()
                    .map(|a| ObjectName::new(a.namespace.as_deref().unwrap_or(local), &a.name));
                Ok(identities(&tls.identities, accounts, [], domain))
            }
        }
    }

    /// What is wrong with it, whatever else there is. It then allows nobody.
    pub fn flaw(&self, domain: IdentityDomain<'_>) -> Option<String> {
        let choice = &self.spec.server;
        if choice.name.is_some() == choice.selector.is_some() {
            return Some("spec.server: give either name or selector".to_owned());
        }
        let identities =
            self.spec.client.mesh_tls.as_ref().map(|tls| tls.identities.as_slice()).unwrap_or_default();
        self.authn(domain)
            .err()
            .or_else(|| identity_flaw("spec.client.meshTLS.identities", identities))
            .or_else(|| network_flaw("spec.client.networks", &self.spec.client.networks))
    }
}
