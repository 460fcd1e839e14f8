//! Keys of the bridge plugin: wrong types name the key, nonsense is refused before the kernel is touched, nothing panics.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::Conf;
use crate::config::ConfigError;
use crate::error::Error;
use crate::host_local;
use crate::skel::{Command, Request};

fn request(keys: &Value) -> Result<Request, Error> {
    let mut config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge" });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let environment = |name: &str| match name {
        "CNI_ARGS" => None,
        "CNI_IFNAME" => Some("eth0".to_owned()),
        _ => Some("x".to_owned()),
    };
    Ok(Request::new(Command::Add, &environment, config.to_string().into_bytes())?)
}

fn complaint(keys: &Value) -> String {
    let outcome = request(keys).and_then(|request| {
        Conf::load(&request)?;
        host_local::Conf::load(&request).map_err(Error::from)
    });
    outcome.map(|_| String::new()).unwrap_or_else(|error| error.to_string())
}

#[test]
fn a_wrong_type_names_its_key() {
    let cases = [
        (json!({ "bridge": 1 }), "`bridge`"),
        (json!({ "mtu": "1500" }), "`mtu`"),
        (json!({ "mtu": -1 }), "`mtu`"),
        (json!({ "isGateway": "yes" }), "`isGateway`"),
        (json!({ "isDefaultGateway": 1 }), "`isDefaultGateway`"),
        (json!({ "hairpinMode": [] }), "`hairpinMode`"),
        (json!({ "vlan": "7" }), "`vlan`"),
        (json!({ "vlanTrunk": [{ "id": 1 }, { "minID": "a" }] }), "`vlanTrunk[1].minID`"),
        (json!({ "ipam": "host-local" }), "`ipam`"),
        (json!({ "ipam": { "type": 3 } }), "`ipam.type`"),
        (json!({ "dns": { "search": "a" } }), "`dns.search`"),
        (json!({ "runtimeConfig": { "mac": 1 } }), "`runtimeConfig.mac`"),
        (json!({ "ipam": { "ranges": [[{ "subnet": 1 }]] } }), "`ipam.ranges[0][0].subnet`"),
        (
            json!({ "ipam": { "ranges": [[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "x" }]] } }),
            "`ipam.ranges[1][0].subnet`",
        ),
        (json!({ "ipam": { "ranges": { "subnet": "10.0.0.0/24" } } }), "`ipam.ranges`"),
        (json!({ "ipam": { "subnet": "10.0.0.0/24", "routes": [{ "dst": 5 }] } }), "`ipam.routes[0].dst`"),
        (json!({ "ipam": { "subnet": "10.0.0.0/24", "dataDir": {} } }), "`ipam.dataDir`"),
        (json!({ "name": 5 }), "`name`"),
        (json!({ "cniVersion": 1.0 }), "`cniVersion`"),
    ];
    for (keys, key) in cases {
        let words = complaint(&keys);
        assert!(words.contains(key), "{keys}: {words:?}");
    }
}

#[test]
fn nonsense_names_its_key_too() {
    let cases = [
        (json!({ "bridge": "../../etc" }), "`bridge`"),
        (json!({ "bridge": "sixteen-letters-" }), "`bridge`"),
        (json!({ "vlan": 4095 }), "`vlan`"),
        (json!({ "vlan": 5, "vlanTrunk": [{ "id": 6 }] }), "`vlanTrunk`"),
        (json!({ "vlanTrunk": [{ "minID": 9, "maxID": 3 }] }), "`vlanTrunk[0]`"),
        (json!({ "vlanTrunk": [{ "maxID": 3 }] }), "minID is missing"),
        (json!({ "hairpinMode": true, "promiscMode": true }), "`hairpinMode`"),
        (json!({ "runtimeConfig": { "mac": "00:11" } }), "`runtimeConfig.mac`"),
        (json!({ "disableContainerInterface": true, "ipam": { "type": "host-local" } }), "`disableContainerInterface`"),
        (json!({ "ipMasq": true, "ipMasqBackend": "iptables" }), "`ipMasqBackend` = iptables is not supported"),
        (json!({ "macspoofchk": true }), "`macspoofchk` = true is not supported"),
        (json!({ "ipam": { "type": "host-local" } }), "no IP ranges specified"),
        (json!({ "ipam": { "ranges": [[]] } }), "invalid range set 0: empty"),
        (json!({ "ipam": { "ranges": [[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "10.0.0.128/25" }]] } }), "overlaps"),
        (json!({ "name": "a/b" }), "`name`"),
        (json!({ "name": ".." }), "`name`"),
        (json!({ "cniVersion": "7.0.0" }), "incompatible CNI versions"),
    ];
    for (keys, key) in cases {
        let words = complaint(&keys);
        assert!(words.contains(key), "{keys}: {words:?}");
    }
}

#[test]
fn null_is_absent_and_unknown_keys_are_ignored() {
    let keys = json!({ "mtu": null, "vlanTrunk": null, "unknown": { "a": 1 }, "ipam": null });
    let conf = Conf::load(&request(&keys).unwrap()).unwrap();
    assert_eq!((conf.mtu, conf.vlan_filtering, conf.ipam), (0, false, None));
    assert_eq!(conf.bridge, "cni0");
    assert!(conf.preserve_default_vlan);
}

#[test]
fn trunks_are_sorted_and_unique() {
    let keys = json!({ "vlanTrunk": [{ "minID": 5, "maxID": 7 }, { "id": 6 }, { "id": 2 }] });
    assert_eq!(Conf::load(&request(&keys).unwrap()).unwrap().trunk, [2, 5, 6, 7]);
}

#[test]
fn unsupported_keys_have_their_own_code() {
    let error = Conf::load(&request(&json!({ "macspoofchk": true })).unwrap()).unwrap_err();
    assert!(matches!(error, ConfigError::Unsupported { key: "macspoofchk", .. }));
    assert_eq!(Error::from(error).code(), 2);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[ -~]{0,12}".prop_map(Value::from),
        prop_oneof![Just("10.0.0.0/24"), Just("fd00::/64"), Just("10.0.0.7"), Just("::"), Just("host-local")]
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key(), inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "cniVersion",
            "name",
            "bridge",
            "isGateway",
            "mtu",
            "vlan",
            "vlanTrunk",
            "minID",
            "maxID",
            "id",
            "ipam",
            "type",
            "ranges",
            "subnet",
            "rangeStart",
            "rangeEnd",
            "gateway",
            "routes",
            "dst",
            "gw",
            "dns",
            "search",
            "args",
            "cni",
            "ips",
            "runtimeConfig",
            "mac",
            "ipRanges",
            "prevResult",
            "interfaces",
            "address",
            "cni.dev/valid-attachments",
        ])
        .prop_map(str::to_owned),
        "[a-z]{0,4}",
    ]
}

proptest! {
    /// Any JSON at all: an answer or an error, never a panic.
    #[test]
    fn no_configuration_panics(keys in prop::collection::btree_map(key(), any_json(), 0..6)) {
        let keys = Value::Object(keys.into_iter().collect());
        if let Ok(request) = request(&keys) {
            let _ = Conf::load(&request);
            let _ = host_local::Conf::load(&request);
            if let Some(previous) = request.config.get("prevResult") {
                let _ = crate::types::AddResult::parse(previous);
            }
        }
    }

    /// Any bytes at all.
    #[test]
    fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let environment = |_: &str| Some("x".to_owned());
        let _ = Request::new(Command::Del, &environment, bytes);
    }
}
