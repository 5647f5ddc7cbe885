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

/// Whoever says that endpoints must have an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    Service { namespace: String, name: String },
    Namespace(String),
}

/// What ends the identity of an endpoint that lacks the one that is required. Nobody can have it (RFC 2606).
const UNMET: &str = "identity-required.invalid";

impl Requirement {
    /// The identity given for an endpoint that has none: whoever connects to it fails, and its name says why.
    pub fn unmet(&self) -> Identity {
        let text = match self {
            Requirement::Service { namespace, name } => format!("{name}.{namespace}.service.{UNMET}"),
            Requirement::Namespace(name) => format!("{name}.namespace.{UNMET}"),
        };
        // A name that makes no identity must not make an endpoint either.
        Identity::parse(&text).unwrap_or_else(|_| Identity(UNMET.into()))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Requirement::Service { namespace, name } => write!(f, "Service {namespace}/{name}"),
            Requirement::Namespace(name) => write!(f, "Namespace {name}"),
        }
    }
}

impl Identity {
    /// Whether it stands for a requirement that the endpoint does not meet, and whose that is if its name says so.
    pub fn is_unmet(&self) -> Option<Option<Requirement>> {
        let rest = self.0.strip_suffix(UNMET)?;
        if rest.is_empty() {
            return Some(None);
        }
        let labels: Vec<&str> = rest.strip_suffix('.')?.split('.').collect();
        Some(match labels[..] {
            [name, namespace, "service"] => {
                Some(Requirement::Service { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            [name, "namespace"] => Some(Requirement::Namespace(name.to_owned())),
            _ => None,
        })
    }
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

    #[test]
    fn an_unmet_requirement_says_whose_it_is() {
        for requirement in [
            Requirement::Service { namespace: "shop".to_owned(), name: "pay".to_owned() },
            Requirement::Namespace("shop".to_owned()),
        ] {
            let id = requirement.unmet();
            assert!(id.as_str().ends_with(".invalid"));
            assert_eq!(id.is_unmet(), Some(Some(requirement)));
        }
        let nonsense = Requirement::Namespace("not a name".to_owned()).unmet();
        assert_eq!(nonsense.is_unmet(), Some(None));
        for other in ["pay.shop.service.identity.linkerd.cluster.local", "x-identity-required.invalid"] {
            assert_eq!(Identity::parse(other).unwrap().is_unmet(), None, "{other}");
        }
    }
}
