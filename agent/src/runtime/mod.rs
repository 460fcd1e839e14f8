//! The seam to the container runtime: what the agent asks of it and the compact model of what it answers.
//!
//! [`Runtime`] is implemented by [`cri::CriRuntime`] (CRI v1 over a unix socket) and by [`fake::FakeRuntime`]
//! (a model for worker tests). Answers are reduced to what decisions need; whole CRI messages are not kept.
//! Upstream counterpart: `pkg/kubelet/container` and `cri-client`.

pub mod cri;
mod cri_streams;
pub mod events;
pub mod exec_scope;
#[cfg(test)]
pub mod fake;
pub mod identity;
pub mod termination;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_cri::v1 as cri_v1;
use keelson_streaming::remotecommand::Options as StreamOptions;

/// Whether a sandbox can hold containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxState {
    /// Its namespaces and network exist.
    Ready,
    /// Stopped or lost.
    NotReady,
}

/// One sandbox as last read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Runtime identifier.
    pub id: String,
    /// How often this pod's sandbox had been created before.
    pub attempt: u32,
    /// State.
    pub state: SandboxState,
    /// Creation, nanoseconds since the epoch.
    pub created_at: i64,
    /// Addresses, the first one is the pod's primary address. Empty for host-network pods.
    pub ips: Vec<String>,
    /// Whether the sandbox uses the node's network namespace.
    pub host_network: bool,
}

/// State of one container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerState {
    /// Created, not started.
    Created,
    /// Running.
    Running,
    /// Ended.
    Exited,
    /// The runtime does not know.
    #[default]
    Unknown,
}

/// The end of a container as the runtime's event told it, before its own bookkeeping shows it.
///
/// Final: an instance never runs again. containerd publishes it as soon as the process is gone; its CRI side follows
/// only when it has cleaned the task up, about 80 ms later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code.
    pub code: i32,
    /// When, nanoseconds since the epoch.
    pub at: i64,
    /// Whether an event said before that the memory limit was met.
    pub out_of_memory: bool,
}

impl Exit {
    /// The runtime's reason for such an end.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match (self.out_of_memory, self.code) {
            (true, _) => "OOMKilled",
            (false, 0) => "Completed",
            (false, _) => "Error",
        }
    }
}

/// One container instance as last read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerRecord {
    /// Runtime identifier.
    pub id: String,
    /// Container name in the pod.
    pub name: String,
    /// The sandbox it belongs to.
    pub sandbox_id: String,
    /// Restart count of this instance.
    pub restart_count: u32,
    /// State.
    pub state: ContainerState,
    /// Creation, nanoseconds since the epoch.
    pub created_at: i64,
    /// Start, nanoseconds since the epoch; 0 when it never started.
    pub started_at: i64,
    /// End, nanoseconds since the epoch; 0 while it has not ended.
    pub finished_at: i64,
    /// Exit code.
    pub exit_code: i32,
    /// The runtime's reason for the end (`OOMKilled`, `Error`, …).
    pub reason: String,
    /// The runtime's message, or the termination message once read.
    pub message: String,
    /// The end is known from an event; the runtime's bookkeeping still says that it runs.
    pub early: bool,
    /// The image as the pod named it or as the runtime resolved it.
    pub image: String,
    /// The image exactly as the pod named it; empty where the runtime does not tell (containerd before 2.0).
    pub user_image: String,
    /// The resolved image reference (`repo@sha256:…`).
    pub image_ref: String,
    /// Hash of the container's definition, from the annotation.
    pub hash: Option<u64>,
    /// Log file on the node.
    pub log_path: String,
}

/// Everything the runtime holds for one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRecord {
    /// Pod UID.
    pub uid: String,
    /// Pod name.
    pub name: String,
    /// Pod namespace.
    pub namespace: String,
    /// Sandboxes, newest first.
    pub sandboxes: Vec<Sandbox>,
    /// Container instances, newest first.
    pub containers: Vec<ContainerRecord>,
}

impl PodRecord {
    /// The newest instance of a container.
    #[must_use]
    pub fn latest(&self, name: &str) -> Option<&ContainerRecord> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// The instance before the newest one.
    #[must_use]
    pub fn previous(&self, name: &str) -> Option<&ContainerRecord> {
        self.containers.iter().filter(|c| c.name == name).nth(1)
    }

    /// The ready sandbox, if there is exactly the newest one ready.
    #[must_use]
    pub fn ready_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first().filter(|s| s.state == SandboxState::Ready)
    }

    /// Whether the runtime holds nothing of the pod.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// Whether anything of the pod still runs.
    #[must_use]
    pub fn any_live(&self) -> bool {
        self.sandboxes.iter().any(|s| s.state == SandboxState::Ready)
            || self.containers.iter().any(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
    }
}

/// What a static pod's sandbox says of its manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticOrigin {
    /// `file` or `http`.
    pub source: String,
    /// When it was read, as the annotation `kubernetes.io/config.seen` has it.
    pub seen: String,
}

/// A line of a sandbox listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxItem {
    /// Pod UID, name and namespace.
    pub pod: PodKey,
    /// Runtime identifier.
    pub id: String,
    /// Attempt.
    pub attempt: u32,
    /// State.
    pub state: SandboxState,
    /// Creation, nanoseconds since the epoch.
    pub created_at: i64,
    /// Where a static pod comes from.
    pub origin: Option<StaticOrigin>,
}

/// A line of a container listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerItem {
    /// Pod UID, name and namespace.
    pub pod: PodKey,
    /// Runtime identifier.
    pub id: String,
    /// Sandbox identifier.
    pub sandbox_id: String,
    /// Container name.
    pub name: String,
    /// Attempt.
    pub attempt: u32,
    /// State.
    pub state: ContainerState,
    /// Creation, nanoseconds since the epoch.
    pub created_at: i64,
}

/// What identifies a pod in the runtime's labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct PodKey {
    /// UID.
    pub uid: String,
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
}

/// What a listing is narrowed to.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only this pod.
    pub pod_uid: Option<String>,
    /// Only this container or sandbox.
    pub id: Option<String>,
}

impl Filter {
    /// Everything of one pod.
    #[must_use]
    pub fn pod(uid: &str) -> Self {
        Self { pod_uid: Some(uid.to_owned()), id: None }
    }
}

/// An image as the node status reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageRecord {
    /// Identifier (`sha256:…`).
    pub id: String,
    /// Digests first, then tags, as upstream's node status lists them.
    pub names: Vec<String>,
    /// Size in bytes.
    pub size: u64,
    /// Numeric user of the image, where it has one.
    pub uid: Option<i64>,
    /// User name of the image, where it has one.
    pub username: String,
}

/// The runtime's own view of its health.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// `RuntimeReady`; `Err` carries the reason and message.
    pub runtime: Option<String>,
    /// `NetworkReady`; `Err` carries the reason and message.
    pub network: Option<String>,
}

/// Name and version of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// `containerd`.
    pub name: String,
    /// `1.6.20`.
    pub version: String,
}

/// Result of a command run inside a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Exit code.
    pub exit_code: i32,
    /// Standard output, then standard error, cut by the runtime's message limit.
    pub output: Vec<u8>,
}

/// What the runtime is downloading, all images together, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Download {
    /// What is here.
    pub done: u64,
    /// What it will be.
    pub total: u64,
}

/// Why a call to the runtime failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The socket cannot be reached or the connection broke. Retryable.
    #[error("runtime {endpoint} cannot be reached for {call}: {message}")]
    Unreachable {
        /// The call.
        call: &'static str,
        /// The socket.
        endpoint: Arc<str>,
        /// The transport's words.
        message: String,
    },
    /// The call did not end in time. Retryable.
    #[error("{call} did not answer within {limit:?}")]
    Deadline {
        /// The call.
        call: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The runtime does not know the call.
    #[error("the runtime does not implement {call}")]
    Unimplemented {
        /// The call.
        call: &'static str,
    },
    /// The container, sandbox or image does not exist (any more).
    #[error("{call}: not found: {message}")]
    NotFound {
        /// The call.
        call: &'static str,
        /// The runtime's words.
        message: String,
    },
    /// A container or sandbox of this name and attempt exists already: raise the attempt.
    #[error("{call}: the name is reserved by {holder}: {message}")]
    NameReserved {
        /// The call.
        call: &'static str,
        /// Who holds the name, as the runtime says.
        holder: String,
        /// The runtime's words.
        message: String,
    },
    /// The runtime refused or failed. `message` is what users see, as upstream prints it.
    #[error("{message}")]
    Failed {
        /// The call.
        call: &'static str,
        /// `rpc error: code = … desc = …`.
        message: String,
    },
}

impl RuntimeError {
    /// Whether the thing asked for is simply gone.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

/// Future of a runtime call.
pub type Call<'a, T> = BoxFuture<'a, Result<T, RuntimeError>>;

/// What the agent asks of a runtime. Every call has a deadline of its own.
pub trait Runtime: Send + Sync {
    /// Name and version.
    fn version(&self) -> Call<'_, RuntimeVersion>;
    /// Health conditions.
    fn health(&self) -> Call<'_, Health>;
    /// Sandboxes.
    fn list_sandboxes(&self, filter: Filter) -> Call<'_, Vec<SandboxItem>>;
    /// Containers.
    fn list_containers(&self, filter: Filter) -> Call<'_, Vec<ContainerItem>>;
    /// Details of one sandbox.
    fn sandbox_status<'a>(&'a self, id: &'a str) -> Call<'a, Sandbox>;
    /// Details of one container. A known `exit` is applied where the runtime's bookkeeping does not show it yet.
    fn container_status<'a>(&'a self, id: &'a str, exit: Option<Exit>) -> Call<'a, ContainerRecord>;
    /// Creates and starts a sandbox; returns its identifier.
    fn run_sandbox(&self, config: Box<cri_v1::PodSandboxConfig>, handler: String) -> Call<'_, String>;
    /// Stops a sandbox and everything in it.
    fn stop_sandbox<'a>(&'a self, id: &'a str) -> Call<'a, ()>;
    /// Removes a sandbox and everything in it.
    fn remove_sandbox<'a>(&'a self, id: &'a str) -> Call<'a, ()>;
    /// Creates a container; returns its identifier.
    fn create_container<'a>(
        &'a self,
        sandbox_id: &'a str,
        config: Box<cri_v1::ContainerConfig>,
        sandbox: Box<cri_v1::PodSandboxConfig>,
    ) -> Call<'a, String>;
    /// Starts a created container.
    fn start_container<'a>(&'a self, id: &'a str) -> Call<'a, ()>;
    /// Stops a container: signal, wait for `timeout`, kill.
    fn stop_container<'a>(&'a self, id: &'a str, timeout: Duration) -> Call<'a, ()>;
    /// Removes a container.
    fn remove_container<'a>(&'a self, id: &'a str) -> Call<'a, ()>;
    /// Runs a command in a container.
    fn exec<'a>(&'a self, id: &'a str, command: Vec<String>, timeout: Duration) -> Call<'a, ExecOutput>;
    /// Where the runtime serves the streams of a new command in a container.
    fn exec_url<'a>(&'a self, id: &'a str, command: Vec<String>, options: StreamOptions) -> Call<'a, String> {
        let _ = (id, command, options);
        Box::pin(async { Err(RuntimeError::Unimplemented { call: "Exec" }) })
    }
    /// Where the runtime serves the streams of a container's own process.
    fn attach_url<'a>(&'a self, id: &'a str, options: StreamOptions) -> Call<'a, String> {
        let _ = (id, options);
        Box::pin(async { Err(RuntimeError::Unimplemented { call: "Attach" }) })
    }
    /// The path of a sandbox's network namespace.
    fn network_namespace<'a>(&'a self, sandbox_id: &'a str) -> Call<'a, PathBuf> {
        let _ = sandbox_id;
        Box::pin(async { Err(RuntimeError::Unimplemented { call: "PodSandboxStatus" }) })
    }
    /// Opens the log file again after rotation.
    fn reopen_log<'a>(&'a self, id: &'a str) -> Call<'a, ()>;
    /// Looks an image up; `None` when it is not there.
    fn image_status<'a>(&'a self, image: &'a str) -> Call<'a, Option<ImageRecord>>;
    /// Pulls an image; returns the resolved reference.
    fn pull_image<'a>(&'a self, image: &'a str, auth: Option<cri_v1::AuthConfig>) -> Call<'a, String>;
    /// Downloads that are under way, where the runtime tells.
    fn downloads(&self) -> Call<'_, Download> {
        Box::pin(async { Err(RuntimeError::Unimplemented { call: "ListContentStatuses" }) })
    }
    /// All images.
    fn list_images(&self) -> Call<'_, Vec<ImageRecord>>;
    /// Removes an image.
    fn remove_image<'a>(&'a self, image: &'a str) -> Call<'a, ()>;
}
