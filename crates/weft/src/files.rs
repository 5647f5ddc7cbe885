//! Files that a user names: read up to a bound, since a path may lead to anything.

use anyhow::{Context as _, Result, bail};
use std::{fs::File, io::Read as _, path::Path};

/// Far more than any certificates or values have.
const LARGEST: u64 = 4 << 20;

/// The text of a file. Errors name it.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let mut text = String::new();
    // Counted as they come: pipes and devices have no length.
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text));
    read.with_context(|| format!("reading {}", path.display()))?;
    if text.len() as u64 > LARGEST {
        bail!("{}: it has more than {LARGEST} bytes", path.display());
    }
    Ok(text)
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
