//! Results for people and for programs.

use super::run::{Line, Results, State};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// How much of it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Every check.
    Table,
    /// Only what is not good.
    Short,
}

fn mark(state: State) -> (&'static str, &'static str) {
    match state {
        State::Good => ("√", "32"),
        State::Warning => ("‼", "33"),
        State::Error => ("×", "31"),
        State::Unknown(_) => ("?", "33"),
    }
}

/// As text. `colour` is for terminals.
pub fn text(results: &Results, form: Form, colour: bool) -> String {
    let paint =
        |code: &str, text: &str| if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() };
    let mut out = String::new();
    for section in &results.sections {
        let shown: Vec<&Line> =
            section.lines.iter().filter(|line| form == Form::Table || line.state != State::Good).collect();
        if shown.is_empty() {
            continue;
        }
        // Writing to a string does not fail.
        let _ = writeln!(out, "{}\n{}", section.name, "-".repeat(section.name.chars().count()));
        for line in shown {
            let (mark, tone) = mark(line.state);
            let _ = writeln!(out, "{} {}", paint(tone, mark), line.says);
            for why in line.why.lines() {
                let _ = writeln!(out, "    {why}");
            }
            if !line.hint.is_empty() {
                let _ = writeln!(out, "    see {} for hints", line.hint);
            }
        }
        out.push('\n');
    }
    if results.stopped {
        let _ = writeln!(out, "{}", paint("2", "what comes after the last of these was not asked"));
    }
    if results.sections.iter().flat_map(|s| &s.lines).any(|line| line.hint.starts_with("docs/")) {
        let _ = writeln!(out, "{}", paint("2", "weft explain ID prints what docs/checks.md#ID says"));
    }
    let (mark, tone) = if results.success() { ("√", "32") } else { ("×", "31") };
    let _ = writeln!(out, "Status check results are {}", paint(tone, mark));
    out
}

/// As Linkerd's `check -o json` has it. What is not known has the result that it would have if it did not hold, and says so.
pub fn json(results: &Results) -> Value {
    let line = |line: &Line| {
        let result = match line.state {
            State::Good => "success",
            state if state.is_failure() => "error",
            _ => "warning",
        };
        let mut check = json!({"description": line.says, "result": result});
        if !line.hint.is_empty() {
            check["hint"] = line.hint.clone().into();
        }
        if !line.why.is_empty() {
            check["error"] = line.why.clone().into();
        }
        if matches!(line.state, State::Unknown(_)) {
            check["unknown"] = true.into();
        }
        check
    };
    let sections = results.sections.iter().map(|section| {
        json!({"categoryName": section.name, "checks": section.lines.iter().map(line).collect::<Vec<_>>()})
    });
    json!({"success": results.success(), "categories": sections.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{
        facts::{Unread, healthy::healthy},
        run::run,
        table::Scope,
    };
    use weft_kube::meta::ObjectName;

    /// A mesh with something of every kind: an error, a warning, something unknown.
    fn results() -> Results {
        let mut facts = healthy();
        facts
            .proxies
            .insert(ObjectName::new("shop", "web-1"), Err(Unread::Silent("no answer within 3 s".into())));
        facts.plane.hooks[1] =
            Ok(Some(crate::check::facts::Hook { accepted: Ok(std::time::SystemTime::UNIX_EPOCH) }));
        facts.controller.as_mut().unwrap().as_mut().unwrap().samples[0].value = 400.0;
        run(Scope::Proxies, &facts)
    }

    fn golden(name: &str, text: &str) {
        let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("WEFT_WRITE_DOCS").is_some() {
            std::fs::create_dir_all(format!("{}/tests/golden", env!("CARGO_MANIFEST_DIR"))).unwrap();
            std::fs::write(&path, text).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(written, text, "{name}: WEFT_WRITE_DOCS=1 writes it anew");
    }

    #[test]
    fn each_form_is_as_it_was() {
        let results = results();
        golden("check.table", &text(&results, Form::Table, false));
        golden("check.short", &text(&results, Form::Short, false));
        golden("check.json", &(serde_json::to_string_pretty(&json(&results)).unwrap() + "\n"));
    }

    #[test]
    fn colour_is_only_where_asked() {
        assert!(!text(&results(), Form::Table, false).contains('\x1b'));
        assert!(text(&results(), Form::Table, true).contains("\x1b[31m×\x1b[0m"));
    }

    #[test]
    fn short_says_only_what_is_not_good() {
        let said = text(&results(), Form::Short, false);
        assert!(!said.contains('√') && said.contains("every proxy answers"), "{said}");
        let fine = Results::default();
        assert_eq!(text(&fine, Form::Short, false), "Status check results are √\n");
    }
}
