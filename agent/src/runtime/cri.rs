//! CRI v1 over a unix socket.
//!
//! Every call has its own deadline; the channel reconnects by itself. Answers are reduced to the model of
//! [`super`] at once, so that no CRI message outlives its call. Upstream counterpart: `k8s.io/cri-client`.

use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::{ListStatusesRequest, Status as ContentStatus};
use futures::FutureExt;
use hyper_util::rt::TokioIo;
use k8s_cri::v1 as api;
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use keelson_streaming::remotecommand::Options as StreamOptions;
use tokio::sync::broadcast;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use crate::metrics::Metrics;
use crate::network::starting::Starting;
use crate::pod;

use super::exec_scope::{ExecScope, Execs};
use super::identity::{
    CONTAINER_HASH, CONTAINER_NAME, CONTAINER_RESTART_COUNT, POD_NAME, POD_NAMESPACE, POD_UID,
    TERMINATION_MESSAGE_PATH, TERMINATION_MESSAGE_POLICY,
};
use super::termination;
use super::{
    Call, ContainerItem, ContainerRecord, ContainerState, Download, ExecOutput, Exit, Filter, Health, ImageRecord,
    PodKey, Runtime, RuntimeError, RuntimeVersion, Sandbox, SandboxItem, SandboxState, StaticOrigin,
};

/// The namespace of containerd in which CRI keeps everything.
pub(super) const NAMESPACE: &str = "k8s.io";
/// Largest message (upstream `maxMsgSize`).
const MAX_MESSAGE: usize = 16 << 20;
/// Deadline of an ordinary call (upstream `runtimeRequestTimeout`).
pub const CALL_DEADLINE: Duration = Duration::from_secs(120);
/// Deadline of a call that sets up a sandbox: twice the ordinary one, as upstream.
pub const SANDBOX_DEADLINE: Duration = Duration::from_secs(240);
/// Deadline of a cheap read: nothing may wait minutes for a listing.
pub(super) const READ_DEADLINE: Duration = Duration::from_secs(30);
/// Pulls have no deadline of their own upstream; one hour keeps a dead registry from holding a slot for ever.
const PULL_DEADLINE: Duration = Duration::from_secs(3600);

/// A runtime behind a unix socket.
pub struct CriRuntime {
    endpoint: Arc<str>,
    metrics: Metrics,
    starting: Arc<Starting>,
    pub(super) execs: Execs,
    pub(super) runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    content: ContentClient<Channel>,
}

/// Opens a channel to a unix socket; it connects at the first call and again whenever it has to.
///
/// # Panics
/// Never: the placeholder URI is a constant.
#[must_use]
pub fn channel(socket: &Path) -> Channel {
    let socket: PathBuf = socket.to_owned();
    Endpoint::from_static("http://[::]").connect_with_connector_lazy(tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(tokio::net::UnixStream::connect(socket).await?)) }
    }))
}

/// A request to one of containerd's own services, about what CRI keeps.
pub fn in_namespace<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    request
}

/// Strips the `unix://` of an endpoint.
#[must_use]
pub fn socket_path(endpoint: &str) -> PathBuf {
    PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint))
}

impl CriRuntime {
    /// A client for `endpoint` (`unix:///run/containerd/containerd.sock`).
    #[must_use]
    pub fn new(endpoint: &str, metrics: Metrics) -> Self {
        let channel = channel(&socket_path(endpoint));
        Self {
            endpoint: endpoint.into(),
            metrics,
            starting: Arc::default(),
            execs: Execs::default(),
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
            content: ContentClient::new(channel.clone()),
            images: ImageServiceClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
        }
    }

    /// Where events of started execs go.
    #[must_use]
    pub fn execs(&self) -> broadcast::Sender<super::exec_scope::ExecStarted> {
        self.execs.events()
    }

    /// Sandboxes that are being made.
    #[must_use]
    pub fn starting(&self) -> Arc<Starting> {
        self.starting.clone()
    }

    /// Gives a call its deadline; boxed, because a request's future is tens of kilobytes.
    pub(super) fn call<'a, T: Send + 'a>(
        &'a self,
        call: &'static str,
        limit: Duration,
        future: impl Future<Output = Result<Response<T>, Status>> + Send + 'a,
    ) -> Call<'a, T> {
        async move {
            let began = Instant::now();
            let outcome = match tokio::time::timeout(limit, future).await {
                Err(_) => Err(RuntimeError::Deadline { call, limit }),
                Ok(Ok(response)) => Ok(response.into_inner()),
                Ok(Err(status)) => Err(self.error(call, &status)),
            };
            self.metrics.call(call, began.elapsed(), outcome.is_err());
            outcome
        }
        .boxed()
    }

    fn error(&self, call: &'static str, status: &Status) -> RuntimeError {
        let text = status.message();
        let message = format!("rpc error: code = {:?} desc = {text}", status.code());
        match status.code() {
            Code::Unavailable => {
                RuntimeError::Unreachable { call, endpoint: self.endpoint.clone(), message: text.to_owned() }
            }
            Code::Unimplemented => RuntimeError::Unimplemented { call },
            Code::NotFound => RuntimeError::NotFound { call, message: text.to_owned() },
            _ => match reserved_by(text) {
                Some(holder) => RuntimeError::NameReserved { call, holder, message },
                None => RuntimeError::Failed { call, message },
            },
        }
    }
}

/// The holder in containerd's `name "…" is reserved for "ID"`.
fn reserved_by(text: &str) -> Option<String> {
    let rest = text.split_once("is reserved for")?.1;
    let holder: String =
        rest.trim_start_matches([' ', '"', '\\']).chars().take_while(char::is_ascii_hexdigit).collect();
    Some(holder)
}

fn sandbox_state(state: i32) -> SandboxState {
    if state == api::PodSandboxState::SandboxReady as i32 { SandboxState::Ready } else { SandboxState::NotReady }
}

fn container_state(state: i32) -> ContainerState {
    match api::ContainerState::try_from(state) {
        Ok(api::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(api::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(api::ContainerState::ContainerExited) => ContainerState::Exited,
        _ => ContainerState::Unknown,
    }
}

type Labels = HashMap<String, String>;

fn pod_key(labels: &mut Labels) -> PodKey {
    PodKey {
        uid: labels.remove(POD_UID).unwrap_or_default(),
        name: labels.remove(POD_NAME).unwrap_or_default(),
        namespace: labels.remove(POD_NAMESPACE).unwrap_or_default(),
    }
}

fn selector(filter: &Filter) -> Labels {
    filter.pod_uid.iter().map(|uid| (POD_UID.to_owned(), uid.clone())).collect()
}

/// The termination message file on the node, and whether the log's end stands in for an empty one.
fn last_words(status: &api::ContainerStatus) -> (Option<PathBuf>, bool) {
    let at = status.annotations.get(TERMINATION_MESSAGE_PATH);
    let file = status.mounts.iter().find(|m| Some(&m.container_path) == at).map(|m| PathBuf::from(&m.host_path));
    let policy = status.annotations.get(TERMINATION_MESSAGE_POLICY);
    (file, policy.is_some_and(|policy| policy == "FallbackToLogsOnError"))
}

/// Writes an end that the runtime's bookkeeping lacks into the status; true when it did.
///
/// Not when the log has to give the last words: it is complete only when the runtime has closed it.
fn end_early(status: &mut api::ContainerStatus, exit: Exit) -> bool {
    let (file, fall_back) = last_words(status);
    let silent = || file.and_then(|f| std::fs::metadata(f).ok()).is_none_or(|m| m.len() == 0);
    if container_state(status.state) != ContainerState::Running || (fall_back && exit.code != 0 && silent()) {
        return false;
    }
    status.state = api::ContainerState::ContainerExited as i32;
    status.exit_code = exit.code;
    status.finished_at = exit.at;
    status.reason = exit.reason().to_owned();
    true
}

fn static_origin(annotations: &mut HashMap<String, String>) -> Option<StaticOrigin> {
    let source = annotations.remove(pod::CONFIG_SOURCE).filter(|source| source == "file" || source == "http")?;
    Some(StaticOrigin { source, seen: annotations.remove(pod::CONFIG_SEEN)? })
}

fn to_record(mut status: api::ContainerStatus, exit: Option<Exit>) -> ContainerRecord {
    let early = exit.is_some_and(|exit| end_early(&mut status, exit));
    let (file, fall_back) = last_words(&status);
    let metadata = status.metadata.unwrap_or_default();
    let mut annotations = status.annotations;
    let count = annotations.remove(CONTAINER_RESTART_COUNT).and_then(|v| v.parse().ok()).unwrap_or(metadata.attempt);
    let mut labels = status.labels;
    let mut message = status.message;
    if container_state(status.state) == ContainerState::Exited {
        let words =
            termination::message(file.as_deref(), fall_back, Path::new(&status.log_path), status.exit_code != 0);
        if !message.is_empty() && !words.is_empty() {
            message.push_str(": ");
        }
        message.push_str(&words);
    }
    let image = status.image.unwrap_or_default();
    ContainerRecord {
        id: status.id,
        name: labels.remove(CONTAINER_NAME).unwrap_or(metadata.name),
        sandbox_id: String::new(),
        restart_count: count,
        state: container_state(status.state),
        created_at: status.created_at,
        started_at: status.started_at,
        finished_at: status.finished_at,
        exit_code: status.exit_code,
        reason: status.reason,
        message,
        early,
        image: image.image,
        user_image: image.user_specified_image,
        image_ref: status.image_ref,
        hash: annotations.remove(CONTAINER_HASH).and_then(|h| u64::from_str_radix(&h, 16).ok()),
        log_path: status.log_path,
    }
}

fn to_image(image: api::Image) -> ImageRecord {
    let mut names = image.repo_digests;
    names.extend(image.repo_tags);
    ImageRecord { id: image.id, names, size: image.size, uid: image.uid.map(|v| v.value), username: image.username }
}

fn condition(status: &api::RuntimeStatus, name: &str) -> Option<String> {
    match status.conditions.iter().find(|c| c.r#type == name) {
        Some(c) if c.status => None,
        Some(c) => Some(format!("{name}=false reason:{} message:{}", c.reason, c.message)),
        None => Some(format!("{name} is not reported by the runtime")),
    }
}

impl Runtime for CriRuntime {
    fn version(&self) -> Call<'_, RuntimeVersion> {
        async move {
            let request = api::VersionRequest { version: "0.1.0".into() };
            let v = self
                .call("Version", READ_DEADLINE, {
                    let mut client = self.runtime.clone();
                    async move { client.version(request).await }
                })
                .await?;
            Ok(RuntimeVersion { name: v.runtime_name, version: v.runtime_version })
        }
        .boxed()
    }

    fn health(&self) -> Call<'_, Health> {
        async move {
            let request = api::StatusRequest { verbose: false };
            let answer = self
                .call("Status", READ_DEADLINE, {
                    let mut client = self.runtime.clone();
                    async move { client.status(request).await }
                })
                .await?;
            let status = answer.status.unwrap_or_default();
            Ok(Health { runtime: condition(&status, "RuntimeReady"), network: condition(&status, "NetworkReady") })
        }
        .boxed()
    }

    fn list_sandboxes(&self, filter: Filter) -> Call<'_, Vec<SandboxItem>> {
        async move {
            let label_selector = selector(&filter);
            let filter = api::PodSandboxFilter { id: filter.id.unwrap_or_default(), state: None, label_selector };
            let request = api::ListPodSandboxRequest { filter: Some(filter) };
            let list = self
                .call("ListPodSandbox", READ_DEADLINE, {
                    let mut client = self.runtime.clone();
                    async move { client.list_pod_sandbox(request).await }
                })
                .await?;
            Ok(list
                .items
                .into_iter()
                .map(|mut s| SandboxItem {
                    pod: pod_key(&mut s.labels),
                    id: s.id,
                    attempt: s.metadata.map(|m| m.attempt).unwrap_or_default(),
                    state: sandbox_state(s.state),
                    created_at: s.created_at,
                    origin: static_origin(&mut s.annotations),
                })
                .collect())
        }
        .boxed()
    }

    fn list_containers(&self, filter: Filter) -> Call<'_, Vec<ContainerItem>> {
        async move {
            let label_selector = selector(&filter);
            let filter = api::ContainerFilter {
                id: filter.id.unwrap_or_default(),
                state: None,
                pod_sandbox_id: String::new(),
                label_selector,
            };
            let request = api::ListContainersRequest { filter: Some(filter) };
            let list = self
                .call("ListContainers", READ_DEADLINE, {
                    let mut client = self.runtime.clone();
                    async move { client.list_containers(request).await }
                })
                .await?;
            Ok(list
                .containers
                .into_iter()
                .map(|mut c| {
                    let metadata = c.metadata.unwrap_or_default();
                    ContainerItem {
                        pod: pod_key(&mut c.labels),
                        id: c.id,
                        sandbox_id: c.pod_sandbox_id,
                        name: c.labels.remove(CONTAINER_NAME).unwrap_or(metadata.name),
                        attempt: metadata.attempt,
                        state: container_state(c.state),
                        created_at: c.created_at,
                    }
                })
                .collect())
        }
        .boxed()
    }

    fn sandbox_status<'a>(&'a self, id: &'a str) -> Call<'a, Sandbox> {
        async move {
            let request = api::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: false };
            let answer = self
                .call("PodSandboxStatus", READ_DEADLINE, {
                    let mut client = self.runtime.clone();
                    async move { client.pod_sandbox_status(request).await }
                })
                .await?;
            let s = answer.status.unwrap_or_default();
            let mut ips = Vec::new();
            if let Some(network) = s.network {
                ips.extend(Some(network.ip).filter(|ip| !ip.is_empty()));
                ips.extend(network.additional_ips.into_iter().map(|ip| ip.ip));
            }
            let options = s.linux.and_then(|l| l.namespaces).and_then(|n| n.options).unwrap_or_default();
            Ok(Sandbox {
                id: s.id,
                attempt: s.metadata.map(|m| m.attempt).unwrap_or_default(),
                state: sandbox_state(s.state),
                created_at: s.created_at,
                ips,
                host_network: options.network == api::NamespaceMode::Node as i32,
            })
        }
        .boxed()
    }

    fn container_status<'a>(&'a self, id: &'a str, exit: Option<Exit>) -> Call<'a, ContainerRecord> {
        async move {
            let request = api::ContainerStatusRequest { container_id: id.into(), verbose: false };
            let answer = self
                .call("ContainerStatus", READ_DEADLINE, {
                    let mut client = self.runtime.clone();
                    async move { client.container_status(request).await }
                })
                .await?;
            Ok(to_record(answer.status.unwrap_or_default(), exit))
        }
        .boxed()
    }

    fn run_sandbox(&self, config: Box<api::PodSandboxConfig>, handler: String) -> Call<'_, String> {
        async move {
            let _held = self.starting.sandbox().await;
            let request = api::RunPodSandboxRequest { config: Some(*config), runtime_handler: handler };
            let answer = self
                .call("RunPodSandbox", SANDBOX_DEADLINE, {
                    let mut client = self.runtime.clone();
                    async move { client.run_pod_sandbox(request).await }
                })
                .await?;
            Ok(answer.pod_sandbox_id)
        }
        .boxed()
    }

    fn stop_sandbox<'a>(&'a self, id: &'a str) -> Call<'a, ()> {
        async move {
            let request = api::StopPodSandboxRequest { pod_sandbox_id: id.into() };
            self.call("StopPodSandbox", CALL_DEADLINE, {
                let mut client = self.runtime.clone();
                async move { client.stop_pod_sandbox(request).await }
            })
            .await?;
            Ok(())
        }
        .boxed()
    }

    fn remove_sandbox<'a>(&'a self, id: &'a str) -> Call<'a, ()> {
        async move {
            let request = api::RemovePodSandboxRequest { pod_sandbox_id: id.into() };
            self.call("RemovePodSandbox", CALL_DEADLINE, {
                let mut client = self.runtime.clone();
                async move { client.remove_pod_sandbox(request).await }
            })
            .await?;
            Ok(())
        }
        .boxed()
    }

    fn create_container<'a>(
        &'a self,
        sandbox_id: &'a str,
        config: Box<api::ContainerConfig>,
        sandbox: Box<api::PodSandboxConfig>,
    ) -> Call<'a, String> {
        async move {
            let request = api::CreateContainerRequest {
                pod_sandbox_id: sandbox_id.into(),
                config: Some(*config),
                sandbox_config: Some(*sandbox),
            };
            let answer = self
                .call("CreateContainer", CALL_DEADLINE, {
                    let mut client = self.runtime.clone();
                    async move { client.create_container(request).await }
                })
                .await?;
            Ok(answer.container_id)
        }
        .boxed()
    }

    fn start_container<'a>(&'a self, id: &'a str) -> Call<'a, ()> {
        async move {
            let request = api::StartContainerRequest { container_id: id.into() };
            self.call("StartContainer", CALL_DEADLINE, {
                let mut client = self.runtime.clone();
                async move { client.start_container(request).await }
            })
            .await?;
            Ok(())
        }
        .boxed()
    }

    fn stop_container<'a>(&'a self, id: &'a str, timeout: Duration) -> Call<'a, ()> {
        async move {
            // Rounded up: the moments since the decision must not cost the container a second of its grace.
            let seconds = i64::try_from(timeout.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
            let request = api::StopContainerRequest { container_id: id.into(), timeout: seconds };
            let limit = timeout + CALL_DEADLINE;
            self.call("StopContainer", limit, {
                let mut client = self.runtime.clone();
                async move { client.stop_container(request).await }
            })
            .await?;
            Ok(())
        }
        .boxed()
    }

    fn remove_container<'a>(&'a self, id: &'a str) -> Call<'a, ()> {
        async move {
            let request = api::RemoveContainerRequest { container_id: id.into() };
            self.call("RemoveContainer", CALL_DEADLINE, {
                let mut client = self.runtime.clone();
                async move { client.remove_container(request).await }
            })
            .await?;
            Ok(())
        }
        .boxed()
    }

    fn exec<'a>(&'a self, id: &'a str, command: Vec<String>, timeout: Duration) -> Call<'a, ExecOutput> {
        async move {
            // CRI counts whole seconds and takes 0 for "no limit".
            let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
            let request = api::ExecSyncRequest { container_id: id.into(), cmd: command.clone(), timeout: seconds };
            let limit = if seconds == 0 { CALL_DEADLINE } else { timeout + READ_DEADLINE };
            let scope = self.execs.scope(id, &command);
            let call = self.call("ExecSync", limit, {
                let mut client = self.runtime.clone();
                async move { client.exec_sync(request).await }
            });
            let end = if seconds == 0 { limit } else { timeout };
            let (answer, scope) = until(call, scope, end).await;
            let answer = match answer {
                Err(RuntimeError::Failed { message, .. }) if message.contains("DeadlineExceeded") => {
                    Err(RuntimeError::Deadline { call: "ExecSync", limit: timeout })
                }
                other => other,
            };
            if let Some(scope) = scope {
                match &answer {
                    Err(RuntimeError::Deadline { .. }) => scope.kill().await,
                    _ => scope.release(),
                }
            }
            let answer = answer?;
            let mut output = answer.stdout;
            output.extend(answer.stderr);
            Ok(ExecOutput { exit_code: answer.exit_code, output })
        }
        .boxed()
    }

    fn exec_url<'a>(&'a self, id: &'a str, command: Vec<String>, options: StreamOptions) -> Call<'a, String> {
        self.exec_stream(id, command, options)
    }

    fn attach_url<'a>(&'a self, id: &'a str, options: StreamOptions) -> Call<'a, String> {
        self.attach_stream(id, options)
    }

    fn network_namespace<'a>(&'a self, sandbox_id: &'a str) -> Call<'a, PathBuf> {
        self.sandbox_network(sandbox_id)
    }

    fn reopen_log<'a>(&'a self, id: &'a str) -> Call<'a, ()> {
        async move {
            let request = api::ReopenContainerLogRequest { container_id: id.into() };
            self.call("ReopenContainerLog", READ_DEADLINE, {
                let mut client = self.runtime.clone();
                async move { client.reopen_container_log(request).await }
            })
            .await?;
            Ok(())
        }
        .boxed()
    }

    fn image_status<'a>(&'a self, image: &'a str) -> Call<'a, Option<ImageRecord>> {
        async move {
            let request = api::ImageStatusRequest { image: Some(image_spec(image)), verbose: false };
            let answer = self
                .call("ImageStatus", READ_DEADLINE, {
                    let mut client = self.images.clone();
                    async move { client.image_status(request).await }
                })
                .await?;
            Ok(answer.image.map(to_image))
        }
        .boxed()
    }

    fn pull_image<'a>(&'a self, image: &'a str, auth: Option<api::AuthConfig>) -> Call<'a, String> {
        async move {
            let request = api::PullImageRequest { image: Some(image_spec(image)), auth, sandbox_config: None };
            let answer = self
                .call("PullImage", PULL_DEADLINE, {
                    let mut client = self.images.clone();
                    async move { client.pull_image(request).await }
                })
                .await?;
            Ok(answer.image_ref)
        }
        .boxed()
    }

    /// containerd's own service; other runtimes do not have it, and the call says so.
    fn downloads(&self) -> Call<'_, Download> {
        async move {
            let request = in_namespace(ListStatusesRequest::default());
            let mut client = self.content.clone();
            let list = self
                .call("ListContentStatuses", READ_DEADLINE, async move { client.list_statuses(request).await })
                .await?;
            let sum =
                |of: fn(&ContentStatus) -> i64| list.statuses.iter().map(|s| u64::try_from(of(s)).unwrap_or(0)).sum();
            Ok(Download { done: sum(|status| status.offset), total: sum(|status| status.total) })
        }
        .boxed()
    }

    fn list_images(&self) -> Call<'_, Vec<ImageRecord>> {
        async move {
            let request = api::ListImagesRequest { filter: None };
            let answer = self
                .call("ListImages", READ_DEADLINE, {
                    let mut client = self.images.clone();
                    async move { client.list_images(request).await }
                })
                .await?;
            Ok(answer.images.into_iter().map(to_image).collect())
        }
        .boxed()
    }

    fn remove_image<'a>(&'a self, image: &'a str) -> Call<'a, ()> {
        async move {
            let request = api::RemoveImageRequest { image: Some(image_spec(image)) };
            self.call("RemoveImage", CALL_DEADLINE, {
                let mut client = self.images.clone();
                async move { client.remove_image(request).await }
            })
            .await?;
            Ok(())
        }
        .boxed()
    }
}

/// Waits for a command's answer, and beside it for its cgroup. At its end the cgroup is killed at once: the runtime's own answer comes only
/// when nobody holds the output any more.
async fn until<T>(
    call: Call<'_, T>,
    scope: impl Future<Output = Option<ExecScope>>,
    end: Duration,
) -> (Result<T, RuntimeError>, Option<ExecScope>) {
    let mut call = call;
    let late = tokio::time::sleep(end);
    tokio::pin!(scope, late);
    let (mut found, mut looking, mut killed) = (None, true, false);
    loop {
        tokio::select! {
            // The event comes before the answer; a command that ends at once needs no cgroup.
            // Killed by us it has an exit code, which is not its own.
            answer = &mut call => {
                let late = RuntimeError::Deadline { call: "ExecSync", limit: end };
                return (if killed { Err(late) } else { answer }, found);
            }
            new = &mut scope, if looking => {
                (found, looking) = (new, false);
                // The time counts from the command's start, as the runtime has it: on a busy node that is long after the request.
                late.as_mut().reset(tokio::time::Instant::now() + end);
            }
            () = &mut late, if found.is_some() => {
                if let Some(scope) = found.take() {
                    scope.kill().await;
                    killed = true;
                }
            }
        }
    }
}

fn image_spec(image: &str) -> api::ImageSpec {
    api::ImageSpec { image: image.into(), ..api::ImageSpec::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_names_are_recognised() {
        let text = r#"failed to reserve container name "a_b_c_d_0": name "a_b_c_d_0" is reserved for "0f3e""#;
        assert_eq!(reserved_by(text).as_deref(), Some("0f3e"));
        assert_eq!(reserved_by("other"), None);
    }

    #[test]
    fn endpoints() {
        assert_eq!(socket_path("unix:///run/x.sock"), Path::new("/run/x.sock"));
        assert_eq!(socket_path("/run/x.sock"), Path::new("/run/x.sock"));
    }
}
