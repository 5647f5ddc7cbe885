//! The store: keys and values in memory, over lines of text.
//!
//! ```text
//! S: STORE 1 ready 120                    the server speaks first: a mesh that waits for the client's bytes to tell
//! C: SET item/kettle Kettle|2499          the protocol would wait for ever, so the port must be marked opaque
//! S: OK
//! C: GET item/kettle
//! S: VALUE Kettle|2499                    or: NONE
//! C: LIST item/ 100
//! S: ITEM item/kettle Kettle|2499         one line each
//! S: END
//! C: PING                                 also: DEL key, COUNT, QUIT
//! S: PONG
//! ```

use crate::{
    Error,
    error::within,
    lifecycle::{Lifecycle, LifecycleOptions},
    serve::listen,
    text::{read_line, say},
};
use parking_lot::Mutex;
use std::{collections::BTreeMap, fmt::Write as _, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

const ROLE: &str = "store";
const MAX_CONNECTIONS: usize = 512;
const MAX_KEYS: usize = 100_000;
pub(crate) const MAX_LINE: usize = 4096;
pub(crate) const MAX_LIST: usize = 1000;
/// Longer than clients keep an idle connection, so that they close first.
const IDLE: Duration = Duration::from_secs(120);
const WRITE: Duration = Duration::from_secs(5);

#[derive(clap::Args, Debug)]
pub struct Options {
    /// Where to listen
    #[arg(long, env = "SHOP_LISTEN", default_value = "0.0.0.0:7000")]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub life: LifecycleOptions,
}

pub async fn run(options: Options) -> Result<(), Error> {
    let life = Lifecycle::start(ROLE, &options.life)?;
    serve(listen(options.listen).await?, life).await
}

type Shelf = Arc<Mutex<BTreeMap<String, String>>>;

pub(crate) async fn serve(listener: TcpListener, life: Lifecycle) -> Result<(), Error> {
    let shelf = Shelf::default();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut open = JoinSet::new();
    if let Ok(addr) = listener.local_addr() {
        say(ROLE, format_args!("listening on {addr}"));
    }
    loop {
        let accepted = async {
            let slot = slots.clone().acquire_owned().await.map_err(std::io::Error::other)?;
            listener.accept().await.map(|(socket, peer)| (socket, peer, slot))
        };
        tokio::select! {
            biased;
            () = life.closing() => break,
            Some(_) = open.join_next() => {}
            accepted = accepted => match accepted {
                Ok((socket, peer, slot)) => {
                    let (shelf, life) = (shelf.clone(), life.clone());
                    open.spawn(async move {
                        match converse(socket, &shelf, &life).await {
                            Ok(()) | Err(Error::Closed | Error::Io(_)) => {}
                            Err(error) => say(ROLE, format_args!("client {peer}: {}", error.chain())),
                        }
                        drop(slot);
                    });
                }
                Err(error) => {
                    say(ROLE, format_args!("cannot accept a connection: {error}"));
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    drop(listener);
    let finished = async { while open.join_next().await.is_some() {} };
    if tokio::time::timeout(life.grace(), finished).await.is_err() {
        say(ROLE, format_args!("some clients did not finish within {:?}", life.grace()));
    }
    say(ROLE, format_args!("ended with {} keys, which are gone now", shelf.lock().len()));
    Ok(())
}

/// One client, from the greeting to its QUIT, its silence or our end.
async fn converse(socket: TcpStream, shelf: &Shelf, life: &Lifecycle) -> Result<(), Error> {
    let _ = socket.set_nodelay(true);
    let mut socket = BufReader::new(socket);
    let greeting = format!("STORE 1 ready {}\n", shelf.lock().len());
    write(&mut socket, &greeting).await?;
    loop {
        let line = tokio::select! {
            // A command that has arrived is answered, also at the end.
            biased;
            line = within("waiting for a command", IDLE, read_line(&mut socket, MAX_LINE)) => match line {
                Ok(Some(line)) => line,
                Ok(None) | Err(Error::Deadline { .. }) => return Ok(()),
                Err(error) => return Err(error),
            },
            () = life.closing() => return Ok(()),
        };
        if line == "QUIT" {
            return write(&mut socket, "BYE\n").await;
        }
        let reply = answer(&line, &mut shelf.lock());
        write(&mut socket, &reply).await?;
    }
}

async fn write(socket: &mut BufReader<TcpStream>, text: &str) -> Result<(), Error> {
    within("writing to a client", WRITE, async { Ok(socket.write_all(text.as_bytes()).await?) }).await
}

fn answer(line: &str, shelf: &mut BTreeMap<String, String>) -> String {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let (key, value) = rest.split_once(' ').unwrap_or((rest, ""));
    match verb {
        "PING" => "PONG\n".to_string(),
        "COUNT" => format!("VALUE {}\n", shelf.len()),
        "GET" if !key.is_empty() => match shelf.get(key) {
            Some(value) => format!("VALUE {value}\n"),
            None => "NONE\n".to_string(),
        },
        "SET" if !key.is_empty() => {
            if shelf.len() >= MAX_KEYS && !shelf.contains_key(key) {
                return format!("ERR full: {MAX_KEYS} keys\n");
            }
            shelf.insert(key.to_string(), value.to_string());
            "OK\n".to_string()
        }
        "DEL" if !key.is_empty() => match shelf.remove(key) {
            Some(_) => "OK\n".to_string(),
            None => "NONE\n".to_string(),
        },
        "LIST" => {
            let limit = value.parse().unwrap_or(MAX_LIST).min(MAX_LIST);
            let mut reply = String::new();
            let found =
                shelf.range(key.to_string()..).take_while(|(name, _)| name.starts_with(key)).take(limit);
            for (name, value) in found {
                // Writing to a string cannot fail.
                let _ = writeln!(reply, "ITEM {name} {value}");
            }
            reply.push_str("END\n");
            reply
        }
        _ => "ERR known: GET key, SET key value, DEL key, LIST prefix limit, COUNT, PING, QUIT\n".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands() {
        let mut shelf = BTreeMap::new();
        let mut ask = |line: &str| answer(line, &mut shelf);
        assert_eq!(ask("GET a"), "NONE\n");
        assert_eq!(ask("SET a/1 one and more"), "OK\n");
        assert_eq!(ask("SET a/2 two"), "OK\n");
        assert_eq!(ask("SET b three"), "OK\n");
        assert_eq!(ask("GET a/1"), "VALUE one and more\n");
        assert_eq!(ask("LIST a/"), "ITEM a/1 one and more\nITEM a/2 two\nEND\n");
        assert_eq!(ask("LIST a/ 1"), "ITEM a/1 one and more\nEND\n");
        assert_eq!(ask("DEL b"), "OK\n");
        assert_eq!(ask("COUNT"), "VALUE 2\n");
        assert!(ask("GET").starts_with("ERR "));
        assert!(ask("hello").starts_with("ERR "));
    }
}
