use serde_json::{Value, json};

use super::*;
use crate::skel::Command;

fn load(config: Value) -> Result<Conf, String> {
    let environment = |name: &str| match name {
        "CNI_CONTAINERID" => Some("c1".to_owned()),
        "CNI_NETNS" => Some("/n".to_owned()),
        "CNI_IFNAME" => Some("eth0".to_owned()),
        "CNI_PATH" => Some("/p".to_owned()),
        _ => None,
    };
    let mut all = json!({"cniVersion": "1.0.0", "name": "net", "type": "portmap"});
    all.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    let request = Request::new(Command::Add, &environment, all.to_string().into_bytes()).unwrap();
    Conf::load(&request).map_err(|error| error.to_string())
}

fn ports(port: Value) -> Value {
    json!({"runtimeConfig": {"portMappings": [port]}})
}

#[test]
fn defaults_are_the_references() {
    let conf = load(json!({})).unwrap();
    assert!(conf.snat && !conf.masquerade_all && conf.mappings.is_empty() && conf.previous.is_none());
    assert_eq!(conf.mark_bit, 13);
}

#[test]
fn ports_are_read() {
    let mut config = ports(json!({"hostPort": 8080, "containerPort": 80, "protocol": "TCP", "hostIP": "192.0.2.1"}));
    config["backend"] = "nftables".into();
    let conf = load(config).unwrap();
    let expected =
        Mapping { protocol: Protocol::Tcp, host_ip: Some([192, 0, 2, 1].into()), host_port: 8080, container_port: 80 };
    assert_eq!(conf.mappings, [expected]);
    assert!(conf.mappings[0].is_for(true) && !conf.mappings[0].is_for(false));
}

#[test]
fn ports_are_read_as_containerd_writes_them() {
    let conf = load(ports(json!({"HostPort": 8053, "ContainerPort": 53, "Protocol": "udp", "HostIP": ""}))).unwrap();
    let expected = Mapping { protocol: Protocol::Udp, host_ip: None, host_port: 8053, container_port: 53 };
    assert_eq!(conf.mappings, [expected]);
}

#[test]
fn what_makes_no_sense_is_named() {
    for (config, message) in [
        (ports(json!({"hostPort": 0, "containerPort": 80, "protocol": "tcp"})), "Invalid host port number: 0"),
        (ports(json!({"hostPort": 80, "containerPort": -1, "protocol": "tcp"})), "Invalid container port number: -1"),
        (ports(json!({"hostPort": 65536, "containerPort": 1, "protocol": "tcp"})), "Invalid host port number: 65536"),
        (ports(json!({"hostPort": 1, "containerPort": 1, "protocol": "icmp"})), "none of tcp, udp and sctp"),
        (ports(json!({"hostPort": 1, "containerPort": 1, "protocol": "tcp", "hostIP": "x"})), "\"x\" is no IP address"),
        (json!({"markMasqBit": 32}), "MasqMarkBit must be between 0 and 31"),
        (json!({"markMasqBit": 3, "externalSetMarkChain": "X"}), "Cannot specify externalSetMarkChain and markMasqBit"),
        (
            json!({"externalSetMarkChain": "KUBE-MARK-MASQ"}),
            "`externalSetMarkChain` = \"KUBE-MARK-MASQ\" is not supported",
        ),
        (json!({"backend": "iptables"}), "`backend` = \"iptables\" is not supported"),
        (json!({"backend": "ipfw"}), "unknown backend \"ipfw\""),
        (json!({"conditionsV4": ["-m", "x"]}), "`conditionsV4`"),
        (json!({"snat": "yes"}), "`snat`"),
    ] {
        let error = load(config.clone()).unwrap_err();
        assert!(error.contains(message), "{config}: {error}");
    }
}

#[test]
fn only_addresses_of_the_containers_interface_count() {
    let conf = load(json!({"prevResult": {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "cni0"}, {"name": "eth0", "sandbox": "/n"}],
        "ips": [
            {"interface": 0, "address": "10.1.0.1/24"},
            {"interface": 1, "address": "10.1.0.7/24"},
            {"interface": 1, "address": "10.1.0.8/24"},
            {"interface": 1, "address": "fd00::7/64"},
        ],
    }}))
    .unwrap();
    let found: Vec<String> = conf.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(found, ["10.1.0.7/24", "fd00::7/64"]);
}
