//! Conditions, as an object has them.

use crate::meta::nullable;
use serde::Deserialize;

/// Kept so that they are not written twice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conditions {
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<serde_json::Value>,
}

/// What the controller wrote there changes nothing about the object.
impl PartialEq for Conditions {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
