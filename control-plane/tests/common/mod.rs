//! A server over a temporary store, and requests to it without a network.

#![allow(dead_code, reason = "each test binary uses a part of this")]

pub mod etcd;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use keelson_control_plane::auth::User;
use keelson_control_plane::http::ApiService;
use keelson_control_plane::http::body::Body;
use keelson_control_plane::pki::token::TokenKeys;
use keelson_control_plane::run;
use keelson_control_plane::server::{Config, Server};
use keelson_control_plane::store::{DEFAULT_PREFIX, EtcdConfig, Store};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::Service;

/// A running server; stops when dropped.
pub struct Api {
    pub server: Arc<Server>,
    folder: Option<tempfile::TempDir>,
    /// What it stores in, if that is no file in the folder.
    etcd: Option<etcd::Etcd>,
    stop: CancellationToken,
}

/// Names the store of servers that tests start by [`Api::start`]: `etcd`, or nothing for `SQLite`.
const STORE: &str = "KEELSON_TEST_STORE";

/// How to reach an etcd without certificates.
pub fn plain(etcd: &etcd::Etcd) -> EtcdConfig {
    let prefix = DEFAULT_PREFIX.to_owned();
    EtcdConfig { servers: vec![etcd.url()], prefix, ca_file: None, cert_file: None, key_file: None }
}

/// An answer with its body read.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub json: Value,
}

impl Answer {
    /// Panics with the body unless the status is `wanted`.
    #[track_caller]
    pub fn expect(self, wanted: u16) -> Value {
        assert_eq!(self.status.as_u16(), wanted, "{}", self.json);
        self.json
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub fn config() -> Config {
    Config {
        advertise_address: "10.0.0.9".parse().unwrap(),
        secure_port: 6443,
        service_cidr: "10.96.0.0/16".parse().unwrap(),
        node_ports: (30000, 32767),
        allow_external_ips: false,
        toleration_seconds: keelson_control_plane::server::TolerationSeconds::default(),
        cluster_domain: "cluster.local".into(),
        event_ttl: keelson_control_plane::events::DEFAULT_TTL,
        static_tokens: keelson_control_plane::auth::tokens::StaticTokens::default(),
        audit: None,
    }
}

impl Api {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let etcd = std::env::var_os(STORE).filter(|store| !store.is_empty()).map(|store| {
            assert_eq!(store, "etcd", "{STORE} names no store");
            etcd::Etcd::start(STORE).expect("an etcd")
        });
        Self::open(folder, etcd).await
    }

    async fn open(folder: tempfile::TempDir, etcd: Option<etcd::Etcd>) -> Self {
        let store = match &etcd {
            Some(etcd) => run::open_etcd(folder.path(), &plain(etcd)).unwrap(),
            None => run::open_store(folder.path()).unwrap(),
        };
        let mut api = Self::over(store, config(), folder).await;
        api.etcd = etcd;
        api
    }

    /// A server over a store of the caller's.
    pub async fn over(store: Arc<dyn Store>, config: Config, folder: tempfile::TempDir) -> Self {
        let stop = CancellationToken::new();
        let key = folder.path().join("sa.key");
        if !key.exists() {
            let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
            std::fs::write(&key, pair.serialize_pem()).unwrap();
        }
        let tokens = TokenKeys::from_pem(&std::fs::read_to_string(key).unwrap()).unwrap();
        let server = run::start(config, store, tokens, None, stop.clone()).await.unwrap();
        Self { server, folder: Some(folder), etcd: None, stop }
    }

    /// Stops the server and starts another over the same store.
    pub async fn restart(mut self) -> Self {
        self.stop.cancel();
        let (folder, etcd) = (self.folder.take().unwrap(), self.etcd.take());
        tokio::time::sleep(Duration::from_millis(50)).await;
        Self::open(folder, etcd).await
    }

    pub fn client(&self) -> kube::Client {
        run::client(&self.server, "test")
    }

    pub async fn raw(&self, service: ApiService, request: Request<Full<Bytes>>) -> http::Response<Body> {
        let mut service = service;
        service.call(request).await.unwrap_or_else(|never| match never {})
    }

    /// A request as an administrator.
    pub async fn send(&self, method: Method, path: &str, content_type: &str, body: impl Into<Bytes>) -> Answer {
        let service = ApiService::internal(Arc::clone(&self.server), User::internal("admin"));
        self.answer(service, request(method, path, &[("content-type", content_type)], body)).await
    }

    pub async fn answer(&self, service: ApiService, request: Request<Full<Bytes>>) -> Answer {
        let response = self.raw(service, request).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let json = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Answer { status: parts.status, headers: parts.headers, json }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, "application/json", "").await
    }

    /// Gets until the answer has the status, at most `tries` times more, 10 ms apart. Panics if it never has.
    pub async fn get_until(&self, path: &str, status: u16, tries: usize) -> Value {
        let mut answer = self.get(path).await;
        for _ in 0..tries {
            if answer.status == status {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            answer = self.get(path).await;
        }
        answer.expect(status)
    }

    pub async fn get_as(&self, path: &str, accept: &str) -> Answer {
        let service = ApiService::internal(Arc::clone(&self.server), User::internal("admin"));
        self.answer(service, request(Method::GET, path, &[("accept", accept)], "")).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, "application/json", body.to_string()).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::PUT, path, "application/json", body.to_string()).await
    }

    pub async fn patch(&self, path: &str, kind: &str, body: &Value) -> Answer {
        self.send(Method::PATCH, path, &format!("application/{kind}+json"), body.to_string()).await
    }

    pub async fn delete(&self, path: &str, options: &Value) -> Answer {
        self.send(Method::DELETE, path, "application/json", options.to_string()).await
    }

    /// As someone on the network: with a bearer token, or nothing.
    pub async fn remote(&self, method: Method, path: &str, token: Option<&str>, body: &Value) -> Answer {
        let service = ApiService::remote(Arc::clone(&self.server), None);
        let auth = token.map(|t| format!("Bearer {t}"));
        let mut headers = vec![("content-type", "application/json")];
        if let Some(auth) = &auth {
            headers.push(("authorization", auth));
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.answer(service, request(method, path, &headers, body)).await
    }

    /// As the owner of a client certificate.
    pub async fn as_user(&self, user: &str, groups: &[&str], method: Method, path: &str, body: &Value) -> Answer {
        let subject = keelson_control_plane::pki::Subject {
            user: user.into(),
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        };
        let service = ApiService::remote(Arc::clone(&self.server), Some(subject));
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.answer(service, request(method, path, &[("content-type", "application/json")], body)).await
    }

    /// Starts a watch and reads its lines.
    pub async fn watch(&self, path: &str) -> Lines {
        let service = ApiService::internal(Arc::clone(&self.server), User::internal("admin"));
        let response = self.raw(service, request(Method::GET, path, &[], "")).await;
        assert_eq!(response.status(), 200);
        Lines { body: response.into_body(), rest: Vec::new() }
    }

    pub async fn account(&self, namespace: &str, name: &str) -> Value {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        self.post(&path, &json!({"metadata": {"name": name}})).await.expect(201)
    }
}

pub fn request(method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let mut builder = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::new(body.into())).unwrap()
}

/// Lines of a watch.
pub struct Lines {
    body: Body,
    rest: Vec<u8>,
}

impl Lines {
    /// The next event; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame =
                tokio::time::timeout(Duration::from_secs(10), self.body.frame()).await.expect("an event in time");
            let bytes = frame?.ok()?.into_data().ok()?;
            self.rest.extend_from_slice(&bytes);
        }
    }

    /// Type and name of the next event.
    pub async fn next_name(&mut self) -> (String, String) {
        let event = self.next().await.expect("the watch goes on");
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }
}

pub fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": value}}, "data": {"k": value}})
}

pub fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "busybox"}]}})
}

pub fn deployment(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "nginx:1.14.2"}]}}}})
}
