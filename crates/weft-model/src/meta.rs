//! Where a policy, route or backend comes from.

use std::fmt;

/// The origin of a policy object, as metrics, logs and explanations name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Meta {
    /// Not from an object: `default/all-unauthenticated` and the like.
    Default(String),
    Resource(Resource),
}

/// A Kubernetes object; `group` is empty or `core` for the core group, `port` 0 when there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resource {
    pub group: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub section: String,
    pub port: u16,
}

impl Meta {
    pub fn default_named(name: impl Into<String>) -> Self {
        Meta::Default(name.into())
    }
    pub fn name(&self) -> &str {
        match self {
            Meta::Default(name) => name,
            Meta::Resource(r) => &r.name,
        }
    }
    pub fn kind(&self) -> &str {
        match self {
            Meta::Default(_) => "default",
            Meta::Resource(r) => &r.kind,
        }
    }
    pub fn group(&self) -> &str {
        match self {
            Meta::Default(_) => "",
            Meta::Resource(r) => &r.group,
        }
    }
    pub fn namespace(&self) -> &str {
        match self {
            Meta::Default(_) => "",
            Meta::Resource(r) => &r.namespace,
        }
    }
    pub fn port(&self) -> Option<u16> {
        match self {
            Meta::Resource(r) if r.port != 0 => Some(r.port),
            _ => None,
        }
    }
}

/// `server/shop/store-rpc`, `service/shop/store:80`, `default/deny`.
impl fmt::Display for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Meta::Default(name) => write!(f, "default/{name}"),
            Meta::Resource(r) => {
                write!(f, "{}/", r.kind.to_ascii_lowercase())?;
                if !r.namespace.is_empty() {
                    write!(f, "{}/", r.namespace)?;
                }
                f.write_str(&r.name)?;
                if r.port != 0 {
                    write!(f, ":{}", r.port)?;
                }
                Ok(())
            }
        }
    }
}
