//! The old Endpoints object of a service. Pure.
//!
//! Upstream counterpart: `pkg/controller/endpoint` and `pkg/api/v1/endpoints.RepackSubsets`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::model::{Port, address, families, has_endpoint, hostname, is_headless, target_port, target_ref};
use super::slices::{HEADLESS, TRIGGER_TIME};
use crate::meta::{labels, name_of};
use crate::pods;

/// Marks the objects that this controller makes, so that nobody mirrors them into slices.
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
/// Says that addresses were left out.
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// Most addresses of one object.
const MAX_ADDRESSES: usize = 1000;

/// One address with what tells it apart, and whether it is ready.
type Entry = (String, String, bool);

/// The object as it should be; `existing` keeps what others put on it.
pub fn wanted(service: &Service, pods: &[&Pod], existing: Option<&Endpoints>, trigger: Option<&str>) -> Endpoints {
    let mut meta = existing.map(|e| e.metadata.clone()).unwrap_or_else(|| ObjectMeta {
        name: service.metadata.name.clone(),
        namespace: service.metadata.namespace.clone(),
        ..ObjectMeta::default()
    });
    let (subsets, over_capacity) = subsets(service, pods);
    let mut wanted_labels = labels(service).clone();
    wanted_labels.remove(HEADLESS);
    if is_headless(service) {
        wanted_labels.insert(HEADLESS.to_owned(), String::new());
    }
    wanted_labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    meta.labels = Some(wanted_labels);
    let unchanged = existing.is_some_and(|e| e.subsets.clone().unwrap_or_default() == subsets);
    let mut annotations = meta.annotations.take().unwrap_or_default();
    if over_capacity {
        annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned());
    } else {
        annotations.remove(OVER_CAPACITY);
    }
    if !unchanged {
        match trigger {
            Some(time) => annotations.insert(TRIGGER_TIME.to_owned(), time.to_owned()),
            None => annotations.remove(TRIGGER_TIME),
        };
    }
    meta.annotations = (!annotations.is_empty()).then_some(annotations);
    Endpoints { metadata: meta, subsets: (!subsets.is_empty()).then_some(subsets) }
}

fn subsets(service: &Service, pods: &[&Pod]) -> (Vec<EndpointSubset>, bool) {
    let spec = service.spec.clone().unwrap_or_default();
    let publish = spec.publish_not_ready_addresses.unwrap_or(false);
    let family = families(service)[0];
    let mut addresses: BTreeMap<Entry, (EndpointAddress, Vec<Port>)> = BTreeMap::new();
    for pod in pods {
        if !has_endpoint(pod) || (pods::is_terminating(pod) && !publish) {
            continue;
        }
        let Some(ip) = address(pod, family) else { continue };
        let ports = spec.ports.iter().flatten().filter_map(|port| {
            Some(Port {
                name: port.name.clone().unwrap_or_default(),
                number: target_port(pod, port)?,
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                app_protocol: port.app_protocol.clone(),
            })
        });
        let mut ports: Vec<Port> = ports.collect();
        if ports.is_empty() && !(spec.ports.is_none() && is_headless(service)) {
            continue;
        }
        ports.sort();
        let entry = EndpointAddress {
            ip: ip.to_owned(),
            hostname: hostname(service, pod),
            node_name: pods::node_name(pod).map(str::to_owned),
            target_ref: Some(target_ref(pod)),
        };
        let ready = publish || pods::is_ready(pod);
        addresses.insert((ip.to_owned(), name_of(*pod).to_owned(), ready), (entry, ports));
    }
    let over_capacity = addresses.len() > MAX_ADDRESSES;
    (pack(truncated(addresses)), over_capacity)
}

/// Ready addresses are kept first.
fn truncated(addresses: BTreeMap<Entry, (EndpointAddress, Vec<Port>)>) -> Vec<(bool, EndpointAddress, Vec<Port>)> {
    let mut list: Vec<_> =
        addresses.into_iter().map(|((_, _, ready), (address, ports))| (ready, address, ports)).collect();
    if list.len() > MAX_ADDRESSES {
        list.sort_by_key(|(ready, ..)| !ready);
        list.truncate(MAX_ADDRESSES);
    }
    list
}

/// Addresses with the same ports share a subset.
fn pack(addresses: Vec<(bool, EndpointAddress, Vec<Port>)>) -> Vec<EndpointSubset> {
    let mut packed: BTreeMap<Vec<Port>, (Vec<EndpointAddress>, Vec<EndpointAddress>)> = BTreeMap::new();
    for (ready, address, ports) in addresses {
        let lists = packed.entry(ports).or_default();
        if ready { lists.0.push(address) } else { lists.1.push(address) }
    }
    let some = |list: Vec<EndpointAddress>| (!list.is_empty()).then_some(list);
    let subset = |(ports, (ready, not_ready)): (Vec<Port>, _)| EndpointSubset {
        addresses: some(ready),
        not_ready_addresses: some(not_ready),
        ports: (!ports.is_empty()).then(|| ports.iter().map(to_api).collect()),
    };
    packed.into_iter().map(subset).collect()
}

fn to_api(port: &Port) -> EndpointPort {
    EndpointPort {
        name: (!port.name.is_empty()).then(|| port.name.clone()),
        port: port.number,
        protocol: Some(port.protocol.clone()),
        app_protocol: port.app_protocol.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service() -> Service {
        serde_json::from_value(
            json!({"metadata": {"namespace": "d", "name": "web", "labels": {"a": "b"}}, "spec": {"clusterIP": "None",
            "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "www"}]}}),
        )
        .unwrap()
    }

    fn pod(name: &str, port: i32, edit: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({"metadata": {"namespace": "d", "name": name, "uid": name},
            "spec": {"containers": [{"name": "c", "ports": [{"name": "www", "containerPort": port}]}]},
            "status": {"podIP": format!("10.0.0.{name}"), "conditions": [{"type": "Ready", "status": "True"}]}});
        edit(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn addresses_are_packed_by_ports_and_readiness() {
        let pods = [
            pod("1", 80, |_| {}),
            pod("2", 81, |_| {}),
            pod("3", 80, |p| p["status"]["conditions"] = json!([])),
            pod("4", 80, |p| p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
        ];
        let object = wanted(&service(), &pods.iter().collect::<Vec<_>>(), None, Some("t"));
        let subsets = object.subsets.clone().unwrap();
        assert_eq!(subsets.len(), 2);
        assert_eq!(subsets[0].addresses.as_ref().unwrap()[0].ip, "10.0.0.1");
        assert_eq!(subsets[0].not_ready_addresses.as_ref().unwrap()[0].ip, "10.0.0.3");
        assert_eq!(subsets[1].ports.as_ref().unwrap()[0].port, 81);
        assert_eq!(object.metadata.labels.as_ref().unwrap().len(), 3);
        let again = wanted(&service(), &pods.iter().collect::<Vec<_>>(), Some(&object), Some("later"));
        assert_eq!(again, object);
    }

    #[test]
    fn no_pods_no_subsets() {
        assert_eq!(wanted(&service(), &[], None, None).subsets, None);
    }

    #[test]
    fn more_than_a_thousand_are_cut_and_said_so() {
        let pods: Vec<Pod> = (0..1100)
            .map(|i| {
                pod(&format!("{i}"), 80, |p| p["status"]["podIP"] = json!(format!("10.1.{}.{}", i / 250, i % 250)))
            })
            .collect();
        let object = wanted(&service(), &pods.iter().collect::<Vec<_>>(), None, None);
        assert_eq!(object.subsets.unwrap()[0].addresses.as_ref().unwrap().len(), MAX_ADDRESSES);
        assert_eq!(object.metadata.annotations.unwrap()[OVER_CAPACITY], "truncated");
    }
}
