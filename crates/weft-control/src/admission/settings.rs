//! What applies to one pod: its annotations over its namespace's over the installation's values.

use super::decide::{Annotations, CONFIG_PREFIX};
use crate::{config::ControllerConfig, install::values::duration, ports::PortSet};
use std::{cell::RefCell, str::FromStr};
use weft_kube::policy::access::Access;

/// Reads annotations. One that cannot be read leaves the default in force and is told to whoever creates the pod.
pub(super) struct Settings<'a> {
    pub config: &'a ControllerConfig,
    annotations: &'a Annotations,
    warnings: RefCell<Vec<String>>,
}

impl<'a> Settings<'a> {
    pub(super) fn new(config: &'a ControllerConfig, annotations: &'a Annotations) -> Self {
        Settings { config, annotations, warnings: RefCell::default() }
    }

    pub(super) fn into_warnings(self) -> Vec<String> {
        self.warnings.into_inner()
    }

    pub(super) fn warn(&self, warning: String) {
        let mut warnings = self.warnings.borrow_mut();
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    /// `config.linkerd.io/NAME`, or an annotation with a prefix of its own; nothing if it is empty.
    pub(super) fn annotation(&self, name: &str) -> Option<&'a str> {
        let found = match name.contains('/') {
            true => self.annotations.get(name),
            false => self.annotations.get(&format!("{CONFIG_PREFIX}{name}")),
        };
        found.map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    pub(super) fn text(&self, name: &str, default: &str) -> String {
        self.annotation(name).unwrap_or(default).to_owned()
    }

    pub(super) fn parsed<T: FromStr>(&self, name: &str, wanted: &str) -> Option<T> {
        self.checked(name, wanted, |text| text.parse().ok())
    }

    /// `true` and `false`, or Linkerd's `enabled` and `disabled`.
    pub(super) fn flag(&self, name: &str, default: bool) -> bool {
        let read = |text: &str| match text {
            "true" | "enabled" => Some(true),
            "false" | "disabled" => Some(false),
            _ => None,
        };
        self.checked(name, "true or false", read).unwrap_or(default)
    }

    pub(super) fn port(&self, name: &str, default: u16) -> u16 {
        self.checked(name, "a port", |text| text.parse().ok().filter(|port| *port > 0)).unwrap_or(default)
    }

    /// Ports for the redirect, by number.
    pub(super) fn port_numbers(&self, name: &str, default: &str) -> String {
        if let Some(Err(why)) = self.annotation(name).map(PortSet::numbers) {
            self.warn(format!("{CONFIG_PREFIX}{name}: {why}; the default applies"));
            return default.to_owned();
        }
        self.text(name, default)
    }

    pub(super) fn ports(&self, name: &str, default: &str) -> String {
        let whole = |text: &str| {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            let known = items.clone().all(|item| !PortSet::parse(item).to_string().is_empty());
            known.then(|| text.to_owned())
        };
        self.checked(name, "a list of ports and ranges", whole).unwrap_or_else(|| default.to_owned())
    }

    pub(super) fn duration(&self, name: &str, default: &str) -> String {
        let read = |text: &str| duration(text).map(|_| text.to_owned());
        self.checked(name, "a duration such as 500ms or 10s", read).unwrap_or_else(|| default.to_owned())
    }

    pub(super) fn one_of(&self, name: &str, words: &[&str], default: &str) -> String {
        let read = |text: &str| words.contains(&text).then(|| text.to_owned());
        self.checked(name, &format!("one of {}", words.join(", ")), read)
            .unwrap_or_else(|| default.to_owned())
    }

    pub(super) fn access(&self, name: &str, default: Access) -> Access {
        self.checked(name, "a default policy such as deny or all-authenticated", Access::parse)
            .unwrap_or(default)
    }

    pub(super) fn checked<T>(
        &self,
        name: &str,
        wanted: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.annotation(name)?;
        let found = read(text);
        if found.is_none() {
            let full = if name.contains('/') { name.to_owned() } else { format!("{CONFIG_PREFIX}{name}") };
            self.warn(format!("{full}: {text:?} is not {wanted}; it is ignored"));
        }
        found
    }

    /// Annotations that begin so, without that beginning.
    pub(super) fn with_prefix(&self, prefix: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.annotations
            .iter()
            .filter_map(move |(key, value)| Some((key.strip_prefix(prefix)?, value.as_str())))
    }
}
