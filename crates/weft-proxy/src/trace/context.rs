//! The trace that a request belongs to, in the three forms in which it is told: W3C's `traceparent`, gRPC's
//! `grpc-trace-bin`, and B3's `x-b3-*`. Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use http::{HeaderMap, HeaderValue};

const W3C: &str = "traceparent";
const GRPC: &str = "grpc-trace-bin";
const B3_TRACE: &str = "x-b3-traceid";
const B3_SPAN: &str = "x-b3-spanid";
const B3_PARENT: &str = "x-b3-parentspanid";
const B3_SAMPLED: &str = "x-b3-sampled";
const B3_FLAGS: &str = "x-b3-flags";

/// Bytes of the binary form: a version, and three fields with a number each.
const BINARY: usize = 29;

/// A sampled trace, as far as a request's head tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) trace: [u8; 16],
    /// The span that this request comes from.
    pub(crate) parent: [u8; 8],
    pub(crate) flags: u8,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    W3c,
    Grpc,
    B3,
}

/// The context of a request whose trace is sampled. The first form that is there counts, even if it cannot be read.
pub(crate) fn read(headers: &HeaderMap) -> Option<Context> {
    let found = if let Some(value) = headers.get(W3C) {
        w3c(value.to_str().ok()?)?
    } else if let Some(value) = headers.get(GRPC) {
        binary(value)?
    } else {
        b3(headers)?
    };
    // An id of zeros is none (W3C Trace Context, 3.2.2.3).
    (found.flags & 1 == 1 && found.trace != [0; 16] && found.parent != [0; 8]).then_some(found)
}

/// Tells the next hop about `span`, in the form that came. Where the same trace is told in B3's form, too, it is told there as
/// well: who reads that form must not take this hop for left out.
pub(crate) fn write(headers: &mut HeaderMap, context: &Context, span: [u8; 8]) {
    let Context { trace, parent, flags, form } = context;
    match form {
        Form::W3c => {
            let text = format!("00-{}-{}-{flags:02x}", hex(trace), hex(&span));
            insert(headers, W3C, &text);
        }
        Form::Grpc => {
            let mut bytes = Vec::with_capacity(BINARY);
            bytes.extend_from_slice(&[0, 0]);
            bytes.extend_from_slice(trace);
            bytes.push(1);
            bytes.extend_from_slice(&span);
            bytes.extend_from_slice(&[2, *flags]);
            insert(headers, GRPC, &STANDARD_NO_PAD.encode(bytes));
        }
        Form::B3 => {}
    }
    let same_trace = *form == Form::B3 || b3(headers).is_some_and(|other| other.trace == *trace);
    if same_trace {
        insert(headers, B3_PARENT, &hex(parent));
        insert(headers, B3_SPAN, &hex(&span));
    }
}

fn insert(headers: &mut HeaderMap, name: &'static str, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

/// `VERSION-TRACE-PARENT-FLAGS`; later versions may have more fields behind these.
fn w3c(text: &str) -> Option<Context> {
    let mut parts = text.trim().split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let [version] = unhex::<1>(version)?;
    if version == 0xff || (version == 0 && parts.next().is_some()) {
        return None;
    }
    let [flags] = unhex(flags)?;
    Some(Context { trace: unhex(trace)?, parent: unhex(parent)?, flags, form: Form::W3c })
}

fn binary(value: &HeaderValue) -> Option<Context> {
    let text = value.as_bytes();
    let text = text.strip_suffix(b"==").or(text.strip_suffix(b"=")).unwrap_or(text);
    if text.len() > 64 {
        return None;
    }
    let bytes: [u8; BINARY] = STANDARD_NO_PAD.decode(text).ok()?.try_into().ok()?;
    if bytes[0] != 0 || bytes[1] != 0 || bytes[18] != 1 || bytes[27] != 2 {
        return None;
    }
    let (trace, parent) = (bytes[2..18].try_into().ok()?, bytes[19..27].try_into().ok()?);
    Some(Context { trace, parent, flags: bytes[28], form: Form::Grpc })
}

fn b3(headers: &HeaderMap) -> Option<Context> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let trace = text(B3_TRACE)?;
    let trace = match unhex::<16>(trace) {
        Some(whole) => whole,
        // Half an id is one whose upper half is zero.
        None => {
            let mut padded = [0; 16];
            padded[8..].copy_from_slice(&unhex::<8>(trace)?);
            padded
        }
    };
    let sampled = matches!(text(B3_SAMPLED), Some("1" | "true" | "d")) || text(B3_FLAGS) == Some("1");
    Some(Context { trace, parent: unhex(text(B3_SPAN)?)?, flags: u8::from(sampled), form: Form::B3 })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != N * 2 {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let digit = |d: u8| char::from(d).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const NEXT: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    /// What the next hop is told.
    fn passed_on(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = headers(fields);
        let context = read(&headers).expect("a sampled context");
        assert_eq!(hex(&context.trace), TRACE);
        assert_eq!(hex(&context.parent), "b7ad6b7169203331");
        write(&mut headers, &context, NEXT);
        headers
    }

    #[test]
    fn each_form_is_read_and_passed_on_as_it_came() {
        let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
        let told = passed_on(&[("traceparent", &parent)]);
        assert_eq!(told["traceparent"], format!("00-{TRACE}-0102030405060708-01"));

        let bytes = [
            &[0, 0][..],
            &unhex::<16>(TRACE).unwrap(),
            &[1],
            &unhex::<8>("b7ad6b7169203331").unwrap(),
            &[2, 1],
        ];
        let told = passed_on(&[("grpc-trace-bin", &STANDARD_NO_PAD.encode(bytes.concat()))]);
        let sent = STANDARD_NO_PAD.decode(told["grpc-trace-bin"].as_bytes()).unwrap();
        assert_eq!((&sent[19..27], sent.len()), (&NEXT[..], BINARY));

        let b3 = [("x-b3-traceid", TRACE), ("x-b3-spanid", "b7ad6b7169203331"), ("x-b3-sampled", "1")];
        let told = passed_on(&b3);
        assert_eq!(
            (&told["x-b3-parentspanid"], &told["x-b3-spanid"]),
            (&HeaderValue::from_static("b7ad6b7169203331"), &HeaderValue::from_static("0102030405060708"),)
        );
        // The first form counts, and the other is told the same if it means the same trace.
        let both = [&b3[..], &[("traceparent", parent.as_str())]].concat();
        let told = passed_on(&both);
        assert_eq!(told["traceparent"], format!("00-{TRACE}-0102030405060708-01"));
        assert_eq!(
            (&told["x-b3-spanid"], &told["x-b3-parentspanid"]),
            (&"0102030405060708".parse().unwrap(), &b3[1].1.parse().unwrap())
        );
        let other = [("x-b3-traceid", "b7ad6b7169203331"), b3[1], b3[2], ("traceparent", parent.as_str())];
        assert_eq!(passed_on(&other)["x-b3-spanid"], "b7ad6b7169203331");
    }

    #[test]
    fn what_is_not_sampled_or_not_readable_is_no_context() {
        let w3c = |rest: &str| format!("00-{TRACE}-{rest}");
        for value in [
            w3c("b7ad6b7169203331-00"),
            w3c("b7ad6b7169203331"),
            w3c("b7ad6b7169203331-01-more"),
            w3c("b7ad6b716920333-01"),
            w3c("0000000000000000-01"),
            format!("ff-{TRACE}-b7ad6b7169203331-01"),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01".into(),
            "nonsense".into(),
            String::new(),
        ] {
            assert_eq!(read(&headers(&[("traceparent", &value)])), None, "{value}");
        }
        for value in ["", "AAAA", "=====", &"A".repeat(1_000)] {
            assert_eq!(read(&headers(&[("grpc-trace-bin", value)])), None, "{value}");
        }
        for sampled in ["0", "false", ""] {
            let fields =
                [("x-b3-traceid", TRACE), ("x-b3-spanid", "b7ad6b7169203331"), ("x-b3-sampled", sampled)];
            assert_eq!(read(&headers(&fields)), None);
        }
        assert_eq!(read(&headers(&[("x-b3-traceid", TRACE), ("x-b3-sampled", "1")])), None);
    }

    #[test]
    fn half_a_b3_id_is_a_whole_one() {
        let fields =
            [("x-b3-traceid", "b7ad6b7169203331"), ("x-b3-spanid", "b7ad6b7169203331"), ("x-b3-flags", "1")];
        let context = read(&headers(&fields)).unwrap();
        assert_eq!(hex(&context.trace), "0000000000000000b7ad6b7169203331");
    }

    proptest::proptest! {
        #[test]
        fn nothing_that_is_sent_upsets_it(name in 0usize..3, value in "[ -~]{0,80}") {
            let name = [W3C, GRPC, B3_TRACE][name];
            let _read = read(&headers(&[(name, &value), (B3_SPAN, &value), (B3_SAMPLED, "1")]));
        }
    }
}
