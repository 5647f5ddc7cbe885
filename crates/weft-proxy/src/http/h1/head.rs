//! Heads of messages: from bytes to values, or to the reason why not.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header,
    uri::Scheme,
};
use std::mem::MaybeUninit;
use weft_fault::{Code, Fault, Phase};

/// Fields of one head. More is an attack on whoever has to look them up.
pub(crate) const MAX_FIELDS: usize = 128;

/// How a body is delimited (RFC 9112, 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Empty,
    Length(u64),
    Chunked,
    /// Until the connection ends: responses only.
    Close,
}

/// Why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    Syntax(&'static str),
    /// More bytes than this, the limit.
    Large(usize),
    /// More fields than [`MAX_FIELDS`].
    Many,
}

impl Bad {
    /// As the failure of a request.
    pub(crate) fn request(self) -> Fault {
        self.fault(Code::BadRequest, Phase::RequestHeaders)
    }

    /// `code` for what is not HTTP. A request beyond a limit has its own: its client can do something about it.
    pub(crate) fn fault(self, code: Code, phase: Phase) -> Fault {
        let limit = if code == Code::BadRequest { Code::HeadersTooLarge } else { code };
        match self {
            Bad::Syntax(why) => Fault::new(code).in_phase(phase).fact("reason", why),
            Bad::Large(bytes) => Fault::new(limit).in_phase(phase).fact("limit", bytes),
            Bad::Many => Fault::new(limit).in_phase(phase).fact("limit_fields", MAX_FIELDS),
        }
    }
}

/// A request's head, and what it says about the connection and the body.
#[derive(Debug)]
pub(crate) struct RequestHead {
    pub(crate) request: Request<()>,
    pub(crate) framing: Framing,
    /// The client wants to send another request afterwards.
    pub(crate) keep_alive: bool,
    /// The client waits for a 100 before it sends the body.
    pub(crate) expects_continue: bool,
}

/// A response's head.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub(crate) response: Response<()>,
    pub(crate) framing: Framing,
    pub(crate) keep_alive: bool,
}

/// A reason phrase other than the status's own.
#[derive(Clone, Debug)]
pub(crate) struct Reason(pub(crate) Bytes);

/// Where the head at the start of `bytes` ends, if it does. The first `seen` bytes were looked at before; a head has `most` bytes at most. Each line must
/// end in CRLF: a bare LF is where implementations differ (RFC 9112, 2.2).
pub(crate) fn end(bytes: &[u8], seen: usize, most: usize) -> Result<Option<usize>, Bad> {
    for at in memchr::memchr_iter(b'\n', &bytes[seen..]) {
        let at = seen + at;
        if at == 0 || bytes[at - 1] != b'\r' {
            return Err(Bad::Syntax("a line that ends in a bare LF"));
        }
        if at >= 2 && bytes[at - 2] == b'\n' {
            return if at < most { Ok(Some(at + 1)) } else { Err(Bad::Large(most)) };
        }
    }
    if bytes.len() > most { Err(Bad::Large(most)) } else { Ok(None) }
}

/// Reads a whole request head (RFC 9112, 3).
pub(crate) fn request(bytes: &Bytes) -> Result<RequestHead, Bad> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_request_with_uninit_headers(&mut parsed, bytes, &mut fields) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Ok(_) => return Err(Bad::Syntax("a head that ends early")),
        Err(error) => return Err(syntax(error)),
    }
    let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(Bad::Syntax("a request line without all its parts"));
    };
    let method =
        Method::from_bytes(method.as_bytes()).map_err(|_| Bad::Syntax("a method that is no token"))?;
    let version = self::version(version);
    let (headers, about) = self::fields(bytes, parsed.headers)?;
    let uri = self::target(bytes, target, &method)?;

    // Host (RFC 9112, 3.2): one, valid; its absence is the privilege of HTTP/1.0.
    match (about.hosts, version) {
        (0, Version::HTTP_10) | (1, _) => {}
        (0, _) => return Err(Bad::Syntax("no Host field")),
        _ => return Err(Bad::Syntax("more than one Host field")),
    }
    if let Some(host) = headers.get(header::HOST)
        && !is_host(host.as_bytes())
    {
        return Err(Bad::Syntax("a Host field that names no host"));
    }

    let framing = match (about.coded, about.length) {
        (Coded::No, None) => Framing::Empty,
        (Coded::No, Some(0)) => Framing::Empty,
        (Coded::No, Some(length)) => Framing::Length(length),
        // RFC 9112, 6.1: a request with both may be an attempt at smuggling.
        (_, Some(_)) => return Err(Bad::Syntax("both Content-Length and Transfer-Encoding")),
        (_, None) if version == Version::HTTP_10 => {
            return Err(Bad::Syntax("Transfer-Encoding in HTTP/1.0"));
        }
        (Coded::Chunked, None) => Framing::Chunked,
        (Coded::Unknown, None) => return Err(Bad::Syntax("a Transfer-Encoding other than chunked")),
    };
    let keep_alive = about.keep_alive(version);
    let expects_continue = version == Version::HTTP_11
        && framing != Framing::Empty
        && headers.get(header::EXPECT).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.version_mut() = version;
    *request.headers_mut() = headers;
    // A proxy replaces the Host field of an absolute target by the target's (RFC 9112, 3.2.2).
    if request.method() != Method::CONNECT
        && let Some(authority) = request.uri().authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(header::HOST, host);
    }
    Ok(RequestHead { request, framing, keep_alive, expects_continue })
}

/// Reads a whole response head. `to`: the method of the request it answers.
pub(crate) fn response(bytes: &Bytes, to: &Method) -> Result<ResponseHead, Bad> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut fields) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Ok(_) => return Err(Bad::Syntax("a head that ends early")),
        Err(error) => return Err(syntax(error)),
    }
    let (Some(status), Some(version)) = (parsed.code, parsed.version) else {
        return Err(Bad::Syntax("a status line without all its parts"));
    };
    let status = StatusCode::from_u16(status).map_err(|_| Bad::Syntax("a status that is none"))?;
    let version = self::version(version);
    let reason = parsed.reason.unwrap_or_default();
    let (headers, about) = self::fields(bytes, parsed.headers)?;
    let bodiless = *to == Method::HEAD
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || (*to == Method::CONNECT && status.is_success());
    let framing = match (about.coded, about.length) {
        (Coded::No, _) if bodiless => Framing::Empty,
        (Coded::No, Some(0)) => Framing::Empty,
        (Coded::No, Some(length)) => Framing::Length(length),
        (Coded::No, None) => Framing::Close,
        (_, Some(_)) => return Err(Bad::Syntax("both Content-Length and Transfer-Encoding")),
        (Coded::Unknown, None) => return Err(Bad::Syntax("a Transfer-Encoding other than chunked")),
        (Coded::Chunked, None) if version == Version::HTTP_10 => {
            return Err(Bad::Syntax("Transfer-Encoding in HTTP/1.0"));
        }
        (Coded::Chunked, None) if bodiless => Framing::Empty,
        (Coded::Chunked, None) => Framing::Chunked,
    };
    let keep_alive = framing != Framing::Close && about.keep_alive(version);
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = version;
    *response.headers_mut() = headers;
    if status.canonical_reason() != Some(reason) && !reason.is_empty() {
        response.extensions_mut().insert(Reason(Bytes::copy_from_slice(reason.as_bytes())));
    }
    Ok(ResponseHead { response, framing, keep_alive })
}

/// Reads the trailer section of a chunked body, without its last empty line. Fields that would have decided how the
/// message is read are refused: they come too late (RFC 9110, 6.5.1).
pub(crate) fn trailers(bytes: &Bytes) -> Result<HeaderMap, Bad> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let parsed = match httparse::parse_headers(bytes, &mut fields) {
        Ok(httparse::Status::Complete((length, parsed))) if length == bytes.len() => parsed,
        Ok(_) => return Err(Bad::Syntax("a trailer section that ends early")),
        Err(error) => return Err(syntax(error)),
    };
    let (headers, about) = self::fields(bytes, parsed)?;
    if about.hosts > 0 || about.length.is_some() || about.coded != Coded::No {
        return Err(Bad::Syntax("a trailer field that belongs into the head"));
    }
    Ok(headers)
}

fn syntax(error: httparse::Error) -> Bad {
    Bad::Syntax(match error {
        httparse::Error::TooManyHeaders => return Bad::Many,
        httparse::Error::HeaderName => "a field name that is no token",
        httparse::Error::HeaderValue => "a field value with a forbidden byte",
        httparse::Error::NewLine => "a bare CR",
        httparse::Error::Status => "a status that is none",
        httparse::Error::Token => "a request line that cannot be read",
        httparse::Error::Version => "a version that is not HTTP/1",
    })
}

fn version(minor: u8) -> Version {
    if minor == 0 { Version::HTTP_10 } else { Version::HTTP_11 }
}

/// The four forms of a target (RFC 9112, 3.2).
fn target(bytes: &Bytes, target: &str, method: &Method) -> Result<Uri, Bad> {
    const BAD: Bad = Bad::Syntax("a target that is none");
    // The type would drop a fragment without a word.
    if target.contains('#') {
        return Err(BAD);
    }
    let uri = Uri::from_maybe_shared(bytes.slice_ref(target.as_bytes())).map_err(|_| BAD)?;
    let authority = uri.authority();
    let valid = match (uri.scheme(), authority) {
        // The authority becomes the Host of the next hop. The type takes ports that are no numbers.
        _ if authority.is_some_and(|a| !is_host(a.as_str().as_bytes())) => false,
        (None, Some(authority)) => *method == Method::CONNECT && authority.port().is_some(),
        _ if *method == Method::CONNECT => false,
        (Some(scheme), _) => *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS,
        (None, None) if target == "*" => *method == Method::OPTIONS,
        (None, None) => target.starts_with('/'),
    };
    if valid { Ok(uri) } else { Err(BAD) }
}

/// `uri-host [":" port]` by its characters (RFC 3986, 3.2.2); user information is not part of it. May be empty.
pub(crate) fn is_host(value: &[u8]) -> bool {
    let (port, valid) = if let Some(literal) = value.strip_prefix(b"[") {
        let Some(end) = literal.iter().position(|b| *b == b']') else { return false };
        let (address, port) = (&literal[..end], &literal[end + 1..]);
        (port, !address.is_empty() && address.iter().all(|b| b.is_ascii_hexdigit() || b":.".contains(b)))
    } else {
        let end = value.iter().position(|b| *b == b':').unwrap_or(value.len());
        let allowed = |b: &u8| b.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(b);
        (&value[end..], value[..end].iter().all(allowed))
    };
    let digits = port.strip_prefix(b":").unwrap_or_default();
    valid && (port.is_empty() || port.starts_with(b":")) && digits.iter().all(u8::is_ascii_digit)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coded {
    No,
    Chunked,
    Unknown,
}

/// What fields say about connection and framing.
struct About {
    hosts: usize,
    length: Option<u64>,
    coded: Coded,
    close: bool,
    stay: bool,
}

impl About {
    /// RFC 9112, 9.3.
    fn keep_alive(&self, version: Version) -> bool {
        !self.close && (version == Version::HTTP_11 || self.stay)
    }
}

fn fields(bytes: &Bytes, parsed: &[httparse::Header<'_>]) -> Result<(HeaderMap, About), Bad> {
    let mut headers = HeaderMap::with_capacity(parsed.len() + 2);
    let mut about = About { hosts: 0, length: None, coded: Coded::No, close: false, stay: false };
    for field in parsed {
        let name = HeaderName::from_bytes(field.name.as_bytes())
            .map_err(|_| Bad::Syntax("a field name that is no token"))?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(field.value))
            .map_err(|_| Bad::Syntax("a field value with a forbidden byte"))?;
        match name {
            header::HOST => about.hosts += 1,
            header::CONTENT_LENGTH => {
                // Two equal lengths could be accepted (RFC 9110, 8.6); no honest sender makes them.
                let length = length(field.value).ok_or(Bad::Syntax("a Content-Length that is no number"))?;
                if about.length.replace(length).is_some() {
                    return Err(Bad::Syntax("more than one Content-Length"));
                }
            }
            header::TRANSFER_ENCODING => {
                let chunked = field.value.eq_ignore_ascii_case(b"chunked") && about.coded == Coded::No;
                about.coded = if chunked { Coded::Chunked } else { Coded::Unknown };
            }
            header::CONNECTION => {
                for option in field.value.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
                    about.close |= option.eq_ignore_ascii_case(b"close");
                    about.stay |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            _ => {}
        }
        headers.append(name, value);
    }
    Ok((headers, about))
}

fn length(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.len() <= 19 && value.iter().all(u8::is_ascii_digit);
    if !digits {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}
