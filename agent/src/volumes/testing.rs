//! A reader of objects for tests: what was put in comes out, changes are told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::objects::{
    ConfigMapData, IssuedToken, ObjectKey, ObjectKind, ObjectReader, ReadError, SecretData, TokenParams,
};

#[derive(Default)]
struct Inner {
    maps: BTreeMap<String, ConfigMapData>,
    secrets: BTreeMap<String, SecretData>,
    token: Option<Result<(String, Timestamp), String>>,
    issued: usize,
    down: bool,
    held: BTreeMap<String, BTreeSet<ObjectKey>>,
}

/// See the module.
pub(crate) struct FakeObjects {
    inner: Mutex<Inner>,
    changes: broadcast::Sender<ObjectKey>,
}

impl FakeObjects {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { inner: Mutex::default(), changes: broadcast::channel(16).0 })
    }

    fn tell(&self, kind: ObjectKind, name: &str) {
        let key = ObjectKey { kind, namespace: "ns".into(), name: name.into() };
        let _ = self.changes.send(key);
    }

    pub fn set_map(&self, name: &str, entries: &[(&str, &str)]) {
        let data = entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let map = ConfigMapData { data, ..ConfigMapData::default() };
        self.inner.lock().maps.insert(name.into(), map);
        self.tell(ObjectKind::ConfigMap, name);
    }

    pub fn set_secret(&self, name: &str, entries: &[(&str, &str)]) {
        let data = entries.iter().map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec().into())).collect();
        let secret = SecretData { data, ..SecretData::default() };
        self.inner.lock().secrets.insert(name.into(), secret);
        self.tell(ObjectKind::Secret, name);
    }

    pub fn set_token(&self, token: Result<(&str, Timestamp), &str>) {
        let token = token.map(|(text, expires)| (text.to_owned(), expires)).map_err(str::to_owned);
        self.inner.lock().token = Some(token);
    }

    pub fn set_down(&self, down: bool) {
        self.inner.lock().down = down;
    }

    pub fn issued(&self) -> usize {
        self.inner.lock().issued
    }

    pub fn held(&self) -> Vec<String> {
        self.inner.lock().held.keys().cloned().collect()
    }

    fn find<T: Clone>(
        &self,
        kind: ObjectKind,
        name: &str,
        get: impl Fn(&Inner) -> Option<T>,
    ) -> Result<Arc<T>, ReadError> {
        let inner = self.inner.lock();
        if inner.down {
            return Err(ReadError::Unavailable {
                kind,
                namespace: "ns".into(),
                name: name.into(),
                message: "connection refused".into(),
            });
        }
        get(&inner).map(Arc::new).ok_or(ReadError::NotFound { kind, name: name.into() })
    }
}

impl ObjectReader for FakeObjects {
    fn config_map<'a>(&'a self, _: &'a str, name: &'a str) -> BoxFuture<'a, Result<Arc<ConfigMapData>, ReadError>> {
        Box::pin(async move { self.find(ObjectKind::ConfigMap, name, |i| i.maps.get(name).cloned()) })
    }

    fn secret<'a>(&'a self, _: &'a str, name: &'a str) -> BoxFuture<'a, Result<Arc<SecretData>, ReadError>> {
        Box::pin(async move { self.find(ObjectKind::Secret, name, |i| i.secrets.get(name).cloned()) })
    }

    fn token<'a>(&'a self, _: &'a TokenParams) -> BoxFuture<'a, Result<IssuedToken, ReadError>> {
        Box::pin(async move {
            let mut inner = self.inner.lock();
            inner.issued += 1;
            match inner.token.clone() {
                Some(Ok((token, expires))) => Ok(IssuedToken { token, expires }),
                Some(Err(message)) => Err(ReadError::Token { message }),
                None => Err(ReadError::Token { message: "no token set".into() }),
            }
        })
    }

    fn hold(&self, uid: &str, keys: BTreeSet<ObjectKey>) {
        self.inner.lock().held.insert(uid.into(), keys);
    }

    fn release(&self, uid: &str) {
        self.inner.lock().held.remove(uid);
    }

    fn changes(&self) -> broadcast::Receiver<ObjectKey> {
        self.changes.subscribe()
    }
}
