//! The archive: bounded files in a bounded whole.

use anyhow::{Context as _, Result};
use flate2::{Compression, write::GzEncoder};
use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

/// One file, and all together, before they are compressed.
const FILE_BYTES: usize = 8 << 20;
const ALL_BYTES: usize = 256 << 20;

pub(super) struct Archive {
    files: tar::Builder<GzEncoder<File>>,
    room: usize,
    folder: String,
    now: u64,
}

/// What became of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Added {
    Whole,
    /// Its end only: what is last in a log says most.
    Shortened,
    NoRoom,
}

impl Archive {
    /// Only whoever made it can read it. One that is there already is not replaced.
    pub(super) fn create(path: &Path, folder: String) -> Result<Archive> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("creating {}", path.display()))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let files = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        Ok(Archive { files, room: ALL_BYTES, folder, now })
    }

    pub(super) fn add(&mut self, name: &str, text: &str) -> Result<Added> {
        let end = from_the_end(text, FILE_BYTES);
        let (whole, text) = (end.len() == text.len(), end);
        if text.len() > self.room {
            return Ok(Added::NoRoom);
        }
        self.room -= text.len();
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.now);
        let path = format!("{}/{name}", self.folder);
        self.files.append_data(&mut header, path, text.as_bytes())?;
        Ok(if whole { Added::Whole } else { Added::Shortened })
    }

    pub(super) fn finish(self) -> Result<()> {
        let mut file = self.files.into_inner()?.finish()?;
        file.flush()?;
        Ok(())
    }
}

/// At most so many bytes, from the beginning of a line.
fn from_the_end(text: &str, most: usize) -> &str {
    let Some(cut) = text.len().checked_sub(most).filter(|cut| *cut > 0) else { return text };
    let begin = text.as_bytes()[cut..].iter().position(|b| *b == b'\n').map_or(text.len(), |at| cut + at + 1);
    &text[begin..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_loses_its_beginning_at_a_line() {
        assert_eq!(from_the_end("a\nbc\nd\n", 100), "a\nbc\nd\n");
        assert_eq!(from_the_end("a\nbc\nd\n", 4), "d\n");
        assert_eq!(from_the_end("äöü", 3), "");
    }

    #[test]
    fn it_is_bounded_and_private_and_replaces_nothing() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.tar.gz");
        let mut archive = Archive::create(&path, "report".into()).unwrap();
        assert_eq!(archive.add("a/b.txt", "hello").unwrap(), Added::Whole);
        archive.room = 3;
        assert_eq!(archive.add("c.txt", "hello").unwrap(), Added::NoRoom);
        archive.finish().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Archive::create(&path, String::new()).is_err());
    }
}
