//! A replica set's controller behind a watch that lags: however late its own writes are shown, it makes no pod twice and
//! deletes none twice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;

use super::plan::plan;
use crate::engine::index::Index;
use crate::meta::uid_of;
use crate::pods;

#[derive(Default)]
struct Server {
    pods: BTreeMap<u64, Pod>,
    version: u64,
    /// Events that the watch has not shown yet: (is the end, object).
    events: VecDeque<(bool, Pod)>,
}

impl Server {
    fn write(&mut self, uid: u64, edit: impl FnOnce(&mut Pod)) -> Pod {
        self.version += 1;
        let pod = self.pods.entry(uid).or_default();
        pod.metadata.namespace = Some("n".to_owned());
        pod.metadata.name = Some(format!("p{uid}"));
        pod.metadata.uid = Some(uid.to_string());
        pod.metadata.resource_version = Some(self.version.to_string());
        edit(pod);
        self.events.push_back((false, pod.clone()));
        pod.clone()
    }

    fn end(&mut self, uid: u64) {
        self.version += 1;
        if let Some(mut pod) = self.pods.remove(&uid) {
            pod.metadata.resource_version = Some(self.version.to_string());
            self.events.push_back((true, pod));
        }
    }

    fn active(&self) -> usize {
        self.pods.values().filter(|p| pods::is_active(p)).count()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Reconcile,
    Show(usize),
    Wish(i32),
    /// The node ends a deleted pod.
    End(usize),
    /// Someone deletes a pod.
    Kill(usize),
    /// The watch starts again with a list.
    Relist,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Reconcile),
        3 => (1usize..6).prop_map(Step::Show),
        1 => (0i32..8).prop_map(Step::Wish),
        2 => (0usize..8).prop_map(Step::End),
        1 => (0usize..8).prop_map(Step::Kill),
        1 => Just(Step::Relist),
    ]
}

fn show(index: &mut Index<Pod>, server: &mut Server, count: usize) {
    for _ in 0..count {
        let Some((is_end, pod)) = server.events.pop_front() else { return };
        if is_end {
            index.delete(&pod);
        } else {
            index.apply(pod);
        }
    }
}

fn deleted(pod: &mut Pod) {
    pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn nothing_is_done_twice(steps in proptest::collection::vec(any_step(), 0..120)) {
        let (mut server, mut index) = (Server::default(), Index::<Pod>::default());
        let (mut wished, mut next) = (3, 0u64);
        for step in steps {
            match step {
                Step::Show(count) => show(&mut index, &mut server, count),
                Step::Wish(number) => wished = number,
                Step::End(i) => {
                    let ending = server.pods.iter().filter(|(_, p)| pods::is_terminating(p)).nth(i).map(|(uid, _)| *uid);
                    if let Some(uid) = ending {
                        server.end(uid);
                    }
                }
                Step::Kill(i) => {
                    let victim = server.pods.iter().filter(|(_, p)| pods::is_active(p)).nth(i).map(|(uid, _)| *uid);
                    if let Some(uid) = victim {
                        server.write(uid, deleted);
                    }
                }
                Step::Relist => {
                    index.begin_list();
                    server.events.clear();
                    index.replace(server.pods.values().cloned().collect());
                }
                Step::Reconcile => {
                    let known: Vec<Arc<Pod>> = index.in_namespace("n").filter(|p| pods::is_active(p)).cloned().collect();
                    let plan = plan(wished, &known, &known, Timestamp::UNIX_EPOCH);
                    for _ in 0..plan.create {
                        next += 1;
                        index.written(server.write(next, |_| {}));
                    }
                    for pod in &plan.delete {
                        let uid: u64 = uid_of(pod.as_ref()).parse().unwrap();
                        if server.pods.contains_key(&uid) {
                            index.written(server.write(uid, deleted));
                        } else {
                            index.removed("n", &format!("p{uid}"), &uid.to_string());
                        }
                    }
                    // Others' deletions may not be known yet; of its own writes it forgets none.
                    prop_assert!(server.active() <= usize::try_from(wished).unwrap());
                }
            }
        }
        let lag = server.events.len();
        show(&mut index, &mut server, lag);
        let known: Vec<Arc<Pod>> = index.in_namespace("n").filter(|p| pods::is_active(p)).cloned().collect();
        let last = plan(wished, &known, &known, Timestamp::UNIX_EPOCH);
        let wished = usize::try_from(wished).unwrap();
        prop_assert_eq!(server.active() + last.create - last.delete.len(), wished);
    }
}
