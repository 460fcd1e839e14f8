//! What ReplicaSets and ReplicationControllers have in common: the controller only sees this.
//!
//! Upstream counterpart: `pkg/controller/replication/conversion.go`, which dresses one kind up as the other.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::Selector;
use serde::Serialize;

use crate::engine::Caches;
use crate::engine::cache::{Cache, Cached};
use crate::meta::{seconds, workload_selector};

/// A kind that wants a number of pods of one template.
pub trait Replicated: Cached + Serialize {
    /// The controller's name in events.
    const COMPONENT: &'static str;
    /// The kind's cache.
    fn cache(caches: &Caches) -> &Arc<Cache<Self>>;
    /// Its selector, unless it is invalid or selects everything.
    fn selector(&self) -> Option<Selector>;
    /// How many pods it wants.
    fn wished(&self) -> i32;
    /// How long a pod must be ready before it counts as available.
    fn min_ready(&self) -> Duration;
    /// What its pods look like.
    fn template(&self) -> Option<&PodTemplateSpec>;
    /// What it reports, in the words of a ReplicaSet.
    fn status(&self) -> ReplicaSetStatus;
    /// Makes it report this.
    fn set_status(&mut self, status: ReplicaSetStatus);
}

impl Replicated for ReplicaSet {
    const COMPONENT: &'static str = "replicaset-controller";

    fn cache(caches: &Caches) -> &Arc<Cache<Self>> {
        &caches.replica_sets
    }

    fn selector(&self) -> Option<Selector> {
        workload_selector(&self.spec.selector)
    }

    fn wished(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    fn min_ready(&self) -> Duration {
        seconds(self.spec.min_ready_seconds)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.template.as_ref()
    }

    fn status(&self) -> ReplicaSetStatus {
        self.status.clone().unwrap_or_default()
    }

    fn set_status(&mut self, status: ReplicaSetStatus) {
        self.status = Some(status);
    }
}

impl Replicated for ReplicationController {
    const COMPONENT: &'static str = "replication-controller";

    fn cache(caches: &Caches) -> &Arc<Cache<Self>> {
        &caches.replication_controllers
    }

    fn selector(&self) -> Option<Selector> {
        let labels = self.spec.as_ref()?.selector.clone();
        workload_selector(&LabelSelector { match_labels: labels, match_expressions: None })
    }

    fn wished(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn min_ready(&self) -> Duration {
        seconds(self.spec.as_ref().and_then(|spec| spec.min_ready_seconds))
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status(&self) -> ReplicaSetStatus {
        let status = self.status.clone().unwrap_or_default();
        let condition = |c: ReplicationControllerCondition| ReplicaSetCondition {
            type_: Some(c.type_),
            status: Some(c.status),
            reason: c.reason,
            message: c.message,
            last_transition_time: c.last_transition_time,
        };
        ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            terminating_replicas: None,
            observed_generation: status.observed_generation,
            conditions: status.conditions.map(|list| list.into_iter().map(condition).collect()),
        }
    }

    fn set_status(&mut self, status: ReplicaSetStatus) {
        let condition = |c: ReplicaSetCondition| ReplicationControllerCondition {
            type_: c.type_.unwrap_or_default(),
            status: c.status.unwrap_or_default(),
            reason: c.reason,
            message: c.message,
            last_transition_time: c.last_transition_time,
        };
        self.status = Some(ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            observed_generation: status.observed_generation,
            conditions: status.conditions.map(|list| list.into_iter().map(condition).collect()),
        });
    }
}
