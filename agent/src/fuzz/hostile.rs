//! A good pod with hostile values in it.

use serde_json::{Value, json};

use super::Choices;

/// Most places that are changed.
const MAX_CHANGES: usize = 4;
const TEXTS: &[&str] = &[
    "",
    "\0",
    ".",
    "..",
    "../../etc/passwd",
    "/",
    "a/b",
    "A_b",
    "$(A)",
    "-1",
    "1e400",
    "0x-8000000000000000",
    "9223372036854775808",
    "metadata.labels['",
    "metadata.labels['']",
    "']",
    "localhost/",
    "iqn.",
    "é",
    "\u{feff}",
    "{a}",
    "a:b:c",
    "\\",
    "[::1]:80",
    "99999999999999999999999999999999999999999999Ei",
    "0.0000000000000000000000000000001",
    "Always",
    "Never",
    "Localhost",
    "windows",
    "None",
];
const NUMBERS: &[i64] = &[0, 1, -1, 65_536, 2_147_483_648, i64::MIN, i64::MAX, 1_000_000];

/// A pod in which as much as possible is set, and right.
fn good() -> Value {
    let probe = json!({"httpGet": {"port": "web", "path": "/", "httpHeaders": [{"name": "X-A", "value": "b"}]}, "periodSeconds": 3});
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "labels": {"a": "b"}, "annotations": {
            "container.apparmor.security.beta.kubernetes.io/c": "runtime/default",
            "controller.kubernetes.io/pod-deletion-cost": "5",
        }},
        "spec": {
            "containers": [{
                "name": "c", "image": "busybox", "command": ["x"], "args": ["$(A)"],
                "ports": [{"name": "web", "containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1", "protocol": "TCP"}],
                "env": [
                    {"name": "A", "value": "$(B)"},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
                    {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
                    {"name": "D", "valueFrom": {"fileKeyRef": {"volumeName": "data", "path": "p", "key": "K"}}},
                ],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi", "example.com/x": "1"}, "requests": {"cpu": "100m"}},
                "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
                "restartPolicy": "OnFailure",
                "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}],
                "livenessProbe": {"exec": {"command": ["x"]}, "terminationGracePeriodSeconds": 3},
                "readinessProbe": probe, "startupProbe": {"grpc": {"port": 1}},
                "lifecycle": {"preStop": {"sleep": {"seconds": 1}}, "postStart": {"tcpSocket": {"port": 1}}, "stopSignal": "SIGTERM"},
                "securityContext": {"runAsUser": 1, "capabilities": {"add": ["X"]}, "procMount": "Default",
                    "seccompProfile": {"type": "Localhost", "localhostProfile": "a"}, "appArmorProfile": {"type": "RuntimeDefault"}},
                "volumeMounts": [{"name": "data", "mountPath": "/d", "subPathExpr": "$(A)", "readOnly": true, "recursiveReadOnly": "Enabled"}],
            }],
            "initContainers": [{"name": "i", "image": "busybox", "restartPolicy": "Always", "startupProbe": {"tcpSocket": {"port": 1}}}],
            "volumes": [
                {"name": "data", "emptyDir": {"sizeLimit": "1Mi", "medium": "Memory"}},
                {"name": "host", "hostPath": {"path": "/x", "type": "Directory"}},
                {"name": "info", "downwardAPI": {"defaultMode": 420, "items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                {"name": "all", "projected": {"sources": [{"downwardAPI": {"items": [
                    {"path": "m", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory"}}]}}]}},
                {"name": "old", "iscsi": {"targetPortal": "p", "iqn": "iqn.2001-04.com.example:s", "lun": 0}},
                {"name": "nfs", "nfs": {"server": "s", "path": "/p"}},
                {"name": "image", "image": {"reference": "r"}},
            ],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
                    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {
                    "topologyKey": "z", "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["c"]}}]}},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}],
            "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["10.0.0.1"], "searches": ["a"], "options": [{"name": "n", "value": "v"}]},
            "securityContext": {"fsGroup": 1, "supplementalGroups": [1], "sysctls": [{"name": "net.core.somaxconn", "value": "1"}],
                "seLinuxOptions": {"level": "x"}, "fsGroupChangePolicy": "Always"},
            "os": {"name": "linux"},
            "overhead": {"cpu": "1m"},
            "resources": {"limits": {"cpu": "2"}},
            "hostname": "h", "subdomain": "s", "setHostnameAsFQDN": false, "priority": 5, "preemptionPolicy": "Never",
            "terminationGracePeriodSeconds": 30, "activeDeadlineSeconds": 5, "restartPolicy": "Always", "nodeSelector": {"a": "b"},
            "readinessGates": [{"conditionType": "a/b"}], "enableServiceLinks": false, "shareProcessNamespace": true, "hostUsers": true,
        },
    })
}

/// The pod after the changes that `choices` makes.
pub(super) fn pod(choices: &mut Choices<'_>) -> Value {
    let mut pod = good();
    for _ in 0..=choices.below(MAX_CHANGES) {
        if choices.is_used_up() {
            break;
        }
        change(&mut pod, choices);
    }
    pod
}

/// Goes down some way and changes what is there.
fn change(value: &mut Value, choices: &mut Choices<'_>) {
    // One in eight stops above the leaves.
    let stops = choices.below(8) == 0;
    match value {
        Value::Object(map) if !map.is_empty() && !stops => {
            let index = choices.below(map.len());
            if let Some(inner) = map.values_mut().nth(index) {
                change(inner, choices);
            }
        }
        Value::Array(items) if !items.is_empty() && !stops => {
            let index = choices.below(items.len());
            change(&mut items[index], choices);
        }
        _ => replace(value, choices),
    }
}

fn replace(value: &mut Value, choices: &mut Choices<'_>) {
    let old = value.take();
    *value = match choices.below(12) {
        0 => Value::Null,
        1 => choices.one_of(NUMBERS).into(),
        2 => json!([]),
        3 => json!({}),
        4 => json!(choices.one_of(&[true, false])),
        5 => json!("a".repeat(choices.one_of(&[63, 64, 253, 254, 300, 5000]))),
        // The same twice: names and paths are taken.
        6 => json!([old.clone(), old]),
        7 => {
            let mut old = old;
            if let Value::Array(items) = &mut old {
                let first = items.first().cloned().unwrap_or_default();
                items.extend(std::iter::repeat_n(first, choices.one_of(&[1, 30, 300])));
            }
            old
        }
        8 => json!({choices.one_of(TEXTS): old}),
        9 => (0..choices.below(120)).fold(old, |inner, _| json!([inner])),
        _ => choices.one_of(TEXTS).into(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_changes_it_is_good() {
        let found =
            crate::source::manifest::parse(std::path::Path::new("/m/p.yaml"), &good().to_string(), "node-1", "now")
                .unwrap();
        assert_eq!((found.pods.len(), found.unknown.len()), (1, 0), "{:?}", found.unknown);
        let mut all = Choices(&[]);
        assert_eq!(pod(&mut all), good());
    }
}
