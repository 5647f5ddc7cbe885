//! The log level, changed for a while: the proxy keeps the time, so that whoever asked may go.

use super::{Admin, BODY_BYTES, Body, respond, text};
use crate::log::Log;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::{task::AbortHandle, time::Instant};

/// Says in an answer that the level goes back by itself, and in how many seconds: stock proxies do not know of that.
const FOR: &str = "weft-log-level-for";
/// And to what.
const BACK: &str = "weft-log-level-back";
/// Longer than this is no "while".
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// What the level goes back to, and when.
#[derive(Default)]
pub(super) struct Level(Mutex<Option<While>>);

struct While {
    back: String,
    until: Instant,
    task: AbortHandle,
}

impl Level {
    /// Sets the level; for a while, or until it is set again. A while that is not over is; what it would have gone back to is what
    /// this one goes back to.
    fn set(self: &Arc<Self>, log: &Arc<Log>, level: &str, lasts: Option<Duration>) -> Result<(), String> {
        let mut now = self.0.lock();
        let before = log.level();
        log.set_level(level)?;
        let ended = now.take();
        if let Some(ended) = &ended {
            ended.task.abort();
        }
        let Some(lasts) = lasts else { return Ok(()) };
        let back = ended.map_or(before, |ended| ended.back);
        let until = Instant::now() + lasts;
        let (own, log, to) = (self.clone(), log.clone(), back.clone());
        let task = tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            // Under the lock: whoever sets the level at this moment comes before or after, not between.
            let mut now = own.0.lock();
            if now.take_if(|ends| ends.until == until).is_some() && log.set_level(&to).is_ok() {
                tracing::info!(level = to, "the log level is what it was before");
            }
        });
        *now = Some(While { back, until, task: task.abort_handle() });
        Ok(())
    }

    /// What it goes back to, and in how many seconds.
    fn ends(&self) -> Option<(String, u64)> {
        let now = self.0.lock();
        let ends = now.as_ref()?;
        let left = ends.until.saturating_duration_since(Instant::now());
        // A second that has begun counts.
        Some((ends.back.clone(), left.as_millis().div_ceil(1_000).try_into().unwrap_or(u64::MAX)))
    }
}

/// The level as text; headers say whether and when it goes back.
pub(super) fn show(admin: &Admin) -> Response<Body> {
    ending(admin, text(StatusCode::OK, admin.log.level() + "\n"))
}

/// `?for=SECONDS`: how long it holds.
pub(super) async fn set(admin: &Admin, query: Option<&str>, body: Incoming) -> Response<Body> {
    let lasts = match query.and_then(|query| query.strip_prefix("for=")) {
        None => None,
        Some(seconds) => match seconds.parse().map(Duration::from_secs) {
            Ok(lasts) if !lasts.is_zero() && lasts <= LONGEST => Some(lasts),
            _ => return text(StatusCode::BAD_REQUEST, "for= is a number of seconds, up to a day\n"),
        },
    };
    let Ok(body) = Limited::new(body, BODY_BYTES).collect().await else {
        return text(StatusCode::PAYLOAD_TOO_LARGE, "");
    };
    let level = String::from_utf8_lossy(&body.to_bytes()).trim().to_string();
    match admin.level.set(&admin.log, &level, lasts) {
        Ok(()) => {
            tracing::info!(level, ?lasts, "log level changed");
            admin.mesh.recorder.note("log level", format!("changed to {level}"), None);
            ending(admin, respond(StatusCode::NO_CONTENT, "text/plain", Full::default().boxed()))
        }
        Err(why) => text(StatusCode::BAD_REQUEST, why + "\n"),
    }
}

fn ending(admin: &Admin, mut response: Response<Body>) -> Response<Body> {
    if let Some((back, seconds)) = admin.level.ends() {
        response.headers_mut().insert(FOR, seconds.into());
        // A filter that makes no header is one that nobody wrote on purpose.
        if let Ok(back) = HeaderValue::from_str(&back) {
            response.headers_mut().insert(BACK, back);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn start() -> (Arc<Level>, Arc<Log>) {
        (Arc::default(), Arc::new(Log::detached("warn")))
    }

    /// Past the end of what was asked for, and past its task.
    async fn pass(time: Duration) {
        tokio::time::sleep(time + Duration::from_millis(1)).await;
        tokio::task::yield_now().await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_back_by_itself() {
        let (level, log) = start();
        level.set(&log, "debug", Some(10 * MINUTE)).unwrap();
        assert_eq!((log.level().as_str(), level.ends()), ("debug", Some(("warn".into(), 600))));
        pass(9 * MINUTE).await;
        assert_eq!(log.level(), "debug");
        pass(MINUTE).await;
        assert_eq!((log.level().as_str(), level.ends()), ("warn", None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_while_goes_back_to_where_the_first_would_have() {
        let (level, log) = start();
        level.set(&log, "debug", Some(MINUTE)).unwrap();
        level.set(&log, "trace", Some(2 * MINUTE)).unwrap();
        pass(MINUTE).await;
        assert_eq!(log.level(), "trace", "the first end is off");
        pass(MINUTE).await;
        assert_eq!(log.level(), "warn");
    }

    #[tokio::test(start_paused = true)]
    async fn a_level_for_good_stays_and_a_bad_one_changes_nothing() {
        let (level, log) = start();
        level.set(&log, "debug", Some(MINUTE)).unwrap();
        assert!(level.set(&log, "=[", None).is_err());
        assert_eq!(level.ends().unwrap().0, "warn", "the while goes on");
        level.set(&log, "error", None).unwrap();
        pass(2 * MINUTE).await;
        assert_eq!((log.level().as_str(), level.ends()), ("error", None));
    }
}
