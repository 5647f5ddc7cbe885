//! Lines: what programs print, what they read from a peer, and the small formats of flags and pages.

use crate::Error;
use std::{
    fmt,
    io::{self, Write},
    time::Duration,
};
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// Prints one log line. A closed or full standard output must not end the program.
pub(crate) fn say(role: &str, line: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{role}: {line}").and_then(|()| out.flush());
}

/// Reads up to the next newline, without it; `None` at the end of the stream. Never holds more than `limit` bytes.
pub(crate) async fn read_line<R: AsyncBufRead + Unpin>(
    reader: &mut R,
    limit: usize,
) -> Result<Option<String>, Error> {
    let mut line = Vec::new();
    loop {
        let available = reader.fill_buf().await?;
        if available.is_empty() {
            // A line cut short by the end of the stream is no line.
            return if line.is_empty() { Ok(None) } else { Err(Error::Closed) };
        }
        let (taken, ended) = match available.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (available.len(), false),
        };
        if line.len() + taken > limit {
            return Err(Error::TooLong { limit });
        }
        line.extend_from_slice(&available[..taken]);
        reader.consume(taken);
        if ended {
            while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
                line.pop();
            }
            return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
        }
    }
}

/// `250ms`, `5s`, `2m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| "expected a number and a unit, such as 5s".to_string())?;
    let scale = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return Err("the unit is one of ms, s, m".to_string()),
    };
    number.checked_mul(scale).map(Duration::from_millis).ok_or_else(|| "too long".to_string())
}

/// Text for an HTML page.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// `1234` as `12.34`.
pub(crate) fn cents(amount: u64) -> String {
    format!("{}.{:02}", amount / 100, amount % 100)
}

/// The name that Kubernetes gives the pod, else the machine's.
pub(crate) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "5", "s", "5h", "-1s", "99999999999999999999s", "18446744073709551615m"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn lines_are_bounded_and_whole() {
        let mut input: &[u8] = b"first\r\nsecond\nlast";
        assert_eq!(read_line(&mut input, 16).await.unwrap().as_deref(), Some("first"));
        assert_eq!(read_line(&mut input, 16).await.unwrap().as_deref(), Some("second"));
        assert!(matches!(read_line(&mut input, 16).await, Err(Error::Closed)));
        assert!(matches!(read_line(&mut input, 16).await, Ok(None)));
        let mut long: &[u8] = b"0123456789\n";
        assert!(matches!(read_line(&mut long, 8).await, Err(Error::TooLong { limit: 8 })));
    }

    #[test]
    fn pages_are_escaped() {
        assert_eq!(escape("<a href='x'>&\""), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;");
        assert_eq!(cents(5), "0.05");
        assert_eq!(cents(12_345), "123.45");
    }
}
