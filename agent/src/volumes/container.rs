//! From a container's `volumeMounts` to CRI mounts.

use std::path::PathBuf;

use k8s_cri::v1::{Mount, MountPropagation};
use k8s_openapi::api::core::v1::{Container, Pod, Volume, VolumeMount};

use super::error::ContainerMountError;
use super::folders::PodDir;
use super::is_dns_label;
use super::mounts::Mounter;
use super::subpath;
use crate::env::expansion::expand_strict;
use crate::hosts::ETC_HOSTS;

/// Where a volume lies on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountSource {
    pub path: PathBuf,
    /// Only ever mounted read-only.
    pub read_only: bool,
    pub selinux_relabel: bool,
}

#[derive(Debug, Clone)]
struct Planned {
    index: usize,
    volume: String,
    sub_path: String,
    source: PathBuf,
    mount: Mount,
}

/// The mounts of one container, before their subPaths are prepared.
#[derive(Debug, Clone)]
pub(super) struct ContainerMounts {
    container: String,
    planned: Vec<Planned>,
}

fn refused(message: String) -> ContainerMountError {
    ContainerMountError { message, detail: None }
}

/// Whether the agent's `/etc/hosts` is to be mounted: not over a mount of the container's own.
pub fn wants_etc_hosts(container: &Container) -> bool {
    let mounts = container.volume_mounts.iter().flatten();
    !mounts.into_iter().any(|m| m.mount_path == ETC_HOSTS)
}

impl ContainerMounts {
    /// Decides everything that needs no file system.
    pub fn plan(
        pod: &Pod,
        container: &Container,
        env: &[(String, String)],
        source: impl Fn(&Volume) -> MountSource,
    ) -> Result<Self, ContainerMountError> {
        let volumes = || pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        let mut planned = Vec::new();
        for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
            let found = volumes().find(|v| v.name == mount.name);
            let Some(source) = found.map(&source) else {
                return Err(refused(format!(
                    "cannot find volume {:?} to mount into container {:?}",
                    mount.name, container.name
                )));
            };
            let sub_path = sub_path(mount, env)?;
            planned.push(Planned {
                index,
                volume: mount.name.clone(),
                sub_path,
                mount: cri_mount(mount, &source)?,
                source: source.path,
            });
        }
        Ok(Self { container: container.name.clone(), planned })
    }

    /// Whether there is anything to prepare that touches the file system.
    pub fn has_sub_paths(&self) -> bool {
        self.planned.iter().any(|planned| !planned.sub_path.is_empty())
    }

    /// Prepares the subPaths. Blocks if there are any.
    pub fn prepare(self, mounter: &dyn Mounter, dir: &PodDir) -> Result<Vec<Mount>, ContainerMountError> {
        let mut mounts = Vec::new();
        for mut planned in self.planned {
            if !planned.sub_path.is_empty() {
                if !is_dns_label(&self.container) || !is_dns_label(&planned.volume) {
                    return Err(refused(format!(
                        "invalid name: container {:?} and volume {:?} must be DNS labels",
                        self.container, planned.volume
                    )));
                }
                let target = subpath::target(dir.path(), &planned.volume, &self.container, planned.index);
                subpath::prepare(mounter, &planned.source, &planned.sub_path, &target).map_err(|error| {
                    ContainerMountError {
                        message: error.public(&planned.volume, &self.container),
                        detail: Some(error.to_string()),
                    }
                })?;
                planned.source = target;
            }
            planned.mount.host_path = planned.source.to_string_lossy().into_owned();
            mounts.push(planned.mount);
        }
        Ok(mounts)
    }
}

fn sub_path(mount: &VolumeMount, env: &[(String, String)]) -> Result<String, ContainerMountError> {
    let written = match mount.sub_path_expr.as_deref().filter(|e| !e.is_empty()) {
        None => mount.sub_path.clone().unwrap_or_default(),
        Some(expression) => {
            let lookup = |name: &str| {
                let found = env.iter().find(|(key, _)| key == name);
                found.map(|(_, value)| value.as_str())
            };
            expand_strict(expression, lookup).map_err(|name| refused(format!("missing value for {name:?}")))?
        }
    };
    subpath::validate(&written).map_err(|error| refused(error.to_string()))?;
    Ok(written)
}

fn cri_mount(mount: &VolumeMount, source: &MountSource) -> Result<Mount, ContainerMountError> {
    let propagation = match mount.mount_propagation.as_deref() {
        None | Some("None") => MountPropagation::PropagationPrivate,
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        Some(other) => {
            return Err(refused(format!("invalid MountPropagation mode: {other:?}")));
        }
    };
    if mount.recursive_read_only.as_deref() == Some("Enabled") {
        return Err(refused(format!(
            "failed to resolve recursive read-only mode: volume {:?} requested recursive read-only mode, but it is not supported by the runtime",
            mount.name
        )));
    }
    let container_path =
        if mount.mount_path.starts_with('/') { mount.mount_path.clone() } else { format!("/{}", mount.mount_path) };
    Ok(Mount {
        container_path,
        readonly: source.read_only || mount.read_only == Some(true),
        selinux_relabel: source.selinux_relabel,
        propagation: propagation.into(),
        ..Mount::default()
    })
}
