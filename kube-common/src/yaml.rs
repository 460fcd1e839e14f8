//! YAML with positions, strict and bounded, for configuration files and static pod manifests.
//!
//! Invariants: a text never costs more than [`MAX_NODES`] nodes and [`MAX_BYTES`] bytes of text after its aliases are
//! expanded, no document is deeper than [`MAX_DEPTH`] then, and a duplicate key, a key that is no string, or a NUL byte is
//! an error with line and column. What stands behind an anchor is held once, whatever refers to it. Plain scalars resolve as upstream's parser does (YAML 1.1 booleans such as
//! `yes` and `on` included), so that a manifest means the same here and there.
//!
//! Upstream counterpart: `sigs.k8s.io/yaml`, which turns YAML into JSON before anything reads it.

use std::collections::HashMap;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

/// Upstream's limit for a manifest from a file: 10 MiB.
pub const MAX_BYTES: usize = 10 << 20;
/// Deepest nesting accepted; Kubernetes objects stay under 30.
pub const MAX_DEPTH: usize = 100;
/// Most nodes in all documents of a text, aliases expanded: far above any 10 MiB manifest that is not a bomb.
pub const MAX_NODES: usize = 1_000_000;

/// Most duplicate keys told of one document; more help nobody.
const MAX_DUPLICATES: usize = 50;

/// Line and column, both from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Why a text is not acceptable YAML. Never retryable: the text must change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{position}: {message}")]
pub struct YamlError {
    /// Where the mistake is.
    pub position: Position,
    /// What is wrong there.
    pub message: String,
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where the value begins.
    pub position: Position,
    /// The value.
    pub value: Value,
}

/// The JSON data model, with positions for values and keys.
#[derive(Clone, Debug)]
pub enum Value {
    /// `null`, `~` or nothing.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number.
    Number(serde_json::Number),
    /// A string.
    String(String),
    /// A list.
    Sequence(Vec<Node>),
    /// Keys in their order, each with its position. Keys are unique.
    Mapping(Vec<(String, Position, Node)>),
    /// What an anchor names: where it stands itself, and where it is referred to.
    Alias(Rc<Node>),
}

impl Node {
    /// The plain JSON value.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(flag) => (*flag).into(),
            Value::Number(number) => number.clone().into(),
            Value::String(text) => text.clone().into(),
            Value::Sequence(items) => items.iter().map(Self::to_json).collect(),
            Value::Mapping(entries) => entries
                .iter()
                .map(|(key, _, node)| (key.clone(), node.to_json()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            Value::Alias(node) => node.to_json(),
        }
    }

    /// The value, whether or not there is an anchor at it.
    #[must_use]
    pub fn resolved(&self) -> &Value {
        match &self.value {
            Value::Alias(node) => node.resolved(),
            value => value,
        }
    }

    /// The value under `key`, if this is a mapping that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Mapping(entries) => entries.iter().find(|(name, ..)| name == key).map(|(.., node)| node),
            Value::Alias(node) => node.get(key),
            _ => None,
        }
    }

    /// The string under `key`.
    #[must_use]
    pub fn get_str(&self, key: &str) -> Option<&str> {
        match self.get(key)?.resolved() {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// Where the value (or, if it has a key, the key) at a path of keys and indexes stands; the deepest
    /// part that exists when the whole path does not.
    #[must_use]
    pub fn locate(&self, path: &[PathSegment]) -> Position {
        let mut position = self.position;
        let mut node = self;
        for segment in path {
            while let Value::Alias(target) = &node.value {
                node = target;
            }
            let next = match (segment, &node.value) {
                (PathSegment::Key(key), Value::Mapping(entries)) => {
                    entries.iter().find(|(name, ..)| name == key).map(|(_, at, node)| (*at, node))
                }
                (PathSegment::Index(index), Value::Sequence(items)) => {
                    items.get(*index).map(|node| (node.position, node))
                }
                _ => None,
            };
            let Some((at, child)) = next else { break };
            (position, node) = (at, child);
        }
        position
    }
}

/// One step of a field path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathSegment {
    /// A key of a mapping.
    Key(String),
    /// An index of a list.
    Index(usize),
}

/// All documents of a text; empty ones are left out.
///
/// # Errors
/// The first syntax error, duplicate or non-string key, NUL byte, or crossed limit, with its position.
pub fn parse_documents(text: &str) -> Result<Vec<Node>, YamlError> {
    let (documents, duplicates) = parse_tolerant(text)?;
    match duplicates.into_iter().flatten().next() {
        Some(duplicate) => Err(duplicate.error),
        None => Ok(documents),
    }
}

/// A key that is given twice in one mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The keys and indexes that lead to it.
    pub path: Vec<PathSegment>,
    /// Where the second one stands, and where the first.
    pub error: YamlError,
}

/// As [`parse_documents`], but duplicate keys (the first one counts) are returned, one list per document, for those
/// who want to report every mistake of a text at once.
///
/// # Errors
/// Every other mistake of [`parse_documents`].
pub fn parse_tolerant(text: &str) -> Result<(Vec<Node>, Vec<Vec<Duplicate>>), YamlError> {
    let fail = |position, message: String| Err(YamlError { position, message });
    if text.len() > MAX_BYTES {
        return fail(
            Position { line: 1, column: 1 },
            format!("the text has {} bytes; at most {MAX_BYTES} are read", text.len()),
        );
    }
    if let Some(offset) = text.find('\0') {
        let before = &text[..offset];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        return fail(Position { line, column }, "a NUL byte is not text".to_owned());
    }
    // Some editors begin a file with a byte order mark, which the parser would take for a part of the first key.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        match event {
            Ok((event, span)) => builder.event(event, span)?,
            Err(error) => {
                let position = Position { line: error.marker().line(), column: error.marker().col() + 1 };
                return fail(position, error.info().to_owned());
            }
        }
    }
    Ok((builder.documents, builder.duplicates))
}

/// What a value costs when it is expanded.
#[derive(Clone, Copy, Default)]
struct Cost {
    nodes: usize,
    bytes: usize,
    /// Levels below and with the value; a scalar has none.
    depth: usize,
}

impl Cost {
    fn add(&mut self, other: Self) {
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.depth = self.depth.max(other.depth);
    }
}

/// An open sequence or mapping.
struct Frame {
    node: Node,
    anchor: usize,
    /// The key that waits for its value, in a mapping.
    key: Option<(String, Position)>,
    /// Whether that key is there already.
    again: bool,
    /// The lines of the keys so far.
    lines: HashMap<String, usize>,
    /// Of what is inside.
    cost: Cost,
}

impl Frame {
    /// What leads from this value to the one that is being read.
    fn step(&self) -> Option<PathSegment> {
        match &self.node.value {
            Value::Sequence(items) => Some(PathSegment::Index(items.len())),
            _ => self.key.as_ref().map(|(key, _)| PathSegment::Key(key.clone())),
        }
    }
}

#[derive(Default)]
struct Builder {
    documents: Vec<Node>,
    stack: Vec<Frame>,
    anchors: HashMap<usize, (Rc<Node>, Cost)>,
    total: Cost,
    /// Of the documents, and of the one that is open.
    duplicates: Vec<Vec<Duplicate>>,
    found: Vec<Duplicate>,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), YamlError> {
        let position = Position { line: span.start.line(), column: span.start.col() + 1 };
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => {
                self.anchors.clear();
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(&text, style, tag.as_deref(), position)?;
                let cost = Cost { nodes: 1, bytes: text.len(), depth: 0 };
                self.count(cost, position)?;
                self.add(Node { position, value }, cost, anchor)
            }
            Event::Alias(id) => {
                let Some((node, cost)) = self.anchors.get(&id).cloned() else {
                    return Err(YamlError { position, message: "the alias names an anchor that is still open".into() });
                };
                self.count(cost, position)?;
                self.add(Node { position, value: Value::Alias(node) }, cost, 0)
            }
            Event::SequenceStart(anchor, _) => self.open(Value::Sequence(Vec::new()), anchor, position),
            Event::MappingStart(anchor, _) => self.open(Value::Mapping(Vec::new()), anchor, position),
            Event::SequenceEnd | Event::MappingEnd => match self.stack.pop() {
                Some(frame) => {
                    let mut cost = frame.cost;
                    cost.nodes = cost.nodes.saturating_add(1);
                    cost.depth += 1;
                    self.add(frame.node, cost, frame.anchor)
                }
                None => Ok(()),
            },
        }
    }

    /// Counts what an alias expands to as well, so that a bomb of aliases stops here.
    fn count(&mut self, cost: Cost, position: Position) -> Result<(), YamlError> {
        self.total.add(cost);
        let too_much =
            |what: String| Err(YamlError { position, message: format!("more than {what}, aliases expanded") });
        if self.total.nodes > MAX_NODES {
            return too_much(format!("{MAX_NODES} values"));
        }
        if self.total.bytes > MAX_BYTES {
            return too_much(format!("{MAX_BYTES} bytes of text"));
        }
        if self.stack.len() + cost.depth > MAX_DEPTH {
            return Err(YamlError { position, message: format!("nested deeper than {MAX_DEPTH} levels") });
        }
        Ok(())
    }

    fn open(&mut self, value: Value, anchor: usize, position: Position) -> Result<(), YamlError> {
        self.count(Cost { nodes: 1, bytes: 0, depth: 1 }, position)?;
        if let Some(Frame { node: Node { value: Value::Mapping(_), .. }, key: None, .. }) = self.stack.last() {
            return Err(YamlError { position, message: "a list or mapping cannot be a key".into() });
        }
        let node = Node { position, value };
        let (lines, cost) = (HashMap::new(), Cost::default());
        self.stack.push(Frame { node, anchor, key: None, again: false, lines, cost });
        Ok(())
    }

    fn add(&mut self, mut node: Node, cost: Cost, anchor: usize) -> Result<(), YamlError> {
        if anchor != 0 {
            let (position, held) = (node.position, Rc::new(node));
            self.anchors.insert(anchor, (held.clone(), cost));
            node = Node { position, value: Value::Alias(held) };
        }
        let Some(frame) = self.stack.last_mut() else {
            if !matches!(node.value, Value::Null) {
                self.documents.push(node);
                self.duplicates.push(std::mem::take(&mut self.found));
            }
            return Ok(());
        };
        frame.cost.add(cost);
        match &mut frame.node.value {
            Value::Sequence(items) => items.push(node),
            Value::Mapping(entries) => match frame.key.take() {
                None => {
                    let key = key_text(&node)?;
                    let first = frame.lines.get(&key).copied();
                    frame.again = first.is_some();
                    frame.key = Some((key.clone(), node.position));
                    match first {
                        None => drop(frame.lines.insert(key, node.position.line)),
                        Some(line) if self.found.len() < MAX_DUPLICATES => {
                            let message = format!("the key {key:?} is given twice (first in line {line})");
                            let path = self.stack.iter().filter_map(Frame::step).collect();
                            self.found.push(Duplicate { path, error: YamlError { position: node.position, message } });
                        }
                        Some(_) => {}
                    }
                }
                Some(_) if frame.again => {}
                Some((key, position)) => entries.push((key, position, node)),
            },
            _ => {}
        }
        Ok(())
    }
}

/// A key as text: upstream turns numbers and booleans used as keys into strings.
fn key_text(node: &Node) -> Result<String, YamlError> {
    match &node.value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(flag) => Ok(flag.to_string()),
        Value::Alias(target) => key_text(target),
        _ => Err(YamlError { position: node.position, message: "a key must be text".into() }),
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, position: Position) -> Result<Value, YamlError> {
    if let Some(tag) = tag {
        if tag.is_yaml_core_schema() && tag.suffix == "str" || tag.handle.is_empty() && tag.suffix == "!" {
            return Ok(Value::String(text.to_owned()));
        }
        if !tag.is_yaml_core_schema() || tag.suffix == "binary" {
            return Err(YamlError { position, message: format!("the tag {tag} is not supported") });
        }
    }
    if style != ScalarStyle::Plain {
        return Ok(Value::String(text.to_owned()));
    }
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Value::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Value::Bool(false),
        _ => number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    })
}

fn number(text: &str) -> Option<serde_json::Number> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let first = unsigned.as_bytes().first()?;
    if !first.is_ascii_digit() && *first != b'.' {
        return None;
    }
    // A sign behind the prefix is none of the number's.
    let radix = |digits: &str, radix| {
        let magnitude =
            i64::from_str_radix(digits, radix).ok().filter(|n| *n >= 0 && !digits.starts_with(['+', '-']))?;
        Some(if negative { -magnitude } else { magnitude }.into())
    };
    if let Some(digits) = unsigned.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if let Some(digits) = unsigned.strip_prefix("0o") {
        return radix(digits, 8);
    }
    if let Some(digits) = unsigned.strip_prefix("0b") {
        return radix(digits, 2);
    }
    if unsigned.bytes().all(|b| b.is_ascii_digit()) {
        // YAML 1.1 octal, which upstream's parser still reads: `defaultMode: 0644`.
        if unsigned.len() > 1
            && unsigned.starts_with('0')
            && let Some(number) = radix(&unsigned[1..], 8)
        {
            return Some(number);
        }
        let text = text.strip_prefix('+').unwrap_or(text);
        return text
            .parse::<i64>()
            .map(Into::into)
            .or_else(|_| text.parse::<u64>().map(Into::into))
            .ok()
            .or_else(|| float(text));
    }
    float(text)
}

fn float(text: &str) -> Option<serde_json::Number> {
    let plain = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    if !text.chars().all(plain) {
        return None;
    }
    text.strip_prefix('+').unwrap_or(text).parse::<f64>().ok().and_then(serde_json::Number::from_f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn one(text: &str) -> serde_json::Value {
        parse_documents(text).unwrap()[0].to_json()
    }

    #[test]
    fn scalars_resolve_as_upstreams_parser_does() {
        let text = "a: 1\nb: '1'\nc: yes\nd: 0644\ne: 0x1f\nf: 1.5\ng: ~\nh: text\ni: 1Mi\nj: 1.2.3\nk: -5\nl: !!str 5\nm: |\n  on\nn: 2001-01-01\no: 1e3\n";
        assert_eq!(
            one(text),
            json!({"a":1,"b":"1","c":true,"d":420,"e":31,"f":1.5,"g":null,"h":"text","i":"1Mi","j":"1.2.3","k":-5,"l":"5","m":"on\n","n":"2001-01-01","o":1000.0})
        );
    }

    #[test]
    fn documents_are_split_and_empty_ones_left_out() {
        let documents = parse_documents("---\na: 1\n---\n---\n# nothing\n---\nb: 2\n").unwrap();
        assert_eq!(documents.iter().map(Node::to_json).collect::<Vec<_>>(), [json!({"a":1}), json!({"b":2})]);
        assert_eq!(documents[1].position, Position { line: 7, column: 1 });
    }

    #[test]
    fn positions_name_the_key() {
        let documents = parse_documents("spec:\n  containers:\n  - name: a\n    image: b\n").unwrap();
        let path = [
            PathSegment::Key("spec".into()),
            PathSegment::Key("containers".into()),
            PathSegment::Index(0),
            PathSegment::Key("image".into()),
        ];
        assert_eq!(documents[0].locate(&path), Position { line: 4, column: 5 });
    }

    #[test]
    fn aliases_are_expanded_and_bombs_refused() {
        assert_eq!(one("a: &x {k: [1]}\nb: *x\n"), json!({"a":{"k":[1]},"b":{"k":[1]}}));
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let previous = level - 1;
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", vec![format!("*a{previous}"); 10].join(",")));
        }
        assert!(parse_documents(&bomb).unwrap_err().message.contains("more than"));
    }

    #[test]
    fn bad_texts_give_a_position() {
        for (text, line, part) in [
            ("a: 1\nb: [\n", 3, ""),
            ("a: 1\nb: 2\na: 3\n", 3, "twice"),
            ("a: 1\nb: \0\n", 2, "NUL"),
            ("a:\n  ? [x]\n  : y\n", 2, "key"),
            ("a: !custom x\n", 1, "tag"),
        ] {
            let error = parse_documents(text).unwrap_err();
            assert_eq!(error.position.line, line, "{text:?}: {error}");
            assert!(error.message.contains(part), "{text:?}: {error}");
        }
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert!(parse_documents(&deep).unwrap_err().message.contains("deeper"));
    }

    /// Each is small as text, and was not when it was read: a text that is repeated, levels that aliases add, a list that is
    /// copied for every anchor around it, keys that are compared with each other.
    #[test]
    fn what_is_small_as_text_is_small_in_memory() {
        let message = |text: &str| parse_documents(text).unwrap_err().message;
        let repeated = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 20].join(","));
        assert!(message(&repeated).contains("bytes of text"));
        let mut levels = "a0: &a0 [x]\n".to_owned();
        for level in 1..1000 {
            levels.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
        }
        assert!(message(&levels).contains("deeper"));
        let anchors: String = (0..90).map(|n| format!("&n{n} [")).collect();
        let copied = format!("{anchors}{}{}", vec!["x"; 300_000].join(","), "]".repeat(90));
        let begun = std::time::Instant::now();
        assert_eq!(parse_documents(&copied).unwrap().len(), 1);
        let keys: String = (0..200_000).map(|n| format!("k{n}: 1\n")).collect();
        assert_eq!(parse_documents(&keys).unwrap()[0].to_json().as_object().unwrap().len(), 200_000);
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn an_anchor_changes_nothing_of_its_value() {
        let documents = parse_documents("&doc\nkind: &kind Pod\nspec: &spec {a: 1}\nagain: *spec\n").unwrap();
        assert_eq!(documents[0].get_str("kind"), Some("Pod"));
        assert_eq!(documents[0].to_json(), json!({"kind":"Pod","spec":{"a":1},"again":{"a":1}}));
        let path = [PathSegment::Key("again".into()), PathSegment::Key("a".into())];
        assert_eq!(documents[0].locate(&path), Position { line: 3, column: 14 });
    }

    #[test]
    fn numbers_with_two_signs_are_text() {
        let least = "-0x-8000000000000000";
        for text in [least, "0x-5", "0o+7", "0b-1", "--1", "+", "0x"] {
            assert_eq!(one(&format!("a: {text}\n")), json!({"a": text}), "{text}");
        }
        assert_eq!(one("a: -0x10\n"), json!({"a": -16}));
    }

    proptest! {
        #[test]
        fn never_panics(text in "[-a-z0-9:{}\\[\\]&*!|>'\"#\n ]{0,200}") {
            let _ = parse_documents(&text);
        }

        #[test]
        fn json_reads_as_itself(keys in prop::collection::btree_map("[a-z]{1,5}", -1000i64..1000, 0..10)) {
            let value = json!(keys);
            let documents = parse_documents(&value.to_string()).unwrap();
            prop_assert_eq!(documents[0].to_json(), value);
        }
    }
}
