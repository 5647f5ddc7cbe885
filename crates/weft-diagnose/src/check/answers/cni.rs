//! The CNI plugin, where one redirects pods.

use super::super::{
    Answer, Category, Check, Reply,
    facts::{Facts, Read},
    names::{CNI, CNI_CONFIG_MAP},
};
use serde_json::Value;
use std::collections::BTreeSet;

const MEANS: &str = "A CNI plugin is to redirect pods (`cniEnabled`, or `--linkerd-cni-enabled`), and a part of it is missing: pods that start now are not redirected.";
const REMEDY: &str = "`weft install-cni | kubectl apply -f -`; if it is in another namespace, name that with `--cni-namespace`.";

pub(in super::super) const PLUGIN: Category = Category {
    name: "linkerd-cni-plugin",
    checks: &[
        Check::error("cni-plugin-cm-exists", "cni plugin ConfigMap exists", |f| {
            exists(f, CNI_CONFIG_MAP, &f.cni.config_map)
        })
        .fatal()
        .doc(MEANS, REMEDY),
        Check::error("cni-plugin-cr-exists", "cni plugin ClusterRole exists", |f| named(f, &f.plane.cluster_roles))
            .fatal()
            .doc(MEANS, REMEDY),
        Check::error("cni-plugin-crb-exists", "cni plugin ClusterRoleBinding exists", |f| {
            named(f, &f.plane.cluster_role_bindings)
        })
        .fatal()
        .doc(MEANS, REMEDY),
        Check::error("cni-plugin-sa-exists", "cni plugin ServiceAccount exists", |f| {
            exists(f, CNI, &f.cni.account)
        })
        .fatal()
        .doc(MEANS, REMEDY),
        Check::error("cni-plugin-ds-exists", "cni plugin DaemonSet exists", daemon_set).fatal().doc(MEANS, REMEDY),
        Check::error("cni-plugin-ready", "cni plugin pod is running on all nodes", ready).fatal().retried().doc(
            "On some node the plugin's pod is not ready: pods that start there are not redirected, or wait.",
            "`kubectl -n linkerd-cni get pods -o wide`, and the log of the one that is not ready.",
        ),
    ],
};

fn is_wanted(facts: &Facts) -> Read<bool> {
    Ok(facts.asked.cni_enabled || facts.setting(&["cniEnabled"])?.and_then(Value::as_bool).unwrap_or(false))
}

fn exists(facts: &Facts, name: &str, there: &Read<bool>) -> Reply {
    if !is_wanted(facts)? {
        return Ok(Answer::Idle);
    }
    Answer::if_so(*there.as_ref()?, || {
        format!("there is no {name} in namespace {}", facts.asked.cni_namespace)
    })
}

fn named(facts: &Facts, all: &Read<BTreeSet<String>>) -> Reply {
    if !is_wanted(facts)? {
        return Ok(Answer::Idle);
    }
    Answer::if_so(all.as_ref()?.contains(CNI), || format!("there is none called {CNI}"))
}

fn daemon_set(facts: &Facts) -> Reply {
    if !is_wanted(facts)? {
        return Ok(Answer::Idle);
    }
    let there = facts.cni.daemon_set.as_ref()?.is_some();
    Answer::if_so(there, || format!("there is no {CNI} in namespace {}", facts.asked.cni_namespace))
}

fn ready(facts: &Facts) -> Reply {
    if !is_wanted(facts)? {
        return Ok(Answer::Idle);
    }
    let Some(set) = facts.cni.daemon_set.as_ref()? else { return Ok(Answer::Idle) };
    Answer::if_so(set.ready >= set.wanted, || format!("{} of {} pods are ready", set.ready, set.wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::{Workload, healthy::healthy};

    #[test]
    fn the_plugin_is_asked_about_where_it_is_wanted() {
        let mut facts = healthy();
        assert!(PLUGIN.checks.iter().all(|check| check.answer(&facts) == Answer::Idle));
        facts.asked.cni_enabled = true;
        let bad = |facts: &Facts| {
            PLUGIN.checks.iter().filter(|c| matches!(c.answer(facts), Answer::Bad(_))).count()
        };
        assert_eq!(bad(&facts), 5, "all but the pods of a DaemonSet that is not there");
        facts.cni.config_map = Ok(true);
        facts.cni.account = Ok(true);
        facts.plane.cluster_roles.as_mut().unwrap().insert(CNI.into());
        facts.plane.cluster_role_bindings.as_mut().unwrap().insert(CNI.into());
        let set = Workload { kind: "DaemonSet", name: CNI.into(), wanted: 3, ready: 2 };
        facts.cni.daemon_set = Ok(Some(set));
        assert_eq!(ready(&facts), Ok(Answer::Bad("2 of 3 pods are ready".into())));
        assert_eq!(bad(&facts), 1);
    }
}
