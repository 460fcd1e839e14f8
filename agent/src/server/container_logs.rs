//! `/containerLogs/<namespace>/<pod>/<container>`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http::StatusCode;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::routes::{Answer, text};
use super::{NodeView, ViewError};
use crate::logs::{self, LogOptions, StreamFilter};

/// Batches between the reader of the file and the client.
const PENDING: usize = 4;
/// How often a node that cannot tell of a container's end is asked.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What the query asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Query {
    options: LogOptions,
    previous: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BadQuery {
    Undecodable,
    Invalid,
}

/// Parses the query as upstream does: `false` and `0` are false, any other value is true.
fn parse_query(query: &str, now: Timestamp) -> Result<Query, BadQuery> {
    let mut options = LogOptions::default();
    let (mut previous, mut since_seconds, mut since_time) = (false, None, None);
    let flag = |value: &str| !(value == "0" || value.eq_ignore_ascii_case("false"));
    let number = |value: &str| value.parse::<i64>().map_err(|_| BadQuery::Undecodable);
    let positive = |value: i64, least: i64| {
        let fine = u64::try_from(value).ok().filter(|_| value >= least);
        fine.ok_or(BadQuery::Invalid)
    };
    let (mut tail, mut limit) = (None, None);
    for (key, value) in pairs(query) {
        match key.as_str() {
            "follow" => options.follow = flag(&value),
            "previous" => previous = flag(&value),
            "timestamps" => options.timestamps = flag(&value),
            "tailLines" => tail = Some(number(&value)?),
            // The oldest clients' name; "all" is no limit.
            "tail" if value != "all" && !value.is_empty() => tail = Some(number(&value)?),
            "limitBytes" => limit = Some(number(&value)?),
            "sinceSeconds" => since_seconds = Some(number(&value)?),
            "sinceTime" if !value.is_empty() => {
                since_time = Some(value.parse().map_err(|_| BadQuery::Undecodable)?);
            }
            "stream" => {
                options.stream = match value.as_str() {
                    "" | "All" => StreamFilter::All,
                    "Stdout" => StreamFilter::Stdout,
                    "Stderr" => StreamFilter::Stderr,
                    _ => return Err(BadQuery::Invalid),
                };
            }
            _ => {}
        }
    }
    options.tail = tail.map(|n| positive(n, 0)).transpose()?;
    options.limit_bytes = limit.map(|n| positive(n, 1)).transpose()?;
    options.since = match (since_seconds, since_time) {
        (Some(_), Some(_)) => return Err(BadQuery::Invalid),
        (Some(seconds), None) => {
            positive(seconds, 1)?;
            // Before the epoch of the type is before everything.
            let back = now.checked_sub(SignedDuration::from_secs(seconds));
            Some(back.unwrap_or(Timestamp::MIN))
        }
        (None, time) => time,
    };
    Ok(Query { options, previous })
}

pub(super) fn pairs(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (percent_decode(key), percent_decode(value))
    })
}

/// Undoes `%xx` and `+`; what does not decode stays as it is.
pub(super) fn percent_decode(text: &str) -> String {
    let hex = |byte: Option<&u8>| byte.and_then(|b| char::from(*b).to_digit(16));
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], hex(bytes.get(at + 1)), hex(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
                continue;
            }
            (b'+', _, _) => out.push(b' '),
            (byte, _, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Answers a request; `rest` is the path behind `/containerLogs/`.
pub(super) async fn answer(
    view: &Arc<dyn NodeView>,
    rest: &str,
    query: &str,
    stop: CancellationToken,
    permit: OwnedSemaphorePermit,
) -> Answer {
    let parts: Vec<String> = rest.split('/').map(percent_decode).collect();
    let [namespace, name, container] = parts.as_slice() else {
        return text(StatusCode::NOT_FOUND, "404 page not found\n");
    };
    let missing = |what: &str| {
        let body = format!("{{\"message\": \"Missing {what}.\"}}");
        text(StatusCode::BAD_REQUEST, body)
    };
    if name.is_empty() {
        return missing("podID");
    }
    if container.is_empty() {
        return missing("container name");
    }
    if namespace.is_empty() {
        return missing("podNamespace");
    }
    let query = match parse_query(query, Timestamp::now()) {
        Ok(query) => query,
        Err(BadQuery::Undecodable) => {
            let body = "{\"message\": \"Unable to decode query.\"}";
            return text(StatusCode::BAD_REQUEST, body);
        }
        Err(BadQuery::Invalid) => {
            let body = "{\"message\": \"Invalid request.\"}";
            return text(StatusCode::UNPROCESSABLE_ENTITY, body);
        }
    };
    let Some(pod) = view.pod(namespace, name) else {
        let body = format!("pod {name:?} does not exist\n");
        return text(StatusCode::NOT_FOUND, body);
    };
    if !has_container(&pod, container) {
        let body = format!("container {container:?} not found in pod {name:?}\n");
        return text(StatusCode::NOT_FOUND, body);
    }
    let id = match logs::container_id(&pod, container, query.previous) {
        Ok(id) => id,
        Err(error) => return text(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let log = match view.container_log(&id).await {
        Ok(log) => log,
        Err(error @ ViewError::NoContainer { .. }) => {
            let body = format!("unable to retrieve container logs: {error}");
            return text(StatusCode::BAD_REQUEST, body);
        }
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    // Found out before the answer begins, so that the client gets a status that tells.
    if let Err(error) = tokio::fs::metadata(&log.path).await {
        let body = format!("failed to open log file {:?}: {error}", log.path.display().to_string());
        return text(StatusCode::INTERNAL_SERVER_ERROR, body);
    }
    let ended: BoxFuture<'static, ()> = if !log.running {
        Box::pin(std::future::ready(()))
    } else if let Some(ended) = view.container_ended(&id) {
        ended
    } else {
        Box::pin(ask_until_ended(Arc::clone(view), id))
    };
    stream(log.path, query.options, ended, stop, permit)
}

fn stream(
    path: std::path::PathBuf,
    options: LogOptions,
    ended: BoxFuture<'static, ()>,
    stop: CancellationToken,
    permit: OwnedSemaphorePermit,
) -> Answer {
    let (sink, batches) = mpsc::channel::<Bytes>(PENDING);
    tokio::spawn(async move {
        let reading = logs::read(&path, options, ended, sink);
        let result = tokio::select! {
            result = reading => result,
            () = stop.cancelled() => Ok(()),
        };
        if let Err(error) = result {
            tracing::warn!(%error, "log stream broke off");
        }
        drop(permit);
    });
    let frames = ReceiverStream::new(batches).map(|batch| Ok(Frame::data(batch)));
    let mut answer = text(StatusCode::OK, "");
    *answer.body_mut() = BodyExt::boxed(StreamBody::new(frames));
    answer
}

async fn ask_until_ended(view: Arc<dyn NodeView>, id: String) {
    loop {
        tokio::time::sleep(ASK_AGAIN).await;
        match view.container_log(&id).await {
            Ok(log) if log.running => {}
            // The runtime may be restarting; the container goes on meanwhile.
            Err(ViewError::Runtime { .. }) => {}
            _ => return,
        }
    }
}

fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers).any(|c| c.name == name)
        || spec.ephemeral_containers.iter().flatten().any(|c| c.name == name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(query: &str) -> Result<Query, BadQuery> {
        parse_query(query, Timestamp::from_second(1_000_000).unwrap())
    }

    #[test]
    fn queries() {
        let query =
            parse("follow=true&previous=0&timestamps=&tailLines=5&limitBytes=9&sinceSeconds=10&stream=Stderr&other=x")
                .unwrap();
        assert!(query.options.follow && query.options.timestamps && !query.previous);
        assert_eq!((query.options.tail, query.options.limit_bytes), (Some(5), Some(9)));
        assert_eq!(query.options.since, Some(Timestamp::from_second(999_990).unwrap()));
        assert_eq!(query.options.stream, StreamFilter::Stderr);
        let time = parse("sinceTime=2016-10-06T00%3A17%3A09Z&tail=all").unwrap();
        assert_eq!(time.options.since, "2016-10-06T00:17:09Z".parse().ok());
        assert_eq!(parse("tail=3").unwrap().options.tail, Some(3));
        assert_eq!(parse("sinceSeconds=9223372036854775807").unwrap().options.since, Some(Timestamp::MIN));
        for (query, error) in [
            ("tailLines=x", BadQuery::Undecodable),
            ("sinceTime=yesterday", BadQuery::Undecodable),
            ("tailLines=-1", BadQuery::Invalid),
            ("limitBytes=0", BadQuery::Invalid),
            ("sinceSeconds=0", BadQuery::Invalid),
            ("stream=both", BadQuery::Invalid),
            ("sinceSeconds=1&sinceTime=2016-10-06T00:17:09Z", BadQuery::Invalid),
        ] {
            assert_eq!(parse(query), Err(error), "{query}");
        }
    }

    proptest! {
        #[test]
        fn no_query_panics(query in "\\PC{0,80}") {
            let _ = parse(&query);
            let _ = percent_decode(&query);
        }
    }
}
