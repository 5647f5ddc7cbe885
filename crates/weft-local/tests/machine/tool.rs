//! What the pods of the tests run: this program again.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, ToSocketAddrs},
    process::ExitCode,
    time::Duration,
};

pub(crate) fn run(words: &[&str]) -> ExitCode {
    let done = match words {
        ["serve", at, text] => serve(at, text),
        ["redirect"] => weft_net::redirect::nft::apply(&Default::default()).map_err(|e| e.error),
        ["get", address] => get(address).map(|text| println!("{text}")),
        ["try", address] => try_once(address),
        other => Err(std::io::Error::other(format!("unknown: {other:?}"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Answers every HTTP request with the text, until SIGTERM. A port alone is one of every address.
fn serve(at: &str, text: &str) -> std::io::Result<()> {
    let at = if at.contains(':') { at.to_owned() } else { format!("0.0.0.0:{at}") };
    let listener = TcpListener::bind(at)?;
    println!("listening");
    loop {
        let (mut stream, peer) = listener.accept()?;
        let mut head = [0; 4096];
        let n = stream.read(&mut head)?;
        if n > 0 {
            println!("request from {}", peer.ip());
            // In one piece: the peer closes when it has seen the whole.
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close", text.len());
            let answer = format!("{head}\r\n\r\n{text}");
            stream.write_all(answer.as_bytes())?;
        }
    }
}

/// Fails after a second without an answer to the first packet: what is dropped is never answered.
fn try_once(address: &str) -> std::io::Result<()> {
    let to = address.to_socket_addrs()?.next().ok_or(std::io::ErrorKind::NotFound)?;
    TcpStream::connect_timeout(&to, Duration::from_secs(1)).map(drop)
}

/// The body that an HTTP server at `host:port` answers.
pub(crate) fn get(address: &str) -> std::io::Result<String> {
    let to = address.to_socket_addrs()?.next().ok_or(std::io::ErrorKind::NotFound)?;
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let request = format!("GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_string())
}
