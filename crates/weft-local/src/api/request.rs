//! Reading a request's path and query.

use std::collections::HashMap;

use super::error::{ApiError, FieldError};
use super::write::FieldValidation;

/// What a path under `/api` or `/apis` addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Address {
    pub group: String,
    pub version: String,
    pub namespace: String,
    /// Whether the path has `namespaces/NAME` before the resource.
    pub namespaced: bool,
    pub plural: String,
    pub name: String,
    pub subresource: String,
    /// What follows `…/proxy/`.
    pub rest: Option<String>,
    /// The old form `/api/v1/watch/…`.
    pub watch: bool,
}

impl Address {
    /// Parses a resource path; discovery paths and unknown ones are `None`.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let mut parts = path.split('/').skip(1);
        let mut address = Self::default();
        match parts.next()? {
            "api" => address.version = parts.next()?.to_owned(),
            "apis" => {
                address.group = parts.next()?.to_owned();
                address.version = parts.next()?.to_owned();
            }
            _ => return None,
        }
        let mut parts: Vec<&str> = parts.collect();
        if parts.first() == Some(&"watch") {
            address.watch = true;
            parts.remove(0);
        }
        // `namespaces/NAME/RESOURCE…` is in a namespace; `namespaces/NAME` and its subresources are the namespace.
        let own = ["status", "finalize"];
        if parts.len() >= 3 && parts[0] == "namespaces" && !(parts.len() == 3 && own.contains(&parts[2])) {
            address.namespace = decode(parts[1])?;
            address.namespaced = true;
            parts.drain(..2);
        }
        while parts.len() > 1 && parts.last() == Some(&"") && !parts.contains(&"proxy") {
            parts.pop();
        }
        address.plural = parts.first().filter(|part| !part.is_empty())?.to_string();
        address.name = parts.get(1).map_or(Some(String::new()), |part| decode(part))?;
        address.subresource = parts.get(2).map_or("", |part| part).to_owned();
        if address.subresource == "proxy" {
            address.rest = Some(parts[3..].join("/"));
        } else if parts.len() > 3 {
            return None;
        }
        Some(address)
    }
}

/// Decodes `%xx`.
pub(super) fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let hex = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// A parsed query; keys may repeat.
#[derive(Debug, Clone, Default)]
pub(super) struct Query(HashMap<String, Vec<String>>);

impl Query {
    pub(super) fn parse(query: &str) -> Self {
        let mut map: HashMap<String, Vec<String>> = HashMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let read = |text: &str| decode(&text.replace('+', " ")).unwrap_or_default();
            map.entry(read(key)).or_default().push(read(value));
        }
        Self(map)
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|values| values.first()).map(String::as_str)
    }

    pub(super) fn all(&self, key: &str) -> &[String] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }

    /// A flag: present means true unless it says otherwise.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.optional_flag(key).unwrap_or(false)
    }

    pub(super) fn optional_flag(&self, key: &str) -> Option<bool> {
        self.get(key).map(|value| !matches!(value, "false" | "0" | "False" | "FALSE" | "f" | "F"))
    }

    /// A whole number.
    pub(super) fn number(&self, key: &str) -> Result<Option<i64>, ApiError> {
        self.get(key).filter(|text| !text.is_empty()).map(parse_number).transpose()
    }

    pub(super) fn dry_run(&self, options: &str) -> Result<bool, ApiError> {
        let values = self.all("dryRun");
        if values.iter().any(|value| value != "All") {
            let shown = serde_json::json!(values);
            let error = FieldError::unsupported("dryRun", shown, &["All"]);
            return Err(ApiError::invalid(&format!("{options}.meta.k8s.io"), "", &[error]));
        }
        Ok(!values.is_empty())
    }

    pub(super) fn field_validation(&self, options: &str) -> Result<FieldValidation, ApiError> {
        match self.get("fieldValidation").unwrap_or("") {
            "" | "Warn" => Ok(FieldValidation::Warn),
            "Strict" => Ok(FieldValidation::Strict),
            "Ignore" => Ok(FieldValidation::Ignore),
            other => {
                let supported = ["", "Ignore", "Strict", "Warn"];
                let error = FieldError::unsupported("fieldValidation", other, &supported);
                Err(ApiError::invalid(&format!("{options}.meta.k8s.io"), "", &[error]))
            }
        }
    }

    /// The manager of an apply, checked for length.
    pub(super) fn field_manager(&self, options: &str) -> Result<&str, ApiError> {
        let manager = self.get("fieldManager").unwrap_or("");
        if manager.len() > 128 {
            let error = FieldError {
                reason: "FieldValueTooLong",
                field: "fieldManager".into(),
                message: "Too long: may not be more than 128 bytes".into(),
            };
            return Err(ApiError::invalid(&format!("{options}.meta.k8s.io"), "", &[error]));
        }
        Ok(manager)
    }
}

pub(super) fn parse_number(text: &str) -> Result<i64, ApiError> {
    text.parse()
        .map_err(|_| ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(path: &str) -> Address {
        Address::parse(path).unwrap()
    }

    #[test]
    fn paths() {
        let pods = address("/api/v1/namespaces/n/pods");
        assert_eq!((pods.namespace.as_str(), pods.plural.as_str(), pods.name.as_str()), ("n", "pods", ""));
        let scale = address("/apis/apps/v1/namespaces/n/deployments/d/scale");
        assert_eq!(
            (scale.group.as_str(), scale.name.as_str(), scale.subresource.as_str()),
            ("apps", "d", "scale")
        );
        let namespace = address("/api/v1/namespaces/n");
        assert_eq!(
            (namespace.plural.as_str(), namespace.name.as_str(), namespace.namespaced),
            ("namespaces", "n", false)
        );
        assert_eq!(address("/api/v1/namespaces/n/finalize").subresource, "finalize");
        let proxy = address("/api/v1/namespaces/n/services/s:http/proxy/a/b/");
        assert_eq!((proxy.name.as_str(), proxy.rest.as_deref()), ("s:http", Some("a/b/")));
        assert!(address("/api/v1/watch/namespaces/n/pods").watch);
        assert_eq!(address("/api/v1/pods/").plural, "pods");
        for path in ["/", "/api", "/apis/apps/v1", "/version", "/api/v1/namespaces/n/pods/p/log/x"] {
            assert_eq!(Address::parse(path), None, "{path}");
        }
    }

    #[test]
    fn queries() {
        let query = Query::parse("a=1&b&c=x%2Cy+z&d=false&command=ls&command=-l");
        assert_eq!(query.get("a"), Some("1"));
        assert!(query.flag("b") && !query.flag("d") && !query.flag("none"));
        assert_eq!(query.get("c"), Some("x,y z"));
        assert_eq!(query.all("command"), ["ls", "-l"]);
        assert!(Query::parse("limit=abc").number("limit").is_err());
    }
}
