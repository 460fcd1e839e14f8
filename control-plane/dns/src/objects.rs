//! From API objects to what the model keeps of them. No I/O.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hickory_proto::rr::Name;
use k8s_openapi::api::core::v1::Service as ApiService;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::model::{Endpoint, Port, Protocol, Service, ServiceKind, Slice};

/// The label that says which service a slice belongs to.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The key of a service in the model.
pub(crate) fn service_key(namespace: &str, name: &str) -> String {
    format!("{name}.{namespace}").to_ascii_lowercase()
}

fn protocol(text: Option<&str>) -> Option<Protocol> {
    match text {
        None | Some("TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(_) => None,
    }
}

fn port(name: Option<&str>, number: i32, transport: Option<&str>) -> Option<Port> {
    Some(Port {
        name: name.unwrap_or_default().to_ascii_lowercase().into(),
        protocol: protocol(transport)?,
        number: u16::try_from(number).ok()?,
    })
}

/// What the model keeps of a Service.
pub(crate) fn service(object: &ApiService) -> Service {
    let spec = object.spec.clone().unwrap_or_default();
    let kind = if spec.type_.as_deref() == Some("ExternalName") {
        let target = spec.external_name.unwrap_or_default();
        let target = target.trim_end_matches('.');
        // An address is no name; upstream denies such a service too.
        let is_name = !target.is_empty() && target.parse::<IpAddr>().is_err();
        let name = is_name.then(|| Name::from_ascii(format!("{}.", target.to_ascii_lowercase())).ok()).flatten();
        ServiceKind::External(name.map(Box::new))
    } else if spec.cluster_ip.as_deref() == Some("None") {
        ServiceKind::Headless
    } else {
        let mut addresses = spec.cluster_ips.unwrap_or_default();
        if addresses.is_empty() {
            addresses.extend(spec.cluster_ip);
        }
        let ports = spec.ports.unwrap_or_default();
        ServiceKind::Cluster {
            addresses: addresses.iter().filter_map(|text| text.parse().ok()).collect(),
            ports: ports.iter().filter_map(|p| port(p.name.as_deref(), p.port, p.protocol.as_deref())).collect(),
        }
    };
    Service { kind, publish_not_ready: spec.publish_not_ready_addresses.unwrap_or_default() }
}

/// The key of the service that a slice belongs to, if it names one.
pub(crate) fn slice_owner(namespace: &str, labels: Option<&BTreeMap<String, String>>) -> Option<String> {
    labels?.get(SERVICE_NAME).filter(|name| !name.is_empty()).map(|name| service_key(namespace, name))
}

/// What the model keeps of an EndpointSlice.
pub(crate) fn slice(object: &EndpointSlice) -> Slice {
    let endpoints = object.endpoints.iter().flatten().flat_map(|endpoint| {
        let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true);
        let hostname = endpoint.hostname.as_deref().filter(|name| !name.is_empty());
        endpoint.addresses.iter().filter_map(move |text| {
            let hostname = hostname.map(|name| name.to_ascii_lowercase().into());
            Some(Endpoint { address: text.parse().ok()?, hostname, ready })
        })
    });
    let ports = object.ports.iter().flatten();
    Slice {
        name: object.metadata.name.as_deref().unwrap_or_default().into(),
        ports: ports.filter_map(|p| port(p.name.as_deref(), p.port?, p.protocol.as_deref())).collect(),
        endpoints: endpoints.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(spec: serde_json::Value) -> Service {
        service(&serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": spec})).unwrap())
    }

    #[test]
    fn a_service_is_what_its_type_and_address_say() {
        let two = read(json!({"clusterIP": "10.96.0.3", "clusterIPs": ["10.96.0.3", "fd00::3"],
            "ports": [{"name": "HTTP", "port": 80, "protocol": "TCP"}]}));
        let ServiceKind::Cluster { addresses, ports } = two.kind else { panic!("{two:?}") };
        assert_eq!(addresses.len(), 2);
        assert_eq!((&*ports[0].name, ports[0].number), ("http", 80));
        assert_eq!(
            read(json!({"clusterIP": "None", "publishNotReadyAddresses": true})),
            Service { kind: ServiceKind::Headless, publish_not_ready: true }
        );
        let name = Name::from_ascii("www.example.com.").unwrap();
        let external = read(json!({"type": "ExternalName", "externalName": "www.Example.com"}));
        assert_eq!(external.kind, ServiceKind::External(Some(Box::new(name))));
        let address = read(json!({"type": "ExternalName", "externalName": "192.0.2.1"}));
        assert_eq!(address.kind, ServiceKind::External(None));
    }

    #[test]
    fn an_endpoint_without_a_condition_is_ready() {
        let object = json!({"metadata": {"name": "s-1", "labels": {SERVICE_NAME: "s"}}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"], "conditions": {"ready": false},
                "hostname": "web-0"}, {"addresses": ["no.address"]}],
            "ports": [{"name": "", "port": 80}, {"name": "all"}]});
        let got = slice(&serde_json::from_value(object).unwrap());
        assert_eq!(got.endpoints.len(), 2);
        assert!(got.endpoints[0].ready && !got.endpoints[1].ready);
        assert_eq!(got.endpoints[1].hostname.as_deref(), Some("web-0"));
        assert_eq!(got.ports.len(), 1);
    }
}
