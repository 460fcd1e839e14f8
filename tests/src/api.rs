//! The API server, asked directly: what a test says a hundred times a minute is too dear for a program each.
//!
//! Bodies are JSON values, because tests are about what is on the wire. A refusal is an error that tells the answer; a test that wants
//! one asks for it with [`Api::refused`].

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt as _;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, BodyStream};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use keelson_streaming::websocket::{self, WebSocketRole};
use kube::Client;
use kube::api::AttachParams;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::runtime::Runtime;

use crate::lab::Lab;

/// Longest time for one request; streams may go on.
const LIMIT: Duration = Duration::from_secs(30);
/// RFC 6455's own example of a key, and the answer to it.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// How a patch is meant.
#[derive(Clone, Copy, Debug)]
pub enum Patch {
    /// `application/merge-patch+json`.
    Merge,
    /// `application/strategic-merge-patch+json`.
    Strategic,
    /// `application/json-patch+json`.
    Json,
}

impl Patch {
    fn content_type(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Json => "application/json-patch+json",
        }
    }
}

/// A client with threads of its own, for tests that are not async.
pub struct Api {
    runtime: Runtime,
    client: Client,
}

impl Api {
    /// A client of this lab's API server.
    pub(crate) fn new(lab: &Lab) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(lab.client())?;
        Ok(Self { runtime, client })
    }

    /// A request and its answer, whatever it is.
    pub fn ask(&self, method: &Method, path: &str, kind: &str, body: Option<&Value>) -> Result<(StatusCode, String)> {
        let bytes = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        self.ask_as(method, path, [kind, "application/json, */*"], bytes)
    }

    /// A request whose body is these bytes of the first media type, and that accepts the second.
    pub fn ask_as(
        &self,
        method: &Method,
        path: &str,
        [kind, accept]: [&str; 2],
        body: Vec<u8>,
    ) -> Result<(StatusCode, String)> {
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, kind);
        let request = request.header(header::ACCEPT, accept).body(kube::client::Body::from(body))?;
        self.runtime.block_on(async {
            let answer = async {
                let response = self.client.send(request).await?;
                let status = response.status();
                let body = response.into_body().collect().await?.to_bytes();
                anyhow::Ok((status, String::from_utf8_lossy(&body).into_owned()))
            };
            tokio::time::timeout(LIMIT, answer).await.with_context(|| format!("{method} {path}: no answer"))?
        })
    }

    fn done(&self, method: &Method, path: &str, kind: &str, body: Option<&Value>) -> Result<Value> {
        let (status, text) = self.ask(method, path, kind, body)?;
        ensure!(status.is_success(), "{method} {path} was answered with {status}: {text}");
        serde_json::from_str(&text).with_context(|| format!("{method} {path}: no JSON: {text:?}"))
    }

    /// Reads an object or a list.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.done(&Method::GET, path, "application/json", None)
    }

    /// Reads what is no JSON.
    pub fn text(&self, path: &str) -> Result<String> {
        let (status, text) = self.ask(&Method::GET, path, "application/json", None)?;
        ensure!(status.is_success(), "GET {path} was answered with {status}: {text}");
        Ok(text)
    }

    /// Creates.
    pub fn create(&self, path: &str, object: &Value) -> Result<Value> {
        self.done(&Method::POST, path, "application/json", Some(object))
    }

    /// Replaces.
    pub fn replace(&self, path: &str, object: &Value) -> Result<Value> {
        self.done(&Method::PUT, path, "application/json", Some(object))
    }

    /// Patches.
    pub fn patch(&self, path: &str, kind: Patch, patch: &Value) -> Result<Value> {
        self.done(&Method::PATCH, path, kind.content_type(), Some(patch))
    }

    /// Deletes an object, or all objects that a list with the path's selector would show.
    pub fn delete(&self, path: &str) -> Result<Value> {
        self.done(&Method::DELETE, path, "application/json", None)
    }

    /// Deletes an object as these DeleteOptions say.
    pub fn delete_with(&self, path: &str, options: &Value) -> Result<Value> {
        self.done(&Method::DELETE, path, "application/json", Some(options))
    }

    /// A request that must be refused with this code: the Status that says why.
    pub fn refused(&self, method: &Method, path: &str, body: Option<&Value>, code: u16) -> Result<Value> {
        let (status, text) = self.ask(method, path, "application/json", body)?;
        ensure!(status.as_u16() == code, "{method} {path} was to be refused with {code}; it is {status}: {text}");
        let said: Value = serde_json::from_str(&text).with_context(|| format!("no JSON: {text:?}"))?;
        ensure!(said["kind"] == "Status" && said["code"] == code, "no Status of {code}: {said}");
        Ok(said)
    }

    /// An object that must not be there.
    pub fn absent(&self, path: &str) -> Result<()> {
        let said = self.refused(&Method::GET, path, None, 404)?;
        ensure!(said["reason"] == "NotFound", "{said}");
        Ok(())
    }

    /// Names of a list's objects, in order.
    pub fn names(&self, path: &str) -> Result<Vec<String>> {
        let list = self.get(path)?;
        let items = list["items"].as_array().with_context(|| format!("{path} is no list: {list}"))?;
        Ok(items.iter().map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect())
    }

    /// Watches a list from a version of it (all that is there first, without one).
    pub fn watch(&self, path: &str, version: &str) -> Result<Watch> {
        let glue = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{glue}watch=true&timeoutSeconds=300&resourceVersion={version}");
        let request = Request::get(&path).body(kube::client::Body::empty())?;
        let response = self.runtime.block_on(self.client.send(request))?;
        ensure!(response.status().is_success(), "watch of {path}: {}", response.status());
        let (sender, events) = channel();
        let mut frames = BodyStream::new(response.into_body());
        self.runtime.spawn(async move {
            let mut rest = Vec::new();
            while let Some(Ok(frame)) = frames.next().await {
                rest.extend_from_slice(&frame.into_data().unwrap_or_default());
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    // Nobody listens any more: the watch ends with its connection.
                    if serde_json::from_slice(&line).is_ok_and(|event: Value| sender.send(event).is_err()) {
                        return;
                    }
                }
            }
        });
        Ok(Watch { path, events })
    }

    /// Runs a command in a container and gives what it says on both outputs.
    pub fn exec(&self, namespace: &str, pod: &str, container: &str, command: &[&str]) -> Result<String> {
        let pods: kube::Api<Pod> = kube::Api::namespaced(self.client.clone(), namespace);
        let run = async {
            let mut process =
                pods.exec(pod, command.iter().copied(), &AttachParams::default().container(container)).await?;
            let (mut stdout, mut stderr) =
                (process.stdout().context("no stdout")?, process.stderr().context("no stderr")?);
            let (mut out, mut err) = (String::new(), String::new());
            tokio::try_join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err))?;
            anyhow::Ok(out + &err)
        };
        self.runtime.block_on(async {
            tokio::time::timeout(LIMIT, run).await.with_context(|| format!("{command:?} in {pod}: no answer"))?
        })
    }

    /// The messages of a WebSocket until the server closes it: of each, whether it is binary, and its bytes.
    pub fn messages(&self, path: &str, protocol: &str) -> Result<Vec<(bool, Vec<u8>)>> {
        let request = Request::get(path)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, KEY)
            .header(header::SEC_WEBSOCKET_PROTOCOL, protocol)
            .body(kube::client::Body::empty())?;
        let talk = async {
            let response = self.client.send(request).await?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                let status = response.status();
                let body = response.into_body().collect().await?.to_bytes();
                bail!("no WebSocket at {path}: {status}: {}", String::from_utf8_lossy(&body));
            }
            let told = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
            ensure!(told(header::SEC_WEBSOCKET_ACCEPT) == ACCEPT, "a wrong answer to the key");
            ensure!(told(header::SEC_WEBSOCKET_PROTOCOL) == protocol, "another protocol than {protocol}");
            let upgraded = hyper::upgrade::on(response).await?;
            let mut socket = websocket::stream(TokioIo::new(upgraded), WebSocketRole::Client).await;
            let mut messages = Vec::new();
            while let Some(message) = socket.next().await {
                let message = message?;
                if message.is_close() {
                    break;
                }
                if message.is_binary() || message.is_text() {
                    messages.push((message.is_binary(), message.into_data().to_vec()));
                }
            }
            anyhow::Ok(messages)
        };
        self.runtime.block_on(async {
            tokio::time::timeout(LIMIT, talk).await.with_context(|| format!("{path} was not closed in {LIMIT:?}"))?
        })
    }
}

/// A watch that is under way.
pub struct Watch {
    path: String,
    events: Receiver<Value>,
}

impl Watch {
    /// The next event, whatever it is.
    pub fn next(&self, seconds: u64) -> Result<Value> {
        let event = self.events.recv_timeout(Duration::from_secs(seconds));
        event.with_context(|| format!("{}: no event within {seconds} s", self.path))
    }

    /// Waits for an event that is wanted and gives its object; passes over others.
    pub fn until(&self, kind: &str, seconds: u64, mut wanted: impl FnMut(&Value) -> bool) -> Result<Value> {
        let end = std::time::Instant::now() + Duration::from_secs(seconds);
        let mut passed = Vec::new();
        loop {
            match self.events.recv_timeout(end.saturating_duration_since(std::time::Instant::now())) {
                Ok(event) if event["type"] == kind && wanted(&event["object"]) => return Ok(event["object"].clone()),
                Ok(event) => passed.push(json!([event["type"], event["object"]["metadata"]["name"]])),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{}: no {kind} that is wanted within {seconds} s, only {passed:?}", self.path)
                }
                Err(RecvTimeoutError::Disconnected) => bail!("{} ended after {passed:?}", self.path),
            }
        }
    }
}
