//! Single requests to the API: every one with a deadline and a bound on its answer.

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::Deserialize;
use serde_json::Value;
use std::{path::Path, time::Duration};
use tokio::time::{error::Elapsed, timeout};
use weft_fault::{Code, Fault};

/// How long a single request may take.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// The most bytes of one answer that are read. A list page of 500 objects stays far below.
const ANSWER_LIMIT: usize = 128 << 20;

/// Why a request to the API failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("the API answered {code}: {message}")]
    Status { code: u16, reason: String, message: String, retry_after: Option<Duration> },
    #[error("no answer from the API in time")]
    Timeout,
    #[error("the API's answer is too long")]
    TooLong,
    #[error("the API's answer cannot be read")]
    Unreadable(#[source] serde_json::Error),
    #[error("the connection to the API failed")]
    Transport(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ApiError {
    pub fn code(&self) -> Option<u16> {
        match self {
            ApiError::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            ApiError::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl From<Elapsed> for ApiError {
    fn from(_: Elapsed) -> Self {
        ApiError::Timeout
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        ApiError::Transport(Box::new(error))
    }
}

impl From<ApiError> for Fault {
    fn from(error: ApiError) -> Self {
        Fault::new(Code::ApiRequestFailed).because(error)
    }
}

/// A client from a kubeconfig file, or from the environment and the pod's service account.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, Fault> {
    let unusable = |error: Box<dyn std::error::Error + Send + Sync>| {
        let fault = Fault::new(Code::ApiRequestFailed).because(error);
        match kubeconfig {
            Some(path) => fault.about(path.display()),
            None => fault,
        }
    };
    let mut config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|e| unusable(e.into()))?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(|e| unusable(e.into()))?
        }
        None => Config::infer().await.map_err(|e| unusable(e.into()))?,
    };
    // Who asks decides about retries: a watch reads Retry-After itself.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    Client::try_from(config).map_err(|e| unusable(e.into()))
}

/// Sends a request and returns the answer once its head is there; a status from 400 on is an error.
pub async fn send(client: &Client, request: Request<Vec<u8>>) -> Result<Response<Body>, ApiError> {
    let response = timeout(REQUEST_DEADLINE, client.send(request.map(Body::from))).await??;
    if response.status().as_u16() < 400 {
        return Ok(response);
    }
    let (head, body) = response.into_parts();
    let retry_after = head
        .headers
        .get(header::RETRY_AFTER)
        .and_then(|v| v.to_str().ok()?.trim().parse().ok())
        .map(Duration::from_secs);
    let text = read(body, 64 << 10).await.unwrap_or_default();
    Err(status_error(head.status, &text, retry_after))
}

/// A `Status` object as an error; `text` may also be anything else that a server in between wrote.
pub fn status_error(code: StatusCode, text: &[u8], retry_after: Option<Duration>) -> ApiError {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        message: String,
        reason: String,
    }
    let status: Status = serde_json::from_slice(text).unwrap_or_else(|_| Status {
        message: String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned(),
        reason: String::new(),
    });
    ApiError::Status { code: code.as_u16(), reason: status.reason, message: status.message, retry_after }
}

/// Reads a whole body, with a deadline and a limit.
pub async fn read(mut body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = timeout(REQUEST_DEADLINE, body.frame()).await? {
        let frame = frame.map_err(|e| ApiError::Transport(Box::new(e)))?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > limit {
                return Err(ApiError::TooLong);
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.freeze())
}

/// Sends a request with a JSON body (none for `Value::Null`) and reads the JSON answer as `T`.
pub async fn json<T: serde::de::DeserializeOwned>(
    client: &Client,
    method: Method,
    path: &str,
    content_type: &str,
    body: &Value,
) -> Result<T, ApiError> {
    let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, content_type)
        .body(bytes)
        .map_err(|e| ApiError::Transport(Box::new(e)))?;
    let response = send(client, request).await?;
    let bytes = read(response.into_body(), ANSWER_LIMIT).await?;
    serde_json::from_slice(&bytes).map_err(ApiError::Unreadable)
}

pub async fn get<T: serde::de::DeserializeOwned>(client: &Client, path: &str) -> Result<T, ApiError> {
    json(client, Method::GET, path, "application/json", &Value::Null).await
}

pub async fn create(client: &Client, path: &str, object: &Value) -> Result<Value, ApiError> {
    json(client, Method::POST, path, "application/json", object).await
}

/// Deletes an object; one that is gone already is no failure.
pub async fn delete(client: &Client, path: &str) -> Result<(), ApiError> {
    let deleted: Result<Value, _> =
        json(client, Method::DELETE, path, "application/json", &Value::Null).await;
    match deleted {
        Err(error) if error.code() != Some(404) => Err(error),
        _ => Ok(()),
    }
}

/// A merge patch, for status subresources among others.
pub async fn merge(client: &Client, path: &str, patch: &Value) -> Result<Value, ApiError> {
    json(client, Method::PATCH, path, "application/merge-patch+json", patch).await
}

/// Server-side apply by `manager`, taking over conflicting fields.
pub async fn apply(client: &Client, path: &str, manager: &str, object: &Value) -> Result<Value, ApiError> {
    let path = format!("{path}?fieldManager={manager}&force=true");
    json(client, Method::PATCH, &path, "application/apply-patch+yaml", object).await
}
