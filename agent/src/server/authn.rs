//! Who speaks: a client certificate, or a bearer token that the API server reviews.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::cache::ExpiringCache;

/// Answers kept (upstream's `authentication.webhook.cacheTTL`).
const DEFAULT_TOKEN_TTL: Duration = Duration::from_secs(120);
/// Answers kept at most: an attacker's tokens push out each other.
const MAX_CACHED: usize = 1024;
/// Reviews at once.
const MAX_REVIEWS: usize = 16;
/// One review may take so long.
const REVIEW_DEADLINE: Duration = Duration::from_secs(10);
/// Longer tokens are refused unseen.
const MAX_TOKEN: usize = 16 << 10;

/// Who may speak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authentication {
    /// `authentication.anonymous.enabled`; off.
    pub anonymous: bool,
    /// `authentication.webhook.enabled`; on: tokens are reviewed by the API server.
    pub webhook: bool,
    /// `authentication.webhook.cacheTTL`; 2 min.
    pub token_ttl: Duration,
}

impl Default for Authentication {
    fn default() -> Self {
        Self { anonymous: false, webhook: true, token_ttl: DEFAULT_TOKEN_TTL }
    }
}

/// Somebody known.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct User {
    /// User name.
    pub name: String,
    /// UID, if the authenticator gave one.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Further attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Why a request has no user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("no credentials that count")]
    Unknown,
    #[error("the API server cannot be asked about the token: {message}")]
    NoAnswer { message: String },
}

/// The user of a verified client certificate: the common name, with the organisations as groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerCertificate {
    user: User,
    not_after: i64,
}

impl PeerCertificate {
    /// `None` if there is no common name.
    pub fn parse(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?;
        let groups = subject
            .iter_organization()
            .filter_map(|o| o.as_str().ok())
            .map(str::to_owned)
            .chain(["system:authenticated".to_owned()])
            .collect();
        Some(Self {
            user: User { name: name.to_owned(), groups, ..User::default() },
            not_after: certificate.validity().not_after.timestamp(),
        })
    }
}

pub(super) struct Authenticator {
    settings: Authentication,
    reviews: Option<Api<TokenReview>>,
    cache: ExpiringCache<[u8; 32], Option<User>>,
    in_flight: Semaphore,
}

impl Authenticator {
    pub fn new(settings: Authentication, client: Option<Client>) -> Self {
        let reviews = client.filter(|_| settings.webhook).map(Api::all);
        Self { settings, reviews, cache: ExpiringCache::new(MAX_CACHED), in_flight: Semaphore::new(MAX_REVIEWS) }
    }

    /// The user behind a request. A certificate counts first; it is looked at again on every
    /// request, so that it ends with its time even on a connection that lives on.
    pub async fn user(&self, peer: Option<&PeerCertificate>, authorization: Option<&str>) -> Result<User, Refused> {
        if let Some(peer) = peer
            && jiff::Timestamp::now().as_second() <= peer.not_after
        {
            return Ok(peer.user.clone());
        }
        let token = authorization
            .and_then(|header| header.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .filter(|token| !token.is_empty() && token.len() <= MAX_TOKEN);
        match (token, &self.reviews) {
            (Some(token), Some(reviews)) => self.review(reviews, token).await,
            (None, _) if authorization.is_none() && self.settings.anonymous => Ok(User {
                name: "system:anonymous".into(),
                groups: vec!["system:unauthenticated".into()],
                ..User::default()
            }),
            _ => Err(Refused::Unknown),
        }
    }

    async fn review(&self, reviews: &Api<TokenReview>, token: &str) -> Result<User, Refused> {
        // The token itself is kept nowhere.
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.cache.get(&key, Instant::now()) {
            return known.ok_or(Refused::Unknown);
        }
        let no_answer = |message: String| Refused::NoAnswer { message };
        let Ok(_permit) = self.in_flight.acquire().await else {
            return Err(no_answer("shutting down".into()));
        };
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() },
            ..TokenReview::default()
        };
        let parameters = PostParams::default();
        let call = reviews.create(&parameters, &review);
        let answer = tokio::time::timeout(REVIEW_DEADLINE, call)
            .await
            .map_err(|_| no_answer("no answer in time".into()))?
            .map_err(|error| no_answer(error.to_string()))?;
        let status = answer.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|user| User {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        });
        let life = self.settings.token_ttl;
        self.cache.put(key, user.clone(), life, Instant::now());
        user.ok_or(Refused::Unknown)
    }
}
