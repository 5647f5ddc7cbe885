//! Watches the policy of one of this workload's ports.

use super::{agent::Publishers, context::Context};
use crate::control::lookup::{Failure, Told};
use std::sync::Arc;
use weft_fault::Fault;
use weft_model::{
    inbound::{Protocol, ServerPolicy},
    meta::Meta,
};

/// Runs until it is aborted. Until the first answer, the publishers' initial value holds: the default policy.
pub(super) async fn watch(cx: Arc<Context>, port: u16, out: Publishers<Arc<ServerPolicy>>) {
    let mut policies = cx.inbound(port);
    let mut last: Option<Arc<ServerPolicy>> = None;
    // The first failure is told, its repetitions are not.
    let mut told = false;
    loop {
        let message = match policies.next().await {
            Told::First(message) | Told::Next(message) => message,
            Told::Slow(fault) | Told::Failed(Failure { fault, .. }) => {
                match &last {
                    Some(last) => {
                        tracing::debug!(port, policy = %last.meta, "the policy stays in force: {fault:?}");
                    }
                    None if told => tracing::debug!(port, "the default policy holds: {fault:?}"),
                    None => tracing::warn!(port, "the default policy holds: {fault:?}"),
                }
                told = true;
                continue;
            }
        };
        match weft_wire::inbound::from_api(message) {
            Ok(policy) => {
                let policy = Arc::new(policy);
                if last.as_ref() != Some(&policy) {
                    tracing::debug!(port, policy = %policy.meta, "policy");
                    last = Some(policy.clone());
                    out.publish(policy);
                }
            }
            // A policy that cannot be read must not open anything, nor leave open what it may have closed: the port refuses.
            Err(invalid) => {
                let fault = Fault::from(invalid).about(format!("port {port}"));
                tracing::warn!("{fault:?}");
                cx.recorder.note(&format!("port {port}"), "a policy cannot be read".into(), Some(&fault));
                let refusing = Arc::new(unreadable(&fault));
                last = Some(refusing.clone());
                out.publish(refusing);
            }
        }
    }
}

/// Stands for a policy that cannot be read: it lets nobody in.
fn unreadable(why: &Fault) -> ServerPolicy {
    ServerPolicy {
        meta: Arc::new(Meta::default_named("invalid")),
        protocol: Protocol::Unreadable(format!("{why:?}").into()),
        authorizations: Vec::new(),
        audit: false,
    }
}
