//! How pods of an old template give way to those of the new one. Pure.
//!
//! Upstream counterpart: `rollingUpdate`, `updatedDesiredNodeCounts`, `findUpdatedPodsOnNode`.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, RollingUpdateDaemonSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::place::Placement;
use super::plan::{Input, Plan, is_available, is_updated};
use crate::meta::{Round, name_of, scaled};
use crate::pods;

fn rolling(set: &DaemonSet) -> Option<&RollingUpdateDaemonSet> {
    set.spec.update_strategy.as_ref()?.rolling_update.as_ref()
}

/// Pods of an old template are replaced without being deleted by hand.
pub fn is_rolling(set: &DaemonSet) -> bool {
    let kind = set.spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref());
    kind.unwrap_or("RollingUpdate") == "RollingUpdate"
}

fn share(value: Option<&IntOrString>, nodes: usize) -> usize {
    let nodes = i32::try_from(nodes).unwrap_or(i32::MAX);
    value.map_or(0, |v| usize::try_from(scaled(v, nodes, Round::Up)).unwrap_or(0))
}

/// How many of `nodes` nodes may have two pods.
pub fn max_surge(set: &DaemonSet, nodes: usize) -> usize {
    if is_rolling(set) { share(rolling(set).and_then(|r| r.max_surge.as_ref()), nodes) } else { 0 }
}

/// How many of `nodes` nodes may be without an available pod. An impossible configuration counts as 1.
fn max_unavailable(set: &DaemonSet, nodes: usize) -> usize {
    let unavailable = share(rolling(set).and_then(|r| r.max_unavailable.as_ref()), nodes);
    if unavailable == 0 && max_surge(set, nodes) == 0 { 1 } else { unavailable }
}

/// The living pods of one node: of the new template, and of an old one.
enum OnNode<'a> {
    Pods {
        new: Option<&'a Arc<Pod>>,
        old: Option<&'a Arc<Pod>>,
    },
    /// More than one of a kind: [`super::plan`] will clean up.
    TooMany,
}

fn on_node<'a>(pods: &'a [Arc<Pod>], hash: &str) -> OnNode<'a> {
    let (mut new, mut old) = (None, None);
    for pod in pods.iter().filter(|p| !pods::is_terminating(p)) {
        let place = if is_updated(pod, hash) { &mut new } else { &mut old };
        if place.replace(pod).is_some() {
            return OnNode::TooMany;
        }
    }
    OnNode::Pods { new, old }
}

/// One step of a rolling update.
pub fn roll(input: &Input) -> Plan {
    let placement = Placement::of(input.set);
    let mut nodes: Vec<(&str, bool, &[Arc<Pod>])> = Vec::new();
    let mut desired = 0;
    for node in input.nodes {
        let name = name_of(node.as_ref());
        let should_run = placement.fit(node).should_run;
        desired += usize::from(should_run);
        let pods = input.pods.get(name).map(Vec::as_slice);
        // A node that should have a pod and has none counts as unavailable.
        if should_run || pods.is_some() {
            nodes.push((name, should_run, pods.unwrap_or_default()));
        }
    }
    let surge = max_surge(input.set, desired);
    if surge == 0 {
        replace(input, &nodes, max_unavailable(input.set, desired))
    } else {
        surge_over(input, &nodes, surge)
    }
}

/// Deletes old pods, as many as may be unavailable; [`super::plan`] makes the new ones afterwards.
fn replace(input: &Input, nodes: &[(&str, bool, &[Arc<Pod>])], max_unavailable: usize) -> Plan {
    let (mut unavailable, mut free, mut candidates) = (0, Vec::new(), Vec::new());
    for (_, _, pods) in nodes {
        match on_node(pods, input.hash) {
            OnNode::Pods { new: Some(new), old: None } => {
                unavailable += usize::from(!is_available(input.set, new, input.now));
            }
            // An old pod that serves nobody costs nothing.
            OnNode::Pods { new: None, old: Some(old) } if !is_available(input.set, old, input.now) => {
                free.push(Arc::clone(old));
                unavailable += 1;
            }
            OnNode::Pods { new: None, old: Some(old) } => candidates.push(Arc::clone(old)),
            OnNode::TooMany | OnNode::Pods { .. } => unavailable += 1,
        }
    }
    candidates.truncate(max_unavailable.saturating_sub(unavailable));
    free.extend(candidates);
    Plan { delete: free, ..Plan::default() }
}

/// Makes new pods beside old ones, as many as allowed, and deletes old ones when their successors are available.
fn surge_over(input: &Input, nodes: &[(&str, bool, &[Arc<Pod>])], max_surge: usize) -> Plan {
    let mut plan = Plan::default();
    let (mut surging, mut candidates) = (0, Vec::new());
    for (name, should_run, pods) in nodes {
        match on_node(pods, input.hash) {
            OnNode::TooMany => surging += 1,
            OnNode::Pods { old: None, .. } => {}
            OnNode::Pods { new: None, old: Some(old) } => {
                if is_available(input.set, old, input.now) {
                    if *should_run {
                        candidates.push((*name).to_owned());
                    }
                } else if *should_run {
                    plan.create.push((*name).to_owned());
                } else {
                    plan.delete.push(Arc::clone(old));
                }
            }
            OnNode::Pods { new: Some(new), old: Some(old) } => {
                if !is_available(input.set, old, input.now) {
                    plan.delete.push(Arc::clone(old));
                    continue;
                }
                surging += 1;
                if is_available(input.set, new, input.now) {
                    plan.delete.push(Arc::clone(old));
                }
            }
        }
    }
    candidates.truncate(max_surge.saturating_sub(surging));
    plan.create.extend(candidates);
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemonset::backoff::Backoff;
    use crate::daemonset::plan::tests::{names, node, pod, set};
    use crate::daemonset::plan::{by_node, plan};
    use k8s_openapi::jiff::Timestamp;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::time::Duration;

    fn with(unavailable: u32, surge: u32) -> DaemonSet {
        set(|s| {
            s["spec"]["updateStrategy"]["rollingUpdate"] = json!({"maxUnavailable": unavailable, "maxSurge": surge});
        })
    }

    fn unready(pod: &mut Value) {
        pod["status"]["conditions"] = json!([]);
    }

    #[test]
    fn as_many_old_pods_go_as_may_be_unavailable_and_broken_ones_for_free() {
        let nodes = ["a", "b", "c", "d"].map(node);
        let rolled = |max: u32, pods: Vec<Arc<Pod>>| {
            let (set, pods) = (with(max, 0), by_node(pods));
            let input = Input { set: &set, nodes: &nodes, pods: &pods, hash: "new", now: Timestamp::now() };
            names(&roll(&input).delete).join(",")
        };
        let old =
            || vec![pod("1@a:old", |_| {}), pod("2@b:old", |_| {}), pod("3@c:old", |_| {}), pod("4@d:old", |_| {})];
        assert_eq!(rolled(1, old()), "1");
        assert_eq!(rolled(2, old()), "1,2");
        let mut broken = old();
        broken[3] = pod("4@d:old", unready);
        assert_eq!(rolled(1, broken.clone()), "4");
        broken[0] = pod("1@a:new", unready);
        assert_eq!(rolled(2, broken), "4");
        let mut missing = old();
        missing.remove(0);
        assert_eq!(rolled(1, missing), "", "a node without its pod counts");
    }

    #[test]
    fn counts_follow_percentages() {
        let set = set(|s| {
            s["spec"]["updateStrategy"]["rollingUpdate"] = json!({"maxUnavailable": "10%", "maxSurge": "0%"});
        });
        assert_eq!((max_unavailable(&set, 11), max_unavailable(&set, 0), max_surge(&set, 11)), (2, 1, 0));
    }

    #[derive(Debug, Clone)]
    enum Event {
        Reconcile,
        Ready(usize),
        End(usize),
    }

    fn any_event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => Just(Event::Reconcile),
            2 => (0usize..12).prop_map(Event::Ready),
            2 => (0usize..12).prop_map(Event::End),
        ]
    }

    /// A small world: the pods as (name, node, revision, ready, ending).
    type World = Vec<(u32, usize, bool, bool, bool)>;

    fn pods_of(world: &World) -> Vec<Arc<Pod>> {
        world
            .iter()
            .map(|(name, node, is_new, ready, ending)| {
                let revision = if *is_new { "new" } else { "old" };
                pod(&format!("{name}@n{node}:{revision}"), |p| {
                    if !ready {
                        unready(p);
                    }
                    if *ending {
                        p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                    }
                })
            })
            .collect()
    }

    fn carry_out(world: &mut World, plan: &Plan, next: &mut u32) {
        for gone in names(&plan.delete) {
            world.iter_mut().filter(|p| p.0.to_string() == gone).for_each(|p| p.4 = true);
        }
        for node in &plan.create {
            *next += 1;
            world.push((*next, node[1..].parse().unwrap(), true, false, false));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn limits_hold_and_the_update_ends(
            (unavailable, surge) in prop_oneof![(1u32..4).prop_map(|n| (n, 0)), (1u32..4).prop_map(|n| (0, n))],
            events in proptest::collection::vec(any_event(), 0..80),
        ) {
            const NODES: usize = 5;
            let set = with(unavailable, surge);
            let nodes: Vec<_> = (0..NODES).map(|i| node(&format!("n{i}"))).collect();
            let mut world: World = (0..NODES).map(|i| (u32::try_from(i).unwrap(), i, false, true, false)).collect();
            let mut next = 100;
            let mut backoff = Backoff::default();
            // Afterwards everything that can happen does, until the update is through.
            let tail = (0..NODES * 6).flat_map(|_| {
                std::iter::once(Event::Reconcile).chain((0..12).map(Event::Ready)).chain((0..12).map(Event::End))
            });
            for event in events.into_iter().chain(tail) {
                match event {
                    Event::Ready(i) => { if let Some(pod) = world.get_mut(i) { pod.3 = true; } }
                    Event::End(i) => { if world.get(i).is_some_and(|pod| pod.4) { world.remove(i); } }
                    Event::Reconcile => {
                        for step in 0..2 {
                            let map = by_node(pods_of(&world));
                            let input = Input { set: &set, nodes: &nodes, pods: &map, hash: "new", now: Timestamp::now() };
                            let plan = if step == 0 { plan(&input, &mut backoff, Duration::ZERO) } else { roll(&input) };
                            carry_out(&mut world, &plan, &mut next);
                        }
                        let available = (0..NODES).filter(|n| world.iter().any(|p| p.1 == *n && p.3 && !p.4)).count();
                        let doubled = (0..NODES).filter(|n| world.iter().filter(|p| p.1 == *n && !p.4).count() > 1).count();
                        prop_assert!(NODES - available <= unavailable as usize, "{world:?}");
                        prop_assert!(doubled <= surge as usize, "{world:?}");
                    }
                }
            }
            prop_assert_eq!(world.len(), NODES, "{:?}", &world);
            prop_assert!(world.iter().all(|p| p.2), "{:?}", &world);
        }
    }
}
