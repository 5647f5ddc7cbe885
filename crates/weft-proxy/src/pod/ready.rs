//! Waiting for the proxy: the hook that holds up a pod's other containers where the proxy is no native sidecar.

use super::{
    Ended,
    flags::{Flag, Flags, bad, flag},
};
use crate::config::parse::duration;
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};
use weft_fault::{Code, Fault, Phase};

const TIMEOUT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);

pub(super) const FLAGS: &[Flag] = &[
    flag("port", "PORT", "the proxy's admin port [4191]"),
    flag("timeout", "DURATION", "how long to wait [2m]"),
];

pub(super) fn run(flags: &Flags) -> Result<(), Ended> {
    let usage = |fault| Ended { code: super::EXIT_USAGE, fault };
    let port: u16 = flags.value("port", "a port").map_err(usage)?.unwrap_or(4191);
    let limit = match flags.text("timeout") {
        None => TIMEOUT,
        Some(text) => duration(text).ok_or_else(|| usage(bad("timeout", text, "a duration such as 2m")))?,
    };
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let deadline = Instant::now() + limit;
    let mut last = String::from("it was not asked");
    while Instant::now() < deadline {
        match ask(addr) {
            Ok(head) if head.split(' ').nth(1) == Some("200") => return Ok(()),
            Ok(head) => last = head,
            Err(error) => last = error.to_string(),
        }
        thread::sleep(PAUSE);
    }
    let fault = Fault::new(Code::ProbeFailed).in_phase(Phase::Start).about(format!("http://{addr}/ready"));
    Err(fault.fact("last", last).into())
}

/// The first line of the answer.
fn ask(addr: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&addr, ANSWER_DEADLINE)?;
    stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
    stream.write_all(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    // A status line is short, and so is what stands behind it.
    stream.take(4096).read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn it_waits_until_the_proxy_is_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let served = thread::spawn(move || {
            for status in ["503 Service Unavailable", "200 OK"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 256];
                let _ = stream.read(&mut request).unwrap();
                stream
                    .write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes())
                    .unwrap();
            }
        });
        let of = |timeout: &str| {
            Flags::parse(FLAGS, &["--port", &port, "--timeout", timeout].map(str::to_owned))
                .unwrap_or_else(|fault| panic!("{fault:?}"))
        };
        assert!(run(&of("60s")).is_ok());
        served.join().unwrap();
        // Nobody listens any more.
        let ended = run(&of("200ms")).err().unwrap_or_else(|| panic!("it was called ready"));
        assert_eq!((ended.code, ended.fault.code()), (1, Code::ProbeFailed));
    }
}
