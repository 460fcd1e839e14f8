//! JSON as CEL values, without a copy: an object of 1 MiB costs one small box until something in it is read.
//!
//! With a schema the values are those of CRD rules: `number` is a double whatever its digits, `date-time`, `date` and `duration` are
//! timestamps and durations, `byte` is bytes, and property names are read unescaped (`__dot__`). Without one they are those of
//! admission. Upstream counterparts: `apiserver/pkg/cel/common/values.go` and `apiserver/pkg/cel/escaping.go`.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use cel::ExecutionError;
use cel::common::traits::{self, Adder, Container, Indexer, Iterable, Sizer, Zeroer};
use cel::common::types::{
    CelBool, CelBytes, CelDouble, CelInt, CelList, CelString, CelUInt, LIST_TYPE, MAP_TYPE, NULL_TYPE, Type,
};
use cel::common::value::{CowVal, Val};
use serde_json::{Map, Value};

/// A value for `value`, in the shape that `schema` gives it.
pub(crate) fn wrap<'v>(value: &'v Value, schema: Option<&'v Value>) -> Box<dyn Val + 'v> {
    match value {
        Value::Null => Box::new(NullVal),
        Value::Bool(value) => Box::new(CelBool::from(*value)),
        Value::Number(number) => match number.as_i64() {
            Some(whole) if !is_double(schema) => Box::new(CelInt::from(whole)),
            _ => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
        },
        Value::String(text) => formatted(text, schema).unwrap_or_else(|| Box::new(CelString::from(text.as_str()))),
        Value::Array(items) => Box::new(JsonList { items, schema, cells: OnceLock::new() }),
        Value::Object(map) => Box::new(JsonMap { map, schema, keys: OnceLock::new() }),
    }
}

fn is_double(schema: Option<&Value>) -> bool {
    schema.is_some_and(|schema| schema["type"] == "number")
}

/// What a string of a known format is. A text that is not of its format stays a string: the schema's validation reports it.
fn formatted<'v>(text: &str, schema: Option<&Value>) -> Option<Box<dyn Val + 'v>> {
    let format = schema?.get("format")?.as_str()?;
    let convert = |function: &str, text: String| -> Option<Box<dyn Val + 'v>> {
        let args = vec![CowVal::owned(CelString::from(text))];
        let op = crate::library::env().find_overload(function, &args)?;
        op(args).ok().map(CowVal::into_owned)
    };
    match format {
        "date-time" | "datetime" => convert("timestamp", text.to_owned()),
        "date" => convert("timestamp", format!("{text}T00:00:00Z")),
        "duration" => convert("duration", text.to_owned()),
        "byte" => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
            Some(Box::new(CelBytes::from(bytes)))
        }
        _ => None,
    }
}

pub(crate) fn no_such_key(key: &dyn Val) -> ExecutionError {
    let text = key.downcast_ref::<CelString>().map(|text| text.inner().to_owned());
    let text = text.or_else(|| key.downcast_ref::<CelInt>().map(|n| n.inner().to_string()));
    let text = text.or_else(|| key.downcast_ref::<CelUInt>().map(|n| n.inner().to_string()));
    let text = text.or_else(|| key.downcast_ref::<CelBool>().map(|b| b.inner().to_string()));
    ExecutionError::no_such_key(&text.unwrap_or_default())
}

/// `null`: unlike the interpreter's own it can be asked for a field, which is then not there, as upstream's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NullVal;

impl Val for NullVal {
    fn get_type(&self) -> &Type {
        &NULL_TYPE
    }
    fn cel_type() -> &'static Type {
        &NULL_TYPE
    }
    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)> {
        Some(self)
    }
    fn as_zeroer(&self) -> Option<&dyn Zeroer> {
        Some(self)
    }
    fn equals(&self, other: &dyn Val) -> bool {
        *other.get_type() == NULL_TYPE
    }
    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(Self)
    }
}

impl Zeroer for NullVal {
    fn is_zero_value(&self) -> bool {
        true
    }
}

impl Indexer for NullVal {
    fn get<'b, 'v>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError> {
        Err(no_such_key(key))
    }
    fn steal<'v>(self: Box<Self>, key: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError> {
        Err(no_such_key(key))
    }
}

/// A JSON array.
pub(crate) struct JsonList<'v> {
    items: &'v [Value],
    schema: Option<&'v Value>,
    /// The items as values: made when somebody walks the list, since a walk hands out references.
    cells: OnceLock<Vec<Box<dyn Val + 'v>>>,
}

impl<'v> JsonList<'v> {
    fn item(&self, index: usize) -> Option<Box<dyn Val + 'v>> {
        self.items.get(index).map(|item| wrap(item, self.item_schema()))
    }
    fn item_schema(&self) -> Option<&'v Value> {
        self.schema.and_then(|schema| schema.get("items"))
    }
    fn cells(&self) -> &[Box<dyn Val + 'v>] {
        self.cells.get_or_init(|| self.items.iter().map(|item| wrap(item, self.item_schema())).collect())
    }
}

impl fmt::Debug for JsonList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "list of {}", self.items.len())
    }
}

impl<'v> Val for JsonList<'v> {
    fn get_type(&self) -> &Type {
        &LIST_TYPE
    }
    fn cel_type() -> &'static Type {
        &LIST_TYPE
    }
    fn as_adder<'b, 'w>(&'b self) -> Option<&'b (dyn Adder + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }
    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }
    fn as_indexer<'b, 'w>(&'b self) -> Option<&'b (dyn Indexer + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }
    fn as_iterable<'b, 'w>(&'b self) -> Option<&'b (dyn Iterable + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }
    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }
    fn as_zeroer(&self) -> Option<&dyn Zeroer> {
        Some(self)
    }
    fn equals(&self, other: &dyn Val) -> bool {
        crate::library::operators::equal(self, other)
    }
    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(JsonList { items: self.items, schema: self.schema, cells: OnceLock::new() })
    }
}

impl Adder for JsonList<'_> {
    fn add<'b, 'w>(&'b self, rhs: &(dyn Val + 'w)) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        let types = || vec!["list".to_owned(), rhs.get_type().name().to_owned()];
        let mut more = rhs.as_iterable().ok_or_else(|| ExecutionError::no_such_overload("_+_", types()))?.iter();
        let mut out: Vec<Box<dyn Val + 'w>> = self.items.iter().map(|item| wrap(item, self.item_schema())).collect();
        while let Some(item) = more.next() {
            out.push(item.clone_as_boxed());
        }
        Ok(CowVal::owned(CelList::from(out)))
    }
}

impl Container for JsonList<'_> {
    fn contains(&self, value: &dyn Val) -> Result<bool, ExecutionError> {
        Ok(self
            .items
            .iter()
            .any(|item| crate::library::operators::equal(wrap(item, self.item_schema()).as_ref(), value)))
    }
}

impl Indexer for JsonList<'_> {
    fn get<'b, 'w>(&'b self, index: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        let position = if let Some(index) = index.downcast_ref::<CelInt>() {
            usize::try_from(*index.inner()).ok()
        } else if let Some(index) = index.downcast_ref::<CelUInt>() {
            usize::try_from(*index.inner()).ok()
        } else {
            let types = vec!["list".to_owned(), index.get_type().name().to_owned()];
            return Err(ExecutionError::no_such_overload("_[_]", types));
        };
        let outside = || ExecutionError::IndexOutOfBounds(index.try_into().unwrap_or(cel::Value::Null));
        position.and_then(|position| self.item(position)).map(CowVal::Owned).ok_or_else(outside)
    }
    fn steal<'w>(self: Box<Self>, index: &dyn Val) -> Result<Box<dyn Val + 'w>, ExecutionError>
    where
        Self: 'w,
    {
        Ok(self.get(index)?.into_owned())
    }
}

impl Iterable for JsonList<'_> {
    fn iter<'b, 'w>(&'b self) -> Box<dyn traits::Iterator<'b, 'w> + 'b>
    where
        Self: 'w,
    {
        Box::new(Cells(self.cells().iter()))
    }
}

struct Cells<'b, 'v>(std::slice::Iter<'b, Box<dyn Val + 'v>>);

impl<'b, 'v: 'w, 'w> traits::Iterator<'b, 'w> for Cells<'b, 'v> {
    fn next(&mut self) -> Option<&'b (dyn Val + 'w)> {
        self.0.next().map(|cell| {
            let cell: &'b (dyn Val + 'w) = cell.as_ref();
            cell
        })
    }
}

impl Sizer for JsonList<'_> {
    fn size(&self) -> CelInt {
        CelInt::from(i64::try_from(self.items.len()).unwrap_or(i64::MAX))
    }
}

impl Zeroer for JsonList<'_> {
    fn is_zero_value(&self) -> bool {
        self.items.is_empty()
    }
}

/// A JSON object.
pub(crate) struct JsonMap<'v> {
    map: &'v Map<String, Value>,
    schema: Option<&'v Value>,
    keys: OnceLock<Vec<CelString<'v>>>,
}

impl<'v> JsonMap<'v> {
    fn find(&self, key: &str) -> Option<Box<dyn Val + 'v>> {
        let properties = self.schema.and_then(|schema| schema.get("properties"));
        let name = if properties.is_some() { unescape(key) } else { Cow::Borrowed(key) };
        let value = self.map.get(name.as_ref())?;
        let own = properties.and_then(|properties| properties.get(name.as_ref()));
        Some(wrap(value, own.or_else(|| self.schema.and_then(|schema| schema.get("additionalProperties")))))
    }
}

impl fmt::Debug for JsonMap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "map of {}", self.map.len())
    }
}

impl<'v> Val for JsonMap<'v> {
    fn get_type(&self) -> &Type {
        &MAP_TYPE
    }
    fn cel_type() -> &'static Type {
        &MAP_TYPE
    }
    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }
    fn as_indexer<'b, 'w>(&'b self) -> Option<&'b (dyn Indexer + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }
    fn as_iterable<'b, 'w>(&'b self) -> Option<&'b (dyn Iterable + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }
    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }
    fn as_zeroer(&self) -> Option<&dyn Zeroer> {
        Some(self)
    }
    fn equals(&self, other: &dyn Val) -> bool {
        crate::library::operators::equal(self, other)
    }
    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(JsonMap { map: self.map, schema: self.schema, keys: OnceLock::new() })
    }
}

impl Container for JsonMap<'_> {
    fn contains(&self, key: &dyn Val) -> Result<bool, ExecutionError> {
        Ok(key.downcast_ref::<CelString>().is_some_and(|key| self.find(key.inner()).is_some()))
    }
}

impl Indexer for JsonMap<'_> {
    fn get<'b, 'w>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        let found = key.downcast_ref::<CelString>().and_then(|key| self.find(key.inner()));
        found.map(CowVal::Owned).ok_or_else(|| no_such_key(key))
    }
    fn steal<'w>(self: Box<Self>, key: &dyn Val) -> Result<Box<dyn Val + 'w>, ExecutionError>
    where
        Self: 'w,
    {
        Ok(self.get(key)?.into_owned())
    }
}

impl Iterable for JsonMap<'_> {
    fn iter<'b, 'w>(&'b self) -> Box<dyn traits::Iterator<'b, 'w> + 'b>
    where
        Self: 'w,
    {
        let keys = self.keys.get_or_init(|| self.map.keys().map(|key| CelString::from(key.as_str())).collect());
        Box::new(Keys(keys.iter()))
    }
}

struct Keys<'b, 'v>(std::slice::Iter<'b, CelString<'v>>);

impl<'b, 'v: 'w, 'w> traits::Iterator<'b, 'w> for Keys<'b, 'v> {
    fn next(&mut self) -> Option<&'b (dyn Val + 'w)> {
        self.0.next().map(|key| {
            let key: &'b (dyn Val + 'w) = key;
            key
        })
    }
}

impl Sizer for JsonMap<'_> {
    fn size(&self) -> CelInt {
        CelInt::from(i64::try_from(self.map.len()).unwrap_or(i64::MAX))
    }
}

impl Zeroer for JsonMap<'_> {
    fn is_zero_value(&self) -> bool {
        self.map.is_empty()
    }
}

/// Words that CEL keeps for itself; as property names they are written `__word__`.
pub(crate) const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The property name that an escaped identifier stands for.
pub(crate) fn unescape(name: &str) -> Cow<'_, str> {
    if !name.contains("__") {
        return Cow::Borrowed(name);
    }
    if let Some(word) = name.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"))
        && RESERVED.contains(&word)
    {
        return Cow::Owned(word.to_owned());
    }
    const ESCAPES: [(&str, &str); 4] =
        [("__underscores__", "__"), ("__dot__", "."), ("__dash__", "-"), ("__slash__", "/")];
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    'next: while !rest.is_empty() {
        for (escaped, plain) in ESCAPES {
            if let Some(after) = rest.strip_prefix(escaped) {
                out.push_str(plain);
                rest = after;
                continue 'next;
            }
        }
        let length = rest.chars().next().map_or(1, char::len_utf8);
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    Cow::Owned(out)
}

/// A value that a policy's variables, or any other lazily known fields, are read from.
pub(crate) trait Fields<'v>: fmt::Debug + Send + Sync {
    /// The field's value.
    fn field(&self, name: &str) -> Option<Result<Box<dyn Val + 'v>, ExecutionError>>;
}

/// [`Fields`] as a map.
#[derive(Debug)]
pub(crate) struct FieldsVal<'v>(pub Arc<dyn Fields<'v> + 'v>);

impl<'v> Val for FieldsVal<'v> {
    fn get_type(&self) -> &Type {
        &MAP_TYPE
    }
    fn cel_type() -> &'static Type {
        &MAP_TYPE
    }
    fn as_indexer<'b, 'w>(&'b self) -> Option<&'b (dyn Indexer + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }
    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(FieldsVal(Arc::clone(&self.0)))
    }
}

impl Indexer for FieldsVal<'_> {
    fn get<'b, 'w>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        let found = key.downcast_ref::<CelString>().and_then(|key| self.0.field(key.inner()));
        found.ok_or_else(|| no_such_key(key))?.map(CowVal::Owned)
    }
    fn steal<'w>(self: Box<Self>, key: &dyn Val) -> Result<Box<dyn Val + 'w>, ExecutionError>
    where
        Self: 'w,
    {
        Ok(self.get(key)?.into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_names_are_upstreams() {
        for (escaped, plain) in [
            ("a", "a"),
            ("__namespace__", "namespace"),
            ("__if__", "if"),
            ("foo__dot__bar", "foo.bar"),
            ("x__dash__y__slash__z", "x-y/z"),
            ("__underscores__x", "__x"),
            ("a__b", "a__b"),
            ("__int__", "__int__"),
        ] {
            assert_eq!(unescape(escaped), plain, "{escaped}");
        }
    }
}
