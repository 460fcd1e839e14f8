//! What a configMap, secret, downwardAPI or projected volume holds: paths, bytes, modes.
//!
//! Pure. Upstream counterparts: `MakePayload` of the configmap and secret plugins, `CollectData` of
//! the downward API plugin.

use std::collections::BTreeMap;

use bytes::Bytes;
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Pod};

use super::objects::{ConfigMapData, SecretData};
use crate::env::fields::{self, FieldError, NodeFacts};

/// Mode of files when neither item nor volume says otherwise.
pub const DEFAULT_MODE: u32 = 0o644;
/// The longest path of a file in a volume.
const MAX_PATH: usize = 4096;
/// The longest file name.
const MAX_NAME: usize = 255;

/// One file of a volume.
#[derive(Clone, PartialEq, Eq)]
pub struct FileProjection {
    /// Its content.
    pub data: Bytes,
    /// Permission bits.
    pub mode: u32,
    /// Owner, if not root.
    pub uid: Option<u32>,
}

/// Files by path relative to the volume.
pub type Payload = BTreeMap<String, FileProjection>;

/// A volume whose content cannot be formed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// An item names a key that the ConfigMap lacks.
    #[error("configmap references non-existent config key: {key}")]
    NoConfigMapKey {
        /// The key.
        key: String,
    },
    /// An item names a key that the Secret lacks.
    #[error("references non-existent secret key: {key}")]
    NoSecretKey {
        /// The key.
        key: String,
    },
    /// A path that is absolute, empty, too long or leaves the volume.
    #[error("invalid path {path:?}: {problem}")]
    BadPath {
        /// The path.
        path: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// Two sources want incompatible paths (`a` as a file and `a/b`).
    #[error("invalid path {path:?}: another file of the volume needs {parent:?} to be a file")]
    Conflict {
        /// The longer path.
        path: String,
        /// The shorter one.
        parent: String,
    },
    /// A downward API reference without a value.
    #[error(transparent)]
    Field(#[from] FieldError),
}

/// Files of a ConfigMap.
///
/// # Errors
/// An item without its key, unless `optional`.
pub fn config_map_payload(
    items: Option<&[KeyToPath]>,
    map: &ConfigMapData,
    default_mode: u32,
    optional: bool,
) -> Result<Payload, PayloadError> {
    let get = |key: &str| {
        map.data
            .get(key)
            .map(|text| Bytes::copy_from_slice(text.as_bytes()))
            .or_else(|| map.binary_data.get(key).cloned())
    };
    let keys = map.data.keys().chain(map.binary_data.keys());
    select(items, keys, get, default_mode, optional, |key| PayloadError::NoConfigMapKey { key })
}

/// Files of a Secret.
///
/// # Errors
/// An item without its key, unless `optional`.
pub fn secret_payload(
    items: Option<&[KeyToPath]>,
    secret: &SecretData,
    default_mode: u32,
    optional: bool,
) -> Result<Payload, PayloadError> {
    let get = |key: &str| secret.data.get(key).cloned();
    select(items, secret.data.keys(), get, default_mode, optional, |key| PayloadError::NoSecretKey { key })
}

fn select<'a>(
    items: Option<&[KeyToPath]>,
    keys: impl Iterator<Item = &'a String>,
    get: impl Fn(&str) -> Option<Bytes>,
    default_mode: u32,
    optional: bool,
    missing: impl Fn(String) -> PayloadError,
) -> Result<Payload, PayloadError> {
    let file = |data, mode| FileProjection { data, mode, uid: None };
    let items = items.unwrap_or_default();
    if items.is_empty() {
        return Ok(keys.filter_map(|key| Some((key.clone(), file(get(key)?, default_mode)))).collect());
    }
    let mut payload = Payload::new();
    for item in items {
        match get(&item.key) {
            Some(data) => {
                let mode = item.mode.map_or(default_mode, mode_bits);
                payload.insert(item.path.clone(), file(data, mode));
            }
            None if optional => {}
            None => return Err(missing(item.key.clone())),
        }
    }
    Ok(payload)
}

/// Files of the downward API.
///
/// # Errors
/// A reference without a value.
pub fn downward_payload(
    items: &[DownwardAPIVolumeFile],
    pod: &Pod,
    facts: &NodeFacts,
    default_mode: u32,
) -> Result<Payload, PayloadError> {
    let mut payload = Payload::new();
    for item in items {
        let value = if let Some(field) = &item.field_ref {
            fields::field_value(field, pod, facts)?
        } else if let Some(resource) = &item.resource_field_ref {
            fields::resource_value(resource, pod, None, facts)?
        } else {
            continue;
        };
        let file = FileProjection { data: value.into(), mode: item.mode.map_or(default_mode, mode_bits), uid: None };
        payload.insert(item.path.clone(), file);
    }
    Ok(payload)
}

/// Permission bits of an API mode (the API admits 0 to 0777).
pub fn mode_bits(mode: i32) -> u32 {
    u32::try_from(mode).unwrap_or_default() & 0o7777
}

/// Brings every path into its shortest form and refuses what would leave the volume or collide
/// with the names that the writer keeps for itself.
///
/// # Errors
/// [`PayloadError::BadPath`] or [`PayloadError::Conflict`].
pub fn normalise(payload: Payload) -> Result<Payload, PayloadError> {
    let mut clean = Payload::new();
    for (path, file) in payload {
        let path = clean_path(&path)?;
        clean.insert(path, file);
    }
    for path in clean.keys() {
        let parents = path.match_indices('/').map(|(at, _)| &path[..at]);
        for parent in parents {
            if clean.contains_key(parent) {
                return Err(PayloadError::Conflict { path: path.clone(), parent: parent.to_owned() });
            }
        }
    }
    Ok(clean)
}

fn clean_path(path: &str) -> Result<String, PayloadError> {
    let bad = |problem| PayloadError::BadPath { path: path.chars().take(128).collect(), problem };
    if path.is_empty() {
        return Err(bad("must not be empty"));
    }
    if path.starts_with('/') {
        return Err(bad("must be relative"));
    }
    if path.len() > MAX_PATH {
        return Err(bad("is longer than 4096 characters"));
    }
    if path.contains('\0') {
        return Err(bad("has a NUL byte"));
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.is_empty() {
        return Err(bad("names no file"));
    }
    if parts.contains(&"..") {
        return Err(bad("must not contain \"..\""));
    }
    if parts[0].starts_with("..") {
        return Err(bad("must not begin with \"..\""));
    }
    if parts.iter().any(|part| part.len() > MAX_NAME) {
        return Err(bad("has a name longer than 255 characters"));
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn config_map() -> ConfigMapData {
        ConfigMapData {
            data: BTreeMap::from([("a".into(), "1".into())]),
            binary_data: BTreeMap::from([("b".into(), Bytes::from_static(&[0, 1]))]),
            immutable: false,
        }
    }

    fn item(key: &str, path: &str, mode: Option<i32>) -> KeyToPath {
        serde_json::from_value(serde_json::json!({"key": key, "path": path, "mode": mode})).unwrap()
    }

    fn file(data: &'static [u8], mode: u32) -> FileProjection {
        FileProjection { data: Bytes::from_static(data), mode, uid: None }
    }

    impl std::fmt::Debug for FileProjection {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{:?} {:o}", self.data, self.mode)
        }
    }

    #[test]
    fn whole_map_and_items() {
        let whole = config_map_payload(None, &config_map(), 0o644, false).unwrap();
        let want = Payload::from([("a".into(), file(b"1", 0o644)), ("b".into(), file(&[0, 1], 0o644))]);
        assert_eq!(whole, want);
        let items = [item("a", "x/y", Some(0o400))];
        let some = config_map_payload(Some(&items), &config_map(), 0o644, false).unwrap();
        assert_eq!(some, Payload::from([("x/y".into(), file(b"1", 0o400))]));
        let gone = [item("zz", "x", None)];
        let error = config_map_payload(Some(&gone), &config_map(), 0o644, false).unwrap_err();
        assert_eq!(error.to_string(), "configmap references non-existent config key: zz");
        assert!(config_map_payload(Some(&gone), &config_map(), 0o644, true).unwrap().is_empty());
        let error = secret_payload(Some(&gone), &SecretData::default(), 0o644, false).unwrap_err();
        assert_eq!(error.to_string(), "references non-existent secret key: zz");
    }

    fn normal(paths: &[&str]) -> Result<Vec<String>, PayloadError> {
        let payload = paths.iter().map(|p| ((*p).to_owned(), file(b"", 0o644))).collect();
        Ok(normalise(payload)?.into_keys().collect())
    }

    #[test]
    fn paths() {
        assert_eq!(normal(&["a//b/./c"]).unwrap(), ["a/b/c"]);
        assert!(normal(&["a/..b", "...x/y"]).is_err());
        assert!(normal(&["a/..b", "b/...x"]).is_ok());
        for bad in ["", "/a", "a/../b", "..", "..data", "..x", ".", "a\0b"] {
            assert!(normal(&[bad]).is_err(), "{bad:?}");
        }
        assert!(normal(&[&"x".repeat(256)]).is_err());
        assert!(normal(&["a", "a/b"]).is_err());
        assert!(normal(&["a", "a-b", "a/b"]).is_err());
        assert!(normal(&["a", "ab", "ab/c"]).is_err());
        assert!(normal(&["a-b", "a/b", "a/c"]).is_ok());
    }

    proptest! {
        #[test]
        fn a_normal_path_stays_inside(path in "[a./\\PC]{0,20}") {
            if let Ok(clean) = clean_path(&path) {
                prop_assert!(!clean.starts_with('/') && !clean.starts_with(".."));
                prop_assert!(clean.split('/').all(|p| !p.is_empty() && p != "." && p != ".."));
                prop_assert_eq!(clean_path(&clean), Ok(clean.clone()));
            }
        }

        #[test]
        fn conflicts_are_found(paths in prop::collection::btree_set("[ab-]{1,2}(/[ab-]{1,2}){0,2}", 0..6)) {
            let list: Vec<&str> = paths.iter().map(String::as_str).collect();
            let clash = list.iter().any(|a| list.iter().any(|b| b.starts_with(&format!("{a}/"))));
            prop_assert_eq!(normal(&list).is_err(), clash);
        }
    }
}
