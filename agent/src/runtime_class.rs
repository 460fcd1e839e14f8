//! From a pod's RuntimeClass to the runtime's handler, with a small cache.
//!
//! A class is read when a sandbox is made, not watched: few pods have one, and its handler is immutable. Upstream
//! counterpart: `pkg/kubelet/runtimeclass`.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::node::v1::RuntimeClass;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::materials::MaterialError;

/// How long an answer holds: only a class that is deleted and made anew can change.
const FRESH: Duration = Duration::from_secs(60);
/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Classes remembered; a node has a handful.
const REMEMBERED: usize = 64;

/// Why no handler is known. Retryable: the class or the API server may appear.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// There is no such class.
    #[error("runtimeclass.node.k8s.io \"{name}\" not found")]
    NotFound {
        /// Its name.
        name: String,
    },
    /// The API server did not tell.
    #[error("failed to lookup RuntimeClass {name}: {message}")]
    NoAnswer {
        /// Its name.
        name: String,
        /// What went wrong.
        message: String,
    },
    /// This node has no API server.
    #[error("the pod has runtimeClassName {name:?}, which only an API server can resolve: set kubeconfig")]
    NoApi {
        /// Its name.
        name: String,
    },
}

impl From<LookupError> for MaterialError {
    fn from(error: LookupError) -> Self {
        Self { event: "FailedCreatePodSandBox", message: format!("Failed to create pod sandbox: {error}") }
    }
}

/// The RuntimeClasses that pods of this node name.
pub struct RuntimeClasses {
    client: Option<Client>,
    known: Mutex<HashMap<String, (String, Instant)>>,
}

impl RuntimeClasses {
    /// A lookup without anything remembered.
    #[must_use]
    pub fn new(client: Option<Client>) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// The handler of a class; no name is the runtime's default.
    ///
    /// # Errors
    /// [`LookupError`].
    pub async fn handler(&self, name: &str) -> Result<String, LookupError> {
        if name.is_empty() {
            return Ok(String::new());
        }
        let remembered = self.known.lock().get(name).cloned();
        if let Some((handler, at)) = &remembered
            && at.elapsed() < FRESH
        {
            return Ok(handler.clone());
        }
        let owned = || name.to_owned();
        let client = self.client.clone().ok_or_else(|| LookupError::NoApi { name: owned() })?;
        let api: Api<RuntimeClass> = Api::all(client);
        let message = match tokio::time::timeout(DEADLINE, api.get_opt(name)).await {
            Ok(Ok(Some(class))) => {
                self.remember(name, &class.handler);
                return Ok(class.handler);
            }
            Ok(Ok(None)) => {
                self.known.lock().remove(name);
                return Err(LookupError::NotFound { name: owned() });
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer from the API server within {DEADLINE:?}"),
        };
        // Without an answer what was known still holds, as upstream's cache does.
        remembered.map(|(handler, _)| handler).ok_or(LookupError::NoAnswer { name: owned(), message })
    }

    fn remember(&self, name: &str, handler: &str) {
        let mut known = self.known.lock();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(name.to_owned(), (handler.to_owned(), Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    /// What the API server does, by turns: a handler, 404 or no answer.
    #[derive(Clone, Default)]
    struct Server {
        answer: Arc<Mutex<Option<Option<&'static str>>>>,
        asked: Arc<Mutex<Vec<String>>>,
    }

    impl Server {
        fn classes(&self) -> RuntimeClasses {
            let server = self.clone();
            let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
                server.asked.lock().push(request.uri().path().to_owned());
                let answer = *server.answer.lock();
                async move {
                    let (code, body) = match answer {
                        Some(Some(handler)) => (200, json!({"metadata": {"name": "kata"}, "handler": handler})),
                        Some(None) => {
                            (404, json!({"status": "Failure", "reason": "NotFound", "code": 404, "message": "x"}))
                        }
                        None => (
                            500,
                            json!({"status": "Failure", "reason": "InternalError", "code": 500, "message": "broken"}),
                        ),
                    };
                    let body = kube::client::Body::from(serde_json::to_vec(&body).unwrap());
                    let answer = http::Response::builder().status(code).body(body).unwrap();
                    Ok::<_, std::convert::Infallible>(answer)
                }
            });
            RuntimeClasses::new(Some(Client::new(service, "default")))
        }

        fn set(&self, answer: Option<Option<&'static str>>) {
            *self.answer.lock() = answer;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_handler_is_not_the_name_and_is_remembered_for_a_while() {
        let server = Server::default();
        let classes = server.classes();
        assert_eq!(classes.handler("").await.unwrap(), "");
        server.set(Some(Some("runc-vm")));
        assert_eq!(classes.handler("kata").await.unwrap(), "runc-vm");
        assert_eq!(classes.handler("kata").await.unwrap(), "runc-vm");
        assert_eq!(*server.asked.lock(), ["/apis/node.k8s.io/v1/runtimeclasses/kata"]);
        tokio::time::advance(FRESH).await;
        server.set(None);
        assert_eq!(classes.handler("kata").await.unwrap(), "runc-vm", "what was known holds without an answer");
        server.set(Some(None));
        assert_eq!(classes.handler("kata").await.unwrap_err(), LookupError::NotFound { name: "kata".into() });
    }

    #[tokio::test]
    async fn failures_are_told_and_not_remembered() {
        let server = Server::default();
        let classes = server.classes();
        let broken = classes.handler("kata").await.unwrap_err().to_string();
        assert!(broken.starts_with("failed to lookup RuntimeClass kata: ") && broken.contains("broken"), "{broken}");
        server.set(Some(None));
        let told = MaterialError::from(classes.handler("kata").await.unwrap_err());
        assert_eq!(told.event, "FailedCreatePodSandBox");
        assert_eq!(told.message, "Failed to create pod sandbox: runtimeclass.node.k8s.io \"kata\" not found");
        server.set(Some(Some("h")));
        assert_eq!(classes.handler("kata").await.unwrap(), "h");
        let alone = RuntimeClasses::new(None);
        assert!(matches!(alone.handler("kata").await, Err(LookupError::NoApi { .. })));
    }
}
