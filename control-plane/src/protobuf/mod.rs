//! Protobuf request bodies to JSON values: what typed clients (kubectl since 1.32) send on POST, PUT and DELETE.
//!
//! One table, `fields.txt`, says for every message which field number is which JSON field; the decoder walks it. A line is
//! `GROUP/VERSION.KIND` followed by `NUMBER:NAME:TYPE` items. An empty name is a message whose fields belong to the outer object. Types:
//! `s`tring, `i`nteger, `b`ool, b`y`tes, `d`ouble, `Time`, `MicroTime`, `Duration`, `Quantity`, `IntOrString`, `Raw` and `Fields` (JSON),
//! `Extra` (a list of strings), or a message. `[]` is a list, `{}` a map from strings; `*` keeps a zero that was sent, `!` too, and
//! everything else drops zeros, which clients send for what is not set.
//!
//! Answers stay JSON: `Accept` falls back to it. Upstream counterpart: `apimachinery/pkg/runtime/serializer/protobuf`; the numbers are those of
//! Kubernetes 1.37, for `resource` those of 1.34 (alpha fields that came later are not read).

pub mod openapi;
mod wire;

use std::collections::HashMap;
use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use keelson_kinds::ApiError;
use serde_json::{Map, Value, json};

use wire::{Field as WireField, Reader};

/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";
/// Messages within messages; pod templates in lists need about 12.
const MAX_DEPTH: usize = 32;

static TABLE: &str = include_str!("fields.txt");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    One,
    List,
    Map,
}

#[derive(Debug)]
struct Field {
    name: &'static str,
    kind: &'static str,
    shape: Shape,
    keep_zero: bool,
}

type Message = HashMap<u32, Field>;

/// Why a body could not be decoded. Not retryable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// It does not begin with the magic bytes.
    #[error("it does not begin with the prefix of Kubernetes protobuf")]
    Magic,
    /// The bytes are no protobuf.
    #[error("it is truncated or damaged")]
    Damaged,
    /// Messages are nested too deeply.
    #[error("messages are nested more than {MAX_DEPTH} deep")]
    Deep,
    /// No such message.
    #[error("{0} cannot be read from protobuf here; send it as application/json")]
    Unknown(String),
}

impl From<ProtobufError> for ApiError {
    fn from(error: ProtobufError) -> Self {
        Self::bad_request(format!("unable to decode the protobuf body: {error}"))
    }
}

fn messages() -> &'static HashMap<&'static str, Message> {
    static MESSAGES: OnceLock<HashMap<&'static str, Message>> = OnceLock::new();
    MESSAGES.get_or_init(|| TABLE.lines().filter_map(parse_line).collect())
}

fn parse_line(line: &'static str) -> Option<(&'static str, Message)> {
    let mut items = line.split(' ');
    let name = items.next()?;
    let fields = items.filter_map(|item| {
        let mut parts = item.splitn(3, ':');
        let number = parts.next()?.parse().ok()?;
        let (name, kind) = (parts.next()?, parts.next()?);
        let (shape, kind) = match (kind.strip_prefix("[]"), kind.strip_prefix("{}")) {
            (Some(kind), _) => (Shape::List, kind),
            (_, Some(kind)) => (Shape::Map, kind),
            _ => (Shape::One, kind),
        };
        let bare = kind.trim_start_matches(['*', '!']);
        Some((number, Field { name, kind: bare, shape, keep_zero: bare.len() < kind.len() }))
    });
    Some((name, fields.collect()))
}

/// The message of an object; `DeleteOptions` and its like are one message in every group.
fn message_name(api_version: &str, kind: &str) -> String {
    if kind == "DeleteOptions" {
        return "meta/v1.DeleteOptions".to_owned();
    }
    match api_version.split_once('/') {
        Some((group, version)) => format!("{}/{version}.{kind}", group.split('.').next().unwrap_or_default()),
        None => format!("core/{api_version}.{kind}"),
    }
}

/// Decodes a body with its envelope.
///
/// # Errors
/// [`ProtobufError`].
pub fn decode(body: &[u8]) -> Result<Value, ProtobufError> {
    let envelope = body.strip_prefix(MAGIC).ok_or(ProtobufError::Magic)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in Reader::new(envelope) {
        match field? {
            WireField { number: 1, value: wire::Value::Bytes(meta) } => {
                for field in Reader::new(meta) {
                    match field? {
                        WireField { number: 1, value: wire::Value::Bytes(b) } => api_version = text(b)?,
                        WireField { number: 2, value: wire::Value::Bytes(b) } => kind = text(b)?,
                        _ => {}
                    }
                }
            }
            WireField { number: 2, value: wire::Value::Bytes(bytes) } => raw = bytes,
            _ => {}
        }
    }
    let name = message_name(&api_version, &kind);
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    message(&name, raw, &mut object, 0)?;
    Ok(Value::Object(object))
}

fn text(bytes: &[u8]) -> Result<String, ProtobufError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| ProtobufError::Damaged)
}

fn message(name: &str, bytes: &[u8], out: &mut Map<String, Value>, depth: usize) -> Result<(), ProtobufError> {
    if depth > MAX_DEPTH {
        return Err(ProtobufError::Deep);
    }
    let fields = messages().get(name).ok_or_else(|| ProtobufError::Unknown(name.to_owned()))?;
    for item in Reader::new(bytes) {
        let item = item?;
        let Some(field) = fields.get(&item.number) else { continue };
        if field.name.is_empty() {
            let wire::Value::Bytes(inner) = item.value else { return Err(ProtobufError::Damaged) };
            message(field.kind, inner, out, depth + 1)?;
            continue;
        }
        match field.shape {
            Shape::One => {
                let value = value(field.kind, item.value, depth)?;
                if !value.is_null() && (field.keep_zero || !is_zero(&value)) {
                    out.insert(field.name.to_owned(), value);
                }
            }
            Shape::List => {
                let list = out.entry(field.name).or_insert_with(|| json!([]));
                let Value::Array(list) = list else { return Err(ProtobufError::Damaged) };
                match (field.kind, item.value) {
                    ("i", wire::Value::Bytes(packed)) => {
                        list.extend(wire::varints(packed)?.into_iter().map(|n| json!(n.cast_signed())));
                    }
                    (kind, one) => list.push(value(kind, one, depth)?),
                }
            }
            Shape::Map => {
                let (key, value) = entry(field.kind, item.value, depth)?;
                let map = out.entry(field.name).or_insert_with(|| json!({}));
                let Value::Object(map) = map else { return Err(ProtobufError::Damaged) };
                map.insert(key, value);
            }
        }
    }
    Ok(())
}

fn entry(kind: &str, item: wire::Value<'_>, depth: usize) -> Result<(String, Value), ProtobufError> {
    let wire::Value::Bytes(bytes) = item else { return Err(ProtobufError::Damaged) };
    let (mut key, mut found) = (String::new(), None);
    for field in Reader::new(bytes) {
        match field? {
            WireField { number: 1, value: wire::Value::Bytes(b) } => key = text(b)?,
            WireField { number: 2, value: item } => found = Some(value(kind, item, depth)?),
            _ => {}
        }
    }
    // An entry without a value has its type's zero; only strings and bytes occur in such maps.
    Ok((key, found.unwrap_or_else(|| json!(""))))
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(_) | Value::Object(_) => false,
    }
}

fn value(kind: &str, item: wire::Value<'_>, depth: usize) -> Result<Value, ProtobufError> {
    use wire::Value::{Bytes, Fixed64, Varint};
    Ok(match (kind, item) {
        ("s", Bytes(bytes)) => json!(text(bytes)?),
        ("y", Bytes(bytes)) => json!(STANDARD.encode(bytes)),
        ("i", Varint(n)) => json!(n.cast_signed()),
        ("b", Varint(n)) => json!(n != 0),
        ("d", Fixed64(bits)) => json!(f64::from_bits(bits)),
        ("Time", Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%SZ")?,
        ("MicroTime", Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%S%.6fZ")?,
        ("Duration", Bytes(bytes)) => {
            let nanos = numbers(bytes)?.get(&1).copied().unwrap_or(0);
            json!(format!("{nanos}ns"))
        }
        ("Quantity", Bytes(bytes)) => json!(first_text(bytes, 1)?),
        ("IntOrString", Bytes(bytes)) => {
            let numbers = numbers(bytes)?;
            match numbers.get(&1) {
                Some(1) => json!(first_text(bytes, 3)?),
                _ => json!(numbers.get(&2).copied().unwrap_or(0)),
            }
        }
        ("Raw" | "Fields", Bytes(bytes)) => {
            let inner = first_text(bytes, 1)?;
            if inner.is_empty() {
                Value::Null
            } else {
                serde_json::from_str(&inner).map_err(|_| ProtobufError::Damaged)?
            }
        }
        ("Extra", Bytes(bytes)) => {
            let mut items = Vec::new();
            for field in Reader::new(bytes) {
                if let WireField { number: 1, value: Bytes(b) } = field? {
                    items.push(text(b)?);
                }
            }
            json!(items)
        }
        (name, Bytes(bytes)) if name.contains('/') => {
            let mut object = Map::new();
            message(name, bytes, &mut object, depth + 1)?;
            Value::Object(object)
        }
        _ => return Err(ProtobufError::Damaged),
    })
}

fn numbers(bytes: &[u8]) -> Result<HashMap<u32, i64>, ProtobufError> {
    let mut out = HashMap::new();
    for field in Reader::new(bytes) {
        if let WireField { number, value: wire::Value::Varint(n) } = field? {
            out.insert(number, n.cast_signed());
        }
    }
    Ok(out)
}

fn first_text(bytes: &[u8], wanted: u32) -> Result<String, ProtobufError> {
    for field in Reader::new(bytes) {
        if let WireField { number, value: wire::Value::Bytes(b) } = field?
            && number == wanted
        {
            return text(b);
        }
    }
    Ok(String::new())
}

/// A timestamp; an empty message is a time that is not set.
fn time(bytes: &[u8], format: &str) -> Result<Value, ProtobufError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let numbers = numbers(bytes)?;
    let nanos = i32::try_from(numbers.get(&2).copied().unwrap_or(0)).map_err(|_| ProtobufError::Damaged)?;
    let at = jiff::Timestamp::new(numbers.get(&1).copied().unwrap_or(0), nanos).map_err(|_| ProtobufError::Damaged)?;
    Ok(json!(at.strftime(format).to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
        let mut out = wire::tests::varint(u64::from(number << 3 | 2));
        out.extend(wire::tests::varint(bytes.len() as u64));
        out.extend_from_slice(bytes);
        out
    }

    fn number(number: u32, value: u64) -> Vec<u8> {
        let mut out = wire::tests::varint(u64::from(number << 3));
        out.extend(wire::tests::varint(value));
        out
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), field(1, &meta), field(2, raw), field(3, b""), field(4, b"")].concat()
    }

    #[test]
    fn every_named_message_is_in_the_table() {
        let scalars = [
            "s",
            "i",
            "b",
            "y",
            "d",
            "Time",
            "MicroTime",
            "Duration",
            "Quantity",
            "IntOrString",
            "Raw",
            "Fields",
            "Extra",
        ];
        for (name, fields) in messages() {
            for field in fields.values() {
                let known = scalars.contains(&field.kind) || messages().contains_key(field.kind);
                assert!(known, "{name}.{}: {}", field.name, field.kind);
            }
        }
        // Clients of definitions speak JSON: upstream's too have no protobuf form for the schemas in them.
        for resource in keelson_kinds::resources().iter().filter(|resource| resource.group != "apiextensions.k8s.io") {
            let name = message_name(&resource.api_version(), resource.kind);
            assert!(messages().contains_key(name.as_str()), "{name} is served but not in the table");
        }
    }

    #[test]
    fn a_service_decodes() {
        let meta = [
            field(1, b"web"),
            field(2, b""),
            number(7, 0),
            field(8, b""),
            field(11, &[field(1, b"a"), field(2, b"b")].concat()),
        ]
        .concat();
        let target = [number(1, 1), number(2, 0), field(3, b"http")].concat();
        let port = [field(1, b""), number(3, 80), field(4, &target), number(5, 0)].concat();
        let raw = [field(1, &meta), field(2, &field(1, &port)), field(3, &field(1, b""))].concat();
        let decoded = decode(&envelope("v1", "Service", &raw)).unwrap();
        assert_eq!(
            decoded,
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "labels": {"a": "b"}},
                "spec": {"ports": [{"port": 80, "targetPort": "http"}]}, "status": {"loadBalancer": {}}})
        );
    }

    #[test]
    fn pointers_keep_zeros_and_inlined_messages_join_the_outer_one() {
        let deployment = field(2, &[number(1, 0), number(5, 0)].concat());
        assert_eq!(decode(&envelope("apps/v1", "Deployment", &deployment)).unwrap()["spec"], json!({"replicas": 0}));
        let source = field(2, &field(6, &field(1, b"s")));
        let volume = [field(1, b"v"), source].concat();
        let pod = field(2, &field(1, &volume));
        assert_eq!(
            decode(&envelope("v1", "Pod", &pod)).unwrap()["spec"]["volumes"][0],
            json!({"name": "v", "secret": {"secretName": "s"}})
        );
    }

    #[test]
    fn bad_bodies_are_refused() {
        assert_eq!(decode(b"{}"), Err(ProtobufError::Magic));
        assert_eq!(decode(b"k8s\0\x0a\x7f"), Err(ProtobufError::Damaged));
        assert!(matches!(decode(&envelope("x/v1", "Y", b"")), Err(ProtobufError::Unknown(_))));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            let _ = decode(&envelope("v1", "Pod", &bytes));
        }
    }
}
