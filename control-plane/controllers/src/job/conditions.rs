//! Conditions of a job. Pure.
//!
//! Upstream counterpart: `ensureJobConditionStatus`, `findConditionByType`, `IsJobFinished`.

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// The job has succeeded and all its pods have ended.
pub const COMPLETE: &str = "Complete";
/// The job has failed and all its pods have ended.
pub const FAILED: &str = "Failed";
/// The job will be [`COMPLETE`].
pub const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
/// The job will be [`FAILED`].
pub const FAILURE_TARGET: &str = "FailureTarget";
/// The job waits until it is told to go on.
pub const SUSPENDED: &str = "Suspended";

/// The condition of this type, if it is True.
pub fn holds<'a>(status: &'a JobStatus, type_: &str) -> Option<&'a JobCondition> {
    status.conditions.iter().flatten().find(|c| c.type_ == type_ && c.status == "True")
}

/// The condition that ended the job.
pub fn end(job: &Job) -> Option<&JobCondition> {
    let status = job.status.as_ref()?;
    holds(status, COMPLETE).or_else(|| holds(status, FAILED))
}

/// Makes the condition say this. A condition that is not there is not added as False. Tells whether anything changed.
pub fn ensure(
    status: &mut JobStatus,
    type_: &str,
    value: bool,
    (reason, message): (&str, &str),
    now: Timestamp,
) -> bool {
    let wanted = JobCondition {
        type_: type_.to_owned(),
        status: if value { "True" } else { "False" }.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    };
    match status.conditions.iter_mut().flatten().find(|c| c.type_ == type_) {
        Some(known)
            if (&known.status, &known.reason, &known.message) == (&wanted.status, &wanted.reason, &wanted.message) =>
        {
            false
        }
        Some(known) => {
            *known = wanted;
            true
        }
        None => {
            if value {
                status.conditions.get_or_insert_default().push(wanted);
            }
            value
        }
    }
}
