//! The environment, command and arguments of a container.
//!
//! [`build`] is pure: everything it needs is handed in, so that the same pod and objects always
//! give the same list in the same order. [`load_objects`] fetches what a container refers to.
//! Upstream counterpart: the kubelet's `makeEnvironmentVariables`; the rules are the same
//! (envFrom first, then env in order with `$(VAR)` expanded from what came before, service
//! variables last and never over a declared one), the order of the result is not random.

pub mod expansion;
pub mod fields;
pub mod services;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, EnvVarSource, Pod};

use crate::volumes::objects::{ConfigMapData, ObjectReader, ReadError, SecretData};
use fields::{FieldError, NodeFacts};

/// Why a container's environment cannot be built. All of them show as
/// `CreateContainerConfigError` and are retried: the missing object may appear.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EnvError {
    /// A referenced object could not be read.
    #[error(transparent)]
    Object(#[from] ReadError),
    /// A ConfigMap lacks a key.
    #[error("couldn't find key {key} in ConfigMap {namespace}/{name}")]
    NoConfigMapKey {
        /// The key.
        key: String,
        /// The pod's namespace.
        namespace: String,
        /// The ConfigMap.
        name: String,
    },
    /// A Secret lacks a key.
    #[error("couldn't find key {key} in Secret {namespace}/{name}")]
    NoSecretKey {
        /// The key.
        key: String,
        /// The pod's namespace.
        namespace: String,
        /// The Secret.
        name: String,
    },
    /// A downward API reference without a value.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A value that no process can be started with.
    #[error(
        "environment variable {name:?} has a NUL byte in its name or value: a process cannot be started with it, remove it"
    )]
    Nul {
        /// The variable.
        name: String,
    },
    /// A Secret's value that is no text.
    #[error(
        "key {key} of Secret {name} is not valid UTF-8 and cannot be an environment variable: mount the secret as a volume instead"
    )]
    NotText {
        /// The Secret.
        name: String,
        /// The key.
        key: String,
    },
    /// `fileKeyRef` is not supported yet.
    #[error("environment variable {name:?} uses fileKeyRef, which this agent does not support yet")]
    FileKeyRef {
        /// The variable.
        name: String,
    },
}

/// The objects that a container refers to, by name; `Err` keeps why one could not be read, so that
/// an optional reference to a missing object is decided where it is used.
#[derive(Debug, Default)]
pub struct EnvObjects {
    /// ConfigMaps by name.
    pub config_maps: BTreeMap<String, Result<Arc<ConfigMapData>, ReadError>>,
    /// Secrets by name.
    pub secrets: BTreeMap<String, Result<Arc<SecretData>, ReadError>>,
}

/// Reads every ConfigMap and Secret that `container` refers to, each once.
pub async fn load_objects(reader: &dyn ObjectReader, namespace: &str, container: &Container) -> EnvObjects {
    let mut objects = EnvObjects::default();
    let sources = container
        .env
        .iter()
        .flatten()
        .filter(|v| v.value.as_deref().unwrap_or_default().is_empty())
        .filter_map(|v| v.value_from.as_ref());
    let from = container.env_from.iter().flatten();
    let config_maps = from
        .clone()
        .filter_map(|f| f.config_map_ref.as_ref().map(|r| &r.name))
        .chain(sources.clone().filter_map(|s| s.config_map_key_ref.as_ref().map(|r| &r.name)));
    for name in config_maps {
        if !objects.config_maps.contains_key(name) {
            let read = reader.config_map(namespace, name).await;
            objects.config_maps.insert(name.clone(), read);
        }
    }
    let secrets = from
        .filter_map(|f| f.secret_ref.as_ref().map(|r| &r.name))
        .chain(sources.filter_map(|s| s.secret_key_ref.as_ref().map(|r| &r.name)));
    for name in secrets {
        if !objects.secrets.contains_key(name) {
            let read = reader.secret(namespace, name).await;
            objects.secrets.insert(name.clone(), read);
        }
    }
    objects
}

/// Variables in order of first declaration; a later declaration replaces the value in place.
#[derive(Debug, Default)]
struct Ordered {
    list: Vec<(String, String)>,
    index: HashMap<String, usize>,
}

impl Ordered {
    fn set(&mut self, name: &str, value: String) {
        match self.index.get(name) {
            Some(at) => self.list[*at].1 = value,
            None => {
                self.index.insert(name.to_owned(), self.list.len());
                self.list.push((name.to_owned(), value));
            }
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.index.get(name).map(|at| self.list[*at].1.as_str())
    }
}

/// Builds the environment of `container`. `services` are the service variables
/// ([`services::ServiceIndex::variables`]).
///
/// # Errors
/// The first reference that has no value and is not optional.
pub fn build(
    pod: &Pod,
    container: &Container,
    facts: &NodeFacts,
    objects: &EnvObjects,
    services: &[(String, String)],
) -> Result<Vec<(String, String)>, EnvError> {
    let mut vars = Ordered::default();
    env_from(container, objects, &mut vars)?;
    let service_values: HashMap<&str, &str> =
        services.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    for var in container.env.iter().flatten() {
        let value = match (var.value.as_deref(), &var.value_from) {
            (Some(text), _) if !text.is_empty() => {
                expansion::expand(text, |name| vars.get(name).or_else(|| service_values.get(name).copied()))
            }
            (_, Some(source)) => match source_value(&var.name, source, pod, container, facts, objects)? {
                Some(value) => value,
                None => continue,
            },
            _ => String::new(),
        };
        vars.set(&var.name, value);
    }
    for (name, value) in services {
        if vars.get(name).is_none() {
            vars.set(name, value.clone());
        }
    }
    for (name, value) in &vars.list {
        if name.contains('\0') || value.contains('\0') {
            return Err(EnvError::Nul { name: name.clone() });
        }
    }
    Ok(vars.list)
}

fn env_from(container: &Container, objects: &EnvObjects, vars: &mut Ordered) -> Result<(), EnvError> {
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(r) = &from.config_map_ref {
            if let Some(map) = optional(objects.config_maps.get(&r.name), r.optional)? {
                for (key, value) in &map.data {
                    vars.set(&format!("{prefix}{key}"), value.clone());
                }
            }
        } else if let Some(r) = &from.secret_ref
            && let Some(secret) = optional(objects.secrets.get(&r.name), r.optional)?
        {
            for (key, value) in &secret.data {
                vars.set(&format!("{prefix}{key}"), secret_text(&r.name, key, value)?);
            }
        }
    }
    Ok(())
}

/// The value itself appears in no error.
fn secret_text(name: &str, key: &str, value: &[u8]) -> Result<String, EnvError> {
    let text = std::str::from_utf8(value).map(str::to_owned);
    text.map_err(|_| EnvError::NotText { name: name.into(), key: key.into() })
}

/// The object, or `None` if it may be missing and is.
fn optional<T>(read: Option<&Result<Arc<T>, ReadError>>, optional: Option<bool>) -> Result<Option<&T>, EnvError> {
    match read {
        None => Ok(None),
        Some(Ok(object)) => Ok(Some(object)),
        Some(Err(error)) if error.is_not_found() && optional == Some(true) => Ok(None),
        Some(Err(error)) => Err(error.clone().into()),
    }
}

fn source_value(
    var: &str,
    source: &EnvVarSource,
    pod: &Pod,
    container: &Container,
    facts: &NodeFacts,
    objects: &EnvObjects,
) -> Result<Option<String>, EnvError> {
    let namespace = || pod.metadata.namespace.clone().unwrap_or_default();
    if let Some(field) = &source.field_ref {
        return Ok(Some(fields::field_value(field, pod, facts)?));
    }
    if let Some(resource) = &source.resource_field_ref {
        let value = fields::resource_value(resource, pod, Some(container), facts)?;
        return Ok(Some(value));
    }
    if let Some(r) = &source.config_map_key_ref {
        let Some(map) = optional(objects.config_maps.get(&r.name), r.optional)? else {
            return Ok(None);
        };
        return match map.data.get(&r.key) {
            Some(value) => Ok(Some(value.clone())),
            None if r.optional == Some(true) => Ok(None),
            None => Err(EnvError::NoConfigMapKey { key: r.key.clone(), namespace: namespace(), name: r.name.clone() }),
        };
    }
    if let Some(r) = &source.secret_key_ref {
        let Some(secret) = optional(objects.secrets.get(&r.name), r.optional)? else {
            return Ok(None);
        };
        return match secret.data.get(&r.key) {
            Some(value) => Ok(Some(secret_text(&r.name, &r.key, value)?)),
            None if r.optional == Some(true) => Ok(None),
            None => Err(EnvError::NoSecretKey { key: r.key.clone(), namespace: namespace(), name: r.name.clone() }),
        };
    }
    if source.file_key_ref.is_some() {
        return Err(EnvError::FileKeyRef { name: var.into() });
    }
    Ok(Some(String::new()))
}

/// Command and arguments of `container` with references to its final environment expanded.
pub fn expand_command(container: &Container, env: &[(String, String)]) -> (Vec<String>, Vec<String>) {
    let values: HashMap<&str, &str> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let all = |words: Option<&Vec<String>>| -> Vec<String> {
        words.into_iter().flatten().map(|word| expansion::expand(word, |name| values.get(name).copied())).collect()
    };
    (all(container.command.as_ref()), all(container.args.as_ref()))
}

#[cfg(test)]
mod tests;
