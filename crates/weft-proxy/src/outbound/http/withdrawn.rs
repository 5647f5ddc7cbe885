//! Connections to one pod by its address: they end with the pod, so that the client resolves its name again.

use super::Requests;
use crate::discovery::{Destination, judge::each_endpoint};
use std::{convert::Infallible, future::pending};

/// The pod that holds the destination's own address, if the controller names one.
fn pod(destination: &Destination) -> Option<String> {
    let mut found = None;
    each_endpoint(&destination.policy, &mut |endpoint| {
        if endpoint.addr == destination.addr {
            found = endpoint.labels.get("pod").cloned();
        }
    });
    found
}

impl Requests {
    /// Asks for the connection's end when the pod that it was made to is gone. What is under way ends in peace; an idle
    /// client sees the end at once, instead of an error with its next request.
    pub(super) async fn close_when_withdrawn(&self) -> Infallible {
        let mut watch = self.connection.destination.watch();
        let Some(first) = pod(&self.connection.destination.get()) else { return pending().await };
        while watch.changed().await.is_ok() {
            if pod(&watch.borrow_and_update()).as_ref() != Some(&first) {
                self.closing.close();
                break;
            }
        }
        pending().await
    }
}
