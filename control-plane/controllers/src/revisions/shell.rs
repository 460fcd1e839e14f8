//! Reads and writes the revisions of one kind of owner.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::DeleteParams;
use kube::core::{Selector, SelectorExt};
use serde::Serialize;
use serde_json::Value;

use super::plan::{Step, data, holds, sort, step};
use crate::adopt::{self, Marks};
use crate::engine::cache::Cached;
use crate::engine::{Caches, Key, Kind, ReconcileError};
use crate::meta::{controller_reference, labels, name_of, uid_of};
use crate::template::hash;

/// Longest part of the owner's name in a revision's (upstream's limit: 253 less room for dash and hash).
const PREFIX_MAX: usize = 223;
/// Hashes tried for one template before the next pass tries again.
const HASH_ATTEMPTS: usize = 10;

/// The revisions of one kind of owner.
pub struct History {
    revisions: Kind<ControllerRevision>,
    /// The label that carries the hash on a revision.
    hash_label: &'static str,
}

/// The owner's current revision, and how many hashes were taken when it was made.
pub struct Current {
    /// The revision of the owner's template.
    pub revision: Arc<ControllerRevision>,
    /// For the owner's status.
    pub collisions: i32,
}

impl History {
    /// For one controller.
    pub fn new(caches: &Caches, hash_label: &'static str) -> Self {
        Self { revisions: Kind::new(caches.client.clone(), Arc::clone(&caches.revisions)), hash_label }
    }

    /// The owner's revisions, oldest first.
    ///
    /// # Errors
    /// A request failed.
    pub async fn of<O: Cached + Serialize>(
        &self,
        owners: &Kind<O>,
        owner: &O,
        selector: &Selector,
    ) -> Result<Vec<Arc<ControllerRevision>>, ReconcileError> {
        let matches = |revision: &ControllerRevision| selector.matches(labels(revision));
        let mut owned = adopt::take(owners, &self.revisions, owner, matches, Marks::NONE).await?;
        sort(&mut owned);
        Ok(owned)
    }

    /// Makes the owner's template its current revision. `revisions` are those of [`Self::of`].
    ///
    /// # Errors
    /// A request failed, or hash after hash is taken.
    pub async fn current<O: Cached>(
        &self,
        owner: &O,
        template: &PodTemplateSpec,
        revisions: &[Arc<ControllerRevision>],
        collisions: i32,
    ) -> Result<Current, ReconcileError> {
        let data = data(template);
        let revision = match step(revisions, &data) {
            Step::Keep(revision) => revision,
            Step::Renumber(revision, number) => {
                let renumbered = ControllerRevision { revision: Some(number), ..revision.as_ref().clone() };
                self.revisions.update(&revision, &renumbered).await?.map_or(revision, Arc::new)
            }
            Step::Create(number) => return self.create(owner, template, &data, number, collisions).await,
        };
        Ok(Current { revision, collisions })
    }

    async fn create<O: Cached>(
        &self,
        owner: &O,
        template: &PodTemplateSpec,
        data: &Value,
        number: i64,
        mut collisions: i32,
    ) -> Result<Current, ReconcileError> {
        let mut attempts = 0;
        loop {
            let wanted = self.build(owner, template, data, number, collisions);
            let error = match self.revisions.create(&wanted).await {
                Ok(made) => return Ok(Current { revision: Arc::new(made), collisions }),
                Err(error) => error,
            };
            attempts += 1;
            if !error.is_already_exists() || attempts == HASH_ATTEMPTS {
                return Err(error);
            }
            let live = self.revisions.get_live(&Key::of(&wanted)).await?;
            if let Some(live) = live.filter(|live| holds(live, data) && is_owned(owner, live)) {
                return Ok(Current { revision: Arc::new(live), collisions });
            }
            collisions += 1;
        }
    }

    fn build<O: Cached>(
        &self,
        owner: &O,
        template: &PodTemplateSpec,
        data: &Value,
        number: i64,
        collisions: i32,
    ) -> ControllerRevision {
        let hash = hash(template, collisions);
        let prefix = name_of(owner);
        let mut labels = template.metadata.as_ref().and_then(|m| m.labels.clone()).unwrap_or_default();
        labels.insert(self.hash_label.to_owned(), hash.clone());
        ControllerRevision {
            metadata: ObjectMeta {
                name: Some(format!("{}-{hash}", &prefix[..prefix.len().min(PREFIX_MAX)])),
                namespace: owner.meta().namespace.clone(),
                labels: Some(labels),
                annotations: owner.meta().annotations.clone(),
                owner_references: Some(vec![controller_reference(owner)]),
                ..ObjectMeta::default()
            },
            data: RawExtension(data.clone()),
            revision: Some(number),
        }
    }

    /// Deletes revisions that nobody needs.
    ///
    /// # Errors
    /// A request failed.
    pub async fn delete(&self, superfluous: &[Arc<ControllerRevision>]) -> Result<(), ReconcileError> {
        for revision in superfluous {
            self.revisions.delete(revision, DeleteParams::default()).await?;
        }
        Ok(())
    }
}

fn is_owned<O: Cached>(owner: &O, revision: &ControllerRevision) -> bool {
    crate::meta::controller_of(revision).is_some_and(|reference| reference.uid == uid_of(owner))
}
