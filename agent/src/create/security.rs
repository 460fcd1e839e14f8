//! Security contexts of sandbox and containers.
//!
//! The container's settings win over the pod's. Upstream counterpart: `pkg/securitycontext`,
//! `kuberuntime/security_context.go`.

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Capabilities, Container, Pod, PodSecurityContext, SeccompProfile, SecurityContext};

use super::NodeSettings;
use crate::pod::{self, Role};
use crate::runtime::ImageRecord;

/// Paths of /proc and /sys that a container does not see.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// Paths of /proc that a container may only read.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// A container may not run as root and would, or it cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NonRootError {
    /// runAsUser says root.
    #[error("container's runAsUser breaks non-root policy (pod: \"{pod}\", container: {container})")]
    RunAsUser {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// The image says root.
    #[error("container has runAsNonRoot and image will run as root (pod: \"{pod}\", container: {container})")]
    Image {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// The image names its user.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root \
         (pod: \"{pod}\", container: {container})"
    )]
    NamedUser {
        /// The user.
        user: String,
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
}

fn pod_context(pod: &Pod) -> PodSecurityContext {
    pod.spec.as_ref().and_then(|s| s.security_context.clone()).unwrap_or_default()
}

fn namespaces(pod: &Pod, target: Option<&str>) -> cri::NamespaceOption {
    let spec = pod::spec(pod);
    let mode = |node: Option<bool>, other| if node == Some(true) { cri::NamespaceMode::Node } else { other };
    let shared = spec.share_process_namespace == Some(true);
    let pid = if target.is_some() {
        cri::NamespaceMode::Target
    } else {
        mode(spec.host_pid, if shared { cri::NamespaceMode::Pod } else { cri::NamespaceMode::Container })
    };
    cri::NamespaceOption {
        network: mode(spec.host_network, cri::NamespaceMode::Pod) as i32,
        pid: pid as i32,
        ipc: mode(spec.host_ipc, cri::NamespaceMode::Pod) as i32,
        target_id: target.unwrap_or_default().to_owned(),
        userns_options: None,
    }
}

fn value(v: i64) -> cri::Int64Value {
    cri::Int64Value { value: v }
}

fn groups(context: &PodSecurityContext) -> Vec<i64> {
    context.fs_group.iter().copied().chain(context.supplemental_groups.iter().flatten().copied()).collect()
}

fn groups_policy(context: &PodSecurityContext) -> i32 {
    (match context.supplemental_groups_policy.as_deref() {
        Some("Strict") => cri::SupplementalGroupsPolicy::Strict,
        _ => cri::SupplementalGroupsPolicy::Merge,
    }) as i32
}

fn profile(kind: cri::security_profile::ProfileType, localhost_ref: String) -> cri::SecurityProfile {
    cri::SecurityProfile { profile_type: kind as i32, localhost_ref }
}

/// The sandbox's security context.
#[must_use]
pub fn of_sandbox(pod: &Pod) -> cri::LinuxSandboxSecurityContext {
    let context = pod_context(pod);
    let privileged = pod::init_containers(pod)
        .iter()
        .chain(pod::main_containers(pod))
        .any(|c| c.security_context.as_ref().and_then(|s| s.privileged) == Some(true));
    cri::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod, None)),
        run_as_user: context.run_as_user.map(value),
        run_as_group: context.run_as_group.filter(|_| context.run_as_user.is_some()).map(value),
        supplemental_groups: groups(&context),
        supplemental_groups_policy: groups_policy(&context),
        privileged,
        seccomp: Some(profile(cri::security_profile::ProfileType::RuntimeDefault, String::new())),
        selinux_options: context.se_linux_options.map(|o| cri::SeLinuxOption {
            user: o.user.unwrap_or_default(),
            role: o.role.unwrap_or_default(),
            r#type: o.type_.unwrap_or_default(),
            level: o.level.unwrap_or_default(),
        }),
        ..cri::LinuxSandboxSecurityContext::default()
    }
}

fn seccomp(chosen: Option<&SeccompProfile>, settings: &NodeSettings) -> cri::SecurityProfile {
    use cri::security_profile::ProfileType;
    match chosen.map(|p| p.type_.as_str()) {
        Some("RuntimeDefault") => profile(ProfileType::RuntimeDefault, String::new()),
        Some("Localhost") => {
            let name = chosen.and_then(|p| p.localhost_profile.clone()).unwrap_or_default();
            let path = settings.root_dir.join("seccomp").join(name);
            profile(ProfileType::Localhost, path.to_string_lossy().into_owned())
        }
        None if settings.seccomp_default => profile(ProfileType::RuntimeDefault, String::new()),
        _ => profile(ProfileType::Unconfined, String::new()),
    }
}

fn capabilities(given: Option<&Capabilities>) -> Option<cri::Capability> {
    given.map(|c| cri::Capability {
        add_capabilities: c.add.clone().unwrap_or_default(),
        drop_capabilities: c.drop.clone().unwrap_or_default(),
        add_ambient_capabilities: Vec::new(),
    })
}

/// The container's security context.
#[must_use]
pub fn of_container(
    pod: &Pod,
    container: &Container,
    image: &ImageRecord,
    target: Option<&str>,
    settings: &NodeSettings,
) -> cri::LinuxContainerSecurityContext {
    let pc = pod_context(pod);
    let cc = container.security_context.clone().unwrap_or_default();
    let user = cc.run_as_user.or(pc.run_as_user);
    let default_proc = cc.proc_mount.as_deref() != Some("Unmasked");
    let paths = |list: &[&str]| if default_proc { list.iter().map(|p| (*p).to_owned()).collect() } else { Vec::new() };
    let selinux = cc.se_linux_options.clone().or(pc.se_linux_options.clone());
    let app_armor = cc.app_armor_profile.clone().or(pc.app_armor_profile.clone());
    cri::LinuxContainerSecurityContext {
        capabilities: capabilities(cc.capabilities.as_ref()),
        privileged: cc.privileged.unwrap_or(false),
        namespace_options: Some(namespaces(pod, target)),
        run_as_user: user.or(image.uid).map(value),
        run_as_username: if user.is_none() && image.uid.is_none() { image.username.clone() } else { String::new() },
        run_as_group: cc.run_as_group.or(pc.run_as_group).map(value),
        readonly_rootfs: cc.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: groups(&pc),
        supplemental_groups_policy: groups_policy(&pc),
        no_new_privs: cc.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED),
        readonly_paths: paths(&READ_ONLY),
        seccomp: Some(seccomp(cc.seccomp_profile.as_ref().or(pc.seccomp_profile.as_ref()), settings)),
        apparmor: app_armor.map(|p| {
            use cri::security_profile::ProfileType;
            match p.type_.as_str() {
                "Localhost" => profile(ProfileType::Localhost, p.localhost_profile.unwrap_or_default()),
                "Unconfined" => profile(ProfileType::Unconfined, String::new()),
                _ => profile(ProfileType::RuntimeDefault, String::new()),
            }
        }),
        selinux_options: selinux.map(|o| cri::SeLinuxOption {
            user: o.user.unwrap_or_default(),
            role: o.role.unwrap_or_default(),
            r#type: o.type_.unwrap_or_default(),
            level: o.level.unwrap_or_default(),
        }),
        ..cri::LinuxContainerSecurityContext::default()
    }
}

/// Whether `runAsNonRoot` holds for what will run.
///
/// # Errors
/// When it would run as root, or the image names its user so that nobody can tell.
pub fn check_non_root(pod: &Pod, container: &Container, image: &ImageRecord) -> Result<(), NonRootError> {
    let pc = pod_context(pod);
    let empty = SecurityContext::default();
    let cc = container.security_context.as_ref().unwrap_or(&empty);
    if cc.run_as_non_root.or(pc.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let (pod, container) = (pod::display(pod), container.name.clone());
    match (cc.run_as_user.or(pc.run_as_user), image.uid) {
        (Some(0), _) => Err(NonRootError::RunAsUser { pod, container }),
        (Some(_), _) => Ok(()),
        (None, Some(0)) => Err(NonRootError::Image { pod, container }),
        (None, None) if image.username.is_empty() => Err(NonRootError::Image { pod, container }),
        (None, None) => Err(NonRootError::NamedUser { user: image.username.clone(), pod, container }),
        (None, Some(_)) => Ok(()),
    }
}

/// The container an ephemeral one wants to look into.
#[must_use]
pub fn target_of<'a>(pod: &'a Pod, role: Role, name: &str) -> Option<&'a str> {
    if role != Role::Ephemeral {
        return None;
    }
    pod::ephemeral_containers(pod).iter().find(|e| e.name == name)?.target_container_name.as_deref()
}
