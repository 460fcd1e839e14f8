//! JSON text to a value, with the paths of duplicate keys: `serde_json::Value`'s own parser drops them silently.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::Parsed;

struct State {
    path: String,
    duplicates: Vec<String>,
}

#[derive(Clone, Copy)]
struct Seed<'a>(&'a RefCell<State>);

/// Most duplicate fields that are reported; upstream stops at 100 as well.
const MAX_REPORTED: usize = 100;

pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, serde_json::Error> {
    let state = RefCell::new(State { path: String::new(), duplicates: Vec::new() });
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Seed(&state).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(Parsed { value, duplicates: state.into_inner().duplicates })
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        let len = self.0.borrow().path.len();
        loop {
            self.0.borrow_mut().path.push_str(&format!("[{}]", out.len()));
            let next = seq.next_element_seed(self)?;
            self.0.borrow_mut().path.truncate(len);
            match next {
                Some(value) => out.push(value),
                None => return Ok(Value::Array(out)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let len = {
                let mut state = self.0.borrow_mut();
                let len = state.path.len();
                if len > 0 {
                    state.path.push('.');
                }
                state.path.push_str(&key);
                if out.contains_key(&key) && state.duplicates.len() < MAX_REPORTED {
                    let path = state.path.clone();
                    state.duplicates.push(path);
                }
                len
            };
            let value = map.next_value_seed(self)?;
            self.0.borrow_mut().path.truncate(len);
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn duplicates_have_paths_and_the_last_one_counts() {
        let parsed = parse(br#"{"a":1,"b":[{"c":1,"c":2}],"a":3}"#).expect("parses");
        assert_eq!(parsed.value, json!({"a":3,"b":[{"c":2}]}));
        assert_eq!(parsed.duplicates, ["b[0].c", "a"]);
    }

    #[test]
    fn rubbish_is_an_error() {
        for text in ["", "{", "{} x", "[1,]", "\u{0}"] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(parse("[".repeat(10_000).as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn agrees_with_serde_json(text in "[\\[\\]{}:,\"a-c0-9.eE+ -]{0,40}") {
            let ours = parse(text.as_bytes()).ok().map(|p| p.value);
            let theirs = serde_json::from_str::<Value>(&text).ok();
            prop_assert_eq!(ours, theirs);
        }
    }
}
