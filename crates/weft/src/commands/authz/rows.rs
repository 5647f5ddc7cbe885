//! One line for each authorization of each port. Pure.

use crate::columns::aligned;
use serde_json::{Value, json};
use weft_control::view::decision::accepts;
use weft_kube::core::service::IntOrString;
use weft_model::{
    inbound::{Authorization, HttpPolicy, Protocol, Route, ServerPolicy},
    meta::Meta,
};
use weft_wire::record::Accepts;

/// What is in force for one port, and the Servers that select it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PortPolicy {
    pub(super) port: u16,
    pub(super) policy: ServerPolicy,
    /// By age.
    pub(super) servers: Vec<String>,
}

/// One authorization; without one, nobody is let in.
pub(super) struct Row<'p> {
    port: u16,
    server: &'p Meta,
    route: Option<&'p Meta>,
    authorization: Option<&'p Authorization>,
}

pub(super) fn http(policy: &ServerPolicy) -> Option<&HttpPolicy> {
    match &policy.protocol {
        Protocol::Detect { http, .. }
        | Protocol::Http1(http)
        | Protocol::Http2(http)
        | Protocol::Grpc(http) => Some(http),
        Protocol::Opaque | Protocol::Tls | Protocol::Unreadable(_) => None,
    }
}

/// Routes that somebody made; the ones that every port has say nothing about authorization.
pub(super) fn routes(policy: &ServerPolicy) -> impl Iterator<Item = &Route> {
    let routes = http(policy).map_or(&[][..], |http| &http.routes);
    routes.iter().filter(|route| matches!(*route.meta, Meta::Resource(_)))
}

pub(super) fn of(found: &PortPolicy) -> Vec<Row<'_>> {
    let row =
        |route, authorization| Row { port: found.port, server: &found.policy.meta, route, authorization };
    let mut rows: Vec<Row<'_>> = found.policy.authorizations.iter().map(|a| row(None, Some(a))).collect();
    for route in routes(&found.policy) {
        rows.extend(route.authorizations.iter().map(|a| row(Some(&*route.meta), Some(a))));
    }
    if rows.is_empty() {
        rows.push(row(None, None));
    }
    rows
}

impl Row<'_> {
    fn accepts(&self) -> Option<Accepts> {
        self.authorization.map(accepts)
    }

    /// The name, if the authorization is of this kind.
    fn of_kind(&self, kind: &str) -> String {
        let meta = self.authorization.map(|authorization| &*authorization.meta);
        meta.filter(|meta| meta.kind().eq_ignore_ascii_case(kind))
            .map(|m| m.name().to_owned())
            .unwrap_or_default()
    }

    fn cells(&self) -> Vec<String> {
        let accepts = self.accepts();
        let (clients, networks) = match &accepts {
            Some(accepts) => (accepts.clients.join(" "), accepts.networks.join(" ")),
            None => ("nobody".to_owned(), String::new()),
        };
        let server = match self.server {
            Meta::Default(name) => format!("default:{name}"),
            Meta::Resource(resource) => resource.name.clone(),
        };
        let policy = match self.authorization.map(|authorization| &*authorization.meta) {
            // Of the default, or of the Server's accessPolicy.
            Some(Meta::Default(name)) => format!("default:{name}"),
            _ => self.of_kind("authorizationpolicy"),
        };
        let route = self.route.map_or("*".to_owned(), |route| route.name().to_owned());
        vec![
            route,
            server,
            policy,
            self.of_kind("serverauthorization"),
            self.port.to_string(),
            clients,
            networks,
        ]
    }

    pub(super) fn json(&self) -> Value {
        let accepts = self.accepts();
        json!({
            "route": self.route.map(ToString::to_string),
            "server": self.server.to_string(),
            "authorization": self.authorization.map(|a| a.meta.to_string()),
            "port": self.port,
            "clients": accepts.as_ref().map_or(&[][..], |a| &a.clients),
            "networks": accepts.as_ref().map_or(&[][..], |a| &a.networks),
        })
    }
}

/// Linkerd's columns, then weft's own.
pub(super) fn table(policies: &[PortPolicy]) -> String {
    let titles =
        ["ROUTE", "SERVER", "AUTHORIZATION_POLICY", "SERVER_AUTHORIZATION", "PORT", "CLIENTS", "NETWORKS"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    rows.extend(policies.iter().flat_map(of).map(|row| row.cells()));
    aligned(&rows)
}

/// A port by its number, or by the name of one.
pub(super) fn number(port: &IntOrString, named: impl Fn(&str) -> Option<u16>) -> Option<u16> {
    match port {
        IntOrString::Int(number) => Some(*number).filter(|port| *port > 0),
        IntOrString::String(name) => named(name),
    }
}
