//! Which pods have a place on this node.
//!
//! The ledger holds what each admitted pod takes. A pod of which the runtime holds anything is admitted without a question, also after
//! a restart of the agent: running pods are never judged again (k/k 105523, 117955). Others are judged by [`check`]; where what is short is held by
//! pods that are ending, they wait a moment for it (k/k 106884) instead of failing. A critical pod displaces weaker ones. Upstream
//! counterpart: `pkg/kubelet/allocation`, `pkg/kubelet/preemption`.

mod check;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

use crate::clock;
use crate::pod;
pub use check::{NodeFacts, Refusal};
use check::{Share, lack, unsuited, victims};

/// How long a pod waits for what ending pods still hold: the usual grace.
const ROOM_WAIT: Duration = Duration::from_secs(30);
/// How long a pod whose node does not suit it waits for news of the node's object: labels and taints may just have changed, and a scheduler is quick.
const NEWS_WAIT: Duration = Duration::from_secs(2);
/// Pause between two looks of a pod that waits.
pub const ROOM_LOOK: Duration = Duration::from_millis(200);

/// What becomes of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has its place.
    Admitted,
    /// It may have it soon; who asks again finds out.
    Soon,
    /// It may not run here.
    Refused(Refusal),
}

#[derive(Default)]
struct State {
    held: BTreeMap<String, Share>,
    /// Since when a pod waits for room, nanoseconds since the epoch.
    waiting: BTreeMap<String, i64>,
    /// Since when a pod waits for news of the node's object.
    doubting: BTreeMap<String, i64>,
}

impl State {
    /// A pod waits for nothing any more.
    fn settle(&mut self, uid: &str) {
        self.waiting.remove(uid);
        self.doubting.remove(uid);
    }
}

/// The places of a node.
pub struct Ledger {
    facts: NodeFacts,
    /// The node's object, once there is one: its labels and taints may have been changed.
    node: watch::Receiver<Option<Arc<Node>>>,
    state: Mutex<State>,
    displaced: watch::Sender<BTreeSet<String>>,
    stale: Arc<Notify>,
}

impl Ledger {
    /// The ledger of a node on which nothing runs yet.
    #[must_use]
    pub fn new(facts: NodeFacts, node: watch::Receiver<Option<Arc<Node>>>) -> Self {
        Self { facts, node, state: Mutex::default(), displaced: watch::Sender::default(), stale: Arc::default() }
    }

    /// Told when a decision depends on the node's object being as the API has it now.
    #[must_use]
    pub fn stale(&self) -> Arc<Notify> {
        self.stale.clone()
    }

    /// The UIDs of pods that have to go for a critical one.
    #[must_use]
    pub fn displaced(&self) -> watch::Receiver<BTreeSet<String>> {
        self.displaced.subscribe()
    }

    fn facts(&self) -> NodeFacts {
        let node = self.node.borrow();
        let Some(node) = node.as_ref() else { return self.facts.clone() };
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        let mut facts =
            NodeFacts { labels: node.metadata.labels.clone().unwrap_or_default(), taints, ..self.facts.clone() };
        // Extended resources are known from the object alone.
        let told = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        facts.allocatable.other = kube_common::scheduling::resources::Resources::read(told).other;
        facts
    }

    /// Notes a pod that has its place already.
    pub fn hold(&self, pod: &Pod) {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let ending = pod::is_deleted(pod) || pod::is_terminal_phase(phase);
        let share = || Share { ending, ..Share::of(pod) };
        self.state.lock().held.entry(pod::uid(pod).to_owned()).or_insert_with(share);
    }

    /// Asks for a place.
    pub fn ask(&self, pod: &Pod) -> Verdict {
        let (uid, share, facts) = (pod::uid(pod), Share::of(pod), self.facts());
        let now = clock::now();
        let waited = |since: &mut BTreeMap<String, i64>| {
            let since = *since.entry(uid.to_owned()).or_insert(now);
            Duration::from_nanos(now.abs_diff(since))
        };
        let mut state = self.state.lock();
        if state.held.contains_key(uid) {
            return Verdict::Admitted;
        }
        // Ports of an ending pod are taken until it has ended, but it will.
        let unfit = unsuited(pod, &share, state.held.values().filter(|other| !other.ending), &facts);
        if let Some(refusal) = unfit {
            let by_object = ["NodeAffinity", "TaintToleration"].contains(&refusal.reason.as_str());
            if by_object && !pod::is_static(pod) {
                if !state.doubting.contains_key(uid) {
                    self.stale.notify_one();
                }
                if waited(&mut state.doubting) < NEWS_WAIT {
                    return Verdict::Soon;
                }
            }
            state.doubting.remove(uid);
            return Verdict::Refused(refusal);
        }
        state.doubting.remove(uid);
        let all = || state.held.values();
        let short = lack(&share, all(), &facts).map(|short| short.refusal());
        let Some(blocked) = short.or_else(|| unsuited(pod, &share, all(), &facts)) else {
            state.waiting.remove(uid);
            state.held.insert(uid.to_owned(), share);
            return Verdict::Admitted;
        };
        if let Some(short) = lack(&share, state.held.values().filter(|other| !other.ending), &facts) {
            let going = if share.critical { victims(&share, &state.held, &facts) } else { None };
            let Some(going) = going else { return Verdict::Refused(short.refusal()) };
            for uid in &going {
                if let Some(victim) = state.held.get_mut(uid) {
                    victim.ending = true;
                }
            }
            self.displaced.send_modify(|displaced| displaced.extend(going));
        }
        if waited(&mut state.waiting) < ROOM_WAIT || share.critical {
            return Verdict::Soon;
        }
        state.waiting.remove(uid);
        Verdict::Refused(blocked)
    }

    /// A pod is being ended.
    pub fn ending(&self, uid: &str) {
        let mut state = self.state.lock();
        state.settle(uid);
        if let Some(share) = state.held.get_mut(uid) {
            share.ending = true;
        }
    }

    /// Nothing of a pod runs any more.
    pub fn release(&self, uid: &str) {
        let mut state = self.state.lock();
        state.settle(uid);
        state.held.remove(uid);
        drop(state);
        self.displaced.send_if_modified(|displaced| displaced.remove(uid));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ledger() -> Ledger {
        let list = serde_json::from_value(json!({"cpu": "2", "pods": "10"})).unwrap();
        let allocatable = kube_common::scheduling::resources::Resources::read(Some(&list));
        Ledger::new(
            NodeFacts { name: "n".into(), allocatable, ..NodeFacts::default() },
            watch::Sender::new(None).subscribe(),
        )
    }

    fn asks(uid: &str, cpu: &str, priority: i32) -> Pod {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        serde_json::from_value(
            json!({"metadata": {"name": uid, "uid": uid}, "spec": {"priority": priority, "containers": [container]}}),
        )
        .unwrap()
    }

    fn refused(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Refused(refusal) if refusal.reason == "OutOfcpu")
    }

    #[test]
    fn who_has_a_place_keeps_it_and_who_is_ending_gives_it() {
        let ledger = ledger();
        // Known from the runtime: nobody asks whether they fit.
        ledger.hold(&asks("a", "1500m", 0));
        ledger.hold(&asks("b", "1500m", 0));
        assert_eq!(ledger.ask(&asks("a", "1500m", 0)), Verdict::Admitted);
        assert!(refused(&ledger.ask(&asks("c", "600m", 0))));
        ledger.ending("a");
        assert!(refused(&ledger.ask(&asks("c", "600m", 0))));
        assert_eq!(ledger.ask(&asks("d", "500m", 0)), Verdict::Soon);
        ledger.release("a");
        assert_eq!(ledger.ask(&asks("d", "500m", 0)), Verdict::Admitted);
        ledger.release("b");
        assert_eq!(ledger.ask(&asks("c", "600m", 0)), Verdict::Admitted);
    }

    #[test]
    fn a_critical_pod_has_others_ended_and_comes_after_them() {
        let ledger = ledger();
        assert_eq!(ledger.ask(&asks("a", "1500m", 0)), Verdict::Admitted);
        let critical = asks("k", "1", 2_000_000_000);
        assert_eq!(ledger.ask(&critical), Verdict::Soon);
        assert!(ledger.displaced().borrow().contains("a"));
        ledger.release("a");
        assert!(ledger.displaced().borrow().is_empty());
        assert_eq!(ledger.ask(&critical), Verdict::Admitted);
    }

    #[test]
    fn the_nodes_object_tells_labels_and_extended_resources() {
        let node: Node = serde_json::from_value(json!({"metadata": {"labels": {"zone": "a"}},
            "status": {"allocatable": {"cpu": "64", "example.com/x": "1"}}}))
        .unwrap();
        let ledger = Ledger { node: watch::Sender::new(Some(Arc::new(node))).subscribe(), ..ledger() };
        let mut pod = asks("a", "100m", 0);
        pod.spec.as_mut().unwrap().node_selector = Some([("zone".to_owned(), "a".to_owned())].into());
        assert_eq!(ledger.ask(&pod), Verdict::Admitted);
        // What the agent itself has counted stays: the object may be older than a change of the configuration.
        assert!(refused(&ledger.ask(&asks("b", "3", 0))));
        let mut greedy = asks("c", "0", 0);
        let requests = serde_json::from_value(json!({"requests": {"example.com/x": "2"}})).unwrap();
        greedy.spec.as_mut().unwrap().containers[0].resources = Some(requests);
        assert!(matches!(ledger.ask(&greedy), Verdict::Refused(r) if r.reason == "OutOfexample.com/x"));
        // A label may just have been set: the object is looked at again before the refusal is final.
        let mut elsewhere = asks("d", "100m", 0);
        elsewhere.spec.as_mut().unwrap().node_selector = Some([("zone".to_owned(), "b".to_owned())].into());
        assert_eq!(ledger.ask(&elsewhere), Verdict::Soon);
        ledger.state.lock().doubting.insert("d".into(), 0);
        assert!(matches!(ledger.ask(&elsewhere), Verdict::Refused(r) if r.reason == "NodeAffinity"));
        // A pod that is known as ending holds its place only until it has ended.
        let mut leaving = asks("e", "1900m", 0);
        leaving.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(clock::timestamp()));
        ledger.hold(&leaving);
        assert_eq!(ledger.ask(&asks("f", "500m", 0)), Verdict::Soon);
    }
}
