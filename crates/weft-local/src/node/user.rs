//! As whom a container runs, and with which capabilities.

use crate::{rights::Rights, runtime::launch::User};
use k8s_openapi::api::core::v1::{Container, Pod};
use rustix::thread::CapabilitySet;
use weft_fault::{Code, Fault, Phase};
use weft_net::namespace::CONTAINER_CAPABILITIES;

/// Containers of these images run weft itself.
const WEFT_IMAGE: &str = "weft.dev/weft:";
const PROXY: &str = "linkerd-proxy";
const PROXY_UID: u32 = 2102;
/// An application with one of these could step around the redirect; only what sets it up, and a proxy that is known by its
/// mark, may have them.
const NETWORK: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW);

/// Decides the user of a container.
pub(super) fn user(pod: &Pod, container: &Container, rights: Rights) -> Result<User, Fault> {
    let asked = Asked::of(pod, container);
    let weft = is_weft(container);
    if rights == Rights::User && !weft {
        asked.refuse_others(&container.name)?;
    }
    let is_proxy = weft && container.name == PROXY;
    let uid = asked.uid.unwrap_or(if is_proxy { PROXY_UID } else { 0 });
    if asked.non_root && uid == 0 {
        return Err(Fault::new(Code::BadManifest)
            .in_phase(Phase::Start)
            .about(&container.name)
            .fact("problem", "runAsNonRoot is set and the user is root: set runAsUser"));
    }
    let grantable = if weft { CONTAINER_CAPABILITIES | NETWORK } else { CONTAINER_CAPABILITIES };
    let added = asked.added & grantable;
    let as_root = CONTAINER_CAPABILITIES.difference(asked.dropped) | added;
    Ok(match (rights, uid) {
        (Rights::Root, _) => User {
            uid,
            // Not 0 for other users: on this machine's files the group root means something.
            gid: asked.gid.unwrap_or(uid),
            groups: Some(asked.groups),
            bounding: as_root.bits(),
            // A user other than root has what was added only.
            ambient: if uid == 0 { 0 } else { added.bits() },
        },
        (Rights::User, 0) => User::the_mapped_one(as_root),
        // weft's own containers need no user of their own. They get what that user would have had, and the mark.
        (Rights::User, _) => {
            User::the_mapped_one(if is_proxy { added | CapabilitySet::NET_RAW } else { added })
        }
    })
}

/// Whether the container runs weft itself.
pub(super) fn is_weft(container: &Container) -> bool {
    container.image.as_deref().is_some_and(|i| i.starts_with(WEFT_IMAGE))
}

impl User {
    /// The user who ran `weft up`, known as 0. Its groups are what they are.
    fn the_mapped_one(bounding: CapabilitySet) -> Self {
        User { uid: 0, gid: 0, groups: None, bounding: bounding.bits(), ambient: 0 }
    }
}

/// What a container's own security context asks for, and else its pod's.
struct Asked {
    uid: Option<u32>,
    gid: Option<u32>,
    /// Besides the first one.
    groups: Vec<u32>,
    fs_group: Option<u32>,
    non_root: bool,
    added: CapabilitySet,
    dropped: CapabilitySet,
}

impl Asked {
    fn of(pod: &Pod, container: &Container) -> Self {
        let of_pod = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
        let own = container.security_context.as_ref();
        let id = |n: Option<i64>| n.and_then(|n| u32::try_from(n).ok());
        let fs_group = id(of_pod.and_then(|s| s.fs_group));
        let supplemental = of_pod.and_then(|s| s.supplemental_groups.clone()).unwrap_or_default();
        let capabilities = own.and_then(|s| s.capabilities.as_ref());
        let named = |list: Option<&Vec<String>>| -> CapabilitySet {
            list.into_iter().flatten().map(|name| capability(name)).collect()
        };
        Asked {
            uid: id(own.and_then(|s| s.run_as_user)).or_else(|| id(of_pod.and_then(|s| s.run_as_user))),
            gid: id(own.and_then(|s| s.run_as_group)).or_else(|| id(of_pod.and_then(|s| s.run_as_group))),
            groups: supplemental.into_iter().filter_map(|g| id(Some(g))).chain(fs_group).collect(),
            fs_group,
            non_root: own.and_then(|s| s.run_as_non_root).or_else(|| of_pod.and_then(|s| s.run_as_non_root))
                == Some(true),
            added: named(capabilities.and_then(|c| c.add.as_ref())),
            dropped: named(capabilities.and_then(|c| c.drop.as_ref())),
        }
    }

    /// A user namespace of an ordinary user's knows that user and group alone: to run as 0 in place of another would be
    /// something else than what was asked for.
    fn refuse_others(&self, container: &str) -> Result<(), Fault> {
        let others = [
            ("runAsUser", self.uid),
            ("runAsGroup", self.gid),
            ("fsGroup", self.fs_group),
            (
                "supplementalGroups",
                self.groups.iter().copied().find(|g| *g != 0 && Some(*g) != self.fs_group),
            ),
        ];
        let others = others.into_iter().filter_map(|(field, id)| Some((field, id.filter(|id| *id != 0)?)));
        let mut refused = None;
        for (field, id) in others {
            let fault = refused.unwrap_or_else(|| {
                Fault::new(Code::UserNotMapped).in_phase(Phase::Start).about(container).fact("mapped", 0)
            });
            refused = Some(fault.fact(field, id));
        }
        refused.map_or(Ok(()), Err)
    }
}

fn capability(name: &str) -> CapabilitySet {
    let name = name.strip_prefix("CAP_").unwrap_or(name);
    if name == "ALL" {
        CapabilitySet::all()
    } else {
        CapabilitySet::from_name(name).unwrap_or(CapabilitySet::empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(pod: Value, container: Value, rights: Rights) -> Result<User, Fault> {
        let pod: Pod =
            serde_json::from_value(json!({"spec": {"containers": [container], "securityContext": pod}}))
                .unwrap();
        user(&pod, &pod.spec.as_ref().unwrap().containers[0], rights)
    }

    fn bits(user: u64) -> CapabilitySet {
        CapabilitySet::from_bits_retain(user)
    }

    fn proxy() -> Value {
        json!({"name": "linkerd-proxy", "image": "weft.dev/weft:v1",
            "securityContext": {"runAsUser": 2102, "capabilities": {"drop": ["ALL"]}}})
    }

    fn set_up() -> Value {
        json!({"name": "linkerd-init", "image": "weft.dev/weft:v1",
            "securityContext": {"runAsUser": 65534, "capabilities": {"add": ["NET_ADMIN", "NET_RAW", "SYS_ADMIN"]}}})
    }

    #[test]
    fn users_and_capabilities() {
        let user = |c: Value| of(json!({}), c, Rights::Root);
        let found = user(json!({"name": "linkerd-proxy", "image": "weft.dev/weft:v1"})).unwrap();
        assert_eq!((found.uid, found.ambient), (2102, 0));
        let found = user(set_up()).unwrap();
        assert_eq!(bits(found.ambient), NETWORK);
        let app = json!({"name": "app", "command": ["x"],
            "securityContext": {"capabilities": {"add": ["NET_ADMIN"], "drop": ["CHOWN"]}}});
        let held = bits(user(app).unwrap().bounding);
        assert!(!held.intersects(NETWORK | CapabilitySet::CHOWN));
        assert!(held.contains(CapabilitySet::KILL));
        let all = user(
            json!({"name": "a", "command": ["x"], "securityContext": {"capabilities": {"drop": ["ALL"]}}}),
        );
        assert_eq!(all.unwrap().bounding, 0);
        let non_root = json!({"name": "a", "command": ["x"], "securityContext": {"runAsNonRoot": true}});
        assert!(user(non_root).is_err());
        let grouped = of(
            json!({"runAsUser": 7, "runAsGroup": 8, "fsGroup": 9, "supplementalGroups": [10]}),
            json!({"name": "a", "command": ["x"]}),
            Rights::Root,
        );
        let grouped = grouped.unwrap();
        assert_eq!((grouped.uid, grouped.gid, grouped.groups), (7, 8, Some(vec![10, 9])));
    }

    #[test]
    fn without_root_everybody_is_the_one_user_and_only_weft_holds_what_it_needs() {
        let user = |c: Value| of(json!({}), c, Rights::User).unwrap();
        let found = user(proxy());
        assert_eq!((found.uid, found.gid, found.groups, found.ambient), (0, 0, None, 0));
        assert_eq!(bits(found.bounding), CapabilitySet::NET_RAW);
        assert_eq!(bits(user(set_up()).bounding), NETWORK);
        let app = json!({"name": "app", "command": ["x"],
            "securityContext": {"runAsUser": 0, "capabilities": {"add": ["NET_RAW"]}}});
        assert_eq!(bits(user(app).bounding), CONTAINER_CAPABILITIES);
    }

    #[test]
    fn without_root_other_users_are_refused_with_every_field_that_names_one() {
        let app = || json!({"name": "app", "command": ["x"]});
        for (pod, fields) in [
            (json!({"runAsUser": 1000}), &["runAsUser"][..]),
            (json!({"runAsUser": 1000, "runAsGroup": 7}), &["runAsUser", "runAsGroup"]),
            (json!({"runAsGroup": 7}), &["runAsGroup"]),
            (json!({"fsGroup": 7}), &["fsGroup"]),
            (json!({"fsGroup": 7, "supplementalGroups": [8]}), &["fsGroup", "supplementalGroups"]),
        ] {
            let fault = of(pod.clone(), app(), Rights::User).unwrap_err();
            assert_eq!(fault.code(), Code::UserNotMapped);
            let record = fault.record();
            for field in ["runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"] {
                assert_eq!(record.fact(field).is_some(), fields.contains(&field), "{pod}: {field}");
            }
            // The proxy beside it is no reason to refuse.
            assert!(of(pod, proxy(), Rights::User).is_ok());
        }
        let zeros = json!({"runAsUser": 0, "runAsGroup": 0, "fsGroup": 0, "supplementalGroups": [0]});
        assert!(of(zeros, app(), Rights::User).is_ok());
        // The container's own wins over the pod's.
        let own = json!({"name": "app", "command": ["x"], "securityContext": {"runAsUser": 0}});
        assert!(of(json!({"runAsUser": 1000}), own, Rights::User).is_ok());
    }
}
