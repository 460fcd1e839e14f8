//! Flags of `control-plane serve` about nodes that are lost: when that is noticed, and when their pods leave.
//!
//! Upstream counterpart: `--node-monitor-*` and `--terminated-pod-gc-threshold` of `kube-controller-manager`,
//! `--default-*-toleration-seconds` of `kube-apiserver`.

use clap::Args;
use keelson_control_plane::server::TolerationSeconds;
use keelson_controllers::{
    Config, DEFAULT_NODE_MONITOR_GRACE_PERIOD, DEFAULT_NODE_STARTUP_GRACE_PERIOD, DEFAULT_TERMINATED_POD_THRESHOLD,
};
use kube_common::duration::GoDuration;

/// See the module.
#[derive(Args)]
// The type's name alone is the group's, and other parts have Flags too.
#[group(id = "eviction")]
pub struct Flags {
    /// Silence after which a node's conditions become Unknown.
    #[arg(long, default_value_t = GoDuration(DEFAULT_NODE_MONITOR_GRACE_PERIOD), value_parser = GoDuration::parse)]
    node_monitor_grace_period: GoDuration,
    /// The same for a node that has not reported yet.
    #[arg(long, default_value_t = GoDuration(DEFAULT_NODE_STARTUP_GRACE_PERIOD), value_parser = GoDuration::parse)]
    node_startup_grace_period: GoDuration,
    /// Accepted as upstream's. Nodes are judged at the moment their grace is over, so it changes nothing.
    #[arg(long, value_parser = GoDuration::parse)]
    node_monitor_period: Option<GoDuration>,
    /// How long pods that do not say otherwise stay on a node that is not ready.
    #[arg(long, default_value_t = TolerationSeconds::default().not_ready)]
    default_not_ready_toleration_seconds: u32,
    /// How long pods that do not say otherwise stay on a node that is silent.
    #[arg(long, default_value_t = TolerationSeconds::default().unreachable)]
    default_unreachable_toleration_seconds: u32,
    /// Ended pods that are kept before the oldest are deleted; 0 keeps all.
    #[arg(long, default_value_t = DEFAULT_TERMINATED_POD_THRESHOLD)]
    terminated_pod_gc_threshold: usize,
}

impl Flags {
    /// For the API server.
    pub fn toleration_seconds(&self) -> TolerationSeconds {
        TolerationSeconds {
            not_ready: self.default_not_ready_toleration_seconds,
            unreachable: self.default_unreachable_toleration_seconds,
        }
    }

    /// For the controllers.
    pub fn apply(&self, config: &mut Config) {
        config.node_monitor_grace_period = self.node_monitor_grace_period.0;
        config.node_startup_grace_period = self.node_startup_grace_period.0;
        config.terminated_pod_threshold = self.terminated_pod_gc_threshold;
    }
}
