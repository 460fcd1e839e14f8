use proptest::prelude::*;
use serde_json::json;

use super::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn node(ranges: &[&str], addresses: &[&str]) -> NodeNet {
    NodeNet { ranges: ranges.iter().map(|r| net(r)).collect(), addresses: addresses.iter().map(|a| ip(a)).collect() }
}

fn own() -> Own {
    Own { name: "a".into(), ranges: vec![net("10.244.0.0/24"), net("fd00::/64")], addresses: vec![ip("192.0.2.1")] }
}

#[test]
fn a_node_object_is_read_in_both_families() {
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "b"},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:0:0:1::/64"]},
        "status": {"addresses": [
            {"type": "Hostname", "address": "b"},
            {"type": "InternalIP", "address": "192.0.2.2"},
            {"type": "InternalIP", "address": "2001:db8::2"},
        ]},
    }))
    .unwrap();
    let wanted = wanted(&BTreeMap::from([("b".to_owned(), NodeNet::of(&node))]), &own());
    assert_eq!(wanted.refused, []);
    let routes: Vec<(String, String)> =
        wanted.routes.iter().map(|(to, (by, _))| (to.to_string(), by.to_string())).collect();
    let expected = [("10.244.1.0/24", "192.0.2.2"), ("fd00:0:0:1::/64", "2001:db8::2")];
    assert_eq!(routes, expected.map(|(to, by)| (to.to_owned(), by.to_owned())));
}

#[test]
fn a_node_without_the_list_has_its_one_range() {
    let node: Node = serde_json::from_value(json!({"metadata": {}, "spec": {"podCIDR": "10.244.1.7/24"}})).unwrap();
    assert_eq!(pod_ranges(&node), [net("10.244.1.0/24")]);
}

#[test]
fn claims_that_would_take_traffic_of_others_are_refused() {
    let nodes = BTreeMap::from([
        ("a".to_owned(), node(&["10.244.0.0/24"], &["192.0.2.1"])),
        ("b".to_owned(), node(&["10.244.1.0/24"], &["192.0.2.2"])),
        ("c".to_owned(), node(&["10.244.0.0/16"], &["192.0.2.3"])),
        ("d".to_owned(), node(&["10.244.1.128/25"], &["192.0.2.4"])),
        ("e".to_owned(), node(&["192.0.2.0/28"], &["192.0.2.5"])),
        ("f".to_owned(), node(&["fd00:0:0:6::/64"], &["192.0.2.6"])),
    ]);
    let wanted = wanted(&nodes, &own());
    assert_eq!(wanted.routes, BTreeMap::from([(net("10.244.1.0/24"), (ip("192.0.2.2"), "b".to_owned()))]));
    let reasons: Vec<(&str, &Refused)> = wanted.refused.iter().map(|(n, _, why)| (n.as_str(), why)).collect();
    assert_eq!(
        reasons,
        [
            ("c", &Refused::Ours(net("10.244.0.0/24"))),
            ("d", &Refused::Taken("b".into(), net("10.244.1.0/24"))),
            ("e", &Refused::HoldsNode(ip("192.0.2.1"))),
            ("f", &Refused::NoAddress),
        ]
    );
}

#[test]
fn what_is_right_stays_and_leftovers_go() {
    let wanted = BTreeMap::from([
        (net("10.244.1.0/24"), (ip("192.0.2.2"), "b".to_owned())),
        (net("10.244.2.0/24"), (ip("192.0.2.3"), "c".to_owned())),
        (net("10.244.3.0/24"), (ip("192.0.2.4"), "d".to_owned())),
    ]);
    let found = |range: &str, gateway: &str| Found { range: net(range), gateway: Some(ip(gateway)), link: Some(2) };
    let kernel = [
        found("10.244.1.0/24", "192.0.2.2"),
        found("10.244.1.0/24", "192.0.2.9"),
        found("10.244.2.0/24", "192.0.2.8"),
        found("10.244.9.0/24", "192.0.2.9"),
    ];
    assert_eq!(
        steps(&wanted, &kernel),
        [
            Step::Remove(kernel[1].clone()),
            Step::Remove(kernel[3].clone()),
            Step::Replace(net("10.244.2.0/24"), ip("192.0.2.3")),
            Step::Add(net("10.244.3.0/24"), ip("192.0.2.4")),
        ]
    );
}

fn a_range() -> impl Strategy<Value = IpNet> {
    (0_u8..6, 20_u8..27).prop_map(|(third, length)| IpNet::new_assert([10, 244, third, 0].into(), length).trunc())
}

proptest! {
    /// Whatever the kernel has, the steps lead to exactly the wanted routes, and then there is nothing left to do.
    #[test]
    fn steps_lead_to_what_is_wanted(
        claims in prop::collection::btree_map("[b-h]", (prop::collection::vec(a_range(), 0..3), 1_u8..9), 0..6),
        there in prop::collection::vec((a_range(), 1_u8..9), 0..6),
    ) {
        let nodes: BTreeMap<String, NodeNet> = claims
            .into_iter()
            .map(|(name, (ranges, last))| (name, NodeNet { ranges, addresses: vec![[192, 0, 2, last].into()] }))
            .collect();
        let wanted = wanted(&nodes, &own()).routes;
        for (range, (_, node)) in &wanted {
            prop_assert!(!own().ranges.iter().any(|ours| overlap(ours, range)));
            prop_assert!(wanted.iter().all(|(other, (_, owner))| other == range && owner == node || !overlap(other, range)));
        }
        let mut kernel: Vec<Found> = there
            .into_iter()
            .map(|(range, last)| Found { range, gateway: Some([192, 0, 2, last].into()), link: None })
            .collect();
        for step in steps(&wanted, &kernel) {
            match step {
                Step::Remove(route) => {
                    // The kernel removes one route for each request.
                    let at = kernel.iter().rposition(|found| *found == route).unwrap();
                    kernel.remove(at);
                }
                Step::Add(range, gateway) => {
                    prop_assert!(kernel.iter().all(|found| found.range != range));
                    kernel.push(Found { range, gateway: Some(gateway), link: None });
                }
                Step::Replace(range, gateway) => {
                    let route = kernel.iter_mut().find(|found| found.range == range).unwrap();
                    route.gateway = Some(gateway);
                }
            }
        }
        prop_assert_eq!(steps(&wanted, &kernel), []);
        prop_assert_eq!(kernel.len(), wanted.len());
    }
}
