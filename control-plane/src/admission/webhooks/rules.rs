//! Which requests a webhook is asked about.
//!
//! Upstream counterpart: `apiserver/pkg/admission/plugin/webhook/predicates/rules`.

use keelson_kinds::{Resource, Scope};
use serde_json::Value;

use super::config::Hook;
use crate::admission::Operation;

/// One rule of a webhook.
#[derive(Debug)]
pub(super) struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    scope: Option<Scope>,
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|entry| entry == "*" || entry == wanted)
}

impl Rule {
    pub(super) fn read(rule: &Value) -> Self {
        let list = |field: &str| serde_json::from_value(rule[field].clone()).unwrap_or_default();
        Self {
            operations: list("operations"),
            groups: list("apiGroups"),
            versions: list("apiVersions"),
            resources: list("resources"),
            scope: match rule["scope"].as_str() {
                Some("Cluster") => Some(Scope::Cluster),
                Some("Namespaced") => Some(Scope::Namespaced),
                _ => None,
            },
        }
    }

    fn matches(&self, res: &Resource, subresource: &str, operation: Operation) -> bool {
        // A namespace is a cluster-scoped object although its requests carry a namespace.
        self.scope.is_none_or(|scope| scope == res.scope)
            && has(&self.operations, operation.as_str())
            && has(&self.groups, res.group)
            && has(&self.versions, res.version)
            && self.resources.iter().any(|pattern| names(pattern, res.plural, subresource))
    }
}

/// Whether `pods`, `pods/log`, `*`, `pods/*`, `*/scale` or `*/*` names a resource.
fn names(pattern: &str, plural: &str, subresource: &str) -> bool {
    let (resource, sub) = pattern.split_once('/').unwrap_or((pattern, ""));
    (resource == "*" || resource == plural) && (sub == "*" || sub == subresource)
}

/// The kind that a webhook wants to see the object as, if it is to be asked at all.
pub(super) fn matching(
    hook: &Hook,
    table: &[&'static Resource],
    res: &'static Resource,
    subresource: &str,
    operation: Operation,
) -> Option<&'static Resource> {
    let named = |res: &Resource| hook.rules.iter().any(|rule| rule.matches(res, subresource, operation));
    if named(res) {
        return Some(res);
    }
    if !hook.equivalent || !res.stored() {
        return None;
    }
    // Other versions of the same objects.
    let others = table.iter().copied().filter(|other| other.storage_prefix == res.storage_prefix);
    others.into_iter().find(|other| named(other))
}

#[cfg(test)]
mod tests {
    use keelson_kinds::lookup;
    use serde_json::json;

    use super::*;

    fn rule(operations: &[&str], groups: &[&str], resources: &[&str], scope: &str) -> Rule {
        Rule::read(&json!({"operations": operations, "apiGroups": groups, "apiVersions": ["v1"],
            "resources": resources, "scope": scope}))
    }

    fn matches(rule: &Rule, group: &str, plural: &str, subresource: &str, operation: Operation) -> bool {
        rule.matches(lookup(group, "v1", plural).unwrap(), subresource, operation)
    }

    #[test]
    fn patterns_of_resources() {
        let of = |pattern: &str, sub: &str| names(pattern, "pods", sub);
        assert!(of("pods", "") && !of("pods", "log") && of("pods/*", "log") && of("pods/*", "") && of("*", ""));
        assert!(!of("*", "log") && of("*/log", "log") && !of("*/log", "") && of("*/*", "log") && !of("nodes", ""));
    }

    #[test]
    fn operations_groups_and_scopes() {
        let pods = rule(&["CREATE"], &[""], &["pods"], "*");
        assert!(matches(&pods, "", "pods", "", Operation::Create));
        assert!(!matches(&pods, "", "pods", "", Operation::Delete));
        assert!(!matches(&pods, "apps", "deployments", "", Operation::Create));
        let cluster = rule(&["*"], &["*"], &["*"], "Cluster");
        assert!(matches(&cluster, "", "namespaces", "", Operation::Delete));
        assert!(!matches(&cluster, "", "pods", "", Operation::Delete));
    }
}
