//! Watches: a position in the store's log, read as a stream of JSON lines.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::error::{ApiError, FieldError};
use super::kinds::Kind;
use super::read::{Filter, in_version};
use super::request::Query;
use super::respond::{Body, Form, Shown, to_json};
use super::store::{Change, Happened};
use super::{Api, meta, table};

/// How often an idle watch says that it is up to date.
const BOOKMARK_EVERY: Duration = Duration::from_secs(30);

/// A watch without `timeoutSeconds` ends after this; clients start anew.
const LONGEST: Duration = Duration::from_secs(3600);

/// What a client asked to watch.
struct Watch {
    api: Arc<Api>,
    kind: Arc<Kind>,
    namespace: Option<String>,
    filter: Filter,
    shown: Shown,
    bookmarks: bool,
    /// Everything up to here was sent.
    position: u64,
    /// Lines to send before the log is read again.
    pending: Vec<Bytes>,
    /// Tables name their columns once.
    headed: bool,
    ends: Instant,
    next_bookmark: Instant,
    over: bool,
}

/// Checks the options of a watch and opens it.
pub(super) fn open(
    api: &Arc<Api>,
    kind: &Arc<Kind>,
    namespace: Option<&str>,
    filter: Filter,
    shown: Shown,
    query: &Query,
) -> Result<Body, ApiError> {
    check_options(query)?;
    let since = query.get("resourceVersion").unwrap_or("");
    let version: u64 = if since.is_empty() {
        0
    } else {
        since.parse().map_err(|_| {
            let why = format!("strconv.ParseUint: parsing {since:?}: invalid syntax");
            ApiError::new(500, "", format!("resourceVersion: Invalid value: {since:?}: {why}"))
        })?
    };
    let seconds = query.number("timeoutSeconds")?.unwrap_or(0);
    let length = match u64::try_from(seconds) {
        Ok(seconds) if seconds > 0 => Duration::from_secs(seconds).min(LONGEST * 24),
        _ => LONGEST,
    };
    let mut watch = Watch {
        api: api.clone(),
        kind: kind.clone(),
        namespace: namespace.map(str::to_owned),
        filter,
        shown,
        bookmarks: query.flag("allowWatchBookmarks"),
        position: version,
        pending: Vec::new(),
        headed: true,
        ends: Instant::now() + length,
        next_bookmark: Instant::now() + BOOKMARK_EVERY,
        over: false,
    };
    // A watch from "0" that wants bookmarks is told where its beginning ends, like one that asks for that.
    let initial = match query.optional_flag("sendInitialEvents") {
        None if since == "0" && watch.bookmarks => Some(true),
        asked => asked,
    };
    if version == 0 || initial == Some(true) {
        watch.start(initial);
    }
    let stream = stream::unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        Some((Ok::<_, std::io::Error>(Frame::data(line)), watch))
    });
    Ok(StreamBody::new(stream).boxed_unsync())
}

fn check_options(query: &Query) -> Result<(), ApiError> {
    let matching = query.get("resourceVersionMatch").unwrap_or("");
    let mut errors = Vec::new();
    let field = "resourceVersionMatch";
    if query.get("sendInitialEvents").is_some() {
        if matching != "NotOlderThan" {
            let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            errors.push(FieldError::forbidden(field, why));
        }
        if !matching.is_empty() && matching != "NotOlderThan" {
            errors.push(FieldError::unsupported(field, matching, &["NotOlderThan"]));
        }
    } else if !matching.is_empty() {
        let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        errors.push(FieldError::forbidden(field, why));
    }
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid("ListOptions.meta.k8s.io", "", &errors)) }
}

impl Watch {
    /// The present state as events, unless the client only wants what comes after it.
    fn start(&mut self, initial: Option<bool>) {
        let (objects, revision) = self.api.store.list(&self.kind.resource, self.namespace.as_deref());
        self.position = revision;
        if initial == Some(false) {
            return;
        }
        for object in objects {
            let object = in_version(&self.kind, object);
            if self.filter.matches(&object) {
                let line = self.event("ADDED", &object);
                self.pending.push(line);
            }
        }
        if initial == Some(true) && self.bookmarks {
            let line = self.bookmark(true);
            self.pending.push(line);
        }
        self.pending.reverse();
    }

    /// The next line, or the end.
    async fn next(&mut self) -> Option<Bytes> {
        let mut changed = self.api.store.subscribe();
        loop {
            if let Some(line) = self.pending.pop() {
                return Some(line);
            }
            if self.over {
                return None;
            }
            changed.mark_unchanged();
            match self.api.store.since(&self.kind.resource, self.position) {
                Ok((changes, revision)) => {
                    let lines: Vec<Bytes> = changes.iter().filter_map(|change| self.line(change)).collect();
                    self.pending = lines;
                    self.pending.reverse();
                    self.position = revision;
                }
                Err(_) => {
                    self.over = true;
                    let current = self.api.store.revision();
                    let error =
                        ApiError::expired(format!("too old resource version: {} ({current})", self.position));
                    return Some(to_line("ERROR", &error.to_status()));
                }
            }
            if !self.pending.is_empty() {
                continue;
            }
            tokio::select! {
                biased;
                woken = changed.changed() => {
                    if woken.is_err() {
                        return None;
                    }
                }
                () = tokio::time::sleep_until(self.ends) => return None,
                () = tokio::time::sleep_until(self.next_bookmark), if self.bookmarks => {
                    self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
                    return Some(self.bookmark(false));
                }
            }
        }
    }

    /// A change as this client sees it: objects come and go as they begin and cease to match.
    fn line(&mut self, change: &Change) -> Option<Bytes> {
        if self.namespace.as_deref().is_some_and(|namespace| meta::namespace(&change.object) != namespace) {
            return None;
        }
        let matched = change.previous.as_ref().is_some_and(|previous| self.filter.matches(previous));
        let matches = change.happened != Happened::Deleted && self.filter.matches(&change.object);
        let event = match (matched, matches) {
            (false, false) => return None,
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        let object = match &change.previous {
            // What no longer matches is shown as the client last saw it, at the revision of the change.
            Some(previous) if event == "DELETED" && change.happened == Happened::Modified => {
                let mut last = Value::clone(previous);
                last["metadata"]["resourceVersion"] = change.object["metadata"]["resourceVersion"].clone();
                Arc::new(last)
            }
            _ => change.object.clone(),
        };
        let object = in_version(&self.kind, object);
        Some(self.event(event, &object))
    }

    fn event(&mut self, event: &str, object: &Arc<Value>) -> Bytes {
        if let Form::Table { beta, include } = self.shown.form {
            let headed = std::mem::replace(&mut self.headed, false);
            let revision = meta::resource_version(object);
            let rows = std::slice::from_ref(object);
            return to_line(event, &table::of(&self.kind, rows, revision, beta, include, headed));
        }
        to_line(event, &self.shown.object(&self.kind, object))
    }

    fn bookmark(&mut self, initial_end: bool) -> Bytes {
        let mut metadata = json!({ "resourceVersion": self.position.to_string() });
        if initial_end {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let object = match self.shown.form {
            Form::Object => {
                json!({ "kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata })
            }
            Form::Metadata => {
                json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata })
            }
            Form::Table { beta, include } => {
                let revision = self.position.to_string();
                let headed = std::mem::replace(&mut self.headed, false);
                let mut table = table::of(&self.kind, &[], &revision, beta, include, headed);
                table["metadata"] = metadata;
                table
            }
        };
        to_line("BOOKMARK", &object)
    }
}

fn to_line(event: &str, object: &Value) -> Bytes {
    to_json(&json!({ "type": event, "object": object })).into()
}
