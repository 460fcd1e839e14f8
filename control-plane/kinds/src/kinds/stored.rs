//! Kinds of which little more than storage is asked: leases, priority and runtime classes, flow control, signing requests.

use k8s_openapi::api::certificates::v1 as certificates;
use k8s_openapi::api::coordination::v1 as coordination;
use k8s_openapi::api::flowcontrol::v1 as flowcontrol;
use k8s_openapi::api::node::v1 as node;
use k8s_openapi::api::scheduling::v1 as scheduling;
use serde_json::{Value, json};

use super::status;
use crate::error::FieldError;
use crate::resource::{Subresource, Verb};
use crate::strategy::{Part, Rules};
use crate::table::{AGE, Columns, NAME, age_of, name_of, number, text};
use crate::{names, time, val};

static LEASE_RULES: Rules =
    Rules { create_on_update: true, unconditional_update: false, validate: validate_lease, ..Rules::PLAIN };

fn validate_lease(obj: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (path, msg) in [
        ("spec.leaseDurationSeconds", "must be greater than 0"),
        ("spec.leaseTransitions", "must be greater than or equal to 0"),
    ] {
        let least = i64::from(path == "spec.leaseDurationSeconds");
        if let Some(n) = val::int(obj, path)
            && n < least
        {
            errors.push(FieldError::invalid(path, n, msg));
        }
    }
    errors
}

static LEASE_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Holder"), AGE],
    cells: |obj, now| vec![name_of(obj), json!(val::text(obj, "spec.holderIdentity")), age_of(obj, now)],
};

kind!(LEASES: "coordination" "coordination.k8s.io" "v1" "Lease", "leases" "lease", Namespaced "/registry/leases/",
    coordination::Lease, LEASE_RULES, LEASE_COLUMNS);

/// Upstream's `HighestUserDefinablePriority`.
const HIGHEST_USER_PRIORITY: i64 = 1_000_000_000;

static PRIORITY_RULES: Rules = Rules {
    defaults: |obj| val::default(obj, "preemptionPolicy", "PreemptLowerPriority"),
    validate: |obj| {
        let mut errors = Vec::new();
        let name = val::text(obj, "metadata.name");
        let value = val::int(obj, "value").unwrap_or(0);
        if name.starts_with("system-") {
            let known = matches!(
                (name, value),
                ("system-cluster-critical", 2_000_000_000) | ("system-node-critical", 2_000_001_000)
            );
            if !known {
                errors.push(FieldError::forbidden(
                    "metadata.name",
                    "priority class names with 'system-' prefix are reserved for system use only",
                ));
            }
        } else if value > HIGHEST_USER_PRIORITY {
            errors.push(FieldError::forbidden(
                "value",
                format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"),
            ));
        }
        errors.extend(super::one_of(obj, "preemptionPolicy", &["Never", "PreemptLowerPriority"]));
        errors
    },
    validate_update: |new, old, _| super::immutable(new, old, &["value", "preemptionPolicy"]),
    ..Rules::PLAIN
};

static PRIORITY_COLUMNS: Columns = Columns {
    columns: &[NAME, number("Value"), text("Global-Default"), AGE, text("PreemptionPolicy")],
    cells: |obj, now| {
        vec![
            name_of(obj),
            json!(val::int(obj, "value").unwrap_or(0)),
            json!(val::flag(obj, "globalDefault")),
            age_of(obj, now),
            json!(val::text(obj, "preemptionPolicy")),
        ]
    },
};

kind!(PRIORITY_CLASSES: "scheduling" "scheduling.k8s.io" "v1" "PriorityClass", "priorityclasses" "priorityclass", Cluster
    "/registry/priorityclasses/", scheduling::PriorityClass, PRIORITY_RULES, PRIORITY_COLUMNS, short_names: &["pc"]);

static RUNTIME_RULES: Rules = Rules {
    validate: |obj| {
        let handler = val::text(obj, "handler");
        if handler.is_empty() {
            return vec![FieldError::required("handler", "")];
        }
        names::dns1123_label(handler).into_iter().map(|m| FieldError::invalid("handler", handler, m)).collect()
    },
    validate_update: |new, old, _| super::immutable(new, old, &["handler"]),
    ..Rules::PLAIN
};

static RUNTIME_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Handler"), AGE],
    cells: |obj, now| vec![name_of(obj), json!(val::text(obj, "handler")), age_of(obj, now)],
};

kind!(RUNTIME_CLASSES: "node" "node.k8s.io" "v1" "RuntimeClass", "runtimeclasses" "runtimeclass", Cluster
    "/registry/runtimeclasses/", node::RuntimeClass, RUNTIME_RULES, RUNTIME_COLUMNS);

static FLOW_RULES: Rules = Rules { ..Rules::SPEC };

static FLOW_COLUMNS: Columns = Columns {
    columns: &[
        NAME,
        text("PriorityLevel"),
        number("MatchingPrecedence"),
        text("DistinguisherMethod"),
        AGE,
        text("MissingPL"),
    ],
    cells: |obj, now| {
        let dangling = val::list(obj, "status.conditions").iter().find(|c| val::text(c, "type") == "Dangling");
        vec![
            name_of(obj),
            json!(val::text(obj, "spec.priorityLevelConfiguration.name")),
            json!(val::int(obj, "spec.matchingPrecedence").unwrap_or(0)),
            crate::table::text_or(obj, "spec.distinguisherMethod.type", "<none>"),
            age_of(obj, now),
            json!(dangling.map_or("?", |c| val::text(c, "status"))),
        ]
    },
};

kind!(FLOW_SCHEMAS: "flowcontrol" "flowcontrol.apiserver.k8s.io" "v1" "FlowSchema", "flowschemas" "flowschema", Cluster
    "/registry/flowschemas/", flowcontrol::FlowSchema, FLOW_RULES, FLOW_COLUMNS,
    subresources: &[status("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema")]);

static LEVEL_COLUMNS: Columns = Columns {
    columns: &[
        NAME,
        text("Type"),
        text("NominalConcurrencyShares"),
        text("Queues"),
        text("HandSize"),
        text("QueueLengthLimit"),
        AGE,
    ],
    cells: |obj, now| {
        let shown = |path: &str| json!(val::int(obj, path).map_or_else(|| "<none>".to_owned(), |n| n.to_string()));
        vec![
            name_of(obj),
            json!(val::text(obj, "spec.type")),
            shown("spec.limited.nominalConcurrencyShares"),
            shown("spec.limited.limitResponse.queuing.queues"),
            shown("spec.limited.limitResponse.queuing.handSize"),
            shown("spec.limited.limitResponse.queuing.queueLengthLimit"),
            age_of(obj, now),
        ]
    },
};

kind!(PRIORITY_LEVELS: "flowcontrol" "flowcontrol.apiserver.k8s.io" "v1" "PriorityLevelConfiguration",
    "prioritylevelconfigurations" "prioritylevelconfiguration", Cluster "/registry/prioritylevelconfigurations/",
    flowcontrol::PriorityLevelConfiguration, FLOW_RULES, LEVEL_COLUMNS,
    subresources: &[status("flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration")]);

static CSR_RULES: Rules = Rules {
    status: true,
    selectable: &["spec.signerName"],
    update: |new, old, part| {
        val::carry(new, old, "spec");
        if part == Part::Status {
            // Who signs does not approve: only other conditions come through the status.
            let is_verdict = |c: &&Value| matches!(val::text(c, "type"), "Approved" | "Denied");
            let mut conditions: Vec<Value> =
                val::list(old, "status.conditions").iter().filter(is_verdict).cloned().collect();
            conditions.extend(val::list(new, "status.conditions").iter().filter(|c| !is_verdict(c)).cloned());
            if !conditions.is_empty() {
                val::set(val::child(new, "status"), "conditions", json!(conditions));
            }
        }
        if part == Part::Other("approval") {
            // Only the conditions come through the approval subresource.
            let conditions = val::at(new, "status.conditions").cloned();
            val::carry(new, old, "status");
            if let Some(conditions) = conditions {
                val::set(val::child(new, "status"), "conditions", conditions);
            }
        }
    },
    validate: |obj| {
        let mut errors = Vec::new();
        if val::text(obj, "spec.request").is_empty() {
            errors.push(FieldError::invalid("spec.request", "", "PEM block type must be CERTIFICATE REQUEST"));
        }
        if val::list(obj, "spec.usages").is_empty() {
            errors.push(FieldError::required("spec.usages", ""));
        }
        if val::text(obj, "spec.signerName").is_empty() {
            errors.push(FieldError::required("spec.signerName", ""));
        }
        if let Some(seconds) = val::int(obj, "spec.expirationSeconds")
            && seconds < 600
        {
            errors.push(FieldError::invalid(
                "spec.expirationSeconds",
                seconds,
                "may not specify a duration less than 600 seconds (10 minutes)",
            ));
        }
        errors.extend(signer_name(val::text(obj, "spec.signerName")));
        errors
    },
    ..Rules::PLAIN
};

/// A signer is called `DOMAIN/NAME`. That there is none is told already.
fn signer_name(name: &str) -> Vec<FieldError> {
    let invalid = |why: String| FieldError::invalid("spec.signerName", name, why);
    let Some((domain, path)) = name.split_once('/').filter(|(_, path)| !path.contains('/')) else {
        let form = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return if name.is_empty() { Vec::new() } else { vec![invalid(form.to_owned())] };
    };
    let mut errors: Vec<FieldError> = domain.split('.').flat_map(names::dns1123_label).map(invalid).collect();
    if !domain.contains('.') {
        errors.push(invalid("should be a domain with at least two segments separated by dots".to_owned()));
    }
    errors.extend(names::dns1123_subdomain(path).into_iter().map(invalid));
    errors
}

fn csr_condition(obj: &Value) -> String {
    let has = |kind: &str| val::list(obj, "status.conditions").iter().any(|c| val::text(c, "type") == kind);
    let mut out = if has("Denied") {
        "Denied".to_owned()
    } else if has("Approved") {
        "Approved".to_owned()
    } else {
        "Pending".to_owned()
    };
    if has("Failed") {
        out.push_str(",Failed");
    }
    if !val::text(obj, "status.certificate").is_empty() {
        out.push_str(",Issued");
    }
    out
}

static CSR_COLUMNS: Columns = Columns {
    columns: &[NAME, AGE, text("SignerName"), text("Requestor"), text("RequestedDuration"), text("Condition")],
    cells: |obj, now| {
        vec![
            name_of(obj),
            age_of(obj, now),
            crate::table::text_or(obj, "spec.signerName", "<none>"),
            json!(val::text(obj, "spec.username")),
            json!(val::int(obj, "spec.expirationSeconds").map_or_else(|| "<none>".to_owned(), time::human)),
            json!(csr_condition(obj)),
        ]
    },
};

kind!(SIGNING_REQUESTS: "certificates" "certificates.k8s.io" "v1" "CertificateSigningRequest",
"certificatesigningrequests" "certificatesigningrequest", Cluster "/registry/certificatesigningrequests/",
certificates::CertificateSigningRequest, CSR_RULES, CSR_COLUMNS, short_names: &["csr"],
subresources: &[
    Subresource {
        name: "approval",
        group: "certificates.k8s.io",
        version: "v1",
        kind: "CertificateSigningRequest",
        verbs: &[Verb::Get, Verb::Patch, Verb::Update],
    },
    status("certificates.k8s.io", "v1", "CertificateSigningRequest"),
]);
