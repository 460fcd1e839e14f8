//! How ended pods are counted, each once, whatever fails in between. Pure.
//!
//! In three steps: [`count`] notes ended pods in the status (their UIDs, or their indexes) and says which finalizers may
//! go; after that status is stored and finalizers are gone, [`settle`] turns UIDs without finalizers into numbers; when
//! nothing is left to count, [`conclude`] ends the job.
//!
//! Upstream counterpart: `trackJobStatusAndRemoveFinalizers`, `cleanUncountedPodsWithoutFinalizers`, `enactJobFinished`.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::JobStatus;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::conditions::{COMPLETE, FAILED, FAILURE_TARGET, SUCCESS_CRITERIA_MET, ensure};
use super::decide::Finish;
use super::policy::judge;
use super::view::{View, index_of, is_failed, is_tracked, uncounted, valid_index};
use crate::meta::{is_deleting, nonzero, number, uid_of};
use crate::pods;

/// Most pods noted in the status at a time (upstream's `MaxUncountedPods`): their UIDs take 20 kB.
pub const MAX_UNCOUNTED: usize = 500;

/// What [`count`] found.
#[derive(Debug)]
pub struct Counted {
    /// The status to store before any finalizer goes.
    pub status: JobStatus,
    /// Pods whose finalizer may go after that.
    pub release: Vec<Arc<Pod>>,
    /// There is more than fits at a time: the job does not end in this pass.
    pub is_partial: bool,
}

/// UIDs of pods with the finalizer.
pub fn tracked(pods: &[Arc<Pod>]) -> HashSet<String> {
    pods.iter().filter(|p| is_tracked(p)).map(|p| uid_of(p.as_ref()).to_owned()).collect()
}

/// Notes ended pods in `status`.
pub fn count(view: &View, status: JobStatus, finish: Option<&Finish>, now: Timestamp) -> Counted {
    let mut status = settle(status, &tracked(view.pods));
    let known = uncounted(&status);
    let (mut succeeded, mut failed) = (known.succeeded.unwrap_or_default(), known.failed.unwrap_or_default());
    let (mut indexes, mut release, mut is_partial) = (BTreeSet::new(), Vec::new(), false);
    let mut pods: Vec<&Arc<Pod>> = view.pods.iter().filter(|p| is_tracked(p)).collect();
    if view.indexes.is_some() {
        pods.sort_by_key(|pod| index_of(pod));
    }
    for pod in pods {
        if !may_release(view, pod, finish.is_some()) {
            continue;
        }
        release.push(Arc::clone(pod));
        let (uid, is_member) =
            (uid_of(pod.as_ref()).to_owned(), view.indexes.is_none() || valid_index(view.spec, pod).is_some());
        if pods::phase(pod) == "Succeeded" && !failed.contains(&uid) {
            match (&view.indexes, valid_index(view.spec, pod)) {
                (None, _) if !succeeded.contains(&uid) => succeeded.push(uid),
                (Some(known), Some(index)) if !known.counted.has(index) => drop(indexes.insert(index)),
                _ => {}
            }
        } else if is_failed(view.spec, pod) || finish.is_some_and(|finish| !finish.is_success) {
            // When a job has failed, what still runs has failed too.
            if !failed.contains(&uid) && is_member && judge(view.job, pod).counts() {
                failed.push(uid);
            }
        }
        if indexes.len() + succeeded.len() + failed.len() >= MAX_UNCOUNTED {
            is_partial = true;
            break;
        }
    }
    let noted = status.uncounted_terminated_pods.get_or_insert_default();
    let list = |uids: Vec<String>| (!uids.is_empty()).then_some(uids);
    (noted.succeeded, noted.failed) = (list(succeeded), list(failed));
    if let Some(known) = &view.indexes {
        let all = known.succeeded.with(&indexes);
        status.succeeded = nonzero(i32::try_from(all.count()).unwrap_or(i32::MAX));
        status.completed_indexes = Some(all.to_string()).filter(|text| !text.is_empty());
        status.failed_indexes = known.failed.as_ref().map(ToString::to_string);
    }
    if let Some(finish) = finish {
        let type_ = if finish.is_success { SUCCESS_CRITERIA_MET } else { FAILURE_TARGET };
        ensure(&mut status, type_, true, (&finish.reason, &finish.message), now);
    }
    Counted { status, release, is_partial }
}

/// The pod's finalizer may go: it has ended, or the job is over or being deleted. The last failed pod of an index that
/// counts its failures stays until it has a successor.
fn may_release(view: &View, pod: &Arc<Pod>, is_over: bool) -> bool {
    if is_over || is_deleting(view.job) || pods::phase(pod) == "Succeeded" {
        return true;
    }
    let kept = view.indexes.as_ref().zip(index_of(pod)).and_then(|(known, index)| known.waiting.get(&index));
    is_failed(view.spec, pod) && kept.is_none_or(|kept| uid_of(kept.as_ref()) != uid_of(pod.as_ref()))
}

/// Counts the noted pods whose finalizer is gone. `tracked` are the UIDs of those that still have it.
pub fn settle(mut status: JobStatus, tracked: &HashSet<String>) -> JobStatus {
    let noted = status.uncounted_terminated_pods.get_or_insert_default();
    let settle = |list: &mut Option<Vec<String>>| {
        let before = list.as_ref().map_or(0, Vec::len);
        let left: Vec<String> =
            list.take().unwrap_or_default().into_iter().filter(|uid| tracked.contains(uid)).collect();
        let gone = before - left.len();
        *list = (!left.is_empty()).then_some(left);
        number(gone)
    };
    let (succeeded, failed) = (settle(&mut noted.succeeded), settle(&mut noted.failed));
    status.succeeded = nonzero(status.succeeded.unwrap_or(0) + succeeded);
    status.failed = nonzero(status.failed.unwrap_or(0) + failed);
    status
}

/// Ends the job, if nothing waits to be counted and no pod to end. Tells whether it did.
pub fn conclude(status: &mut JobStatus, finish: &Finish, terminating: i32, now: Timestamp) -> bool {
    let noted = uncounted(status);
    if noted.succeeded.is_some() || noted.failed.is_some() || terminating > 0 {
        return false;
    }
    let type_ = if finish.is_success { COMPLETE } else { FAILED };
    ensure(status, type_, true, (&finish.reason, &finish.message), now);
    if finish.is_success {
        status.completion_time = Some(Time(now));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::backoff::Record;
    use crate::job::decide::tests::{is, job, now, pod};
    use crate::meta::name_of;
    use serde_json::json;

    fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|p| name_of(p.as_ref())).collect()
    }

    #[test]
    fn ended_pods_are_noted_then_counted() {
        let job = job(|_| {});
        let pods = [is("Succeeded", "s"), is("Failed", "f"), is("Running", "r")];
        let view = View::new(&job, &pods, Record::default()).unwrap();
        let counted = count(&view, job.status.clone().unwrap(), None, now());
        assert_eq!(names(&counted.release), ["s", "f"]);
        let noted = uncounted(&counted.status);
        assert_eq!((noted.succeeded.unwrap(), noted.failed.unwrap()), (vec!["s".to_owned()], vec!["f".to_owned()]));
        assert_eq!(counted.status.succeeded, None);
        let half = settle(counted.status, &HashSet::from(["f".to_owned()]));
        assert_eq!((half.succeeded, half.failed), (Some(1), None));
        assert_eq!(uncounted(&half).failed.unwrap(), ["f"]);
    }

    #[test]
    fn what_runs_when_a_job_fails_has_failed_and_when_it_succeeds_has_not() {
        let job = job(|_| {});
        let pods = [is("Running", "r")];
        let view = View::new(&job, &pods, Record::default()).unwrap();
        for (is_success, want) in [(false, Some(vec!["r".to_owned()])), (true, None)] {
            let finish = Finish { is_success, reason: "R".to_owned(), message: "M".to_owned() };
            let counted = count(&view, JobStatus::default(), Some(&finish), now());
            assert_eq!((names(&counted.release), uncounted(&counted.status).failed), (vec!["r"], want));
        }
    }

    #[test]
    fn a_job_ends_when_all_is_counted_and_ended() {
        let finish = Finish { is_success: true, reason: "R".to_owned(), message: "M".to_owned() };
        let mut status = JobStatus::default();
        assert!(!conclude(&mut status, &finish, 1, now()));
        assert!(conclude(&mut status, &finish, 0, now()));
        assert_eq!(status.completion_time, Some(Time(now())));
        let mut waiting: JobStatus =
            serde_json::from_value(json!({"uncountedTerminatedPods": {"failed": ["x"]}})).unwrap();
        assert!(!conclude(&mut waiting, &finish, 0, now()));
    }

    #[test]
    fn many_are_counted_in_parts() {
        let job = job(|_| {});
        let pods: Vec<_> = (0..MAX_UNCOUNTED + 10).map(|i| pod(&i.to_string(), "Succeeded", |_| {})).collect();
        let view = View::new(&job, &pods, Record::default()).unwrap();
        let counted = count(&view, JobStatus::default(), None, now());
        assert!(counted.is_partial && counted.release.len() == MAX_UNCOUNTED);
    }
}
