//! The scheduler's shell: caches in, bindings, conditions and events out.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PostParams};
use kube::core::Request;
use kube::{Client, Resource};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::brain::{Brain, Step};
use super::model::PodInfo;
use crate::engine::events::{Level, Note};
use crate::engine::index::Change;
use crate::engine::{Caches, Events, Key, Kind};
use crate::pods;

const COMPONENT: &str = "default-scheduler";
/// Requests under way at once: enough to keep an API server with group commit busy, few enough to be polite.
const IN_FLIGHT: usize = 64;

/// The scheduler.
pub struct Scheduler {
    brain: Mutex<Brain>,
    wake: Notify,
    start: Instant,
    client: Client,
    pods: Kind<Pod>,
    events: Events,
    in_flight: Arc<Semaphore>,
}

impl Scheduler {
    /// A scheduler over these caches, for pods of this scheduler name. Its state is filled by the caches' handlers.
    pub fn new(caches: &Arc<Caches>, events: Events, scheduler_name: &str) -> Arc<Self> {
        let scheduler = Arc::new(Self {
            brain: Mutex::new(Brain::new(scheduler_name)),
            wake: Notify::new(),
            start: Instant::now(),
            client: caches.client.clone(),
            pods: Kind::new(caches.client.clone(), Arc::clone(&caches.pods)),
            events,
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
        });
        let this = Arc::clone(&scheduler);
        caches.nodes.on_change(move |change| {
            let mut brain = this.brain.lock();
            match change {
                Change::Deleted(node) => brain.node_gone(node.metadata.name.as_deref().unwrap_or("")),
                Change::Added(node) | Change::Updated { new: node, .. } => brain.node_changed(node),
            }
            this.wake.notify_one();
        });
        let this = Arc::clone(&scheduler);
        caches.pods.on_change(move |change| {
            let mut brain = this.brain.lock();
            match change {
                Change::Deleted(pod) => brain.pod_gone(pod),
                Change::Added(pod) | Change::Updated { new: pod, .. } => brain.pod_changed(pod, this.now()),
            }
            this.wake.notify_one();
        });
        scheduler
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Schedules until cancelled.
    pub async fn run(self: Arc<Self>, tracker: TaskTracker, shutdown: CancellationToken) {
        loop {
            let permit = tokio::select! {
                () = shutdown.cancelled() => return,
                permit = Arc::clone(&self.in_flight).acquire_owned() => permit,
            };
            let step = tokio::select! {
                () = shutdown.cancelled() => return,
                step = self.next_step() => step,
            };
            let this = Arc::clone(&self);
            tracker.spawn(async move {
                this.carry_out(step).await;
                drop(permit);
            });
        }
    }

    async fn next_step(&self) -> Step {
        loop {
            let woken = self.wake.notified();
            let due = {
                let mut brain = self.brain.lock();
                if let Some(step) = brain.next(self.now()) {
                    return step;
                }
                brain.due()
            };
            match due {
                Some(at) => {
                    tokio::select! {
                        () = woken => {}
                        () = tokio::time::sleep_until(self.start + at) => {}
                    }
                }
                None => woken.await,
            }
        }
    }

    async fn carry_out(&self, step: Step) {
        match step {
            Step::Bind { pod, node } => match self.bind(&pod, &node).await {
                Ok(()) => {
                    let key = &pod.key;
                    let message = format!("Successfully assigned {}/{} to {node}", key.namespace, key.name);
                    self.tell(&pod, Level::Normal, "Scheduled", "Binding", message);
                }
                Err(error) => self.bind_failed(&pod, &error),
            },
            Step::Report { pod, message } => self.report(&pod, message).await,
        }
    }

    async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), kube::Error> {
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(pod.key.name.clone()),
                namespace: Some(pod.key.namespace.clone()),
                uid: Some(pod.uid.clone()),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(node.to_owned()),
                ..ObjectReference::default()
            },
        };
        let body = serde_json::to_vec(&binding).map_err(kube::Error::SerdeError)?;
        let request = Request::new(Pod::url_path(&(), Some(&pod.key.namespace)))
            .create_subresource("binding", &pod.key.name, &PostParams::default(), body)
            .map_err(kube::Error::BuildRequest)?;
        self.client.request::<Value>(request).await.map(drop)
    }

    fn bind_failed(&self, pod: &Arc<PodInfo>, error: &kube::Error) {
        // Gone, or bound by someone else: the watch tells the rest.
        let settled = matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409));
        if settled {
            debug!(pod = %pod.key, %error, "binding refused");
        } else {
            warn!(pod = %pod.key, %error, "binding failed, trying again");
            self.tell(pod, Level::Warning, "FailedScheduling", "Scheduling", format!("binding rejected: {error}"));
        }
        let is_gone = matches!(error, kube::Error::Api(status) if status.code == 404);
        self.brain.lock().bind_failed(pod, !is_gone, self.now());
        self.wake.notify_one();
    }

    fn tell(&self, pod: &PodInfo, level: Level, reason: &'static str, action: &'static str, message: String) {
        self.events.record(Note {
            about: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: Some(pod.key.namespace.clone()),
                name: Some(pod.key.name.clone()),
                uid: Some(pod.uid.clone()),
                ..ObjectReference::default()
            },
            level,
            reason,
            message,
            component: COMPONENT,
            action,
        });
    }

    /// Condition and event of a pod that fits nowhere.
    async fn report(&self, pod: &PodInfo, message: String) {
        self.tell(pod, Level::Warning, "FailedScheduling", "Scheduling", message.clone());
        let Some(current) = self.pods.cache().by_key(&pod.key) else { return };
        let Some(patch) = unschedulable_patch(&current, &message, Timestamp::now()) else { return };
        if let Err(error) = self.pods.patch(&Key::of(current.as_ref()), Some("status"), &Patch::Strategic(patch)).await
        {
            debug!(pod = %pod.key, %error, "condition not set");
        }
    }
}

/// The change of the PodScheduled condition, if it does not say so already.
fn unschedulable_patch(pod: &Pod, message: &str, now: Timestamp) -> Option<Value> {
    let known = pods::condition(pod, "PodScheduled");
    let is_false = known.is_some_and(|c| c.status == "False");
    if is_false
        && known.is_some_and(|c| c.reason.as_deref() == Some("Unschedulable") && c.message.as_deref() == Some(message))
    {
        return None;
    }
    let since = known.filter(|_| is_false).and_then(|c| c.last_transition_time.clone()).unwrap_or(Time(now));
    Some(json!({
        "metadata": {"uid": pod.metadata.uid},
        "status": {"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "lastTransitionTime": since, "observedGeneration": pod.metadata.generation,
        }]},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_is_only_written_when_it_changes_and_keeps_its_transition_time() {
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}})).unwrap();
        let first = unschedulable_patch(&pod, "no", Timestamp::UNIX_EPOCH).unwrap();
        pod.status = serde_json::from_value(json!({"conditions": first["status"]["conditions"]})).unwrap();
        assert!(unschedulable_patch(&pod, "no", Timestamp::now()).is_none());
        let second = unschedulable_patch(&pod, "still no", Timestamp::now()).unwrap();
        assert_eq!(second["status"]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    }
}
