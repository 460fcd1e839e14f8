//! `metadata.managedFields`: who manages which fields.
//!
//! Invariants: an entry's identity is its manager, operation and subresource, and for updates its version; no two entries share one.
//! Upstream counterpart: `apimachinery/pkg/util/managedfields/internal/{managedfields,capmanagers,stripmeta}.go`.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use crate::fieldpath::{ParseError, Set};
use crate::value::quote;

/// Entries of updates that are kept apart; older ones are merged. Upstream: `DefaultMaxUpdateManagers`.
pub const MAX_UPDATE_MANAGERS: usize = 10;
/// Manager of the entries that were merged. Upstream: `oldUpdatesManagerName`.
pub const ANCIENT_CHANGES: &str = "ancient-changes";
/// Manager of what an object had before it was applied for the first time.
pub const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Manager of a request that names none.
pub const UNKNOWN_MANAGER: &str = "unknown";
/// Bytes of a manager's name. Upstream: `validation.FieldManagerMaxLength`.
pub const MANAGER_MAX_LEN: usize = 128;
/// The only form of field sets.
const FIELDS_TYPE: &str = "FieldsV1";

/// How fields came to be managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Server-side apply.
    Apply,
    /// Anything else.
    Update,
}

impl Operation {
    /// As in the object.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// Who an entry belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManagerId {
    /// Name of the workflow.
    pub manager: String,
    /// How it wrote.
    pub operation: Operation,
    /// Version in which it wrote; empty for [`Operation::Apply`], which has one entry whatever the version.
    pub api_version: String,
    /// Where it wrote; empty for the object itself.
    pub subresource: String,
}

impl ManagerId {
    /// The identity under which a manager writes; an empty name becomes [`UNKNOWN_MANAGER`].
    #[must_use]
    pub fn new(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        Self {
            manager: if manager.is_empty() { UNKNOWN_MANAGER } else { manager }.to_owned(),
            operation,
            api_version: if operation == Operation::Update { api_version.to_owned() } else { String::new() },
            subresource: subresource.to_owned(),
        }
    }

    /// As conflicts name it: `"kubelet" with subresource "status" using v1`.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut out = quote(&self.manager);
        if !self.subresource.is_empty() {
            out.push_str(" with subresource ");
            out.push_str(&quote(&self.subresource));
        }
        if self.operation == Operation::Update {
            out.push_str(" using ");
            out.push_str(&self.api_version);
        }
        out
    }
}

/// Fields, in the version in which they are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionedSet {
    /// The fields.
    pub set: Set,
    /// `apps/v1`.
    pub api_version: String,
}

/// A list that is not what the server wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not a list of objects with the right types of fields.
    #[error("metadata.managedFields is not a list of entries")]
    Shape,
    /// Neither apply nor update.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// No version.
    #[error("apiVersion must not be empty")]
    Version,
    /// No type of fields.
    #[error("missing fieldsType in managed fields entry {0}")]
    NoFieldsType(usize),
    /// Another type of fields.
    #[error("invalid fieldsType {} in managed fields entry {index}", quote(.found))]
    FieldsType {
        /// Which entry.
        index: usize,
        /// What it says.
        found: String,
    },
    /// The fields themselves.
    #[error("error decoding set: {0}")]
    Fields(#[from] ParseError),
}

/// The decoded list. Times outlive their entries, so that an entry that comes back has its own again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managers {
    /// The entries.
    pub entries: BTreeMap<ManagerId, VersionedSet>,
    /// When each was last changed, RFC 3339.
    pub times: HashMap<ManagerId, String>,
}

impl Managers {
    /// Reads `metadata.managedFields`; no list is an empty one.
    ///
    /// # Errors
    /// When any entry is not understood.
    pub fn decode(list: Option<&Value>) -> Result<Self, DecodeError> {
        let mut out = Self::default();
        let entries = match list {
            None | Some(Value::Null) => return Ok(out),
            Some(list) => list.as_array().ok_or(DecodeError::Shape)?,
        };
        for (index, entry) in entries.iter().enumerate() {
            let entry = entry.as_object().ok_or(DecodeError::Shape)?;
            let operation = match text(entry, "operation")? {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return Err(DecodeError::Operation),
            };
            let api_version = text(entry, "apiVersion")?;
            if api_version.is_empty() {
                return Err(DecodeError::Version);
            }
            match text(entry, "fieldsType")? {
                FIELDS_TYPE => {}
                "" => return Err(DecodeError::NoFieldsType(index)),
                found => return Err(DecodeError::FieldsType { index, found: found.to_owned() }),
            }
            let id = ManagerId {
                manager: text(entry, "manager")?.to_owned(),
                operation,
                api_version: if operation == Operation::Update { api_version.to_owned() } else { String::new() },
                subresource: text(entry, "subresource")?.to_owned(),
            };
            let set = entry.get("fieldsV1").map_or_else(|| Ok(Set::new()), Set::from_value)?;
            let time = text(entry, "time")?;
            if !time.is_empty() {
                out.times.insert(id.clone(), time.to_owned());
            }
            out.entries.insert(id, VersionedSet { set, api_version: api_version.to_owned() });
        }
        Ok(out)
    }

    /// The list to write, in upstream's order: applies before updates, older before newer; `None` if there is none.
    #[must_use]
    pub fn encode(&self) -> Option<Value> {
        if self.entries.is_empty() {
            return None;
        }
        let mut order: Vec<_> = self.entries.iter().collect();
        order.sort_by_key(|(id, set)| (id.operation, self.seconds(id), &id.manager, &set.api_version, &id.subresource));
        Some(Value::Array(order.into_iter().map(|(id, set)| self.entry(id, set)).collect()))
    }

    fn entry(&self, id: &ManagerId, set: &VersionedSet) -> Value {
        let mut out = Map::new();
        for (name, v) in [
            ("manager", id.manager.as_str()),
            ("operation", id.operation.as_str()),
            ("apiVersion", &set.api_version),
            ("time", self.times.get(id).map_or("", String::as_str)),
            ("fieldsType", FIELDS_TYPE),
            ("subresource", &id.subresource),
        ] {
            if !v.is_empty() {
                out.insert(name.to_owned(), json!(v));
            }
        }
        out.insert("fieldsV1".to_owned(), set.set.to_value());
        Value::Object(out)
    }

    fn seconds(&self, id: &ManagerId) -> i64 {
        let time = self.times.get(id).and_then(|time| time.parse::<jiff::Timestamp>().ok());
        time.map_or(0, jiff::Timestamp::as_second)
    }

    /// Merges the oldest entries of updates, those of a version into one, until no more than [`MAX_UPDATE_MANAGERS`] are left or there
    /// is nothing to merge.
    pub(crate) fn cap(&mut self) {
        let mut updaters: Vec<ManagerId> =
            self.entries.keys().filter(|id| id.operation == Operation::Update).cloned().collect();
        updaters.sort_by_key(|id| self.seconds(id));
        let mut count = updaters.len();
        let mut first_of_version: HashMap<String, ManagerId> = HashMap::new();
        for id in updaters {
            if count <= MAX_UPDATE_MANAGERS {
                break;
            }
            let Some(version) = self.entries.get(&id).map(|set| set.api_version.clone()) else { continue };
            let Some(first) = first_of_version.get(&version) else {
                first_of_version.insert(version, id);
                continue;
            };
            let bucket = ManagerId::new(ANCIENT_CHANGES, Operation::Update, &version, "");
            if !self.entries.contains_key(&bucket)
                && let Some(set) = self.entries.remove(first)
            {
                self.entries.insert(bucket.clone(), set);
            }
            if bucket != id {
                let Some(merged) = self.entries.remove(&id) else { continue };
                self.entries.entry(bucket.clone()).or_default().set.extend(&merged.set);
            }
            count -= 1;
            match self.times.get(&id).cloned() {
                Some(time) => drop(self.times.insert(bucket, time)),
                None => drop(self.times.remove(&bucket)),
            }
        }
    }

    /// Takes from an entry what nobody manages; an entry without fields goes.
    pub(crate) fn strip(&mut self, id: &ManagerId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.set = entry.set.difference(never_managed());
        if entry.set.is_empty() {
            self.entries.remove(id);
        }
    }
}

fn text<'e>(entry: &'e Map<String, Value>, key: &str) -> Result<&'e str, DecodeError> {
    match entry.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(v) => v.as_str().ok_or(DecodeError::Shape),
    }
}

/// Upstream: `stripSet`.
fn never_managed() -> &'static Set {
    static SET: OnceLock<Set> = OnceLock::new();
    SET.get_or_init(|| {
        Set::of_fields(&[
            &["apiVersion"],
            &["kind"],
            &["metadata"],
            &["metadata", "name"],
            &["metadata", "namespace"],
            &["metadata", "creationTimestamp"],
            &["metadata", "selfLink"],
            &["metadata", "uid"],
            &["metadata", "clusterName"],
            &["metadata", "generation"],
            &["metadata", "managedFields"],
            &["metadata", "resourceVersion"],
        ])
    })
}

/// Whether a client asks to forget all managers: an empty list, or one empty entry.
pub(crate) fn is_reset(list: Option<&Value>) -> bool {
    match list.and_then(Value::as_array).map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

/// The manager of a request: the one it names, or its program, `kubectl` of `kubectl/v1.37.0 (linux/amd64) …`.
#[must_use]
pub fn manager_or_user_agent(manager: &str, user_agent: &str) -> String {
    if !manager.is_empty() {
        return manager.to_owned();
    }
    let mut out = String::new();
    for c in user_agent.split('/').next().unwrap_or_default().chars().filter(|c| is_printable(*c)) {
        if out.len() + c.len_utf8() > MANAGER_MAX_LEN {
            break;
        }
        out.push(c);
    }
    out
}

/// Go's `unicode.IsPrint`, but for unassigned characters.
fn is_printable(c: char) -> bool {
    c == ' ' || !(c.is_control() || c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, version: &str, time: &str) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": version, "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": {format!("f:{manager}"): {}}})
    }

    fn names(list: &Value) -> Vec<&str> {
        list.as_array().expect("list").iter().map(|e| e["manager"].as_str().expect("manager")).collect()
    }

    #[test]
    fn what_is_written_is_read_and_in_order() {
        let list = json!([
            entry("late", "Update", "v1", "2026-01-02T00:00:00Z"),
            entry("b", "Update", "v1", "2026-01-01T00:00:00Z"),
            entry("a", "Update", "v1", "2026-01-01T00:00:00Z"),
            entry("z", "Apply", "v1", "2026-01-03T00:00:00Z"),
        ]);
        let managers = Managers::decode(Some(&list)).expect("managers");
        let written = managers.encode().expect("some");
        assert_eq!(names(&written), ["z", "a", "b", "late"]);
        assert_eq!(Managers::decode(Some(&written)).expect("again"), managers);
        assert_eq!(written[1], entry("a", "Update", "v1", "2026-01-01T00:00:00Z"));
    }

    #[test]
    fn an_applier_has_one_entry_whatever_the_version() {
        let list = json!([entry("a", "Apply", "v1", ""), entry("a", "Apply", "v2", "")]);
        assert_eq!(Managers::decode(Some(&list)).expect("managers").entries.len(), 1);
        let list = json!([entry("a", "Update", "v1", ""), entry("a", "Update", "v2", "")]);
        assert_eq!(Managers::decode(Some(&list)).expect("managers").entries.len(), 2);
    }

    #[test]
    fn entries_that_are_not_understood_are_refused_by_what_is_wrong() {
        for (name, v, message) in [
            ("operation", json!("Patch"), "operation must be `Apply` or `Update`"),
            ("apiVersion", json!(""), "apiVersion must not be empty"),
            ("fieldsType", json!(null), "missing fieldsType in managed fields entry 0"),
            ("fieldsType", json!("FieldsV2"), "invalid fieldsType \"FieldsV2\" in managed fields entry 0"),
            ("fieldsV1", json!([]), "error decoding set: expected an object in managed fields, got []interface {}"),
            ("manager", json!(1), "metadata.managedFields is not a list of entries"),
        ] {
            let mut bad = entry("a", "Update", "v1", "");
            bad[name] = v;
            let error = Managers::decode(Some(&json!([bad]))).expect_err(name);
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn the_oldest_updates_of_a_version_are_merged() {
        let list: Vec<_> = (0..=MAX_UPDATE_MANAGERS)
            .map(|i| entry(&format!("m{i:02}"), "Update", "v1", &format!("2026-01-01T00:00:{i:02}Z")))
            .collect();
        let mut managers = Managers::decode(Some(&json!(list))).expect("managers");
        managers.cap();
        let written = managers.encode().expect("some");
        assert_eq!(written.as_array().map(Vec::len), Some(MAX_UPDATE_MANAGERS));
        assert_eq!(written[0]["manager"], ANCIENT_CHANGES);
        assert_eq!(written[0]["time"], "2026-01-01T00:00:01Z");
        assert_eq!(written[0]["fieldsV1"], json!({"f:m00": {}, "f:m01": {}}));
        assert_eq!(written[1]["manager"], "m02");
    }

    #[test]
    fn an_old_bucket_takes_the_next_one_in() {
        let mut list: Vec<_> = (1..=MAX_UPDATE_MANAGERS)
            .map(|i| entry(&format!("m{i:02}"), "Update", "v1", &format!("2026-01-01T00:00:{i:02}Z")))
            .collect();
        list.push(entry(ANCIENT_CHANGES, "Update", "v1", "2026-01-01T00:00:00Z"));
        let mut managers = Managers::decode(Some(&json!(list))).expect("managers");
        managers.cap();
        let written = managers.encode().expect("some");
        assert_eq!(written.as_array().map(Vec::len), Some(MAX_UPDATE_MANAGERS));
        assert_eq!(written[0]["fieldsV1"], json!({"f:ancient-changes": {}, "f:m01": {}}));
    }

    #[test]
    fn versions_and_appliers_are_not_mixed_when_capped() {
        let mut list: Vec<_> = (0..MAX_UPDATE_MANAGERS)
            .map(|i| entry(&format!("m{i}"), "Update", &format!("v{i}"), "2026-01-01T00:00:00Z"))
            .collect();
        list.push(entry("other", "Update", "v99", "2026-01-01T00:00:00Z"));
        list.push(entry("applier", "Apply", "v1", "2026-01-01T00:00:00Z"));
        let mut managers = Managers::decode(Some(&json!(list))).expect("managers");
        let before = managers.clone();
        managers.cap();
        assert_eq!(managers, before);
    }

    #[test]
    fn managers_are_named_as_conflicts_do() {
        assert_eq!(ManagerId::new("a", Operation::Apply, "v1", "").describe(), "\"a\"");
        assert_eq!(
            ManagerId::new("kubelet", Operation::Update, "v1", "status").describe(),
            "\"kubelet\" with subresource \"status\" using v1"
        );
    }

    #[test]
    fn the_default_manager_is_the_program() {
        assert_eq!(manager_or_user_agent("me", "kubectl/v1"), "me");
        assert_eq!(manager_or_user_agent("", "kubectl/v1.37 (linux/amd64)"), "kubectl");
        assert_eq!(manager_or_user_agent("", "a\u{7}b\n c"), "ab c");
        assert_eq!(manager_or_user_agent("", &"é".repeat(100)).len(), MANAGER_MAX_LEN);
        assert_eq!(ManagerId::new("", Operation::Update, "v1", "").manager, UNKNOWN_MANAGER);
    }

    #[test]
    fn a_reset_is_an_empty_list_or_entry() {
        assert!(is_reset(Some(&json!([]))) && is_reset(Some(&json!([{}]))));
        assert!(!is_reset(None) && !is_reset(Some(&json!(null))) && !is_reset(Some(&json!([{}, {}]))));
        assert!(!is_reset(Some(&json!([entry("a", "Update", "v1", "")]))));
    }
}
