//! HTTP calls to other services, each with a deadline and a bound on the answer.

use crate::{Error, error::within};
use bytes::Bytes;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use std::time::Duration;

const ANSWER_BYTES: usize = 1024 * 1024;

/// Calls one service at a base address such as `http://mail:8025`.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    client: Client<HttpConnector, Full<Bytes>>,
    base: String,
    limit: Duration,
}

impl Caller {
    pub(crate) fn new(flag: &'static str, base: &str, limit: Duration) -> Result<Self, Error> {
        let base = base.trim_end_matches('/').to_string();
        let usable = base
            .parse::<Uri>()
            .is_ok_and(|uri| uri.scheme_str() == Some("http") && uri.authority().is_some());
        if !usable {
            return Err(Error::Flag { flag, value: base, expected: "expected http://HOST:PORT" });
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(limit));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(32)
            // Below the servers' own limit, so that the caller closes first and no request meets a closed door.
            .pool_idle_timeout(Duration::from_secs(30))
            .build(connector);
        Ok(Caller { client, base, limit })
    }

    pub(crate) async fn post_json(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &serde_json::Value,
    ) -> Result<(StatusCode, Bytes), Error> {
        let mut request =
            Request::post(format!("{}{path}", self.base)).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request, Bytes::from(body.to_string())).await
    }

    async fn send(&self, request: http::request::Builder, body: Bytes) -> Result<(StatusCode, Bytes), Error> {
        let failed =
            |source: Box<dyn std::error::Error + Send + Sync>| Error::Http { to: self.base.clone(), source };
        within("an HTTP call", self.limit, async {
            let request = request.body(Full::new(body)).map_err(|e| failed(e.into()))?;
            let response = self.client.request(request).await.map_err(|e| failed(e.into()))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await.map_err(failed)?;
            Ok((status, body.to_bytes()))
        })
        .await
    }

    /// The failure that an unexpected status is, with the start of what came with it.
    pub(crate) fn unexpected(&self, status: StatusCode, body: &[u8]) -> Error {
        let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
        Error::Status { to: self.base.clone(), status: status.as_u16(), text: text.trim().to_string() }
    }
}
