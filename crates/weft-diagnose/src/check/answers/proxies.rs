//! The proxies of the control plane's own pods, and whether every proxy answers.

use super::{
    super::{
        Answer, Category, Check, Findings, Reply,
        facts::{Facts, Pod, Read},
    },
    version,
};

pub(in super::super) const CONTROL_PLANE: Category = Category {
    name: "linkerd-control-plane-proxy",
    checks: &[
        Check::error("l5d-cp-proxy-healthy", "control plane proxies are healthy", healthy).fatal().retried().doc(
            "The proxy of a control plane pod is not ready. weft's controller has no proxy in front of it; Linkerd's has.",
            "`kubectl -n linkerd logs POD -c linkerd-proxy` of the pod that is named.",
        ),
        Check::warning("l5d-cp-proxy-version", "control plane proxies are up-to-date", |facts| {
            of_control(facts, |facts, pods| version::proxies_current(facts, pods.into_iter()))
        })
        .doc(
            "A proxy is not at the version given with `--expected-version`; without one, nothing is known.",
            "Restart the control plane's Deployments after the upgrade.",
        ),
        Check::warning("l5d-cp-proxy-cli-version", "control plane proxies and cli versions match", |facts| {
            of_control(facts, |facts, pods| version::proxies_match_cli(facts, pods.into_iter()))
        })
        .doc(
            "A proxy of the control plane is of another version than this program.",
            "Upgrade the older of the two.",
        ),
    ],
};

pub(in super::super) const ANSWER: Category = Category {
    name: "weft-proxies",
    checks: &[
        Check::warning("weft-proxy-answers", "every proxy answers", answers).retried().doc(
            "The admin port (4191) of a proxy does not answer: the proxy is stopped, starved of CPU or gone, or the API server does not reach the pod. What is asked of proxies below is not known of it.",
            "`kubectl logs POD -c linkerd-proxy`; `weft exec` or `kubectl exec` into the pod and look at the process; compare its CPU limit with its use. A proxy that is stuck is helped by deleting the pod.",
        ),
        Check::warning("weft-unmeshed-pods", "pods that opted in have a proxy", opted_in).doc(
            "A pod started without a proxy although its namespace or itself asks for one: the injector was down, or the annotation came after the pod.",
            "Restart its workload: `kubectl rollout restart`. If new pods come without a proxy, too, see the webhooks' checks.",
        ),
    ],
};

fn proxied(facts: &Facts) -> Read<Vec<&Pod>> {
    Ok(facts.control_pods()?.filter(|pod| pod.proxy.is_some()).collect())
}

fn of_control(facts: &Facts, check: impl Fn(&Facts, Vec<&Pod>) -> Reply) -> Reply {
    match proxied(facts)? {
        none if none.is_empty() => Ok(Answer::Idle),
        pods => check(facts, pods),
    }
}

fn healthy(facts: &Facts) -> Reply {
    of_control(facts, |_, pods| {
        let unready = pods.iter().filter(|pod| !pod.proxy.as_ref().is_some_and(|proxy| proxy.ready));
        unready.map(|pod| pod.name().to_string()).collect::<Findings>().reply("not ready:")
    })
}

fn answers(facts: &Facts) -> Reply {
    facts.pods.as_ref()?;
    let mut found = Findings::default();
    for (pod, read) in &facts.proxies {
        match read {
            Ok(_) => {}
            Err(unread @ (super::super::Unread::Forbidden(_) | super::super::Unread::ByPolicy)) => {
                found.unknown(format!("{pod}: {unread}"));
            }
            Err(unread) => found.problem(format!("{pod}: {unread}")),
        }
    }
    found.reply("no answer from the proxy of:")
}

/// Tells of the proxies that did not answer, for checks that ask all of them. Their names are in one place only.
pub(super) fn unknown(facts: &Facts, found: &mut Findings) {
    let mut silent = facts.proxies.iter().filter(|(_, read)| read.is_err()).map(|(pod, _)| pod);
    let Some(first) = silent.next() else { return };
    let more = silent.count();
    let others = if more > 0 { format!(" and {more} more") } else { String::new() };
    found.unknown(format!("the proxy of {first}{others}: see weft-proxy-answers"));
}

const INJECT: &str = "linkerd.io/inject";

fn opted_in(facts: &Facts) -> Reply {
    if facts.plane()?.is_none() {
        return Ok(Answer::Idle);
    }
    let wants = |annotation: Option<&str>| annotation.map(|text| matches!(text, "enabled" | "ingress"));
    let namespaces = facts.namespaces.as_ref()?;
    let control = &facts.asked.control_namespace;
    let mut found = Findings::default();
    for pod in facts.pods.as_ref()?.iter().filter(|pod| facts.is_asked(pod)) {
        let (meta, spec) = (&pod.object.metadata, &pod.object.spec);
        let own = namespaces.iter().find(|namespace| namespace.name == meta.namespace);
        let wanted =
            wants(meta.annotation(INJECT)).or_else(|| wants(own.and_then(|ns| ns.annotation(INJECT))));
        // The injector leaves these alone, and says so in an event.
        let never = spec.host_network
            || meta.namespace == *control
            || meta.label("linkerd.io/cni-resource").is_some();
        // Of a kubelet's own: nobody is asked about these.
        let mirror = meta.owner_references.iter().any(|owner| owner.kind == "Node");
        let stays = !pod.object.is_finished() && !pod.object.is_terminating();
        if wanted == Some(true) && pod.proxy.is_none() && stays && !never && !mirror {
            found.problem(pod.name().to_string());
        }
    }
    found.reply("without a proxy:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::{
        Unread,
        healthy::{healthy as good, pod},
    };
    use weft_kube::meta::ObjectName;

    #[test]
    fn a_stopped_proxy_is_named_and_a_forbidden_one_unknown() {
        let mut facts = good();
        assert_eq!(answers(&facts), Ok(Answer::Good));
        let name = ObjectName::new("shop", "web-1");
        facts.proxies.insert(name.clone(), Err(Unread::Silent("no answer within 3 s".into())));
        assert!(
            matches!(answers(&facts), Ok(Answer::Bad(why)) if why.contains("shop/web-1: no answer within 3 s"))
        );
        facts.proxies.insert(name, Err(Unread::ByPolicy));
        assert!(matches!(answers(&facts), Ok(Answer::Unknown(why)) if why.contains("4191")));
    }

    #[test]
    fn control_plane_pods_without_proxies_are_not_asked_about() {
        let mut facts = crate::check::facts::healthy::installed();
        assert_eq!(healthy(&facts), Ok(Answer::Idle));
        let own = &mut facts.pods.as_mut().unwrap()[0];
        own.proxy = Some(Default::default());
        assert!(matches!(healthy(&facts), Ok(Answer::Bad(why)) if why.contains("linkerd/weft-controller-1")));
    }

    #[test]
    fn a_pod_that_should_have_a_proxy_is_found() {
        let mut facts = good();
        let mut bare = pod("shop", "bare", "10.77.0.30");
        bare.proxy = None;
        facts.pods.as_mut().unwrap().push(bare);
        // The namespace of the fixture opted in.
        assert!(matches!(opted_in(&facts), Ok(Answer::Bad(why)) if why.ends_with("* shop/bare")));
        facts.asked.namespace = Some("other".into());
        assert_eq!(opted_in(&facts), Ok(Answer::Good));
    }
}
