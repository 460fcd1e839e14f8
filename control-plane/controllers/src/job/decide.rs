//! What follows from a job and its pods: is it over, which pods to make, which to end. Pure.
//!
//! Upstream counterpart: the second half of `syncJob`, `manageJob`, `activePodsForRemoval`, `firstPendingIndexes`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use super::backoff::{Record, finished};
use super::conditions::{FAILURE_TARGET, SUCCESS_CRITERIA_MET, holds};
use super::policy::{Verdict, judge, success};
use super::view::{
    View, index_count, index_failures, indexes_of, is_failed, is_suspended, replaces_only_failed, valid_index,
};
use crate::meta::{is_deleting, number};
use crate::pods;
use crate::replicaset::plan::{BURST, plan as surplus};

/// How a job ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// Well.
    pub is_success: bool,
    /// Upstream's word.
    pub reason: String,
    /// For people.
    pub message: String,
}

impl Finish {
    fn failure(reason: &str, message: &str) -> Self {
        Self { is_success: false, reason: reason.to_owned(), message: message.to_owned() }
    }

    fn success(reason: &str, message: &str) -> Self {
        Self { is_success: true, reason: reason.to_owned(), message: message.to_owned() }
    }
}

/// What to do.
#[derive(Debug, Default)]
pub struct Plan {
    /// The job is over once its pods are ended and counted.
    pub finish: Option<Finish>,
    /// Pods to delete because the job is over.
    pub end: Vec<Arc<Pod>>,
    /// Pods to delete that shall not count.
    pub discard: Vec<Arc<Pod>>,
    /// Pods to make, with their index in an indexed job.
    pub create: Vec<Option<u32>>,
    /// The job is suspended or not; `None` if that does not matter any more.
    pub suspended: Option<bool>,
    /// When to look again, if nothing happens before.
    pub again: Option<Duration>,
}

/// Decides.
pub fn decide(view: &View, now: Timestamp) -> Plan {
    let (finish, deadline) = finish(view, now);
    if finish.is_some() {
        return Plan { finish, end: view.active.clone(), ..Plan::default() };
    }
    let mut plan = if is_deleting(view.job) { Plan::default() } else { manage(view, now) };
    plan.again = [plan.again, deadline].into_iter().flatten().min();
    let active = number(view.active.len()) - number(plan.discard.len()) + number(plan.create.len());
    let is_complete = match view.spec.completions {
        None => view.succeeded > 0 && active == 0,
        Some(wanted) => view.succeeded >= wanted && active == 0,
    };
    if is_complete {
        plan.finish = Some(Finish::success("CompletionsReached", "Reached expected number of succeeded pods"));
    } else if !is_deleting(view.job) {
        plan.suspended = Some(is_suspended(view.spec));
    }
    plan
}

/// Why the job is over, if it is although pods may still run; and when its deadline is.
fn finish(view: &View, now: Timestamp) -> (Option<Finish>, Option<Duration>) {
    let status = view.job.status.clone().unwrap_or_default();
    for (type_, is_success) in [(SUCCESS_CRITERIA_MET, true), (FAILURE_TARGET, false)] {
        if let Some(noted) = holds(&status, type_) {
            let text = |part: &Option<String>| part.clone().unwrap_or_default();
            let finish = Finish { is_success, reason: text(&noted.reason), message: text(&noted.message) };
            return (Some(finish), None);
        }
    }
    let mut failed = view.pods.iter().filter(|pod| is_failed(view.spec, pod));
    let fatal = failed.find_map(|pod| match judge(view.job, pod) {
        Verdict::FailJob(message) => Some(message),
        _ => None,
    });
    if let Some(message) = fatal.filter(|_| view.spec.pod_failure_policy.is_some()) {
        return (Some(Finish::failure("PodFailurePolicy", &message)), None);
    }
    let limit = view.spec.backoff_limit.unwrap_or(6);
    if view.failed > limit || too_many_restarts(view, limit) {
        return (Some(Finish::failure("BackoffLimitExceeded", "Job has reached the specified backoff limit")), None);
    }
    let left = deadline(view, now);
    if left.is_some_and(|left| left.is_zero()) {
        return (Some(Finish::failure("DeadlineExceeded", "Job was active longer than specified deadline")), None);
    }
    (of_indexes(view), left)
}

fn of_indexes(view: &View) -> Option<Finish> {
    let indexes = view.indexes.as_ref()?;
    let completions = index_count(view.spec);
    if let Some(failed) = &indexes.failed {
        let most = view.spec.max_failed_indexes.and_then(|n| u32::try_from(n).ok());
        if most.is_some_and(|most| failed.count() > most) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(Finish::failure("MaxFailedIndexesExceeded", message));
        }
        if !failed.is_empty() && failed.count() + indexes.succeeded.count() >= completions {
            return Some(Finish::failure("FailedIndexes", "Job has failed indexes"));
        }
    }
    let met = success(view.spec.success_policy.as_ref(), completions, &indexes.succeeded)?;
    Some(Finish::success("SuccessPolicy", &met))
}

/// With `restartPolicy: OnFailure` the restarts of running pods count as failures.
fn too_many_restarts(view: &View, limit: i32) -> bool {
    let policy = view.spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref());
    if policy != Some("OnFailure") {
        return false;
    }
    let running = view.pods.iter().filter(|p| matches!(pods::phase(p), "Running" | "Pending"));
    let restarts = running.filter_map(|p| p.status.as_ref()).flat_map(|status| {
        status.init_container_statuses.iter().chain(&status.container_statuses).flatten().map(|c| c.restart_count)
    });
    restarts.fold(0i32, i32::saturating_add) >= limit.max(1)
}

/// Time until the job's deadline, if it has one and is not suspended.
fn deadline(view: &View, now: Timestamp) -> Option<Duration> {
    let seconds = view.spec.active_deadline_seconds.filter(|_| !is_suspended(view.spec))?;
    // The start is now if none is noted.
    let start = view.job.status.as_ref().and_then(|s| s.start_time.as_ref()).map_or(now, |t| t.0);
    let passed = Duration::try_from(now.duration_since(start)).unwrap_or_default();
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).saturating_sub(passed))
}

/// Brings the number of running pods to what it should be: ends pods or makes some, never both in one pass.
fn manage(view: &View, now: Timestamp) -> Plan {
    let active = number(view.active.len());
    if is_suspended(view.spec) {
        return Plan { discard: view.active.clone(), ..Plan::default() };
    }
    let parallelism = view.spec.parallelism.unwrap_or(1);
    let wanted = match view.spec.completions {
        None if view.succeeded > 0 => active,
        None => parallelism,
        Some(completions) => (completions - view.succeeded).min(parallelism).max(0),
    };
    let discard = unwanted(view, usize::try_from(active - wanted).unwrap_or(0), now);
    if !discard.is_empty() {
        return Plan { discard, ..Plan::default() };
    }
    let ending = if replaces_only_failed(view.spec) { view.terminating } else { 0 };
    let missing = usize::try_from(wanted - ending - active).unwrap_or(0).min(BURST);
    if missing == 0 {
        return Plan::default();
    }
    let per_index = view.spec.backoff_limit_per_index.is_some();
    let wait = view.backoff.remaining(now);
    if !per_index && !wait.is_zero() {
        return Plan { again: Some(wait), ..Plan::default() };
    }
    let Some(indexes) = &view.indexes else {
        return Plan { create: vec![None; missing], ..Plan::default() };
    };
    let mut taken = indexes.succeeded.with(&indexes_of(&view.active));
    if replaces_only_failed(view.spec) {
        let ending = view.pods.iter().filter(|p| pods::is_terminating(p) && !pods::is_terminal(p));
        taken = taken.with(&indexes_of(ending));
    }
    if let Some(failed) = &indexes.failed {
        taken = taken.union(failed);
    }
    let pending = taken.missing(missing, index_count(view.spec));
    let (ready, waits): (Vec<_>, Vec<_>) =
        pending.into_iter().map(|i| (i, index_wait(view, i, now))).partition(|(_, w)| w.is_zero());
    Plan {
        create: ready.iter().map(|(index, _)| Some(*index)).collect(),
        again: waits.iter().map(|(_, wait)| *wait).min(),
        ..Plan::default()
    }
}

/// With a limit per index: how long the next pod of the index must still wait.
fn index_wait(view: &View, index: u32, now: Timestamp) -> Duration {
    let last = view.indexes.as_ref().and_then(|indexes| indexes.waiting.get(&index));
    last.map_or(Duration::ZERO, |pod| {
        let (counted, ignored) = index_failures(pod);
        let failures = u32::try_from(counted.saturating_add(ignored)).unwrap_or(0).saturating_add(1);
        Record { failures, last: Some(finished(pod)) }.remaining(now)
    })
}

/// Running pods that shall go: in an indexed job those without a valid index and the later ones of the same index, then
/// those that are least far, until there are `at_least`.
fn unwanted(view: &View, at_least: usize, now: Timestamp) -> Vec<Arc<Pod>> {
    let keep = |pods: &[Arc<Pod>], count: usize| surplus(number(count), pods, &[], now).delete;
    let (mut gone, mut left) = (Vec::new(), Vec::new());
    if view.indexes.is_some() {
        let mut per_index: BTreeMap<u32, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in &view.active {
            match valid_index(view.spec, pod) {
                Some(index) => per_index.entry(index).or_default().push(Arc::clone(pod)),
                None => gone.push(Arc::clone(pod)),
            }
        }
        for group in per_index.into_values() {
            let doubles = keep(&group, 1);
            left.extend(group.into_iter().filter(|pod| !doubles.iter().any(|d| Arc::ptr_eq(d, pod))));
            gone.extend(doubles);
        }
    } else {
        left.clone_from(&view.active);
    }
    if gone.len() < at_least {
        gone.extend(keep(&left, left.len().saturating_sub(at_least - gone.len())));
    }
    gone.truncate(BURST);
    gone
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::meta::name_of;
    use k8s_openapi::api::batch::v1::Job;
    use serde_json::{Value, json};

    /// Now, in these tests.
    pub fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    /// A job of 3 pods, 2 at a time.
    pub fn job(edit: impl FnOnce(&mut Value)) -> Job {
        let mut job = json!({"metadata": {"name": "j", "namespace": "n", "uid": "u"}, "spec": {"completions": 3, "parallelism": 2,
            "backoffLimit": 6, "completionMode": "NonIndexed", "podReplacementPolicy": "TerminatingOrFailed", "selector": {},
            "template": {"spec": {"containers": [], "restartPolicy": "Never"}}}, "status": {"startTime": "2026-01-01T00:59:00Z"}});
        edit(&mut job);
        serde_json::from_value(job).unwrap()
    }

    /// A tracked pod of this phase; `name/index` for one with an index. It ended a minute ago.
    pub fn pod(name: &str, phase: &str, edit: impl FnOnce(&mut Value)) -> Arc<Pod> {
        let index = name.split_once('/').map(|(_, index)| index);
        let mut pod = json!({"metadata": {"name": name, "namespace": "n", "uid": name, "finalizers": [super::super::view::TRACKING],
            "annotations": {}, "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": phase, "conditions": []}});
        if let Some(index) = index {
            pod["metadata"]["annotations"] = json!({super::super::view::INDEX: index});
        }
        edit(&mut pod);
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    pub fn is(phase: &str, name: &str) -> Arc<Pod> {
        pod(name, phase, |_| {})
    }

    fn decided(job: &Job, pods: &[Arc<Pod>]) -> Plan {
        decide(&View::new(job, pods, Record::default()).unwrap(), now())
    }

    fn reason(plan: &Plan) -> &str {
        plan.finish.as_ref().map_or("", |f| f.reason.as_str())
    }

    fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|p| name_of(p.as_ref())).collect()
    }

    #[test]
    fn as_many_run_as_allowed_and_needed() {
        let plan = decided(&job(|_| {}), &[]);
        assert_eq!((plan.create.len(), plan.suspended), (2, Some(false)));
        let pods = [is("Succeeded", "a"), is("Succeeded", "b"), is("Running", "c")];
        assert!(decided(&job(|_| {}), &pods).create.is_empty());
        let done = [is("Succeeded", "a"), is("Succeeded", "b"), is("Succeeded", "c")];
        assert_eq!(reason(&decided(&job(|_| {}), &done)), "CompletionsReached");
        let narrower = job(|j| j["spec"]["parallelism"] = json!(1));
        assert_eq!(names(&decided(&narrower, &[is("Running", "r"), is("Pending", "p")]).discard), ["p"]);
    }

    #[test]
    fn a_work_queue_is_done_when_one_succeeded_and_none_runs() {
        let queue = job(|j| j["spec"]["completions"] = Value::Null);
        assert_eq!(decided(&queue, &[]).create.len(), 2);
        let plan = decided(&queue, &[is("Succeeded", "a"), is("Running", "b")]);
        assert!(plan.create.is_empty() && plan.finish.is_none());
        assert_eq!(reason(&decided(&queue, &[is("Succeeded", "a"), is("Failed", "b")])), "CompletionsReached");
    }

    #[test]
    fn failures_wait_and_end_the_job() {
        let fresh = pod("a", "Failed", |p| {
            p["status"]["conditions"] =
                json!([{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:59:55Z"}]);
        });
        let plan = decided(&job(|_| {}), std::slice::from_ref(&fresh));
        assert_eq!((plan.create.len(), plan.again), (0, Some(Duration::from_secs(5))));
        assert_eq!(decided(&job(|_| {}), &[is("Failed", "old")]).create.len(), 2);
        let strict = job(|j| j["spec"]["backoffLimit"] = json!(0));
        let plan = decided(&strict, &[fresh, is("Running", "b")]);
        assert_eq!((reason(&plan), names(&plan.end)), ("BackoffLimitExceeded", vec!["b"]));
        let noted = job(|j| {
            j["status"]["conditions"] =
                json!([{"type": "FailureTarget", "status": "True", "reason": "Why", "message": "m"}]);
        });
        assert_eq!(reason(&decided(&noted, &[])), "Why");
    }

    #[test]
    fn restarts_count_when_containers_restart_in_place() {
        let job = job(|j| {
            j["spec"]["backoffLimit"] = json!(2);
            j["spec"]["template"]["spec"]["restartPolicy"] = json!("OnFailure");
        });
        let restarted = |n: i32| {
            pod("a", "Running", |p| {
                p["status"]["containerStatuses"] =
                    json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": n}]);
            })
        };
        assert_eq!(reason(&decided(&job, &[restarted(1)])), "");
        assert_eq!(reason(&decided(&job, &[restarted(2)])), "BackoffLimitExceeded");
    }

    #[test]
    fn the_deadline_is_awaited_and_ends_the_job() {
        let late = |seconds: i64| job(|j| j["spec"]["activeDeadlineSeconds"] = json!(seconds));
        assert_eq!(decided(&late(90), &[]).again, Some(Duration::from_secs(30)));
        assert_eq!(reason(&decided(&late(60), &[is("Running", "a")])), "DeadlineExceeded");
        let waiting = job(|j| {
            j["spec"]["activeDeadlineSeconds"] = json!(1);
            j["spec"]["suspend"] = json!(true);
        });
        let plan = decided(&waiting, &[is("Running", "a")]);
        assert_eq!((names(&plan.discard), plan.suspended, reason(&plan)), (vec!["a"], Some(true), ""));
    }

    fn indexed(edit: impl FnOnce(&mut Value)) -> Job {
        job(|j| {
            j["spec"]["completionMode"] = json!("Indexed");
            edit(j);
        })
    }

    #[test]
    fn the_lowest_open_indexes_are_next_and_doubles_go() {
        assert_eq!(decided(&indexed(|_| {}), &[]).create, [Some(0), Some(1)]);
        let counted = indexed(|j| j["status"]["completedIndexes"] = json!("1"));
        assert_eq!(decided(&counted, &[is("Running", "a/0")]).create, [Some(2)]);
        assert_eq!(decided(&counted, &[is("Failed", "a/0")]).create, [Some(0), Some(2)]);
        let odd = [is("Running", "a/0"), is("Pending", "b/0"), is("Running", "c/7"), is("Running", "d")];
        let mut gone = decided(&indexed(|_| {}), &odd).discard;
        gone.sort_by_key(|p| name_of(p.as_ref()).to_owned());
        assert_eq!(names(&gone), ["b/0", "c/7", "d"]);
        let done = [is("Succeeded", "a/0"), is("Succeeded", "b/2")];
        assert_eq!(reason(&decided(&counted, &done)), "CompletionsReached");
    }

    #[test]
    fn each_index_may_have_its_own_limit() {
        let per_index = |max: Value| {
            indexed(|j| {
                j["spec"]["backoffLimitPerIndex"] = json!(1);
                j["spec"]["backoffLimit"] = json!(i32::MAX);
                j["spec"]["maxFailedIndexes"] = max.clone();
            })
        };
        let failed = |name: &str, before: &str| {
            pod(name, "Failed", |p| p["metadata"]["annotations"][super::super::view::INDEX_FAILURES] = json!(before))
        };
        let job = per_index(Value::Null);
        let pods = [failed("a/0", "1"), failed("b/1", "0")];
        let view = View::new(&job, &pods, Record::default()).unwrap();
        let indexes = view.indexes.as_ref().unwrap();
        assert_eq!(indexes.failed.as_ref().unwrap().to_string(), "0");
        assert_eq!(indexes.waiting.keys().copied().collect::<Vec<_>>(), [1]);
        assert_eq!(decide(&view, now()).create, [Some(1), Some(2)]);
        let over = [failed("a/0", "1"), is("Succeeded", "b/1"), is("Succeeded", "c/2")];
        assert_eq!(reason(&decided(&job, &over)), "FailedIndexes");
        assert_eq!(reason(&decided(&per_index(json!(0)), &[failed("a/0", "1")])), "MaxFailedIndexesExceeded");
    }

    #[test]
    fn enough_may_be_less_than_all() {
        let lucky = indexed(|j| j["spec"]["successPolicy"] = json!({"rules": [{"succeededIndexes": "1"}]}));
        let plan = decided(&lucky, &[is("Succeeded", "a/1"), is("Running", "b/0")]);
        assert_eq!((reason(&plan), names(&plan.end)), ("SuccessPolicy", vec!["b/0"]));
        assert_eq!(plan.finish.unwrap().message, "Matched rules at index 0");
    }

    #[test]
    fn a_deleted_pod_is_replaced_at_once_or_after_its_end() {
        let ending =
            |name: &str| pod(name, "Running", |p| p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
        let two = [ending("a"), ending("b")];
        assert_eq!(decided(&job(|_| {}), &two).create.len(), 2);
        let patient = job(|j| j["spec"]["podReplacementPolicy"] = json!("Failed"));
        assert!(decided(&patient, &two).create.is_empty());
    }
}
