//! A document of the web, as kubectl reads one for `-f URL`: without credentials, bounded in size, time and detours.

use crate::api::{ApiError, read, send};
use bytes::Bytes;
use http::{Request, Uri, header, uri::Scheme};
use kube::{Client, Config};
use std::time::Duration;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(30);
const DETOURS: usize = 5;

/// Why a document could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("{0:?} is no http or https address")]
    NoAddress(String),
    #[error("it is redirected to {0:?}, which is not followed")]
    Detour(String),
    #[error("it is redirected more than {DETOURS} times")]
    Detours,
    #[error("it did not come within {} s", DEADLINE.as_secs())]
    Late,
    #[error(transparent)]
    Http(#[from] ApiError),
}

/// Whether a path is meant as an address of the web.
pub fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Reads at most `limit` bytes; a longer document is an error.
pub async fn fetch(url: &str, limit: usize) -> Result<Bytes, FetchError> {
    timeout(DEADLINE, follow(url, limit)).await.unwrap_or(Err(FetchError::Late))
}

async fn follow(url: &str, limit: usize) -> Result<Bytes, FetchError> {
    let mut at = address(url)?;
    for _ in 0..=DETOURS {
        let response = ask(&at).await?;
        if !response.status().is_redirection() {
            return Ok(read(response.into_body(), limit).await?);
        }
        let to = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok()).unwrap_or_default();
        at = detour(&at, to)?;
    }
    Err(FetchError::Detours)
}

async fn ask(at: &Uri) -> Result<http::Response<kube::client::Body>, FetchError> {
    let base = Uri::builder()
        .scheme(at.scheme_str().unwrap_or("https"))
        .authority(at.authority().map_or("", |authority| authority.as_str()))
        .path_and_query("/")
        .build()
        .map_err(|_| FetchError::NoAddress(at.to_string()))?;
    let mut config = Config::new(base);
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    let client = Client::try_from(config).map_err(ApiError::from)?;
    let path = at.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path)
        .header(header::USER_AGENT, "weft")
        .body(Vec::new())
        .map_err(|_| FetchError::NoAddress(at.to_string()))?;
    Ok(send(&client, request).await?)
}

fn address(url: &str) -> Result<Uri, FetchError> {
    let bad = || FetchError::NoAddress(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| bad())?;
    let known = uri.scheme() == Some(&Scheme::HTTP) || uri.scheme() == Some(&Scheme::HTTPS);
    if known && uri.host().is_some_and(|host| !host.is_empty()) { Ok(uri) } else { Err(bad()) }
}

/// Where a redirect leads: another address, or another path of the same server; never from https to http.
fn detour(from: &Uri, to: &str) -> Result<Uri, FetchError> {
    let refused = || FetchError::Detour(to.to_owned());
    let uri = if is_url(to) {
        address(to).map_err(|_| refused())?
    } else if to.starts_with('/') && !to.starts_with("//") {
        let mut parts = from.clone().into_parts();
        parts.path_and_query = Some(to.parse().map_err(|_| refused())?);
        Uri::from_parts(parts).map_err(|_| refused())?
    } else {
        return Err(refused());
    };
    match (from.scheme_str(), uri.scheme_str()) {
        (Some("https"), Some("http")) => Err(refused()),
        _ => Ok(uri),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    /// Answers each connection with the next of these texts; returns what it was asked.
    async fn serve(answers: Vec<String>) -> (String, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("http://{}", listener.local_addr().unwrap());
        let served = tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut tcp, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let n = tcp.read(&mut request).await.unwrap();
                let line = String::from_utf8_lossy(&request[..n]).lines().next().unwrap().to_owned();
                asked.push(line);
                tcp.write_all(answer.as_bytes()).await.unwrap();
            }
            asked
        });
        (at, served)
    }

    fn ok(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    }

    fn to(place: &str) -> String {
        format!("HTTP/1.1 302 Found\r\nlocation: {place}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    }

    #[tokio::test]
    async fn a_document_is_read_through_a_redirect() {
        let (at, served) = serve(vec![to("/b.yaml?x=1"), ok("kind: Pod")]).await;
        assert_eq!(fetch(&format!("{at}/a.yaml"), 100).await.unwrap(), "kind: Pod");
        assert_eq!(served.await.unwrap(), ["GET /a.yaml HTTP/1.1", "GET /b.yaml?x=1 HTTP/1.1"]);
    }

    #[tokio::test]
    async fn what_is_too_long_missing_or_goes_in_circles_is_refused() {
        let (at, _served) = serve(vec![ok(&"x".repeat(101))]).await;
        assert!(matches!(fetch(&at, 100).await, Err(FetchError::Http(ApiError::TooLong))));
        let missing = "HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\nconnection: close\r\n\r\nnone";
        let (at, _served) = serve(vec![missing.to_owned()]).await;
        assert!(fetch(&at, 100).await.unwrap_err().to_string().contains("404"));
        let (at, _served) = serve(vec![to("/again"); DETOURS + 1]).await;
        assert!(matches!(fetch(&at, 100).await, Err(FetchError::Detours)));
    }

    #[test]
    fn detours_stay_on_the_web_and_keep_encryption() {
        let from: Uri = "https://a.example/x".parse().unwrap();
        assert_eq!(detour(&from, "/y").unwrap(), "https://a.example/y");
        assert_eq!(detour(&from, "https://b.example/").unwrap(), "https://b.example/");
        for bad in ["http://a.example/", "//b.example/", "file:///etc/passwd", ""] {
            assert!(detour(&from, bad).is_err(), "{bad}");
        }
        for bad in ["https://", "ftp://a/", "a.yaml"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
