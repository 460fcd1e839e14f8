//! Keeps the model by watching Namespaces, Services and EndpointSlices.
//!
//! Invariants: what was learnt stays while the API server is away; after a new list, what is not in it is gone.
//!
//! Upstream counterpart: CoreDNS' `plugin/kubernetes/controller.go`.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use kube_common::backoff::WatchBackoff;
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::model::{Model, Source};
use crate::{objects, publish};

/// The model and who wants to hear of it.
#[derive(Clone)]
pub(crate) struct Shared {
    /// What is known.
    pub(crate) model: Arc<RwLock<Model>>,
    /// Told when the model became complete, and when an object that `publish` keeps changed.
    pub(crate) attention: Arc<Notify>,
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Model)) {
        let mut model = self.model.write();
        let before = model.is_complete();
        change(&mut model);
        if !before && model.is_complete() {
            debug!(services = model.service_count(), "all services are known");
            self.attention.notify_one();
        }
    }
}

/// A kind the model is made from.
trait Known: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static {
    const SOURCE: Source;

    /// Its key in [`Model::keep_only`].
    fn key(&self) -> String;
    /// Puts it into the model, or takes it out.
    fn set(&self, model: &mut Model, exists: bool);
}

fn names<K: Resource>(object: &K) -> (&str, &str) {
    let meta = object.meta();
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

impl Known for Namespace {
    const SOURCE: Source = Source::Namespaces;

    fn key(&self) -> String {
        names(self).1.to_owned()
    }

    fn set(&self, model: &mut Model, exists: bool) {
        model.set_namespace(names(self).1, exists);
    }
}

impl Known for Service {
    const SOURCE: Source = Source::Services;

    fn key(&self) -> String {
        let (namespace, name) = names(self);
        objects::service_key(namespace, name)
    }

    fn set(&self, model: &mut Model, exists: bool) {
        model.set_service(&Known::key(self), exists.then(|| objects::service(self)));
    }
}

impl Known for EndpointSlice {
    const SOURCE: Source = Source::Slices;

    fn key(&self) -> String {
        let (namespace, name) = names(self);
        format!("{namespace}/{name}")
    }

    fn set(&self, model: &mut Model, exists: bool) {
        let owner = objects::slice_owner(names(self).0, self.metadata.labels.as_ref()).filter(|_| exists);
        let slice = owner.as_deref().map(|owner| (owner, objects::slice(self)));
        model.set_slice(&Known::key(self), slice);
    }
}

/// Starts the three watches.
pub(crate) fn start(client: &Client, shared: &Shared, tracker: &TaskTracker, shutdown: &CancellationToken) {
    tracker.spawn(run::<Namespace>(Api::all(client.clone()), shared.clone(), shutdown.clone()));
    tracker.spawn(run::<Service>(Api::all(client.clone()), shared.clone(), shutdown.clone()));
    tracker.spawn(run::<EndpointSlice>(Api::all(client.clone()), shared.clone(), shutdown.clone()));
}

async fn run<K: Known>(api: Api<K>, shared: Shared, shutdown: CancellationToken) {
    let kind = K::kind(&());
    let mut stream = std::pin::pin!(watcher(api, watcher::Config::default()).backoff(WatchBackoff::default()));
    let mut listed = HashSet::new();
    loop {
        let next = tokio::select! {
            () = shutdown.cancelled() => return,
            next = stream.next() => next,
        };
        match next {
            Some(Ok(event)) => take(&shared, event, &mut listed),
            Some(Err(error)) if expired(&error) => debug!(%kind, %error, "watch expired, listing again"),
            Some(Err(error)) => {
                warn!(%kind, %error, "watch failed, starting it again; names are answered as last known");
            }
            None => return,
        }
    }
}

fn take<K: Known>(shared: &Shared, event: watcher::Event<K>, listed: &mut HashSet<String>) {
    match event {
        watcher::Event::Init => listed.clear(),
        watcher::Event::InitApply(object) => {
            listed.insert(object.key());
            shared.change(|model| object.set(model, true));
        }
        watcher::Event::InitDone => {
            shared.change(|model| model.keep_only(K::SOURCE, listed));
            *listed = HashSet::new();
            // Something that `publish` keeps may be missing from the list.
            shared.attention.notify_one();
        }
        watcher::Event::Apply(object) => changed(shared, &object, true),
        watcher::Event::Delete(object) => changed(shared, &object, false),
    }
}

fn changed<K: Known>(shared: &Shared, object: &K, exists: bool) {
    shared.change(|model| object.set(model, exists));
    let (namespace, name) = names(object);
    if publish::concerns(namespace, name) {
        shared.attention.notify_one();
    }
}

/// The watch asked for history that the server has dropped: routine, a new list follows.
fn expired(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchError(status) => status.code == 410,
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        _ => false,
    }
}
