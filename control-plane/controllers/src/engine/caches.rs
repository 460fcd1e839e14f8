//! The caches of one process: one watch per kind, shared by the scheduler and all controllers.
//!
//! Memory: each object loses what no controller reads before it is kept (managed fields everywhere, most of a Pod's
//! containers and volumes, a Node's image list beyond names and sizes). Updates are sent as differences, so the
//! missing parts are never written back.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, ContainerState, ContainerStateTerminated, Endpoints, Namespace, Node, PersistentVolumeClaim,
    Pod, ReplicationController, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::cache::{Cache, Cached};
use crate::meta::controller_uid;

/// The ConfigMap that each namespace gets; the only ConfigMaps that are kept.
pub const ROOT_CA_CONFIG_MAP: &str = "kube-root-ca.crt";
/// A first list that takes longer is worth a warning.
const SLOW_LIST: Duration = Duration::from_secs(10);
/// Where the leases of nodes live.
pub const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";
/// Pod annotations that a controller reads.
const POD_ANNOTATIONS: [&str; 4] = [
    "controller.kubernetes.io/pod-deletion-cost",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-index-failure-count",
    "batch.kubernetes.io/job-index-ignored-failure-count",
];

/// All caches. A kind is only watched if someone called [`Cache::want`] or [`Cache::on_change`] on it.
pub struct Caches {
    /// Writes go out through it.
    pub client: Client,
    /// Namespaces.
    pub namespaces: Arc<Cache<Namespace>>,
    /// Nodes.
    pub nodes: Arc<Cache<Node>>,
    /// Pods, reduced.
    pub pods: Arc<Cache<Pod>>,
    /// Services.
    pub services: Arc<Cache<Service>>,
    /// Endpoints.
    pub endpoints: Arc<Cache<Endpoints>>,
    /// Endpoint slices.
    pub slices: Arc<Cache<EndpointSlice>>,
    /// Deployments.
    pub deployments: Arc<Cache<Deployment>>,
    /// Replica sets.
    pub replica_sets: Arc<Cache<ReplicaSet>>,
    /// Replication controllers.
    pub replication_controllers: Arc<Cache<ReplicationController>>,
    /// Daemon sets.
    pub daemon_sets: Arc<Cache<DaemonSet>>,
    /// Stateful sets.
    pub stateful_sets: Arc<Cache<StatefulSet>>,
    /// The history of daemon sets and stateful sets.
    pub revisions: Arc<Cache<ControllerRevision>>,
    /// Claims of stateful sets' pods, their metadata only.
    pub claims: Arc<Cache<PersistentVolumeClaim>>,
    /// Jobs.
    pub jobs: Arc<Cache<Job>>,
    /// Cron jobs.
    pub cron_jobs: Arc<Cache<CronJob>>,
    /// Disruption budgets.
    pub budgets: Arc<Cache<PodDisruptionBudget>>,
    /// Cluster roles.
    pub cluster_roles: Arc<Cache<ClusterRole>>,
    /// Service accounts.
    pub service_accounts: Arc<Cache<ServiceAccount>>,
    /// Only those named [`ROOT_CA_CONFIG_MAP`].
    pub root_ca_maps: Arc<Cache<ConfigMap>>,
    /// Only those of nodes.
    pub node_leases: Arc<Cache<Lease>>,
}

impl Caches {
    /// Empty caches, not started.
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(Self {
            client,
            namespaces: Cache::new(strip_meta),
            nodes: Cache::new(strip_node),
            pods: Cache::new(strip_pod),
            services: Cache::new(strip_meta),
            endpoints: Cache::new(strip_meta),
            slices: Cache::new(strip_meta),
            deployments: Cache::new(strip_meta),
            replica_sets: Cache::new(strip_meta),
            replication_controllers: Cache::new(strip_meta),
            daemon_sets: Cache::new(strip_meta),
            stateful_sets: Cache::new(strip_meta),
            revisions: Cache::new(strip_meta),
            claims: Cache::new(strip_claim),
            jobs: Cache::new(strip_meta),
            cron_jobs: Cache::new(strip_meta),
            budgets: Cache::new(strip_meta),
            cluster_roles: Cache::new(strip_meta),
            service_accounts: Cache::new(strip_meta),
            root_ca_maps: Cache::new(strip_meta),
            node_leases: Cache::new(strip_meta),
        })
    }

    /// Starts the watches of all kinds that are wanted and waits for their first lists.
    pub async fn start(&self, tracker: &TaskTracker, shutdown: &CancellationToken) {
        let all = watcher::Config::default();
        let root_ca = all.clone().fields(&format!("metadata.name={ROOT_CA_CONFIG_MAP}"));
        let leases = Api::namespaced(self.client.clone(), NODE_LEASE_NAMESPACE);
        let client = &self.client;
        watch(&self.namespaces, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.nodes, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.pods, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.services, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.endpoints, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.slices, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.deployments, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.replica_sets, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.replication_controllers, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.daemon_sets, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.stateful_sets, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.revisions, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.claims, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.jobs, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.cron_jobs, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.budgets, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.cluster_roles, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.service_accounts, Api::all(client.clone()), &all, tracker, shutdown);
        watch(&self.root_ca_maps, Api::all(client.clone()), &root_ca, tracker, shutdown);
        watch(&self.node_leases, leases, &all, tracker, shutdown);
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.synced() => {}
        }
    }

    async fn synced(&self) {
        synced(&self.namespaces).await;
        synced(&self.nodes).await;
        synced(&self.pods).await;
        synced(&self.services).await;
        synced(&self.endpoints).await;
        synced(&self.slices).await;
        synced(&self.deployments).await;
        synced(&self.replica_sets).await;
        synced(&self.replication_controllers).await;
        synced(&self.daemon_sets).await;
        synced(&self.stateful_sets).await;
        synced(&self.revisions).await;
        synced(&self.claims).await;
        synced(&self.jobs).await;
        synced(&self.cron_jobs).await;
        synced(&self.budgets).await;
        synced(&self.cluster_roles).await;
        synced(&self.service_accounts).await;
        synced(&self.root_ca_maps).await;
        synced(&self.node_leases).await;
    }
}

/// Waits for the first list, saying now and then what is waited for.
async fn synced<K: Cached>(cache: &Cache<K>) {
    while cache.is_wanted() {
        match tokio::time::timeout(SLOW_LIST, cache.wait_synced()).await {
            Ok(()) => return,
            Err(_) => {
                warn!(kind = %K::kind(&()), "still waiting for the first list: is the API server up, and does it serve this kind?");
            }
        }
    }
}

fn watch<K: Cached>(
    cache: &Arc<Cache<K>>,
    api: Api<K>,
    config: &watcher::Config,
    tracker: &TaskTracker,
    shutdown: &CancellationToken,
) {
    if cache.is_wanted() {
        tracker.spawn(Arc::clone(cache).run(api, config.clone(), shutdown.clone()));
    }
}

fn strip_meta<K: Resource>(object: &mut K) {
    let meta = object.meta_mut();
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

fn strip_node(node: &mut Node) {
    strip_meta(node);
    node.metadata.annotations = None;
    if let Some(status) = &mut node.status {
        status.daemon_endpoints = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
        status.config = None;
        status.runtime_handlers = None;
    }
}

fn strip_pod(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|key, _| POD_ANNOTATIONS.contains(&key.as_str()));
        if annotations.is_empty() {
            pod.metadata.annotations = None;
        }
    }
    if let Some(spec) = &mut pod.spec {
        spec.containers.iter_mut().for_each(strip_container);
        if let Some(init) = &mut spec.init_containers {
            init.iter_mut().for_each(strip_container);
        }
        spec.ephemeral_containers = None;
        spec.volumes = None;
        spec.security_context = None;
        spec.image_pull_secrets = None;
        spec.dns_config = None;
        spec.host_aliases = None;
    }
    // Jobs judge by exit codes and by when the containers ended.
    let ends_matter = controller_uid(pod, "Job").is_some();
    if let Some(status) = &mut pod.status {
        for list in [&mut status.container_statuses, &mut status.init_container_statuses] {
            for container in list.iter_mut().flatten() {
                container.state = container.state.take().filter(|_| ends_matter).and_then(strip_state);
                container.last_state = None;
                container.container_id = None;
                container.image_id = String::new();
                container.image = String::new();
                container.resources = None;
                container.allocated_resources = None;
                container.volume_mounts = None;
                container.user = None;
            }
        }
        status.ephemeral_container_statuses = None;
    }
}

/// The exit code and the time, if the container has ended.
fn strip_state(state: ContainerState) -> Option<ContainerState> {
    let ended = state.terminated?;
    let terminated = ContainerStateTerminated {
        exit_code: ended.exit_code,
        finished_at: ended.finished_at,
        ..ContainerStateTerminated::default()
    };
    Some(ContainerState { terminated: Some(terminated), ..ContainerState::default() })
}

fn strip_claim(claim: &mut PersistentVolumeClaim) {
    strip_meta(claim);
    claim.metadata.annotations = None;
    claim.spec = None;
    claim.status = None;
}

fn strip_container(container: &mut Container) {
    *container = Container {
        name: std::mem::take(&mut container.name),
        image: container.image.take(),
        ports: container.ports.take(),
        resources: container.resources.take(),
        restart_policy: container.restart_policy.take(),
        ..Container::default()
    };
}
