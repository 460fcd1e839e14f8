//! `pods/eviction`: a delete that disruption budgets may refuse.
//!
//! The budget's controller grants, an eviction spends. Upstream counterpart: `pkg/registry/core/pod/storage/eviction.go`.

use http::{Response, StatusCode};
use keelson_kinds::deletion::DeleteOptions;
use keelson_kinds::{ApiError, Cause, Resource, lookup};
use kube_common::selector::LabelSelector;
use serde_json::{Value, json};

use super::subresource::success;
use super::{decode_body, delete, dry_run};
use crate::admission;
use crate::http::Call;
use crate::http::body::Body;
use crate::server::Change;

/// Evictions of one budget that may be under way (upstream's `MaxDisruptedPodSize`).
const MOST_UNDER_WAY: usize = 2000;
/// What a client is told to wait, in seconds, where its turn may come by itself.
const RETRY_SECONDS: u32 = 10;

/// POST of an eviction.
///
/// # Errors
/// 404, 429 when a budget is used up, 500 when several budgets are about the pod.
pub async fn evict(call: &Call) -> Result<Response<Body>, ApiError> {
    let mut eviction = decode_body(call, Some("eviction"))?.object;
    let mut warnings = admission::create_subresource(call, &mut eviction, dry_run(call)?).await?;
    if eviction["metadata"]["name"] != call.name.as_str() {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut options = DeleteOptions::from_json(&eviction["deleteOptions"])?;
    options.dry_run |= dry_run(call)?;
    let pod = call
        .server
        .get(call.res, &call.namespace, &call.name)
        .ok_or_else(|| ApiError::not_found(call.res, &call.name))?;
    let finished = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"));
    let spent = !finished
        && pod["metadata"]["deletionTimestamp"].is_null()
        && spend_budget(call, &pod, options.dry_run).await?;
    if !spent && options.precondition_resource_version.is_none() {
        // What was passed over was judged as it is now: another pod, or one that became ready meanwhile, is not.
        options.precondition_resource_version = pod["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    }
    warnings.extend(delete::remove(call, &call.namespace, &call.name, &options).await?.warnings);
    Ok(success(StatusCode::CREATED, &warnings))
}

fn budgets(call: &Call, res: &Resource, pod: &Value) -> Vec<Value> {
    let Some(cache) = call.server.hub.cache(res) else { return Vec::new() };
    let no_labels = serde_json::Map::new();
    let labels = pod["metadata"]["labels"].as_object().unwrap_or(&no_labels);
    let about = |budget: &Value| {
        let selector = LabelSelector::from_json(budget["spec"].get("selector"));
        selector.is_ok_and(|selector| selector.matches(labels))
    };
    cache.values(Some(&call.namespace)).into_iter().filter(about).collect()
}

/// Whether a budget was spent.
async fn spend_budget(call: &Call, pod: &Value, dry: bool) -> Result<bool, ApiError> {
    let Some(res) = lookup("policy", "v1", "poddisruptionbudgets") else { return Ok(false) };
    let mut budgets = budgets(call, res, pod);
    if budgets.len() > 1 {
        return Err(ApiError::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        ));
    }
    let Some(budget) = budgets.pop() else { return Ok(false) };
    if !is_ready(pod) && may_go_unready(&budget) {
        return Ok(false);
    }
    let name = budget["metadata"]["name"].as_str().unwrap_or_default();
    if dry {
        spent(&budget, name, &call.name)?;
    } else {
        call.server
            .change(res, &call.namespace, name, |budget| Ok(Change::Put(spent(budget, name, &call.name)?)))
            .await?;
    }
    Ok(true)
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Whether a pod that serves nobody may go without being granted: always, or while the application is well without it.
fn may_go_unready(budget: &Value) -> bool {
    if budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow" {
        return true;
    }
    let number = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    number("desiredHealthy") > 0 && number("currentHealthy") >= number("desiredHealthy")
}

/// The budget with one eviction less.
fn spent(budget: &Value, name: &str, pod: &str) -> Result<Value, ApiError> {
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    let status = &budget["status"];
    if number(&status["observedGeneration"]) < number(&budget["metadata"]["generation"]) {
        let why = format!("The disruption budget {name} is still being processed by the server.");
        return Err(refused(why, RETRY_SECONDS));
    }
    let allowed = number(&status["disruptionsAllowed"]);
    if allowed <= 0 {
        return Err(refused(used_up(budget, name), 0));
    }
    if status["disruptedPods"].as_object().is_some_and(|pods| pods.len() > MOST_UNDER_WAY) {
        let why = format!("DisruptedPods map too big - too many evictions not confirmed by PDB controller ({name})");
        return Err(refused(why, RETRY_SECONDS));
    }
    let mut new = budget.clone();
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    new["status"]["disruptionsAllowed"] = json!(allowed - 1);
    new["status"]["disruptedPods"][pod] = json!(now);
    if allowed == 1 {
        let conditions = new["status"]["conditions"].as_array_mut().into_iter().flatten();
        for condition in conditions.filter(|condition| condition["type"] == "DisruptionAllowed") {
            condition["status"] = json!("False");
            condition["reason"] = json!("InsufficientPods");
            condition["lastTransitionTime"] = json!(now);
        }
    }
    Ok(new)
}

fn used_up(budget: &Value, name: &str) -> String {
    let conditions = budget["status"]["conditions"].as_array().into_iter().flatten();
    let failed = conditions.into_iter().find(|condition| condition["reason"] == "SyncFailed");
    if let Some(why) = failed.and_then(|condition| condition["message"].as_str()).filter(|why| !why.is_empty()) {
        return format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {why}"
        );
    }
    let number = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    let (wanted, present) = (number("desiredHealthy"), number("currentHealthy"));
    format!("The disruption budget {name} needs {wanted} healthy pods and has {present} currently")
}

fn refused(why: String, retry_after: u32) -> ApiError {
    let what = "Cannot evict pod as it would violate the pod's disruption budget.";
    let mut error = ApiError::too_many_requests(what, retry_after);
    error.causes.push(Cause { reason: "DisruptionBudget".to_owned(), message: why, field: String::new() });
    error
}
