//! Container logs: one bounded file per run, in the line format that container runtimes write
//! (`TIME stdout F text`), read whole or followed.

use crate::api::kubelet::LogQuery;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    sync::{mpsc, watch},
};

/// A file longer than this becomes the old one, and the old one before it goes.
const LARGEST_FILE: u64 = 8 * 1024 * 1024;
/// A longer line is cut into parts.
const LONGEST_LINE: u64 = 16 * 1024;

/// The log of one run of a container.
#[derive(Debug)]
pub(crate) struct RunLog {
    path: PathBuf,
    file: Mutex<LogFile>,
    progress: watch::Sender<Progress>,
}

#[derive(Debug)]
struct LogFile {
    file: File,
    length: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    /// How often the file was exchanged.
    rotations: u64,
    lines: u64,
    closed: bool,
}

impl RunLog {
    /// `dir` is the container's; `run` its number.
    pub(crate) fn create(dir: &Path, run: i32) -> io::Result<Arc<Self>> {
        fs::create_dir_all(dir)?;
        let path = dir.join(format!("{run}.log"));
        let file = LogFile { file: open(&path)?, length: 0 };
        let log = RunLog { path, file: Mutex::new(file), progress: watch::Sender::default() };
        Ok(Arc::new(log))
    }

    /// Removes the run's files.
    pub(crate) fn remove(&self) {
        // They are in memory and the pod's directory goes later in any case.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(self.old_path());
    }

    fn old_path(&self) -> PathBuf {
        self.path.with_extension("log.1")
    }

    /// Copies a container's output, line by line, until it ends.
    pub(crate) async fn pump(self: Arc<Self>, output: impl AsyncRead + Unpin, stream: &'static str) {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        let mut lost = false;
        loop {
            line.clear();
            match (&mut output).take(LONGEST_LINE).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let whole = line.last() == Some(&b'\n');
            if whole {
                line.pop();
            }
            match self.write(stream, whole, &line) {
                Ok(()) => lost = false,
                // Once, not for each line: where a disk is full, this log would only make it fuller.
                Err(error) if !lost => {
                    tracing::warn!(%error, path = %self.path.display(), "a container's output is lost");
                    lost = true;
                }
                Err(_) => {}
            }
        }
    }

    fn write(&self, stream: &str, whole: bool, text: &[u8]) -> io::Result<()> {
        let tag = if whole { 'F' } else { 'P' };
        let mut record = format!("{:.9} {stream} {tag} ", Timestamp::now()).into_bytes();
        record.extend_from_slice(text);
        record.push(b'\n');
        let mut rotated = false;
        {
            let mut log = self.file.lock();
            if log.length > LARGEST_FILE {
                fs::rename(&self.path, self.old_path())?;
                *log = LogFile { file: open(&self.path)?, length: 0 };
                rotated = true;
            }
            log.file.write_all(&record)?;
            log.length += record.len() as u64;
        }
        self.progress.send_modify(|p| {
            p.lines += 1;
            p.rotations += u64::from(rotated);
        });
        Ok(())
    }

    /// No more output: followers end.
    pub(crate) fn close(&self) {
        self.progress.send_modify(|p| p.closed = true);
    }

    /// Answers a query into `to`, until the run ends, or at once without `follow`.
    pub(crate) async fn read(self: Arc<Self>, query: LogQuery, to: mpsc::Sender<io::Result<Bytes>>) {
        let mut sink = Sink { to, left: query.limit_bytes, timestamps: query.timestamps };
        let mut progress = self.progress.subscribe();
        let rotations = progress.borrow_and_update().rotations;
        let (stored, mut follower) = match self.stored(rotations) {
            Ok(found) => found,
            Err(e) => {
                let _ = sink.to.send(Err(e)).await;
                return;
            }
        };
        let lines = parse(&stored).filter(|l| query.since.is_none_or(|since| l.time >= since));
        let mut lines: Vec<Line<'_>> = lines.collect();
        if let Some(tail) = query.tail_lines {
            // Parts of a cut line count as one.
            let mut left = tail;
            let mut first = lines.len();
            while first > 0 {
                if lines[first - 1].whole {
                    if left == 0 {
                        break;
                    }
                    left -= 1;
                }
                first -= 1;
            }
            lines.drain(..first);
        }
        for chunk in lines.chunks(200) {
            if !sink.send(chunk).await {
                return;
            }
        }
        if !query.follow {
            return;
        }
        loop {
            let seen = *progress.borrow_and_update();
            match follower.more(&self, seen.rotations) {
                Ok(more) if !more.is_empty() => {
                    let lines: Vec<Line<'_>> = parse(&more).collect();
                    if !sink.send(&lines).await {
                        return;
                    }
                    continue;
                }
                Ok(_) if seen.closed => return,
                Ok(_) => {}
                Err(e) => {
                    let _ = sink.to.send(Err(e)).await;
                    return;
                }
            }
            tokio::select! {
                changed = progress.changed() => if changed.is_err() { return },
                () = sink.to.closed() => return,
            }
        }
    }

    /// What is stored now, and where to read on.
    fn stored(&self, rotations: u64) -> io::Result<(Vec<u8>, Follower)> {
        // Held, so that no rotation happens in between.
        let _log = self.file.lock();
        let mut all = match fs::read(self.old_path()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let mut file = File::open(&self.path)?;
        file.read_to_end(&mut all)?;
        Ok((all, Follower { file, rotations }))
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).write(true).truncate(true).open(path)
}

/// A place in a log that is still being written.
struct Follower {
    file: File,
    rotations: u64,
}

impl Follower {
    /// Whole records written since; empty when there are none.
    fn more(&mut self, log: &RunLog, rotations: u64) -> io::Result<Vec<u8>> {
        let mut found = Vec::new();
        let begin = self.file.stream_position()?;
        (&mut self.file).take(1024 * 1024).read_to_end(&mut found)?;
        if found.is_empty() && rotations != self.rotations {
            // More than one exchange since: what was between is gone.
            self.file = File::open(&log.path)?;
            self.rotations = rotations;
            (&mut self.file).take(1024 * 1024).read_to_end(&mut found)?;
            return self.whole_records(found, 0);
        }
        self.whole_records(found, begin)
    }

    fn whole_records(&mut self, mut found: Vec<u8>, begin: u64) -> io::Result<Vec<u8>> {
        let end = found.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        found.truncate(end);
        self.file.seek(SeekFrom::Start(begin + end as u64))?;
        Ok(found)
    }
}

/// One record.
#[derive(Clone, Copy, Debug)]
struct Line<'a> {
    stamp: &'a str,
    time: Timestamp,
    whole: bool,
    text: &'a [u8],
}

fn parse(bytes: &[u8]) -> impl Iterator<Item = Line<'_>> {
    bytes.split_inclusive(|b| *b == b'\n').filter_map(|record| {
        let record = record.strip_suffix(b"\n")?;
        let mut fields = record.splitn(4, |b| *b == b' ');
        let stamp = std::str::from_utf8(fields.next()?).ok()?;
        let (_, tag) = (fields.next()?, fields.next()?);
        Some(Line { stamp, time: stamp.parse().ok()?, whole: tag == b"F", text: fields.next()? })
    })
}

/// Where lines go, and how many bytes may still.
struct Sink {
    to: mpsc::Sender<io::Result<Bytes>>,
    left: Option<u64>,
    timestamps: bool,
}

impl Sink {
    /// Whether there is any sense in sending more.
    async fn send(&mut self, lines: &[Line<'_>]) -> bool {
        let mut out = Vec::new();
        for line in lines {
            if self.timestamps {
                out.extend_from_slice(line.stamp.as_bytes());
                out.push(b' ');
            }
            out.extend_from_slice(line.text);
            if line.whole {
                out.push(b'\n');
            }
        }
        if let Some(left) = &mut self.left {
            out.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= out.len() as u64;
        }
        let sent = out.is_empty() || self.to.send(Ok(out.into())).await.is_ok();
        sent && self.left != Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(log: &Arc<RunLog>, query: LogQuery) -> String {
        let (to, mut from) = mpsc::channel(100);
        log.clone().read(query, to).await;
        let mut all = Vec::new();
        while let Some(part) = from.recv().await {
            all.extend_from_slice(&part.unwrap());
        }
        String::from_utf8(all).unwrap()
    }

    #[tokio::test]
    async fn tails_limits_and_long_lines() {
        let dir = tempfile::tempdir().unwrap();
        let log = RunLog::create(dir.path(), 0).unwrap();
        let long = "x".repeat(40_000);
        let output = format!("one\ntwo\n{long}\nlast");
        log.clone().pump(output.as_bytes(), "stdout").await;
        assert_eq!(read(&log, LogQuery::default()).await, output);
        let tail = LogQuery { tail_lines: Some(2), ..LogQuery::default() };
        assert_eq!(read(&log, tail).await, format!("two\n{long}\nlast"));
        let limit = LogQuery { limit_bytes: Some(5), ..LogQuery::default() };
        assert_eq!(read(&log, limit).await, "one\nt");
        let stamped =
            read(&log, LogQuery { timestamps: true, tail_lines: None, ..LogQuery::default() }).await;
        assert!(stamped.lines().next().unwrap().ends_with("Z one"), "{stamped:.80}");
        let later = Timestamp::now() + jiff::SignedDuration::from_secs(60);
        assert_eq!(read(&log, LogQuery { since: Some(later), ..LogQuery::default() }).await, "");
    }

    #[tokio::test]
    async fn followers_see_new_lines_across_a_rotation_and_end_with_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let log = RunLog::create(dir.path(), 0).unwrap();
        log.write("stdout", true, b"before").unwrap();
        let (to, mut from) = mpsc::channel(100);
        let query = LogQuery { follow: true, ..LogQuery::default() };
        let follower = tokio::spawn(log.clone().read(query, to));
        assert_eq!(from.recv().await.unwrap().unwrap(), "before\n");
        log.file.lock().length = LARGEST_FILE + 1;
        log.write("stderr", true, b"after").unwrap();
        assert_eq!(from.recv().await.unwrap().unwrap(), "after\n");
        assert!(log.old_path().exists());
        log.close();
        assert!(from.recv().await.is_none());
        follower.await.unwrap();
        assert_eq!(read(&log, LogQuery::default()).await, "before\nafter\n");
    }
}
