//! What a family is: its name, type, labels and meaning, declared once beside what counts it. The page, `docs/metrics.md`
//! and the tests read the same declaration.

use super::{
    group::Group,
    labels::Labels,
    series::{Histogram, Series},
};
use std::{
    fmt::{Display, Write},
    sync::Arc,
    time::{Duration, Instant},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A family of a series' type.
#[derive(Debug)]
pub struct Family {
    /// After the set's name.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Those that come on top of the set's own; `le` goes without saying.
    pub(crate) labels: &'static [&'static str],
    /// Empty where the set says it.
    pub(crate) help: &'static str,
}

impl Family {
    pub(crate) const fn new(
        name: &'static str,
        kind: Kind,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Family { name, kind, labels, help }
    }
}

/// A family as users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub name: String,
    pub kind: Kind,
    /// A name that ends in `_*` stands for all with that beginning.
    pub labels: Vec<&'static str>,
    pub help: String,
}

/// Label names of a set, in groups that are used together.
pub(crate) type Groups = &'static [&'static [&'static str]];

pub(crate) const TARGET: &[&str] = &["target_addr", "target_ip", "target_port"];
pub(crate) const CLIENT: &[&str] = &["tls", "client_id", "no_tls_reason"];
pub(crate) const SRV: &[&str] = &["srv_group", "srv_kind", "srv_name", "srv_port"];
pub(crate) const ROUTE: &[&str] = &["route_group", "route_kind", "route_name"];
pub(crate) const AUTHZ: &[&str] = &["authz_group", "authz_kind", "authz_name"];
pub(crate) const INBOUND_PARENT: &[&str] = &["parent_group", "parent_kind", "parent_name", "parent_port"];
pub(crate) const PARENT: &[&str] =
    &["parent_group", "parent_kind", "parent_namespace", "parent_name", "parent_port", "parent_section_name"];
pub(crate) const OUTBOUND_ROUTE: &[&str] = &["route_group", "route_kind", "route_namespace", "route_name"];
/// A route of a ServiceProfile.
pub(crate) const SERVICE_ROUTE: Groups = &[&["direction", "dst", "rt_*"]];
pub(crate) const BACKEND: &[&str] = &[
    "backend_group",
    "backend_kind",
    "backend_namespace",
    "backend_name",
    "backend_port",
    "backend_section_name",
];

/// Families whose label sets are the same: what counts them is resolved once for all of them.
#[derive(Debug)]
pub(crate) struct Set<S> {
    name: &'static str,
    labels: Groups,
    /// What is counted, where the series' type does not know; otherwise what all of it is about.
    help: &'static str,
    pub(crate) group: Group<S>,
}

impl<S: Series> Set<S> {
    pub(crate) fn new(name: &'static str, labels: Groups, help: &'static str) -> Self {
        Set { name, labels, help, group: Group::default() }
    }

    pub(crate) fn resolve(&self, labels: &Labels) -> Arc<S> {
        self.group.resolve(labels)
    }

    pub(crate) fn each(&self, mut act: impl FnMut(&S)) {
        let chunks = (0..).map_while(|number| self.group.chunk(number));
        chunks.flatten().for_each(|entry| act(&entry.series));
    }
}

/// A set whose series' type is not known: what the page needs of it.
pub(crate) trait AnySet: Send + Sync {
    fn families(&self) -> Vec<Described>;
    fn is_empty(&self) -> bool;
    /// Appends the lines of one family for one chunk of label sets; `false` past the last one.
    fn lines(&self, family: usize, name: &str, chunk: usize, page: &mut String) -> bool;
    /// Forgets what is idle of one chunk; `false` past the last one.
    fn retire(&self, chunk: usize, retain: Duration, now: Instant) -> bool;
}

impl<S: Series> AnySet for Set<S> {
    fn families(&self) -> Vec<Described> {
        let described = |family: &Family| Described {
            name: format!("{}{}", self.name, family.name),
            kind: family.kind,
            labels: self.labels.iter().copied().flatten().chain(family.labels).copied().collect(),
            help: match (self.help, family.help) {
                (own, "") | ("", own) => own.to_string(),
                (all, one) => format!("{one}, {all}"),
            },
        };
        S::FAMILIES.iter().map(described).collect()
    }

    fn is_empty(&self) -> bool {
        self.group.is_empty()
    }

    fn lines(&self, family: usize, name: &str, chunk: usize, page: &mut String) -> bool {
        let Some(entries) = self.group.chunk(chunk) else { return false };
        for entry in &entries {
            entry.series.lines(family, &mut Lines { page, name, labels: &entry.labels });
        }
        true
    }

    fn retire(&self, chunk: usize, retain: Duration, now: Instant) -> bool {
        self.group.retire(chunk, retain, now)
    }
}

/// Where the lines of one label set in one family are written.
#[derive(Debug)]
pub struct Lines<'p> {
    pub(crate) page: &'p mut String,
    pub(crate) name: &'p str,
    pub(crate) labels: &'p Labels,
}

impl Lines<'_> {
    /// `more`: labels that the series adds, as text.
    pub(crate) fn value(&mut self, more: &str, value: impl Display) {
        self.line("", &[more], value);
    }

    pub(crate) fn bucket(&mut self, more: &str, le: &str, cumulative: u64) {
        self.line("_bucket", &[more, le], cumulative);
    }

    pub(crate) fn totals(&mut self, more: &str, sum: f64, count: u64) {
        self.line("_sum", &[more], sum);
        self.line("_count", &[more], count);
    }

    pub(crate) fn histogram(&mut self, more: &str, histogram: &Histogram) {
        histogram.lines(self, more);
    }

    fn line(&mut self, suffix: &str, more: &[&str], value: impl Display) {
        self.page.push_str(self.name);
        self.page.push_str(suffix);
        let mut opened = false;
        for labels in [self.labels.as_str()].iter().chain(more).filter(|labels| !labels.is_empty()) {
            self.page.push(if opened { ',' } else { '{' });
            opened = true;
            self.page.push_str(labels);
        }
        if opened {
            self.page.push('}');
        }
        // Writing to a String cannot fail.
        let _infallible = writeln!(self.page, " {value}");
    }
}
