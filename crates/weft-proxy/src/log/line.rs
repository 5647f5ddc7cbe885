//! One line of the log: Linkerd's plain shape, or JSON.
//!
//! The data path opens no tracing spans, which would cost every request something. An event that belongs to a connection
//! carries the text of its spans in a field of the name `spans`, made when the line is written; here it is put where
//! spans stand.

use serde_json::{Map, Value, json};
use std::{
    fmt::{self, Debug, Write},
    time::{Duration, Instant},
};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// The field that holds the text of the spans.
const SPANS: &str = "spans";

/// `[    12.345678s]  WARN ThreadId(02) inbound:accept{client.addr=…}:server{port=…}: target: message key=value at=…`
pub(super) struct Plain {
    pub(super) started: Instant,
}

/// One object: wall time, level, fields, target, list of spans, thread.
pub(super) struct Json;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        line.write_str(&plain(event, self.started.elapsed(), &thread(), &now()))
    }
}

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        line.write_str(&json(event))
    }
}

/// The line as JSON, with its end.
pub(super) fn json(event: &Event<'_>) -> String {
    let mut seen = Seen::default();
    event.record(&mut seen);
    let mut fields = Map::new();
    if let Some(message) = seen.message {
        fields.insert("message".into(), message.into());
    }
    for (name, value) in seen.fields {
        fields.insert(name.into(), value.json);
    }
    let spans: Vec<Value> = seen.spans.map_or_else(Vec::new, |spans| split(&spans));
    let meta = event.metadata();
    let line = json!({
        "timestamp": now(),
        "level": meta.level().as_str(),
        "fields": fields,
        "target": meta.target(),
        "spans": spans,
        "threadId": format!("{:?}", std::thread::current().id()),
    });
    format!("{line}\n")
}

fn plain(event: &Event<'_>, up: Duration, thread: &str, wall: &str) -> String {
    let mut seen = Seen::default();
    event.record(&mut seen);
    let meta = event.metadata();
    let mut line =
        format!("[{:>6}.{:06}s] {:>5} {thread} ", up.as_secs(), up.subsec_micros(), meta.level().as_str());
    if let Some(spans) = seen.spans.filter(|spans| !spans.is_empty()) {
        line.push_str(&spans);
        line.push_str(": ");
    }
    line.push_str(meta.target());
    line.push(':');
    if let Some(message) = seen.message {
        line.push(' ');
        line.push_str(&message);
    }
    for (name, value) in seen.fields {
        // Writing to a String cannot fail.
        let _infallible = write!(line, " {name}={}", value.text);
    }
    // A line is one line, whatever a peer put into its names.
    let mut line = line.replace(['\n', '\r'], " ");
    line.push_str(" at=");
    line.push_str(wall);
    line.push('\n');
    line
}

/// As `tracing` writes it: two digits at least.
fn thread() -> String {
    let id = format!("{:?}", std::thread::current().id());
    match id.strip_prefix("ThreadId(").and_then(|rest| rest.strip_suffix(')')) {
        Some(number) => format!("ThreadId({number:0>2})"),
        None => id,
    }
}

fn now() -> String {
    let mut now = String::new();
    // Writing to a String cannot fail.
    let _infallible = SystemTime.format_time(&mut Writer::new(&mut now));
    now
}

/// `a{x=1 y=2}:b` as objects with a name each.
fn split(spans: &str) -> Vec<Value> {
    let mut all = Vec::new();
    let mut rest = spans;
    while !rest.is_empty() {
        let end = rest.find([':', '{']).unwrap_or(rest.len());
        let mut span = Map::new();
        span.insert("name".into(), rest[..end].into());
        rest = &rest[end..];
        if let Some(inside) = rest.strip_prefix('{') {
            let end = inside.find('}').unwrap_or(inside.len());
            for (name, value) in inside[..end].split(' ').filter_map(|pair| pair.split_once('=')) {
                span.insert(name.into(), value.into());
            }
            rest = inside.get(end + 1..).unwrap_or("");
        }
        rest = rest.strip_prefix(':').unwrap_or(rest);
        all.push(Value::Object(span));
    }
    all
}

/// The fields of an event.
#[derive(Default)]
struct Seen {
    message: Option<String>,
    spans: Option<String>,
    fields: Vec<(&'static str, Said)>,
}

struct Said {
    text: String,
    json: Value,
}

impl Seen {
    fn see(&mut self, field: &Field, text: String, json: Value) {
        match field.name() {
            "message" => self.message = Some(text),
            SPANS => self.spans = Some(text),
            name => self.fields.push((name, Said { text, json })),
        }
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        self.see(field, text.clone(), text.into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        let named = matches!(field.name(), "message" | SPANS);
        let text = if named { value.to_string() } else { format!("{value:?}") };
        self.see(field, text, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.see(field, value.to_string(), value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.see(field, value.to_string(), value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.see(field, value.to_string(), value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.see(field, value.to_string(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt};

    /// Both forms of every event.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<(String, String)>>>);

    impl<S: Subscriber> Layer<S> for Kept {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let up = Duration::from_micros(12_345_678);
            let plain = plain(event, up, "ThreadId(02)", "2026-11-30T10:00:00.000000Z");
            self.0.lock().unwrap().push((plain, json(event)));
        }
    }

    fn written(log: impl FnOnce()) -> (String, Value) {
        // With one subscriber alone, another thread's would decide what is heard here.
        crate::log::to_test_output();
        let kept = Kept::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(kept.clone()), log);
        let (plain, json) = kept.0.lock().unwrap().pop().expect("an event was logged");
        (plain, serde_json::from_str(&json).unwrap())
    }

    #[test]
    fn a_line_has_linkerds_shape() {
        let spans = "inbound:accept{client.addr=10.1.1.9:4321 target.addr=10.1.1.1:80}:server{port=80}";
        let (plain, json) = written(|| {
            tracing::warn!(target: "weft_proxy::report", spans, code = %"POL-001", sz = 0, "Request denied");
        });
        assert_eq!(
            plain,
            "[    12.345678s]  WARN ThreadId(02) inbound:accept{client.addr=10.1.1.9:4321 target.addr=10.1.1.1:80}\
             :server{port=80}: weft_proxy::report: Request denied code=POL-001 sz=0 at=2026-11-30T10:00:00.000000Z\n"
        );
        assert_eq!(json["level"], "WARN");
        assert_eq!(json["target"], "weft_proxy::report");
        assert_eq!(json["fields"], json!({"message": "Request denied", "code": "POL-001", "sz": 0}));
        assert_eq!(
            json["spans"],
            json!([
                {"name": "inbound"},
                {"name": "accept", "client.addr": "10.1.1.9:4321", "target.addr": "10.1.1.1:80"},
                {"name": "server", "port": "80"},
            ])
        );
        assert!(json["threadId"].as_str().unwrap().starts_with("ThreadId("));
        assert!(json["timestamp"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn a_line_is_one_line_and_needs_no_spans() {
        let (plain, json) = written(|| {
            tracing::info!(target: "weft", peer = %"a\nb", name = "q\"r", "two\nlines");
        });
        assert_eq!(
            plain,
            "[    12.345678s]  INFO ThreadId(02) weft: two lines peer=a b name=\"q\\\"r\" at=2026-11-30T10:00:00.000000Z\n"
        );
        assert_eq!(json["spans"], json!([]));
        assert_eq!(json["fields"]["message"], "two\nlines");
    }

    #[test]
    fn spans_are_taken_apart_as_they_were_put_together() {
        assert_eq!(
            split("a:b{x=[::1]:80 y=2}:c{}:d{z=:}"),
            vec![
                json!({"name": "a"}),
                json!({"name": "b", "x": "[::1]:80", "y": "2"}),
                json!({"name": "c"}),
                json!({"name": "d", "z": ":"}),
            ]
        );
        assert_eq!(split("a{x=1"), vec![json!({"name": "a", "x": "1"})]);
    }
}
