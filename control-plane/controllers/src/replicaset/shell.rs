//! The ReplicaSet controller: reads caches, asks the pure parts, acts.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::DeleteParams;
use kube::core::{Selector, SelectorExt};

use super::claim::claim;
use super::plan::{plan, slow_start};
use super::status::{self, Failure};
use crate::engine::events::Level;
use crate::engine::index::Change;
use crate::engine::{Caches, Events, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::meta::{
    controller_of, controller_reference, controller_uid, is_deleting, labels, name_of, namespace_of, uid_of,
    workload_selector,
};
use crate::pods;

const COMPONENT: &str = "replicaset-controller";

/// What the status says of a failed write, and what the queue hears.
type Failed = Box<(Failure, ReconcileError)>;

/// The controller.
pub struct ReplicaSets {
    caches: Arc<Caches>,
    sets: Kind<ReplicaSet>,
    pods: Kind<Pod>,
    events: Events,
}

impl ReplicaSets {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>, events: Events) -> Self {
        Self {
            sets: Kind::new(caches.client.clone(), Arc::clone(&caches.replica_sets)),
            pods: Kind::new(caches.client.clone(), Arc::clone(&caches.pods)),
            caches: Arc::clone(caches),
            events,
        }
    }

    /// Makes changes of replica sets and pods fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let target = Arc::clone(queue);
        self.caches.replica_sets.on_change(move |change| target.add(Key::of(change.object().as_ref())));
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.pods.on_change(move |change| pod_changed(&caches, &target, change));
    }

    async fn adopt_and_release(&self, set: &ReplicaSet, selector: &Selector) -> Result<Vec<Arc<Pod>>, ReconcileError> {
        let pods = self.caches.pods.in_namespace(namespace_of(set));
        let claim = claim(uid_of(set), is_deleting(set), selector, pods);
        let mut owned = claim.owned;
        for pod in &claim.release {
            let mut freed = pod.as_ref().clone();
            if let Some(owners) = &mut freed.metadata.owner_references {
                owners.retain(|owner| owner.uid != uid_of(set));
            }
            ignore_gone(self.pods.update(pod, &freed).await)?;
        }
        if claim.adopt.is_empty() {
            return Ok(owned);
        }
        // Adopting for an owner that is gone would lose pods to the garbage collector: ask the server itself.
        let live = self.sets.get_live(&Key::of(set)).await?;
        if live.is_none_or(|live| uid_of(&live) != uid_of(set) || is_deleting(&live)) {
            return Ok(owned);
        }
        for pod in claim.adopt {
            let mut mine = pod.as_ref().clone();
            let owners = mine.metadata.owner_references.get_or_insert_default();
            owners.push(controller_reference(set));
            if ignore_gone(self.pods.update(&pod, &mine).await)?.is_some() {
                owned.push(Arc::new(mine));
            }
        }
        Ok(owned)
    }

    async fn act(&self, set: &ReplicaSet, active: &[Arc<Pod>], now: Timestamp) -> Result<(), Failed> {
        let wished = set.spec.replicas.unwrap_or(1);
        let is_surplus = i32::try_from(active.len()).is_ok_and(|have| have > wished);
        let related = if is_surplus { self.related(set, active) } else { Vec::new() };
        let plan = plan(wished, active, &related, now);
        if plan.create > 0 {
            self.create(set, plan.create).await?;
        }
        if !plan.delete.is_empty() {
            self.delete(set, &plan.delete).await?;
        }
        Ok(())
    }

    /// Active pods of all replica sets under the same controller.
    fn related(&self, set: &ReplicaSet, active: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
        let Some(parent) = controller_of(set) else {
            return active.to_vec();
        };
        let sets = self.caches.replica_sets.in_namespace(namespace_of(set));
        let family: Vec<&str> = sets
            .iter()
            .filter(|s| controller_of(s.as_ref()).is_some_and(|o| o.uid == parent.uid))
            .map(|s| uid_of(s.as_ref()))
            .collect();
        let pods = self.caches.pods.in_namespace(namespace_of(set)).into_iter();
        pods.filter(|p| {
            pods::is_active(p) && controller_of(p.as_ref()).is_some_and(|o| family.contains(&o.uid.as_str()))
        })
        .collect()
    }

    async fn create(&self, set: &ReplicaSet, count: usize) -> Result<(), Failed> {
        let Some(pod) = pod_from(set) else {
            return Ok(());
        };
        for batch in slow_start(count) {
            let calls = (0..batch).map(|_| self.pods.create(&pod));
            let mut failed = None;
            for result in futures::future::join_all(calls).await {
                match result {
                    Ok(made) => {
                        let message = format!("Created pod: {}", name_of(&made));
                        self.events.about(set, COMPONENT, Level::Normal, "SuccessfulCreate", message);
                    }
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return self.create_failed(set, error);
            }
        }
        Ok(())
    }

    fn create_failed(&self, set: &ReplicaSet, error: ReconcileError) -> Result<(), Failed> {
        // The set itself will be deleted soon: nothing to report or repeat.
        if error.is_namespace_terminating() {
            return Ok(());
        }
        let message = error.server_message();
        self.events.about(set, COMPONENT, Level::Warning, "FailedCreate", format!("Error creating: {message}"));
        let reason = "FailedCreate";
        Err(Box::new((Failure { reason, message }, error)))
    }

    async fn delete(&self, set: &ReplicaSet, pods: &[Arc<Pod>]) -> Result<(), Failed> {
        let calls = pods.iter().map(|pod| self.pods.delete(pod, DeleteParams::default()));
        let results = futures::future::join_all(calls).await;
        let mut failed = None;
        for (pod, result) in pods.iter().zip(results) {
            match result {
                Ok(()) => {
                    let message = format!("Deleted pod: {}", name_of(pod.as_ref()));
                    self.events.about(set, COMPONENT, Level::Normal, "SuccessfulDelete", message);
                }
                Err(error) => {
                    let message = error.server_message();
                    let text = format!("Error deleting: {message}");
                    self.events.about(set, COMPONENT, Level::Warning, "FailedDelete", text);
                    let reason = "FailedDelete";
                    failed = Some(Box::new((Failure { reason, message }, error)));
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Reconcile for ReplicaSets {
    type Key = Key;
    const NAME: &'static str = COMPONENT;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(set) = self.caches.replica_sets.by_key(key) else {
            return Ok(Outcome::Done);
        };
        let Some(selector) = workload_selector(&set.spec.selector) else {
            return Ok(Outcome::Done);
        };
        let owned = self.adopt_and_release(&set, &selector).await?;
        let (active, _) = split(owned);
        let acted = if is_deleting(set.as_ref()) { Ok(()) } else { self.act(&set, &active, Timestamp::now()).await };
        // The cache holds the answers to what was just done: the report is about the pods as they are now.
        let pods = self.caches.pods.in_namespace(&key.namespace);
        let (active, rest) = split(claim(uid_of(set.as_ref()), true, &selector, pods).owned);
        let terminating = rest.iter().filter(|p| pods::is_terminating(p) && !pods::is_terminal(p)).count();
        let now = Timestamp::now();
        let failure = acted.as_ref().err().map(|failed| &failed.0);
        let mut reported = set.as_ref().clone();
        reported.status = Some(status::status(&set, &active, terminating, failure, now));
        ignore_gone(self.sets.update_status(&set, &reported).await)?;
        acted.map_err(|failed| failed.1)?;
        Ok(Outcome::after(status::next_available(&set, &active, now)))
    }
}

/// Active pods, and the rest.
fn split(owned: Vec<Arc<Pod>>) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
    owned.into_iter().partition(|p| pods::is_active(p))
}

/// A pod from the set's template.
fn pod_from(set: &ReplicaSet) -> Option<Pod> {
    let template = set.spec.template.as_ref()?;
    let meta = template.metadata.clone().unwrap_or_default();
    Some(Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", name_of(set))),
            namespace: set.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![controller_reference(set)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    })
}

fn ignore_gone<T>(result: Result<Option<T>, ReconcileError>) -> Result<Option<T>, ReconcileError> {
    match result {
        Err(error) if error.is_not_found() => Ok(None),
        other => other,
    }
}

fn pod_changed(caches: &Caches, queue: &Queue<Key>, change: &Change<Pod>) {
    let new = change.object().as_ref();
    let mut handled = false;
    for pod in [change.old().map(AsRef::as_ref), Some(new)].into_iter().flatten() {
        if let Some(owner) = controller_of(pod) {
            handled = true;
            if controller_uid(pod, "ReplicaSet").is_some() {
                queue.add(Key::new(namespace_of(pod), owner.name.as_str()));
            }
        }
    }
    if handled || matches!(change, Change::Deleted(_)) {
        return;
    }
    // An orphan: any set whose selector matches may want it.
    for set in caches.replica_sets.in_namespace(namespace_of(new)) {
        let selector = workload_selector(&set.spec.selector);
        if selector.is_some_and(|s| s.matches(labels(new))) {
            queue.add(Key::of(set.as_ref()));
        }
    }
}
