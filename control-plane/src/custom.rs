//! CustomResourceDefinitions at work: names are accepted, kinds served, and objects go with their definition.
//!
//! One worker looks at all definitions whenever one of them changed, because who has a name depends on the others. A kind is served before
//! its definition says `Established`, so that who waits for that finds it there. Upstream counterparts: the controllers of
//! `apiextensions-apiserver/pkg/controller` (naming, establish, finalizer) and its `customresource_handler.go`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use keelson_kinds::custom::{self, CLEANUP_FINALIZER, Terminating};
use keelson_kinds::deletion::{self, DeleteOptions};
use keelson_kinds::{ApiError, Reason, Resource, lookup};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::cache::WatchCache;
use crate::server::{Also, Change, Server};
use crate::store::Revision;

/// The pause after a failure, and between looks at objects that something holds.
const RETRY: Duration = Duration::from_millis(500);
/// Deletes that run at once, so that they share commits.
const PARALLEL: usize = 64;
/// How long a request waits for a kind that another server serves already; this one hears of it within milliseconds.
const SERVED_WITHIN: Duration = Duration::from_secs(5);
/// The pause between looks meanwhile.
const SERVED_LOOK: Duration = Duration::from_millis(5);
/// Caches show a revision that was read from one of them after this at the latest.
const CATCH_UP: Duration = Duration::from_secs(10);

/// The kind of definitions.
#[must_use]
pub fn definitions() -> Option<&'static Resource> {
    lookup("apiextensions.k8s.io", "v1", "customresourcedefinitions")
}

/// Whether a kind is that of definitions.
#[must_use]
pub fn is_definition(res: &Resource) -> bool {
    definitions().is_some_and(|definitions| std::ptr::eq(definitions, res))
}

/// What has to stay as it is while an object of a custom kind is stored: its definition. `None` for other kinds.
///
/// # Errors
/// 404 when the definition is gone, 405 while it goes.
pub fn guard(server: &Server, res: &Resource) -> Result<Option<Also>, ApiError> {
    if res.strategy.custom().is_none() {
        return Ok(None);
    }
    let definitions = definitions().ok_or_else(ApiError::no_such_resource)?;
    let key = definitions.key("", &res.group_resource());
    let found = server.cache(definitions)?.get(&key).ok_or_else(ApiError::no_such_resource)?;
    if !found.value()["metadata"]["deletionTimestamp"].is_null() {
        return Err(ApiError::method_not_allowed(res, "create"));
    }
    Ok(Some(Also { key: Arc::clone(&found.key), read_at: found.revision, object: None }))
}

/// Waits for a kind that is not served here although its definition says that it is: where there are several servers, the one that said
/// so was another.
pub async fn await_kind(server: &Server, group: &str, version: &str, plural: &str) {
    // A kind is known before its cache is loaded.
    let served = || {
        let known = server.registry.lookup(group, version, plural);
        known.is_some_and(|res| res.strategy.custom().is_none() || server.cache(res).is_ok())
    };
    if !server.store.shared() || served() {
        return;
    }
    let Some(definitions) = definitions() else { return };
    let key = definitions.key("", &format!("{plural}.{group}"));
    let defined = || {
        let definition = server.cache(definitions).ok()?.get(&key)?.value();
        let versions = definition["spec"]["versions"].as_array()?;
        let has = versions.iter().any(|v| v["name"] == version && v["served"] == true);
        (has && custom::established(&definition)).then_some(())
    };
    if server.fresh().await.is_err() {
        return;
    }
    let until = tokio::time::Instant::now() + SERVED_WITHIN;
    while !served() && defined().is_some() && tokio::time::Instant::now() < until {
        tokio::time::sleep(SERVED_LOOK).await;
    }
}

/// What is known of a definition that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    revision: Revision,
    prefix: &'static str,
    /// What the cache of its objects depends on: their field selectors.
    selectable: Vec<String>,
}

/// Serves the kinds of definitions, and ends them with these.
#[derive(Debug)]
pub struct Keeper {
    server: Arc<Server>,
    served: BTreeMap<String, Seen>,
}

impl Keeper {
    /// Serves what is established already, before the server takes requests.
    pub async fn start(server: Arc<Server>) -> Self {
        let mut keeper = Self { server, served: BTreeMap::new() };
        for crd in keeper.list().into_iter().filter(custom::established) {
            if let Err(error) = keeper.serve(&crd).await {
                tracing::error!(definition = name(&crd), %error, "a custom kind is not served");
            }
        }
        keeper
    }

    fn cache(&self) -> Option<Arc<WatchCache>> {
        self.server.hub.cache(definitions()?)
    }

    fn list(&self) -> Vec<Value> {
        self.cache().map(|cache| cache.values(None)).unwrap_or_default()
    }

    /// Works until the server stops.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let work = async {
            let Some(cache) = self.cache() else { return };
            let mut news = self.server.hub.news();
            loop {
                let seen = cache.last_change();
                let mut again = self.look().await;
                while again.is_none() && cache.last_change() == seen {
                    if news.changed().await.is_err() {
                        return;
                    }
                }
                if let Some(pause) = again.take().filter(|_| cache.last_change() == seen) {
                    tokio::time::sleep(pause).await;
                }
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = work => {}
        }
    }

    /// Looks at all definitions. Says when to look again although none changes.
    async fn look(&mut self) -> Option<Duration> {
        let crds = self.list();
        let mut again: Option<Duration> = None;
        let gone: Vec<String> = {
            let present: BTreeSet<&str> = crds.iter().map(name).collect();
            self.served.keys().filter(|served| !present.contains(served.as_str())).cloned().collect()
        };
        for name in gone {
            self.forget(&name).await;
        }
        for crd in &crds {
            match self.one(crd, &crds).await {
                Ok(wait) => again = [again, wait].into_iter().flatten().min(),
                Err(error) => {
                    tracing::warn!(definition = name(crd), %error, "a custom kind could not be brought up to date");
                    again = Some(again.map_or(RETRY, |earlier| earlier.min(RETRY)));
                }
            }
        }
        again
    }

    async fn one(&mut self, crd: &Value, all: &[Value]) -> Result<Option<Duration>, ApiError> {
        if !crd["metadata"]["deletionTimestamp"].is_null() {
            return self.end(crd).await;
        }
        let status = custom::status(crd, all, jiff::Timestamp::now());
        let mut new = crd.clone();
        new["status"] = status;
        if self.served.get(name(crd)).is_none_or(|seen| seen.revision != revision(crd)) {
            self.serve(&new).await?;
        }
        if new["status"] != crd["status"] {
            self.write(crd, |current| current["status"] = new["status"].clone()).await?;
        }
        Ok(None)
    }

    /// Serves the kinds of a definition as it is now.
    async fn serve(&mut self, crd: &Value) -> Result<(), ApiError> {
        let resources = self.server.registry.register(crd).map_err(ApiError::internal)?;
        let Some(first) = resources.first() else {
            self.forget(name(crd)).await;
            return Ok(());
        };
        let selectable: Vec<String> =
            resources.iter().flat_map(|res| res.strategy.selectable_names()).map(Cow::into_owned).collect();
        let seen = Seen { revision: revision(crd), prefix: first.storage_prefix, selectable };
        let same = self.served.get(name(crd)).is_some_and(|before| before.selectable == seen.selectable);
        if !same || self.server.hub.cache(first).is_none() {
            self.server.hub.add(first).await.map_err(crate::server::store_error)?;
        }
        self.served.insert(name(crd).to_owned(), seen);
        Ok(())
    }

    async fn forget(&mut self, name: &str) {
        self.server.registry.unregister(name);
        if let Some(seen) = self.served.remove(name) {
            self.server.hub.remove(seen.prefix).await;
        }
    }

    /// Deletes the objects of a definition that goes, then lets it go.
    async fn end(&mut self, crd: &Value) -> Result<Option<Duration>, ApiError> {
        let finalizers = crd["metadata"]["finalizers"].as_array();
        if !finalizers.is_some_and(|list| list.iter().any(|finalizer| finalizer == CLEANUP_FINALIZER)) {
            return Ok(None);
        }
        let now = jiff::Timestamp::now();
        // No new object may come while the old ones go.
        self.server.registry.register(crd).map_err(ApiError::internal)?;
        let res = self.server.registry.stored(crd).map_err(ApiError::internal)?;
        if self.server.hub.cache(res).is_none() {
            self.server.hub.add(res).await.map_err(crate::server::store_error)?;
            self.served.entry(name(crd).to_owned()).or_insert_with(|| Seen {
                revision: 0,
                prefix: res.storage_prefix,
                selectable: Vec::new(),
            });
        }
        // Every object that came before the definition began to go is shown then.
        if !self.server.hub.wait_for(revision(crd), CATCH_UP).await {
            return Err(ApiError::timeout("the caches are behind", 1));
        }
        let left = self.delete_objects(res).await?;
        if left > 0 {
            self.write(crd, |current| custom::terminating(current, &Terminating::InProgress, now)).await?;
            tracing::debug!(definition = name(crd), left, "objects of a definition that goes are still there");
            return Ok(Some(RETRY));
        }
        self.write(crd, |current| custom::terminating(current, &Terminating::Completed, now)).await?;
        Ok(None)
    }

    /// Deletes all objects of a kind; how many are left, because something holds them.
    async fn delete_objects(&self, res: &'static Resource) -> Result<usize, ApiError> {
        let Some(cache) = self.server.hub.cache(res) else { return Ok(0) };
        let server = &self.server;
        let deleted: Vec<Result<(), ApiError>> = futures::stream::iter(cache.objects(None))
            .map(|object| async move {
                let options = DeleteOptions::default();
                let uid = object.value()["metadata"]["uid"].clone();
                let deleting = server.change(res, &object.namespace, &object.name, |current| {
                    if current["metadata"]["uid"] != uid {
                        // Another server was faster, and this is an object of a definition that came after.
                        return Ok(Change::Keep);
                    }
                    Ok(deletion::begin(res, current, &options, jiff::Timestamp::now())?.into())
                });
                match deleting.await {
                    Err(error) if error.reason != Reason::NotFound => Err(error),
                    _ => Ok(()),
                }
            })
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        deleted.into_iter().collect::<Result<(), ApiError>>()?;
        Ok(cache.len())
    }

    /// Changes the definition that was looked at; one that has changed meanwhile is looked at again by itself.
    async fn write(&self, crd: &Value, change: impl Fn(&mut Value) + Send + Sync) -> Result<(), ApiError> {
        let Some(res) = definitions() else { return Ok(()) };
        let written = self.server.change(res, "", name(crd), |current| {
            if revision(current) != revision(crd) {
                return Ok(Change::Keep);
            }
            let mut new = current.clone();
            change(&mut new);
            Ok(if deletion::is_finished(res, &new) { Change::Remove(new) } else { Change::Put(new) })
        });
        match written.await {
            Err(error) if error.reason != Reason::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn name(crd: &Value) -> &str {
    crd["metadata"]["name"].as_str().unwrap_or_default()
}

fn revision(crd: &Value) -> Revision {
    crd["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}
