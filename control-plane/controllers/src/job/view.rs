//! What a job's pods say, before anything is decided. Pure.
//!
//! Upstream counterpart: the first half of `syncJob`, `getNewFinishedPods`, `isPodFailed`, `getCompletionIndex`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;

use super::backoff::{Record, finished};
use super::indexes::Indexes;
use super::policy::{Verdict, judge};
use crate::meta::{annotation, number, uid_of};
use crate::pods;

/// Keeps an ended pod until it is counted.
pub const TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// A pod's index: annotation and label.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Failures of the index before this pod that count.
pub const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// Failures of the index before this pod that the policy ignores.
pub const INDEX_IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// A job with its spec, status and pods, and what follows from them.
pub struct View<'a> {
    /// The job.
    pub job: &'a Job,
    /// Its spec.
    pub spec: &'a JobSpec,
    /// All its pods.
    pub pods: &'a [Arc<Pod>],
    /// Those that neither ended nor were deleted.
    pub active: Vec<Arc<Pod>>,
    /// Those that were deleted and have not ended.
    pub terminating: i32,
    /// Pods that succeeded, counted or not.
    pub succeeded: i32,
    /// Pods whose failure counts, counted or not.
    pub failed: i32,
    /// Failures in a row.
    pub backoff: Record,
    /// Of an indexed job: what is known of its indexes.
    pub indexes: Option<IndexView>,
}

/// The indexes of an indexed job.
#[derive(Debug, Default)]
pub struct IndexView {
    /// Succeeded and counted before.
    pub counted: Indexes,
    /// Succeeded, with those that are not counted yet.
    pub succeeded: Indexes,
    /// Failed for good, if the job has a limit per index.
    pub failed: Option<Indexes>,
    /// With a limit per index: the last failed pod of each index that has no successor yet; it keeps the number of failures.
    pub waiting: BTreeMap<u32, Arc<Pod>>,
}

/// Pods have indexes.
pub fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

/// The job shall wait.
pub fn is_suspended(spec: &JobSpec) -> bool {
    spec.suspend.unwrap_or(false)
}

/// How many indexes an indexed job has.
pub fn index_count(spec: &JobSpec) -> u32 {
    u32::try_from(spec.completions.unwrap_or(0)).unwrap_or(0)
}

/// A pod is only replaced when it has ended, not already when it was deleted.
pub fn replaces_only_failed(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

/// The pod has the finalizer, so it is not counted for good.
pub fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|f| f == TRACKING)
}

/// The pod's index, if it has a readable one.
pub fn index_of(pod: &Pod) -> Option<u32> {
    annotation(pod, INDEX)?.parse().ok().filter(|index| *index <= i32::MAX as u32)
}

/// The pod's index, if the job has it.
pub fn valid_index(spec: &JobSpec, pod: &Pod) -> Option<u32> {
    index_of(pod).filter(|index| *index < index_count(spec))
}

fn annotated(pod: &Pod, key: &str) -> i32 {
    annotation(pod, key).and_then(|v| v.parse().ok()).filter(|n| *n >= 0).unwrap_or(0)
}

/// (failures that count, failures that do not) of the index before this pod.
pub fn index_failures(pod: &Pod) -> (i32, i32) {
    (annotated(pod, INDEX_FAILURES), annotated(pod, INDEX_IGNORED))
}

/// The pod counts as failed. One that was deleted does too, unless the job waits for its end.
pub fn is_failed(spec: &JobSpec, pod: &Pod) -> bool {
    match pods::phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => pods::is_terminating(pod) && !replaces_only_failed(spec),
    }
}

/// The pods that the status notes as not counted for good.
pub fn uncounted(status: &JobStatus) -> UncountedTerminatedPods {
    status.uncounted_terminated_pods.clone().unwrap_or_default()
}

fn has(list: Option<&Vec<String>>, pod: &Pod) -> bool {
    list.is_some_and(|uids| uids.iter().any(|uid| uid == uid_of(pod)))
}

impl<'a> View<'a> {
    /// Looks at a job and its pods; `record` is what is known of failures before. `None` for a job without spec.
    pub fn new(job: &'a Job, pods: &'a [Arc<Pod>], record: Record) -> Option<Self> {
        let spec = job.spec.as_ref()?;
        let status = job.status.clone().unwrap_or_default();
        let known = uncounted(&status);
        let is_new = |pod: &&Arc<Pod>| is_tracked(pod) && (!is_indexed(spec) || valid_index(spec, pod).is_some());
        let succeeded: Vec<_> = pods
            .iter()
            .filter(is_new)
            .filter(|p| pods::phase(p) == "Succeeded" && !has(known.succeeded.as_ref(), p))
            .cloned()
            .collect();
        let failed: Vec<_> = pods
            .iter()
            .filter(is_new)
            .filter(|p| is_failed(spec, p) && !has(known.failed.as_ref(), p))
            .cloned()
            .collect();
        let counting = failed.iter().filter(|pod| judge(job, pod).counts()).count();
        let length = |list: Option<&Vec<String>>| number(list.map_or(0, Vec::len));
        let active: Vec<_> = pods.iter().filter(|p| pods::is_active(p)).cloned().collect();
        let indexes = is_indexed(spec).then(|| IndexView::new(job, spec, &status, pods, &active));
        let newly = number(succeeded.len()) + length(known.succeeded.as_ref()) + status.succeeded.unwrap_or(0);
        Some(Self {
            job,
            spec,
            pods,
            active,
            terminating: terminating(pods),
            succeeded: indexes.as_ref().map_or(newly, |i| i32::try_from(i.succeeded.count()).unwrap_or(i32::MAX)),
            failed: status.failed.unwrap_or(0) + number(counting) + length(known.failed.as_ref()),
            backoff: record.after(&succeeded, &failed),
            indexes,
        })
    }
}

/// How many were deleted and have not ended.
pub fn terminating(pods: &[Arc<Pod>]) -> i32 {
    number(pods.iter().filter(|p| pods::is_terminating(p) && !pods::is_terminal(p)).count())
}

/// The indexes of these pods.
pub fn indexes_of<'a>(pods: impl IntoIterator<Item = &'a Arc<Pod>>) -> BTreeSet<u32> {
    pods.into_iter().filter_map(|pod| index_of(pod)).collect()
}

impl IndexView {
    fn new(job: &Job, spec: &JobSpec, status: &JobStatus, pods: &[Arc<Pod>], active: &[Arc<Pod>]) -> Self {
        let limit = index_count(spec);
        let counted = Indexes::parse(status.completed_indexes.as_deref().unwrap_or(""), limit);
        let valid = || pods.iter().filter(|p| is_tracked(p)).filter_map(|p| Some((valid_index(spec, p)?, p)));
        let done = valid().filter(|(_, p)| pods::phase(p) == "Succeeded").map(|(index, _)| index).collect();
        let mut view = Self { succeeded: counted.with(&done), counted, ..Self::default() };
        let Some(per_index) = spec.backoff_limit_per_index else {
            return view;
        };
        let lost = valid().filter(|(_, p)| has_failed_for_good(job, spec, p, per_index)).map(|(index, _)| index);
        let before = Indexes::parse(status.failed_indexes.as_deref().unwrap_or(""), limit);
        let failed = before.with(&lost.collect());
        let busy = indexes_of(active);
        for (index, pod) in valid().filter(|(_, p)| is_failed(spec, p)) {
            if view.succeeded.has(index) || failed.has(index) || busy.contains(&index) {
                continue;
            }
            let rank = |pod: &Pod| {
                let (count, ignored) = index_failures(pod);
                (count.saturating_add(ignored), finished(pod))
            };
            if view.waiting.get(&index).is_none_or(|known| rank(known) <= rank(pod)) {
                view.waiting.insert(index, Arc::clone(pod));
            }
        }
        view.failed = Some(failed);
        view
    }
}

fn has_failed_for_good(job: &Job, spec: &JobSpec, pod: &Pod, limit: i32) -> bool {
    is_failed(spec, pod)
        && match judge(job, pod) {
            Verdict::FailIndex => true,
            verdict => verdict.counts() && index_failures(pod).0 >= limit,
        }
}
