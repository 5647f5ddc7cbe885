//! The access log: one line on stderr for each inbound request, at its response's end, never waited for.
//!
//! Lines go through a bounded queue to a thread of their own, as process logs do. Without the variable there is neither.

use crate::config::{AccessLog as Settings, AccessLogFormat, parse::duration};
use http::{HeaderMap, Method, Request, Uri, Version, header};
use std::{
    fmt::Write as _,
    io::Write,
    net::SocketAddr,
    time::{Duration, SystemTime},
};
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use weft_fault::Code;

/// Lines that wait to be written; more are dropped and counted.
const LINES: usize = 8_192;
/// What of a field's value a line holds.
const VALUE_BYTES: usize = 2_048;

/// Which requests are logged; without conditions, all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter(Vec<Condition>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    StatusAtLeast(u16),
    LatencyAtLeast(Duration),
    AnyFault,
    Fault(Code),
}

impl Filter {
    /// Reads conditions joined by `||`; the error says which one is wrong and what is expected.
    pub fn parse(text: &str) -> Result<Filter, String> {
        text.split("||").map(|part| condition(part.trim())).collect::<Result<_, _>>().map(Filter)
    }

    fn lets_through(&self, status: u16, total: Duration, fault: Option<Code>) -> bool {
        self.0.is_empty()
            || self.0.iter().any(|condition| match condition {
                Condition::StatusAtLeast(least) => status >= *least,
                Condition::LatencyAtLeast(least) => total >= *least,
                Condition::AnyFault => fault.is_some(),
                Condition::Fault(code) => fault == Some(*code),
            })
    }
}

fn condition(text: &str) -> Result<Condition, String> {
    let wrong = |what: &str| format!("{what} where it says {text:?}");
    if text == "fault" {
        return Ok(Condition::AnyFault);
    }
    if let Some((name, value)) = text.split_once(">=") {
        let value = value.trim();
        return match name.trim() {
            "status" => {
                let status = value.parse().ok().filter(|status| (100..=999).contains(status));
                status.map(Condition::StatusAtLeast).ok_or_else(|| wrong("a status such as 500"))
            }
            "latency" => {
                duration(value).map(Condition::LatencyAtLeast).ok_or_else(|| wrong("a duration such as 1s"))
            }
            _ => Err(wrong("status or latency before >=")),
        };
    }
    match text.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
        Some(("fault", id)) => {
            let code = Code::ALL.iter().copied().find(|code| code.id().eq_ignore_ascii_case(id));
            code.map(Condition::Fault).ok_or_else(|| wrong("a code such as POL-001"))
        }
        _ => Err(wrong("status>=N, latency>=DURATION, fault or fault=CODE")),
    }
}

/// The log of this process.
pub struct AccessLog {
    settings: Settings,
    writer: NonBlocking,
    /// Writes what waits when it is dropped.
    _guard: WorkerGuard,
}

/// What a request says about itself.
#[derive(Debug)]
pub struct Entry {
    client: SocketAddr,
    client_id: Option<String>,
    at: SystemTime,
    method: Method,
    uri: Uri,
    version: Version,
    trace_id: String,
    request_bytes: String,
    user_agent: String,
    host: String,
}

/// How it ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub status: u16,
    pub fault: Option<Code>,
    pub response_bytes: u64,
    pub total: Duration,
    /// What the proxy itself spent on it.
    pub processing: Duration,
}

impl AccessLog {
    /// Starts the thread that writes.
    #[must_use]
    pub fn start(settings: Settings, to: impl Write + Send + 'static) -> AccessLog {
        let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES);
        let (writer, guard) = builder.thread_name("access-log").finish(to);
        AccessLog { settings, writer, _guard: guard }
    }

    /// Lines that found the queue full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.writer.error_counter().dropped_lines() as u64
    }

    pub fn write(&self, entry: &Entry, ended: Ended) {
        if !self.settings.filter.lets_through(ended.status, ended.total, ended.fault) {
            return;
        }
        let line = match self.settings.format {
            AccessLogFormat::Apache => entry.apache(ended),
            AccessLogFormat::Json => entry.json(ended),
        };
        // A full queue drops the line and counts it; the queue's end is the process's.
        let _dropped = self.writer.clone().write_all(line.as_bytes());
    }
}

impl Entry {
    pub fn new<B>(request: &Request<B>, client: SocketAddr, client_id: Option<&str>) -> Entry {
        let headers = request.headers();
        let value = |name| text(headers, name);
        let trace_id =
            match headers.get("traceparent").and_then(|value| value.to_str().ok()?.split('-').nth(1)) {
                Some(id) => bounded(id),
                None => ["x-b3-traceid", "x-request-id", "x-amzn-trace-id"]
                    .into_iter()
                    .map(|name| text(headers, name))
                    .find(|value| !value.is_empty())
                    .unwrap_or_default(),
            };
        Entry {
            client,
            client_id: client_id.map(str::to_owned),
            at: SystemTime::now(),
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            trace_id,
            request_bytes: value(header::CONTENT_LENGTH.as_str()),
            user_agent: value(header::USER_AGENT.as_str()),
            host: crate::http::headers::authority(request).map(bounded).unwrap_or_default(),
        }
    }

    fn apache(&self, ended: Ended) -> String {
        let Entry { client, method, version, .. } = self;
        let (client_id, at) = (self.client_id.as_deref().unwrap_or("-"), timestamp(self.at));
        let uri = bounded(&self.uri.to_string());
        let mut line =
            format!("{client} {client_id} - [{at}] \"{method} {uri} {version:?}\" {}", ended.status);
        if let Some(code) = ended.fault {
            // Writing to a string cannot fail.
            let _written = write!(line, " {}", code.id());
        }
        line.push('\n');
        line
    }

    fn json(&self, ended: Ended) -> String {
        // Names, order and the quotes around numbers are Linkerd's; `fault` is ours.
        let mut line = serde_json::json!({
            "client.addr": self.client,
            "client.id": self.client_id.as_deref().unwrap_or("-"),
            "host": self.host,
            "method": self.method.as_str(),
            "processing_ns": ended.processing.as_nanos().to_string(),
            "request_bytes": self.request_bytes,
            "response_bytes": ended.response_bytes.to_string(),
            "status": ended.status,
            "timestamp": timestamp(self.at),
            "total_ns": ended.total.as_nanos().to_string(),
            "trace_id": self.trace_id,
            "uri": bounded(&self.uri.to_string()),
            "user_agent": self.user_agent,
            "version": format!("{:?}", self.version),
        });
        if let Some(code) = ended.fault {
            line["fault"] = code.id().into();
        }
        format!("{line}\n")
    }
}

fn text(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).map(|value| bounded(&String::from_utf8_lossy(value.as_bytes()))).unwrap_or_default()
}

fn bounded(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(VALUE_BYTES).collect()
}

/// RFC 3339 in UTC, to the nanosecond.
pub fn timestamp(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years are counted from March, so that a leap day is the last of its year; an era is 400 years of 146,097 days.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z", since.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        let request = Request::post("http://web.shop:8080/cart?x=1")
            .version(Version::HTTP_2)
            .header("content-length", "12")
            .header("user-agent", "curl/8")
            .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
            .body(())
            .unwrap();
        let mut entry =
            Entry::new(&request, "10.0.0.1:4321".parse().unwrap(), Some("web.shop.serviceaccount"));
        entry.at = SystemTime::UNIX_EPOCH + Duration::new(1_661_286_822, 321_746_212);
        entry
    }

    const ENDED: Ended = Ended {
        status: 403,
        fault: Some(Code::NoRuleAllows),
        response_bytes: 19_627,
        total: Duration::from_nanos(14_441_135),
        processing: Duration::from_nanos(39_826),
    };

    #[test]
    fn lines_are_linkerds_and_name_the_fault() {
        assert_eq!(
            entry().apache(ENDED),
            "10.0.0.1:4321 web.shop.serviceaccount - [2022-08-23T20:33:42.321746212Z] \
             \"POST http://web.shop:8080/cart?x=1 HTTP/2.0\" 403 POL-001\n"
        );
        assert_eq!(
            entry().apache(Ended { fault: None, status: 200, ..ENDED }).rsplit_once('"').unwrap().1,
            " 200\n"
        );
        assert_eq!(
            entry().json(ENDED),
            "{\"client.addr\":\"10.0.0.1:4321\",\"client.id\":\"web.shop.serviceaccount\",\"host\":\"web.shop:8080\",\
             \"method\":\"POST\",\"processing_ns\":\"39826\",\"request_bytes\":\"12\",\"response_bytes\":\"19627\",\
             \"status\":403,\"timestamp\":\"2022-08-23T20:33:42.321746212Z\",\"total_ns\":\"14441135\",\
             \"trace_id\":\"0af7651916cd43dd8448eb211c80319c\",\"uri\":\"http://web.shop:8080/cart?x=1\",\
             \"user_agent\":\"curl/8\",\"version\":\"HTTP/2.0\",\"fault\":\"POL-001\"}\n"
        );
    }

    #[test]
    fn a_client_without_an_identity_has_a_dash() {
        let request = Request::get("/ping").header("host", "web").body(()).unwrap();
        let entry = Entry::new(&request, "10.0.0.1:1".parse().unwrap(), None);
        assert!(entry.apache(ENDED).starts_with("10.0.0.1:1 - - ["));
        assert!(entry.json(ENDED).contains("\"host\":\"web\""));
    }

    #[test]
    fn leap_days_and_centuries_are_right() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_709_251_199, "2024-02-29T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            let shown = timestamp(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
            assert_eq!(shown, format!("{expected}.000000000Z"));
        }
    }

    #[test]
    fn conditions_select_and_mistakes_are_named() {
        let filter = Filter::parse("status>=500 || latency>=1s || fault=pol-001").unwrap();
        let ms = Duration::from_millis;
        assert!(!filter.lets_through(404, ms(10), None));
        assert!(!filter.lets_through(403, ms(10), Some(Code::RateLimited)));
        assert!(filter.lets_through(500, ms(10), None));
        assert!(filter.lets_through(200, ms(1_000), None));
        assert!(filter.lets_through(403, ms(10), Some(Code::NoRuleAllows)));
        assert!(Filter::parse("fault").unwrap().lets_through(429, ms(1), Some(Code::RateLimited)));
        assert!(Filter::default().lets_through(200, ms(1), None));
        for (bad, told) in [
            ("status>=ok", "a status such as 500"),
            ("latency>=1", "a duration such as 1s"),
            ("size>=1", "status or latency before >="),
            ("fault=XYZ", "a code such as POL-001"),
            ("status>=500 ||", "status>=N, latency>=DURATION, fault or fault=CODE"),
            ("status<500", "status>=N"),
        ] {
            let why = Filter::parse(bad).unwrap_err();
            assert!(why.contains(told) && why.contains("where it says"), "{bad}: {why}");
        }
    }
}
