//! Errors as a container runtime reads them: JSON on standard output.

use serde_json::{Value, json};
use weft_fault::Fault;

/// Codes of the CNI specification (below 100), and our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    IncompatibleVersion = 1,
    InvalidEnvironment = 4,
    Io = 5,
    Decode = 6,
    InvalidConfig = 7,
    /// The runtime should try again.
    TryAgain = 11,
    /// `STATUS`: the plugin cannot serve `ADD` now.
    NotAvailable = 50,
    /// The rules could not be set, or are not there.
    Rules = 101,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CniError {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    pub(crate) details: String,
}

impl CniError {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        CniError { kind, message: message.into(), details: String::new() }
    }

    pub(crate) fn details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// A fault, with its evidence as the message and its remedy as the details.
    pub(crate) fn of(kind: Kind, fault: &Fault) -> Self {
        CniError::new(kind, format!("{fault:?}")).details(fault.code().remedy())
    }

    pub(crate) fn json(&self, version: &str) -> Value {
        json!({"cniVersion": version, "code": self.kind as u16, "msg": self.message, "details": self.details})
    }
}
