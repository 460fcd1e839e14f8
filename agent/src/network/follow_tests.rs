use serde_json::json;

use super::super::routes::Found;
use super::*;
use crate::network::kernel::RouteError;

/// Our routes in a kernel that reaches 192.0.2.0/24 only.
#[derive(Default)]
struct FakeRoutes {
    ours: Vec<Found>,
    foreign: Vec<IpNet>,
}

impl RouteTable for FakeRoutes {
    async fn list(&mut self) -> Result<Vec<Found>, RouteError> {
        Ok(self.ours.clone())
    }

    async fn apply(&mut self, step: &Step) -> Result<(), RouteError> {
        match step {
            Step::Remove(route) => self.ours.retain(|found| found != route),
            Step::Add(range, _) if self.foreign.contains(range) => return Err(RouteError::Foreign { range: *range }),
            Step::Add(range, gateway) | Step::Replace(range, gateway) => {
                if !"192.0.2.0/24".parse::<IpNet>().unwrap().contains(gateway) {
                    return Err(RouteError::Unreachable { gateway: *gateway });
                }
                self.ours.retain(|found| found.range != *range);
                self.ours.push(Found { range: *range, gateway: Some(*gateway), link: Some(2) });
            }
        }
        Ok(())
    }
}

fn node(name: &str, range: &str, address: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"podCIDR": range},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    }))
    .unwrap()
}

fn follower() -> (Follower<FakeRoutes>, tokio::sync::mpsc::Receiver<crate::events::Entry>) {
    let own = Own {
        name: "a".into(),
        ranges: vec!["10.244.0.0/24".parse().unwrap()],
        addresses: vec![[192, 0, 2, 1].into()],
    };
    let (recorder, events) = Recorder::new("a", crate::flight::Flight::idle());
    (Follower::new(FakeRoutes::default(), own, recorder, watch::Sender::new(None)), events)
}

fn listed(follower: &mut Follower<FakeRoutes>, nodes: &[Node]) {
    let mut fresh = BTreeMap::new();
    observe(follower, &mut fresh, Event::Init);
    for node in nodes {
        observe(follower, &mut fresh, Event::InitApply(node.clone()));
    }
    assert!(observe(follower, &mut fresh, Event::InitDone));
}

fn ranges(follower: &Follower<FakeRoutes>) -> Vec<String> {
    let mut all: Vec<String> = follower.table.ours.iter().map(|found| found.range.to_string()).collect();
    all.sort();
    all
}

#[tokio::test]
async fn routes_of_an_earlier_life_stay_until_the_nodes_are_known() {
    let (mut follower, _events) = follower();
    let gateway = Some([192, 0, 2, 2].into());
    for range in ["10.244.1.0/24", "10.244.7.0/24"] {
        follower.table.ours.push(Found { range: range.parse().unwrap(), gateway, link: Some(2) });
    }
    observe(&mut follower, &mut BTreeMap::new(), Event::Init);
    assert!(follower.sync().await);
    assert_eq!(ranges(&follower), ["10.244.1.0/24", "10.244.7.0/24"]);
    listed(&mut follower, &[node("b", "10.244.1.0/24", "192.0.2.2")]);
    assert!(follower.sync().await);
    assert_eq!(ranges(&follower), ["10.244.1.0/24"]);
    assert_eq!(follower.links, [2]);
}

#[tokio::test]
async fn nodes_come_change_and_go() {
    let (mut follower, _events) = follower();
    listed(&mut follower, &[node("a", "10.244.0.0/24", "192.0.2.1")]);
    let mut fresh = BTreeMap::new();
    let b = node("b", "10.244.1.0/24", "192.0.2.2");
    assert!(observe(&mut follower, &mut fresh, Event::Apply(b.clone())));
    follower.sync().await;
    assert_eq!(ranges(&follower), ["10.244.1.0/24"]);
    // A heartbeat is no change.
    assert!(!observe(&mut follower, &mut fresh, Event::Apply(b.clone())));
    assert!(observe(&mut follower, &mut fresh, Event::Apply(node("b", "10.244.1.0/24", "192.0.2.9"))));
    follower.sync().await;
    assert_eq!(follower.table.ours[0].gateway, Some([192, 0, 2, 9].into()));
    assert!(observe(&mut follower, &mut fresh, Event::Delete(b)));
    follower.sync().await;
    assert!(ranges(&follower).is_empty());
}

#[tokio::test]
async fn trouble_is_told_once_and_tried_again() {
    let (mut follower, mut events) = follower();
    follower.table.foreign.push("10.244.2.0/24".parse().unwrap());
    listed(
        &mut follower,
        &[
            node("b", "10.244.1.0/24", "198.51.100.2"),
            node("c", "10.244.2.0/24", "192.0.2.3"),
            node("d", "10.244.3.0/24", "192.0.2.4"),
        ],
    );
    for _ in 0..2 {
        assert!(!follower.sync().await);
        assert_eq!(ranges(&follower), ["10.244.3.0/24"], "one that fails does not keep the others back");
    }
    assert_eq!(events.len(), 2);
    let first = format!("{:?}", events.recv().await);
    assert!(first.contains("node b") && first.contains("is not on a network of this node"), "{first}");
    follower.table.foreign.clear();
    observe(&mut follower, &mut BTreeMap::new(), Event::Apply(node("b", "10.244.1.0/24", "192.0.2.2")));
    assert!(follower.sync().await);
    assert_eq!(ranges(&follower).len(), 3);
    assert_eq!(follower.told, BTreeSet::new());
}
