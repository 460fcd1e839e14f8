//! The EndpointSlice and Endpoints controllers: read caches, ask the pure parts, act.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use kube::api::DeleteParams;
use parking_lot::Mutex;

use super::legacy;
use super::model::{is_managed, selects, wanted};
use super::slices::{MANAGED_BY, MANAGER, SERVICE_NAME, plan};
use crate::engine::events::Level;
use crate::engine::index::Change;
use crate::engine::{Caches, Events, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::meta::{annotation, created, is_deleting, labels, namespace_of, uid_of};
use crate::pods;

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The zone of a node.
fn zone(caches: &Caches, node: &str) -> Option<String> {
    let node = caches.nodes.get("", node)?;
    labels(node.as_ref()).get(ZONE_LABEL).cloned()
}

/// The pods of a service.
fn pods_of(caches: &Caches, service: &Service) -> Vec<Arc<Pod>> {
    let mut pods = caches.pods.in_namespace(namespace_of(service));
    pods.retain(|pod| selects(service, pod) == Some(true));
    // By age, so that slices fill in a stable order.
    pods.sort_by(|a, b| {
        created(a.as_ref()).cmp(&created(b.as_ref())).then_with(|| uid_of(a.as_ref()).cmp(uid_of(b.as_ref())))
    });
    pods
}

/// Puts every service whose endpoints a pod's change may concern into the queue.
fn pod_changed(caches: &Caches, queue: &Queue<Key>, change: &Change<Pod>) {
    let new = change.object();
    if change.old().is_some_and(|old| !matters(old, new)) {
        return;
    }
    for service in caches.services.in_namespace(namespace_of(new.as_ref())) {
        let hit = |pod: &Arc<Pod>| selects(&service, pod) == Some(true);
        if hit(new) || change.old().is_some_and(hit) {
            queue.add(Key::of(service.as_ref()));
        }
    }
}

/// The change is one that endpoints show.
fn matters(old: &Pod, new: &Pod) -> bool {
    let shown = |pod: &Pod| {
        let status = pod.status.clone().unwrap_or_default();
        (
            pods::is_ready(pod),
            pods::is_terminating(pod),
            pods::is_terminal(pod),
            pods::node_name(pod).map(str::to_owned),
            (status.pod_ip, status.pod_ips),
            labels(pod).clone(),
        )
    };
    shown(old) != shown(new)
}

/// When the newest change of a service's endpoints happened: what latencies are measured from.
///
/// Upstream counterpart: `TriggerTimeTracker`.
#[derive(Default)]
struct Triggers {
    seen: Mutex<HashMap<Key, HashMap<String, Timestamp>>>,
}

impl Triggers {
    /// The earliest of the times that are new since the last call for this service.
    fn next(&self, service: &Service, pods: &[Arc<Pod>]) -> Option<String> {
        let key = Key::of(service);
        let times: HashMap<String, Timestamp> = pods
            .iter()
            .filter_map(|pod| {
                let at = pods::condition(pod, "Ready")?.last_transition_time.as_ref()?.0;
                Some((uid_of(pod.as_ref()).to_owned(), at))
            })
            .collect();
        let mut seen = self.seen.lock();
        let first = !seen.contains_key(&key);
        let known = seen.entry(key).or_default();
        let changed = times.iter().filter(|(uid, at)| known.get(*uid).is_none_or(|before| before < *at));
        let mut earliest = changed.map(|(_, at)| *at).min();
        if first {
            // Nothing is known of the time before; the service itself is the newest change then.
            earliest = Some(created(service)).filter(|at| *at != Timestamp::MIN).or(earliest);
        }
        *known = times;
        earliest.map(|at| at.to_string())
    }

    fn forget(&self, key: &Key) {
        self.seen.lock().remove(key);
    }
}

/// The EndpointSlice controller.
pub struct Slices {
    caches: Arc<Caches>,
    slices: Kind<EndpointSlice>,
    events: Events,
    triggers: Triggers,
}

impl Slices {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>, events: Events) -> Self {
        Self {
            slices: Kind::new(caches.client.clone(), Arc::clone(&caches.slices)),
            caches: Arc::clone(caches),
            events,
            triggers: Triggers::default(),
        }
    }

    /// Makes changes of services, pods, slices and zones fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let target = Arc::clone(queue);
        self.caches.services.on_change(move |change| target.add(Key::of(change.object().as_ref())));
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.pods.on_change(move |change| pod_changed(&caches, &target, change));
        let target = Arc::clone(queue);
        self.caches.slices.on_change(move |change| {
            let slice = change.object().as_ref();
            if let Some(service) = labels(slice).get(SERVICE_NAME).filter(|_| is_ours(slice)) {
                target.add(Key::new(namespace_of(slice), service.as_str()));
            }
        });
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.nodes.on_change(move |change| {
            let zone_of = |node: &k8s_openapi::api::core::v1::Node| labels(node).get(ZONE_LABEL).cloned();
            let before = change.old().and_then(|node| zone_of(node));
            if matches!(change, Change::Updated { .. }) && before != zone_of(change.object()) {
                for service in caches.services.all() {
                    target.add(Key::of(service.as_ref()));
                }
            }
        });
    }

    fn of_service(&self, key: &Key) -> Vec<EndpointSlice> {
        let all = self.caches.slices.in_namespace(&key.namespace);
        let of_service =
            all.iter().filter(|s| is_ours(s.as_ref()) && labels(s.as_ref()).get(SERVICE_NAME) == Some(&key.name));
        of_service.map(|s| s.as_ref().clone()).collect()
    }
}

fn is_ours(slice: &EndpointSlice) -> bool {
    labels(slice).get(MANAGED_BY).map(String::as_str) == Some(MANAGER)
}

impl Reconcile for Slices {
    type Key = Key;
    const NAME: &'static str = "endpoint-slice-controller";

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let service = self.caches.services.by_key(key).filter(|s| is_managed(s) && !is_deleting(s.as_ref()));
        let Some(service) = service else {
            self.triggers.forget(key);
            // With the service gone the garbage collector takes its slices; a service that lost its selector keeps them, as
            // upstream's does: from now on they are the user's.
            return Ok(Outcome::Done);
        };
        let pods = pods_of(&self.caches, &service);
        let wanted = wanted(&service, pods.iter().map(AsRef::as_ref), |node| zone(&self.caches, node));
        let trigger = self.triggers.next(&service, &pods);
        let plan = plan(&service, &wanted, &self.of_service(key), trigger.as_deref());
        let result = self.apply(&plan).await;
        if let Err(error) = &result {
            if error.is_namespace_terminating() {
                return Ok(Outcome::Done);
            }
            if !error.is_routine() {
                let message = format!("Error updating Endpoint Slices for Service {key}: {}", error.server_message());
                self.events.about(
                    service.as_ref(),
                    Self::NAME,
                    Level::Warning,
                    "FailedToUpdateEndpointSlices",
                    message,
                );
            }
        }
        result.map(|()| Outcome::Done)
    }
}

impl Slices {
    /// New slices first, so that no endpoint is missing in between.
    async fn apply(&self, plan: &super::slices::Plan) -> Result<(), ReconcileError> {
        for slice in &plan.create {
            self.slices.create(slice).await?;
        }
        for (before, after) in &plan.update {
            self.slices.update(before, after).await?;
        }
        for slice in &plan.delete {
            self.slices.delete(slice, DeleteParams::default()).await?;
        }
        Ok(())
    }
}

/// The Endpoints controller.
pub struct LegacyEndpoints {
    caches: Arc<Caches>,
    endpoints: Kind<Endpoints>,
    triggers: Triggers,
}

impl LegacyEndpoints {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>) -> Self {
        Self {
            endpoints: Kind::new(caches.client.clone(), Arc::clone(&caches.endpoints)),
            caches: Arc::clone(caches),
            triggers: Triggers::default(),
        }
    }

    /// Makes changes of services, pods and endpoints fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let target = Arc::clone(queue);
        self.caches.services.on_change(move |change| target.add(Key::of(change.object().as_ref())));
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.pods.on_change(move |change| pod_changed(&caches, &target, change));
        let target = Arc::clone(queue);
        self.caches.endpoints.on_change(move |change| target.add(Key::of(change.object().as_ref())));
    }
}

impl Reconcile for LegacyEndpoints {
    type Key = Key;
    const NAME: &'static str = "endpoint-controller";

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let existing = self.caches.endpoints.by_key(key);
        let Some(service) = self.caches.services.by_key(key) else {
            self.triggers.forget(key);
            // Endpoints without a service may be someone's lock or hand-made: only those of this controller go.
            if let Some(object) = existing.filter(|e| is_made_here(e)) {
                self.endpoints.delete(&object, DeleteParams::default()).await?;
            }
            return Ok(Outcome::Done);
        };
        if !is_managed(&service) || is_deleting(service.as_ref()) {
            return Ok(Outcome::Done);
        }
        let pods = pods_of(&self.caches, &service);
        let trigger = self.triggers.next(&service, &pods);
        let pods: Vec<&Pod> = pods.iter().map(AsRef::as_ref).collect();
        let wanted = legacy::wanted(&service, &pods, existing.as_deref(), trigger.as_deref());
        let result = match &existing {
            None => self.endpoints.create(&wanted).await.map(drop),
            Some(before) => self.endpoints.update(before, &wanted).await.map(drop),
        };
        match result {
            Err(error) if error.is_namespace_terminating() => Ok(Outcome::Done),
            other => other.map(|()| Outcome::Done),
        }
    }
}

fn is_made_here(endpoints: &Endpoints) -> bool {
    let marked = labels(endpoints).get("endpoints.kubernetes.io/managed-by").map(String::as_str);
    marked == Some("endpoint-controller") || annotation(endpoints, super::slices::TRIGGER_TIME).is_some()
}
