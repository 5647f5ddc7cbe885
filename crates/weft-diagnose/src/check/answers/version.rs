//! Is everything at the version that it should be? What is newest is not looked up: no request leaves the cluster.

use super::super::{
    Answer, Category, Check, Findings, Reply,
    facts::{Facts, Plane, Pod},
    names::PROXY_VERSION,
};
use serde_json::Value;

const NOT_LOOKED_UP: &str = "not looked up: weft asks nobody outside of the cluster. --expected-version VERSION compares with one that you know";

pub(in super::super) const LATEST: Category = Category {
    name: "linkerd-version",
    checks: &[
        Check::warning("l5d-version-latest", "can determine the latest version", latest).doc(
            "Which version is newest is not looked up, since no request is made outside of the cluster.",
            "Give the version that everything should have: `weft check --expected-version VERSION`.",
        ),
        Check::warning("l5d-version-cli", "cli is up-to-date", cli).doc(
            "This program is not at the version given with `--expected-version`; without one, nothing is known.",
            "Install the version that is wanted.",
        ),
    ],
};

pub(in super::super) const CONTROL_PLANE: Category = Category {
    name: "control-plane-version",
    checks: &[
        Check::error("l5d-version-control", "can retrieve the control plane version", retrieved)
            .fatal()
            .retried()
            .doc("The settings of the control plane name no version.", "Install or upgrade it again."),
        Check::warning("l5d-version-control", "control plane is up-to-date", control_plane).doc(
            "The control plane is not at the version given with `--expected-version`; without one, nothing is known.",
            "`weft upgrade | kubectl apply -f -` with that version's program.",
        ),
        Check::warning("l5d-version-control", "control plane and cli versions match", matches_cli).doc(
            "This program and the control plane are of different versions: what one prints or asks, the other may not know.",
            "Upgrade the older of the two.",
        ),
    ],
};

/// The version of the control plane; `None` where there is none.
pub(super) fn of_control_plane(facts: &Facts) -> Result<Option<String>, super::super::Unread> {
    if facts.plane()? == Some(Plane::Local) {
        let config = facts.plane.config.as_ref()?;
        let by = config.as_ref().map(|config| config.created_by.as_str()).unwrap_or_default();
        return Ok(by.split_once(' ').map(|(_, version)| version.to_owned()));
    }
    let text = |path: &[&str]| -> Result<Option<String>, super::super::Unread> {
        let found = facts.setting(path)?.and_then(Value::as_str).filter(|text| !text.is_empty());
        Ok(found.map(str::to_owned))
    };
    Ok(match text(&["controllerImageVersion"])? {
        Some(version) => Some(version),
        None => text(&["linkerdVersion"])?,
    })
}

fn latest(facts: &Facts) -> Reply {
    Ok(match facts.asked.expected_version {
        Some(_) => Answer::Good,
        None => Answer::Unknown(NOT_LOOKED_UP.into()),
    })
}

fn cli(facts: &Facts) -> Reply {
    compared(facts, "this program", &facts.asked.own_version)
}

/// With what everything should be at.
fn compared(facts: &Facts, what: &str, version: &str) -> Reply {
    match &facts.asked.expected_version {
        None => Ok(Answer::Unknown(NOT_LOOKED_UP.into())),
        Some(expected) => Answer::if_so(version == expected, || {
            format!("{what} is at version {version}, and {expected} is expected")
        }),
    }
}

fn retrieved(facts: &Facts) -> Reply {
    let found = of_control_plane(facts)?;
    Answer::if_so(found.is_some(), || "its settings name no version".into())
}

fn control_plane(facts: &Facts) -> Reply {
    match of_control_plane(facts)? {
        Some(version) => compared(facts, "the control plane", &version),
        None => Ok(Answer::Idle),
    }
}

fn matches_cli(facts: &Facts) -> Reply {
    // Of two projects the numbers say nothing about each other.
    if facts.plane()? == Some(Plane::Linkerd) {
        return Ok(Answer::Idle);
    }
    let own = &facts.asked.own_version;
    Ok(match of_control_plane(facts)? {
        Some(version) if version == *own => Answer::Good,
        Some(version) => {
            Answer::Bad(format!("the control plane is at version {version}, this program at {own}"))
        }
        None => Answer::Idle,
    })
}

/// The version of a pod's proxy.
fn of_proxy(pod: &Pod) -> Option<&str> {
    let noted = pod.object.metadata.annotation(PROXY_VERSION);
    noted.or_else(|| Some(pod.proxy.as_ref()?.image.rsplit_once(':')?.1))
}

/// Whether proxies are at the version that is expected.
pub(super) fn proxies_current<'p>(facts: &Facts, pods: impl Iterator<Item = &'p Pod>) -> Reply {
    let Some(expected) = &facts.asked.expected_version else {
        return Ok(Answer::Unknown(NOT_LOOKED_UP.into()));
    };
    differing(pods, expected).reply(&format!("not at version {expected}:"))
}

/// Whether proxies are at this program's version.
pub(super) fn proxies_match_cli<'p>(facts: &Facts, pods: impl Iterator<Item = &'p Pod>) -> Reply {
    if facts.plane()? == Some(Plane::Linkerd) {
        return Ok(Answer::Idle);
    }
    let own = &facts.asked.own_version;
    differing(pods, own).reply(&format!("not at version {own} of this program:"))
}

fn differing<'p>(pods: impl Iterator<Item = &'p Pod>, wanted: &str) -> Findings {
    pods.filter_map(|pod| match of_proxy(pod) {
        Some(version) if version == wanted => None,
        Some(version) => Some(format!("{} ({version})", pod.name())),
        None => Some(format!("{} (of no version)", pod.name())),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::healthy::healthy;

    #[test]
    fn the_newest_version_is_never_claimed_to_be_known() {
        let mut facts = healthy();
        for check in [latest, cli, control_plane] {
            assert!(matches!(check(&facts), Ok(Answer::Unknown(_))));
        }
        facts.asked.expected_version = Some("0.1.0".into());
        for check in [latest, cli, control_plane] {
            assert_eq!(check(&facts), Ok(Answer::Good));
        }
        facts.asked.expected_version = Some("0.2.0".into());
        assert!(matches!(control_plane(&facts), Ok(Answer::Bad(why)) if why.contains("0.2.0 is expected")));
    }

    #[test]
    fn another_projects_numbers_are_not_compared() {
        let mut facts = healthy();
        assert_eq!(matches_cli(&facts), Ok(Answer::Good));
        facts.asked.own_version = "0.3.0".into();
        assert!(matches!(matches_cli(&facts), Ok(Answer::Bad(_))));
        facts.plane.config.as_mut().unwrap().as_mut().unwrap().created_by = "linkerd/cli edge-25.1.1".into();
        assert_eq!(matches_cli(&facts), Ok(Answer::Idle));
        // Its settings name it elsewhere.
        assert!(matches!(retrieved(&facts), Ok(Answer::Bad(_))));
    }

    #[test]
    fn proxies_of_other_versions_are_named() {
        let mut facts = healthy();
        facts.asked.own_version = "0.9.0".into();
        let said = proxies_match_cli(&facts, facts.meshed_pods().unwrap());
        assert!(matches!(said, Ok(Answer::Bad(why)) if why.contains("shop/web-1 (0.1.0)")));
    }
}
