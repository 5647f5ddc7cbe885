//! Connections that stop being HTTP: WebSocket and other upgrades, CONNECT.

use super::body::Body;
use crate::{drain, record::Story};
use http::{Request, Response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::rc::Rc;
use weft_fault::{Code, Fault, Phase};
use weft_net::copy;

/// One end of a connection that may stop being HTTP once both ends agree.
pub(crate) struct Upgrading(OnUpgrade);

impl Upgrading {
    pub(crate) fn of_request(request: &mut Request<Body>) -> Self {
        Upgrading(hyper::upgrade::on(request))
    }

    pub(crate) fn of_response(response: &mut Response<Body>) -> Self {
        Upgrading(hyper::upgrade::on(response))
    }
}

/// Once both ends have agreed, copies bytes between them, in a task of its own that belongs to the connection's story.
/// `withdrawn` ends it before its time, and says why itself.
pub(crate) fn bridge(
    client: Upgrading,
    server: Upgrading,
    story: Rc<Story>,
    drain: drain::Watch,
    withdrawn: impl Future<Output = ()> + 'static,
) {
    tokio::task::spawn_local(async move {
        let copying = async {
            let (client, server) = tokio::try_join!(client.0, server.0)
                .map_err(|error| Fault::new(Code::NetworkIo).in_phase(Phase::Copy).because(error))?;
            let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
            story.event(Phase::Copy, "upgraded");
            copy::both_ways(&mut client, &mut server, &mut |_, _| {})
                .await
                .map_err(|error| Fault::new(Code::NetworkIo).in_phase(Phase::Copy).because(error))
        };
        let ended = tokio::select! {
            biased;
            () = drain.stopped() => Err(Fault::new(Code::Draining).in_phase(Phase::Copy)),
            () = withdrawn => return,
            ended = copying => ended,
        };
        match ended {
            Ok(()) => story.event(Phase::Copy, "upgraded connection ended"),
            // Resets are how many WebSocket clients leave; the story keeps them, the log need not.
            Err(fault) => story.fault(&fault),
        }
    });
}
