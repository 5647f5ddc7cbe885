//! Stable failure codes, cause chains, blame, retry and remedies: one table.
//!
//! A [`Fault`] is the only way a failure travels through weft. Its [`Code`] is stable: it appears in the
//! `l5d-proxy-error` header, the log line, a metric label, the flight recorder, `weft explain CODE` and the
//! documentation, and every text about it comes from the one table in [`codes`].

mod codes;
mod fault;
pub mod nearest;

pub use codes::{Blame, Code, Retry};
pub use fault::{Fault, FaultRecord, Phase, RecordedCause};
