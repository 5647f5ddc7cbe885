//! `weft log-level`: how much a proxy logs, for a while.

use crate::{
    mesh::Target,
    reach::{self, title},
    select::{self, Name},
};
use anyhow::{Result, bail};
use http::{HeaderMap, Method, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use owo_colors::OwoColorize as _;
use std::{io::Write as _, process::ExitCode, time::Duration};

const PATH: &str = "/proxy-log-level";

/// Show or change how much a pod's proxy logs; without a restart, and for a while if you say so.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft log-level -n shop po/web-6d5f debug --for 10m          it goes back by itself, also if this machine is gone
  weft log-level -n shop po/web-6d5f warn,linkerd=debug
  weft log-level -n shop po/web-6d5f --show

It needs the right to create pods/portforward, since only those within the pod may change this.

Exit codes: 0 done, 1 done, but a stock proxy will not go back by itself, 2 it could not be done.")]
pub(crate) struct LogLevel {
    #[command(flatten)]
    target: Target,
    /// A pod, or what has one pod only: [NAMESPACE/][KIND/]NAME.
    name: String,
    /// The level: error, warn, info, debug, trace, or a list such as warn,linkerd=debug.
    #[arg(required_unless_present = "show", conflicts_with = "show")]
    level: Option<String>,
    /// Namespace to look in; without it, wherever there is exactly one of that name.
    #[arg(short, long)]
    namespace: Option<String>,
    /// For how long; without it, until it is set again or the proxy restarts.
    #[arg(long = "for", value_name = "DURATION", value_parser = a_while, conflicts_with = "show")]
    lasts: Option<Duration>,
    /// Show what it is.
    #[arg(long)]
    show: bool,
}

fn a_while(text: &str) -> Result<Duration, String> {
    let lasts = crate::time::duration(text)?;
    match lasts.as_secs() {
        1..=86_400 => Ok(Duration::from_secs(lasts.as_secs())),
        _ => Err("from a second to a day".to_owned()),
    }
}

/// What a proxy says of its level.
struct Level {
    level: String,
    ends: Option<Ends>,
}

/// It goes back by itself.
#[derive(Debug, PartialEq, Eq)]
struct Ends {
    seconds: u64,
    back: String,
}

impl LogLevel {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let client = self.target.client().await?;
        let selected = select::find(&client, &Name::parse(&self.name)?, self.namespace.as_deref()).await?;
        let pod = selected.one_meshed()?;
        let before = read(&client, &pod).await?;
        let Some(level) = &self.level else {
            say(&words(&before))?;
            return Ok(ExitCode::SUCCESS);
        };
        let query = self.lasts.map(|lasts| format!("?for={}", lasts.as_secs())).unwrap_or_default();
        let answer = reach::ask_inside(&client, &pod, Method::PUT, &format!("{PATH}{query}"), level).await?;
        match answer.status {
            StatusCode::NO_CONTENT | StatusCode::OK => {}
            StatusCode::BAD_REQUEST => bail!("the proxy takes no {level:?}: {}", answer.body.trim()),
            status => bail!("{} answered {status}: {}", title(&pod), answer.body.trim()),
        }
        let after = Level { level: level.clone(), ends: ends(&answer.headers) };
        say(&format!("{}: was {}, is {}", title(&pod), before.level, words(&after)))?;
        if self.lasts.is_some() && after.ends.is_none() {
            anstream::eprintln!(
                "{} this is a stock proxy and keeps no time. Set it back when you are done: weft log-level {} {}",
                "‼".yellow(),
                title(&pod),
                before.level
            );
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn read(client: &Client, pod: &Pod) -> Result<Level> {
    let answer = reach::ask_inside(client, pod, Method::GET, PATH, "").await?;
    if answer.status != StatusCode::OK {
        bail!("{} answered {}: {}", title(pod), answer.status, answer.body.trim());
    }
    Ok(Level { level: answer.body.trim().to_owned(), ends: ends(&answer.headers) })
}

fn ends(headers: &HeaderMap) -> Option<Ends> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let seconds = text("weft-log-level-for")?.parse().ok()?;
    Some(Ends { seconds, back: text("weft-log-level-back").unwrap_or("what it was").to_owned() })
}

fn words(level: &Level) -> String {
    match &level.ends {
        Some(ends) => format!("{} (back to {} in {} s)", level.level, ends.back, ends.seconds),
        None => level.level.clone(),
    }
}

fn say(text: &str) -> Result<()> {
    writeln!(anstream::stdout().lock(), "{text}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_that_keeps_the_time_says_so() {
        let mut headers = HeaderMap::new();
        assert_eq!(ends(&headers), None);
        headers.insert("weft-log-level-for", 600.into());
        headers.insert("weft-log-level-back", "warn,linkerd=info".parse().unwrap());
        let ends = ends(&headers);
        assert_eq!(ends, Some(Ends { seconds: 600, back: "warn,linkerd=info".into() }));
        let level = Level { level: "debug".into(), ends };
        assert_eq!(words(&level), "debug (back to warn,linkerd=info in 600 s)");
    }

    #[test]
    fn a_while_is_bounded() {
        assert_eq!(a_while("10m"), Ok(Duration::from_secs(600)));
        assert!(a_while("0s").is_err() && a_while("25h").is_err() && a_while("soon").is_err());
    }
}
