//! The query of a URL.

/// Names and values, percent-decoded; the first of equals counts.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: &str) -> Query {
        let pairs = text.split('&').filter(|p| !p.is_empty()).take(64);
        Query(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(name), decode(value))
                })
                .collect(),
        )
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        let escaped = (byte == b'%' && tail.len() >= 2)
            .then(|| std::str::from_utf8(&tail[..2]).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok()))
            .flatten();
        match escaped {
            Some(value) => {
                out.push(value);
                rest = &tail[2..];
            }
            None => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_and_survives_nonsense() {
        let query = Query::parse("pod=shop%2Fstore&&x&path=/a%3Fb%&pod=other");
        assert_eq!(query.get("pod"), Some("shop/store"));
        assert_eq!(query.get("path"), Some("/a?b%"));
        assert_eq!(query.get("x"), Some(""));
        assert_eq!(query.get("y"), None);
    }
}
