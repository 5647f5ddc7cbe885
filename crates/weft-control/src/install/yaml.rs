//! YAML, read and written as Kubernetes' tools do it.

use serde_json::Value;

/// One document. Keys stand in the order of the object.
pub fn to_string(value: &Value) -> String {
    let options = serde_saphyr::ser_options! { compact_list_indent: true };
    let mut text = serde_saphyr::to_string_with_options(value, options)
        .expect("JSON has nothing that YAML could not say, and a string takes everything");
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Several documents, each with a line of dashes in front.
pub fn documents(values: &[Value]) -> String {
    values.iter().map(|value| format!("---\n{}", to_string(value))).collect()
}

/// The first document; `null` if there is none.
pub fn parse(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str(text).map_err(|error| error.without_snippet().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What YAML 1.1 readers (kubectl, helm) take for something else must be quoted.
    #[test]
    fn texts_stay_texts() {
        let texts = [
            "on",
            "n",
            "y",
            "off",
            "~",
            "0644",
            "0x1F",
            "1e3",
            "2026-01-02",
            "12:30:45",
            "-",
            "a: b",
            "#x",
            "",
            " x",
            "x ",
            "1_000",
            "line\nline\n",
            "no end\nline",
            "\ttab",
            "{{ x }}",
            "*a",
            "&a",
            "!x",
            "%x",
            "@x",
            "`x",
            "null",
            "True",
            ".5",
            "+1",
            ".inf",
            "a\u{7}b",
            "=",
            "<<",
        ];
        for text in texts {
            let written = to_string(&json!({"k": text, "l": [text]}));
            assert_eq!(parse(&written).unwrap(), json!({"k": text, "l": [text]}), "{written}");
        }
        for quoted in ["on", "n", "0644", "2026-01-02", "1_000", "12:30:45", "1e3", "=", "off", "y"] {
            let written = to_string(&json!({"k": quoted}));
            assert!(written.contains('"') || written.contains('\''), "{written}");
        }
    }

    #[test]
    fn nothing_is_nothing() {
        assert_eq!(parse("").unwrap(), Value::Null);
        assert_eq!(parse("# only words\n").unwrap(), Value::Null);
        assert!(parse("a: [").is_err());
        assert_eq!(documents(&[json!({"a": 1}), json!({"b": []})]), "---\na: 1\n---\nb: []\n");
    }
}
