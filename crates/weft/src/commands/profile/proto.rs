//! Routes of a protobuf description: one for each method of each service.

use super::literally;
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::{iter::Peekable, str::Chars};

pub(super) fn routes(text: &str) -> Result<Vec<Value>> {
    let tokens = tokens(text)?;
    let (mut package, mut service) = (String::new(), None);
    // Of the braces around the place that is read.
    let (mut depth, mut service_depth) = (0_usize, 0);
    let mut routes = Vec::new();
    // What opens a statement decides; the rest of it is passed over.
    let mut opens = true;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let word = tokens.get(at + 1).map(String::as_str).unwrap_or_default();
        match (token.as_str(), &service) {
            ("{", _) => depth += 1,
            ("}", _) => {
                let Some(outer) = depth.checked_sub(1) else { bail!("a `}}` closes nothing") };
                depth = outer;
                if depth == service_depth {
                    service = None;
                }
            }
            ("package", None) if opens && depth == 0 => package = word.to_owned(),
            ("service", None) if opens && depth == 0 => {
                service = Some(word.to_owned());
                service_depth = depth;
            }
            ("rpc", Some(service)) if opens && depth == service_depth + 1 => {
                routes.push(route(&package, service, word));
            }
            _ => {}
        }
        opens = matches!(token.as_str(), "{" | "}" | ";");
        at += 1;
    }
    if depth > 0 {
        bail!("a `{{` is not closed");
    }
    Ok(routes)
}

/// gRPC's path, which is sent by POST.
fn route(package: &str, service: &str, method: &str) -> Value {
    let path = match package {
        "" => format!("/{service}/{method}"),
        package => format!("/{package}.{service}/{method}"),
    };
    let mut regex = String::new();
    literally(&path, &mut regex);
    json!({"name": method, "condition": {"method": "POST", "pathRegex": regex}})
}

/// Words with their dots, and single signs. Comments and literals are left out: no statement that counts begins with one.
fn tokens(text: &str) -> Result<Vec<String>> {
    let mut chars = text.chars().peekable();
    let mut tokens = Vec::new();
    while let Some(c) = chars.next() {
        match c {
            '/' if chars.peek() == Some(&'/') => while chars.next_if(|c| *c != '\n').is_some() {},
            '/' if chars.peek() == Some(&'*') => comment(&mut chars)?,
            '"' | '\'' => literal(&mut chars, c)?,
            c if is_word(c) => {
                let mut word = String::from(c);
                while let Some(c) = chars.next_if(|c| is_word(*c)) {
                    word.push(c);
                }
                tokens.push(word);
            }
            c if c.is_whitespace() => {}
            c => tokens.push(c.into()),
        }
    }
    Ok(tokens)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

fn comment(chars: &mut Peekable<Chars<'_>>) -> Result<()> {
    chars.next();
    let mut star = false;
    for c in chars.by_ref() {
        if star && c == '/' {
            return Ok(());
        }
        star = c == '*';
    }
    bail!("a comment does not end")
}

fn literal(chars: &mut Peekable<Chars<'_>>, quote: char) -> Result<()> {
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            c if c == quote => return Ok(()),
            '\n' => break,
            _ => {}
        }
    }
    bail!("a text does not end where it must")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: &str = r#"
syntax = "proto3";   // service Not { rpc A(B) returns (C); }
package shop.v1;
import "a\"b.proto";
/* service Nor { rpc A(B) returns (C); } */
message Item { string rpc = 1; message Inner { int32 service = 1; } }
service Store {
  option (x) = { rpc: "no" };
  rpc Get(Item) returns (Item) { option (google.api.http) = { get: "/v1/{id}" }; }
  rpc Watch (stream Item) returns (stream Item);
}
service Admin { rpc Stop(Item) returns (Item) {} }
"#;

    #[test]
    fn each_method_is_a_route() {
        let found = routes(STORE).unwrap();
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|r| (r["name"].as_str().unwrap(), r["condition"]["pathRegex"].as_str().unwrap()))
            .collect();
        assert_eq!(
            found,
            [
                ("Get", r"/shop\.v1\.Store/Get"),
                ("Watch", r"/shop\.v1\.Store/Watch"),
                ("Stop", r"/shop\.v1\.Admin/Stop"),
            ]
        );
        let bare = routes("service S { rpc M(A) returns (B); }").unwrap();
        assert_eq!(bare[0]["condition"], json!({"method": "POST", "pathRegex": "/S/M"}));
    }

    #[test]
    fn what_is_no_description_is_refused() {
        for bad in ["}", "service S {", "/* x", "\"x", "'x\n'"] {
            assert!(routes(bad).is_err(), "{bad:?}");
        }
        assert!(routes("").unwrap().is_empty());
    }
}
