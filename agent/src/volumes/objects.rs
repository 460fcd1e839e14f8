//! The seam to ConfigMaps, Secrets and service account tokens.
//!
//! Volumes and environments never see an API client: they ask an [`ObjectReader`]. What is handed
//! out is compact (no metadata beyond what is used). Contents of Secrets and tokens never appear in
//! `Debug` output or errors.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::broadcast;

/// A kind of object that pods refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        })
    }
}

/// Names one object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

/// What is kept of a ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigMapData {
    /// Text entries.
    pub data: BTreeMap<String, String>,
    /// Binary entries.
    pub binary_data: BTreeMap<String, Bytes>,
    /// An immutable object is read once and not watched.
    pub immutable: bool,
}

/// What is kept of a Secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretData {
    /// The `type`, e.g. `kubernetes.io/dockerconfigjson`.
    pub type_: String,
    /// Entries, decoded.
    pub data: BTreeMap<String, Bytes>,
    /// An immutable object is read once and not watched.
    pub immutable: bool,
}

impl fmt::Debug for SecretData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretData")
            .field("type_", &self.type_)
            .field("keys", &self.data.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// A request for a service account token bound to a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenParams {
    /// The pod's namespace.
    pub namespace: String,
    /// The service account.
    pub service_account: String,
    /// `None`: the API server's own audience.
    pub audience: Option<String>,
    /// Wanted life time in seconds.
    pub expiration_seconds: i64,
    /// The pod it is bound to.
    pub pod_name: String,
    /// The pod's UID: the token dies with the pod.
    pub pod_uid: String,
}

/// A token as issued.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuedToken {
    /// The token itself.
    pub token: String,
    /// When it ends; the API server may have granted less or more than asked.
    pub expires: Timestamp,
}

impl fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IssuedToken(expires {})", self.expires)
    }
}

/// Why an object could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The API server says that it does not exist.
    #[error("{kind} {name:?} not found")]
    NotFound {
        /// Its kind.
        kind: ObjectKind,
        /// Its name.
        name: String,
    },
    /// The API server cannot be asked right now, or refuses.
    #[error("failed to sync {kind} cache for {namespace}/{name}: {message}")]
    Unavailable {
        /// Its kind.
        kind: ObjectKind,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The last error met.
        message: String,
    },
    /// No token could be had.
    #[error("failed to fetch token: {message}")]
    Token {
        /// The API server's words.
        message: String,
    },
    /// This agent runs without an API server.
    #[error("cannot read {kind} {name:?}: this agent runs without an API server")]
    NoApi {
        /// What was asked for.
        kind: String,
        /// Its name.
        name: String,
    },
}

impl ReadError {
    /// The object is known not to exist (an optional reference is then empty).
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// The answer is not known: what was read before still holds.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Token { .. })
    }
}

/// Where ConfigMaps, Secrets and tokens come from.
pub trait ObjectReader: Send + Sync + 'static {
    /// A ConfigMap.
    fn config_map<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Arc<ConfigMapData>, ReadError>>;

    /// A Secret.
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Arc<SecretData>, ReadError>>;

    /// A fresh token; callers cache.
    fn token<'a>(&'a self, params: &'a TokenParams) -> BoxFuture<'a, Result<IssuedToken, ReadError>>;

    /// Pod `uid` now refers to exactly these objects: they may be cached and watched.
    fn hold(&self, uid: &str, keys: BTreeSet<ObjectKey>);

    /// Pod `uid` is gone: what only it referred to is forgotten.
    fn release(&self, uid: &str);

    /// Names every held object that changed.
    fn changes(&self) -> broadcast::Receiver<ObjectKey>;
}

/// Every ConfigMap and Secret that `pod` refers to: volumes, environments of all containers, pull
/// secrets.
pub fn referenced_objects(pod: &Pod) -> BTreeSet<ObjectKey> {
    let mut found =
        References { namespace: pod.metadata.namespace.as_deref().unwrap_or_default(), keys: BTreeSet::new() };
    let Some(spec) = &pod.spec else {
        return found.keys;
    };
    for volume in spec.volumes.iter().flatten() {
        if let Some(source) = &volume.config_map {
            found.config_map(&source.name);
        }
        if let Some(name) = volume.secret.as_ref().and_then(|s| s.secret_name.as_ref()) {
            found.secret(name);
        }
        let sources = volume.projected.iter().flat_map(|p| p.sources.iter());
        for source in sources.flatten() {
            if let Some(source) = &source.config_map {
                found.config_map(&source.name);
            }
            if let Some(source) = &source.secret {
                found.secret(&source.name);
            }
        }
    }
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        found.container(container);
    }
    for ephemeral in spec.ephemeral_containers.iter().flatten() {
        found.environment(ephemeral.env_from.as_deref(), ephemeral.env.as_deref());
    }
    for pull in spec.image_pull_secrets.iter().flatten() {
        found.secret(&pull.name);
    }
    found.keys
}

struct References<'a> {
    namespace: &'a str,
    keys: BTreeSet<ObjectKey>,
}

impl References<'_> {
    fn add(&mut self, kind: ObjectKind, name: &str) {
        if !name.is_empty() {
            self.keys.insert(ObjectKey { kind, namespace: self.namespace.into(), name: name.into() });
        }
    }

    fn config_map(&mut self, name: &str) {
        self.add(ObjectKind::ConfigMap, name);
    }

    fn secret(&mut self, name: &str) {
        self.add(ObjectKind::Secret, name);
    }

    fn container(&mut self, container: &Container) {
        self.environment(container.env_from.as_deref(), container.env.as_deref());
    }

    fn environment(
        &mut self,
        env_from: Option<&[k8s_openapi::api::core::v1::EnvFromSource]>,
        env: Option<&[k8s_openapi::api::core::v1::EnvVar]>,
    ) {
        for from in env_from.unwrap_or_default() {
            if let Some(r) = &from.config_map_ref {
                self.config_map(&r.name);
            }
            if let Some(r) = &from.secret_ref {
                self.secret(&r.name);
            }
        }
        let sources = env.unwrap_or_default().iter();
        for source in sources.filter_map(|v| v.value_from.as_ref()) {
            if let Some(r) = &source.config_map_key_ref {
                self.config_map(&r.name);
            }
            if let Some(r) = &source.secret_key_ref {
                self.secret(&r.name);
            }
        }
    }
}

/// The reader of an agent without an API server: every answer is an error that says so.
#[derive(Debug)]
pub struct NoObjects {
    changes: broadcast::Sender<ObjectKey>,
}

impl NoObjects {
    /// A reader that has nothing.
    pub fn new() -> Self {
        Self { changes: broadcast::channel(1).0 }
    }
}

impl Default for NoObjects {
    fn default() -> Self {
        Self::new()
    }
}

fn no_api<T>(kind: &str, name: &str) -> BoxFuture<'static, Result<T, ReadError>>
where
    T: Send + 'static,
{
    let error = ReadError::NoApi { kind: kind.into(), name: name.into() };
    Box::pin(async move { Err(error) })
}

impl ObjectReader for NoObjects {
    fn config_map<'a>(&'a self, _: &'a str, name: &'a str) -> BoxFuture<'a, Result<Arc<ConfigMapData>, ReadError>> {
        no_api("configmap", name)
    }

    fn secret<'a>(&'a self, _: &'a str, name: &'a str) -> BoxFuture<'a, Result<Arc<SecretData>, ReadError>> {
        no_api("secret", name)
    }

    fn token<'a>(&'a self, params: &'a TokenParams) -> BoxFuture<'a, Result<IssuedToken, ReadError>> {
        no_api("token of service account", &params.service_account)
    }

    fn hold(&self, _: &str, _: BTreeSet<ObjectKey>) {}

    fn release(&self, _: &str) {}

    fn changes(&self) -> broadcast::Receiver<ObjectKey> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_reference() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "ns"},
            "spec": {
                "volumes": [{"name": "a", "configMap": {"name": "v-cm"}}, {"name": "b", "secret": {"secretName": "v-s"}},
                    {"name": "p", "projected": {"sources": [{"configMap": {"name": "p-cm"}}, {"secret": {"name": "p-s"}}]}}],
                "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "i-cm"}}]}],
                "containers": [{"name": "c", "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "c-s", "key": "k"}}}]}],
                "ephemeralContainers": [{"name": "e", "envFrom": [{"secretRef": {"name": "e-s"}}]}],
                "imagePullSecrets": [{"name": "pull"}, {"name": ""}]
            }
        }))
        .unwrap();
        let names: Vec<_> = referenced_objects(&pod).into_iter().map(|k| format!("{}/{}", k.kind, k.name)).collect();
        assert_eq!(
            names,
            [
                "configmap/i-cm",
                "configmap/p-cm",
                "configmap/v-cm",
                "secret/c-s",
                "secret/e-s",
                "secret/p-s",
                "secret/pull",
                "secret/v-s"
            ]
        );
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let secret = SecretData {
            type_: "Opaque".into(),
            data: BTreeMap::from([("k".into(), Bytes::from_static(b"hunter2"))]),
            immutable: false,
        };
        let token = IssuedToken { token: "hunter2".into(), expires: Timestamp::UNIX_EPOCH };
        assert!(!format!("{secret:?}{token:?}").contains("hunter2"));
    }
}
