//! Reading objects: what is absent, null or of another type counts as not set.

use serde_json::{Map, Value};

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value))
}

/// The object under a key, made one if it is anything else.
pub(crate) fn child<'a>(parent: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let slot = parent.entry(key.to_owned()).or_insert_with(|| Value::Object(Map::new()));
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().unwrap_or_else(|| unreachable!("it was made an object above"))
}

/// Several messages as one, as `k8s.io/apimachinery/pkg/util/errors.Aggregate` prints them: each once, in brackets from two on.
pub(crate) fn aggregate(messages: impl IntoIterator<Item = String>) -> String {
    let mut seen: Vec<String> = Vec::new();
    for message in messages {
        if !seen.contains(&message) {
            seen.push(message);
        }
    }
    if seen.len() == 1 { seen.remove(0) } else { format!("[{}]", seen.join(", ")) }
}
