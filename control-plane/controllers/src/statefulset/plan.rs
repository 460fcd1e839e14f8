//! What to do next. Pure.
//!
//! Upstream counterpart: `updateStatefulSet`, `processReplica`, `processCondemned` and the rolling update after them.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use super::identity::{first_ordinal, ordinal, revision, wished};
use crate::meta::{Round, scaled, seconds};
use crate::pods;

/// One thing to do; those of one plan may be done in order, and none waits for another's effect.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make the pod of this number, of the current or the update revision.
    Create {
        /// The pod's number.
        ordinal: i32,
        /// Of the revision that is being left.
        of_current: bool,
    },
    /// Delete the pod.
    Delete(Arc<Pod>),
}

/// What is known when a plan is made.
pub struct Input<'a> {
    /// The set.
    pub set: &'a StatefulSet,
    /// The set's pods.
    pub pods: &'a [Arc<Pod>],
    /// Name of the revision that is wanted.
    pub update_revision: &'a str,
    /// Now.
    pub now: Timestamp,
}

/// The set's pods by their place.
pub struct Members {
    /// One place for each wanted number, in order.
    pub wanted: Vec<Option<Arc<Pod>>>,
    /// Pods of numbers that are not wanted, highest first.
    pub condemned: Vec<Arc<Pod>>,
}

/// Sorts the pods.
pub fn members(set: &StatefulSet, pods: &[Arc<Pod>]) -> Members {
    let (start, count) = (first_ordinal(set), usize::try_from(wished(set)).unwrap_or(0));
    let mut members = Members { wanted: vec![None; count], condemned: Vec::new() };
    let mut condemned = Vec::new();
    for pod in pods {
        let Some(number) = ordinal(set, pod) else { continue };
        match usize::try_from(i64::from(number) - i64::from(start)).ok().and_then(|i| members.wanted.get_mut(i)) {
            Some(place) => *place = Some(Arc::clone(pod)),
            None => condemned.push((number, Arc::clone(pod))),
        }
    }
    condemned.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    members.condemned = condemned.into_iter().map(|(_, pod)| pod).collect();
    members
}

/// Ready in phase Running for as long as the set asks.
pub fn is_available(set: &StatefulSet, pod: &Pod, now: Timestamp) -> bool {
    pods::phase(pod) == "Running" && pods::is_available(pod, seconds(set.spec.min_ready_seconds), now)
}

/// When the next ready pod will have been ready for long enough.
pub fn next_available(set: &StatefulSet, pods: &[Arc<Pod>], now: Timestamp) -> Option<Duration> {
    let min_ready = seconds(set.spec.min_ready_seconds);
    pods.iter().filter_map(|p| pods::available_in(p, min_ready, now)).filter(|wait| !wait.is_zero()).min()
}

/// Pods are made and ended one after the other.
fn is_ordered(set: &StatefulSet) -> bool {
    set.spec.pod_management_policy.as_deref() != Some("Parallel")
}

fn partition(set: &StatefulSet) -> Option<i32> {
    let strategy = set.spec.update_strategy.as_ref();
    strategy.and_then(|s| s.rolling_update.as_ref()).map(|r| r.partition.unwrap_or(0))
}

/// Pods are replaced without being deleted by hand.
pub fn is_rolling(set: &StatefulSet) -> bool {
    let kind = set.spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref());
    kind.unwrap_or("RollingUpdate") == "RollingUpdate"
}

/// A new pod of this number is of the revision that is being left: the partition holds it back.
fn of_current(set: &StatefulSet, number: i32) -> bool {
    let current = set.status.as_ref().and_then(|s| s.current_replicas).unwrap_or(0);
    is_rolling(set) && number < first_ordinal(set).saturating_add(partition(set).unwrap_or(current))
}

/// What to do next.
pub fn plan(input: &Input) -> Vec<Action> {
    let Members { wanted, condemned } = members(input.set, input.pods);
    let mut actions = Vec::new();
    if is_ordered(input.set) {
        if !replicas_in_order(input, &wanted, &mut actions) || !end_in_order(input, &wanted, &condemned, &mut actions) {
            return actions;
        }
    } else {
        for (i, place) in wanted.iter().enumerate() {
            match place {
                None => actions.push(create(input.set, i)),
                Some(pod) if pods::is_terminal(pod) && !pods::is_terminating(pod) => {
                    actions.push(Action::Delete(Arc::clone(pod)));
                }
                Some(_) => {}
            }
        }
        let living = condemned.iter().filter(|pod| !pods::is_terminating(pod));
        actions.extend(living.map(|pod| Action::Delete(Arc::clone(pod))));
    }
    if is_rolling(input.set) {
        roll(input, &wanted, &mut actions);
    }
    actions
}

fn create(set: &StatefulSet, position: usize) -> Action {
    let number = i32::try_from(position).unwrap_or(i32::MAX).saturating_add(first_ordinal(set));
    Action::Create { ordinal: number, of_current: of_current(set, number) }
}

/// Goes up through the wanted numbers to the first that is not available. Tells whether all are.
fn replicas_in_order(input: &Input, wanted: &[Option<Arc<Pod>>], actions: &mut Vec<Action>) -> bool {
    for (i, place) in wanted.iter().enumerate() {
        match place {
            None => {
                actions.push(create(input.set, i));
                return false;
            }
            Some(pod) if pods::is_terminal(pod) => {
                if !pods::is_terminating(pod) {
                    actions.push(Action::Delete(Arc::clone(pod)));
                }
                return false;
            }
            Some(pod) if pods::is_terminating(pod) || !is_available(input.set, pod, input.now) => return false,
            Some(_) => {}
        }
    }
    true
}

/// Ends the highest of the numbers that are not wanted. Tells whether there are none left.
fn end_in_order(input: &Input, wanted: &[Option<Arc<Pod>>], condemned: &[Arc<Pod>], actions: &mut Vec<Action>) -> bool {
    let Some(highest) = condemned.first() else { return true };
    let is_unavailable = |pod: &Arc<Pod>| pods::is_terminating(pod) || !is_available(input.set, pod, input.now);
    // The lowest number that is unavailable may go although it is; before others, which wait for it.
    let all_wanted_well = wanted.iter().flatten().all(|pod| !is_unavailable(pod));
    let first_unwell = condemned.iter().rev().find(|pod| is_unavailable(pod)).filter(|_| all_wanted_well);
    // One that has ended never gets well: upstream waits for it, here it goes.
    let may_go = !is_unavailable(highest)
        || pods::is_terminal(highest)
        || first_unwell.is_some_and(|pod| Arc::ptr_eq(pod, highest));
    if !pods::is_terminating(highest) && may_go {
        actions.push(Action::Delete(Arc::clone(highest)));
    }
    false
}

/// How many pods may be unavailable during an update.
fn max_unavailable(set: &StatefulSet) -> usize {
    let strategy = set.spec.update_strategy.as_ref();
    let value = strategy.and_then(|s| s.rolling_update.as_ref()).and_then(|r| r.max_unavailable.as_ref());
    let number = value.map_or(1, |v| scaled(v, wished(set), Round::Down));
    usize::try_from(number).unwrap_or(1).max(1)
}

/// Deletes pods of old revisions, highest number first, down to the partition. With one pod at a time (the default) an
/// unavailable pod above holds all below it back; with more, each counts against the number.
fn roll(input: &Input, wanted: &[Option<Arc<Pod>>], actions: &mut Vec<Action>) {
    let is_unavailable = |pod: &Arc<Pod>| pods::is_terminating(pod) || !is_available(input.set, pod, input.now);
    let max = max_unavailable(input.set);
    let missing = wanted.iter().filter(|place| place.as_ref().is_none_or(is_unavailable)).count();
    let mut spent = if max == 1 { 0 } else { missing };
    let lowest = usize::try_from(partition(input.set).unwrap_or(0)).unwrap_or(0);
    for place in wanted.iter().skip(lowest).rev() {
        let old = place.as_ref().filter(|pod| revision(pod) != input.update_revision && !pods::is_terminating(pod));
        let unavailable = place.as_ref().is_none_or(is_unavailable);
        match old {
            Some(pod) if max == 1 => {
                // It may have been found ended above.
                if !pods::is_terminal(pod) {
                    actions.push(Action::Delete(Arc::clone(pod)));
                }
                return;
            }
            None if max == 1 && unavailable => return,
            // Already unavailable: replacing it costs nothing.
            Some(pod) if unavailable && !pods::is_terminal(pod) => actions.push(Action::Delete(Arc::clone(pod))),
            Some(pod) if !unavailable && spent < max => {
                spent += 1;
                actions.push(Action::Delete(Arc::clone(pod)));
            }
            Some(_) if !unavailable => return,
            Some(_) | None => {}
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::meta::name_of;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    pub fn set(edit: impl FnOnce(&mut Value)) -> StatefulSet {
        let mut set = json!({"metadata": {"name": "w", "namespace": "n", "uid": "u"}, "spec": {"replicas": 3,
            "podManagementPolicy": "OrderedReady", "selector": {}, "template": {},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}});
        edit(&mut set["spec"]);
        serde_json::from_value(set).unwrap()
    }

    /// A pod from `number:revision:state`; the states are ready, unready, ending, failed.
    pub fn pod(text: &str) -> Arc<Pod> {
        let parts: Vec<&str> = text.split(':').collect();
        let mut pod = json!({"metadata": {"name": format!("w-{}", parts[0]), "namespace": "n", "uid": text,
            "labels": {"controller-revision-hash": parts[1]}}, "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        match parts[2] {
            "unready" => pod["status"]["conditions"] = json!([]),
            "ending" => pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
            "failed" => pod["status"]["phase"] = json!("Failed"),
            _ => {}
        }
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn next(set: &StatefulSet, texts: &[&str]) -> String {
        let pods: Vec<_> = texts.iter().map(|t| pod(t)).collect();
        let input = Input { set, pods: &pods, update_revision: "new", now: Timestamp::now() };
        let words = plan(&input).into_iter().map(|action| match action {
            Action::Create { ordinal, of_current } => format!("+{ordinal}{}", if of_current { "old" } else { "" }),
            Action::Delete(pod) => format!("-{}", &name_of(pod.as_ref())[2..]),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn in_order_one_after_the_other() {
        let set = set(|_| {});
        assert_eq!(next(&set, &[]), "+0");
        assert_eq!(next(&set, &["0:new:unready"]), "");
        assert_eq!(next(&set, &["0:new:ready"]), "+1");
        assert_eq!(next(&set, &["0:new:ready", "2:new:ready"]), "+1");
        assert_eq!(next(&set, &["0:new:ready", "1:new:failed", "2:new:ready"]), "-1");
        assert_eq!(next(&set, &["0:new:ending", "1:new:ready", "2:new:ready"]), "");
        assert_eq!(next(&set, &["0:new:ready", "1:new:ready", "2:new:ready", "3:new:ready", "4:new:ready"]), "-4");
        assert_eq!(next(&set, &["0:new:ready", "1:new:ready", "2:new:ready", "3:new:ready", "4:new:ending"]), "");
        assert_eq!(next(&set, &["0:new:ready", "1:new:unready", "2:new:ready", "3:new:ready"]), "");
        let unwell = ["0:new:ready", "1:new:ready", "2:new:ready", "3:new:unready", "4:new:unready"];
        assert_eq!(next(&set, &unwell), "", "4 waits for 3");
        assert_eq!(next(&set, &unwell[..4]), "-3");
    }

    #[test]
    fn all_at_once() {
        let parallel = set(|s| s["podManagementPolicy"] = json!("Parallel"));
        assert_eq!(next(&parallel, &[]), "+0 +1 +2");
        assert_eq!(next(&parallel, &["0:new:unready", "1:new:failed", "4:new:ready", "3:new:unready"]), "-1 +2 -4 -3");
    }

    #[test]
    fn updates_go_down_and_stop_at_the_partition() {
        let old = ["0:old:ready", "1:old:ready", "2:old:ready"];
        assert_eq!(next(&set(|_| {}), &old), "-2");
        assert_eq!(next(&set(|_| {}), &["0:old:ready", "1:old:ready", "2:new:ready"]), "-1");
        let held = set(|s| s["updateStrategy"]["rollingUpdate"]["partition"] = json!(2));
        assert_eq!(next(&held, &["0:old:ready", "1:old:ready", "2:new:ready"]), "");
        assert_eq!(next(&held, &["0:old:ready"]), "+1old");
        assert_eq!(next(&held, &["0:old:ready", "1:old:ready"]), "+2");
        let by_hand = set(|s| s["updateStrategy"] = json!({"type": "OnDelete"}));
        assert_eq!(next(&by_hand, &old), "");
        assert_eq!(next(&by_hand, &["0:old:ready", "2:old:ready"]), "+1");
    }

    #[test]
    fn several_may_be_unavailable_if_allowed() {
        let two = |policy: &str| {
            set(|s| {
                s["podManagementPolicy"] = json!(policy);
                s["replicas"] = json!(5);
                s["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = json!(2);
            })
        };
        let old = ["0:old:ready", "1:old:ready", "2:old:ready", "3:old:ready", "4:old:ready"];
        assert_eq!(next(&two("OrderedReady"), &old), "-4 -3");
        let busy = ["0:old:ready", "1:old:unready", "2:old:ready", "3:old:ready", "4:new:unready"];
        assert_eq!(next(&two("Parallel"), &busy), "", "3 must stay, and what is below waits for it");
        let broken = ["0:old:ready", "1:old:ready", "2:old:ready", "3:old:unready", "4:old:unready"];
        assert_eq!(next(&two("Parallel"), &broken), "-4 -3");
    }

    #[test]
    fn numbers_may_start_elsewhere() {
        let shifted = set(|s| {
            s["ordinals"] = json!({"start": 5});
            s["replicas"] = json!(2);
        });
        assert_eq!(next(&shifted, &[]), "+5");
        assert_eq!(next(&shifted, &["5:new:ready", "6:new:ready", "0:new:ready"]), "-0");
    }

    #[test]
    fn ready_is_not_yet_available() {
        let patient = set(|s| s["minReadySeconds"] = json!(60));
        let pods = [pod("0:new:ready")];
        let now = "2026-01-01T00:00:10Z".parse().unwrap();
        let input = Input { set: &patient, pods: &pods, update_revision: "new", now };
        assert!(plan(&input).is_empty());
        assert_eq!(next_available(&patient, &pods, now), Some(Duration::from_secs(50)));
    }

    #[derive(Debug, Clone)]
    enum Event {
        Reconcile,
        Ready(usize),
        End(usize),
        Fail(usize),
        Wish(i32),
    }

    fn any_event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => Just(Event::Reconcile),
            3 => (0usize..6).prop_map(Event::Ready),
            3 => (0usize..6).prop_map(Event::End),
            1 => (0usize..6).prop_map(Event::Fail),
            1 => (0i32..6).prop_map(Event::Wish),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn order_is_kept_and_the_wish_is_reached(events in proptest::collection::vec(any_event(), 0..80), wish in 0i32..6) {
            let mut set = set(|_| {});
            let mut world: Vec<(i32, String, String)> = (0..3).map(|n| (n, "old".to_owned(), "ready".to_owned())).collect();
            let tail = (0..60).flat_map(|_| {
                std::iter::once(Event::Reconcile).chain((0..6).map(Event::End)).chain((0..6).map(Event::Ready))
            });
            for event in events.into_iter().chain([Event::Wish(wish)]).chain(tail) {
                match event {
                    Event::Wish(n) => set.spec.replicas = Some(n),
                    Event::Ready(i) => { if let Some(p) = world.get_mut(i).filter(|p| p.2 == "unready") { p.2 = "ready".to_owned(); } }
                    Event::Fail(i) => { if let Some(p) = world.get_mut(i).filter(|p| p.2 != "ending") { p.2 = "failed".to_owned(); } }
                    Event::End(i) => { if world.get(i).is_some_and(|p| p.2 == "ending") { world.remove(i); } }
                    Event::Reconcile => {
                        let pods: Vec<_> = world.iter().map(|(n, r, s)| pod(&format!("{n}:{r}:{s}"))).collect();
                        let actions = plan(&Input { set: &set, pods: &pods, update_revision: "new", now: Timestamp::now() });
                        prop_assert!(actions.len() <= 1);
                        for action in actions {
                            match action {
                                Action::Create { ordinal, .. } => {
                                    prop_assert!(world.iter().all(|p| p.0 != ordinal), "twice");
                                    prop_assert!((0..ordinal).all(|n| world.iter().any(|p| p.0 == n && p.2 == "ready")));
                                    world.push((ordinal, "new".to_owned(), "unready".to_owned()));
                                }
                                Action::Delete(gone) => {
                                    let number = ordinal(&set, &gone).unwrap();
                                    let is_busy = world.iter().any(|p| p.2 == "ending");
                                    prop_assert!(!is_busy || pods::is_terminal(&gone) || number >= wished(&set));
                                    world.iter_mut().filter(|p| p.0 == number).for_each(|p| p.2 = "ending".to_owned());
                                }
                            }
                        }
                        world.sort();
                    }
                }
            }
            let have: Vec<i32> = world.iter().map(|p| p.0).collect();
            prop_assert_eq!(have, (0..wish).collect::<Vec<_>>());
            prop_assert!(world.iter().all(|p| p.1 == "new" && p.2 == "ready"), "{:?}", world);
        }
    }
}
