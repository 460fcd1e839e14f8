//! Makes a value fit its type: checks types, drops unknown fields (and says which), writes quantities and times in their canonical
//! form, and drops what upstream's encoder would not write (null fields, empty optional strings, lists and maps).
//!
//! Upstream counterpart: `sigs.k8s.io/json` on the Go structs. The text of a wrong type is Go's.

use base64::Engine;
use kube_common::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::json_kind;
use crate::error::FieldError;
use crate::schema::{Schemas, Shape, Struct};

/// Most complaints that are reported.
const MAX_REPORTED: usize = 100;

/// The definition of every object's metadata.
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Optional string fields that are pointers upstream and mean something when empty.
const KEPT_EMPTY: &[&str] = &[
    "apiGroup",
    "cachingMode",
    "fsGroupChangePolicy",
    "gmsaCredentialSpec",
    "gmsaCredentialSpecName",
    "hostnameOverride",
    "ingressClassName",
    "initiatorName",
    "localhostProfile",
    "mountPropagation",
    "nodeAffinityPolicy",
    "nodeTaintsPolicy",
    "podGroupName",
    "preemptionPolicy",
    "procMount",
    "recursiveReadOnly",
    "resourceClaimTemplateName",
    "runAsUserName",
    "runtimeClassName",
    "seLinuxChangePolicy",
    "stopSignal",
    "storageClassName",
    "supplementalGroupsPolicy",
    "volumeAttributesClassName",
];

pub(super) struct Walk<'a> {
    table: &'a Schemas,
    path: String,
    complaints: Vec<String>,
    /// Malformed values, where they do not end the walk.
    faults: Option<Vec<FieldError>>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(table: &'a Schemas) -> Self {
        Self { table, path: String::new(), complaints: Vec::new(), faults: None }
    }

    /// The metadata of a custom object, or of an object inside one, at `path`; returns the complaints.
    pub(super) fn metadata(table: &'a Schemas, path: &str, value: &mut Value) -> Result<Vec<String>, String> {
        let Some(root) = table.get(OBJECT_META) else { return Ok(Vec::new()) };
        let mut walk = Self { path: path.to_owned(), ..Self::new(table) };
        walk.root(root, value)?;
        Ok(walk.complaints)
    }

    /// A walk that goes on after a malformed quantity, time or text in base64.
    pub(super) fn gathering(table: &'a Schemas) -> Self {
        Self { faults: Some(Vec::new()), ..Self::new(table) }
    }

    pub(super) fn into_faults(self) -> Vec<FieldError> {
        self.faults.unwrap_or_default()
    }

    /// A malformed value; `refusal` is what ends the walk, unless faults are gathered.
    fn fault(&mut self, value: &mut Value, shape: &Shape, detail: String, refusal: String) -> Result<(), String> {
        let Some(faults) = &mut self.faults else { return Err(refusal) };
        faults.push(FieldError::invalid(self.path.as_str(), value.take(), detail));
        *value = zero(shape);
        Ok(())
    }

    pub(super) fn into_complaints(self) -> Vec<String> {
        self.complaints
    }

    pub(super) fn root(&mut self, root: &Struct, value: &mut Value) -> Result<(), String> {
        match value {
            Value::Object(map) => self.fields(root, map),
            other => {
                Err(format!("json: cannot unmarshal {} into Go value of type {}", json_kind(other), root.short_name()))
            }
        }
    }

    fn fields(&mut self, owner: &Struct, map: &mut Map<String, Value>) -> Result<(), String> {
        let unknown: Vec<String> = map.keys().filter(|key| owner.field(key).is_none()).cloned().collect();
        for key in unknown {
            map.remove(&key);
            if self.complaints.len() < MAX_REPORTED {
                let dot = if self.path.is_empty() { "" } else { "." };
                self.complaints.push(format!("unknown field \"{}{dot}{key}\"", self.path));
            }
        }
        let len = self.path.len();
        let mut dropped = Vec::new();
        for (key, value) in map.iter_mut() {
            let Some(field) = owner.field(key) else { continue };
            if value.is_null() {
                if field.required {
                    *value = zero(&field.shape);
                } else {
                    dropped.push(key.clone());
                    continue;
                }
            }
            if len > 0 {
                self.path.push('.');
            }
            self.path.push_str(key);
            self.value(&field.shape, value, owner)?;
            self.path.truncate(len);
            if !field.required && is_omitted(key, &field.shape, value) {
                dropped.push(key.clone());
            }
        }
        for key in dropped {
            map.remove(&key);
        }
        Ok(())
    }

    fn wrong(&self, shape: &Shape, value: &Value, owner: &Struct) -> String {
        let mut path = String::new();
        let mut inside = false;
        for c in self.path.chars() {
            match c {
                '[' => inside = true,
                ']' => inside = false,
                c if !inside => path.push(c),
                _ => {}
            }
        }
        let what = match (value, shape) {
            (Value::Number(n), Shape::Int32 | Shape::Int64) => format!("number {n}"),
            _ => json_kind(value).to_owned(),
        };
        format!(
            "json: cannot unmarshal {what} into Go struct field {}.{path} of type {}",
            owner.short_name(),
            self.table.go_type(shape)
        )
    }

    fn value(&mut self, shape: &Shape, value: &mut Value, owner: &Struct) -> Result<(), String> {
        let good = match shape {
            Shape::Any => true,
            Shape::AnyObject => value.is_object(),
            Shape::String => value.is_string(),
            Shape::Bool => value.is_boolean(),
            Shape::Number => value.is_number(),
            Shape::Int32 => value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            Shape::Int64 => value.is_i64(),
            Shape::IntOrString => value.is_string() || value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            Shape::Bytes => return self.bytes(value, owner),
            Shape::Quantity => return self.quantity(value, owner),
            Shape::Time | Shape::MicroTime => return self.time(shape, value, owner),
            Shape::List(inner) => return self.items(shape, inner, value, owner),
            Shape::Map(inner) => return self.map(shape, inner, value, owner),
            Shape::Either(inner) => return self.either(inner, value, owner),
            Shape::Ref(index) => {
                let target = self.table.at(*index);
                return match value {
                    Value::Object(map) => self.fields(target, map),
                    other => Err(self.wrong(shape, other, owner)),
                };
            }
        };
        if good { Ok(()) } else { Err(self.wrong(shape, value, owner)) }
    }

    /// A schema or something simpler. Upstream decodes these with a method of their own, which does not tell of unknown fields.
    fn either(&mut self, inner: &Shape, value: &mut Value, owner: &Struct) -> Result<(), String> {
        let told = self.complaints.len();
        match value {
            Value::Object(_) => self.value(inner, value, owner)?,
            Value::Array(items) => {
                for item in items.iter_mut().filter(|item| item.is_object()) {
                    self.value(inner, item, owner)?;
                }
            }
            _ => {}
        }
        self.complaints.truncate(told);
        Ok(())
    }

    fn items(&mut self, shape: &Shape, inner: &Shape, value: &mut Value, owner: &Struct) -> Result<(), String> {
        let Value::Array(items) = value else { return Err(self.wrong(shape, value, owner)) };
        let len = self.path.len();
        for (i, item) in items.iter_mut().enumerate() {
            if item.is_null() {
                *item = zero(inner);
            }
            self.path.push_str(&format!("[{i}]"));
            self.value(inner, item, owner)?;
            self.path.truncate(len);
        }
        Ok(())
    }

    fn map(&mut self, shape: &Shape, inner: &Shape, value: &mut Value, owner: &Struct) -> Result<(), String> {
        let Value::Object(map) = value else { return Err(self.wrong(shape, value, owner)) };
        let len = self.path.len();
        for (key, item) in map.iter_mut() {
            if item.is_null() {
                *item = zero(inner);
                if item.is_null() {
                    continue;
                }
            }
            // A key may hold brackets, which `wrong` would cut: messages name the map, not the key, as Go's do.
            if matches!(inner, Shape::Ref(_) | Shape::List(_) | Shape::Map(_)) {
                self.path.push('.');
                self.path.push_str(key);
            } else if self.faults.is_some() {
                self.path.push_str(&format!("[{key}]"));
            }
            self.value(inner, item, owner)?;
            self.path.truncate(len);
        }
        Ok(())
    }

    fn bytes(&mut self, value: &mut Value, owner: &Struct) -> Result<(), String> {
        let Some(text) = value.as_str() else { return Err(self.wrong(&Shape::Bytes, value, owner)) };
        // Go's decoder skips line breaks.
        let valid = if text.contains(['\n', '\r']) {
            let joined: String = text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
            base64::engine::general_purpose::STANDARD.decode(joined)
        } else {
            base64::engine::general_purpose::STANDARD.decode(text)
        };
        let Err(error) = valid else { return Ok(()) };
        let at = match error {
            base64::DecodeError::InvalidByte(offset, _) => offset,
            _ => text.len().saturating_sub(1),
        };
        let detail = format!("illegal base64 data at input byte {at}");
        let refusal = format!("{}: {detail}", self.path);
        self.fault(value, &Shape::Bytes, detail, refusal)
    }

    fn quantity(&mut self, value: &mut Value, owner: &Struct) -> Result<(), String> {
        let text = match &*value {
            Value::String(s) => s.trim().to_owned(),
            Value::Number(n) => n.to_string(),
            other => return Err(self.wrong(&Shape::Quantity, other, owner)),
        };
        if text.is_empty() {
            *value = json!("0");
            return Ok(());
        }
        match Quantity::parse(&text) {
            Ok(parsed) => *value = json!(parsed.to_string()),
            Err(error) => {
                let refusal = format!("{}: {error}", self.path);
                self.fault(value, &Shape::Quantity, error.to_string(), refusal)?;
            }
        }
        Ok(())
    }

    fn time(&mut self, shape: &Shape, value: &mut Value, owner: &Struct) -> Result<(), String> {
        let Some(text) = value.as_str() else { return Err(self.wrong(shape, value, owner)) };
        let Ok(time) = text.parse::<jiff::Timestamp>() else {
            let detail = format!(
                "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as a time in field {}",
                self.path
            );
            return self.fault(value, shape, detail.clone(), detail);
        };
        *value = json!(match shape {
            Shape::MicroTime => crate::time::micro(time),
            _ => crate::time::seconds(time),
        });
        Ok(())
    }
}

/// What Go's decoder makes of null where it cannot leave the field out.
fn zero(shape: &Shape) -> Value {
    match shape {
        Shape::Any | Shape::Either(_) | Shape::Time | Shape::MicroTime => Value::Null,
        Shape::String | Shape::Bytes => json!(""),
        Shape::Bool => json!(false),
        Shape::Int32 | Shape::Int64 | Shape::Number | Shape::IntOrString => json!(0),
        Shape::Quantity => json!("0"),
        Shape::List(_) => json!([]),
        Shape::AnyObject | Shape::Map(_) | Shape::Ref(_) => json!({}),
    }
}

/// Whether Go's `omitempty` leaves an optional field out. Booleans and numbers stay: many of them are pointers.
fn is_omitted(key: &str, shape: &Shape, value: &Value) -> bool {
    match (shape, value) {
        (Shape::String, Value::String(s)) => s.is_empty() && !KEPT_EMPTY.contains(&key),
        (Shape::List(_), Value::Array(items)) => items.is_empty(),
        (Shape::Map(_), Value::Object(map)) => map.is_empty(),
        (Shape::Time | Shape::MicroTime, Value::Null) => true,
        _ => false,
    }
}
