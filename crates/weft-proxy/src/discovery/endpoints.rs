//! Watches the endpoints of one name.

use super::{
    EndpointsState, Lookup as Looked,
    age::Age,
    agent::{Doubt, Publishers},
    context::Context,
    list::About,
    settle::{Due, Settling},
};
use crate::control::lookup::Told;
use std::{net::SocketAddr, sync::Arc, time::Instant};
use tokio::sync::broadcast;
use weft_fault::Fault;
use weft_model::outbound::{Endpoint, Endpoints};
use weft_wire::destination::EndpointSet;

/// Runs until it is aborted.
pub(super) async fn watch(
    cx: Arc<Context>,
    path: String,
    out: Publishers<Arc<EndpointsState>>,
    mut doubts: broadcast::Receiver<Doubt>,
) {
    let mut updates = cx.endpoints(&path);
    let mut set = EndpointSet::default();
    let mut settling = Settling::new(cx.clone(), path.clone());
    let mut lookup = Looked::Pending(None);
    // As the controller said it, before identities were settled.
    let mut said: Option<Endpoints> = None;
    let mut state = EndpointsState::pending();
    let mut age = Age::new(cx.max_age);

    loop {
        // 1. Wait for news.
        tokio::select! {
            told = updates.next() => match told {
                Told::First(update) => {
                    age.renewed();
                    set.reopened();
                    apply(&mut set, update, &path, &mut said, &mut lookup);
                }
                Told::Next(update) => {
                    age.renewed();
                    apply(&mut set, update, &path, &mut said, &mut lookup);
                }
                Told::Slow(fault) => {
                    tell(&lookup, &fault);
                    if said.is_none() {
                        lookup = Looked::Pending(Some(Arc::new(fault.record())));
                    }
                }
                // What is known stays valid through an outage.
                Told::Failed(failure) if said.is_none() => {
                    tell(&lookup, &failure.fault);
                    let record = Arc::new(failure.fault.record());
                    lookup = if failure.is_refusal() {
                        Looked::Refused(record)
                    } else {
                        Looked::Pending(Some(record))
                    };
                }
                Told::Failed(failure) => tracing::debug!("{:?}", failure.fault),
            },
            due = settling.due() => if due == Due::AskAgain {
                updates.ask_again();
            },
            () = age.over() => updates.ask_again(),
            doubted = doubts.recv() => match doubted {
                Ok(Doubt::Evidence { addr, .. }) if names(&said, &addr) => {
                    settling.doubt(addr);
                    updates.ask_again();
                }
                Ok(Doubt::Anew(about)) if is_about(&about, &path, &said) => {
                    settling.doubt_all();
                    updates.ask_again();
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => continue,
                Err(broadcast::error::RecvError::Closed) => return,
            },
        }

        // 2. Settle identities that are missing.
        if let Some(Endpoints::Known(endpoints)) = &said {
            settling.begin(|addr| endpoints.iter().any(|endpoint| endpoint.addr == *addr));
            let settled = endpoints.iter().map(|endpoint| settling.settle(endpoint)).collect();
            settling.finish();
            if settling.is_confirming() && matches!(state.lookup, Looked::Pending(_)) {
                continue;
            }
            lookup = Looked::Answered(Endpoints::Known(Arc::new(settled)));
        }

        // 3. Tell the workers, if anything changed.
        let strict = cx.confirmer.is_weft();
        if state.lookup != lookup || state.strict != strict {
            // Waiting is one state, however its reason is worded by now.
            let still = match (&state.lookup, &lookup) {
                (Looked::Answered(was), Looked::Answered(is)) => was == is,
                (was, is) => std::mem::discriminant(was) == std::mem::discriminant(is),
            };
            state = EndpointsState {
                generation: state.generation + 1,
                since: if still { state.since } else { Instant::now() },
                lookup: lookup.clone(),
                strict,
            };
            out.publish(Arc::new(state.clone()));
        }
    }
}

/// The first failure is told, its repetitions are not.
fn tell(before: &Looked, fault: &Fault) {
    match before {
        Looked::Pending(None) => tracing::warn!("{fault:?}"),
        Looked::Pending(Some(_)) | Looked::Refused(_) | Looked::Answered(_) => tracing::debug!("{fault:?}"),
    }
}

fn is_about(about: &About, path: &str, said: &Option<Endpoints>) -> bool {
    match about {
        About::Addr(addr) => names(said, addr),
        About::Name(name) => &**name == path,
    }
}

fn names(said: &Option<Endpoints>, addr: &SocketAddr) -> bool {
    known(said).iter().any(|endpoint| endpoint.addr == *addr)
}

fn known(said: &Option<Endpoints>) -> &[Arc<Endpoint>] {
    match said {
        Some(Endpoints::Known(endpoints)) => endpoints,
        Some(Endpoints::NoSuchService) | None => &[],
    }
}

fn apply(
    set: &mut EndpointSet,
    update: linkerd2_proxy_api::destination::Update,
    path: &str,
    said: &mut Option<Endpoints>,
    lookup: &mut Looked,
) {
    match set.apply(update) {
        Ok((endpoints, unreadable)) => {
            for invalid in unreadable {
                tracing::warn!(path, "an endpoint is left out: {:?}", Fault::from(invalid));
            }
            *lookup = Looked::Answered(endpoints.clone());
            *said = Some(endpoints);
        }
        Err(invalid) => tracing::warn!(path, "an update is left out: {:?}", Fault::from(invalid)),
    }
}
