//! Places that flows share fairly: when they are short, each free one goes to the flow that holds the fewest.
//!
//! A flow is one user's requests. It never gets more than three quarters of the places, so that somebody who holds what he has for as long
//! as he may (a body sent byte by byte) leaves a quarter to the rest. Who finds no place waits in his flow's queue, for a bounded time.
//! Upstream counterpart: `apiserver/pkg/util/flowcontrol/fairqueuing`, which deals requests out to queues by chance; we count flows exactly,
//! because their number is that of authenticated users.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::oneshot;

/// Requests of one flow that wait: six queues of 50, as upstream gives a flow of the level `global-default`.
const FLOW_QUEUE: usize = 300;
/// Requests of all flows that wait. Only their heads are in memory.
const MAX_WAITING: usize = 5000;
/// Upstream's: a quarter of the request timeout.
const WAIT_LIMIT: Duration = Duration::from_secs(15);

/// There is no place, and the queue is full or the wait was in vain. To be tried again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many requests")]
pub struct Full;

/// So many places at once.
#[derive(Debug, Clone)]
pub struct Fair(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    state: Mutex<State>,
    taken: Gauge,
    waiting: Gauge,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// What one flow may hold.
    share: usize,
    flows: HashMap<Arc<str>, Flow>,
    queued: usize,
    /// Grows with each request that waits: the order of arrival.
    arrivals: u64,
}

/// A flow that holds or waits for something.
#[derive(Debug, Default)]
struct Flow {
    held: usize,
    queue: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    arrival: u64,
    grant: oneshot::Sender<Place>,
}

/// A place; free again when dropped.
#[derive(Debug)]
pub struct Place {
    /// None for one that was never handed over.
    held: Option<(Arc<Pool>, Arc<str>)>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((pool, flow)) = self.held.take() {
            let mut state = pool.state.lock();
            state.give_back(&flow);
            state.hand_out(&pool);
        }
    }
}

impl Fair {
    /// With `places`, of which there is at least one. The gauges tell how many are taken, and how many requests wait.
    #[must_use]
    pub fn new(places: usize, taken: Gauge, waiting: Gauge) -> Self {
        let places = places.max(1);
        let share = places - places / 4;
        let state = State { free: places, share, flows: HashMap::new(), queued: 0, arrivals: 0 };
        Self(Arc::new(Pool { state: Mutex::new(state), taken, waiting }))
    }

    /// A place for a request of a flow, perhaps after a while.
    ///
    /// # Errors
    /// [`Full`].
    pub async fn enter(&self, flow: &str) -> Result<Place, Full> {
        let granted = {
            let mut state = self.0.state.lock();
            if state.may_take(flow) {
                return Ok(state.take(&self.0, flow.into()));
            }
            state.queue(&self.0, flow)?
        };
        // A place that comes in the very moment in which the wait ends goes back when the receiver is dropped.
        tokio::time::timeout(WAIT_LIMIT, granted).await.ok().and_then(Result::ok).ok_or(Full)
    }
}

impl State {
    fn may_take(&self, flow: &str) -> bool {
        self.free > 0 && self.flows.get(flow).is_none_or(|flow| flow.held < self.share)
    }

    fn take(&mut self, pool: &Arc<Pool>, flow: Arc<str>) -> Place {
        self.free -= 1;
        self.flows.entry(Arc::clone(&flow)).or_default().held += 1;
        pool.taken.inc();
        Place { held: Some((Arc::clone(pool), flow)) }
    }

    fn queue(&mut self, pool: &Pool, flow: &str) -> Result<oneshot::Receiver<Place>, Full> {
        if self.queued >= MAX_WAITING {
            self.forget_the_gone(pool);
        }
        let queue = &mut self.flows.entry(flow.into()).or_default().queue;
        if queue.len() >= FLOW_QUEUE {
            let before = queue.len();
            queue.retain(|waiting| !waiting.grant.is_closed());
            self.queued -= before - queue.len();
        }
        if queue.len() >= FLOW_QUEUE || self.queued >= MAX_WAITING {
            self.tidy(flow);
            return Err(Full);
        }
        let (grant, granted) = oneshot::channel();
        queue.push_back(Waiting { arrival: self.arrivals, grant });
        self.arrivals += 1;
        self.queued += 1;
        self.count(pool);
        Ok(granted)
    }

    /// Drops the waiting of clients that have hung up or waited long enough.
    fn forget_the_gone(&mut self, pool: &Pool) {
        self.flows.retain(|_, flow| {
            flow.queue.retain(|waiting| !waiting.grant.is_closed());
            flow.held > 0 || !flow.queue.is_empty()
        });
        self.queued = self.flows.values().map(|flow| flow.queue.len()).sum();
        self.count(pool);
    }

    fn count(&self, pool: &Pool) {
        pool.waiting.set(i64::try_from(self.queued).unwrap_or(i64::MAX));
    }

    fn give_back(&mut self, flow: &Arc<str>) {
        self.free += 1;
        if let Some(flow) = self.flows.get_mut(flow) {
            flow.held -= 1;
        }
        self.tidy(flow);
    }

    /// Flows without anything are forgotten: there may be many users in a long life.
    fn tidy(&mut self, name: &str) {
        if self.flows.get(name).is_some_and(|flow| flow.held == 0 && flow.queue.is_empty()) {
            self.flows.remove(name);
        }
    }

    /// Gives free places to those that wait.
    fn hand_out(&mut self, pool: &Arc<Pool>) {
        pool.taken.dec();
        while self.free > 0 && self.queued > 0 {
            let share = self.share;
            let waiting = self.flows.iter().filter(|(_, flow)| flow.held < share);
            let next = waiting.filter_map(|(name, flow)| Some(((flow.held, flow.queue.front()?.arrival), name))).min();
            let Some(name) = next.map(|(_, name)| Arc::clone(name)) else { break };
            let Some(waiting) = self.flows.get_mut(&name).and_then(|flow| flow.queue.pop_front()) else { break };
            self.queued -= 1;
            let place = self.take(pool, Arc::clone(&name));
            if let Err(mut place) = waiting.grant.send(place) {
                // It has gone. Its drop would want the lock that we hold.
                place.held = None;
                self.give_back(&name);
                pool.taken.dec();
            }
        }
        self.count(pool);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt as _;

    use super::*;

    fn fair(places: usize) -> Fair {
        Fair::new(places, Gauge::default(), Gauge::default())
    }

    /// Asks for a place, which must be there or refused at once.
    fn now(fair: &Fair, flow: &str) -> Option<Result<Place, Full>> {
        fair.enter(flow).now_or_never()
    }

    #[tokio::test]
    async fn a_free_place_goes_to_who_holds_the_fewest() {
        let fair = fair(4);
        let mut noisy: Vec<_> = (0..3).map(|_| now(&fair, "noisy").unwrap().unwrap()).collect();
        // The fourth place is not for it.
        let mut more = pin!(fair.enter("noisy"));
        assert!(more.as_mut().now_or_never().is_none());
        let quiet = now(&fair, "quiet").unwrap().unwrap();
        let mut third = pin!(fair.enter("third"));
        assert!(third.as_mut().now_or_never().is_none());
        // It came later, and holds less.
        drop(noisy.pop());
        let third = third.as_mut().now_or_never().unwrap().unwrap();
        assert!(more.as_mut().now_or_never().is_none());
        drop(third);
        noisy.push(more.await.unwrap());
        drop((noisy, quiet));
        assert_eq!(fair.0.state.lock().flows.len(), 0, "flows that are over are forgotten");
        assert_eq!((fair.0.taken.get(), fair.0.waiting.get()), (0, 0));
    }

    #[tokio::test]
    async fn in_a_flow_the_first_comes_first() {
        let fair = fair(1);
        let held = now(&fair, "a").unwrap().unwrap();
        let (mut first, mut second) = (pin!(fair.enter("a")), pin!(fair.enter("a")));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        drop(held);
        assert!(second.as_mut().now_or_never().is_none());
        drop(first.await.unwrap());
        second.await.unwrap();
    }

    #[tokio::test]
    async fn who_has_gone_takes_no_place_along() {
        let fair = fair(1);
        let held = now(&fair, "a").unwrap().unwrap();
        for _ in 0..10 {
            let mut gone = Box::pin(fair.enter("b"));
            assert!(gone.as_mut().now_or_never().is_none());
        }
        let mut granted = Box::pin(fair.enter("c"));
        assert!(granted.as_mut().now_or_never().is_none());
        drop(held);
        // It has its place by now and goes without having looked.
        drop(granted);
        assert!(now(&fair, "d").unwrap().is_ok());
        assert_eq!(fair.0.state.lock().free, 1);
        assert_eq!((fair.0.taken.get(), fair.0.waiting.get()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_has_bounds() {
        let fair = fair(1);
        let held = now(&fair, "a").unwrap().unwrap();
        let mut waiting: Vec<_> = (0..FLOW_QUEUE).map(|_| Box::pin(fair.enter("b"))).collect();
        assert!(waiting.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        assert_eq!(now(&fair, "b").unwrap().unwrap_err(), Full);
        // Another flow has a queue of its own.
        let mut other = pin!(fair.enter("c"));
        assert!(other.as_mut().now_or_never().is_none());
        // Who has gone makes room.
        waiting.pop();
        let mut again = pin!(fair.enter("b"));
        assert!(again.as_mut().now_or_never().is_none());
        assert_eq!(other.await.unwrap_err(), Full, "15 s were enough");
        assert_eq!(again.await.unwrap_err(), Full);
        drop(waiting);
        drop(held);
        assert_eq!((fair.0.state.lock().flows.len(), fair.0.waiting.get()), (0, 0));
    }
}
