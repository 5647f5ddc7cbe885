//! What is told to whom: access log, tap, traces.

use super::{AccessLog, AccessLogFormat, Tap, Trace, env::control_addr, parse::Vars, table};
use crate::access_log::Filter;
use std::{collections::BTreeMap, path::PathBuf};

/// A file of labels is read this far.
const ATTRIBUTES_BYTES: usize = 64 * 1024;

pub(super) fn access_log(vars: &mut Vars<'_>) -> Option<AccessLog> {
    let format = vars.parse("ACCESS_LOG", |text| match text {
        "apache" => Some(AccessLogFormat::Apache),
        "json" => Some(AccessLogFormat::Json),
        _ => None,
    });
    let filter = vars.set("WEFT_ACCESS_LOG_FILTER").and_then(|text| match Filter::parse(&text) {
        Ok(filter) => Some(filter),
        Err(why) => {
            vars.reject("WEFT_ACCESS_LOG_FILTER", &text, &why);
            None
        }
    });
    Some(AccessLog { format: format?, filter: filter.unwrap_or_default() })
}

pub(super) fn tap(vars: &mut Vars<'_>) -> Option<Tap> {
    let listen = vars.socket("CONTROL_LISTEN_ADDR");
    let client = vars.name("TAP_SVC_NAME");
    Some(Tap { listen: listen?, client: client? })
}

pub(super) fn trace(vars: &mut Vars<'_>, warnings: &mut Vec<String>) -> Option<Trace> {
    let is_set = vars.set("TRACE_COLLECTOR_SVC_ADDR").is_some();
    let service = vars.text("TRACE_SERVICE_NAME");
    let labels = vars.text("TRACE_ATTRIBUTES_PATH");
    let extra = vars.parse("TRACE_EXTRA_ATTRIBUTES", |text| pairs(text, '\n'));
    let otel = vars.parse("OTEL_RESOURCE_ATTRIBUTES", |text| pairs(text, ','));
    if !is_set {
        // Read all the same, so that nothing else is missed by the check of names.
        let _unused = vars.name("TRACE_COLLECTOR_SVC_NAME");
        return None;
    }
    let collector = control_addr(vars, "TRACE_COLLECTOR")?;
    // Each source wins over those before it.
    let mut attributes = BTreeMap::from([("service.name".to_owned(), service?)]);
    if let Some(path) = labels {
        match std::fs::read_to_string(&path) {
            Ok(text) if text.len() <= ATTRIBUTES_BYTES => match pairs(&text, '\n') {
                Some(pairs) => attributes.extend(pairs),
                None => warnings.push(format!("{path}: not lines of key=\"value\"; traces go without them")),
            },
            Ok(_) => {
                warnings.push(format!("{path}: longer than {ATTRIBUTES_BYTES} bytes; traces go without it"))
            }
            Err(error) => warnings.push(format!(
                "{path}, named by {}, cannot be read ({error}); traces go without it",
                table::full("TRACE_ATTRIBUTES_PATH")
            )),
        }
    }
    attributes.extend(extra.into_iter().flatten());
    attributes.extend(otel.into_iter().flatten());
    Some(Trace { collector, attributes: attributes.into_iter().collect() })
}

/// `key=value` pairs; quotes around a value are taken off.
fn pairs(text: &str, separator: char) -> Option<Vec<(String, String)>> {
    let items = text.split(separator).map(str::trim).filter(|item| !item.is_empty());
    items
        .map(|item| {
            let (key, value) = item.split_once('=')?;
            let (key, value) = (key.trim(), value.trim());
            let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
            (!key.is_empty()).then(|| (key.to_owned(), value.to_owned()))
        })
        .collect()
}

/// The workload API of a SPIRE agent.
pub(super) fn unix_socket(vars: &mut Vars<'_>) -> Option<PathBuf> {
    let path = |text: &str| {
        let path = text.strip_prefix("unix:").unwrap_or(text);
        let path = path.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(path);
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    let now = vars.parse("IDENTITY_SPIRE_WORKLOAD_API_ADDRESS", path);
    let old = vars.parse("IDENTITY_SPIRE_SOCKET", path);
    now.or(old)
}
