//! Files that a user names: read up to a bound, since a path may lead to anything.

use anyhow::{Context as _, Result, bail};
use std::{fs::File, io::Read as _, path::Path};

/// Far more than any certificates or values have.
const LARGEST: u64 = 4 << 20;
/// What of a log is read at once.
pub(crate) const LARGEST_LOG: u64 = 256 << 20;

/// The text of a file. Errors name it.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let bytes = read_bytes(path, LARGEST)?;
    String::from_utf8(bytes).with_context(|| format!("reading {}", path.display()))
}

/// The text of a log, in which programs may have written anything.
pub(crate) fn read_log(path: &Path) -> Result<String> {
    let bytes = read_bytes(path, LARGEST_LOG)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

fn read_bytes(path: &Path, largest: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // Counted as they come: pipes and devices have no length.
    let read = File::open(path).and_then(|file| file.take(largest + 1).read_to_end(&mut bytes));
    read.with_context(|| format!("reading {}", path.display()))?;
    if bytes.len() as u64 > largest {
        bail!("{}: it has more than {largest} bytes", path.display());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_end_is_told_by_its_name() {
        let problem = format!("{:#}", read_text(Path::new("/dev/zero")).expect_err("it is endless"));
        assert_eq!(problem, "/dev/zero: it has more than 4194304 bytes");
        let problem = format!("{:#}", read_text(Path::new("/no/such")).expect_err("it is not there"));
        assert!(problem.starts_with("reading /no/such: "), "{problem}");
    }
}
