//! The volumes of pods.
//!
//! [`VolumeManager`] is what the pod workers use: `set_up` before containers start,
//! `container_mounts` for each container, `tear_down` when all are gone. It gets ConfigMaps, Secrets
//! and tokens through [`ObjectReader`] ([`api::ApiReader`] is the real one) and mounts through
//! [`Mounter`]. Kinds: emptyDir, hostPath, configMap, secret, downwardAPI, projected.
//!
//! What containers can write to is never walked by path: see [`remove`] and [`subpath`].

pub mod api;
mod atomic;
pub mod container;
pub mod error;
pub mod folders;
mod hostpath;
pub mod manager;
pub mod mounts;
pub mod objects;
pub mod ownership;
mod payload;
pub mod remove;
mod render;
pub mod subpath;
pub mod teardown;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod tokens;

pub use container::wants_etc_hosts;
pub use error::{ContainerMountError, FAILED_MOUNT, TeardownError, VolumeCause, VolumeError};
pub use folders::PodDir;
pub use manager::{OnError, VolumeManager, foreign_kind};
pub use mounts::{KernelMounter, Mounter};
pub use objects::{ObjectReader, ReadError};
pub use teardown::DiskPod;

/// Lower-case letters, digits and `-`, at most 63, as the API wants names of volumes and containers.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.chars().all(|c| inner(c) || c == '-')
        && text.starts_with(inner)
        && text.ends_with(inner)
}
