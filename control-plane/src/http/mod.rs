//! From an HTTP request to a handler: who is it, what does it want, may it, is there room; and every failure as a `Status`.
//!
//! [`ApiService`] is a tower service, so the same code serves TLS connections and clients within this process. Upstream counterpart:
//! the filter chain of `apiserver/pkg/server`.

pub mod body;
pub mod fair;
pub mod impersonate;
pub mod limits;
pub mod metrics;
pub mod negotiate;
pub mod path;
pub mod tls;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use keelson_kinds::{ApiError, Resource};
use tower::Service;

use crate::api;
use crate::audit::{Origin, Trail};
use crate::auth::{Attributes, User, authenticate};
use crate::pki::Subject;
use crate::server::Server;
use body::{Body, RequestBody};
use path::{Query, ResourcePath, Target};

/// Upstream's `--request-timeout`.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Who is at the other end.
#[derive(Debug, Clone)]
enum Identity {
    /// Someone on the network, perhaps with a verified client certificate.
    Remote(Option<Subject>),
    /// A part of this program.
    Internal(User),
}

/// Serves requests of one connection or one internal user.
#[derive(Debug, Clone)]
pub struct ApiService {
    server: Arc<Server>,
    identity: Identity,
    /// The other end of the connection.
    peer: Option<SocketAddr>,
}

/// A request for a resource, authorized and with its body read.
#[derive(Debug)]
pub struct Call {
    /// The server.
    pub server: Arc<Server>,
    /// Who asks.
    pub user: User,
    /// The kind.
    pub res: &'static Resource,
    /// Namespace of the URL, empty for all or none.
    pub namespace: String,
    /// Object name, empty for a collection.
    pub name: String,
    /// Subresource, empty for none.
    pub subresource: String,
    /// Verb.
    pub verb: &'static str,
    /// Query parameters.
    pub query: Query,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Call {
    /// A header as text, empty if absent.
    #[must_use]
    pub fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// What another verb on the same URL would ask of authorization.
    #[must_use]
    pub fn attributes(&self, verb: &str) -> Attributes {
        Attributes {
            verb: verb.to_owned(),
            group: self.res.group.to_owned(),
            version: self.res.version.to_owned(),
            resource: self.res.plural.to_owned(),
            subresource: self.subresource.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            ..Attributes::default()
        }
    }
}

/// What is known of a request when it is counted.
#[derive(Default)]
struct Seen {
    verb: &'static str,
    resource: &'static str,
    /// Who asks, where that is to be recorded.
    user: Option<User>,
    /// Whether it was judged if it is to be recorded.
    is_begun: bool,
    /// If it is recorded.
    trail: Option<Trail>,
}

impl ApiService {
    /// For a part of this program, as `user`.
    #[must_use]
    pub fn internal(server: Arc<Server>, user: User) -> Self {
        Self { server, identity: Identity::Internal(user), peer: None }
    }

    /// For a connection, with the subject of its verified client certificate.
    #[must_use]
    pub fn remote(server: Arc<Server>, subject: Option<Subject>) -> Self {
        Self { server, identity: Identity::Remote(subject), peer: None }
    }

    /// Says from where the connection comes.
    #[must_use]
    pub fn of_peer(self, peer: SocketAddr) -> Self {
        Self { peer: Some(peer), ..self }
    }

    /// Answers one request.
    pub async fn handle(&self, request: Request<RequestBody>) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let mut body = Some(body);
        let upgrade = parts.extensions.remove::<OnUpgrade>();
        let mut seen = Seen::default();
        let mut response = match self.route(&parts, &mut body, upgrade, &mut seen).await {
            Ok(response) => response,
            Err(error) => {
                if !seen.is_begun {
                    // Refused before it was clear what it is about.
                    let user = seen.user.take();
                    self.begin_trail(&parts, user.as_ref(), &attempted(&parts), false, &mut seen).await;
                }
                if let Some(trail) = &mut seen.trail {
                    trail.refused(error.to_status());
                }
                body::error(&error)
            }
        };
        if let Some(trail) = seen.trail.take() {
            response = trail.answered(response).await;
        }
        self.server.metrics.count(seen.verb, seen.resource, response.status().as_u16());
        if let Some(unread) = body.filter(|_| !response.status().is_success()) {
            body::discard(unread).await;
        }
        if parts.method == Method::HEAD {
            body::strip(&mut response);
        }
        response
    }

    async fn route(
        &self,
        parts: &Parts,
        body: &mut Option<RequestBody>,
        upgrade: Option<OnUpgrade>,
        seen: &mut Seen,
    ) -> Result<Response<Body>, ApiError> {
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        match path::parse(parts.uri.path()) {
            Target::Plain => {
                seen.verb = plain_verb(&parts.method);
                let path = parts.uri.path();
                let attributes =
                    Attributes { verb: seen.verb.to_owned(), path: path.to_owned(), ..Attributes::default() };
                let shown = self.authenticate(&parts.headers)?;
                let public = api::raw::is_public(path);
                if shown.is_none() && !public {
                    return Err(ApiError::unauthorized());
                }
                let user = shown.unwrap_or_else(User::anonymous);
                self.begin_trail(parts, Some(&user), &attributes, false, seen).await;
                let user = self.impersonate(user, &parts.headers, seen)?;
                if !public {
                    self.authorize_and_note(&user, &attributes, None, seen)?;
                }
                if !matches!(parts.method, Method::GET | Method::HEAD) {
                    return Err(ApiError::no_such_resource());
                }
                api::raw::answer(&self.server, path, &query, &parts.headers)
            }
            Target::Resource(path) => {
                let user = self.authenticate(&parts.headers)?.ok_or_else(ApiError::unauthorized)?;
                seen.user = self.server.config.audit.is_some().then(|| user.clone());
                let segments = path.segments();
                crate::custom::await_kind(&self.server, &path.group, &path.version, &path.resource).await;
                let (call, long) = self.admit(path, parts, query, user, seen).await?;
                if api::connect::connects(call.res.plural, &call.subresource, &parts.headers) {
                    return Box::pin(self.connect(call, parts, segments, body, upgrade, seen)).await;
                }
                self.run(call, long, body, seen).await
            }
        }
    }

    /// Connects a client to a back end; no time limit, and a place of its own.
    async fn connect(
        &self,
        call: Call,
        parts: &Parts,
        segments: usize,
        body: &mut Option<RequestBody>,
        upgrade: Option<OnUpgrade>,
        seen: &mut Seen,
    ) -> Result<Response<Body>, ApiError> {
        let (prefix, tail) = api::connect::split_path(parts.uri.path(), segments);
        if call.verb != "create" && api::connect::needs_create(call.res.plural, &call.subresource, tail, &parts.headers)
        {
            self.authorize_and_note(&call.user, &call.attributes("create"), Some(call.res), seen)?;
        }
        let place = self.server.in_flight.connect()?;
        let connect = api::connect::Connect {
            method: parts.method.clone(),
            prefix: prefix.to_owned(),
            tail: tail.to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            body: body.take().unwrap_or_default(),
            upgrade,
            place,
        };
        api::connect::connect(&call, connect).await
    }

    async fn run(
        &self,
        mut call: Call,
        long: bool,
        body: &mut Option<RequestBody>,
        seen: &mut Seen,
    ) -> Result<Response<Body>, ApiError> {
        let writes = !matches!(call.verb, "get" | "list" | "watch");
        let _place = if long { None } else { self.server.in_flight.enter(&call).await? };
        let work = async {
            if let Some(body) = body.take_if(|_| writes) {
                call.body = body::read(body).await?;
                if let Some(trail) = seen.trail.as_mut().filter(|trail| trail.wants_the_request())
                    && let Some(sent) = sent(&call)
                {
                    trail.request(sent);
                }
            }
            api::dispatch(call).await
        };
        if long {
            return work.await;
        }
        tokio::time::timeout(REQUEST_TIMEOUT, work)
            .await
            .unwrap_or_else(|_| Err(ApiError::timeout("request did not complete within the allotted timeout", 0)))
    }

    async fn admit(
        &self,
        path: ResourcePath,
        parts: &Parts,
        query: Query,
        user: User,
        seen: &mut Seen,
    ) -> Result<(Call, bool), ApiError> {
        let known = self.server.registry.lookup(&path.group, &path.version, &path.resource);
        let res = known.ok_or_else(ApiError::no_such_resource)?;
        seen.resource = res.plural;
        let named = path.name.is_some();
        let verb = resource_verb(&parts.method, named, &query);
        let verb = verb.ok_or_else(|| ApiError::method_not_allowed(res, parts.method.as_str()))?;
        seen.verb = verb;
        if path.namespace.is_some() && !res.namespaced() {
            // A cluster-scoped kind under a namespace's URL would slip past that namespace's rules.
            return Err(ApiError::no_such_resource());
        }
        let namespace = path.namespace.unwrap_or_default();
        let name = path.name.unwrap_or_default();
        let subresource = path.subresource.unwrap_or_default();
        if res.namespaced() && namespace.is_empty() && !matches!(verb, "list" | "watch") && res.stored() {
            // There is no such path of a kind's object, and for custom kinds none to post to either.
            let no_path = named || res.strategy.custom().is_some();
            return Err(if no_path { ApiError::no_such_resource() } else { ApiError::method_not_allowed(res, verb) });
        }
        let attributes = Attributes {
            verb: verb.to_owned(),
            group: path.group,
            version: path.version,
            resource: res.plural.to_owned(),
            subresource: subresource.clone(),
            namespace: if res.plural == "namespaces" && named { name.clone() } else { namespace.clone() },
            name: if named { name.clone() } else { selected(verb, &query, "metadata.name") },
            node_name: selected(verb, &query, "spec.nodeName"),
            path: String::new(),
        };
        let long = verb == "watch" || subresource == "log";
        // What a back end answers is as long as it likes.
        let open_ended = long || api::connect::connects(res.plural, &subresource, &parts.headers);
        self.begin_trail(parts, Some(&user), &attributes, open_ended, seen).await;
        let user = self.impersonate(user, &parts.headers, seen)?;
        self.authorize_and_note(&user, &attributes, Some(res), seen)?;
        api::check_served(res, verb, named, &subresource)?;
        let call = Call {
            server: Arc::clone(&self.server),
            user,
            res,
            namespace,
            name,
            subresource,
            verb,
            query,
            headers: parts.headers.clone(),
            body: Bytes::new(),
        };
        Ok((call, long))
    }

    /// The user, `None` for someone who showed nothing.
    fn authenticate(&self, headers: &HeaderMap) -> Result<Option<User>, ApiError> {
        let subject = match &self.identity {
            Identity::Internal(user) => return Ok(Some(user.clone())),
            Identity::Remote(subject) => subject,
        };
        if let Some(subject) = subject {
            return Ok(Some(authenticate::certificate_user(subject)));
        }
        let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
        let token = value
            .to_str()
            .ok()
            .and_then(|v| v.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let Some((_, token)) = token else { return Err(ApiError::unauthorized()) };
        match authenticate::token_user(&self.server, token.trim(), &[], jiff::Timestamp::now()) {
            Ok((user, _)) => Ok(Some(user)),
            Err(error) => {
                tracing::debug!(%error, "a bearer token was refused");
                Err(ApiError::unauthorized())
            }
        }
    }

    /// The user that the `Impersonate-` headers ask for, each of which must be allowed.
    fn impersonate(&self, user: User, headers: &HeaderMap, seen: &mut Seen) -> Result<User, ApiError> {
        let Some(wanted) = impersonate::wanted(headers)? else { return Ok(user) };
        for attributes in wanted.attributes() {
            self.authorize_and_note(&user, &attributes, None, seen)?;
        }
        let user = wanted.user();
        if let Some(trail) = &mut seen.trail {
            trail.impersonated(&user);
        }
        Ok(user)
    }

    async fn begin_trail(
        &self,
        parts: &Parts,
        user: Option<&User>,
        attributes: &Attributes,
        long: bool,
        seen: &mut Seen,
    ) {
        seen.is_begun = true;
        if let Some(audit) = &self.server.config.audit {
            seen.trail = audit.begin(Origin { parts, peer: self.peer }, user, attributes, long).await;
        }
    }

    /// Authorizes what the request is about, and notes it.
    fn authorize_and_note(
        &self,
        user: &User,
        attributes: &Attributes,
        res: Option<&Resource>,
        seen: &mut Seen,
    ) -> Result<(), ApiError> {
        let decision = self.authorize(user, attributes, res);
        if let Some(trail) = &mut seen.trail {
            trail.decided(decision.is_ok());
        }
        decision
    }

    fn authorize(&self, user: &User, attributes: &Attributes, res: Option<&Resource>) -> Result<(), ApiError> {
        api::review::require(&self.server, user, attributes, res)
    }
}

/// What the field selector of a list, watch or deletecollection requires of a field: one of a single object counts as a request for it.
fn selected(verb: &str, query: &Query, field: &str) -> String {
    if !matches!(verb, "list" | "watch" | "deletecollection") {
        return String::new();
    }
    kube_common::selector::FieldSelector::parse(query.get("fieldSelector"))
        .ok()
        .and_then(|selector| selector.exact(field).map(str::to_owned))
        .unwrap_or_default()
}

fn resource_verb(method: &Method, named: bool, query: &Query) -> Option<&'static str> {
    Some(match (method, named) {
        (&Method::GET | &Method::HEAD, true) => "get",
        (&Method::GET | &Method::HEAD, false) if query.flag("watch") => "watch",
        (&Method::GET | &Method::HEAD, false) => "list",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, true) => "delete",
        (&Method::DELETE, false) => "deletecollection",
        _ => return None,
    })
}

/// What somebody who could not say who he is has asked for.
fn attempted(parts: &Parts) -> Attributes {
    match path::parse(parts.uri.path()) {
        Target::Plain => Attributes {
            verb: plain_verb(&parts.method).to_owned(),
            path: parts.uri.path().to_owned(),
            ..Attributes::default()
        },
        Target::Resource(path) => {
            let query = Query::parse(parts.uri.query().unwrap_or_default());
            Attributes {
                verb: resource_verb(&parts.method, path.name.is_some(), &query).unwrap_or_default().to_owned(),
                group: path.group,
                version: path.version,
                resource: path.resource,
                subresource: path.subresource.unwrap_or_default(),
                namespace: path.namespace.unwrap_or_default(),
                name: path.name.unwrap_or_default(),
                ..Attributes::default()
            }
        }
    }
}

/// A request's body, as far as it can be shown in JSON.
fn sent(call: &Call) -> Option<serde_json::Value> {
    if call.body.is_empty() {
        return None;
    }
    // A patch has a media type of its own, and is JSON or YAML all the same.
    api::parse_body(call).ok().or_else(|| serde_json::from_slice(&call.body).ok())
}

fn plain_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "options",
    }
}

impl<B> Service<Request<B>> for ApiService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        async move { Ok(service.handle(request).await) }.boxed()
    }
}
