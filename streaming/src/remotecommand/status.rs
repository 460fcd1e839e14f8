//! How a command ended, as its client hears it.

use bytes::Bytes;
use serde_json::{Value, json};

/// A `Status` object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status(Value);

impl Status {
    /// Exit code 0.
    #[must_use]
    pub fn success() -> Self {
        Self(json!({"metadata": {}, "status": "Success"}))
    }

    /// Another exit code.
    #[must_use]
    pub fn exit(code: i32) -> Self {
        Self(json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }))
    }

    /// The command could not be run.
    #[must_use]
    pub fn failure(message: &str) -> Self {
        Self(json!({
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": "InternalError",
            "details": {"causes": [{"message": message}]},
            "code": 500,
        }))
    }

    /// The runtime hung up without a word.
    #[must_use]
    pub fn lost() -> Self {
        Self::failure("the container runtime closed the stream without saying how the command ended")
    }

    /// As a runtime sent it. Text that is no status is a failure, as runtimes of old versions send it.
    #[must_use]
    pub fn from_json(bytes: &[u8]) -> Self {
        match serde_json::from_slice::<Value>(bytes) {
            Ok(value) if value["status"].is_string() => Self(value),
            _ => Self::failure(&String::from_utf8_lossy(bytes)),
        }
    }

    /// Whether bytes are a whole status.
    pub(super) fn is_complete(bytes: &[u8]) -> bool {
        serde_json::from_slice::<Value>(bytes).is_ok_and(|value| value["status"].is_string())
    }

    /// Whether the command succeeded.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.0["status"] == "Success"
    }

    /// Its exit code, where it has one.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        if self.is_success() {
            return Some(0);
        }
        let causes = self.0["details"]["causes"].as_array()?;
        let cause = causes.iter().find(|cause| cause["reason"] == "ExitCode")?;
        cause["message"].as_str()?.parse().ok()
    }

    /// As version 4 and later send it.
    #[must_use]
    pub fn to_json(&self) -> Bytes {
        self.0.to_string().into()
    }

    /// As versions 1 to 3 send it: nothing, or what went wrong.
    #[must_use]
    pub fn to_text(&self) -> Option<Bytes> {
        let message = self.0["message"].as_str().unwrap_or("the command failed");
        (!self.is_success()).then(|| Bytes::copy_from_slice(message.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_as_each_version_sends_them() {
        assert_eq!((Status::success().exit_code(), Status::success().to_text()), (Some(0), None));
        let exit = Status::from_json(&Status::exit(3).to_json());
        assert_eq!(exit.exit_code(), Some(3));
        assert_eq!(exit.to_text().unwrap(), "command terminated with non-zero exit code: exit status 3");
        let old = Status::from_json(b"no such container");
        assert_eq!((old.exit_code(), old.to_text().unwrap()), (None, "no such container".into()));
    }
}
