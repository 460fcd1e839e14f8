//! Health checks and metrics of the API server.

use kube_common::serve::Endpoints;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::limits::InFlight;

/// Labels of a request; all values come from closed sets, so that clients cannot grow them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    verb: &'static str,
    resource: &'static str,
    code: u16,
}

/// Counters and health checks.
#[derive(Clone)]
pub struct Metrics {
    /// Health pages and metrics text.
    pub endpoints: Endpoints,
    requests: Family<RequestLabels, Counter>,
    watches: Gauge,
}

impl Metrics {
    /// With the gauges of these limits.
    #[must_use]
    pub fn new(in_flight: &InFlight) -> Self {
        let endpoints = Endpoints::new();
        let requests = Family::default();
        let watches = Gauge::default();
        endpoints.register(|registry| {
            registry.register(
                "apiserver_request",
                "Requests by verb, resource and HTTP code",
                Family::clone(&requests),
            );
            registry.register("apiserver_longrunning_requests", "Open watches", Gauge::clone(&watches));
            registry.register(
                "apiserver_current_inflight_requests",
                "Requests that hold a place of their kind's limit",
                Family::clone(&in_flight.taken),
            );
            registry.register(
                "apiserver_current_inqueue_requests",
                "Requests that wait for a place",
                Family::clone(&in_flight.waiting),
            );
        });
        endpoints.add_live_check("ping", || Ok(()));
        Self { endpoints, requests, watches }
    }

    /// Counts a finished request.
    pub fn count(&self, verb: &'static str, resource: &'static str, code: u16) {
        self.requests.get_or_create(&RequestLabels { verb, resource, code }).inc();
    }

    /// Counts an open watch.
    #[must_use]
    pub fn open_watch(&self) -> OpenWatch {
        self.watches.inc();
        OpenWatch(self.watches.clone())
    }
}

/// Counts an open watch until it is dropped.
#[derive(Debug)]
pub struct OpenWatch(Gauge);

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.dec();
    }
}
