//! Label sets, written out once in Prometheus's form.

use std::fmt::Display;
use weft_model::{
    identity::{ClientTls, Identity, NoTls},
    meta::Meta,
};

/// A label set under construction; equal text is the same series. Values come from configuration and from verified
/// peers only: what a client chooses freely (an authority, a path) must match something known first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(String);

/// Longer values are cut: no single one may fill the page.
const VALUE_BYTES: usize = 256;

impl Labels {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with(mut self, name: &str, value: impl Display) -> Self {
        self.push(name, &value.to_string());
        self
    }

    fn push(&mut self, name: &str, value: &str) {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        // A name that Prometheus would refuse spoils the whole page.
        let first = name.bytes().next().is_some_and(|b| b.is_ascii_digit());
        if first {
            self.0.push('_');
        }
        self.0.extend(name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }));
        self.0.push_str("=\"");
        let mut bytes = 0;
        for c in value.chars() {
            bytes += c.len_utf8();
            if bytes > VALUE_BYTES {
                break;
            }
            match c {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                c => self.0.push(c),
            }
        }
        self.0.push('"');
    }

    /// An address: whole, and in its two parts.
    pub fn target(self, addr: std::net::SocketAddr) -> Self {
        self.with("target_addr", addr).with("target_ip", addr.ip()).with("target_port", addr.port())
    }

    /// Linkerd's labels for the TLS of an accepted connection.
    pub fn client_tls(self, tls: &ClientTls) -> Self {
        match tls {
            ClientTls::Terminated(Some(id)) => self.with("tls", "true").with("client_id", id),
            ClientTls::Terminated(None) => self.with("tls", "true").with("client_id", ""),
            // The SNI is the client's choice: not a label value.
            ClientTls::Passthrough { .. } => self.with("tls", "opaque"),
            ClientTls::None(why) => self.with("tls", "no_identity").with("no_tls_reason", why.as_str()),
        }
    }

    /// Linkerd's labels for the TLS of a connection made.
    pub fn server_tls(self, tls: Result<&Identity, NoTls>) -> Self {
        match tls {
            Ok(id) => self.with("tls", "true").with("server_id", id),
            Err(why) => self.with("tls", "no_identity").with("no_tls_reason", why.as_str()),
        }
    }

    /// `{prefix}_group`, `_kind`, `_name`, as inbound families name a policy object: prefix `srv`, `route` or `authz`.
    pub fn policy(self, prefix: &str, meta: &Meta) -> Self {
        self.with(&format!("{prefix}_group"), meta.group())
            .with(&format!("{prefix}_kind"), meta.kind())
            .with(&format!("{prefix}_name"), meta.name())
    }

    /// The policy of one of this workload's ports, as inbound families name it.
    pub fn server(self, meta: &Meta, port: u16) -> Self {
        self.policy("srv", meta).with("srv_port", port)
    }

    /// A route, as inbound families name it. A server without routes has Linkerd's default one, which matches all.
    pub fn inbound_route(self, route: Option<&Meta>) -> Self {
        match route {
            Some(route) => self.policy("route", route),
            None => self.policy("route", &Meta::default_named("default")),
        }
    }

    /// A route, as outbound families name it.
    pub fn route(self, meta: &Meta) -> Self {
        self.with("route_group", meta.group())
            .with("route_kind", meta.kind())
            .with("route_namespace", meta.namespace())
            .with("route_name", meta.name())
    }

    /// All of an object's parts, as outbound families name one: prefix `parent` or `backend`.
    pub fn object(self, prefix: &str, meta: &Meta) -> Self {
        let (port, section) = match meta {
            Meta::Resource(r) => (meta.port().map_or(String::new(), |p| p.to_string()), r.section.as_str()),
            Meta::Default(_) => (String::new(), ""),
        };
        self.with(&format!("{prefix}_group"), meta.group())
            .with(&format!("{prefix}_kind"), meta.kind())
            .with(&format!("{prefix}_namespace"), meta.namespace())
            .with(&format!("{prefix}_name"), meta.name())
            .with(&format!("{prefix}_port"), port)
            .with(&format!("{prefix}_section_name"), section)
    }

    /// An endpoint's own labels, with the prefix `dst_`.
    pub fn dst<'a>(mut self, labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        for (name, value) in labels {
            self.push(&format!("dst_{name}"), value);
        }
        self
    }

    /// A ServiceProfile route's own labels, with the prefix `rt_`.
    pub fn rt<'a>(mut self, labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        for (name, value) in labels {
            self.push(&format!("rt_{name}"), value);
        }
        self
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped_and_names_made_valid() {
        let labels = Labels::new().with("a-b/c", "x\"y\\z\nw").with("9a", 1);
        assert_eq!(labels.as_str(), r#"a_b_c="x\"y\\z\nw",_9a="1""#);
        assert!(Labels::new().with("a", "é".repeat(1000)).as_str().len() < 300);
    }
}
