//! One question at a time: bounded, with a deadline, and timed by the clock of whoever answers.

use super::{
    super::facts::{Read, Skew, Unread},
    Progress,
};
use bytes::Bytes;
use http::{HeaderMap, Request, header};
use kube::Client;
use serde_json::Value;
use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, SystemTime},
};
use tokio::{sync::Semaphore, time::timeout};
use weft_kube::api::{self, ApiError};

/// Questions that are under way together.
pub(super) const AT_ONCE: usize = 12;
/// What a proxy or the controller may take, on a machine that is busy, too; the API has its own deadline.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer of a proxy that is read.
const ANSWER_LIMIT: usize = 64 << 20;
/// Objects of one answer.
const PAGE: usize = 500;

pub(super) struct Asker<'p> {
    client: Client,
    progress: &'p Progress,
    turns: Semaphore,
}

impl<'p> Asker<'p> {
    pub(super) fn new(client: Client, progress: &'p Progress) -> Self {
        Asker { client, progress, turns: Semaphore::new(AT_ONCE) }
    }

    /// Takes a turn, and counts.
    async fn in_turn<T>(&self, question: impl Future<Output = T>) -> T {
        self.progress.asked.fetch_add(1, Relaxed);
        // Never closed.
        let _turn = self.turns.acquire().await;
        let answer = question.await;
        self.progress.answered.fetch_add(1, Relaxed);
        answer
    }

    /// `None` if there is no such object, or no such kind.
    pub(super) async fn get(&self, path: &str) -> Read<Option<Value>> {
        match self.in_turn(api::get::<Value>(&self.client, path)).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Every object of a collection; none if its kind is not served.
    pub(super) async fn list(&self, path: &str) -> Read<Vec<Value>> {
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let Some(mut answer) = self.get(&format!("{path}?limit={PAGE}{after}")).await? else {
                return Ok(all);
            };
            if let Value::Array(items) = answer["items"].take() {
                all.extend(items);
            }
            match answer["metadata"]["continue"].as_str() {
                Some(token) if !token.is_empty() => after = format!("&continue={}", escaped(token)),
                _ => return Ok(all),
            }
        }
    }

    pub(super) async fn create(&self, path: &str, object: &Value) -> Read<Value> {
        Ok(self.in_turn(api::create(&self.client, path, object)).await?)
    }

    /// A page, and the clock of whoever wrote it.
    pub(super) async fn timed(&self, path: &str) -> Read<(Bytes, Option<Skew>)> {
        self.in_turn(self.fetch(path)).await.map_err(Unread::from)
    }

    /// The same of a proxy or the controller, which stands behind the API: `None` if it has no such page.
    pub(super) async fn behind(&self, path: &str) -> Result<Option<(Bytes, Option<Skew>)>, ApiError> {
        self.in_turn(async {
            match timeout(PATIENCE, self.fetch(path)).await {
                Ok(Ok(answer)) => Ok(Some(answer)),
                Ok(Err(error)) if error.code() == Some(404) => Ok(None),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(ApiError::Timeout),
            }
        })
        .await
    }

    async fn fetch(&self, path: &str) -> Result<(Bytes, Option<Skew>), ApiError> {
        let request =
            Request::get(path).body(Vec::new()).map_err(|error| ApiError::Transport(Box::new(error)))?;
        let before = SystemTime::now();
        let response = api::send(&self.client, request).await?;
        let after = SystemTime::now();
        let clock =
            date_of(response.headers()).and_then(|date| skew(date, Duration::from_secs(1), before, after));
        Ok((api::read(response.into_body(), ANSWER_LIMIT).await?, clock))
    }
}

fn date_of(headers: &HeaderMap) -> Option<SystemTime> {
    let text = headers.get(header::DATE)?.to_str().ok()?;
    let date = SystemTime::from(jiff::fmt::rfc2822::parse(text).ok()?.timestamp());
    Some(date).filter(|date| *date > SystemTime::UNIX_EPOCH)
}

/// How far a clock is ahead that showed `told`, cut off to `grain`, at some moment between two of ours.
pub(super) fn skew(told: SystemTime, grain: Duration, before: SystemTime, after: SystemTime) -> Option<Skew> {
    let ms = |at: SystemTime| i64::try_from(at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis()).ok();
    let (told, before, after) = (ms(told + grain / 2)?, ms(before)?, ms(after)?);
    let taken = u64::try_from(after - before).unwrap_or(0);
    let within = taken / 2 + u64::try_from(grain.as_millis() / 2).unwrap_or(0);
    Some(Skew { ahead_ms: told - (before + after) / 2, within_ms: within })
}

/// As a part of a query.
fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_read_from_a_header() {
        let mut headers = HeaderMap::new();
        headers.insert(header::DATE, "Tue, 01 Dec 2026 00:00:10 GMT".parse().unwrap());
        let told = date_of(&headers).unwrap();
        let ours = told - Duration::from_secs(60);
        let found = skew(told, Duration::from_secs(1), ours, ours + Duration::from_secs(1)).unwrap();
        assert_eq!(found, Skew { ahead_ms: 60_000, within_ms: 1_000 });
        headers.insert(header::DATE, "yesterday".parse().unwrap());
        assert_eq!(date_of(&headers), None);
    }

    #[test]
    fn tokens_are_escaped() {
        assert_eq!(escaped("a/b=c&"), "a%2Fb%3Dc%26");
    }
}
