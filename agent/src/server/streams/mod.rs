//! `/exec`, `/attach`, `/portForward` and `/run`.
//!
//! Everything that can be found out before the upgrade is (pod, container, protocol, the runtime's consent), so that a client gets a
//! status that tells. After it, a client's protocol ends here: exec and attach are bridged to the runtime's streaming server, ports are
//! dialled inside the pod's network namespace. Sessions hold a place each and end with the agent.
//!
//! Upstream counterparts: `pkg/kubelet/server` and `k8s.io/kubelet/pkg/cri/streaming`. Upstream copies bytes between client and runtime;
//! here both ends are spoken, because runtimes know no version 5 (half-close), and containerd cuts half-closed forwards after a second.

mod forward;
mod remote;

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use keelson_streaming::upgrade::{self, NoUpgrade};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::NodeView;
use super::container_logs::{pairs, percent_decode};
use super::routes::{Answer, text, too_many};

/// Sessions at once; more are answered with 429. A thousand idle ones are to fit, and each takes two descriptors.
const MAX_SESSIONS: usize = 2000;

/// The four endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Exec,
    Attach,
    PortForward,
    Run,
}

impl Endpoint {
    /// By the first part of a path; gives the rest as well.
    pub fn of(path: &str) -> Option<(Self, &str)> {
        let (first, rest) = path.trim_start_matches('/').split_once('/')?;
        let endpoint = match first {
            "exec" => Self::Exec,
            "attach" => Self::Attach,
            "portForward" => Self::PortForward,
            "run" => Self::Run,
            _ => return None,
        };
        Some((endpoint, rest))
    }
}

/// Whom a path means.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    namespace: String,
    pod: String,
    uid: Option<String>,
    /// Empty for port-forward.
    container: String,
}

impl Target {
    /// `NAMESPACE/POD[/UID]/CONTAINER`, without the container for port-forward.
    fn parse(endpoint: Endpoint, rest: &str) -> Option<Self> {
        let mut parts: Vec<String> = rest.split('/').map(percent_decode).collect();
        let container = if endpoint == Endpoint::PortForward { String::new() } else { parts.pop()? };
        let mut parts = parts.into_iter();
        let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next());
        let whole = parts.next().is_none() && !namespace.is_empty() && !pod.is_empty();
        let named = endpoint == Endpoint::PortForward || !container.is_empty();
        (whole && named).then_some(Self { namespace, pod, uid, container })
    }
}

/// The running instance of a container, by its status.
fn running(pod: &Pod, container: &str) -> Option<String> {
    let status = pod.status.as_ref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let found = lists.into_iter().flatten().flatten().find(|status| status.name == container)?;
    found.state.as_ref()?.running.as_ref()?;
    let id = found.container_id.as_deref()?;
    Some(id.split_once("://").map_or(id, |(_, bare)| bare).to_owned())
}

/// What all sessions share.
pub(super) struct Streams {
    places: Arc<Semaphore>,
    idle: Duration,
}

/// What a session needs besides its request.
struct Context {
    view: Arc<dyn NodeView>,
    pod: Arc<Pod>,
    idle: Duration,
    stop: CancellationToken,
    place: tokio::sync::OwnedSemaphorePermit,
}

fn refused(error: &NoUpgrade) -> Answer {
    let mut answer = text(error.status(), error.to_string());
    error.headers(answer.headers_mut());
    answer
}

impl Streams {
    pub fn new(idle: Duration) -> Self {
        Self { places: Arc::new(Semaphore::new(MAX_SESSIONS)), idle }
    }

    /// Answers a request that was authorised.
    pub async fn answer<B: Send>(
        &self,
        view: &Arc<dyn NodeView>,
        endpoint: Endpoint,
        rest: &str,
        request: Request<B>,
        stop: CancellationToken,
    ) -> Answer {
        let allowed = match *request.method() {
            Method::POST => true,
            Method::GET => endpoint != Endpoint::Run,
            _ => false,
        };
        if !allowed {
            return text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        }
        let Some(target) = Target::parse(endpoint, rest) else {
            return text(StatusCode::NOT_FOUND, "404 page not found\n");
        };
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return too_many();
        };
        let pod = view.pod(&target.namespace, &target.pod);
        let pod = pod.filter(|pod| target.uid.is_none() || target.uid == pod.metadata.uid);
        let Some(pod) = pod else {
            return text(StatusCode::NOT_FOUND, "pod does not exist");
        };
        let query = request.uri().query().unwrap_or_default();
        let query: Vec<(String, String)> = pairs(query).collect();
        let context = Context { view: Arc::clone(view), pod, idle: self.idle, stop, place };
        if endpoint == Endpoint::Run {
            return remote::run(&context, &target.container, &query).await;
        }
        let wanted = match upgrade::wanted(request.headers()) {
            Ok(wanted) => wanted,
            Err(error) => return refused(&error),
        };
        let upgrade = hyper::upgrade::on(request);
        match endpoint {
            Endpoint::PortForward => forward::answer(context, wanted, &query, upgrade).await,
            _ => remote::answer(context, endpoint, &target.container, wanted, &query, upgrade).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let of = |path: &str| {
            let (endpoint, rest) = Endpoint::of(path)?;
            let target = Target::parse(endpoint, rest)?;
            Some((endpoint, target.namespace, target.pod, target.uid.unwrap_or_default(), target.container))
        };
        let s = str::to_owned;
        assert_eq!(of("/exec/d/p/c"), Some((Endpoint::Exec, s("d"), s("p"), s(""), s("c"))));
        assert_eq!(of("//attach/d/p/u/c"), Some((Endpoint::Attach, s("d"), s("p"), s("u"), s("c"))));
        assert_eq!(of("/portForward/d/p"), Some((Endpoint::PortForward, s("d"), s("p"), s(""), s(""))));
        assert_eq!(of("/portForward/d/p/u"), Some((Endpoint::PortForward, s("d"), s("p"), s("u"), s(""))));
        for path in ["/exec", "/exec/d", "/exec/d/p", "/exec/d/p/", "/exec/d/p/u/c/x", "/portForward/d", "/pods/d/p/c"]
        {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
