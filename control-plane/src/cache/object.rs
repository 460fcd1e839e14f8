//! Objects as the cache holds them: encoded once, with what selectors look at beside the bytes.
//!
//! The store's value lacks `metadata.resourceVersion`, because a value's revision is known only once it is committed. It
//! begins with `apiVersion`, `kind` and `metadata`, so that the revision is spliced in without parsing.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use keelson_kinds::Resource;
use serde_json::Value;

use super::EventKind;
use crate::store::{KeyValue, Revision};

const METADATA: &[u8] = b"\"metadata\":{";

/// A stored object, ready to be served.
#[derive(Debug)]
pub struct Object {
    /// Storage key.
    pub key: Arc<str>,
    /// Namespace, empty for cluster-scoped kinds.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
    /// Revision of the write that produced it.
    pub revision: Revision,
    /// The JSON that clients get, with its resourceVersion.
    pub json: Bytes,
    /// `metadata.labels`.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// What field selectors see.
    pub fields: Box<[(Cow<'static, str>, String)]>,
}

impl Object {
    /// Decodes what the store answered.
    ///
    /// # Errors
    /// [`DecodeError`] when the value is no API object.
    pub fn stored(resource: &Resource, item: &KeyValue) -> Result<Self, DecodeError> {
        decode(resource, &item.key, &item.value, item.mod_revision, EventKind::Added).map(|(object, _)| object)
    }

    /// The parsed object as `resource` shows it: the stored kind, or a view of it.
    #[must_use]
    pub fn value_as(&self, resource: &Resource) -> Value {
        let mut value = self.value();
        if !resource.storage_version {
            keelson_kinds::write::from_storage(resource, &mut value, self.revision);
        }
        value
    }

    /// The encoded object as `resource` shows it; shared unless it is a view.
    #[must_use]
    pub fn json_as(&self, resource: &Resource) -> Bytes {
        if resource.storage_version { self.json.clone() } else { self.value_as(resource).to_string().into() }
    }

    /// The parsed object.
    #[must_use]
    pub fn value(&self) -> Value {
        // The bytes came out of `encode` or were parsed once already when they were taken into the cache.
        serde_json::from_slice(&self.json).unwrap_or(Value::Null)
    }
}

/// A stored value that is no API object: a foreign or damaged database. Not retryable.
#[derive(Debug, thiserror::Error)]
#[error("the stored value of {key} is not an API object: {reason}")]
pub struct DecodeError {
    /// Storage key.
    pub key: Arc<str>,
    /// What is wrong with it.
    pub reason: String,
}

/// Bytes for the store: no resourceVersion, `apiVersion`, `kind` and `metadata` first.
#[must_use]
pub fn encode(object: &Value) -> Bytes {
    let mut out = Vec::with_capacity(512);
    let text = |field: &str| object.get(field).cloned().unwrap_or_else(|| Value::String(String::new()));
    out.extend_from_slice(b"{\"apiVersion\":");
    write_json(&mut out, &text("apiVersion"));
    out.extend_from_slice(b",\"kind\":");
    write_json(&mut out, &text("kind"));
    out.extend_from_slice(b",\"metadata\":{");
    let mut first = true;
    for (key, value) in object.get("metadata").and_then(Value::as_object).into_iter().flatten() {
        if key != "resourceVersion" {
            write_member(&mut out, key, value, first);
            first = false;
        }
    }
    out.push(b'}');
    for (key, value) in object.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
            write_member(&mut out, key, value, false);
        }
    }
    out.push(b'}');
    out.into()
}

fn write_member(out: &mut Vec<u8>, key: &str, value: &Value, first: bool) {
    if !first {
        out.push(b',');
    }
    write_json(out, &Value::String(key.to_owned()));
    out.push(b':');
    write_json(out, value);
}

fn write_json(out: &mut Vec<u8>, value: &Value) {
    // Writing a `Value` to memory cannot fail: its keys are strings and a Vec takes every byte.
    let _ = serde_json::to_writer(out, value);
}

/// Writes `before`, the stored bytes with their revision spliced in, and `after`.
pub(super) fn splice(stored: &[u8], revision: Revision, before: &[u8], after: &[u8]) -> Option<Bytes> {
    let at = stored.windows(METADATA.len()).position(|w| w == METADATA)? + METADATA.len();
    let mut out = Vec::with_capacity(stored.len() + before.len() + after.len() + 48);
    out.extend_from_slice(before);
    out.extend_from_slice(&stored[..at]);
    out.extend_from_slice(format!("\"resourceVersion\":\"{revision}\"").as_bytes());
    if stored.get(at) != Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(&stored[at..]);
    out.extend_from_slice(after);
    Some(out.into())
}

/// An encoded object with its revision.
#[must_use]
pub fn with_revision(stored: &[u8], revision: Revision) -> Bytes {
    splice(stored, revision, b"", b"").unwrap_or_else(|| Bytes::copy_from_slice(stored))
}

/// The encoded watch event and the object within it; both share one allocation.
pub(super) fn decode(
    resource: &Resource,
    key: &Arc<str>,
    stored: &[u8],
    revision: Revision,
    kind: EventKind,
) -> Result<(Object, Bytes), DecodeError> {
    let fail = |reason: String| DecodeError { key: Arc::clone(key), reason };
    let value: Value = serde_json::from_slice(stored).map_err(|e| fail(e.to_string()))?;
    let line = splice(stored, revision, kind.line_start(), LINE_END).ok_or_else(|| fail("no metadata".into()))?;
    let json = line.slice(kind.line_start().len()..line.len() - LINE_END.len());
    let metadata = &value["metadata"];
    let text = |field: &str| metadata[field].as_str().unwrap_or_default().into();
    let labels = metadata["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, v)| (k.as_str().into(), v.as_str().unwrap_or_default().into()))
        .collect();
    let object = Object {
        key: Arc::clone(key),
        namespace: text("namespace"),
        name: text("name"),
        revision,
        json,
        labels,
        fields: keelson_kinds::write::selectable(resource, &value).into(),
    };
    Ok((object, line))
}

/// What follows the object in an encoded watch event.
pub(super) const LINE_END: &[u8] = b"}\n";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn splices_the_revision_and_keeps_the_rest() {
        let object = json!({"spec": {"metadata": {"a": 1}}, "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "a", "resourceVersion": "77", "labels": {"x": "y"}}});
        let stored = encode(&object);
        assert!(!stored.windows(15).any(|w| w == b"resourceVersion"));
        let json: Value = serde_json::from_slice(&splice(&stored, 5, b"", b"").unwrap()).unwrap();
        let mut wanted = object;
        wanted["metadata"]["resourceVersion"] = "5".into();
        assert_eq!(json, wanted);
    }

    #[test]
    fn splices_into_empty_metadata() {
        let stored = encode(&json!({"kind": "X", "apiVersion": "v1", "metadata": {}}));
        let json: Value = serde_json::from_slice(&splice(&stored, 5, b"", b"").unwrap()).unwrap();
        assert_eq!(json["metadata"], json!({"resourceVersion": "5"}));
    }

    proptest! {
        #[test]
        fn round_trips(name in ".{0,20}", label in ".{0,40}", data in ".{0,40}", revision in 1u64..u64::MAX) {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "labels": {label: "v"}}, "data": {"k": data}});
            let json: Value = serde_json::from_slice(&splice(&encode(&object), revision, b"", b"").unwrap()).unwrap();
            let mut wanted = object;
            wanted["metadata"]["resourceVersion"] = revision.to_string().into();
            prop_assert_eq!(json, wanted);
        }
    }
}
