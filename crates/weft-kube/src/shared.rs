//! Parts that many objects have alike, kept once.

use serde::{Deserialize, Deserializer};
use std::{ops::Deref, sync::Arc};

/// A part of an object that cannot be changed, and can be one with that of another object.
///
/// A Deployment's pods differ in name, addresses and machine; labels, annotations and containers are most of what is kept of
/// them, and the same in each.
#[derive(Debug, PartialEq, Eq)]
pub struct Shared<T>(Arc<T>);

impl<T: PartialEq> Shared<T> {
    /// Keeps the other's copy in place of its own, if they are equal.
    pub fn share(&mut self, like: &Self) {
        if !self.is_one_with(like) && self == like {
            *self = like.clone();
        }
    }
}

impl<T> Shared<T> {
    pub fn is_one_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}

impl<T: Default> Default for Shared<T> {
    fn default() -> Self {
        Shared(Arc::new(T::default()))
    }
}

impl<T> From<T> for Shared<T> {
    fn from(part: T) -> Self {
        Shared(Arc::new(part))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Shared::from)
    }
}
