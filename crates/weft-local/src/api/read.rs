//! Reading objects: get, list, and finding a Service's endpoints.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde_json::{Value, json};

use super::error::ApiError;
use super::kinds::Kind;
use super::selector::{FieldSelector, LabelSelector};
use super::{Api, body, meta, schema, shape};

/// Which objects of a list are meant.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
    /// One object by name (the old watch path).
    pub name: Option<String>,
}

impl Filter {
    pub fn matches(&self, object: &Value) -> bool {
        self.name.as_deref().is_none_or(|name| meta::name(object) == name)
            && self.labels.matches(meta::labels(object))
            && self.fields.matches(object)
    }
}

/// Which state a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Now,
    Exactly(u64),
}

/// A page of a list.
#[derive(Debug)]
pub struct Page {
    pub items: Vec<Arc<Value>>,
    pub revision: u64,
    pub next: Option<String>,
    pub remaining: Option<usize>,
}

impl Api {
    /// An object in the version of `kind`.
    pub fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Arc<Value>, ApiError> {
        let found = self.store.get(&kind.resource, namespace, name);
        found.map(|object| in_version(kind, object)).ok_or_else(|| ApiError::not_found(&kind.resource, name))
    }

    /// One page of a list, in the version of `kind`.
    pub fn list(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        filter: &Filter,
        at: At,
        limit: usize,
        token: Option<&str>,
    ) -> Result<Page, ApiError> {
        let token = token.filter(|token| !token.is_empty()).map(Continue::parse).transpose()?;
        let at = match &token {
            Some(token) if token.revision > 0 => At::Exactly(token.revision),
            Some(_) => At::Now,
            None => at,
        };
        let (objects, revision) = match at {
            At::Now => self.store.list(&kind.resource, namespace),
            At::Exactly(revision) => match self.store.list_at(&kind.resource, namespace, revision) {
                Ok(objects) => (objects, revision),
                Err(_) => return Err(expired(token.as_ref())),
            },
        };
        // Within one namespace, a token may leave that out.
        let after = token.map(|token| match (token.after, namespace) {
            ((of, name), Some(namespace)) if of.is_empty() => (namespace.to_owned(), name),
            (after, _) => after,
        });
        let mut items = objects
            .into_iter()
            .filter(|object| {
                after.as_ref().is_none_or(|after| key(object) > (after.0.as_str(), after.1.as_str()))
            })
            .map(|object| in_version(kind, object))
            .filter(|object| filter.matches(object))
            .peekable();
        let page: Vec<_> = items.by_ref().take(if limit == 0 { usize::MAX } else { limit }).collect();
        let (mut next, mut remaining) = (None, None);
        if items.peek().is_some()
            && let Some(last) = page.last()
        {
            let (namespace, name) = key(last);
            let after = (namespace.to_owned(), name.to_owned());
            next = Some(Continue { revision, after }.to_string());
            // As on a real server: a selector makes the count unknown.
            if filter.labels.is_empty() && filter.fields.is_empty() {
                remaining = Some(items.count());
            }
        }
        Ok(Page { items: page, revision, next, remaining })
    }

    /// Whether there are slices of a Service, with endpoints or without.
    pub(super) fn has_slices(&self, namespace: &str, service: &str) -> bool {
        let slices = self.store.list("endpointslices.discovery.k8s.io", Some(namespace)).0;
        slices.iter().any(|slice| is_of(slice, service))
    }

    /// The address of a ready endpoint of a Service, for a port given by number or name; its cluster IP if none.
    pub fn endpoint_of(&self, namespace: &str, service: &str, port: &str) -> Option<SocketAddr> {
        let found = self.store.get("services", namespace, service)?;
        let ports = meta::items(&found, "/spec/ports");
        let wanted = ports.iter().find(|p| {
            port.is_empty()
                || meta::text(p, "/name") == port
                || p["port"].as_u64().is_some_and(|n| n.to_string() == port)
        })?;
        let slices = self.store.list("endpointslices.discovery.k8s.io", Some(namespace)).0;
        let own = slices.iter().filter(|slice| is_of(slice, service));
        let mut found_any = Vec::new();
        for slice in own {
            let number = meta::items(slice, "/ports")
                .iter()
                .find(|p| meta::text(p, "/name") == meta::text(wanted, "/name"))
                .and_then(|p| p["port"].as_u64())
                .and_then(|number| u16::try_from(number).ok());
            let Some(number) = number else { continue };
            for endpoint in meta::items(slice, "/endpoints") {
                if endpoint["conditions"]["ready"] != json!(false)
                    && let Some(ip) =
                        endpoint["addresses"][0].as_str().and_then(|ip| ip.parse::<IpAddr>().ok())
                {
                    found_any.push(SocketAddr::new(ip, number));
                }
            }
        }
        if found_any.is_empty() {
            return None;
        }
        Some(found_any[rand::random_range(0..found_any.len())])
    }
}

/// Whether a slice is one of the Service's.
fn is_of(slice: &Value, service: &str) -> bool {
    meta::labels(slice)
        .is_some_and(|labels| labels.get("kubernetes.io/service-name").is_some_and(|n| n == service))
}

/// The object in the version asked for: what that version's schema does not know is left out, what it defaults is set.
pub fn in_version(kind: &Kind, object: Arc<Value>) -> Arc<Value> {
    if meta::text(&object, "/apiVersion") == kind.api_version() {
        return object;
    }
    let mut object = Value::clone(&object);
    object["apiVersion"] = json!(kind.api_version());
    if let Some(schema) = kind.schema() {
        schema::prune(schema, &mut object, &mut Vec::new());
        schema::apply_defaults(schema, &mut object);
    }
    let fields = meta::object_mut_self(&mut object);
    for (here, stored) in kind.renamed {
        // What the stored form spells out as nothing is left out here.
        if let Some(value) = fields.shift_remove(*stored).filter(|value| value != "") {
            fields.insert((*here).to_owned(), value);
        }
    }
    if !kind.renamed.is_empty() {
        fields.retain(|_, value| value != "");
    }
    Arc::new(object)
}

/// An object as it is stored, whatever the version it came in.
pub(super) fn as_stored(kind: &Kind, mut object: Value) -> Value {
    if kind.stored == kind.api_version() {
        return object;
    }
    object["apiVersion"] = json!(kind.stored);
    let fields = meta::object_mut_self(&mut object);
    for (here, stored) in kind.renamed {
        if let Some(value) = fields.shift_remove(*here) {
            fields.insert((*stored).to_owned(), value);
        }
    }
    if !kind.renamed.is_empty() {
        shape::default_event(fields);
    }
    object
}

/// What lists are ordered by.
fn key(object: &Value) -> (&str, &str) {
    (meta::namespace(object), meta::name(object))
}

fn expired(token: Option<&Continue>) -> ApiError {
    let Some(token) = token else {
        return ApiError::expired("The resourceVersion for the provided list is too old.");
    };
    let mut error = ApiError::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
         results. Continuing with the provided token results in an inconsistent list - objects that were created, \
         modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    error.next = Some(Continue { revision: 0, after: token.after.clone() }.to_string());
    error
}

/// The token of the next page: the revision of the first page (0: whatever is current) and the last key shown.
struct Continue {
    revision: u64,
    after: (String, String),
}

impl std::fmt::Display for Continue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = json!({ "v": "meta.k8s.io/v1", "rv": self.revision, "start": format!("{}/{}\0", self.after.0, self.after.1) });
        f.write_str(&BASE64.encode(token.to_string()))
    }
}

impl Continue {
    fn parse(text: &str) -> Result<Self, ApiError> {
        let invalid = |why: &str| {
            ApiError::bad_request(format!("invalid continue token: continue key is not valid{why}"))
        };
        let bad = || invalid("");
        let raw = BASE64.decode(text.trim_end_matches('=')).map_err(|_| bad())?;
        let token: Value = serde_json::from_slice(&raw)
            .map_err(|e| invalid(&format!(": {}", body::parse_error(&raw, &e))))?;
        let revision = token["rv"].as_i64().and_then(|rv| u64::try_from(rv).ok()).unwrap_or(0);
        let start = token["start"].as_str().ok_or_else(bad)?.trim_end_matches('\0');
        let (namespace, name) = start.split_once('/').unwrap_or(("", start));
        Ok(Self { revision, after: (namespace.to_owned(), name.to_owned()) })
    }
}
