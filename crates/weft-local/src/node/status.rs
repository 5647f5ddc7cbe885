//! A pod's status, computed from what its containers do. Pure: no clock, no I/O.

use crate::runtime::wire::{Exit, HeldContainer, RunState};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use std::net::Ipv4Addr;

/// What a container is in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs to its end before the next.
    Init,
    /// An init container that stays: it is started in its turn, restarted always and ended last.
    Sidecar,
    Main,
}

/// The role of each container of the pod, in order of start.
pub(crate) fn roles(pod: &Pod) -> Vec<(Role, &Container)> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let init = spec.init_containers.iter().flatten().map(|c| {
        let stays = c.restart_policy.as_deref() == Some("Always");
        (if stays { Role::Sidecar } else { Role::Init }, c)
    });
    init.chain(spec.containers.iter().map(|c| (Role::Main, c))).collect()
}

/// What a container does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Waiting { reason: &'static str, message: String },
    Running { since: Timestamp },
    Ended(Ended),
}

/// How a container's run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) started: Option<Timestamp>,
    pub(crate) finished: Timestamp,
}

impl Ended {
    /// A run that the runtime saw to its end; one that was never started could not be.
    pub(crate) fn new(started: Option<Timestamp>, exit: Exit) -> Self {
        let reason = match (started, exit.code) {
            (None, _) => "StartError",
            (Some(_), 0) => "Completed",
            (Some(_), _) => "Error",
        };
        Ended { code: exit.code, reason, message: exit.message, started, finished: exit.finished }
    }
}

/// One container as the agent knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) role: Role,
    pub(crate) doing: Doing,
    /// The run before the present one.
    pub(crate) last: Option<Ended>,
    pub(crate) restarts: i32,
    /// The startup probe passed, or there is none and the container runs.
    pub(crate) started: bool,
    pub(crate) ready: bool,
    /// Distinguishes the runs of a container.
    pub(crate) id: Option<String>,
}

impl Record {
    pub(crate) fn new(role: Role, container: &Container, waits_for: &'static str) -> Self {
        Record {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            role,
            doing: Doing::Waiting { reason: waits_for, message: String::new() },
            last: None,
            restarts: 0,
            started: false,
            ready: false,
            id: None,
        }
    }

    /// One that an earlier agent started. What that had found out of the present run is what it has written.
    fn take_over(&mut self, pod_uid: &str, held: &HeldContainer, written: Option<&ContainerStatus>) {
        let over = |run: &RunState| run.exit.clone().map(|exit| Ended::new(run.started, exit));
        if let Some(ended) = over(&held.now) {
            self.doing = Doing::Ended(ended);
        } else if let Some(since) = held.now.started {
            self.doing = Doing::Running { since };
        }
        self.last = held.before.as_ref().and_then(over);
        self.restarts = held.now.number;
        let id = held.now.started.map(|since| run_id(pod_uid, &self.name, since));
        if let Some(written) = written.filter(|w| id.is_some() && w.container_id == id) {
            self.id = id;
            self.started = written.started == Some(true);
            self.ready = written.ready && held.now.exit.is_none();
        }
    }

    fn ended_well(&self) -> bool {
        matches!(&self.doing, Doing::Ended(e) if e.code == 0)
    }
    fn ever_ran(&self) -> bool {
        !matches!(self.doing, Doing::Waiting { .. }) || self.last.is_some()
    }
    /// Whether the container has done what the next one waits for.
    pub(crate) fn lets_next_start(&self) -> bool {
        match self.role {
            Role::Init => self.ended_well(),
            Role::Sidecar => self.started,
            Role::Main => true,
        }
    }
}

/// Distinguishes the runs of a container.
pub(crate) fn run_id(pod_uid: &str, container: &str, started: Timestamp) -> String {
    format!("weft://{pod_uid}/{container}/{}", started.as_millisecond())
}

/// The records of a pod's containers as its task begins, in order of start; `held` is what an earlier agent left.
pub(crate) fn records(pod: &Pod, uid: &str, held: &[HeldContainer]) -> Vec<Record> {
    let roles = roles(pod);
    let waits_for = if roles.iter().any(|(role, _)| *role != Role::Main) {
        "PodInitializing"
    } else {
        "ContainerCreating"
    };
    let written = pod.status.as_ref();
    let statuses = |of: &PodStatus| {
        let lists = [&of.init_container_statuses, &of.container_statuses];
        lists.into_iter().flatten().flatten().cloned().collect::<Vec<_>>()
    };
    let written = written.map(statuses).unwrap_or_default();
    let record = |(role, container): &(Role, &Container)| {
        let mut record = Record::new(*role, container, waits_for);
        if let Some(held) = held.iter().find(|held| held.name == container.name) {
            record.take_over(uid, held, written.iter().find(|w| w.name == container.name));
        }
        record
    };
    roles.iter().map(record).collect()
}

/// Everything the status says that is not in the records.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) now: Timestamp,
    pub(crate) pod_ip: Option<Ipv4Addr>,
    pub(crate) host_ip: Ipv4Addr,
    pub(crate) started: Timestamp,
    /// A failure of the pod as a whole: reason and message.
    pub(crate) failed: Option<(&'a str, &'a str)>,
}

pub(crate) fn status(pod: &Pod, records: &[Record], facts: &Facts<'_>) -> PodStatus {
    let policy = pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).unwrap_or("Always");
    let phase = if facts.failed.is_some() { "Failed" } else { phase(records, policy) };
    let of = |role: &[Role]| -> Vec<ContainerStatus> {
        records.iter().filter(|r| role.contains(&r.role)).map(container_status).collect()
    };
    let old = pod.status.as_ref();
    PodStatus {
        phase: Some(phase.to_string()),
        reason: facts.failed.map(|f| f.0.to_string()),
        message: facts.failed.map(|f| f.1.to_string()),
        conditions: Some(conditions(records, phase, old, facts)),
        host_ip: Some(facts.host_ip.to_string()),
        host_ips: Some(vec![HostIP { ip: facts.host_ip.to_string() }]),
        pod_ip: facts.pod_ip.map(|ip| ip.to_string()),
        pod_ips: facts.pod_ip.map(|ip| vec![PodIP { ip: ip.to_string() }]),
        start_time: Some(Time(facts.started)),
        init_container_statuses: Some(of(&[Role::Init, Role::Sidecar])).filter(|l| !l.is_empty()),
        container_statuses: Some(of(&[Role::Main])),
        qos_class: old.and_then(|s| s.qos_class.clone()),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
}

/// The phase, by Kubernetes' rules.
pub(crate) fn phase(records: &[Record], policy: &str) -> &'static str {
    let init_failed =
        records.iter().any(|r| r.role == Role::Init && matches!(&r.doing, Doing::Ended(e) if e.code != 0));
    if init_failed && policy == "Never" {
        return "Failed";
    }
    if !initialized(records) {
        return "Pending";
    }
    let main: Vec<&Record> = records.iter().filter(|r| r.role == Role::Main).collect();
    if main.iter().any(|r| !r.ever_ran()) {
        return "Pending";
    }
    let all_ended = main.iter().all(|r| matches!(r.doing, Doing::Ended(_)));
    // A pod is over when its sidecars are, too.
    let sidecars_run =
        records.iter().any(|r| r.role == Role::Sidecar && matches!(r.doing, Doing::Running { .. }));
    if !all_ended || sidecars_run || policy == "Always" {
        return "Running";
    }
    match (main.iter().all(|r| r.ended_well()), policy) {
        (true, _) => "Succeeded",
        (false, "Never") => "Failed",
        (false, _) => "Running",
    }
}

/// Every init container has done its part, now or before the main containers first ran.
fn initialized(records: &[Record]) -> bool {
    let main_began = records.iter().any(|r| r.role == Role::Main && r.ever_ran());
    main_began || records.iter().all(Record::lets_next_start)
}

fn conditions(
    records: &[Record],
    phase: &str,
    old: Option<&PodStatus>,
    facts: &Facts<'_>,
) -> Vec<PodCondition> {
    let unready: Vec<&str> =
        records.iter().filter(|r| r.role != Role::Init && !r.ready).map(|r| r.name.as_str()).collect();
    let over = matches!(phase, "Succeeded" | "Failed");
    let (ready_reason, ready_message) = match (over, unready.is_empty()) {
        (true, _) if phase == "Succeeded" => (Some("PodCompleted"), None),
        (true, _) => (Some("PodFailed"), None),
        (false, true) => (None, None),
        (false, false) => (
            Some("ContainersNotReady"),
            Some(format!("containers with unready status: [{}]", unready.join(" "))),
        ),
    };
    let ready = !over && unready.is_empty();
    let pending: Vec<&str> = records
        .iter()
        .filter(|r| r.role != Role::Main && !r.lets_next_start())
        .map(|r| r.name.as_str())
        .collect();
    let initialized = initialized(records);
    let (init_reason, init_message) = match initialized {
        true => (None, None),
        false => (
            Some("ContainersNotInitialized"),
            Some(format!("containers with incomplete status: [{}]", pending.join(" "))),
        ),
    };
    let sandboxed = facts.pod_ip.is_some() && !over;
    [
        ("PodReadyToStartContainers", sandboxed, None, None),
        ("Initialized", initialized, init_reason, init_message),
        ("Ready", ready, ready_reason, ready_message.clone()),
        ("ContainersReady", ready, ready_reason, ready_message),
        ("PodScheduled", true, None, None),
    ]
    .into_iter()
    .map(|(kind, holds, reason, message)| {
        let value = if holds { "True" } else { "False" };
        let before = old
            .and_then(|s| s.conditions.as_ref())
            .and_then(|list| list.iter().find(|c| c.type_ == kind && c.status == value))
            .and_then(|c| c.last_transition_time.clone());
        PodCondition {
            type_: kind.to_string(),
            status: value.to_string(),
            reason: reason.map(str::to_string),
            message,
            last_transition_time: Some(before.unwrap_or(Time(facts.now))),
            ..PodCondition::default()
        }
    })
    .collect()
}

fn container_status(r: &Record) -> ContainerStatus {
    let state = match &r.doing {
        Doing::Waiting { reason, message } => ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some((*reason).to_string()),
                message: Some(message.clone()).filter(|m| !m.is_empty()),
            }),
            ..ContainerState::default()
        },
        Doing::Running { since } => ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(Time(*since)) }),
            ..ContainerState::default()
        },
        Doing::Ended(ended) => terminated(ended, r.id.as_ref()),
    };
    ContainerStatus {
        name: r.name.clone(),
        image: r.image.clone(),
        image_id: r.image.clone(),
        container_id: r.id.clone(),
        ready: r.ready,
        started: Some(r.started),
        restart_count: r.restarts,
        state: Some(state),
        last_state: Some(r.last.as_ref().map_or_else(ContainerState::default, |e| terminated(e, None))),
        ..ContainerStatus::default()
    }
}

fn terminated(ended: &Ended, id: Option<&String>) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: ended.code,
            reason: Some(ended.reason.to_string()),
            message: Some(ended.message.clone()).filter(|m| !m.is_empty()),
            started_at: ended.started.map(Time),
            finished_at: Some(Time(ended.finished)),
            container_id: id.cloned(),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Vec<Record> {
        // `i0` an init container that ended with 0, `sR` a sidecar that runs, `mW` a main one that waits,
        // `mB` one that waits after a crash.
        text.split_whitespace()
            .map(|word| {
                let role = match &word[..1] {
                    "i" => Role::Init,
                    "s" => Role::Sidecar,
                    _ => Role::Main,
                };
                let mut r = Record::new(role, &Container::default(), "PodInitializing");
                let ended = |code| Ended {
                    code,
                    reason: "Completed",
                    message: String::new(),
                    started: None,
                    finished: Timestamp::UNIX_EPOCH,
                };
                match &word[1..] {
                    "W" => {}
                    "B" => r.last = Some(ended(1)),
                    "R" => {
                        r.doing = Doing::Running { since: Timestamp::UNIX_EPOCH };
                        (r.started, r.ready) = (true, true);
                    }
                    code => r.doing = Doing::Ended(ended(code.parse().unwrap())),
                }
                r
            })
            .collect()
    }

    #[test]
    fn phases() {
        let check = |text: &str, policy: &str, want: &str| {
            assert_eq!(phase(&written(text), policy), want, "{text} {policy}");
        };
        check("iW mW", "Always", "Pending");
        check("i0 mW", "Always", "Pending");
        check("i1 mW", "Never", "Failed");
        check("i1 mW", "Always", "Pending");
        check("sW mW", "Always", "Pending");
        check("i0 sR mR", "Always", "Running");
        check("mR mW", "Always", "Pending");
        check("mB", "Always", "Running");
        check("m0", "Always", "Running");
        check("m0", "OnFailure", "Succeeded");
        check("m0 m1", "Never", "Failed");
        check("m1", "OnFailure", "Running");
        check("m0 mR", "Never", "Running");
        check("sR m0", "Never", "Running");
        check("s143 m0", "Never", "Succeeded");
        check("s137 m3", "Never", "Failed");
    }

    #[test]
    fn conditions_keep_the_time_of_their_last_change() {
        let mut pod = Pod::default();
        let facts = |second| Facts {
            now: Timestamp::from_second(second).unwrap(),
            pod_ip: Some(Ipv4Addr::new(10, 77, 0, 2)),
            host_ip: Ipv4Addr::new(10, 77, 0, 1),
            started: Timestamp::UNIX_EPOCH,
            failed: None,
        };
        pod.status = Some(status(&pod, &written("i0 mW"), &facts(10)));
        let later = status(&pod, &written("i0 mR"), &facts(20));
        let at = |kind: &str| {
            let list = later.conditions.as_ref().unwrap();
            let c = list.iter().find(|c| c.type_ == kind).unwrap();
            (c.status.clone(), c.last_transition_time.as_ref().unwrap().0.as_second())
        };
        assert_eq!(at("Ready"), ("True".into(), 20));
        assert_eq!(at("Initialized"), ("True".into(), 10));
        let waiting = status(&Pod::default(), &written("iW mW"), &facts(1));
        let ready = waiting.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!(ready.reason.as_deref(), Some("ContainersNotReady"));
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// An agent that takes over says of each container what the one before it would have said.
    #[test]
    fn records_are_those_of_the_agent_before() {
        let mut pod: Pod = serde_json::from_value(serde_json::json!({
            "spec": {"initContainers": [{"name": "init"}, {"name": "side", "restartPolicy": "Always"}],
                     "containers": [{"name": "main"}, {"name": "new"}, {"name": "gone"}]}
        }))
        .unwrap();
        let exit = |code, second| Exit { code, message: String::new(), finished: at(second) };
        let run = |number, started, exit| RunState { number, started: Some(at(started)), exit };
        let held = |name: &str, now, before| HeldContainer { name: name.into(), now, before };
        let held = [
            held("init", run(0, 1, Some(exit(0, 2))), None),
            held("side", run(0, 3, None), None),
            held("main", run(2, 30, None), Some(run(1, 10, Some(exit(9, 20))))),
            held("gone", run(0, 4, Some(exit(5, 6))), None),
        ];
        // What was written before: `main` of its run before, `gone` when it was still there.
        let mut before = records(&pod, "u", &[]);
        for (record, second) in before.iter_mut().zip([1, 3, 10, 0, 4]) {
            record.doing = Doing::Running { since: at(second) };
            record.id = Some(run_id("u", &record.name, at(second)));
            (record.started, record.ready) = (true, true);
        }
        let facts =
            Facts { now: at(5), pod_ip: None, host_ip: Ipv4Addr::LOCALHOST, started: at(0), failed: None };
        pod.status = Some(status(&pod, &before, &facts));

        let after = records(&pod, "u", &held);
        let shown: Vec<String> = after
            .iter()
            .map(|r| {
                let doing = match &r.doing {
                    Doing::Waiting { reason, .. } => (*reason).to_owned(),
                    Doing::Running { since } => format!("runs since {}", since.as_second()),
                    Doing::Ended(e) => format!("{} {} after {}", e.reason, e.code, e.finished.as_second()),
                };
                let last = r.last.as_ref().map(|e| e.code);
                format!(
                    "{}: {doing}, last {last:?}, {} restarts, {} {}",
                    r.name, r.restarts, r.started, r.ready
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                "init: Completed 0 after 2, last None, 0 restarts, true false",
                "side: runs since 3, last None, 0 restarts, true true",
                // A run that nobody has written about: its probes have yet to be heard.
                "main: runs since 30, last Some(9), 2 restarts, false false",
                "new: PodInitializing, last None, 0 restarts, false false",
                "gone: Error 5 after 6, last None, 0 restarts, true false",
            ]
        );
    }
}
