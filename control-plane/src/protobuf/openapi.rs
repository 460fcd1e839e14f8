//! The OpenAPI v2 document as protobuf, the only form in which kubectl and Helm read it.
//!
//! Messages and numbers are those of `openapi.v2` (`google/gnostic`, OpenAPIv2.proto), as far as the document has their fields; extensions
//! (`x-…`) travel as YAML, of which JSON is a part.

use keelson_kinds::{Resource, openapi};
use prost::{Message, Oneof};
use serde_json::{Map, Value};

/// The media type that clients ask for.
pub const MEDIA_TYPE: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// The media type of the answer: `@` is no character of one, and Go's parser refuses it (upstream answers with this one too).
pub const CONTENT_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The document, encoded.
#[must_use]
pub fn document(table: &[&'static Resource]) -> Vec<u8> {
    Document::from(&openapi::v2_document(table)).encode_to_vec()
}

#[derive(Clone, PartialEq, Message)]
struct Document {
    #[prost(string, tag = "1")]
    swagger: String,
    #[prost(message, optional, tag = "2")]
    info: Option<Info>,
    #[prost(message, optional, tag = "8")]
    paths: Option<Paths>,
    #[prost(message, optional, tag = "9")]
    definitions: Option<Schemas>,
}

#[derive(Clone, PartialEq, Message)]
struct Info {
    #[prost(string, tag = "1")]
    title: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Paths {
    #[prost(message, repeated, tag = "2")]
    path: Vec<NamedPathItem>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedPathItem {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<PathItem>,
}

#[derive(Clone, PartialEq, Message)]
struct PathItem {
    #[prost(message, optional, tag = "2")]
    get: Option<Operation>,
    #[prost(message, optional, tag = "3")]
    put: Option<Operation>,
    #[prost(message, optional, tag = "4")]
    post: Option<Operation>,
    #[prost(message, optional, tag = "5")]
    delete: Option<Operation>,
    #[prost(message, optional, tag = "8")]
    patch: Option<Operation>,
    #[prost(message, repeated, tag = "9")]
    parameters: Vec<ParametersItem>,
}

#[derive(Clone, PartialEq, Message)]
struct Operation {
    #[prost(string, repeated, tag = "6")]
    produces: Vec<String>,
    #[prost(string, repeated, tag = "7")]
    consumes: Vec<String>,
    #[prost(message, repeated, tag = "8")]
    parameters: Vec<ParametersItem>,
    #[prost(message, optional, tag = "9")]
    responses: Option<Responses>,
    #[prost(message, repeated, tag = "13")]
    vendor_extension: Vec<NamedAny>,
}

#[derive(Clone, PartialEq, Message)]
struct ParametersItem {
    #[prost(message, optional, tag = "1")]
    parameter: Option<Parameter>,
}

#[derive(Clone, PartialEq, Message)]
struct Parameter {
    #[prost(oneof = "ParameterKind", tags = "1, 2")]
    kind: Option<ParameterKind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum ParameterKind {
    #[prost(message, tag = "1")]
    Body(BodyParameter),
    #[prost(message, tag = "2")]
    Other(NonBodyParameter),
}

#[derive(Clone, PartialEq, Message)]
struct BodyParameter {
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    place: String,
    #[prost(bool, tag = "4")]
    required: bool,
    #[prost(message, optional, tag = "5")]
    schema: Option<Schema>,
}

#[derive(Clone, PartialEq, Message)]
struct NonBodyParameter {
    #[prost(oneof = "Place", tags = "3, 4")]
    place: Option<Place>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Place {
    #[prost(message, tag = "3")]
    Query(QueryParameter),
    #[prost(message, tag = "4")]
    Path(PathParameter),
}

#[derive(Clone, PartialEq, Message)]
struct QueryParameter {
    #[prost(string, tag = "2")]
    place: String,
    #[prost(string, tag = "4")]
    name: String,
    #[prost(string, tag = "6")]
    kind: String,
    #[prost(bool, tag = "20")]
    unique_items: bool,
}

#[derive(Clone, PartialEq, Message)]
struct PathParameter {
    #[prost(bool, tag = "1")]
    required: bool,
    #[prost(string, tag = "2")]
    place: String,
    #[prost(string, tag = "4")]
    name: String,
    #[prost(string, tag = "5")]
    kind: String,
    #[prost(bool, tag = "19")]
    unique_items: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Responses {
    #[prost(message, repeated, tag = "1")]
    response_code: Vec<NamedResponseValue>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedResponseValue {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<ResponseValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ResponseValue {
    #[prost(message, optional, tag = "1")]
    response: Option<Response>,
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(string, tag = "1")]
    description: String,
    #[prost(message, optional, tag = "2")]
    schema: Option<SchemaItem>,
}

#[derive(Clone, PartialEq, Message)]
struct SchemaItem {
    #[prost(message, optional, tag = "1")]
    schema: Option<Schema>,
}

/// `Definitions` and `Properties` alike.
#[derive(Clone, PartialEq, Message)]
struct Schemas {
    #[prost(message, repeated, tag = "1")]
    additional_properties: Vec<NamedSchema>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedSchema {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Schema>,
}

#[derive(Clone, PartialEq, Message)]
struct Schema {
    #[prost(string, tag = "1")]
    reference: String,
    #[prost(string, tag = "2")]
    format: String,
    #[prost(string, tag = "4")]
    description: String,
    #[prost(message, optional, tag = "5")]
    default: Option<Any>,
    #[prost(string, repeated, tag = "19")]
    required: Vec<String>,
    #[prost(message, optional, boxed, tag = "21")]
    additional_properties: Option<Box<SchemaItem>>,
    #[prost(message, optional, tag = "22")]
    kind: Option<Strings>,
    #[prost(message, optional, tag = "23")]
    items: Option<SchemaList>,
    #[prost(message, optional, tag = "25")]
    properties: Option<Schemas>,
    #[prost(message, repeated, tag = "31")]
    vendor_extension: Vec<NamedAny>,
}

#[derive(Clone, PartialEq, Message)]
struct Strings {
    #[prost(string, repeated, tag = "1")]
    value: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct SchemaList {
    #[prost(message, repeated, tag = "1")]
    schema: Vec<Schema>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedAny {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "2")]
    yaml: String,
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value, key: &str) -> Vec<String> {
    value[key].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn any(value: &Value) -> Any {
    Any { yaml: format!("{value}\n") }
}

fn extensions(value: &Value) -> Vec<NamedAny> {
    let named = |(name, value): (&String, &Value)| NamedAny { name: name.clone(), value: Some(any(value)) };
    entries(value).filter(|(name, _)| name.starts_with("x-")).map(named).collect()
}

fn present(value: &Value) -> Option<&Value> {
    (!value.is_null()).then_some(value)
}

impl From<&Value> for Document {
    fn from(value: &Value) -> Self {
        let path =
            |(name, item): (&String, &Value)| NamedPathItem { name: name.clone(), value: Some(PathItem::from(item)) };
        Self {
            swagger: text(value, "swagger"),
            info: Some(Info { title: text(&value["info"], "title"), version: text(&value["info"], "version") }),
            paths: Some(Paths { path: entries(&value["paths"]).map(path).collect() }),
            definitions: Some(Schemas::from(&value["definitions"])),
        }
    }
}

impl From<&Value> for PathItem {
    fn from(value: &Value) -> Self {
        let operation = |method: &str| present(&value[method]).map(Operation::from);
        Self {
            get: operation("get"),
            put: operation("put"),
            post: operation("post"),
            delete: operation("delete"),
            patch: operation("patch"),
            parameters: parameters(value),
        }
    }
}

impl From<&Value> for Operation {
    fn from(value: &Value) -> Self {
        let response = |(name, value): (&String, &Value)| {
            let schema = present(&value["schema"]).map(|schema| SchemaItem { schema: Some(schema.into()) });
            let response = Response { description: text(value, "description"), schema };
            NamedResponseValue { name: name.clone(), value: Some(ResponseValue { response: Some(response) }) }
        };
        Self {
            produces: texts(value, "produces"),
            consumes: texts(value, "consumes"),
            parameters: parameters(value),
            responses: Some(Responses { response_code: entries(&value["responses"]).map(response).collect() }),
            vendor_extension: extensions(value),
        }
    }
}

fn parameters(value: &Value) -> Vec<ParametersItem> {
    value["parameters"].as_array().into_iter().flatten().map(parameter).collect()
}

fn parameter(value: &Value) -> ParametersItem {
    let (place, name, kind) = (text(value, "in"), text(value, "name"), text(value, "type"));
    let required = value["required"].as_bool().unwrap_or_default();
    let unique_items = value["uniqueItems"].as_bool().unwrap_or_default();
    let other = |place| ParameterKind::Other(NonBodyParameter { place: Some(place) });
    let kind = match place.as_str() {
        "body" => {
            let schema = present(&value["schema"]).map(Schema::from);
            ParameterKind::Body(BodyParameter { name, place, required, schema })
        }
        "path" => other(Place::Path(PathParameter { required, place, name, kind, unique_items })),
        _ => other(Place::Query(QueryParameter { place, name, kind, unique_items })),
    };
    ParametersItem { parameter: Some(Parameter { kind: Some(kind) }) }
}

impl From<&Value> for Schemas {
    fn from(value: &Value) -> Self {
        let named =
            |(name, value): (&String, &Value)| NamedSchema { name: name.clone(), value: Some(Schema::from(value)) };
        Self { additional_properties: entries(value).map(named).collect() }
    }
}

impl From<&Value> for Schema {
    fn from(value: &Value) -> Self {
        let kind = text(value, "type");
        Self {
            reference: text(value, "$ref"),
            format: text(value, "format"),
            description: text(value, "description"),
            default: present(&value["default"]).map(any),
            required: texts(value, "required"),
            additional_properties: value["additionalProperties"]
                .is_object()
                .then(|| Box::new(SchemaItem { schema: Some(Self::from(&value["additionalProperties"])) })),
            kind: (!kind.is_empty()).then(|| Strings { value: vec![kind] }),
            items: present(&value["items"]).map(|items| SchemaList { schema: vec![items.into()] }),
            properties: present(&value["properties"]).map(Schemas::from),
            vendor_extension: extensions(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_survives_the_wire() {
        let bytes = document(keelson_kinds::resources());
        let read = Document::decode(&bytes[..]).unwrap();
        assert_eq!(read.swagger, "2.0");
        let definitions = read.definitions.unwrap().additional_properties;
        let pod = definitions.iter().find(|named| named.name == "io.k8s.api.core.v1.Pod").unwrap();
        let pod = pod.value.as_ref().unwrap();
        assert_eq!(pod.kind.as_ref().unwrap().value, ["object"]);
        let extension = pod.vendor_extension.iter().find(|e| e.name == "x-kubernetes-group-version-kind").unwrap();
        assert!(extension.value.as_ref().unwrap().yaml.contains("\"kind\":\"Pod\""));
        let properties = &pod.properties.as_ref().unwrap().additional_properties;
        let spec = properties.iter().find(|named| named.name == "spec").unwrap().value.as_ref().unwrap();
        assert_eq!(spec.reference, "#/definitions/io.k8s.api.core.v1.PodSpec");
        assert!(read.paths.unwrap().path.iter().any(|path| path.name == "/api/v1/namespaces/{namespace}/pods/{name}"));
    }
}
