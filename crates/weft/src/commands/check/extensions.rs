//! Programs of extensions (`weft-NAME`, `linkerd-NAME` on PATH), and what they say of their own health.

use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{io::AsyncReadExt as _, process::Command, time::timeout};
use weft_diagnose::check::{
    Severity,
    run::{Line, Section, State},
};

/// Our own programs, which are no extensions: some would start to work whatever they are asked.
const OWN: [&str; 2] = ["proxy", "cni"];
/// What a program may take to say what it is.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// What its checks may take beyond what they are told to wait.
const GRACE: Duration = Duration::from_secs(60);
/// The most that is read of its answer.
const ANSWER_LIMIT: u64 = 1 << 20;

/// The programs that were found, by the name of the extension.
pub(super) struct OnPath(BTreeMap<String, PathBuf>);

/// What there is on PATH. Of two programs of one extension, ours comes first.
pub(super) fn on_path() -> OnPath {
    #[allow(clippy::disallowed_methods, reason = "PATH is where programs are, not a setting")]
    let path = std::env::var_os("PATH").unwrap_or_default();
    OnPath(programs(&path))
}

fn programs(path: &OsStr) -> BTreeMap<String, PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut found = BTreeMap::new();
    for prefix in ["weft-", "linkerd-"] {
        for folder in std::env::split_paths(path) {
            let Ok(files) = std::fs::read_dir(&folder) else { continue };
            for file in files.flatten() {
                let name = file.file_name().to_string_lossy().into_owned();
                let Some(extension) = name.strip_prefix(prefix).filter(|name| !name.is_empty()) else {
                    continue;
                };
                let runs =
                    file.path().metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
                if runs && !OWN.contains(&extension) {
                    found.entry(extension.to_owned()).or_insert_with(|| file.path());
                }
            }
        }
    }
    found
}

#[derive(Deserialize)]
struct Introduction {
    #[serde(default)]
    checks: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    categories: Vec<AnsweredCategory>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnsweredCategory {
    category_name: String,
    #[serde(default)]
    checks: Vec<AnsweredCheck>,
}

#[derive(Deserialize)]
struct AnsweredCheck {
    description: String,
    result: String,
    #[serde(default)]
    error: String,
    #[serde(default)]
    hint: String,
    #[serde(default)]
    unknown: bool,
}

impl OnPath {
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }

    /// Asks those whose extension is installed, and those that want to be asked always.
    pub(super) async fn check(
        &self,
        installed: &BTreeSet<String>,
        flags: &[String],
        wait: Duration,
    ) -> Vec<Section> {
        let mut sections = Vec::new();
        for (name, program) in &self.0 {
            if installed.contains(name) || wants_to_be_asked(program).await {
                sections.extend(ask(name, program, flags, wait + GRACE).await);
            }
        }
        sections
    }
}

async fn wants_to_be_asked(program: &Path) -> bool {
    let Ok(answer) = output(program, &["_extension-metadata".to_owned()], INTRODUCTION).await else {
        return false;
    };
    serde_json::from_slice(&answer).is_ok_and(|said: Introduction| said.checks.eq_ignore_ascii_case("always"))
}

/// The categories of its answer; one line that says why, if there is none.
async fn ask(name: &str, program: &Path, flags: &[String], patience: Duration) -> Vec<Section> {
    let arguments: Vec<String> = std::iter::once("check".to_owned()).chain(flags.iter().cloned()).collect();
    let answer = output(program, &arguments, patience).await;
    let sections = answer.and_then(|answer| sections_of(&answer));
    sections.unwrap_or_else(|why| {
        let line = Line {
            says: format!("{} check", program.display()),
            state: State::Unknown(Severity::Error),
            why,
            hint: "docs/checks.md#extensions".into(),
        };
        vec![Section { name: format!("linkerd-{name}"), lines: vec![line] }]
    })
}

fn sections_of(answer: &[u8]) -> Result<Vec<Section>, String> {
    let answer: Answer = serde_json::from_slice(answer)
        .map_err(|error| format!("its answer is not of the form of `check --output json`: {error}"))?;
    let line = |check: AnsweredCheck| {
        let state = match (check.result.as_str(), check.unknown) {
            ("success", _) => State::Good,
            ("warning", false) => State::Warning,
            ("warning", true) => State::Unknown(Severity::Warning),
            ("error", false) => State::Error,
            // What is no word of ours is not known to be good.
            _ => State::Unknown(Severity::Error),
        };
        Line { says: check.description, state, why: check.error, hint: check.hint }
    };
    let sections = answer.categories.into_iter().map(|category| Section {
        name: category.category_name,
        lines: category.checks.into_iter().map(line).collect(),
    });
    Ok(sections.collect())
}

/// What a program writes, whatever its exit status is: that tells of what it found.
async fn output(program: &Path, arguments: &[String], patience: Duration) -> Result<Vec<u8>, String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("it does not start: {error}"))?;
    let Some(stdout) = child.stdout.take() else { return Err("it has no output".into()) };
    let mut answer = Vec::new();
    match timeout(patience, stdout.take(ANSWER_LIMIT).read_to_end(&mut answer)).await {
        Ok(Ok(_)) => Ok(answer),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("it did not end within {} s", patience.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    fn program(folder: &Path, name: &str, script: &str) {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permitted");
    }

    #[test]
    fn extensions_are_programs_and_not_our_own() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["weft-proxy", "weft-cni", "linkerd-viz", "weft-viz", "linkerd-smi"] {
            program(folder.path(), name, "");
        }
        fs::write(folder.path().join("linkerd-text"), "").expect("written");
        let found = programs(folder.path().as_os_str());
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["smi", "viz"]);
        assert!(found["viz"].ends_with("weft-viz"));
    }

    #[tokio::test]
    async fn an_extension_is_asked_where_it_is_installed_or_always_wants_to_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let says = r#"test "$1" = check && test "$2" = --output=json && echo '{"success":false,"categories":[{"categoryName":"viz","checks":[
            {"description":"fine","result":"success"},{"description":"bad","result":"error","error":"why","hint":"https://a/b"},
            {"description":"odd","result":"perhaps"}]}]}'; exit 1"#;
        program(folder.path(), "linkerd-viz", says);
        program(folder.path(), "linkerd-idle", "touch $0.was-asked; echo '{}'");
        program(
            folder.path(),
            "weft-always",
            r#"test "$1" = _extension-metadata && echo '{"name":"weft-always","checks":"always"}'"#,
        );
        let on_path = OnPath(programs(folder.path().as_os_str()));
        let installed = BTreeSet::from(["viz".to_owned()]);
        let sections = on_path.check(&installed, &["--output=json".to_owned()], Duration::ZERO).await;
        let said: Vec<(&str, &str, State)> = sections
            .iter()
            .flat_map(|section| {
                section.lines.iter().map(|l| (section.name.as_str(), l.why.as_str(), l.state))
            })
            .collect();
        assert_eq!(said[0].0, "linkerd-always");
        assert!(said[0].1.contains("not of the form"), "{said:?}");
        let of_viz = [
            ("viz", "", State::Good),
            ("viz", "why", State::Error),
            ("viz", "", State::Unknown(Severity::Error)),
        ];
        assert_eq!(said[1..], of_viz);
    }
}
