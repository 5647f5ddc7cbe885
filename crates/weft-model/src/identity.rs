//! Who a workload is.

use std::{fmt, sync::Arc};

/// A workload identity: a DNS-like name (`store.shop.serviceaccount.identity.linkerd.cluster.local`) or a SPIFFE URI.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(Arc<str>);

/// The text is neither a DNS name nor a SPIFFE URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnIdentity(pub String);

impl Identity {
    /// Parses a DNS name (RFC 1123 labels, at most 253 bytes; lower-cased) or a `spiffe://` URI.
    pub fn parse(text: &str) -> Result<Self, NotAnIdentity> {
        if let Some(rest) = text.strip_prefix("spiffe://") {
            let ok = !rest.is_empty() && text.len() <= 2048 && !rest.starts_with('/') && text.is_ascii();
            return if ok { Ok(Identity(text.into())) } else { Err(NotAnIdentity(text.into())) };
        }
        if !is_dns_name(text) {
            return Err(NotAnIdentity(text.into()));
        }
        Ok(Identity(text.to_ascii_lowercase().into()))
    }

    /// `<sa>.<ns>.serviceaccount.identity.<control plane ns>.<trust domain>`.
    pub fn of_service_account(
        account: &str,
        namespace: &str,
        control_ns: &str,
        trust_domain: &str,
    ) -> Result<Self, NotAnIdentity> {
        Self::parse(&format!("{account}.{namespace}.serviceaccount.identity.{control_ns}.{trust_domain}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A SPIFFE URI has no server name of its own; a DNS-like identity is its own.
    pub fn is_uri(&self) -> bool {
        self.0.starts_with("spiffe://")
    }

    /// Whose authority vouches for it: what follows the control plane's namespace, or a SPIFFE URI's first part.
    pub fn trust_domain(&self) -> Option<&str> {
        if let Some(rest) = self.0.strip_prefix("spiffe://") {
            return rest.split('/').next();
        }
        let (_, control_plane) = self.0.split_once(".serviceaccount.identity.")?;
        control_plane.split_once('.').map(|(_, domain)| domain)
    }

    /// The ServiceAccount (namespace, name) that a DNS-like identity stands for.
    pub fn service_account(&self) -> Option<(&str, &str)> {
        let mut labels = self.0.splitn(4, '.');
        let (account, namespace) = (labels.next()?, labels.next()?);
        (labels.next()? == "serviceaccount" && labels.next()?.starts_with("identity."))
            .then_some((namespace, account))
    }
}

fn is_dns_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    !text.is_empty()
        && text.len() <= 253
        && text.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Display for NotAnIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is neither a DNS name nor a SPIFFE URI", self.0)
    }
}
impl std::error::Error for NotAnIdentity {}

/// What discovery says about an endpoint. Three values, never two: not knowing is not the same as knowing that there
/// is no proxy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PeerIdentity {
    /// A proxy answers there with this identity; `server_name` is the SNI to send.
    Meshed {
        id: Identity,
        server_name: Identity,
    },
    /// The controller said so in as many words (or the address is outside the mesh's networks).
    Unmeshed,
    Unknown(Unknown),
}

/// Why an identity is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unknown {
    /// The answer carried no identity and no word on whether that is for good.
    Unmarked,
    /// The lookup failed or was refused.
    LookupFailed,
    /// The answer did not come in time.
    Unanswered,
    /// The answer's identity cannot be read.
    Malformed,
}

impl Unknown {
    pub const fn as_str(self) -> &'static str {
        match self {
            Unknown::Unmarked => "unmarked",
            Unknown::LookupFailed => "lookup-failed",
            Unknown::Unanswered => "unanswered",
            Unknown::Malformed => "malformed",
        }
    }
}

impl PeerIdentity {
    pub fn id(&self) -> Option<&Identity> {
        match self {
            PeerIdentity::Meshed { id, .. } => Some(id),
            PeerIdentity::Unmeshed | PeerIdentity::Unknown(_) => None,
        }
    }
}

/// What TLS said about the client of an inbound connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientTls {
    /// mTLS terminated here; `None` when the client presented no certificate.
    Terminated(Option<Identity>),
    /// TLS for another server name passes through unread.
    Passthrough { sni: String },
    /// No TLS, and why.
    None(NoTls),
}

/// Linkerd's `no_tls_reason` label values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoTls {
    Loopback,
    PortSkipped,
    NoTlsFromRemote,
    NotProvidedByServiceDiscovery,
    IngressWithoutOverride,
}

impl NoTls {
    pub const fn as_str(self) -> &'static str {
        match self {
            NoTls::Loopback => "loopback",
            NoTls::PortSkipped => "port_skipped",
            NoTls::NoTlsFromRemote => "no_tls_from_remote",
            NoTls::NotProvidedByServiceDiscovery => "not_provided_by_service_discovery",
            NoTls::IngressWithoutOverride => "ingress_without_override",
        }
    }
}

impl ClientTls {
    pub fn client_id(&self) -> Option<&Identity> {
        match self {
            ClientTls::Terminated(id) => id.as_ref(),
            ClientTls::Passthrough { .. } | ClientTls::None(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_both_forms_and_refuses_the_rest() {
        let id = Identity::parse("Store.shop.serviceaccount.identity.linkerd.cluster.local").unwrap();
        assert_eq!(id.service_account(), Some(("shop", "store")));
        assert!(!id.is_uri());
        assert!(Identity::parse("spiffe://root.example/ns/shop/sa/store").unwrap().is_uri());
        for bad in ["", ".", "a..b", "-a.b", "spiffe://", "spiffe:///x", "a b", &"x".repeat(300)] {
            assert!(Identity::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Identity::parse("a.b.c.d").unwrap().service_account(), None);
    }
}
