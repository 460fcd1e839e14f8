//! Result formats of all versions.

use serde_json::{Value, json};

use super::{AddResult, Interface};
use crate::version::Version;

fn result() -> AddResult {
    let mut result = AddResult::parse(&json!({
        "cniVersion": "1.1.0",
        "ips": [{ "address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 0 }, { "address": "fd00::2/64" }],
        "routes": [{ "dst": "0.0.0.0/0", "mtu": 1400 }, { "dst": "::/0", "gw": "fd00::1" }],
        "dns": { "nameservers": ["10.0.0.9"] },
    }))
    .unwrap();
    result.interfaces = vec![Interface {
        name: "eth0".into(),
        mac: "0a:00:00:00:00:01".into(),
        mtu: Some(1400),
        sandbox: "/ns".into(),
    }];
    result
}

fn written(version: Version) -> Value {
    serde_json::from_str(&result().to_json(version)).unwrap()
}

#[test]
fn the_oldest_format_has_one_address_per_family() {
    let expected = json!({
        "cniVersion": "0.2.0",
        "ip4": { "ip": "10.0.0.2/24", "gateway": "10.0.0.1", "routes": [{ "dst": "0.0.0.0/0" }] },
        "ip6": { "ip": "fd00::2/64", "routes": [{ "dst": "::/0", "gw": "fd00::1" }] },
        "dns": { "nameservers": ["10.0.0.9"] },
    });
    assert_eq!(written(Version::V0_2_0), expected);
}

#[test]
fn newer_formats_differ_in_families_and_extras() {
    assert_eq!(written(Version::V0_4_0)["ips"][0]["version"], "4");
    assert_eq!(written(Version::V0_3_0)["ips"][1]["version"], "6");
    let v1 = written(Version::V1_0_0);
    assert_eq!(v1["ips"][0], json!({ "address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 0 }));
    assert_eq!(v1["routes"][0], json!({ "dst": "0.0.0.0/0" }));
    assert_eq!(v1["interfaces"][0].get("mtu"), None);
    let v11 = written(Version::V1_1_0);
    assert_eq!(v11["routes"][0], json!({ "dst": "0.0.0.0/0", "mtu": 1400 }));
    assert_eq!(v11["interfaces"][0]["mtu"], 1400);
}

#[test]
fn every_format_reads_back() {
    for version in Version::ALL {
        let back = AddResult::parse(&written(version)).unwrap();
        let addresses = |result: &AddResult| result.ips.iter().map(|ip| ip.address).collect::<Vec<_>>();
        assert_eq!(addresses(&back), addresses(&result()), "{version}");
        assert_eq!(back.routes.len(), 2, "{version}");
        assert_eq!(back.dns, result().dns, "{version}");
    }
    assert!(AddResult::parse(&json!({ "cniVersion": "3.0.0" })).is_err());
}
