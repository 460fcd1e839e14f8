//! The namespace controller: a deleted namespace is emptied, then let go.
//!
//! Pods go first and everything else only when they are gone (what a pod still needs, such as a NetworkPolicy or a
//! Secret, must not vanish under it). What remains, and why, is said in the conditions.
//!
//! Upstream counterpart: `pkg/controller/namespace` with `OrderedNamespaceDeletion`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, PartialObjectMeta, PostParams};
use kube::core::Request;
use kube::{Api, Client, Resource};

use crate::engine::discovery::{ServedKind, served_kinds};
use crate::engine::index::Change;
use crate::engine::{Caches, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::meta::{name_of, namespace_of};

/// The finalizer in a namespace's spec that this controller answers for.
const FINALIZER: &str = "kubernetes";
/// Deletions under way at once.
const DELETES_AT_ONCE: usize = 16;
/// How long until what remains is counted again; the end of a pod is noticed at once.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// The controller.
pub struct Namespaces {
    caches: Arc<Caches>,
    client: Client,
    namespaces: Kind<Namespace>,
}

/// What one pass found in a namespace.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// Kinds that still have objects, and how many.
    remaining: BTreeMap<String, usize>,
    /// Finalizers that hold objects, and how many.
    finalizers: BTreeMap<String, usize>,
    /// Kinds could not be asked for.
    discovery_failure: Option<String>,
    /// Objects could not be deleted.
    content_failure: Option<String>,
}

impl Found {
    fn is_empty(&self) -> bool {
        self.remaining.is_empty() && self.discovery_failure.is_none() && self.content_failure.is_none()
    }
}

impl Namespaces {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>) -> Self {
        Self {
            client: caches.client.clone(),
            namespaces: Kind::new(caches.client.clone(), Arc::clone(&caches.namespaces)),
            caches: Arc::clone(caches),
        }
    }

    /// Makes changes of namespaces, and the ends of pods in those being deleted, fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let target = Arc::clone(queue);
        self.caches.namespaces.on_change(move |change| {
            if is_ending(change.object()) {
                target.add(Key::of(change.object().as_ref()));
            }
        });
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.pods.on_change(move |change| {
            let Change::Deleted(pod) = change else { return };
            let namespace = namespace_of(pod.as_ref());
            if caches.namespaces.get("", namespace).is_some_and(|ns| is_ending(&ns)) {
                target.add(Key::new("", namespace));
            }
        });
    }

    async fn empty(&self, namespace: &str) -> Found {
        let mut found = Found::default();
        let kinds = match served_kinds(&self.client).await {
            Ok(kinds) => kinds,
            Err(error) => {
                found.discovery_failure = Some(error.to_string());
                return found;
            }
        };
        let deletable = kinds.iter().filter(|k| k.is_namespaced && k.supports(&["list", "delete"]));
        let (pods, rest): (Vec<_>, Vec<_>) =
            deletable.partition(|k| k.resource.group.is_empty() && k.resource.plural == "pods");
        for stage in [pods, rest] {
            for kind in stage {
                self.empty_kind(namespace, kind, &mut found).await;
            }
            if !found.is_empty() {
                return found;
            }
        }
        found
    }

    async fn empty_kind(&self, namespace: &str, kind: &ServedKind, found: &mut Found) {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind.resource);
        let name = resource_name(kind);
        let objects = match all(&api).await {
            Ok(objects) => objects,
            Err(error) => {
                found.content_failure.get_or_insert(format!("list {name}: {error}"));
                return;
            }
        };
        if objects.is_empty() {
            return;
        }
        let mut left = objects.len();
        let mut doomed: Vec<&str> = Vec::new();
        for object in &objects {
            if object.metadata.deletion_timestamp.is_none() {
                doomed.push(name_of(object));
            }
        }
        for batch in doomed.chunks(DELETES_AT_ONCE) {
            let calls: Vec<_> = batch.iter().map(|object| delete(&api, object)).collect();
            let failures = futures::future::join_all(calls).await;
            if let Some(failure) = failures.into_iter().flatten().next() {
                found.content_failure.get_or_insert(format!("delete {name} {failure}"));
            }
        }
        // What had no reason to stay is gone by now: count what is really left.
        if let Ok(after) = all(&api).await {
            left = after.len();
            for finalizer in after.iter().flat_map(|o| o.metadata.finalizers.iter().flatten()) {
                *found.finalizers.entry(finalizer.clone()).or_default() += 1;
            }
        }
        if left > 0 {
            found.remaining.insert(name, left);
        }
    }

    async fn finalize(&self, namespace: &Namespace) -> Result<(), ReconcileError> {
        let mut freed = namespace.clone();
        if let Some(finalizers) = freed.spec.as_mut().and_then(|s| s.finalizers.as_mut()) {
            finalizers.retain(|f| f != FINALIZER);
        }
        let key = Key::of(namespace);
        let encode = |source| ReconcileError::Encode { kind: "Namespace".to_owned(), key: key.clone(), source };
        let body = serde_json::to_vec(&freed).map_err(encode)?;
        let request = Request::new(Namespace::url_path(&(), None))
            .replace_subresource("finalize", &key.name, &PostParams::default(), body)
            .map_err(|source| ReconcileError::Request {
                kind: "Namespace".to_owned(),
                key: key.clone(),
                source: Box::new(source),
            })?;
        match self.client.request::<serde_json::Value>(request).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(source) => Err(ReconcileError::Api {
                verb: "finalize",
                kind: "Namespace".to_owned(),
                key,
                source: Box::new(source),
            }),
        }
    }
}

/// Says what went wrong, if anything did.
async fn delete(api: &Api<DynamicObject>, name: &str) -> Option<String> {
    match api.delete(name, &DeleteParams::background()).await {
        Ok(_) => None,
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => Some(format!("{name}: {error}")),
    }
}

async fn all(api: &Api<DynamicObject>) -> Result<Vec<PartialObjectMeta<DynamicObject>>, kube::Error> {
    match api.list_metadata(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        // The kind went away in between.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 405) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn resource_name(kind: &ServedKind) -> String {
    if kind.resource.group.is_empty() {
        kind.resource.plural.clone()
    } else {
        format!("{}.{}", kind.resource.plural, kind.resource.group)
    }
}

/// Deleted, and still waiting for us.
fn is_ending(namespace: &Namespace) -> bool {
    let finalizers = namespace.spec.as_ref().and_then(|s| s.finalizers.as_ref());
    namespace.metadata.deletion_timestamp.is_some() && finalizers.is_some_and(|f| f.iter().any(|f| f == FINALIZER))
}

impl Reconcile for Namespaces {
    type Key = Key;
    const NAME: &'static str = "namespace-controller";

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(cached) = self.caches.namespaces.by_key(key).filter(|ns| is_ending(ns)) else {
            return Ok(Outcome::Done);
        };
        let found = self.empty(&key.name).await;
        let mut reported = cached.as_ref().clone();
        let status = reported.status.get_or_insert_default();
        status.conditions = Some(conditions(status.conditions.take().unwrap_or_default(), &found, Timestamp::now()));
        let current = match self.namespaces.update_status(&cached, &reported).await {
            Ok(updated) => updated.unwrap_or_else(|| cached.as_ref().clone()),
            Err(error) if error.is_not_found() => return Ok(Outcome::Done),
            Err(error) => return Err(error),
        };
        if !found.is_empty() {
            return Ok(Outcome::After(LOOK_AGAIN));
        }
        self.finalize(&current).await?;
        Ok(Outcome::Done)
    }
}

/// Upstream's five conditions, with its reasons and words.
fn conditions(known: Vec<NamespaceCondition>, found: &Found, now: Timestamp) -> Vec<NamespaceCondition> {
    let list = |counts: &BTreeMap<String, usize>, what: &str| {
        let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {what} {count}")).collect();
        parts.join(", ")
    };
    let remaining = (!found.remaining.is_empty()).then(|| {
        format!(
            "Some resources are remaining: {}",
            list(&found.remaining, "has").replace(", ", " resource instances, ") + " resource instances"
        )
    });
    let finalizers = (!found.finalizers.is_empty()).then(|| {
        format!(
            "Some content in the namespace has finalizers remaining: {}",
            list(&found.finalizers, "in").replace(", ", " resource instances, ") + " resource instances"
        )
    });
    let rows: [(&str, Option<String>, &str, &str, &str); 5] = [
        (
            "NamespaceDeletionDiscoveryFailure",
            found.discovery_failure.as_ref().map(|e| format!("Discovery failed for some groups, {e}")),
            "DiscoveryFailed",
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            "",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        (
            "NamespaceDeletionContentFailure",
            found.content_failure.as_ref().map(|e| format!("Failed to delete all resource types, {e}")),
            "ContentDeletionFailed",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        (
            "NamespaceContentRemaining",
            remaining,
            "SomeResourcesRemain",
            "ContentRemoved",
            "All content successfully removed",
        ),
        (
            "NamespaceFinalizersRemaining",
            finalizers,
            "SomeFinalizersRemain",
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished",
        ),
    ];
    let condition = |(type_, bad, bad_reason, good_reason, good): (&str, Option<String>, &str, &str, &str)| {
        let status = if bad.is_some() { "True" } else { "False" };
        let reason = if bad.is_some() { bad_reason } else { good_reason };
        let before = known.iter().find(|c| c.type_ == type_ && c.status == status);
        NamespaceCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(bad.unwrap_or_else(|| good.to_owned())),
            last_transition_time: before.and_then(|c| c.last_transition_time.clone()).or(Some(Time(now))),
        }
    };
    let ours: Vec<NamespaceCondition> = rows.into_iter().map(condition).collect();
    let others = known.iter().filter(|c| !ours.iter().any(|o| o.type_ == c.type_)).cloned();
    others.chain(ours.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_say_what_remains_and_keep_their_times() {
        let mut found = Found::default();
        found.remaining.insert("pods".to_owned(), 2);
        found.remaining.insert("secrets".to_owned(), 1);
        let first = conditions(Vec::new(), &found, Timestamp::UNIX_EPOCH);
        let remaining = first.iter().find(|c| c.type_ == "NamespaceContentRemaining").unwrap();
        assert_eq!(remaining.status, "True");
        assert_eq!(
            remaining.message.as_deref(),
            Some("Some resources are remaining: pods has 2 resource instances, secrets has 1 resource instances")
        );
        let second = conditions(first.clone(), &found, Timestamp::now());
        assert_eq!(first, second);
        let done = conditions(second, &Found::default(), Timestamp::now());
        assert!(done.iter().all(|c| c.status == "False"));
        assert_eq!(done.len(), 5);
    }
}
