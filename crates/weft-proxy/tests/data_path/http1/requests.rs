//! What clients send, and what is right. `|` stands for CRLF.
//!
//! The first column names the clause (RFC 9112 unless it says 9110 or 3986). A request is passed on exactly, or it is refused:
//! nothing is repaired, since the next hop may have repaired it differently.

use super::{Row, cut, passed, refused};

/// A field of `bytes` bytes.
fn long(name: &str, bytes: usize) -> String {
    format!("{name}: {}", "x".repeat(bytes))
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(request_line());
    rows.extend(targets());
    rows.extend(fields());
    rows.extend(content_length());
    rows.extend(transfer_encoding());
    rows.extend(chunks());
    rows.extend(trailers());
    rows.extend(hops());
    rows.extend(connections());
    rows.extend(sizes());
    rows.extend(broken_off());
    rows
}

#[rustfmt::skip]
fn request_line() -> Vec<Row> {
    vec![
        passed("2.1", "the simplest request", "GET / HTTP/1.1|Host: a||", &["GET / HTTP/1.1|host: a||"]),
        passed("2.2", "an empty line before it", "|GET / HTTP/1.1|Host: a||", &["GET / HTTP/1.1"]),
        passed("9110 9.1", "a method nobody knows", "PURGE /x HTTP/1.1|Host: a||", &["PURGE /x HTTP/1.1"]),
        passed("9110 9.1", "methods are case-sensitive", "get / HTTP/1.1|Host: a||", &["get / HTTP/1.1"]),
        passed("9110 5.6.2", "every token character", "M!#$%&'*+-.^_`~9 / HTTP/1.1|Host: a||", &["M!#$%&'*+-.^_`~9 / HTTP/1.1"]),
        refused("3", "no method", 400, " / HTTP/1.1|Host: a||"),
        refused("9110 9.1", "a brace in the method", 400, "G{T / HTTP/1.1|Host: a||"),
        refused("9110 9.1", "a colon in the method", 400, "GET: / HTTP/1.1|Host: a||"),
        refused("9110 9.1", "a byte above ASCII in the method", 400, "G\u{c9}T / HTTP/1.1|Host: a||"),
        refused("9110 9.1", "NUL in the method", 400, "GE\0T / HTTP/1.1|Host: a||"),
        refused("3", "two spaces after the method", 400, "GET  / HTTP/1.1|Host: a||"),
        refused("3", "a tab after the method", 400, "GET\t/ HTTP/1.1|Host: a||"),
        refused("3", "two spaces before the version", 400, "GET /  HTTP/1.1|Host: a||"),
        refused("3", "a tab before the version", 400, "GET /\tHTTP/1.1|Host: a||"),
        refused("3", "a space after the version", 400, "GET / HTTP/1.1 |Host: a||"),
        refused("3", "a fourth word", 400, "GET / x HTTP/1.1|Host: a||"),
        refused("2.3", "no version, as in HTTP/0.9", 400, "GET /|Host: a||"),
        refused("2.3", "lower case", 400, "GET / http/1.1|Host: a||"),
        refused("2.3", "no dot", 400, "GET / HTTP/1|Host: a||"),
        refused("2.3", "no minor version", 400, "GET / HTTP/1.|Host: a||"),
        refused("2.3", "two digits", 400, "GET / HTTP/1.10|Host: a||"),
        refused("2.3", "a leading zero", 400, "GET / HTTP/01.1|Host: a||"),
        refused("2.3", "another name", 400, "GET / HTTQ/1.1|Host: a||"),
        refused("2.3", "a sign", 400, "GET / HTTP/+1.1|Host: a||"),
        refused("2.3", "version 0.9 in words", 400, "GET / HTTP/0.9|Host: a||"),
        refused("2.3", "version 2.0 in an HTTP/1 message", 400, "GET / HTTP/2.0|Host: a||"),
        refused("2.3", "version 3.0", 400, "GET / HTTP/3.0|Host: a||"),
        refused("2.2", "bare LF after the request line", 400, "GET / HTTP/1.1\nHost: a||"),
        refused("2.2", "bare CR after the request line", 400, "GET / HTTP/1.1\rHost: a||"),
        refused("2.2", "bare LF everywhere", 400, "GET / HTTP/1.1\nHost: a\n\n"),
        refused("2.2", "a space before the first field", 400, "GET / HTTP/1.1| Host: a||"),
        refused("2.2", "a tab before the first field", 400, "GET / HTTP/1.1|\tHost: a||"),
        refused("2.2", "another protocol altogether", 400, "SSH-2.0-OpenSSH_9.6||"),
    ]
}

#[rustfmt::skip]
fn targets() -> Vec<Row> {
    vec![
        passed("3.2.1", "a path and a query", "GET /a/b?c=d&e HTTP/1.1|Host: a||", &["GET /a/b?c=d&e HTTP/1.1"]),
        passed("3.2.1", "an empty query", "GET /a? HTTP/1.1|Host: a||", &["GET /a? HTTP/1.1"]),
        passed("3.2.1", "two slashes are kept", "GET //a//b HTTP/1.1|Host: a||", &["GET //a//b HTTP/1.1"]),
        passed("3986 3.3", "dots are kept", "GET /a/../b/./c HTTP/1.1|Host: a||", &["GET /a/../b/./c HTTP/1.1"]),
        passed("3986 2.1", "percent encodings are kept", "GET /%2e%2E/%00%2f HTTP/1.1|Host: a||", &["GET /%2e%2E/%00%2f HTTP/1.1"]),
        passed("3986 2.2", "all delimiters", "GET /a:@!$&'()*+,;=-._~?/? HTTP/1.1|Host: a||", &["GET /a:@!$&'()*+,;=-._~?/? HTTP/1.1"]),
        passed("3.2.4", "the server as a whole", "OPTIONS * HTTP/1.1|Host: a||", &["OPTIONS * HTTP/1.1"]),
        refused("3.2.4", "an asterisk with another method", 400, "GET * HTTP/1.1|Host: a||"),
        passed("3.2.2", "the absolute form", "GET http://a/b?c HTTP/1.1|Host: a||", &["GET http://a/b?c HTTP/1.1|host: a||"]),
        passed("3.2.2", "the target's authority wins over Host", "GET http://b/x HTTP/1.1|Host: a||", &["GET http://b/x HTTP/1.1|host: b||"]),
        refused("3.2", "the absolute form without Host", 400, "GET http://a/b HTTP/1.1||"),
        refused("9110 4.2.4", "a user in the target", 400, "GET http://u@a/b HTTP/1.1|Host: a||"),
        refused("9110 4.2.1", "no host in the target", 400, "GET http:///b HTTP/1.1|Host: a||"),
        refused("3.2.1", "no slash", 400, "GET a HTTP/1.1|Host: a||"),
        refused("3.2.3", "an authority with another method than CONNECT", 400, "GET a:80 HTTP/1.1|Host: a||"),
        refused("3.2.3", "CONNECT without a port", 400, "CONNECT a HTTP/1.1|Host: a||"),
        refused("3.2.3", "CONNECT to a path", 400, "CONNECT /x HTTP/1.1|Host: a||"),
        refused("3.2.3", "CONNECT to a URI", 400, "CONNECT http://a/ HTTP/1.1|Host: a||"),
        refused("3.2.1", "a fragment", 400, "GET /a#b HTTP/1.1|Host: a||"),
        refused("3.2", "a byte above ASCII", 400, "GET /\u{e9} HTTP/1.1|Host: a||"),
        refused("3.2", "a control character", 400, "GET /\u{1} HTTP/1.1|Host: a||"),
        refused("3.2", "DEL", 400, "GET /\u{7f} HTTP/1.1|Host: a||"),
        refused("3.2", "NUL", 400, "GET /\0 HTTP/1.1|Host: a||"),
        refused("3.2", "a bare CR", 400, "GET /\r HTTP/1.1|Host: a||"),
    ]
}

#[rustfmt::skip]
fn fields() -> Vec<Row> {
    vec![
        passed("3.2", "Host with a port", "GET / HTTP/1.1|Host: a:8080||", &["GET / HTTP/1.1|host: a:8080||"]),
        passed("3.2", "Host is an IPv6 address", "GET / HTTP/1.1|Host: [fd77::5]:80||", &["GET / HTTP/1.1|host: [fd77::5]:80||"]),
        passed("3.2", "HTTP/1.0 needs no Host", "GET / HTTP/1.0||", &["GET / HTTP/1.0"]).closing(),
        refused("3.2", "no Host", 400, "GET / HTTP/1.1||"),
        refused("3.2", "two different Hosts", 400, "GET / HTTP/1.1|Host: a|Host: b||"),
        refused("3.2", "the same Host twice", 400, "GET / HTTP/1.1|Host: a|Host: a||"),
        refused("3.2", "two Hosts in HTTP/1.0", 400, "GET / HTTP/1.0|Host: a|Host: b||"),
        refused("3.2", "two Hosts in one field", 400, "GET / HTTP/1.1|Host: a, b||"),
        refused("3.2", "a space in Host", 400, "GET / HTTP/1.1|Host: a b||"),
        refused("3.2", "a path in Host", 400, "GET / HTTP/1.1|Host: a/b||"),
        refused("3.2", "a user in Host", 400, "GET / HTTP/1.1|Host: u@a||"),
        refused("3.2", "a port that is none", 400, "GET / HTTP/1.1|Host: a:b||"),
        refused("3.2", "an open bracket", 400, "GET / HTTP/1.1|Host: [fd77::5||"),
        refused("3.2", "Host with a scheme", 400, "GET / HTTP/1.1|Host: http://a||"),
        passed("5", "no space after the colon", "GET / HTTP/1.1|Host:a|X:y||", &["GET / HTTP/1.1|host: a|x: y||"]),
        passed("5", "spaces and tabs around a value", "GET / HTTP/1.1|Host: \t a \t|X: \t y \t ||", &["GET / HTTP/1.1|host: a|x: y||"]),
        passed("5", "an empty value", "GET / HTTP/1.1|Host: a|X:||", &["GET / HTTP/1.1|x: ||"]),
        passed("9110 5.5", "spaces, tabs and quotes within a value", "GET / HTTP/1.1|Host: a|X: b \t\"c\" d||", &["GET / HTTP/1.1|x: b \t\"c\" d||"]),
        passed("9110 5.5", "bytes above ASCII in a value", "GET / HTTP/1.1|Host: a|X: \u{e9}\u{ff}||", &["GET / HTTP/1.1|x: \u{e9}\u{ff}||"]),
        passed("9110 5.3", "a field in two lines, in order", "GET / HTTP/1.1|Host: a|X: 1|Y: z|X: 2||", &["GET / HTTP/1.1|x: 1|x: 2|y: z||"]),
        passed("9110 5.6.2", "every token character in a name", "GET / HTTP/1.1|Host: a|x!#$%&'*+-.^_`~9: y||", &["GET / HTTP/1.1|x!#$%&'*+-.^_`~9: y||"]),
        passed("5.1", "an underscore is another name", "POST / HTTP/1.1|Host: a|Transfer_Encoding: chunked|Content-Length: 2||hi", &["POST / HTTP/1.1|transfer_encoding: chunked|content-length: 2||hi"]),
        refused("5.1", "a space before the colon", 400, "GET / HTTP/1.1|Host : a||"),
        refused("5.1", "a tab before the colon", 400, "GET / HTTP/1.1|Host: a|X\t: y||"),
        refused("5.1", "a space in a name", 400, "GET / HTTP/1.1|Host: a|X Y: z||"),
        refused("5.1", "an empty name", 400, "GET / HTTP/1.1|Host: a|: y||"),
        refused("5.1", "no colon", 400, "GET / HTTP/1.1|Host: a|X||"),
        refused("9110 5.1", "a parenthesis in a name", 400, "GET / HTTP/1.1|Host: a|X(: y||"),
        refused("9110 5.1", "a byte above ASCII in a name", 400, "GET / HTTP/1.1|Host: a|X\u{e9}: y||"),
        refused("9110 5.1", "NUL in a name", 400, "GET / HTTP/1.1|Host: a|X\0: y||"),
        refused("9110 5.5", "NUL in a value", 400, "GET / HTTP/1.1|Host: a|X: \0y||"),
        refused("9110 5.5", "a control character in a value", 400, "GET / HTTP/1.1|Host: a|X: \u{1}y||"),
        refused("9110 5.5", "DEL in a value", 400, "GET / HTTP/1.1|Host: a|X: \u{7f}||"),
        refused("2.2", "a bare CR in a value", 400, "GET / HTTP/1.1|Host: a|X: y\rTransfer-Encoding: chunked||"),
        refused("2.2", "a bare CR before CRLF", 400, "GET / HTTP/1.1|Host: a|X: y\r||"),
        refused("2.2", "a bare LF between fields", 400, "GET / HTTP/1.1|Host: a\nX: y||"),
        refused("2.2", "a bare LF ends the head", 400, "GET / HTTP/1.1|Host: a|\nX: y||"),
        refused("2.2", "CR CR LF", 400, "GET / HTTP/1.1\r|Host: a||"),
        refused("5.2", "a folded value", 400, "GET / HTTP/1.1|Host: a|X: y| z||"),
        refused("5.2", "a value folded with a tab", 400, "GET / HTTP/1.1|Host: a|X: y|\tz||"),
        refused("5.2", "a folded Host", 400, "GET / HTTP/1.1|Host:| a||"),
        refused("5.2", "a line of spaces", 400, "GET / HTTP/1.1|Host: a|  ||"),
    ]
}

#[rustfmt::skip]
fn content_length() -> Vec<Row> {
    vec![
        passed("6.2", "a body", "POST / HTTP/1.1|Host: a|Content-Length: 5||hello", &["POST / HTTP/1.1|content-length: 5||hello"]),
        passed("6.2", "an empty body", "POST / HTTP/1.1|Host: a|Content-Length: 0||", &["POST / HTTP/1.1|content-length: 0||"]),
        passed("6.3", "no length, no body", "POST / HTTP/1.1|Host: a||", &["POST / HTTP/1.1|!transfer-encoding||"]),
        passed("9110 9.3.1", "GET with a body", "GET / HTTP/1.1|Host: a|Content-Length: 2||hi", &["GET / HTTP/1.1|content-length: 2||hi"]),
        passed("9110 9.3.5", "DELETE with a body", "DELETE / HTTP/1.1|Host: a|Content-Length: 2||hi", &["DELETE / HTTP/1.1|content-length: 2||hi"]),
        passed("9110 8.6", "leading zeros are digits", "POST / HTTP/1.1|Host: a|Content-Length: 0005||hello", &["POST / HTTP/1.1||hello"]),
        passed("6.2", "HTTP/1.0 with a body", "POST / HTTP/1.0|Host: a|Content-Length: 2||hi", &["POST / HTTP/1.0|content-length: 2||hi"]).closing(),
        refused("6.3", "two lengths", 400, "POST / HTTP/1.1|Host: a|Content-Length: 5|Content-Length: 6||hello"),
        refused("6.3", "the same length twice", 400, "POST / HTTP/1.1|Host: a|Content-Length: 5|Content-Length: 5||hello"),
        refused("6.3", "a list of lengths", 400, "POST / HTTP/1.1|Host: a|Content-Length: 5, 5||hello"),
        refused("6.3", "a list of one", 400, "POST / HTTP/1.1|Host: a|Content-Length: 5,||hello"),
        refused("6.3", "a sign", 400, "POST / HTTP/1.1|Host: a|Content-Length: +5||hello"),
        refused("6.3", "a negative length", 400, "POST / HTTP/1.1|Host: a|Content-Length: -5||hello"),
        refused("6.3", "two numbers", 400, "POST / HTTP/1.1|Host: a|Content-Length: 5 5||hello"),
        refused("6.3", "hexadecimal", 400, "POST / HTTP/1.1|Host: a|Content-Length: 0x5||hello"),
        refused("6.3", "a fraction", 400, "POST / HTTP/1.1|Host: a|Content-Length: 5.0||hello"),
        refused("6.3", "an exponent", 400, "POST / HTTP/1.1|Host: a|Content-Length: 5e0||hello"),
        refused("6.3", "an underscore", 400, "POST / HTTP/1.1|Host: a|Content-Length: 1_0||hello"),
        refused("6.3", "a parameter", 400, "POST / HTTP/1.1|Host: a|Content-Length: 5;x||hello"),
        refused("6.3", "quotes", 400, "POST / HTTP/1.1|Host: a|Content-Length: \"5\"||hello"),
        refused("6.3", "no number", 400, "POST / HTTP/1.1|Host: a|Content-Length: ||hello"),
        refused("6.3", "a word", 400, "POST / HTTP/1.1|Host: a|Content-Length: five||hello"),
        refused("6.3", "digits of another script", 400, "POST / HTTP/1.1|Host: a|Content-Length: \u{b2}||hello"),
        refused("6.3", "2^64", 400, "POST / HTTP/1.1|Host: a|Content-Length: 18446744073709551616||hello"),
        refused("6.3", "many digits", 400, "POST / HTTP/1.1|Host: a|Content-Length: 99999999999999999999999999||hello"),
        refused("5.1", "a space before the colon of the length", 400, "POST / HTTP/1.1|Host: a|Content-Length : 5||hello"),
        refused("5.2", "a folded length", 400, "POST / HTTP/1.1|Host: a|Content-Length:| 5||hello"),
        refused("6.3", "two lengths in HTTP/1.0", 400, "POST / HTTP/1.0|Host: a|Content-Length: 5|Content-Length: 6||hello"),
        refused("6.3", "two lengths on GET", 400, "GET / HTTP/1.1|Host: a|Content-Length: 0|Content-Length: 44||GET /smuggled HTTP/1.1|Host: a||"),
    ]
}

#[rustfmt::skip]
fn transfer_encoding() -> Vec<Row> {
    vec![
        passed("6.1", "chunked", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello|0||", &["POST / HTTP/1.1|!content-length||hello"]),
        passed("7", "codings are case-insensitive", "POST / HTTP/1.1|Host: a|Transfer-Encoding: cHuNkEd||5|hello|0||", &["POST / HTTP/1.1||hello"]),
        passed("6.1", "GET with a chunked body", "GET / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello|0||", &["GET / HTTP/1.1||hello"]),
        passed("6.1", "a chunked body that is empty", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||0||", &["POST / HTTP/1.1"]),
        refused("6.3", "both, chunked meant (CL.TE)", 400, "POST / HTTP/1.1|Host: a|Content-Length: 5|Transfer-Encoding: chunked||0||GET /smuggled HTTP/1.1|Host: a||"),
        refused("6.3", "both, length meant (TE.CL)", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Content-Length: 3||2d|GET /smuggled HTTP/1.1|Host: a|Content-Length: 9||0||"),
        refused("6.3", "both, in agreement", 400, "POST / HTTP/1.1|Host: a|Content-Length: 5|Transfer-Encoding: chunked||0||"),
        refused("6.3", "both, length zero", 400, "POST / HTTP/1.1|Host: a|Content-Length: 0|Transfer-Encoding: chunked||0||"),
        refused("6.3", "both, and two lengths", 400, "POST / HTTP/1.1|Host: a|Content-Length: 5|Content-Length: 5|Transfer-Encoding: chunked||0||"),
        refused("6.3", "both, coding unknown", 400, "POST / HTTP/1.1|Host: a|Content-Length: 5|Transfer-Encoding: x||hello"),
        refused("6.3", "both, identity", 400, "POST / HTTP/1.1|Host: a|Content-Length: 5|Transfer-Encoding: identity||hello"),
        refused("6.1", "identity is no coding any more", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: identity||hello"),
        refused("6.3", "chunked is not the last", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked, gzip||0||"),
        refused("6.1", "chunked twice", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked, chunked||0||"),
        refused("6.1", "chunked in two lines", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Transfer-Encoding: chunked||0||"),
        refused("6.1", "identity and chunked in two lines", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: identity|Transfer-Encoding: chunked||0||"),
        refused("6.1", "chunked and something in two lines", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Transfer-Encoding: x||0||"),
        refused("6.1", "an unknown coding", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: xchunked||0||"),
        refused("6.1", "a known coding that is not undone here", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: gzip, chunked||0||"),
        refused("6.1", "no coding", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding:||0||"),
        refused("6.1", "an empty element", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked,||0||"),
        refused("6.1", "an empty element before", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: ,chunked||0||"),
        refused("7", "a parameter", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked;q=1||0||"),
        refused("7", "quotes", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: \"chunked\"||0||"),
        refused("7", "a vertical tab", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: \u{b}chunked||0||"),
        refused("7", "NUL", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked\0||0||"),
        refused("7", "a no-break space", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding: \u{a0}chunked||0||"),
        refused("5.1", "a space before the colon of the coding", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding : chunked||0||"),
        refused("5.2", "a folded coding", 400, "POST / HTTP/1.1|Host: a|Transfer-Encoding:| chunked||0||"),
        refused("2.2", "the coding after a bare LF", 400, "POST / HTTP/1.1|Host: a|X: y\nTransfer-Encoding: chunked||0||"),
        refused("2.2", "the length after a bare CR", 400, "POST / HTTP/1.1|Host: a|X: y\rContent-Length: 5||hello"),
        refused("6.1", "HTTP/1.0 with a coding", 400, "POST / HTTP/1.0|Host: a|Transfer-Encoding: chunked||0||"),
        refused("6.1", "HTTP/1.0 with both", 400, "POST / HTTP/1.0|Host: a|Content-Length: 5|Transfer-Encoding: chunked||0||"),
        refused("6.1", "HTTP/1.0 with a coding and keep-alive", 400, "GET / HTTP/1.0|Host: a|Connection: keep-alive|Transfer-Encoding: chunked||0||"),
    ]
}

/// A chunked request whose body is `body`.
fn chunked(body: &str) -> String {
    format!("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||{body}")
}

#[rustfmt::skip]
fn chunks() -> Vec<Row> {
    const SMUGGLED: &str = "GET /smuggled HTTP/1.1|Host: a||";
    vec![
        passed("7.1", "two chunks", chunked("3|abc|2|de|0||"), &["POST / HTTP/1.1||abcde"]),
        passed("7.1", "hexadecimal, both cases", chunked("a|0123456789|B|0123456789a|0||"), &["POST / HTTP/1.1||01234567890123456789a"]),
        passed("7.1", "leading zeros", chunked("005|hello|000||"), &["POST / HTTP/1.1||hello"]),
        passed("7.1", "CRLF within a chunk is data", chunked("4|a|b|0||"), &["POST / HTTP/1.1||a\r\nb"]),
        passed("7.1.1", "an extension is dropped", chunked("5;a=b|hello|0;c||"), &["POST / HTTP/1.1||hello"]),
        passed("7.1.1", "a quoted extension", chunked("5;a=\"b;c\"|hello|0||"), &["POST / HTTP/1.1||hello"]),
        refused("7.1", "a size that is no number", 400, chunked("x|hello|0||")),
        refused("7.1", "no size", 400, chunked("|hello|0||")),
        refused("7.1", "a size with a prefix", 400, chunked("0x5|hello|0||")),
        refused("7.1", "a sign", 400, chunked("+5|hello|0||")),
        refused("7.1", "a negative size", 400, chunked("-5|hello|0||")),
        refused("7.1", "a space before the size", 400, chunked(" 5|hello|0||")),
        refused("7.1", "a space after the size", 400, chunked("5 |hello|0||")),
        refused("7.1", "2^64", 400, chunked("10000000000000000|hello|0||")),
        refused("7.1", "2^64 + 5", 400, chunked("10000000000000005|hello|0||")),
        refused("7.1", "many digits", 400, chunked("fffffffffffffffffffff|hello|0||")),
        refused("7.1", "a bare LF after the size", 400, chunked("5\nhello|0||")),
        refused("7.1", "a bare CR after the size", 400, chunked("5\rhello|0||")),
        refused("7.1", "data too long", 400, chunked("5|hello!|0||")),
        refused("7.1", "data too short", 400, chunked("5|hell|0||")),
        refused("7.1", "a bare LF after the data", 400, chunked("5|hello\n0||")),
        refused("7.1", "two bytes that are not CRLF", 400, chunked("5|helloXX0||")),
        refused("7.1", "no CRLF between chunks", 400, chunked("5|hello5|hello|0||")),
        refused("7.1.1", "a bare LF in an extension (TERM.EXT)", 400, chunked(&format!("2;\nxx|45|0||{SMUGGLED}"))),
        refused("7.1.1", "a bare CR in an extension", 400, chunked("5;a\rb|hello|0||")),
        refused("7.1.1", "NUL in an extension", 400, chunked("5;a\0|hello|0||")),
        refused("7.1.1", "an endless extension", 400, chunked(&format!("5;{}|hello|0||", "x".repeat(20_000)))),
        refused("7.1", "a bare LF ends the last chunk", 400, chunked(&format!("5|hello|0\n\n{SMUGGLED}"))),
        refused("7.1", "a letter in the last size", 400, chunked("5|hello|0g||")),
    ]
}

#[rustfmt::skip]
fn trailers() -> Vec<Row> {
    vec![
        passed("7.1.2", "a trailer", chunked("5|hello|0|X-T: 1||"), &["POST / HTTP/1.1||hello"]),
        refused("5.1", "a space before a trailer's colon", 400, chunked("5|hello|0|X-T : 1||")),
        refused("5.2", "a folded trailer", 400, chunked("5|hello|0|X-T: 1| 2||")),
        refused("5.1", "a trailer without a colon", 400, chunked("5|hello|0|X||")),
        refused("2.2", "a bare LF after a trailer", 400, chunked("5|hello|0|X: y\nZ: 1||")),
        refused("9110 5.5", "NUL in a trailer", 400, chunked("5|hello|0|X: \0||")),
        refused("9110 6.5.1", "a length in the trailers", 400, chunked("5|hello|0|Content-Length: 5||")),
        refused("9110 6.5.1", "a coding in the trailers", 400, chunked("5|hello|0|Transfer-Encoding: chunked||")),
        refused("9110 6.5.1", "Host in the trailers", 400, chunked("5|hello|0|Host: b||")),
    ]
}

#[rustfmt::skip]
fn hops() -> Vec<Row> {
    vec![
        passed("9110 7.6.1", "a field that Connection lists", "GET / HTTP/1.1|Host: a|Connection: x-hop, keep-alive|X-Hop: 1||", &["GET / HTTP/1.1|!x-hop||"]),
        passed("9110 7.6.1", "Connection in two lines", "GET / HTTP/1.1|Host: a|Connection: x-a|X-A: 1|X-B: 2|Connection: x-b||", &["GET / HTTP/1.1|!x-a|!x-b||"]),
        passed("9110 7.6.1", "Connection lists an end-to-end field", "GET / HTTP/1.1|Host: a|Connection: host, authorization|Authorization: b||", &["GET / HTTP/1.1|host: a|authorization: b||"]),
        passed("9110 7.6.1", "Connection lists the length", "POST / HTTP/1.1|Host: a|Connection: content-length|Content-Length: 2||hi", &["POST / HTTP/1.1||hi"]),
        passed("9110 7.6.1", "Keep-Alive and Proxy-Connection end here", "GET / HTTP/1.1|Host: a|Keep-Alive: timeout=5|Proxy-Connection: keep-alive||", &["GET / HTTP/1.1|!keep-alive|!proxy-connection||"]),
        passed("9110 10.1.4", "TE: trailers goes on", "GET / HTTP/1.1|Host: a|Connection: TE|TE: trailers||", &["GET / HTTP/1.1"]),
        passed("9110 10.1.4", "other codings that the client takes do not", "GET / HTTP/1.1|Host: a|Connection: TE|TE: gzip||", &["GET / HTTP/1.1|!te||"]),
        passed("9110 7.8", "an upgrade that the server ignores", "GET / HTTP/1.1|Host: a|Connection: upgrade|Upgrade: x||", &["GET / HTTP/1.1|upgrade: x||"]),
        passed("9110 7.8", "Upgrade without its option", "GET / HTTP/1.1|Host: a|Upgrade: websocket||", &["GET / HTTP/1.1|!upgrade||"]),
        passed("9110 7.8", "an upgrade in HTTP/1.0", "GET / HTTP/1.0|Host: a|Connection: upgrade|Upgrade: x||", &["GET / HTTP/1.0|!upgrade||"]).closing(),
        passed("9113 3.1", "an upgrade to HTTP/2 would pass the policy by", "GET / HTTP/1.1|Host: a|Connection: Upgrade, HTTP2-Settings|Upgrade: h2c|HTTP2-Settings: AAMAAABkAAQAAP__||", &["GET / HTTP/1.1|!upgrade|!http2-settings||"]),
        passed("9110 10.1.1", "100-continue", "POST / HTTP/1.1|Host: a|Expect: 100-continue|Content-Length: 2||hi", &["POST / HTTP/1.1||hi"]),
        passed("9110 10.1.1", "100-continue in HTTP/1.0", "POST / HTTP/1.0|Host: a|Expect: 100-continue|Content-Length: 2||hi", &["POST / HTTP/1.0||hi"]).closing(),
        passed("9110 10.1.1", "another expectation is the server's matter", "GET / HTTP/1.1|Host: a|Expect: x||", &["GET / HTTP/1.1|expect: x||"]),
    ]
}

#[rustfmt::skip]
fn connections() -> Vec<Row> {
    vec![
        passed("9.6", "close", "GET / HTTP/1.1|Host: a|Connection: close||", &["GET / HTTP/1.1"]).closing(),
        passed("9.6", "close in other letters, among others", "GET / HTTP/1.1|Host: a|Connection: x, CLOSE||", &["GET / HTTP/1.1"]).closing(),
        passed("9.6", "nothing is served after close", "GET / HTTP/1.1|Host: a|Connection: close||GET /smuggled HTTP/1.1|Host: a||", &["GET / HTTP/1.1"]).closing(),
        passed("9.3", "HTTP/1.0 closes", "GET / HTTP/1.0|Host: a||", &["GET / HTTP/1.0"]).closing(),
        passed("9.3", "HTTP/1.0 with keep-alive", "GET / HTTP/1.0|Host: a|Connection: keep-alive||", &["GET / HTTP/1.0"]),
        passed("9.3", "close wins over keep-alive", "GET / HTTP/1.1|Host: a|Connection: keep-alive, close||", &["GET / HTTP/1.1"]).closing(),
        passed("9110 9.3.2", "HEAD", "HEAD /x HTTP/1.1|Host: a||", &["HEAD /x HTTP/1.1"]),
        passed("9.3.2", "two requests at once", "GET /1 HTTP/1.1|Host: a||GET /2 HTTP/1.1|Host: a||", &["GET /1 HTTP/1.1", "GET /2 HTTP/1.1"]),
        passed("9.3.2", "a body between two requests", "POST /1 HTTP/1.1|Host: a|Content-Length: 2||hiGET /2 HTTP/1.1|Host: a||", &["POST /1 HTTP/1.1||hi", "GET /2 HTTP/1.1"]),
        passed("9.3.2", "chunks between two requests", "POST /1 HTTP/1.1|Host: a|Transfer-Encoding: chunked||2|hi|0||GET /2 HTTP/1.1|Host: a||", &["POST /1 HTTP/1.1||hi", "GET /2 HTTP/1.1"]),
        passed("2.2", "an empty line after a body", "POST /1 HTTP/1.1|Host: a|Content-Length: 2||hi|GET /2 HTTP/1.1|Host: a||", &["POST /1 HTTP/1.1||hi", "GET /2 HTTP/1.1"]),
        passed("9.3.2", "a bad request after a good one", "GET /1 HTTP/1.1|Host: a||GET /2 HTTP/1.1|Host : a||", &["GET /1 HTTP/1.1"]).then_refused(400),
        passed("6.3", "a body longer than its length", "POST /1 HTTP/1.1|Host: a|Content-Length: 2||hi!|||", &["POST /1 HTTP/1.1||hi"]).then_refused(400),
        passed("9.6", "a client that ends its side waits for its answer", "GET / HTTP/1.1|Host: a||", &["GET / HTTP/1.1"]).fin(),
        passed("9.6", "and for all of its answers", "POST /1 HTTP/1.1|Host: a|Content-Length: 2||hiGET /2 HTTP/1.1|Host: a||", &["POST /1 HTTP/1.1||hi", "GET /2 HTTP/1.1"]).fin(),
    ]
}

fn sizes() -> Vec<Row> {
    let many: Vec<String> = (0..40).map(|i| long(&format!("x-{i}"), 1_500)).collect();
    vec![
        passed(
            "3",
            "a target of 20 KiB",
            format!("GET /{} HTTP/1.1|Host: a||", "x".repeat(20 << 10)),
            &["GET /x"],
        ),
        passed(
            "5.4",
            "a field of 20 KiB",
            format!("GET / HTTP/1.1|Host: a|{}||", long("x", 20 << 10)),
            &["GET / HTTP/1.1"],
        ),
        passed(
            "5.4",
            "60 KiB in 40 fields",
            format!("GET / HTTP/1.1|Host: a|{}||", many.join("|")),
            &["GET / HTTP/1.1"],
        ),
        refused("5.4", "a field of 70 KiB", 431, format!("GET / HTTP/1.1|Host: a|{}||", long("x", 70 << 10))),
        refused("5.4", "300 KiB", 431, format!("GET / HTTP/1.1|Host: a|{}||", long("x", 300 << 10))),
        refused("5.4", "10,000 fields", 431, format!("GET / HTTP/1.1|Host: a|{}|", "x: y|".repeat(10_000))),
        refused(
            "3",
            "a target of 300 KiB",
            431,
            format!("GET /{} HTTP/1.1|Host: a||", "x".repeat(300 << 10)),
        ),
        refused("3", "a method without an end", 431, "X".repeat(100 << 10)),
        refused("7.1.2", "300 KiB of trailers", 431, chunked(&format!("0|{}||", long("x", 300 << 10)))),
    ]
}

#[rustfmt::skip]
fn broken_off() -> Vec<Row> {
    vec![
        cut("8", "half a request line", "GET / HT"),
        cut("8", "half a field", "GET / HTTP/1.1|Host: a|X"),
        cut("8", "no end of the head", "GET / HTTP/1.1|Host: a|"),
        cut("8", "a body too short", "POST / HTTP/1.1|Host: a|Content-Length: 10||hello"),
        cut("8", "no body at all", "POST / HTTP/1.1|Host: a|Content-Length: 10||"),
        cut("8", "chunks without an end", chunked("5|hello|")),
        cut("8", "half a chunk", chunked("5|he")),
        cut("8", "half a size", chunked("5")),
        cut("8", "the last chunk without the end of the trailers", chunked("5|hello|0|")),
        cut("8", "half a trailer", chunked("5|hello|0|X-T")),
    ]
}
