//! May the control plane be installed here?

use super::{
    super::{
        Answer, Category, Check, Findings, Reply,
        facts::{Facts, Right},
    },
    clocks,
};

const MEANS: &str =
    "Whoever installs must be allowed to create this kind of object in the control plane's namespace.";
const REMEDY: &str = "Install as somebody who may (`kubectl auth can-i --list`), or have it granted.";

pub(in super::super) const PRE: Category = Category {
    name: "pre-kubernetes-setup",
    checks: &[
        Check::error("pre-ns", "control plane namespace does not already exist", absent).doc(
            "The namespace is there already: a control plane may be in it, or what is left of one.",
            "`weft check` without `--pre` if one is installed; `weft install -L OTHER` for another namespace.",
        ),
        Check::error("pre-k8s-cluster-k8s", "can create non-namespaced resources", cluster_wide).doc(
            "An installation has a Namespace, ClusterRoles, definitions and webhook configurations.",
            "Install as an administrator of the cluster.",
        ),
        Check::error("pre-k8s", "can create ServiceAccounts", |f| may(f, "create", "serviceaccounts"))
            .doc(MEANS, REMEDY),
        Check::error("pre-k8s", "can create Services", |f| may(f, "create", "services")),
        Check::error("pre-k8s", "can create Deployments", |f| may(f, "create", "deployments")),
        Check::error("pre-k8s", "can create CronJobs", |f| may(f, "create", "cronjobs")),
        Check::error("pre-k8s", "can create ConfigMaps", |f| may(f, "create", "configmaps")),
        Check::error("pre-k8s", "can create Secrets", |f| may(f, "create", "secrets")),
        Check::error("pre-k8s", "can read Secrets", |f| may(f, "get", "secrets")),
        Check::error("pre-k8s", "can read extension-apiserver-authentication configmap", |f| {
            may(f, "get", "configmaps")
        }),
        Check::warning("pre-k8s-clock-skew", "no clock skew detected", clocks::api).doc(
            "The API server's clock and this machine's differ: certificates made here may not be valid there yet.",
            "Set the clocks by NTP.",
        ),
    ],
};

/// What is asked about before an installation in `namespace`: verb, group, resource; in the cluster where it is empty.
pub(in super::super) fn wanted(namespace: &str) -> Vec<Right> {
    let right = |verb: &str, group: &str, resource: &str, namespace: &str| Right {
        user: String::new(),
        verb: verb.into(),
        resource: resource.into(),
        group: group.into(),
        namespace: namespace.into(),
    };
    let rbac = "rbac.authorization.k8s.io";
    let hooks = "admissionregistration.k8s.io";
    vec![
        right("create", "", "namespaces", ""),
        right("create", rbac, "clusterroles", ""),
        right("create", rbac, "clusterrolebindings", ""),
        right("create", "apiextensions.k8s.io", "customresourcedefinitions", ""),
        right("create", hooks, "mutatingwebhookconfigurations", ""),
        right("create", hooks, "validatingwebhookconfigurations", ""),
        right("create", "", "serviceaccounts", namespace),
        right("create", "", "services", namespace),
        right("create", "apps", "deployments", namespace),
        right("create", "batch", "cronjobs", namespace),
        right("create", "", "configmaps", namespace),
        right("create", "", "secrets", namespace),
        right("get", "", "secrets", namespace),
        right("get", "", "configmaps", "kube-system"),
    ]
}

fn absent(facts: &Facts) -> Reply {
    let name = &facts.asked.control_namespace;
    let there = facts.namespaces.as_ref()?.iter().any(|namespace| namespace.name == *name);
    Answer::if_so(!there, || format!("there is a namespace {name:?}"))
}

fn cluster_wide(facts: &Facts) -> Reply {
    let all = facts.rights.as_ref()?.iter();
    all.filter(|(right, may)| right.namespace.is_empty() && !may)
        .map(|(right, _)| format!("{} {}", right.verb, right.named()))
        .collect::<Findings>()
        .reply("not permitted:")
}

fn may(facts: &Facts, verb: &str, resource: &str) -> Reply {
    let mut all = facts.rights.as_ref()?.iter();
    let asked = all
        .find(|(right, _)| right.verb == verb && right.resource == resource && !right.namespace.is_empty());
    Ok(match asked {
        Some((_, true)) => Answer::Good,
        Some((right, false)) => {
            Answer::Bad(format!("you may not {verb} {} in namespace {}", right.named(), right.namespace))
        }
        None => Answer::Unknown("it was not asked about".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::healthy::healthy;

    #[test]
    fn rights_are_told_one_by_one() {
        let mut facts = healthy();
        facts.asked.control_namespace = "mesh".into();
        facts.rights = Ok(wanted("mesh").into_iter().map(|right| (right, true)).collect());
        for check in PRE.checks {
            assert_eq!(check.answer(&facts), Answer::Good, "{}", check.says);
        }
        for (right, may) in facts.rights.as_mut().unwrap() {
            *may = right.resource != "clusterroles" && right.resource != "cronjobs";
        }
        let bad: Vec<String> = PRE
            .checks
            .iter()
            .filter_map(|check| match check.answer(&facts) {
                Answer::Bad(why) => Some(why),
                _ => None,
            })
            .collect();
        assert_eq!(bad.len(), 2, "{bad:?}");
        assert!(bad[0].contains("create clusterroles.rbac.authorization.k8s.io"), "{bad:?}");
        assert!(bad[1].contains("create cronjobs.batch in namespace mesh"), "{bad:?}");
        facts.asked.control_namespace = "linkerd".into();
        assert!(matches!(absent(&facts), Ok(Answer::Bad(_))));
    }
}
