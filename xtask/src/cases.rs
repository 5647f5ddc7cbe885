//! docs/cases.md names tests; each of them exists.

use crate::repo::Repo;
use std::collections::BTreeSet;

const PAGE: &str = "docs/cases.md";

pub(crate) fn check(repo: &Repo) -> Vec<String> {
    let Some(page) = repo.file(PAGE) else { return vec![format!("{PAGE}: missing")] };
    let functions: BTreeSet<&str> = repo.rust().flat_map(|file| functions(&file.text)).collect();
    named(&page.text)
        .filter(|(_, test)| !functions.contains(test))
        .map(|(id, test)| format!("{PAGE}: {id} names {test}, and there is no such test"))
        .collect()
}

/// Row and test, for every test in the third column.
fn named(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.lines().filter(|line| line.starts_with("| B")).flat_map(|line| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (id, tests) = (cells.next().unwrap_or_default(), cells.nth(1).unwrap_or_default());
        tests.split('`').skip(1).step_by(2).map(move |test| (id, test))
    })
}

fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_read_from_the_third_column() {
        let page =
            "| id | what | tests | short |\n|---|---|---|---|\n| B01 | `not` this | `one`, `two` | `nor` |\n";
        assert_eq!(named(page).collect::<Vec<_>>(), [("B01", "one"), ("B01", "two")]);
        assert_eq!(functions("async fn one() {}\nfn two<T>() {}").collect::<Vec<_>>(), ["one", "two"]);
    }
}
