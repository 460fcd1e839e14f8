//! The Deployment controller: reads caches, asks [`super::plan`], acts.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::DeleteParams;
use kube::core::{Selector, SelectorExt};

use super::history::REVISION;
use super::plan::{Input, Plan, plan};
use super::sizes::is_recreate;
use super::status::{PROGRESSING, condition, set};
use super::template::{find_new, is_ours};
use crate::adopt::{self, Marks, child_changed};
use crate::engine::events::Level;
use crate::engine::index::Change;
use crate::engine::{Caches, Events, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::meta::{controller_of, controller_uid, labels, name_of, namespace_of, uid_of, workload_selector};
use crate::pods;

const COMPONENT: &str = "deployment-controller";

/// The controller.
pub struct Deployments {
    caches: Arc<Caches>,
    deployments: Kind<Deployment>,
    sets: Kind<ReplicaSet>,
    events: Events,
}

impl Deployments {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>, events: Events) -> Self {
        Self {
            deployments: Kind::new(caches.client.clone(), Arc::clone(&caches.deployments)),
            sets: Kind::new(caches.client.clone(), Arc::clone(&caches.replica_sets)),
            caches: Arc::clone(caches),
            events,
        }
    }

    /// Makes changes of deployments, their sets and (for Recreate) pods fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let target = Arc::clone(queue);
        self.caches.deployments.on_change(move |change| target.add(Key::of(change.object().as_ref())));
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.replica_sets.on_change(move |change| {
            child_changed(&caches.deployments, |key| target.add(key), change, |d| workload_selector(&d.spec.selector));
        });
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.pods.on_change(move |change| pod_changed(&caches, &target, change));
    }

    async fn claim_sets(
        &self,
        deployment: &Deployment,
        selector: &Selector,
    ) -> Result<Vec<ReplicaSet>, ReconcileError> {
        let matches = |set: &ReplicaSet| selector.matches(labels(set));
        let owned = adopt::take(&self.deployments, &self.sets, deployment, matches, Marks::NONE).await?;
        Ok(owned.iter().map(|set| set.as_ref().clone()).collect())
    }

    /// Some pod of a set other than the newest has not ended.
    fn old_pods_running(&self, deployment: &Deployment, sets: &[ReplicaSet]) -> bool {
        if !is_recreate(deployment) {
            return false;
        }
        let new = find_new(deployment, sets).map(|i| uid_of(&sets[i]));
        let old: Vec<&str> = sets.iter().map(uid_of).filter(|uid| Some(*uid) != new).collect();
        let pods = self.caches.pods.in_namespace(namespace_of(deployment));
        pods.iter().any(|pod| {
            !pods::is_terminal(pod) && controller_of(pod.as_ref()).is_some_and(|o| old.contains(&o.uid.as_str()))
        })
    }

    async fn apply(&self, deployment: &Deployment, plan: Plan) -> Result<(), ReconcileError> {
        if let Some(new) = &plan.create {
            self.create(deployment, new).await?;
        }
        for (before, after) in &plan.update {
            self.sets.update(before, after).await?;
        }
        for message in plan.scaled {
            self.events.about(deployment, COMPONENT, Level::Normal, "ScalingReplicaSet", message);
        }
        for old in &plan.delete {
            self.sets.delete(old, DeleteParams::default()).await?;
        }
        // The revision goes with the status, as upstream sends it: a change of annotations alone would count as a new
        // generation of the deployment.
        let mut reported = deployment.clone();
        if let Some(revision) = plan.revision {
            let annotations = reported.metadata.annotations.get_or_insert_default();
            annotations.insert(REVISION.to_owned(), revision.to_string());
        }
        reported.status = Some(plan.status);
        self.deployments.update_status(deployment, &reported).await?;
        Ok(())
    }

    async fn create(&self, deployment: &Deployment, new: &ReplicaSet) -> Result<(), ReconcileError> {
        let error = match self.sets.create(new).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_namespace_terminating() => return Ok(()),
            Err(error) => error,
        };
        let mut reported = deployment.clone();
        let status = reported.status.get_or_insert_default();
        if error.is_already_exists() {
            let live = self.sets.get_live(&Key::of(new)).await?;
            if let Some(live) = live.filter(|live| is_ours(deployment, live)) {
                self.caches.replica_sets.written(live);
                return Ok(());
            }
            // Another set has the name: the next try hashes with a higher count.
            status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
        } else {
            let message = error.server_message();
            let text = format!("Failed to create new replica set \"{}\": {message}", name_of(new));
            self.events.about(deployment, COMPONENT, Level::Warning, "ReplicaSetCreateError", text.clone());
            set(status, condition(PROGRESSING, "False", "ReplicaSetCreateError", text, Timestamp::now()));
        }
        self.deployments.update_status(deployment, &reported).await?;
        Err(error)
    }
}

impl Reconcile for Deployments {
    type Key = Key;
    const NAME: &'static str = COMPONENT;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(deployment) = self.caches.deployments.by_key(key) else {
            return Ok(Outcome::Done);
        };
        let Some(selector) = workload_selector(&deployment.spec.selector) else {
            let message = "This deployment is selecting all pods. A non-empty selector is required.".to_owned();
            self.events.about(deployment.as_ref(), COMPONENT, Level::Warning, "SelectingAll", message);
            return Ok(Outcome::Done);
        };
        let sets = self.claim_sets(&deployment, &selector).await?;
        let old_pods_running = self.old_pods_running(&deployment, &sets);
        let plan = plan(Input { deployment: &deployment, sets, old_pods_running, now: Timestamp::now() });
        let after = plan.after;
        match self.apply(&deployment, plan).await {
            Err(error) if error.is_not_found() => Ok(Outcome::Done),
            Err(error) => Err(error),
            Ok(()) => Ok(Outcome::after(after)),
        }
    }
}

/// The end of a pod matters to deployments that wait for it before they make new ones.
fn pod_changed(caches: &Caches, queue: &Queue<Key>, change: &Change<Pod>) {
    let pod = change.object().as_ref();
    if !matches!(change, Change::Deleted(_)) && !pods::is_terminal(pod) {
        return;
    }
    let Some(owner) = controller_of(pod).filter(|_| controller_uid(pod, "ReplicaSet").is_some()) else {
        return;
    };
    let set = caches.replica_sets.get(namespace_of(pod), &owner.name);
    let parent = set.as_ref().and_then(|s| controller_of(s.as_ref())).filter(|o| o.kind == "Deployment");
    let Some(parent) = parent else { return };
    let deployment = caches.deployments.get(namespace_of(pod), &parent.name);
    if deployment.is_some_and(|d| is_recreate(&d)) {
        queue.add(Key::new(namespace_of(pod), parent.name.as_str()));
    }
}
