//! The crate graph is a table in ARCHITECTURE.md; the manifests must not say more than it does.

use crate::{Result, repo::Repo};
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

const TABLE: &str = "ARCHITECTURE.md";
const LINES: usize = 400;
/// A second cryptographic library is one too many. `deny.toml` says the same to those who have cargo-deny.
const BANNED: &[&str] = &["ring", "openssl", "openssl-sys", "native-tls"];

pub(crate) fn check(repo: &Repo) -> Result<Vec<String>> {
    let text = &repo.file(TABLE).ok_or("ARCHITECTURE.md is missing")?.text;
    let mut found = Vec::new();
    if text.lines().count() >= LINES {
        found.push(format!("{TABLE}: {} lines; fewer than {LINES} are read", text.lines().count()));
    }

    let edges = table(text, "may use");
    let owned = table(text, "only in");
    if edges.is_empty() || owned.is_empty() {
        found.push(format!("{TABLE}: the tables `may use` and `only in` were not found"));
    }
    let ours: BTreeSet<&str> = repo.packages.iter().map(|package| package.name.as_str()).collect();
    for name in edges.keys().filter(|name| !ours.contains(name.as_str())) {
        found.push(format!("{TABLE}: {name} is no package of this workspace"));
    }

    for package in &repo.packages {
        let Some(allowed) = edges.get(&package.name) else {
            found.push(format!("{TABLE}: {} is not in the table of crates", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            let (from, to) = (&package.name, &dependency.name);
            if dependency.ours && !dependency.development && !allowed.contains(to) {
                found.push(format!(
                    "{from}: must not depend on {to}; a new edge stands in {TABLE} with its reason"
                ));
            }
            if let Some(owners) = owned.get(to)
                && !dependency.development
                && !owners.contains(from)
            {
                found.push(format!("{from}: must not depend on {to}, which belongs to others ({TABLE})"));
            }
        }
    }
    found.extend(cycles(&edges));
    found.extend(banned(repo)?);
    Ok(found)
}

/// The lock file lists more than is built: optional dependencies too. The tree is what is built.
fn banned(repo: &Repo) -> Result<Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--workspace", "--edges=normal,build", "--prefix=none", "--format={p}"])
        .current_dir(&repo.root)
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    let built: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    let found = BANNED.iter().filter(|name| built.contains(**name));
    Ok(found
        .map(|name| format!("Cargo.lock: {name} is in the build; find out how with `cargo tree -i {name}`"))
        .collect())
}

/// The rows of the table whose last column has the given title: first column to the names in the last.
fn table(text: &str, title: &str) -> BTreeMap<String, BTreeSet<String>> {
    let cells = |line: &str| -> Vec<String> {
        line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect()
    };
    let rows = text
        .lines()
        .skip_while(|line| !(line.starts_with('|') && cells(line).last().is_some_and(|last| last == title)))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut table = BTreeMap::new();
    for row in rows {
        let row = cells(row);
        let names = |cell: Option<&String>| -> Vec<String> {
            let code = cell.map_or("", String::as_str).split('`').skip(1).step_by(2);
            code.map(str::to_string).collect()
        };
        let uses: BTreeSet<String> = names(row.last()).into_iter().collect();
        for name in names(row.first()) {
            table.insert(name, uses.clone());
        }
    }
    table
}

/// A table that allows a circle allows too much.
fn cycles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let reaches_itself = |start: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(name) = next.pop() {
            for to in edges.get(name).into_iter().flatten() {
                if to == start {
                    return true;
                }
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
        false
    };
    let circular = edges.keys().filter(|name| reaches_itself(name));
    circular.map(|name| format!("{TABLE}: {name} may use itself by way of others")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "| crate | what | may use |\n|---|---|---|\n| `a` | x | – |\n| `b`, `c` | y | `a` |\n\nmore\n| `d` |";

    #[test]
    fn tables_are_read() {
        let edges = table(TEXT, "may use");
        assert_eq!(edges.keys().map(String::as_str).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(edges["a"].is_empty());
        assert!(edges["c"].contains("a"));
        assert!(cycles(&edges).is_empty());
    }

    #[test]
    fn circles_are_found() {
        let edges = table(&TEXT.replace("| x | – |", "| x | `c` |"), "may use");
        assert_eq!(cycles(&edges).len(), 2);
    }
}
