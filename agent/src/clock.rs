//! The wall clock in the two forms the agent uses. Decisions take the time as an argument; only workers read it here.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff::Timestamp;

/// Now, nanoseconds since the epoch.
#[must_use]
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Now, cut to seconds as the API stores times.
#[must_use]
pub fn timestamp() -> Timestamp {
    Timestamp::from_second(now() / 1_000_000_000).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// How long until a point in time, zero when it is past.
#[must_use]
pub fn until(at: i64) -> Duration {
    Duration::from_nanos(u64::try_from(at.saturating_sub(now())).unwrap_or(0))
}
