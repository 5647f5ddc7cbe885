//! HTTP/2's rules about frames, streams and messages (RFC 9113), one row each: what a client sends, and what that costs it.
//! Every row has a connection of its own. An error of a stream leaves the connection's other streams alone, and no error
//! reaches a neighbour's connection.

use crate::harness::{App, Proxy, app, proxy, server};
use tokio::net::TcpStream;
use weft_model::inbound::{Authn, HttpPolicy, Protocol};
use weft_testkit::{
    h2raw::{
        ACK, CANCEL, COMPRESSION_ERROR, CONTINUATION, Client, DATA, END_HEADERS, END_STREAM, Ended,
        FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, GOAWAY, HEADERS, PADDED, PING, PREFACE, PRIORITIZED, PRIORITY,
        PROTOCOL_ERROR, PUSH_PROMISE, REFUSED_STREAM, RST_STREAM, SETTINGS, STREAM_CLOSED, WINDOW_UPDATE,
        block, frame, get, headers, request, reset, setting, window,
    },
    pki::Pki,
};

struct Rule {
    clause: &'static str,
    name: &'static str,
    /// Sent after the preface and the settings.
    send: Vec<u8>,
    then: Then,
}

/// HPACK errors, frames of a wrong size and windows that overflow have codes of their own; "the more generic code" for the
/// same end is allowed (RFC 9113, 7), and it is what the library sends where it finds them while decoding.
const COMPRESSION: &[u32] = &[COMPRESSION_ERROR, PROTOCOL_ERROR];
const SIZE: &[u32] = &[FRAME_SIZE_ERROR, PROTOCOL_ERROR];
const FLOW: &[u32] = &[FLOW_CONTROL_ERROR, PROTOCOL_ERROR];
const CLOSED: &[u32] = &[STREAM_CLOSED, PROTOCOL_ERROR];
const PROTOCOL: &[u32] = &[PROTOCOL_ERROR];

/// What is right.
enum Then {
    /// Stream 1 is answered, and the connection goes on.
    Answered(u16),
    /// Stream 1 is reset with one of these codes, or the request is refused with 400; the connection goes on.
    Stream(&'static [u32]),
    /// The connection ends with one of these codes.
    Connection(&'static [u32]),
    /// Either: an error of a stream may be treated as one of its connection (RFC 9113, 5.4).
    Either(&'static [u32]),
}
use Then::{Answered, Connection, Either, Stream};

/// A whole request on stream 1.
fn asked() -> Vec<u8> {
    headers(1, END_STREAM, &get("/", &[]))
}

/// A request on stream 1 whose body is still to come, and which is not answered.
fn open() -> Vec<u8> {
    headers(1, 0, &request("POST", "/hang", &[]))
}

/// A request on stream 1 with these fields besides the four.
fn with(more: &[(&str, &str)]) -> Vec<u8> {
    headers(1, END_STREAM, &get("/", more))
}

fn only(fields: &[(&str, &str)]) -> Vec<u8> {
    headers(1, END_STREAM, fields)
}

fn raw_block(block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, 1, block)
}

fn join(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.concat()
}

fn rule(clause: &'static str, name: &'static str, send: Vec<u8>, then: Then) -> Rule {
    Rule { clause, name, send, then }
}

#[rustfmt::skip]
fn frames() -> Vec<Rule> {
    let big = vec![0; 16_385];
    vec![
        rule("4.1", "an unknown type is ignored", join(&[frame(0xbb, 0xff, 0, b"x"), frame(0xbb, 0, 1, b"x"), asked()]), Answered(200)),
        rule("4.1", "undefined flags are ignored", frame(HEADERS, END_HEADERS | END_STREAM | 0xc2, 1, &block(&get("/", &[]))), Answered(200)),
        rule("4.1", "the reserved bit is ignored", { let mut bytes = asked(); bytes[5] |= 0x80; bytes }, Answered(200)),
        rule("4.2", "DATA above the limit", join(&[open(), frame(DATA, 0, 1, &big)]), Connection(SIZE)),
        rule("4.2", "HEADERS above the limit", frame(HEADERS, END_HEADERS | END_STREAM, 1, &big), Connection(SIZE)),
        rule("4.2", "an unknown type above the limit", frame(0xbb, 0, 0, &big), Connection(SIZE)),
        rule("4.3", "index 0", raw_block(&[0x80]), Connection(COMPRESSION)),
        rule("4.3", "an index beyond the tables", raw_block(&[0xff, 0x7f]), Connection(COMPRESSION)),
        rule("4.3", "an endless integer", raw_block(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), Connection(COMPRESSION)),
        rule("4.3", "a table larger than allowed", raw_block(&[0x3f, 0xff, 0xff, 0x03]), Connection(COMPRESSION)),
        rule("4.3", "a string longer than the block", raw_block(&[0x00, 0x05, b'a']), Connection(COMPRESSION)),
        rule("4.3", "bad Huffman code", raw_block(&[0x00, 0x84, 0xff, 0xff, 0xff, 0xff, 0x01, b'x']), Connection(COMPRESSION)),
        rule("4.3", "CONTINUATION on another stream", join(&[frame(HEADERS, END_STREAM, 1, &block(&get("/", &[]))), frame(CONTINUATION, END_HEADERS, 3, &[])]), Connection(PROTOCOL)),
        rule("4.3", "DATA within a block", join(&[frame(HEADERS, 0, 1, &block(&get("/", &[]))), frame(DATA, END_STREAM, 1, b"x")]), Connection(PROTOCOL)),
        rule("4.3", "an unknown type within a block", join(&[frame(HEADERS, END_STREAM, 1, &block(&get("/", &[]))), frame(0xbb, 0, 1, b"x")]), Connection(PROTOCOL)),
        rule("6.10", "a block in three frames", {
            let whole = block(&get("/", &[("x", "y")]));
            join(&[frame(HEADERS, END_STREAM, 1, &whole[..7]), frame(CONTINUATION, 0, 1, &whole[7..20]), frame(CONTINUATION, END_HEADERS, 1, &whole[20..])])
        }, Answered(200)),
        rule("6.10", "CONTINUATION without HEADERS", frame(CONTINUATION, END_HEADERS, 1, &block(&get("/", &[]))), Connection(PROTOCOL)),
        rule("6.10", "CONTINUATION after the end", join(&[open(), frame(CONTINUATION, END_HEADERS, 1, &block(&[("x", "y")]))]), Connection(PROTOCOL)),
        rule("6.10", "CONTINUATION on stream 0", join(&[frame(HEADERS, END_STREAM, 1, &[]), frame(CONTINUATION, END_HEADERS, 0, &[])]), Connection(PROTOCOL)),
    ]
}

#[rustfmt::skip]
fn streams() -> Vec<Rule> {
    let end = || frame(DATA, END_STREAM, 1, b"x");
    vec![
        rule("5.1", "DATA on an idle stream", frame(DATA, END_STREAM, 1, b"x"), Connection(PROTOCOL)),
        rule("5.1", "RST_STREAM on an idle stream", reset(1, CANCEL), Connection(PROTOCOL)),
        rule("5.1", "WINDOW_UPDATE on an idle stream", window(1, 1), Connection(PROTOCOL)),
        rule("5.1", "PRIORITY on an idle stream is allowed", join(&[frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 1]), asked()]), Answered(200)),
        rule("5.1", "DATA on a stream whose client has ended", join(&[open(), end(), end()]), Either(CLOSED)),
        rule("5.1", "HEADERS on a stream whose client has ended", join(&[open(), end(), headers(1, END_STREAM, &[("x", "y")])]), Either(CLOSED)),
        rule("5.1", "a reset stream is used again", join(&[open(), reset(1, CANCEL), headers(1, END_STREAM, &get("/", &[]))]), Connection(CLOSED)),
        rule("5.1.1", "an even stream", headers(2, END_STREAM, &get("/", &[])), Connection(PROTOCOL)),
        rule("5.1.1", "a lower stream than before", join(&[headers(3, END_STREAM, &get("/", &[])), asked()]), Connection(CLOSED)),
        rule("5.1.1", "HEADERS on stream 0", headers(0, END_STREAM, &get("/", &[])), Connection(PROTOCOL)),
        rule("6.1", "DATA on stream 0", frame(DATA, 0, 0, b"x"), Connection(PROTOCOL)),
        rule("6.1", "padding", join(&[headers(1, 0, &request("POST", "/", &[])), frame(DATA, END_STREAM | PADDED, 1, &[2, b'x', 0, 0])]), Answered(200)),
        rule("6.1", "more padding than DATA", join(&[open(), frame(DATA, PADDED, 1, &[9, b'x'])]), Connection(PROTOCOL)),
        rule("6.1", "padding without its length", join(&[open(), frame(DATA, PADDED, 1, &[])]), Connection(SIZE)),
        rule("6.2", "more padding than HEADERS", frame(HEADERS, END_HEADERS | PADDED, 1, &[200, 0x82]), Connection(PROTOCOL)),
        rule("6.2", "HEADERS with a priority", frame(HEADERS, END_HEADERS | END_STREAM | PRIORITIZED, 1, &[&[0, 0, 0, 0, 9][..], &block(&get("/", &[]))].concat()), Answered(200)),
        rule("6.3", "PRIORITY on stream 0", frame(PRIORITY, 0, 0, &[0, 0, 0, 1, 1]), Connection(PROTOCOL)),
        rule("6.3", "PRIORITY of four bytes", join(&[open(), frame(PRIORITY, 0, 1, &[0; 4])]), Either(SIZE)),
        rule("6.3", "a stream that depends on itself (RFC 7540, 5.3.1)", frame(HEADERS, END_HEADERS | END_STREAM | PRIORITIZED, 1, &[&[0, 0, 0, 1, 9][..], &block(&get("/", &[]))].concat()), Stream(PROTOCOL)),
        rule("6.4", "RST_STREAM on stream 0", reset(0, CANCEL), Connection(PROTOCOL)),
        rule("6.4", "RST_STREAM of three bytes", join(&[open(), frame(RST_STREAM, 0, 1, &[0; 3])]), Connection(SIZE)),
    ]
}

#[rustfmt::skip]
fn connection() -> Vec<Rule> {
    vec![
        rule("6.5", "SETTINGS on a stream", frame(SETTINGS, 0, 1, &[]), Connection(PROTOCOL)),
        rule("6.5", "an acknowledgement with settings", frame(SETTINGS, ACK, 0, &[0; 6]), Connection(SIZE)),
        rule("6.5", "five bytes", frame(SETTINGS, 0, 0, &[0; 5]), Connection(SIZE)),
        rule("6.5.2", "an unknown setting", join(&[setting(0xff, 7), asked()]), Answered(200)),
        rule("6.5.2", "ENABLE_PUSH is 2", setting(2, 2), Connection(PROTOCOL)),
        rule("6.5.2", "INITIAL_WINDOW_SIZE is 2^31", setting(4, 1 << 31), Connection(FLOW)),
        rule("6.5.2", "MAX_FRAME_SIZE is 16383", setting(5, 16_383), Connection(PROTOCOL)),
        rule("6.5.2", "MAX_FRAME_SIZE is 2^24", setting(5, 1 << 24), Connection(PROTOCOL)),
        rule("6.6", "PUSH_PROMISE", join(&[open(), frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2][..], &block(&get("/", &[]))].concat())]), Connection(PROTOCOL)),
        rule("6.7", "PING on a stream", frame(PING, 0, 1, &[0; 8]), Connection(PROTOCOL)),
        rule("6.7", "PING of seven bytes", frame(PING, 0, 0, &[0; 7]), Connection(SIZE)),
        rule("6.7", "an acknowledgement of no PING", join(&[frame(PING, ACK, 0, &[1; 8]), asked()]), Answered(200)),
        rule("6.8", "GOAWAY on a stream", frame(GOAWAY, 0, 1, &[0; 8]), Connection(PROTOCOL)),
        rule("6.9", "WINDOW_UPDATE of three bytes", frame(WINDOW_UPDATE, 0, 0, &[0; 3]), Connection(SIZE)),
        rule("6.9", "an increment of 0", window(0, 0), Connection(PROTOCOL)),
        rule("6.9", "an increment of 0 for a stream", join(&[open(), window(1, 0)]), Either(PROTOCOL)),
        rule("6.9.1", "the connection's window overflows", join(&[window(0, 0x7fff_ffff), window(0, 0x7fff_ffff)]), Connection(FLOW)),
        rule("6.9.1", "a stream's window overflows", join(&[open(), window(1, 0x7fff_ffff)]), Stream(FLOW)),
        rule("6.9.2", "a setting overflows a stream's window", join(&[open(), window(1, 0x7fff_0000), setting(4, 0x7fff_ffff)]), Connection(FLOW)),
        rule("6.9.1", "more than the stream's window", join(&[open(), join(&vec![frame(DATA, 0, 1, &[0; 16_384]); 5])]), Either(FLOW)),
        rule("5.1.2", "more streams than allowed", join(&(0..12).map(|i| headers(2 * i + 3, 0, &request("POST", "/hang", &[]))).chain([headers(101, END_STREAM, &get("/", &[]))]).collect::<Vec<_>>()), Stream(&[REFUSED_STREAM, PROTOCOL_ERROR])),
    ]
}

#[rustfmt::skip]
fn messages() -> Vec<Rule> {
    let post = |more: &[(&str, &str)]| headers(1, 0, &request("POST", "/", more));
    let data = |flags, bytes: &[u8]| frame(DATA, flags, 1, bytes);
    vec![
        rule("8.1", "trailers", join(&[post(&[]), data(0, b"x"), headers(1, END_STREAM, &[("x-t", "1")])]), Answered(200)),
        // Two that are malformed and that pass: the library drops the pseudo-header field and the fragment before anybody sees them,
        // so that neither reaches a next hop, where it could mean something.
        rule("8.1", "a pseudo-header field in trailers is not passed on", join(&[post(&[]), data(0, b"x"), headers(1, END_STREAM, &[(":path", "/x"), ("x-t", "1")])]), Answered(200)),
        rule("8.3.1", "a fragment in the path is not passed on", only(&get("/x#y", &[])), Answered(200)),
        rule("8.1", "trailers that do not end the stream", join(&[post(&[]), data(0, b"x"), headers(1, 0, &[("x-t", "1")])]), Stream(PROTOCOL)),
        rule("8.1.1", "the length is right", join(&[post(&[("content-length", "2")]), data(END_STREAM, b"hi")]), Answered(200)),
        rule("8.1.1", "less than the length", join(&[post(&[("content-length", "3")]), data(END_STREAM, b"hi")]), Stream(PROTOCOL)),
        rule("8.1.1", "more than the length", join(&[post(&[("content-length", "1")]), data(END_STREAM, b"hi")]), Stream(PROTOCOL)),
        rule("8.1.1", "a length and no body", with(&[("content-length", "3")]), Stream(PROTOCOL)),
        rule("8.1.1", "less than the length, then trailers", join(&[post(&[("content-length", "3")]), data(0, b"hi"), headers(1, END_STREAM, &[("x", "y")])]), Stream(PROTOCOL)),
        rule("8.1.1", "two lengths", with(&[("content-length", "0"), ("content-length", "5")]), Stream(PROTOCOL)),
        rule("8.1.1", "a length that is no number", with(&[("content-length", "+0")]), Stream(PROTOCOL)),
        rule("8.2.1", "an upper-case name", with(&[("X-Upper", "y")]), Either(PROTOCOL)),
        rule("8.2.1", "an empty name", with(&[("", "y")]), Either(PROTOCOL)),
        rule("8.2.1", "a space in a name", with(&[("x y", "z")]), Either(PROTOCOL)),
        rule("8.2.1", "a colon in a name", with(&[("x:y", "z")]), Either(PROTOCOL)),
        rule("8.2.1", "a control character in a name", with(&[("x\u{1}", "z")]), Either(PROTOCOL)),
        rule("8.2.1", "CRLF in a value", with(&[("x", "y\r\ntransfer-encoding: chunked")]), Either(PROTOCOL)),
        rule("8.2.1", "LF in a value", with(&[("x", "y\nz")]), Either(PROTOCOL)),
        rule("8.2.1", "NUL in a value", with(&[("x", "\0")]), Either(PROTOCOL)),
        rule("8.2.1", "a space before a value", with(&[("x", " y")]), Stream(PROTOCOL)),
        rule("8.2.1", "a tab after a value", with(&[("x", "y\t")]), Stream(PROTOCOL)),
        rule("8.2.2", "connection", with(&[("connection", "close")]), Stream(PROTOCOL)),
        rule("8.2.2", "keep-alive", with(&[("keep-alive", "1")]), Stream(PROTOCOL)),
        rule("8.2.2", "proxy-connection", with(&[("proxy-connection", "x")]), Stream(PROTOCOL)),
        rule("8.2.2", "transfer-encoding", with(&[("transfer-encoding", "chunked")]), Stream(PROTOCOL)),
        rule("8.2.2", "upgrade", with(&[("upgrade", "x")]), Stream(PROTOCOL)),
        rule("8.2.2", "te: trailers", with(&[("te", "trailers")]), Answered(200)),
        rule("8.2.2", "te: gzip", with(&[("te", "gzip")]), Stream(PROTOCOL)),
        rule("8.2.3", "cookies in two fields", with(&[("cookie", "a=b"), ("cookie", "c=d")]), Answered(200)),
        rule("8.3", "a pseudo-header field after a field", only(&[(":method", "GET"), (":scheme", "http"), ("x", "y"), (":path", "/")]), Stream(PROTOCOL)),
        rule("8.3", "an unknown pseudo-header field", only(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":x", "y")]), Either(PROTOCOL)),
        rule("8.3", "a response's pseudo-header field", only(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":status", "200")]), Stream(PROTOCOL)),
        rule("8.3.1", "two methods", only(&[(":method", "GET"), (":method", "GET"), (":scheme", "http"), (":path", "/")]), Stream(PROTOCOL)),
        rule("8.3.1", "two paths", only(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":path", "/x")]), Stream(PROTOCOL)),
        rule("8.3.1", "two authorities", only(&[(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":authority", "b"), (":path", "/")]), Stream(PROTOCOL)),
        rule("8.3.1", "no method", only(&[(":scheme", "http"), (":authority", "a"), (":path", "/")]), Stream(PROTOCOL)),
        rule("8.3.1", "no scheme", only(&[(":method", "GET"), (":authority", "a"), (":path", "/")]), Stream(PROTOCOL)),
        rule("8.3.1", "no path", only(&[(":method", "GET"), (":scheme", "http"), (":authority", "a")]), Stream(PROTOCOL)),
        rule("8.3.1", "an empty path", only(&get("", &[])), Stream(PROTOCOL)),
        rule("8.3.1", "a path without a slash", only(&get("x", &[])), Stream(PROTOCOL)),
        rule("8.3.1", "a space in the path", only(&get("/ HTTP/1.1", &[])), Stream(PROTOCOL)),
        rule("8.3.1", "an asterisk with GET", only(&get("*", &[])), Stream(PROTOCOL)),
        rule("8.3.1", "an asterisk with OPTIONS", only(&request("OPTIONS", "*", &[])), Answered(200)),
        rule("8.3.1", "a method that is no token", only(&request("GET /x HTTP/1.1", "/", &[])), Either(PROTOCOL)),
        rule("8.3.1", "an authority with a user", only(&[(":method", "GET"), (":scheme", "http"), (":authority", "u@a"), (":path", "/")]), Stream(PROTOCOL)),
        rule("8.3.1", "an authority with a slash", only(&[(":method", "GET"), (":scheme", "http"), (":authority", "a/b"), (":path", "/")]), Stream(PROTOCOL)),
        rule("8.3.1", "Host is the authority", with(&[("host", "a")]), Answered(200)),
        rule("8.3.1", "Host is another", with(&[("host", "b")]), Stream(PROTOCOL)),
        rule("8.3.1", "Host alone", only(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), ("host", "a")]), Answered(200)),
        rule("8.3.1", "two Hosts", only(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), ("host", "a"), ("host", "b")]), Stream(PROTOCOL)),
        rule("8.5", "CONNECT with a path", only(&[(":method", "CONNECT"), (":scheme", "http"), (":authority", "a:1"), (":path", "/")]), Stream(PROTOCOL)),
        rule("8.5", "CONNECT without an authority", only(&[(":method", "CONNECT")]), Stream(PROTOCOL)),
        rule("RFC 8441 3", "extended CONNECT that was not offered", only(&[(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":authority", "a"), (":path", "/")]), Stream(PROTOCOL)),
        rule("RFC 9112 6.1", "a body without a length, of an HTTP/1.0 request", join(&[post(&[("l5d-orig-proto", "HTTP/1.0")]), data(END_STREAM, b"hi")]), Answered(400)),
        rule("RFC 9112 6.1", "a body with a length, of an HTTP/1.0 request", join(&[post(&[("l5d-orig-proto", "HTTP/1.0"), ("content-length", "2")]), data(END_STREAM, b"hi")]), Answered(200)),
        rule("6.5.2", "fields above the limit", {
            let value = "x".repeat(15_000);
            let fields: Vec<(&str, &str)> = ["a", "b", "c", "d", "e"].into_iter().map(|name| (name, value.as_str())).collect();
            let whole = block(&get("/", &fields));
            let mut frames = vec![frame(HEADERS, END_STREAM, 1, &whole[..16_000])];
            let mut rest = whole[16_000..].chunks(16_000).peekable();
            while let Some(piece) = rest.next() {
                frames.push(frame(CONTINUATION, if rest.peek().is_none() { END_HEADERS } else { 0 }, 1, piece));
            }
            join(&frames)
        }, Answered(431)),
    ]
}

async fn store(pki: &Pki) -> (Proxy, App) {
    let app = app().await;
    let windows = [
        ("INBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE", "65535"),
        ("INBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE", "1048576"),
        ("INBOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS", "12"),
    ];
    let proxy = proxy(pki, "store", app.addr, "192.0.2.80:80".parse().unwrap(), &windows);
    let http = Protocol::Http2(HttpPolicy::default());
    proxy.told.inbound(app.addr.port(), server(http, Authn::Unauthenticated));
    (proxy, app)
}

async fn connect(proxy: &Proxy) -> Client<TcpStream> {
    Client::open(TcpStream::connect(proxy.inbound).await.unwrap()).await.unwrap()
}

async fn broken(proxy: &Proxy, rule: &Rule) -> Result<(), String> {
    let mut client = connect(proxy).await;
    let _closed_early = client.send(&rule.send).await;
    // The rows that are about a stream are about stream 1, but for the one of the streams that are too many.
    let stream = if rule.clause == "5.1.2" { 101 } else { 1 };
    let ended = client.end(stream).await.map_err(|error| error.to_string())?;
    let right = match rule.then {
        Answered(status) => ended == Ended::Answered(status),
        Stream(codes) => match ended {
            Ended::Reset(code) => codes.contains(&code),
            ended => ended == Ended::Answered(400),
        },
        Connection(codes) => matches!(ended, Ended::Goaway(code) if codes.contains(&code)),
        Either(codes) => matches!(ended, Ended::Goaway(code) | Ended::Reset(code) if codes.contains(&code)),
    };
    if !right {
        return Err(format!("{ended:?}"));
    }
    if matches!(ended, Ended::Goaway(_)) {
        while client.frame().await.map_err(|_| "not closed")?.is_some() {}
    } else if rule.clause != "5.1.2" {
        let next = client.ask(103, "/next").await.map_err(|error| error.to_string())?;
        if next != Ended::Answered(200) {
            return Err(format!("{ended:?}, and the next stream {next:?}"));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "local")]
async fn every_rule_has_its_error_and_neighbours_are_unharmed() {
    let pki = Pki::new();
    let (proxy, app) = store(&pki).await;
    let mut neighbour = connect(&proxy).await;
    let (mut wrong, mut stream) = (Vec::new(), 1);
    for rule in frames().into_iter().chain(streams()).chain(connection()).chain(messages()) {
        if std::env::var("WEFT_TEST_ROW").is_ok_and(|part| !rule.name.contains(&part)) {
            continue;
        }
        if let Err(what) = broken(&proxy, &rule).await {
            wrong.push(format!("{} {}: {what}", rule.clause, rule.name));
        }
        assert_eq!(neighbour.ask(stream, "/").await.unwrap(), Ended::Answered(200), "{}", rule.name);
        stream += 2;
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(!app.seen.borrow().iter().any(|seen| seen.line.contains('#')), "a fragment was passed on");
}

#[tokio::test(flavor = "local")]
async fn the_preface_and_its_settings_come_first() {
    let pki = Pki::new();
    let (proxy, _app) = store(&pki).await;
    let first = async |bytes: &[u8]| {
        let mut client = Client::new(TcpStream::connect(proxy.inbound).await.unwrap());
        let _closed_early = client.send(bytes).await;
        client.end(1).await.unwrap()
    };
    // RFC 9113, 3.4: a bad preface may be answered with GOAWAY or by closing.
    let bad = first(b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n").await;
    assert!(matches!(bad, Ended::Goaway(PROTOCOL_ERROR) | Ended::Closed), "{bad:?}");
    let no_settings = first(&[PREFACE, &asked()].concat()).await;
    assert_eq!(no_settings, Ended::Goaway(PROTOCOL_ERROR));
}

#[tokio::test(flavor = "local")]
async fn pings_are_answered_and_a_clients_goaway_lets_its_streams_finish() {
    let pki = Pki::new();
    let (proxy, _app) = store(&pki).await;
    let mut client = connect(&proxy).await;
    client.send(&frame(PING, 0, 0, b"12345678")).await.unwrap();
    let answer = loop {
        let frame = client.frame().await.unwrap().expect("an answer");
        if frame.kind == PING {
            break frame;
        }
    };
    assert_eq!((answer.flags & ACK, answer.payload.as_slice()), (ACK, &b"12345678"[..]));
    client
        .send(&join(&[headers(1, 0, &request("POST", "/", &[])), frame(GOAWAY, 0, 0, &[0; 8])]))
        .await
        .unwrap();
    client.send(&frame(DATA, END_STREAM, 1, b"hi")).await.unwrap();
    assert_eq!(client.end(1).await.unwrap(), Ended::Answered(200));
    assert_eq!(client.end(3).await.unwrap(), Ended::Closed, "and then it is over");
}
