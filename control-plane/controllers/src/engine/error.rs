//! Why a reconcile failed. Every error here is retried by the queue.

use super::cache::Key;

/// A failed reconcile; the queue tries the key again with backoff.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A request to the API server failed.
    #[error("{verb} {kind} {key}: {source}")]
    Api {
        /// What was asked for: create, patch, delete …
        verb: &'static str,
        /// The kind of the object.
        kind: String,
        /// The object.
        key: Key,
        /// What came back.
        #[source]
        source: Box<kube::Error>,
    },
    /// An object could not be written as JSON.
    #[error("encode {kind} {key}: {source}")]
    Encode {
        /// The kind of the object.
        kind: String,
        /// The object.
        key: Key,
        /// What went wrong.
        #[source]
        source: serde_json::Error,
    },
    /// A request could not be built.
    #[error("build request for {kind} {key}: {source}")]
    Request {
        /// The kind of the object.
        kind: String,
        /// The object.
        key: Key,
        /// What went wrong.
        #[source]
        source: Box<kube::core::request::Error>,
    },
}

impl ReconcileError {
    fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Encode { .. } | Self::Request { .. } => None,
        }
    }

    /// Someone else changed the object meanwhile, or a race that heals by itself: not worth a warning.
    pub fn is_routine(&self) -> bool {
        self.code() == Some(409)
    }

    /// The object is gone.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// A create met an object of the same name.
    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(|s| s.code == 409 && s.reason == "AlreadyExists")
    }

    /// A create was refused because the namespace is being deleted.
    pub fn is_namespace_terminating(&self) -> bool {
        self.status().is_some_and(|s| {
            s.code == 403
                && (s.message.contains("is being terminated")
                    || s.details.iter().flat_map(|d| &d.causes).any(|c| c.reason == "NamespaceTerminating"))
        })
    }

    /// The server's own words, for events.
    pub fn server_message(&self) -> String {
        self.status().map_or_else(|| self.to_string(), |s| s.message.clone())
    }
}
