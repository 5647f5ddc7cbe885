//! A load generator: requests at a fixed rate, whose latency counts from when they were due, or as fast as the
//! connections allow. It never retries: what a user of the mesh would see is what it counts.

use crate::{
    Error,
    error::within,
    histogram::Histogram,
    lifecycle::{Lifecycle, LifecycleOptions},
    text::say,
};
use bytes::Bytes;
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpStream, task::JoinSet, time::Instant};

const ROLE: &str = "load";
const ANSWER_BYTES: usize = 1024 * 1024;
/// Different failures told apart in a report.
const KINDS: usize = 16;

#[derive(clap::Args, Debug)]
pub struct Options {
    /// What to GET
    #[arg(long, env = "SHOP_TARGET", default_value = "http://web:8080/")]
    pub target: String,
    /// What to POST `sku=SKU` to, every `--buy-every` requests
    #[arg(long, env = "SHOP_BUY")]
    pub buy: Option<String>,
    /// The item to buy
    #[arg(long, env = "SHOP_SKU", default_value = "kettle")]
    pub sku: String,
    /// Every how many requests to buy
    #[arg(long, env = "SHOP_BUY_EVERY", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub buy_every: u64,
    /// A URL that the policy must deny, tried once a second and counted apart
    #[arg(long, env = "SHOP_FORBIDDEN")]
    pub forbidden: Option<String>,
    /// Do not begin before a GET of this URL succeeds
    #[arg(long, env = "SHOP_WAIT_FOR")]
    pub wait_for: Option<String>,
    /// How long to wait for that
    #[arg(long, env = "SHOP_WAIT", default_value = "2m", value_parser = crate::text::duration)]
    pub wait: Duration,
    /// Requests per second; 0: as fast as the connections allow
    #[arg(long, env = "SHOP_RATE", default_value_t = 10)]
    pub rate: u64,
    /// Connections, each with one request at a time
    #[arg(long, env = "SHOP_CONNECTIONS", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub connections: u16,
    /// End after so many requests
    #[arg(long, env = "SHOP_REQUESTS")]
    pub requests: Option<u64>,
    /// End after so long
    #[arg(long, env = "SHOP_DURATION", value_parser = crate::text::duration)]
    pub duration: Option<Duration>,
    /// How often to report
    #[arg(long, env = "SHOP_REPORT", default_value = "5s", value_parser = crate::text::duration)]
    pub report: Duration,
    /// How long a request may take, connecting included
    #[arg(long, env = "SHOP_TIMEOUT", default_value = "5s", value_parser = crate::text::duration)]
    pub timeout: Duration,
    /// End with a failure if any request failed or a forbidden one was let through
    #[arg(long, env = "SHOP_STRICT")]
    pub strict: bool,
    #[command(flatten)]
    pub life: LifecycleOptions,
}

/// What happened in a span of time.
#[derive(Clone, Default)]
struct Tally {
    ok: u64,
    failed: u64,
    denied: u64,
    let_through: u64,
    latency: Histogram,
    /// Failures by what they were, with a count.
    kinds: BTreeMap<String, u64>,
}

impl Tally {
    fn fail(&mut self, error: &Error) {
        self.failed += 1;
        self.count(error.chain(), 1);
    }

    fn count(&mut self, kind: String, times: u64) {
        if self.kinds.len() < KINDS || self.kinds.contains_key(&kind) {
            *self.kinds.entry(kind).or_default() += times;
        }
    }

    fn add(&mut self, other: &Tally) {
        self.ok += other.ok;
        self.failed += other.failed;
        self.denied += other.denied;
        self.let_through += other.let_through;
        self.latency.merge(&other.latency);
        for (kind, times) in &other.kinds {
            self.count(kind.clone(), *times);
        }
    }

    fn print(&self, label: &str, span: Duration, forbidden: bool) {
        let ms = |share| self.latency.quantile(share).as_secs_f64() * 1e3;
        let rate = (self.ok + self.failed) as f64 / span.as_secs_f64().max(1e-3);
        let mut line = format!(
            "{label}{} ok, {} failed, {rate:.1}/s, p50 {:.1} ms, p95 {:.1} ms, p99 {:.1} ms",
            self.ok,
            self.failed,
            ms(0.50),
            ms(0.95),
            ms(0.99),
        );
        if forbidden {
            line.push_str(&format!(", {} denied as intended", self.denied));
            if self.let_through > 0 {
                line.push_str(&format!(", {} LET THROUGH that must be denied", self.let_through));
            }
        }
        say(ROLE, format_args!("{line}"));
        for (kind, count) in &self.kinds {
            say(ROLE, format_args!("  {count} × {kind}"));
        }
    }
}

/// What every connection shares.
struct Plan {
    target: Target,
    buy: Option<(Target, u64, Bytes)>,
    forbidden: Option<Target>,
    rate: u64,
    requests: u64,
    until: Option<Instant>,
    timeout: Duration,
    started: Instant,
    next: AtomicU64,
    tally: Mutex<Tally>,
}

pub async fn run(options: Options) -> Result<(), Error> {
    let life = Lifecycle::start(ROLE, &options.life)?;
    if let Some(url) = &options.wait_for {
        let target = Target::parse("wait-for", url)?;
        tokio::select! {
            () = life.leaving() => return Ok(()),
            waited = wait_for(&target, options.wait, options.timeout) => waited?,
        }
    }
    let total = generate(&options, &life).await?;
    match total {
        Tally { let_through, .. } if options.strict && let_through > 0 => Err(Error::LetThrough(let_through)),
        Tally { ok, failed, .. } if options.strict && failed > 0 => {
            Err(Error::LoadFailed { failed, total: ok + failed })
        }
        _ => Ok(()),
    }
}

/// Returns when the target answers with success, or with what it answered last.
async fn wait_for(target: &Target, wait: Duration, timeout: Duration) -> Result<(), Error> {
    let started = Instant::now();
    loop {
        let mut connection = Connection::default();
        let sent = connection.send(target, Method::GET, Bytes::new());
        let error = match within("a request", timeout, sent).await {
            Ok(Answer { status: 200..=399, .. }) => return Ok(()),
            Ok(answer) => answer.into_error(target),
            Err(error) => error,
        };
        if started.elapsed() > wait {
            return Err(error);
        }
        say(ROLE, format_args!("waiting: {}", error.chain()));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn generate(options: &Options, life: &Lifecycle) -> Result<Tally, Error> {
    let buy = options.buy.as_deref().map(|url| Target::parse("buy", url)).transpose()?;
    let started = Instant::now();
    let plan = Arc::new(Plan {
        target: Target::parse("target", &options.target)?,
        buy: buy.map(|target| (target, options.buy_every, Bytes::from(format!("sku={}", options.sku)))),
        forbidden: options.forbidden.as_deref().map(|url| Target::parse("forbidden", url)).transpose()?,
        rate: options.rate,
        requests: options.requests.unwrap_or(u64::MAX),
        until: options.duration.map(|duration| started + duration),
        timeout: options.timeout,
        started,
        next: AtomicU64::new(0),
        tally: Mutex::default(),
    });

    let mut workers = JoinSet::new();
    for _ in 0..options.connections {
        workers.spawn(work(plan.clone(), life.clone()));
    }
    let mut watcher = JoinSet::new();
    if plan.forbidden.is_some() {
        watcher.spawn(try_the_forbidden(plan.clone()));
    }

    let mut total = Tally::default();
    let mut ticks = tokio::time::interval_at(started + options.report, options.report);
    let mut last = started;
    loop {
        let done = tokio::select! {
            ended = workers.join_next() => match ended {
                Some(_) => continue,
                None => true,
            },
            _ = ticks.tick() => false,
        };
        let span = std::mem::take(&mut *plan.tally.lock());
        if !done {
            span.print("", last.elapsed(), plan.forbidden.is_some());
            last = Instant::now();
        }
        total.add(&span);
        if done {
            total.print("in all: ", started.elapsed(), plan.forbidden.is_some());
            return Ok(total);
        }
    }
}

/// One connection's life: takes the next request that is due, sends it, counts it.
async fn work(plan: Arc<Plan>, life: Lifecycle) {
    let mut main = Connection::default();
    let mut shop = Connection::default();
    loop {
        let number = plan.next.fetch_add(1, Ordering::Relaxed);
        if number >= plan.requests || !life.ready() {
            return;
        }
        // With a rate, each request has its time, and lateness counts: a stall must show in the latencies.
        let due = match plan.rate {
            0 => Instant::now(),
            rate => {
                plan.started
                    + Duration::from_nanos((u128::from(number) * 1_000_000_000 / u128::from(rate)) as u64)
            }
        };
        if plan.until.is_some_and(|until| due >= until) {
            return;
        }
        tokio::select! {
            () = life.leaving() => return,
            () = tokio::time::sleep_until(due) => {}
        }
        let (target, connection, method, body) = match &plan.buy {
            Some((target, every, form)) if number % every == every - 1 => {
                (target, &mut shop, Method::POST, form.clone())
            }
            _ => (&plan.target, &mut main, Method::GET, Bytes::new()),
        };
        let outcome = within("a request", plan.timeout, connection.send(target, method, body)).await;
        if outcome.is_err() {
            *connection = Connection::default();
        }
        let took = due.elapsed();
        let mut tally = plan.tally.lock();
        tally.latency.add(took);
        match outcome {
            Ok(Answer { status: 200..=399, .. }) => tally.ok += 1,
            Ok(answer) => tally.fail(&answer.into_error(target)),
            Err(error) => tally.fail(&error),
        }
    }
}

/// Denied means an answer of 401 or 403. No answer at all proves nothing, so it is counted as a failure.
async fn try_the_forbidden(plan: Arc<Plan>) {
    let Some(target) = &plan.forbidden else { return };
    let mut connection = Connection::default();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        let sent = connection.send(target, Method::GET, Bytes::new());
        let outcome = within("a forbidden request", plan.timeout, sent).await;
        let mut tally = plan.tally.lock();
        match outcome {
            Ok(Answer { status: 401 | 403, .. }) => tally.denied += 1,
            Ok(Answer { status: 200..=399, .. }) => tally.let_through += 1,
            Ok(answer) => tally.fail(&answer.into_error(target)),
            Err(error) => {
                tally.fail(&error);
                connection = Connection::default();
            }
        }
    }
}

struct Target {
    uri: Uri,
    authority: String,
    dial: String,
}

impl Target {
    fn parse(flag: &'static str, url: &str) -> Result<Self, Error> {
        let bad =
            || Error::Flag { flag, value: url.to_string(), expected: "expected http://HOST[:PORT]/PATH" };
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(bad)?.clone();
        let dial = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80));
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Target { uri: path.parse().map_err(|_| bad())?, authority: authority.to_string(), dial })
    }
}

struct Answer {
    status: u16,
    reason: String,
}

impl Answer {
    fn into_error(self, target: &Target) -> Error {
        Error::Status { to: target.authority.clone(), status: self.status, text: self.reason }
    }
}

/// At most one open connection.
#[derive(Default)]
struct Connection(Option<SendRequest<Full<Bytes>>>);

impl Connection {
    async fn send(&mut self, target: &Target, method: Method, body: Bytes) -> Result<Answer, Error> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Http {
            to: target.authority.clone(),
            source,
        };
        // A connection that was closed in the meantime, as servers do when they end, is no failure: open another.
        if let Some(open) = &mut self.0
            && open.ready().await.is_err()
        {
            self.0 = None;
        }
        let mut sender = match self.0.take() {
            Some(open) => open,
            None => connect(target).await?,
        };
        let mut request = Request::builder().method(method).uri(target.uri.clone());
        request =
            request.header(header::HOST, &target.authority).header(header::USER_AGENT, "weft-sample-load");
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        let request = request.body(Full::new(body)).map_err(|e| failed(e.into()))?;
        let response = sender.send_request(request).await.map_err(|e| failed(e.into()))?;
        let status = response.status().as_u16();
        // A mesh says in this header why it answered instead of the service.
        let reason = response
            .headers()
            .get("l5d-proxy-error")
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_string();
        Limited::new(response.into_body(), ANSWER_BYTES).collect().await.map_err(failed)?;
        self.0 = Some(sender);
        Ok(Answer { status, reason })
    }
}

async fn connect(target: &Target) -> Result<SendRequest<Full<Bytes>>, Error> {
    let refused = |source| Error::Connect { to: target.dial.clone(), source };
    let socket = TcpStream::connect(&target.dial).await.map_err(refused)?;
    let _ = socket.set_nodelay(true);
    let (sender, connection) = http1::handshake(TokioIo::new(socket))
        .await
        .map_err(|e| Error::Http { to: target.authority.clone(), source: e.into() })?;
    // Ends with the connection; requests report what goes wrong.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::{self, Version, plain};
    use clap::Parser;
    use http::StatusCode;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    #[tokio::test]
    async fn counts_what_happened() {
        let listener = serve::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (life, end) = Lifecycle::for_test();
        let server = tokio::spawn(serve::serve(
            "test",
            listener,
            Version::Http1,
            life.clone(),
            |request| async move {
                match (request.method(), request.uri().path()) {
                    (&Method::GET, "/") => plain(StatusCode::OK, "ok\n"),
                    (&Method::POST, "/buy") => plain(StatusCode::BAD_GATEWAY, "no\n"),
                    _ => plain(StatusCode::FORBIDDEN, "no\n"),
                }
            },
        ));
        let (target, buy, forbidden) = (format!("{base}/"), format!("{base}/buy"), format!("{base}/admin"));
        let args = [
            "load",
            "--target",
            &target,
            "--buy",
            &buy,
            "--buy-every",
            "10",
            "--forbidden",
            &forbidden,
            "--rate",
            "0",
            "--connections",
            "4",
            "--requests",
            "200",
        ];
        let total = generate(&Cli::parse_from(args).options, &life).await.unwrap();
        assert_eq!((total.ok, total.failed, total.let_through), (180, 20, 0));
        assert_eq!(total.latency.total(), 200);
        end();
        server.await.unwrap().unwrap();
    }

    #[test]
    fn targets() {
        let target = Target::parse("target", "http://web/a?b=c").unwrap();
        assert_eq!((target.dial.as_str(), target.uri.to_string().as_str()), ("web:80", "/a?b=c"));
        assert!(Target::parse("target", "web:8080").is_err());
        assert!(Target::parse("target", "https://web/").is_err());
    }
}
