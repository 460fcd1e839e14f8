//! Configuration files: several YAML documents, strict, all mistakes at once.
//!
//! A configuration type derives `Deserialize` with `deny_unknown_fields` and `default`: every field has a
//! named default. [`decode`] then reports every mistake in a document, not the first only: each mistake is
//! recorded with its position, the offending field is taken out, and the rest is read again.
//!
//! Upstream counterpart: the strict decoding of `k8s.io/component-base` configuration.

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;

use crate::yaml::{self, Node, PathSegment, Position};

/// Most mistakes reported for one file; more help nobody.
const MAX_MISTAKES: usize = 50;

/// Longest field or message that is shown whole.
const MAX_TEXT: usize = 2000;

/// One mistake in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where it stands.
    pub position: Position,
    /// The field's path, `spec.containers[0].name`; empty for the document itself.
    pub field: String,
    /// What is wrong and what is expected.
    pub message: String,
}

/// All mistakes of one file. Never retryable: the file must change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mistakes {
    /// The file.
    pub path: PathBuf,
    /// The mistakes in the order of their positions.
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{}:{}: ", self.path.display(), mistake.position)?;
            if !mistake.field.is_empty() {
                write!(f, "{}: ", mistake.field)?;
            }
            f.write_str(&mistake.message)?;
        }
        Ok(())
    }
}

/// Why a configuration file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read. Retryable when the file system says so.
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file has mistakes.
    #[error(transparent)]
    Mistakes(#[from] Mistakes),
}

/// A document of a configuration file with its type.
#[derive(Clone, Debug)]
pub struct Document {
    /// The file it stands in.
    pub path: PathBuf,
    /// `apiVersion`, empty when missing.
    pub api_version: String,
    /// `kind`, empty when missing.
    pub kind: String,
    /// The content with positions.
    pub node: Node,
    /// Keys that are given twice. The decoding functions of this module report them with every other mistake; who
    /// reads [`Self::node`] without them has to.
    pub duplicates: Vec<Mistake>,
}

impl Document {
    /// A mistake of this document at a field path, for checks that go beyond types.
    #[must_use]
    pub fn mistake(&self, path: &[PathSegment], message: impl Into<String>) -> Mistake {
        Mistake { position: self.node.locate(path), field: join(path), message: message.into() }
    }

    /// A mistake at a top-level or dotted field such as `network.mtu`.
    #[must_use]
    pub fn mistake_at(&self, dotted: &str, message: impl Into<String>) -> Mistake {
        let path: Vec<_> = dotted.split('.').map(|key| PathSegment::Key(key.to_owned())).collect();
        self.mistake(&path, message)
    }
}

/// Reads a file and splits it into documents.
///
/// # Errors
/// When it cannot be read or is not acceptable YAML.
pub fn load_file(path: &Path) -> Result<Vec<Document>, ConfigError> {
    load_documents(path, &read_text(path)?)
}

/// Reads a file of at most [`yaml::MAX_BYTES`] as text.
///
/// # Errors
/// When it cannot be read, is larger, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    // One more byte than may be there tells that there are more; a file of any size costs no more than that.
    file.take(yaml::MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    let wrong = |line, column, message: String| {
        mistakes(path, vec![Mistake { position: Position { line, column }, field: String::new(), message }])
    };
    if bytes.len() > yaml::MAX_BYTES {
        return Err(wrong(1, 1, format!("the file is too large; at most {} bytes are read", yaml::MAX_BYTES)).into());
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = valid.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
        wrong(line, column, "the text is not UTF-8; save the file in this encoding".into()).into()
    })
}

/// Splits the text of a file into documents. `path` is for messages only.
///
/// # Errors
/// When it is not acceptable YAML, or a document is not a mapping.
pub fn load_documents(path: &Path, text: &str) -> Result<Vec<Document>, ConfigError> {
    let fail = |position, message: String| mistakes(path, vec![Mistake { position, field: String::new(), message }]);
    let (nodes, duplicates) = yaml::parse_tolerant(text).map_err(|error| fail(error.position, error.message))?;
    nodes
        .into_iter()
        .zip(duplicates)
        .map(|(node, duplicates)| {
            if !matches!(node.resolved(), yaml::Value::Mapping(_)) {
                return Err(
                    fail(node.position, "the document must be a mapping with apiVersion and kind".into()).into()
                );
            }
            let text = |key| node.get_str(key).unwrap_or_default().to_owned();
            let (api_version, kind) = (text("apiVersion"), text("kind"));
            let duplicates = duplicates
                .into_iter()
                .map(|d| Mistake { position: d.error.position, field: join(&d.path), message: d.error.message })
                .collect();
            Ok(Document { path: path.to_owned(), api_version, kind, node, duplicates })
        })
        .collect()
}

/// Leaves the ends of a text that is too long to help: a value may be as long as its file.
fn shorten(text: &mut String) {
    let boundary = |mut at: usize| {
        while !text.is_char_boundary(at) {
            at += 1;
        }
        at
    };
    if text.len() > MAX_TEXT {
        let cut = boundary(MAX_TEXT / 2)..boundary(text.len() - MAX_TEXT / 2);
        let left_out = cut.len();
        text.replace_range(cut, &format!("... ({left_out} bytes left out) ..."));
    }
}

/// Bundles mistakes of a file, sorted by position: the first of them, if there are many.
#[must_use]
pub fn mistakes(path: &Path, mut mistakes: Vec<Mistake>) -> Mistakes {
    mistakes.sort_by_key(|mistake| mistake.position);
    mistakes.dedup();
    let more = mistakes.len().saturating_sub(MAX_MISTAKES);
    if more > 0 {
        mistakes.truncate(MAX_MISTAKES);
        let position = mistakes.last().map(|mistake| mistake.position).unwrap_or_default();
        mistakes.push(Mistake { position, field: String::new(), message: format!("and {more} more mistakes") });
    }
    for mistake in &mut mistakes {
        shorten(&mut mistake.field);
        shorten(&mut mistake.message);
    }
    Mistakes { path: path.to_owned(), mistakes }
}

/// Decodes a document into `T`; `apiVersion` and `kind` are left out first, so `T` need not have them.
///
/// # Errors
/// Every mistake in the document.
pub fn decode<T: DeserializeOwned>(document: &Document) -> Result<T, Vec<Mistake>> {
    decode_checked(document, |_| Vec::new())
}

/// Decodes a JSON value that came from `node` into `T`.
///
/// # Errors
/// Every mistake in the value.
pub fn decode_value<T: DeserializeOwned>(node: &Node, json: serde_json::Value) -> Result<T, Vec<Mistake>> {
    match decode_rest(node, json) {
        (Some(value), found) if found.is_empty() => Ok(value),
        (_, found) => Err(found),
    }
}

fn without_type(document: &Document) -> serde_json::Value {
    let mut json = document.node.to_json();
    if let Some(map) = json.as_object_mut() {
        map.remove("apiVersion");
        map.remove("kind");
    }
    json
}

/// Decodes a document and checks it with `check`, which also sees what is left when fields with mistakes are taken
/// out: so mistakes of types and mistakes of values are reported together.
///
/// # Errors
/// Every mistake in the document.
pub fn decode_checked<T: DeserializeOwned>(
    document: &Document,
    check: impl FnOnce(&T) -> Vec<Mistake>,
) -> Result<T, Vec<Mistake>> {
    let (value, mut found) = decode_rest(&document.node, without_type(document));
    found.extend(document.duplicates.iter().cloned());
    found.extend(value.as_ref().map(check).unwrap_or_default());
    match value {
        Some(value) if found.is_empty() => Ok(value),
        _ => Err(found),
    }
}

/// What could be read, and every mistake. `None` only when nothing could be read at all.
fn decode_rest<T: DeserializeOwned>(node: &Node, mut json: serde_json::Value) -> (Option<T>, Vec<Mistake>) {
    let mut found = Vec::new();
    loop {
        let error = match serde_path_to_error::deserialize::<_, T>(&json) {
            Ok(value) => return (Some(value), found),
            Err(error) => error,
        };
        let path: Vec<PathSegment> = error
            .path()
            .iter()
            .filter_map(|segment| match segment {
                Segment::Seq { index } => Some(PathSegment::Index(*index)),
                Segment::Map { key } => Some(PathSegment::Key(key.clone())),
                Segment::Enum { .. } | Segment::Unknown => None,
            })
            .collect();
        let message = plain(&error.inner().to_string());
        found.push(Mistake { position: node.locate(&path), field: join(&path), message });
        if found.len() >= MAX_MISTAKES || !remove(&mut json, &path) {
            return (None, found);
        }
    }
}

/// serde's wording, for people: which names exist is said only when the list is short enough to help.
fn plain(message: &str) -> String {
    let Some((name, names)) = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, ")) else {
        return message.to_owned();
    };
    let candidates: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
    let near = candidates
        .iter()
        .min_by_key(|candidate| distance(name, candidate))
        .filter(|near| distance(name, near) <= 1 + name.len() / 4);
    match near {
        Some(near) => format!("unknown field {name:?}; did you mean {near:?}?"),
        None if candidates.len() <= 12 => format!("unknown field {name:?}; known are {}", candidates.join(", ")),
        None => format!("unknown field {name:?}"),
    }
}

/// Levenshtein distance without regard to case.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.to_lowercase().chars().collect(), b.to_lowercase().chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let cost = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], cost);
        }
    }
    row[b.len()]
}

/// Takes the field at `path` out; false when there is nothing to take out, so that reading again would not help.
fn remove(json: &mut serde_json::Value, path: &[PathSegment]) -> bool {
    // Taking an item of a list out would move those behind it and falsify their positions: the list goes.
    let path = match path.iter().position(|segment| matches!(segment, PathSegment::Index(_))) {
        Some(first) if matches!(path.last(), Some(PathSegment::Index(_))) => &path[..first],
        _ => path,
    };
    let Some((last, parents)) = path.split_last() else { return false };
    let mut value = json;
    for segment in parents {
        let next = match segment {
            PathSegment::Key(key) => value.get_mut(key),
            PathSegment::Index(index) => value.get_mut(index),
        };
        let Some(next) = next else { return false };
        value = next;
    }
    match (last, value) {
        (PathSegment::Key(key), serde_json::Value::Object(map)) => map.remove(key).is_some(),
        _ => false,
    }
}

fn join(path: &[PathSegment]) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            PathSegment::Key(key) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(key);
            }
            PathSegment::Index(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duration::GoDuration;
    use serde::Deserialize;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct Inner {
        port: u16,
        names: Vec<String>,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct Outer {
        sync_period: GoDuration,
        node_name: String,
        inner: Inner,
    }

    fn read(text: &str) -> Result<Outer, Vec<Mistake>> {
        decode(&load_documents(Path::new("x.yaml"), text).unwrap()[0])
    }

    #[test]
    fn a_good_document_is_read() {
        let outer = read("apiVersion: v1\nkind: X\nsyncPeriod: 1m\ninner: {port: 80, names: [a]}\n").unwrap();
        assert_eq!(outer.sync_period, GoDuration::from_secs(60));
        assert_eq!(outer.inner, Inner { port: 80, names: vec!["a".into()] });
    }

    #[test]
    fn all_mistakes_are_reported_with_line_and_field() {
        let text = "kind: X\nsyncPeriod: 5\nnodeNam: a\ninner:\n  port: 99999\n  names: [a, 2, b]\n  bogus: 1\n";
        let found = mistakes(Path::new("x.yaml"), read(text).unwrap_err());
        let lines: Vec<_> = found.mistakes.iter().map(|m| (m.position.line, m.field.as_str())).collect();
        assert_eq!(
            lines,
            [(2, "syncPeriod"), (3, "nodeNam"), (5, "inner.port"), (6, "inner.names[1]"), (7, "inner.bogus")]
        );
        let text = found.to_string();
        assert!(text.contains("x.yaml:3:1: nodeNam: unknown field \"nodeNam\"; did you mean \"nodeName\"?"), "{text}");
        assert!(text.contains("x.yaml:2:1: syncPeriod: the number 5 lacks a unit"), "{text}");
    }

    #[test]
    fn values_are_checked_beside_types() {
        let documents = load_documents(Path::new("x.yaml"), "nodeNam: a\nsyncPeriod: 0s\n").unwrap();
        let check = |outer: &Outer| {
            if outer.sync_period.0.is_zero() {
                vec![documents[0].mistake_at("syncPeriod", "must not be 0")]
            } else {
                Vec::new()
            }
        };
        let found = decode_checked::<Outer>(&documents[0], check).unwrap_err();
        assert_eq!(found.iter().map(|m| m.field.as_str()).collect::<Vec<_>>(), ["nodeNam", "syncPeriod"]);
    }

    #[test]
    fn a_key_given_twice_hides_no_other_mistake() {
        let text = "syncPeriod: 5\nnodeName: a\nnodeName: b\ninner:\n  port: 1\n  port: {x: 1}\n  bogus: 1\n";
        let found = mistakes(Path::new("x.yaml"), read(text).unwrap_err());
        let lines: Vec<_> = found.mistakes.iter().map(|m| (m.position.line, m.field.as_str())).collect();
        assert_eq!(lines, [(1, "syncPeriod"), (3, "nodeName"), (6, "inner.port"), (7, "inner.bogus")]);
        let text = found.to_string();
        assert!(text.contains("x.yaml:3:1: nodeName: the key \"nodeName\" is given twice (first in line 2)"), "{text}");
        // Each document answers for its own.
        let two = load_documents(Path::new("x.yaml"), "nodeName: a\n---\nnodeName: b\nnodeName: c\n").unwrap();
        assert_eq!(decode::<Outer>(&two[0]).unwrap().node_name, "a");
        assert_eq!(decode::<Outer>(&two[1]).unwrap_err().len(), 1);
    }

    #[test]
    fn garbage_is_one_error_with_a_position() {
        for text in ["a: [", "- a\n", "just text"] {
            assert!(matches!(load_documents(Path::new("x.yaml"), text), Err(ConfigError::Mistakes(_))), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_missing_or_binary_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.yaml");
        assert!(load_file(&path).unwrap_err().to_string().contains("x.yaml"));
        std::fs::write(&path, b"a: 1\nb: \xff\n").unwrap();
        assert!(load_file(&path).unwrap_err().to_string().contains("x.yaml:2:4: the text is not UTF-8"));
    }
}
