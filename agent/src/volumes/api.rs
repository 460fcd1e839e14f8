//! ConfigMaps, Secrets and tokens from the API server.
//!
//! Only objects that a pod of this node refers to are held, each with a watch of its own on its
//! name: the node's credentials allow nothing wider, and a change is known at once. An object that
//! is marked immutable is not watched any more once read. Kept is the compact form only.
//!
//! Upstream counterpart: the watch-based ConfigMap and Secret managers and the token manager.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use kube::api::PostParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watch_object};
use kube::{Api, Client};
use kube_common::backoff::WatchBackoff;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::objects::{
    ConfigMapData, IssuedToken, ObjectKey, ObjectKind, ObjectReader, ReadError, SecretData, TokenParams,
};

/// How long a read waits for the first answer of a watch (upstream waits 1 s and fails the sync;
/// a worker that waits here costs nothing).
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// How long one request for a token may take.
const TOKEN_DEADLINE: Duration = Duration::from_secs(20);
/// Changes that may be pending before they are told as "anything may have changed".
const PENDING_CHANGES: usize = 256;

/// The compact form of either kind.
#[derive(Clone)]
enum Object {
    Map(Arc<ConfigMapData>),
    Secret(Arc<SecretData>),
}

impl Object {
    fn immutable(&self) -> bool {
        match self {
            Self::Map(map) => map.immutable,
            Self::Secret(secret) => secret.immutable,
        }
    }

    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Map(a), Self::Map(b)) => a == b,
            (Self::Secret(a), Self::Secret(b)) => a == b,
            _ => false,
        }
    }
}

impl From<ConfigMap> for Object {
    fn from(map: ConfigMap) -> Self {
        Self::Map(Arc::new(ConfigMapData {
            data: map.data.unwrap_or_default(),
            binary_data: map.binary_data.into_iter().flatten().map(|(key, value)| (key, value.0.into())).collect(),
            immutable: map.immutable == Some(true),
        }))
    }
}

impl From<Secret> for Object {
    fn from(secret: Secret) -> Self {
        Self::Secret(Arc::new(SecretData {
            type_: secret.type_.unwrap_or_default(),
            data: secret.data.into_iter().flatten().map(|(key, value)| (key, value.0.into())).collect(),
            immutable: secret.immutable == Some(true),
        }))
    }
}

/// What is known of a held object.
#[derive(Clone)]
enum Known {
    /// Nothing yet; the last error, if any.
    Pending(Option<String>),
    Absent,
    Present(Object),
}

struct Held {
    users: usize,
    known: watch::Receiver<Known>,
    /// Dropping it ends the watch.
    _task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct State {
    objects: HashMap<ObjectKey, Held>,
    pods: HashMap<String, BTreeSet<ObjectKey>>,
}

/// [`ObjectReader`] over an API client.
pub struct ApiReader {
    client: Client,
    state: Mutex<State>,
    changes: broadcast::Sender<ObjectKey>,
    stop: CancellationToken,
    runtime: tokio::runtime::Handle,
}

impl ApiReader {
    /// A reader whose watches end with `stop`. To be made inside a tokio runtime.
    pub fn new(client: Client, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            client,
            state: Mutex::default(),
            changes: broadcast::channel(PENDING_CHANGES).0,
            stop,
            runtime: tokio::runtime::Handle::current(),
        })
    }

    /// How many objects are held (a metric).
    pub fn held(&self) -> usize {
        self.state.lock().objects.len()
    }

    fn start(&self, key: &ObjectKey) -> Held {
        let (sender, known) = watch::channel(Known::Pending(None));
        let (client, namespace, name) = (self.client.clone(), &*key.namespace, &*key.name);
        let (changes, stop, key2) = (self.changes.clone(), self.stop.clone(), key.clone());
        let task = match key.kind {
            ObjectKind::ConfigMap => {
                let api: Api<ConfigMap> = Api::namespaced(client, namespace);
                let stream = watch_object(api, name).backoff(WatchBackoff::default());
                self.runtime.spawn(follow(stream, key2, sender, changes, stop))
            }
            ObjectKind::Secret => {
                let api: Api<Secret> = Api::namespaced(client, namespace);
                let stream = watch_object(api, name).backoff(WatchBackoff::default());
                self.runtime.spawn(follow(stream, key2, sender, changes, stop))
            }
        };
        Held { users: 0, known, _task: AbortOnDropHandle::new(task) }
    }

    async fn read(&self, key: ObjectKey) -> Result<Object, ReadError> {
        let known = self.state.lock().objects.get(&key).map(|h| h.known.clone());
        match known {
            Some(known) => wait_for(known, &key).await,
            None => self.get(&key).await,
        }
    }

    /// Reads an object that no pod holds.
    async fn get(&self, key: &ObjectKey) -> Result<Object, ReadError> {
        let client = self.client.clone();
        let get = async {
            match key.kind {
                ObjectKind::ConfigMap => {
                    let api: Api<ConfigMap> = Api::namespaced(client, &key.namespace);
                    api.get_opt(&key.name).await.map(|o| o.map(Object::from))
                }
                ObjectKind::Secret => {
                    let api: Api<Secret> = Api::namespaced(client, &key.namespace);
                    api.get_opt(&key.name).await.map(|o| o.map(Object::from))
                }
            }
        };
        match tokio::time::timeout(FIRST_ANSWER, get).await {
            Ok(Ok(Some(object))) => Ok(object),
            Ok(Ok(None)) => Err(not_found(key)),
            Ok(Err(error)) => Err(unavailable(key, &error.to_string())),
            Err(_) => Err(unavailable(key, "the API server does not answer")),
        }
    }
}

fn not_found(key: &ObjectKey) -> ReadError {
    ReadError::NotFound { kind: key.kind, name: key.name.to_string() }
}

fn unavailable(key: &ObjectKey, message: &str) -> ReadError {
    ReadError::Unavailable {
        kind: key.kind,
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        message: message.to_owned(),
    }
}

async fn wait_for(mut known: watch::Receiver<Known>, key: &ObjectKey) -> Result<Object, ReadError> {
    let answered = known.wait_for(|known| !matches!(known, Known::Pending(_)));
    let answer = match tokio::time::timeout(FIRST_ANSWER, answered).await {
        Ok(Ok(known)) => Some(known.clone()),
        _ => None,
    };
    match answer {
        Some(Known::Present(object)) => Ok(object),
        Some(Known::Absent) => Err(not_found(key)),
        _ => {
            let last = match &*known.borrow() {
                Known::Pending(Some(message)) => message.clone(),
                _ => "timed out waiting for the condition".to_owned(),
            };
            Err(unavailable(key, &last))
        }
    }
}

/// Feeds what the watch tells into `known`, and tells of changes after the first answer.
async fn follow<K: Into<Object>>(
    stream: impl Stream<Item = Result<Option<K>, watcher::Error>> + Send,
    key: ObjectKey,
    known: watch::Sender<Known>,
    changes: broadcast::Sender<ObjectKey>,
    stop: CancellationToken,
) {
    let mut stream = Box::pin(stream);
    loop {
        let item = tokio::select! {
            () = stop.cancelled() => return,
            item = stream.next() => item,
        };
        let next = match item {
            None => return,
            Some(Err(error)) => {
                tracing::debug!(kind = %key.kind, namespace = %key.namespace, name = %key.name, %error, "object watch failed, retrying");
                known.send_if_modified(|known| {
                    if let Known::Pending(last) = known {
                        *last = Some(error.to_string());
                    }
                    false
                });
                continue;
            }
            Some(Ok(None)) => Known::Absent,
            Some(Ok(Some(object))) => Known::Present(object.into()),
        };
        let settled = matches!(&next, Known::Present(object) if object.immutable());
        let mut first = false;
        let changed = known.send_if_modified(|known| {
            first = matches!(known, Known::Pending(_));
            let same = match (&*known, &next) {
                (Known::Absent, Known::Absent) => true,
                (Known::Present(a), Known::Present(b)) => a.same(b),
                _ => false,
            };
            if !same {
                *known = next;
            }
            !same
        });
        if changed && !first {
            // Nobody listening is fine.
            let _ = changes.send(key.clone());
        }
        if settled {
            break;
        }
    }
    // Immutable: the answer stays, the connection goes. Deleted and made anew under the same name
    // it is read when the next pod comes, after the last user of this one is gone.
    drop(stream);
    known.closed().await;
}

impl ObjectReader for ApiReader {
    fn config_map<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Arc<ConfigMapData>, ReadError>> {
        let key = ObjectKey { kind: ObjectKind::ConfigMap, namespace: namespace.into(), name: name.into() };
        Box::pin(async move {
            match self.read(key.clone()).await? {
                Object::Map(map) => Ok(map),
                Object::Secret(_) => Err(not_found(&key)),
            }
        })
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Arc<SecretData>, ReadError>> {
        let key = ObjectKey { kind: ObjectKind::Secret, namespace: namespace.into(), name: name.into() };
        Box::pin(async move {
            match self.read(key.clone()).await? {
                Object::Secret(secret) => Ok(secret),
                Object::Map(_) => Err(not_found(&key)),
            }
        })
    }

    fn token<'a>(&'a self, params: &'a TokenParams) -> BoxFuture<'a, Result<IssuedToken, ReadError>> {
        Box::pin(async move {
            let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &params.namespace);
            let request = TokenRequest {
                spec: Some(TokenRequestSpec {
                    audiences: params.audience.clone().map(|audience| vec![audience]),
                    bound_object_ref: Some(BoundObjectReference {
                        api_version: Some("v1".into()),
                        kind: Some("Pod".into()),
                        name: Some(params.pod_name.clone()),
                        uid: Some(params.pod_uid.clone()),
                    }),
                    expiration_seconds: Some(params.expiration_seconds),
                    ..TokenRequestSpec::default()
                }),
                ..TokenRequest::default()
            };
            let parameters = PostParams::default();
            let call = api.create_token_request(&params.service_account, &parameters, &request);
            let failed = |message: String| ReadError::Token { message };
            let answer = tokio::time::timeout(TOKEN_DEADLINE, call)
                .await
                .map_err(|_| failed("the API server does not answer".into()))?
                .map_err(|error| failed(message_of(&error)))?;
            match answer.status.map(|s| (s.token, s.expiration_timestamp)) {
                Some((Some(token), Some(expires))) => Ok(IssuedToken { token, expires: expires.0 }),
                _ => Err(failed("the API server's answer has no token or no end of its life".into())),
            }
        })
    }

    fn hold(&self, uid: &str, keys: BTreeSet<ObjectKey>) {
        let mut state = self.state.lock();
        let before = state.pods.get(uid).cloned().unwrap_or_default();
        if before == keys {
            return;
        }
        for key in keys.difference(&before) {
            let held = match state.objects.entry(key.clone()) {
                std::collections::hash_map::Entry::Occupied(held) => held.into_mut(),
                std::collections::hash_map::Entry::Vacant(free) => free.insert(self.start(key)),
            };
            held.users += 1;
        }
        for key in before.difference(&keys) {
            drop_user(&mut state, key);
        }
        state.pods.insert(uid.to_owned(), keys);
    }

    fn release(&self, uid: &str) {
        let mut state = self.state.lock();
        for key in state.pods.remove(uid).unwrap_or_default() {
            drop_user(&mut state, &key);
        }
    }

    fn changes(&self) -> broadcast::Receiver<ObjectKey> {
        self.changes.subscribe()
    }
}

fn drop_user(state: &mut State, key: &ObjectKey) {
    if let Some(held) = state.objects.get_mut(key) {
        held.users -= 1;
        if held.users == 0 {
            state.objects.remove(key);
        }
    }
}

/// The API server's own words, without the client's wrapping.
fn message_of(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
#[path = "api_tests.rs"]
mod tests;
