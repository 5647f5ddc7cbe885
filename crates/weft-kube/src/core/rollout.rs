//! What rolls pods out, reduced to what tells one rollout from the next; and objects that are followed for the journal
//! alone.

use crate::{
    kind::Kind,
    meta::{Meta, nullable},
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The pods that a workload makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// Another one for every change of the template, within one process.
    pub hash: u64,
    pub images: Vec<String>,
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let template: Value = nullable(deserializer)?;
        let mut hasher = DefaultHasher::new();
        template.to_string().hash(&mut hasher);
        let containers =
            ["initContainers", "containers"].iter().filter_map(|list| template["spec"][list].as_array());
        let images = containers.flatten().filter_map(|c| c["image"].as_str().map(str::to_owned)).collect();
        Ok(Template { hash: hasher.finish(), images })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RolloutSpec {
    pub template: Template,
}

macro_rules! rollout {
    ($($name:ident $plural:literal),*) => {$(
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        pub struct $name {
            pub metadata: Meta,
            #[serde(deserialize_with = "nullable")]
            pub spec: RolloutSpec,
        }

        impl Kind for $name {
            const GROUP: &'static str = "apps";
            const VERSION: &'static str = "v1";
            const KIND: &'static str = stringify!($name);
            const PLURAL: &'static str = $plural;
            fn meta(&self) -> &Meta {
                &self.metadata
            }
        }
    )*};
}
rollout!(Deployment "deployments", StatefulSet "statefulsets", DaemonSet "daemonsets");

macro_rules! specified {
    ($($name:ident $group:literal $version:literal $plural:literal),*) => {$(
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        pub struct $name {
            pub metadata: Meta,
            pub spec: Value,
        }

        impl Kind for $name {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = $version;
            const KIND: &'static str = stringify!($name);
            const PLURAL: &'static str = $plural;
            fn meta(&self) -> &Meta {
                &self.metadata
            }
        }
    )*};
}
specified!(Link "multicluster.linkerd.io" "v1alpha3" "links");
