//! What the proxy holds of the controller's answers, and how one is had anew.

use super::{Admin, Body, respond, tell::percent_decoded, text};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};
use std::time::SystemTime;
use weft_wire::cached::{Cache, Refreshed};

const ANSWERS: usize = 500;
const ANSWERS_MOST: usize = 5_000;

/// `?subject=&limit=`: an address, a name or a port.
pub(super) async fn list(admin: &Admin, query: &str) -> Response<Body> {
    let limit = value(query, "limit").and_then(|n| n.parse().ok()).unwrap_or(ANSWERS).min(ANSWERS_MOST);
    let subject = value(query, "subject");
    let (total, answers) = admin.mesh.discovery.list(subject.as_deref(), limit).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let cache = Cache { pod: admin.mesh.config.pod_name(), now_unix_ms, total, answers };
    json(StatusCode::OK, serde_json::to_vec(&cache))
}

/// `?addr=`: an address or a name.
pub(super) async fn refresh(admin: &Admin, query: &str) -> Response<Body> {
    let Some(about) = value(query, "addr") else {
        return text(StatusCode::BAD_REQUEST, "addr= is missing: an address or a name, with its port\n");
    };
    let asked_again = admin.mesh.discovery.refresh(&about).await;
    let status = if asked_again.is_empty() { StatusCode::NOT_FOUND } else { StatusCode::OK };
    json(status, serde_json::to_vec(&Refreshed { asked_again }))
}

fn value(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    percent_decoded(value).filter(|value| !value.is_empty())
}

fn json(status: StatusCode, written: serde_json::Result<Vec<u8>>) -> Response<Body> {
    match written {
        Ok(json) => respond(status, "application/json", Full::new(json.into()).boxed()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}
