//! Names, labels, annotations, hashes and paths by which upstream's tools find our pods in the runtime.
//!
//! Exactly upstream's, so that a node can change from kubelet to this agent and back without a restart of a
//! container. Upstream counterpart: `pkg/kubelet/kuberuntime/{labels,helpers,legacy}.go`, `HashContainer`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::pod;

/// Label with the pod's name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label with the pod's namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label with the pod's UID.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label with the container's name.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Annotation with the hash of name and image, hexadecimal.
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
/// Annotation with the restart count.
pub const CONTAINER_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation with the path of the termination message inside the container.
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Annotation with the termination message policy.
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
const CONTAINER_PORTS: &str = "io.kubernetes.container.ports";
const POD_DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
const POD_TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// Where the runtime writes container logs.
pub const POD_LOGS_ROOT: &str = "/var/log/pods";
/// Where log shippers look: flat symbolic links.
pub const CONTAINER_LOGS_ROOT: &str = "/var/log/containers";
/// Termination message path when the pod names none.
pub const DEFAULT_TERMINATION_MESSAGE_PATH: &str = "/dev/termination-log";

/// Labels of a sandbox: the pod's own and the identifying three.
#[must_use]
pub fn sandbox_labels(pod: &Pod) -> HashMap<String, String> {
    let mut labels: HashMap<String, String> =
        pod.metadata.labels.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
    labels.extend(pod_labels(pod));
    labels
}

/// Annotations of a sandbox: the pod's own.
#[must_use]
pub fn sandbox_annotations(pod: &Pod) -> HashMap<String, String> {
    pod.metadata.annotations.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn pod_labels(pod: &Pod) -> [(String, String); 3] {
    [
        (POD_NAME.into(), pod::name(pod).into()),
        (POD_NAMESPACE.into(), pod::namespace(pod).into()),
        (POD_UID.into(), pod::uid(pod).into()),
    ]
}

/// Labels of a container.
#[must_use]
pub fn container_labels(pod: &Pod, container: &Container) -> HashMap<String, String> {
    let mut labels: HashMap<String, String> = pod_labels(pod).into_iter().collect();
    labels.insert(CONTAINER_NAME.into(), container.name.clone());
    labels
}

/// Annotations of a container.
#[must_use]
pub fn container_annotations(pod: &Pod, container: &Container, restart_count: u32) -> HashMap<String, String> {
    let mut map = HashMap::new();
    map.insert(CONTAINER_HASH.into(), format!("{:x}", container_hash(container)));
    map.insert(CONTAINER_RESTART_COUNT.into(), restart_count.to_string());
    map.insert(TERMINATION_MESSAGE_PATH.into(), termination_message_path(container).to_owned());
    map.insert(
        TERMINATION_MESSAGE_POLICY.into(),
        container.termination_message_policy.clone().unwrap_or_else(|| "File".into()),
    );
    if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
        map.insert(POD_DELETION_GRACE.into(), grace.to_string());
    }
    if let Some(grace) = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds) {
        map.insert(POD_TERMINATION_GRACE.into(), grace.to_string());
    }
    if let Some(handler) = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref())
        && let Ok(text) = serde_json::to_string(handler)
    {
        map.insert(PRE_STOP_HANDLER.into(), text);
    }
    if let Some(ports) = container.ports.as_ref().filter(|p| !p.is_empty())
        && let Ok(text) = serde_json::to_string(ports)
    {
        map.insert(CONTAINER_PORTS.into(), text);
    }
    map
}

/// The path inside the container where it may leave its last words.
#[must_use]
pub fn termination_message_path(container: &Container) -> &str {
    container.termination_message_path.as_deref().unwrap_or(DEFAULT_TERMINATION_MESSAGE_PATH)
}

/// Upstream's hash of a container: 32-bit FNV-1a over Go's dump of the JSON of name and image.
#[must_use]
pub fn container_hash(container: &Container) -> u64 {
    let image = serde_json::to_string(container.image.as_deref().unwrap_or_default()).unwrap_or_default();
    let name = serde_json::to_string(&container.name).unwrap_or_default();
    let json = format!("{{\"image\":{image},\"name\":{name}}}");
    // Upstream hashes the `%#v` dump of the bytes, not the bytes: "([]uint8)[123 34 …]".
    let mut hash = Fnv1a::new();
    hash.write(b"([]uint8)[");
    for (i, byte) in json.bytes().enumerate() {
        if i > 0 {
            hash.write(b" ");
        }
        hash.write(byte.to_string().as_bytes());
    }
    hash.write(b"]");
    u64::from(hash.0)
}

struct Fnv1a(u32);

impl Fnv1a {
    fn new() -> Self {
        Self(0x811c_9dc5)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }
}

/// `/var/log/pods/<namespace>_<name>_<uid>`.
#[must_use]
pub fn pod_log_dir(root: &Path, namespace: &str, name: &str, uid: &str) -> PathBuf {
    root.join(format!("{namespace}_{name}_{uid}"))
}

/// `<container>/<restart>.log`, relative to the pod's log directory.
#[must_use]
pub fn container_log_path(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

/// The flat link a log shipper reads: `<pod>_<namespace>_<container>-<id>.log`, its prefix cut to the longest file name.
#[must_use]
pub fn log_symlink(root: &Path, pod_name: &str, namespace: &str, container: &str, id: &str) -> PathBuf {
    const MAX_FILE_NAME: usize = 255;
    let suffix = format!("-{id}.log");
    let mut prefix = format!("{pod_name}_{namespace}_{container}");
    let room = MAX_FILE_NAME.saturating_sub(suffix.len());
    if prefix.len() > room {
        prefix.truncate(room);
    }
    root.join(prefix + &suffix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn log_names() {
        let dir = pod_log_dir(Path::new(POD_LOGS_ROOT), "ns", "p", "u");
        assert_eq!(dir, Path::new("/var/log/pods/ns_p_u"));
        assert_eq!(container_log_path("c", 3), "c/3.log");
        let link = log_symlink(Path::new("/l"), &"p".repeat(300), "ns", "c", &"a".repeat(64));
        assert_eq!(link.file_name().unwrap().len(), 255);
    }

    #[test]
    fn annotations_are_upstreams() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"terminationGracePeriodSeconds": 5, "containers": [{"name": "c", "image": "i",
                "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}}))
        .unwrap();
        let c = &pod.spec.as_ref().unwrap().containers[0];
        let a = container_annotations(&pod, c, 2);
        assert_eq!(a[CONTAINER_RESTART_COUNT], "2");
        assert_eq!(a["io.kubernetes.container.ports"], r#"[{"containerPort":80,"protocol":"TCP"}]"#);
        assert_eq!(a["io.kubernetes.pod.terminationGracePeriod"], "5");
        assert_eq!(a[CONTAINER_HASH], format!("{:x}", container_hash(c)));
        assert_eq!(container_labels(&pod, c).len(), 4);
    }

    /// The value upstream's own test pins for this container.
    #[test]
    fn hash_is_upstreams() {
        let c: Container = serde_json::from_value(json!({"name": "test_container", "image": "foo/image:v1"})).unwrap();
        assert_eq!(container_hash(&c), 0x8e45_cbd0);
    }

    #[test]
    fn hash_depends_on_name_and_image_only() {
        let a: Container = serde_json::from_value(json!({"name": "c", "image": "i"})).unwrap();
        let b: Container = serde_json::from_value(json!({"name": "c", "image": "i", "args": ["x"]})).unwrap();
        let c: Container = serde_json::from_value(json!({"name": "c", "image": "j"})).unwrap();
        assert_eq!(container_hash(&a), container_hash(&b));
        assert_ne!(container_hash(&a), container_hash(&c));
    }
}
