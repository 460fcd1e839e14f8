//! The garbage collector's shell: feeds the graph, asks the server, acts.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, DynamicObject, PartialObjectMeta, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::core::ApiResource;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use kube_common::backoff::WatchBackoff;
use parking_lot::{Mutex, RwLock};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::graph::{Ending, FOREGROUND, Graph, ORPHAN, Place, Uid};
use super::judge::{Action, Owner, Propagation, judge};
use crate::engine::cache::{Cache, Cached};
use crate::engine::discovery::{ServedKind, served_kinds};
use crate::engine::events::{Level, Note};
use crate::engine::index::Change;
use crate::engine::{Caches, Events, Key, Outcome, Queue, Reconcile, ReconcileError};

const COMPONENT: &str = "garbage-collector-controller";
/// Kinds are asked for again at this interval, for those that come later (upstream: 30 s).
const REDISCOVER: Duration = Duration::from_secs(300);
/// After a failed or useless attempt to learn the kinds.
const REDISCOVER_SOON: Duration = Duration::from_secs(5);
/// An object whose owner's kind the server does not have is looked at again after this time.
const UNKNOWN_KIND: Duration = Duration::from_secs(60);

/// A kind that is watched.
#[derive(Debug, Clone)]
struct WatchedKind {
    resource: ApiResource,
    /// Not known before the server was asked.
    is_namespaced: Option<bool>,
}

/// The controller.
pub struct Collector {
    client: Client,
    events: Events,
    graph: Mutex<Graph>,
    /// Never shrinks: nodes refer to kinds by position.
    kinds: RwLock<Vec<WatchedKind>>,
    queue: Arc<Queue<Uid>>,
    rediscover: Notify,
}

impl Collector {
    /// A collector that takes the kinds of the shared caches from there.
    pub fn new(caches: &Arc<Caches>, events: Events, queue: &Arc<Queue<Uid>>) -> Arc<Self> {
        let this = Arc::new(Self {
            client: caches.client.clone(),
            events,
            graph: Mutex::new(Graph::default()),
            kinds: RwLock::new(Vec::new()),
            queue: Arc::clone(queue),
            rediscover: Notify::new(),
        });
        this.share(&caches.namespaces);
        this.share(&caches.nodes);
        this.share(&caches.pods);
        this.share(&caches.services);
        this.share(&caches.endpoints);
        this.share(&caches.slices);
        this.share(&caches.deployments);
        this.share(&caches.replica_sets);
        this.share(&caches.replication_controllers);
        this.share(&caches.daemon_sets);
        this.share(&caches.stateful_sets);
        this.share(&caches.revisions);
        this.share(&caches.claims);
        this.share(&caches.jobs);
        this.share(&caches.cron_jobs);
        this.share(&caches.service_accounts);
        this
    }

    fn share<K: Cached>(self: &Arc<Self>, cache: &Arc<Cache<K>>) {
        let kind = self.add_kind(ApiResource::erase::<K>(&()), None);
        let this = Arc::clone(self);
        cache.on_change(move |change| match change {
            Change::Deleted(object) => this.gone(object.meta()),
            Change::Added(object) | Change::Updated { new: object, .. } => this.seen(kind, object.meta()),
        });
    }

    fn add_kind(&self, resource: ApiResource, is_namespaced: Option<bool>) -> u16 {
        let mut kinds = self.kinds.write();
        kinds.push(WatchedKind { resource, is_namespaced });
        u16::try_from(kinds.len() - 1).unwrap_or(u16::MAX)
    }

    fn look_at(&self, uids: Vec<Uid>) {
        for uid in uids {
            self.queue.add(uid);
        }
    }

    fn seen(&self, kind: u16, meta: &ObjectMeta) {
        let look = self.graph.lock().observe(kind, meta);
        self.look_at(look);
    }

    fn gone(&self, meta: &ObjectMeta) {
        let look = self.graph.lock().forget(Uid::new(meta.uid.as_deref().unwrap_or("")));
        self.look_at(look);
    }

    /// Watches the kinds that the caches do not have, and those that come later. `ready` is told when the first round is
    /// complete: before, an owner that is not known means nothing.
    pub async fn watch_others(self: Arc<Self>, tracker: TaskTracker, ready: Arc<Notify>, shutdown: CancellationToken) {
        let mut first = true;
        loop {
            let wait = match served_kinds(&self.client).await {
                Ok(kinds) => {
                    let synced = self.watch_new(kinds, &tracker, &shutdown);
                    for done in synced {
                        tokio::select! {
                            () = shutdown.cancelled() => return,
                            () = done.notified() => {}
                        }
                    }
                    if std::mem::take(&mut first) {
                        debug!(objects = self.graph.lock().len(), "garbage collector knows all kinds");
                        ready.notify_one();
                    }
                    REDISCOVER
                }
                Err(error) => {
                    warn!(%error, "kinds of the server cannot be learned, asking again");
                    REDISCOVER_SOON
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                () = self.rediscover.notified() => {
                    // Many objects may ask for the same kind.
                    tokio::time::sleep(REDISCOVER_SOON).await;
                }
            }
        }
    }

    fn watch_new(
        self: &Arc<Self>,
        served: Vec<ServedKind>,
        tracker: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Vec<Arc<Notify>> {
        let mut synced = Vec::new();
        for kind in served {
            if kind.resource.kind == "Event" || !kind.supports(&["list", "watch", "delete"]) {
                continue;
            }
            let same =
                |k: &WatchedKind| k.resource.group == kind.resource.group && k.resource.plural == kind.resource.plural;
            let known = self.kinds.read().iter().position(same);
            if let Some(position) = known {
                self.kinds.write()[position].is_namespaced = Some(kind.is_namespaced);
                continue;
            }
            let index = self.add_kind(kind.resource.clone(), Some(kind.is_namespaced));
            let done = Arc::new(Notify::new());
            synced.push(Arc::clone(&done));
            tracker.spawn(Arc::clone(self).watch(index, kind.resource, done, shutdown.clone()));
        }
        synced
    }

    async fn watch(self: Arc<Self>, kind: u16, resource: ApiResource, done: Arc<Notify>, shutdown: CancellationToken) {
        let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(self.client.clone(), &resource);
        let mut stream = std::pin::pin!(watcher(api, watcher::Config::default()).backoff(WatchBackoff::default()));
        let mut present = HashSet::new();
        loop {
            let next = tokio::select! {
                () = shutdown.cancelled() => return,
                next = stream.next() => next,
            };
            match next {
                Some(Ok(watcher::Event::Init)) => present.clear(),
                Some(Ok(watcher::Event::InitApply(object))) => {
                    present.insert(Uid::new(object.metadata.uid.as_deref().unwrap_or("")));
                    self.seen(kind, &object.metadata);
                }
                Some(Ok(watcher::Event::InitDone)) => {
                    let look = self.graph.lock().retain(kind, &std::mem::take(&mut present));
                    self.look_at(look);
                    done.notify_one();
                }
                Some(Ok(watcher::Event::Apply(object))) => self.seen(kind, &object.metadata),
                Some(Ok(watcher::Event::Delete(object))) => self.gone(&object.metadata),
                Some(Err(error)) => {
                    debug!(kind = %resource.kind, %error, "watch failed, starting it again");
                    // One kind that cannot be watched must not stop the collection of all others.
                    done.notify_one();
                }
                None => return,
            }
        }
    }

    fn api(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        if namespace.is_empty() {
            Api::all_with(self.client.clone(), resource)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, resource)
        }
    }

    fn api_of(&self, place: &Place) -> (Api<DynamicObject>, ApiResource) {
        let resource = self.kinds.read()[usize::from(place.kind)].resource.clone();
        (self.api(&resource, &place.namespace), resource)
    }

    /// All owners are known to exist and none waits: the common case, without any request.
    fn is_plainly_fine(&self, uid: Uid) -> bool {
        let graph = self.graph.lock();
        let Some(node) = graph.node(uid) else { return true };
        node.ending == Ending::No
            && node.owners.iter().all(|o| self.known_owner(&graph, &node.place, o) == Some(Owner::Present))
    }

    /// What the graph says of an owner, if it is the same object at the right place.
    fn known_owner(&self, graph: &Graph, item: &Place, reference: &OwnerReference) -> Option<Owner> {
        let node = graph.node(Uid::new(&reference.uid))?;
        let in_reach = node.place.namespace.is_empty() || node.place.namespace == item.namespace;
        let same_kind = self.kinds.read()[usize::from(node.place.kind)].resource.kind == reference.kind;
        if !in_reach || !same_kind || *node.place.name != *reference.name {
            return None;
        }
        Some(if node.ending == Ending::Foreground { Owner::AwaitsDependents } else { Owner::Present })
    }

    /// What the server says of an owner; `None` if it does not have the kind.
    async fn ask_owner(&self, item: &Place, reference: &OwnerReference) -> Result<Option<Owner>, ReconcileError> {
        let group = reference.api_version.split_once('/').map_or("", |(group, _)| group);
        let found =
            self.kinds.read().iter().find(|k| k.resource.group == group && k.resource.kind == reference.kind).cloned();
        let Some(WatchedKind { resource, is_namespaced: Some(is_namespaced) }) = found else {
            self.rediscover.notify_one();
            return Ok(None);
        };
        if is_namespaced && item.namespace.is_empty() {
            // A cluster-scoped object cannot belong to one in a namespace: upstream leaves it alone and says so.
            return Ok(Some(Owner::Present));
        }
        let namespace = if is_namespaced { &*item.namespace } else { "" };
        match self.api(&resource, namespace).get_metadata(&reference.name).await {
            Ok(owner) if owner.metadata.uid.as_deref() != Some(&reference.uid) => Ok(Some(Owner::Absent)),
            Ok(owner) if super::graph::ending(&owner.metadata) == Ending::Foreground => {
                Ok(Some(Owner::AwaitsDependents))
            }
            Ok(_) => Ok(Some(Owner::Present)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Some(Owner::Absent)),
            Err(source) => Err(failed("get", &resource, &Key::new(namespace, reference.name.as_str()), source)),
        }
    }

    async fn owners(&self, place: &Place, meta: &ObjectMeta) -> Result<Option<Vec<Owner>>, ReconcileError> {
        let mut states = Vec::new();
        for reference in meta.owner_references.iter().flatten() {
            let known = self.known_owner(&self.graph.lock(), place, reference);
            let state = match known {
                Some(state) => Some(state),
                None => self.ask_owner(place, reference).await?,
            };
            match state {
                Some(state) => states.push(state),
                None => return Ok(None),
            }
        }
        Ok(Some(states))
    }

    async fn act(
        &self,
        uid: Uid,
        place: &Place,
        live: &PartialObjectMeta<DynamicObject>,
        action: Action,
    ) -> Result<(), ReconcileError> {
        match action {
            Action::Nothing => Ok(()),
            Action::DropOwners(positions) => {
                let owners = live.metadata.owner_references.clone().unwrap_or_default();
                let kept = owners.into_iter().enumerate().filter(|(i, _)| !positions.contains(i)).map(|(_, o)| o);
                self.patch(place, &live.metadata, &json!({"ownerReferences": kept.collect::<Vec<_>>()})).await
            }
            Action::Unblock => {
                let mut owners = live.metadata.owner_references.clone().unwrap_or_default();
                for owner in &mut owners {
                    owner.block_owner_deletion = owner.block_owner_deletion.map(|_| false);
                }
                self.patch(place, &live.metadata, &json!({"ownerReferences": owners})).await?;
                // It is still to be deleted.
                self.look_at(vec![uid]);
                Ok(())
            }
            Action::Delete(propagation) => self.delete(place, &live.metadata, propagation).await,
            Action::ReleaseForeground => {
                let (is_free, next) = {
                    let graph = self.graph.lock();
                    let mut blocking = graph.blocking(uid);
                    let is_free = blocking.is_empty();
                    // Those that wait themselves tell when they go.
                    blocking.retain(|dependent| graph.node(*dependent).is_none_or(|d| d.ending != Ending::Foreground));
                    // In a circle nobody would ever go.
                    (is_free || (blocking.is_empty() && graph.waits_for_itself(uid)), blocking)
                };
                if is_free {
                    return self.drop_finalizer(place, &live.metadata, FOREGROUND).await;
                }
                self.look_at(next);
                Ok(())
            }
            Action::ReleaseOrphan => {
                let dependents: Vec<Place> = self.graph.lock().dependents(uid).map(|(_, n)| n.place.clone()).collect();
                for dependent in dependents {
                    self.free_from(&dependent, live.metadata.uid.as_deref().unwrap_or("")).await?;
                }
                self.drop_finalizer(place, &live.metadata, ORPHAN).await
            }
        }
    }

    /// Takes the reference to one owner off a dependent.
    async fn free_from(&self, place: &Place, owner: &str) -> Result<(), ReconcileError> {
        let (api, resource) = self.api_of(place);
        let live = match api.get_metadata(&place.name).await {
            Ok(live) => live,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(source) => return Err(failed("get", &resource, &key_of(place), source)),
        };
        let owners = live.metadata.owner_references.clone().unwrap_or_default();
        let kept: Vec<_> = owners.iter().filter(|o| o.uid != owner).collect();
        if kept.len() == owners.len() {
            return Ok(());
        }
        self.patch(place, &live.metadata, &json!({"ownerReferences": kept})).await
    }

    async fn drop_finalizer(&self, place: &Place, meta: &ObjectMeta, name: &str) -> Result<(), ReconcileError> {
        let kept: Vec<_> = meta.finalizers.iter().flatten().filter(|f| *f != name).collect();
        self.patch(place, meta, &json!({"finalizers": kept})).await
    }

    /// Changes metadata, if the object is still as it was read.
    async fn patch(&self, place: &Place, read: &ObjectMeta, change: &serde_json::Value) -> Result<(), ReconcileError> {
        let (api, resource) = self.api_of(place);
        let mut metadata = change.clone();
        metadata["uid"] = json!(read.uid);
        metadata["resourceVersion"] = json!(read.resource_version);
        let patch = Patch::Merge(json!({"metadata": metadata}));
        match api.patch_metadata(&place.name, &PatchParams::default(), &patch).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(source) => Err(failed("patch", &resource, &key_of(place), source)),
        }
    }

    async fn delete(&self, place: &Place, read: &ObjectMeta, propagation: Propagation) -> Result<(), ReconcileError> {
        let (api, resource) = self.api_of(place);
        let params = DeleteParams {
            propagation_policy: Some(match propagation {
                Propagation::Background => PropagationPolicy::Background,
                Propagation::Foreground => PropagationPolicy::Foreground,
                Propagation::Orphan => PropagationPolicy::Orphan,
            }),
            preconditions: Some(Preconditions {
                uid: read.uid.clone(),
                resource_version: read.resource_version.clone(),
            }),
            ..DeleteParams::default()
        };
        debug!(kind = %resource.kind, key = %key_of(place), ?propagation, "owners are gone, deleting");
        match api.delete(&place.name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(source) => Err(failed("delete", &resource, &key_of(place), source)),
        }
    }

    /// A namespaced owner in another namespace is a mistake that people should see before the object is gone.
    fn warn_of_foreign_owners(&self, place: &Place, meta: &ObjectMeta) {
        let graph = self.graph.lock();
        for owner in meta.owner_references.iter().flatten() {
            let Some(node) = graph.node(Uid::new(&owner.uid)) else { continue };
            if node.place.namespace.is_empty() || node.place.namespace == place.namespace {
                continue;
            }
            let resource = self.kinds.read()[usize::from(place.kind)].resource.clone();
            self.events.record(Note {
                about: ObjectReference {
                    api_version: Some(resource.api_version),
                    kind: Some(resource.kind),
                    namespace: meta.namespace.clone(),
                    name: meta.name.clone(),
                    uid: meta.uid.clone(),
                    ..ObjectReference::default()
                },
                level: Level::Warning,
                reason: "OwnerRefInvalidNamespace",
                message: format!(
                    "ownerRef [{}/{}, namespace: {}, name: {}, uid: {}] does not exist in namespace {:?}",
                    owner.api_version, owner.kind, place.namespace, owner.name, owner.uid, place.namespace
                ),
                component: COMPONENT,
                action: "",
            });
        }
    }
}

fn key_of(place: &Place) -> Key {
    Key::new(&*place.namespace, &*place.name)
}

fn failed(verb: &'static str, resource: &ApiResource, key: &Key, source: kube::Error) -> ReconcileError {
    ReconcileError::Api { verb, kind: resource.kind.clone(), key: key.clone(), source: Box::new(source) }
}

/// The collector as the queue's workers see it.
pub struct Worker(pub Arc<Collector>);

impl Reconcile for Worker {
    type Key = Uid;
    const NAME: &'static str = COMPONENT;

    async fn reconcile(&self, uid: &Uid) -> Result<Outcome, ReconcileError> {
        let this = &self.0;
        if this.is_plainly_fine(*uid) {
            return Ok(Outcome::Done);
        }
        let Some(place) = this.graph.lock().node(*uid).map(|node| node.place.clone()) else {
            return Ok(Outcome::Done);
        };
        let (api, resource) = this.api_of(&place);
        let live = match api.get_metadata(&place.name).await {
            Ok(live) if Uid::new(live.metadata.uid.as_deref().unwrap_or("")) == *uid => live,
            // Gone, or another object of the same name: the watch will say so.
            Ok(_) => return Ok(Outcome::Done),
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Outcome::Done),
            Err(source) => return Err(failed("get", &resource, &key_of(&place), source)),
        };
        let Some(owners) = this.owners(&place, &live.metadata).await? else {
            return Ok(Outcome::After(UNKNOWN_KIND));
        };
        let action = judge(&live.metadata, &owners, this.graph.lock().dependents_state(*uid));
        if matches!(action, Action::Delete(_)) {
            this.warn_of_foreign_owners(&place, &live.metadata);
        }
        this.act(*uid, &place, &live, action).await?;
        Ok(Outcome::Done)
    }
}
