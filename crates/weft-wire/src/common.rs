//! Parts that several messages share: errors, durations, origins of objects.

use linkerd2_proxy_api::meta as api;
use std::{fmt, sync::Arc, time::Duration};
use weft_fault::{Code, Fault};
use weft_model::meta::{Meta, Resource};

/// A message that cannot be used, and the field that makes it so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    pub field: &'static str,
    pub why: String,
}

impl Invalid {
    pub fn new(field: &'static str, why: impl fmt::Display) -> Self {
        Invalid { field, why: why.to_string() }
    }

    pub(crate) fn missing(field: &'static str) -> Self {
        Invalid::new(field, "missing")
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.why)
    }
}
impl std::error::Error for Invalid {}

impl From<Invalid> for Fault {
    fn from(invalid: Invalid) -> Fault {
        Fault::new(Code::AnswerInvalid)
            .fact("field", invalid.field)
            .fact("why", &invalid.why)
            .because(invalid)
    }
}

pub(crate) fn need<T>(value: Option<T>, field: &'static str) -> Result<T, Invalid> {
    value.ok_or_else(|| Invalid::missing(field))
}

/// The protocol's longest duration, 10,000 years. A longer one could not be added to a moment.
const LONGEST: u64 = 315_576_000_000;

/// Longer ones are cut to the longest.
pub(crate) fn duration_to_api(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs().min(LONGEST)).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}

pub(crate) fn duration_from_api(
    duration: prost_types::Duration,
    field: &'static str,
) -> Result<Duration, Invalid> {
    let duration = Duration::try_from(duration).ok().filter(|duration| duration.as_secs() <= LONGEST);
    duration.ok_or_else(|| Invalid::new(field, "negative or out of range"))
}

pub(crate) fn optional_duration(
    duration: Option<prost_types::Duration>,
    field: &'static str,
) -> Result<Option<Duration>, Invalid> {
    duration.map(|d| duration_from_api(d, field)).transpose()
}

pub(crate) fn meta_to_api(meta: &Meta) -> api::Metadata {
    let kind = match meta {
        Meta::Default(name) => api::metadata::Kind::Default(name.clone()),
        Meta::Resource(r) => api::metadata::Kind::Resource(api::Resource {
            group: r.group.clone(),
            kind: r.kind.clone(),
            name: r.name.clone(),
            namespace: r.namespace.clone(),
            section: r.section.clone(),
            port: r.port.into(),
        }),
    };
    api::Metadata { kind: Some(kind) }
}

pub(crate) fn meta_from_api(meta: Option<api::Metadata>, field: &'static str) -> Result<Arc<Meta>, Invalid> {
    match need(meta.and_then(|m| m.kind), field)? {
        api::metadata::Kind::Default(name) => Ok(Arc::new(Meta::Default(name))),
        api::metadata::Kind::Resource(r) => Ok(Arc::new(Meta::Resource(Resource {
            port: u16::try_from(r.port).map_err(|_| Invalid::new(field, format!("port {}", r.port)))?,
            group: r.group,
            kind: r.kind,
            namespace: r.namespace,
            name: r.name,
            section: r.section,
        }))),
    }
}

pub(crate) fn port(port: u32, field: &'static str) -> Result<u16, Invalid> {
    u16::try_from(port).map_err(|_| Invalid::new(field, format!("{port} is no port")))
}
