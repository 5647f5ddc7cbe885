//! The failure itself: a code, its evidence and what caused it.

use crate::{Blame, Code, Retry};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    error::Error,
    fmt,
    time::{Duration, SystemTime},
};

/// The step of a connection or request in which something failed. Each has a deadline of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    Accept,
    Detect,
    TlsAccept,
    TransportHeader,
    Discover,
    Route,
    Authorize,
    Queue,
    Connect,
    TlsConnect,
    RequestHeaders,
    RequestBody,
    ResponseHeaders,
    ResponseBody,
    Copy,
    Control,
    Certify,
    Start,
}

impl Phase {
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Accept => "accept",
            Phase::Detect => "detect",
            Phase::TlsAccept => "tls-accept",
            Phase::TransportHeader => "transport-header",
            Phase::Discover => "discover",
            Phase::Route => "route",
            Phase::Authorize => "authorize",
            Phase::Queue => "queue",
            Phase::Connect => "connect",
            Phase::TlsConnect => "tls-connect",
            Phase::RequestHeaders => "request-headers",
            Phase::RequestBody => "request-body",
            Phase::ResponseHeaders => "response-headers",
            Phase::ResponseBody => "response-body",
            Phase::Copy => "copy",
            Phase::Control => "control",
            Phase::Certify => "certify",
            Phase::Start => "start",
        }
    }
}

/// A failure on its way to whoever reports it. Pointer-sized; cloning is not offered because a cause may be any
/// error: make a [`FaultRecord`] to keep or send one.
pub struct Fault(Box<Inner>);

struct Inner {
    code: Code,
    phase: Option<Phase>,
    subject: Option<String>,
    peer: Option<String>,
    since: Option<SystemTime>,
    facts: Vec<(Cow<'static, str>, String)>,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl Fault {
    pub fn new(code: Code) -> Self {
        Fault(Box::new(Inner {
            code,
            phase: None,
            subject: None,
            peer: None,
            since: None,
            facts: Vec::new(),
            cause: None,
        }))
    }

    pub fn code(&self) -> Code {
        self.0.code
    }
    pub fn blame(&self) -> Blame {
        self.0.code.blame()
    }
    pub fn retry(&self) -> Retry {
        self.0.code.retry()
    }
    pub fn phase(&self) -> Option<Phase> {
        self.0.phase
    }

    /// The step in which it happened.
    pub fn in_phase(mut self, phase: Phase) -> Self {
        self.0.phase = Some(phase);
        self
    }
    /// What it is about: a service, a workload, a file.
    pub fn about(mut self, subject: impl fmt::Display) -> Self {
        self.0.subject = Some(subject.to_string());
        self
    }
    /// The other end: usually an address.
    pub fn peer(mut self, peer: impl fmt::Display) -> Self {
        self.0.peer = Some(peer.to_string());
        self
    }
    /// Since when it has been so.
    pub fn since(mut self, since: SystemTime) -> Self {
        self.0.since = Some(since);
        self
    }
    /// One piece of evidence: expected and actual identity, a rule's name, a count.
    pub fn fact(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        self.0.facts.push((Cow::Borrowed(key), value.to_string()));
        self
    }
    /// What brought it about; may be a `Fault` itself.
    pub fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.0.cause = Some(cause.into());
        self
    }

    /// An owned copy with the whole chain, to keep, print or send.
    pub fn record(&self) -> FaultRecord {
        let mut causes = Vec::new();
        let mut next = self.source();
        while let Some(cause) = next {
            causes.push(cause.to_string());
            // A chain is made by code, not by peers, but stay bounded whatever made it.
            if causes.len() == 16 {
                break;
            }
            next = cause.source();
        }
        FaultRecord {
            code: self.0.code.id().to_string(),
            phase: self.0.phase,
            says: self.0.code.says().to_string(),
            subject: self.0.subject.clone(),
            peer: self.0.peer.clone(),
            since_unix_ms: self.0.since.map(unix_ms),
            facts: self.0.facts.iter().map(|(k, v)| (k.to_string(), v.clone())).collect(),
            causes,
            blame: self.blame().as_str().to_string(),
            retry: self.retry().as_str().to_string(),
            remedy: self.0.code.remedy().to_string(),
        }
    }
}

fn unix_ms(at: SystemTime) -> u64 {
    let since_epoch = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// One level: `POL-001 no rule allows … subject peer=… key=value`. The chain is printed by whoever reports.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        write!(f, "{} {}", inner.code, inner.code.says())?;
        if let Some(subject) = &inner.subject {
            write!(f, ": {subject}")?;
        }
        if let Some(peer) = &inner.peer {
            write!(f, " peer={peer}")?;
        }
        for (key, value) in &inner.facts {
            write!(f, " {key}={value}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut next = self.source();
        while let Some(cause) = next {
            write!(f, ": {cause}")?;
            next = cause.source();
        }
        Ok(())
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.cause.as_deref().map(|e| e as &(dyn Error + 'static))
    }
}

impl From<Code> for Fault {
    fn from(code: Code) -> Self {
        Fault::new(code)
    }
}

/// A failure as data: what the flight recorder keeps, the journal receives and `weft explain` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRecord {
    pub code: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    pub says: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_unix_ms: Option<u64>,
    /// Evidence, in the order it was found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<(String, String)>,
    /// From the nearest cause to the root, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    pub blame: String,
    pub retry: String,
    pub remedy: String,
}

impl FaultRecord {
    /// The failure as the cause of another one: its own line first, then its causes.
    pub fn as_cause(&self) -> RecordedCause {
        let mut line = format!("{} {}", self.code, self.says);
        if let Some(subject) = &self.subject {
            line.push_str(&format!(": {subject}"));
        }
        if let Some(peer) = &self.peer {
            line.push_str(&format!(" peer={peer}"));
        }
        for (key, value) in &self.facts {
            line.push_str(&format!(" {key}={value}"));
        }
        RecordedCause { line, next: chain(&self.causes) }
    }

    /// The failure once more, for another one whom it befell: many may wait for one attempt.
    pub fn again(&self) -> Fault {
        let mut fault = Fault::new(Code::find(&self.code).unwrap_or(Code::Invariant));
        fault.0.phase = self.phase;
        fault.0.subject.clone_from(&self.subject);
        fault.0.peer.clone_from(&self.peer);
        fault.0.since = self.since_unix_ms.map(|ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
        fault.0.facts = self.facts.iter().map(|(k, v)| (Cow::Owned(k.clone()), v.clone())).collect();
        match chain(&self.causes) {
            Some(cause) => fault.because(*cause),
            None => fault,
        }
    }

    /// The value of the evidence named `key`.
    pub fn fact(&self, key: &str) -> Option<&str> {
        self.facts.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }
}

fn chain(causes: &[String]) -> Option<Box<RecordedCause>> {
    causes.iter().rev().fold(None, |next, line| Some(Box::new(RecordedCause { line: line.clone(), next })))
}

/// One link of a chain of causes that was recorded earlier.
#[derive(Debug)]
pub struct RecordedCause {
    line: String,
    next: Option<Box<RecordedCause>>,
}

impl fmt::Display for RecordedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl Error for RecordedCause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.next.as_deref().map(|next| next as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_says_one_level_and_the_record_holds_the_chain() {
        let root = std::io::Error::from_raw_os_error(111);
        let inner = Fault::new(Code::ConnectRefused).peer("192.0.2.1:80").because(root);
        let outer =
            Fault::new(Code::AllEndpointsFailing).about("shop/store:80").fact("refused", 3).because(inner);
        let shown = outer.to_string();
        assert!(shown.starts_with("UPS-004 "), "{shown}");
        assert!(shown.ends_with(": shop/store:80 refused=3"), "{shown}");
        let record = outer.record();
        assert_eq!(record.causes.len(), 2);
        assert!(record.causes[0].starts_with("NET-001"));
        assert_eq!(record.fact("refused"), Some("3"));
        let again = Fault::new(Code::Unresolved).because(record.as_cause()).record();
        assert_eq!(again.causes.len(), 3);
        assert_eq!((&again.causes[0], &again.causes[1..]), (&shown, &record.causes[..]));
        let json = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<FaultRecord>(&json).unwrap(), record);
    }

    #[test]
    fn a_recorded_failure_comes_again_as_it_was() {
        let cause = Fault::new(Code::ConnectRefused).because(std::io::Error::other("inner"));
        let fault = Fault::new(Code::IdentityMismatch)
            .in_phase(Phase::TlsConnect)
            .about("a")
            .peer("b")
            .since(SystemTime::UNIX_EPOCH + Duration::from_millis(7))
            .fact("expected", "c")
            .because(cause);
        let record = fault.record();
        assert_eq!(record.again().record(), record);
        assert_eq!(format!("{:?}", record.again()), format!("{fault:?}"));
    }

    #[test]
    fn a_recorded_failure_of_an_unknown_code_is_none_of_the_known_ones() {
        let record = Fault::new(Code::ConnectRefused).fact("limit_ms", 7).record();
        let later = FaultRecord { code: "XXX-999".into(), ..record };
        let again = later.again();
        assert_eq!(again.code(), Code::Invariant);
        assert_eq!(again.record().fact("limit_ms"), Some("7"));
    }

    #[test]
    fn a_fault_is_one_pointer() {
        assert_eq!(size_of::<Fault>(), size_of::<usize>());
    }
}
