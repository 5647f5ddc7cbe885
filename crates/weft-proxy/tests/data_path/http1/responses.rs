//! What servers answer, and what is right. `|` stands for CRLF; `<` at the end of an answer: the server ends its side after it.
//!
//! The first column names the clause (RFC 9112 unless it says 9110). A malformed answer is nobody's answer: the client hears
//! 502 and a code, or, if its answer had begun, a message that breaks off.

use super::{Answer, bad, broken, got};

pub(crate) fn rows() -> Vec<Answer> {
    let mut rows = Vec::new();
    rows.extend(framing());
    rows.extend(without_body());
    rows.extend(interim());
    rows.extend(malformed());
    rows.extend(left_over());
    rows
}

#[rustfmt::skip]
fn framing() -> Vec<Answer> {
    vec![
        got("6.2", "a length", "HTTP/1.1 200 OK|Content-Length: 5||hello", 200, "hello"),
        got("6.2", "an empty body", "HTTP/1.1 200 OK|Content-Length: 0||", 200, ""),
        got("7.1", "chunks", "HTTP/1.1 200 OK|Transfer-Encoding: chunked||5|hello|0||", 200, "hello"),
        got("7.1.1", "chunks with extensions", "HTTP/1.1 200 OK|Transfer-Encoding: chunked||5;a=b|hello|0||", 200, "hello"),
        got("7.1.2", "chunks with a trailer", "HTTP/1.1 200 OK|Transfer-Encoding: chunked|Trailer: x-t||5|hello|0|X-T: 1||", 200, "hello"),
        got("6.3", "the end of the connection ends the body", "HTTP/1.1 200 OK||hello<", 200, "hello"),
        got("6.3", "an HTTP/1.0 server", "HTTP/1.0 200 OK||hello<", 200, "hello"),
        got("9.3", "an HTTP/1.0 server with a length", "HTTP/1.0 200 OK|Content-Length: 5||hello<", 200, "hello"),
        got("9.6", "close belongs to the server's hop", "HTTP/1.1 200 OK|Connection: close|Content-Length: 5||hello<", 200, "hello"),
        got("9110 7.6.1", "fields that Connection lists", "HTTP/1.1 200 OK|Connection: x-hop|X-Hop: 1|Content-Length: 5||hello", 200, "hello").lacks("x-hop"),
        got("9110 7.8", "an upgrade is offered", "HTTP/1.1 200 OK|Connection: upgrade|Upgrade: h2c|Content-Length: 5||hello", 200, "hello").lacks("upgrade"),
        got("4", "no reason", "HTTP/1.1 200 |Content-Length: 5||hello", 200, "hello"),
        got("4", "a reason with bytes above ASCII", "HTTP/1.1 200 \u{e9}|Content-Length: 5||hello", 200, "hello"),
        got("9110 15", "a status nobody knows", "HTTP/1.1 299 Odd|Content-Length: 5||hello", 299, "hello"),
        got("9110 15", "an error is passed on", "HTTP/1.1 503 No|Content-Length: 5||hello", 503, "hello"),
        got("9110 5.5", "bytes above ASCII in a value", "HTTP/1.1 200 OK|X: \u{e9}|Content-Length: 5||hello", 200, "hello"),
        got("9110 5.3", "Set-Cookie in two lines", "HTTP/1.1 200 OK|Set-Cookie: a=1|Set-Cookie: b=2|Content-Length: 0||", 200, "").has("set-cookie", &["a=1", "b=2"]),
        got("7.1", "chunks for an HTTP/1.0 client", "HTTP/1.1 200 OK|Transfer-Encoding: chunked||5|hello|0||", 200, "hello").to("GET /row HTTP/1.0|Host: a||").lacks("transfer-encoding").closing(),
        got("6.3", "no length for an HTTP/1.0 client", "HTTP/1.1 200 OK||hello<", 200, "hello").to("GET /row HTTP/1.0|Host: a||").closing(),
        got("9.3", "a length for an HTTP/1.0 client that keeps", "HTTP/1.1 200 OK|Content-Length: 5||hello", 200, "hello").to("GET /row HTTP/1.0|Host: a|Connection: keep-alive||"),
        got("9110 15.5.14", "an early answer", "HTTP/1.1 413 No|Content-Length: 2||no<", 413, "no").to("POST /row HTTP/1.1|Host: a|Content-Length: 1048576||").early(),
        got("9110 10.1.1", "an early answer instead of 100", "HTTP/1.1 401 No|Content-Length: 2||no<", 401, "no").to("POST /row HTTP/1.1|Host: a|Expect: 100-continue|Content-Length: 1048576||").early(),
    ]
}

#[rustfmt::skip]
fn without_body() -> Vec<Answer> {
    vec![
        got("6.3", "204", "HTTP/1.1 204 No||", 204, "").lacks("content-length").lacks("transfer-encoding"),
        got("6.3", "304 with the length of what it does not send", "HTTP/1.1 304 Not|Content-Length: 1000||", 304, "").has("content-length", &["1000"]),
        got("6.3", "304 with a coding", "HTTP/1.1 304 Not|Transfer-Encoding: chunked||", 304, ""),
        got("9110 9.3.2", "HEAD with a length", "HTTP/1.1 200 OK|Content-Length: 1000||", 200, "").to("HEAD /row HTTP/1.1|Host: a||").has("content-length", &["1000"]),
        got("9110 9.3.2", "HEAD with a coding", "HTTP/1.1 200 OK|Transfer-Encoding: chunked||", 200, "").to("HEAD /row HTTP/1.1|Host: a||"),
        got("9110 9.3.2", "HEAD with neither", "HTTP/1.1 200 OK||", 200, "").to("HEAD /row HTTP/1.1|Host: a||"),
        got("9110 9.3.2", "HEAD answered with an error", "HTTP/1.1 404 No|Content-Length: 9||", 404, "").to("HEAD /row HTTP/1.1|Host: a||"),
    ]
}

#[rustfmt::skip]
fn interim() -> Vec<Answer> {
    vec![
        got("9110 15.2", "100 before the answer", "HTTP/1.1 100 Continue||HTTP/1.1 200 OK|Content-Length: 5||hello", 200, "hello").interim(&[100]),
        got("9110 15.2", "103 before the answer", "HTTP/1.1 103 Early|Link: </a>||HTTP/1.1 200 OK|Content-Length: 5||hello", 200, "hello").interim(&[103]),
        got("9110 15.2", "some of them", "HTTP/1.1 100 C||HTTP/1.1 102 P||HTTP/1.1 103 E|X: y||HTTP/1.1 200 OK|Content-Length: 5||hello", 200, "hello").interim(&[100, 102, 103]),
        got("9110 15.2", "one that nobody knows", "HTTP/1.1 199 Odd||HTTP/1.1 200 OK|Content-Length: 5||hello", 200, "hello").interim(&[199]),
        got("9110 15.2", "103 for an HTTP/1.0 client", "HTTP/1.1 103 Early|Link: </a>||HTTP/1.1 200 OK|Content-Length: 5||hello", 200, "hello").to("GET /row HTTP/1.0|Host: a||").closing(),
        bad("9110 7.8", "101 that nobody asked for", "HTTP/1.1 101 Switching|Connection: upgrade|Upgrade: x||"),
        bad("9110 15.2", "an interim answer and no final one", "HTTP/1.1 100 Continue||<"),
        bad("9110 15.2", "endless interim answers", &"HTTP/1.1 103 E|X: y||".repeat(2_000)),
    ]
}

#[rustfmt::skip]
fn malformed() -> Vec<Answer> {
    vec![
        bad("4", "no HTTP at all", "SUPER 1.0\n<"),
        bad("4", "another protocol", "SSH-2.0-OpenSSH_9.6||<"),
        bad("4", "a status of two digits", "HTTP/1.1 20 OK|Content-Length: 0||"),
        bad("4", "a status of four digits", "HTTP/1.1 2000 OK|Content-Length: 0||"),
        bad("4", "a status in letters", "HTTP/1.1 abc OK|Content-Length: 0||"),
        bad("9110 15", "a status below 100", "HTTP/1.1 099 OK|Content-Length: 0||"),
        bad("4", "two spaces before the status", "HTTP/1.1  200 OK|Content-Length: 0||"),
        bad("4", "a sign", "HTTP/1.1 +20 OK|Content-Length: 0||"),
        bad("2.3", "lower case", "http/1.1 200 OK|Content-Length: 0||"),
        bad("2.3", "version 2.0", "HTTP/2.0 200 OK|Content-Length: 0||"),
        bad("2.3", "another name", "ICY 200 OK|Content-Length: 0||"),
        bad("2.2", "bare LFs", "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello<"),
        bad("2.2", "a bare CR in a value", "HTTP/1.1 200 OK|X: a\rb|Content-Length: 0||"),
        bad("2.2", "a space before the first field", "HTTP/1.1 200 OK| X: y|Content-Length: 0||"),
        bad("5.1", "a space before a colon", "HTTP/1.1 200 OK|X : y|Content-Length: 0||"),
        bad("5.1", "no colon", "HTTP/1.1 200 OK|X|Content-Length: 0||"),
        bad("5.1", "an empty name", "HTTP/1.1 200 OK|: y|Content-Length: 0||"),
        bad("5.2", "a folded value", "HTTP/1.1 200 OK|X: a| b|Content-Length: 0||"),
        bad("9110 5.5", "NUL in a value", "HTTP/1.1 200 OK|X: \0|Content-Length: 0||"),
        bad("9110 5.5", "a control character in a value", "HTTP/1.1 200 OK|X: \u{1}|Content-Length: 0||"),
        bad("6.3", "a length and a coding", "HTTP/1.1 200 OK|Content-Length: 5|Transfer-Encoding: chunked||5|hello|0||"),
        bad("6.3", "two lengths", "HTTP/1.1 200 OK|Content-Length: 5|Content-Length: 6||hello!"),
        bad("6.3", "the same length twice", "HTTP/1.1 200 OK|Content-Length: 5|Content-Length: 5||hello"),
        bad("6.3", "a list of lengths", "HTTP/1.1 200 OK|Content-Length: 5, 5||hello"),
        bad("6.3", "a sign before the length", "HTTP/1.1 200 OK|Content-Length: +5||hello"),
        bad("6.3", "a negative length", "HTTP/1.1 200 OK|Content-Length: -5||hello"),
        bad("6.3", "a length in letters", "HTTP/1.1 200 OK|Content-Length: five||hello"),
        bad("6.3", "a length of 2^64", "HTTP/1.1 200 OK|Content-Length: 18446744073709551616||hello"),
        bad("6.1", "a coding that is not undone here", "HTTP/1.1 200 OK|Transfer-Encoding: gzip||hello<"),
        bad("6.1", "chunked twice", "HTTP/1.1 200 OK|Transfer-Encoding: chunked, chunked||5|hello|0||"),
        bad("6.1", "HTTP/1.0 with a coding", "HTTP/1.0 200 OK|Transfer-Encoding: chunked||5|hello|0||"),
        bad("5.4", "a head of 300 KiB", &format!("HTTP/1.1 200 OK|X: {}|Content-Length: 0||", "x".repeat(300 << 10))),
        bad("8", "nothing", "<"),
        bad("8", "half a status line", "HTTP/1.1 20<"),
        bad("8", "half a head", "HTTP/1.1 200 OK|Content-Le<"),
        broken("8", "a body too short", "HTTP/1.1 200 OK|Content-Length: 10||hello<"),
        broken("8", "chunks without an end", "HTTP/1.1 200 OK|Transfer-Encoding: chunked||5|hello|<"),
        broken("8", "half a chunk", "HTTP/1.1 200 OK|Transfer-Encoding: chunked||5|he<"),
        broken("8", "trailers without an end", "HTTP/1.1 200 OK|Transfer-Encoding: chunked||5|hello|0|X: y<"),
        broken("7.1", "a size that is no number", "HTTP/1.1 200 OK|Transfer-Encoding: chunked||5|hello|x||"),
        broken("7.1", "data too long", "HTTP/1.1 200 OK|Transfer-Encoding: chunked||5|hello!|0||"),
        broken("7.1", "a size of 2^64", "HTTP/1.1 200 OK|Transfer-Encoding: chunked||5|hello|10000000000000000|"),
        broken("7.1", "a bare LF after a size", "HTTP/1.1 200 OK|Transfer-Encoding: chunked||5|hello|5\nhello|0||"),
        broken("7.1.2", "a folded trailer", "HTTP/1.1 200 OK|Transfer-Encoding: chunked||5|hello|0|X: y| z||"),
    ]
}

/// What a server says too much must never become the answer to the next request.
#[rustfmt::skip]
fn left_over() -> Vec<Answer> {
    const SECOND: &str = "HTTP/1.1 200 OK|Content-Length: 6||poison";
    vec![
        got("6.3", "a second answer", &format!("HTTP/1.1 200 OK|Content-Length: 5||hello{SECOND}"), 200, "hello"),
        got("6.3", "bytes after the body", "HTTP/1.1 200 OK|Content-Length: 5||hello!!", 200, "hello"),
        got("6.3", "bytes after the chunks", &format!("HTTP/1.1 200 OK|Transfer-Encoding: chunked||5|hello|0||{SECOND}"), 200, "hello"),
        got("6.3", "204 with a body", &format!("HTTP/1.1 204 No||{SECOND}"), 204, ""),
        got("6.3", "304 with a body", &format!("HTTP/1.1 304 No|Content-Length: 42||{SECOND}"), 304, ""),
        got("9110 9.3.2", "HEAD with a body", &format!("HTTP/1.1 200 OK|Content-Length: 42||{SECOND}"), 200, "").to("HEAD /row HTTP/1.1|Host: a||"),
    ]
}
