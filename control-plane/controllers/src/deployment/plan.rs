//! One step of a deployment: from what is there to what to write. Pure.
//!
//! Upstream counterpart: `syncDeployment`, `rolling.go`, `recreate.go`, `sync.go`.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use k8s_openapi::jiff::Timestamp;

use super::history::{annotate_new, annotate_scale, is_scaling, next_revision, revision, superfluous};
use super::sizes::{
    available, is_recreate, is_saturated, max_unavailable, new_set_size, proportional, size, total, wished,
};
use super::status::{
    PROGRESSING, check_after, condition, counts, deadline, find, is_complete, note_pause, progress, set,
};
use super::template::{find_new, new_set};
use crate::meta::{created, is_deleting, name_of};

/// What is there.
#[derive(Debug)]
pub struct Input<'a> {
    /// The deployment.
    pub deployment: &'a Deployment,
    /// The replica sets that it controls.
    pub sets: Vec<ReplicaSet>,
    /// Some pod of an old template has not ended yet (only asked for with strategy Recreate).
    pub old_pods_running: bool,
    /// The time.
    pub now: Timestamp,
}

/// What to write.
#[derive(Debug, Default)]
pub struct Plan {
    /// A set to make, with its size.
    pub create: Option<ReplicaSet>,
    /// Sets to change: before and after.
    pub update: Vec<(ReplicaSet, ReplicaSet)>,
    /// Old sets to drop.
    pub delete: Vec<ReplicaSet>,
    /// The revision that the deployment should carry.
    pub revision: Option<i64>,
    /// The status to report.
    pub status: DeploymentStatus,
    /// Messages of `ScalingReplicaSet` events.
    pub scaled: Vec<String>,
    /// When to look again even if nothing changes.
    pub after: Option<Duration>,
}

/// The state of one pass: sets are changed in memory, then compared with what was read.
struct Pass<'a> {
    deployment: &'a Deployment,
    before: Vec<ReplicaSet>,
    new: Option<ReplicaSet>,
    old: Vec<ReplicaSet>,
    creating: bool,
    status: DeploymentStatus,
    scaled: Vec<String>,
    delete: Vec<ReplicaSet>,
    now: Timestamp,
}

/// Decides one step.
pub fn plan(input: Input<'_>) -> Plan {
    let mut pass = Pass::new(input.deployment, input.sets, input.now);
    if is_deleting(input.deployment) {
        pass.status = counts(input.deployment, pass.new.as_ref(), &pass.old, input.now);
        return pass.finish();
    }
    note_pause(input.deployment, &mut pass.status, input.now);
    let paused = input.deployment.spec.paused.unwrap_or(false);
    let all: Vec<&ReplicaSet> = pass.new.iter().chain(&pass.old).collect();
    if paused || is_scaling(input.deployment, &all) {
        pass.adopt_new();
        pass.scale();
        if paused {
            pass.delete = superfluous(pass.deployment, &pass.old);
        }
        pass.report_only();
    } else if is_recreate(input.deployment) {
        pass.recreate(input.old_pods_running);
        pass.report_progress();
    } else {
        pass.roll();
        pass.report_progress();
    }
    pass.finish()
}

impl<'a> Pass<'a> {
    fn new(deployment: &'a Deployment, sets: Vec<ReplicaSet>, now: Timestamp) -> Self {
        let before = sets.clone();
        let mut old = sets;
        let new = find_new(deployment, &old).map(|position| old.remove(position));
        // Oldest first: the order in which old sets give up pods.
        old.sort_by(|a, b| created(a).cmp(&created(b)).then_with(|| name_of(a).cmp(name_of(b))));
        Self {
            deployment,
            before,
            new,
            old,
            creating: false,
            status: deployment.status.clone().unwrap_or_default(),
            scaled: Vec::new(),
            delete: Vec::new(),
            now,
        }
    }

    fn total(&self) -> i32 {
        total(self.new.iter().chain(&self.old))
    }

    /// Brings revision and annotations of an existing newest set up to date.
    fn adopt_new(&mut self) {
        let next = next_revision(&self.old);
        let Some(new) = &mut self.new else { return };
        annotate_new(self.deployment, new, next);
        let min_ready = self.deployment.spec.min_ready_seconds;
        if new.spec.min_ready_seconds.unwrap_or(0) != min_ready.unwrap_or(0) {
            new.spec.min_ready_seconds = min_ready;
        }
        if deadline(self.deployment).is_some() && find(&self.status, PROGRESSING).is_none() {
            let message = format!("Found new replica set \"{}\"", name_of(new));
            set(&mut self.status, condition(PROGRESSING, "True", "FoundNewReplicaSet", message, self.now));
        }
    }

    /// Makes sure that there is a newest set.
    fn ensure_new(&mut self) {
        if self.new.is_some() {
            return self.adopt_new();
        }
        let collisions = self.status.collision_count.unwrap_or(0);
        let mut new = new_set(self.deployment, collisions);
        let replicas = new_set_size(self.deployment, total(&self.old), &new);
        new.spec.replicas = Some(replicas);
        annotate_new(self.deployment, &mut new, next_revision(&self.old));
        annotate_scale(self.deployment, &mut new);
        if replicas > 0 {
            self.scaled.push(scale_message(&new, 0, replicas));
        }
        if deadline(self.deployment).is_some() {
            let message = format!("Created new replica set \"{}\"", name_of(&new));
            set(&mut self.status, condition(PROGRESSING, "True", "NewReplicaSetCreated", message, self.now));
        }
        self.creating = true;
        self.new = Some(new);
    }

    fn resize_new(&mut self, replicas: i32) -> bool {
        let Some(new) = &mut self.new else { return false };
        resize(self.deployment, new, replicas, &mut self.scaled)
    }

    fn resize_old(&mut self, position: usize, replicas: i32) -> bool {
        resize(self.deployment, &mut self.old[position], replicas, &mut self.scaled)
    }

    /// Strategy RollingUpdate: grow the newest set, else shrink old ones, else clean up.
    fn roll(&mut self) {
        self.ensure_new();
        if self.creating {
            return;
        }
        let Some(new) = &self.new else { return };
        let target = if size(new) > wished(self.deployment) {
            wished(self.deployment)
        } else {
            new_set_size(self.deployment, self.total(), new)
        };
        if self.resize_new(target) || self.shrink_old() {
            return;
        }
        self.clean_up();
    }

    /// Takes pods from old sets as far as availability allows: broken ones first.
    fn shrink_old(&mut self) -> bool {
        if total(&self.old) == 0 {
            return false;
        }
        let Some(new) = &self.new else { return false };
        // Availability reported for another size than today's says little: wait for the report.
        if self.new.iter().chain(&self.old).any(|set| !is_observed(set)) {
            return false;
        }
        let least = wished(self.deployment) - max_unavailable(self.deployment);
        let new_missing = size(new) - usable(new);
        let most = self.total() - least - new_missing;
        if most <= 0 {
            return false;
        }
        let mut cleaned = 0;
        for i in 0..self.old.len() {
            let broken = size(&self.old[i]) - usable(&self.old[i]);
            let take = broken.min(most - cleaned).min(size(&self.old[i]));
            if size(&self.old[i]) > 0 && take > 0 {
                cleaned += take;
                self.resize_old(i, size(&self.old[i]) - take);
            }
        }
        let mut spare = self.new.iter().chain(&self.old).map(usable).sum::<i32>() - least;
        let mut taken = 0;
        for i in 0..self.old.len() {
            let take = size(&self.old[i]).min(spare);
            if take > 0 {
                spare -= take;
                taken += take;
                self.resize_old(i, size(&self.old[i]) - take);
            }
        }
        cleaned + taken > 0
    }

    /// Strategy Recreate: all old pods end before a new one is made.
    fn recreate(&mut self, old_pods_running: bool) {
        self.adopt_new();
        let mut shrunk = false;
        for i in 0..self.old.len() {
            if size(&self.old[i]) > 0 {
                shrunk |= self.resize_old(i, 0);
            }
        }
        if shrunk || old_pods_running {
            return;
        }
        self.ensure_new();
        if !self.creating && !self.resize_new(wished(self.deployment)) {
            self.clean_up();
        }
    }

    fn clean_up(&mut self) {
        if is_complete(self.deployment, &counts(self.deployment, self.new.as_ref(), &self.old, self.now)) {
            self.delete = superfluous(self.deployment, &self.old);
        }
    }

    /// The wish changed, or the deployment is paused: sizes change, templates do not.
    fn scale(&mut self) {
        let wish = wished(self.deployment);
        if let Some(only) = self.only_active_or_latest() {
            match only {
                None => {
                    self.resize_new(wish);
                }
                Some(i) => {
                    self.resize_old(i, wish);
                }
            }
            return;
        }
        if self.new.as_ref().is_some_and(|new| is_saturated(self.deployment, new)) {
            for i in 0..self.old.len() {
                if size(&self.old[i]) > 0 {
                    self.resize_old(i, 0);
                }
            }
            return;
        }
        if is_recreate(self.deployment) {
            return;
        }
        let new_active = self.new.as_ref().is_some_and(|n| size(n) > 0);
        let positions: Vec<usize> = (0..self.old.len()).filter(|i| size(&self.old[*i]) > 0).collect();
        let active: Vec<&ReplicaSet> =
            self.new.iter().filter(|_| new_active).chain(positions.iter().map(|i| &self.old[*i])).collect();
        let mut sizes = proportional(self.deployment, &active).into_iter();
        if new_active && let Some(target) = sizes.next() {
            self.resize_new(target);
        }
        for (i, target) in positions.into_iter().zip(sizes) {
            self.resize_old(i, target);
        }
    }

    /// The only active set (`None`: the newest, `Some(i)`: an old one), or the latest if none is active; nothing if
    /// several are.
    fn only_active_or_latest(&self) -> Option<Option<usize>> {
        let old_active: Vec<usize> = (0..self.old.len()).filter(|i| size(&self.old[*i]) > 0).collect();
        let new_active = self.new.as_ref().is_some_and(|n| size(n) > 0);
        match (new_active, old_active.as_slice()) {
            (true, []) => Some(None),
            (false, [only]) => Some(Some(*only)),
            (false, []) if self.new.is_some() => Some(None),
            (false, []) if !self.old.is_empty() => Some(Some(self.old.len() - 1)),
            _ => None,
        }
    }

    fn report_only(&mut self) {
        let mut status = counts(self.deployment, self.new.as_ref(), &self.old, self.now);
        if let Some(progressing) = find(&self.status, PROGRESSING).cloned() {
            let conditions = status.conditions.get_or_insert_default();
            conditions.retain(|c| c.type_.as_deref() != Some(PROGRESSING));
            conditions.push(progressing);
        }
        self.status = status;
    }

    fn report_progress(&mut self) {
        self.status = progress(self.deployment, &self.status, self.new.as_ref(), &self.old, self.now);
    }

    fn finish(self) -> Plan {
        let mut update = Vec::new();
        let existing = self.old.iter().chain(self.new.iter().filter(|_| !self.creating));
        for after in existing {
            let before = self.before.iter().find(|b| name_of(*b) == name_of(after));
            if let Some(before) = before.filter(|b| *b != after) {
                update.push((before.clone(), after.clone()));
            }
        }
        // Growing first: an update that shrinks may then rely on it.
        update.sort_by_key(|(before, after)| size(before) - size(after));
        Plan {
            revision: self.new.as_ref().map(revision),
            create: self.new.filter(|_| self.creating),
            update,
            delete: self.delete,
            after: check_after(self.deployment, &self.status, self.now),
            status: self.status,
            scaled: self.scaled,
        }
    }
}

/// The set's controller has seen its newest size.
fn is_observed(set: &ReplicaSet) -> bool {
    let observed = set.status.as_ref().and_then(|s| s.observed_generation).unwrap_or(0);
    observed >= set.metadata.generation.unwrap_or(0)
}

/// Available pods that the set will keep: what it reports may still include pods it is about to delete.
fn usable(set: &ReplicaSet) -> i32 {
    available(set).min(size(set))
}

/// Sets the size and notes the wish; tells whether the size changed.
fn resize(deployment: &Deployment, set: &mut ReplicaSet, replicas: i32, scaled: &mut Vec<String>) -> bool {
    let before = size(set);
    annotate_scale(deployment, set);
    if before == replicas {
        return false;
    }
    scaled.push(scale_message(set, before, replicas));
    set.spec.replicas = Some(replicas);
    true
}

fn scale_message(set: &ReplicaSet, from: i32, to: i32) -> String {
    let way = if to > from { "up" } else { "down" };
    format!("Scaled {way} replica set {} from {from} to {to}", name_of(set))
}
