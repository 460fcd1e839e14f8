//! How a strategic merge treats each list and struct: upstream's `patchStrategy` and `patchMergeKey` tags.
//!
//! What is not listed is replaced as a whole (lists) or merged field by field (structs, maps). The same table feeds the
//! `x-kubernetes-patch-*` extensions of the OpenAPI documents, so that kubectl computes the patches that the server understands.

/// A field's patch strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merge {
    /// No tag.
    Default,
    /// `merge` with a key: a list of maps.
    Key(&'static str),
    /// `merge,retainKeys` with a key.
    KeyRetain(&'static str),
    /// `merge` of a list of primitives.
    Primitive,
    /// `retainKeys` of a struct.
    Retain,
}

impl Merge {
    /// The merge key of a list.
    pub(crate) const fn key(self) -> Option<&'static str> {
        match self {
            Self::Key(key) | Self::KeyRetain(key) => Some(key),
            Self::Default | Self::Primitive | Self::Retain => None,
        }
    }

    /// Upstream's `patchStrategy` tag.
    pub(crate) const fn strategy(self) -> Option<&'static str> {
        match self {
            Self::Key(_) | Self::Primitive => Some("merge"),
            Self::KeyRetain(_) => Some("merge,retainKeys"),
            Self::Retain => Some("retainKeys"),
            Self::Default => None,
        }
    }
}

/// (definition name, field, strategy).
const TABLE: &[(&str, &str, Merge)] = &[
    ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "ownerReferences", Merge::Key("uid")),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "finalizers", Merge::Primitive),
    ("io.k8s.api.core.v1.PodSpec", "containers", Merge::Key("name")),
    ("io.k8s.api.core.v1.PodSpec", "initContainers", Merge::Key("name")),
    ("io.k8s.api.core.v1.PodSpec", "ephemeralContainers", Merge::Key("name")),
    ("io.k8s.api.core.v1.PodSpec", "evictionResponders", Merge::Key("name")),
    ("io.k8s.api.core.v1.PodSpec", "volumes", Merge::KeyRetain("name")),
    ("io.k8s.api.core.v1.PodSpec", "resourceClaims", Merge::KeyRetain("name")),
    ("io.k8s.api.core.v1.PodSpec", "imagePullSecrets", Merge::Key("name")),
    ("io.k8s.api.core.v1.PodSpec", "hostAliases", Merge::Key("ip")),
    ("io.k8s.api.core.v1.PodSpec", "topologySpreadConstraints", Merge::Key("topologyKey")),
    ("io.k8s.api.core.v1.PodSpec", "schedulingGates", Merge::Key("name")),
    ("io.k8s.api.core.v1.PodStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.core.v1.PodStatus", "podIPs", Merge::Key("ip")),
    ("io.k8s.api.core.v1.PodStatus", "hostIPs", Merge::Key("ip")),
    ("io.k8s.api.core.v1.PodStatus", "resourceClaimStatuses", Merge::KeyRetain("name")),
    ("io.k8s.api.core.v1.Container", "ports", Merge::Key("containerPort")),
    ("io.k8s.api.core.v1.Container", "env", Merge::Key("name")),
    ("io.k8s.api.core.v1.Container", "volumeMounts", Merge::Key("mountPath")),
    ("io.k8s.api.core.v1.Container", "volumeDevices", Merge::Key("devicePath")),
    ("io.k8s.api.core.v1.EphemeralContainer", "ports", Merge::Key("containerPort")),
    ("io.k8s.api.core.v1.EphemeralContainer", "env", Merge::Key("name")),
    ("io.k8s.api.core.v1.EphemeralContainer", "volumeMounts", Merge::Key("mountPath")),
    ("io.k8s.api.core.v1.EphemeralContainer", "volumeDevices", Merge::Key("devicePath")),
    ("io.k8s.api.core.v1.ContainerStatus", "volumeMounts", Merge::Key("mountPath")),
    ("io.k8s.api.core.v1.ContainerStatus", "allocatedResourcesStatus", Merge::Key("name")),
    ("io.k8s.api.core.v1.ServiceSpec", "ports", Merge::Key("port")),
    ("io.k8s.api.core.v1.ServiceStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.core.v1.ServiceAccount", "secrets", Merge::Key("name")),
    ("io.k8s.api.core.v1.NodeSpec", "podCIDRs", Merge::Primitive),
    ("io.k8s.api.core.v1.NodeStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.core.v1.NodeStatus", "addresses", Merge::Key("type")),
    ("io.k8s.api.core.v1.NamespaceStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.core.v1.PersistentVolumeClaimStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.core.v1.ReplicationControllerStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.core.v1.ComponentStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.apps.v1.DeploymentSpec", "strategy", Merge::Retain),
    ("io.k8s.api.apps.v1.DeploymentStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.apps.v1.ReplicaSetStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.apps.v1.DaemonSetStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.apps.v1.StatefulSetStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.batch.v1.JobStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.policy.v1.PodDisruptionBudgetStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.networking.v1.ServiceCIDRStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.storage.v1.CSINodeSpec", "drivers", Merge::Key("name")),
    ("io.k8s.api.flowcontrol.v1.FlowSchemaStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.flowcontrol.v1.PriorityLevelConfigurationStatus", "conditions", Merge::Key("type")),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhookConfiguration", "webhooks", Merge::Key("name")),
    ("io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration", "webhooks", Merge::Key("name")),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", "matchConditions", Merge::Key("name")),
    ("io.k8s.api.admissionregistration.v1.ValidatingWebhook", "matchConditions", Merge::Key("name")),
    ("io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec", "matchConditions", Merge::Key("name")),
    ("io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec", "variables", Merge::Key("name")),
];

/// The strategy of a field.
pub(crate) fn of(definition: &str, field: &str) -> Merge {
    TABLE.iter().find(|(d, f, _)| *d == definition && *f == field).map_or(Merge::Default, |(_, _, merge)| *merge)
}

/// Whether any field of `definition` has a strategy.
#[cfg(test)]
pub(crate) fn table() -> &'static [(&'static str, &'static str, Merge)] {
    TABLE
}
