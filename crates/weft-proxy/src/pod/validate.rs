//! linkerd-network-validator: are outgoing connections redirected?
//!
//! A connection to an address that nobody answers must arrive at the listener beside it, which tells a secret that only this
//! process knows.

use super::{
    EXIT_NOT_REDIRECTED, Ended,
    flags::{Flag, Flags, bad, flag},
};
use crate::config::parse::duration;
use rand::{Rng, distr::Alphanumeric};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};
use weft_fault::{Code, Fault, Phase};

/// As long as Linkerd's.
const TOKEN: usize = 63;
const TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

pub(super) const FLAGS: &[Flag] = &[
    flag("listen-addr", "IP:PORT", "where a redirected connection arrives [0.0.0.0:4140]"),
    flag("connect-addr", "IP:PORT", "an address that nobody answers [1.1.1.1:20001]"),
    flag("timeout", "DURATION", "for the whole of it [10s]"),
    flag("log-level", "LEVEL", "without effect: there is one line"),
    flag("log-format", "FORMAT", "without effect, likewise"),
];

pub(super) fn run(flags: &Flags) -> Result<(), Ended> {
    let usage = |fault| Ended { code: super::EXIT_USAGE, fault };
    let addr =
        |name, default: SocketAddr| flags.value(name, "IP:PORT").map(|a| a.unwrap_or(default)).map_err(usage);
    let listen = addr("listen-addr", SocketAddr::from(([0, 0, 0, 0], 4140)))?;
    let connect = addr("connect-addr", SocketAddr::from(([1, 1, 1, 1], 20_001)))?;
    let limit = match flags.text("timeout") {
        None => TIMEOUT,
        Some(text) => duration(text).ok_or_else(|| usage(bad("timeout", text, "a duration such as 10s")))?,
    };
    let token: String = rand::rng().sample_iter(Alphanumeric).take(TOKEN).map(char::from).collect();
    let listener = TcpListener::bind(listen).map_err(|e| {
        Fault::new(Code::HostUnable).in_phase(Phase::Start).about("listen").fact("address", listen).because(e)
    })?;
    let served = token.clone();
    // Ends with the process.
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let mut connection = connection;
            // Whoever leaves early tries again.
            let _ = connection.write_all(served.as_bytes());
        }
    });
    let deadline = Instant::now() + limit;
    let mut last = String::from("no connection was tried");
    while let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        match told(connect, left) {
            Ok(found) if found == token => {
                println!("connections to {connect} arrive at {listen}: this pod is redirected");
                return Ok(());
            }
            Ok(_) => last = format!("somebody else answers at {connect}"),
            Err(error) => last = error.to_string(),
        }
        thread::sleep(PAUSE.min(left));
    }
    let fault = Fault::new(Code::NetworkNotRedirected)
        .in_phase(Phase::Start)
        .fact("connect", connect)
        .fact("listen", listen)
        .fact("last", last);
    Err(Ended { code: EXIT_NOT_REDIRECTED, fault })
}

/// What is told at an address.
fn told(addr: SocketAddr, limit: Duration) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&addr, limit.min(Duration::from_secs(1)))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut text = [0_u8; TOKEN];
    stream.read_exact(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_with(listen: SocketAddr, connect: SocketAddr, timeout: &str) -> Result<(), Ended> {
        let args = [
            "--listen-addr",
            &listen.to_string(),
            "--connect-addr",
            &connect.to_string(),
            "--timeout",
            timeout,
        ];
        run(&Flags::parse(FLAGS, &args.map(str::to_owned)).unwrap_or_else(|fault| panic!("{fault:?}")))
    }

    /// A port that was free a moment ago.
    fn free() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    #[test]
    fn a_redirect_is_proved_and_its_absence_told() {
        // Without a redirect, the listener's own address is one that arrives there.
        let addr = free();
        assert!(run_with(addr, addr, "30s").is_ok());
        // Somebody else who answers is not the listener.
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = other.local_addr().unwrap();
        thread::spawn(move || {
            for connection in other.incoming().flatten() {
                let mut connection = connection;
                let _ = connection.write_all(&[b'x'; TOKEN]);
            }
        });
        let ended =
            run_with(free(), connect, "300ms").err().unwrap_or_else(|| panic!("it was called redirected"));
        assert_eq!((ended.code, ended.fault.code()), (EXIT_NOT_REDIRECTED, Code::NetworkNotRedirected));
        assert!(format!("{:?}", ended.fault).contains("somebody else"));
    }
}
