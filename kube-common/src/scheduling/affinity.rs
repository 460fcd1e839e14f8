//! Node selectors, affinity terms, taints and tolerations. Pure.
//!
//! Upstream counterpart: `component-helpers/scheduling/corev1`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};

/// The only field a term may match.
pub const NAME_FIELD: &str = "metadata.name";

fn requirement_matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let contains = |value: &str| values.iter().any(|v| v == value);
    let compare = |test: fn(&i64, &i64) -> bool| {
        let have = value.and_then(|v| v.parse::<i64>().ok());
        let want = values.first().filter(|_| values.len() == 1).and_then(|v| v.parse::<i64>().ok());
        have.zip(want).is_some_and(|(have, want)| test(&have, &want))
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(contains),
        "NotIn" => !value.is_some_and(contains),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(i64::gt),
        "Lt" => compare(i64::lt),
        _ => false,
    }
}

/// Every requirement of the term holds; an empty term matches no node.
pub fn term_matches(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let by_label = |r: &NodeSelectorRequirement| requirement_matches(r, labels.get(&r.key).map(String::as_str));
    let by_field = |r: &NodeSelectorRequirement| r.key == NAME_FIELD && requirement_matches(r, Some(name));
    expressions.iter().all(by_label) && fields.iter().all(by_field)
}

/// The node has the labels and, if terms are given, one of them holds.
pub fn is_wanted(
    selector: &BTreeMap<String, String>,
    required: Option<&[NodeSelectorTerm]>,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
        && required.is_none_or(|terms| terms.iter().any(|term| term_matches(term, name, labels)))
}

/// The names of the only nodes that can match, if every term names some (as those of DaemonSets do).
pub fn named_nodes(terms: &[NodeSelectorTerm]) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for term in terms {
        let mut of_term = term.match_fields.iter().flatten().filter(|r| r.key == NAME_FIELD && r.operator == "In");
        names.extend(of_term.next()?.values.iter().flatten().cloned());
    }
    (!terms.is_empty()).then_some(names)
}

/// The toleration covers the taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let effect = text(&toleration.effect);
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = text(&toleration.key);
    if !key.is_empty() && key != taint.key {
        return false;
    }
    let (mine, theirs) = (text(&toleration.value), text(&taint.value));
    let compare = |test: fn(&i64, &i64) -> bool| {
        let numbers = theirs.parse::<i64>().ok().zip(mine.parse::<i64>().ok());
        numbers.is_some_and(|(taint, bound)| test(&taint, &bound))
    };
    match toleration.operator.as_deref().unwrap_or("Equal") {
        "" | "Equal" => mine == theirs,
        "Exists" => true,
        "Gt" => compare(i64::gt),
        "Lt" => compare(i64::lt),
        _ => false,
    }
}

/// Some toleration covers the taint.
pub fn is_tolerated(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|t| tolerates(t, taint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matches(term: serde_json::Value) -> bool {
        let term: NodeSelectorTerm = serde_json::from_value(term).unwrap();
        let labels = [("disk", "ssd"), ("cores", "8")];
        let labels = labels.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        term_matches(&term, "n1", &labels)
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> serde_json::Value {
        json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    }

    #[test]
    fn operators() {
        assert!(matches(expression("disk", "In", &["hdd", "ssd"])));
        assert!(!matches(expression("disk", "NotIn", &["ssd"])));
        assert!(matches(expression("gone", "NotIn", &["ssd"])));
        assert!(matches(expression("disk", "Exists", &[])));
        assert!(matches(expression("gone", "DoesNotExist", &[])));
        assert!(matches(expression("cores", "Gt", &["4"])));
        assert!(!matches(expression("cores", "Lt", &["8"])));
        assert!(!matches(expression("disk", "Gt", &["4"])));
        assert!(!matches(json!({})));
        assert!(matches(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]})));
    }

    #[test]
    fn tolerations() {
        let taint: Taint = serde_json::from_value(json!({"key": "k", "value": "v", "effect": "NoSchedule"})).unwrap();
        let cases = [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "value": "v"}), true),
            (json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "k", "value": "w"}), false),
            (json!({"key": "j", "operator": "Exists"}), false),
        ];
        for (toleration, want) in cases {
            let parsed: Toleration = serde_json::from_value(toleration.clone()).unwrap();
            assert_eq!(tolerates(&parsed, &taint), want, "{toleration}");
        }
    }
}
