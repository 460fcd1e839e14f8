//! The Job controller: reads caches, asks the pure parts, acts.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::Patch;
use kube::core::{Selector, SelectorExt};
use parking_lot::Mutex;
use serde_json::json;

use super::backoff::Record;
use super::conditions::{SUSPENDED, end, ensure};
use super::decide::{Finish, Plan, decide};
use super::pods::pod;
use super::track::{conclude, count, settle, tracked};
use super::view::{TRACKING, View, is_suspended, is_tracked, terminating};
use crate::adopt::{self, Marks, child_changed};
use crate::claim::claim;
use crate::engine::events::Level;
use crate::engine::index::Change;
use crate::engine::{Caches, Events, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::meta::{controller_of, controller_uid, labels, namespace_of, nonzero, number, uid_of, workload_selector};
use crate::pod_control::PodControl;
use crate::pods;

const COMPONENT: &str = "job-controller";
/// `managedBy` of jobs that are this controller's, as those that do not say are.
const MANAGER: &str = "kubernetes.io/job-controller";

/// What the queue holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Item {
    /// A job to look at.
    Job(Key),
    /// A pod that nobody counts any more: its finalizer must go.
    Orphan(Key),
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(key) => write!(f, "{key}"),
            Self::Orphan(key) => write!(f, "pod {key}"),
        }
    }
}

/// The controller.
pub struct Jobs {
    caches: Arc<Caches>,
    jobs: Kind<Job>,
    pods: PodControl,
    events: Events,
    /// Failures in a row, by the job's UID; forgotten at a restart, as upstream's.
    failures: Arc<Mutex<HashMap<String, Record>>>,
}

impl Jobs {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>, events: Events) -> Self {
        Self {
            jobs: Kind::new(caches.client.clone(), Arc::clone(&caches.jobs)),
            pods: PodControl::new(caches, events.clone(), COMPONENT),
            caches: Arc::clone(caches),
            events,
            failures: Arc::default(),
        }
    }

    /// Makes changes of jobs and pods fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Item>>) {
        let (target, caches, failures) = (Arc::clone(queue), Arc::clone(&self.caches), Arc::clone(&self.failures));
        self.caches.jobs.on_change(move |change| {
            let job = change.object().as_ref();
            if matches!(change, Change::Deleted(_)) {
                failures.lock().remove(uid_of(job));
                let pods = caches.pods.in_namespace(namespace_of(job));
                for pod in
                    pods.iter().filter(|p| is_tracked(p) && controller_uid(p.as_ref(), "Job") == Some(uid_of(job)))
                {
                    target.add(Item::Orphan(Key::of(pod.as_ref())));
                }
            }
            target.add(Item::Job(Key::of(job)));
        });
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.pods.on_change(move |change| {
            child_changed(&caches.jobs, |key| target.add(Item::Job(key)), change, selector);
            let pod = change.object();
            if !matches!(change, Change::Deleted(_)) && is_tracked(pod) && owner(&caches, pod) != Owner::Counting {
                target.add(Item::Orphan(Key::of(pod.as_ref())));
            }
        });
    }

    /// Carries out what concerns pods.
    async fn act(&self, job: &Job, spec: &JobSpec, view: &View<'_>, plan: &Plan) -> Result<(), ReconcileError> {
        self.release(&plan.discard).await.into_iter().collect::<Result<Vec<()>, _>>()?;
        for gone in [&plan.discard, &plan.end] {
            self.pods.delete(job, gone).await.map_err(|failed| failed.1)?;
        }
        let made = self.pods.create(job, plan.create.len(), |i| {
            let index = plan.create[i];
            let waiting = view.indexes.as_ref().map(|indexes| &indexes.waiting);
            let before = index.and_then(|index| waiting?.get(&index));
            pod(job, spec, index, before.map(AsRef::as_ref))
        });
        made.await.map_err(|failed| failed.1)
    }

    /// Takes the finalizer off pods; a pod that is gone has none. One result for each.
    async fn release(&self, pods: &[Arc<Pod>]) -> Vec<Result<(), ReconcileError>> {
        let calls = pods.iter().map(|pod| async move {
            if !is_tracked(pod) {
                return Ok(());
            }
            let patch = json!({"metadata": {"uid": uid_of(pod.as_ref()),
                "$deleteFromPrimitiveList/finalizers": [TRACKING]}});
            match self.pods.pods().patch(&Key::of(pod.as_ref()), None, &Patch::Strategic(patch)).await {
                Err(error) if error.is_not_found() => Ok(()),
                other => other.map(drop),
            }
        });
        futures::future::join_all(calls).await
    }

    /// The status with what the pods are now, and whether the job waits.
    fn current(&self, job: &Job, spec: &JobSpec, plan: &Plan, pods: &[Arc<Pod>], now: Timestamp) -> JobStatus {
        let mut status = job.status.clone().unwrap_or_default();
        if status.start_time.is_none() && !is_suspended(spec) {
            status.start_time = Some(Time(now));
        }
        let active: Vec<_> = pods.iter().filter(|p| pods::is_active(p)).collect();
        status.active = nonzero(number(active.len()));
        status.ready = Some(number(active.iter().filter(|p| pods::is_ready(p)).count()));
        status.terminating = Some(terminating(pods));
        let words = match plan.suspended {
            Some(true) => (true, "JobSuspended", "Suspended", "Job suspended"),
            Some(false) => (false, "JobResumed", "Resumed", "Job resumed"),
            None => return status,
        };
        let (value, reason, event, message) = words;
        if ensure(&mut status, SUSPENDED, value, (reason, message), now) {
            self.events.about(job, COMPONENT, Level::Normal, event, message.to_owned());
            if !value {
                status.start_time = Some(Time(now));
            }
        }
        status
    }

    async fn store(&self, job: &mut Job, status: JobStatus) -> Result<(), ReconcileError> {
        let mut reported = job.clone();
        reported.status = Some(status);
        if let Some(updated) = self.jobs.update_status(job, &reported).await? {
            *job = updated;
        }
        Ok(())
    }

    /// Counts ended pods, takes their finalizers off, and ends the job if it is over.
    async fn track(&self, view: &View<'_>, status: JobStatus, finish: Option<&Finish>) -> Result<(), ReconcileError> {
        let mut job = view.job.clone();
        let counted = count(view, status, finish, Timestamp::now());
        self.store(&mut job, counted.status).await?;
        self.failures.lock().insert(uid_of(&job).to_owned(), view.backoff);
        let mut left = tracked(view.pods);
        let mut failed = None;
        for (pod, result) in counted.release.iter().zip(self.release(&counted.release).await) {
            match result {
                Ok(()) => drop(left.remove(uid_of(pod.as_ref()))),
                Err(error) => failed = Some(error),
            }
        }
        let mut status = settle(job.status.clone().unwrap_or_default(), &left);
        let may_end = failed.is_none() && !counted.is_partial;
        let terminating = status.terminating.unwrap_or(0);
        let ended = finish.filter(|_| may_end).filter(|f| conclude(&mut status, f, terminating, Timestamp::now()));
        self.store(&mut job, status).await?;
        if let Some(finish) = ended {
            self.tell_end(&job, finish);
        }
        failed.map_or(Ok(()), Err)
    }

    fn tell_end(&self, job: &Job, finish: &Finish) {
        if !finish.is_success {
            let reason = static_reason(&finish.reason);
            return self.events.about(job, COMPONENT, Level::Warning, reason, finish.message.clone());
        }
        let wanted = job.spec.as_ref().and_then(|s| s.completions);
        let succeeded = job.status.as_ref().and_then(|s| s.succeeded).unwrap_or(0);
        if wanted.is_some_and(|wanted| succeeded > wanted) {
            let message = "Too many succeeded pods running after completion count reached".to_owned();
            self.events.about(job, COMPONENT, Level::Warning, "TooManySucceededPods", message);
        }
        self.events.about(job, COMPONENT, Level::Normal, "Completed", "Job completed".to_owned());
    }

    async fn look_at(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(job) = self.caches.jobs.by_key(key).filter(|job| is_ours(job)) else {
            return Ok(Outcome::Done);
        };
        if end(&job).is_some() {
            self.failures.lock().remove(uid_of(job.as_ref()));
            return Ok(Outcome::Done);
        }
        let (Some(spec), Some(selector)) = (job.spec.as_ref(), selector(&job)) else {
            return Ok(Outcome::Done);
        };
        let matches = |pod: &Pod| selector.matches(labels(pod));
        let marks = Marks { adopt: mark, release: unmark };
        let pods = adopt::take(&self.jobs, self.pods.pods(), job.as_ref(), matches, marks).await?;
        let record = self.failures.lock().get(uid_of(job.as_ref())).copied().unwrap_or_default();
        let Some(view) = View::new(&job, &pods, record) else {
            return Ok(Outcome::Done);
        };
        let now = Timestamp::now();
        let plan = decide(&view, now);
        let acted = self.act(&job, spec, &view, &plan).await;
        // The cache holds the answers to what was just done.
        let all = self.caches.pods.in_namespace(&key.namespace);
        let pods_now = claim(uid_of(job.as_ref()), true, matches, all).owned;
        let status = self.current(&job, spec, &plan, &pods_now, now);
        // With pods that could not be deleted the job is not over.
        let finish = plan.finish.as_ref().filter(|_| acted.is_ok());
        match self.track(&view, status, finish).await {
            Err(error) if error.is_not_found() => return Ok(Outcome::Done),
            other => other?,
        }
        acted?;
        Ok(Outcome::after(plan.again))
    }

    /// Takes the finalizer off a pod whose job is gone or has ended.
    async fn free(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(pod) = self.caches.pods.by_key(key).filter(|pod| is_tracked(pod)) else {
            return Ok(Outcome::Done);
        };
        let is_free = match owner(&self.caches, &pod) {
            Owner::Counting | Owner::Other => false,
            Owner::None | Owner::Ended => true,
            // The cache may be behind: the server knows.
            Owner::Missing(name, uid) => {
                let live = self.jobs.get_live(&Key::new(key.namespace.as_str(), name)).await?;
                live.is_none_or(|live| uid_of(&live) != uid)
            }
        };
        if is_free {
            self.release(&[pod]).await.into_iter().collect::<Result<Vec<()>, _>>()?;
        }
        Ok(Outcome::Done)
    }
}

impl Reconcile for Jobs {
    type Key = Item;
    const NAME: &'static str = COMPONENT;

    async fn reconcile(&self, item: &Item) -> Result<Outcome, ReconcileError> {
        match item {
            Item::Job(key) => self.look_at(key).await,
            Item::Orphan(key) => self.free(key).await,
        }
    }
}

/// Who counts a pod with the finalizer.
#[derive(Debug, PartialEq, Eq)]
enum Owner<'a> {
    /// A job that has not ended.
    Counting,
    /// A job that has ended.
    Ended,
    /// A job (name, UID) that the cache does not have.
    Missing(&'a str, &'a str),
    /// Something else than a job: not this controller's business.
    Other,
    /// Nobody.
    None,
}

fn owner<'a>(caches: &Caches, pod: &'a Pod) -> Owner<'a> {
    let Some(reference) = controller_of(pod) else { return Owner::None };
    if reference.kind != "Job" || reference.api_version != "batch/v1" {
        return Owner::Other;
    }
    match caches.jobs.get(namespace_of(pod), &reference.name).filter(|job| uid_of(job.as_ref()) == reference.uid) {
        None => Owner::Missing(&reference.name, &reference.uid),
        Some(job) if !is_ours(&job) => Owner::Counting,
        Some(job) if end(&job).is_some() => Owner::Ended,
        Some(_) => Owner::Counting,
    }
}

fn is_ours(job: &Job) -> bool {
    let manager = job.spec.as_ref().and_then(|s| s.managed_by.as_deref());
    manager.is_none_or(|manager| manager == MANAGER)
}

fn selector(job: &Job) -> Option<Selector> {
    workload_selector(job.spec.as_ref()?.selector.as_ref()?)
}

fn mark(pod: &mut Pod) {
    if !is_tracked(pod) {
        pod.metadata.finalizers.get_or_insert_default().push(TRACKING.to_owned());
    }
}

fn unmark(pod: &mut Pod) {
    if let Some(finalizers) = &mut pod.metadata.finalizers {
        finalizers.retain(|f| f != TRACKING);
    }
}

/// The reasons that this controller gives are its own words, read back from the status.
fn static_reason(reason: &str) -> &'static str {
    const KNOWN: [&str; 5] =
        ["BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"];
    KNOWN.into_iter().find(|known| *known == reason).unwrap_or("Failed")
}
