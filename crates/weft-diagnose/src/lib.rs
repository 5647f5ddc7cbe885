//! Explanations: one question, one timeline, one verdict.
//!
//! [`gather`] asks the API, the controller and the proxies at both ends; [`verdict`] and [`timeline`] are pure functions
//! over what they said, so that every verdict is a test without a cluster. "Unknown" is an allowed verdict, a wrong one
//! is a bug.

pub mod check;
pub mod evidence;
pub mod gather;
pub mod pasted;
pub mod prom;
pub mod recall;
pub mod render;
pub mod timeline;
pub mod verdict;
