//! Every code is raised by a test, or it is said here why none does.

use crate::repo::{File, Repo};
use weft_fault::Code;

/// Codes without a test, each with the reason.
const UNTESTED: &[(&str, &str)] = &[
    ("CTL-005", "only logged; that a lost watch is taken up again has its tests"),
    ("NOD-001", "the data path and the node raise it for what the kernel refuses"),
    (
        "NOD-002",
        "a source that is missing is waited for, and the status and event that tell of it have the kind's name",
    ),
];

pub(crate) fn check(repo: &Repo) -> Vec<String> {
    let tests: Vec<&str> = repo.rust().filter(|file| !file.path.starts_with("xtask/")).map(tests).collect();
    let untested = |code: &Code| UNTESTED.iter().any(|(id, _)| *id == code.id());
    let mut found = Vec::new();
    for code in Code::ALL {
        match (tests.iter().any(|text| names(text, *code)), untested(code)) {
            (false, false) => found.push(format!(
                "{} {}: no test names it; raise it in one, or say why not in xtask/src/raised.rs",
                code.id(),
                code.name()
            )),
            (true, true) => {
                found.push(format!("xtask/src/raised.rs: {} is excused, and there is a test", code.id()));
            }
            _ => {}
        }
    }
    found
}

/// The part of a file that is compiled for tests only: all of it, or what follows the first mark.
fn tests(file: &File) -> &str {
    if file.path.contains("/tests/") || file.path.ends_with("/tests.rs") {
        return &file.text;
    }
    file.text.find("#[cfg(test)]").map_or("", |at| &file.text[at..])
}

/// By number or by name, each as a whole word.
fn names(text: &str, code: Code) -> bool {
    let name = format!("Code::{}", code.name());
    text.contains(code.id())
        || text.match_indices(&name).any(|(at, _)| {
            let after = text[at + name.len()..].chars().next();
            !after.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_named_by_number_or_by_its_whole_name() {
        for (text, named) in [
            ("starts_with(\"UPS-001\")", true),
            ("Code::NoEndpoints)", true),
            ("Code::NoEndpointsAtAll", false),
            ("NoEndpoints", false),
            ("UPS-0011", true),
        ] {
            assert_eq!(names(text, Code::NoEndpoints), named, "{text}");
        }
    }
}
