//! The store's client: a few connections, each command with a deadline. Also a command of its own.

use crate::{
    Error,
    error::within,
    store::{MAX_LINE, MAX_LIST},
    text::read_line,
};
use parking_lot::Mutex;
use std::{
    io::{self, Write as _},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// Idle connections kept, and for how long: less than the store keeps them.
const KEEP: usize = 16;
const KEEP_FOR: Duration = Duration::from_secs(30);

#[derive(clap::Args, Debug)]
pub struct Options {
    /// The store's HOST:PORT
    #[arg(long, env = "SHOP_STORE", default_value = "store:7000")]
    pub store: String,
    /// How long the whole exchange may take
    #[arg(long, env = "SHOP_TIMEOUT", default_value = "3s", value_parser = crate::text::duration)]
    pub timeout: Duration,
    /// The command, such as PING or GET KEY
    #[arg(required = true, num_args = 1..)]
    pub command: Vec<String>,
}

pub async fn run(options: Options) -> Result<(), Error> {
    let store = StoreClient::new(&options.store, options.timeout);
    let reply = store.ask(&options.command.join(" ")).await?;
    // The reader may have gone; `println` would panic.
    writeln!(io::stdout(), "{}", reply.join("\n")).map_err(Error::Io)
}

#[derive(Debug)]
pub(crate) struct StoreClient {
    to: String,
    limit: Duration,
    idle: Mutex<Vec<(BufReader<TcpStream>, Instant)>>,
}

impl StoreClient {
    pub(crate) fn new(to: &str, limit: Duration) -> Self {
        StoreClient { to: to.to_string(), limit, idle: Mutex::new(Vec::new()) }
    }

    /// The value of a key.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<String>, Error> {
        let reply = self.ask(&format!("GET {key}")).await?;
        match reply.first().and_then(|line| line.split_once(' ')) {
            Some(("VALUE", value)) => Ok(Some(value.to_string())),
            _ if reply.first().is_some_and(|line| line == "NONE") => Ok(None),
            _ => Err(self.unexpected(&reply)),
        }
    }

    pub(crate) async fn set(&self, key: &str, value: &str) -> Result<(), Error> {
        let reply = self.ask(&format!("SET {key} {value}")).await?;
        match reply.first().map(String::as_str) {
            Some("OK") => Ok(()),
            _ => Err(self.unexpected(&reply)),
        }
    }

    /// Keys that start with `prefix`, in order, with their values.
    pub(crate) async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<(String, String)>, Error> {
        let reply = self.ask(&format!("LIST {prefix} {limit}")).await?;
        let items = reply.iter().filter_map(|line| {
            let (key, value) = line.strip_prefix("ITEM ")?.split_once(' ')?;
            Some((key.to_string(), value.to_string()))
        });
        Ok(items.collect())
    }

    /// Sends one command and returns the lines of its answer.
    pub(crate) async fn ask(&self, command: &str) -> Result<Vec<String>, Error> {
        if command.len() >= MAX_LINE || command.contains(['\n', '\r']) {
            return Err(Error::TooLong { limit: MAX_LINE - 1 });
        }
        within("a command to the store", self.limit, async {
            // A kept connection may have been closed meanwhile. Every command may be sent twice without harm.
            if let Some(mut kept) = self.kept()
                && let Ok(reply) = exchange(&mut kept, &self.to, command).await
            {
                self.keep(kept);
                return Ok(reply);
            }
            let mut fresh = self.connect().await?;
            let reply = exchange(&mut fresh, &self.to, command).await?;
            self.keep(fresh);
            Ok(reply)
        })
        .await
    }

    async fn connect(&self) -> Result<BufReader<TcpStream>, Error> {
        let socket = TcpStream::connect(&self.to)
            .await
            .map_err(|source| Error::Connect { to: self.to.clone(), source })?;
        let _ = socket.set_nodelay(true);
        let mut socket = BufReader::new(socket);
        match read_line(&mut socket, MAX_LINE).await? {
            Some(greeting) if greeting.starts_with("STORE 1 ") => Ok(socket),
            Some(greeting) => Err(Error::Protocol { from: self.to.clone(), answer: greeting }),
            None => Err(Error::Closed),
        }
    }

    fn kept(&self) -> Option<BufReader<TcpStream>> {
        let mut idle = self.idle.lock();
        idle.retain(|(_, since)| since.elapsed() < KEEP_FOR);
        idle.pop().map(|(socket, _)| socket)
    }

    fn keep(&self, socket: BufReader<TcpStream>) {
        let mut idle = self.idle.lock();
        if idle.len() < KEEP {
            idle.push((socket, Instant::now()));
        }
    }

    fn unexpected(&self, reply: &[String]) -> Error {
        Error::Protocol { from: self.to.clone(), answer: reply.join(" / ") }
    }
}

async fn exchange(socket: &mut BufReader<TcpStream>, to: &str, command: &str) -> Result<Vec<String>, Error> {
    socket.write_all(format!("{command}\n").as_bytes()).await?;
    let mut reply = Vec::new();
    let many = command.starts_with("LIST");
    loop {
        let line = read_line(socket, MAX_LINE * 2).await?.ok_or(Error::Closed)?;
        if let Some(text) = line.strip_prefix("ERR ") {
            return Err(Error::Refused { from: to.to_string(), answer: text.to_string() });
        }
        if many && line == "END" {
            return Ok(reply);
        }
        reply.push(line);
        if !many {
            return Ok(reply);
        }
        if reply.len() > MAX_LIST {
            return Err(Error::TooLong { limit: MAX_LIST });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{lifecycle::Lifecycle, serve::listen, store};

    #[tokio::test]
    async fn the_client_survives_a_store_that_restarts() {
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = listen(any).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (life, end) = Lifecycle::for_test();
        let server = tokio::spawn(store::serve(listener, life));

        let client = StoreClient::new(&addr.to_string(), Duration::from_secs(5));
        client.set("item/b", "Bowl|1").await.unwrap();
        client.set("item/a", "Axe|2").await.unwrap();
        assert_eq!(client.get("item/a").await.unwrap().as_deref(), Some("Axe|2"));
        assert_eq!(client.get("item/c").await.unwrap(), None);
        let listed = client.list("item/", 10).await.unwrap();
        assert_eq!(listed, [("item/a".into(), "Axe|2".into()), ("item/b".into(), "Bowl|1".into())]);
        assert!(matches!(client.ask("NONSENSE").await, Err(Error::Refused { .. })));

        end();
        server.await.unwrap().unwrap();
        let (life, _end) = Lifecycle::for_test();
        let again = tokio::spawn(store::serve(listen(addr).await.unwrap(), life));
        assert_eq!(client.ask("COUNT").await.unwrap(), ["VALUE 0"]);
        again.abort();
    }
}
