//! The protocol of the drain socket: lines of JSON, one question for each connection.
//!
//! | who | line | meaning |
//! |---|---|---|
//! | agent | `{"version":1,"drain":"UID"}` | treat this pod of the node as terminating, and tell how far that is |
//! | dataplane | `{"version":1,"state":"waiting","programmed":true,"agreed":false,"on":"…"}` | not yet; again with each change |
//! | dataplane | `{"version":1,"state":"done"}` | programmed, and the slices agree; the connection ends |
//! | dataplane | `{"version":1,"state":"unknown"}` | no Service has an endpoint of it on this node; the connection ends |
//! | dataplane | `{"version":1,"state":"refused","why":"…"}` | the question was wrong; the connection ends |
//!
//! Whoever goes away ends nothing: a pod that was said to end does end.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// The version that is spoken here.
pub const VERSION: u64 = 1;
/// Longest line, in bytes. A question takes about 70.
pub const LINE_LIMIT: usize = 4096;
/// Longest UID: that of a pod in a hand-written manifest may be as long as a name.
const UID_LIMIT: usize = 253;

/// What the dataplane says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Answer {
    /// No Service has an endpoint of the pod on this node.
    Unknown,
    /// Not yet.
    Waiting {
        /// The kernel's tables have it: from this node no new connection goes to the pod (unless it is the last one that serves).
        programmed: bool,
        /// No slice calls it ready any more.
        agreed: bool,
        /// What is waited for, in words.
        on: String,
    },
    /// Programmed, and the slices agree.
    Done,
    /// The question cannot be answered.
    Refused {
        /// What is wrong with it, and what would be right.
        why: String,
    },
}

impl Answer {
    /// Whether nothing follows it.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Waiting { .. })
    }
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u64,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    version: u64,
    drain: String,
}

/// A line that is not of this protocol. Asking again does not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// No JSON, or not of the form.
    #[error("{0}; a line is {{\"version\":{VERSION},\"drain\":\"UID OF A POD\"}}")]
    Form(String),
    /// Another version.
    #[error("version {0} is not known; this dataplane speaks version {VERSION}")]
    Version(u64),
    /// No UID.
    #[error("{0:?} cannot be a pod's UID (1 to {UID_LIMIT} characters, no white space)")]
    Uid(String),
}

fn json(line: &[u8]) -> Result<Value, LineError> {
    let value: Value = serde_json::from_slice(line).map_err(|error| LineError::Form(format!("no JSON: {error}")))?;
    match value.get("version").map(Value::as_u64) {
        Some(Some(VERSION)) => Ok(value),
        Some(Some(other)) => Err(LineError::Version(other)),
        Some(None) => Err(LineError::Form("the version is no number".to_owned())),
        None => Err(LineError::Form("a line without a version".to_owned())),
    }
}

fn line(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// The question as a line.
#[must_use]
pub fn question(uid: &str) -> Vec<u8> {
    line(&Question { version: VERSION, drain: uid.to_owned() })
}

/// The UID that a question is about.
///
/// # Errors
/// See [`LineError`].
pub fn read_question(line: &[u8]) -> Result<Box<str>, LineError> {
    let question: Question = serde_json::from_value(json(line)?).map_err(|error| LineError::Form(error.to_string()))?;
    let uid = question.drain;
    if uid.is_empty() || uid.len() > UID_LIMIT || uid.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(LineError::Uid(uid.chars().take(UID_LIMIT).collect()));
    }
    Ok(uid.into())
}

/// An answer as a line.
#[must_use]
pub fn answer(body: &Answer) -> Vec<u8> {
    line(&Versioned { version: VERSION, body })
}

/// Reads an answer; fields that a later dataplane adds are passed over.
///
/// # Errors
/// See [`LineError`].
pub fn read_answer(line: &[u8]) -> Result<Answer, LineError> {
    let read: Result<Versioned<Answer>, _> = serde_json::from_value(json(line)?);
    read.map(|versioned| versioned.body).map_err(|error| LineError::Form(error.to_string()))
}

/// Reads up to the end of a line into `buffer`, without that end; `false` when the other side is gone. What was read when the future is dropped is
/// in `buffer`, and the next call goes on from there.
///
/// # Errors
/// Those of the stream; [`std::io::ErrorKind::InvalidData`] for a line longer than [`LINE_LIMIT`].
pub async fn read_line(stream: &mut (impl AsyncBufRead + Unpin), buffer: &mut Vec<u8>) -> std::io::Result<bool> {
    loop {
        let ready = stream.fill_buf().await?;
        if ready.is_empty() {
            return Ok(false);
        }
        let end = ready.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(ready.len());
        if buffer.len() + taken > LINE_LIMIT {
            let why = format!("a line longer than {LINE_LIMIT} bytes");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why));
        }
        buffer.extend_from_slice(&ready[..taken]);
        stream.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_are_read_as_they_were_written() {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(text(question("u-1")), "{\"version\":1,\"drain\":\"u-1\"}\n");
        assert_eq!(&*read_question(question("u-1").trim_ascii_end()).unwrap(), "u-1");
        let waiting = Answer::Waiting { programmed: true, agreed: false, on: "x".into() };
        let written = "{\"version\":1,\"state\":\"waiting\",\"programmed\":true,\"agreed\":false,\"on\":\"x\"}\n";
        assert_eq!(text(answer(&waiting)), written);
        for body in [waiting, Answer::Unknown, Answer::Done, Answer::Refused { why: "y".into() }] {
            assert_eq!(read_answer(answer(&body).trim_ascii_end()), Ok(body));
        }
        let later = br#"{"version":1,"state":"done","took":3}"#;
        assert_eq!(read_answer(later), Ok(Answer::Done));
    }

    #[test]
    fn what_is_wrong_is_told_in_words() {
        let long = "u".repeat(UID_LIMIT + 1);
        let long = format!(r#"{{"version":1,"drain":"{long}"}}"#);
        for (line, words) in [
            ("", "no JSON"),
            ("GET / HTTP/1.1", "no JSON"),
            ("\u{0}\u{1}", "no JSON"),
            ("[]", "without a version"),
            (r#"{"drain":"u"}"#, "without a version"),
            (r#"{"version":"1","drain":"u"}"#, "no number"),
            (r#"{"version":2,"drain":"u","more":1}"#, "version 2 is not known; this dataplane speaks version 1"),
            (r#"{"version":1}"#, "missing field `drain`"),
            (r#"{"version":1,"drain":7}"#, "invalid type"),
            (r#"{"version":1,"drain":"u","force":true}"#, "unknown field `force`"),
            (r#"{"version":1,"drain":""}"#, "cannot be a pod's UID"),
            (r#"{"version":1,"drain":"a b"}"#, "cannot be a pod's UID"),
            (&long, "cannot be a pod's UID"),
        ] {
            let error = read_question(line.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{line:?}: {error}");
        }
    }
}
