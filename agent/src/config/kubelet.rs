//! `KubeletConfiguration` (`kubelet.config.k8s.io/v1beta1`) with upstream's names and defaults.
//!
//! Every field upstream has is known; those without effect here yet are kept as plain values and reported by
//! [`KubeletConfiguration::unused`].

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use kube_common::duration::GoDuration;
use serde::{Deserialize, Serialize, Serializer};

pub use super::access::{
    Anonymous, Authentication, Authorization, AuthorizationMode, WebhookAuthentication, WebhookAuthorization, X509,
};
use crate::runtime::identity;

/// Upstream's configuration document.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct KubeletConfiguration {
    /// Folder of static pod manifests.
    pub static_pod_path: Option<PathBuf>,
    /// Web address of static pod manifests.
    #[serde(rename = "staticPodURL", skip_serializing_if = "String::is_empty")]
    pub static_pod_url: String,
    /// Headers to ask it with: values by name.
    #[serde(rename = "staticPodURLHeader", skip_serializing_if = "BTreeMap::is_empty", serialize_with = "masked")]
    pub static_pod_url_header: BTreeMap<String, Vec<String>>,
    /// Root of container logs.
    pub pod_logs_dir: PathBuf,
    /// Longest time between two looks at a pod.
    pub sync_frequency: GoDuration,
    /// Pause between full reads of the manifest folder.
    pub file_check_frequency: GoDuration,
    /// Pause between reads of the web address.
    pub http_check_frequency: GoDuration,
    /// Whether the HTTPS server runs.
    pub enable_server: bool,
    /// Address of the HTTPS server.
    pub address: IpAddr,
    /// Port of the HTTPS server.
    pub port: u16,
    /// Serving certificate.
    pub tls_cert_file: Option<PathBuf>,
    /// Key of the serving certificate.
    pub tls_private_key_file: Option<PathBuf>,
    /// Who may call the HTTPS server.
    pub authentication: Authentication,
    /// What a caller may do.
    pub authorization: Authorization,
    /// Pulls per second; 0 is no limit.
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: i32,
    /// Burst of pulls.
    pub registry_burst: i32,
    /// Events per second; 0 is no limit.
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: i32,
    /// Burst of events.
    pub event_burst: i32,
    /// Whether logs, exec and the like are served.
    pub enable_debugging_handlers: bool,
    /// Port of /healthz; 0 turns it off.
    pub healthz_port: u16,
    /// Address of /healthz.
    pub healthz_bind_address: IpAddr,
    /// OOM score of the agent itself.
    pub oom_score_adj: i32,
    /// DNS domain of the cluster.
    pub cluster_domain: String,
    /// Addresses of the cluster's DNS.
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<IpAddr>,
    /// Pause between computations of the node's status.
    pub node_status_update_frequency: GoDuration,
    /// Longest time between two reports of an unchanged status.
    pub node_status_report_frequency: GoDuration,
    /// Validity of the node's lease.
    pub node_lease_duration_seconds: i32,
    /// Cgroup under which `kubepods` lives.
    pub cgroup_root: String,
    /// Whether pods get cgroups by quality of service.
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: bool,
    /// Who names cgroups.
    pub cgroup_driver: CgroupDriver,
    /// Deadline of runtime calls.
    pub runtime_request_timeout: GoDuration,
    /// Streams (exec, attach, port-forward) without traffic for so long are ended.
    pub streaming_connection_idle_timeout: GoDuration,
    /// Most pods on the node.
    pub max_pods: i32,
    /// Pod range of a node without an API server; one per family, separated by a comma.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<String>,
    /// Most processes of a pod; -1 is no limit.
    pub pod_pids_limit: i64,
    /// The node's resolver file; empty text means none.
    pub resolv_conf: Option<String>,
    /// Whether CPU limits are enforced.
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: bool,
    /// Period of CPU limits.
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: GoDuration,
    /// Most images in the node's status; -1 is no limit.
    pub node_status_max_images: i32,
    /// Requests to the API server per second.
    #[serde(rename = "kubeAPIQPS")]
    pub kube_api_qps: i32,
    /// Burst of requests to the API server.
    #[serde(rename = "kubeAPIBurst")]
    pub kube_api_burst: i32,
    /// Whether images are pulled one after another.
    pub serialize_image_pulls: Option<bool>,
    /// Most pulls at once.
    pub max_parallel_image_pulls: Option<i32>,
    /// Whether swap on the node is an error.
    pub fail_swap_on: bool,
    /// Kept from pods for the system.
    pub system_reserved: BTreeMap<String, String>,
    /// Kept from pods for the node programs.
    pub kube_reserved: BTreeMap<String, String>,
    /// Where the limits of all pods together hold: `pods` takes the reservations off the limits of `kubepods`.
    pub enforce_node_allocatable: Vec<String>,
    /// Sysctls beyond the safe ones that pods may set; `*` at the end is a prefix.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Hard eviction thresholds; they reduce what is allocatable.
    pub eviction_hard: BTreeMap<String, String>,
    /// Identifier of the machine at its provider.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// Restart delays.
    pub crash_loop_back_off: CrashLoopBackOff,
    /// Whether RuntimeDefault is the seccomp default.
    pub seccomp_default: bool,
    /// Taints at registration.
    pub register_with_taints: Vec<Taint>,
    /// Whether the node registers itself.
    pub register_node: bool,
    /// Socket of the container runtime.
    pub container_runtime_endpoint: String,
    /// Whether cgroup v1 is an error.
    pub fail_cgroup_v1: bool,
    /// Accepted and ignored: no feature here is gated.
    pub feature_gates: BTreeMap<String, bool>,
    // Known, without effect yet; `check` looks at the values of some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) read_only_port: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_cipher_suites: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tls_min_version: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_curve_preferences: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rotate_certificates: Option<serde_json::Value>,
    #[serde(rename = "serverTLSBootstrap")]
    #[serde(skip_serializing_if = "Option::is_none")]
    server_tls_bootstrap: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image_pull_credentials_verification_policy: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preloaded_images_verification_allowlist: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_contention_profiling: Option<serde_json::Value>,
    #[serde(rename = "imageMinimumGCAge")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image_minimum_gc_age: Option<serde_json::Value>,
    #[serde(rename = "imageMaximumGCAge")]
    #[serde(skip_serializing_if = "Option::is_none")]
    image_maximum_gc_age: Option<serde_json::Value>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image_gc_high_threshold_percent: Option<serde_json::Value>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image_gc_low_threshold_percent: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume_stats_agg_period: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kubelet_cgroups: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_cgroups: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_manager_policy: Option<serde_json::Value>,
    #[serde(rename = "singleProcessOOMKill")]
    #[serde(skip_serializing_if = "Option::is_none")]
    single_process_oom_kill: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_manager_policy_options: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_manager_reconcile_period: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory_manager_policy: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) topology_manager_policy: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) topology_manager_scope: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topology_manager_policy_options: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qos_reserved: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hairpin_mode: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) run_once: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_open_files: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) eviction_soft: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) eviction_soft_grace_period: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction_pressure_transition_period: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction_max_pod_grace_period: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) eviction_minimum_reclaim: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    merge_default_eviction_settings: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pods_per_core: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_controller_attach_detach: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protect_kernel_defaults: Option<serde_json::Value>,
    #[serde(rename = "makeIPTablesUtilChains")]
    #[serde(skip_serializing_if = "Option::is_none")]
    make_ip_tables_util_chains: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) iptables_masquerade_bit: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) iptables_drop_bit: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory_swap: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container_log_max_size: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container_log_max_files: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container_log_max_workers: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container_log_monitor_interval: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) config_map_and_secret_change_detection_strategy: Option<serde_json::Value>,
    #[serde(rename = "reservedSystemCPUs")]
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_system_cp_us: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    show_hidden_metrics_for_version: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) system_reserved_cgroup: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kube_reserved_cgroup: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume_plugin_dir: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel_memcg_notification: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logging: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_system_log_handler: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_system_log_query: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shutdown_grace_period: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shutdown_grace_period_critical_pods: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shutdown_grace_period_by_pod_priority: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_memory: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_profiling_handler: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_debug_flags_handler: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_throttling_factor: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracing: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    local_storage_capacity_isolation: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image_service_endpoint: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_namespaces: Option<serde_json::Value>,
}

/// Values may be secret; `/configz` shows names alone.
fn masked<S: Serializer>(headers: &BTreeMap<String, Vec<String>>, serializer: S) -> Result<S::Ok, S::Error> {
    let shown = headers.iter().map(|(name, values)| (name, vec!["<masked>"; values.len()]));
    serializer.collect_map(shown)
}

impl Default for KubeletConfiguration {
    fn default() -> Self {
        Self {
            static_pod_path: None,
            static_pod_url: String::new(),
            static_pod_url_header: BTreeMap::new(),
            pod_logs_dir: identity::POD_LOGS_ROOT.into(),
            sync_frequency: GoDuration::from_secs(60),
            file_check_frequency: GoDuration::from_secs(20),
            http_check_frequency: GoDuration::from_secs(20),
            enable_server: true,
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: 10250,
            tls_cert_file: None,
            tls_private_key_file: None,
            authentication: Authentication::default(),
            authorization: Authorization::default(),
            registry_pull_qps: 5,
            registry_burst: 10,
            event_record_qps: 50,
            event_burst: 100,
            enable_debugging_handlers: true,
            healthz_port: 10248,
            healthz_bind_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            oom_score_adj: -999,
            cluster_domain: String::new(),
            cluster_dns: Vec::new(),
            node_status_update_frequency: GoDuration::from_secs(10),
            node_status_report_frequency: GoDuration::from_secs(300),
            node_lease_duration_seconds: 40,
            cgroup_root: String::new(),
            cgroups_per_qos: true,
            cgroup_driver: CgroupDriver::Cgroupfs,
            runtime_request_timeout: GoDuration::from_secs(120),
            streaming_connection_idle_timeout: GoDuration::from_secs(4 * 3600),
            max_pods: 110,
            pod_cidr: None,
            pod_pids_limit: -1,
            resolv_conf: None,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: GoDuration(Duration::from_millis(100)),
            node_status_max_images: 50,
            kube_api_qps: 50,
            kube_api_burst: 100,
            serialize_image_pulls: None,
            max_parallel_image_pulls: None,
            fail_swap_on: true,
            system_reserved: BTreeMap::new(),
            kube_reserved: BTreeMap::new(),
            enforce_node_allocatable: vec!["pods".into()],
            allowed_unsafe_sysctls: Vec::new(),
            eviction_hard: BTreeMap::new(),
            provider_id: String::new(),
            crash_loop_back_off: CrashLoopBackOff::default(),
            seccomp_default: false,
            register_with_taints: Vec::new(),
            register_node: true,
            container_runtime_endpoint: "unix:///run/containerd/containerd.sock".into(),
            fail_cgroup_v1: false,
            feature_gates: BTreeMap::new(),
            read_only_port: None,
            tls_cipher_suites: None,
            tls_min_version: None,
            tls_curve_preferences: None,
            rotate_certificates: None,
            server_tls_bootstrap: None,
            image_pull_credentials_verification_policy: None,
            preloaded_images_verification_allowlist: None,
            enable_contention_profiling: None,
            image_minimum_gc_age: None,
            image_maximum_gc_age: None,
            image_gc_high_threshold_percent: None,
            image_gc_low_threshold_percent: None,
            volume_stats_agg_period: None,
            kubelet_cgroups: None,
            system_cgroups: None,
            cpu_manager_policy: None,
            single_process_oom_kill: None,
            cpu_manager_policy_options: None,
            cpu_manager_reconcile_period: None,
            memory_manager_policy: None,
            topology_manager_policy: None,
            topology_manager_scope: None,
            topology_manager_policy_options: None,
            qos_reserved: None,
            hairpin_mode: None,
            run_once: None,
            max_open_files: None,
            content_type: None,
            eviction_soft: None,
            eviction_soft_grace_period: None,
            eviction_pressure_transition_period: None,
            eviction_max_pod_grace_period: None,
            eviction_minimum_reclaim: None,
            merge_default_eviction_settings: None,
            pods_per_core: None,
            enable_controller_attach_detach: None,
            protect_kernel_defaults: None,
            make_ip_tables_util_chains: None,
            iptables_masquerade_bit: None,
            iptables_drop_bit: None,
            memory_swap: None,
            container_log_max_size: None,
            container_log_max_files: None,
            container_log_max_workers: None,
            container_log_monitor_interval: None,
            config_map_and_secret_change_detection_strategy: None,
            reserved_system_cp_us: None,
            show_hidden_metrics_for_version: None,
            system_reserved_cgroup: None,
            kube_reserved_cgroup: None,
            volume_plugin_dir: None,
            kernel_memcg_notification: None,
            logging: None,
            enable_system_log_handler: None,
            enable_system_log_query: None,
            shutdown_grace_period: None,
            shutdown_grace_period_critical_pods: None,
            shutdown_grace_period_by_pod_priority: None,
            reserved_memory: None,
            enable_profiling_handler: None,
            enable_debug_flags_handler: None,
            memory_throttling_factor: None,
            tracing: None,
            local_storage_capacity_isolation: None,
            image_service_endpoint: None,
            user_namespaces: None,
        }
    }
}

impl KubeletConfiguration {
    /// Names of fields that are set and have no effect yet.
    #[must_use]
    pub fn unused(&self) -> Vec<String> {
        [
            ("readOnlyPort", &self.read_only_port),
            ("tlsCipherSuites", &self.tls_cipher_suites),
            ("tlsMinVersion", &self.tls_min_version),
            ("tlsCurvePreferences", &self.tls_curve_preferences),
            ("rotateCertificates", &self.rotate_certificates),
            ("serverTLSBootstrap", &self.server_tls_bootstrap),
            ("imagePullCredentialsVerificationPolicy", &self.image_pull_credentials_verification_policy),
            ("preloadedImagesVerificationAllowlist", &self.preloaded_images_verification_allowlist),
            ("enableContentionProfiling", &self.enable_contention_profiling),
            ("imageMinimumGCAge", &self.image_minimum_gc_age),
            ("imageMaximumGCAge", &self.image_maximum_gc_age),
            ("imageGCHighThresholdPercent", &self.image_gc_high_threshold_percent),
            ("imageGCLowThresholdPercent", &self.image_gc_low_threshold_percent),
            ("volumeStatsAggPeriod", &self.volume_stats_agg_period),
            ("kubeletCgroups", &self.kubelet_cgroups),
            ("systemCgroups", &self.system_cgroups),
            ("cpuManagerPolicy", &self.cpu_manager_policy),
            ("singleProcessOOMKill", &self.single_process_oom_kill),
            ("cpuManagerPolicyOptions", &self.cpu_manager_policy_options),
            ("cpuManagerReconcilePeriod", &self.cpu_manager_reconcile_period),
            ("memoryManagerPolicy", &self.memory_manager_policy),
            ("topologyManagerPolicy", &self.topology_manager_policy),
            ("topologyManagerScope", &self.topology_manager_scope),
            ("topologyManagerPolicyOptions", &self.topology_manager_policy_options),
            ("qosReserved", &self.qos_reserved),
            ("hairpinMode", &self.hairpin_mode),
            ("runOnce", &self.run_once),
            ("maxOpenFiles", &self.max_open_files),
            ("contentType", &self.content_type),
            ("evictionSoft", &self.eviction_soft),
            ("evictionSoftGracePeriod", &self.eviction_soft_grace_period),
            ("evictionPressureTransitionPeriod", &self.eviction_pressure_transition_period),
            ("evictionMaxPodGracePeriod", &self.eviction_max_pod_grace_period),
            ("evictionMinimumReclaim", &self.eviction_minimum_reclaim),
            ("mergeDefaultEvictionSettings", &self.merge_default_eviction_settings),
            ("podsPerCore", &self.pods_per_core),
            ("enableControllerAttachDetach", &self.enable_controller_attach_detach),
            ("protectKernelDefaults", &self.protect_kernel_defaults),
            ("makeIPTablesUtilChains", &self.make_ip_tables_util_chains),
            ("iptablesMasqueradeBit", &self.iptables_masquerade_bit),
            ("iptablesDropBit", &self.iptables_drop_bit),
            ("memorySwap", &self.memory_swap),
            ("containerLogMaxSize", &self.container_log_max_size),
            ("containerLogMaxFiles", &self.container_log_max_files),
            ("containerLogMaxWorkers", &self.container_log_max_workers),
            ("containerLogMonitorInterval", &self.container_log_monitor_interval),
            ("configMapAndSecretChangeDetectionStrategy", &self.config_map_and_secret_change_detection_strategy),
            ("reservedSystemCPUs", &self.reserved_system_cp_us),
            ("showHiddenMetricsForVersion", &self.show_hidden_metrics_for_version),
            ("systemReservedCgroup", &self.system_reserved_cgroup),
            ("kubeReservedCgroup", &self.kube_reserved_cgroup),
            ("volumePluginDir", &self.volume_plugin_dir),
            ("kernelMemcgNotification", &self.kernel_memcg_notification),
            ("logging", &self.logging),
            ("enableSystemLogHandler", &self.enable_system_log_handler),
            ("enableSystemLogQuery", &self.enable_system_log_query),
            ("shutdownGracePeriod", &self.shutdown_grace_period),
            ("shutdownGracePeriodCriticalPods", &self.shutdown_grace_period_critical_pods),
            ("shutdownGracePeriodByPodPriority", &self.shutdown_grace_period_by_pod_priority),
            ("reservedMemory", &self.reserved_memory),
            ("enableProfilingHandler", &self.enable_profiling_handler),
            ("enableDebugFlagsHandler", &self.enable_debug_flags_handler),
            ("memoryThrottlingFactor", &self.memory_throttling_factor),
            ("tracing", &self.tracing),
            ("localStorageCapacityIsolation", &self.local_storage_capacity_isolation),
            ("imageServiceEndpoint", &self.image_service_endpoint),
            ("userNamespaces", &self.user_namespaces),
        ]
        .into_iter()
        .filter(|(_, value)| value.is_some())
        .map(|(name, _)| name.to_owned())
        .chain(
            self.enforce_node_allocatable
                .iter()
                .filter(|e| !["pods", "none"].contains(&e.as_str()))
                .map(|entry| format!("enforceNodeAllocatable {entry}")),
        )
        .collect()
    }

    /// How many pulls may run at once; `None` is no limit.
    #[must_use]
    pub fn parallel_pulls(&self) -> Option<usize> {
        match (self.max_parallel_image_pulls, self.serialize_image_pulls) {
            (Some(n), _) => usize::try_from(n).ok(),
            (None, Some(false)) => None,
            (None, _) => Some(1),
        }
    }
}

/// Restart delays.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct CrashLoopBackOff {
    /// Longest delay between restarts of one container.
    pub max_container_restart_period: Option<GoDuration>,
}

/// Who names cgroups.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    /// Plain folders.
    Cgroupfs,
    /// systemd slices.
    Systemd,
}
