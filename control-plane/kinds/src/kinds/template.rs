//! Defaults of pod specs, shared by pods and everything that carries a pod template.
//!
//! Upstream counterpart: `pkg/apis/core/v1/defaults.go` and the service-account part of `conversion.go`.

use serde_json::{Value, json};

use crate::val;

/// Mode of files in secret, config map and projected volumes: 0644.
const FILE_MODE: i64 = 0o644;
/// Lifetime of projected service account tokens, in seconds.
const TOKEN_SECONDS: i64 = 3600;

/// Defaults of a pod spec (`SetDefaults_PodSpec` and those of its parts).
pub(crate) fn pod_spec(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    val::default(spec, "dnsPolicy", "ClusterFirst");
    val::default(spec, "restartPolicy", "Always");
    val::default(spec, "schedulerName", "default-scheduler");
    val::default(spec, "terminationGracePeriodSeconds", 30);
    if spec.get("securityContext").is_none() {
        val::set(spec, "securityContext", json!({}));
    }
    let account = match val::text(spec, "serviceAccountName") {
        "" => val::text(spec, "serviceAccount").to_owned(),
        name => name.to_owned(),
    };
    if !account.is_empty() {
        val::set(spec, "serviceAccountName", account.as_str());
        val::set(spec, "serviceAccount", account);
    }
    for key in ["initContainers", "containers", "ephemeralContainers"] {
        for container in val::list_mut(spec, key) {
            self::container(container);
        }
    }
    for volume in val::list_mut(spec, "volumes") {
        self::volume(volume);
    }
}

/// Defaults of a pod itself, which templates do not get: requests from limits, service links, ports of the host's network.
pub(crate) fn pod_only(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    val::default(spec, "enableServiceLinks", true);
    let host_network = val::flag(spec, "hostNetwork");
    for key in ["initContainers", "containers"] {
        for container in val::list_mut(spec, key) {
            if host_network {
                host_ports(container);
            }
            let Some(Value::Object(limits)) = val::at(container, "resources.limits").cloned() else { continue };
            let requests = val::child(val::child(container, "resources"), "requests");
            for (name, limit) in limits {
                val::default(requests, &name, limit);
            }
        }
    }
}

/// On the host's network a container's port is the host's.
fn host_ports(container: &mut Value) {
    for port in val::list_mut(container, "ports") {
        if val::int(port, "hostPort").unwrap_or(0) == 0 {
            let number = val::int(port, "containerPort").unwrap_or(0);
            val::set(port, "hostPort", number);
        }
    }
}

/// Defaults of one container.
fn container(c: &mut Value) {
    let image = val::text(c, "image");
    let policy = if tag_is_latest(image) { "Always" } else { "IfNotPresent" };
    val::default(c, "imagePullPolicy", policy);
    val::default(c, "terminationMessagePath", "/dev/termination-log");
    val::default(c, "terminationMessagePolicy", "File");
    if c.get("resources").is_none() {
        val::set(c, "resources", json!({}));
    }
    for port in val::list_mut(c, "ports") {
        val::default(port, "protocol", "TCP");
    }
    for env in val::list_mut(c, "env") {
        if let Some(source) = val::child_mut(env, "valueFrom") {
            if let Some(field) = val::child_mut(source, "fieldRef") {
                val::default(field, "apiVersion", "v1");
            }
            if let Some(resource) = val::child_mut(source, "resourceFieldRef") {
                val::default(resource, "divisor", "0");
            }
        }
    }
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = val::child_mut(c, key) {
            for (key, value) in
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
            {
                if val::int(probe, key).unwrap_or(0) == 0 {
                    val::set(probe, key, value);
                }
            }
            http_get(probe);
            if let Some(grpc) = val::child_mut(probe, "grpc") {
                val::set_if_absent(grpc, "service", "");
            }
        }
    }
    if let Some(lifecycle) = val::child_mut(c, "lifecycle") {
        for key in ["postStart", "preStop"] {
            if let Some(handler) = val::child_mut(lifecycle, key) {
                http_get(handler);
            }
        }
    }
}

fn http_get(handler: &mut Value) {
    if let Some(get) = val::child_mut(handler, "httpGet") {
        val::default(get, "path", "/");
        val::default(get, "scheme", "HTTP");
    }
}

/// Whether an image reference has the tag `latest`, or none and no digest either.
fn tag_is_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    match last.split_once(':') {
        Some((_, tag)) => tag == "latest",
        None => true,
    }
}

fn volume(v: &mut Value) {
    let has_source = v.as_object().is_some_and(|m| m.iter().any(|(key, value)| key != "name" && !value.is_null()));
    if !has_source {
        val::set(v, "emptyDir", json!({}));
    }
    for key in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = val::child_mut(v, key) {
            val::default(source, "defaultMode", FILE_MODE);
        }
    }
    if let Some(source) = val::child_mut(v, "downwardAPI") {
        downward_items(source);
    }
    if let Some(projected) = val::child_mut(v, "projected") {
        for source in val::list_mut(projected, "sources") {
            if let Some(token) = val::child_mut(source, "serviceAccountToken") {
                val::default(token, "expirationSeconds", TOKEN_SECONDS);
            }
            if let Some(downward) = val::child_mut(source, "downwardAPI") {
                downward_items(downward);
            }
        }
    }
    if let Some(host) = val::child_mut(v, "hostPath") {
        val::set_if_absent(host, "type", "");
    }
    if let Some(image) = val::child_mut(v, "image") {
        let policy = if tag_is_latest(val::text(image, "reference")) { "Always" } else { "IfNotPresent" };
        val::default(image, "pullPolicy", policy);
    }
    if let Some(iscsi) = val::child_mut(v, "iscsi") {
        val::default(iscsi, "iscsiInterface", "default");
    }
    if let Some(template) = val::child_mut(v, "ephemeral").and_then(|e| val::child_mut(e, "volumeClaimTemplate")) {
        val::default(val::child(template, "spec"), "volumeMode", "Filesystem");
    }
}

fn downward_items(source: &mut Value) {
    for item in val::list_mut(source, "items") {
        if let Some(field) = val::child_mut(item, "fieldRef") {
            val::default(field, "apiVersion", "v1");
        }
        if let Some(resource) = val::child_mut(item, "resourceFieldRef") {
            val::default(resource, "divisor", "0");
        }
    }
}

/// Defaults of a pod template: an empty metadata is shown, the spec is defaulted.
pub(crate) fn template(parent: &mut Value) {
    if let Some(template) = val::child_mut(parent, "template") {
        val::child(template, "metadata");
        if let Some(spec) = val::child_mut(template, "spec") {
            pod_spec(spec);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_pod_reads_back_as_upstreams() {
        let mut spec = json!({"containers": [{
            "name": "c", "image": "nginx:1.14.2", "ports": [{"containerPort": 80}],
            "livenessProbe": {"httpGet": {"port": 80}},
            "resources": {"limits": {"cpu": "1"}, "requests": {"memory": "1Mi"}},
        }], "volumes": [{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}]});
        pod_spec(&mut spec);
        pod_only(&mut spec);
        assert_eq!(
            spec,
            json!({
                "containers": [{
                    "name": "c", "image": "nginx:1.14.2", "imagePullPolicy": "IfNotPresent",
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "livenessProbe": {
                        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
                        "successThreshold": 1, "failureThreshold": 3,
                    },
                    "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1", "memory": "1Mi"}},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                }],
                "volumes": [{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}}],
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
                "terminationGracePeriodSeconds": 30, "securityContext": {}, "enableServiceLinks": true,
            })
        );
        let once = spec.clone();
        pod_spec(&mut spec);
        pod_only(&mut spec);
        assert_eq!(spec, once);
    }

    #[test]
    fn tags() {
        for latest in ["nginx", "nginx:latest", "localhost:5000/nginx", "a/b"] {
            assert!(tag_is_latest(latest), "{latest}");
        }
        for other in ["nginx:1", "localhost:5000/nginx:1", "nginx@sha256:00"] {
            assert!(!tag_is_latest(other), "{other}");
        }
    }
}
