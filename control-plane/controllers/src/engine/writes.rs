//! Writes of one kind, with the answers put into the cache at once.
//!
//! Updates are merge patches of the difference between the object as read and as wished: small on the wire, they
//! never touch fields that the cache does not keep, and with `resourceVersion` inside they fail with a conflict when
//! someone else was faster.

use std::marker::PhantomData;
use std::sync::Arc;

use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::cache::{Cache, Cached, Key};
use super::error::ReconcileError;

/// Name under which the server notes our field ownership.
const FIELD_MANAGER: &str = "keelson-controllers";

/// The merge patch (RFC 7396) that turns `old` into `new`, if they differ.
pub fn merge_diff(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut patch = Map::new();
    for (key, value) in new {
        match old.get(key) {
            Some(before) => {
                if let Some(diff) = merge_diff(before, value) {
                    patch.insert(key.clone(), diff);
                }
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// One kind's writer.
pub struct Kind<K> {
    client: Client,
    cache: Arc<Cache<K>>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Kind<K> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), cache: Arc::clone(&self.cache), kind: PhantomData }
    }
}

impl<K: Cached + Serialize> Kind<K> {
    /// A writer whose answers go into `cache`.
    pub fn new(client: Client, cache: Arc<Cache<K>>) -> Self {
        Self { client, cache, kind: PhantomData }
    }

    /// The cache.
    pub fn cache(&self) -> &Arc<Cache<K>> {
        &self.cache
    }

    fn request(namespace: &str) -> Request {
        let namespace = (!namespace.is_empty()).then_some(namespace);
        Request::new(K::url_path(&(), namespace))
    }

    fn failed(verb: &'static str, key: &Key, source: kube::Error) -> ReconcileError {
        ReconcileError::Api { verb, kind: K::kind(&()).into_owned(), key: key.clone(), source: Box::new(source) }
    }

    fn unbuilt(key: &Key, source: kube::core::request::Error) -> ReconcileError {
        ReconcileError::Request { kind: K::kind(&()).into_owned(), key: key.clone(), source: Box::new(source) }
    }

    fn encode(key: &Key, object: &K) -> Result<Value, ReconcileError> {
        serde_json::to_value(object).map_err(|source| ReconcileError::Encode {
            kind: K::kind(&()).into_owned(),
            key: key.clone(),
            source,
        })
    }

    /// The object as the server has it now.
    ///
    /// # Errors
    /// The request failed; `NotFound` is `Ok(None)`.
    pub async fn get_live(&self, key: &Key) -> Result<Option<K>, ReconcileError> {
        let request = Self::request(&key.namespace)
            .get(&key.name, &kube::api::GetParams::default())
            .map_err(|e| Self::unbuilt(key, e))?;
        match self.client.request::<K>(request).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(Self::failed("get", key, error)),
        }
    }

    /// Creates the object.
    ///
    /// # Errors
    /// The request failed.
    pub async fn create(&self, object: &K) -> Result<K, ReconcileError> {
        let mut key = Key::of(object);
        if key.name.is_empty() {
            key.name = object.meta().generate_name.clone().unwrap_or_default();
        }
        let body = Self::encode(&key, object)?.to_string().into_bytes();
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let request = Self::request(&key.namespace).create(&params, body).map_err(|e| Self::unbuilt(&key, e))?;
        let created: K = self.client.request(request).await.map_err(|e| Self::failed("create", &key, e))?;
        self.cache.written(created.clone());
        Ok(created)
    }

    /// Sends a patch, to a subresource if named.
    ///
    /// # Errors
    /// The request failed.
    pub async fn patch<P: Serialize + std::fmt::Debug>(
        &self,
        key: &Key,
        subresource: Option<&str>,
        patch: &Patch<P>,
    ) -> Result<K, ReconcileError> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let request = Self::request(&key.namespace);
        let request = match subresource {
            None => request.patch(&key.name, &params, patch),
            Some(sub) => request.patch_subresource(sub, &key.name, &params, patch),
        };
        let request = request.map_err(|e| Self::unbuilt(key, e))?;
        let patched: K = self.client.request(request).await.map_err(|e| Self::failed("patch", key, e))?;
        self.cache.written(patched.clone());
        Ok(patched)
    }

    /// Brings the object from `old` to `new` if they differ, failing with a conflict if it is no longer `old`.
    ///
    /// # Errors
    /// The request failed.
    pub async fn update(&self, old: &K, new: &K) -> Result<Option<K>, ReconcileError> {
        self.send_diff(old, new, None).await
    }

    /// The same for the status subresource.
    ///
    /// # Errors
    /// The request failed.
    pub async fn update_status(&self, old: &K, new: &K) -> Result<Option<K>, ReconcileError> {
        self.send_diff(old, new, Some("status")).await
    }

    async fn send_diff(&self, old: &K, new: &K, sub: Option<&str>) -> Result<Option<K>, ReconcileError> {
        let key = Key::of(old);
        let Some(mut diff) = merge_diff(&Self::encode(&key, old)?, &Self::encode(&key, new)?) else {
            return Ok(None);
        };
        let meta = old.meta();
        diff["metadata"]["resourceVersion"] = json!(meta.resource_version);
        diff["metadata"]["uid"] = json!(meta.uid);
        self.patch(&key, sub, &Patch::Merge(diff)).await.map(Some)
    }

    /// Deletes the object if it still has this UID. An object that is gone already is a success.
    ///
    /// # Errors
    /// The request failed.
    pub async fn delete(&self, object: &K, mut params: DeleteParams) -> Result<(), ReconcileError> {
        let key = Key::of(object);
        let uid = object.meta().uid.clone().unwrap_or_default();
        let preconditions = params.preconditions.take().unwrap_or_default();
        params.preconditions = Some(Preconditions { uid: Some(uid.clone()), ..preconditions });
        let request = Self::request(&key.namespace).delete(&key.name, &params).map_err(|e| Self::unbuilt(&key, e))?;
        match self.client.request::<Value>(request).await {
            Ok(answer) => {
                self.take_delete_answer(&key, &uid, answer);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.cache.removed(&key, &uid);
                Ok(())
            }
            Err(error) => Err(Self::failed("delete", &key, error)),
        }
    }

    /// The answer is a `Status` when the object is gone, else the object as it now waits for its end.
    fn take_delete_answer(&self, key: &Key, uid: &str, answer: Value) {
        if answer.get("kind").and_then(Value::as_str) == Some("Status") {
            self.cache.removed(key, uid);
            return;
        }
        let Ok(object) = serde_json::from_value::<K>(answer) else {
            return;
        };
        let meta = object.meta();
        let waits = meta.finalizers.as_ref().is_some_and(|f| !f.is_empty());
        let graceful = meta.deletion_grace_period_seconds.is_some_and(|s| s > 0);
        if meta.deletion_timestamp.is_some() && (waits || graceful) {
            self.cache.written(object);
        } else {
            self.cache.removed(key, uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn apply(target: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        for (key, value) in patch {
            if value.is_null() {
                target.as_object_mut().unwrap().remove(key);
            } else {
                apply(&mut target[key], value);
            }
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0i64..4).prop_map(Value::from)];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[a-c]", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn equal_objects_need_no_patch() {
        assert_eq!(merge_diff(&json!({"a": [1]}), &json!({"a": [1]})), None);
        assert_eq!(
            merge_diff(&json!({"a": 1, "b": {"c": 1, "d": 2}}), &json!({"b": {"c": 1, "d": 3}})),
            Some(json!({"a": null, "b": {"d": 3}}))
        );
    }

    proptest! {
        #[test]
        fn the_patch_leads_from_old_to_new(old in any_json(), new in any_json()) {
            let mut patched = old.clone();
            if let Some(patch) = merge_diff(&old, &new) {
                apply(&mut patched, &patch);
            }
            // A fresh nested object in a patch may itself hold nothing that differs; emptiness is kept.
            prop_assert_eq!(patched, new);
        }
    }
}
