//! Property tests: whole histories of a pod against a model of the runtime.
//!
//! The model carries out what [`actions`] asks for, while exits, lost sandboxes, lost events, image edits, a deletion and kills of the agent, also
//! between two of its actions, happen at random moments; after every step the invariants of the module are checked, and that a phase which
//! the API has seen as final stays.

use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::runtime::Sandbox;
use crate::status::pod::{Facts, pod_status};
use crate::worker::remembered;

const S: i64 = 1_000_000_000;

#[derive(Clone, Debug)]
enum Step {
    Sync,
    /// Decides by what was read last: events since then were lost.
    Blind,
    /// Is killed when it has done this many of its actions.
    Killed {
        after: usize,
    },
    /// The status reaches the API.
    Send,
    Exit {
        which: usize,
        code: i32,
    },
    LoseSandbox,
    EditImage,
    Delete,
    AgentRestart,
    Wait(i64),
    CollectExited,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Sync),
        2 => Just(Step::Blind),
        2 => (0usize..6).prop_map(|after| Step::Killed { after }),
        2 => Just(Step::Send),
        4 => (0usize..5, prop_oneof![Just(0), Just(1), Just(137)]).prop_map(|(which, code)| Step::Exit { which, code }),
        1 => Just(Step::LoseSandbox),
        1 => Just(Step::EditImage),
        1 => Just(Step::Delete),
        1 => Just(Step::AgentRestart),
        3 => (1i64..400).prop_map(Step::Wait),
        1 => Just(Step::CollectExited),
    ];
    proptest::collection::vec(step, 1..60)
}

struct World {
    pod: Pod,
    record: PodRecord,
    memory: Memory,
    /// What the agent has read last.
    seen: PodRecord,
    /// The status as the agent has it, and as the API has it.
    status: PodStatus,
    sent: PodStatus,
    now: i64,
    next_id: u32,
    counts: BTreeMap<String, u32>,
}

impl World {
    fn new(policy: &str) -> Self {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"restartPolicy": policy,
                "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}, {"name": "j"}],
                "containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]}}))
        .unwrap();
        let record = PodRecord::default();
        let (seen, status, sent) = Default::default();
        Self { pod, record, memory: Memory::default(), seen, status, sent, now: S, next_id: 0, counts: BTreeMap::new() }
    }

    fn stop_all(&mut self) {
        for c in &mut self.record.containers {
            if c.state == ContainerState::Running {
                c.state = ContainerState::Exited;
                c.exit_code = 137;
                c.finished_at = self.now;
            }
        }
        for s in &mut self.record.sandboxes {
            s.state = SandboxState::NotReady;
        }
    }

    /// What a worker shows of a record; whether that is final.
    fn publish(&mut self, record: &PodRecord) -> bool {
        let facts = Facts {
            record,
            memory: &self.memory,
            waiting: &BTreeMap::new(),
            previous: &self.status,
            host_ips: &[],
            terminal: false,
            node_end: None,
            now: jiff::Timestamp::from_nanosecond(i128::from(self.now)).unwrap(),
        };
        self.status = pod_status(&self.pod, &facts);
        self.finished()
    }

    fn finished(&self) -> bool {
        self.status.phase.as_deref().is_some_and(pod::is_terminal_phase)
    }

    fn sync(&mut self) -> Result<(), TestCaseError> {
        self.pass(&self.record.clone(), usize::MAX)
    }

    /// One pass of a worker that sees `seen`, up to `limit` actions.
    fn pass(&mut self, seen: &PodRecord, limit: usize) -> Result<(), TestCaseError> {
        // A worker whose pod has ended decides nothing any more.
        if self.publish(seen) {
            return Ok(());
        }
        let a = actions(View {
            pod: &self.pod,
            record: seen,
            memory: &self.memory,
            policy: Policy::default(),
            now: self.now,
        });
        if pod::is_deleted(&self.pod) {
            prop_assert!(a.start.is_empty() && a.create_sandbox.is_none());
        }
        let main_runs =
            seen.containers.iter().any(|c| is_main(&self.pod, &c.name) && c.state == ContainerState::Running);
        if a.kill_pod && a.create_sandbox.is_none() && !pod::is_deleted(&self.pod) {
            prop_assert!(
                !main_runs || seen.ready_sandbox().is_none(),
                "everything is stopped while a main container runs"
            );
        }
        prop_assert!(a.kill.iter().all(|kill| kill.name != "s"), "the sidecar is stopped on its own");
        self.carry_out(&a, limit)?;
        self.seen = self.record.clone();
        if limit == usize::MAX {
            self.publish(&self.record.clone());
        }
        Ok(())
    }

    fn carry_out(&mut self, a: &Actions, limit: usize) -> Result<(), TestCaseError> {
        let mut left = limit;
        let mut next = || {
            let more = left > 0;
            left = left.saturating_sub(1);
            more
        };
        if a.kill_pod {
            if !next() {
                return Ok(());
            }
            self.stop_all();
        }
        for kill in &a.kill {
            if !next() {
                return Ok(());
            }
            let c = self.record.containers.iter_mut().find(|c| c.id == kill.id).expect("kills name a known instance");
            if c.state == ContainerState::Running {
                c.state = ContainerState::Exited;
                c.exit_code = 137;
                c.finished_at = self.now;
            }
        }
        if let Some(attempt) = a.create_sandbox {
            if !next() {
                return Ok(());
            }
            prop_assert!(self.record.sandboxes.iter().all(|s| s.attempt < attempt));
            prop_assert!(!self.record.any_live());
            self.next_id += 1;
            self.record.sandboxes.insert(
                0,
                Sandbox {
                    id: format!("s{}", self.next_id),
                    attempt,
                    state: SandboxState::Ready,
                    created_at: self.now,
                    ips: vec!["10.0.0.1".into()],
                    host_network: false,
                },
            );
        }
        for start in &a.start {
            // The runtime starts nothing in a sandbox that is gone, which the agent may not know yet.
            if !next() || self.record.ready_sandbox().is_none() {
                return Ok(());
            }
            self.start(start)?;
        }
        Ok(())
    }

    fn start(&mut self, start: &Start) -> Result<(), TestCaseError> {
        let live = self
            .record
            .containers
            .iter()
            .any(|c| c.name == start.name && matches!(c.state, ContainerState::Running | ContainerState::Created));
        prop_assert!(!live, "a second live instance of {}", start.name);
        if let Some(previous) = self.counts.get(&start.name) {
            prop_assert!(start.restart_count > *previous, "{} went back to {}", start.name, start.restart_count);
        }
        let sandbox = self.record.sandboxes[0].id.clone();
        if start.role == Role::Main {
            let fresh =
                !self.record.containers.iter().any(|c| {
                    c.sandbox_id == sandbox && pod::main_containers(&self.pod).iter().any(|m| m.name == c.name)
                });
            for init in ["i", "j"] {
                let done =
                    self.record.containers.iter().any(|c| c.name == init && c.sandbox_id == sandbox && succeeded(c));
                prop_assert!(!fresh || done, "{} starts before {init}", start.name);
            }
        }
        self.counts.insert(start.name.clone(), start.restart_count);
        if let Some(b) = start.backoff {
            self.memory.backoff.insert(start.name.clone(), b);
        }
        self.next_id += 1;
        let (_, container) = pod::find_container(&self.pod, &start.name).unwrap();
        self.record.containers.insert(
            0,
            ContainerRecord {
                id: format!("c{}", self.next_id),
                name: start.name.clone(),
                sandbox_id: sandbox,
                restart_count: start.restart_count,
                state: ContainerState::Running,
                created_at: self.now,
                started_at: self.now,
                hash: Some(container_hash(&container)),
                ..ContainerRecord::default()
            },
        );
        Ok(())
    }

    /// The next agent knows what the API and the runtime know.
    fn restart(&mut self) {
        self.status = self.sent.clone();
        let (_, backoff) = remembered(&self.status);
        self.memory = Memory { backoff, ..Memory::default() };
        self.seen = self.record.clone();
    }

    fn apply(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.now += S;
        match step {
            Step::Sync => self.sync()?,
            Step::Blind => self.pass(&self.seen.clone(), usize::MAX)?,
            Step::Killed { after } => {
                self.pass(&self.record.clone(), *after)?;
                self.restart();
            }
            Step::Send => {
                let (was, is) = (self.sent.phase.clone(), self.status.phase.clone());
                if let Some(was) = was.filter(|phase| pod::is_terminal_phase(phase)) {
                    prop_assert_eq!(Some(was), is);
                }
                self.sent = self.status.clone();
            }
            Step::Exit { which, code } => {
                let now = self.now;
                if let Some(c) =
                    self.record.containers.iter_mut().filter(|c| c.state == ContainerState::Running).nth(*which)
                {
                    c.state = ContainerState::Exited;
                    c.exit_code = *code;
                    c.finished_at = now;
                }
            }
            Step::LoseSandbox => self.stop_all(),
            Step::EditImage => {
                let spec = self.pod.spec.as_mut().unwrap();
                spec.containers[0].image = Some(format!("x{}", self.now));
            }
            Step::Delete => {
                self.pod.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
            }
            Step::AgentRestart => self.restart(),
            Step::Wait(seconds) => self.now += seconds * S,
            Step::CollectExited => {
                // The collector keeps the newest dead instance of each container.
                let mut seen = std::collections::BTreeSet::new();
                self.record.containers.retain(|c| c.state == ContainerState::Running || seen.insert(c.name.clone()));
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(400), ..ProptestConfig::default() })]

    #[test]
    fn histories_keep_the_invariants(
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
        history in steps(),
    ) {
        let mut world = World::new(policy);
        for step in &history {
            world.apply(step)?;
        }
    }

    /// Left alone, an `Always` pod whose init containers succeed ends with every main container running.
    #[test]
    fn always_pods_converge(history in steps()) {
        let mut world = World::new("Always");
        for step in history.iter().filter(|s| !matches!(s, Step::Delete)) {
            world.apply(step)?;
        }
        for _ in 0..20 {
            let now = world.now;
            for c in world.record.containers.iter_mut().filter(|c| c.state == ContainerState::Running) {
                if c.name == "i" || c.name == "j" {
                    c.state = ContainerState::Exited;
                    c.exit_code = 0;
                    c.finished_at = now;
                }
            }
            world.now += 301 * S;
            world.sync()?;
        }
        for name in ["a", "b", "s"] {
            prop_assert_eq!(world.record.latest(name).map(|c| c.state), Some(ContainerState::Running));
        }
    }
}
