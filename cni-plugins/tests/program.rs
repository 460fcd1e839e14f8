//! The built program alone: commands the old reference lacks, bad input, failures, many at once, kill -9.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use common::{Call, Namespace, Outcome, Plugins, cannot_run, with_previous};
use serde_json::{Value, json};

fn ipam_config(data: &Path, subnet: &str) -> Value {
    json!({ "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "kbr0", "isDefaultGateway": true,
            "ipam": { "type": "host-local", "dataDir": data, "ranges": [[{ "subnet": subnet }]] } })
}

fn reserved(data: &Path) -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir(data.join("net")) else { return BTreeSet::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect()
}

#[test]
fn help_and_versions() {
    let plugins = Plugins::ours();
    let bare = Command::new(plugins.path().join("bridge")).env_remove("CNI_COMMAND").output().unwrap();
    assert!(bare.status.success());
    let text = String::from_utf8(bare.stderr).unwrap();
    assert!(text.contains("bridge") && text.contains("1.1.0"), "{text}");

    let version = Call::new(plugins.path(), "host-local", "VERSION", "").run(None, &json!({ "cniVersion": "1.0.0" }));
    let versions = version.expect("VERSION")["supportedVersions"].clone();
    assert_eq!(versions, json!(["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]));

    let nobody = Command::new(env!("CARGO_BIN_EXE_keelson-cni")).arg("nobody").output().unwrap();
    assert!(!nobody.status.success());
    assert!(String::from_utf8(nobody.stderr).unwrap().contains("no plugin `nobody`"));
}

#[test]
fn bad_calls_have_the_codes_of_the_specification() {
    let plugins = Plugins::ours();
    let good = json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge" });
    let call = Call::new(plugins.path(), "bridge", "ADD", "/nowhere");
    let cases = [
        (Call { command: "FROB", ..call.clone() }, good.clone(), 4, "FROB"),
        (Call { container: "", ..call.clone() }, good.clone(), 4, "CNI_CONTAINERID"),
        (Call { container: "a/b", ..call.clone() }, good.clone(), 4, "CNI_CONTAINERID"),
        (Call { ifname: "much-too-long-name", ..call.clone() }, good.clone(), 4, "CNI_IFNAME"),
        (Call { ifname: "../x", ..call.clone() }, good.clone(), 4, "CNI_IFNAME"),
        (Call { args: "nonsense", ..call.clone() }, good.clone(), 4, "CNI_ARGS"),
        (call.clone(), json!({ "cniVersion": "9.9.9", "name": "net" }), 1, "9.9.9"),
        (call.clone(), json!({ "cniVersion": "1.0.0" }), 7, "missing network name"),
        (call.clone(), json!({ "cniVersion": "1.0.0", "name": "net", "mtu": "big" }), 6, "`mtu`"),
        (call.clone(), json!({ "cniVersion": "1.0.0", "name": "net", "macspoofchk": true }), 2, "`macspoofchk`"),
        (call.clone(), good.clone(), 8, "/nowhere does not exist"),
        (Call { netns: "/etc/hostname", ..call.clone() }, good.clone(), 8, "is not a network namespace"),
        (Call { netns: "/proc/self/ns/net", ..call.clone() }, good.clone(), 8, "host's own"),
        (Call { command: "CHECK", ..call.clone() }, json!({ "cniVersion": "0.3.1", "name": "net" }), 1, "CHECK"),
        (Call { command: "GC", ..call.clone() }, good, 1, "GC"),
    ];
    for (call, config, code, words) in cases {
        let (found, message) = call.run(None, &config).expect_error(words);
        assert_eq!(found, code, "{message}");
        assert!(message.contains(words), "{message}");
    }
    let child = call.spawn(None, "{ \"cniVersion\": ");
    let (code, message) = Outcome::from(child.wait_with_output().unwrap()).expect_error("half a configuration");
    assert!(code == 6 && message.contains("not JSON"), "{code} {message}");
}

#[test]
fn an_ipam_plugin_is_a_name_and_not_a_path() {
    let name = "an_ipam_plugin_is_a_name_and_not_a_path";
    if cannot_run(name) {
        return;
    }
    let plugins = Plugins::ours();
    let (host, container) = (Namespace::new(), Namespace::new());
    let netns = container.path();
    for (plugin, code) in [("../bin/true", 7), ("/bin/true", 7), ("..", 7), ("no-such-plugin", 103)] {
        let config = json!({ "cniVersion": "1.0.0", "name": "net", "bridge": "kbr0", "ipam": { "type": plugin } });
        let (found, message) =
            Call::new(plugins.path(), "bridge", "ADD", &netns).run(Some(&host), &config).expect_error(plugin);
        assert_eq!(found, code, "{message}");
    }
    assert_eq!(container.json("ip", &["-j", "link"]).as_array().unwrap().len(), 1, "only lo may be left");
}

#[test]
fn a_failed_add_undoes_itself_and_a_second_add_changes_nothing() {
    let name = "a_failed_add_undoes_itself_and_a_second_add_changes_nothing";
    if cannot_run(name) {
        return;
    }
    let plugins = Plugins::ours();
    let data = tempfile::tempdir().unwrap();
    let (host, container) = (Namespace::new(), Namespace::new());
    let netns = container.path();
    let add = Call::new(plugins.path(), "bridge", "ADD", &netns);
    // The bridge has another address: the last step but one fails.
    host.run("ip", &["link", "add", "kbr0", "type", "bridge"]);
    host.run("ip", &["addr", "add", "10.200.0.1/24", "dev", "kbr0"]);
    let config = ipam_config(data.path(), "10.88.0.0/24");
    let (_, message) = add.run(Some(&host), &config).expect_error("foreign address");
    assert!(message.contains("10.200.0.1/24") && message.contains("forceAddress"), "{message}");
    assert!(!container.run("ip", &["link"]).contains("eth0"));
    assert!(!host.run("ip", &["link"]).contains("veth"));
    assert_eq!(reserved(data.path()), BTreeSet::new());

    let mut forced = config;
    forced["forceAddress"] = true.into();
    let result = add.run(Some(&host), &forced).expect("forceAddress");
    assert!(host.run("ip", &["addr"]).contains("10.88.0.1/24"));
    assert!(!host.run("ip", &["addr"]).contains("10.200.0.1/24"));
    // Again: refused, and what is there stays there.
    add.run(Some(&host), &forced).expect_error("second ADD");
    let check = Call { command: "CHECK", ..add.clone() };
    check.run(Some(&host), &with_previous(&forced, &result)).expect("CHECK after the refused ADD");
    assert_eq!(reserved(data.path()).len(), 1);
}

#[test]
fn del_works_when_the_namespace_is_gone() {
    let name = "del_works_when_the_namespace_is_gone";
    if cannot_run(name) {
        return;
    }
    let plugins = Plugins::ours();
    let data = tempfile::tempdir().unwrap();
    let host = Namespace::new();
    let config = ipam_config(data.path(), "10.88.0.0/24");
    let leftover = data.path().join("not-a-namespace");
    std::fs::write(&leftover, "").unwrap();
    for netns in ["", "/nowhere", leftover.to_str().unwrap(), "/proc/self/ns/net"] {
        let container = Namespace::new();
        let path = container.path();
        Call::new(plugins.path(), "bridge", "ADD", &path).run(Some(&host), &config).expect("ADD");
        drop(container);
        assert_eq!(reserved(data.path()).len(), 1);
        // The host's own interface of that name must survive a path that leads to the host.
        let call = Call { netns, ..Call::new(plugins.path(), "bridge", "DEL", netns) };
        call.run(Some(&host), &config).expect("DEL");
        assert_eq!(reserved(data.path()).len(), 0, "{netns}");
    }
    // A key that ADD refuses must not keep a container from being deleted.
    let mut masq = config;
    masq["macspoofchk"] = true.into();
    Call::new(plugins.path(), "bridge", "DEL", "").run(Some(&host), &masq).expect("DEL with macspoofchk");
}

#[test]
fn check_sees_what_is_missing() {
    let name = "check_sees_what_is_missing";
    if cannot_run(name) {
        return;
    }
    let plugins = Plugins::ours();
    let data = tempfile::tempdir().unwrap();
    let (host, container) = (Namespace::new(), Namespace::new());
    let netns = container.path();
    let mut config = ipam_config(data.path(), "10.88.0.0/24");
    config["ipam"]["routes"] = json!([{ "dst": "192.168.5.0/24" }]);
    let call = |command| Call::new(plugins.path(), "bridge", command, &netns);
    let result = call("ADD").run(Some(&host), &config).expect("ADD");
    let checked = with_previous(&config, &result);
    call("CHECK").run(Some(&host), &checked).expect("CHECK");
    let (code, message) = call("CHECK").run(Some(&host), &config).expect_error("no prevResult");
    assert!(code == 7 && message.contains("prevResult"), "{message}");

    let peer = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let damages: [(&Namespace, Vec<&str>, Vec<&str>, &str); 4] = [
        (
            &container,
            vec!["route", "del", "192.168.5.0/24"],
            vec!["route", "add", "192.168.5.0/24", "via", "10.88.0.1"],
            "192.168.5.0/24",
        ),
        (
            &container,
            vec!["addr", "add", "10.99.0.1/32", "dev", "eth0"],
            vec!["addr", "del", "10.99.0.1/32", "dev", "eth0"],
            "",
        ),
        (&host, vec!["link", "set", &peer, "nomaster"], vec!["link", "set", &peer, "master", "kbr0"], "was not found"),
        (&host, vec!["link", "set", "kbr0", "promisc", "on"], vec!["link", "set", "kbr0", "promisc", "off"], "Promisc"),
    ];
    for (namespace, damage, repair, words) in damages {
        namespace.run("ip", &damage);
        let outcome = call("CHECK").run(Some(&host), &checked);
        if words.is_empty() {
            outcome.expect("more than there was is fine");
        } else {
            let (code, message) = outcome.expect_error(words);
            assert!(code == 102 && message.contains(words), "{code} {message}");
        }
        namespace.run("ip", &repair);
        call("CHECK").run(Some(&host), &checked).expect("CHECK after repair");
    }
}

#[test]
fn gc_frees_what_nobody_owns_and_status_asks_the_configuration() {
    let plugins = Plugins::ours();
    let data = tempfile::tempdir().unwrap();
    let config = ipam_config(data.path(), "10.88.0.0/24");
    let call = |command, container| Call { container, ..Call::new(plugins.path(), "host-local", command, "/nowhere") };
    for container in ["a", "b", "c"] {
        call("ADD", container).run(None, &config).expect("ADD");
    }
    let collect = |plugin, valid: Value| {
        let mut config = config.clone();
        config["cni.dev/valid-attachments"] = valid;
        Call { plugin, ..call("GC", "") }.run(None, &config)
    };
    collect("bridge", json!([{ "containerID": "a", "ifname": "eth0" }, { "containerID": "b", "ifname": "eth9" }]))
        .expect("GC");
    assert_eq!(reserved(data.path()), BTreeSet::from(["10.88.0.2".to_owned()]));
    // Without the list nothing is freed.
    let (code, _) = call("GC", "").run(None, &config).expect_error("GC without a list");
    assert_eq!((code, reserved(data.path()).len()), (7, 1));
    collect("host-local", json!([])).expect("GC of everything");
    assert_eq!(reserved(data.path()).len(), 0);

    Call { plugin: "bridge", ..call("STATUS", "") }.run(None, &config).expect("STATUS");
    let broken =
        json!({ "cniVersion": "1.1.0", "name": "net", "ipam": { "type": "host-local", "subnet": "10.0.0.1/24" } });
    Call { plugin: "bridge", ..call("STATUS", "") }.run(None, &broken).expect_error("STATUS");
}

#[test]
fn keys_newer_than_debians_reference() {
    let name = "keys_newer_than_debians_reference";
    if cannot_run(name) {
        return;
    }
    let plugins = Plugins::ours();
    if common::no_vlan_filtering(name) {
        return;
    }
    let (host, first, second, third) = (Namespace::new(), Namespace::new(), Namespace::new(), Namespace::new());
    let add = |container: &Namespace, id: &str, keys: Value| {
        let mut config =
            json!({ "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "kbr0", "vlanTrunk": [] });
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let netns = container.path();
        Call { container: id, ..Call::new(plugins.path(), "bridge", "ADD", &netns) }
            .run(Some(&host), &config)
            .expect("ADD")
    };
    let result = add(
        &first,
        "a",
        json!({ "vlanTrunk": [{ "minID": 10, "maxID": 12 }, { "id": 20 }], "preserveDefaultVlan": false, "portIsolation": true }),
    );
    assert_eq!(result["interfaces"][2]["mtu"], 1500);
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    let vlans = host.json("bridge", &["-j", "vlan", "show", "dev", port]);
    let ids: Vec<u64> = vlans[0]["vlans"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|vlan| {
            let first = vlan["vlan"].as_u64().unwrap();
            first..=vlan["vlanEnd"].as_u64().unwrap_or(first)
        })
        .collect();
    assert_eq!(ids, [10, 11, 12, 20]);
    let detail = host.json("ip", &["-j", "-d", "link", "show", port]);
    assert_eq!(detail[0]["linkinfo"]["info_slave_data"]["isolated"], true);

    let result = add(&second, "b", json!({ "vlan": 30, "preserveDefaultVlan": false }));
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    let vlans = host.json("bridge", &["-j", "vlan", "show", "dev", port]);
    assert_eq!(vlans[0]["vlans"], json!([{ "vlan": 30, "flags": ["PVID", "Egress Untagged"] }]));

    add(&third, "c", json!({ "disableContainerInterface": true }));
    let link = third.json("ip", &["-j", "link", "show", "eth0"]);
    assert!(!link[0]["flags"].as_array().unwrap().contains(&"UP".into()));
}

#[test]
fn isolated_ports_and_interfaces_left_down() {
    let name = "isolated_ports_and_interfaces_left_down";
    if cannot_run(name) {
        return;
    }
    let plugins = Plugins::ours();
    let (host, first, second) = (Namespace::new(), Namespace::new(), Namespace::new());
    let add = |container: &Namespace, key: &str| {
        let config = json!({ "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "kbr0", key: true });
        let netns = container.path();
        Call { container: key, ..Call::new(plugins.path(), "bridge", "ADD", &netns) }
            .run(Some(&host), &config)
            .expect("ADD")
    };
    let result = add(&first, "portIsolation");
    assert_eq!(result["interfaces"][2]["mtu"], 1500);
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    let detail = host.json("ip", &["-j", "-d", "link", "show", port]);
    assert_eq!(detail[0]["linkinfo"]["info_slave_data"]["isolated"], true);

    add(&second, "disableContainerInterface");
    let link = second.json("ip", &["-j", "link", "show", "eth0"]);
    assert!(!link[0]["flags"].as_array().unwrap().contains(&"UP".into()));
}

#[test]
fn masqueraded_containers_are_elements_of_a_constant_table() {
    let name = "masqueraded_containers_are_elements_of_a_constant_table";
    if cannot_run(name) {
        return;
    }
    let plugins = Plugins::ours();
    let data = tempfile::tempdir().unwrap();
    let (host, outside, container) = (Namespace::new(), Namespace::new(), Namespace::new());
    // A neighbour of the host that knows no way back to containers: it can only answer the host.
    host.run("ip", &["link", "add", "up0", "type", "veth", "peer", "name", "out0", "netns", &outside.pid()]);
    host.run("ip", &["addr", "add", "192.0.2.1/24", "dev", "up0"]);
    host.run("ip", &["link", "set", "up0", "up"]);
    outside.run("ip", &["addr", "add", "192.0.2.2/24", "dev", "out0"]);
    outside.run("ip", &["link", "set", "out0", "up"]);
    let mut config = ipam_config(data.path(), "10.88.0.0/24");
    config["ipMasq"] = true.into();
    config["ipam"]["ranges"] = json!([[{ "subnet": "10.88.0.0/24" }], [{ "subnet": "fd88::/64" }]]);
    let netns = container.path();
    let call = |command| Call::new(plugins.path(), "bridge", command, &netns);
    let result = call("ADD").run(Some(&host), &config).expect("ADD");
    container.run("busybox", &["ping", "-c", "1", "-W", "2", "192.0.2.2"]);
    let rules = host.run("nft", &["list", "ruleset"]);
    assert!(rules.contains("10.88.0.2 : goto net_10_88_0_0_24") && rules.contains("fd88::2 : goto"), "{rules}");
    // Once more for a second container, then the first leaves: by prevResult alone, its namespace gone.
    let second = Namespace::new();
    let path = second.path();
    Call { container: "c2", ..Call::new(plugins.path(), "bridge", "ADD", &path) }
        .run(Some(&host), &config)
        .expect("ADD");
    drop(container);
    call("DEL").run(Some(&host), &with_previous(&config, &result)).expect("DEL");
    call("DEL").run(Some(&host), &with_previous(&config, &result)).expect("second DEL");
    let rules = host.run("nft", &["list", "ruleset"]);
    assert!(!rules.contains("10.88.0.2 :") && rules.contains("10.88.0.3 : goto"), "{rules}");
    second.run("busybox", &["ping", "-c", "1", "-W", "2", "192.0.2.2"]);
}

#[test]
fn a_hundred_adds_at_once_get_a_hundred_addresses() {
    let plugins = Plugins::ours();
    let data = tempfile::tempdir().unwrap();
    let config = ipam_config(data.path(), "10.88.0.0/24").to_string();
    let names: Vec<String> = (0..100).map(|number| format!("c{number}")).collect();
    let children: Vec<Child> = names
        .iter()
        .map(|container| {
            Call { container, ..Call::new(plugins.path(), "host-local", "ADD", "/nowhere") }.spawn(None, &config)
        })
        .collect();
    let addresses: BTreeSet<String> = children
        .into_iter()
        .map(|child| Outcome::from(child.wait_with_output().unwrap()).expect("ADD")["ips"][0]["address"].to_string())
        .collect();
    assert_eq!(addresses.len(), 100);
    assert_eq!(reserved(data.path()).len(), 100);
}

#[test]
fn many_containers_join_a_new_bridge_at_once() {
    let name = "many_containers_join_a_new_bridge_at_once";
    if cannot_run(name) {
        return;
    }
    let plugins = Plugins::ours();
    let data = tempfile::tempdir().unwrap();
    let host = Namespace::new();
    let config = ipam_config(data.path(), "10.88.0.0/24").to_string();
    let containers: Vec<(String, Namespace)> = (0..16).map(|number| (format!("c{number}"), Namespace::new())).collect();
    let paths: Vec<String> = containers.iter().map(|(_, namespace)| namespace.path()).collect();
    let children: Vec<Child> = containers
        .iter()
        .zip(&paths)
        .map(|((container, _), netns)| {
            Call { container, ..Call::new(plugins.path(), "bridge", "ADD", netns) }.spawn(Some(&host), &config)
        })
        .collect();
    let results: Vec<Value> =
        children.into_iter().map(|child| Outcome::from(child.wait_with_output().unwrap()).expect("ADD")).collect();
    let addresses: BTreeSet<String> = results.iter().map(|result| result["ips"][0]["address"].to_string()).collect();
    assert_eq!(addresses.len(), 16);
    // The bridge was made once, and its address never moved with its ports.
    let bridges: BTreeSet<String> = results.iter().map(|result| result["interfaces"][0]["mac"].to_string()).collect();
    assert_eq!(bridges.len(), 1);
    let ports = host.json("ip", &["-j", "link", "show", "master", "kbr0"]);
    assert_eq!(ports.as_array().unwrap().len(), 16);
    // They reach each other and their gateway.
    let other = results[1]["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap();
    for target in [other, "10.88.0.1"] {
        if Path::new("/usr/bin/ping").exists() || Path::new("/bin/ping").exists() {
            containers[0].1.run("ping", &["-c", "1", "-W", "2", target]);
        } else {
            containers[0].1.run("busybox", &["ping", "-c", "1", "-W", "2", target]);
        }
    }
}

#[test]
fn kill_9_never_gives_an_address_twice() {
    let plugins = Plugins::ours();
    let data = tempfile::tempdir().unwrap();
    let config = ipam_config(data.path(), "10.88.0.0/23").to_string();
    let mut answered = BTreeSet::new();
    let mut pause = 1_u64;
    for round in 0..60 {
        let names: Vec<String> = (0..4).map(|number| format!("r{round}-{number}")).collect();
        let mut children: Vec<Child> = names
            .iter()
            .map(|container| {
                Call { container, ..Call::new(plugins.path(), "host-local", "ADD", "/nowhere") }.spawn(None, &config)
            })
            .collect();
        // A cheap spread of moments over the few milliseconds that a call takes.
        pause = (pause * 1103 + 12345) % 4001;
        std::thread::sleep(Duration::from_micros(pause));
        for child in &mut children {
            let _ = child.kill();
        }
        for child in children {
            let output = child.wait_with_output().unwrap();
            if output.status.success() {
                let address = Outcome::from(output).answer["ips"][0]["address"].to_string();
                assert!(answered.insert(address.clone()), "{address} was given twice");
            }
        }
    }
    // No half-written file, and everything that was answered is reserved.
    let left = reserved(data.path());
    for name in &left {
        let contents = std::fs::read_to_string(data.path().join("net").join(name)).unwrap();
        assert!(contents.ends_with("\r\neth0"), "{name}: {contents:?}");
    }
    assert!(left.len() >= answered.len());
    // What the kills have leaked, a GC collects.
    let mut gc: Value = serde_json::from_str(&config).unwrap();
    gc["cni.dev/valid-attachments"] = json!([]);
    Call::new(plugins.path(), "host-local", "GC", "").run(None, &gc).expect("GC");
    assert_eq!(reserved(data.path()).len(), 0);
}
