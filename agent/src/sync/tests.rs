//! Single decisions, one situation each.

use super::*;
use crate::runtime::Sandbox;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use std::time::Duration;

const S: i64 = 1_000_000_000;

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec})).unwrap()
}

fn sandbox(id: &str, attempt: u32, state: SandboxState) -> Sandbox {
    Sandbox { id: id.into(), attempt, state, created_at: 0, ips: vec!["10.0.0.2".into()], host_network: false }
}

fn record(name: &str, state: ContainerState, exit_code: i32) -> ContainerRecord {
    ContainerRecord {
        id: format!("id-{name}"),
        name: name.into(),
        sandbox_id: "s".into(),
        state,
        started_at: S,
        finished_at: if state == ContainerState::Exited { 2 * S } else { 0 },
        exit_code,
        ..ContainerRecord::default()
    }
}

fn decide(pod: &Pod, sandboxes: Vec<Sandbox>, containers: Vec<ContainerRecord>, memory: &Memory) -> Actions {
    let record = PodRecord { uid: "u".into(), name: "p".into(), namespace: "n".into(), sandboxes, containers };
    actions(View { pod, record: &record, memory, policy: Policy::default(), now: 3 * S })
}

fn ready() -> Vec<Sandbox> {
    vec![sandbox("s", 0, SandboxState::Ready)]
}

fn starts(a: &Actions) -> Vec<&str> {
    a.start.iter().map(|s| s.name.as_str()).collect()
}

#[test]
fn a_new_pod_gets_a_sandbox_and_its_containers() {
    let a = decide(&pod(json!({"containers": [{"name": "a"}, {"name": "b"}]})), vec![], vec![], &Memory::default());
    assert_eq!(a.create_sandbox, Some(0));
    assert_eq!(starts(&a), ["a", "b"]);
    assert!(!a.kill_pod);
}

#[test]
fn init_containers_come_one_by_one() {
    let p = pod(json!({"containers": [{"name": "m"}], "initContainers": [{"name": "i"}, {"name": "j"}]}));
    let m = Memory::default();
    assert_eq!(starts(&decide(&p, vec![], vec![], &m)), ["i"]);
    assert!(decide(&p, ready(), vec![record("i", ContainerState::Running, 0)], &m).is_empty());
    assert_eq!(starts(&decide(&p, ready(), vec![record("i", ContainerState::Exited, 0)], &m)), ["j"]);
    let done = vec![record("j", ContainerState::Exited, 0), record("i", ContainerState::Exited, 0)];
    assert_eq!(starts(&decide(&p, ready(), done, &m)), ["m"]);
}

#[test]
fn collected_init_records_do_not_run_init_again() {
    let p = pod(json!({"containers": [{"name": "m"}], "initContainers": [{"name": "i"}]}));
    assert!(decide(&p, ready(), vec![record("m", ContainerState::Running, 0)], &Memory::default()).is_empty());
}

#[test]
fn a_failed_init_container_ends_a_never_pod() {
    let p = pod(json!({"restartPolicy": "Never", "containers": [{"name": "m"}], "initContainers": [{"name": "i"}]}));
    let a = decide(&p, ready(), vec![record("i", ContainerState::Exited, 1)], &Memory::default());
    assert!(a.kill_pod && a.start.is_empty());
}

#[test]
fn a_container_that_was_created_and_never_started_is_made_again_and_counts_as_no_restart() {
    let p = pod(json!({"containers": [{"name": "m"}]}));
    let first = decide(&p, ready(), vec![record("m", ContainerState::Created, 0)], &Memory::default());
    assert_eq!((starts(&first), first.start[0].restart_count), (vec!["m"], 0));
    let again = ContainerRecord { restart_count: 3, ..record("m", ContainerState::Created, 0) };
    let ended = ContainerRecord { restart_count: 2, ..record("m", ContainerState::Exited, 1) };
    assert_eq!(decide(&p, ready(), vec![again, ended], &Memory::default()).start[0].restart_count, 3);
}

#[test]
fn restart_waits_for_its_delay() {
    let p = pod(json!({"containers": [{"name": "m"}]}));
    let mut memory = Memory::default();
    let exited = || vec![record("m", ContainerState::Exited, 1)];
    let first = decide(&p, ready(), exited(), &memory);
    assert_eq!(first.start[0].restart_count, 1);
    memory.backoff.insert("m".into(), first.start[0].backoff.unwrap());
    let second = decide(&p, ready(), exited(), &memory);
    assert!(second.is_empty());
    assert_eq!(second.backing_off[0].delay, Duration::from_secs(10));
    assert_eq!(second.wake_at(), Some(12 * S));
    assert!(!second.kill_pod);
}

#[test]
fn a_finished_pod_is_taken_down() {
    let p = pod(json!({"restartPolicy": "Never", "containers": [{"name": "m"}]}));
    let a = decide(&p, ready(), vec![record("m", ContainerState::Exited, 0)], &Memory::default());
    assert!(a.kill_pod && a.start.is_empty());
}

#[test]
fn sidecars_start_in_order_and_do_not_keep_a_pod_alive() {
    let p = pod(json!({"restartPolicy": "Never", "containers": [{"name": "m"}],
        "initContainers": [{"name": "s", "restartPolicy": "Always"}]}));
    let m = Memory::default();
    assert_eq!(starts(&decide(&p, vec![], vec![], &m)), ["s"]);
    let a = decide(&p, ready(), vec![record("s", ContainerState::Running, 0)], &m);
    assert_eq!(starts(&a), ["m"]);
    let over = vec![record("m", ContainerState::Exited, 0), record("s", ContainerState::Running, 0)];
    let a = decide(&p, ready(), over, &m);
    assert!(a.kill_pod);
    let crashed = vec![record("m", ContainerState::Running, 0), record("s", ContainerState::Exited, 1)];
    assert_eq!(starts(&decide(&p, ready(), crashed, &m)), ["s"]);
}

#[test]
fn a_lost_sandbox_is_replaced_with_the_next_attempt() {
    let p = pod(json!({"containers": [{"name": "m"}], "initContainers": [{"name": "i"}]}));
    let a = decide(
        &p,
        vec![sandbox("s", 3, SandboxState::NotReady)],
        vec![record("m", ContainerState::Exited, 137)],
        &Memory::default(),
    );
    assert_eq!(a.create_sandbox, Some(4));
    assert_eq!(starts(&a), ["i"]);
}

#[test]
fn a_changed_image_replaces_the_container() {
    let p = pod(json!({"containers": [{"name": "m", "image": "new"}]}));
    let mut r = record("m", ContainerState::Running, 0);
    r.hash = Some(1);
    let a = decide(&p, ready(), vec![r], &Memory::default());
    assert_eq!(a.kill[0].reason, KillReason::DefinitionChanged);
    assert_eq!(a.kill[0].message, "Container m definition changed, will be restarted");
    assert_eq!(starts(&a), ["m"]);
}

#[test]
fn a_hash_of_an_older_kubelet_is_no_change_when_the_image_is_the_same() {
    let p = pod(json!({"containers": [{"name": "m", "image": "web:1"}]}));
    let with = |user_image: &str| {
        let record =
            ContainerRecord { hash: Some(1), user_image: user_image.into(), ..record("m", ContainerState::Running, 0) };
        decide(&p, ready(), vec![record], &Memory::default())
    };
    assert!(with("web:1").is_empty());
    assert_eq!(with("web:2").kill.len(), 1);
    assert_eq!(with("").kill.len(), 1);
}

#[test]
fn deletion_stops_everything() {
    let mut p = pod(json!({"containers": [{"name": "m"}]}));
    p.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    let a = decide(&p, ready(), vec![record("m", ContainerState::Exited, 1)], &Memory::default());
    assert!(a.kill_pod && a.start.is_empty());
}

#[test]
fn liveness_failure_kills_and_restarts() {
    let p = pod(json!({"containers": [{"name": "m"}]}));
    let mut memory = Memory::default();
    memory.probes.insert("id-m".into(), Verdict { liveness_failed: true, ..Verdict::default() });
    let a = decide(&p, ready(), vec![record("m", ContainerState::Running, 0)], &memory);
    assert_eq!(a.kill[0].reason, KillReason::Liveness);
    assert_eq!(starts(&a), ["m"]);
}

#[test]
fn exit_code_rules_restart_a_never_container() {
    let p = pod(json!({"restartPolicy": "Never", "containers": [{"name": "m", "restartPolicy": "Never",
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}]}));
    let m = Memory::default();
    assert_eq!(starts(&decide(&p, ready(), vec![record("m", ContainerState::Exited, 42)], &m)), ["m"]);
    assert!(decide(&p, ready(), vec![record("m", ContainerState::Exited, 1)], &m).kill_pod);
}
