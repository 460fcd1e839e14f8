//! The local socket that `agent explain` and `agent pods` ask: HTTP on a Unix socket that only root can open.
//!
//! | request | answer |
//! |---|---|
//! | `GET /pods` | the node's pods, a list of [`Row`] |
//! | `GET /explain?pod=NAMESPACE/NAME[&at=NANOSECONDS][&uid=UID]` | an [`Explanation`], or 404 |

use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use kube_common::tasks::Tasks;
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::explain::{Explanation, explain};
use super::{Flight, disk, folder};
use crate::agent::Handles;
use crate::clock;
use crate::pod;

/// Connections at once.
const CONNECTIONS: usize = 8;
/// How long a client may take to send its request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between looks at what takes long.
const SLOW_LOOK: Duration = Duration::from_secs(1);

/// The socket in the agent's state directory.
#[must_use]
pub fn socket(root_dir: &Path) -> PathBuf {
    root_dir.join("agent.sock")
}

/// A pod of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `api`, `manifest`.
    pub source: String,
    /// `Pending`, `Running`, … or `Terminating`.
    pub phase: String,
    /// Main containers and sidecars that are ready.
    pub ready: usize,
    /// Main containers and sidecars.
    pub containers: usize,
    /// Restarts of all of them.
    pub restarts: i64,
    /// First address.
    pub ip: String,
    /// When it was started here, nanoseconds since the epoch; 0 when not yet.
    pub started_ns: i64,
    /// The step it is in.
    pub doing: Option<String>,
    /// Since when, nanoseconds since the epoch.
    pub doing_since_ns: Option<i64>,
    /// Why a container waits, if one does.
    pub waiting: Option<String>,
}

/// Starts the socket, and what tells slow steps in the pods' status.
pub fn start(handles: Handles, tasks: &Tasks, stop: CancellationToken) {
    tasks.spawn("slow-steps", tell_slow(handles.clone(), stop.clone()));
    let path = socket(&handles.config.node.root_dir);
    // Only one agent runs on a state directory: what lies there is left from a kill.
    let _ = std::fs::remove_file(&path);
    let bound = UnixListener::bind(&path).and_then(|listener| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map(|()| listener)
    });
    match bound {
        Ok(listener) => tasks.spawn("local-socket", serve(listener, path, handles, stop)),
        Err(error) => {
            warn!("cannot listen on {}: {error}; `agent explain` will answer from files only", path.display());
        }
    }
}

async fn tell_slow(handles: Handles, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(SLOW_LOOK)).await.is_some() {
        handles.statuses.blocked(&handles.flight.slow());
    }
}

async fn serve(listener: UnixListener, path: PathBuf, handles: Handles, stop: CancellationToken) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    while let Some(Ok(slot)) = stop.run_until_cancelled(slots.clone().acquire_owned()).await {
        let Some(accepted) = stop.run_until_cancelled(listener.accept()).await else { break };
        let Ok((stream, _)) = accepted else { continue };
        let (handles, stop) = (handles.clone(), stop.clone());
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| answer(handles.clone(), request));
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            let _ = stop.run_until_cancelled(connection).await;
            drop(slot);
        });
    }
    if let Err(error) = std::fs::remove_file(&path) {
        info!("cannot remove {}: {error}", path.display());
    }
}

async fn answer(handles: Handles, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    Ok(match request.uri().path() {
        "/pods" => json(StatusCode::OK, &rows(&handles)),
        "/explain" => match asked(&handles.flight, &handles.config.node.root_dir, &query).await {
            Ok(explanation) => json(StatusCode::OK, &explanation),
            Err(text) => json(StatusCode::NOT_FOUND, &text),
        },
        _ => json(StatusCode::NOT_FOUND, &"there are /pods and /explain"),
    })
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Full<Bytes>> {
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

async fn asked(flight: &Flight, root_dir: &Path, query: &str) -> Result<Explanation, String> {
    let value = |key: &str| query.split('&').find_map(|part| part.strip_prefix(key)?.strip_prefix('='));
    let pod = value("pod").ok_or("which pod? ?pod=NAMESPACE/NAME")?.to_owned();
    let at = match value("at") {
        Some(text) => text.parse().map_err(|_| "at= takes nanoseconds since the epoch".to_owned())?,
        None => clock::now(),
    };
    let (uid, root_dir) = (value("uid").map(str::to_owned), root_dir.to_owned());
    flight.flush().await;
    let read = tokio::task::spawn_blocking(move || from_files(&root_dir, &pod, uid.as_deref(), at)).await;
    read.unwrap_or_else(|error| Err(format!("cannot read the records: {error}")))
}

/// An explanation from the files alone.
///
/// # Errors
/// What to tell who asked for a pod that they do not know.
pub fn from_files(root_dir: &Path, pod: &str, uid: Option<&str>, at: i64) -> Result<Explanation, String> {
    let folder = folder(root_dir);
    // Lines of all pods (a start of the agent) have no name.
    let might = |text: &str| text.contains(pod) || !text.contains("\"pod\":");
    let keep =
        |line: &super::line::Line| line.uid.is_empty() || (line.pod == pod && uid.is_none_or(|uid| line.uid == uid));
    let lines = disk::read(&folder, might, keep);
    explain(&lines, at).ok_or_else(|| {
        let time = super::explain::time(at);
        format!("the agent knows nothing of a pod {pod} until {time}; `agent pods` lists those that are here now")
    })
}

fn rows(handles: &Handles) -> Vec<Row> {
    let pods = handles.view.borrow().pods.clone();
    pods.iter().map(|pod| row(handles, pod)).collect()
}

fn row(handles: &Handles, pod: &k8s_openapi::api::core::v1::Pod) -> Row {
    let status = handles.statuses.get(pod::uid(pod)).map(|status| (*status).clone()).unwrap_or_default();
    let sidecars = pod::init_containers(pod).iter().filter(|c| pod::is_sidecar(c));
    let names: Vec<&str> = sidecars.chain(pod::main_containers(pod)).map(|c| c.name.as_str()).collect();
    let all = || status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let doing = handles.flight.doing(pod::uid(pod));
    let phase = status.phase.clone().unwrap_or_else(|| "Pending".into());
    Row {
        namespace: pod::namespace(pod).to_owned(),
        name: pod::name(pod).to_owned(),
        uid: pod::uid(pod).to_owned(),
        source: if pod::is_static(pod) { "manifest" } else { "api" }.to_owned(),
        phase: if pod::is_deleted(pod) { "Terminating".into() } else { phase },
        ready: all().filter(|c| c.ready && names.contains(&c.name.as_str())).count(),
        containers: names.len(),
        restarts: all().map(|c| i64::from(c.restart_count)).sum(),
        ip: status.pod_ip.clone().unwrap_or_default(),
        started_ns: status.start_time.as_ref().map_or(0, |t| t.0.as_second().saturating_mul(1_000_000_000)),
        doing_since_ns: doing.as_ref().map(|(_, since)| *since),
        doing: doing.map(|(step, _)| step),
        waiting: all().find_map(|c| c.state.as_ref()?.waiting.as_ref()?.reason.clone()),
    }
}
