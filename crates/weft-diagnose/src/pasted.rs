//! What a log line says, with nothing else at hand: of weft's proxies or of Linkerd's, as text or JSON, and as log systems
//! export either (a JSON object or a CSV row around it, with the pod's name beside it).

pub mod group;
mod words;

use serde::Serialize;
use serde_json::{Map, Value};
use std::net::{IpAddr, SocketAddr};
use weft_wire::record::Direction;

/// Lines that are longer say nothing that a shorter one does not.
const LONGEST: usize = 64 * 1024;

/// A line that tells of a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Told {
    /// Counted from 1.
    pub line: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_unix_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// What weft calls it. Lines of other proxies can stand for several: the likeliest first.
    pub codes: Vec<&'static str>,
    /// The code stands in the line.
    pub certain: bool,
    /// Whose log it is, `namespace/name`, where the export says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<IpAddr>,
    /// The address that was dialled, or the endpoint behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<SocketAddr>,
    /// The name that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// The identity that the other end presented, or why it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<String>,
    /// The connection's number in the recorder of the proxy that wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    pub text: String,
}

/// The failures that a text tells of, in its order. Lines about anything else are passed over.
pub fn read(text: &str) -> Vec<Told> {
    let mut columns: Option<Vec<String>> = None;
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.len() > LONGEST {
            continue;
        }
        let told = if line.starts_with('{') {
            serde_json::from_str::<Map<String, Value>>(line).ok().and_then(|object| of_json(&object))
        } else if let Some(columns) = &columns {
            of_row(columns, line)
        } else if let Some(header) = header(line) {
            columns = Some(header);
            None
        } else {
            of_text(line)
        };
        found.extend(told.map(|told| Told { line: at + 1, ..told }));
    }
    found
}

/// The columns of a CSV export: its first line names one of those that hold messages.
fn header(line: &str) -> Option<Vec<String>> {
    let columns = cells(line);
    let is_header = columns.len() > 1 && columns.iter().any(|name| is_message(name));
    is_header.then_some(columns)
}

fn is_message(name: &str) -> bool {
    matches!(
        name.to_ascii_lowercase().as_str(),
        "message" | "log" | "msg" | "line" | "content" | "body" | "textpayload"
    )
}

/// The cells of one CSV row (RFC 4180). A cell that goes on over several lines is cut off.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let (mut quoted, mut chars) = (false, line.chars().peekable());
    while let Some(c) = chars.next() {
        let cell = cells.last_mut().expect("there is one from the beginning");
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                cell.push('"');
                chars.next();
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            c => cell.push(c),
        }
    }
    cells
}

fn of_row(columns: &[String], line: &str) -> Option<Told> {
    let object: Map<String, Value> =
        columns.iter().cloned().zip(cells(line).into_iter().map(Value::String)).collect();
    of_json(&object)
}

/// An object that is a line (weft's and Linkerd's own JSON), or that has one in it.
fn of_json(object: &Map<String, Value>) -> Option<Told> {
    let mut told = match inner(object) {
        Some(text) if text.trim_start().starts_with('{') => {
            of_json(&serde_json::from_str::<Map<String, Value>>(text.trim()).ok()?)?
        }
        Some(text) => of_text(text.trim())?,
        None => {
            let mut flat = String::new();
            flatten(object, "", &mut flat);
            of_text(&flat)?
        }
    };
    let text_of = |path: &[&str]| {
        let mut at = object.get(path[0])?;
        for name in &path[1..] {
            at = at.get(name)?;
        }
        at.as_str().map(str::to_owned)
    };
    let any = |paths: &[&[&str]]| paths.iter().find_map(|path| text_of(path));
    let namespace = any(&[
        &["kubernetes", "namespace_name"],
        &["kubernetes", "namespace"],
        &["namespace"],
        &["kubernetes.namespace_name"],
        &["kubernetes.namespace"],
    ]);
    let pod = any(&[
        &["kubernetes", "pod_name"],
        &["kubernetes", "pod", "name"],
        &["pod"],
        &["pod_name"],
        &["kubernetes.pod_name"],
        &["kubernetes.pod.name"],
    ]);
    if let Some(pod) = pod {
        told.pod = Some(namespace.map_or(pod.clone(), |namespace| format!("{namespace}/{pod}")));
    }
    if told.at_unix_ms.is_none() {
        let at = any(&[&["timestamp"], &["time"], &["@timestamp"], &["ts"]]);
        told.at_unix_ms = at.and_then(|text| instant(&text));
    }
    Some(told)
}

/// The line that an export holds. A line of a proxy's own has fields beside its message, and is one itself.
fn inner(object: &Map<String, Value>) -> Option<&str> {
    if object.contains_key("fields") || (object.contains_key("level") && object.contains_key("target")) {
        return None;
    }
    object.iter().find_map(|(name, value)| is_message(name).then(|| value.as_str()).flatten())
}

/// Nested objects as `name=value` pairs, in which a text line has them too.
fn flatten(object: &Map<String, Value>, prefix: &str, out: &mut String) {
    for (name, value) in object {
        match value {
            Value::Object(inner) => flatten(inner, &format!("{prefix}{name}."), out),
            // The spans, which a text line has in front.
            Value::Array(spans) => {
                for span in spans.iter().filter_map(Value::as_object) {
                    flatten(span, "", out);
                }
            }
            Value::String(text) if name == "message" || (prefix.is_empty() && name == "name") => {
                out.push_str(text);
                out.push(' ');
            }
            Value::String(text) => out.push_str(&format!("{name}={text} ")),
            other => out.push_str(&format!("{name}={other} ")),
        }
    }
}

fn of_text(line: &str) -> Option<Told> {
    let written = words::code(line);
    let codes: Vec<&'static str> = match written {
        Some(code) => vec![code.id()],
        None => words::likely(line).iter().map(|code| code.id()).collect(),
    };
    if codes.is_empty() {
        return None;
    }
    let direction = words::direction(line);
    let addresses = words::addresses(line);
    Some(Told {
        at_unix_ms: words::time(line).and_then(instant),
        direction,
        codes,
        certain: written.is_some(),
        client: addresses.client,
        server: addresses.server,
        authority: addresses.authority,
        tls: words::tls(line),
        connection: words::connection(line),
        text: line.chars().take(400).collect(),
        ..Told::default()
    })
}

fn instant(text: &str) -> Option<u64> {
    let at: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(at.as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line, direction, codes, whether the code is certain, client, server, authority.
    type Row = (
        &'static str,
        Option<Direction>,
        &'static [&'static str],
        bool,
        &'static str,
        &'static str,
        &'static str,
    );

    #[test]
    fn lines_of_both_proxies() {
        use Direction::{Inbound, Outbound};
        let rows: [Row; 12] = [
            // weft's.
            (
                "[    12.345678s]  WARN ThreadId(02) inbound:accept{client.addr=10.1.1.9:4321 target.addr=10.1.1.1:80}:server{port=80}: weft_proxy::report: Request denied client.tls=mutual client.ip=10.1.1.9 target=10.1.1.1:80 repeated=0 code=POL-001 error=POL-001 no rule allows at=2026-11-30T10:00:00.000000Z",
                Some(Inbound),
                &["POL-001"],
                true,
                "10.1.1.9",
                "10.1.1.1:80",
                "",
            ),
            (
                "[     3.1s]  WARN ThreadId(01) outbound:accept{client.addr=10.1.1.2:50000 target.addr=10.96.0.9:80}: weft_proxy::report: HTTP Balancer service in fail-fast client=10.1.1.2:50000 target=web.shop.svc.cluster.local:80 repeated=3 code=UPS-001 error=UPS-001 there is no endpoint",
                Some(Outbound),
                &["UPS-001"],
                true,
                "10.1.1.2",
                "10.96.0.9:80",
                "web.shop.svc.cluster.local:80",
            ),
            (
                r#"{"timestamp":"2026-11-30T10:00:00.000000Z","level":"WARN","fields":{"message":"Failed to connect","code":"NET-002","error":"NET-002 no answer"},"target":"weft_proxy::report","spans":[{"name":"outbound"},{"name":"endpoint","peer.addr":"10.1.1.1:4143"}],"threadId":"ThreadId(1)"}"#,
                Some(Outbound),
                &["NET-002"],
                true,
                "",
                "10.1.1.1:4143",
                "",
            ),
            // Linkerd's.
            (
                "[   123.4s]  INFO ThreadId(01) inbound:server{port=4143}: linkerd_app_core::serve: Connection closed error=TLS detection timed out client.addr=10.1.1.9:40000 server.addr=10.1.1.1:4143",
                Some(Inbound),
                &["TLS-008"],
                false,
                "10.1.1.9",
                "10.1.1.1:4143",
                "",
            ),
            (
                "[    50.1s]  WARN ThreadId(01) outbound:proxy{addr=10.96.0.9:80}:service{ns=shop name=web port=80}:endpoint{addr=10.1.1.1:4143}: linkerd_reconnect: Failed to connect error=connect timed out after 1s",
                Some(Outbound),
                &["NET-002"],
                false,
                "",
                "10.96.0.9:80",
                "",
            ),
            (
                "[    50.1s]  INFO ThreadId(01) outbound:proxy{addr=10.96.0.9:80}:rescue{client.addr=10.1.1.2:53928}: linkerd_app_core::errors::respond: HTTP/1.1 request failed error=logical service web.shop.svc.cluster.local:80: service in fail-fast error.sources=[]",
                Some(Outbound),
                &["UPS-004", "UPS-001", "UPS-003", "UPS-018", "UPS-005"],
                false,
                "10.1.1.2",
                "10.96.0.9:80",
                "web.shop.svc.cluster.local:80",
            ),
            (
                "[    50.1s]  WARN ThreadId(01) outbound:proxy{addr=10.96.0.9:80}: x: error=Service.shop.web:80: service unavailable",
                Some(Outbound),
                &["UPS-004", "UPS-001", "UPS-003"],
                false,
                "",
                "10.96.0.9:80",
                "web.shop:80",
            ),
            (
                "[     8.2s]  INFO ThreadId(01) inbound:server{port=80}:rescue{client.addr=10.1.1.9:40000}: linkerd_app_inbound::policy::http: Request denied server.name=web route.name=default client.tls=None(NoClientHello) client.ip=10.1.1.9",
                Some(Inbound),
                &["POL-002"],
                false,
                "10.1.1.9",
                "",
                "",
            ),
            (
                "[     8.2s]  INFO ThreadId(01) inbound: x: Connection closed error=connection refused client.addr=10.1.1.9:1",
                Some(Inbound),
                &["UPS-010"],
                false,
                "10.1.1.9",
                "",
                "",
            ),
            (
                "[    99.9s]  INFO ThreadId(01) inbound:server{port=4143}:direct: linkerd_app_core::serve: Connection closed error=direct connections must be mutually authenticated error.sources=[identity required] client.addr=10.9.9.9:7",
                Some(Inbound),
                &["TLS-006", "TLS-012"],
                false,
                "10.9.9.9",
                "",
                "",
            ),
            // Exported.
            (
                r#"{"log":"[   123.4s]  INFO ThreadId(01) outbound: x: tls handshake eof endpoint=10.1.1.1:4143\n","kubernetes":{"namespace_name":"shop","pod_name":"web-1"},"time":"2026-11-30T10:00:00Z"}"#,
                Some(Outbound),
                &["TLS-002"],
                false,
                "",
                "10.1.1.1:4143",
                "",
            ),
            ("GET / 200 client=10.1.1.1:1", None, &[], false, "", "", ""),
        ];
        for (line, direction, codes, certain, client, server, authority) in rows {
            let told = read(line);
            if codes.is_empty() {
                assert!(told.is_empty(), "{line}: {told:?}");
                continue;
            }
            let [told] = &told[..] else { panic!("{line}: {told:?}") };
            let text = |shown: Option<String>| shown.unwrap_or_default();
            assert_eq!(
                (told.direction, &told.codes[..], told.certain),
                (direction, codes, certain),
                "{line}"
            );
            assert_eq!(text(told.client.map(|ip| ip.to_string())), client, "{line}");
            assert_eq!(text(told.server.map(|addr| addr.to_string())), server, "{line}");
            assert_eq!(text(told.authority.clone()), authority, "{line}");
        }
    }

    #[test]
    fn exports_name_the_pod_and_the_time() {
        let csv = "time,namespace,pod,message\n\
            2026-11-30T10:00:00Z,shop,web-1,\"WARN outbound: x: \"\"Failed to connect\"\", error=connect timed out after 1s\"\n\
            2026-11-30T10:00:01Z,shop,web-1,all is well\n";
        let told = read(csv);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].pod.as_deref(), Some("shop/web-1"));
        assert_eq!((told[0].line, told[0].codes.clone()), (2, vec!["NET-002"]));
        assert_eq!(told[0].at_unix_ms, Some(1_796_032_800_000));
        let json =
            r#"{"log":"INFO inbound: tls handshake eof","kubernetes":{"namespace_name":"a","pod_name":"b"}}"#;
        assert_eq!(read(json)[0].pod.as_deref(), Some("a/b"));
    }

    #[test]
    fn what_is_no_log_is_passed_over() {
        for text in [
            "",
            "{",
            "{}",
            "[1,2]",
            "\u{0}\u{ff}",
            "a,b,c\n1,2,3",
            &"x".repeat(LONGEST + 1),
            "{\"log\": 7}",
            "=====",
            "{{{{",
        ] {
            assert_eq!(read(text), [], "{text:.20}");
        }
    }
}
