//! The agent's metrics, under upstream's names where the meaning is the same.
//!
//! Label values come from closed sets (CVE-2020-8551). Gauges are read at the scrape, nothing is counted twice.
//! Upstream counterpart: `pkg/kubelet/metrics` (names and buckets of Kubernetes 1.36).

use std::sync::Arc;
use std::time::Duration;

use kube_common::serve::Endpoints;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use tokio::sync::watch;

use crate::manager::View;
use crate::pleg::Pleg;
use crate::pod;
use crate::runtime::ContainerState;
use crate::runtime::events::Source;

/// The client library's default buckets, in seconds.
const DEFAULT_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Upstream's buckets for pod starts end at an hour; ours begin earlier, because starts here take less than 0.5 s.
const START_BUCKETS: [f64; 14] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0];

/// Seconds of a drain: from the allowance of other nodes to the longest there is, and a little beyond.
const DRAIN_BUCKETS: [f64; 10] = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5];

/// Label of calls to the runtime.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Operation {
    operation_type: &'static str,
}

/// Label of started containers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ContainerType {
    container_type: &'static str,
}

/// Labels of an event that the runtime told.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RuntimeEvent {
    source: &'static str,
    event: &'static str,
}

/// Label of ended pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DrainOutcome {
    outcome: &'static str,
}

/// Label of a source of static pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ManifestSource {
    source: &'static str,
}

/// Everything the agent counts; cheap to clone, one content.
#[derive(Debug, Clone)]
pub struct Metrics {
    calls: Family<Operation, Counter>,
    call_errors: Family<Operation, Counter>,
    call_seconds: Family<Operation, Histogram, fn() -> Histogram>,
    relist_seconds: Histogram,
    relist_interval: Histogram,
    pod_start: Histogram,
    worker_seconds: Family<Operation, Histogram, fn() -> Histogram>,
    started_containers: Family<ContainerType, Counter>,
    started_pods: Counter,
    invalid_manifests: Family<ManifestSource, Gauge>,
    runtime_events: Family<RuntimeEvent, Counter>,
    drain_seconds: Histogram,
    drains: Family<DrainOutcome, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            calls: Family::default(),
            call_errors: Family::default(),
            call_seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.005, 2.5, 14))),
            relist_seconds: Histogram::new(DEFAULT_BUCKETS),
            relist_interval: Histogram::new(DEFAULT_BUCKETS),
            pod_start: Histogram::new(START_BUCKETS),
            worker_seconds: Family::new_with_constructor(|| Histogram::new(DEFAULT_BUCKETS)),
            started_containers: Family::default(),
            started_pods: Counter::default(),
            invalid_manifests: Family::default(),
            runtime_events: Family::default(),
            drain_seconds: Histogram::new(DRAIN_BUCKETS),
            drains: Family::default(),
        }
    }
}

/// Upstream's label for a call of the runtime.
fn operation_type(call: &str) -> &'static str {
    match call {
        "Version" => "version",
        "Status" => "status",
        "RunPodSandbox" => "run_podsandbox",
        "StopPodSandbox" => "stop_podsandbox",
        "RemovePodSandbox" => "remove_podsandbox",
        "PodSandboxStatus" => "podsandbox_status",
        "ListPodSandbox" => "list_podsandbox",
        "CreateContainer" => "create_container",
        "StartContainer" => "start_container",
        "StopContainer" => "stop_container",
        "RemoveContainer" => "remove_container",
        "ListContainers" => "list_containers",
        "ContainerStatus" => "container_status",
        "ReopenContainerLog" => "reopen_container_log",
        "ExecSync" => "exec_sync",
        "Exec" => "exec",
        "Attach" => "attach",
        "PortForward" => "port_forward",
        "ImageStatus" => "image_status",
        "PullImage" => "pull_image",
        "ListImages" => "list_images",
        "RemoveImage" => "remove_image",
        _ => "other",
    }
}

impl Metrics {
    /// Shows them at `/metrics`.
    pub fn register(&self, endpoints: &Endpoints, node: &str) {
        let m = self.clone();
        let node = node.to_owned();
        endpoints.register(move |registry| {
            let r = registry.sub_registry_with_prefix("kubelet");
            r.register("runtime_operations", "Calls of the container runtime by type", m.calls);
            r.register("runtime_operations_errors", "Calls of the container runtime that failed", m.call_errors);
            r.register("runtime_operations_duration_seconds", "Duration of calls of the runtime", m.call_seconds);
            r.register("pleg_relist_duration_seconds", "Duration of a full list of the runtime", m.relist_seconds);
            r.register("pleg_relist_interval_seconds", "Time between full lists of the runtime", m.relist_interval);
            let help = "From the first sight of a pod to its start on the node";
            r.register("pod_start_duration_seconds", help, m.pod_start);
            r.register("pod_worker_duration_seconds", "Duration of one pass of a pod's worker", m.worker_seconds);
            r.register("started_containers", "Containers started", m.started_containers);
            let help = "Static pod manifests that cannot be used; what they gave before runs on";
            r.register("invalid_static_pod_manifests", help, m.invalid_manifests);
            r.register("started_pods", "Pod sandboxes started", m.started_pods);
            let help = "Events of containers and sandboxes that the runtime told, by stream";
            r.register("runtime_events", help, m.runtime_events);
            r.register_collector(Box::new(NodeName(node)));
            let own = registry.sub_registry_with_prefix("keelson_agent");
            let help = "How long pods that end have waited for Services to let go of them";
            own.register("drain_seconds", help, m.drain_seconds);
            own.register("drains", "Pods that ended, by how their wait for Services ended", m.drains);
        });
    }

    /// Notes the end of a call of the runtime.
    pub fn call(&self, call: &str, took: Duration, failed: bool) {
        let label = Operation { operation_type: operation_type(call) };
        self.calls.get_or_create(&label).inc();
        if failed {
            self.call_errors.get_or_create(&label).inc();
        }
        self.call_seconds.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// Notes a full list; `since` is the time since the one before.
    pub fn relist(&self, took: Duration, since: Option<Duration>) {
        self.relist_seconds.observe(took.as_secs_f64());
        if let Some(since) = since {
            self.relist_interval.observe(since.as_secs_f64());
        }
    }

    /// Notes that a pod runs, this long after the agent first saw it.
    pub fn pod_started(&self, after: Duration) {
        self.pod_start.observe(after.as_secs_f64());
    }

    /// Notes one pass of a worker: `sync` or `terminate`.
    pub fn pass(&self, kind: &'static str, took: Duration) {
        self.worker_seconds.get_or_create(&Operation { operation_type: kind }).observe(took.as_secs_f64());
    }

    /// Notes a sandbox that started.
    pub fn sandbox_started(&self) {
        self.started_pods.inc();
    }

    /// Notes an event of the runtime by one of its streams; `event` is a word of a closed set.
    pub fn event(&self, source: Source, event: &'static str) {
        self.runtime_events.get_or_create(&RuntimeEvent { source: source.label(), event }).inc();
    }

    /// How many static pod manifests of a source (`file`, `http`) cannot be used.
    pub fn invalid_manifests(&self, source: &'static str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.invalid_manifests.get_or_create(&ManifestSource { source }).set(count);
    }

    /// Notes that a pod goes on to its end; `outcome` is a word of a closed set. `took`: how long it waited, if it did.
    pub fn drained(&self, outcome: &'static str, took: Option<Duration>) {
        self.drains.get_or_create(&DrainOutcome { outcome }).inc();
        if let Some(took) = took {
            self.drain_seconds.observe(took.as_secs_f64());
        }
    }

    /// Notes a container that started.
    pub fn container_started(&self, role: pod::Role) {
        let container_type = match role {
            pod::Role::Init | pod::Role::Sidecar => "init_container",
            pod::Role::Ephemeral => "ephemeral_container",
            pod::Role::Main => "container",
        };
        self.started_containers.get_or_create(&ContainerType { container_type }).inc();
    }
}

/// `kubelet_node_name`: lets a query join by node.
#[derive(Debug)]
struct NodeName(String);

impl Collector for NodeName {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let mut metric = encoder.encode_descriptor(
            "node_name",
            "The node's name; the value is always 1",
            None,
            prometheus_client::metrics::MetricType::Gauge,
        )?;
        ConstGauge::new(1i64).encode(metric.encode_family(&[("node", self.0.as_str())])?)
    }
}

/// What runs, read at the scrape.
pub struct Population {
    /// What the runtime holds.
    pub pleg: Arc<Pleg>,
    /// What shall run.
    pub view: watch::Receiver<View>,
}

impl std::fmt::Debug for Population {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Population")
    }
}

impl Population {
    /// Shows it at `/metrics`.
    pub fn register(self, endpoints: &Endpoints) {
        endpoints.register(|registry| registry.sub_registry_with_prefix("kubelet").register_collector(Box::new(self)));
    }
}

const fn state_label(state: ContainerState) -> &'static str {
    match state {
        ContainerState::Created => "created",
        ContainerState::Running => "running",
        ContainerState::Exited => "exited",
        ContainerState::Unknown => "unknown",
    }
}

impl Collector for Population {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let records = self.pleg.all();
        let running = records.iter().filter(|r| r.ready_sandbox().is_some()).count() as i64;
        let gauge = prometheus_client::metrics::MetricType::Gauge;
        let mut plain = |name: &str, help: &str, value: f64| {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, gauge)?)
        };
        plain("running_pods", "Pods with a running sandbox", running as f64)?;
        let seen = std::time::SystemTime::now() - self.pleg.relist_age();
        let seen = seen.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        plain("pleg_last_seen_seconds", "Unix time of the last full list of the runtime", seen.as_secs_f64())?;
        let mut states = std::collections::BTreeMap::<&str, i64>::new();
        for container in records.iter().flat_map(|r| &r.containers) {
            *states.entry(state_label(container.state)).or_default() += 1;
        }
        let mut metric = encoder.encode_descriptor("running_containers", "Containers by state", None, gauge)?;
        for (state, count) in states {
            ConstGauge::new(count).encode(metric.encode_family(&[("container_state", state)])?)?;
        }
        let help = "Whether this stream of the runtime's events is open: without one everything is listed each second";
        let mut metric = encoder.encode_descriptor("runtime_event_stream_open", help, None, gauge)?;
        for source in Source::ALL {
            let open = i64::from(self.pleg.has_events_of(source));
            ConstGauge::new(open).encode(metric.encode_family(&[("source", source.label())])?)?;
        }
        let (statics, all) = {
            let view = self.view.borrow();
            (view.pods.iter().filter(|p| pod::is_static(p)).count(), view.pods.len())
        };
        let mut metric = encoder.encode_descriptor("desired_pods", "Pods that the node shall run", None, gauge)?;
        for (label, count) in [("true", statics), ("", all - statics)] {
            ConstGauge::new(count as i64).encode(metric.encode_family(&[("static", label)])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_under_upstreams_names() {
        let endpoints = Endpoints::new();
        let metrics = Metrics::default();
        metrics.register(&endpoints, "node-1");
        metrics.call("RunPodSandbox", Duration::from_millis(230), false);
        metrics.call("StartContainer", Duration::from_millis(40), true);
        metrics.call("Unheard", Duration::ZERO, false);
        metrics.event(Source::Cri, "stopped");
        metrics.drained("none", None);
        metrics.drained("agreed", Some(Duration::from_millis(600)));
        let text = endpoints.metrics_text();
        for line in [
            "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 1",
            "kubelet_runtime_operations_errors_total{operation_type=\"start_container\"} 1",
            "kubelet_runtime_operations_duration_seconds_count{operation_type=\"other\"} 1",
            "kubelet_node_name{node=\"node-1\"} 1",
            "kubelet_runtime_events_total{source=\"cri\",event=\"stopped\"} 1",
            "keelson_agent_drains_total{outcome=\"none\"} 1",
            "keelson_agent_drains_total{outcome=\"agreed\"} 1",
            "keelson_agent_drain_seconds_count 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in:\n{text}");
        }
        assert!(!text.contains("errors_total{operation_type=\"run_podsandbox\"}"), "{text}");
    }
}
