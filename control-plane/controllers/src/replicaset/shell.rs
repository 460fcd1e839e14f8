//! The controller of ReplicaSets and ReplicationControllers: reads caches, asks the pure parts, acts.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::core::SelectorExt;

use super::owner::Replicated;
use super::plan::plan;
use super::status;
use crate::adopt::{self, Marks, child_changed, ignore_gone};
use crate::claim::claim;
use crate::engine::{Caches, Events, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::meta::{controller_of, is_deleting, labels, namespace_of, uid_of};
use crate::pod_control::{Failed, PodControl, generated_pod};
use crate::pods;

/// The controller of one of the two kinds.
pub struct Replicas<O> {
    caches: Arc<Caches>,
    owners: Kind<O>,
    pods: PodControl,
}

impl<O: Replicated> Replicas<O> {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>, events: Events) -> Self {
        Self {
            owners: Kind::new(caches.client.clone(), Arc::clone(O::cache(caches))),
            pods: PodControl::new(caches, events, O::COMPONENT),
            caches: Arc::clone(caches),
        }
    }

    /// Makes changes of the owners and of pods fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let target = Arc::clone(queue);
        O::cache(&self.caches).on_change(move |change| target.add(Key::of(change.object().as_ref())));
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches
            .pods
            .on_change(move |change| child_changed(O::cache(&caches), |key| target.add(key), change, O::selector));
    }

    async fn act(&self, set: &O, active: &[Arc<Pod>], now: Timestamp) -> Result<(), Failed> {
        let wished = set.wished();
        let is_surplus = i32::try_from(active.len()).is_ok_and(|have| have > wished);
        let related = if is_surplus { self.related(set, active) } else { Vec::new() };
        let plan = plan(wished, active, &related, now);
        if let Some(template) = set.template().filter(|_| plan.create > 0) {
            self.pods.create(set, plan.create, |_| generated_pod(set, template)).await?;
        }
        if !plan.delete.is_empty() {
            self.pods.delete(set, &plan.delete).await?;
        }
        Ok(())
    }

    /// Active pods of all owners under the same controller (the Deployment).
    fn related(&self, set: &O, active: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
        let Some(parent) = controller_of(set) else {
            return active.to_vec();
        };
        let sets = O::cache(&self.caches).in_namespace(namespace_of(set));
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
}

impl<O: Replicated> Reconcile for Replicas<O> {
    type Key = Key;
    const NAME: &'static str = O::COMPONENT;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(set) = O::cache(&self.caches).by_key(key) else {
            return Ok(Outcome::Done);
        };
        let Some(selector) = set.selector() else {
            return Ok(Outcome::Done);
        };
        let matches = |pod: &Pod| selector.matches(labels(pod));
        let owned = adopt::take(&self.owners, self.pods.pods(), set.as_ref(), matches, Marks::NONE).await?;
        let (active, _) = split(owned);
        let acted = if is_deleting(set.as_ref()) { Ok(()) } else { self.act(&set, &active, Timestamp::now()).await };
        // The cache holds the answers to what was just done: the report is about the pods as they are now.
        let pods = self.caches.pods.in_namespace(&key.namespace);
        let (active, rest) = split(claim(uid_of(set.as_ref()), true, matches, pods).owned);
        let terminating = rest.iter().filter(|p| pods::is_terminating(p) && !pods::is_terminal(p)).count();
        let now = Timestamp::now();
        let failure = acted.as_ref().err().map(|failed| &failed.0);
        let mut reported = set.as_ref().clone();
        reported.set_status(status::status(set.as_ref(), &active, terminating, failure, now));
        ignore_gone(self.owners.update_status(&set, &reported).await)?;
        acted.map_err(|failed| failed.1)?;
        Ok(Outcome::after(status::next_available(set.as_ref(), &active, now)))
    }
}

/// Active pods, and the rest.
fn split(owned: Vec<Arc<Pod>>) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
    owned.into_iter().partition(|p| pods::is_active(p))
}
