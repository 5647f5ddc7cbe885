//! docs/life-of-a-connection.md tells the steps of the data path; its headings are the comments in the code.
//!
//! `<!-- steps: FILE -->` in the document names a source file. The headings `### N. TITLE` that follow must be the
//! comments `// N. TITLE` of that file, where TITLE ends at the first full stop or question mark of the comment.
//! `cargo xtask docs` renames headings after the code and adds missing ones; what a step that is gone leaves behind is
//! for a person to move or delete.

use crate::{Result, repo::Repo};
use std::fs;

const PAGE: &str = "docs/life-of-a-connection.md";
/// What the document must tell, where the code has steps.
const PATHS: &[&str] = &[
    "crates/weft-proxy/src/inbound.rs",
    "crates/weft-proxy/src/inbound/mod.rs",
    "crates/weft-proxy/src/outbound.rs",
    "crates/weft-proxy/src/outbound/mod.rs",
];

pub(crate) fn write(repo: &Repo) -> Result<()> {
    let page = &repo.file(PAGE).ok_or("docs/life-of-a-connection.md is missing")?.text;
    let mut told = String::new();
    let mut steps: Vec<Step> = Vec::new();
    for line in page.lines() {
        // A section ends at the next marker or larger heading; what it did not tell yet comes before that.
        if line.starts_with("<!-- steps: ") || line.starts_with("## ") {
            steps.drain(..).for_each(|step| tell(&mut told, &step));
        }
        if let Some(path) = marked(line) {
            steps = repo.file(path).map_or_else(Vec::new, |file| comments(&file.text));
        }
        match line.strip_prefix("### ").filter(|text| numbered(text)) {
            Some(_) if !steps.is_empty() => told.push_str(&format!("### {}\n", steps.remove(0).title)),
            _ => told.push_str(&format!("{line}\n")),
        }
    }
    steps.drain(..).for_each(|step| tell(&mut told, &step));
    fs::write(repo.root.join(PAGE), told)?;
    Ok(())
}

fn tell(page: &mut String, step: &Step) {
    if !page.ends_with("\n\n") {
        page.push('\n');
    }
    page.push_str(&format!("### {}\n\n", step.title));
    if !step.text.is_empty() {
        page.push_str(&format!("{}\n\n", step.text));
    }
}

pub(crate) fn check(repo: &Repo) -> Vec<String> {
    let Some(page) = repo.file(PAGE) else { return vec![format!("{PAGE}: missing")] };
    let mut found = Vec::new();
    let mut told = sections(&page.text);
    for path in PATHS {
        let has_steps = repo.file(path).is_some_and(|file| !comments(&file.text).is_empty());
        if has_steps && !told.iter().any(|(named, _)| named == path) {
            found.push(format!(
                "{PAGE}: does not tell the steps of {path}; put `<!-- steps: {path} -->` before them"
            ));
        }
    }
    for (path, headings) in &mut told {
        let Some(file) = repo.file(path) else {
            found.push(format!("{PAGE}: {path} does not exist"));
            continue;
        };
        let done: Vec<String> = comments(&file.text).into_iter().map(|step| step.title).collect();
        for (told, done) in headings.iter().zip(&done).filter(|(told, done)| told != done) {
            found.push(format!("{PAGE}: says {told:?} where {path} says {done:?}"));
        }
        if headings.len() != done.len() {
            found.push(format!("{PAGE}: {} steps where {path} has {}", headings.len(), done.len()));
        }
    }
    found
}

fn sections(page: &str) -> Vec<(String, Vec<String>)> {
    let mut sections: Vec<(String, Vec<String>)> = Vec::new();
    for line in page.lines() {
        if let Some(path) = marked(line) {
            sections.push((path.to_string(), Vec::new()));
        } else if let Some(heading) = line.strip_prefix("### ").filter(|text| numbered(text))
            && let Some((_, headings)) = sections.last_mut()
        {
            headings.push(heading.to_string());
        }
    }
    sections
}

fn marked(line: &str) -> Option<&str> {
    line.strip_prefix("<!-- steps: ")?.strip_suffix(" -->")
}

/// One numbered comment: `3. Who is calling?` and what it says besides.
#[derive(Debug, PartialEq)]
struct Step {
    title: String,
    text: String,
}

fn comments(source: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = source.lines().map(str::trim_start).peekable();
    while let Some(line) = lines.next() {
        let Some(comment) = line.strip_prefix("// ").filter(|text| numbered(text)) else { continue };
        let mut comment = comment.to_string();
        let goes_on = |line: &&str| line.strip_prefix("// ").is_some_and(|text| !numbered(text));
        while let Some(more) = lines.next_if(goes_on) {
            comment.push_str(more.trim_start_matches('/'));
        }
        let (title, text) = split(&comment);
        steps.push(Step { title, text });
    }
    steps
}

/// `3. Who is calling? More words.` to `3. Who is calling?` and `More words.`; the title's full stop is dropped.
fn split(comment: &str) -> (String, String) {
    let number = comment.find(". ").map_or(0, |at| at + 2);
    let words = &comment[number..];
    let end = words.find(". ").into_iter().chain(words.find("? ")).min().map_or(words.len(), |at| at + 1);
    let title = comment[..number + end].trim_end_matches('.').to_string();
    (title, words[end..].trim().to_string())
}

fn numbered(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    digits > 0 && text[digits..].starts_with(". ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_and_comments_compare() {
        let page = "# x\n### 9. No\n<!-- steps: a.rs -->\n### 1. Where was it going?\ntext\n### 2. Dial\n<!-- steps: b.rs -->\n";
        let sections = sections(page);
        assert_eq!(sections.len(), 2);
        let source = "fn f() {\n    // 1. Where was it going? A loop is refused.\n    // 10x is no number.\n    // 2. Dial. Then copy.\n}";
        let steps = comments(source);
        assert_eq!(steps[0].text, "A loop is refused. 10x is no number.");
        let titles: Vec<String> = steps.into_iter().map(|step| step.title).collect();
        assert_eq!(sections[0], ("a.rs".to_string(), titles));
        assert!(sections[1].1.is_empty());
    }
}
