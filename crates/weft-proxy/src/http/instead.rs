//! What a client gets instead of a server's answer, and why.

use super::{
    body::Body,
    respond::{self, Audience, Detail, refusal},
    server::Closing,
};
use crate::report;
use http::{HeaderValue, Response, StatusCode};
use std::cell::Cell;
use weft_fault::{Code, Fault, Phase};

/// Why a request has no answer from a server.
pub(crate) enum NoAnswer {
    Fault(Fault),
    /// Reported when it happened.
    Reported(Fault),
    /// A filter of its route answers.
    Injected(Injected),
    /// The server reset the stream: a client that speaks HTTP/2 is told the same.
    Reset(h2::Reason),
}

impl From<Fault> for NoAnswer {
    fn from(fault: Fault) -> Self {
        NoAnswer::Fault(fault)
    }
}

impl NoAnswer {
    /// Linkerd's word for it, where requests are counted by route.
    pub(crate) fn route_error(&self) -> &'static str {
        match self {
            NoAnswer::Fault(fault) | NoAnswer::Reported(fault) => report::route_error(fault.code()),
            NoAnswer::Injected(injected) => report::route_error(injected.code),
            NoAnswer::Reset(reason) => report::reset_error(*reason),
        }
    }

    /// The same, where they are counted by server or ServiceProfile.
    pub(crate) fn word(&self) -> &'static str {
        report::response_error(match self {
            NoAnswer::Fault(_) | NoAnswer::Reported(_) | NoAnswer::Injected(_) => None,
            NoAnswer::Reset(reason) => Some(*reason),
        })
    }
}

/// What the client is told, and under which code. `report` hears of what was not reported before.
pub(crate) fn tell(
    none: NoAnswer,
    to: Audience,
    closing: &Closing,
    report: impl FnOnce(&Fault),
) -> Result<(Response<Body>, Code), h2::Reason> {
    let (response, fault) = match none {
        NoAnswer::Reset(reason) => return Err(reason),
        NoAnswer::Fault(fault) => {
            report(&fault);
            (refusal(&fault, to), fault)
        }
        NoAnswer::Reported(fault) => (refusal(&fault, to), fault),
        NoAnswer::Injected(injected) => {
            let fault = injected.fault();
            report(&fault);
            (injected.response(to), fault)
        }
    };
    let code = fault.code();
    if respond::closes(code) {
        closing.close();
    }
    Ok((response, code))
}

/// What a route's fault filter says instead of the server.
#[derive(Debug)]
pub(crate) struct Injected {
    /// A status of HTTP or, below all of those, one of gRPC.
    status: u16,
    message: String,
    /// A failure that was ordered, or a refusal that is written down as one.
    code: Code,
}

impl Injected {
    pub(crate) fn new(status: u16, message: &str) -> Self {
        Injected { status, message: message.to_owned(), code: Code::FailureInjected }
    }

    /// The refusals of an EgressNetwork have this form.
    pub(crate) fn by_egress_policy(self) -> Self {
        let denies = matches!(self.status, 403 | 7);
        Injected { code: if denies { Code::EgressDenied } else { self.code }, ..self }
    }

    pub(crate) fn fault(&self) -> Fault {
        let fault = Fault::new(self.code).in_phase(Phase::Route);
        fault.fact("status", self.status).fact("message", &self.message)
    }

    fn response(&self, to: Audience) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.version_mut() = to.version;
        let head = response.headers_mut();
        head.insert(http::header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        if to.grpc {
            head.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            head.insert("grpc-status", HeaderValue::from(as_grpc(self.status)));
            head.insert("grpc-message", respond::grpc_message(&self.message));
        }
        if to.detail != Detail::Nothing {
            let text = format!("{} {}", self.code.id(), self.message);
            head.insert(super::headers::PROXY_ERROR, respond::visible(&text));
        }
        if !to.grpc {
            *response.status_mut() = as_http(self.status);
        }
        response
    }
}

/// A status as a call of gRPC ends with it (gRPC, "HTTP to gRPC Status Code Mapping").
fn as_grpc(status: u16) -> u16 {
    match status {
        0..=16 => status,
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502..=504 => 14,
        _ => 2,
    }
}

/// The same for what is no call of gRPC, on a route for gRPC.
fn as_http(status: u16) -> StatusCode {
    let status = match status {
        0 => 200,
        3 => 400,
        4 => 504,
        5 => 404,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        1..=16 => 500,
        status => status,
    };
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// One request counts as in flight until its response's head.
pub(crate) struct InFlight<'a>(&'a Cell<usize>);

impl<'a> InFlight<'a> {
    pub(crate) fn admit(count: &'a Cell<usize>, limit: usize) -> Result<Self, Fault> {
        let now = count.get();
        if now >= limit {
            return Err(Fault::new(Code::Overloaded).in_phase(Phase::Queue).fact("limit", limit));
        }
        count.set(now + 1);
        Ok(InFlight(count))
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Version;

    fn told(injected: Injected, grpc: bool) -> (u16, String, String) {
        let to = Audience { grpc, version: Version::HTTP_2, detail: Detail::Full };
        let (response, code) =
            tell(NoAnswer::Injected(injected), to, &Closing::default(), |_| {}).expect("no reset");
        let text = |name: &str| {
            response.headers().get(name).map(|text| text.to_str().unwrap().to_owned()).unwrap_or_default()
        };
        let own = if grpc {
            format!("{} {}", text("grpc-status"), text("grpc-message"))
        } else {
            text("l5d-proxy-error")
        };
        (response.status().as_u16(), own, code.id().to_owned())
    }

    #[test]
    fn an_injected_failure_is_told_in_the_form_of_the_request() {
        for (status, grpc, http, text) in [
            (503, false, 503, "RTE-003 50% out"),
            (503, true, 200, "14 50%25 out"),
            (418, true, 200, "2 50%25 out"),
            (9, true, 200, "9 50%25 out"),
            (9, false, 500, "RTE-003 50% out"),
            (7, false, 403, "RTE-003 50% out"),
        ] {
            let told = told(Injected::new(status, "50% out"), grpc);
            assert_eq!(told, (http, text.to_owned(), "RTE-003".to_owned()), "{status}");
        }
    }

    #[test]
    fn what_an_egress_policy_forbids_is_no_injected_failure() {
        let egress = |status| Injected::new(status, "no").by_egress_policy();
        assert_eq!(told(egress(403), false), (403, "POL-006 no".into(), "POL-006".into()));
        assert_eq!(told(egress(7), true), (200, "7 no".into(), "POL-006".into()));
        assert_eq!(told(egress(503), false).2, "RTE-003");
    }

    #[test]
    fn no_more_requests_are_in_flight_than_allowed() {
        let count = Cell::new(0);
        let first = InFlight::admit(&count, 1).unwrap();
        assert_eq!(InFlight::admit(&count, 1).err().unwrap().code(), Code::Overloaded);
        drop(first);
        assert!(InFlight::admit(&count, 1).is_ok());
    }
}
