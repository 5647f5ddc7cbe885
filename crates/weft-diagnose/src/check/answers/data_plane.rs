//! The proxies of applications, as Linkerd's `check --proxy` asks about them.

use super::{
    super::{
        Answer, Category, Check, Findings, Reply,
        facts::{Facts, Pod, Roots},
        names::OPAQUE_PORTS,
    },
    existence::why_not,
    proxies, version,
};
use std::collections::BTreeSet;
use weft_kube::core::service::{IntOrString, Service};

pub(in super::super) const DATA_PLANE: Category = Category {
    name: "linkerd-data-plane",
    checks: &[
        Check::error("l5d-data-plane-exists", "data plane namespace exists", namespace).fatal().doc(
            "There is no namespace of the name given with `--namespace`.",
            "`kubectl get namespaces`.",
        ),
        Check::error("l5d-data-plane-ready", "data plane proxies are ready", ready).fatal().retried().doc(
            "The proxy of a pod is not ready: it has no certificate, does not reach the controller, or does not run.",
            "`kubectl logs POD -c linkerd-proxy`; `/ready?verbose` of its admin port names what it waits for.",
        ),
        Check::warning("l5d-data-plane-version", "data plane is up-to-date", |facts| {
            version::proxies_current(facts, facts.meshed_pods()?)
        })
        .doc(
            "A proxy is not at the version given with `--expected-version`; without one, nothing is known.",
            "Restart the workloads: `kubectl rollout restart`.",
        ),
        Check::warning("l5d-data-plane-cli-version", "data plane and cli versions match", |facts| {
            version::proxies_match_cli(facts, facts.meshed_pods()?)
        })
        .doc(
            "A proxy is of another version than this program.",
            "Restart the workloads: `kubectl rollout restart`; pods get their proxies when they start.",
        ),
        Check::warning("l5d-data-plane-pod-labels", "data plane pod labels are configured correctly", pod_labels)
            .doc("A pod has as a label what only counts as an annotation.", "Move it to the annotations of the pod's template."),
        Check::warning(
            "l5d-data-plane-services-labels",
            "data plane service labels are configured correctly",
            service_labels,
        )
        .doc("A Service has as a label what only counts as an annotation.", "Move it to its annotations."),
        Check::warning(
            "l5d-data-plane-services-annotations",
            "data plane service annotations are configured correctly",
            service_annotations,
        )
        .doc("A Service has as an annotation what only counts as a label.", "Move it to its labels."),
    ],
};

pub(in super::super) const OPAQUE: Category = Category {
    name: "linkerd-opaque-ports-definition",
    checks: &[Check::warning("linkerd-opaque-ports-definition", "opaque ports are properly annotated", opaque).doc(
        "A Service and a pod behind it do not agree on whether a port is opaque: callers by the Service's name and callers by the pod's address are served differently.",
        "Give both the same `config.linkerd.io/opaque-ports`, or annotate the namespace.",
    )],
};

pub(in super::super) const IDENTITY: Category = Category {
    name: "linkerd-identity-data-plane",
    checks: &[Check::warning(
        "l5d-identity-data-plane-proxies-certs-match-ca",
        "data plane proxies certificate match CA",
        anchors,
    )
    .doc(
        "A proxy trusts other anchors than the control plane has now: it started before they changed and does not follow them.",
        "Restart the pod: `kubectl rollout restart`. Proxies of weft follow their bundle within a minute; `weft identity` shows who depends on which.",
    )],
};

fn namespace(facts: &Facts) -> Reply {
    let Some(wanted) = &facts.asked.namespace else { return Ok(Answer::Idle) };
    let there = facts.namespaces.as_ref()?.iter().any(|namespace| namespace.name == *wanted);
    Answer::if_so(there, || format!("there is no namespace {wanted:?}"))
}

fn ready(facts: &Facts) -> Reply {
    let pods: Vec<&Pod> = facts.meshed_pods()?.collect();
    if pods.is_empty() {
        let place = facts.asked.namespace.as_ref().map_or("the cluster".into(), |n| format!("namespace {n}"));
        return Answer::bad(format!("no pod of {place} has a proxy"));
    }
    let unready = pods.iter().filter(|pod| !pod.proxy.as_ref().is_some_and(|proxy| proxy.ready));
    unready.map(|pod| format!("{}: {}", pod.name(), why_not(pod))).collect::<Findings>().reply("not ready:")
}

/// What is read from annotations only.
fn is_annotation(key: &str) -> bool {
    key == "linkerd.io/inject"
        || key.starts_with("config.linkerd.io/")
        || key.starts_with("config.alpha.linkerd.io/")
}

fn pod_labels(facts: &Facts) -> Reply {
    let mut found = Findings::default();
    for pod in facts.meshed_pods()? {
        let wrong: Vec<&str> =
            pod.object.metadata.labels.keys().map(String::as_str).filter(|key| is_annotation(key)).collect();
        if !wrong.is_empty() {
            found.problem(format!("{}: {}", pod.name(), wrong.join(", ")));
        }
    }
    found.reply("labels that should be annotations:")
}

fn asked_services(facts: &Facts) -> Result<impl Iterator<Item = &Service>, super::super::Unread> {
    let only = facts.asked.namespace.as_deref();
    let all = facts.services.as_ref()?.iter();
    Ok(all.filter(move |service| only.is_none_or(|only| service.metadata.namespace == only)))
}

fn service_labels(facts: &Facts) -> Reply {
    let mut found = Findings::default();
    for service in asked_services(facts)? {
        for key in service.metadata.labels.keys().filter(|key| is_annotation(key)) {
            found.problem(format!("{}: {key}", service.metadata.key()));
        }
    }
    found.reply("labels that should be annotations:")
}

fn service_annotations(facts: &Facts) -> Reply {
    let wrong = "mirror.linkerd.io/exported";
    let services = asked_services(facts)?.filter(|service| service.metadata.annotation(wrong).is_some());
    services
        .map(|service| format!("{}: {wrong}", service.metadata.key()))
        .collect::<Findings>()
        .reply("annotations that should be labels:")
}

/// The ports that an annotation names; names of ports stay names.
pub(super) fn ports(text: &str) -> impl Fn(u16, Option<&str>) -> bool + use<> {
    let items: Vec<String> = text.split(',').map(|item| item.trim().to_owned()).collect();
    move |port, name| {
        items.iter().any(|item| match item.split_once('-') {
            _ if name == Some(item) => true,
            Some((low, high)) => {
                low.trim().parse().is_ok_and(|low: u16| low <= port)
                    && high.trim().parse().is_ok_and(|high: u16| port <= high)
            }
            None => item.parse() == Ok(port),
        })
    }
}

/// The annotation of the object, else of its namespace, else the default.
pub(super) fn opaque_ports(facts: &Facts, own: Option<&str>, namespace: &str) -> String {
    let of_namespace = || {
        let all = facts.namespaces.as_ref().ok()?;
        all.iter().find(|ns| ns.name == namespace)?.annotation(OPAQUE_PORTS).map(str::to_owned)
    };
    let by_default = || Some(facts.setting(&["proxy", "opaquePorts"]).ok()??.as_str()?.to_owned());
    own.map(str::to_owned).or_else(of_namespace).or_else(by_default).unwrap_or_default()
}

fn opaque(facts: &Facts) -> Reply {
    let pods = facts.pods.as_ref()?;
    let mut found = Findings::default();
    for service in asked_services(facts)?.filter(|service| !service.spec.selector.is_empty()) {
        let meta = &service.metadata;
        let of_service = ports(&opaque_ports(facts, meta.annotation(OPAQUE_PORTS), &meta.namespace));
        let behind = |pod: &&Pod| {
            let labels = &pod.object.metadata.labels;
            pod.object.metadata.namespace == meta.namespace
                && pod.is_meshed(&facts.asked.control_namespace)
                && service.spec.selector.iter().all(|(key, value)| labels.get(key) == Some(value))
        };
        let mut told = BTreeSet::new();
        for pod in pods.iter().filter(behind) {
            let own = pod.object.metadata.annotation(OPAQUE_PORTS);
            let of_pod = ports(&opaque_ports(facts, own, &meta.namespace));
            for port in service.spec.ports.iter().filter(|port| port.is_tcp()) {
                let (number, name) = match &port.target_port {
                    Some(IntOrString::Int(number)) => (Some(*number), None),
                    Some(IntOrString::String(name)) => (pod.object.named_port(name), Some(name.as_str())),
                    None => (Some(port.port), None),
                };
                let Some(number) = number else { continue };
                let (service_says, pod_says) =
                    (of_service(port.port, Some(&port.name)), of_pod(number, name));
                if service_says != pod_says && told.insert(port.port) {
                    let (yes, no) =
                        if service_says { ("the Service", "the pod") } else { ("the pod", "the Service") };
                    found.problem(format!(
                        "port {} of Service {} is port {number} of pod {}: opaque for {yes}, not for {no}",
                        port.port,
                        meta.key(),
                        pod.name()
                    ));
                }
            }
        }
    }
    found.reply("ports of which it is not agreed whether they are opaque:")
}

/// Fingerprints of the anchors that a pod's proxy trusts, from what it counts or from its environment.
pub(super) fn trusted(facts: &Facts, pod: &Pod) -> Option<BTreeSet<String>> {
    let said = facts.proxies.get(&pod.name()).and_then(|read| read.as_ref().ok()).map(|proxy| {
        let anchors = proxy.family("weft_identity_trust_anchor_expiration_timestamp_seconds");
        anchors.filter(|sample| sample.value > 0.0).map(|sample| sample.label("sha256").to_owned()).collect()
    });
    said.filter(|anchors: &BTreeSet<String>| !anchors.is_empty())
        .or_else(|| pod.proxy.as_ref()?.anchors.clone())
}

fn anchors(facts: &Facts) -> Reply {
    let Some(Roots { anchors, .. }) = facts.plane.roots.as_ref()? else { return Ok(Answer::Idle) };
    let wanted: BTreeSet<String> = anchors.iter().map(|anchor| anchor.sha256.clone()).collect();
    let mut found = Findings::default();
    for pod in facts.meshed_pods()?.filter(|pod| pod.runs()) {
        match trusted(facts, pod) {
            Some(trusted) if trusted == wanted => {}
            Some(trusted) => {
                let short = |name: &String| name.get(..12).unwrap_or_default().to_owned();
                let lacks: Vec<String> = wanted.difference(&trusted).map(short).collect();
                let has: Vec<String> = trusted.difference(&wanted).map(short).collect();
                found.problem(format!(
                    "{}: lacks [{}], has besides [{}]",
                    pod.name(),
                    lacks.join(" "),
                    has.join(" ")
                ));
            }
            None if facts.proxies.get(&pod.name()).is_some_and(Result::is_ok) => {
                found.unknown(format!("{}: its proxy does not tell what it trusts", pod.name()));
            }
            None => {}
        }
    }
    proxies::unknown(facts, &mut found);
    found.reply("proxies with other trust anchors:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::healthy::{healthy, rename};

    fn bad(reply: Reply) -> String {
        match reply {
            Ok(Answer::Bad(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_healthy_data_plane() {
        let facts = healthy();
        for category in [DATA_PLANE, OPAQUE, IDENTITY] {
            for check in category.checks.iter().filter(|check| check.id != "l5d-data-plane-version") {
                let answer = check.answer(&facts);
                assert!(matches!(answer, Answer::Good | Answer::Idle), "{} {answer:?}", check.id);
            }
        }
    }

    #[test]
    fn proxies_that_are_not_ready_are_named() {
        let mut facts = healthy();
        let web = &mut facts.pods.as_mut().unwrap()[0];
        web.proxy.as_mut().unwrap().ready = false;
        web.waiting = Some("container linkerd-proxy: CrashLoopBackOff".into());
        assert!(bad(ready(&facts)).contains("shop/web-1: container linkerd-proxy: CrashLoopBackOff"));
        facts.asked.namespace = Some("empty".into());
        assert!(bad(ready(&facts)).contains("no pod of namespace empty has a proxy"));
        assert!(bad(namespace(&facts)).contains("empty"));
    }

    #[test]
    fn labels_and_annotations_in_each_others_place() {
        let mut facts = healthy();
        let web = &mut facts.pods.as_mut().unwrap()[0].object.metadata;
        web.labels = rename(&web.labels, "linkerd.io/inject", "enabled");
        let store = &mut facts.services.as_mut().unwrap()[0].metadata;
        store.labels = rename(&store.labels, "config.linkerd.io/opaque-ports", "80");
        store.annotations = rename(&store.annotations, "mirror.linkerd.io/exported", "true");
        assert!(bad(pod_labels(&facts)).contains("shop/web-1: linkerd.io/inject"));
        assert!(bad(service_labels(&facts)).contains("shop/store"));
        assert!(bad(service_annotations(&facts)).contains("shop/store"));
    }

    #[test]
    fn a_port_that_is_opaque_for_one_side_only() {
        let mut facts = healthy();
        let service = &mut facts.services.as_mut().unwrap()[0].metadata;
        service.annotations = rename(&service.annotations, OPAQUE_PORTS, "80");
        assert!(bad(opaque(&facts)).contains(
            "port 80 of Service shop/store is port 8080 of pod shop/store-1: opaque for the Service"
        ));
        let pod = &mut facts.pods.as_mut().unwrap()[1].object.metadata;
        pod.annotations = rename(&pod.annotations, OPAQUE_PORTS, "25,8000-8100");
        assert_eq!(opaque(&facts), Ok(Answer::Good));
    }

    #[test]
    fn lists_of_ports() {
        let of = ports("25, 4000-4010 ,web");
        assert!(of(25, None) && of(4005, None) && of(80, Some("web")));
        assert!(!of(26, None) && !of(80, Some("other")) && !ports("")(1, Some("x")));
    }

    #[test]
    fn other_anchors_than_the_control_planes() {
        let mut facts = healthy();
        facts.plane.roots.as_mut().unwrap().as_mut().unwrap().anchors[0].sha256 = "ffffffffffffffff".into();
        assert!(bad(anchors(&facts)).contains("shop/web-1: lacks [ffffffffffff]"));
    }
}
