//! The rules of a job for failures and for early success. Pure.
//!
//! Upstream counterpart: `pod_failure_policy.go`, `success_policy.go`.

use k8s_openapi::api::batch::v1::{Job, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule, SuccessPolicy};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::indexes::Indexes;
use crate::engine::Key;

/// What a failed pod means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It counts against the limits.
    Count,
    /// It counts for nothing.
    Ignore,
    /// The whole index has failed.
    FailIndex,
    /// The whole job has failed, for this reason.
    FailJob(String),
}

impl Verdict {
    /// The failure counts.
    pub fn counts(&self) -> bool {
        *self != Self::Ignore
    }
}

/// What the first matching rule of the job's policy says of a failed pod.
pub fn judge(job: &Job, pod: &Pod) -> Verdict {
    let rules = job.spec.as_ref().and_then(|s| s.pod_failure_policy.as_ref()).map_or(&[][..], |p| &p.rules);
    for (index, rule) in rules.iter().enumerate() {
        let Some(what) = matched(rule, pod) else { continue };
        match rule.action.as_str() {
            "Ignore" => return Verdict::Ignore,
            "FailIndex" => return Verdict::FailIndex,
            "Count" => return Verdict::Count,
            "FailJob" => return Verdict::FailJob(format!("{what} matching {} rule at index {index}", rule.action)),
            _ => {}
        }
    }
    Verdict::Count
}

/// In upstream's words, what of the pod the rule matches.
fn matched(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let key = Key::of(pod);
    let status = pod.status.as_ref()?;
    if let Some(requirement) = &rule.on_exit_codes {
        let mut containers = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        let (name, code) = containers.find_map(|container| exit_code(container, requirement))?;
        return Some(format!("Container {name} for pod {key} failed with exit code {code}"));
    }
    let patterns = rule.on_pod_conditions.as_ref()?;
    let found = status.conditions.iter().flatten().find(|condition| {
        let wanted = |status: Option<&String>| status.map_or("True", String::as_str) == condition.status;
        patterns.iter().any(|p| p.type_ == condition.type_ && wanted(p.status.as_ref()))
    })?;
    Some(format!("Pod {key} has condition {}", found.type_))
}

fn exit_code<'a>(
    container: &'a ContainerStatus,
    requirement: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<(&'a str, i32)> {
    let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
    let is_named = requirement.container_name.as_deref().is_none_or(|name| name == container.name);
    let listed = requirement.values.contains(&code);
    let matches = match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    };
    (is_named && code != 0 && matches).then_some((container.name.as_str(), code))
}

/// The message of the first rule for success that these indexes meet.
pub fn success(policy: Option<&SuccessPolicy>, completions: u32, succeeded: &Indexes) -> Option<String> {
    let policy = policy.filter(|_| !succeeded.is_empty())?;
    let at_least = |have: u32, wanted: Option<i32>| wanted.is_some_and(|n| i64::from(have) >= i64::from(n));
    let met = policy.rules.iter().position(|rule| match &rule.succeeded_indexes {
        None => at_least(succeeded.count(), rule.succeeded_count),
        Some(text) => {
            let wanted = Indexes::parse(text, completions);
            let have = wanted.common(succeeded);
            !wanted.is_empty() && (have == wanted.count() || at_least(have, rule.succeeded_count))
        }
    })?;
    Some(format!("Matched rules at index {met}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn judged(rules: Value, pod: Value) -> Verdict {
        let job: Job =
            serde_json::from_value(json!({"spec": {"template": {}, "podFailurePolicy": {"rules": rules}}})).unwrap();
        let mut pod = pod;
        pod["metadata"] = json!({"namespace": "n", "name": "p"});
        judge(&job, &serde_json::from_value(pod).unwrap())
    }

    fn exits(code: i32) -> Value {
        json!({"status": {"phase": "Failed", "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"terminated": {"exitCode": code}}}],
            "conditions": [{"type": "DisruptionTarget", "status": "True"}]}})
    }

    #[test]
    fn the_first_matching_rule_counts() {
        let rules = json!([
            {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [3]}},
            {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [3, 42]}},
            {"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [5]}},
            {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]);
        assert_eq!(judged(rules.clone(), exits(3)), Verdict::Ignore);
        let why = "Container c for pod n/p failed with exit code 42 matching FailJob rule at index 1";
        assert_eq!(judged(rules.clone(), exits(42)), Verdict::FailJob(why.to_owned()));
        assert_eq!(judged(rules.clone(), exits(1)), Verdict::FailIndex);
        assert_eq!(judged(rules.clone(), exits(5)), Verdict::Count);
        assert_eq!(judged(rules, exits(0)), Verdict::Count);
    }

    #[test]
    fn conditions_match_by_type_and_status() {
        let rules = json!([{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]);
        let why = "Pod n/p has condition DisruptionTarget matching FailJob rule at index 0";
        assert_eq!(judged(rules.clone(), exits(1)), Verdict::FailJob(why.to_owned()));
        assert_eq!(judged(rules, json!({"status": {}})), Verdict::Count);
    }

    #[test]
    fn success_by_indexes_or_by_number() {
        let met = |rules: Value, succeeded: &str| {
            let policy: SuccessPolicy = serde_json::from_value(json!({"rules": rules})).unwrap();
            success(Some(&policy), 10, &Indexes::parse(succeeded, 10))
        };
        assert_eq!(met(json!([{"succeededIndexes": "0-2"}]), "0,1"), None);
        assert_eq!(met(json!([{"succeededIndexes": "0-2"}]), "0-3").as_deref(), Some("Matched rules at index 0"));
        let rules = json!([{"succeededIndexes": "0-2", "succeededCount": 2}, {"succeededCount": 4}]);
        assert_eq!(met(rules.clone(), "1,2").as_deref(), Some("Matched rules at index 0"));
        assert_eq!(met(rules.clone(), "2,5-7").as_deref(), Some("Matched rules at index 1"));
        assert_eq!(met(rules, "5"), None);
        assert_eq!(met(json!([{"succeededCount": 0}]), ""), None);
    }
}
