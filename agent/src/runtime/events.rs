//! The runtime's event streams as hints that something changed: containerd's own, and CRI's `GetContainerEvents` where the
//! runtime has it (containerd since 1.7, CRI-O).
//!
//! A hint says nothing that is believed without a read ([`crate::pleg`]). containerd's events come earliest, before CRI's
//! bookkeeping has the change; CRI's come when it has. When a stream breaks the reader says so, so that the full relist becomes
//! frequent until one is back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use containerd_client::events::{TaskExecStarted, TaskExit, TaskOom, TaskStart};
use containerd_client::services::v1::SubscribeRequest;
use containerd_client::services::v1::events_client::EventsClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::{ContainerEventResponse, ContainerEventType, GetEventsRequest};
use prost::Message;
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tracing::{debug, info, warn};

use super::cri::{NAMESPACE, channel};
use super::exec_scope::ExecStarted;
use crate::clock;
use crate::metrics::Metrics;

/// First pause before a lost stream is opened again.
const RECONNECT_MIN: Duration = Duration::from_millis(100);
/// Longest pause before a lost stream is opened again.
const RECONNECT_MAX: Duration = Duration::from_secs(3);
/// Pause before a runtime without CRI events is asked again: it may have been replaced by a later version.
const UNIMPLEMENTED_PAUSE: Duration = Duration::from_secs(60);

/// A stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// containerd's events.
    Containerd,
    /// CRI's `GetContainerEvents`.
    Cri,
}

impl Source {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Containerd, Self::Cri];

    /// Its word in metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Cri => "cri",
        }
    }
}

/// What happened, according to the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The stream is open: events flow from now on.
    Connected(Source),
    /// The stream is lost: events were or will be missed.
    Lost(Source),
    /// A container or sandbox started.
    Started(String),
    /// A container or sandbox ended.
    Exited {
        /// Its ID.
        id: String,
        /// Exit code.
        code: i32,
        /// When, nanoseconds since the epoch.
        at: i64,
    },
    /// A container met its memory limit.
    OutOfMemory(String),
    /// A container or sandbox was removed.
    Removed(String),
    /// CRI's bookkeeping of this pod (its UID) has changed.
    Changed(String),
}

impl Hint {
    /// What happened, in the words of CRI's events.
    const fn label(&self) -> &'static str {
        match self {
            Self::Started(_) => "started",
            Self::Exited { .. } => "stopped",
            Self::OutOfMemory(_) => "out_of_memory",
            Self::Removed(_) => "deleted",
            Self::Connected(_) | Self::Lost(_) | Self::Changed(_) => "other",
        }
    }
}

/// What a runtime tells by itself, and to whom it goes.
pub struct EventStreams {
    /// The runtime's socket.
    pub socket: PathBuf,
    /// Whether it is containerd, which has a stream of its own beside CRI's.
    pub containerd: bool,
    /// Where hints go.
    pub hints: mpsc::Sender<Hint>,
    /// Who began to run beside a container's first process.
    pub execs: broadcast::Sender<ExecStarted>,
    /// Counters.
    pub metrics: Metrics,
}

impl EventStreams {
    /// Reads all streams until `stop`.
    pub async fn read(self, stop: CancellationToken) {
        let Self { socket, hints, execs, metrics, .. } = &self;
        let own = async {
            if self.containerd {
                follow(Source::Containerd, hints, || containerd(socket, hints, execs, metrics)).await;
            }
        };
        let cri = follow(Source::Cri, hints, || cri(socket, hints, metrics));
        tokio::select! {
            () = stop.cancelled() => {}
            ((), ()) = async { tokio::join!(own, cri) } => {}
        }
    }
}

/// How a stream ended.
#[derive(Debug)]
enum Ended {
    /// It was open, and closed.
    Closed,
    /// It could not be opened.
    Failed(Status),
    /// Nobody wants hints any more.
    ReceiverGone,
}

/// Opens a stream again and again.
async fn follow<F: Future<Output = Ended>>(source: Source, hints: &mpsc::Sender<Hint>, mut once: impl FnMut() -> F) {
    let mut pause = RECONNECT_MIN;
    let mut announced = false;
    loop {
        match once().await {
            Ended::Closed => {
                debug!("the event stream of {source:?} ended");
                pause = RECONNECT_MIN;
                if hints.send(Hint::Lost(source)).await.is_err() {
                    return;
                }
            }
            Ended::Failed(status) if source == Source::Cri => {
                debug!("no event stream by CRI: {status}");
                if status.code() == Code::Unimplemented {
                    pause = UNIMPLEMENTED_PAUSE;
                }
            }
            Ended::Failed(status) => {
                if !std::mem::replace(&mut announced, true) {
                    let why = status.message();
                    warn!(
                        "no event stream of containerd ({why}); without one of CRI either everything is read each second"
                    );
                }
            }
            Ended::ReceiverGone => return,
        }
        if hints.is_closed() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_MAX.max(pause));
    }
}

async fn containerd(
    socket: &Path,
    hints: &mpsc::Sender<Hint>,
    execs: &broadcast::Sender<ExecStarted>,
    metrics: &Metrics,
) -> Ended {
    let mut client = EventsClient::new(channel(socket));
    let filters = ["/tasks/start", "/tasks/exec-started", "/tasks/exit", "/tasks/oom", "/containers/delete"]
        .iter()
        .map(|topic| format!("topic==\"{topic}\",namespace=={NAMESPACE}"))
        .collect();
    let mut stream = match client.subscribe(SubscribeRequest { filters }).await {
        Ok(response) => response.into_inner(),
        Err(status) => return Ended::Failed(status),
    };
    if hints.send(Hint::Connected(Source::Containerd)).await.is_err() {
        return Ended::ReceiverGone;
    }
    while let Ok(Some(envelope)) = stream.message().await {
        let Some(event) = envelope.event else { continue };
        if envelope.topic == "/tasks/exec-started" {
            if let Ok(TaskExecStarted { container_id, pid, .. }) = TaskExecStarted::decode(&*event.value) {
                // Nobody waits for it most of the time.
                let _ = execs.send(ExecStarted { container: container_id, pid });
            }
            continue;
        }
        let Some(hint) = decode(&envelope.topic, &event.value) else { continue };
        metrics.event(Source::Containerd, hint.label());
        if hints.send(hint).await.is_err() {
            return Ended::ReceiverGone;
        }
    }
    Ended::Closed
}

async fn cri(socket: &Path, hints: &mpsc::Sender<Hint>, metrics: &Metrics) -> Ended {
    let mut client = RuntimeServiceClient::new(channel(socket));
    // Runtimes answer with the first event, so the stream counts as open from then on.
    let mut stream = match client.get_container_events(GetEventsRequest {}).await {
        Ok(response) => response.into_inner(),
        Err(status) => return Ended::Failed(status),
    };
    let mut open = false;
    while let Ok(Some(event)) = stream.message().await {
        if !std::mem::replace(&mut open, true) {
            info!("the runtime tells of changes by CRI too");
            if hints.send(Hint::Connected(Source::Cri)).await.is_err() {
                return Ended::ReceiverGone;
            }
        }
        metrics.event(Source::Cri, kind(&event));
        if hints.send(changed(event)).await.is_err() {
            return Ended::ReceiverGone;
        }
    }
    // CRI-O closes the stream at once where its events are switched off.
    if open { Ended::Closed } else { Ended::Failed(Status::unimplemented("the stream ended without an event")) }
}

/// The pod of an event; of a removed sandbox nothing but its ID may be left.
fn changed(event: ContainerEventResponse) -> Hint {
    let uid = event.pod_sandbox_status.and_then(|sandbox| sandbox.metadata).map(|metadata| metadata.uid);
    match uid.filter(|uid| !uid.is_empty()) {
        Some(uid) => Hint::Changed(uid),
        None => Hint::Removed(event.container_id),
    }
}

fn kind(event: &ContainerEventResponse) -> &'static str {
    match event.container_event_type() {
        ContainerEventType::ContainerCreatedEvent => "created",
        ContainerEventType::ContainerStartedEvent => "started",
        ContainerEventType::ContainerStoppedEvent => "stopped",
        ContainerEventType::ContainerDeletedEvent => "deleted",
    }
}

fn decode(topic: &str, value: &[u8]) -> Option<Hint> {
    match topic {
        "/tasks/exit" => {
            let e = TaskExit::decode(value).ok()?;
            // An exec's end carries its own id.
            let own = e.id.is_empty() || e.id == e.container_id;
            let at = e.exited_at.map_or_else(clock::now, |t| t.seconds * 1_000_000_000 + i64::from(t.nanos));
            own.then_some(Hint::Exited { id: e.container_id, code: e.exit_status.cast_signed(), at })
        }
        "/tasks/start" => Some(Hint::Started(TaskStart::decode(value).ok()?.container_id)),
        "/tasks/oom" => Some(Hint::OutOfMemory(TaskOom::decode(value).ok()?.container_id)),
        "/containers/delete" => Some(Hint::Removed(containerd_client::events::ContainerDelete::decode(value).ok()?.id)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_cri_names_its_pod() {
        let mut event = ContainerEventResponse { container_id: "c".into(), ..ContainerEventResponse::default() };
        assert_eq!(changed(event.clone()), Hint::Removed("c".into()));
        let metadata = k8s_cri::v1::PodSandboxMetadata { uid: "u".into(), ..Default::default() };
        event.pod_sandbox_status.get_or_insert_default().metadata = Some(metadata);
        assert_eq!(changed(event), Hint::Changed("u".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_was_never_open_is_not_lost() {
        let (sender, mut hints) = mpsc::channel(8);
        let mut outcomes = vec![
            Ended::ReceiverGone,
            Ended::Failed(Status::unimplemented("old")),
            Ended::Closed,
            Ended::Failed(Status::unavailable("starting")),
        ];
        let begun = tokio::time::Instant::now();
        follow(Source::Cri, &sender, || std::future::ready(outcomes.pop().unwrap())).await;
        assert_eq!(hints.try_recv(), Ok(Hint::Lost(Source::Cri)));
        assert!(hints.try_recv().is_err());
        assert!(begun.elapsed() >= UNIMPLEMENTED_PAUSE);
    }

    #[test]
    fn exits_of_execs_are_no_hints() {
        let exit = |id: &str| {
            let mut event =
                TaskExit { container_id: "c".into(), id: id.into(), exit_status: 137, ..TaskExit::default() };
            let at = event.exited_at.get_or_insert_default();
            (at.seconds, at.nanos) = (2, 5);
            event.encode_to_vec()
        };
        let want = Hint::Exited { id: "c".into(), code: 137, at: 2_000_000_005 };
        assert_eq!(decode("/tasks/exit", &exit("c")), Some(want));
        assert_eq!(decode("/tasks/exit", &exit("exec-1")), None);
        assert_eq!(decode("/tasks/exit", &[0xff]), None);
        assert_eq!(decode("/other", &[]), None);
    }
}
