//! Arbitrary pods, records and memories for `sync::actions`, and what must hold of its answer.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, EphemeralContainer, Pod, PodSpec, Probe,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Choices;
use crate::pod::{self, Role};
use crate::runtime::identity::container_hash;
use crate::runtime::{ContainerRecord, ContainerState, PodRecord, Sandbox, SandboxState};
use crate::sync::backoff::{Backoff, Limits};
use crate::sync::{self, Actions, Memory, Policy, Verdict, View};

const NAMES: &[&str] = &["a", "b", "c", "d", "e", "f"];
const MAX_RECORDS: usize = 8;
const POLICIES: &[Option<&str>] = &[None, Some("Always"), Some("OnFailure"), Some("Never"), Some("rubbish"), Some("")];
const TIMES: &[i64] = &[0, 1, -1, 5_000_000_000, 15_000_000_000, 700_000_000_000, i64::MAX, i64::MIN];
const COUNTS: &[u32] = &[0, 1, 5, u32::MAX];
const CODES: &[i32] = &[0, 1, 137, -1, i32::MIN];
const STATES: &[ContainerState] =
    &[ContainerState::Running, ContainerState::Exited, ContainerState::Created, ContainerState::Unknown];

/// Decides for what the bytes say, and checks the decision.
///
/// # Panics
/// When an invariant does not hold: that is what a fuzzer looks for.
pub fn actions(input: &[u8]) {
    let mut choices = Choices(input);
    let pod = arbitrary_pod(&mut choices);
    let record = arbitrary_record(&mut choices, &pod);
    let memory = arbitrary_memory(&mut choices, &record);
    let delay = |choices: &mut Choices<'_>| choices.one_of(&[Duration::ZERO, Duration::from_secs(10), Duration::MAX]);
    let limits = Limits { initial: delay(&mut choices), maximum: delay(&mut choices) };
    let now = choices.one_of(TIMES);
    let view = View { pod: &pod, record: &record, memory: &memory, policy: Policy { backoff: limits }, now };
    let decided = sync::actions(view);
    assert_eq!(decided, sync::actions(view), "the same question has two answers");
    check(view, &decided);
}

fn container(choices: &mut Choices<'_>, name: &str) -> Container {
    let policy = choices.one_of(POLICIES);
    let rules = (choices.below(4) == 0).then(|| {
        let values = Some(vec![choices.one_of(CODES)]);
        let operator = choices.one_of(&["In", "NotIn", "x"]).to_owned();
        let exit_codes = (choices.below(4) != 0).then_some(ContainerRestartRuleOnExitCodes { operator, values });
        vec![ContainerRestartRule { action: choices.one_of(&["Restart", "x"]).to_owned(), exit_codes }]
    });
    Container {
        name: name.to_owned(),
        image: Some(choices.one_of(&["x", "y", ""]).to_owned()),
        restart_policy: policy.map(ToOwned::to_owned),
        restart_policy_rules: rules,
        startup_probe: (choices.below(3) == 0).then(Probe::default),
        ..Container::default()
    }
}

fn arbitrary_pod(choices: &mut Choices<'_>) -> Pod {
    let mut names = NAMES.iter();
    let mut some = |choices: &mut Choices<'_>, most: usize| -> Vec<Container> {
        let count = choices.below(most);
        names.by_ref().take(count).map(|name| container(choices, name)).collect()
    };
    let init = some(choices, 4);
    let containers = some(choices, 3);
    let ephemeral: Vec<EphemeralContainer> = some(choices, 2)
        .into_iter()
        .map(|c| EphemeralContainer { name: c.name, image: c.image, ..EphemeralContainer::default() })
        .collect();
    let mut pod = Pod::default();
    pod.metadata.uid = Some("u".into());
    if choices.below(8) == 0 {
        pod.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    }
    pod.spec = Some(PodSpec {
        restart_policy: choices.one_of(POLICIES).map(ToOwned::to_owned),
        host_network: (choices.below(4) == 0).then_some(true),
        init_containers: (!init.is_empty()).then_some(init),
        containers,
        ephemeral_containers: (!ephemeral.is_empty()).then_some(ephemeral),
        ..PodSpec::default()
    });
    pod
}

fn arbitrary_record(choices: &mut Choices<'_>, pod: &Pod) -> PodRecord {
    let sandboxes: Vec<Sandbox> = (0..choices.below(3))
        .map(|i| Sandbox {
            id: format!("s{i}"),
            attempt: choices.one_of(COUNTS),
            // Mostly as it is when all is well.
            state: if choices.below(6) == 0 { SandboxState::NotReady } else { SandboxState::Ready },
            created_at: choices.one_of(TIMES),
            ips: if choices.below(8) == 0 { Vec::new() } else { vec!["10.0.0.1".into()] },
            host_network: pod::host_network(pod) != (choices.below(16) == 0),
        })
        .collect();
    let containers = (0..choices.below(MAX_RECORDS))
        .map(|i| {
            let name = choices.one_of(NAMES);
            let known = pod::find_container(pod, name).map(|(_, c)| container_hash(&c));
            ContainerRecord {
                id: format!("c{i}"),
                name: name.to_owned(),
                sandbox_id: format!("s{}", choices.below(2)),
                restart_count: choices.one_of(COUNTS),
                state: choices.one_of(STATES),
                created_at: choices.one_of(TIMES),
                started_at: choices.one_of(TIMES),
                finished_at: choices.one_of(TIMES),
                exit_code: choices.one_of(CODES),
                hash: if choices.below(4) == 0 { choices.one_of(&[None, Some(1)]) } else { known },
                ..ContainerRecord::default()
            }
        })
        .collect();
    PodRecord { uid: "u".into(), sandboxes, containers, ..PodRecord::default() }
}

fn arbitrary_memory(choices: &mut Choices<'_>, record: &PodRecord) -> Memory {
    let mut memory = Memory::default();
    for name in NAMES {
        if choices.below(3) == 0 {
            let delay = choices.one_of(&[Duration::ZERO, Duration::from_secs(10), Duration::MAX]);
            memory.backoff.insert((*name).to_owned(), Backoff { delay, updated_at: choices.one_of(TIMES) });
        }
    }
    let flags = [None, Some(true), Some(false)];
    for container in &record.containers {
        if choices.below(3) == 0 {
            let (started, ready) = (choices.one_of(&flags), choices.one_of(&flags));
            let verdict = Verdict { started, ready, liveness_failed: choices.below(3) == 0 };
            memory.probes.insert(container.id.clone(), verdict);
        }
    }
    memory
}

fn is_live(c: &ContainerRecord) -> bool {
    matches!(c.state, ContainerState::Running | ContainerState::Unknown)
}

fn check(view: View<'_>, decided: &Actions) {
    let (pod, record) = (view.pod, view.record);
    if pod::is_deleted(pod) {
        let nothing = decided.start.is_empty() && decided.create_sandbox.is_none() && decided.backing_off.is_empty();
        assert!(nothing, "something starts after deletion: {decided:?}");
    }
    if decided.kill_pod && decided.create_sandbox.is_none() {
        assert!(decided.start.is_empty() && decided.backing_off.is_empty(), "what ends is started: {decided:?}");
    }
    if let Some(attempt) = decided.create_sandbox {
        let before = record.sandboxes.iter().map(|s| s.attempt).max();
        assert!(before.is_none_or(|most| attempt > most || most == u32::MAX), "attempt {attempt} after {before:?}");
        assert!(decided.kill_pod || !record.any_live(), "a sandbox is made beside what lives: {decided:?}");
    }
    let mut killed = BTreeSet::new();
    for kill in &decided.kill {
        let target = record.containers.iter().find(|c| c.id == kill.id);
        assert!(target.is_some_and(|c| is_live(c) && c.name == kill.name), "{kill:?} names nothing that lives");
        assert!(killed.insert(kill.id.as_str()), "{kill:?} twice");
    }
    let mut started = BTreeSet::new();
    for start in &decided.start {
        assert!(started.insert(start.name.as_str()), "{start:?} twice");
        let of_name = || record.containers.iter().filter(|c| c.name == start.name);
        let stays = of_name().find(|c| is_live(c) && !decided.kill_pod && !killed.contains(c.id.as_str()));
        assert!(stays.is_none(), "a second live instance: {start:?} beside {stays:?}");
        let most = of_name().map(|c| c.restart_count).max().unwrap_or(0);
        assert!(start.restart_count >= most, "{start:?} goes back from {most}");
        let known = pod::find_container(pod, &start.name).map(|(role, _)| role);
        assert_eq!(known, Some(start.role), "{start:?}");
    }
    for waiting in &decided.backing_off {
        assert!(waiting.until > view.now && !started.contains(waiting.name.as_str()), "{waiting:?} at {}", view.now);
    }
    check_order(view, decided);
}

/// Init containers in their order, main containers after them.
fn check_order(view: View<'_>, decided: &Actions) {
    let sandbox = view.record.sandboxes.first().map(|s| s.id.as_str());
    // A new sandbox begins with the first.
    let here = |name: &str| {
        let mut all = view.record.containers.iter();
        all.find(|c| c.name == name && Some(c.sandbox_id.as_str()) == sandbox && decided.create_sandbox.is_none())
    };
    let mains_ran = pod::main_containers(view.pod)
        .iter()
        .any(|c| view.record.containers.iter().any(|r| r.name == c.name && r.state != ContainerState::Created));
    let inits = pod::init_containers(view.pod);
    for (i, init) in inits.iter().enumerate().filter(|(_, init)| !pod::is_sidecar(init)) {
        let done = here(&init.name).is_some_and(|c| c.state == ContainerState::Exited && c.exit_code == 0);
        if done || mains_ran {
            continue;
        }
        let later = |start: &&sync::Start| {
            start.role == Role::Main || inits[i + 1..].iter().any(|later| later.name == start.name)
        };
        let early = decided.start.iter().find(later);
        assert!(early.is_none(), "{early:?} before {} has succeeded", init.name);
    }
}
