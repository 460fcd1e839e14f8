//! Facts about a pod object that many parts need: keys, source annotations, quality of service, container views.
//!
//! Everything here is a pure function of the object. Upstream counterpart: `pkg/kubelet/types` and
//! `pkg/apis/core/v1/helper/qos`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube_common::quantity::Quantity;

use crate::status::conditions::of_others;

/// Annotation naming the source a pod came from (`file`, `http`, `api`).
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation with the time a source first saw the pod.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Annotation with the hash of a static pod's manifest.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Annotation by which a mirror pod is recognised; its value is the static pod's hash.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Priorities from here on are critical for the system (upstream `SystemCriticalPriority`).
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;
/// Grace when neither the deletion nor the spec names one, in seconds.
pub const DEFAULT_GRACE_SECONDS: i64 = 30;

/// The pod's UID, empty when it has none.
#[must_use]
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The pod's name.
#[must_use]
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The pod's namespace, `default` when it has none.
#[must_use]
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

/// `name_namespace`, upstream's full name: what a static pod and its mirror share.
#[must_use]
pub fn full_name(pod: &Pod) -> String {
    full_name_of(name(pod), namespace(pod))
}

/// The full name of what only the runtime knows.
#[must_use]
pub fn full_name_of(name: &str, namespace: &str) -> String {
    format!("{name}_{namespace}")
}

/// `name_namespace(uid)`, the form in which upstream's messages name a pod.
#[must_use]
pub fn display(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

/// Whether two versions of a pod ask the same of the node: what differs is bookkeeping or what the agent itself reported.
#[must_use]
pub fn same_wish(a: &Pod, b: &Pod) -> bool {
    let metadata = |pod: &Pod| {
        let m = &pod.metadata;
        (m.generation, m.deletion_timestamp.clone(), m.deletion_grace_period_seconds)
    };
    metadata(a) == metadata(b)
        && a.metadata.labels == b.metadata.labels
        && a.metadata.annotations == b.metadata.annotations
        && a.spec == b.spec
        && of_others(a).eq(of_others(b))
}

/// One annotation's value.
#[must_use]
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether the pod comes from this node's own manifests.
#[must_use]
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|source| source != "api")
}

/// Whether the pod is the API's shadow of a static pod.
#[must_use]
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

/// The pod's specification; an object without one (which the API never sends) is seen as an empty one.
#[must_use]
pub fn spec(pod: &Pod) -> Cow<'_, PodSpec> {
    pod.spec.as_ref().map_or_else(|| Cow::Owned(PodSpec::default()), Cow::Borrowed)
}

/// Whether the pod lives in the node's network namespace.
#[must_use]
pub fn host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false)
}

/// Whether the API has asked for the pod's end.
#[must_use]
pub fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the phase in the pod's own status is final.
#[must_use]
pub fn is_terminal_phase(phase: &str) -> bool {
    phase == "Succeeded" || phase == "Failed"
}

/// Whether the pod must never be evicted or preempted (static, mirror or system priority).
#[must_use]
pub fn is_critical(pod: &Pod) -> bool {
    is_static(pod)
        || is_mirror(pod)
        || pod.spec.as_ref().and_then(|s| s.priority).is_some_and(|p| p >= SYSTEM_CRITICAL_PRIORITY)
}

/// The pod's restart policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Restart whatever the exit code (the default).
    Always,
    /// Restart on a non-zero exit code.
    OnFailure,
    /// Never restart.
    Never,
}

impl RestartPolicy {
    /// Reads a policy's name; unknown names mean `Always`, as the API's default does.
    #[must_use]
    pub fn parse(text: Option<&str>) -> Self {
        match text {
            Some("Never") => Self::Never,
            Some("OnFailure") => Self::OnFailure,
            _ => Self::Always,
        }
    }

    /// The policy of a pod.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        Self::parse(pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()))
    }
}

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Runs to completion before the next one.
    Init,
    /// An init container with `restartPolicy: Always`: keeps running beside the main ones.
    Sidecar,
    /// A main container.
    Main,
    /// Added by hand for debugging; never restarted.
    Ephemeral,
}

/// Whether an init container is a sidecar.
#[must_use]
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// The init containers of a pod.
#[must_use]
pub fn init_containers(pod: &Pod) -> &[Container] {
    pod.spec.as_ref().and_then(|s| s.init_containers.as_deref()).unwrap_or_default()
}

/// The main containers of a pod.
#[must_use]
pub fn main_containers(pod: &Pod) -> &[Container] {
    pod.spec.as_ref().map(|s| s.containers.as_slice()).unwrap_or_default()
}

/// The ephemeral containers of a pod.
#[must_use]
pub fn ephemeral_containers(pod: &Pod) -> &[EphemeralContainer] {
    pod.spec.as_ref().and_then(|s| s.ephemeral_containers.as_deref()).unwrap_or_default()
}

/// An ephemeral container in the shape of the others; the fields it lacks stay empty.
#[must_use]
pub fn ephemeral_as_container(e: &EphemeralContainer) -> Container {
    Container {
        name: e.name.clone(),
        image: e.image.clone(),
        command: e.command.clone(),
        args: e.args.clone(),
        working_dir: e.working_dir.clone(),
        env: e.env.clone(),
        env_from: e.env_from.clone(),
        image_pull_policy: e.image_pull_policy.clone(),
        security_context: e.security_context.clone(),
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        tty: e.tty,
        volume_mounts: e.volume_mounts.clone(),
        volume_devices: e.volume_devices.clone(),
        resources: e.resources.clone(),
        termination_message_path: e.termination_message_path.clone(),
        termination_message_policy: e.termination_message_policy.clone(),
        ..Container::default()
    }
}

/// Finds a container of any role by name.
#[must_use]
pub fn find_container<'a>(pod: &'a Pod, name: &str) -> Option<(Role, Cow<'a, Container>)> {
    if let Some(c) = main_containers(pod).iter().find(|c| c.name == name) {
        return Some((Role::Main, Cow::Borrowed(c)));
    }
    if let Some(c) = init_containers(pod).iter().find(|c| c.name == name) {
        let role = if is_sidecar(c) { Role::Sidecar } else { Role::Init };
        return Some((role, Cow::Borrowed(c)));
    }
    ephemeral_containers(pod)
        .iter()
        .find(|c| c.name == name)
        .map(|c| (Role::Ephemeral, Cow::Owned(ephemeral_as_container(c))))
}

/// The restart policy that holds for one container.
#[must_use]
pub fn container_policy(pod: &Pod, role: Role, container: &Container) -> RestartPolicy {
    match role {
        Role::Sidecar => RestartPolicy::Always,
        Role::Ephemeral => RestartPolicy::Never,
        Role::Init | Role::Main if container.restart_policy.is_some() => {
            RestartPolicy::parse(container.restart_policy.as_deref())
        }
        // An init container of an `Always` pod is retried on failure, never after success.
        Role::Init if RestartPolicy::of(pod) != RestartPolicy::Never => RestartPolicy::OnFailure,
        Role::Init | Role::Main => RestartPolicy::of(pod),
    }
}

/// Quality of service, which decides cgroup, OOM score and eviction rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    /// Every container has equal requests and limits for CPU and memory.
    Guaranteed,
    /// Something is requested, but not everything is limited.
    Burstable,
    /// Nothing is requested or limited.
    BestEffort,
}

impl Qos {
    /// The name in `status.qosClass`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }

    /// The class of a pod, computed from its containers (init containers included, ephemeral ones not).
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let mut any = false;
        let mut guaranteed = true;
        for container in init_containers(pod).iter().chain(main_containers(pod)) {
            let empty = BTreeMap::new();
            let resources = container.resources.as_ref();
            let requests = resources.and_then(|r| r.requests.as_ref()).unwrap_or(&empty);
            let limits = resources.and_then(|r| r.limits.as_ref()).unwrap_or(&empty);
            for key in ["cpu", "memory"] {
                let request = requests.get(key).map(milli).filter(|v| *v > 0);
                let limit = limits.get(key).map(milli).filter(|v| *v > 0);
                any |= request.is_some() || limit.is_some();
                guaranteed &= limit.is_some() && (request.is_none() || request == limit);
            }
        }
        match (any, guaranteed) {
            (false, _) => Self::BestEffort,
            (true, true) => Self::Guaranteed,
            (true, false) => Self::Burstable,
        }
    }
}

/// A quantity in thousandths; text that is none counts as nothing (the API has validated it before).
#[must_use]
pub fn milli(q: &ApiQuantity) -> i64 {
    Quantity::parse(&q.0).map(|q| q.milli()).unwrap_or(0)
}

/// A quantity in whole units, rounded up.
#[must_use]
pub fn units(q: &ApiQuantity) -> i64 {
    Quantity::parse(&q.0).map(|q| q.value()).unwrap_or(0)
}

/// A container's request for a resource in thousandths; a limit without a request is the request, as the API defaults it.
#[must_use]
pub fn request_milli(resources: Option<&ResourceRequirements>, key: &str) -> Option<i64> {
    let r = resources?;
    r.requests.as_ref().and_then(|m| m.get(key)).or_else(|| r.limits.as_ref().and_then(|m| m.get(key))).map(milli)
}

/// A container's limit for a resource in thousandths; zero means none.
#[must_use]
pub fn limit_milli(resources: Option<&ResourceRequirements>, key: &str) -> Option<i64> {
    resources?.limits.as_ref()?.get(key).map(milli).filter(|v| *v > 0)
}

/// The grace the pod itself asks for, in seconds.
#[must_use]
pub fn spec_grace(pod: &Pod) -> i64 {
    pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).unwrap_or(DEFAULT_GRACE_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn qos_follows_upstream() {
        let class = |resources: serde_json::Value| {
            Qos::of(&pod(json!({"spec": {"containers": [{"name": "a", "resources": resources}]}})))
        };
        assert_eq!(class(json!({})), Qos::BestEffort);
        assert_eq!(class(json!({"requests": {"cpu": "100m"}})), Qos::Burstable);
        assert_eq!(class(json!({"limits": {"cpu": "1", "memory": "1Gi"}})), Qos::Guaranteed);
        assert_eq!(
            class(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}})),
            Qos::Burstable
        );
        assert_eq!(class(json!({"requests": {"cpu": "0"}})), Qos::BestEffort);
    }

    #[test]
    fn container_policies() {
        let p = pod(json!({"spec": {"restartPolicy": "Always", "containers": [{"name": "m"}],
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]}}));
        let of = |n: &str| {
            let (role, c) = find_container(&p, n).unwrap();
            container_policy(&p, role, &c)
        };
        assert_eq!(of("m"), RestartPolicy::Always);
        assert_eq!(of("i"), RestartPolicy::OnFailure);
        assert_eq!(of("s"), RestartPolicy::Always);
    }
}
