//! Do the policies say what somebody meant?

use super::super::{
    Category, Check, Findings, Reply,
    facts::{Facts, Pod, Read},
};
use std::collections::{BTreeMap, BTreeSet};
use weft_kube::{
    core::service::IntOrString,
    meta::ObjectName,
    policy::{
        reference::{GATEWAY_GROUP, ObjectRef, POLICY_GROUP},
        server::Server,
    },
};

pub(in super::super) const POLICY: Category = Category {
    name: "weft-policy",
    checks: &[
        Check::warning("weft-policy-overlap", "no port is selected by several Servers", overlaps).doc(
            "Two Servers select the same port of the same pod. The older one decides, and the other says nothing there: a policy that looks to be in force is not.",
            "Narrow the selectors, or delete the one that is not meant. `kubectl describe server` of either says which decides.",
        ),
        Check::warning("weft-policy-selects-nothing", "every Server selects a port", selects_nothing).doc(
            "A Server selects no pod, or pods without such a port: a label or the name of a port is misspelt, or the workload is gone. Ports it was meant for have the default policy.",
            "Compare `podSelector` with `kubectl get pods --show-labels`, and `port` with the containers' ports.",
        ),
        Check::warning("weft-policy-dangling", "authorizations name what exists", dangling).doc(
            "An authorization names a Server, route, authentication or account that is not there: it allows nobody, or nobody whom it was meant for.",
            "Correct the name or the namespace of the reference, or create what it names.",
        ),
        Check::warning("weft-policy-invalid", "policies can be read", invalid).doc(
            "A policy has a field that cannot be read or contradicts another: what it is about is refused rather than allowed.",
            "Correct the field that is named. The policy validator refuses such objects when they are written: if it did not, it was not asked (see the webhooks' checks).",
        ),
    ],
};

/// The port of a pod that a Server is about.
fn port_of(server: &Server, pod: &Pod) -> Option<u16> {
    let declared =
        |port: u16| pod.object.all_containers().flat_map(|c| &c.ports).any(|p| p.container_port == port);
    match &server.spec.port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => match name.parse() {
            Ok(number) => Some(number),
            Err(_) => pod.object.named_port(name).filter(|port| declared(*port)),
        },
    }
}

/// Servers of the namespaces that were asked for.
fn servers(facts: &Facts) -> Read<impl Iterator<Item = &Server>> {
    let only = facts.asked.namespace.as_deref();
    let all = facts.policies.servers.as_ref()?.iter();
    Ok(all.filter(move |server| only.is_none_or(|only| server.metadata.namespace == only)))
}

fn selected<'f>(facts: &'f Facts, server: &'f Server) -> Read<impl Iterator<Item = (&'f Pod, u16)>> {
    let pods = facts.pods.as_ref()?.iter();
    Ok(pods.filter_map(move |pod| {
        let meta = &pod.object.metadata;
        let meant = meta.namespace == server.metadata.namespace
            && !pod.object.is_finished()
            && server.selects_pod(&meta.labels);
        Some((pod, port_of(server, pod).filter(|_| meant)?))
    }))
}

fn overlaps(facts: &Facts) -> Reply {
    let mut by_port: BTreeMap<(ObjectName, u16), Vec<&Server>> = BTreeMap::new();
    for server in servers(facts)? {
        for (pod, port) in selected(facts, server)? {
            by_port.entry((pod.name(), port)).or_default().push(server);
        }
    }
    // One line for each pair of Servers, however many pods they share.
    let mut pairs: BTreeMap<(ObjectName, ObjectName), (u16, BTreeSet<ObjectName>)> = BTreeMap::new();
    for ((pod, port), mut claimants) in by_port.into_iter().filter(|(_, servers)| servers.len() > 1) {
        claimants.sort_by(|a, b| a.metadata.seniority().cmp(&b.metadata.seniority()));
        let wins = claimants[0].metadata.key();
        for loser in &claimants[1..] {
            let pair = pairs.entry((wins.clone(), loser.metadata.key())).or_insert((port, BTreeSet::new()));
            pair.1.insert(pod.clone());
        }
    }
    let told = pairs.into_iter().map(|((wins, loses), (port, pods))| {
        let first = pods.first().map(ToString::to_string).unwrap_or_default();
        let more = if pods.len() > 1 { format!(" and {} more", pods.len() - 1) } else { String::new() };
        format!("port {port} of {first}{more}: Server {wins} decides, being older; Server {loses} does not")
    });
    told.collect::<Findings>().reply("selected more than once:")
}

fn selects_nothing(facts: &Facts) -> Reply {
    let mut found = Findings::default();
    for server in servers(facts)?.filter(|server| server.spec.pod_selector.is_some()) {
        if selected(facts, server)?.next().is_none() {
            let labels = facts.pods.as_ref()?.iter().any(|pod| {
                let meta = &pod.object.metadata;
                meta.namespace == server.metadata.namespace && server.selects_pod(&meta.labels)
            });
            let why = match (&server.spec.port, labels) {
                (IntOrString::String(name), true) => format!("its pods have no port called {name:?}"),
                _ => "no pod has such labels".to_owned(),
            };
            found.problem(format!("Server {}: {why}", server.metadata.key()));
        }
    }
    found.reply("select nothing:")
}

fn dangling(facts: &Facts) -> Reply {
    let policies = &facts.policies;
    let servers: BTreeSet<ObjectName> = policies.servers.as_ref()?.iter().map(|s| s.metadata.key()).collect();
    let mesh_tls: BTreeSet<ObjectName> =
        policies.mesh_tls.as_ref()?.iter().map(|s| s.metadata.key()).collect();
    let networks: BTreeSet<ObjectName> =
        policies.networks.as_ref()?.iter().map(|s| s.metadata.key()).collect();
    let (routes, accounts) = (policies.routes.as_ref()?, policies.accounts.as_ref()?);
    let namespaces = facts.namespaces.as_ref()?;
    let exists = |reference: &ObjectRef, local: &str| {
        let name = reference.resolve(local);
        let route = |kind: &str| routes.contains(&(kind.to_owned(), name.clone()));
        if reference.is(POLICY_GROUP, "Server") {
            servers.contains(&name)
        } else if reference.is(POLICY_GROUP, "MeshTLSAuthentication") {
            mesh_tls.contains(&name)
        } else if reference.is(POLICY_GROUP, "NetworkAuthentication") {
            networks.contains(&name)
        } else if reference.is("", "ServiceAccount") {
            accounts.contains(&name)
        } else if reference.is("", "Namespace") {
            namespaces.iter().any(|namespace| namespace.name == name.name)
        } else if reference.is(POLICY_GROUP, "HTTPRoute") || reference.is(GATEWAY_GROUP, "HTTPRoute") {
            route("HTTPRoute")
        } else if reference.is(GATEWAY_GROUP, "GRPCRoute") {
            route("GRPCRoute")
        } else {
            // What it is, another check says.
            true
        }
    };
    let is_asked = |namespace: &str| facts.asked.namespace.as_deref().is_none_or(|only| only == namespace);
    let mut found = Findings::default();
    let mut look = |kind: &str, owner: &ObjectName, references: &mut dyn Iterator<Item = &ObjectRef>| {
        for reference in references.filter(|reference| !exists(reference, &owner.namespace)) {
            let (what, name) = (&reference.kind, reference.resolve(&owner.namespace));
            found.problem(format!("{kind} {owner}: there is no {what} {name}"));
        }
    };
    for policy in policies.authorization_policies.as_ref()?.iter().filter(|p| is_asked(&p.metadata.namespace))
    {
        let references =
            std::iter::once(&policy.spec.target_ref).chain(&policy.spec.required_authentication_refs);
        look("AuthorizationPolicy", &policy.metadata.key(), &mut references.into_iter());
    }
    for authentication in policies.mesh_tls.as_ref()?.iter().filter(|a| is_asked(&a.metadata.namespace)) {
        look(
            "MeshTLSAuthentication",
            &authentication.metadata.key(),
            &mut authentication.spec.identity_refs.iter(),
        );
    }
    for authorization in
        policies.server_authorizations.as_ref()?.iter().filter(|a| is_asked(&a.metadata.namespace))
    {
        let own = &authorization.metadata.namespace;
        let mut of = policies.servers.as_ref()?.iter().filter(|server| server.metadata.namespace == *own);
        if !of.any(|server| authorization.names(server)) {
            found
                .problem(format!("ServerAuthorization {}: it names no Server", authorization.metadata.key()));
        }
    }
    found.reply("names of what is not there:")
}

fn invalid(facts: &Facts) -> Reply {
    let policies = &facts.policies;
    let mut found = Findings::default();
    let mut look = |kind: &str, name: ObjectName, flaw: Option<String>| {
        found.problems.extend(flaw.map(|flaw| format!("{kind} {name}: {flaw}")));
    };
    for server in policies.servers.as_ref()? {
        look("Server", server.metadata.key(), server.flaw());
    }
    for policy in policies.authorization_policies.as_ref()? {
        look("AuthorizationPolicy", policy.metadata.key(), policy.flaw());
    }
    for authentication in policies.mesh_tls.as_ref()? {
        look("MeshTLSAuthentication", authentication.metadata.key(), authentication.flaw());
    }
    for authentication in policies.networks.as_ref()? {
        look("NetworkAuthentication", authentication.metadata.key(), authentication.flaw());
    }
    found.problems.extend(policies.unreadable.iter().cloned());
    found.reply("not to be read:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{
        Answer,
        facts::healthy::{healthy, object},
    };
    use serde_json::{Value, json};

    fn bad(reply: Reply) -> String {
        match reply {
            Ok(Answer::Bad(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    fn server(name: &str, day: u8, app: &str, port: Value) -> Server {
        object(
            json!({"metadata": {"name": name, "namespace": "shop", "creationTimestamp": format!("2026-01-{day:02}T00:00:00Z")},
            "spec": {"podSelector": {"matchLabels": {"app": app}}, "port": port}}),
        )
    }

    #[test]
    fn of_two_servers_the_older_decides() {
        let mut facts = healthy();
        facts.policies.servers = Ok(vec![
            server("new", 2, "store", json!("http")),
            server("old", 1, "store", json!(8080)),
            server("other-port", 1, "store", json!(9090)),
        ]);
        let said = bad(overlaps(&facts));
        assert!(
            said.contains(
                "port 8080 of shop/store-1: Server shop/old decides, being older; Server shop/new does not"
            ),
            "{said}"
        );
        assert_eq!(said.lines().count(), 2);
        facts.policies.servers.as_mut().unwrap().remove(0);
        assert_eq!(overlaps(&facts), Ok(Answer::Good));
    }

    #[test]
    fn servers_that_select_nothing_say_why() {
        let mut facts = healthy();
        facts.policies.servers = Ok(vec![
            server("a", 1, "stroe", json!(8080)),
            server("b", 1, "store", json!("htpp")),
            server("c", 1, "store", json!(8080)),
        ]);
        let said = bad(selects_nothing(&facts));
        assert!(said.contains("Server shop/a: no pod has such labels"), "{said}");
        assert!(said.contains("Server shop/b: its pods have no port called \"htpp\""), "{said}");
        assert!(!said.contains("shop/c"), "{said}");
        facts.asked.namespace = Some("elsewhere".into());
        assert_eq!(selects_nothing(&facts), Ok(Answer::Good));
    }

    #[test]
    fn references_that_lead_nowhere() {
        let mut facts = healthy();
        facts.policies.servers = Ok(vec![server("store", 1, "store", json!(8080))]);
        facts.policies.authorization_policies = Ok(vec![
            object(json!({"metadata": {"name": "fine", "namespace": "shop"}, "spec": {
                "targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": "store"},
                "requiredAuthenticationRefs": [{"kind": "ServiceAccount", "name": "web"}]}})),
            object(json!({"metadata": {"name": "bad", "namespace": "shop"}, "spec": {
                "targetRef": {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "gone"},
                "requiredAuthenticationRefs": [{"kind": "ServiceAccount", "name": "web", "namespace": "ohter"}]}})),
        ]);
        facts.policies.server_authorizations =
            Ok(vec![object(json!({"metadata": {"name": "nobody", "namespace": "shop"},
            "spec": {"server": {"name": "stroe"}, "client": {"unauthenticated": true}}}))]);
        facts.policies.mesh_tls = Ok(vec![object(json!({"metadata": {"name": "ids", "namespace": "shop"},
            "spec": {"identityRefs": [{"kind": "Namespace", "name": "nowhere"}]}}))]);
        let said = bad(dangling(&facts));
        for wanted in [
            "AuthorizationPolicy shop/bad: there is no HTTPRoute shop/gone",
            "AuthorizationPolicy shop/bad: there is no ServiceAccount ohter/web",
            "ServerAuthorization shop/nobody: it names no Server",
            "MeshTLSAuthentication shop/ids: there is no Namespace",
        ] {
            assert!(said.contains(wanted), "{said}");
        }
        assert!(!said.contains("shop/fine"), "{said}");
    }

    #[test]
    fn flaws_are_told_with_the_field() {
        let mut facts = healthy();
        let mut flawed = server("a", 1, "store", json!(1));
        flawed.spec.access_policy = Some("everybody".into());
        facts.policies.servers = Ok(vec![flawed]);
        facts.policies.unreadable = vec!["Server shop/b: missing field `port`".into()];
        let said = bad(invalid(&facts));
        assert!(
            said.contains("Server shop/a: spec.accessPolicy") && said.contains("missing field `port`"),
            "{said}"
        );
    }
}
