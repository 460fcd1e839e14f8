//! What a revision holds, which one is current, which are too many. Pure.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};

use crate::meta::{created, name_of};
use crate::template::prune;

/// On pods: which revision they were made from. On revisions of DaemonSets: the same value.
pub const REVISION_LABEL: &str = "controller-revision-hash";

/// A strategic merge patch that brings an owner back to this template; `kubectl rollout undo` sends it as it is.
pub fn data(template: &PodTemplateSpec) -> Value {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// The template that a revision holds; `None` if it is not one of [`data`]'s.
pub fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    serde_json::from_value(revision.data.0.pointer("/spec/template")?.clone()).ok()
}

fn same(a: &Value, b: &Value) -> bool {
    let canonical = |value: &Value| {
        let mut value = value.clone();
        prune(&mut value);
        value
    };
    a == b || canonical(a) == canonical(b)
}

/// The revision's number.
pub fn number(revision: &ControllerRevision) -> i64 {
    revision.revision.unwrap_or(0)
}

/// Oldest first: by number, then age, then name.
pub fn sort(revisions: &mut [Arc<ControllerRevision>]) {
    revisions.sort_by(|a, b| {
        let key = |r: &ControllerRevision| (number(r), created(r));
        key(a).cmp(&key(b)).then_with(|| name_of(a.as_ref()).cmp(name_of(b.as_ref())))
    });
}

/// How the owner's template becomes the current revision.
#[derive(Debug, Clone)]
pub enum Step {
    /// It is already.
    Keep(Arc<ControllerRevision>),
    /// It was once: it gets a new number.
    Renumber(Arc<ControllerRevision>, i64),
    /// It is new, with this number.
    Create(i64),
}

/// Compares the owner's template with its revisions, sorted by [`sort`].
pub fn step(revisions: &[Arc<ControllerRevision>], data: &Value) -> Step {
    let next = revisions.last().map_or(0, |r| number(r)) + 1;
    match revisions.iter().rposition(|r| same(&r.data.0, data)) {
        None => Step::Create(next),
        Some(position) if position + 1 == revisions.len() => Step::Keep(Arc::clone(&revisions[position])),
        Some(position) => Step::Renumber(Arc::clone(&revisions[position]), next),
    }
}

/// Whether a revision made by someone meanwhile holds this data.
pub fn holds(revision: &ControllerRevision, data: &Value) -> bool {
    same(&revision.data.0, data)
}

/// The oldest revisions beyond `keep` of those that nobody uses.
pub fn superfluous(
    revisions: &[Arc<ControllerRevision>],
    is_used: impl Fn(&ControllerRevision) -> bool,
    keep: usize,
) -> Vec<Arc<ControllerRevision>> {
    let mut unused: Vec<_> = revisions.iter().filter(|r| !is_used(r)).cloned().collect();
    unused.truncate(unused.len().saturating_sub(keep));
    unused
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::runtime::RawExtension;

    fn pods(image: &str) -> PodTemplateSpec {
        serde_json::from_value(
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": image}]}}),
        )
        .unwrap()
    }

    fn revision(image: &str, number: i64) -> Arc<ControllerRevision> {
        let mut revision = ControllerRevision {
            data: RawExtension(data(&pods(image))),
            revision: Some(number),
            ..ControllerRevision::default()
        };
        revision.metadata.name = Some(format!("{image}{number}"));
        Arc::new(revision)
    }

    #[test]
    fn a_revision_gives_its_template_back() {
        assert_eq!(template(&revision("x", 1)).unwrap(), pods("x"));
        assert!(template(&ControllerRevision::default()).is_none());
        assert_eq!(data(&pods("x"))["spec"]["template"]["$patch"], "replace");
    }

    #[test]
    fn a_template_is_kept_made_or_gets_a_new_number() {
        let history = [revision("a", 1), revision("b", 2)];
        assert!(matches!(step(&history, &data(&pods("b"))), Step::Keep(r) if number(&r) == 2));
        assert!(matches!(step(&history, &data(&pods("a"))), Step::Renumber(r, 3) if number(&r) == 1));
        assert!(matches!(step(&history, &data(&pods("c"))), Step::Create(3)));
        assert!(matches!(step(&[], &data(&pods("c"))), Step::Create(1)));
    }

    #[test]
    fn nulls_and_empty_lists_of_another_writer_make_no_difference() {
        let mut theirs = data(&pods("a"));
        theirs["spec"]["template"]["metadata"]["creationTimestamp"] = Value::Null;
        theirs["spec"]["template"]["spec"]["tolerations"] = json!([]);
        assert!(same(&theirs, &data(&pods("a"))));
    }

    #[test]
    fn used_revisions_stay_and_the_oldest_others_go() {
        let mut history = vec![revision("d", 4), revision("a", 1), revision("c", 3), revision("b", 2)];
        sort(&mut history);
        let gone: Vec<i64> = superfluous(&history, |r| number(r) == 1, 1).iter().map(|r| number(r)).collect();
        assert_eq!(gone, [2, 3]);
        assert!(superfluous(&history, |_| false, 9).is_empty());
    }
}
