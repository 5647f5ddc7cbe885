//! HTTP/2's rules about what a server may send (RFC 9113), one row each: an application breaks one, and its proxy must not
//! pass it on. Every row has an application and a proxy of its own; afterwards a next request is answered.

use crate::harness::{self, proxy, server};
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use std::{cell::RefCell, error::Error, net::SocketAddr, rc::Rc};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
};
use weft_model::inbound::{Authn, HttpPolicy, Protocol};
use weft_testkit::{
    h2raw::{
        ACK, CANCEL, COMPRESSION_ERROR, CONTINUATION, Client, DATA, END_HEADERS, END_STREAM,
        ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, GOAWAY, HEADERS, PADDED, PING, PREFACE,
        PRIORITIZED, PRIORITY, PROTOCOL_ERROR, PUSH_PROMISE, REFUSED_STREAM, RST_STREAM, SETTINGS,
        STREAM_CLOSED, WINDOW_UPDATE, block, frame, get, headers, reset, setting, window,
    },
    pki::Pki,
    raw::within,
};

struct Rule {
    clause: &'static str,
    name: &'static str,
    /// What the server sends when it has the request on stream 1.
    send: Vec<u8>,
    /// What the client gets of it.
    client: Got,
    /// What the server is told.
    told: Told,
}

/// What a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    /// The status and the whole body.
    Whole(u16, &'static str),
    /// A refusal of the proxy: status and code.
    Refused(u16, &'static str),
    /// No answer, or only a part of one: its stream is reset with this code.
    Reset(u32),
}
use Got::{Refused, Reset, Whole};

/// What the server that broke a rule is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Stream(u32),
    Connection(u32),
}
use Told::{Connection, Nothing, Stream};

fn rule(clause: &'static str, name: &'static str, send: Vec<u8>, client: Got, told: Told) -> Rule {
    Rule { clause, name, send, client, told }
}

fn join(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.concat()
}

fn ok(flags: u8) -> Vec<u8> {
    headers(1, flags, &[(":status", "200")])
}

fn with(flags: u8, more: &[(&str, &str)]) -> Vec<u8> {
    let mut fields = vec![(":status", "200")];
    fields.extend(more);
    headers(1, flags, &fields)
}

fn data(flags: u8, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, flags, 1, bytes)
}

fn whole() -> Vec<u8> {
    join(&[ok(0), data(END_STREAM, b"hi")])
}

fn raw_block(block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, 1, block)
}

const HI: Got = Whole(200, "hi");
const BROKEN: Got = Refused(502, "PRO-006");

#[rustfmt::skip]
fn frames() -> Vec<Rule> {
    let big = vec![0; 16_385];
    vec![
        rule("4.1", "an unknown type is ignored", join(&[frame(0xbb, 0xff, 0, b"x"), frame(0xbb, 0, 1, b"x"), whole()]), HI, Nothing),
        rule("4.1", "the reserved bit is ignored", { let mut bytes = whole(); bytes[5] |= 0x80; bytes }, HI, Nothing),
        rule("4.2", "DATA above the limit", join(&[ok(0), data(0, &big)]), Reset(FRAME_SIZE_ERROR), Connection(FRAME_SIZE_ERROR)),
        rule("4.2", "HEADERS above the limit", frame(HEADERS, END_HEADERS | END_STREAM, 1, &big), BROKEN, Connection(FRAME_SIZE_ERROR)),
        rule("4.2", "an unknown type above the limit", frame(0xbb, 0, 0, &big), BROKEN, Connection(FRAME_SIZE_ERROR)),
        rule("4.3", "index 0", raw_block(&[0x80]), BROKEN, Connection(COMPRESSION_ERROR)),
        rule("4.3", "an index beyond the tables", raw_block(&[0xff, 0x7f]), BROKEN, Connection(COMPRESSION_ERROR)),
        rule("4.3", "a table larger than allowed", raw_block(&[0x3f, 0xff, 0xff, 0x03]), BROKEN, Connection(COMPRESSION_ERROR)),
        rule("4.3", "a string longer than the block", raw_block(&[0x00, 0x05, b'a']), BROKEN, Connection(COMPRESSION_ERROR)),
        rule("4.3", "bad Huffman code", raw_block(&[0x00, 0x84, 0xff, 0xff, 0xff, 0xff, 0x01, b'x']), BROKEN, Connection(COMPRESSION_ERROR)),
        rule("6.10", "a block in three frames", {
            let whole = block(&[(":status", "200"), ("x", "y")]);
            join(&[frame(HEADERS, END_STREAM, 1, &whole[..7]), frame(CONTINUATION, 0, 1, &whole[7..10]), frame(CONTINUATION, END_HEADERS, 1, &whole[10..])])
        }, Whole(200, ""), Nothing),
        rule("6.10", "CONTINUATION without HEADERS", frame(CONTINUATION, END_HEADERS, 1, &block(&[(":status", "200")])), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.10", "CONTINUATION on another stream", join(&[frame(HEADERS, END_STREAM, 1, &block(&[(":status", "200")])), frame(CONTINUATION, END_HEADERS, 3, &[])]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.10", "DATA within a block", join(&[frame(HEADERS, 0, 1, &block(&[(":status", "200")])), data(END_STREAM, b"x")]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.10", "CONTINUATION without end", join(&[frame(HEADERS, END_STREAM, 1, &block(&[(":status", "200")])), join(&vec![frame(CONTINUATION, 0, 1, &[]); 2_000])]), BROKEN, Connection(ENHANCE_YOUR_CALM)),
    ]
}

#[rustfmt::skip]
fn streams() -> Vec<Rule> {
    vec![
        rule("5.1", "DATA on an idle stream", frame(DATA, END_STREAM, 3, b"x"), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("5.1", "HEADERS on an idle stream", headers(3, END_STREAM, &[(":status", "200")]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("5.1", "HEADERS on a stream of the server", headers(2, END_STREAM, &[(":status", "200")]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("5.1", "RST_STREAM on an idle stream", reset(3, CANCEL), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("5.1", "WINDOW_UPDATE on an idle stream", window(3, 1), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("5.1", "HEADERS on stream 0", headers(0, END_STREAM, &[(":status", "200")]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.1", "DATA on stream 0", frame(DATA, 0, 0, b"x"), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("8.1", "DATA before HEADERS", join(&[data(END_STREAM, b"hi")]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.1", "padding", join(&[ok(0), data(END_STREAM | PADDED, &[2, b'h', b'i', 0, 0])]), HI, Nothing),
        rule("6.1", "more padding than DATA", join(&[ok(0), data(PADDED, &[9, b'x'])]), Reset(PROTOCOL_ERROR), Connection(PROTOCOL_ERROR)),
        rule("6.2", "more padding than HEADERS", frame(HEADERS, END_HEADERS | PADDED, 1, &[200, 0x88]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.2", "HEADERS with a priority", join(&[frame(HEADERS, END_HEADERS | PRIORITIZED, 1, &[&[0, 0, 0, 0, 9][..], &block(&[(":status", "200")])].concat()), data(END_STREAM, b"hi")]), HI, Nothing),
        rule("6.3", "PRIORITY on stream 0", frame(PRIORITY, 0, 0, &[0, 0, 0, 1, 1]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.4", "RST_STREAM instead of an answer", reset(1, CANCEL), Reset(CANCEL), Nothing),
        rule("6.4", "REFUSED_STREAM", reset(1, REFUSED_STREAM), HI, Nothing),
        rule("6.4", "RST_STREAM within the body", join(&[with(0, &[("content-length", "9")]), data(0, b"hi"), reset(1, 2)]), Reset(2), Nothing),
        rule("6.4", "RST_STREAM on stream 0", reset(0, CANCEL), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.4", "RST_STREAM of three bytes", frame(RST_STREAM, 0, 1, &[0; 3]), BROKEN, Connection(FRAME_SIZE_ERROR)),
        rule("8.1", "an answer to the end, and then NO_ERROR", join(&[whole(), reset(1, 0)]), HI, Nothing),
        rule("5.1", "DATA behind the end", join(&[whole(), data(END_STREAM, b"more")]), HI, Stream(STREAM_CLOSED)),
    ]
}

#[rustfmt::skip]
fn connection() -> Vec<Rule> {
    let goaway = |last: u32, code: u32| frame(GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat());
    vec![
        rule("6.5", "SETTINGS on a stream", frame(SETTINGS, 0, 1, &[]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.5", "an acknowledgement with settings", frame(SETTINGS, ACK, 0, &[0; 6]), BROKEN, Connection(FRAME_SIZE_ERROR)),
        rule("6.5", "five bytes", frame(SETTINGS, 0, 0, &[0; 5]), BROKEN, Connection(FRAME_SIZE_ERROR)),
        rule("6.5.2", "an unknown setting", join(&[setting(0xff, 7), whole()]), HI, Nothing),
        rule("6.5.2", "ENABLE_PUSH is 1", join(&[setting(2, 1), whole()]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.5.2", "ENABLE_PUSH is 1, when the answer has begun", join(&[ok(0), setting(2, 1)]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.5.2", "ENABLE_PUSH is 0", join(&[setting(2, 0), whole()]), HI, Nothing),
        rule("6.5.2", "ENABLE_PUSH is 2", setting(2, 2), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.5.2", "INITIAL_WINDOW_SIZE is 2^31", setting(4, 1 << 31), BROKEN, Connection(FLOW_CONTROL_ERROR)),
        rule("6.5.2", "MAX_FRAME_SIZE is 16383", setting(5, 16_383), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.6", "PUSH_PROMISE, which was switched off", frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2][..], &block(&get("/", &[]))].concat()), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.7", "PING on a stream", frame(PING, 0, 1, &[0; 8]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.7", "PING of seven bytes", frame(PING, 0, 0, &[0; 7]), BROKEN, Connection(FRAME_SIZE_ERROR)),
        rule("6.7", "an acknowledgement of no PING", join(&[frame(PING, ACK, 0, &[1; 8]), whole()]), HI, Nothing),
        rule("6.8", "GOAWAY on a stream", frame(GOAWAY, 0, 1, &[0; 8]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.8", "GOAWAY after which the stream is answered", join(&[goaway(1, 0), whole()]), HI, Nothing),
        rule("6.8", "GOAWAY below the stream", goaway(0, 0), HI, Nothing),
        rule("6.8", "GOAWAY with an error below the stream", goaway(0, ENHANCE_YOUR_CALM), HI, Nothing),
        rule("6.8", "GOAWAY that goes up", join(&[goaway(1, 0), goaway(5, 0)]), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.9", "WINDOW_UPDATE of three bytes", frame(WINDOW_UPDATE, 0, 0, &[0; 3]), BROKEN, Connection(FRAME_SIZE_ERROR)),
        rule("6.9", "an increment of 0", window(0, 0), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.9", "an increment of 0 for the stream", window(1, 0), BROKEN, Connection(PROTOCOL_ERROR)),
        rule("6.9.1", "the connection's window overflows", join(&[window(0, 0x7fff_ffff), window(0, 0x7fff_ffff)]), BROKEN, Connection(FLOW_CONTROL_ERROR)),
        // On a stream on which the proxy has nothing more to send the update means nothing (5.1); while it has, see `resets`.
        rule("6.9.1", "the window of a stream that is sent whole overflows", join(&[window(1, 0x7fff_ffff), window(1, 0x7fff_ffff), whole()]), HI, Nothing),
    ]
}

#[rustfmt::skip]
fn messages() -> Vec<Rule> {
    let malformed = |clause, name, send| rule(clause, name, send, BROKEN, Stream(PROTOCOL_ERROR));
    // The stream is over for both by then.
    let over = |clause, name, send| rule(clause, name, send, BROKEN, Nothing);
    // An error of a stream may be treated as one of its connection (RFC 9113, 5.4).
    let unreadable = |clause, name, send| rule(clause, name, send, BROKEN, Connection(PROTOCOL_ERROR));
    vec![
        rule("8.1", "interim responses", join(&[headers(1, 0, &[(":status", "103"), ("link", "</x>")]), whole()]), HI, Nothing),
        over("8.1", "an interim response that ends the stream", headers(1, END_STREAM, &[(":status", "100")])),
        unreadable("8.6", "101", join(&[headers(1, 0, &[(":status", "101")]), data(END_STREAM, b"x")])),
        rule("8.1", "trailers", join(&[ok(0), data(0, b"hi"), headers(1, END_STREAM, &[("x-t", "1")])]), HI, Nothing),
        // Two that 8.1 and 8.3 call malformed and that pass: the library drops the pseudo-header field before anybody sees it, and
        // a map of fields has no room for one. Nothing of it reaches a client or an HTTP/1 hop, where it could mean something.
        rule("8.1", "a pseudo-header field in trailers is not passed on", join(&[ok(0), data(0, b"hi"), headers(1, END_STREAM, &[(":status", "500"), ("x-t", "1")])]), HI, Nothing),
        rule("8.3", "a pseudo-header field of requests is not passed on", join(&[headers(1, 0, &[(":status", "200"), (":path", "/x")]), data(END_STREAM, b"hi")]), HI, Nothing),
        rule("8.1", "trailers that do not end the stream", join(&[ok(0), data(0, b"hi"), headers(1, 0, &[("x-t", "1")])]), Reset(PROTOCOL_ERROR), Stream(PROTOCOL_ERROR)),
        rule("8.1.1", "the length is right", join(&[with(0, &[("content-length", "2")]), data(END_STREAM, b"hi")]), HI, Nothing),
        rule("8.1.1", "less than the length", join(&[with(0, &[("content-length", "3")]), data(END_STREAM, b"hi")]), Reset(PROTOCOL_ERROR), Stream(PROTOCOL_ERROR)),
        rule("8.1.1", "more than the length", join(&[with(0, &[("content-length", "1")]), data(END_STREAM, b"hi")]), Reset(PROTOCOL_ERROR), Stream(PROTOCOL_ERROR)),
        over("8.1.1", "a length and no body", with(END_STREAM, &[("content-length", "3")])),
        rule("8.1.1", "a length and no body with 304", headers(1, END_STREAM, &[(":status", "304"), ("content-length", "3")]), Whole(304, ""), Nothing),
        over("8.1.1", "two lengths", with(END_STREAM, &[("content-length", "0"), ("content-length", "5")])),
        over("8.1.1", "a length that is no number", with(END_STREAM, &[("content-length", "+0")])),
        unreadable("8.2.1", "an upper-case name", with(END_STREAM, &[("X-Upper", "y")])),
        unreadable("8.2.1", "an empty name", with(END_STREAM, &[("", "y")])),
        unreadable("8.2.1", "a space in a name", with(END_STREAM, &[("x y", "z")])),
        unreadable("8.2.1", "CRLF in a value", with(END_STREAM, &[("x", "y\r\nz: a")])),
        unreadable("8.2.1", "NUL in a value", with(END_STREAM, &[("x", "\0")])),
        over("8.2.1", "a space before a value", with(END_STREAM, &[("x", " y")])),
        malformed("8.2.2", "connection", with(END_STREAM, &[("connection", "close")])),
        malformed("8.2.2", "transfer-encoding", with(END_STREAM, &[("transfer-encoding", "chunked")])),
        malformed("8.2.2", "upgrade", with(END_STREAM, &[("upgrade", "x")])),
        malformed("8.3", "a pseudo-header field after a field", headers(1, END_STREAM, &[("x", "y"), (":status", "200")])),
        unreadable("8.3", "an unknown pseudo-header field", with(END_STREAM, &[(":x", "y")])),
        over("8.3.2", "no status", headers(1, END_STREAM, &[("x", "y")])),
        malformed("8.3.2", "two statuses", headers(1, END_STREAM, &[(":status", "200"), (":status", "500")])),
        unreadable("8.3.2", "a status that is none", headers(1, END_STREAM, &[(":status", "2x")])),
    ]
}

/// An application that breaks one rule in its first answer, and what it was told after that.
struct Breaking {
    addr: SocketAddr,
    told: Rc<RefCell<Vec<Told>>>,
}

async fn breaking(send: Vec<u8>) -> Breaking {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let breaking = Breaking { addr: listener.local_addr().unwrap(), told: Rc::default() };
    let told = breaking.told.clone();
    let send = Rc::new(RefCell::new(Some(send)));
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tokio::task::spawn_local(serve(tcp, send.clone(), told.clone()));
        }
    });
    breaking
}

async fn serve(mut tcp: TcpStream, send: Rc<RefCell<Option<Vec<u8>>>>, told: Rc<RefCell<Vec<Told>>>) {
    let mut preface = [0; PREFACE.len()];
    if tcp.read_exact(&mut preface).await.is_err() {
        return;
    }
    let mut wire = Client::new(tcp);
    let _gone = wire.send(&frame(SETTINGS, 0, 0, &[])).await;
    while let Ok(Some(came)) = wire.frame().await {
        match came.kind {
            HEADERS => {
                let answer = send.borrow_mut().take().unwrap_or_else(|| {
                    let stream = came.stream;
                    join(&[headers(stream, 0, &[(":status", "200")]), frame(DATA, END_STREAM, stream, b"hi")])
                });
                let _gone = wire.send(&answer).await;
            }
            SETTINGS if came.flags & ACK == 0 => {
                let _gone = wire.send(&frame(SETTINGS, ACK, 0, &[])).await;
            }
            PING if came.flags & ACK == 0 => {
                let _gone = wire.send(&frame(PING, ACK, 0, &came.payload)).await;
            }
            RST_STREAM => told.borrow_mut().push(Stream(came.code().unwrap_or(u32::MAX))),
            GOAWAY if came.code() != Some(0) => {
                told.borrow_mut().push(Connection(came.code().unwrap_or(u32::MAX)));
            }
            _ => {}
        }
    }
}

async fn asked(
    client: &mut hyper::client::conn::http2::SendRequest<Full<Bytes>>,
) -> Result<(u16, HeaderMap, Bytes), u32> {
    let code = |error: &hyper::Error| {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
        cause.and_then(h2::Error::reason).map_or(u32::MAX, u32::from)
    };
    let request = Request::get("http://web.shop/").body(Full::default()).unwrap();
    let response = client.send_request(request).await.map_err(|error| code(&error))?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(|error| code(&error))?;
    Ok((head.status.as_u16(), head.headers, body.to_bytes()))
}

async fn broken(pki: &Pki, rule: &Rule) -> Result<(), String> {
    let app = breaking(rule.send.clone()).await;
    let proxy = proxy(pki, "store", app.addr, "192.0.2.80:80".parse().unwrap(), &[]);
    let http = Protocol::Http2(HttpPolicy::default());
    proxy.told.inbound(app.addr.port(), server(http, Authn::Unauthenticated));
    let mut client = harness::h2(proxy.inbound).await;
    let patient = async |client: &mut _| within(async { Ok(asked(client).await) }).await;
    let got = match patient(&mut client).await {
        Err(_) => return Err("no end".into()),
        Ok(Err(code)) => format!("{:?}", Reset(code)),
        Ok(Ok((status, fields, body))) => match fields.get("l5d-proxy-error") {
            Some(code) => format!("Refused({status}, {code:?})"),
            None => format!("Whole({status}, {:?})", String::from_utf8_lossy(&body)),
        },
    };
    // A refusal of the proxy ends the connection; the neighbour has one of its own.
    let mut neighbour = harness::h2(proxy.inbound).await;
    let next = match patient(&mut neighbour).await {
        Ok(Ok((200, _, body))) if body == "hi" => String::new(),
        next => format!(", and the next {next:?}"),
    };
    // What the server is told comes before the next request if it comes on the same connection; else it is on its way.
    let looking = async {
        while app.told.borrow().is_empty() {
            tokio::task::yield_now().await;
        }
        Ok(())
    };
    if rule.told != Nothing && within(looking).await.is_err() {
        return Err(format!("{got}, and the server was told nothing{next}"));
    }
    let told = app.told.borrow().first().copied().unwrap_or(Nothing);
    let right = match (told, rule.told) {
        // The more generic code for the same end is allowed (RFC 9113, 7).
        (Connection(code), Connection(wanted)) => code == wanted || code == PROTOCOL_ERROR,
        (told, wanted) => told == wanted,
    };
    if got != format!("{:?}", rule.client) || !right || !next.is_empty() {
        return Err(format!("{got}, and the server was told {told:?}{next}"));
    }
    Ok(())
}

#[tokio::test(flavor = "local")]
async fn a_server_that_breaks_a_rule_hurts_its_own_stream_or_connection_alone() {
    let pki = Pki::new();
    let mut wrong = Vec::new();
    for rule in frames().into_iter().chain(streams()).chain(connection()).chain(messages()) {
        if std::env::var("WEFT_TEST_ROW").is_ok_and(|part| !rule.name.contains(&part)) {
            continue;
        }
        if let Err(what) = broken(&pki, &rule).await {
            wrong.push(format!("{} {}: {what}", rule.clause, rule.name));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
