use super::*;
use crate::runtime::Sandbox;
use serde_json::json;

fn pod(value: serde_json::Value) -> Pod {
    serde_json::from_value(
        json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 3}, "spec": value}),
    )
    .unwrap()
}

fn record(state: ContainerState, exit_code: i32) -> ContainerRecord {
    ContainerRecord {
        id: "c1".into(),
        name: "m".into(),
        sandbox_id: "s".into(),
        restart_count: 2,
        state,
        created_at: 1,
        started_at: 2_000_000_000,
        finished_at: if state == ContainerState::Exited { 3_000_000_000 } else { 0 },
        exit_code,
        image: "docker.io/library/busybox:1.28".into(),
        image_ref: "sha256:1".into(),
        ..ContainerRecord::default()
    }
}

fn status(pod: &Pod, containers: Vec<ContainerRecord>, waiting: &[(&str, &str)], previous: &PodStatus) -> PodStatus {
    let sandbox = Sandbox {
        id: "s".into(),
        attempt: 0,
        state: SandboxState::Ready,
        created_at: 0,
        ips: vec!["10.0.0.9".into()],
        host_network: false,
    };
    let record = PodRecord { sandboxes: vec![sandbox], containers, ..PodRecord::default() };
    let waiting = waiting
        .iter()
        .map(|(n, r)| ((*n).to_owned(), Waiting { reason: (*r).to_owned(), message: "why".into() }))
        .collect();
    pod_status(
        pod,
        &Facts {
            record: &record,
            memory: &Memory::default(),
            waiting: &waiting,
            previous,
            host_ips: &["192.0.2.1".into()],
            terminal: false,
            node_end: None,
            now: Timestamp::from_second(100).unwrap(),
        },
    )
}

fn condition<'a>(s: &'a PodStatus, name: &str) -> &'a k8s_openapi::api::core::v1::PodCondition {
    s.conditions.as_ref().unwrap().iter().find(|c| c.type_ == name).unwrap()
}

#[test]
fn a_running_pod_is_ready() {
    let s = status(
        &pod(json!({"containers": [{"name": "m"}]})),
        vec![record(ContainerState::Running, 0)],
        &[],
        &PodStatus::default(),
    );
    assert_eq!(s.phase.as_deref(), Some("Running"));
    assert_eq!(s.pod_ip.as_deref(), Some("10.0.0.9"));
    assert_eq!(condition(&s, "Ready").status, "True");
    assert_eq!(s.observed_generation, Some(3));
    let c = &s.container_statuses.as_ref().unwrap()[0];
    assert_eq!((c.restart_count, c.ready, c.started), (2, true, Some(true)));
    assert_eq!(c.container_id.as_deref(), Some("containerd://c1"));
}

#[test]
fn a_crash_loop_keeps_the_pod_running_and_shows_the_last_end() {
    let p = pod(json!({"containers": [{"name": "m"}]}));
    let s = status(&p, vec![record(ContainerState::Exited, 1)], &[("m", "CrashLoopBackOff")], &PodStatus::default());
    assert_eq!(s.phase.as_deref(), Some("Running"));
    let c = &s.container_statuses.as_ref().unwrap()[0];
    assert_eq!(c.state.as_ref().unwrap().waiting.as_ref().unwrap().reason.as_deref(), Some("CrashLoopBackOff"));
    let last = c.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (1, Some("Error")));
    assert_eq!(condition(&s, "Ready").message.as_deref(), Some("containers with unready status: [m]"));
}

#[test]
fn pending_until_init_is_done() {
    let p = pod(json!({"containers": [{"name": "m"}], "initContainers": [{"name": "i"}]}));
    let s = status(&p, vec![], &[], &PodStatus::default());
    assert_eq!(s.phase.as_deref(), Some("Pending"));
    let c = &s.container_statuses.as_ref().unwrap()[0];
    assert_eq!(c.state.as_ref().unwrap().waiting.as_ref().unwrap().reason.as_deref(), Some("PodInitializing"));
    assert_eq!(condition(&s, "Initialized").reason.as_deref(), Some("ContainersNotInitialized"));
    assert_eq!(condition(&s, "Initialized").message.as_deref(), Some("containers with incomplete status: [i]"));
}

#[test]
fn terminal_phases_stay() {
    let p = pod(json!({"restartPolicy": "Never", "containers": [{"name": "m"}]}));
    let s = status(&p, vec![record(ContainerState::Exited, 0)], &[], &PodStatus::default());
    assert_eq!(s.phase.as_deref(), Some("Succeeded"));
    assert_eq!(condition(&s, "Ready").reason.as_deref(), Some("PodCompleted"));
    let again = status(&p, vec![], &[], &s);
    assert_eq!(again.phase.as_deref(), Some("Succeeded"));
    assert_eq!(again.container_statuses, s.container_statuses);
}

/// States at the end of a pod of two init containers and a main one, of which only these have records.
fn at_the_end(records: Vec<ContainerRecord>) -> Vec<String> {
    let p = pod(
        json!({"restartPolicy": "Never", "initContainers": [{"name": "a"}, {"name": "b"}], "containers": [{"name": "m"}]}),
    );
    let record = PodRecord { containers: records, ..PodRecord::default() };
    let facts = Facts {
        record: &record,
        memory: &Memory::default(),
        waiting: &BTreeMap::new(),
        previous: &PodStatus::default(),
        host_ips: &[],
        terminal: true,
        node_end: None,
        now: Timestamp::from_second(100).unwrap(),
    };
    let status = pod_status(&p, &facts);
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    all.map(|s| {
        let state = s.state.as_ref().unwrap();
        let ended = state.terminated.as_ref().map(|t| format!("{} {}", t.reason.as_deref().unwrap_or(""), t.exit_code));
        ended.or_else(|| state.waiting.as_ref()?.reason.clone()).unwrap_or_default()
    })
    .collect()
}

#[test]
fn only_what_had_its_turn_is_lost_at_the_end() {
    let ended = |name: &str, code: i32| ContainerRecord {
        name: name.into(),
        reason: "Done".into(),
        ..record(ContainerState::Exited, code)
    };
    let lost = "ContainerStatusUnknown 137";
    assert_eq!(at_the_end(vec![]), [lost, "PodInitializing", "PodInitializing"]);
    assert_eq!(at_the_end(vec![ended("a", 3)]), ["Done 3", "PodInitializing", "PodInitializing"]);
    assert_eq!(at_the_end(vec![ended("b", 3)]), [lost, "Done 3", "PodInitializing"]);
    assert_eq!(at_the_end(vec![ended("a", 0), ended("b", 0)]), ["Done 0", "Done 0", lost]);
}

#[test]
fn transition_times_move_only_with_the_status() {
    let p = pod(json!({"containers": [{"name": "m"}]}));
    let first = status(&p, vec![record(ContainerState::Running, 0)], &[], &PodStatus::default());
    let mut previous = first.clone();
    for c in previous.conditions.iter_mut().flatten() {
        c.last_transition_time = Some(Time(Timestamp::from_second(50).unwrap()));
    }
    let second = status(&p, vec![record(ContainerState::Running, 0)], &[], &previous);
    assert_eq!(condition(&second, "Ready").last_transition_time, Some(Time(Timestamp::from_second(50).unwrap())));
}

#[test]
fn a_restart_rule_keeps_a_pod_that_would_not_restart_from_ending() {
    let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}});
    let p = pod(json!({"restartPolicy": "Never",
        "containers": [{"name": "m", "restartPolicy": "Never", "restartPolicyRules": [rule]}]}));
    let phase = |code: i32| status(&p, vec![record(ContainerState::Exited, code)], &[], &PodStatus::default()).phase;
    assert_eq!(phase(42).as_deref(), Some("Running"));
    assert_eq!(phase(43).as_deref(), Some("Failed"));
}
