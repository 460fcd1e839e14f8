//! Gateways and default routes.

use ipnet::IpNet;
use serde_json::json;

use super::super::conf::Conf;
use super::{complete, next_hop};
use crate::skel::{Command, Request};
use crate::types::{AddResult, Route};

fn conf(keys: serde_json::Value) -> Conf {
    let mut config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge" });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let environment =
        |name: &str| Some(if name == "CNI_IFNAME" { "eth0" } else { "x" }.to_owned()).filter(|_| name != "CNI_ARGS");
    Conf::load(&Request::new(Command::Add, &environment, config.to_string().into_bytes()).unwrap()).unwrap()
}

fn ipam_result() -> AddResult {
    AddResult::parse(&json!({
        "cniVersion": "1.0.0",
        "ips": [{ "address": "10.1.2.3/24" }, { "address": "fd00::3/64", "gateway": "fd00::9" }],
        "routes": [{ "dst": "192.168.0.0/16" }],
    }))
    .unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

#[test]
fn a_plain_bridge_only_says_which_interface() {
    let mut result = ipam_result();
    assert_eq!(complete(&mut result, &conf(json!({}))), []);
    assert!(result.ips.iter().all(|ip| ip.interface == Some(2)));
    assert_eq!(result.ips[0].gateway, None);
    assert_eq!(result.routes.len(), 1);
}

#[test]
fn a_gateway_gets_the_first_address_where_none_is_given() {
    let mut result = ipam_result();
    let gateways = complete(&mut result, &conf(json!({ "isGateway": true })));
    assert_eq!(gateways, [net("10.1.2.1/24"), net("fd00::9/64")]);
    assert_eq!(result.routes.len(), 1);
}

#[test]
fn a_default_gateway_adds_one_default_route_per_family_unless_there_is_one() {
    let mut result = ipam_result();
    let other = Route::new(net("0.0.0.0/0"), Some("10.1.2.77".parse().unwrap()));
    result.routes.push(other.clone());
    complete(&mut result, &conf(json!({ "isDefaultGateway": true })));
    let defaults: Vec<&Route> = result.routes.iter().filter(|route| route.dst.prefix_len() == 0).collect();
    assert_eq!(defaults, [&other, &Route::new(net("::/0"), Some("fd00::9".parse().unwrap()))]);
}

#[test]
fn a_route_without_next_hop_takes_the_gateway_of_its_family() {
    let mut result = ipam_result();
    complete(&mut result, &conf(json!({ "isGateway": true })));
    assert_eq!(next_hop(&result.routes[0], &result.ips), Some("10.1.2.1".parse().unwrap()));
    let v6 = Route::new(net("fd99::/64"), None);
    assert_eq!(next_hop(&v6, &result.ips), Some("fd00::9".parse().unwrap()));
}
