//! Protobuf messages as JSON, field by field as they came.
//!
//! The generated types have no reflection. What they have is a `Debug` form of a fixed grammar (structs, tuples, lists,
//! maps, scalars), which says every field, also those that no conversion of ours reads. This reads that form.

use serde_json::{Map, Value};
use std::{fmt::Debug, iter::Peekable, net::Ipv6Addr, str::Chars};

/// Nested messages end up no deeper than this; what does is left as text.
const DEPTH: usize = 64;

/// A message as JSON: fields by their protobuf names, `oneof`s by the name of their variant, absent ones left out.
pub(crate) fn json(message: &impl Debug) -> Value {
    let text = format!("{message:?}");
    let mut reader = Reader { rest: text.chars().peekable() };
    match (reader.value(0), reader.rest.next()) {
        (Some(Read::Value(value)), None) => value,
        (Some(Read::Name(_)), None) => Value::Object(Map::new()),
        // A form that this does not know: better shown than hidden.
        _ => Value::String(text),
    }
}

struct Reader<'t> {
    rest: Peekable<Chars<'t>>,
}

enum Read {
    Value(Value),
    Absent,
    /// A name alone: an enum's value, or a message without fields.
    Name(String),
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Option<Read> {
        if depth > DEPTH {
            return None;
        }
        self.space();
        match *self.rest.peek()? {
            '"' => self.string().map(|text| Read::Value(text.into())),
            '[' => self.list(depth),
            '{' => self.map(depth),
            c if c.is_ascii_digit() || c == '-' => self.number(),
            c if c.is_ascii_alphabetic() || c == '_' => self.named(depth),
            _ => None,
        }
    }

    fn named(&mut self, depth: usize) -> Option<Read> {
        let name = self.word();
        match name.as_str() {
            "true" => return Some(Read::Value(true.into())),
            "false" => return Some(Read::Value(false.into())),
            "None" => return Some(Read::Absent),
            "inf" | "NaN" => return Some(Read::Value(name.into())),
            _ => {}
        }
        match self.rest.peek() {
            Some('(') => {
                self.rest.next();
                let inner = self.value(depth + 1)?;
                self.space();
                self.expect(')')?;
                if name == "Some" {
                    return Some(inner);
                }
                let inner = match inner {
                    Read::Value(value) => value,
                    // The one `oneof` of the protocol that holds an enum.
                    Read::Name(value) if name == "Registered" => value.into(),
                    Read::Absent | Read::Name(_) => Value::Object(Map::new()),
                };
                let inner = if name == "Ipv4" { dotted(&inner).unwrap_or(inner) } else { inner };
                Some(Read::Value(Value::Object(Map::from_iter([(name, inner)]))))
            }
            Some(' ') => {
                self.rest.next();
                if self.rest.peek() != Some(&'{') {
                    return Some(Read::Name(name));
                }
                self.rest.next();
                let fields = self.fields(depth)?;
                let special = match name.as_str() {
                    "Duration" => duration(&fields),
                    "IPv6" => groups(&fields),
                    _ => None,
                };
                Some(Read::Value(special.unwrap_or(Value::Object(fields))))
            }
            _ => Some(Read::Name(name)),
        }
    }

    fn fields(&mut self, depth: usize) -> Option<Map<String, Value>> {
        let mut fields = Map::new();
        loop {
            self.space();
            if self.taken('}') {
                return Some(fields);
            }
            let name = self.word();
            self.expect(':')?;
            match self.value(depth + 1)? {
                Read::Value(value) => drop(fields.insert(name, value)),
                Read::Name(value) => drop(fields.insert(name, value.into())),
                Read::Absent => {}
            }
            self.space();
            self.taken(',');
        }
    }

    fn list(&mut self, depth: usize) -> Option<Read> {
        self.expect('[')?;
        let mut items = Vec::new();
        loop {
            self.space();
            if self.taken(']') {
                return Some(Read::Value(items.into()));
            }
            items.push(match self.value(depth + 1)? {
                Read::Value(value) => value,
                Read::Name(name) => name.into(),
                Read::Absent => Value::Null,
            });
            self.space();
            self.taken(',');
        }
    }

    fn map(&mut self, depth: usize) -> Option<Read> {
        self.expect('{')?;
        let mut entries = Map::new();
        loop {
            self.space();
            if self.taken('}') {
                return Some(Read::Value(Value::Object(entries)));
            }
            let key = match self.value(depth + 1)? {
                Read::Value(Value::String(text)) | Read::Name(text) => text,
                Read::Value(other) => other.to_string(),
                Read::Absent => return None,
            };
            self.expect(':')?;
            if let Read::Value(value) = self.value(depth + 1)? {
                entries.insert(key, value);
            }
            self.space();
            self.taken(',');
        }
    }

    fn number(&mut self) -> Option<Read> {
        let mut text = String::new();
        while let Some(c) = self.rest.next_if(|c| c.is_ascii_alphanumeric() || "+-.".contains(*c)) {
            text.push(c);
        }
        serde_json::from_str(&text).ok().map(Read::Value)
    }

    /// As `Debug` escapes it.
    fn string(&mut self) -> Option<String> {
        self.expect('"')?;
        let mut text = String::new();
        loop {
            match self.rest.next()? {
                '"' => return Some(text),
                '\\' => text.push(match self.rest.next()? {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    '0' => '\0',
                    'u' => {
                        self.expect('{')?;
                        let digits: String =
                            std::iter::from_fn(|| self.rest.next_if(char::is_ascii_hexdigit)).collect();
                        self.expect('}')?;
                        char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
                    }
                    other => other,
                }),
                other => text.push(other),
            }
        }
    }

    fn word(&mut self) -> String {
        std::iter::from_fn(|| self.rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_' || *c == '#'))
            .collect::<String>()
            .trim_start_matches("r#")
            .to_owned()
    }

    fn space(&mut self) {
        while self.rest.next_if(|c| c.is_ascii_whitespace()).is_some() {}
    }

    fn taken(&mut self, c: char) -> bool {
        self.rest.next_if(|next| *next == c).is_some()
    }

    fn expect(&mut self, c: char) -> Option<()> {
        self.taken(c).then_some(())
    }
}

/// `10s`, `0.25s`.
fn duration(fields: &Map<String, Value>) -> Option<Value> {
    let (seconds, nanos) = (fields.get("seconds")?.as_i64()?, fields.get("nanos")?.as_i64()?);
    let fraction = format!("{:09}", nanos.unsigned_abs());
    let fraction = fraction.trim_end_matches('0');
    let dot = if fraction.is_empty() { "" } else { "." };
    Some(format!("{seconds}{dot}{fraction}s").into())
}

fn dotted(number: &Value) -> Option<Value> {
    let bits = u32::try_from(number.as_u64()?).ok()?;
    Some(std::net::Ipv4Addr::from(bits).to_string().into())
}

fn groups(fields: &Map<String, Value>) -> Option<Value> {
    let (first, last) = (fields.get("first")?.as_u64()?, fields.get("last")?.as_u64()?);
    Some(Ipv6Addr::from((u128::from(first) << 64) | u128::from(last)).to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use linkerd2_proxy_api::{destination as dst, http_types, inbound, meta, net, outbound};
    use serde_json::json;

    #[test]
    fn a_policy_is_shown_field_by_field() {
        let ip = net::IpAddress { ip: Some(net::ip_address::Ip::Ipv4(0x0a4d_0005)) };
        let ip6 = net::IpAddress {
            ip: Some(net::ip_address::Ip::Ipv6(net::IPv6 { first: 0xfd00 << 48, last: 1 })),
        };
        let server = inbound::Server {
            server_ips: vec![ip, ip6],
            protocol: Some(inbound::ProxyProtocol {
                kind: Some(inbound::proxy_protocol::Kind::Detect(inbound::proxy_protocol::Detect {
                    timeout: Some(std::time::Duration::from_millis(10_250).try_into().unwrap()),
                    http_routes: Vec::new(),
                    http_local_rate_limit: None,
                })),
            }),
            authorizations: vec![inbound::Authz {
                authentication: Some(inbound::Authn {
                    permit: Some(inbound::authn::Permit::Unauthenticated(
                        inbound::authn::PermitUnauthenticated {},
                    )),
                }),
                metadata: Some(meta::Metadata {
                    kind: Some(meta::metadata::Kind::Default("all \"in\"\n".into())),
                }),
                ..Default::default()
            }],
            labels: [("name".to_owned(), "é{}".to_owned())].into(),
        };
        let shown = json(&server);
        assert_eq!(shown["server_ips"], json!([{"ip": {"Ipv4": "10.77.0.5"}}, {"ip": {"Ipv6": "fd00::1"}}]));
        assert_eq!(shown["protocol"]["kind"]["Detect"]["timeout"], "10.25s");
        let authorization = &shown["authorizations"][0];
        assert_eq!(authorization["authentication"]["permit"], json!({"Unauthenticated": {}}));
        assert_eq!(authorization["metadata"]["kind"]["Default"], "all \"in\"\n");
        assert_eq!(authorization["networks"], json!([]));
        assert_eq!(shown["labels"], json!({"name": "é{}"}));
    }

    #[test]
    fn enums_floats_and_empty_messages_have_a_form() {
        let hint = dst::ProtocolHint {
            protocol: Some(dst::protocol_hint::Protocol::H2(dst::protocol_hint::H2 {})),
            opaque_transport: None,
        };
        assert_eq!(json(&hint), json!({"protocol": {"H2": {}}}));
        let post = http_types::http_method::Registered::Post.into();
        let method = http_types::HttpMethod { r#type: Some(http_types::http_method::Type::Registered(post)) };
        assert_eq!(json(&method), json!({"type": {"Registered": "Post"}}));
        let accrual = outbound::ExponentialBackoff { jitter_ratio: 0.5, ..Default::default() };
        assert_eq!(json(&accrual), json!({"jitter_ratio": 0.5, "respect_retry_after_hint": false}));
        assert_eq!(json(&outbound::OutboundPolicy::default()), json!({}));
    }

    #[test]
    fn what_cannot_be_read_is_shown_as_it_is() {
        struct Odd(&'static str);
        impl Debug for Odd {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.0)
            }
        }
        for odd in ["Odd { a: 1..2 }", "Odd { a: ", "A { b: \"\\u{110000}\" }", "x) y", "[[[["] {
            assert_eq!(json(&Odd(odd)), json!(odd));
        }
    }
}
