//! Sends pod statuses to the API: only changes, only the newest, and the final DELETE when everything is gone.
//!
//! Workers put statuses in and never wait; one task sends them, a few at a time. The base of each patch is what the
//! API answered last, so that a change by others is corrected and an equal status costs nothing. Upstream
//! counterpart: `pkg/kubelet/status/status_manager.go`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::patch;
use crate::pod;
use crate::source::api::brief;

/// Requests at once.
const IN_FLIGHT: usize = 8;
/// Longest time one request may take.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// First pause after a failure.
const RETRY_MIN: Duration = Duration::from_millis(500);
/// Longest pause after failures.
const RETRY_MAX: Duration = Duration::from_secs(10);

struct Entry {
    namespace: String,
    name: String,
    /// The UID the API knows: the pod's own, or that of a static pod's mirror (none yet without a mirror).
    api_uid: Option<String>,
    status: Arc<PodStatus>,
    /// What the API last said.
    base: Option<Value>,
    base_version: u64,
    dirty: bool,
    delete: bool,
    /// The step that takes long, told in the Ready condition.
    blocked: Option<String>,
}

impl Entry {
    /// The status to send.
    fn wanted(&self, base: &Value) -> Value {
        let Some(text) = &self.blocked else { return patch::pod_status(base, to_value(Some(&self.status))) };
        let mut status = (*self.status).clone();
        for condition in status.conditions.iter_mut().flatten().filter(|c| c.type_ == "Ready") {
            condition.message = Some(match condition.message.take() {
                Some(message) if !message.is_empty() => format!("{message}; {text}"),
                _ => text.clone(),
            });
        }
        patch::pod_status(base, to_value(Some(&status)))
    }
}

/// The statuses of the node's pods.
#[derive(Default)]
pub struct Statuses {
    pods: Mutex<HashMap<String, Entry>>,
    changed: Notify,
}

struct Job {
    uid: String,
    namespace: String,
    name: String,
    api_uid: String,
    patch: Option<Value>,
    delete: bool,
}

enum Done {
    Sent(Box<Pod>),
    Deleted,
    Gone,
    Failed,
}

fn version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

fn to_value(status: Option<&PodStatus>) -> Value {
    status.and_then(|s| serde_json::to_value(s).ok()).unwrap_or_else(|| json!({}))
}

impl Statuses {
    /// The status of a pod as last computed.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<Arc<PodStatus>> {
        self.pods.lock().get(uid).map(|e| e.status.clone())
    }

    /// The UID under which the API (and so its slices) knows a pod: its own, or that of a static pod's mirror.
    #[must_use]
    pub fn api_uid(&self, uid: &str) -> Option<String> {
        self.pods.lock().get(uid)?.api_uid.clone()
    }

    /// Takes a computed status.
    pub fn set(&self, pod: &Pod, status: PodStatus) {
        let uid = pod::uid(pod).to_owned();
        let mut pods = self.pods.lock();
        if let Some(entry) = pods.get_mut(&uid) {
            if *entry.status == status {
                return;
            }
            entry.status = Arc::new(status);
            entry.dirty = true;
        } else {
            let from_api = !pod::is_static(pod);
            let base = from_api.then(|| to_value(pod.status.as_ref()));
            let dirty = pod.status.as_ref() != Some(&status);
            pods.insert(
                uid.clone(),
                Entry {
                    namespace: pod::namespace(pod).to_owned(),
                    name: pod::name(pod).to_owned(),
                    api_uid: from_api.then_some(uid),
                    status: Arc::new(status),
                    base,
                    base_version: version(pod),
                    dirty,
                    delete: false,
                    blocked: None,
                },
            );
        }
        self.changed.notify_one();
    }

    /// Takes in what the API says about a pod (or about a static pod's mirror); a status that differs from ours is
    /// sent again.
    pub fn observe(&self, uid: &str, api: &Pod) {
        let mut pods = self.pods.lock();
        let Some(entry) = pods.get_mut(uid) else { return };
        let seen = version(api);
        let other = entry.api_uid.as_deref() != api.metadata.uid.as_deref();
        if seen <= entry.base_version && !other {
            return;
        }
        entry.api_uid.clone_from(&api.metadata.uid);
        entry.base = Some(to_value(api.status.as_ref()));
        entry.base_version = seen;
        if api.status.as_ref() != Some(&*entry.status) {
            entry.dirty = true;
            self.changed.notify_one();
        }
    }

    /// Tells of each pod which step takes long; those that are not named have none.
    pub fn blocked(&self, slow: &HashMap<String, String>) {
        for (uid, entry) in self.pods.lock().iter_mut() {
            let now = slow.get(uid);
            if entry.blocked.as_ref() != now {
                entry.blocked = now.cloned();
                entry.dirty = true;
                self.changed.notify_one();
            }
        }
    }

    /// Everything of the pod is gone from the node: the API object may go too.
    pub fn finish(&self, uid: &str) {
        if let Some(entry) = self.pods.lock().get_mut(uid) {
            entry.delete = true;
            self.changed.notify_one();
        }
    }

    /// Drops a pod that no source names any more.
    pub fn forget(&self, uid: &str) {
        self.pods.lock().remove(uid);
    }

    fn jobs(&self) -> Vec<Job> {
        let mut out = Vec::new();
        for (uid, entry) in self.pods.lock().iter_mut() {
            let Some(api_uid) = entry.api_uid.clone() else { continue };
            if !entry.dirty && !entry.delete {
                continue;
            }
            let base = entry.base.clone().unwrap_or_else(|| json!({}));
            let wanted = entry.wanted(&base);
            let patch = if entry.dirty { patch::diff(&base, &wanted) } else { None };
            entry.dirty = false;
            if patch.is_none() && !entry.delete {
                continue;
            }
            out.push(Job {
                uid: uid.clone(),
                namespace: entry.namespace.clone(),
                name: entry.name.clone(),
                api_uid,
                patch,
                delete: entry.delete,
            });
        }
        out
    }

    fn settle(&self, uid: &str, done: Done) -> bool {
        let mut pods = self.pods.lock();
        let Some(entry) = pods.get_mut(uid) else { return true };
        match done {
            Done::Sent(pod) => {
                entry.base = Some(to_value(pod.status.as_ref()));
                entry.base_version = entry.base_version.max(version(&pod));
                true
            }
            Done::Deleted => {
                entry.delete = false;
                entry.api_uid = None;
                true
            }
            Done::Gone => {
                entry.api_uid = None;
                entry.delete = false;
                true
            }
            Done::Failed => {
                entry.dirty = true;
                false
            }
        }
    }

    /// Sends until `stop`.
    pub async fn run(self: Arc<Self>, client: kube::Client, stop: CancellationToken) {
        let mut pause = RETRY_MIN;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.changed.notified() => {}
            }
            let results: Vec<bool> = futures::stream::iter(self.jobs())
                .map(|job| {
                    let client = client.clone();
                    async move { (job.uid.clone(), send(client, job).await) }
                })
                .buffer_unordered(IN_FLIGHT)
                .map(|(uid, done)| self.settle(&uid, done))
                .collect()
                .await;
            if results.iter().all(|ok| *ok) {
                pause = RETRY_MIN;
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(RETRY_MAX);
            self.changed.notify_one();
        }
    }
}

async fn send(client: kube::Client, job: Job) -> Done {
    let api: Api<Pod> = Api::namespaced(client, &job.namespace);
    if let Some(status) = job.patch {
        // The UID makes the patch fail on a namesake instead of changing it.
        let body = json!({"metadata": {"uid": job.api_uid}, "status": status});
        let params = PatchParams::default();
        let body = Patch::Strategic(body);
        let request = api.patch_status(&job.name, &params, &body);
        match tokio::time::timeout(REQUEST_DEADLINE, request).await {
            Ok(Ok(pod)) if !job.delete => return Done::Sent(Box::new(pod)),
            Ok(Ok(_)) => {}
            Ok(Err(kube::Error::Api(s))) if s.code == 404 || s.code == 409 => {
                debug!(pod = job.name, "the API object is gone or another one: {}", s.message);
                return Done::Gone;
            }
            Ok(Err(error)) => {
                warn!(pod = job.name, "cannot send a pod's status: {}", brief(&error));
                return Done::Failed;
            }
            Err(_) => return Done::Failed,
        }
    }
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: Some(job.api_uid), resource_version: None }),
        ..DeleteParams::default()
    };
    match tokio::time::timeout(REQUEST_DEADLINE, api.delete(&job.name, &params)).await {
        Ok(Ok(_)) => Done::Deleted,
        Ok(Err(kube::Error::Api(s))) if s.code == 404 || s.code == 409 => Done::Gone,
        Ok(Err(error)) => {
            warn!(pod = job.name, "cannot delete a pod that has ended: {}", brief(&error));
            Done::Failed
        }
        Err(_) => Done::Failed,
    }
}
