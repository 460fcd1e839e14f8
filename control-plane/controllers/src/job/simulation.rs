//! A job's controller that may be cut off between any two writes, with pods that end, fail and are deleted at any time:
//! each ended pod is counted once, and the job ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::json;

use super::backoff::Record;
use super::conditions::end;
use super::decide::decide;
use super::decide::tests::{job, now};
use super::pods::pod;
use super::track::{conclude, count, settle, tracked};
use super::view::{View, is_tracked, terminating};
use crate::pods;

struct World {
    job: Job,
    pods: BTreeMap<u32, Pod>,
    next: u32,
    clock: Timestamp,
    /// UIDs of pods that ended by themselves: (name, succeeded).
    ended: BTreeMap<u32, bool>,
    /// Deleted before they ended: they may count as failed.
    killed: usize,
}

#[derive(Debug, Clone)]
enum Step {
    /// A pass that is cut off after this many writes.
    Pass(usize),
    Run(usize),
    Succeed(usize),
    Fail(usize),
    Kill(usize),
    /// The node ends deleted pods; the server drops those without finalizer.
    Reap,
    Wait,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..12).prop_map(Step::Pass),
        2 => (0usize..6).prop_map(Step::Run),
        2 => (0usize..6).prop_map(Step::Succeed),
        2 => (0usize..6).prop_map(Step::Fail),
        1 => (0usize..6).prop_map(Step::Kill),
        2 => Just(Step::Reap),
        1 => Just(Step::Wait),
    ]
}

/// Writes left before the pass is cut off.
struct Budget(usize);

impl Budget {
    fn spend(&mut self) -> Option<()> {
        self.0 = self.0.checked_sub(1)?;
        Some(())
    }
}

impl World {
    fn new(job: Job) -> Self {
        Self { job, pods: BTreeMap::new(), next: 0, clock: now(), ended: BTreeMap::new(), killed: 0 }
    }

    fn nth_active(&mut self, n: usize) -> Option<(u32, &mut Pod)> {
        self.pods.iter_mut().filter(|(_, p)| pods::is_active(p)).nth(n).map(|(id, p)| (*id, p))
    }

    fn phase(pod: &mut Pod, phase: &str) {
        pod.status.get_or_insert_default().phase = Some(phase.to_owned());
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Pass(writes) => drop(self.pass(&mut Budget(*writes))),
            Step::Run(n) => {
                if let Some((_, pod)) = self.nth_active(*n) {
                    Self::phase(pod, "Running");
                }
            }
            Step::Succeed(n) => self.finish_one(*n, true),
            Step::Fail(n) => self.finish_one(*n, false),
            Step::Kill(n) => {
                if let Some((_, pod)) = self.nth_active(*n) {
                    pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
                    self.killed += 1;
                }
            }
            Step::Reap => {
                for pod in self.pods.values_mut().filter(|p| pods::is_terminating(p) && !pods::is_terminal(p)) {
                    Self::phase(pod, "Failed");
                }
                self.pods.retain(|_, pod| is_tracked(pod) || !pods::is_terminating(pod));
            }
            Step::Wait => self.clock += SignedDuration::from_secs(700),
        }
    }

    fn finish_one(&mut self, n: usize, succeeded: bool) {
        let Some((id, pod)) = self.nth_active(n) else { return };
        Self::phase(pod, if succeeded { "Succeeded" } else { "Failed" });
        self.ended.insert(id, succeeded);
    }

    /// One pass as the shell makes it; `None` if it was cut off.
    fn pass(&mut self, budget: &mut Budget) -> Option<()> {
        if end(&self.job).is_some() {
            return Some(());
        }
        let before = self.job.clone();
        let known: Vec<Arc<Pod>> = self.pods.values().cloned().map(Arc::new).collect();
        let view = View::new(&before, &known, Record::default()).unwrap();
        let plan = decide(&view, self.clock);
        for gone in plan.discard.iter().chain(&plan.end) {
            budget.spend()?;
            let id: u32 = gone.metadata.uid.as_deref().unwrap().parse().unwrap();
            let pod = self.pods.get_mut(&id).unwrap();
            pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
            self.killed += 1;
        }
        for index in &plan.create {
            budget.spend()?;
            self.next += 1;
            let mut made = pod(&before, view.spec, *index, None);
            made.metadata.uid = Some(self.next.to_string());
            made.metadata.name = made.metadata.uid.clone();
            Self::phase(&mut made, "Pending");
            self.pods.insert(self.next, made);
        }
        let mut status = before.status.clone().unwrap();
        let current: Vec<Arc<Pod>> = self.pods.values().cloned().map(Arc::new).collect();
        status.terminating = Some(terminating(&current));
        let counted = count(&view, status, plan.finish.as_ref(), self.clock);
        budget.spend()?;
        self.job.status = Some(counted.status.clone());
        let mut left = tracked(&known);
        for pod in &counted.release {
            budget.spend()?;
            let uid = pod.metadata.uid.clone().unwrap();
            left.remove(&uid);
            self.pods.get_mut(&uid.parse().unwrap()).unwrap().metadata.finalizers = None;
        }
        let mut status = settle(counted.status, &left);
        if let Some(finish) = plan.finish.as_ref().filter(|_| !counted.is_partial) {
            let terminating = status.terminating.unwrap_or(0);
            conclude(&mut status, finish, terminating, self.clock);
        }
        budget.spend()?;
        self.job.status = Some(status);
        Some(())
    }

    /// Until nothing happens any more, running pods succeeding.
    fn settle(&mut self) {
        for _ in 0..60 {
            for step in [Step::Wait, Step::Pass(100), Step::Reap, Step::Succeed(0), Step::Succeed(0), Step::Pass(100)] {
                self.step(&step);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_pod_counts_once(steps in proptest::collection::vec(any_step(), 0..80), limit in 0i32..20) {
        let mut world = World::new(job(|j| j["spec"]["backoffLimit"] = json!(limit)));
        for step in &steps {
            world.step(step);
        }
        world.settle();
        let done = end(&world.job).expect("the job ends").type_.clone();
        let status = world.job.status.clone().unwrap();
        let succeeded = i32::try_from(world.ended.values().filter(|s| **s).count()).unwrap();
        let failed = i32::try_from(world.ended.len()).unwrap() - succeeded;
        prop_assert_eq!(status.succeeded.unwrap_or(0), succeeded);
        let counted = status.failed.unwrap_or(0);
        prop_assert!((failed..=failed + i32::try_from(world.killed).unwrap()).contains(&counted), "{counted} of {failed}");
        prop_assert_eq!(done == "Complete", counted <= limit);
        prop_assert!(world.pods.values().all(|p| !is_tracked(p)));
    }

    #[test]
    fn each_index_succeeds_once(steps in proptest::collection::vec(any_step(), 0..80)) {
        let mut world = World::new(job(|j| {
            j["spec"]["completionMode"] = json!("Indexed");
            j["spec"]["completions"] = json!(4);
            j["spec"]["backoffLimit"] = json!(1000);
        }));
        for step in &steps {
            world.step(step);
        }
        world.settle();
        let status = world.job.status.clone().unwrap();
        prop_assert_eq!(end(&world.job).map(|c| c.type_.as_str()), Some("Complete"));
        prop_assert_eq!((status.succeeded, status.completed_indexes.as_deref()), (Some(4), Some("0-3")));
    }
}
