//! Who may use the admin port. A Server that selects it decides, as about any port. Without one everybody may read what
//! everybody may read: probes, scrapers and the command line have no identity, and a default of `deny` means the workload's own
//! ports. (What only those within the pod may do is a matter of its own.)

use super::{Admin, Body, text};
use crate::{
    http::{
        headers::{self, PROXY_ERROR, View},
        respond::{self, Detail},
    },
    inbound::refuse::Asker,
    metrics::Count,
    report::{self, Who},
};
use http::{Request, Response};
use weft_model::{
    inbound::{Caller, Protocol, ServerPolicy, authorize_http},
    meta::Meta,
};
use weft_wire::record::Direction;

/// Does somebody say something about this very port? A policy that cannot be read may.
fn is_explicit(policy: &ServerPolicy) -> bool {
    matches!(&*policy.meta, Meta::Resource(_)) || matches!(policy.protocol, Protocol::Unreadable(_))
}

/// The answer to a request that may not be made. Rate limits and filters of a route do not count here: nothing is passed on.
pub(super) fn refusal<B>(admin: &Admin, from: Asker<'_>, request: &Request<B>) -> Option<Response<Body>> {
    let mesh = &admin.mesh;
    let policy = mesh.discovery.inbound(from.app.port()).borrow().clone();
    if !is_explicit(&policy) {
        return None;
    }
    let host = headers::host(headers::authority(request).unwrap_or_default());
    let view = View(request.headers());
    let caller = Caller { addr: from.client.ip(), tls: from.tls };
    let denied = match authorize_http(&policy, &caller, &headers::parts(request, &host, &view)) {
        Ok((permit, _)) => {
            mesh.metrics.counter(Count::InboundHttpAuthzAllow, &from.labels(&permit)).add(1);
            return None;
        }
        Err(denied) => denied,
    };
    let fault = from.request_denied(&mesh.metrics, &policy, &denied);
    let story = mesh.recorder.story(Direction::Inbound, from.client, Some(from.app));
    story.decided(&policy.meta, None);
    let who = Who { client: from.client, target: &from.app };
    report::request_failed(&mesh.metrics, &story, Direction::Inbound, who, &fault);
    story.ended(fault.code().id());
    // As on every port: strangers learn the code alone.
    let detail = if from.tls.client_id().is_some() { Detail::Full } else { Detail::Code };
    let mut response = text(respond::status(fault.code()), format!("{}\n", fault.code().id()));
    if let Some(told) = respond::text(&fault, detail) {
        response.headers_mut().insert(PROXY_ERROR, told);
    }
    Some(response)
}
