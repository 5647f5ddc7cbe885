//! Pages about the proxy itself: readiness, its environment, its log as it is written.

use super::{Admin, Body, respond, text};
use crate::log::Lines;
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use std::{convert::Infallible, fmt::Write, sync::atomic::Ordering};
use tokio_stream::Stream;

/// Ready once certified and accepting, until the drain; verbose, it says what is awaited, since when, and why.
pub(super) fn ready(admin: &Admin, verbose: bool) -> Response<Body> {
    let mesh = &admin.mesh;
    let certified = mesh.identity.current().is_some();
    let serving = admin.serving.load(Ordering::Relaxed);
    let running = mesh.drain.phase() == crate::drain::Phase::Running;
    let ready = certified && serving && running;
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut page = String::from(if ready { "ready\n" } else { "not ready\n" });
    if !verbose {
        return text(status, page);
    }
    // Writing to a String cannot fail.
    let mut line = |done: bool, what: &str| {
        let _infallible = writeln!(page, "[{}] {what}", if done { "x" } else { " " });
    };
    let up = mesh.metrics.uptime().as_secs_f64();
    line(certified, &format!("certificate for {}", mesh.identity.local_name()));
    line(serving, "accepting connections");
    line(running, "not shutting down");
    // A proxy without its controller goes on with what it knows: this does not make it unready.
    for service in admin.control.get().into_iter().flatten() {
        line(service.is_connected(), &format!("connected to {} at {}", service.name(), service.addr()));
    }
    if !ready {
        let _infallible = writeln!(page, "started {up:.1} s ago");
    }
    if let Some(fault) = mesh.identity.waiting() {
        let _infallible = writeln!(page, "waiting: {}", fault.as_cause());
        for cause in &fault.causes {
            let _infallible = writeln!(page, "  because: {cause}");
        }
        let _infallible = writeln!(page, "  remedy: {}", fault.remedy);
    }
    for service in admin.control.get().into_iter().flatten().filter(|service| !service.is_connected()) {
        let _infallible = writeln!(page, "not connected: {:?}", service.down());
    }
    text(status, page)
}

/// The environment as one object. Values whose name speaks of a secret are not told.
pub(super) fn environment(variables: impl Iterator<Item = (String, String)>) -> Response<Body> {
    let told = variables.map(|(name, value)| {
        let value = if is_secret(&name) { "(not told)".into() } else { value };
        (name, serde_json::Value::from(value))
    });
    let page = serde_json::Value::Object(told.collect()).to_string();
    respond(StatusCode::OK, "application/json", Full::new(Bytes::from(page)).boxed())
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    // Where a secret lies is none.
    let says_where = ["_FILE", "_DIR", "_PATH", "_ADDR"].iter().any(|end| name.ends_with(end));
    let secret = ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "PRIVATE", "API_KEY", "ACCESS_KEY"];
    !says_where && (secret.iter().any(|word| name.contains(word)) || name.ends_with("_KEY"))
}

/// `?level=`: a filter as for the process's own log, whose level it does not change.
pub(super) fn logs(admin: &Admin, query: &str) -> Response<Body> {
    let level = query.split('&').find_map(|pair| pair.strip_prefix("level="));
    let level = match level.map(percent_decoded) {
        None => admin.log.level(),
        Some(Some(level)) => level,
        Some(None) => return text(StatusCode::BAD_REQUEST, "the level is not text\n"),
    };
    match admin.log.read(&level) {
        Ok(Some(lines)) => {
            let body = StreamBody::new(frames(lines));
            respond(StatusCode::OK, "application/json", BodyExt::boxed(body))
        }
        Ok(None) => text(StatusCode::SERVICE_UNAVAILABLE, "too many readers of the log at once\n"),
        Err(why) => text(StatusCode::BAD_REQUEST, why + "\n"),
    }
}

fn frames(lines: Lines) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    futures_util::stream::unfold(lines, |mut lines| async {
        let line = lines.next().await?;
        Some((Ok(Frame::data(line)), lines))
    })
}

pub(super) fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_environment_is_told_without_secrets() {
        let variables = [
            ("LINKERD2_PROXY_LOG", "warn"),
            ("LINKERD2_PROXY_IDENTITY_TOKEN_FILE", "/var/run/secrets/tokens/linkerd-identity-token"),
            ("GITHUB_TOKEN", "hush"),
            ("AWS_SECRET_ACCESS_KEY", "hush"),
            ("tls_key", "hush"),
            ("KEYCHAIN", "fine"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let page = environment(variables.into_iter()).into_body().collect().await.unwrap().to_bytes();
        let page: serde_json::Value = serde_json::from_slice(&page).unwrap();
        assert_eq!(page["LINKERD2_PROXY_LOG"], "warn");
        assert_eq!(
            page["LINKERD2_PROXY_IDENTITY_TOKEN_FILE"],
            "/var/run/secrets/tokens/linkerd-identity-token"
        );
        assert_eq!(page["KEYCHAIN"], "fine");
        assert_eq!(page.to_string().matches("hush").count(), 0);
    }

    #[test]
    fn percent_signs_are_read() {
        assert_eq!(percent_decoded("warn%2Clinkerd%3Ddebug").as_deref(), Some("warn,linkerd=debug"));
        for bad in ["%", "%4", "%zz", "%ff", "%+1"] {
            assert_eq!(percent_decoded(bad), None, "{bad}");
        }
    }
}
