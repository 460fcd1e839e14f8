//! Who may do what: every request is an access to a subresource of this node.
//!
//! The subresource follows the path, the verb follows the method, except that what runs something
//! in a container counts as `create` whatever the method (a GET that upgrades to an exec stream is
//! not a read). Where upstream has a fine-grained subresource it is tried first, then `proxy`.

use std::time::{Duration, Instant};

use http::Method;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Semaphore;

use super::authn::User;
use super::cache::ExpiringCache;

/// A yes is kept so long (upstream's `authorization.webhook.cacheAuthorizedTTL`).
const DEFAULT_ALLOW_TTL: Duration = Duration::from_secs(300);
/// A no is kept so long (upstream's `cacheUnauthorizedTTL`).
const DEFAULT_DENY_TTL: Duration = Duration::from_secs(30);
/// Answers kept at most.
const MAX_CACHED: usize = 4096;
/// Reviews at once.
const MAX_REVIEWS: usize = 16;
/// One review may take so long.
const REVIEW_DEADLINE: Duration = Duration::from_secs(10);

/// Who may do what (`authorization.mode`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authorization {
    /// Everybody who is known may do everything. Only by explicit setting.
    AlwaysAllow,
    /// The API server decides.
    Webhook {
        /// `cacheAuthorizedTTL`; 5 min.
        allow_ttl: Duration,
        /// `cacheUnauthorizedTTL`; 30 s.
        deny_ttl: Duration,
    },
}

impl Default for Authorization {
    fn default() -> Self {
        Self::Webhook { allow_ttl: DEFAULT_ALLOW_TTL, deny_ttl: DEFAULT_DENY_TTL }
    }
}

/// What a request does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// `get`, `create`, …
    pub verb: &'static str,
    /// Subresources of `nodes`, any of which suffices.
    pub subresources: &'static [&'static str],
}

impl Access {
    /// By method and path.
    pub fn of(method: &Method, path: &str) -> Self {
        let first = path.split('/').find(|part| !part.is_empty());
        let subresources: &[&str] = match first.unwrap_or_default() {
            "stats" => &["stats"],
            "metrics" => &["metrics"],
            "logs" => &["log"],
            "spec" => &["spec"],
            "checkpoint" => &["checkpoint"],
            "healthz" => &["healthz", "proxy"],
            "pods" | "runningpods" => &["pods", "proxy"],
            "configz" => &["configz", "proxy"],
            "statusz" => &["statusz", "proxy"],
            "flagz" => &["flagz", "proxy"],
            _ => &["proxy"],
        };
        let runs = matches!(first, Some("exec" | "attach" | "run" | "portForward" | "checkpoint" | "cri"));
        let verb = match *method {
            _ if runs => "create",
            Method::GET | Method::HEAD => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "unknown",
        };
        Self { verb, subresources }
    }
}

/// A request that may not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Denied {
    No,
    NoAnswer(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    user: User,
    verb: &'static str,
    subresource: &'static str,
}

pub(super) struct Authorizer {
    node: String,
    settings: Authorization,
    reviews: Option<Api<SubjectAccessReview>>,
    cache: ExpiringCache<Question, bool>,
    in_flight: Semaphore,
}

impl Authorizer {
    pub fn new(node: &str, settings: Authorization, client: Option<Client>) -> Self {
        Self {
            node: node.to_owned(),
            settings,
            reviews: client.map(Api::all),
            cache: ExpiringCache::new(MAX_CACHED),
            in_flight: Semaphore::new(MAX_REVIEWS),
        }
    }

    pub async fn check(&self, user: &User, access: &Access) -> Result<(), Denied> {
        let Authorization::Webhook { allow_ttl, deny_ttl } = self.settings else {
            return Ok(());
        };
        for subresource in access.subresources {
            let question = Question { user: user.clone(), verb: access.verb, subresource };
            let known = self.cache.get(&question, Instant::now());
            let allowed = match known {
                Some(allowed) => allowed,
                None => {
                    let allowed = self.ask(&question).await.map_err(Denied::NoAnswer)?;
                    let life = if allowed { allow_ttl } else { deny_ttl };
                    self.cache.put(question, allowed, life, Instant::now());
                    allowed
                }
            };
            if allowed {
                return Ok(());
            }
        }
        Err(Denied::No)
    }

    async fn ask(&self, question: &Question) -> Result<bool, String> {
        let Some(reviews) = &self.reviews else {
            return Err("this agent runs without an API server".into());
        };
        let Ok(_permit) = self.in_flight.acquire().await else {
            return Err("shutting down".into());
        };
        let user = question.user.clone();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name),
                uid: Some(user.uid).filter(|uid| !uid.is_empty()),
                groups: Some(user.groups),
                extra: Some(user.extra).filter(|extra| !extra.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(question.verb.into()),
                    version: Some("v1".into()),
                    resource: Some("nodes".into()),
                    subresource: Some(question.subresource.into()),
                    name: Some(self.node.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let parameters = PostParams::default();
        let call = reviews.create(&parameters, &review);
        let answer = tokio::time::timeout(REVIEW_DEADLINE, call)
            .await
            .map_err(|_| "no answer in time".to_owned())?
            .map_err(|error| error.to_string())?;
        Ok(answer.status.is_some_and(|s| s.allowed && s.denied != Some(true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_follows_path_and_effect() {
        let of = |method: Method, path: &str| {
            let access = Access::of(&method, path);
            format!("{} {}", access.verb, access.subresources.join(","))
        };
        assert_eq!(of(Method::GET, "/pods"), "get pods,proxy");
        assert_eq!(of(Method::GET, "/runningpods/"), "get pods,proxy");
        assert_eq!(of(Method::GET, "/metrics/cadvisor"), "get metrics");
        assert_eq!(of(Method::GET, "/stats/summary"), "get stats");
        assert_eq!(of(Method::GET, "/containerLogs/a/b/c"), "get proxy");
        assert_eq!(of(Method::GET, "//containerLogs/a/b/c"), "get proxy");
        assert_eq!(of(Method::GET, "/exec/a/b/c"), "create proxy");
        assert_eq!(of(Method::POST, "/attach/a/b/c"), "create proxy");
        assert_eq!(of(Method::GET, "/podsecrets"), "get proxy");
        assert_eq!(of(Method::GET, "/"), "get proxy");
        assert_eq!(of(Method::DELETE, "/logs/x"), "delete log");
    }
}
