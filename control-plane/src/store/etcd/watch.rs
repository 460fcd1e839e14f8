//! The log of etcd from a revision on.
//!
//! It is a watch over all keys, not only ours: so every revision has an event, and a reader of the log knows how far it is.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tonic::Streaming;

use super::endpoints::{Endpoints, Failure, REQUEST_TIMEOUT};
use super::wire::{self, WatchCreateRequest, WatchEvent, WatchResponse};
use super::{Event, Names, Revision, StoreError, WatchStream, signed};

/// Batches that wait for a reader; more wait in the connection and then in etcd.
const QUEUE: usize = 16;

pub(super) async fn start(endpoints: Arc<Endpoints>, names: Names, from: Revision) -> Result<WatchStream, StoreError> {
    let (at, client) = endpoints.client();
    let request = WatchCreateRequest {
        key: Bytes::from_static(wire::ALL),
        range_end: Bytes::from_static(wire::ALL),
        // From the revision before: a compaction up to `from` itself, which may drop a deletion at `from`, then ends the watch.
        start_revision: signed(from.saturating_sub(1).max(1)),
    };
    let failure = match tokio::time::timeout(REQUEST_TIMEOUT, client.watch(request)).await {
        Ok(Ok(stream)) => return Ok(spawn(endpoints, at, stream, names, from)),
        Ok(Err(status)) => Failure::Status(Box::new(status)),
        Err(_) => Failure::Silent,
    };
    endpoints.failed(at);
    Err(StoreError::Read(failure.to_string()))
}

fn spawn(
    endpoints: Arc<Endpoints>,
    at: usize,
    stream: Streaming<WatchResponse>,
    names: Names,
    from: Revision,
) -> WatchStream {
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            why = forward(stream, &names, from, &sender) => {
                if let Some(why) = why {
                    tracing::warn!(%why, "the watch of etcd ended");
                }
                endpoints.failed(at);
            }
        }
    });
    WatchStream::new(receiver)
}

/// Passes events on until the watch ends; why it did.
async fn forward(
    mut stream: Streaming<WatchResponse>,
    names: &Names,
    from: Revision,
    sender: &mpsc::Sender<Arc<[Event]>>,
) -> Option<String> {
    loop {
        let response = match stream.message().await {
            Ok(Some(response)) => response,
            Ok(None) => return Some("etcd closed it".to_owned()),
            Err(status) => return Some(Failure::Status(Box::new(status)).to_string()),
        };
        if response.canceled {
            let WatchResponse { cancel_reason: why, compact_revision, .. } = response;
            return Some(format!("it was cancelled: {why} (compacted up to revision {compact_revision})"));
        }
        let events = response.events.into_iter().filter_map(|event| convert(event, names));
        let batch: Arc<[Event]> = events.filter(|event| event.revision >= from).collect();
        if !batch.is_empty() && sender.send(batch).await.is_err() {
            return None;
        }
    }
}

/// Of somebody else's key only the revision is told.
fn convert(event: WatchEvent, names: &Names) -> Option<Event> {
    let kv = event.kv?;
    let key = names.inner(&kv.key);
    let put = event.kind == 0 && !key.is_empty();
    Some(Event { revision: kv.mod_revision.cast_unsigned(), key, value: put.then_some(kv.value) })
}
