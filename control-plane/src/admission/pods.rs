//! Admission of pods: service account with its token volume, priority, runtime class, tolerations.

use std::time::Duration;

use keelson_kinds::{ApiError, lookup};
use serde_json::{Value, json};

use crate::api::random_suffix;
use crate::http::Call;
use crate::server::TolerationSeconds;

/// Marks the API's view of a static pod.
pub(super) const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
/// One hour and seven seconds: upstream's mark of an injected token.
const TOKEN_SECONDS: u32 = 3607;
/// A new namespace's account may not be there yet: upstream looks again so often, at this pause.
const ACCOUNT_ATTEMPTS: u32 = 10;
const ACCOUNT_PAUSE: Duration = Duration::from_millis(100);
/// Priorities of the classes that exist without being stored.
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

pub(super) async fn admit(call: &Call, pod: &mut Value) -> Result<(), ApiError> {
    service_account(call, pod).await?;
    priority(call, pod)?;
    super::runtime_class::admit(call, pod)?;
    tolerations(pod, call.server.config.toleration_seconds);
    Ok(())
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

pub(super) fn name_of(pod: &Value) -> String {
    let name = text(&pod["metadata"], "name");
    if name.is_empty() { text(&pod["metadata"], "generateName").to_owned() } else { name.to_owned() }
}

async fn service_account(call: &Call, pod: &mut Value) -> Result<(), ApiError> {
    let mirror = !pod["metadata"]["annotations"][MIRROR_ANNOTATION].is_null();
    if mirror {
        if !text(&pod["spec"], "serviceAccountName").is_empty() {
            let why = "a mirror pod may not reference service accounts";
            return Err(ApiError::forbidden(call.res, &name_of(pod), why));
        }
        return Ok(());
    }
    let mut account = text(&pod["spec"], "serviceAccountName").to_owned();
    if account.is_empty() {
        account = match text(&pod["spec"], "serviceAccount") {
            "" => "default".to_owned(),
            given => given.to_owned(),
        };
        pod["spec"]["serviceAccountName"] = json!(account);
    }
    pod["spec"]["serviceAccount"] = json!(account);
    let object = find_account(call, &account).await.ok_or_else(|| {
        let why = format!(
            "error looking up service account {}/{account}: serviceaccount \"{account}\" not found",
            call.namespace
        );
        ApiError::forbidden(call.res, &name_of(pod), &why)
    })?;
    let automount = pod["spec"]["automountServiceAccountToken"]
        .as_bool()
        .or_else(|| object["automountServiceAccountToken"].as_bool())
        .unwrap_or(true);
    if automount {
        mount_token(pod);
    }
    let no_secrets = pod["spec"]["imagePullSecrets"].as_array().is_none_or(Vec::is_empty);
    if no_secrets && object["imagePullSecrets"].as_array().is_some_and(|s| !s.is_empty()) {
        pod["spec"]["imagePullSecrets"] = object["imagePullSecrets"].clone();
    }
    Ok(())
}

async fn find_account(call: &Call, name: &str) -> Option<Value> {
    let res = lookup("", "v1", "serviceaccounts")?;
    for attempt in 0..ACCOUNT_ATTEMPTS {
        if let Some(account) = call.server.get(res, &call.namespace, name) {
            return Some(account);
        }
        // Only the account every namespace gets is worth waiting for.
        if name != "default" || attempt + 1 == ACCOUNT_ATTEMPTS {
            break;
        }
        tokio::time::sleep(ACCOUNT_PAUSE).await;
    }
    None
}

fn containers(pod: &mut Value) -> impl Iterator<Item = &mut Value> {
    let spec = pod["spec"].as_object_mut();
    spec.into_iter().flat_map(|spec| {
        spec.iter_mut()
            .filter(|(key, _)| matches!(key.as_str(), "containers" | "initContainers"))
            .flat_map(|(_, list)| list.as_array_mut().into_iter().flatten())
    })
}

fn mounted(container: &Value) -> bool {
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    mounts.into_iter().any(|m| m["mountPath"].as_str().is_some_and(|p| p.trim_end_matches('/') == MOUNT_PATH))
}

fn mount_token(pod: &mut Value) {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let existing =
        volumes.filter_map(|v| v["name"].as_str()).find(|name| name.starts_with(VOLUME_PREFIX)).map(str::to_owned);
    let name = existing.clone().unwrap_or_else(|| format!("{VOLUME_PREFIX}{}", random_suffix()));
    let mut needed = false;
    for container in containers(pod) {
        if mounted(container) {
            continue;
        }
        needed = true;
        let mount = json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH});
        push(&mut container["volumeMounts"], mount);
    }
    if needed && existing.is_none() {
        push(&mut pod["spec"]["volumes"], token_volume(&name));
    }
}

fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        other => *other = json!([item]),
    }
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace",
            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}})
}

fn priority(call: &Call, pod: &mut Value) -> Result<(), ApiError> {
    let class = text(&pod["spec"], "priorityClassName").to_owned();
    let stored = |name: &str| {
        lookup("scheduling.k8s.io", "v1", "priorityclasses").and_then(|res| call.server.get(res, "", name))
    };
    let (value, policy) = if class.is_empty() {
        (0, Value::Null)
    } else if let Some(found) = stored(&class) {
        (found["value"].as_i64().unwrap_or(0), found["preemptionPolicy"].clone())
    } else if let Some((_, value)) = SYSTEM_CLASSES.iter().find(|(name, _)| *name == class) {
        (*value, Value::Null)
    } else {
        let why = format!("no PriorityClass with name {class} was found");
        return Err(ApiError::forbidden(call.res, &name_of(pod), &why));
    };
    if pod["spec"]["priority"].as_i64().is_some_and(|given| given != value) {
        let why = format!(
            "the integer value of priority ({}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name",
            pod["spec"]["priority"]
        );
        return Err(ApiError::forbidden(call.res, &name_of(pod), &why));
    }
    pod["spec"]["priority"] = json!(value);
    if pod["spec"]["preemptionPolicy"].is_null() {
        pod["spec"]["preemptionPolicy"] = if policy.is_null() { json!("PreemptLowerPriority") } else { policy };
    }
    Ok(())
}

pub(super) fn tolerations(pod: &mut Value, defaults: TolerationSeconds) {
    for (key, seconds) in
        [("node.kubernetes.io/not-ready", defaults.not_ready), ("node.kubernetes.io/unreachable", defaults.unreachable)]
    {
        let tolerated = pod["spec"]["tolerations"].as_array().into_iter().flatten().any(|t| {
            (text(t, "key") == key || text(t, "key").is_empty())
                && (text(t, "effect") == "NoExecute" || text(t, "effect").is_empty())
        });
        if !tolerated {
            let toleration = json!({"key": key, "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": seconds});
            push(&mut pod["spec"]["tolerations"], toleration);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_container_gets_the_token_once() {
        let mut pod = json!({"spec": {
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "a"}, {"name": "own", "volumeMounts": [{"name": "x", "mountPath": MOUNT_PATH}]}],
        }});
        mount_token(&mut pod);
        mount_token(&mut pod);
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        assert_eq!(volumes.len(), 1);
        let name = volumes[0]["name"].clone();
        assert_eq!(
            pod["spec"]["initContainers"][0]["volumeMounts"],
            json!([{"name": name, "readOnly": true, "mountPath": MOUNT_PATH}])
        );
        assert_eq!(pod["spec"]["containers"][0]["volumeMounts"].as_array().unwrap().len(), 1);
        assert_eq!(pod["spec"]["containers"][1]["volumeMounts"][0]["name"], "x");
    }

    #[test]
    fn tolerations_are_added_once_and_yield_to_given_ones() {
        let mut pod = json!({"spec": {}});
        let defaults = TolerationSeconds { not_ready: 300, unreachable: 7 };
        tolerations(&mut pod, defaults);
        tolerations(&mut pod, defaults);
        assert_eq!(pod["spec"]["tolerations"].as_array().unwrap().len(), 2);
        assert_eq!(pod["spec"]["tolerations"][1]["tolerationSeconds"], 7);
        let mut all = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
        tolerations(&mut all, defaults);
        assert_eq!(all["spec"]["tolerations"].as_array().unwrap().len(), 1);
    }
}
