//! Errors of volumes, in the words that users of upstream know.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::atomic::WriteError;
use super::hostpath::HostPathError;
use super::mounts::MountError;
use super::objects::ReadError;
use super::payload::PayloadError;
use super::remove::RemoveError;

/// Reason of the event for a volume that could not be set up.
pub const FAILED_MOUNT: &str = "FailedMount";

/// One volume of a pod could not be set up. `Display` is the message of the `FailedMount` event.
#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?} : {cause}")]
pub struct VolumeError {
    /// Its name in the pod.
    pub volume: String,
    /// What went wrong.
    pub cause: VolumeCause,
}

/// What went wrong with a volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeCause {
    /// A ConfigMap, Secret or token could not be had.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Its content cannot be formed.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// Its content cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// It cannot be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// A hostPath that is not what the pod says.
    #[error(transparent)]
    HostPath(#[from] HostPathError),
    /// A folder of the agent cannot be made or looked at.
    #[error("cannot {action} {}: {source}", path.display())]
    Folder {
        /// The step.
        action: &'static str,
        /// The folder.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A kind of volume that this agent does not have.
    #[error("volumes of kind {kind} are not supported by this agent")]
    Unsupported {
        /// The field of the volume.
        kind: &'static str,
    },
    /// A kind of volume that is refused for good.
    #[error("gitRepo volumes are refused (CVE-2024-10220): clone in an init container into an emptyDir instead")]
    GitRepo,
    /// An unknown emptyDir medium.
    #[error("unknown storage medium {medium:?}")]
    Medium {
        /// As written.
        medium: String,
    },
    /// A name that would lead out of the pod's folder.
    #[error("invalid {what} {name:?}: it must be a DNS label")]
    Name {
        /// What is named.
        what: &'static str,
        /// As written.
        name: String,
    },
    /// Several sources of a projected volume failed.
    #[error("{0}")]
    Several(Causes),
    /// The pod is being removed.
    #[error("the pod is being removed")]
    Removed,
}

/// Several causes, shown as `[a, b]`.
#[derive(Debug)]
pub struct Causes(pub Vec<VolumeCause>);

impl fmt::Display for Causes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, cause) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{cause}")?;
        }
        f.write_str("]")
    }
}

impl VolumeCause {
    /// One cause as itself, several as a list.
    pub(super) fn from_many(mut causes: Vec<Self>) -> Option<Self> {
        match causes.len() {
            0 | 1 => causes.pop(),
            _ => Some(Self::Several(Causes(causes))),
        }
    }

    /// The answer of the API server is not known: content written before still holds.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Read(error) => error.is_unavailable(),
            Self::Several(causes) => causes.0.iter().all(Self::is_unavailable),
            _ => false,
        }
    }
}

impl VolumeError {
    /// Whether another try can succeed without a change of the pod.
    pub fn retryable(&self) -> bool {
        !matches!(
            self.cause,
            VolumeCause::Unsupported { .. }
                | VolumeCause::GitRepo
                | VolumeCause::Medium { .. }
                | VolumeCause::Name { .. }
                | VolumeCause::Removed
        )
    }
}

/// A pod's volumes could not be taken down entirely; retryable, and what is done stays done.
#[derive(Debug, thiserror::Error)]
pub enum TeardownError {
    /// A UID that is no file name.
    #[error("invalid pod UID {uid:?}")]
    Uid {
        /// As given.
        uid: String,
    },
    /// A mount call failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Mounts are still there after unmounting.
    #[error("still mounted after unmounting: {}", path.display())]
    StillMounted {
        /// One of them.
        path: PathBuf,
    },
    /// A folder is still there.
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// The blocking task died.
    #[error("the removal was interrupted")]
    Interrupted,
}

/// A container's mounts could not be formed (`CreateContainerConfigError`); retryable.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ContainerMountError {
    /// For the user: nothing about the host's file system.
    pub message: String,
    /// For the log: what went wrong in full.
    pub detail: Option<String>,
}
