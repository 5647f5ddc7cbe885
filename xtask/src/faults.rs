//! docs/faults.md is made from the table of codes; the list of codes only ever grows.

use crate::{Result, repo::Repo};
use std::{collections::BTreeMap, fmt::Write as _, fs};
use weft_fault::Code;

const PAGE: &str = "docs/faults.md";
/// One `ID NAME` a line, in the order in which they were added.
const GOLDEN: &str = "xtask/codes.txt";

const FAMILIES: &[(&str, &str)] = &[
    ("NET", "what the kernel says about a connection"),
    ("TLS", "handshakes and detection"),
    ("IDN", "identities"),
    ("POL", "policy"),
    ("RTE", "routes"),
    ("UPS", "what a request is sent to"),
    ("PRO", "protocols"),
    ("LIM", "limits"),
    ("CFG", "configuration"),
    ("CTL", "the control plane"),
    ("CLU", "other clusters"),
    ("NOD", "one machine"),
    ("BUG", "weft itself"),
];

pub(crate) fn write(repo: &Repo) -> Result<()> {
    fs::create_dir_all(repo.root.join("docs"))?;
    fs::write(repo.root.join(PAGE), page())?;
    let mut golden = golden(repo);
    let missing = Code::ALL.iter().filter(|code| !golden.contains(&entry(**code))).map(|code| entry(*code));
    let missing: Vec<String> = missing.collect();
    golden.extend(missing);
    fs::write(repo.root.join(GOLDEN), golden.join("\n") + "\n")?;
    Ok(())
}

pub(crate) fn check(repo: &Repo) -> Result<Vec<String>> {
    let mut found = Vec::new();
    if repo.file(PAGE).is_none_or(|file| file.text != page()) {
        found.push(format!("{PAGE}: not what the table of codes says; run `cargo xtask docs`"));
    }
    let golden = golden(repo);
    let known: BTreeMap<&str, &str> = Code::ALL.iter().map(|code| (code.id(), code.name())).collect();
    for line in &golden {
        let (id, name) = line.split_once(' ').ok_or("codes.txt holds lines of ID and NAME")?;
        match known.get(id) {
            Some(now) if *now == name => {}
            Some(now) => {
                found.push(format!("{GOLDEN}: {id} was {name} and is {now} now; a code keeps its meaning"))
            }
            None => found.push(format!("{GOLDEN}: {id} {name} is gone; a code that was released stays")),
        }
    }
    for code in Code::ALL {
        if !golden.contains(&entry(*code)) {
            found.push(format!("{GOLDEN}: {} is not listed; run `cargo xtask docs`", code.id()));
        }
        if !FAMILIES.iter().any(|(family, _)| code.id().starts_with(family)) {
            found.push(format!("xtask/src/faults.rs: {} belongs to no family", code.id()));
        }
    }
    for file in repo.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (at, line) in file.text.lines().enumerate() {
            let unknown = ids(line).filter(|id| !known.contains_key(id));
            found.extend(unknown.map(|id| format!("{}:{}: {id} is no code", file.path, at + 1)));
        }
    }
    Ok(found)
}

/// What looks like a code of one of the families, as `POL-001` does.
fn ids(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').filter(|word| {
        let parts = word.split_once('-');
        parts.is_some_and(|(family, number)| {
            number.len() == 3
                && number.bytes().all(|b| b.is_ascii_digit())
                && FAMILIES.iter().any(|(known, _)| *known == family)
        })
    })
}

fn entry(code: Code) -> String {
    format!("{} {}", code.id(), code.name())
}

fn golden(repo: &Repo) -> Vec<String> {
    let text = repo.file(GOLDEN).map_or("", |file| file.text.as_str());
    text.lines().map(str::to_string).collect()
}

fn page() -> String {
    let mut page = String::from(
        "# Fault codes\n\n\
         <!-- Made by `cargo xtask docs` from crates/weft-fault/src/codes.rs: edit that. -->\n\n\
         Every refused or failed connection and request has one of these codes. It stands in the `l5d-proxy-error` header, in the\n\
         log line, in the metric `weft_faults_total{code}`, in the flight recorder and in what `weft explain` says. Codes are never\n\
         renumbered and never change their meaning.\n",
    );
    for (family, about) in FAMILIES {
        let codes: Vec<Code> =
            Code::ALL.iter().copied().filter(|code| code.id().starts_with(family)).collect();
        if codes.is_empty() {
            continue;
        }
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## {family}: {about}\n");
        for code in codes {
            let _ = write!(
                page,
                "\n### {} {}\n\nMeans: {}. HTTP {}, gRPC {}; blame: {}; retry: {}.\n\n{}\n",
                code.id(),
                code.name(),
                code.says(),
                code.http(),
                code.grpc(),
                code.blame().as_str(),
                code.retry().as_str(),
                code.remedy(),
            );
        }
    }
    page
}
