//! Metrics: upstream's names where the meaning is the same, our own for elements, transactions and
//! repairs.

use std::sync::atomic::AtomicU64;

use kube_common::serve::Endpoints;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// Label of the health counter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Code {
    /// HTTP status.
    pub code: u16,
}

/// Label of the ports without local endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Policy {
    /// `internal` or `external`.
    pub traffic_policy: &'static str,
}

/// All metrics; cheap to clone, one content.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Any sync, in seconds.
    pub sync_seconds: Histogram,
    /// Syncs that compared everything.
    pub sync_full_seconds: Histogram,
    /// Syncs of what changed.
    pub sync_partial_seconds: Histogram,
    /// From the change of an endpoint to the end of the sync that programmed it.
    pub network_programming_seconds: Histogram,
    /// Unix time of the last sync.
    pub last_sync: Gauge<f64, AtomicU64>,
    /// Unix time of the last change seen.
    pub last_queued: Gauge<f64, AtomicU64>,
    /// Slice changes seen.
    pub endpoint_changes: Counter,
    /// Service changes seen.
    pub service_changes: Counter,
    /// Syncs that failed.
    pub failures: Counter,
    /// Health requests by status.
    pub healthz: Family<Code, Counter>,
    /// Map and set elements written.
    pub elements: Counter,
    /// Transactions committed.
    pub transactions: Counter,
    /// Conntrack entries deleted.
    pub conntrack_deleted: Counter,
    /// Changes by a foreign hand that were noticed.
    pub foreign_changes: Counter,
    /// Frontends programmed.
    pub frontends: Gauge,
    /// Service ports with a Local policy whose endpoints are all elsewhere.
    pub no_local: Family<Policy, Gauge>,
    /// Health check node ports that cannot be opened.
    pub health_ports_failed: Gauge,
    /// Entries of the connection tracking table.
    pub conntrack_entries: Gauge,
    /// Most entries it can have.
    pub conntrack_limit: Gauge,
    /// Questions of the drain.
    pub drain_questions: Counter,
    /// Pods that are treated as terminating before the slices say so.
    pub drains: Gauge,
}

impl Metrics {
    /// Registers everything.
    #[must_use]
    pub fn register(endpoints: &Endpoints) -> Self {
        // 1 ms to 16 s: upstream starts at 1 ms and goes by doubling, too.
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 15));
        let metrics = Self {
            sync_seconds: seconds(),
            sync_full_seconds: seconds(),
            sync_partial_seconds: seconds(),
            network_programming_seconds: Histogram::new(exponential_buckets(0.002, 2.0, 18)),
            last_sync: Gauge::default(),
            last_queued: Gauge::default(),
            endpoint_changes: Counter::default(),
            service_changes: Counter::default(),
            failures: Counter::default(),
            healthz: Family::default(),
            elements: Counter::default(),
            transactions: Counter::default(),
            conntrack_deleted: Counter::default(),
            foreign_changes: Counter::default(),
            frontends: Gauge::default(),
            no_local: Family::default(),
            health_ports_failed: Gauge::default(),
            conntrack_entries: Gauge::default(),
            conntrack_limit: Gauge::default(),
            drain_questions: Counter::default(),
            drains: Gauge::default(),
        };
        let m = metrics.clone();
        endpoints.register(move |registry| {
            let up = registry.sub_registry_with_prefix("kubeproxy");
            up.register("sync_proxy_rules_duration_seconds", "Time of one sync", m.sync_seconds);
            up.register("sync_full_proxy_rules_duration_seconds", "Time of one full sync", m.sync_full_seconds);
            up.register(
                "sync_partial_proxy_rules_duration_seconds",
                "Time of one partial sync",
                m.sync_partial_seconds,
            );
            up.register(
                "network_programming_duration_seconds",
                "From the change of an endpoint to its being programmed",
                m.network_programming_seconds,
            );
            up.register("sync_proxy_rules_last_timestamp_seconds", "Unix time of the last sync", m.last_sync);
            up.register(
                "sync_proxy_rules_last_queued_timestamp_seconds",
                "Unix time of the last change",
                m.last_queued,
            );
            // The encoder appends `_total` to counters.
            up.register("sync_proxy_rules_endpoint_changes", "Slice changes seen", m.endpoint_changes);
            up.register("sync_proxy_rules_service_changes", "Service changes seen", m.service_changes);
            up.register("sync_proxy_rules_nftables_sync_failures", "Syncs that failed", m.failures);
            // A gauge in spite of its name, as upstream has it.
            up.register(
                "sync_proxy_rules_no_local_endpoints_total",
                "Service ports with a Local traffic policy and no endpoints on this node",
                m.no_local,
            );
            up.register("proxy_healthz", "Health requests by status", m.healthz);
            let own = registry.sub_registry_with_prefix("keelson_dataplane");
            own.register("elements", "Map and set elements written", m.elements);
            own.register("transactions", "Transactions committed", m.transactions);
            own.register("conntrack_deleted", "Stale conntrack entries deleted", m.conntrack_deleted);
            own.register("foreign_changes", "Changes of our table by others", m.foreign_changes);
            own.register("drain_questions", "Pods that the agent asked to drain", m.drain_questions);
            own.register("drains", "Pods treated as terminating before the slices say so", m.drains);
            own.register("frontends", "Frontends programmed", m.frontends);
            own.register(
                "health_check_ports_failed",
                "Services whose health check node port cannot be opened",
                m.health_ports_failed,
            );
            own.register("conntrack_entries", "Tracked connections", m.conntrack_entries);
            own.register("conntrack_limit", "Most connections that can be tracked", m.conntrack_limit);
        });
        metrics
    }
}
