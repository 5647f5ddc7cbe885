//! `weft explain -` and `--logs`: from lines of a log to the failure they tell of.

use super::{Explain, controller};
use crate::{commands::stat::Output, files};
use anyhow::{Context as _, Result, bail};
use kube::Client;
use serde_json::json;
use std::{
    fmt::Write as _,
    io::{IsTerminal as _, Read as _, Write as _},
    path::PathBuf,
    process::ExitCode,
};
use weft_diagnose::{
    pasted::{
        self, Told,
        group::{Group, group},
    },
    recall::recall,
    render,
};
use weft_fault::Code;
use weft_wire::record::{Direction, JournalEntry};

/// Groups that are shown.
const SHOWN: usize = 8;
/// Entries of the journal that are shown.
const RECALLED: usize = 20;
/// How far before the first line the journal is read: what was changed that led to it.
const BEFORE_MS: u64 = 30 * 60 * 1000;

/// What is known of the first group beyond its lines.
enum Beyond {
    /// Both ends are there: the whole explanation, and whether it works now.
    Explained { text: String, code: ExitCode },
    /// They are gone, or not named: what the journal kept.
    Recalled(Vec<JournalEntry>),
    /// Nobody could be asked.
    Nothing(String),
}

/// The text of standard input, or of the files.
pub(super) fn text(logs: &[PathBuf]) -> Result<String> {
    if logs.is_empty() {
        let mut text = String::new();
        let mut input = std::io::stdin().lock().take(files::LARGEST_LOG + 1);
        input.read_to_string(&mut text).context("reading standard input")?;
        if text.len() as u64 > files::LARGEST_LOG {
            bail!("standard input: it has more than {} bytes", files::LARGEST_LOG);
        }
        return Ok(text);
    }
    let texts: Vec<String> = logs.iter().map(|path| files::read_log(path)).collect::<Result<_>>()?;
    Ok(texts.join("\n"))
}

impl Explain {
    pub(super) async fn explain_lines(&self, text: &str) -> Result<ExitCode> {
        let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
        let groups = group(pasted::read(text));
        let Some(first) = groups.first() else {
            let read = if lines == 1 {
                "the line tells".to_owned()
            } else {
                format!("none of the {lines} lines tells")
            };
            bail!("{read} of a failure: is it the log of a proxy, and are its lines whole?");
        };
        let beyond = match self.target.client().await {
            Ok(client) => self.beyond(&client, first).await,
            Err(error) => Beyond::Nothing(format!("no mesh was asked: {error:#}")),
        };
        let mut out = anstream::stdout().lock();
        if matches!(self.output, Output::Json) {
            let (explained, journal, gap) = match &beyond {
                Beyond::Explained { text, .. } => (Some(text), None, None),
                Beyond::Recalled(entries) => (None, Some(entries), None),
                Beyond::Nothing(why) => (None, None, Some(why)),
            };
            let whole =
                json!({"failures": groups, "explained": explained, "journal": journal, "not_asked": gap});
            writeln!(out, "{}", serde_json::to_string_pretty(&whole)?)?;
        } else {
            write!(out, "{}", table(&groups))?;
            write!(out, "{}", meaning(&first.told))?;
            match &beyond {
                Beyond::Explained { text, .. } => {
                    write!(out, "\nBoth ends are there. As they are now:\n\n{text}")?
                }
                Beyond::Recalled(entries) if entries.is_empty() => {
                    writeln!(
                        out,
                        "\nThe mesh knows nothing more: neither end runs, and its journal names neither."
                    )?;
                }
                Beyond::Recalled(entries) => {
                    write!(out, "\nWhat the mesh's journal kept of them:\n\n{}", entries_of(entries))?
                }
                Beyond::Nothing(why) => writeln!(out, "\n  ({why})")?,
            }
        }
        Ok(match beyond {
            Beyond::Explained { code, .. } => code,
            // The line says that it failed. Whether it still does is not known.
            _ if first.told.certain => ExitCode::from(1),
            _ => ExitCode::from(3),
        })
    }

    async fn beyond(&self, client: &Client, first: &Group) -> Beyond {
        if let Some((from, to)) = ends(&first.told) {
            let colour = std::io::stdout().is_terminal();
            if let Ok((text, outcome)) = super::explained(client, &from, &to, self.lines, colour).await {
                return Beyond::Explained { text, code: super::exit_code(outcome) };
            }
        }
        let since = first.first_unix_ms.map_or(0, |at| at.saturating_sub(BEFORE_MS));
        match recall(client, &controller(), since, &words(&first.told), RECALLED).await {
            Ok(entries) => Beyond::Recalled(entries),
            Err(why) => Beyond::Nothing(format!("the journal could not be read: {why}")),
        }
    }
}

/// Who called whom, as the command takes it.
fn ends(told: &Told) -> Option<(String, String)> {
    let client = told.client.map(|ip| ip.to_string());
    match told.direction {
        Some(Direction::Inbound) => {
            // The proxy's own port stands for whatever was behind it.
            let server = told.server.map(|addr| match addr.port() {
                4143 => addr.ip().to_string(),
                _ => addr.to_string(),
            });
            Some((client?, told.pod.clone().or(server)?))
        }
        _ => {
            let to = told.authority.clone().or_else(|| told.server.map(|addr| addr.to_string()));
            Some((told.pod.clone().or(client)?, to?))
        }
    }
}

/// By what the journal may know them.
fn words(told: &Told) -> Vec<String> {
    let mut words: Vec<String> = told.client.iter().map(ToString::to_string).collect();
    words.extend(told.server.map(|addr| addr.ip().to_string()));
    words.extend(told.pod.clone());
    if let Some(authority) = &told.authority {
        let name = authority.rsplit_once(':').map_or(authority.as_str(), |(name, _)| name);
        words.push(name.to_owned());
        let mut labels = name.split('.');
        if let (Some(name), Some(namespace)) = (labels.next(), labels.next()) {
            words.push(format!("{namespace}/{name}"));
        }
    }
    words
}

fn table(groups: &[Group]) -> String {
    let mut out = String::new();
    for Group { count, first_unix_ms, last_unix_ms, told } in groups.iter().take(SHOWN) {
        let when = match (first_unix_ms, last_unix_ms) {
            (Some(first), Some(last)) if first != last => {
                format!("  {} to {}", render::clock(*first), render::clock(*last))
            }
            (Some(at), _) => format!("  {}", render::clock(*at)),
            _ => String::new(),
        };
        let codes =
            if told.certain { told.codes[0].to_owned() } else { format!("{}?", told.codes.join(" or ")) };
        let _ = writeln!(out, "{count:>5} ×  {codes}  {}{when}", who(told));
    }
    if groups.len() > SHOWN {
        let _ = writeln!(out, "        and {} others (-o json has all)", groups.len() - SHOWN);
    }
    out
}

/// `10.1.1.2 → web.shop:80 (10.1.1.9:4143), told by shop/load-1 (outbound)`.
fn who(told: &Told) -> String {
    let client = told.client.map_or("?".to_owned(), |ip| ip.to_string());
    let server = match (&told.authority, told.server) {
        (Some(name), Some(addr)) => format!("{name} ({addr})"),
        (Some(name), None) => name.clone(),
        (None, Some(addr)) => addr.to_string(),
        (None, None) => "?".to_owned(),
    };
    let side = told.direction.map(|d| format!(" ({})", d.as_str())).unwrap_or_default();
    match &told.pod {
        Some(pod) => format!("{client} → {server}, told by {pod}{side}"),
        None => format!("{client} → {server}{side}"),
    }
}

/// What the first line means, by itself.
fn meaning(told: &Told) -> String {
    let mut out = format!("\nline {}: {}\n\n", told.line, told.text);
    if !told.certain {
        let _ = writeln!(out, "It does not name its cause. It can stand for:");
    }
    for code in told.codes.iter().filter_map(|code| Code::find(code)) {
        let _ = writeln!(out, "  {} {}", code.id(), code.says());
        let _ = writeln!(out, "    blame    {}", code.blame().as_str());
        let _ = writeln!(out, "    remedy   {}", code.remedy());
    }
    out
}

fn entries_of(entries: &[JournalEntry]) -> String {
    let line = |entry: &JournalEntry| {
        let text = match &entry.fault {
            Some(fault) => format!("{} {}: {}", fault.code, fault.says, entry.text),
            None => entry.text.clone(),
        };
        format!("{}  {}  {}: {text}\n", render::clock(entry.at_unix_ms), entry.source, entry.subject)
    };
    entries.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_named_as_the_command_takes_them() {
        let told = |line: &str| pasted::read(line).pop().expect("it tells of a failure");
        for (line, from, to) in [
            (
                "WARN inbound: x: Request denied client.ip=10.1.1.9 target=10.1.1.1:80 code=POL-001",
                "10.1.1.9",
                "10.1.1.1:80",
            ),
            (
                "INFO inbound: x: TLS detection timed out client.addr=10.1.1.9:1 server.addr=10.1.1.1:4143",
                "10.1.1.9",
                "10.1.1.1",
            ),
            (
                "WARN outbound:accept{client.addr=10.1.1.2:5}: x: fail-fast target=web.shop.svc.cluster.local:80 code=UPS-001",
                "10.1.1.2",
                "web.shop.svc.cluster.local:80",
            ),
        ] {
            assert_eq!(ends(&told(line)), Some((from.to_owned(), to.to_owned())), "{line}");
        }
        assert_eq!(ends(&told("WARN outbound: x: Connection refused")), None);
    }

    #[test]
    fn a_service_is_known_by_its_name_and_namespace() {
        let told = Told { authority: Some("web.shop.svc.cluster.local:80".into()), ..Told::default() };
        assert_eq!(words(&told), ["web.shop.svc.cluster.local", "shop/web"]);
    }
}
