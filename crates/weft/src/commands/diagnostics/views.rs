//! Which proxies hold something else than the controller says now. weft's proxies tell what they hold; stock ones do not.

use super::rows::{OtherView, essence_of};
use crate::{
    columns::age,
    reach::{self, title},
    replicas::ControlPlane,
};
use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use serde_json::json;
use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};
use weft_model::outbound::Endpoint;
use weft_wire::cached::{CACHE_PATH, Cache, Cached, CachedEndpoint, State, What};

/// Proxies that are asked, at most.
const PROXIES: usize = 300;
const AT_ONCE: usize = 8;
const PATIENCE: Duration = Duration::from_secs(3);
/// An update may be on its way: what differs is looked at again after this.
const SETTLED: Duration = Duration::from_secs(1);

/// What came of asking the proxies.
#[derive(Default)]
pub(super) struct Views {
    pub(super) others: Vec<OtherView>,
    /// Proxies that were not asked, or did not answer.
    pub(super) unasked: usize,
}

/// Asks every proxy of the mesh that holds an answer about `authority`.
pub(super) async fn of_proxies(
    client: &Client,
    plane: &ControlPlane,
    namespace: &str,
    authority: &str,
    said: &[Arc<Endpoint>],
) -> Views {
    let api: Api<Pod> = Api::all(client.clone());
    let params = ListParams::default().labels(&format!("{}={namespace}", reach::CONTROL_NS));
    let Ok(Ok(pods)) = timeout(PATIENCE, api.list(&params)).await else {
        return Views { unasked: 1, ..Views::default() };
    };
    let running: Vec<Pod> = pods.items.into_iter().filter(reach::is_running).collect();
    let mut views = Views { unasked: running.len().saturating_sub(PROXIES), ..Views::default() };
    let mut asked = stream::iter(running.into_iter().take(PROXIES))
        .map(|pod| async move { of_proxy(client, plane, &pod, authority, said).await })
        .buffer_unordered(AT_ONCE);
    while let Some(answer) = asked.next().await {
        match answer {
            Some(others) => views.others.extend(others),
            None => views.unasked += 1,
        }
    }
    views.others.sort_by(|a, b| (&a.proxy, a.addr).cmp(&(&b.proxy, b.addr)));
    views
}

/// `None`: it does not tell.
async fn of_proxy(
    client: &Client,
    plane: &ControlPlane,
    pod: &Pod,
    authority: &str,
    said: &[Arc<Endpoint>],
) -> Option<Vec<OtherView>> {
    let name = title(pod);
    if differences(&name, &held(client, pod, authority, said).await?, authority, said).is_empty() {
        return Some(Vec::new());
    }
    // Clients in other places may be told of other endpoints: what counts is what this one would be told.
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let token = json!({"ns": pod.namespace(), "nodeName": node, "pod": pod.name_any()}).to_string();
    let replica = plane.replicas.first()?;
    let said = super::endpoints::once(replica, plane, authority, &token).await.ok()?;
    sleep(SETTLED).await;
    Some(differences(&name, &held(client, pod, authority, &said).await?, authority, &said))
}

/// The answers of a proxy that concern the name or one of its addresses.
async fn held(client: &Client, pod: &Pod, authority: &str, said: &[Arc<Endpoint>]) -> Option<Vec<Cached>> {
    let read = async {
        let page = reach::read_admin(client, pod, &format!("{CACHE_PATH}?limit=5000")).await.ok()?;
        serde_json::from_str::<Cache>(&page).ok()
    };
    let cache = timeout(PATIENCE, read).await.ok()??;
    let names = |cached: &Cached| {
        cached.endpoints.iter().any(|held| said.iter().any(|endpoint| endpoint.addr == held.addr))
    };
    let concerned = |cached: &Cached| match cached.what {
        What::Endpoints => cached.subject == authority,
        What::Destination => names(cached),
        What::Policy => false,
    };
    Some(cache.answers.into_iter().filter(concerned).collect())
}

/// Compares what a proxy holds with what the controller says. Pure.
pub(super) fn differences(
    proxy: &str,
    held: &[Cached],
    authority: &str,
    said: &[Arc<Endpoint>],
) -> Vec<OtherView> {
    let said: BTreeMap<SocketAddr, &Arc<Endpoint>> = said.iter().map(|e| (e.addr, e)).collect();
    let mut found = Vec::new();
    for cached in held {
        let since = cached.age_ms.map_or(String::new(), |ms| format!(", for {}", age(ms / 1_000)));
        let mut differ = |addr: Option<SocketAddr>, holds: String| {
            found.push(OtherView { proxy: proxy.to_owned(), addr, holds: format!("{holds}{since}") });
        };
        let by_name = cached.what == What::Endpoints && cached.subject == authority;
        match cached.state {
            State::Answered | State::AwaitsIdentity => {}
            State::Asking | State::Refused | State::Default if by_name && !said.is_empty() => {
                let why = cached
                    .reason
                    .as_ref()
                    .map_or(String::new(), |why| format!(": {} {}", why.code, why.says));
                differ(None, format!("has no answer ({}{why})", cached.state.as_str()));
                continue;
            }
            State::Asking | State::Refused | State::Default => continue,
        }
        for endpoint in &cached.endpoints {
            match said.get(&endpoint.addr) {
                Some(now) if now.identity.id().map(|id| id.as_str()) != endpoint.identity.as_deref() => {
                    let holds = format!("holds {} as {}", endpoint.addr, words(endpoint));
                    differ(Some(endpoint.addr), format!("{holds}; the controller says {}", essence_of(now)));
                }
                Some(_) => {}
                None if by_name => {
                    differ(
                        Some(endpoint.addr),
                        format!("still holds {} ({})", endpoint.addr, words(endpoint)),
                    );
                }
                None => {}
            }
        }
        if by_name && cached.more_endpoints == 0 {
            let lists = |addr: &SocketAddr| cached.endpoints.iter().any(|endpoint| endpoint.addr == *addr);
            for addr in said.keys().filter(|addr| !lists(addr)) {
                differ(Some(*addr), format!("does not know {addr}"));
            }
        }
    }
    found
}

fn words(endpoint: &CachedEndpoint) -> String {
    match (&endpoint.identity, &endpoint.without) {
        (Some(identity), _) => identity.clone(),
        (None, Some(why)) => format!("without an identity ({why})"),
        (None, None) => "without an identity".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_fault::{Code, Fault};
    use weft_model::identity::{Identity, PeerIdentity};

    const NAME: &str = "store.shop.svc.cluster.local:80";

    fn addr(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 80))
    }

    fn said(last: u8) -> Arc<Endpoint> {
        let id = Identity::parse("store.shop").unwrap();
        Arc::new(Endpoint::bare(addr(last), PeerIdentity::Meshed { server_name: id.clone(), id }))
    }

    fn holds(last: u8, identity: Option<&str>) -> CachedEndpoint {
        CachedEndpoint {
            addr: addr(last),
            identity: identity.map(str::to_owned),
            without: identity.is_none().then(|| "unmarked".to_owned()),
            hint: None,
            transport_port: None,
            weight: 10_000,
            labels: BTreeMap::new(),
        }
    }

    fn cached(what: What, subject: &str, endpoints: Vec<CachedEndpoint>) -> Cached {
        Cached {
            what,
            subject: subject.to_owned(),
            state: State::Answered,
            age_ms: Some(35_000),
            generation: Some(1),
            idle_ms: 0,
            in_use: true,
            source: None,
            profile: None,
            reason: None,
            strict: false,
            endpoints,
            more_endpoints: 0,
        }
    }

    fn found(held: &[Cached], now: &[Arc<Endpoint>]) -> Vec<String> {
        differences("shop/web", held, NAME, now).into_iter().map(|other| other.holds).collect()
    }

    #[test]
    fn the_same_view_is_no_difference() {
        let held = [
            cached(What::Endpoints, NAME, vec![holds(1, Some("store.shop"))]),
            cached(What::Destination, "10.0.0.1:80", vec![holds(1, Some("store.shop"))]),
            // Of another name: not asked about here.
            cached(What::Endpoints, "other.shop.svc.cluster.local:80", vec![holds(9, None)]),
        ];
        assert_eq!(found(&held[..2], &[said(1)]), Vec::<String>::new());
        assert_eq!(found(&held[2..], &[said(1)]), Vec::<String>::new());
    }

    #[test]
    fn a_lost_identity_a_late_removal_and_a_late_addition_are_told() {
        let held = [
            cached(What::Endpoints, NAME, vec![holds(1, None), holds(2, Some("store.shop"))]),
            cached(What::Destination, "10.0.0.3:80", vec![holds(3, Some("store.old"))]),
        ];
        let all = found(&held, &[said(1), said(3)]);
        assert_eq!(all.len(), 4, "{all:?}");
        assert!(
            all[0].contains(
                "holds 10.0.0.1:80 as without an identity (unmarked); the controller says store.shop"
            )
        );
        assert!(all[1].starts_with("still holds 10.0.0.2:80") && all[1].ends_with("for 35s"), "{all:?}");
        assert_eq!(all[2], "does not know 10.0.0.3:80, for 35s");
        assert!(all[3].contains("store.old"));
    }

    #[test]
    fn no_answer_is_a_view_too_and_a_shortened_list_lacks_nothing() {
        let mut asking = cached(What::Endpoints, NAME, vec![]);
        asking.state = State::Refused;
        asking.reason = Some(Fault::new(Code::ControllerRejects).record());
        let said_it = found(&[asking.clone()], &[said(1)]);
        assert!(said_it[0].starts_with("has no answer (refused: CTL-007"), "{said_it:?}");
        assert!(found(&[asking], &[]).is_empty());
        let mut shortened = cached(What::Endpoints, NAME, vec![]);
        shortened.more_endpoints = 1;
        assert!(found(&[shortened], &[said(1)]).is_empty());
    }
}
