//! The controller around [`plan`].

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::core::{Selector, SelectorExt};
use tracing::debug;

use super::plan::{failed, plan};
use crate::engine::cache::{Cache, Cached};
use crate::engine::{Caches, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::meta::{controller_uid, labels, namespace_of, uid_of};

/// The controller.
pub struct Disruptions {
    caches: Arc<Caches>,
    budgets: Kind<PodDisruptionBudget>,
}

impl Disruptions {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>) -> Self {
        Self { budgets: Kind::new(caches.client.clone(), Arc::clone(&caches.budgets)), caches: Arc::clone(caches) }
    }

    /// Makes changes of budgets, of their pods and of what owns these fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let target = Arc::clone(queue);
        self.caches.budgets.on_change(move |change| target.add(Key::of(change.object().as_ref())));
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.pods.on_change(move |change| {
            // A pod whose labels changed concerns the budgets of before as well.
            let seen = change.old().into_iter().chain([change.object()]);
            for pod in seen {
                add_for(&caches, &target, pod);
            }
        });
        let caches = &self.caches;
        sizes(&caches.deployments, caches, queue, |owner| owner.spec.replicas);
        sizes(&caches.replica_sets, caches, queue, |owner| owner.spec.replicas);
        sizes(&caches.replication_controllers, caches, queue, |owner| owner.spec.as_ref()?.replicas);
        sizes(&caches.stateful_sets, caches, queue, |owner| owner.spec.replicas);
    }

    /// The wished size behind an owner, and who decides it.
    fn scale(&self, namespace: &str, uid: &str) -> Option<(String, i32)> {
        let caches = &self.caches;
        if let Some(set) =
            caches.replica_sets.in_namespace(namespace).into_iter().find(|set| uid_of(set.as_ref()) == uid)
        {
            let deployment = controller_uid(set.as_ref(), "Deployment").and_then(|uid| {
                caches.deployments.in_namespace(namespace).into_iter().find(|owner| uid_of(owner.as_ref()) == uid)
            });
            return Some(match deployment {
                Some(owner) => (uid_of(owner.as_ref()).to_owned(), owner.spec.replicas.unwrap_or(1)),
                None => (uid.to_owned(), set.spec.replicas.unwrap_or(1)),
            });
        }
        let sets = caches.stateful_sets.in_namespace(namespace);
        if let Some(set) = sets.into_iter().find(|set| uid_of(set.as_ref()) == uid) {
            return Some((uid.to_owned(), set.spec.replicas.unwrap_or(1)));
        }
        let controllers = caches.replication_controllers.in_namespace(namespace);
        let controller = controllers.into_iter().find(|controller| uid_of(controller.as_ref()) == uid)?;
        Some((uid.to_owned(), controller.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)))
    }
}

/// Makes owners that come, go or change their size fill `queue` with the budgets of their namespace.
fn sizes<K: Cached>(owners: &Cache<K>, caches: &Arc<Caches>, queue: &Arc<Queue<Key>>, size: fn(&K) -> Option<i32>) {
    let (queue, caches) = (Arc::clone(queue), Arc::clone(caches));
    owners.on_change(move |change| {
        if change.old().is_some_and(|old| size(old) == size(change.object())) {
            return;
        }
        for budget in caches.budgets.in_namespace(namespace_of(change.object().as_ref())) {
            queue.add(Key::of(budget.as_ref()));
        }
    });
}

/// Whether a budget is about a pod. An empty selector selects all, an absent one none.
fn covers(budget: &PodDisruptionBudget, labels: &BTreeMap<String, String>) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
    selector.and_then(|selector| Selector::try_from(selector).ok()).is_some_and(|selector| selector.matches(labels))
}

fn add_for(caches: &Caches, queue: &Queue<Key>, pod: &Arc<Pod>) {
    for budget in caches.budgets.in_namespace(namespace_of(pod.as_ref())) {
        if covers(&budget, labels(pod.as_ref())) {
            queue.add(Key::of(budget.as_ref()));
        }
    }
}

impl Reconcile for Disruptions {
    type Key = Key;
    const NAME: &'static str = "disruption-controller";

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(budget) = self.caches.budgets.by_key(key) else { return Ok(Outcome::Done) };
        let mut pods = self.caches.pods.in_namespace(&key.namespace);
        pods.retain(|pod| covers(&budget, labels(pod.as_ref())));
        let now = Timestamp::now();
        let (status, again) = match plan(&budget, &pods, |uid| self.scale(&key.namespace, uid), now) {
            Ok(plan) => (plan.status, plan.again),
            Err(why) => {
                debug!(budget = %key, %why, "the size of the application is not known, so nothing is allowed");
                (failed(&budget, &why, now), None)
            }
        };
        let mut new = PodDisruptionBudget::clone(&budget);
        new.status = Some(status);
        self.budgets.update_status(&budget, &new).await?;
        Ok(Outcome::after(again))
    }
}
