//! Which time is due, what to start, stop and forget. Pure.
//!
//! Upstream counterpart: `syncCronJob`, `mostRecentScheduleTime`, `cleanupFinishedJobs`, `getJobFromTemplate2`.

use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::schedule::{Schedule, zone};
use crate::engine::events::{Level, reference};
use crate::job::conditions::{COMPLETE, end};
use crate::meta::{controller_reference, created, is_deleting, name_of, uid_of};

/// More missed times than this are worth a warning (upstream's number).
const MANY_MISSED: usize = 100;
/// On jobs: when they were due.
const SCHEDULED_ANNOTATION: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// What is known when a plan is made.
pub struct Input<'a> {
    /// The cron job.
    pub cron: &'a CronJob,
    /// Its jobs.
    pub jobs: &'a [Arc<Job>],
    /// Now.
    pub now: Timestamp,
}

/// What to do.
#[derive(Debug, Default)]
pub struct Plan {
    /// Jobs to delete because a new one takes their place.
    pub replace: Vec<Arc<Job>>,
    /// Ended jobs that are too many.
    pub forget: Vec<Arc<Job>>,
    /// The job to start, and when it was due.
    pub start: Option<(Job, Timestamp)>,
    /// The status, without the job to start.
    pub status: CronJobStatus,
    /// What to tell people: (level, reason, message).
    pub events: Vec<(Level, &'static str, String)>,
    /// When to look again, if nothing happens before.
    pub again: Option<Duration>,
}

/// The last time that was due and has no job, and how many were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Due {
    at: Timestamp,
    is_many: bool,
}

/// Decides.
pub fn plan(input: &Input) -> Plan {
    let mut plan = Plan { forget: superfluous(input), ..Plan::default() };
    account(input, &mut plan);
    let spec = &input.cron.spec;
    if is_deleting(input.cron) || spec.suspend.unwrap_or(false) {
        return plan;
    }
    let Some((schedule, zone)) = timing(input.cron, &mut plan) else { return plan };
    let due = due(input.cron, &schedule, &zone, input.now);
    let next = schedule.next(due.map_or(input.now, |due| due.at.max(input.now)), &zone);
    plan.again = next.map(|next| Duration::try_from(next.duration_since(input.now)).unwrap_or_default());
    if let Some(due) = due {
        start(input, due, &zone, &mut plan);
    }
    plan
}

/// The schedule with its zone; says so if they cannot be read.
fn timing(cron: &CronJob, plan: &mut Plan) -> Option<(Schedule, TimeZone)> {
    let spec = &cron.spec;
    let zone = match spec.time_zone.as_deref() {
        None => TimeZone::UTC,
        Some(name) => match zone(name) {
            Ok(zone) => zone,
            Err(error) => {
                let message = format!("invalid timeZone: {name:?}: {error}");
                plan.events.push((Level::Warning, "UnknownTimeZone", message));
                return None;
            }
        },
    };
    match Schedule::parse(&spec.schedule) {
        Ok(schedule) => Some((schedule, zone)),
        Err(error) => {
            let message = format!("unparseable schedule: {:?} : {error}", spec.schedule);
            plan.events.push((Level::Warning, "UnparseableSchedule", message));
            None
        }
    }
}

/// Brings the status in line with the jobs that exist.
fn account(input: &Input, plan: &mut Plan) {
    let mut status = input.cron.status.clone().unwrap_or_default();
    let mut active = status.active.take().unwrap_or_default();
    for job in input.jobs {
        let place = active.iter().position(|known| known.uid.as_deref() == Some(uid_of(job.as_ref())));
        match (end(job), place) {
            (None, None) => {
                let message =
                    format!("Saw a job that the controller did not create or forgot: {}", name_of(job.as_ref()));
                plan.events.push((Level::Warning, "UnexpectedJob", message));
            }
            (Some(condition), Some(place)) => {
                active.remove(place);
                let message = format!("Saw completed job: {}, condition: {}", name_of(job.as_ref()), condition.type_);
                plan.events.push((Level::Normal, "SawCompletedJob", message));
            }
            _ => {}
        }
        if end(job).is_some_and(|c| c.type_ == COMPLETE) {
            let done = job.status.as_ref().and_then(|s| s.completion_time.clone());
            status.last_successful_time = status.last_successful_time.max(done);
        }
    }
    active.retain(|known| {
        let exists = input.jobs.iter().any(|job| known.uid.as_deref() == Some(uid_of(job.as_ref())));
        if !exists {
            let message = format!("Active job went missing: {}", known.name.as_deref().unwrap_or(""));
            plan.events.push((Level::Normal, "MissingJob", message));
        }
        exists
    });
    status.active = (!active.is_empty()).then_some(active);
    plan.status = status;
}

/// The last time before now that has no job yet, not looking back further than the deadline.
fn due(cron: &CronJob, schedule: &Schedule, zone: &TimeZone, now: Timestamp) -> Option<Due> {
    let mut from = cron.status.as_ref().and_then(|s| s.last_schedule_time.as_ref()).map_or(created(cron), |t| t.0);
    if let Some(limit) =
        cron.spec.starting_deadline_seconds.and_then(|seconds| now.checked_sub(SignedDuration::from_secs(seconds)).ok())
    {
        from = from.max(limit);
    }
    let first = schedule.next(from, zone).filter(|first| *first <= now)?;
    // Walking through years of missed minutes would take long: jump near the end once it is clear that there are many.
    let (mut last, mut count) = (first, 1);
    while let Some(next) = schedule.next(last, zone).filter(|next| *next <= now) {
        (last, count) = (next, count + 1);
        if count == MANY_MISSED {
            let gap =
                next.duration_since(first).checked_div(i32::try_from(MANY_MISSED).unwrap_or(1)).unwrap_or_default();
            let near = now.checked_sub(gap * 4).unwrap_or(now);
            last = schedule.next(near.max(next), zone).filter(|jumped| *jumped <= now).unwrap_or(next);
        }
    }
    Some(Due { at: last, is_many: count > MANY_MISSED })
}

/// The name of the job of a time.
fn job_name(cron: &CronJob, at: Timestamp) -> String {
    format!("{}-{}", name_of(cron), at.as_second() / 60)
}

fn start(input: &Input, due: Due, zone: &TimeZone, plan: &mut Plan) {
    let spec = &input.cron.spec;
    if due.is_many {
        let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        plan.events.push((Level::Warning, "TooManyMissedTimes", message.to_owned()));
    }
    let active = plan.status.active.clone().unwrap_or_default();
    let name = job_name(input.cron, due.at);
    if active.iter().any(|known| known.name.as_deref() == Some(&name)) {
        return;
    }
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => {
            let message =
                "Not starting job because prior execution is running and concurrency policy is Forbid".to_owned();
            plan.events.push((Level::Normal, "JobAlreadyActive", message));
            return;
        }
        Some("Replace") => {
            let is_active = |job: &&Arc<Job>| active.iter().any(|a| a.uid.as_deref() == Some(uid_of(job.as_ref())));
            plan.replace = input.jobs.iter().filter(is_active).cloned().collect();
            plan.status.active = None;
        }
        _ => {}
    }
    plan.start = Some((job(input.cron, due.at, zone), due.at));
}

/// The job of a time.
fn job(cron: &CronJob, at: Timestamp, zone: &TimeZone) -> Job {
    let template = cron.spec.job_template.clone();
    let meta = template.metadata.unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED_ANNOTATION.to_owned(), in_zone(at, zone));
    Job {
        metadata: ObjectMeta {
            name: Some(job_name(cron, at)),
            namespace: cron.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(cron)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}

/// RFC 3339 with the zone's offset.
fn in_zone(at: Timestamp, zone: &TimeZone) -> String {
    if *zone == TimeZone::UTC {
        return at.to_string();
    }
    at.display_with_offset(zone.to_offset(at)).to_string()
}

/// The status after the job was started.
pub fn started(mut status: CronJobStatus, job: &Job, at: Timestamp) -> CronJobStatus {
    let about: ObjectReference = reference(job);
    status.active.get_or_insert_default().push(about);
    status.last_schedule_time = Some(Time(at));
    status
}

/// The oldest ended jobs beyond the limits, successful and failed ones apart.
fn superfluous(input: &Input) -> Vec<Arc<Job>> {
    let spec = &input.cron.spec;
    let of_kind = |is_success: bool, limit: Option<i32>| {
        let Some(limit) = limit.and_then(|l| usize::try_from(l).ok()) else { return Vec::new() };
        let is_kind = |job: &&Arc<Job>| {
            !is_deleting(job.as_ref()) && end(job).is_some_and(|c| (c.type_ == COMPLETE) == is_success)
        };
        let mut ended: Vec<Arc<Job>> = input.jobs.iter().filter(is_kind).cloned().collect();
        let surplus = ended.len().saturating_sub(limit);
        ended.sort_by(|a, b| {
            let start = |job: &Job| job.status.as_ref().and_then(|s| s.start_time.clone());
            start(a).cmp(&start(b)).then_with(|| name_of(a.as_ref()).cmp(name_of(b.as_ref())))
        });
        ended.truncate(surplus);
        ended
    };
    let mut gone = of_kind(true, spec.successful_jobs_history_limit);
    gone.extend(of_kind(false, spec.failed_jobs_history_limit));
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::annotation;
    use serde_json::{Value, json};

    fn cron(edit: impl FnOnce(&mut Value)) -> CronJob {
        let mut cron = json!({"metadata": {"name": "c", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:30Z"},
            "spec": {"schedule": "*/5 * * * *", "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0, "concurrencyPolicy": "Allow",
            "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {}}}}});
        edit(&mut cron);
        serde_json::from_value(cron).unwrap()
    }

    fn job(name: &str, ended: Option<&str>) -> Arc<Job> {
        let conditions = ended.map_or(json!([]), |type_| json!([{"type": type_, "status": "True"}]));
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name, "uid": name}, "spec": {"template": {}},
            "status": {"conditions": conditions, "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:00Z"}})).unwrap())
    }

    fn at(cron: &CronJob, jobs: &[Arc<Job>], now: &str) -> Plan {
        plan(&Input { cron, jobs, now: format!("2026-01-01T{now}Z").parse().unwrap() })
    }

    fn started_at(plan: &Plan) -> Option<String> {
        plan.start.as_ref().map(|(_, at)| at.to_string())
    }

    #[test]
    fn the_last_missed_time_is_made_up_for() {
        let plan = at(&cron(|_| {}), &[], "00:04:00");
        assert_eq!((started_at(&plan), plan.again), (None, Some(Duration::from_secs(60))));
        let plan = at(&cron(|_| {}), &[], "00:16:00");
        assert_eq!(started_at(&plan).as_deref(), Some("2026-01-01T00:15:00Z"));
        assert_eq!(plan.again, Some(Duration::from_secs(240)));
        let (job, at_time) = plan.start.unwrap();
        assert_eq!(
            (name_of(&job), annotation(&job, SCHEDULED_ANNOTATION)),
            ("c-29453775", Some("2026-01-01T00:15:00Z"))
        );
        let status = started(CronJobStatus::default(), &job, at_time);
        assert_eq!(status.last_schedule_time, Some(Time(at_time)));
        let ran = cron(|c| c["status"] = json!({"lastScheduleTime": "2026-01-01T00:15:00Z"}));
        assert_eq!(started_at(&at(&ran, &[], "00:16:00")), None);
        let late = cron(|c| c["spec"]["startingDeadlineSeconds"] = json!(30));
        assert_eq!(started_at(&at(&late, &[], "00:16:00")), None);
        let waiting = cron(|c| c["spec"]["suspend"] = json!(true));
        assert_eq!(at(&waiting, &[], "00:16:00").again, None);
    }

    #[test]
    fn years_of_missed_minutes_are_said_and_skipped() {
        let old = cron(|c| {
            c["spec"]["schedule"] = json!("* * * * *");
            c["metadata"]["creationTimestamp"] = json!("2016-01-01T00:00:00Z");
        });
        let plan = at(&old, &[], "00:16:30");
        assert_eq!(started_at(&plan).as_deref(), Some("2026-01-01T00:16:00Z"));
        assert_eq!(plan.events[0].1, "TooManyMissedTimes");
    }

    #[test]
    fn a_running_job_holds_back_is_replaced_or_joined() {
        let with = |policy: &str| {
            cron(|c| {
                c["spec"]["concurrencyPolicy"] = json!(policy);
                c["status"] = json!({"active": [{"name": "r", "uid": "r"}]});
            })
        };
        let jobs = [job("r", None)];
        assert!(at(&with("Allow"), &jobs, "00:06:00").start.is_some());
        let held = at(&with("Forbid"), &jobs, "00:06:00");
        assert_eq!((held.start.is_none(), held.events[0].1), (true, "JobAlreadyActive"));
        let replaced = at(&with("Replace"), &jobs, "00:06:00");
        assert_eq!((replaced.replace.len(), replaced.status.active.is_none()), (1, true));
    }

    #[test]
    fn ended_missing_and_strange_jobs_are_noticed_and_old_ones_go() {
        let busy =
            cron(|c| c["status"] = json!({"active": [{"name": "d", "uid": "d"}, {"name": "gone", "uid": "gone"}]}));
        let jobs = [job("d", Some(COMPLETE)), job("e", Some(COMPLETE)), job("f", Some("Failed")), job("s", None)];
        let plan = at(&busy, &jobs, "00:04:00");
        let reasons: Vec<_> = plan.events.iter().map(|e| e.1).collect();
        assert_eq!(reasons, ["SawCompletedJob", "UnexpectedJob", "MissingJob"]);
        assert!(plan.status.active.is_none());
        assert_eq!(plan.status.last_successful_time.unwrap().0.to_string(), "2026-01-01T00:01:00Z");
        assert_eq!(plan.forget.iter().map(|j| name_of(j.as_ref())).collect::<Vec<_>>(), ["d", "f"]);
    }

    #[test]
    fn mistakes_are_said() {
        let odd = cron(|c| c["spec"]["schedule"] = json!("* * * * 9"));
        assert_eq!(at(&odd, &[], "00:04:00").events[0].1, "UnparseableSchedule");
        let nowhere = cron(|c| c["spec"]["timeZone"] = json!("Nowhere/Land"));
        assert_eq!(at(&nowhere, &[], "00:04:00").events[0].1, "UnknownTimeZone");
    }
}
