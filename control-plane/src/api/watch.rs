//! Watch: events from the cache as a stream of JSON lines.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Response, header};
use keelson_kinds::{ApiError, FieldError, Reason, Resource, table};
use rand::RngExt;
use serde_json::json;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use super::read::{self, list_option, not_older_than};
use super::wanted;
use crate::cache::{self, EventKind, Object, WatchError, Watcher};
use crate::http::Call;
use crate::http::body::{self, Body};
use crate::http::metrics::OpenWatch;
use crate::http::negotiate::Representation;
use crate::store::Revision;

/// Upstream's bookmark interval.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// Upstream's `--min-request-timeout`: a watch without a timeout ends after one to two times this.
const MIN_TIMEOUT_SECONDS: u64 = 1800;
/// Initial objects are sent in pieces of about this size.
const CHUNK: usize = 64 << 10;

struct Stream {
    res: &'static Resource,
    watcher: Watcher,
    initial: VecDeque<Arc<Object>>,
    /// Revision of the bookmark that ends the initial objects, while it is owed.
    end_of_initial: Option<Revision>,
    representation: Representation,
    bookmarks: bool,
    next_bookmark: Pin<Box<Sleep>>,
    deadline: Pin<Box<Sleep>>,
    shutdown: CancellationToken,
    _open: OpenWatch,
}

/// GET with `watch=true`.
///
/// # Errors
/// 400, 422, 504; a revision that is too old is answered within the stream, as upstream does.
pub async fn watch(call: &Call) -> Result<Response<Body>, ApiError> {
    let filter = Arc::new(read::filter(call)?);
    let cache = call.server.cache(call.res)?;
    let version = read::revision(call.query.get("resourceVersion"))?;
    let bookmarks = call.query.flag("allowWatchBookmarks");
    let initial_events = match call.query.get("sendInitialEvents") {
        "" => None,
        _ => Some(call.query.flag("sendInitialEvents")),
    };
    check_initial(call, initial_events)?;
    let from = match (initial_events, version) {
        (Some(true), version) => {
            not_older_than(&call.server, version.unwrap_or(0)).await?;
            None
        }
        (Some(false), None | Some(0)) => Some(call.server.hub.revision()),
        (None, None | Some(0)) => None,
        (_, Some(version)) => {
            not_older_than(&call.server, version).await?;
            Some(version)
        }
    };
    let mut watcher = match cache.watch(from, filter) {
        Ok(watcher) => watcher,
        Err(error @ WatchError::TooOld { .. }) => {
            let status = ApiError::new(Reason::Expired, error.to_string()).to_status();
            return Ok(response(body::full(cache::error_line(&status))));
        }
    };
    let timeout = match call.query.get("timeoutSeconds").parse::<u64>() {
        Ok(seconds) if seconds > 0 => seconds,
        _ => rand::rng().random_range(MIN_TIMEOUT_SECONDS..2 * MIN_TIMEOUT_SECONDS),
    };
    let stream = Stream {
        res: call.res,
        initial: std::mem::take(&mut watcher.initial).into(),
        end_of_initial: (initial_events == Some(true) && bookmarks).then_some(watcher.revision),
        watcher,
        representation: wanted(call),
        bookmarks,
        next_bookmark: Box::pin(tokio::time::sleep(BOOKMARK_INTERVAL)),
        deadline: Box::pin(tokio::time::sleep(Duration::from_secs(timeout))),
        shutdown: call.server.shutdown.clone(),
        _open: call.server.metrics.open_watch(),
    };
    let lines = futures::stream::unfold(stream, |mut stream| async move {
        let bytes = stream.next().await?;
        Some((Ok(bytes), stream))
    });
    Ok(response(body::streamed(lines)))
}

fn check_initial(call: &Call, initial_events: Option<bool>) -> Result<(), ApiError> {
    let matching = call.query.get("resourceVersionMatch");
    let forbidden = |field: &str, why: &str| Err(list_option(FieldError::forbidden(field, why)));
    match (initial_events, matching) {
        (None, "") => Ok(()),
        (None, _) => forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
        (Some(_), "") => {
            forbidden("resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        }
        (Some(true), "NotOlderThan") if !call.query.flag("allowWatchBookmarks") => {
            forbidden("allowWatchBookmarks", "sendInitialEvents requires setting allowWatchBookmarks to true")
        }
        (Some(_), "NotOlderThan") => Ok(()),
        (Some(_), other) => {
            Err(list_option(FieldError::not_supported("resourceVersionMatch", other, &["NotOlderThan"])))
        }
    }
}

fn response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        if !self.initial.is_empty() {
            return Some(self.initial_chunk());
        }
        if let Some(revision) = self.end_of_initial.take() {
            return Some(self.bookmark(revision, true));
        }
        loop {
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return None,
                event = self.watcher.next() => {
                    let (kind, event) = event?;
                    return Some(match self.representation {
                        Representation::Table => event.table_line(kind, self.res),
                        Representation::Partial => event.partial_line(kind),
                        _ if !self.res.storage_version => cache::line(kind, &event.object.json_as(self.res)),
                        Representation::Plain | Representation::Discovery => event.line(kind),
                    });
                }
                () = &mut self.deadline => return None,
                () = &mut self.next_bookmark => {
                    self.next_bookmark.as_mut().reset(Instant::now() + BOOKMARK_INTERVAL);
                    if self.bookmarks
                        && let Some(revision) = self.watcher.progress()
                    {
                        return Some(self.bookmark(revision, false));
                    }
                }
            }
        }
    }

    fn initial_chunk(&mut self) -> Bytes {
        let mut out = BytesMut::new();
        while out.len() < CHUNK {
            let Some(object) = self.initial.pop_front() else { break };
            let line = match self.representation {
                Representation::Table => {
                    let value = object.value_as(self.res);
                    let meta = json!({"resourceVersion": object.revision.to_string()});
                    let now = jiff::Timestamp::now();
                    let include = table::IncludeObject::Metadata;
                    let table = table::render(self.res, &[&value], meta, include, now, true);
                    cache::line(EventKind::Added, table.to_string().as_bytes())
                }
                Representation::Partial => {
                    cache::line(EventKind::Added, table::partial(&object.value()).to_string().as_bytes())
                }
                Representation::Plain | Representation::Discovery => {
                    cache::line(EventKind::Added, &object.json_as(self.res))
                }
            };
            out.extend_from_slice(&line);
        }
        out.freeze()
    }

    fn bookmark(&self, revision: Revision, end_of_initial: bool) -> Bytes {
        let mut meta = json!({"resourceVersion": revision.to_string()});
        if end_of_initial {
            meta["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.representation {
            Representation::Table => {
                let row_object =
                    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta});
                json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": revision.to_string()}, "columnDefinitions": null,
                    "rows": [{"cells": [], "object": row_object}]})
            }
            Representation::Partial => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta})
            }
            Representation::Plain | Representation::Discovery => {
                json!({"kind": self.res.kind, "apiVersion": self.res.api_version(), "metadata": meta})
            }
        };
        format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n").into()
    }
}
