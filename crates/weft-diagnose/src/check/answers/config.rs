//! Are the control plane's own objects there?

use super::super::{
    Answer, Category, Check, Reply,
    facts::{Facts, Plane, Read},
    names::{ACCOUNTS, MUTATING, VALIDATING, WEFT_CONTROLLER},
};
use super::api;
use std::collections::BTreeSet;

const REINSTALL: &str = "Apply the installation again: `weft upgrade | kubectl apply -f -`, or your chart.";
const PRUNED: &str =
    "An object of the installation is missing: it was deleted, pruned by another tool, or never applied.";

pub(in super::super) const CONFIG: Category = Category {
    name: "linkerd-config",
    checks: &[
        Check::error("l5d-existence-ns", "control plane Namespace exists", namespace).fatal().doc(
            "There is no namespace of this name, so there is no control plane in it.",
            "`weft install | kubectl apply -f -`; if it is in another namespace, name that with `-L`.",
        ),
        Check::error("l5d-existence-cr", "control plane ClusterRoles exist", roles).fatal().doc(PRUNED, REINSTALL),
        Check::error("l5d-existence-crb", "control plane ClusterRoleBindings exist", bindings)
            .fatal()
            .doc(PRUNED, REINSTALL),
        Check::error("l5d-existence-sa", "control plane ServiceAccounts exist", accounts)
            .fatal()
            .doc(PRUNED, REINSTALL),
        Check::error("l5d-existence-crd", "control plane CustomResourceDefinitions exist", api::definitions)
            .fatal()
            .doc(
                "Kinds that the control plane reads are not defined.",
                "`weft install --crds | kubectl apply -f -`.",
            ),
        Check::error("l5d-existence-mwc", "control plane MutatingWebhookConfigurations exist", mutating)
            .fatal()
            .doc(PRUNED, "Apply the installation again: without it, no pod gets a proxy."),
        Check::error("l5d-existence-vwc", "control plane ValidatingWebhookConfigurations exist", validating)
            .fatal()
            .doc(PRUNED, "Apply the installation again: without it, mistakes in policies are accepted."),
        Check::error(
            "l5d-proxy-init-run-as-root",
            "proxy-init container runs as root user if docker container runtime is used",
            run_as_root,
        )
        .doc(
            "A node runs Docker, which ignores the capabilities of files: the redirect of a pod that is not set up by root fails.",
            "`weft upgrade --set proxyInit.runAsRoot=true | kubectl apply -f -`.",
        ),
    ],
};

fn namespace(facts: &Facts) -> Reply {
    let wanted = &facts.asked.control_namespace;
    let there = facts.namespaces.as_ref()?.iter().any(|namespace| namespace.name == *wanted);
    Answer::if_so(there, || format!("there is no namespace {wanted:?}"))
}

fn all_in(found: &Read<BTreeSet<String>>, wanted: &[String]) -> Reply {
    let found = found.as_ref()?;
    let missing: Vec<&str> =
        wanted.iter().filter(|name| !found.contains(*name)).map(String::as_str).collect();
    Answer::if_so(missing.is_empty(), || format!("missing: {}", missing.join(", ")))
}

/// Names of cluster-wide roles, which are also their bindings'. None where the controller is no pod.
fn role_names(facts: &Facts) -> Read<Vec<String>> {
    let namespace = &facts.asked.control_namespace;
    Ok(match facts.plane()? {
        None | Some(Plane::Local) => Vec::new(),
        Some(Plane::Weft) => vec![format!("weft-{namespace}-controller")],
        Some(Plane::Linkerd) => ["destination", "identity", "proxy-injector"]
            .map(|component| format!("linkerd-{namespace}-{component}"))
            .to_vec(),
    })
}

fn roles(facts: &Facts) -> Reply {
    match role_names(facts)? {
        none if none.is_empty() => Ok(Answer::Idle),
        names => all_in(&facts.plane.cluster_roles, &names),
    }
}

fn bindings(facts: &Facts) -> Reply {
    match role_names(facts)? {
        none if none.is_empty() => Ok(Answer::Idle),
        names => all_in(&facts.plane.cluster_role_bindings, &names),
    }
}

fn accounts(facts: &Facts) -> Reply {
    let mut wanted = ACCOUNTS.map(str::to_owned).to_vec();
    wanted.extend((facts.plane()? == Some(Plane::Weft)).then(|| WEFT_CONTROLLER.to_owned()));
    all_in(&facts.plane.accounts, &wanted)
}

fn mutating(facts: &Facts) -> Reply {
    all_in(&facts.plane.mutating, &MUTATING.map(str::to_owned))
}

fn validating(facts: &Facts) -> Reply {
    all_in(&facts.plane.validating, &VALIDATING.map(str::to_owned))
}

fn run_as_root(facts: &Facts) -> Reply {
    let on = |path: &[&str]| -> Read<bool> {
        Ok(facts.setting(path)?.and_then(serde_json::Value::as_bool).unwrap_or(false))
    };
    if facts.plane()? == Some(Plane::Local) || on(&["cniEnabled"])? || on(&["proxyInit", "runAsRoot"])? {
        return Ok(Answer::Idle);
    }
    let nodes = facts.nodes.as_ref()?.iter();
    let docker: Vec<&str> =
        nodes.filter(|node| node.runtime.starts_with("docker:")).map(|node| node.name.as_str()).collect();
    Answer::if_so(docker.is_empty(), || {
        format!("proxyInit.runAsRoot is false, and Docker runs on {}", docker.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::healthy::{healthy, installed};

    #[test]
    fn what_is_missing_is_named() {
        let mut facts = installed();
        for check in CONFIG.checks {
            assert_eq!(check.answer(&facts), Answer::Good, "{}", check.id);
        }
        facts.plane.cluster_roles.as_mut().unwrap().clear();
        assert_eq!(roles(&facts), Ok(Answer::Bad("missing: weft-linkerd-controller".into())));
        facts.plane.accounts.as_mut().unwrap().remove("linkerd-identity");
        assert_eq!(accounts(&facts), Ok(Answer::Bad("missing: linkerd-identity".into())));
        facts.plane.validating.as_mut().unwrap().remove(VALIDATING[0]);
        assert_eq!(validating(&facts), Ok(Answer::Bad(format!("missing: {}", VALIDATING[0]))));
        facts.namespaces.as_mut().unwrap().clear();
        assert_eq!(namespace(&facts), Ok(Answer::Bad("there is no namespace \"linkerd\"".into())));
    }

    #[test]
    fn other_control_planes_have_other_names() {
        let mut facts = installed();
        facts.plane.config.as_mut().unwrap().as_mut().unwrap().created_by = "linkerd/helm edge-25.9.1".into();
        assert!(matches!(roles(&facts), Ok(Answer::Bad(why)) if why.contains("linkerd-linkerd-identity")));
        assert_eq!(roles(&healthy()), Ok(Answer::Idle), "weft up has none");
    }

    #[test]
    fn docker_needs_root() {
        let mut facts = installed();
        facts.nodes.as_mut().unwrap()[0].runtime = "docker://24.0".into();
        assert!(matches!(run_as_root(&facts), Ok(Answer::Bad(_))));
        let config = facts.plane.config.as_mut().unwrap().as_mut().unwrap();
        config.values["proxyInit"]["runAsRoot"] = true.into();
        assert_eq!(run_as_root(&facts), Ok(Answer::Idle));
    }
}
