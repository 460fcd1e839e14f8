//! Order and completeness of ranges.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proptest::prelude::*;

use super::{RangeError, RangeSet, RangeSpec, number};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn spec(subnet: &str, start: Option<&str>, end: Option<&str>, gateway: Option<&str>) -> RangeSpec {
    let [range_start, range_end, gateway] = [start, end, gateway].map(|text| text.map(ip));
    RangeSpec { subnet: subnet.parse().unwrap(), range_start, range_end, gateway }
}

fn order(set: &RangeSet, last: Option<&str>) -> Vec<String> {
    set.candidates(last.map(ip)).map(|(ip, _)| ip.to_string()).collect()
}

#[test]
fn defaults_leave_out_network_gateway_and_broadcast() {
    let set = RangeSet::new(&[spec("10.0.0.0/29", None, None, None)]).unwrap();
    assert_eq!(order(&set, None), ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    let set = RangeSet::new(&[spec("fd00::/126", None, None, None)]).unwrap();
    assert_eq!(order(&set, None), ["fd00::2", "fd00::3"]);
}

#[test]
fn round_robin_goes_through_all_ranges_and_ends_where_it_began() {
    let set = RangeSet::new(&[
        spec("10.0.0.0/24", Some("10.0.0.10"), Some("10.0.0.12"), Some("10.0.0.11")),
        spec("10.1.0.0/24", Some("10.1.0.7"), Some("10.1.0.8"), None),
    ])
    .unwrap();
    assert_eq!(order(&set, Some("10.0.0.10")), ["10.0.0.12", "10.1.0.7", "10.1.0.8", "10.0.0.10"]);
    assert_eq!(order(&set, Some("10.1.0.8")), ["10.0.0.10", "10.0.0.12", "10.1.0.7", "10.1.0.8"]);
    // A last address of another configuration says nothing.
    assert_eq!(order(&set, Some("192.168.0.1")), ["10.0.0.10", "10.0.0.12", "10.1.0.7", "10.1.0.8"]);
}

#[test]
fn nonsense_is_refused() {
    let cases = [
        (spec("10.0.0.1/24", None, None, None), "host bits"),
        (spec("10.0.0.0/31", None, None, None), "too small"),
        (spec("10.0.0.0/24", Some("10.0.1.1"), None, None), "range start 10.0.1.1 not in"),
        (spec("10.0.0.0/24", None, Some("fd00::1"), None), "range end fd00::1 not in"),
        (spec("10.0.0.0/24", Some("10.0.0.9"), Some("10.0.0.8"), None), "after"),
        (spec("10.0.0.0/24", None, None, Some("10.9.0.1")), "gateway 10.9.0.1 not in"),
    ];
    for (range, words) in cases {
        let error = RangeSet::new(std::slice::from_ref(&range)).unwrap_err().to_string();
        assert!(error.contains(words), "{range:?}: {error}");
    }
    assert_eq!(RangeSet::new(&[]), Err(RangeError::Empty));
    let mixed = [spec("10.0.0.0/24", None, None, None), spec("fd00::/64", None, None, None)];
    assert_eq!(RangeSet::new(&mixed), Err(RangeError::Mixed));
    let twice = [spec("10.0.0.0/24", None, None, None), spec("10.0.0.0/25", None, None, None)];
    assert!(matches!(RangeSet::new(&twice), Err(RangeError::Overlap(..))));
}

#[test]
fn the_largest_subnets_do_not_overflow() {
    let set = RangeSet::new(&[spec("::/0", None, None, None)]).unwrap();
    assert_eq!(order_head(&set, None), "::2");
    assert_eq!(order_head(&set, Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")), "::2");
    let set = RangeSet::new(&[spec("0.0.0.0/0", None, None, None)]).unwrap();
    assert_eq!(order_head(&set, Some("255.255.255.254")), "0.0.0.2");
}

fn order_head(set: &RangeSet, last: Option<&str>) -> String {
    set.candidates(last.map(ip)).next().unwrap().0.to_string()
}

proptest! {
    /// Whatever was handed out last: every address once, none of them a gateway, the last one at the very end.
    #[test]
    fn candidates_are_complete_and_unique(prefix in 24_u8..=30, start in 0_u32..64, length in 0_u32..64, gateway in 0_u32..300, last in 0_u32..300) {
        let base = u32::from(std::net::Ipv4Addr::new(10, 0, 0, 0));
        let at = |offset: u32| IpAddr::V4((base + offset).into());
        let range = RangeSpec {
            subnet: format!("10.0.0.0/{prefix}").parse().unwrap(),
            range_start: Some(at(start)),
            range_end: Some(at(start + length)),
            gateway: Some(at(gateway)),
        };
        let Ok(set) = RangeSet::new(&[range]) else { return Ok(()) };
        let last = at(last);
        let found: Vec<IpAddr> = set.candidates(Some(last)).map(|(ip, _)| ip).collect();
        let unique: BTreeSet<IpAddr> = found.iter().copied().collect();
        prop_assert_eq!(unique.len(), found.len());
        let expected: BTreeSet<IpAddr> =
            (start..=start + length).filter(|offset| *offset != gateway).map(at).collect();
        prop_assert_eq!(unique, expected);
        if let Some(position) = found.iter().position(|ip| *ip == last) {
            prop_assert_eq!(position, found.len() - 1);
        }
        // Ascending but for one step back.
        let descents = found.windows(2).filter(|pair| number(pair[0]) > number(pair[1])).count();
        prop_assert!(descents <= 1);
    }
}
