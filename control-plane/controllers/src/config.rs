//! Configuration of the controllers and the scheduler, and the errors of the two entry points.
//!
//! Upstream counterpart: the flags of `kube-controller-manager` and `KubeSchedulerConfiguration`.

use std::time::Duration;

use ipnet::IpNet;

/// Upstream's default size of one node's pod range (`--node-cidr-mask-size-ipv4`).
pub const DEFAULT_NODE_CIDR_MASK_SIZE: u8 = 24;
/// Upstream's `--node-monitor-grace-period` since 1.32: silence after which a node's conditions become Unknown.
pub const DEFAULT_NODE_MONITOR_GRACE_PERIOD: Duration = Duration::from_secs(50);
/// Upstream's `--node-startup-grace-period`: the same for a node that never posted its Ready condition.
pub const DEFAULT_NODE_STARTUP_GRACE_PERIOD: Duration = Duration::from_secs(60);
/// Upstream's `--terminated-pod-gc-threshold`.
pub const DEFAULT_TERMINATED_POD_THRESHOLD: usize = 12_500;
/// The scheduler name a pod gets when it names none.
pub const DEFAULT_SCHEDULER_NAME: &str = "default-scheduler";

/// What the controllers and the scheduler need to know about the cluster.
#[derive(Debug, Clone)]
pub struct Config {
    /// Ranges that pod addresses come from, one per family (`--cluster-cidr`).
    pub cluster_cidrs: Vec<IpNet>,
    /// Prefix length of one node's part of an IPv4 cluster range.
    pub node_cidr_mask_size: u8,
    /// Prefix length of one node's part of an IPv6 cluster range.
    pub node_cidr_mask_size_ipv6: u8,
    /// Ranges that service addresses come from; never handed to a node.
    pub service_cidrs: Vec<IpNet>,
    /// DNS domain of the cluster, `cluster.local` by default.
    pub cluster_domain: String,
    /// PEM bundle published as `kube-root-ca.crt` in each namespace; none is published when empty.
    pub root_ca_pem: String,
    /// How long a node may be silent before its conditions become Unknown.
    pub node_monitor_grace_period: Duration,
    /// The same for a node that has not reported yet.
    pub node_startup_grace_period: Duration,
    /// Finished pods kept before the oldest are deleted; 0 keeps all.
    pub terminated_pod_threshold: usize,
    /// The `schedulerName` whose pods the scheduler takes.
    pub scheduler_name: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster_cidrs: Vec::new(),
            node_cidr_mask_size: DEFAULT_NODE_CIDR_MASK_SIZE,
            node_cidr_mask_size_ipv6: 64,
            service_cidrs: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            root_ca_pem: String::new(),
            node_monitor_grace_period: DEFAULT_NODE_MONITOR_GRACE_PERIOD,
            node_startup_grace_period: DEFAULT_NODE_STARTUP_GRACE_PERIOD,
            terminated_pod_threshold: DEFAULT_TERMINATED_POD_THRESHOLD,
            scheduler_name: DEFAULT_SCHEDULER_NAME.to_owned(),
        }
    }
}

impl Config {
    /// Checks what the types cannot.
    ///
    /// # Errors
    /// The first constraint that does not hold, with its values.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for cidr in &self.cluster_cidrs {
            let mask = self.node_mask(cidr);
            if mask < cidr.prefix_len() || mask > cidr.max_prefix_len() {
                return Err(ConfigError::NodeMaskOutsideClusterCidr { cidr: *cidr, mask });
            }
            if mask - cidr.prefix_len() > 16 {
                return Err(ConfigError::TooManyNodeCidrs { cidr: *cidr, mask });
            }
        }
        Ok(())
    }

    /// The prefix length that nodes get out of `cidr`.
    #[must_use]
    pub fn node_mask(&self, cidr: &IpNet) -> u8 {
        match cidr {
            IpNet::V4(_) => self.node_cidr_mask_size,
            IpNet::V6(_) => self.node_cidr_mask_size_ipv6,
        }
    }
}

/// A [`Config`] that cannot work. Not retryable.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The node mask is shorter than the cluster range's prefix or longer than an address.
    #[error(
        "node mask /{mask} does not fit into the cluster range {cidr}: choose one between its prefix and the address length"
    )]
    NodeMaskOutsideClusterCidr {
        /// The cluster range.
        cidr: IpNet,
        /// The node mask.
        mask: u8,
    },
    /// More than 65,536 node ranges (upstream's limit too).
    #[error("cluster range {cidr} cut into /{mask} gives more than 65536 node ranges: use a shorter node mask")]
    TooManyNodeCidrs {
        /// The cluster range.
        cidr: IpNet,
        /// The node mask.
        mask: u8,
    },
}

/// Why [`crate::run_controllers`] or [`crate::run_scheduler`] ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration is unusable. Not retryable.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// A task ended by a panic. Start again: the state is in the API server.
    #[error("the {task} task died")]
    TaskDied {
        /// Which controller or loop.
        task: &'static str,
    },
}
