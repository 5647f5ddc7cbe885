//! Pretends to send mail: `POST /send` logs a letter and keeps the last hundred, `GET /outbox` lists them.

use crate::{
    Error,
    lifecycle::{Lifecycle, LifecycleOptions},
    serve::{self, Version, body, health, json, plain},
    text::say,
};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, net::SocketAddr, path::PathBuf, sync::Arc};

const ROLE: &str = "mail";
const KEPT: usize = 100;

#[derive(clap::Args, Debug)]
pub struct Options {
    /// Where to listen
    #[arg(long, env = "SHOP_LISTEN", default_value = "0.0.0.0:8025")]
    pub listen: SocketAddr,
    /// A file with what callers must send as `x-mail-token`; read at every letter, so it may change
    #[arg(long, env = "SHOP_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Stands at the end of every letter
    #[arg(long, env = "SHOP_SIGNATURE", default_value = "")]
    pub signature: String,
    #[command(flatten)]
    pub life: LifecycleOptions,
}

struct Mail {
    token_file: Option<PathBuf>,
    signature: String,
    outbox: Mutex<VecDeque<Letter>>,
    life: Lifecycle,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Letter {
    to: String,
    subject: String,
    text: String,
}

pub async fn run(options: Options) -> Result<(), Error> {
    let life = Lifecycle::start(ROLE, &options.life)?;
    let mail = Arc::new(Mail {
        token_file: options.token_file,
        signature: options.signature,
        outbox: Mutex::default(),
        life: life.clone(),
    });
    let listener = serve::listen(options.listen).await?;
    serve::serve(ROLE, listener, Version::Http1, life, move |request| answer(mail.clone(), request)).await
}

async fn answer(mail: Arc<Mail>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => health(&mail.life),
        (&Method::POST, "/send") => {
            if let Err(refusal) = mail.admit(request.headers()).await {
                return refusal;
            }
            match body(request).await {
                Ok(body) => mail.send(&body),
                Err(refusal) => refusal,
            }
        }
        (&Method::GET, "/outbox") => {
            let letters: Vec<Letter> = mail.outbox.lock().iter().cloned().collect();
            json(StatusCode::OK, &serde_json::json!({ "letters": letters }))
        }
        _ => plain(StatusCode::NOT_FOUND, "no such page\n"),
    }
}

impl Mail {
    async fn admit(&self, headers: &HeaderMap) -> Result<(), Response<Full<Bytes>>> {
        let Some(path) = &self.token_file else { return Ok(()) };
        let wanted = tokio::fs::read_to_string(path).await.map_err(|error| {
            say(ROLE, format_args!("cannot read {}: {error}", path.display()));
            plain(StatusCode::INTERNAL_SERVER_ERROR, "the token cannot be read\n")
        })?;
        let given = headers.get("x-mail-token").map(|value| value.as_bytes());
        // Not compared in constant time: a sample's secret, behind mutual TLS.
        if given == Some(wanted.trim().as_bytes()) {
            Ok(())
        } else {
            Err(plain(StatusCode::UNAUTHORIZED, "x-mail-token is missing or wrong\n"))
        }
    }

    fn send(&self, body: &[u8]) -> Response<Full<Bytes>> {
        let mut letter = match serde_json::from_slice::<Letter>(body) {
            Ok(letter) => letter,
            Err(error) => return plain(StatusCode::BAD_REQUEST, format!("not a letter: {error}\n")),
        };
        if !self.signature.is_empty() {
            letter.text = format!("{}\n-- \n{}", letter.text, self.signature);
        }
        say(ROLE, format_args!("to {:?}: {:?}", letter.to, letter.subject));
        let mut outbox = self.outbox.lock();
        if outbox.len() == KEPT {
            outbox.pop_front();
        }
        outbox.push_back(letter);
        plain(StatusCode::ACCEPTED, "sent\n")
    }
}
