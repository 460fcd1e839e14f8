//! The same configurations to the reference plugins and to ours: the results and the state of the namespaces must be the same.
//!
//! Left out of the comparison: what is random (hardware addresses, the host interface's name), and the transmit queue's length,
//! where Debian's reference 1.1.1 sets 0 by mistake and later ones leave the kernel's default, as we do.

mod common;

use std::path::Path;

use common::{Call, Namespace, Plugins, REFERENCE, cannot_run, no_reference, with_previous};
use serde_json::{Value, json};

/// Name and configuration; `DATA` stands for a folder of the test's.
fn bridge_cases() -> Vec<(&'static str, Value)> {
    let host_local = |more: Value| {
        let mut ipam = json!({ "type": "host-local", "dataDir": "DATA", "subnet": "10.77.0.0/24" });
        ipam.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ipam
    };
    let dual = json!([[{ "subnet": "10.77.0.0/24" }], [{ "subnet": "fd77::/64" }]]);
    vec![
        ("plain", json!({ "ipam": host_local(json!({})) })),
        ("layer 2 only", json!({})),
        ("gateway", json!({ "isGateway": true, "ipam": host_local(json!({})) })),
        (
            "default gateway, hairpin, mtu",
            json!({ "isDefaultGateway": true, "hairpinMode": true, "mtu": 1300, "ipam": host_local(json!({})) }),
        ),
        (
            "dual stack with routes",
            json!({ "isDefaultGateway": true, "ipam": { "type": "host-local", "dataDir": "DATA", "ranges": dual,
                    "routes": [{ "dst": "192.168.9.0/24" }, { "dst": "fd99::/48", "gw": "fd77::5" }, { "dst": "0.0.0.0/0", "gw": "10.77.0.9" }] } }),
        ),
        (
            "range and gateway",
            json!({ "isGateway": true, "ipam": host_local(json!({ "rangeStart": "10.77.0.50", "rangeEnd": "10.77.0.60", "gateway": "10.77.0.254" })) }),
        ),
        ("promiscuous", json!({ "promiscMode": true, "isGateway": true, "ipam": host_local(json!({})) })),
        ("access vlan", json!({ "vlan": 30, "isGateway": true, "ipam": host_local(json!({})) })),
        (
            "requested address and hardware address",
            json!({ "ipam": host_local(json!({})), "args": { "cni": { "ips": ["10.77.0.99/24"] } }, "runtimeConfig": { "mac": "0a:58:0a:4d:00:63" } }),
        ),
        (
            "dns of the configuration",
            json!({ "ipam": host_local(json!({})), "dns": { "nameservers": ["10.0.0.10"], "search": ["a", "b"], "options": ["ndots:5"] } }),
        ),
    ]
}

#[test]
fn bridge_is_as_the_reference() {
    let name = "bridge_is_as_the_reference";
    if cannot_run(name) || no_reference(name) {
        return;
    }
    let ours = Plugins::ours();
    let no_vlans = common::no_vlan_filtering(name);
    for (case, keys) in bridge_cases() {
        if no_vlans && !keys["vlan"].is_null() {
            continue;
        }
        for version in ["1.0.0", "0.4.0", "0.3.1"] {
            let theirs = observe(Path::new(REFERENCE), &keys, version);
            let mine = observe(ours.path(), &keys, version);
            for (key, value) in theirs.as_object().unwrap() {
                assert_eq!(&mine[key], value, "{case}, {version}, {key}");
            }
        }
    }
}

/// ADD, look, CHECK, DEL twice, look again.
fn observe(plugins: &Path, keys: &Value, version: &str) -> Value {
    let data = tempfile::tempdir().unwrap();
    let mut config = json!({ "cniVersion": version, "name": "net", "type": "bridge", "bridge": "kbr0" });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let config: Value =
        serde_json::from_str(&config.to_string().replace("DATA", data.path().to_str().unwrap())).unwrap();

    let (host, container) = (Namespace::new(), Namespace::new());
    let netns = container.path();
    let call = |command| Call::new(plugins, "bridge", command, &netns);
    let result = call("ADD").run(Some(&host), &config).expect("ADD");
    let state = state_of(&host, &container, data.path());
    let bare =
        config["ipam"]["routes"].as_array().is_some_and(|routes| routes.iter().any(|route| route["gw"].is_null()));
    // The reference's CHECK does not find its own routes without a next hop.
    if version != "0.3.1" && !bare && !config["ipam"].is_null() {
        call("CHECK").run(Some(&host), &with_previous(&config, &result)).expect("CHECK");
    }
    call("DEL").run(Some(&host), &config).expect("DEL");
    call("DEL").run(Some(&host), &config).expect("second DEL");
    // A bridge that has lost its last port loses its carrier a moment later.
    let mut after = state_of(&host, &container, data.path());
    without_carrier(&mut after["host"]["links"]);
    json!({ "result": scrub_result(result), "state": state, "after": after })
}

fn state_of(host: &Namespace, container: &Namespace, data: &Path) -> Value {
    json!({ "host": host_state(host), "container": container_state(container), "files": files(data) })
}

fn without_carrier(links: &mut Value) {
    for link in links.as_array_mut().unwrap() {
        link["state"].take();
        link["flags"].as_array_mut().unwrap().retain(|flag| flag != "NO-CARRIER");
    }
}

/// Random names and addresses become words; the order of members is no matter in JSON.
fn scrub_result(mut result: Value) -> Value {
    for interface in result["interfaces"].as_array_mut().unwrap() {
        if interface["mac"] != "0a:58:0a:4d:00:63" {
            interface["mac"] = "random".into();
        }
        if interface["name"].as_str().unwrap().starts_with("veth") {
            interface["name"] = "veth".into();
        }
        if !interface["sandbox"].is_null() {
            interface["sandbox"] = "container".into();
        }
    }
    result
}

fn files(folder: &Path) -> Value {
    let Ok(entries) = std::fs::read_dir(folder.join("net")) else { return json!({}) };
    let entries = entries.map(|entry| {
        let path = entry.unwrap().path();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(&path).unwrap().into())
    });
    Value::Object(entries.collect())
}

fn container_state(namespace: &Namespace) -> Value {
    let settings =
        ["net/ipv6/conf/eth0/accept_dad", "net/ipv4/conf/eth0/arp_notify", "net/ipv6/conf/eth0/disable_ipv6"];
    let there = namespace.run("ls", &["/proc/sys/net/ipv4/conf"]).contains("eth0");
    let settings: Vec<String> =
        if there { settings.iter().map(|key| namespace.sysctl(key)).collect() } else { Vec::new() };
    json!({ "links": links(namespace), "routes": routes(namespace), "settings": settings })
}

fn host_state(namespace: &Namespace) -> Value {
    json!({
        "links": links(namespace),
        "routes": routes(namespace),
        "vlans": vlans(namespace),
        "forward": [namespace.sysctl("net/ipv4/ip_forward"), namespace.sysctl("net/ipv6/conf/all/forwarding")],
        "accept_ra": namespace.run("sh", &["-c", "cat /proc/sys/net/ipv6/conf/[kv]*/accept_ra 2>/dev/null | sort -u"]),
    })
}

fn links(namespace: &Namespace) -> Value {
    let all = namespace.json("ip", &["-j", "-d", "addr"]);
    let mut links: Vec<Value> = all.as_array().unwrap().iter().map(link).collect();
    links.sort_by_key(ToString::to_string);
    links.into()
}

fn link(link: &Value) -> Value {
    let info = &link["linkinfo"];
    let mut flags: Vec<&str> = link["flags"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    flags.sort_unstable();
    let addresses: Vec<Value> = link["addr_info"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|address| address["scope"] != "link")
        .map(|address| {
            let pick = ["family", "local", "prefixlen", "broadcast", "scope", "label"];
            Value::Object(pick.iter().map(|key| ((*key).to_owned(), address[*key].clone())).collect())
        })
        .collect();
    json!({
        "name": scrub_name(&link["ifname"]),
        "flags": flags,
        "mtu": link["mtu"],
        "state": link["operstate"],
        "master": link["master"],
        "mac": if link["address"] == "0a:58:0a:4d:00:63" { "asked for" } else { "random" },
        "addresses": addresses,
        "kind": info["info_kind"],
        "vlan_filtering": info["info_data"]["vlan_filtering"],
        "hairpin": info["info_slave_data"]["hairpin"],
        "isolated": info["info_slave_data"]["isolated"],
    })
}

fn scrub_name(name: &Value) -> Value {
    match name.as_str() {
        Some(name) if name.starts_with("veth") => "veth".into(),
        _ => name.clone(),
    }
}

fn routes(namespace: &Namespace) -> Value {
    let mut found = Vec::new();
    for family in ["-4", "-6"] {
        for route in namespace.json("ip", &["-j", "-d", family, "route", "show", "table", "all"]).as_array().unwrap() {
            let text = route.to_string();
            // Local, broadcast and multicast routes come with addresses; link-local ones carry random addresses.
            let own = ["local", "broadcast", "multicast", "anycast"].iter().any(|kind| route["type"] == *kind);
            if own || text.contains("fe80") || text.contains("ff00") {
                continue;
            }
            let pick = ["dst", "gateway", "protocol", "scope", "metric", "prefsrc", "type"];
            let mut picked: serde_json::Map<String, Value> =
                pick.iter().map(|key| ((*key).to_owned(), route[*key].clone())).collect();
            picked.insert("dev".into(), scrub_name(&route["dev"]));
            found.push(Value::Object(picked));
        }
    }
    found.sort_by_key(ToString::to_string);
    found.into()
}

fn vlans(namespace: &Namespace) -> Value {
    let mut found: Vec<Value> = namespace
        .json("bridge", &["-j", "vlan", "show"])
        .as_array()
        .unwrap()
        .iter()
        .map(|port| json!({ "name": scrub_name(&port["ifname"]), "vlans": port["vlans"] }))
        .collect();
    found.sort_by_key(ToString::to_string);
    found.into()
}

#[test]
fn loopback_is_as_the_reference() {
    let name = "loopback_is_as_the_reference";
    if cannot_run(name) || no_reference(name) {
        return;
    }
    let ours = Plugins::ours();
    let config = json!({ "cniVersion": "1.0.0", "name": "lo", "type": "loopback" });
    let observe = |plugins: &Path| {
        let (host, container) = (Namespace::new(), Namespace::new());
        let netns = container.path();
        let call = |command| Call { ifname: "lo", ..Call::new(plugins, "loopback", command, &netns) };
        let down = call("CHECK").run(Some(&host), &config).code;
        let mut result = call("ADD").run(Some(&host), &config).expect("ADD");
        result["interfaces"][0]["sandbox"] = "container".into();
        let up = (links(&container), call("CHECK").run(Some(&host), &config).code);
        call("DEL").run(Some(&host), &config).expect("DEL");
        (down, result, up, links(&container))
    };
    assert_eq!(observe(ours.path()), observe(Path::new(REFERENCE)));
}

#[test]
fn host_local_is_as_the_reference_and_takes_over_from_it() {
    let name = "host_local_is_as_the_reference_and_takes_over_from_it";
    if no_reference(name) {
        return;
    }
    let ours = Plugins::ours();
    let reference = Path::new(REFERENCE);
    // Which set makes each of the calls: the answers must not depend on it.
    let script = |first: &Path, second: &Path| {
        let data = tempfile::tempdir().unwrap();
        let config = json!({ "cniVersion": "1.0.0", "name": "net", "ipam": { "type": "host-local", "dataDir": data.path(),
            "ranges": [[{ "subnet": "10.5.0.0/24", "rangeStart": "10.5.0.3", "rangeEnd": "10.5.0.4" }, { "subnet": "10.6.0.0/30" }], [{ "subnet": "fd05::/120" }]],
            "routes": [{ "dst": "0.0.0.0/0" }] } });
        let call = |plugins: &Path, command: &str, container: &str| {
            let call = Call { container, ..Call::new(plugins, "host-local", command, "/nowhere") };
            let outcome = call.run(None, &config);
            let answer = if outcome.code == Some(0) { outcome.answer } else { outcome.answer["msg"].clone() };
            (outcome.code, answer)
        };
        let mut log = Vec::new();
        for (plugins, command, container) in [
            (first, "ADD", "a"),
            (second, "ADD", "b"),
            (first, "ADD", "c"),
            (second, "CHECK", "a"),
            (first, "DEL", "a"),
            (second, "CHECK", "a"),
            (second, "ADD", "d"),
            (first, "ADD", "e"),
            (second, "DEL", "b"),
            (first, "ADD", "f"),
            (second, "ADD", "d"),
        ] {
            log.push(call(plugins, command, container));
        }
        (log, files(data.path()))
    };
    let expected = script(reference, reference);
    // The texts differ in their frame only; what the reference says is in ours.
    for (first, second) in [(ours.path(), ours.path()), (reference, ours.path()), (ours.path(), reference)] {
        let found = script(first, second);
        assert_eq!(found.1, expected.1);
        for (mine, theirs) in found.0.iter().zip(&expected.0) {
            assert_eq!(mine, theirs);
        }
    }
}

#[test]
fn a_foreign_ipam_plugin_is_run() {
    let name = "a_foreign_ipam_plugin_is_run";
    if cannot_run(name) || no_reference(name) {
        return;
    }
    let ours = Plugins::ours();
    // Only bridge is ours in this folder; host-local and static are the reference's.
    let mixed = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(ours.path().join("bridge"), mixed.path().join("bridge")).unwrap();
    for plugin in ["host-local", "static"] {
        std::os::unix::fs::symlink(Path::new(REFERENCE).join(plugin), mixed.path().join(plugin)).unwrap();
    }
    let (host, container) = (Namespace::new(), Namespace::new());
    let netns = container.path();
    let config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "kbr0",
        "ipam": { "type": "static", "addresses": [{ "address": "10.9.0.7/24", "gateway": "10.9.0.1" }], "routes": [{ "dst": "0.0.0.0/0" }] } });
    let result = Call::new(mixed.path(), "bridge", "ADD", &netns).run(Some(&host), &config).expect("ADD");
    assert_eq!(result["ips"][0]["address"], "10.9.0.7/24");
    // Its failure comes through with its own code and words.
    let full = json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "kbr0", "ipam": { "type": "host-local" } });
    let call = Call { ifname: "eth1", ..Call::new(mixed.path(), "bridge", "ADD", &netns) };
    let (code, message) = call.run(Some(&host), &full).expect_error("ADD without ranges");
    assert_eq!((code, message.as_str()), (999, "no IP ranges specified"));
    assert!(!container.run("ip", &["link"]).contains("eth1"), "a failed ADD must leave no interface");
}
