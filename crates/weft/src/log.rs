//! Log lines of the processes behind a mesh, whose standard error is a file that must not grow without bounds.

use parking_lot::Mutex;
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};
use tracing_subscriber::{EnvFilter, filter::ParseError};

/// A file longer than this becomes the old one, and the old one before it goes.
const LARGEST: u64 = 8 * 1024 * 1024;

/// Log lines, as `WEFT_LOG` or else `default` filters them.
pub(crate) fn to_stderr(default: &str) {
    let asked = std::env::var("WEFT_LOG").ok().and_then(|asked| filter(&asked).ok());
    let filter = asked.unwrap_or_else(|| filter(default).unwrap_or_default());
    let path = log_path();
    // A controller writes on where the one before it ended.
    let length = path.as_ref().and_then(|path| fs::metadata(path).ok()).map_or(0, |file| file.len());
    let log = Arc::new(Mutex::new(Log { path, length }));
    let writer = move || Line(log.clone());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false).init();
}

/// What is to be logged. What the Kubernetes client says of each request while the API is away, whoever asked says in its own
/// words, and less often: it is left out unless it is asked for.
pub(crate) fn filter(text: &str) -> Result<EnvFilter, ParseError> {
    let quiet = if text.contains("kube_client") { "" } else { ",kube_client::client::builder=off" };
    EnvFilter::try_new(format!("{text}{quiet}"))
}

/// Where standard error goes, if it is a log file of ours.
fn log_path() -> Option<PathBuf> {
    let path = fs::read_link("/proc/self/fd/2").ok()?;
    (path.extension()? == "log").then_some(path)
}

struct Log {
    path: Option<PathBuf>,
    length: u64,
}

/// Writes lines; never fails, since the subscriber would report that to standard error too, and panic where it cannot.
struct Line(Arc<Mutex<Log>>);

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut log = self.0.lock();
        // On a full disk lines are lost, and nothing else.
        let _ = io::stderr().write_all(line);
        log.length += line.len() as u64;
        if log.length > LARGEST
            && let Some(path) = &log.path
        {
            // Where it cannot be exchanged, the next attempt is as many bytes away.
            let _ = exchange(path);
            log.length = 0;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Renames the file that is standard error, and makes a new one in its place.
fn exchange(path: &Path) -> io::Result<()> {
    fs::rename(path, path.with_extension("log.1"))?;
    let fresh = File::options().append(true).create(true).open(path)?;
    rustix::stdio::dup2_stderr(&fresh)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_heard_where_it_is_asked_for() {
        for (text, heard) in [("info", false), ("warn,weft=info", false), ("info,kube_client=debug", true)] {
            assert_eq!(!filter(text).unwrap().to_string().contains("builder=off"), heard, "{text}");
        }
        assert!(filter("no=such=thing").is_err());
    }

    #[test]
    fn a_line_is_never_refused() {
        let mut line = Line(Arc::new(Mutex::new(Log { path: None, length: LARGEST })));
        assert_eq!(line.write(b"a line of a test\n").unwrap(), 17);
    }
}
