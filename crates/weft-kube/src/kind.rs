//! What a watch has to know about a kind, and decoding that one bad object cannot stop.

use crate::meta::Meta;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

/// A kind of object that can be listed and watched.
pub trait Kind: DeserializeOwned + Send + Sync + 'static {
    /// Empty for the core group.
    const GROUP: &'static str;
    const VERSION: &'static str;
    const KIND: &'static str;
    const PLURAL: &'static str;
    /// Ask for metadata only.
    const METADATA_ONLY: bool = false;

    fn meta(&self) -> &Meta;

    /// Makes the parts that are equal in both one in memory. Worth it for kinds of which there are very many.
    fn share(&mut self, _like: &Self) {}

    /// The path of the collection over all namespaces, or of one.
    fn path(namespace: Option<&str>) -> String {
        let mut path = if Self::GROUP.is_empty() {
            format!("/api/{}", Self::VERSION)
        } else {
            format!("/apis/{}/{}", Self::GROUP, Self::VERSION)
        };
        if let Some(namespace) = namespace {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        path.push('/');
        path.push_str(Self::PLURAL);
        path
    }
}

/// An object that this build cannot read. It counts as absent: what it said before no longer holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Undecodable {
    pub meta: Meta,
    pub reason: String,
}

/// One object of a list or watch, read as far as possible.
#[derive(Debug)]
pub struct Decoded<K>(pub Result<K, Box<Undecodable>>);

impl<'de, K: Kind> Deserialize<'de> for Decoded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Envelope {
            metadata: Meta,
        }
        let value = Value::deserialize(deserializer)?;
        Ok(Decoded(K::deserialize(&value).map_err(|error| {
            Box::new(Undecodable {
                meta: Envelope::deserialize(&value).unwrap_or_default().metadata,
                reason: error.to_string(),
            })
        })))
    }
}
