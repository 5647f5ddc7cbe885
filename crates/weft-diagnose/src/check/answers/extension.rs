//! Extensions, and what a highly available control plane must have.

use super::super::{
    Answer, Category, Check, Findings, Reply,
    facts::{Facts, Plane},
    names::EXTENSION,
};
use serde_json::Value;
use std::collections::BTreeMap;

pub(in super::super) const EXTENSIONS: Category = Category {
    name: "linkerd-extension-checks",
    checks: &[
        Check::warning("l5d-extension-namespaces", "namespace configuration for extensions", namespaces).doc(
            "Two namespaces claim to be the same extension's: its commands cannot know which is meant.",
            "Take the label `linkerd.io/extension` off the one that is not.",
        ),
        Check::warning("extensions", "commands of the installed extensions exist", commands).doc(
            "A namespace says that an extension is installed, and this machine has no command `weft-NAME` or `linkerd-NAME` that could check it; or the command was asked (`check --output json`) and did not answer.",
            "Put the extension's command on PATH; run it by hand to see what it says.",
        ),
    ],
};

pub(in super::super) const HA: Category = Category {
    name: "linkerd-ha-checks",
    checks: &[Check::warning(
        "l5d-control-plane-replicas",
        "multiple replicas of control plane pods",
        replicas,
    )
    .retried()
    .doc(
        "The control plane was installed to be highly available, and has one ready pod only.",
        "See why the others are not ready: `kubectl -n linkerd get pods`.",
    )],
};

fn namespaces(facts: &Facts) -> Reply {
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for namespace in facts.namespaces.as_ref()? {
        if let Some(extension) = namespace.label(EXTENSION) {
            by_name.entry(extension).or_default().push(&namespace.name);
        }
    }
    let several = by_name.into_iter().filter(|(_, namespaces)| namespaces.len() > 1);
    several
        .map(|(extension, namespaces)| format!("{extension}: {}", namespaces.join(", ")))
        .collect::<Findings>()
        .reply("extensions in more than one namespace:")
}

fn commands(facts: &Facts) -> Reply {
    facts.namespaces.as_ref()?;
    let missing = facts.extensions().into_iter().filter(|name| !facts.asked.commands.contains(name));
    missing.map(|name| format!("weft-{name} or linkerd-{name}")).collect::<Findings>().reply("not on PATH:")
}

fn replicas(facts: &Facts) -> Reply {
    let is_ha = facts.setting(&["highAvailability"])?.and_then(Value::as_bool).unwrap_or(false)
        || facts.setting(&["controllerReplicas"])?.and_then(Value::as_u64).unwrap_or(1) > 1;
    if !is_ha || facts.plane()? == Some(Plane::Local) {
        return Ok(Answer::Idle);
    }
    let deployments = facts.plane.workloads.as_ref()?.iter().filter(|workload| workload.kind == "Deployment");
    deployments
        .filter(|deployment| deployment.ready < 2)
        .map(|deployment| format!("{}: {} ready", deployment.name, deployment.ready))
        .collect::<Findings>()
        .reply("not enough replicas:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::healthy::{installed, rename};

    #[test]
    fn an_extension_has_one_namespace() {
        let mut facts = installed();
        assert_eq!(namespaces(&facts), Ok(Answer::Good));
        for namespace in facts.namespaces.as_mut().unwrap() {
            namespace.labels = rename(&namespace.labels, EXTENSION, "viz");
        }
        assert!(matches!(namespaces(&facts), Ok(Answer::Bad(why)) if why.contains("viz: linkerd, shop")));
    }

    #[test]
    fn an_extension_without_a_command_is_named() {
        let mut facts = installed();
        assert_eq!(commands(&facts), Ok(Answer::Good));
        let shop = &mut facts.namespaces.as_mut().unwrap()[1];
        shop.labels = rename(&shop.labels, EXTENSION, "viz");
        assert!(matches!(commands(&facts), Ok(Answer::Bad(why)) if why.contains("linkerd-viz")));
        facts.asked.commands.insert("viz".into());
        assert_eq!(commands(&facts), Ok(Answer::Good));
    }

    #[test]
    fn high_availability_is_two_that_are_ready() {
        let mut facts = installed();
        assert_eq!(replicas(&facts), Ok(Answer::Idle));
        let config = facts.plane.config.as_mut().unwrap().as_mut().unwrap();
        config.values["controllerReplicas"] = 3.into();
        assert!(matches!(replicas(&facts), Ok(Answer::Bad(why)) if why.contains("weft-controller: 1 ready")));
    }
}
