//! Static pods from a web address: asked again and again, taken over when its content changes.
//!
//! A server that is away, or an answer that is wrong, leaves the pods of the last good answer alone; an empty answer means no pods. Until the
//! first good answer the source has not spoken, and nothing that runs is cleaned up. Upstream counterpart: `pkg/kubelet/config/http.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Collected, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Pod;
use kube_common::yaml;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::manifest::{self, Origin};
use super::{PodSet, Teller, keep_same, publish, refuse, seen};
use crate::pod;

/// Time for a whole answer (upstream's client has the same).
const TIMEOUT: Duration = Duration::from_secs(10);
/// Redirects followed.
const MAX_REDIRECTS: u32 = 10;
/// First pause after a failure; it doubles up to the period, so that pods need not wait for a server that comes up a moment late.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// What a configured address must be.
///
/// # Errors
/// What is wrong with it.
pub fn address(text: &str) -> Result<Uri, String> {
    let uri: Uri = text.parse().map_err(|e| format!("{text:?} is no URL: {e}"))?;
    match uri.scheme_str() {
        // It is shown in logs and events.
        Some("http" | "https") if uri.authority().is_some_and(|a| a.as_str().contains('@')) => Err(
            "user and password cannot stand in the URL; give them as staticPodURLHeader: {Authorization: [Basic …]}"
                .into(),
        ),
        Some("http" | "https") if uri.host().is_some_and(|host| !host.is_empty()) => Ok(uri),
        _ => Err(format!("{text:?} must begin with http:// or https:// and a host")),
    }
}

/// Headers that cannot be sent: name and what is wrong.
#[must_use]
pub fn header_problems(headers: &BTreeMap<String, Vec<String>>) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (name, values) in headers {
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            out.push((name.clone(), format!("{name:?} is no name of a header")));
        }
        // Values may be secret: they are not shown.
        out.extend(
            values
                .iter()
                .filter(|value| HeaderValue::from_str(value).is_err())
                .map(|_| (name.clone(), "a value has characters that a header cannot have".to_owned())),
        );
    }
    out
}

/// Why there is no answer that could be read.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("no answer within {TIMEOUT:?}")]
    Timeout,
    #[error("{0}")]
    Request(String),
    #[error("answered {0}")]
    Status(StatusCode),
    #[error("more than {MAX_REDIRECTS} redirects")]
    Redirects,
    #[error("the answer is longer than the {} bytes that are read at most, or broke off", yaml::MAX_BYTES)]
    Body,
}

type Https = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// The state of a web address.
pub struct Remote {
    url: String,
    headers: HeaderMap,
    node: String,
    teller: Option<Teller>,
    /// The last answer that was looked at.
    last: Option<Bytes>,
    pods: Vec<Arc<Pod>>,
}

/// The root of an error says more than the layers above it: "connection refused".
fn root(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// A client for both schemes. Only one that is asked for needs the system's certificate authorities.
fn client(https: bool) -> Result<Https, FetchError> {
    kube_common::tls::install_ring();
    let builder = if https {
        HttpsConnectorBuilder::new()
            .with_native_roots()
            .map_err(|e| FetchError::Request(format!("the system's certificate authorities cannot be read: {e}")))?
    } else {
        let none = rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty());
        HttpsConnectorBuilder::new().with_tls_config(none.with_no_client_auth())
    };
    let connector = builder.https_or_http().enable_http1().build();
    // No connection is kept between two reads.
    Ok(Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector))
}

impl Remote {
    /// An address that has not been asked yet. What [`header_problems`] finds is left out.
    #[must_use]
    pub fn new(url: &str, headers: &BTreeMap<String, Vec<String>>, node: &str, teller: Option<Teller>) -> Self {
        let mut map = HeaderMap::new();
        for (name, value) in headers.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value))) {
            if let (Ok(name), Ok(mut value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
                value.set_sensitive(true);
                map.append(name, value);
            }
        }
        Self { url: url.to_owned(), headers: map, node: node.to_owned(), teller, last: None, pods: Vec::new() }
    }

    async fn fetch(&self) -> Result<Bytes, FetchError> {
        let https = self.url.starts_with("https:");
        let client = tokio::task::spawn_blocking(move || client(https))
            .await
            .map_err(|error| FetchError::Request(error.to_string()))??;
        let mut uri = address(&self.url).map_err(FetchError::Request)?;
        let first = uri.authority().cloned();
        for _ in 0..=MAX_REDIRECTS {
            let mut request =
                Request::get(uri.clone()).body(Empty::new()).map_err(|e| FetchError::Request(e.to_string()))?;
            // The headers may hold credentials: they are for the configured host alone.
            if uri.authority() == first.as_ref() {
                request.headers_mut().extend(self.headers.clone());
            }
            let response = client.request(request).await.map_err(|e| FetchError::Request(root(&e)))?;
            let status = response.status();
            if status.is_redirection()
                && let Some(next) = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok())
            {
                let next = crate::probe::http::resolve(&uri, next);
                uri = address(&next).map_err(FetchError::Request)?;
                continue;
            }
            // As upstream: a 204 of something in between is no list without pods.
            if status != StatusCode::OK {
                return Err(FetchError::Status(status));
            }
            let body = Limited::new(response.into_body(), yaml::MAX_BYTES);
            return body.collect().await.map(Collected::to_bytes).map_err(|_| FetchError::Body);
        }
        Err(FetchError::Redirects)
    }

    /// Takes an answer over; the error says why it cannot be used, and the pods stay as they were.
    fn take(&mut self, answer: &Bytes) -> Result<(), String> {
        if self.last.as_ref() == Some(answer) {
            return Ok(());
        }
        self.last = Some(answer.clone());
        if answer.is_empty() {
            self.pods.clear();
            return Ok(());
        }
        let text = std::str::from_utf8(answer)
            .map_err(|e| format!("{}: not UTF-8 from byte {}", self.url, e.valid_up_to()))?;
        let found =
            manifest::parse_from(Origin::Url(&self.url), text, &self.node, &seen()).map_err(|e| e.to_string())?;
        for text in found.unknown {
            error!("{text} (ignored)");
        }
        self.pods = found.pods.into_iter().map(|pod| keep_same(&self.pods, pod)).collect();
        for pod in &self.pods {
            info!(url = %Path::new(&self.url).display(), pod = %pod::display(pod), "static pod");
        }
        Ok(())
    }

    /// Asks once.
    ///
    /// # Errors
    /// Why there are no pods.
    pub async fn once(&mut self) -> Result<PodSet, String> {
        let fetched = tokio::time::timeout(TIMEOUT, self.fetch()).await.unwrap_or(Err(FetchError::Timeout));
        let answer = fetched.map_err(|error| format!("{}: {error}", self.url))?;
        self.take(&answer)?;
        Ok(self.set())
    }

    fn set(&self) -> PodSet {
        let mut names = BTreeSet::new();
        let mut out = PodSet::new();
        for pod in &self.pods {
            if names.insert(pod::full_name(pod)) {
                out.insert(pod::uid(pod).to_owned(), pod.clone());
            } else {
                warn!(url = self.url, pod = pod::full_name(pod), "this pod is there twice; the first is taken");
            }
        }
        out
    }
}

/// Asks the address every `period` until `stop`.
pub async fn run(mut remote: Remote, period: Duration, out: watch::Sender<Option<PodSet>>, stop: CancellationToken) {
    let mut retry = RETRY_MIN;
    let mut failing = false;
    let mut wrong = false;
    loop {
        let fetched = tokio::select! {
            () = stop.cancelled() => return,
            fetched = tokio::time::timeout(TIMEOUT, remote.fetch()) => fetched.unwrap_or(Err(FetchError::Timeout)),
        };
        let pause = match fetched {
            Ok(answer) => {
                if std::mem::take(&mut failing) {
                    info!(url = remote.url, "static pod manifests can be read again");
                }
                retry = RETRY_MIN;
                let known = remote.last.as_ref() == Some(&answer);
                match remote.take(&answer) {
                    Err(message) => {
                        wrong = true;
                        refuse(remote.teller.as_ref(), !remote.pods.is_empty(), &message);
                    }
                    Ok(()) => wrong &= known,
                }
                if let Some(teller) = &remote.teller {
                    teller.wrong(usize::from(wrong));
                }
                if !wrong {
                    publish(remote.set(), &out);
                }
                period
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    let next = "what it gave before runs on; it is asked again until it answers";
                    warn!(url = remote.url, %error, "static pod manifests cannot be read; {next}");
                }
                let pause = retry.min(period);
                retry = (retry * 2).min(period);
                pause
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;
    use crate::events::{Entry, Recorder};
    use crate::flight::Flight;
    use crate::metrics::Metrics;

    const PERIOD: Duration = Duration::from_millis(20);

    fn manifest(name: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: a, image: i}}]}}\n"
        )
    }

    fn answer(status: &str, more: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{more}\r\n{body}", body.len())
    }

    /// A server that gives one answer after the other, the last one for ever; and the requests it has got.
    async fn serve(answers: Vec<String>) -> (u16, Arc<parking_lot::Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let (log, next) = (seen.clone(), AtomicUsize::new(0));
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap_or(0);
                log.lock().push(String::from_utf8_lossy(&request[..length]).into_owned());
                let index = next.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1);
                let _ = stream.write_all(answers[index].as_bytes()).await;
            }
        });
        (port, seen)
    }

    struct Source {
        feed: watch::Receiver<Option<PodSet>>,
        metrics: Metrics,
        events: mpsc::Receiver<Entry>,
        _stop: tokio_util::sync::DropGuard,
        _folder: tempfile::TempDir,
    }

    fn follow(url: &str, headers: &BTreeMap<String, Vec<String>>) -> Source {
        let stop = CancellationToken::new();
        let folder = tempfile::tempdir().unwrap();
        let (flight, _) = Flight::new(folder.path(), stop.clone());
        let (recorder, events) = Recorder::new("n", flight);
        let metrics = Metrics::default();
        let remote = Remote::new(url, headers, "n", Some(Teller::new(recorder, metrics.clone(), "http")));
        let (tx, feed) = watch::channel(None);
        tokio::spawn(run(remote, PERIOD, tx, stop.clone()));
        Source { feed, metrics, events, _stop: stop.drop_guard(), _folder: folder }
    }

    async fn names(source: &mut Source) -> Vec<String> {
        tokio::time::timeout(Duration::from_secs(10), source.feed.changed()).await.unwrap().unwrap();
        source.feed.borrow_and_update().as_ref().unwrap().values().map(|pod| pod::name(pod).to_owned()).collect()
    }

    #[tokio::test]
    async fn pods_follow_the_answers() {
        let list = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: b}\n  spec: {containers: [{name: c, image: i}]}\n";
        let (port, _) = serve(vec![
            answer("500 Sorry", "", ""),
            answer("200 OK", "", &manifest("a")),
            answer("200 OK", "", "kind: {"),
            answer("404 Not Found", "", ""),
            answer("204 No Content", "", ""),
            answer("200 OK", "", "# nothing yet\n"),
            answer("200 OK", "", list),
            answer("200 OK", "", ""),
        ])
        .await;
        let mut source = follow(&format!("http://127.0.0.1:{port}/pods"), &BTreeMap::new());
        assert_eq!(names(&mut source).await, ["a-n"]);
        let pod = source.feed.borrow().as_ref().unwrap().values().next().unwrap().clone();
        assert_eq!(pod::annotation(&pod, pod::CONFIG_SOURCE), Some("http"));
        assert!(pod::is_static(&pod));
        // Neither the wrong answer nor the failure took it away: the next set is that of the list.
        assert_eq!(names(&mut source).await, ["b-n"]);
        let event = source.events.try_recv().unwrap();
        assert!(format!("{event:?}").contains("InvalidStaticPodManifest"), "{event:?}");
        assert_eq!(names(&mut source).await, [""; 0]);
        let endpoints = kube_common::serve::Endpoints::new();
        source.metrics.register(&endpoints, "n");
        let text = endpoints.metrics_text();
        assert!(text.contains("kubelet_invalid_static_pod_manifests{source=\"http\"} 0"), "{text}");
    }

    #[tokio::test]
    async fn headers_go_to_the_configured_host_alone() {
        let (other, seen_there) = serve(vec![answer("200 OK", "", &manifest("a"))]).await;
        let away = answer("302 Found", &format!("Location: http://localhost:{other}/x\r\n"), "");
        let (port, seen_here) = serve(vec![away]).await;
        let headers = BTreeMap::from([("X-Secret".to_owned(), vec!["one".to_owned(), "two".to_owned()])]);
        let mut source = follow(&format!("http://127.0.0.1:{port}/"), &headers);
        assert_eq!(names(&mut source).await, ["a-n"]);
        let here = seen_here.lock()[0].to_lowercase();
        assert!(here.contains("x-secret: one") && here.contains("x-secret: two"), "{here}");
        let there = seen_there.lock()[0].to_lowercase();
        assert!(there.starts_with("get /x ") && !there.contains("secret"), "{there}");
    }

    #[tokio::test]
    async fn an_answer_without_end_is_refused() {
        let endless = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", "a".repeat(yaml::MAX_BYTES + 1));
        let (port, _) = serve(vec![endless, answer("200 OK", "", &manifest("a"))]).await;
        let mut source = follow(&format!("http://127.0.0.1:{port}/"), &BTreeMap::new());
        assert_eq!(names(&mut source).await, ["a-n"]);
    }

    #[test]
    fn the_same_manifest_has_the_same_uid_on_every_node() {
        let uid = |node: &str, origin| {
            let found = manifest::parse_from(origin, &manifest("a"), node, "now").unwrap();
            pod::uid(&found.pods[0]).to_owned()
        };
        let (url, file) = (Origin::Url("http://h/p"), Origin::File(Path::new("/p")));
        assert_eq!(uid("one", url), uid("two", url));
        assert_ne!(uid("one", file), uid("two", file));
    }

    #[test]
    fn addresses_and_headers_are_checked() {
        assert!(address("https://h:8080/x?y").is_ok());
        for wrong in ["ftp://h/", "h/x", "http://", "http:///x", "http://a b/", "http://u:p@h/", ""] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
        let headers = BTreeMap::from([
            ("Good".to_owned(), vec!["x".to_owned()]),
            ("Not good".to_owned(), vec!["x".to_owned()]),
            ("Value".to_owned(), vec!["secret\n".to_owned()]),
        ]);
        let problems = header_problems(&headers);
        assert_eq!(problems.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["Not good", "Value"]);
        assert!(problems.iter().all(|(_, text)| !text.contains("secret")));
    }
}
