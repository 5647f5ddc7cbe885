//! Asks everybody: the API, the controller, every proxy. In parallel and bounded, each question with a deadline. Nobody's silence
//! stops the rest: it becomes [`Unread`].

mod ask;
mod objects;
mod plane;
mod speakers;

use super::{
    answers::pre,
    facts::{Asked, Cni, ControlPlane, Facts, Policies, Read, Right, Unread},
    names::ENGINES,
    table::Scope,
};
use ask::Asker;
use futures_util::{StreamExt as _, stream};
use kube::Client;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::{Duration, SystemTime},
};
use weft_kube::{kind::Kind, meta::ObjectName};

/// How far it has come, for whoever waits.
#[derive(Debug, Default)]
pub struct Progress {
    asked: AtomicUsize,
    answered: AtomicUsize,
}

impl Progress {
    /// Questions that were asked, and those of them that were answered or given up.
    pub fn so_far(&self) -> (usize, usize) {
        (self.asked.load(Relaxed), self.answered.load(Relaxed))
    }
}

const NO_CLIENT: &str = "there is no client for an API";
const NO_ANSWER: &str = "the API does not answer";
const OUT_OF_SCOPE: &str = "it was not asked about";

/// Everything that the checks of a scope look at.
pub async fn gather(
    client: Result<Client, String>,
    asked: Asked,
    scope: Scope,
    progress: &Progress,
) -> Facts {
    let client = match client {
        Ok(client) => client,
        Err(why) => {
            let mut facts = nothing(asked, &Unread::NotAsked(NO_CLIENT));
            facts.client = Err(why);
            return facts;
        }
    };
    let ask = Asker::new(client, progress);
    // 1. Is anybody there? If not, the rest would only wait for its deadlines.
    let (version, clock) = match ask.timed("/version").await {
        Ok((body, clock)) => (version_of(&body), clock),
        Err(unread) => {
            let mut facts = nothing(asked, &Unread::NotAsked(NO_ANSWER));
            facts.kubernetes = Err(unread);
            return facts;
        }
    };
    let mut facts = nothing(asked, &Unread::NotAsked(OUT_OF_SCOPE));
    facts.kubernetes = version;
    facts.api_clock =
        clock.ok_or_else(|| Unread::Silent("the API server did not say what time it is".into()));
    match scope {
        Scope::Pre => {
            facts.namespaces = ask.list("/api/v1/namespaces").await.map(objects::metas);
            facts.rights = rights(&ask, &facts.asked.control_namespace).await;
        }
        Scope::Definitions => facts.definitions = ask.list(DEFINITIONS).await.map(|all| names(&all)),
        Scope::ControlPlane | Scope::Proxies => everything(&ask, &mut facts).await,
    }
    facts
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

async fn everything(ask: &Asker<'_>, facts: &mut Facts) {
    // 2. What the API has.
    let (plane, policies, basics, cni) = tokio::join!(
        plane::read(ask, &facts.asked),
        policies(ask),
        async {
            tokio::join!(
                ask.list("/api/v1/namespaces"),
                ask.list("/api/v1/nodes"),
                ask.list(DEFINITIONS),
                ask.list("/api/v1/pods"),
                ask.list("/api/v1/services"),
                ask.list("/apis/discovery.k8s.io/v1/endpointslices"),
            )
        },
        cni(ask, &facts.asked.cni_namespace),
    );
    let (namespaces, nodes, definitions, pods, services, slices) = basics;
    facts.plane = plane;
    facts.policies = policies;
    facts.cni = cni;
    facts.namespaces = namespaces.map(objects::metas);
    facts.nodes = nodes.map(|all| all.iter().map(objects::node).collect());
    facts.definitions = definitions.map(|all| names(&all));
    facts.pods = pods.map(|all| all.iter().filter_map(objects::pod).collect());
    facts.services = services.map(|all| objects::typed(all).0);
    facts.slices = slices.map(|all| objects::typed(all).0);
    facts.policies.engines = engines(ask, &facts.definitions).await;
    // 3. What the controller and the proxies say.
    let (controller, proxies) = tokio::join!(speakers::controller(ask, facts), speakers::proxies(ask, facts));
    facts.controller = controller;
    facts.proxies = proxies;
}

/// Nothing is known, for this reason.
fn nothing(asked: Asked, why: &Unread) -> Facts {
    fn no<T>(why: &Unread) -> Read<T> {
        Err(why.clone())
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Facts {
        asked,
        now_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        client: Ok(()),
        kubernetes: no(why),
        api_clock: no(why),
        namespaces: no(why),
        nodes: no(why),
        definitions: no(why),
        plane: ControlPlane {
            config: no(why),
            accounts: no(why),
            cluster_roles: no(why),
            cluster_role_bindings: no(why),
            mutating: no(why),
            validating: no(why),
            workloads: no(why),
            roots: no(why),
            issuer: no(why),
            hooks: [no(why), no(why), no(why)],
        },
        pods: no(why),
        services: no(why),
        slices: no(why),
        policies: Policies {
            servers: no(why),
            server_authorizations: no(why),
            authorization_policies: no(why),
            mesh_tls: no(why),
            networks: no(why),
            routes: no(why),
            accounts: no(why),
            network_policies: no(why),
            unreadable: Vec::new(),
            engines: no(why),
        },
        proxies: BTreeMap::new(),
        controller: None,
        cni: Cni { config_map: no(why), account: no(why), daemon_set: no(why) },
        rights: no(why),
    }
}

fn version_of(body: &[u8]) -> Read<String> {
    let version: Value = serde_json::from_slice(body)
        .map_err(|error| Unread::Silent(format!("/version is not what an API server answers: {error}")))?;
    let text = version["gitVersion"].as_str().unwrap_or_default();
    if text.is_empty() {
        Err(Unread::Silent("/version names no version".into()))
    } else {
        Ok(text.to_owned())
    }
}

fn names(objects: &[Value]) -> BTreeSet<String> {
    objects.iter().filter_map(|object| object["metadata"]["name"].as_str()).map(str::to_owned).collect()
}

/// One kind, with what cannot be read of it.
async fn kind<K: Kind>(ask: &Asker<'_>) -> (Read<Vec<K>>, Vec<String>) {
    match ask.list(&K::path(None)).await.map(objects::typed) {
        Ok((all, unreadable)) => (Ok(all), unreadable),
        Err(unread) => (Err(unread), Vec::new()),
    }
}

async fn policies(ask: &Asker<'_>) -> Policies {
    let (servers, server_authorizations, authorization_policies, mesh_tls, networks, network_policies, rest) =
        tokio::join!(kind(ask), kind(ask), kind(ask), kind(ask), kind(ask), kind(ask), async {
            tokio::join!(routes(ask), ask.list("/api/v1/serviceaccounts"),)
        },);
    let (routes, accounts) = rest;
    let named = |all: Vec<Value>| objects::metas(all).into_iter().map(|meta| meta.key()).collect();
    Policies {
        unreadable: [
            servers.1,
            server_authorizations.1,
            authorization_policies.1,
            mesh_tls.1,
            networks.1,
            network_policies.1,
        ]
        .concat(),
        servers: servers.0,
        server_authorizations: server_authorizations.0,
        authorization_policies: authorization_policies.0,
        mesh_tls: mesh_tls.0,
        networks: networks.0,
        network_policies: network_policies.0,
        routes,
        accounts: accounts.map(named),
        engines: Err(Unread::NotAsked(OUT_OF_SCOPE)),
    }
}

/// Kind and name of every route.
async fn routes(ask: &Asker<'_>) -> Read<BTreeSet<(String, ObjectName)>> {
    const ROUTES: [(&str, &str); 3] = [
        ("HTTPRoute", "/apis/policy.linkerd.io/v1beta3/httproutes"),
        ("HTTPRoute", "/apis/gateway.networking.k8s.io/v1/httproutes"),
        ("GRPCRoute", "/apis/gateway.networking.k8s.io/v1/grpcroutes"),
    ];
    let mut found = BTreeSet::new();
    for (kind, path) in ROUTES {
        let all = objects::metas(ask.list(path).await?);
        found.extend(all.into_iter().map(|meta| (kind.to_owned(), meta.key())));
    }
    Ok(found)
}

async fn engines(ask: &Asker<'_>, definitions: &Read<BTreeSet<String>>) -> Read<Vec<(String, usize)>> {
    let defined = definitions.as_ref()?;
    let mut found = Vec::new();
    for (name, path) in ENGINES.iter().filter(|(name, _)| defined.contains(*name)) {
        found.push(((*name).to_owned(), ask.list(path).await?.len()));
    }
    Ok(found)
}

async fn cni(ask: &Asker<'_>, namespace: &str) -> Cni {
    let path = |rest: &str| format!("/api/v1/namespaces/{namespace}/{rest}");
    let (config_map, account) = (path("configmaps/linkerd-cni-config"), path("serviceaccounts/linkerd-cni"));
    let set = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/linkerd-cni");
    let (config_map, account, set) = tokio::join!(ask.get(&config_map), ask.get(&account), ask.get(&set));
    Cni {
        config_map: config_map.map(|found| found.is_some()),
        account: account.map(|found| found.is_some()),
        daemon_set: set.map(|found| found.as_ref().map(|set| objects::workload("DaemonSet", set))),
    }
}

/// May the user do what an installation does?
async fn rights(ask: &Asker<'_>, namespace: &str) -> Read<Vec<(Right, bool)>> {
    let asked = stream::iter(pre::wanted(namespace)).map(|right| async move {
        let mut attributes = json!({"verb": right.verb, "group": right.group, "resource": right.resource});
        if !right.namespace.is_empty() {
            attributes["namespace"] = right.namespace.clone().into();
        }
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes}});
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = ask.create(path, &review).await?;
        Ok((right, answer["status"]["allowed"].as_bool().unwrap_or(false)))
    });
    asked.buffered(ask::AT_ONCE).collect::<Vec<Read<_>>>().await.into_iter().collect()
}
