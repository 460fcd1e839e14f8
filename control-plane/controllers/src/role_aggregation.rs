//! Cluster roles that are made of others: `admin`, `edit` and `view` take in what operators label for them.
//!
//! Upstream counterpart: `pkg/controller/clusterroleaggregation`.

use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::core::{Selector, SelectorExt};

use crate::engine::{Caches, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::meta::{labels, name_of};

/// The controller.
pub struct RoleAggregation {
    caches: Arc<Caches>,
    roles: Kind<ClusterRole>,
}

impl RoleAggregation {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>) -> Self {
        Self { roles: Kind::new(caches.client.clone(), Arc::clone(&caches.cluster_roles)), caches: Arc::clone(caches) }
    }

    /// Makes every change of a role fill `queue` with all roles that are made of others.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.cluster_roles.on_change(move |_| {
            for role in caches.cluster_roles.all().into_iter().filter(|role| role.aggregation_rule.is_some()) {
                target.add(Key::of(role.as_ref()));
            }
        });
    }
}

/// The rules that a role should have: those of all roles that it selects, by name, each once. `None` for one that has its own.
fn aggregated(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Option<Vec<PolicyRule>> {
    let rule = role.aggregation_rule.as_ref()?;
    let selectors: Vec<Selector> = rule
        .cluster_role_selectors
        .iter()
        .flatten()
        .filter_map(|selector| Selector::try_from(selector.clone()).ok())
        .collect();
    let mut parts: Vec<&Arc<ClusterRole>> = all
        .iter()
        .filter(|part| name_of(part.as_ref()) != name_of(role))
        .filter(|part| selectors.iter().any(|selector| selector.matches(labels(part.as_ref()))))
        .collect();
    parts.sort_by(|a, b| name_of(a.as_ref()).cmp(name_of(b.as_ref())));
    let mut rules: Vec<PolicyRule> = Vec::new();
    for rule in parts.iter().flat_map(|part| part.rules.iter().flatten()) {
        if !rules.contains(rule) {
            rules.push(rule.clone());
        }
    }
    Some(rules)
}

impl Reconcile for RoleAggregation {
    type Key = Key;
    const NAME: &'static str = "clusterrole-aggregation-controller";

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(role) = self.caches.cluster_roles.by_key(key) else { return Ok(Outcome::Done) };
        if let Some(rules) = aggregated(&role, &self.caches.cluster_roles.all()) {
            let mut new = ClusterRole::clone(&role);
            new.rules = Some(rules).filter(|rules| !rules.is_empty());
            self.roles.update(&role, &new).await?;
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn role(name: &str, label: &str, resources: &[&str], selects: &Value) -> Arc<ClusterRole> {
        let rule = json!({"apiGroups": [""], "resources": resources, "verbs": ["get"]});
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name, "labels": {label: "true"}}, "rules": [rule], "aggregationRule": selects}))
                .unwrap(),
        )
    }

    #[test]
    fn rules_are_joined_by_name_and_once() {
        let selects = json!({"clusterRoleSelectors": [{"matchLabels": {"to-view": "true"}}]});
        let view = role("view", "to-view", &["old"], &selects);
        let all = [
            Arc::clone(&view),
            role("b", "to-view", &["foos"], &Value::Null),
            role("a", "to-view", &["bars"], &Value::Null),
            role("c", "to-view", &["foos"], &Value::Null),
            role("other", "to-edit", &["secrets"], &Value::Null),
        ];
        let rules = aggregated(&view, &all).unwrap();
        let resources: Vec<_> = rules.iter().map(|rule| rule.resources.clone().unwrap_or_default().join(",")).collect();
        assert_eq!(resources, ["bars", "foos"]);
        assert!(aggregated(&all[1], &all).is_none());
    }
}
