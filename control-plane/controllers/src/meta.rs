//! Owner references, selectors, numbers-or-percentages, conditions: small facts about objects that several
//! controllers need.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::core::Selector;

/// The reference marked as controller.
pub fn controller_of<K: Resource>(object: &K) -> Option<&OwnerReference> {
    let owners = object.meta().owner_references.as_ref()?;
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// The UID of the controller, if the object has one of this kind.
pub fn controller_uid<'a, K: Resource>(object: &'a K, kind: &str) -> Option<&'a str> {
    controller_of(object).filter(|owner| owner.kind == kind).map(|owner| owner.uid.as_str())
}

/// A reference that makes `owner` the controller.
pub fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: name_of(owner).to_owned(),
        uid: uid_of(owner).to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The object's name, or nothing.
pub fn name_of<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or("")
}

/// The object's namespace, or nothing.
pub fn namespace_of<K: Resource>(object: &K) -> &str {
    object.meta().namespace.as_deref().unwrap_or("")
}

/// The object's UID, or nothing.
pub fn uid_of<K: Resource>(object: &K) -> &str {
    object.meta().uid.as_deref().unwrap_or("")
}

/// It was deleted and waits for its end.
pub fn is_deleting<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// When the object was made.
pub fn created<K: Resource>(object: &K) -> Timestamp {
    object.meta().creation_timestamp.as_ref().map_or(Timestamp::MIN, |t| t.0)
}

/// The labels, or none.
pub fn labels<K: Resource>(object: &K) -> &BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    object.meta().labels.as_ref().unwrap_or(&NONE)
}

/// The annotation, or nothing.
pub fn annotation<'a, K: Resource>(object: &'a K, key: &str) -> Option<&'a str> {
    object.meta().annotations.as_ref()?.get(key).map(String::as_str)
}

/// The workload's selector; `None` if it is invalid or selects everything (which a workload may not).
pub fn workload_selector(selector: &LabelSelector) -> Option<Selector> {
    let selector = Selector::try_from(selector.clone()).ok()?;
    (!selector.selects_all()).then_some(selector)
}

/// A number of seconds of the API; none and negative ones are zero.
pub fn seconds(number: Option<i32>) -> Duration {
    Duration::from_secs(u64::try_from(number.unwrap_or(0)).unwrap_or(0))
}

/// A count as the API writes it.
pub fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// A count that is left out when it is zero.
pub fn nonzero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

/// How a percentage becomes a number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// To the next higher number.
    Up,
    /// To the next lower number.
    Down,
}

/// `25%` or `3` of a total; what cannot be read counts as 0 (the API refuses it anyway).
pub fn scaled(value: &IntOrString, total: i32, round: Round) -> i32 {
    match value {
        IntOrString::Int(number) => (*number).max(0),
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let product = percent.max(0) * i64::from(total.max(0));
            let result = match round {
                Round::Up => (product + 99) / 100,
                Round::Down => product / 100,
            };
            i32::try_from(result).unwrap_or(i32::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_as_told() {
        let quarter = IntOrString::String("25%".to_owned());
        assert_eq!(scaled(&quarter, 10, Round::Up), 3);
        assert_eq!(scaled(&quarter, 10, Round::Down), 2);
        assert_eq!(scaled(&IntOrString::Int(7), 10, Round::Up), 7);
        assert_eq!(scaled(&IntOrString::String("x".to_owned()), 10, Round::Up), 0);
    }

    #[test]
    fn an_empty_selector_selects_nothing_for_a_workload() {
        assert!(workload_selector(&LabelSelector::default()).is_none());
    }
}
