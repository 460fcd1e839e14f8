//! containerd's own event stream as hints that something changed.
//!
//! A hint names a container or sandbox; it says nothing that is believed without a read ([`crate::pleg`]).
//! When the stream breaks the reader says so, so that the full relist becomes frequent until it is back.

use std::path::PathBuf;
use std::time::Duration;

use containerd_client::events::{TaskExit, TaskOom, TaskStart};
use containerd_client::services::v1::SubscribeRequest;
use containerd_client::services::v1::events_client::EventsClient;
use prost::Message;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::cri::channel;
use crate::clock;

/// First pause before a lost stream is opened again.
const RECONNECT_MIN: Duration = Duration::from_millis(100);
/// Longest pause before a lost stream is opened again.
const RECONNECT_MAX: Duration = Duration::from_secs(3);

/// What happened, according to the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The stream is open: events flow from now on.
    Connected,
    /// The stream is lost: events were or will be missed.
    Lost,
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
}

/// Reads the events of containerd's CRI namespace until `stop`, sending hints.
pub async fn read(socket: PathBuf, hints: mpsc::Sender<Hint>, stop: CancellationToken) {
    let mut pause = RECONNECT_MIN;
    let mut announced = false;
    loop {
        let outcome = tokio::select! {
            () = stop.cancelled() => return,
            outcome = read_once(&socket, &hints) => outcome,
        };
        match outcome {
            Ended::Closed(had_events) => {
                if had_events {
                    pause = RECONNECT_MIN;
                }
                debug!("containerd's event stream ended");
            }
            Ended::Failed(message) => {
                if !announced {
                    warn!(
                        "no containerd event stream at {} ({message}); reading everything each second instead",
                        socket.display()
                    );
                    announced = true;
                }
            }
            Ended::ReceiverGone => return,
        }
        if hints.send(Hint::Lost).await.is_err() {
            return;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(RECONNECT_MAX);
    }
}

enum Ended {
    Closed(bool),
    Failed(String),
    ReceiverGone,
}

async fn read_once(socket: &std::path::Path, hints: &mpsc::Sender<Hint>) -> Ended {
    let mut client = EventsClient::new(channel(socket));
    let filters = ["/tasks/start", "/tasks/exit", "/tasks/oom", "/containers/delete"]
        .iter()
        .map(|topic| format!("topic==\"{topic}\",namespace==k8s.io"))
        .collect();
    let mut stream = match client.subscribe(SubscribeRequest { filters }).await {
        Ok(response) => response.into_inner(),
        Err(status) => return Ended::Failed(status.message().to_owned()),
    };
    if hints.send(Hint::Connected).await.is_err() {
        return Ended::ReceiverGone;
    }
    let mut any = false;
    loop {
        match stream.message().await {
            Ok(Some(envelope)) => {
                any = true;
                let Some(event) = envelope.event else { continue };
                let Some(hint) = decode(&envelope.topic, &event.value) else { continue };
                if hints.send(hint).await.is_err() {
                    return Ended::ReceiverGone;
                }
            }
            Ok(None) | Err(_) => return Ended::Closed(any),
        }
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
