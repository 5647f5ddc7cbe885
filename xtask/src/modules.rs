//! Modules of a crate that use each other in a circle cannot be read one at a time. Reported as notes.

use crate::{code, repo::Repo};
use std::collections::{BTreeMap, BTreeSet};

type Uses = BTreeMap<String, BTreeSet<String>>;

pub(crate) fn circles(repo: &Repo) -> Vec<String> {
    let mut crates: BTreeMap<&str, Uses> = BTreeMap::new();
    for file in repo.rust() {
        let Some((krate, module)) = place(&file.path) else { continue };
        let code = code::only(&file.text);
        // Tests stand at the end and may use anything.
        let code = code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        crates.entry(krate).or_default().entry(module.to_string()).or_default().extend(used(code));
    }
    let mut found = Vec::new();
    for (krate, uses) in &crates {
        let circular: Vec<&str> = uses
            .keys()
            .filter(|module| reached(uses, module).contains(*module))
            .map(String::as_str)
            .collect();
        if !circular.is_empty() {
            found.push(format!("{krate}: modules that use each other in a circle: {}", circular.join(", ")));
        }
    }
    found
}

/// `crates/weft-tls/src/verify.rs` and `…/src/verify/chain.rs` are module `verify` of `weft-tls`.
fn place(path: &str) -> Option<(&str, &str)> {
    let (krate, inside) = path.split_once("/src/")?;
    let module = inside.split('/').next().unwrap_or(inside).trim_end_matches(".rs");
    let own = !matches!(module, "lib" | "main" | "bin" | "tests") && !inside.ends_with("tests.rs");
    own.then(|| (krate.rsplit('/').next().unwrap_or(krate), module))
}

/// The modules of its own crate that a source names: `crate::a::B`, `use crate::{a::B, c};`.
fn used(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => names.extend(name(rest)),
            Some(list) => {
                let (mut depth, mut start) = (0, 0);
                for (at, c) in list.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => {
                            names.extend(name(&list[start..at]));
                            break;
                        }
                        '}' => depth -= 1,
                        ',' if depth == 0 => {
                            names.extend(name(&list[start..at]));
                            start = at + 1;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    names
}

fn name(text: &str) -> Option<String> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_string())
}

fn reached<'u>(uses: &'u Uses, from: &'u str) -> BTreeSet<&'u String> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for to in uses.get(module).into_iter().flatten().filter(|to| *to != module) {
            if uses.contains_key(to) && seen.insert(to) {
                next.push(to);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_source_uses() {
        let names = used("use crate::{a::{B, C}, d, e::F};\nfn f() { crate::g::h(); }");
        assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), ["a", "d", "e", "g"]);
        assert_eq!(place("crates/weft-tls/src/verify/chain.rs"), Some(("weft-tls", "verify")));
        assert_eq!(place("crates/weft-tls/src/lib.rs"), None);
        assert_eq!(place("crates/weft-tls/src/verify/tests.rs"), None);
    }

    #[test]
    fn circles_through_others() {
        let uses = |pairs: &[(&str, &[&str])]| -> Uses {
            pairs
                .iter()
                .map(|(from, to)| (from.to_string(), to.iter().map(|t| t.to_string()).collect()))
                .collect()
        };
        let circle = uses(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"]), ("d", &["a", "d"])]);
        let circular: Vec<&String> = circle.keys().filter(|m| reached(&circle, m).contains(m)).collect();
        assert_eq!(circular, ["a", "b", "c"]);
    }
}
