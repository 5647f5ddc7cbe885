//! From AuthorizationPolicies, and from the policies that need no object, to model authorizations.

use crate::{
    config::{ControllerConfig, all_networks},
    index::reader::Reader,
};
use std::sync::Arc;
use weft_kube::{
    kind::Kind,
    policy::{
        access::Access,
        authorization::{AuthorizationPolicy, service_account_authn},
        reference::{ObjectRef, POLICY_GROUP},
        server::Server,
        server_authorization::ServerAuthorization,
    },
};
use weft_model::{
    inbound::{Authn, Authorization, Network, Suffix},
    meta::{Meta, Resource},
};

/// The AuthorizationPolicies of a namespace whose target `wanted` accepts, oldest first. One that refers to something
/// that does not exist allows nobody.
pub fn targeting(
    reader: &Reader<'_>,
    config: &ControllerConfig,
    namespace: &str,
    wanted: impl Fn(&ObjectRef) -> bool,
) -> Vec<Authorization> {
    let mut policies: Vec<_> =
        reader.authorizations(namespace).filter(|p| wanted(&p.spec.target_ref)).collect();
    policies.sort_by_key(|p| p.metadata.seniority());
    policies.into_iter().filter_map(|p| authorization(reader, config, p)).collect()
}

fn authorization(
    reader: &Reader<'_>,
    config: &ControllerConfig,
    policy: &AuthorizationPolicy,
) -> Option<Authorization> {
    let (networks, authn) = required(reader, config, policy).ok()?;
    Some(Authorization {
        meta: Arc::new(Meta::Resource(Resource {
            group: AuthorizationPolicy::GROUP.to_owned(),
            kind: AuthorizationPolicy::KIND.to_owned(),
            namespace: policy.metadata.namespace.clone(),
            name: policy.metadata.name.clone(),
            ..Resource::default()
        })),
        networks: networks.unwrap_or_else(everywhere),
        authn: authn.unwrap_or(Authn::Unauthenticated),
    })
}

/// What a caller must be, or why that cannot be said: then nobody is allowed.
pub fn required(
    reader: &Reader<'_>,
    config: &ControllerConfig,
    policy: &AuthorizationPolicy,
) -> Result<(Option<Vec<Network>>, Option<Authn>), String> {
    if let Some(flaw) = policy.flaw() {
        return Err(flaw);
    }
    let local = &policy.metadata.namespace;
    let mut networks = None;
    let mut authn = None;
    // All must hold. There is one of each sort: a second one would be a flaw.
    for (at, reference) in policy.spec.required_authentication_refs.iter().enumerate() {
        let name = reference.resolve(local);
        let missing =
            |kind: &str| format!("spec.requiredAuthenticationRefs[{at}]: {kind} {name} does not exist");
        if reference.is(POLICY_GROUP, "NetworkAuthentication") {
            let found = reader.network(&name).ok_or_else(|| missing("NetworkAuthentication"))?;
            networks = Some(found.networks());
        } else if reference.is(POLICY_GROUP, "MeshTLSAuthentication") {
            let found = reader.mesh_tls(&name).ok_or_else(|| missing("MeshTLSAuthentication"))?;
            authn = Some(found.authn(config.identities()));
        } else {
            authn = Some(service_account_authn(reference, local, config.identities()));
        }
    }
    Ok((networks, authn))
}

/// The ServerAuthorizations that name a Server, oldest first. One that cannot be read allows nobody.
pub fn by_server_authorizations(
    reader: &Reader<'_>,
    config: &ControllerConfig,
    server: &Server,
) -> Vec<Authorization> {
    let namespace = &server.metadata.namespace;
    let mut all: Vec<_> = reader.server_authorizations(namespace).filter(|a| a.names(server)).collect();
    all.sort_by_key(|a| a.metadata.seniority());
    let authorization = |object: &Arc<ServerAuthorization>| {
        Some(Authorization {
            meta: Arc::new(Meta::Resource(Resource {
                group: ServerAuthorization::GROUP.to_owned(),
                kind: ServerAuthorization::KIND.to_owned(),
                namespace: namespace.clone(),
                name: object.metadata.name.clone(),
                ..Resource::default()
            })),
            networks: object.networks().unwrap_or_else(|| networks(&config.cluster_networks)),
            authn: object.authn(config.identities()).ok()?,
        })
    };
    all.into_iter().filter_map(authorization).collect()
}

/// What a default policy or a Server's `accessPolicy` allows. `audit` is a property of the whole policy instead.
pub fn of_access(config: &ControllerConfig, access: Access) -> Option<Authorization> {
    let Access::Allow { authenticated, cluster_only } = access else { return None };
    Some(Authorization {
        meta: Arc::new(Meta::default_named(access.as_str())),
        networks: if cluster_only { networks(&config.cluster_networks) } else { everywhere() },
        authn: match authenticated {
            true => any_identity(),
            false => Authn::Unauthenticated,
        },
    })
}

fn any_identity() -> Authn {
    Authn::Identities { exact: Default::default(), suffixes: vec![Suffix(String::new())] }
}

pub fn networks(nets: &[ipnet::IpNet]) -> Vec<Network> {
    nets.iter().map(|net| Network { net: *net, except: Vec::new() }).collect()
}

fn everywhere() -> Vec<Network> {
    networks(&all_networks())
}
