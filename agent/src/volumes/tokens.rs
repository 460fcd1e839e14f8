//! Service account tokens of one pod, kept until they are due for renewal.
//!
//! A token is renewed at 80 % of its life or after 24 h, whichever is first, less a small jitter so
//! that the pods of a node do not renew together. A failed renewal keeps the old token while it
//! lives. Tokens are kept in memory only; what a restart finds in the volume is replaced.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::objects::{IssuedToken, ObjectReader, ReadError, TokenParams};

/// Renewed at least so often (upstream's `maxTTL`).
const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);
/// Renewal may come earlier by up to this much (upstream's `maxJitter`).
const MAX_JITTER: SignedDuration = SignedDuration::from_secs(10);
/// The next try after a failed renewal.
const RETRY: SignedDuration = SignedDuration::from_secs(15);
/// What `expirationSeconds` is when the pod does not say.
pub const DEFAULT_EXPIRATION_SECONDS: i64 = 3600;

#[derive(Debug, Clone)]
struct Cached {
    token: IssuedToken,
    renew_at: Timestamp,
}

/// The tokens of one pod.
#[derive(Debug, Default)]
pub struct PodTokens {
    cached: Mutex<HashMap<TokenParams, Cached>>,
}

/// When a token issued `now` is to be renewed; `jitter` is in 0..=1.
fn renewal(now: Timestamp, expires: Timestamp, jitter: f64) -> Timestamp {
    let life = expires.duration_since(now).max(SignedDuration::ZERO);
    let due = (life * 4 / 5).min(MAX_AGE);
    let early = (MAX_JITTER.min(life / 20)).mul_f64(jitter.clamp(0.0, 1.0));
    now.checked_add(due - early).unwrap_or(now)
}

impl PodTokens {
    /// A valid token: the cached one, or a fresh one when that is due.
    ///
    /// # Errors
    /// No token could be had and the cached one (if any) has ended.
    pub async fn get(
        &self,
        reader: &dyn ObjectReader,
        params: &TokenParams,
        now: Timestamp,
    ) -> Result<IssuedToken, ReadError> {
        let cached = self.cached.lock().get(params).cloned();
        if let Some(cached) = &cached
            && now < cached.renew_at
        {
            return Ok(cached.token.clone());
        }
        match reader.token(params).await {
            Ok(token) => {
                let renew_at = renewal(now, token.expires, rand::random_range(0.0..1.0));
                let entry = Cached { token: token.clone(), renew_at };
                self.cached.lock().insert(params.clone(), entry);
                Ok(token)
            }
            Err(error) => match cached {
                Some(mut old) if now < old.token.expires => {
                    tracing::warn!(
                        namespace = params.namespace,
                        pod = params.pod_name,
                        %error,
                        "cannot renew the service account token, keeping the old one"
                    );
                    let token = old.token.clone();
                    old.renew_at = now.checked_add(RETRY).unwrap_or(now);
                    self.cached.lock().insert(params.clone(), old);
                    Ok(token)
                }
                _ => Err(error),
            },
        }
    }

    /// When the first of the tokens is due.
    pub fn next_renewal(&self) -> Option<Timestamp> {
        self.cached.lock().values().map(|c| c.renew_at).min()
    }
}

/// How long until `at`, for a timer.
pub fn until(now: Timestamp, at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::testing::FakeObjects;
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn params() -> TokenParams {
        TokenParams {
            namespace: "ns".into(),
            service_account: "sa".into(),
            audience: None,
            expiration_seconds: 3600,
            pod_name: "p".into(),
            pod_uid: "u".into(),
        }
    }

    #[test]
    fn renewal_at_four_fifths_or_a_day() {
        assert_eq!(renewal(at(0), at(3600), 0.0), at(2880));
        assert_eq!(renewal(at(0), at(3600), 1.0), at(2870));
        let year = 365 * 86_400;
        assert_eq!(renewal(at(0), at(year), 0.0), at(86_400));
        assert_eq!(renewal(at(0), at(-5), 1.0), at(0));
    }

    #[tokio::test]
    async fn cached_renewed_and_kept_on_failure() {
        let reader = FakeObjects::new();
        let tokens = PodTokens::default();
        let params = params();
        reader.set_token(Ok(("one", at(3600))));
        let get_now = |now: i64| tokens.get(&*reader, &params, at(now));
        assert_eq!(get_now(0).await.unwrap().token, "one");
        reader.set_token(Ok(("two", at(7200))));
        assert_eq!(get_now(2000).await.unwrap().token, "one", "not due");
        assert_eq!(get_now(2881).await.unwrap().token, "two", "due");
        reader.set_token(Err("down"));
        assert_eq!(get_now(7000).await.unwrap().token, "two", "renewal failed");
        assert_eq!(tokens.next_renewal(), Some(at(7015)));
        assert!(get_now(7201).await.is_err(), "ended");
    }
}
