//! Rust source with comments and literals blanked out, so that searching it finds code only.

/// The same text, line for line and byte for byte, with spaces instead of comments and of the insides of literals.
pub(crate) fn only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let end = at + length(rest, at.checked_sub(1).map(|before| bytes[before]));
        if end > at + 1 {
            out.extend(bytes[at..end].iter().map(|b| if *b == b'\n' { b'\n' } else { b' ' }));
            at = end;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    // Only whole comments and literals were replaced, so the rest is as valid as before.
    String::from_utf8_lossy(&out).into_owned()
}

/// How long the comment or literal is that starts here; 1 if none does.
fn length(rest: &[u8], before: Option<u8>) -> usize {
    let until = |needle: &[u8], from: usize| {
        rest.get(from..)
            .and_then(|tail| tail.windows(needle.len()).position(|window| window == needle))
            .map_or(rest.len(), |found| from + found + needle.len())
    };
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => string(rest),
        // `r"…"`, `r#"…"#`, but not the end of a name and not the raw name `r#type`.
        [b'r', b'"' | b'#', ..] if !before.is_some_and(is_name) || before == Some(b'b') => {
            let hashes = rest[1..].iter().take_while(|b| **b == b'#').count();
            if rest.get(1 + hashes) != Some(&b'"') {
                return 1;
            }
            let mut close = vec![b'"'];
            close.resize(1 + hashes, b'#');
            until(&close, 2 + hashes)
        }
        // `'x'` and `'\n'`, but not the lifetime `'a`.
        [b'\'', b'\\', _, ..] => until(b"'", 3),
        [b'\'', first, ..] => {
            let width = match first {
                0x00..=0x7f => 1,
                0xc0..=0xdf => 2,
                0xe0..=0xef => 3,
                _ => 4,
            };
            if rest.get(1 + width) == Some(&b'\'') { 2 + width } else { 1 }
        }
        _ => 1,
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at + 1 < rest.len() {
        match &rest[at..at + 2] {
            b"/*" => {
                depth += 1;
                at += 2;
            }
            b"*/" => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    rest.len()
}

fn string(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Does `word` stand in `line` as a word of its own?
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let bytes = line.as_bytes();
        let starts = at == 0 || !is_name(bytes[at - 1]);
        let ends = bytes.get(at + word.len()).is_none_or(|b| !is_name(*b));
        starts && ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let check = |source: &str, gone: &[&str], kept: &[&str]| {
            let code = only(source);
            assert_eq!(code.lines().count(), source.lines().count(), "{source}");
            for text in gone {
                assert!(!code.contains(text), "{source}: {text} in {code}");
            }
            for text in kept {
                assert!(code.contains(text), "{source}: no {text} in {code}");
            }
        };
        check("let a = 1; // hidden\nlet b;", &["hidden"], &["let a = 1;", "let b;"]);
        check("/* hidden /* hidden */ hidden */ shown", &["hidden"], &["shown"]);
        check(r#"f("hidden \" hidden", shown)"#, &["hidden"], &["shown"]);
        check("f(r#\"hidden \" hidden\"#, shown, br\"hidden\")", &["hidden"], &["shown"]);
        check("f('\"', shown, '\\'', also)", &[], &["shown", "also"]);
        check("fn f<'a>(x: &'a str) { shown('ü', r#type) }", &["ü"], &["'a str", "shown", "r#type"]);
        check("\"hidden\nhidden\"\nshown", &["hidden"], &["shown"]);
    }

    #[test]
    fn words() {
        assert!(has_word("unsafe { x }", "unsafe"));
        assert!(!has_word("#![deny(unsafe_code)]", "unsafe"));
        assert!(!has_word("not_unsafe()", "unsafe"));
    }
}
