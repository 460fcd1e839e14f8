//! Jobs and cron jobs.
//!
//! Upstream counterparts: `pkg/apis/batch/v1/defaults.go`, `pkg/apis/batch/validation`, `pkg/registry/batch`.

use k8s_openapi::api::batch::v1 as batch;
use serde_json::{Value, json};

use super::pod::{images_and_names, validate_template};
use super::{immutable, not_negative, one_of, status, template};
use crate::error::FieldError;
use crate::strategy::{Part, Rules};
use crate::table::{AGE, CONTAINERS, Columns, IMAGES, NAME, SELECTOR, age_of, name_of, number, selector_text, text};
use crate::{time, val};

static JOB_RULES: Rules = Rules {
    defaults: default_job,
    create: |obj| {
        generate_selector(obj);
        val::set(obj, "status", json!({}));
    },
    validate: validate_job,
    validate_update: |new, old, part| {
        if part != Part::Main {
            return Vec::new();
        }
        let mut errors = immutable(new, old, &["spec.completionMode", "spec.selector", "spec.podFailurePolicy"]);
        // A suspended job that never started may have its scheduling directives changed.
        let free = val::flag(old, "spec.suspend") && val::at(old, "status.startTime").is_none();
        if !free {
            errors.extend(immutable(new, old, &["spec.template"]));
        }
        if val::text(new, "spec.completionMode") != "Indexed" {
            errors.extend(immutable(new, old, &["spec.completions"]));
        }
        errors
    },
    selectable: &["status.successful"],
    selectable_values: Some(|obj| {
        vec![("status.successful", val::int(obj, "status.succeeded").unwrap_or(0).to_string())]
    }),
    ..Rules::SPEC
};

fn default_job(obj: &mut Value) {
    let labels = val::at(obj, "spec.template.metadata.labels").cloned();
    if let Some(labels) = labels
        && val::map(obj, "metadata.labels").is_none_or(serde_json::Map::is_empty)
    {
        val::set(val::child(obj, "metadata"), "labels", labels);
    }
    let spec = val::child(obj, "spec");
    if spec.get("completions").is_none() && spec.get("parallelism").is_none() {
        val::set(spec, "completions", 1);
        val::set(spec, "parallelism", 1);
    }
    val::default(spec, "parallelism", 1);
    if spec.get("backoffLimit").is_none() {
        // With a limit per index the overall limit is off.
        let limit = if spec.get("backoffLimitPerIndex").is_some() { i64::from(i32::MAX) } else { 6 };
        val::set(spec, "backoffLimit", limit);
    }
    val::default(spec, "completionMode", "NonIndexed");
    val::default(spec, "suspend", false);
    val::default(spec, "manualSelector", false);
    for rule in val::child_mut(spec, "podFailurePolicy").into_iter().flat_map(|p| val::list_mut(p, "rules")) {
        for pattern in val::list_mut(rule, "onPodConditions") {
            val::default(pattern, "status", "True");
        }
    }
    let replacement = if spec.get("podFailurePolicy").is_some() { "Failed" } else { "TerminatingOrFailed" };
    val::default(spec, "podReplacementPolicy", replacement);
    template::template(spec);
}

/// Labels that tie pods to their job, and the selector over them, unless the client selects by hand.
fn generate_selector(obj: &mut Value) {
    if val::flag(obj, "spec.manualSelector") {
        return;
    }
    let (uid, name) = (val::text(obj, "metadata.uid").to_owned(), val::text(obj, "metadata.name").to_owned());
    let spec = val::child(obj, "spec");
    let labels = val::child(val::child(val::child(spec, "template"), "metadata"), "labels");
    for prefix in ["batch.kubernetes.io/", ""] {
        val::set(labels, &format!("{prefix}controller-uid"), uid.as_str());
        val::set(labels, &format!("{prefix}job-name"), name.as_str());
    }
    let selector = val::child(val::child(spec, "selector"), "matchLabels");
    val::set(selector, "batch.kubernetes.io/controller-uid", uid);
}

fn validate_job(obj: &Value) -> Vec<FieldError> {
    let mut errors = job_spec(obj.get("spec").unwrap_or(&Value::Null), "spec");
    if val::at(obj, "spec.selector").is_none() {
        errors.push(FieldError::required("spec.selector", ""));
    }
    errors
}

fn job_spec(spec: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for key in ["parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"] {
        if let Some(mut error) = not_negative(spec, key) {
            error.field = format!("{at}.{key}");
            errors.push(error);
        }
    }
    if let Some(mut error) = one_of(spec, "completionMode", &["Indexed", "NonIndexed"]) {
        error.field = format!("{at}.completionMode");
        errors.push(error);
    }
    if val::text(spec, "completionMode") == "Indexed" && spec.get("completions").is_none() {
        errors.push(FieldError::required(format!("{at}.completions"), "when completion mode is Indexed"));
    }
    let Some(template) = spec.get("template") else {
        errors.push(FieldError::required(format!("{at}.template"), ""));
        return errors;
    };
    errors.extend(validate_template(template, &format!("{at}.template")));
    let policy = val::text(template, "spec.restartPolicy");
    let field = format!("{at}.template.spec.restartPolicy");
    match policy {
        "" | "Always" => {
            errors.push(FieldError::required(field, "valid values: \"OnFailure\", \"Never\""));
        }
        "OnFailure" | "Never" => {}
        other => errors.push(FieldError::not_supported(field, other, &["OnFailure", "Never"])),
    }
    errors.extend(job_policies(spec, policy, at));
    errors
}

/// What the rules for failures and success ask of the rest of the spec.
fn job_policies(spec: &Value, restart_policy: &str, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let is_indexed = val::text(spec, "completionMode") == "Indexed";
    if spec.get("podFailurePolicy").is_some() {
        if restart_policy != "Never" {
            errors.push(FieldError::invalid(
                format!("{at}.template.spec.restartPolicy"),
                restart_policy,
                "only \"Never\" is supported when podFailurePolicy is specified",
            ));
        }
        for (i, rule) in val::list(spec, "podFailurePolicy.rules").iter().enumerate() {
            let actions = ["Count", "FailIndex", "FailJob", "Ignore"];
            let action = val::text(rule, "action");
            if !actions.contains(&action) {
                let path = format!("{at}.podFailurePolicy.rules[{i}].action");
                errors.push(FieldError::not_supported(path, action, &actions));
            }
        }
    }
    if !is_indexed {
        for key in ["backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"] {
            if let Some(value) = spec.get(key) {
                errors.push(FieldError::invalid(
                    format!("{at}.{key}"),
                    value.clone(),
                    "requires indexed completion mode",
                ));
            }
        }
    }
    errors
}

static JOB_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Status"), text("Completions"), text("Duration"), AGE, CONTAINERS, IMAGES, SELECTOR],
    cells: |obj, now| {
        let (names, images) = images_and_names(val::at(obj, "spec.template.spec").unwrap_or(&Value::Null));
        vec![
            name_of(obj),
            json!(job_status(obj)),
            json!(completions(obj)),
            json!(duration(obj, now)),
            age_of(obj, now),
            json!(names),
            json!(images),
            json!(selector_text(val::at(obj, "spec.selector"))),
        ]
    },
};

fn job_status(obj: &Value) -> &'static str {
    let has = |kind: &str| {
        val::list(obj, "status.conditions")
            .iter()
            .any(|c| val::text(c, "type") == kind && val::text(c, "status") == "True")
    };
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if val::at(obj, "metadata.deletionTimestamp").is_some() {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(obj: &Value) -> String {
    let done = val::int(obj, "status.succeeded").unwrap_or(0);
    match (val::int(obj, "spec.completions"), val::int(obj, "spec.parallelism").unwrap_or(0)) {
        (Some(wanted), _) => format!("{done}/{wanted}"),
        (None, parallel) if parallel > 1 => format!("{done}/1 of {parallel}"),
        (None, _) => format!("{done}/1"),
    }
}

fn duration(obj: &Value, now: jiff::Timestamp) -> String {
    let Some(start) = time::parse(val::text(obj, "status.startTime")) else { return String::new() };
    let end = time::parse(val::text(obj, "status.completionTime")).unwrap_or(now);
    time::human(time::between(start, end))
}

kind!(JOBS: "batch" "batch" "v1" "Job", "jobs" "job", Namespaced "/registry/jobs/", batch::Job, JOB_RULES, JOB_COLUMNS,
    categories: &["all"], subresources: &[status("batch", "v1", "Job")]);

static CRON_RULES: Rules = Rules {
    defaults: |obj| {
        let spec = val::child(obj, "spec");
        val::default(spec, "concurrencyPolicy", "Allow");
        val::default(spec, "suspend", false);
        val::default(spec, "successfulJobsHistoryLimit", 3);
        val::default(spec, "failedJobsHistoryLimit", 1);
        if let Some(job) = val::child_mut(spec, "jobTemplate") {
            val::child(job, "metadata");
            if let Some(job) = val::child_mut(job, "spec") {
                template::template(job);
            }
        }
    },
    create: |obj| val::set(obj, "status", json!({})),
    validate: |obj| {
        let mut errors = Vec::new();
        let schedule = val::text(obj, "spec.schedule");
        if schedule.is_empty() {
            errors.push(FieldError::required("spec.schedule", ""));
        } else if !schedule.starts_with('@') && schedule.split_whitespace().count() != 5 {
            let found = schedule.split_whitespace().count();
            let detail = format!("expected exactly 5 fields, found {found}: [{schedule}]");
            errors.push(FieldError::invalid("spec.schedule", schedule, detail));
        }
        errors.extend(one_of(obj, "spec.concurrencyPolicy", &["Allow", "Forbid", "Replace"]));
        for path in ["spec.startingDeadlineSeconds", "spec.successfulJobsHistoryLimit", "spec.failedJobsHistoryLimit"] {
            errors.extend(not_negative(obj, path));
        }
        let job = val::at(obj, "spec.jobTemplate.spec").unwrap_or(&Value::Null);
        errors.extend(job_spec(job, "spec.jobTemplate.spec"));
        // The names of its jobs get eleven more characters.
        let name = val::text(obj, "metadata.name");
        if name.len() > 52 {
            errors.push(FieldError::invalid("metadata.name", name, "must be no more than 52 characters"));
        }
        errors
    },
    ..Rules::SPEC
};

static CRON_COLUMNS: Columns = Columns {
    columns: &[
        NAME,
        text("Schedule"),
        text("Timezone"),
        text("Suspend"),
        number("Active"),
        text("Last Schedule"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |obj, now| {
        let (names, images) =
            images_and_names(val::at(obj, "spec.jobTemplate.spec.template.spec").unwrap_or(&Value::Null));
        let last = val::text(obj, "status.lastScheduleTime");
        vec![
            name_of(obj),
            json!(val::text(obj, "spec.schedule")),
            crate::table::text_or(obj, "spec.timeZone", "<none>"),
            json!(if val::flag(obj, "spec.suspend") { "True" } else { "False" }),
            json!(val::list(obj, "status.active").len()),
            json!(if last.is_empty() { "<none>".to_owned() } else { time::age(last, now) }),
            age_of(obj, now),
            json!(names),
            json!(images),
            json!(selector_text(val::at(obj, "spec.jobTemplate.spec.selector"))),
        ]
    },
};

kind!(CRON_JOBS: "batch" "batch" "v1" "CronJob", "cronjobs" "cronjob", Namespaced "/registry/cronjobs/", batch::CronJob, CRON_RULES,
    CRON_COLUMNS, short_names: &["cj"], categories: &["all"], subresources: &[status("batch", "v1", "CronJob")]);
