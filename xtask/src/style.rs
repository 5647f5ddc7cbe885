//! Rules of STYLE that a reader would otherwise have to remember.

use crate::{code, repo::Repo};

/// The only crate with unsafe code.
const UNSAFE: &str = "crates/weft-net/";
const LONG: usize = 600;
const LICENCE: &str = "Apache-2.0";

pub(crate) fn check(repo: &Repo) -> Vec<String> {
    let mut found = licences(repo);
    for file in repo.rust() {
        let code = code::only(&file.text);
        found.extend(
            lines(&code, |line| {
                (code::has_word(line, "unsafe") && !file.path.starts_with(UNSAFE))
                    .then(|| format!("unsafe code belongs in {UNSAFE}"))
            })
            .map(|complaint| format!("{}:{complaint}", file.path)),
        );
        found.extend(re_exports(&code).map(|complaint| format!("{}:{complaint}", file.path)));
    }
    for file in &repo.files {
        if file.path.ends_with(".md") {
            found.extend(
                lines(&file.text, |line| dead_link(repo, &file.path, line))
                    .map(|c| format!("{}:{c}", file.path)),
            );
        }
        found.extend(lines(&file.text, foreign_word).map(|complaint| format!("{}:{complaint}", file.path)));
    }
    found
}

/// Files that are longer than they should be: worth a look, no failure.
pub(crate) fn long_files(repo: &Repo) -> Vec<String> {
    let long =
        repo.rust().map(|file| (&file.path, file.text.lines().count())).filter(|(_, lines)| *lines > LONG);
    long.map(|(path, lines)| format!("{path}: {lines} lines")).collect()
}

fn licences(repo: &Repo) -> Vec<String> {
    let mut found = Vec::new();
    if repo.file("LICENSE").is_none_or(|file| !file.text.contains("Version 2.0, January 2004")) {
        found.push("LICENSE: not the text of the Apache License 2.0".to_string());
    }
    for package in &repo.packages {
        if package.license.as_deref() != Some(LICENCE) {
            found.push(format!("{}: licence {:?} is not {LICENCE:?}", package.name, package.license));
        }
        if package.published {
            found.push(format!("{}: says nothing about `publish`", package.name));
        }
    }
    found
}

fn lines(text: &str, wrong: impl Fn(&str) -> Option<String>) -> impl Iterator<Item = String> {
    text.lines().enumerate().filter_map(move |(at, line)| Some(format!("{}: {}", at + 1, wrong(line)?)))
}

/// Each item has one path: what is exported again must come from a private module beside it, by name.
fn re_exports(code: &str) -> impl Iterator<Item = String> {
    let private = |name: &str| {
        code.lines().map(str::trim).any(|line| {
            line.strip_prefix("mod ").is_some_and(|rest| rest.trim_end_matches([';', '{', ' ']) == name)
        })
    };
    lines(code, move |line| {
        let rest = line.trim().strip_prefix("pub use ")?;
        let path = rest.trim_start_matches("self::");
        let first = path.split("::").next().unwrap_or_default();
        if path.contains('*') {
            return Some("exports everything of a module again; name what is meant".to_string());
        }
        (!private(first)).then(|| format!("gives an item of `{first}` a second path"))
    })
}

/// Links between documents lead somewhere.
fn dead_link(repo: &Repo, from: &str, line: &str) -> Option<String> {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let mut dead = targets.filter(|target| {
        !target.is_empty() && !target.contains("://") && !repo.root.join(folder).join(target).exists()
    });
    dead.next().map(|target| format!("the link to {target} leads nowhere"))
}

/// Paths of one machine and words of one workplace mean nothing to a reader.
fn foreign_word(line: &str) -> Option<String> {
    // Put together here so that this file does not find itself.
    const WORDS: &[&str] = &[
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("work", "tree"),
        concat!("the br", "ief"),
        concat!("anthro", "pic"),
        concat!("cla", "ude"),
    ];
    let lower = line.to_ascii_lowercase();
    let word = WORDS.iter().find(|word| lower.contains(**word))?;
    Some(format!("{word:?} belongs to one machine or workplace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn re_exports_from_private_modules_only() {
        let bad = |code: &str| re_exports(code).count();
        assert_eq!(bad("mod codes;\npub use codes::{Blame, Code};"), 0);
        assert_eq!(bad("pub mod codes;\npub use codes::Code;"), 1);
        assert_eq!(bad("mod codes;\npub use codes::*;"), 1);
        assert_eq!(bad("pub use tokio::net::TcpStream;"), 1);
        assert_eq!(bad("pub(crate) use tokio::net::TcpStream;"), 0);
    }

    #[test]
    fn foreign_words_are_found() {
        assert!(foreign_word(concat!("see /Wo", "rk/notes")).is_some());
        assert!(foreign_word("a workload works").is_none());
    }
}
