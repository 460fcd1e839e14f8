//! Handlers: one function per verb, and the subresources that are more than a part of their object.

pub mod connect;
pub mod delete;
pub mod eviction;
pub mod log;
pub mod ownership;
pub mod raw;
pub mod read;
pub mod review;
pub mod subresource;
pub mod token;
pub mod watch;
pub mod write;

use bytes::Bytes;
use http::{Response, StatusCode};
use keelson_kinds::decode::{self, FieldValidation, Format};
use keelson_kinds::write::{SUFFIX_ALPHABET, SUFFIX_LEN};
use keelson_kinds::{ApiError, FieldError, Resource, Verb, WriteContext, table};
use rand::RngExt;
use serde_json::{Value, json};

use crate::http::Call;
use crate::http::body::{self, Body};
use crate::http::negotiate::{Representation, representation};
use crate::protobuf;

/// Refuses what a kind or subresource does not serve.
///
/// # Errors
/// 404 for an unknown subresource, 405 for a verb it does not have.
pub fn check_served(res: &Resource, verb: &str, named: bool, subresource: &str) -> Result<(), ApiError> {
    let is = |v: &Verb| v.as_str() == verb;
    if subresource.is_empty() {
        let served = res.verbs.iter().any(is) && !(named && verb == "create");
        return if served { Ok(()) } else { Err(ApiError::method_not_allowed(res, verb)) };
    }
    let sub = res.subresource(subresource).ok_or_else(ApiError::no_such_resource)?;
    if sub.verbs.iter().any(is) { Ok(()) } else { Err(ApiError::method_not_allowed(res, verb)) }
}

/// Runs the handler of a request.
///
/// # Errors
/// The `Status` to answer with.
pub async fn dispatch(call: Call) -> Result<Response<Body>, ApiError> {
    if !call.res.stored() {
        return review::create(&call).await;
    }
    if call.server.store.shared() && wants_the_newest(&call) {
        call.server.fresh().await?;
    }
    match (call.verb, call.subresource.as_str()) {
        (_, "scale") => subresource::scale(&call).await,
        ("create", "binding") => subresource::bind(&call).await,
        ("create", "eviction") => eviction::evict(&call).await,
        ("create", "token") => token::create(&call).await,
        ("get", "log") => log::get(&call).await,
        ("get", "" | "status" | "ephemeralcontainers" | "resize" | "approval") => read::get(&call).await,
        ("list", "") => read::list(&call).await,
        ("watch", "") => watch::watch(&call).await,
        ("create", "") => write::create(&call).await,
        ("update", _) => write::update(&call).await,
        ("patch", _) => write::patch(&call).await,
        ("delete", "") => delete::delete(&call).await,
        ("deletecollection", "") => delete::collection(&call).await,
        _ => Err(ApiError::method_not_allowed(call.res, call.verb)),
    }
}

/// Whether a request has to see all that was acknowledged before it, also by other servers: all but reads that name a revision.
fn wants_the_newest(call: &Call) -> bool {
    !matches!(call.verb, "get" | "list" | "watch") || call.query.get("resourceVersion").is_empty()
}

/// The `dryRun` parameter.
///
/// # Errors
/// 422 for anything but `All`.
pub fn dry_run(call: &Call) -> Result<bool, ApiError> {
    let mut values = call.query.all("dryRun").filter(|v| !v.is_empty()).peekable();
    let given = values.peek().is_some();
    match values.find(|v| *v != "All") {
        None => Ok(given),
        Some(other) => Err(ApiError::invalid(
            "meta.k8s.io",
            "CreateOptions",
            "",
            &[FieldError::not_supported("dryRun", other, &["All"])],
        )),
    }
}

/// The `fieldValidation` parameter.
///
/// # Errors
/// 400.
pub fn strictness(call: &Call) -> Result<FieldValidation, ApiError> {
    FieldValidation::parse(call.query.get("fieldValidation"))
}

/// Decodes the body as an object of the call's kind, or of its subresource `sub`.
///
/// # Errors
/// 400 and 415.
pub fn decode_body(call: &Call, sub: Option<&str>) -> Result<decode::Decoded, ApiError> {
    if is_protobuf(call) {
        // The client had a type for it, so it has no unknown fields to complain of.
        return decode::object(call.res, sub, protobuf::decode(&call.body)?, FieldValidation::Ignore);
    }
    decode::body(call.res, sub, &call.body, format(call)?, strictness(call)?)
}

/// Parses the body without a schema.
///
/// # Errors
/// 400 and 415.
pub fn parse_body(call: &Call) -> Result<Value, ApiError> {
    if is_protobuf(call) {
        return Ok(protobuf::decode(&call.body)?);
    }
    decode::parse(&call.body, format(call)?)
}

fn is_protobuf(call: &Call) -> bool {
    let media = call.header(http::header::CONTENT_TYPE).split(';').next().unwrap_or_default();
    media.trim() == protobuf::MEDIA_TYPE
}

fn format(call: &Call) -> Result<Format, ApiError> {
    Format::from_content_type(Some(call.header(http::header::CONTENT_TYPE)).filter(|t| !t.is_empty()))
}

/// The random part of a generated name.
#[must_use]
pub fn random_suffix() -> String {
    let mut rng = rand::rng();
    let alphabet = SUFFIX_ALPHABET.as_bytes();
    (0..SUFFIX_LEN).map(|_| char::from(alphabet[rng.random_range(0..alphabet.len())])).collect()
}

/// What a write borrows.
#[derive(Debug)]
pub struct Fresh {
    now: jiff::Timestamp,
    uid: String,
    suffix: String,
}

impl Fresh {
    /// A new uid and suffix, now.
    #[must_use]
    pub fn new() -> Self {
        Self { now: jiff::Timestamp::now(), uid: uuid::Uuid::new_v4().to_string(), suffix: random_suffix() }
    }

    /// For a write in a namespace.
    #[must_use]
    pub fn context<'a>(&'a self, namespace: &'a str) -> WriteContext<'a> {
        WriteContext { now: self.now, uid: &self.uid, suffix: &self.suffix, namespace }
    }
}

impl Default for Fresh {
    fn default() -> Self {
        Self::new()
    }
}

/// The `includeObject` parameter of tables.
#[must_use]
pub fn include_object(call: &Call) -> table::IncludeObject {
    match call.query.get("includeObject") {
        "None" => table::IncludeObject::None,
        "Object" => table::IncludeObject::Object,
        _ => table::IncludeObject::Metadata,
    }
}

/// How the client wants objects.
#[must_use]
pub fn wanted(call: &Call) -> Representation {
    representation(Some(call.header(http::header::ACCEPT)))
}

/// Answers with one encoded object in the representation the client asked for.
#[must_use]
pub fn one(call: &Call, status: StatusCode, json: Bytes, warnings: &[String]) -> Response<Body> {
    let bytes: Bytes = match wanted(call) {
        Representation::Table => {
            let value: Value = serde_json::from_slice(&json).unwrap_or_default();
            let meta = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
            let table = table::render(call.res, &[&value], meta, include_object(call), jiff::Timestamp::now(), true);
            table.to_string().into()
        }
        Representation::Partial => {
            let value: Value = serde_json::from_slice(&json).unwrap_or_default();
            table::partial(&value).to_string().into()
        }
        Representation::Plain | Representation::Discovery => json,
    };
    let mut response = body::json(status, bytes);
    body::add_warnings(&mut response, warnings);
    response
}

/// Answers with one value.
#[must_use]
pub fn one_value(call: &Call, status: StatusCode, value: &Value, warnings: &[String]) -> Response<Body> {
    one(call, status, value.to_string().into(), warnings)
}
