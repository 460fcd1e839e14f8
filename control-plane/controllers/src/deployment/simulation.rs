//! Random histories of a deployment: a small world of replica sets whose pods become ready late and whose reports come
//! late, under templates that change in the middle.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::json;

use super::history::REVISION;
use super::plan::{Input, Plan, plan};
use super::sizes::{fenceposts, size, total, wished};
use super::status::find;
use crate::meta::{annotation, name_of};

struct Set {
    object: ReplicaSet,
    /// One entry per pod: is it ready?
    pods: Vec<bool>,
}

struct World {
    deployment: Deployment,
    sets: Vec<Set>,
    clock: i64,
    names: u32,
}

#[derive(Debug, Clone)]
enum Step {
    Plan,
    Sync(usize),
    Ready(usize),
    Template(u8),
    Scale(i32),
    Pause(bool),
}

fn world(replicas: i32, surge: i32, unavailable: i32) -> World {
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": "d", "namespace": "n", "uid": "u", "generation": 1},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}}, "progressDeadlineSeconds": 600, "revisionHistoryLimit": 2,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "v0"}]}}}}));
    World { deployment: deployment.unwrap(), sets: Vec::new(), clock: 0, names: 0 }
}

impl World {
    fn now(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(self.clock)
    }

    fn plan(&mut self, old_pods_running: bool) -> Plan {
        let now = self.now();
        plan(Input {
            deployment: &self.deployment,
            sets: self.sets.iter().map(|s| s.object.clone()).collect(),
            old_pods_running,
            now,
        })
    }

    fn apply(&mut self, plan: &Plan) {
        if let Some(new) = &plan.create {
            self.names += 1;
            let mut object = new.clone();
            object.metadata.uid = Some(self.names.to_string());
            object.metadata.generation = Some(1);
            object.metadata.creation_timestamp = Some(Time(self.now()));
            assert!(self.sets.iter().all(|s| name_of(&s.object) != name_of(&object)), "the same set twice");
            self.sets.push(Set { object, pods: Vec::new() });
        }
        for (before, after) in &plan.update {
            let set = self.sets.iter_mut().find(|s| name_of(&s.object) == name_of(before)).unwrap();
            assert_eq!(&set.object, before);
            set.object = after.clone();
            if before.spec != after.spec {
                *set.object.metadata.generation.as_mut().unwrap() += 1;
            }
        }
        let gone: Vec<&str> = plan.delete.iter().map(name_of).collect();
        self.sets.retain(|s| !gone.contains(&name_of(&s.object)));
        if let Some(revision) = plan.revision {
            let annotations = self.deployment.metadata.annotations.get_or_insert_default();
            annotations.insert(REVISION.to_owned(), revision.to_string());
        }
        self.deployment.status = Some(plan.status.clone());
    }

    /// The set's controller makes and deletes pods (unready ones first) and reports.
    fn sync(&mut self, i: usize) {
        let Some(set) = self.sets.get_mut(i) else { return };
        set.pods.sort_by_key(|ready| !ready);
        set.pods.resize(usize::try_from(size(&set.object)).unwrap(), false);
        let number = |n: usize| i32::try_from(n).unwrap();
        let ready = set.pods.iter().filter(|r| **r).count();
        set.object.status = Some(ReplicaSetStatus {
            replicas: number(set.pods.len()),
            ready_replicas: Some(number(ready)),
            available_replicas: Some(number(ready)),
            observed_generation: set.object.metadata.generation,
            ..ReplicaSetStatus::default()
        });
    }

    /// Available pods that will be left when all sets' controllers have caught up.
    fn available(&self) -> i32 {
        let of = |s: &Set| i32::try_from(s.pods.iter().filter(|r| **r).count()).unwrap().min(size(&s.object));
        self.sets.iter().map(of).sum()
    }

    fn total(&self) -> i32 {
        total(self.sets.iter().map(|s| &s.object))
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Plan => {
                let plan = self.plan(false);
                self.apply(&plan);
            }
            Step::Sync(i) => self.sync(*i),
            Step::Ready(i) => {
                let pod = self.sets.get_mut(*i).and_then(|s| s.pods.iter_mut().find(|ready| !**ready));
                if let Some(pod) = pod {
                    *pod = true;
                }
            }
            Step::Template(version) => {
                let image = Some(format!("v{version}"));
                self.edit(|d| d.spec.template.spec.as_mut().unwrap().containers[0].image = image);
            }
            Step::Scale(replicas) => self.edit(|d| d.spec.replicas = Some(*replicas)),
            Step::Pause(paused) => self.edit(|d| d.spec.paused = Some(*paused)),
        }
    }

    fn edit(&mut self, edit: impl FnOnce(&mut Deployment)) {
        edit(&mut self.deployment);
        *self.deployment.metadata.generation.as_mut().unwrap() += 1;
    }

    /// Everything works from now on.
    fn settle(&mut self) {
        for _ in 0..200 {
            let plan = self.plan(false);
            self.apply(&plan);
            for i in 0..self.sets.len() {
                self.sync(i);
                self.sets[i].pods.iter_mut().for_each(|ready| *ready = true);
                self.sync(i);
            }
        }
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Plan),
        6 => (0usize..4).prop_map(Step::Sync),
        5 => (0usize..4).prop_map(Step::Ready),
        1 => (0u8..4).prop_map(Step::Template),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// At no step does a rolling update wish for more than the surge allows, or give up an available pod that the
    /// minimum needs; in the end only the newest template is left, and a further pass writes nothing.
    #[test]
    fn rolling_updates_keep_their_promises(
        replicas in 1i32..12,
        (surge, unavailable) in (0i32..4, 0i32..4),
        steps in proptest::collection::vec(any_step(), 0..150),
    ) {
        let mut world = world(replicas, surge, unavailable);
        let (surge, unavailable) = fenceposts(&world.deployment);
        let least = replicas - unavailable.min(replicas);
        world.settle();
        for step in steps {
            let (total_before, available_before) = (world.total(), world.available());
            world.take(&step);
            prop_assert!(world.total() <= total_before.max(replicas + surge));
            prop_assert!(world.available() >= available_before.min(least), "{} of {available_before}", world.available());
        }
        world.settle();
        check_settled(&mut world)?;
    }

    /// Scaling and pausing in between: whatever happened, it ends where it should.
    #[test]
    fn every_history_ends_well(
        steps in proptest::collection::vec(prop_oneof![
            8 => any_step(),
            1 => (0i32..10).prop_map(Step::Scale),
            1 => any::<bool>().prop_map(Step::Pause),
        ], 0..150),
    ) {
        let mut world = world(4, 1, 1);
        for step in steps {
            world.take(&step);
        }
        world.take(&Step::Pause(false));
        world.settle();
        check_settled(&mut world)?;
    }
}

fn check_settled(world: &mut World) -> Result<(), TestCaseError> {
    let replicas = wished(&world.deployment);
    let active: Vec<_> = world.sets.iter().filter(|s| size(&s.object) > 0).collect();
    prop_assert_eq!(active.len(), usize::from(replicas > 0));
    let wanted = world.deployment.spec.template.spec.as_ref().unwrap().containers[0].image.clone();
    for set in &active {
        prop_assert_eq!(size(&set.object), replicas);
        let template = set.object.spec.template.as_ref().unwrap().spec.as_ref().unwrap();
        prop_assert_eq!(&template.containers[0].image, &wanted);
        prop_assert_eq!(annotation(&set.object, REVISION), annotation(&world.deployment, REVISION));
    }
    prop_assert!(world.sets.len() <= 3, "the history limit is 2");
    let progressing = find(world.deployment.status.as_ref().unwrap(), "Progressing").unwrap();
    prop_assert_eq!(progressing.reason.as_deref(), Some("NewReplicaSetAvailable"));
    let again = world.plan(false);
    prop_assert!(again.create.is_none() && again.update.is_empty() && again.delete.is_empty());
    prop_assert_eq!(Some(&again.status), world.deployment.status.as_ref());
    prop_assert_eq!(again.after, None);
    Ok(())
}

#[test]
fn the_first_steps_and_their_words() {
    let mut world = world(3, 1, 1);
    let first = world.plan(false);
    let new = first.create.clone().unwrap();
    assert_eq!(size(&new), 3);
    assert_eq!(first.scaled, [format!("Scaled up replica set {} from 0 to 3", name_of(&new))]);
    assert_eq!(find(&first.status, "Progressing").unwrap().reason.as_deref(), Some("NewReplicaSetCreated"));
    assert_eq!(find(&first.status, "Available").unwrap().reason.as_deref(), Some("MinimumReplicasUnavailable"));
    world.apply(&first);
    world.settle();
    let status = world.deployment.status.clone().unwrap();
    assert_eq!((status.replicas, status.available_replicas, status.unavailable_replicas), (Some(3), Some(3), None));
    world.take(&Step::Template(1));
    let second = world.plan(false);
    assert_eq!(size(second.create.as_ref().unwrap()), 1);
    world.apply(&second);
    let third = world.plan(false);
    assert!(third.update.is_empty(), "nothing is taken away before the new set's controller has reported");
    world.sync(1);
    let fourth = world.plan(false);
    assert_eq!(fourth.scaled.len(), 1);
    assert!(
        fourth.scaled[0].starts_with("Scaled down") && fourth.scaled[0].ends_with("from 3 to 2"),
        "{:?}",
        fourth.scaled
    );
}

#[test]
fn a_rollback_takes_the_old_set_again_with_a_new_revision() {
    let mut world = world(2, 1, 0);
    world.settle();
    world.take(&Step::Template(1));
    world.settle();
    world.take(&Step::Template(0));
    world.settle();
    assert_eq!(world.sets.len(), 2);
    assert_eq!(annotation(&world.deployment, REVISION), Some("3"));
    assert_eq!(annotation(&world.sets[0].object, "deployment.kubernetes.io/revision-history"), Some("1"));
}

#[test]
fn recreate_waits_for_the_end_of_the_old_pods() {
    let mut world = world(2, 1, 1);
    world.edit(|d| d.spec.strategy = serde_json::from_value(json!({"type": "Recreate"})).unwrap());
    world.settle();
    world.take(&Step::Template(1));
    let down = world.plan(true);
    assert!(down.create.is_none());
    world.apply(&down);
    world.sync(0);
    assert_eq!(world.total(), 0);
    assert!(world.plan(true).create.is_none());
    assert_eq!(world.plan(false).create.as_ref().map(size), Some(2));
}

#[test]
fn no_progress_within_the_deadline_is_said_once() {
    let mut world = world(1, 1, 0);
    world.take(&Step::Plan);
    world.sync(0);
    let waiting = world.plan(false);
    world.apply(&waiting);
    assert!(waiting.after.is_some_and(|wait| wait.as_secs() > 590));
    world.clock += 601;
    let late = world.plan(false);
    let progressing = find(&late.status, "Progressing").unwrap();
    assert_eq!(
        (progressing.status.as_deref(), progressing.reason.as_deref()),
        (Some("False"), Some("ProgressDeadlineExceeded"))
    );
    assert_eq!(late.after, None);
    world.apply(&late);
    assert_eq!(Some(&world.plan(false).status), world.deployment.status.as_ref());
}
