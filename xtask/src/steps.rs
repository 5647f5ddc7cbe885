//! docs/life-of-a-connection.md tells the steps of the data path; its headings are the comments in the code.
//!
//! `<!-- steps: FILE -->` in the document names a source file. The headings `### N. TITLE` that follow must be the
//! comments `// N. TITLE` of that file, where TITLE ends at the first full stop or question mark of the comment.

use crate::repo::Repo;

const PAGE: &str = "docs/life-of-a-connection.md";
/// What the document must tell, where the code has steps.
const PATHS: &[&str] = &["crates/weft-proxy/src/inbound.rs", "crates/weft-proxy/src/outbound.rs"];

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
        let done = comments(&file.text);
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
        if let Some(path) = line.strip_prefix("<!-- steps: ").and_then(|rest| rest.strip_suffix(" -->")) {
            sections.push((path.to_string(), Vec::new()));
        } else if let Some(heading) = line.strip_prefix("### ").filter(|text| numbered(text))
            && let Some((_, headings)) = sections.last_mut()
        {
            headings.push(heading.to_string());
        }
    }
    sections
}

fn comments(source: &str) -> Vec<String> {
    let lines = source.lines().filter_map(|line| line.trim_start().strip_prefix("// "));
    lines.filter(|text| numbered(text)).map(title).collect()
}

/// `3. Who is calling? More words.` to `3. Who is calling?`; a full stop at the end is dropped.
fn title(comment: &str) -> String {
    let words = comment.find(". ").map_or(0, |at| at + 2);
    let (number, words) = comment.split_at(words);
    let end = words
        .find(['.', '?'])
        .map_or(words.len(), |at| if words[at..].starts_with('?') { at + 1 } else { at });
    format!("{number}{}", words[..end].trim_end())
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
        let source = "fn f() {\n    // 1. Where was it going? A loop is refused.\n    // 10x\n    // 2. Dial. Then copy.\n}";
        assert_eq!(sections[0], ("a.rs".to_string(), comments(source)));
        assert!(sections[1].1.is_empty());
    }
}
