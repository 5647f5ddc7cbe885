//! Times as people type them.

use std::time::Duration;

/// `30s`, `10m`, `2h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let span: jiff::SignedDuration =
        text.parse().map_err(|e| format!("{e}; expected a duration such as 90s or 10m"))?;
    Duration::try_from(span).map_err(|_| "a duration is not negative".to_owned())
}
