//! Which permissions of some rules others do not hold.
//!
//! Upstream counterpart: `component-helpers/auth/rbac/validation` (Covers) and the words of `pkg/apis/rbac/v1` for what is missing.

use std::collections::{BTreeMap, BTreeSet};

use keelson_kinds::error::go_quote;

use super::rbac::Rule;

/// One permission: a single verb on a single resource, name or URL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Permission {
    Resource { group: String, resource: String, name: Option<String>, verb: String },
    Url { path: String, verb: String },
}

fn permissions(rule: &Rule) -> Vec<Permission> {
    let mut out = Vec::new();
    let names: Vec<Option<String>> = if rule.resource_names.is_empty() {
        vec![None]
    } else {
        rule.resource_names.iter().cloned().map(Some).collect()
    };
    for verb in &rule.verbs {
        for group in &rule.api_groups {
            for resource in &rule.resources {
                out.extend(names.iter().map(|name| Permission::Resource {
                    group: group.clone(),
                    resource: resource.clone(),
                    name: name.clone(),
                    verb: verb.clone(),
                }));
            }
        }
        out.extend(
            rule.non_resource_urls.iter().map(|path| Permission::Url { path: path.clone(), verb: verb.clone() }),
        );
    }
    out
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

fn covers(held: &Rule, wanted: &Permission) -> bool {
    match wanted {
        Permission::Resource { group, resource, name, verb } => {
            let of_any = resource.split_once('/').map(|(_, sub)| format!("*/{sub}"));
            has(&held.verbs, verb)
                && has(&held.api_groups, group)
                && (has(&held.resources, resource) || of_any.is_some_and(|any| held.resources.contains(&any)))
                && (held.resource_names.is_empty() || name.as_ref().is_some_and(|n| held.resource_names.contains(n)))
        }
        Permission::Url { path, verb } => {
            has(&held.verbs, verb)
                && held
                    .non_resource_urls
                    .iter()
                    .any(|url| url == path || url.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix)))
        }
    }
}

/// What of `wanted` the rules `held` do not hold, one line per resource, in upstream's words; empty when all is held.
#[must_use]
pub fn describe_missing(held: &[Rule], wanted: &[Rule]) -> Vec<String> {
    let missing: BTreeSet<Permission> = wanted
        .iter()
        .flat_map(permissions)
        .filter(|permission| !held.iter().any(|rule| covers(rule, permission)))
        .collect();
    let mut verbs: BTreeMap<(String, String, Option<String>), Vec<String>> = BTreeMap::new();
    let mut lines = Vec::new();
    for permission in missing {
        match permission {
            Permission::Resource { group, resource, name, verb } => {
                verbs.entry((group, resource, name)).or_default().push(go_quote(&verb));
            }
            Permission::Url { path, verb } => {
                lines.push(format!("{{NonResourceURLs:[{}], Verbs:[{}]}}", go_quote(&path), go_quote(&verb)));
            }
        }
    }
    lines.extend(verbs.into_iter().map(|((group, resource, name), verbs)| {
        let name = name.map(|n| format!(", ResourceNames:[{}]", go_quote(&n))).unwrap_or_default();
        format!(
            "{{APIGroups:[{}], Resources:[{}]{name}, Verbs:[{}]}}",
            go_quote(&group),
            go_quote(&resource),
            verbs.join(" ")
        )
    }));
    lines.sort();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        Rule {
            verbs: own(verbs),
            api_groups: own(groups),
            resources: own(resources),
            resource_names: own(names),
            ..Rule::default()
        }
    }

    #[test]
    fn several_rules_together_cover_one() {
        let held = [rule(&["get"], &[""], &["pods", "services"], &[]), rule(&["list"], &["*"], &["pods"], &[])];
        assert!(describe_missing(&held, &[rule(&["get", "list"], &[""], &["pods"], &[])]).is_empty());
        assert_eq!(
            describe_missing(&held, &[rule(&["list", "get", "delete"], &[""], &["pods", "services"], &[])]),
            [
                "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}",
                "{APIGroups:[\"\"], Resources:[\"services\"], Verbs:[\"delete\" \"list\"]}"
            ]
        );
    }

    #[test]
    fn a_star_is_covered_by_a_star_only() {
        let all_verbs = rule(&["get", "list", "watch", "create", "delete"], &[""], &["pods"], &[]);
        assert!(!describe_missing(&[all_verbs], &[rule(&["*"], &[""], &["pods"], &[])]).is_empty());
        let everything = rule(&["*"], &["*"], &["*"], &[]);
        assert!(
            describe_missing(std::slice::from_ref(&everything), &[rule(&["*"], &["x"], &["*/scale"], &["n"])])
                .is_empty()
        );
        let urls = Rule { verbs: own(&["*"]), non_resource_urls: own(&["*"]), ..Rule::default() };
        assert!(!describe_missing(&[everything], std::slice::from_ref(&urls)).is_empty());
        assert!(
            describe_missing(
                &[urls],
                &[Rule { verbs: own(&["get"]), non_resource_urls: own(&["/x"]), ..Rule::default() }]
            )
            .is_empty()
        );
    }

    #[test]
    fn names_and_subresources_narrow() {
        let one = rule(&["get"], &[""], &["secrets"], &["a"]);
        assert!(describe_missing(std::slice::from_ref(&one), std::slice::from_ref(&one)).is_empty());
        assert_eq!(
            describe_missing(std::slice::from_ref(&one), &[rule(&["get"], &[""], &["secrets"], &["b"])]),
            ["{APIGroups:[\"\"], Resources:[\"secrets\"], ResourceNames:[\"b\"], Verbs:[\"get\"]}"]
        );
        assert!(!describe_missing(&[one], &[rule(&["get"], &[""], &["secrets"], &[])]).is_empty());
        let scale = rule(&["update"], &["*"], &["*/scale"], &[]);
        assert!(
            describe_missing(
                std::slice::from_ref(&scale),
                &[rule(&["update"], &["apps"], &["deployments/scale"], &[])]
            )
            .is_empty()
        );
        assert!(!describe_missing(&[scale], &[rule(&["update"], &["apps"], &["deployments"], &[])]).is_empty());
    }
}
