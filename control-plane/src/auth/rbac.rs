//! RBAC: the stored roles and bindings, compiled, and compiled again when one of them changes.
//!
//! Upstream counterpart: `plugin/pkg/auth/authorizer/rbac`.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{Attributes, User};
use crate::cache::{Derived, Hub, WatchCache};
use crate::store::Revision;

/// API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// One rule of a role.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Verbs, `*` for all.
    pub verbs: Vec<String>,
    /// API groups.
    pub api_groups: Vec<String>,
    /// Resources, `pods/log` for a subresource, `*/scale` for one of all.
    pub resources: Vec<String>,
    /// Only objects of these names.
    pub resource_names: Vec<String>,
    /// URL paths, a closing `*` matches the rest.
    #[serde(rename = "nonResourceURLs")]
    pub non_resource_urls: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subject {
    kind: String,
    name: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Debug)]
struct Binding {
    subjects: Vec<Subject>,
    rules: Arc<[Rule]>,
}

/// All rules, by where they apply.
#[derive(Debug, Default)]
struct Index {
    cluster: Vec<Binding>,
    namespaced: HashMap<String, Vec<Binding>>,
}

/// Evaluates the stored RBAC objects.
#[derive(Debug)]
pub struct Rbac {
    hub: Arc<Hub>,
    compiled: Derived<[Revision; 4], Index>,
}

const PLURALS: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];

impl Rbac {
    /// Over the caches of a hub.
    #[must_use]
    pub fn new(hub: Arc<Hub>) -> Self {
        Self { hub, compiled: Derived::default() }
    }

    /// Whether the RBAC kinds are served at all; without them nobody but `system:masters` and nodes could do anything.
    #[must_use]
    pub fn available(&self) -> bool {
        PLURALS.iter().all(|plural| self.cache(plural).is_some())
    }

    fn cache(&self, plural: &str) -> Option<Arc<WatchCache>> {
        self.hub.cache(keelson_kinds::lookup(GROUP, "v1", plural)?)
    }

    fn index(&self) -> Arc<Index> {
        let versions = PLURALS.map(|plural| self.cache(plural).map_or(0, |c| c.last_change()));
        self.compiled.get(versions, || self.compile())
    }

    fn compile(&self) -> Index {
        let roles = |plural: &str| -> HashMap<(String, String), Arc<[Rule]>> {
            self.values(plural)
                .map(|role| {
                    let key = (text(&role["metadata"]["namespace"]), text(&role["metadata"]["name"]));
                    let rules: Vec<Rule> = serde_json::from_value(role["rules"].clone()).unwrap_or_default();
                    (key, rules.into())
                })
                .collect()
        };
        let cluster_roles = roles(PLURALS[0]);
        let local_roles = roles(PLURALS[2]);
        let bind = |binding: &Value, namespace: &str| -> Option<Binding> {
            let reference = &binding["roleRef"];
            let name = text(&reference["name"]);
            let rules = match reference["kind"].as_str()? {
                "ClusterRole" => cluster_roles.get(&(String::new(), name))?,
                "Role" => local_roles.get(&(namespace.to_owned(), name))?,
                _ => return None,
            };
            let mut subjects: Vec<Subject> = serde_json::from_value(binding["subjects"].clone()).unwrap_or_default();
            for subject in subjects.iter_mut().filter(|s| s.namespace.is_empty()) {
                namespace.clone_into(&mut subject.namespace);
            }
            Some(Binding { subjects, rules: Arc::clone(rules) })
        };
        let mut index = Index::default();
        index.cluster.extend(self.values(PLURALS[1]).filter_map(|b| bind(&b, "")));
        for binding in self.values(PLURALS[3]) {
            let namespace = text(&binding["metadata"]["namespace"]);
            if let Some(bound) = bind(&binding, &namespace) {
                index.namespaced.entry(namespace).or_default().push(bound);
            }
        }
        index
    }

    fn values(&self, plural: &str) -> impl Iterator<Item = Value> + use<> {
        self.cache(plural).into_iter().flat_map(|cache| cache.values(None))
    }

    /// Whether some rule that applies to the user grants the request.
    #[must_use]
    pub fn allows(&self, user: &User, attributes: &Attributes) -> bool {
        self.applicable(user, &attributes.namespace, |rule| grants(rule, attributes))
    }

    /// Every rule that applies to a user in a namespace.
    #[must_use]
    pub fn rules_for(&self, user: &User, namespace: &str) -> Vec<Rule> {
        let mut rules = Vec::new();
        self.applicable(user, namespace, |rule| {
            rules.push(rule.clone());
            false
        });
        rules
    }

    fn applicable(&self, user: &User, namespace: &str, stop: impl FnMut(&Rule) -> bool) -> bool {
        let index = self.index();
        let local = (!namespace.is_empty()).then(|| index.namespaced.get(namespace)).flatten();
        index
            .cluster
            .iter()
            .chain(local.into_iter().flatten())
            .filter(|binding| binding.subjects.iter().any(|subject| is_subject(subject, user)))
            .flat_map(|binding| binding.rules.iter())
            .any(stop)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn is_subject(subject: &Subject, user: &User) -> bool {
    match subject.kind.as_str() {
        "User" => user.name == subject.name,
        "Group" => user.in_group(&subject.name),
        "ServiceAccount" => {
            user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'))
                == Some((subject.namespace.as_str(), subject.name.as_str()))
        }
        _ => false,
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

fn grants(rule: &Rule, attributes: &Attributes) -> bool {
    if !has(&rule.verbs, &attributes.verb) {
        return false;
    }
    if attributes.resource.is_empty() {
        return rule.non_resource_urls.iter().any(|url| match url.strip_suffix('*') {
            Some(prefix) => attributes.path.starts_with(prefix),
            None => *url == attributes.path,
        });
    }
    let full = attributes.full_resource();
    let any_of_sub = format!("*/{}", attributes.subresource);
    has(&rule.api_groups, &attributes.group)
        && rule
            .resources
            .iter()
            .any(|r| r == "*" || *r == full || (!attributes.subresource.is_empty() && *r == any_of_sub))
        && (rule.resource_names.is_empty() || rule.resource_names.contains(&attributes.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Rule {
            verbs: own(verbs),
            api_groups: own(groups),
            resources: own(resources),
            resource_names: own(names),
            non_resource_urls: Vec::new(),
        }
    }

    fn asks(verb: &str, group: &str, resource: &str, subresource: &str, name: &str) -> Attributes {
        Attributes {
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            name: name.into(),
            ..Attributes::default()
        }
    }

    #[test]
    fn rules_grant_what_they_name_and_no_more() {
        let pods = rule(&["get", "list"], &[""], &["pods"], &[]);
        assert!(grants(&pods, &asks("get", "", "pods", "", "a")));
        assert!(!grants(&pods, &asks("delete", "", "pods", "", "a")));
        assert!(!grants(&pods, &asks("get", "", "pods", "log", "a")));
        assert!(!grants(&pods, &asks("get", "apps", "pods", "", "a")));
        let named = rule(&["get"], &[""], &["secrets"], &["one"]);
        assert!(grants(&named, &asks("get", "", "secrets", "", "one")));
        assert!(!grants(&named, &asks("get", "", "secrets", "", "two")));
        assert!(!grants(&named, &asks("list", "", "secrets", "", "")));
        let scale = rule(&["*"], &["*"], &["*/scale"], &[]);
        assert!(grants(&scale, &asks("update", "apps", "deployments", "scale", "x")));
        assert!(!grants(&scale, &asks("update", "apps", "deployments", "", "x")));
        assert!(grants(&rule(&["*"], &["*"], &["*"], &[]), &asks("x", "y", "z", "s", "n")));
    }

    #[test]
    fn urls_match_exactly_or_by_prefix() {
        let rule = Rule {
            verbs: vec!["get".into()],
            non_resource_urls: vec!["/version".into(), "/openapi/*".into()],
            ..Rule::default()
        };
        let asks = |path: &str| Attributes { verb: "get".into(), path: path.into(), ..Attributes::default() };
        assert!(grants(&rule, &asks("/version")));
        assert!(!grants(&rule, &asks("/version/x")));
        assert!(grants(&rule, &asks("/openapi/v3")));
        assert!(!grants(&rule, &asks("/openapi")));
    }

    #[test]
    fn service_accounts_are_subjects_by_namespace_and_name() {
        let subject = Subject { kind: "ServiceAccount".into(), name: "b".into(), namespace: "a".into() };
        let user = |name: &str| User { name: name.into(), ..User::default() };
        assert!(is_subject(&subject, &user("system:serviceaccount:a:b")));
        assert!(!is_subject(&subject, &user("system:serviceaccount:b:a")));
        assert!(!is_subject(&subject, &user("a:b")));
    }
}
