//! `docs/checks.md`, made from the table.

use super::{Category, Check, Severity, table::all};
use std::{collections::BTreeSet, fmt::Write as _};

const HEAD: &str = "# Checks

What `weft check` asks, in its order. Each heading is the anchor that the answers point to; `weft explain ID` prints the same. Ids and categories
are Linkerd's, so that runbooks and pipelines go on working; what begins with `weft` is asked by weft alone.

- `√` holds. `‼` is a warning: something to look at, which does not fail the command. `×` is an error: the exit status is 1.
- `?` could not be asked, and the answer says why: a right that is missing, with the commands that grant it; a proxy or an API that does not answer. It is never counted as
  good: where it would be an error if it did not hold, the exit status is 1. In JSON it is an `error` or a `warning` with `\"unknown\": true`.
- *fatal*: where it does not hold, what comes after it is not asked. *retried*: asked again every 5 s for as long as `--wait` says.
- No request leaves the cluster: what is the newest version is not known, unless `--expected-version` says so.
- A check that is about nothing here (a CNI plugin where none is used) is left out.

";

/// The page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut told = BTreeSet::new();
    for category in all() {
        let _ = writeln!(page, "## {}\n", category.name);
        for check in category.checks.iter().filter(|check| !check.means.is_empty()) {
            // What two categories ask is explained once.
            if told.insert((check.id, check.says)) {
                section(
                    &mut page,
                    category,
                    check,
                    told.iter().filter(|(id, _)| *id == check.id).count() == 1,
                );
            }
        }
    }
    page
}

fn section(page: &mut String, category: &Category, check: &Check, first: bool) {
    if first {
        let _ = writeln!(page, "### {}\n", check.id);
    }
    let grade = |check: &Check| {
        let severity = if check.severity == Severity::Error { "error" } else { "warning" };
        let marks = [(check.fatal, ", fatal"), (check.retried, ", retried")];
        let marks: String = marks.iter().filter(|(is, _)| *is).map(|(_, text)| *text).collect();
        format!("{severity}{marks}")
    };
    let _ = writeln!(page, "**{}** ({})", check.says, grade(check));
    // Those that share its explanation.
    let rest = category.checks.iter().filter(|other| other.id == check.id && other.means.is_empty());
    for other in rest {
        let _ = writeln!(page, "<br>**{}** ({})", other.says, grade(other));
    }
    let _ = writeln!(page, "\n{}\n\n*Remedy:* {}\n", check.means, check.remedy);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/checks.md");

    #[test]
    fn the_page_of_checks_is_current() {
        let now = page();
        if std::env::var_os("WEFT_WRITE_DOCS").is_some() {
            std::fs::write(PATH, &now).unwrap();
        }
        let written = std::fs::read_to_string(PATH).unwrap_or_default();
        assert!(
            written == now,
            "docs/checks.md is not what the table says; run WEFT_WRITE_DOCS=1 cargo test -p weft-diagnose --lib"
        );
    }

    #[test]
    fn every_id_has_one_heading() {
        let page = page();
        for check in all().iter().flat_map(|category| category.checks) {
            let heading = format!("### {}", check.id);
            assert_eq!(page.lines().filter(|line| *line == heading).count(), 1, "{heading}");
        }
    }
}
