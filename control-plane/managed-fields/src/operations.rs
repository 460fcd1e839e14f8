//! The two calls of an API server: [`updated`] after it made the new object of a create, update or patch, [`applied`] for an apply.
//!
//! Upstream counterpart: `apimachinery/pkg/util/managedfields/internal/{fieldmanager,managedfieldsupdater,skipnonapplied,
//! lastappliedmanager,lastappliedupdater}.go` and `apiserver/pkg/endpoints/handlers/fieldmanager/equality.go`.

use serde_json::{Map, Value, json};

use crate::error::{ApplyError, Conflicts, UpdateError};
use crate::fieldpath::Set;
use crate::managers::{self, BEFORE_FIRST_APPLY, ManagerId, Managers, Operation};
use crate::typed::{Duplicates, validate};
use crate::updater::Updater;
use crate::value;
use crate::versions::Versions;

/// The manager whose applies take over from client-side apply.
const KUBECTL: &str = "kubectl";
/// Where client-side apply keeps its last configuration.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Bytes of all annotations together. Upstream: `validation.TotalAnnotationSizeLimitB`.
const ANNOTATIONS_MAX_LEN: usize = 256 * 1024;

/// Who writes, how and when.
#[derive(Clone, Debug)]
pub struct Request<'r> {
    /// `fieldManager`, or by [`managers::manager_or_user_agent`].
    pub manager: &'r str,
    /// Version of the URL, in which the objects are.
    pub api_version: &'r str,
    /// Empty for the object itself.
    pub subresource: &'r str,
    /// Now.
    pub now: jiff::Timestamp,
    /// Whether an apply takes over what others have.
    pub force: bool,
}

impl Request<'_> {
    fn time(&self) -> String {
        // Timestamps of objects have whole seconds.
        jiff::Timestamp::from_second(self.now.as_second()).unwrap_or(self.now).to_string()
    }

    fn id(&self, manager: &str, operation: Operation) -> ManagerId {
        ManagerId::new(manager, operation, self.api_version, self.subresource)
    }
}

/// Sets `metadata.managedFields` of `new` after a create (`live` is `None`), update or patch other than apply. What `new` itself says
/// there is taken if it can be read, as upstream does; `[]` and `[{}]` forget all managers; through a subresource the live list counts.
/// A write that changes nothing leaves the list as it was, times and all.
///
/// `ignored` are the fields that such a write cannot change (`status` for the object itself, `spec` and most of `metadata` for its
/// status); `new` should have them as `live` has.
///
/// # Errors
/// When the objects do not fit their types or cannot be converted; `new` then has the managers of `live`, and may be stored so.
pub fn updated<'a, V: Versions<'a>>(
    versions: &V,
    live: Option<&Value>,
    new: &mut Value,
    request: &Request<'_>,
    ignored: &Set,
) -> Result<(), UpdateError> {
    let live_list = live.and_then(list_of);
    let given = take_list(new);
    let mut managers = of_request(live_list, given.as_ref(), request);
    let empty;
    let live_object = match live {
        Some(live) => live,
        None => {
            empty = versions.empty();
            &empty
        }
    };
    if managers.entries.is_empty() && live.is_some() {
        // Nobody is known, and it is too late to tell who made what.
        return Ok(());
    }
    let live_object = without_list(live_object);
    if let Err(error) = update(versions, &live_object, new, &mut managers, request, request.manager, ignored) {
        put_list(new, live_list.cloned());
        return Err(error);
    }
    let list = managers.encode();
    let unchanged = live.is_some() && same_object(&live_object, new) && same_but_times(live_list, list.as_ref());
    put_list(new, if unchanged { live_list.cloned() } else { list });
    Ok(())
}

/// The managers that an update starts from.
fn of_request(live: Option<&Value>, given: Option<&Value>, request: &Request<'_>) -> Managers {
    let stored = || Managers::decode(live).unwrap_or_default();
    if !request.subresource.is_empty() {
        return stored();
    }
    if managers::is_reset(given) {
        return Managers::default();
    }
    match Managers::decode(given) {
        Ok(given) if !given.entries.is_empty() => given,
        _ => stored(),
    }
}

fn update<'a, V: Versions<'a>>(
    versions: &V,
    live: &Value,
    new: &Value,
    managers: &mut Managers,
    request: &Request<'_>,
    manager: &str,
    ignored: &Set,
) -> Result<(), UpdateError> {
    let t =
        versions.type_of(request.api_version).ok_or_else(|| UpdateError::Version(request.api_version.to_owned()))?;
    validate(new, t, Duplicates::Allowed)
        .map_err(|errors| UpdateError::New { object: describe(new, request), errors })?;
    validate(live, t, Duplicates::Allowed)
        .map_err(|errors| UpdateError::Live { object: describe(live, request), errors })?;
    // The write owns what it changes under a name of its own, to tell whether it changed anything.
    let this = ManagerId {
        manager: "current-operation".to_owned(),
        operation: Operation::Update,
        api_version: String::new(),
        subresource: String::new(),
    };
    Updater { versions, version: request.api_version, workflow: &this, ignored }.update(
        live,
        new,
        &mut managers.entries,
    )?;
    managers.strip(&this);
    if let Some(changed) = managers.entries.remove(&this) {
        let id = request.id(manager, Operation::Update);
        let entry = managers.entries.entry(id.clone()).or_default();
        entry.set.extend(&changed.set);
        entry.api_version = changed.api_version;
        managers.times.insert(id, request.time());
    }
    managers.cap();
    Ok(())
}

/// Applies `config` to `live` (`None` creates) and answers the new object with its managers, for the caller to default, validate and
/// store. The caller has checked apiVersion, kind, name and namespace of `config`. A configuration that changes neither the object nor
/// what its manager owns answers with `live` as it is.
///
/// # Errors
/// Conflicts without force; a configuration that does not fit its type or has managers; stored managers that cannot be read.
pub fn applied<'a, V: Versions<'a>>(
    versions: &V,
    live: Option<&Value>,
    config: &Value,
    request: &Request<'_>,
    ignored: &Set,
) -> Result<Value, ApplyError> {
    if list_of(config).is_some_and(Value::is_array) {
        return Err(ApplyError::ManagedFields);
    }
    let live_list = live.and_then(list_of);
    let mut managers = Managers::decode(live_list)?;
    let live_object = live.map_or_else(|| Value::Object(Map::new()), without_list);
    let t =
        versions.type_of(request.api_version).ok_or_else(|| UpdateError::Version(request.api_version.to_owned()))?;
    validate(config, t, Duplicates::Refused)
        .map_err(|errors| ApplyError::Config { object: describe(config, request), errors })?;
    validate(&live_object, t, Duplicates::Allowed)
        .map_err(|errors| UpdateError::Live { object: describe(&live_object, request), errors })?;
    if managers.entries.is_empty() && live.is_some() {
        let empty = versions.empty();
        update(versions, &empty, &live_object, &mut managers, request, BEFORE_FIRST_APPLY, ignored)?;
    }
    let id = request.id(request.manager, Operation::Apply);
    let updater = Updater { versions, version: request.api_version, workflow: &id, ignored };
    let new = apply_over_client_side(&updater, &live_object, config, &mut managers, request)?;
    managers.strip(&id);
    managers.times.insert(id, request.time());
    let mut out = new.unwrap_or_else(|| live_object.clone());
    if request.manager == KUBECTL && last_applied(&out).is_some_and(|text| !text.is_empty()) {
        set_last_applied(&mut out, config);
    }
    let list = managers.encode();
    let unchanged = live.is_some() && same_object(&live_object, &out) && same_but_times(live_list, list.as_ref());
    put_list(&mut out, if unchanged { live_list.cloned() } else { list });
    Ok(out)
}

/// Applies; conflicts with what kubectl applied by itself before are none for kubectl.
fn apply_over_client_side<'a, V: Versions<'a>>(
    updater: &Updater<'_, V>,
    live: &Value,
    config: &Value,
    managers: &mut Managers,
    request: &Request<'_>,
) -> Result<Option<Value>, ApplyError> {
    let mut entries = managers.entries.clone();
    match updater.apply(live, config, &mut entries, request.force) {
        Ok(new) => {
            managers.entries = entries;
            Ok(new)
        }
        Err(ApplyError::Conflicts(conflicts)) if request.manager == KUBECTL => {
            let Some(allowed) = client_side(updater, live, request) else {
                return Err(ApplyError::Conflicts(conflicts));
            };
            if conflicts.paths().difference(&allowed).is_empty() {
                return updater.apply(live, config, &mut managers.entries, true);
            }
            let rest = conflicts.0.into_iter().filter(|conflict| !allowed.has(&conflict.path.0)).collect();
            Err(ApplyError::Conflicts(Conflicts(rest)))
        }
        Err(error) => Err(error),
    }
}

/// The fields that client-side apply set and that are still so.
fn client_side<'a, V: Versions<'a>>(updater: &Updater<'_, V>, live: &Value, request: &Request<'_>) -> Option<Set> {
    let text = last_applied(live).filter(|text| !text.is_empty())?;
    let applied: Value = serde_json::from_str(text).ok()?;
    if applied.get("apiVersion").and_then(Value::as_str) != Some(request.api_version) {
        return None;
    }
    updater.still_applied(&applied, live).ok()
}

fn last_applied(object: &Value) -> Option<&str> {
    object.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str()
}

/// Keeps the annotation of client-side apply up to date, so that one can go back to it.
fn set_last_applied(object: &mut Value, config: &Value) {
    let mut config = config.clone();
    if let Some(annotations) = annotations(&mut config) {
        annotations.remove(LAST_APPLIED);
    }
    let mut text = String::new();
    value::write_value(&mut text, &config);
    text.push('\n');
    let Some(annotations) = annotations(object) else { return };
    annotations.insert(LAST_APPLIED.to_owned(), json!(text));
    let size: usize = annotations.iter().map(|(key, v)| key.len() + v.as_str().map_or(0, str::len)).sum();
    if size > ANNOTATIONS_MAX_LEN {
        annotations.remove(LAST_APPLIED);
    }
}

fn annotations(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.get_mut("metadata")?.get_mut("annotations")?.as_object_mut()
}

fn list_of(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

fn take_list(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

fn without_list(object: &Value) -> Value {
    let mut out = object.clone();
    take_list(&mut out);
    out
}

fn put_list(object: &mut Value, list: Option<Value>) {
    take_list(object);
    let Some(object) = object.as_object_mut() else { return };
    let Some(list) = list else { return };
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("managedFields".to_owned(), list);
    }
}

/// Whether two objects without managers are the same but for their resource version.
fn same_object(a: &Value, b: &Value) -> bool {
    let strip = |v: &Value| {
        let mut v = v.clone();
        if let Some(metadata) = v.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        v
    };
    value::equal(&strip(a), &strip(b))
}

fn same_but_times(a: Option<&Value>, b: Option<&Value>) -> bool {
    let (Ok(a), Ok(b)) = (Managers::decode(a), Managers::decode(b)) else { return false };
    a.entries == b.entries
}

/// `ns/name; apps/v1, Kind=Deployment`.
fn describe(object: &Value, request: &Request<'_>) -> String {
    let text = |v: Option<&Value>| v.and_then(Value::as_str).unwrap_or_default().to_owned();
    let metadata = object.get("metadata");
    let version = text(object.get("apiVersion"));
    let version = if version.is_empty() { request.api_version.to_owned() } else { version };
    let version = if version.contains('/') { version } else { format!("/{version}") };
    format!(
        "{}/{}; {version}, Kind={}",
        text(metadata.and_then(|m| m.get("namespace"))),
        text(metadata.and_then(|m| m.get("name"))),
        text(object.get("kind"))
    )
}
