//! Object metadata, reduced to what decisions and explanations need.

use crate::shared::Shared;
use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData};

/// Annotations are kept if their prefix ends so. Others are nobody's business here and can be long: kubectl keeps a second
/// copy of the whole object in one.
const OURS: [&str; 3] = ["linkerd.io", "weft.dev", "opentelemetry.io"];

/// Equality is that of what the object says: its version and writer do not count, so that a write which changed nothing
/// that is kept here can be seen as such.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub namespace: String,
    #[serde(deserialize_with = "nullable")]
    pub uid: String,
    #[serde(deserialize_with = "nullable")]
    pub resource_version: String,
    #[serde(deserialize_with = "nullable")]
    pub generation: i64,
    pub creation_timestamp: Option<Timestamp>,
    pub deletion_timestamp: Option<Timestamp>,
    #[serde(deserialize_with = "nullable")]
    pub labels: Shared<BTreeMap<String, String>>,
    #[serde(deserialize_with = "our_annotations")]
    pub annotations: Shared<BTreeMap<String, String>>,
    #[serde(deserialize_with = "list")]
    pub owner_references: Shared<Vec<OwnerReference>>,
    /// Who wrote the object last, as far as it says.
    #[serde(rename = "managedFields", deserialize_with = "last_writer")]
    pub last_writer: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    pub api_version: String,
    pub uid: String,
    pub kind: String,
    pub name: String,
    pub controller: Option<bool>,
}

impl PartialEq for Meta {
    fn eq(&self, other: &Self) -> bool {
        let Meta {
            name,
            namespace,
            uid,
            resource_version: _,
            generation: _,
            creation_timestamp,
            deletion_timestamp,
            labels,
            annotations,
            owner_references,
            last_writer: _,
        } = self;
        *name == other.name
            && *namespace == other.namespace
            && *uid == other.uid
            && *creation_timestamp == other.creation_timestamp
            && *deletion_timestamp == other.deletion_timestamp
            && *labels == other.labels
            && *annotations == other.annotations
            && *owner_references == other.owner_references
    }
}

impl Meta {
    pub fn key(&self) -> ObjectName {
        ObjectName { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).map(String::as_str)
    }

    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }

    /// See [`Kind::share`](crate::kind::Kind::share).
    pub(crate) fn share(&mut self, like: &Self) {
        self.labels.share(&like.labels);
        self.annotations.share(&like.annotations);
        self.owner_references.share(&like.owner_references);
    }

    /// Oldest first, then by name: the order in which overlapping objects win. One without a time is newest.
    pub fn seniority(&self) -> (Timestamp, &str, &str) {
        (self.creation_timestamp.unwrap_or(Timestamp::MAX), &self.namespace, &self.name)
    }

    /// The owner that controls this object.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|o| o.controller == Some(true))
    }
}

/// Namespace and name; the namespace of cluster-wide objects is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    pub namespace: String,
    pub name: String,
}

impl ObjectName {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        ObjectName { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// Text that is borrowed from the answer where it has no escapes: most of an object is read only to be passed over.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) struct Text<'t>(#[serde(borrow)] pub(crate) Cow<'t, str>);

impl From<Text<'_>> for String {
    fn from(text: Text<'_>) -> String {
        text.0.into_owned()
    }
}

/// Go writes empty lists, maps and strings as `null`.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// A list without room to grow: there are hundreds of thousands of them, and none does.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>, L: From<Vec<T>>>(
    deserializer: D,
) -> Result<L, D::Error> {
    let mut list: Vec<T> = nullable(deserializer)?;
    list.shrink_to_fit();
    Ok(list.into())
}

fn our_annotations<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Shared<BTreeMap<String, String>>, D::Error> {
    struct Ours;
    impl<'de> Visitor<'de> for Ours {
        type Value = BTreeMap<String, String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("annotations")
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut annotations = BTreeMap::new();
            while let Some(Text(name)) = map.next_key()? {
                let prefix = name.split_once('/').map_or("", |(prefix, _)| prefix);
                if OURS.iter().any(|ours| prefix.ends_with(ours)) {
                    annotations.insert(name.into_owned(), map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(annotations)
        }
    }
    deserializer.deserialize_any(Ours).map(Shared::from)
}

/// A list of which few elements are kept; the others are not put anywhere on the way. `null` is an empty one.
pub(crate) fn some_of<'de, D: Deserializer<'de>, Seen: Deserialize<'de>, T>(
    deserializer: D,
    keep: impl Fn(Seen) -> Option<T>,
) -> Result<Vec<T>, D::Error> {
    struct Few<Seen, Keep>(Keep, PhantomData<Seen>);
    impl<'de, Seen: Deserialize<'de>, T, Keep: Fn(Seen) -> Option<T>> Visitor<'de> for Few<Seen, Keep> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut kept = Vec::new();
            while let Some(seen) = list.next_element()? {
                if let Some(element) = (self.0)(seen) {
                    kept.reserve_exact(1);
                    kept.push(element);
                }
            }
            Ok(kept)
        }
    }
    deserializer.deserialize_any(Few(keep, PhantomData))
}

fn last_writer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Entry<'e> {
        #[serde(borrow)]
        manager: Text<'e>,
        time: Option<Timestamp>,
    }
    let entries: Vec<Entry<'de>> = nullable(deserializer)?;
    Ok(entries
        .into_iter()
        .max_by_key(|e| e.time)
        .map(|e| e.manager.into())
        .filter(|m: &String| !m.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nulls_and_copies_do_no_harm() {
        let meta: Meta = serde_json::from_value(json!({
            "name": "store", "namespace": null, "labels": null, "creationTimestamp": null,
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{…}", "a": "b",
                "config.linkerd.io/opaque-ports": "80", "weft.dev/x": "y"},
            "managedFields": [
                {"manager": "kubectl", "time": "2026-01-02T00:00:00Z", "fieldsV1": {}},
                {"manager": "helm", "time": "2026-01-01T00:00:00Z"},
            ],
        }))
        .unwrap();
        assert_eq!(meta.annotations.len(), 2);
        assert_eq!(meta.last_writer.as_deref(), Some("kubectl"));
        assert_eq!(meta.key().to_string(), "store");
    }
}
