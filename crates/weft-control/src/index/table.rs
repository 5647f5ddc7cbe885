//! Objects of one kind, by namespace and name.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};
use weft_kube::{kind::Kind, meta::ObjectName};

#[derive(Debug)]
pub struct Table<K> {
    namespaces: BTreeMap<String, BTreeMap<String, Arc<K>>>,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Table { namespaces: BTreeMap::new() }
    }
}

impl<K> Table<K> {
    pub fn get(&self, name: &ObjectName) -> Option<&Arc<K>> {
        self.namespaces.get(&name.namespace)?.get(&name.name)
    }

    /// The objects of one namespace, by name.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<K>> + use<'_, K> {
        self.namespaces.get(namespace).into_iter().flat_map(BTreeMap::values)
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<K>> {
        self.namespaces.values().flat_map(BTreeMap::values)
    }

    /// The objects of one namespace, or of all.
    pub fn among(&self, namespace: Option<&str>) -> impl Iterator<Item = &Arc<K>> + use<'_, K> {
        let one = namespace.map(|namespace| self.namespaces.get(namespace));
        let all = namespace.is_none().then(|| self.namespaces.values());
        one.flatten().into_iter().chain(all.into_iter().flatten()).flat_map(BTreeMap::values)
    }

    pub fn names(&self) -> Vec<ObjectName> {
        self.namespaces
            .iter()
            .flat_map(|(namespace, names)| names.keys().map(move |name| ObjectName::new(namespace, name)))
            .collect()
    }

    pub fn len(&self) -> usize {
        self.namespaces.values().map(BTreeMap::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// What the new object has like its neighbours by name (pods of the same ReplicaSet), or like itself as it was, is kept
    /// once. Before anybody else has the object.
    pub(super) fn share(&self, name: &ObjectName, object: &mut Arc<K>)
    where
        K: Kind,
    {
        let Some(names) = self.namespaces.get(&name.namespace) else { return };
        let Some(object) = Arc::get_mut(object) else { return };
        let name = name.name.as_str();
        let before = names.range::<str, _>((Bound::Unbounded, Bound::Excluded(name))).next_back();
        let next = names.range::<str, _>((Bound::Included(name), Bound::Unbounded)).next();
        before.into_iter().chain(next).for_each(|(_, like)| object.share(like));
    }

    pub(super) fn put(&mut self, name: ObjectName, object: Arc<K>) -> Option<Arc<K>> {
        self.namespaces.entry(name.namespace).or_default().insert(name.name, object)
    }

    pub(super) fn take(&mut self, name: &ObjectName) -> Option<Arc<K>> {
        let names = self.namespaces.get_mut(&name.namespace)?;
        let old = names.remove(&name.name);
        if names.is_empty() {
            self.namespaces.remove(&name.namespace);
        }
        old
    }
}
