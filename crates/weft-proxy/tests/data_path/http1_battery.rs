//! HTTP/1, case by case, as raw bytes: what clients may send and servers may answer, and what must go no further. Every row
//! runs through one inbound proxy and through a pair of proxies, which speak HTTP/1 or HTTP/2 between them.

#[path = "http1/requests.rs"]
mod requests;
#[path = "http1/responses.rs"]
mod responses;

use crate::harness::{Proxy, destination, meshed, only, proxy, routes, rule, server};
use std::{cell::RefCell, collections::VecDeque, net::SocketAddr, rc::Rc, sync::Arc};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
};
use weft_model::{
    inbound::{Authn, HttpPolicy, Protocol},
    outbound::{BackendKind, OutboundProtocol, ProtocolHint},
};
use weft_testkit::{
    http1::{Message, Wire, bytes},
    pki::Pki,
    raw::within,
};

/// One thing a client does.
pub(crate) struct Row {
    clause: &'static str,
    name: &'static str,
    send: String,
    /// The client ends its side after it.
    fin: bool,
    /// The whole requests that the application sees: line, fields (`!name`: absent) and body.
    seen: Vec<&'static str>,
    end: End,
}

/// What becomes of the client's connection, after one answer for each request seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Kept,
    Closed,
    /// It is told this status and the code, and then closed.
    Refused(u16),
    /// The client itself broke off: whether it is told so is its own business.
    Cut,
}

fn passed(clause: &'static str, name: &'static str, send: impl Into<String>, seen: &[&'static str]) -> Row {
    Row { clause, name, send: send.into(), fin: false, seen: seen.to_vec(), end: End::Kept }
}

fn refused(clause: &'static str, name: &'static str, status: u16, send: impl Into<String>) -> Row {
    Row { end: End::Refused(status), ..passed(clause, name, send, &[]) }
}

fn cut(clause: &'static str, name: &'static str, send: impl Into<String>) -> Row {
    Row { end: End::Cut, fin: true, ..passed(clause, name, send, &[]) }
}

impl Row {
    fn closing(self) -> Self {
        Row { end: End::Closed, ..self }
    }
    fn fin(self) -> Self {
        Row { end: End::Closed, fin: true, ..self }
    }
    fn then_refused(self, status: u16) -> Self {
        Row { end: End::Refused(status), ..self }
    }
}

/// One thing a server does.
pub(crate) struct Answer {
    clause: &'static str,
    name: &'static str,
    request: &'static str,
    answer: String,
    /// The server does not wait for the request's body.
    early: bool,
    outcome: Outcome,
    has: Vec<(&'static str, &'static [&'static str])>,
    lacks: Vec<&'static str>,
    /// The client hears these before the answer, where every hop is HTTP/1.
    interim: &'static [u16],
    closing: bool,
}

enum Outcome {
    Got(u16, &'static str),
    /// 502 with a code.
    Bad,
    /// The answer begins and does not end, and its reader can tell.
    Broken,
}

fn answer(clause: &'static str, name: &'static str, answer: &str, outcome: Outcome) -> Answer {
    Answer {
        clause,
        name,
        request: "GET /row HTTP/1.1|Host: a||",
        answer: answer.to_owned(),
        early: false,
        outcome,
        has: Vec::new(),
        lacks: Vec::new(),
        interim: &[],
        closing: false,
    }
}

fn got(clause: &'static str, name: &'static str, text: &str, status: u16, body: &'static str) -> Answer {
    answer(clause, name, text, Outcome::Got(status, body))
}

fn bad(clause: &'static str, name: &'static str, text: &str) -> Answer {
    answer(clause, name, text, Outcome::Bad)
}

fn broken(clause: &'static str, name: &'static str, text: &str) -> Answer {
    answer(clause, name, text, Outcome::Broken)
}

impl Answer {
    fn to(self, request: &'static str) -> Self {
        Answer { request, ..self }
    }
    fn has(mut self, name: &'static str, values: &'static [&'static str]) -> Self {
        self.has.push((name, values));
        self
    }
    fn lacks(mut self, name: &'static str) -> Self {
        self.lacks.push(name);
        self
    }
    fn interim(self, interim: &'static [u16]) -> Self {
        Answer { interim, ..self }
    }
    fn closing(self) -> Self {
        Answer { closing: true, ..self }
    }
    fn early(self) -> Self {
        Answer { early: true, closing: true, ..self }
    }
}

/// An application that keeps what it was sent whole, and answers as it is told.
#[derive(Clone, Default)]
struct App {
    seen: Rc<RefCell<VecDeque<Message>>>,
    /// The answer to `/row`, and whether it waits for no body.
    script: Rc<RefCell<Option<(String, bool)>>>,
}

impl App {
    async fn start() -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let app = App::default();
        let serving = app.clone();
        tokio::task::spawn_local(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::task::spawn_local(serving.clone().serve(tcp));
            }
        });
        (app, addr)
    }

    async fn serve(self, tcp: TcpStream) {
        let mut wire = Wire::new(tcp);
        while let Ok(Some(mut message)) = wire.request_head().await {
            let script = self.script.borrow().clone().filter(|_| message.line.contains(" /row "));
            let early = matches!(script, Some((_, true)));
            if !early {
                if message.field("expect") == Some("100-continue") {
                    let _gone = wire.send(b"HTTP/1.1 100 Continue\r\n\r\n").await;
                }
                let read = wire.request_body(&mut message).await;
                if read.is_err() || !message.whole {
                    return;
                }
            }
            let after = message.line.contains(" /after ");
            self.seen.borrow_mut().push_back(message);
            let (text, ends) = match &script {
                Some((text, _)) => (text.trim_end_matches('<'), text.ends_with('<')),
                None if after => ("HTTP/1.1 200 OK|Content-Length: 5||after", false),
                None => ("HTTP/1.1 200 OK|Content-Length: 2||ok", false),
            };
            if wire.send(&bytes(text)).await.is_err() {
                return;
            }
            if ends {
                let _gone = wire.io.shutdown().await;
                let _rest = wire.rest().await;
                return;
            }
        }
    }
}

/// Where the client connects, and what stands between it and the application.
struct Path {
    name: &'static str,
    client: SocketAddr,
    app: App,
    _proxies: Vec<Proxy>,
}

async fn inbound_alone(pki: &Pki) -> Path {
    let (app, addr) = App::start().await;
    let store = proxy(pki, "store", addr, "192.0.2.80:80".parse().unwrap(), &[]);
    store.told.inbound(addr.port(), server(Protocol::Http1(HttpPolicy::default()), Authn::Unauthenticated));
    Path { name: "inbound", client: store.inbound, app, _proxies: vec![store] }
}

async fn pair(pki: &Pki, name: &'static str, hint: ProtocolHint) -> Path {
    let (app, addr) = App::start().await;
    let dst = "192.0.2.80:80".parse().unwrap();
    let store = proxy(pki, "store", addr, dst, &[]);
    // weft's proxies carry HTTP/1 as it is unless they are told otherwise.
    let as_is = if hint == ProtocolHint::H2 { "false" } else { "true" };
    let web = proxy(pki, "web", dst, dst, &[("OUTBOUND_WEFT_HTTP1", as_is)]);
    store.told.inbound(addr.port(), server(Protocol::Http1(HttpPolicy::default()), only(&web.id)));
    let mut endpoint = meshed(store.inbound, &store.id);
    endpoint.hint = hint;
    let http = routes(rule(BackendKind::Forward(Arc::new(endpoint))));
    web.told.destination(destination(dst, OutboundProtocol::Http1(http), true));
    Path { name, client: web.outbound, app, _proxies: vec![store, web] }
}

/// What went otherwise than the table says.
type Wrong = Result<(), String>;

fn expect(holds: bool, what: impl FnOnce() -> String) -> Wrong {
    if holds { Ok(()) } else { Err(what()) }
}

async fn io<T>(what: &str, io: impl Future<Output = std::io::Result<T>>) -> Result<T, String> {
    within(io).await.map_err(|error| format!("{what}: {error}"))
}

const AFTER: &[u8] = b"GET /after HTTP/1.1\r\nHost: a\r\n\r\n";

impl Path {
    async fn connect(&self) -> Result<Wire<TcpStream>, String> {
        Ok(Wire::new(io("connect", TcpStream::connect(self.client)).await?))
    }

    async fn request(&self, row: &Row) -> Wrong {
        self.app.seen.borrow_mut().clear();
        let mut wire = self.connect().await?;
        // A client that is refused early cannot send the rest; that is no news.
        let _refused_early = wire.send(&bytes(&row.send)).await;
        if row.fin {
            let _gone = wire.io.shutdown().await;
        }
        for seen in &row.seen {
            let method = seen.split(' ').next().unwrap_or_default();
            let answer = io("answer", wire.response(method)).await?.ok_or("closed without an answer")?;
            expect(answer.status() == 200 && answer.whole, || format!("answered {answer:?}"))?;
            let said = answer.all("connection").any(|value| value.eq_ignore_ascii_case("close"));
            let last = *seen == *row.seen.last().unwrap_or(seen);
            if last && row.end == End::Closed && !row.fin && !row.send.contains("HTTP/1.0") {
                expect(said, || format!("closes without saying so: {answer:?}"))?;
            }
        }
        let end = self.ends(row.end, &mut wire).await;
        let got: Vec<Message> = self.app.seen.borrow_mut().drain(..).collect();
        let got: Vec<&Message> = got.iter().filter(|m| !m.line.contains(" /after ")).collect();
        end.map_err(|wrong| format!("{wrong}; the application saw {got:?}"))?;
        expect(got.len() == row.seen.len(), || format!("the application saw {got:?}"))?;
        got.iter().zip(&row.seen).try_for_each(|(got, wanted)| matches(got, wanted))
    }

    async fn ends(&self, end: End, wire: &mut Wire<TcpStream>) -> Wrong {
        match end {
            End::Kept => self.goes_on(wire).await,
            End::Closed => {
                let _gone = wire.send(AFTER).await;
                let rest = io("end", wire.rest()).await?;
                expect(rest.is_empty(), || format!("not closed: {}", String::from_utf8_lossy(&rest)))
            }
            End::Refused(status) => {
                let answer = io("refusal", wire.response("GET")).await?.ok_or("closed without a word")?;
                expect(answer.status() == status, || format!("answered {answer:?}"))?;
                let code = match status {
                    431 => "PRO-002",
                    _ => "PRO-001",
                };
                let told = answer.field("l5d-proxy-error").is_some_and(|text| text.starts_with(code));
                expect(told, || format!("no {code} in {answer:?}"))?;
                expect(answer.field("connection") == Some("close"), || format!("no close in {answer:?}"))?;
                self.ends_after_refusal(wire).await
            }
            End::Cut => {
                match wire.response("GET").await {
                    Ok(Some(answer)) => expect(answer.status() == 400, || format!("answered {answer:?}"))?,
                    Ok(None) => {}
                    Err(error) => return Err(format!("neither an answer nor an end: {error}")),
                }
                self.ends_after_refusal(wire).await
            }
        }
    }

    async fn ends_after_refusal(&self, wire: &mut Wire<TcpStream>) -> Wrong {
        let _gone = wire.send(AFTER).await;
        let rest = io("end", wire.rest()).await?;
        expect(rest.is_empty(), || format!("goes on: {}", String::from_utf8_lossy(&rest)))?;
        // The proxy serves others as before, and by now the application would have seen what was let through.
        self.goes_on(&mut self.connect().await?).await
    }

    async fn goes_on(&self, wire: &mut Wire<TcpStream>) -> Wrong {
        io("next request", wire.send(AFTER)).await?;
        let answer =
            io("next answer", wire.response("GET")).await?.ok_or("closed before the next request")?;
        expect(answer.body == b"after" && answer.status() == 200, || format!("then answered {answer:?}"))
    }

    async fn response(&self, row: &Answer) -> Wrong {
        *self.app.script.borrow_mut() = Some((row.answer.clone(), row.early));
        let mut wire = self.connect().await?;
        io("request", wire.send(&bytes(row.request))).await?;
        let method = row.request.split(' ').next().unwrap_or_default();
        let answer = io("answer", wire.response(method)).await;
        match row.outcome {
            Outcome::Got(status, body) => {
                let answer = answer?.ok_or("closed without an answer")?;
                expect(answer.whole, || format!("broke off: {answer:?}"))?;
                expect(answer.status() == status && answer.body == body.as_bytes(), || {
                    format!("answered {answer:?}")
                })?;
                // Over HTTP/2 the first proxy says 100 for itself, and the library drops what else there is.
                let interim = match row.request.contains("100-continue") {
                    _ if !self.name.ends_with("HTTP/2") => row.interim,
                    true => &[100],
                    false => &[],
                };
                expect(answer.interim == interim, || format!("heard {:?} before it", answer.interim))?;
                for (name, values) in &row.has {
                    let got: Vec<_> = answer.all(name).collect();
                    expect(got == *values, || format!("{name} is {got:?}"))?;
                }
                for name in &row.lacks {
                    expect(answer.field(name).is_none(), || format!("{name} in {answer:?}"))?;
                }
                if row.closing {
                    let rest = io("end", wire.rest()).await?;
                    expect(rest.is_empty(), || format!("goes on: {}", String::from_utf8_lossy(&rest)))?;
                    wire = self.connect().await?;
                }
            }
            Outcome::Bad => {
                let answer = answer?.ok_or("closed without an answer")?;
                expect(answer.status() == 502, || format!("answered {answer:?}"))?;
                let told = answer.field("l5d-proxy-error").is_some_and(|text| text.starts_with("UPS-0"));
                expect(told, || format!("no code in {answer:?}"))?;
                wire = self.connect().await?;
            }
            Outcome::Broken => {
                // Otherwise the end overtook the beginning.
                if let Ok(Some(answer)) = answer {
                    let looks_whole = answer.whole && answer.status() != 502;
                    expect(!looks_whole, || format!("looks whole: {answer:?}"))?;
                }
                wire = self.connect().await?;
            }
        }
        self.goes_on(&mut wire).await
    }
}

/// Did the application see that?
fn matches(got: &Message, wanted: &str) -> Wrong {
    let (head, body) = wanted.split_once("||").unwrap_or((wanted, ""));
    let mut lines = head.split('|');
    let line = lines.next().unwrap_or_default();
    let same = if line.contains(" HTTP/") { got.line == line } else { got.line.starts_with(line) };
    expect(same, || format!("the application saw {:?}", got.line))?;
    expect(got.body == bytes(body), || format!("the application saw the body {:?}", got.body))?;
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    for line in &lines {
        match line.split_once(": ") {
            Some((name, _)) => {
                let values: Vec<_> = got.all(name).collect();
                let of_name = |line: &&str| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned);
                let wanted: Vec<String> = lines.iter().filter_map(of_name).collect();
                expect(values == wanted, || format!("{name} is {values:?} at the application"))?;
            }
            None => {
                let absent = line.trim_start_matches('!');
                expect(got.field(absent).is_none(), || format!("the application saw {absent}: {got:?}"))?;
            }
        }
    }
    Ok(())
}

/// Only rows whose name holds this are run: for looking at one of them.
fn chosen(name: &str) -> bool {
    std::env::var("WEFT_TEST_ROW").map_or(true, |part| name.contains(&part))
}

async fn requests_over(path: Path) {
    let mut wrong = Vec::new();
    for row in requests::rows().iter().filter(|row| chosen(row.name)) {
        if let Err(what) = path.request(row).await {
            wrong.push(format!("{} {}: {what}", row.clause, row.name));
        }
    }
    report(&path, &wrong);
}

async fn responses_over(path: Path) {
    let mut wrong = Vec::new();
    for row in responses::rows().iter().filter(|row| chosen(row.name)) {
        if let Err(what) = path.response(row).await {
            wrong.push(format!("{} {}: {what}", row.clause, row.name));
        }
    }
    report(&path, &wrong);
}

fn report(path: &Path, wrong: &[String]) {
    assert!(wrong.is_empty(), "{} over {}:\n{}", wrong.len(), path.name, wrong.join("\n"));
}

#[tokio::test(flavor = "local")]
async fn requests_through_one_proxy() {
    requests_over(inbound_alone(&Pki::new()).await).await;
}

#[tokio::test(flavor = "local")]
async fn requests_through_two_proxies_over_http_1() {
    requests_over(pair(&Pki::new(), "pair, HTTP/1", ProtocolHint::Unknown).await).await;
}

#[tokio::test(flavor = "local")]
async fn requests_through_two_proxies_over_http_2() {
    requests_over(pair(&Pki::new(), "pair, HTTP/2", ProtocolHint::H2).await).await;
}

#[tokio::test(flavor = "local")]
async fn responses_through_one_proxy() {
    responses_over(inbound_alone(&Pki::new()).await).await;
}

#[tokio::test(flavor = "local")]
async fn responses_through_two_proxies_over_http_1() {
    responses_over(pair(&Pki::new(), "pair, HTTP/1", ProtocolHint::Unknown).await).await;
}

#[tokio::test(flavor = "local")]
async fn responses_through_two_proxies_over_http_2() {
    responses_over(pair(&Pki::new(), "pair, HTTP/2", ProtocolHint::H2).await).await;
}

#[test]
fn the_battery_is_large() {
    assert!(requests::rows().len() + responses::rows().len() >= 150);
}
