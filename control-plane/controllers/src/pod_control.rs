//! Making and deleting pods for an owner, with the events that people know.
//!
//! Upstream counterpart: `RealPodControl` and `slowStartBatch` of `pkg/controller/controller_utils.go`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::DeleteParams;

use crate::engine::events::Level;
use crate::engine::{Caches, Events, Kind, ReconcileError};
use crate::meta::{controller_reference, name_of};

/// A create or delete that failed in this pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// `FailedCreate` or `FailedDelete`.
    pub reason: &'static str,
    /// The server's words.
    pub message: String,
}

/// What the status says of a failed write, and what the queue hears.
pub type Failed = Box<(Failure, ReconcileError)>;

/// See the module.
pub struct PodControl {
    pods: Kind<Pod>,
    events: Events,
    component: &'static str,
}

impl PodControl {
    /// For one controller, named `component` in events.
    pub fn new(caches: &Caches, events: Events, component: &'static str) -> Self {
        Self { pods: Kind::new(caches.client.clone(), Arc::clone(&caches.pods)), events, component }
    }

    /// The writer of pods.
    pub fn pods(&self) -> &Kind<Pod> {
        &self.pods
    }

    /// Makes `count` pods in growing batches; `make` gets the number of each. Stops after a batch with a failure.
    ///
    /// # Errors
    /// A create failed. That the namespace is ending is no error: the owner will be deleted soon.
    pub async fn create<O: Resource<DynamicType = ()>>(
        &self,
        owner: &O,
        count: usize,
        make: impl Fn(usize) -> Pod,
    ) -> Result<(), Failed> {
        let mut next = 0;
        for batch in slow_start(count) {
            let pods: Vec<Pod> = (next..next + batch).map(&make).collect();
            next += batch;
            let mut failed = None;
            for result in futures::future::join_all(pods.iter().map(|pod| self.pods.create(pod))).await {
                match result {
                    Ok(made) => self.say(owner, "SuccessfulCreate", format!("Created pod: {}", name_of(&made))),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return self.create_failed(owner, error);
            }
        }
        Ok(())
    }

    fn say<O: Resource<DynamicType = ()>>(&self, owner: &O, reason: &'static str, message: String) {
        self.events.about(owner, self.component, Level::Normal, reason, message);
    }

    fn create_failed<O: Resource<DynamicType = ()>>(&self, owner: &O, error: ReconcileError) -> Result<(), Failed> {
        if error.is_namespace_terminating() {
            return Ok(());
        }
        let (reason, message) = ("FailedCreate", error.server_message());
        self.events.about(owner, self.component, Level::Warning, reason, format!("Error creating: {message}"));
        Err(Box::new((Failure { reason, message }, error)))
    }

    /// Deletes the pods, all at once.
    ///
    /// # Errors
    /// The last of the deletes that failed.
    pub async fn delete<O: Resource<DynamicType = ()>>(&self, owner: &O, pods: &[Arc<Pod>]) -> Result<(), Failed> {
        let calls = pods.iter().map(|pod| self.pods.delete(pod, DeleteParams::default()));
        let results = futures::future::join_all(calls).await;
        let mut failed = None;
        for (pod, result) in pods.iter().zip(results) {
            match result {
                Ok(()) => self.say(owner, "SuccessfulDelete", format!("Deleted pod: {}", name_of(pod.as_ref()))),
                Err(error) => {
                    let (reason, message) = ("FailedDelete", error.server_message());
                    let text = format!("Error deleting: {message}");
                    self.events.about(owner, self.component, Level::Warning, reason, text);
                    failed = Some(Box::new((Failure { reason, message }, error)));
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// A pod from an owner's template, still without name.
pub fn pod_from<O: Resource<DynamicType = ()>>(owner: &O, template: &PodTemplateSpec) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            namespace: owner.meta().namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// [`pod_from`] with a name made by the server from the owner's.
pub fn generated_pod<O: Resource<DynamicType = ()>>(owner: &O, template: &PodTemplateSpec) -> Pod {
    let mut pod = pod_from(owner, template);
    pod.metadata.generate_name = Some(format!("{}-", name_of(owner)));
    pod
}

/// Sizes of the batches in which `total` pods are made: each twice the one before, so that a quota or a broken
/// template costs few failed calls.
pub fn slow_start(total: usize) -> impl Iterator<Item = usize> {
    let mut left = total;
    let mut size = 1;
    std::iter::from_fn(move || {
        let batch = size.min(left);
        left -= batch;
        size *= 2;
        (batch > 0).then_some(batch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_double() {
        assert_eq!(slow_start(12).collect::<Vec<_>>(), [1, 2, 4, 5]);
        assert_eq!(slow_start(0).count(), 0);
    }
}
