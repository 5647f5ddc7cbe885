//! Where authorizations contradict each other, or do not count. Pure.

use super::rows::{PortPolicy, routes};
use serde_json::Value;
use std::collections::BTreeSet;
use weft_model::{
    inbound::{Authn, Authorization, Network, Protocol},
    meta::Meta,
};

/// What is odd about one port.
pub(super) fn of(found: &PortPolicy) -> Vec<String> {
    let (port, policy) = (found.port, &found.policy);
    let mut problems = Vec::new();
    if let [first, others @ ..] = &found.servers[..]
        && !others.is_empty()
    {
        problems.push(format!(
            "port {port} is selected by several Servers: server/{first} is the oldest and decides, {} do nothing there",
            others.iter().map(|name| format!("server/{name}")).collect::<Vec<_>>().join(", ")
        ));
    }
    if let Protocol::Unreadable(why) = &policy.protocol {
        problems.push(format!("port {port} refuses everybody, since its policy cannot be read: {why}"));
    }
    let own = &policy.authorizations;
    let mut any_route = false;
    for route in routes(policy) {
        any_route |= !route.authorizations.is_empty();
        for authorization in &route.authorizations {
            if let Some(wider) = own.iter().find(|other| covers(other, authorization)) {
                problems.push(format!(
                    "{} on {} (port {port}) changes nothing: {} lets in the same clients on every route",
                    authorization.meta, route.meta, wider.meta
                ));
            }
        }
    }
    if own.is_empty() && !any_route && matches!(*policy.meta, Meta::Resource(_)) {
        problems.push(format!("{} lets nobody in on port {port}: no authorization is for it", policy.meta));
    }
    for (at, authorization) in own.iter().enumerate() {
        // Of two that are equal, the second is the idle one.
        let wider = own.iter().enumerate().find(|(other_at, other)| {
            *other_at != at
                && covers(other, authorization)
                && (!covers(authorization, other) || *other_at < at)
        });
        if let Some((_, wider)) = wider {
            problems.push(format!(
                "{} (port {port}) changes nothing: {} lets in the same clients",
                authorization.meta, wider.meta
            ));
        }
    }
    problems
}

/// Whether `wider` lets in everybody whom `other` does.
fn covers(wider: &Authorization, other: &Authorization) -> bool {
    // What is only audited lets in whom nobody else does: it is no reason to do without the others.
    if wider.audits() || other.audits() {
        return false;
    }
    other.networks.iter().all(|network| wider.networks.iter().any(|it| holds(it, network)))
        && accepts_all(&wider.authn, &other.authn)
}

fn holds(wider: &Network, other: &Network) -> bool {
    let excepted = |net: &ipnet::IpNet| other.except.iter().any(|except| except.contains(net));
    wider.net.contains(&other.net)
        && wider.except.iter().all(|except| excepted(except) || !overlap(except, &other.net))
}

/// Networks hold each other or have nothing in common.
fn overlap(a: &ipnet::IpNet, b: &ipnet::IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

fn accepts_all(wider: &Authn, other: &Authn) -> bool {
    match (wider, other) {
        (Authn::Unauthenticated, _) => true,
        (_, Authn::Unauthenticated) => false,
        (Authn::AnyTls, _) => true,
        (_, Authn::AnyTls) => false,
        (Authn::Identities { exact, suffixes }, Authn::Identities { exact: ids, suffixes: ends }) => {
            ids.iter().all(|id| exact.contains(id) || suffixes.iter().any(|suffix| suffix.matches(id)))
                && ends.iter().all(|end| {
                    let end = end.0.trim_start_matches('.');
                    suffixes.iter().any(|suffix| {
                        let suffix = suffix.0.trim_start_matches('.');
                        suffix.is_empty()
                            || end == suffix
                            || end.strip_suffix(suffix).is_some_and(|head| head.ends_with('.'))
                    })
                })
        }
    }
}

/// Objects that are for one of these Servers or routes, or for the whole namespace, and that the controller does not tell proxies of.
pub(super) fn not_in_force(policies: &[PortPolicy], objects: &[Value], namespace: &str) -> Vec<String> {
    let mut in_force = BTreeSet::new();
    let mut servers = BTreeSet::new();
    let mut paths = BTreeSet::new();
    for found in policies {
        in_force.extend(found.policy.authorizations.iter().map(|a| a.meta.to_string()));
        if matches!(*found.policy.meta, Meta::Resource(_)) {
            servers.insert(found.policy.meta.name().to_owned());
        }
        for route in routes(&found.policy) {
            in_force.extend(route.authorizations.iter().map(|a| a.meta.to_string()));
            paths.insert(route.meta.name().to_owned());
        }
    }
    let concerned = |object: &Value| {
        let spec = &object["spec"];
        let target = &spec["targetRef"];
        let name = target["name"].as_str().unwrap_or_default();
        match (object["kind"].as_str(), target["kind"].as_str()) {
            (Some("ServerAuthorization"), _) => {
                spec["server"]["name"].as_str().is_some_and(|name| servers.contains(name))
            }
            (_, Some("Server")) => servers.contains(name),
            (_, Some("Namespace")) => name == namespace && !servers.is_empty(),
            (_, Some("HTTPRoute" | "GRPCRoute")) => paths.contains(name),
            _ => false,
        }
    };
    let mut problems = Vec::new();
    for object in objects.iter().filter(|object| concerned(object)) {
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let title = format!("{}/{namespace}/{name}", kind.to_ascii_lowercase());
        if !in_force.contains(&title) {
            let why = refusal(object)
                .unwrap_or_else(|| "most often an authentication that it requires does not exist".to_owned());
            problems.push(format!("{title} is not in force: {why}"));
        }
    }
    problems
}

/// What the object's own status says against it.
fn refusal(object: &Value) -> Option<String> {
    let conditions = object["status"]["conditions"].as_array()?;
    let bad = conditions.iter().find(|condition| condition["status"] == "False")?;
    let text = |field: &str| bad[field].as_str().filter(|text| !text.is_empty());
    text("message").or(text("reason")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;
    use weft_model::{
        identity::Identity,
        inbound::{HttpPolicy, Route, ServerPolicy, Suffix},
        meta::Resource,
    };

    fn meta(kind: &str, name: &str) -> Arc<Meta> {
        Arc::new(Meta::Resource(Resource {
            kind: kind.into(),
            namespace: "shop".into(),
            name: name.into(),
            ..Resource::default()
        }))
    }

    fn authorization(name: &str, nets: &[&str], authn: Authn) -> Authorization {
        let network = |net: &&str| {
            let (net, except) = net.split_once('-').unwrap_or((net, ""));
            let except = (!except.is_empty()).then(|| except.parse().unwrap());
            Network { net: net.parse().unwrap(), except: except.into_iter().collect() }
        };
        let networks = nets.iter().map(network).collect();
        Authorization { meta: meta("AuthorizationPolicy", name), networks, authn }
    }

    fn ids(exact: &[&str], suffixes: &[&str]) -> Authn {
        Authn::Identities {
            exact: exact.iter().map(|id| Identity::parse(id).unwrap()).collect(),
            suffixes: suffixes.iter().map(|suffix| Suffix((*suffix).to_owned())).collect(),
        }
    }

    fn port(own: Vec<Authorization>, on_route: Vec<Authorization>) -> PortPolicy {
        let route = Route {
            meta: meta("HTTPRoute", "read"),
            hosts: Vec::new(),
            authorizations: on_route,
            rules: Vec::new(),
        };
        let http = HttpPolicy { routes: vec![route], rate_limit: None };
        let policy = ServerPolicy {
            meta: meta("Server", "web"),
            protocol: Protocol::Http1(http),
            authorizations: own,
            audit: false,
        };
        PortPolicy { port: 80, policy, servers: vec!["web".into()] }
    }

    const ALL: &str = "0.0.0.0/0";

    #[test]
    fn one_lets_in_whom_another_does() {
        let of = |nets: &[&str], authn: Authn| authorization("x", nets, authn);
        let table = [
            (of(&[ALL], Authn::Unauthenticated), of(&["10.0.0.0/8"], ids(&["a.b"], &[])), true),
            (of(&["10.0.0.0/8"], Authn::Unauthenticated), of(&[ALL], ids(&["a.b"], &[])), false),
            (of(&[ALL], Authn::AnyTls), of(&[ALL], ids(&[], &[""])), true),
            (of(&[ALL], ids(&[], &[""])), of(&[ALL], Authn::AnyTls), false),
            (of(&[ALL], ids(&["a.b", "c.d"], &[])), of(&[ALL], ids(&["a.b"], &[])), true),
            (of(&[ALL], ids(&[], &["b"])), of(&[ALL], ids(&["a.b"], &["x.b"])), true),
            (of(&[ALL], ids(&[], &["x.b"])), of(&[ALL], ids(&["a.b"], &["b"])), false),
            (of(&["10.0.0.0/8-10.1.0.0/16"], Authn::AnyTls), of(&["10.2.0.0/16"], Authn::AnyTls), true),
            (of(&["10.0.0.0/8-10.1.0.0/16"], Authn::AnyTls), of(&["10.1.2.0/24"], Authn::AnyTls), false),
            (
                of(&["10.0.0.0/8-10.1.0.0/16"], Authn::AnyTls),
                of(&["10.0.0.0/8-10.1.0.0/16"], Authn::AnyTls),
                true,
            ),
        ];
        for (at, (wider, other, covered)) in table.iter().enumerate() {
            assert_eq!(covers(wider, other), *covered, "row {at}");
        }
    }

    #[test]
    fn what_changes_nothing_is_named_once_and_what_does_is_not() {
        let wide = || authorization("everybody", &[ALL], Authn::Unauthenticated);
        let narrow = |name: &str| authorization(name, &[ALL], ids(&["a.b"], &[]));
        assert!(
            of(&port(vec![narrow("a")], vec![wide()])).is_empty(),
            "the route opens what the server does not"
        );
        let found = of(&port(vec![narrow("a"), wide()], vec![narrow("b")]));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("shop/b on httproute/shop/read (port 80) changes nothing"), "{found:?}");
        assert!(found[1].contains("authorizationpolicy/shop/a (port 80) changes nothing"), "{found:?}");
        let twice = of(&port(vec![narrow("a"), narrow("b")], vec![]));
        assert_eq!(twice.len(), 1, "{twice:?}");
        assert!(twice[0].starts_with("authorizationpolicy/shop/b"));
    }

    #[test]
    fn overlapping_servers_and_closed_ones_are_named() {
        let mut closed = port(vec![], vec![]);
        assert_eq!(of(&closed), ["server/shop/web lets nobody in on port 80: no authorization is for it"]);
        closed.servers.push("late".into());
        assert!(
            of(&closed)[0].contains("server/web is the oldest and decides, server/late do nothing there")
        );
    }

    #[test]
    fn what_is_meant_for_it_and_not_told_is_named_with_the_reason() {
        let found = [port(vec![authorization("good", &[ALL], Authn::AnyTls)], vec![])];
        let policy = |name: &str, kind: &str, target: &str, status: Value| {
            json!({"kind": "AuthorizationPolicy", "metadata": {"name": name}, "status": status,
                "spec": {"targetRef": {"kind": kind, "name": target}}})
        };
        let refused =
            json!({"conditions": [{"type": "Accepted", "status": "False", "message": "no such thing"}]});
        let objects = [
            policy("good", "Server", "web", Value::Null),
            policy("other", "Server", "db", Value::Null),
            policy("refused", "HTTPRoute", "read", refused),
            policy("missing", "Namespace", "shop", Value::Null),
            json!({"kind": "ServerAuthorization", "metadata": {"name": "old"}, "spec": {"server": {"name": "web"}}}),
        ];
        let problems = not_in_force(&found, &objects, "shop");
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert_eq!(problems[0], "authorizationpolicy/shop/refused is not in force: no such thing");
        assert!(problems[1].starts_with("authorizationpolicy/shop/missing is not in force: most often"));
        assert!(problems[2].starts_with("serverauthorization/shop/old"));
    }
}
