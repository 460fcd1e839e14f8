//! Health as upstream's load balancers read it: `/healthz` fails when a sync is overdue or the
//! node is about to go, `/livez` only when a sync is overdue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use kube_common::serve::{Endpoints, PageAnswer};
use parking_lot::Mutex;

use crate::metrics::{Code, Metrics};

#[derive(Debug)]
struct State {
    /// Since when a change waits to be programmed.
    pending: Option<Instant>,
    last_sync: Option<jiff::Timestamp>,
    node_leaving: bool,
}

/// Shared between the loop and the server.
#[derive(Debug, Clone)]
pub struct Health {
    state: Arc<Mutex<State>>,
    timeout: Duration,
}

impl Health {
    /// Overdue after `timeout` (upstream: twice the sync period). Until the first sync a change is
    /// pending.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        let state = State { pending: Some(Instant::now()), last_sync: None, node_leaving: false };
        Self { state: Arc::new(Mutex::new(state)), timeout }
    }

    /// A change waits.
    pub fn queued(&self) {
        self.state.lock().pending.get_or_insert_with(Instant::now);
    }

    /// Everything seen is programmed.
    pub fn synced(&self) {
        let mut state = self.state.lock();
        state.pending = None;
        state.last_sync = Some(jiff::Timestamp::now());
    }

    /// Whether the node is about to go.
    pub fn set_node_leaving(&self, leaving: bool) {
        self.state.lock().node_leaving = leaving;
    }

    /// Whether what was seen is programmed, or has not waited for too long: what health check node ports call
    /// a healthy proxy. Whether the node is about to go does not count there.
    #[must_use]
    pub fn in_time(&self) -> bool {
        !self.overdue(&self.state.lock())
    }

    fn overdue(&self, state: &State) -> bool {
        state.pending.is_some_and(|since| since.elapsed() > self.timeout)
    }

    fn answer(&self, mind_node: bool) -> PageAnswer {
        let state = self.state.lock();
        // The first sync may wait for the API server: that is not a stuck loop, but no health either.
        let overdue = self.overdue(&state) || (mind_node && state.last_sync.is_none());
        let eligible = !state.node_leaving;
        let status = if overdue || (mind_node && !eligible) { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        let text = |time: Option<jiff::Timestamp>| time.map_or_else(String::new, |t| t.to_string());
        let body = serde_json::json!({
            "lastUpdated": text(state.last_sync),
            "currentTime": jiff::Timestamp::now().to_string(),
            "nodeEligible": eligible,
        });
        PageAnswer::json(status, body.to_string())
    }

    /// Adds the two pages.
    pub fn serve(&self, endpoints: &Endpoints, metrics: &Metrics) {
        let (health, metrics) = (self.clone(), metrics.clone());
        endpoints.add_page("/healthz", move || {
            let answer = health.answer(true);
            metrics.healthz.get_or_create(&Code { code: answer.status.as_u16() }).inc();
            answer
        });
        let health = self.clone();
        endpoints.add_page("/livez", move || health.answer(false));
    }
}
