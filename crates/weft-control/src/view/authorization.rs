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
    let local = &policy.metadata.namespace;
    let mut networks: Option<Vec<Network>> = None;
    let mut authn: Option<Authn> = None;
    for reference in &policy.spec.required_authentication_refs {
        // All must hold. Linkerd allows one of each sort; a second one would have to narrow the first, so refuse it.
        let replaced = if reference.is(POLICY_GROUP, "NetworkAuthentication") {
            networks.replace(reader.network(&reference.resolve(local))?.networks()).is_some()
        } else if reference.is(POLICY_GROUP, "MeshTLSAuthentication") {
            let found = reader.mesh_tls(&reference.resolve(local))?;
            authn.replace(found.authn(config.identities())).is_some()
        } else if reference.is("", "ServiceAccount") {
            authn.replace(service_account_authn(reference, local, config.identities())).is_some()
        } else {
            return None;
        };
        if replaced {
            return None;
        }
    }
    Some(Authorization {
        meta: Arc::new(Meta::Resource(Resource {
            group: AuthorizationPolicy::GROUP.to_owned(),
            kind: AuthorizationPolicy::KIND.to_owned(),
            namespace: local.clone(),
            name: policy.metadata.name.clone(),
            ..Resource::default()
        })),
        networks: networks.unwrap_or_else(everywhere),
        authn: authn.unwrap_or(Authn::Unauthenticated),
    })
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
