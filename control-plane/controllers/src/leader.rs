//! Leader election by a Lease: of several processes with the same name one works, the others stand by.
//!
//! Invariants:
//! - no clock of another machine is read: a lease is valid for as long as it says, from when this process saw it change last;
//! - who leads stops before anybody may take over: it gives up [`RENEW_DEADLINE`] after its last renewal began, others take over
//!   [`LEASE_DURATION`] after they saw it; requests of its work fail from then on, also those under way and those of a process that slept;
//! - a clean end gives the lease back, so that the next one takes over at once.
//!
//! Upstream counterpart: `client-go/tools/leaderelection` with the defaults of `component-base/config`.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{PostParams, WatchEvent, WatchParams};
use kube::client::Body;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::Service;
use tracing::{debug, info, warn};

/// Upstream's `--leader-elect-lease-duration`.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Upstream's `--leader-elect-renew-deadline`.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Upstream's `--leader-elect-retry-period`.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Upstream's `--leader-elect-resource-namespace`.
const NAMESPACE: &str = "kube-system";
/// How long giving the lease back may take; after that it runs out.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Whom to be and for what.
#[derive(Debug, Clone)]
pub struct Election {
    /// Name of the Lease: what only one process may do.
    pub name: &'static str,
    /// This process; no other has the same.
    pub identity: String,
}

/// What a look at the lease leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// There is none: make it.
    Create,
    /// It is ours: say that we are alive.
    Renew,
    /// It is nobody's, or who had it is gone: take it.
    Take,
    /// Somebody else leads, for so long at least.
    Wait(Duration),
}

/// What to do about a lease that was seen to change last at `since`.
fn decide(lease: Option<&LeaseSpec>, since: Instant, now: Instant, identity: &str) -> Action {
    let Some(spec) = lease else { return Action::Create };
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder == identity {
        return Action::Renew;
    }
    let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or_default()).unwrap_or_default();
    let left = Duration::from_secs(seconds).saturating_sub(now.duration_since(since));
    if holder.is_empty() || left.is_zero() { Action::Take } else { Action::Wait(left) }
}

/// The lease as it should be after taking or renewing it.
fn claimed(before: Option<&LeaseSpec>, identity: &str, now: Timestamp) -> LeaseSpec {
    let ours = before.is_some_and(|spec| spec.holder_identity.as_deref() == Some(identity));
    let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or_default();
    let taken = before.is_some() && !ours;
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
        acquire_time: before.filter(|_| ours).and_then(|spec| spec.acquire_time.clone()).or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions + i32::from(taken)),
        ..before.cloned().unwrap_or_default()
    }
}

/// The lease as who led leaves it behind, as client-go does: nobody's, and over in a second.
fn released(before: &LeaseSpec, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        ..before.clone()
    }
}

/// The lease as this process sees it.
struct Elector {
    leases: Api<Lease>,
    election: Election,
    seen: Option<Lease>,
    since: Instant,
}

impl Elector {
    fn new(client: Client, election: Election) -> Self {
        Self { leases: Api::namespaced(client, NAMESPACE), election, seen: None, since: Instant::now() }
    }

    fn note(&mut self, lease: Option<Lease>) {
        let version = |lease: &Option<Lease>| lease.as_ref().and_then(|l| l.metadata.resource_version.clone());
        if version(&lease) != version(&self.seen) {
            self.since = Instant::now();
        }
        self.seen = lease;
    }

    /// What is to be done about the lease that was seen last.
    fn action(&self) -> Action {
        let spec = self.seen.as_ref().map(|lease| lease.spec.clone().unwrap_or_default());
        decide(spec.as_ref(), self.since, Instant::now(), &self.election.identity)
    }

    /// One try to take the lease, or with `leading` to keep it; whether it is ours now.
    async fn attempt(&mut self, leading: bool) -> Result<bool, kube::Error> {
        let found = self.leases.get_opt(self.election.name).await?;
        self.note(found);
        let spec = self.seen.as_ref().map(|lease| lease.spec.clone().unwrap_or_default());
        match self.action() {
            Action::Wait(left) => {
                let holder = spec.and_then(|spec| spec.holder_identity);
                debug!(lease = self.election.name, ?holder, ?left, "somebody else leads");
                Ok(false)
            }
            // Somebody had it meanwhile, who may have worked: what is known here is old.
            Action::Take if leading => Ok(false),
            Action::Create | Action::Renew | Action::Take => {
                let claimed = claimed(spec.as_ref(), &self.election.identity, Timestamp::now());
                self.write(claimed).await?;
                Ok(true)
            }
        }
    }

    /// Writes over exactly the lease that was seen.
    async fn write(&mut self, spec: LeaseSpec) -> Result<(), kube::Error> {
        let params = PostParams::default();
        let written = match &self.seen {
            Some(seen) => {
                let lease = Lease { spec: Some(spec), ..seen.clone() };
                self.leases.replace(self.election.name, &params, &lease).await?
            }
            None => {
                let metadata = ObjectMeta { name: Some(self.election.name.to_owned()), ..ObjectMeta::default() };
                self.leases.create(&params, &Lease { metadata, spec: Some(spec) }).await?
            }
        };
        self.note(Some(written));
        Ok(())
    }

    /// Tries until the lease is ours; when the try that succeeded began.
    async fn acquire(&mut self) -> Instant {
        loop {
            let begun = Instant::now();
            match tokio::time::timeout(RENEW_DEADLINE, self.attempt(false)).await {
                Ok(Ok(true)) => return begun,
                Ok(Ok(false)) => match self.follow().await {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(error) => debug!(lease = self.election.name, %error, "the lease cannot be followed"),
                },
                Ok(Err(error)) => debug!(lease = self.election.name, %error, "the lease cannot be had"),
                Err(_) => debug!(lease = self.election.name, "no answer about the lease"),
            }
            let pause = if let Action::Wait(left) = self.action() { left.min(RETRY_PERIOD) } else { RETRY_PERIOD };
            tokio::time::sleep(pause).await;
        }
    }

    /// Watches what another holder does with the lease: a look every [`RETRY_PERIOD`] would see its last sign of life that much later, and
    /// the next would lead that much later. True once the lease was given back or ran out; false when it cannot be watched any more.
    async fn follow(&mut self) -> Result<bool, kube::Error> {
        let version = self.seen.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
        let params = WatchParams::default().fields(&format!("metadata.name={}", self.election.name));
        let version = version.unwrap_or_default();
        let opening = tokio::time::timeout(RETRY_PERIOD, self.leases.watch(&params, &version)).await;
        let Ok(events) = opening else { return Ok(false) };
        let mut events = pin!(events?);
        loop {
            let Action::Wait(left) = self.action() else { return Ok(true) };
            match tokio::time::timeout(left, events.try_next()).await {
                // The time is over: the next look at the lease itself decides.
                Err(_) => return Ok(true),
                Ok(event) => match event? {
                    Some(WatchEvent::Added(lease) | WatchEvent::Modified(lease)) => self.note(Some(lease)),
                    Some(WatchEvent::Bookmark(_)) => {}
                    Some(WatchEvent::Deleted(_) | WatchEvent::Error(_)) | None => return Ok(false),
                },
            }
        }
    }

    /// Renews until that fails for too long.
    async fn hold(&mut self, begun: Instant, gate: &Gate) {
        let mut renewed = begun;
        loop {
            gate.open_until(renewed + LEASE_DURATION);
            tokio::time::sleep(RETRY_PERIOD).await;
            let begun = Instant::now();
            match tokio::time::timeout_at(renewed + RENEW_DEADLINE, self.attempt(true)).await {
                Ok(Ok(true)) => renewed = begun,
                Ok(Ok(false)) => return warn!(lease = self.election.name, "somebody else took the lead"),
                Ok(Err(error)) if begun < renewed + RENEW_DEADLINE => {
                    warn!(lease = self.election.name, %error, "the lease was not renewed");
                }
                Ok(Err(_)) | Err(_) => {
                    return warn!(lease = self.election.name, "the lease could not be renewed in time");
                }
            }
        }
    }

    async fn release(&mut self) {
        let Some(spec) = self.seen.as_ref().and_then(|lease| lease.spec.clone()) else { return };
        if spec.holder_identity.as_deref() != Some(&self.election.identity) {
            return;
        }
        match tokio::time::timeout(RELEASE_TIMEOUT, self.write(released(&spec, Timestamp::now()))).await {
            Ok(Ok(())) => info!(lease = self.election.name, "the lead was given back"),
            Ok(Err(error)) => warn!(lease = self.election.name, %error, "the lead was not given back and runs out"),
            Err(_) => warn!(lease = self.election.name, "the lead was not given back in time and runs out"),
        }
    }
}

/// Lets requests through while this process leads.
#[derive(Clone)]
struct Gate {
    inner: Client,
    lost: CancellationToken,
    until: Arc<Mutex<Instant>>,
}

/// What requests of somebody who leads no more get.
#[derive(Debug, thiserror::Error)]
#[error("this process does not lead any more")]
struct Lost;

impl Gate {
    fn open_until(&self, until: Instant) {
        *self.until.lock() = until;
    }
}

impl Service<http::Request<Body>> for Gate {
    type Response = http::Response<Body>;
    type Error = tower::BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Self { inner, lost, until } = self.clone();
        async move {
            let mut sending = pin!(inner.send(request));
            // Before each step, not only the first: a process that slept in the middle of a request does not go on with it.
            let steps = std::future::poll_fn(|context| {
                if Instant::now() >= *until.lock() {
                    return Poll::Ready(Err(tower::BoxError::from(Lost)));
                }
                sending.as_mut().poll(context).map_err(tower::BoxError::from)
            });
            lost.run_until_cancelled(steps).await.unwrap_or_else(|| Err(Lost.into()))
        }
        .boxed()
    }
}

/// Runs `work` whenever this process leads, until `shutdown`; `work` gets a client that fails once the lead is lost, and a token that
/// tells it to end.
///
/// # Errors
/// What `work` ends with by itself.
pub async fn lead<F, E>(
    client: Client,
    election: Election,
    shutdown: CancellationToken,
    work: impl Fn(Client, CancellationToken) -> F,
) -> Result<(), E>
where
    F: Future<Output = Result<(), E>>,
{
    let mut elector = Elector::new(client.clone(), election);
    loop {
        info!(lease = elector.election.name, identity = elector.election.identity, "standing by");
        let Some(begun) = shutdown.run_until_cancelled(elector.acquire()).await else { return Ok(()) };
        info!(lease = elector.election.name, "leading");
        let (stop, lost) = (CancellationToken::new(), CancellationToken::new());
        let gate =
            Gate { inner: client.clone(), lost: lost.clone(), until: Arc::new(Mutex::new(begun + LEASE_DURATION)) };
        let mut working = Box::pin(work(Client::new(gate.clone(), client.default_namespace()), stop.clone()));
        let ended = tokio::select! {
            ended = &mut working => Some(ended),
            () = elector.hold(begun, &gate) => {
                lost.cancel();
                None
            }
            () = shutdown.cancelled() => None,
        };
        stop.cancel();
        let by_itself = ended.is_some();
        let ended = match ended {
            Some(ended) => ended,
            None => working.await,
        };
        // Whatever still runs in the background does nothing any more.
        lost.cancel();
        elector.release().await;
        if by_itself || shutdown.is_cancelled() || ended.is_err() {
            return ended;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_that_slept_past_the_lease_does_not_go_on() {
        let written = Arc::new(AtomicBool::new(false));
        let service = tower::service_fn({
            let written = Arc::clone(&written);
            move |_: http::Request<Body>| {
                let written = Arc::clone(&written);
                async move {
                    // Longer than the lease: as if the process had been stopped here.
                    tokio::time::sleep(LEASE_DURATION * 2).await;
                    written.store(true, Ordering::Relaxed);
                    Ok::<_, std::io::Error>(http::Response::new(Body::empty()))
                }
            }
        });
        let gate = Gate {
            inner: Client::new(service, "default"),
            lost: CancellationToken::new(),
            until: Arc::new(Mutex::new(Instant::now() + LEASE_DURATION)),
        };
        let request = || http::Request::new(Body::empty());
        let failed = gate.clone().call(request()).await.unwrap_err();
        assert!(failed.is::<Lost>(), "{failed}");
        assert!(!written.load(Ordering::Relaxed), "it went on");
        assert!(gate.clone().call(request()).await.unwrap_err().is::<Lost>(), "nor does a new one begin");
        gate.open_until(Instant::now() + LEASE_DURATION * 3);
        gate.clone().call(request()).await.unwrap();
        assert!(written.load(Ordering::Relaxed));
    }

    fn spec(holder: &str, seconds: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(seconds),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_decides_what_to_do() {
        let since = Instant::now();
        let after = |millis| since + Duration::from_millis(millis);
        let wait = |millis| Action::Wait(Duration::from_millis(millis));
        let cases = [
            ("no lease", None, after(0), Action::Create),
            ("ours", Some(spec("me", 15)), after(1_000), Action::Renew),
            ("ours, run out", Some(spec("me", 15)), after(60_000), Action::Renew),
            ("another's, just seen", Some(spec("other", 15)), after(0), wait(15_000)),
            ("another's, almost over", Some(spec("other", 15)), after(14_999), wait(1)),
            ("another's, over", Some(spec("other", 15)), after(15_000), Action::Take),
            ("another's, of another duration", Some(spec("other", 60)), after(15_000), wait(45_000)),
            ("given back", Some(spec("", 1)), after(0), Action::Take),
            ("nonsense", Some(spec("other", -5)), after(0), Action::Take),
            ("empty", Some(LeaseSpec::default()), after(0), Action::Take),
        ];
        for (name, lease, now, wanted) in cases {
            assert_eq!(decide(lease.as_ref(), since, now, "me"), wanted, "{name}");
        }
    }

    #[test]
    fn who_takes_a_lease_counts_a_transition_and_who_renews_it_keeps_its_beginning() {
        let (first, later) = (Timestamp::from_second(100).unwrap(), Timestamp::from_second(200).unwrap());
        let made = claimed(None, "a", first);
        assert_eq!((made.lease_transitions, made.lease_duration_seconds), (Some(0), Some(15)));
        let renewed = claimed(Some(&made), "a", later);
        assert_eq!(renewed.acquire_time, Some(MicroTime(first)));
        assert_eq!((renewed.renew_time, renewed.lease_transitions), (Some(MicroTime(later)), Some(0)));
        let taken = claimed(Some(&made), "b", later);
        assert_eq!((taken.acquire_time.clone(), taken.lease_transitions), (Some(MicroTime(later)), Some(1)));
        let left = released(&taken, later);
        assert_eq!((left.holder_identity.as_deref(), left.lease_duration_seconds), (Some(""), Some(1)));
        assert_eq!(left.lease_transitions, Some(1));
    }
}
