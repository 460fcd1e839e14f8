//! What every namespace gets: the ServiceAccount `default` and the ConfigMap `kube-root-ca.crt`.
//!
//! Upstream counterpart: the serviceaccount controller and the root-ca-cert-publisher.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use crate::engine::caches::ROOT_CA_CONFIG_MAP;
use crate::engine::{Caches, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::meta::{is_deleting, name_of, namespace_of};

const ACCOUNT: &str = "default";
/// The key in the ConfigMap.
const CA_KEY: &str = "ca.crt";
/// Upstream's note on the ConfigMap.
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service \
     IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.",
);

/// Queues the namespace of every object with this name.
fn add_namespace<K: Resource>(queue: &Queue<Key>, object: &K, name: &str) {
    if name_of(object) == name {
        queue.add(Key::new("", namespace_of(object)));
    }
}

fn is_live(namespace: &Namespace) -> bool {
    !is_deleting(namespace)
}

/// Makes the service account `default`.
pub struct DefaultAccounts {
    caches: Arc<Caches>,
    accounts: Kind<ServiceAccount>,
}

impl DefaultAccounts {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>) -> Self {
        Self {
            accounts: Kind::new(caches.client.clone(), Arc::clone(&caches.service_accounts)),
            caches: Arc::clone(caches),
        }
    }

    /// Makes changes of namespaces and of their accounts fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let target = Arc::clone(queue);
        self.caches.namespaces.on_change(move |change| target.add(Key::of(change.object().as_ref())));
        let target = Arc::clone(queue);
        self.caches.service_accounts.on_change(move |change| add_namespace(&target, change.object().as_ref(), ACCOUNT));
    }
}

impl Reconcile for DefaultAccounts {
    type Key = Key;
    const NAME: &'static str = "serviceaccount-controller";

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let is_wanted = self.caches.namespaces.by_key(key).is_some_and(|ns| is_live(&ns));
        if !is_wanted || self.caches.service_accounts.get(&key.name, ACCOUNT).is_some() {
            return Ok(Outcome::Done);
        }
        let account = ServiceAccount {
            metadata: ObjectMeta {
                name: Some(ACCOUNT.to_owned()),
                namespace: Some(key.name.clone()),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        };
        settled(self.accounts.create(&account).await.map(drop))
    }
}

/// Publishes the cluster's CA.
pub struct RootCa {
    caches: Arc<Caches>,
    maps: Kind<ConfigMap>,
    pem: String,
}

impl RootCa {
    /// The controller over these caches, publishing this bundle.
    pub fn new(caches: &Arc<Caches>, pem: &str) -> Self {
        Self {
            maps: Kind::new(caches.client.clone(), Arc::clone(&caches.root_ca_maps)),
            caches: Arc::clone(caches),
            pem: pem.to_owned(),
        }
    }

    /// Makes changes of namespaces and of their maps fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let target = Arc::clone(queue);
        self.caches.namespaces.on_change(move |change| target.add(Key::of(change.object().as_ref())));
        let target = Arc::clone(queue);
        self.caches
            .root_ca_maps
            .on_change(move |change| add_namespace(&target, change.object().as_ref(), ROOT_CA_CONFIG_MAP));
    }
}

impl Reconcile for RootCa {
    type Key = Key;
    const NAME: &'static str = "root-ca-certificate-publisher-controller";

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        if self.caches.namespaces.by_key(key).is_none_or(|ns| !is_live(&ns)) {
            return Ok(Outcome::Done);
        }
        let data = Some(BTreeMap::from([(CA_KEY.to_owned(), self.pem.clone())]));
        let description = (DESCRIPTION.0.to_owned(), DESCRIPTION.1.to_owned());
        let Some(existing) = self.caches.root_ca_maps.get(&key.name, ROOT_CA_CONFIG_MAP) else {
            let map = ConfigMap {
                metadata: ObjectMeta {
                    name: Some(ROOT_CA_CONFIG_MAP.to_owned()),
                    namespace: Some(key.name.clone()),
                    annotations: Some(BTreeMap::from([description])),
                    ..ObjectMeta::default()
                },
                data,
                ..ConfigMap::default()
            };
            return settled(self.maps.create(&map).await.map(drop));
        };
        let mut wanted = existing.as_ref().clone();
        wanted.data = data;
        wanted.binary_data = None;
        wanted.metadata.annotations.get_or_insert_default().insert(description.0, description.1);
        settled(self.maps.update(&existing, &wanted).await.map(drop))
    }
}

/// What someone else did first, or what ends with its namespace, is done.
fn settled(result: Result<(), ReconcileError>) -> Result<Outcome, ReconcileError> {
    match result {
        Err(error) if error.is_already_exists() || error.is_namespace_terminating() || error.is_not_found() => {
            Ok(Outcome::Done)
        }
        other => other.map(|()| Outcome::Done),
    }
}
