//! From a request to its answer: authentication, authorisation, bounds, handler.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::authn::{Authenticator, PeerCertificate, Refused};
use super::authz::{Access, Authorization, Authorizer, Denied};
use super::container_logs;
use super::streams::{Endpoint, Streams};
use super::{MAX_LOG_STREAMS, MAX_REQUESTS, NodeView, ServerConfig, ServerError, ViewError};

pub(super) type Body = BoxBody<Bytes, std::io::Error>;
pub(super) type Answer = Response<Body>;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) struct Router {
    view: Arc<dyn NodeView>,
    authenticator: Authenticator,
    authorizer: Authorizer,
    requests: Arc<Semaphore>,
    log_streams: Arc<Semaphore>,
    streams: Streams,
}

/// An answer with a text body.
pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    typed(status, TEXT, body)
}

fn typed(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let full = Full::new(body.into()).map_err(|never| match never {}).boxed();
    let mut answer = Response::new(full);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(body) => typed(StatusCode::OK, JSON, body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

pub(super) fn too_many() -> Answer {
    let mut answer = text(StatusCode::TOO_MANY_REQUESTS, "too many requests to this node, try again later");
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

fn from_view<T: Serialize>(result: Result<T, ViewError>) -> Answer {
    match result {
        Ok(value) => json(&value),
        Err(error @ ViewError::NotServed { .. }) => text(StatusCode::NOT_IMPLEMENTED, error.to_string()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

#[derive(Serialize)]
struct PodList<'a, P> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    metadata: serde_json::Map<String, serde_json::Value>,
    items: &'a [P],
}

fn pod_list<P>(items: &[P]) -> PodList<'_, P> {
    PodList { kind: "PodList", api_version: "v1", metadata: serde_json::Map::new(), items }
}

impl Router {
    pub fn new(
        config: &ServerConfig,
        view: Arc<dyn NodeView>,
        client: Option<kube::Client>,
    ) -> Result<Self, ServerError> {
        let webhook = matches!(config.authorization, Authorization::Webhook { .. });
        if client.is_none() && webhook {
            return Err(ServerError::NoApi { what: "authorization.mode Webhook" });
        }
        let authorization = config.authorization.clone();
        Ok(Self {
            view,
            authenticator: Authenticator::new(config.authentication.clone(), client.clone()),
            authorizer: Authorizer::new(&config.node_name, authorization, client),
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            log_streams: Arc::new(Semaphore::new(MAX_LOG_STREAMS)),
            streams: Streams::new(config.stream_idle),
        })
    }

    /// Answers one request.
    pub async fn handle<B: Send>(
        &self,
        request: Request<B>,
        peer: &Option<PeerCertificate>,
        stop: CancellationToken,
    ) -> Answer {
        let path = request.uri().path().to_owned();
        let logs = path.strip_prefix("/containerLogs/");
        let pool = if logs.is_some() { &self.log_streams } else { &self.requests };
        let Ok(permit) = Arc::clone(pool).try_acquire_owned() else {
            return too_many();
        };
        if let Err(refused) = self.admit(&request, peer.as_ref()).await {
            return refused;
        }
        if let Some((endpoint, rest)) = Endpoint::of(&path) {
            // The session has a place of its own, and holds it longer.
            drop(permit);
            return Box::pin(self.streams.answer(&self.view, endpoint, rest, request, stop)).await;
        }
        let get = matches!(*request.method(), Method::GET | Method::HEAD);
        if let Some(rest) = logs {
            if !get {
                return text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
            }
            let query = request.uri().query().unwrap_or_default();
            return container_logs::answer(&self.view, rest, query, stop, permit).await;
        }
        self.route(&path, get).await
    }

    async fn admit<B>(&self, request: &Request<B>, peer: Option<&PeerCertificate>) -> Result<(), Answer> {
        let header = request.headers().get(AUTHORIZATION);
        let header = header.map(|value| value.to_str().unwrap_or(""));
        let user = match self.authenticator.user(peer, header).await {
            Ok(user) => user,
            Err(refused) => {
                if let Refused::NoAnswer { .. } = refused {
                    tracing::warn!(error = %refused, "cannot authenticate a request to the node API");
                }
                return Err(text(StatusCode::UNAUTHORIZED, "Unauthorized"));
            }
        };
        let access = Access::of(request.method(), request.uri().path());
        let described = || {
            format!(
                "(user={}, verb={}, resource=nodes, subresource(s)=[{}])",
                user.name,
                access.verb,
                access.subresources.join(" ")
            )
        };
        match self.authorizer.check(&user, &access).await {
            Ok(()) => Ok(()),
            Err(Denied::No) => {
                let body = format!("Forbidden {}", described());
                Err(text(StatusCode::FORBIDDEN, body))
            }
            Err(Denied::NoAnswer(error)) => {
                tracing::warn!(%error, user = user.name, "cannot authorise a request to the node API");
                let body = format!("Authorization error {}", described());
                Err(text(StatusCode::INTERNAL_SERVER_ERROR, body))
            }
        }
    }

    async fn route(&self, path: &str, get: bool) -> Answer {
        if !get {
            return text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        }
        match path {
            "/healthz" | "/healthz/" | "/healthz/ping" | "/healthz/log" | "/healthz/syncloop" => {
                match self.view.healthz() {
                    Ok(()) => text(StatusCode::OK, "ok"),
                    Err(problem) => text(StatusCode::INTERNAL_SERVER_ERROR, problem),
                }
            }
            "/pods" | "/pods/" => {
                let pods = self.view.pods();
                let plain: Vec<&Pod> = pods.iter().map(AsRef::as_ref).collect();
                json(&pod_list(&plain))
            }
            "/runningpods" | "/runningpods/" => match self.view.running_pods().await {
                Ok(pods) => json(&pod_list(&pods)),
                Err(error) => from_view::<()>(Err(error)),
            },
            "/metrics" => typed(StatusCode::OK, OPEN_METRICS, self.view.metrics()),
            "/configz" => json(&serde_json::json!({"kubeletconfig": self.view.config()})),
            "/stats/summary" => from_view(self.view.stats_summary().await),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }
}
