//! `weft diagnostics discovery`: what one proxy holds of the controller's answers, and how one of them is had anew.

use crate::{
    columns::{age, aligned},
    commands::stat::Output,
    mesh::Target,
    reach::{self, title},
    select::{self, Name},
};
use anyhow::{Context as _, Result, bail};
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use std::{io::Write as _, process::ExitCode, time::Duration};
use tokio::time::{Instant, sleep};
use weft_wire::cached::{CACHE_PATH, Cache, Cached, CachedEndpoint, Refreshed};

/// After a refresh a new answer is looked for so often, and for so long.
const LOOK: Duration = Duration::from_millis(200);
const LOOK_FOR: Duration = Duration::from_secs(3);
/// A character of a name, an address or a list of labels; everything else is written as %XX.
const PLAIN: &[u8] = b".-_:[]";

/// Show the answers of the controller that a proxy holds, how old they are, and what they rest on.
///
/// One line for each endpoint of each answer. AGE: since when the answer is as it is. IDLE: since a connection or request last looked for it. An
/// answer that connections hold is in use whatever that says.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft diagnostics discovery -n shop po/web-6d5f
  weft diagnostics discovery -n shop po/web-6d5f --subject store.shop
  weft diagnostics discovery -n shop po/web-6d5f --refresh 10.77.0.5:8080     ask the controller about it anew

A refresh forgets also that the address once proved to be meshed. It needs the right to create pods/portforward, since
only those within the pod may change anything; the list needs get of pods/proxy. Stock proxies have neither.

Exit codes: 0 shown or asked anew, 1 nothing is known about it, 2 the question could not be asked.")]
pub(super) struct Discovery {
    #[command(flatten)]
    target: Target,
    /// A pod, or what has one pod only: [NAMESPACE/][KIND/]NAME.
    name: String,
    /// Namespace to look in; without it, wherever there is exactly one of that name.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Only what concerns this address, name or port.
    #[arg(long, value_name = "ADDR|NAME|PORT", conflicts_with = "refresh")]
    subject: Option<String>,
    /// Have the proxy ask the controller anew about this address or name.
    #[arg(long, value_name = "ADDR|NAME")]
    refresh: Option<String>,
    /// Answers to show, those that were looked for last.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    limit: u32,
    /// A table for people, or JSON.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Discovery {
    pub(super) async fn run(self) -> Result<ExitCode> {
        let client = self.target.client().await?;
        let selected = select::find(&client, &Name::parse(&self.name)?, self.namespace.as_deref()).await?;
        let pod = selected.one_meshed()?;
        match &self.refresh {
            Some(about) => self.renew(&client, &pod, about).await,
            None => self.list(&client, &pod).await,
        }
    }

    async fn list(&self, client: &Client, pod: &Pod) -> Result<ExitCode> {
        let cache = read(client, pod, self.subject.as_deref(), self.limit).await?;
        let mut out = anstream::stdout().lock();
        match self.output {
            Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&cache)?)?,
            Output::Table if cache.answers.is_empty() => writeln!(out, "nothing is known about it")?,
            Output::Table => {
                write!(out, "{}", table(&cache.answers))?;
                let left = cache.total - cache.answers.len();
                if left > 0 {
                    writeln!(out, "({left} more: --subject or --limit)")?;
                }
            }
        }
        Ok(if cache.answers.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    async fn renew(&self, client: &Client, pod: &Pod, about: &str) -> Result<ExitCode> {
        let before = read(client, pod, Some(about), self.limit).await?.answers;
        let path = format!("{CACHE_PATH}?addr={}", escaped(about));
        let reach::Inside { status, body, .. } =
            reach::ask_inside(client, pod, Method::POST, &path, "").await?;
        let asked: Refreshed = match status {
            StatusCode::OK | StatusCode::NOT_FOUND => serde_json::from_str(&body)
                .with_context(|| format!("{} cannot renew answers: it is of another version", title(pod)))?,
            _ => bail!("{} answered {status}: {}", title(pod), body.trim()),
        };
        let mut after = before.clone();
        let until = Instant::now() + LOOK_FOR;
        while !asked.asked_again.is_empty()
            && after.iter().all(|now| !changed(&before, now))
            && Instant::now() < until
        {
            sleep(LOOK).await;
            after = read(client, pod, Some(about), self.limit).await?.answers;
        }
        let mut out = anstream::stdout().lock();
        match self.output {
            Output::Json => {
                let answer =
                    serde_json::json!({"askedAgain": asked.asked_again, "before": before, "after": after});
                writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
            }
            Output::Table if asked.asked_again.is_empty() => writeln!(out, "nothing is known about {about}")?,
            Output::Table => {
                for now in &after {
                    let words = if changed(&before, now) {
                        "asked anew, and changed"
                    } else {
                        "asked anew, and as before"
                    };
                    writeln!(out, "{} {}: {words}", now.what.as_str(), now.subject)?;
                }
                write!(out, "{}", table(&after))?;
            }
        }
        Ok(if asked.asked_again.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn changed(before: &[Cached], now: &Cached) -> bool {
    let was = before.iter().find(|was| was.what == now.what && was.subject == now.subject);
    was.is_none_or(|was| was.generation != now.generation || was.state != now.state)
}

async fn read(client: &Client, pod: &Pod, subject: Option<&str>, limit: u32) -> Result<Cache> {
    let mut path = format!("{CACHE_PATH}?limit={limit}");
    if let Some(subject) = subject {
        path.push_str(&format!("&subject={}", escaped(subject)));
    }
    let page = reach::read_admin(client, pod, &path).await?;
    serde_json::from_str(&page)
        .with_context(|| format!("what {} says of its answers cannot be read", title(pod)))
}

fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || PLAIN.contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn table(answers: &[Cached]) -> String {
    let titles = ["WHAT", "SUBJECT", "STATE", "AGE", "IDLE", "IN USE", "SOURCE", "ENDPOINT", "IDENTITY"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    let mut answers: Vec<&Cached> = answers.iter().collect();
    answers.sort_by(|a, b| (a.what, &a.subject).cmp(&(b.what, &b.subject)));
    for cached in answers {
        let row = |endpoint: String, identity: String| {
            vec![
                cached.what.as_str().to_owned(),
                cached.subject.clone(),
                cached.state.as_str().to_owned(),
                cached.age_ms.map(|ms| age(ms / 1_000)).unwrap_or_default(),
                age(cached.idle_ms / 1_000),
                if cached.in_use { "yes" } else { "no" }.to_owned(),
                cached.source.clone().or(cached.profile.clone()).unwrap_or_default(),
                endpoint,
                identity,
            ]
        };
        let reason = cached.reason.as_ref().map(|why| format!("{} {}", why.code, why.says));
        match (cached.endpoints.is_empty(), reason) {
            (true, reason) => rows.push(row(String::new(), reason.unwrap_or_default())),
            (false, _) => {
                rows.extend(cached.endpoints.iter().map(|e| row(e.addr.to_string(), identity(e))));
            }
        }
        if cached.more_endpoints > 0 {
            rows.push(row(format!("({} more)", cached.more_endpoints), String::new()));
        }
    }
    aligned(&rows)
}

fn identity(endpoint: &CachedEndpoint) -> String {
    match (&endpoint.identity, &endpoint.without) {
        (Some(identity), _) => {
            identity.split_once(".serviceaccount.").map_or(identity.as_str(), |(short, _)| short).to_owned()
        }
        (None, Some(why)) => format!("none ({why})"),
        (None, None) => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(json: serde_json::Value) -> Cached {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn each_endpoint_has_a_line_and_each_refusal_its_reason() {
        let id = "store.shop.serviceaccount.identity.linkerd.cluster.local";
        let answers = [
            answer(
                json!({"what": "policy", "subject": "7000", "state": "default", "age_ms": 1_000, "idle_ms": 0,
                "in_use": true, "source": "default/deny"}),
            ),
            answer(
                json!({"what": "destination", "subject": "10.0.0.1:80", "state": "answered", "age_ms": 300_000,
                "idle_ms": 5_000, "in_use": false, "endpoints": [
                    {"addr": "10.0.0.1:80", "identity": id, "weight": 1},
                    {"addr": "10.0.0.2:80", "without": "unmarked", "weight": 1}], "more_endpoints": 3}),
            ),
            answer(
                json!({"what": "endpoints", "subject": "x.y:80", "state": "refused", "idle_ms": 0, "in_use": false,
                "reason": weft_fault::Fault::new(weft_fault::Code::ControllerRejects).record()}),
            ),
        ];
        let text = table(&answers);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[1],
            ["destination", "10.0.0.1:80", "answered", "5m", "5s", "no", "-", "10.0.0.1:80", "store.shop"]
        );
        assert_eq!(lines[2][7..], ["10.0.0.2:80", "none", "(unmarked)"]);
        assert_eq!(lines[3][7..], ["(3", "more)", "-"]);
        assert_eq!(lines[4][8], "CTL-007");
        assert_eq!(lines[5][..7], ["policy", "7000", "default", "1s", "0s", "yes", "default/deny"]);
    }

    #[test]
    fn a_change_is_another_generation_or_state() {
        let was = answer(
            json!({"what": "endpoints", "subject": "x:80", "state": "answered", "generation": 1, "idle_ms": 0,
            "in_use": false}),
        );
        let older = Cached { age_ms: Some(9), ..was.clone() };
        assert!(!changed(std::slice::from_ref(&was), &older));
        assert!(changed(std::slice::from_ref(&was), &Cached { generation: Some(2), ..was.clone() }));
        assert!(changed(&[], &was));
        assert_eq!(escaped("a b:80&"), "a%20b:80%26");
    }
}
