//! Cluster DNS over the in-process API server: objects become names, and the Service that pods reach it through is kept.

mod common;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use common::Api;
use keelson_dns::forward::resolvers::Source;
use keelson_dns::{Config, Dns, Published};
use serde_json::{Value, json};
use tokio::net::UdpSocket;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const KUBE_DNS: &str = "/api/v1/namespaces/kube-system/services/kube-dns";
const KUBE_DNS_SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices";
/// Longer than any change takes.
const LIMIT: Duration = Duration::from_secs(10);

/// Starts DNS on loopback, published as if it were elsewhere: endpoints cannot be loopback addresses.
async fn start(api: &Api) -> SocketAddr {
    let config = Config {
        bind: (Ipv4Addr::LOCALHOST, 0).into(),
        domain: "cluster.local".to_owned(),
        ttl: 5,
        resolvers: Source::Given(Vec::new()),
        ranges: Vec::new(),
        published: Some(Published {
            service_address: "10.96.0.10".parse().unwrap(),
            address: "192.0.2.10:53".parse().unwrap(),
            metrics_port: Some(9153),
        }),
        metrics_bind: None,
    };
    let dns = Dns::bind(config, Some(&api.server.metrics.endpoints)).await.unwrap();
    let address = dns.local_addr().unwrap();
    tokio::spawn(dns.run(api.client(), api.server.shutdown.clone()));
    address
}

/// Asks for the A records of a name: the code, and the addresses.
async fn ask(server: SocketAddr, name: &str) -> (u8, Vec<Ipv4Addr>) {
    let mut query = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, 1, 0, 1]);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.send_to(&query, server).await.unwrap();
    let mut buffer = [0; 512];
    let length = tokio::time::timeout(LIMIT, socket.recv(&mut buffer)).await.unwrap().unwrap();
    let (answers, code) = (usize::from(buffer[7]), buffer[3] & 0xf);
    // Each answer: the name or a pointer to it, type, class, TTL, length, address.
    let mut rest = &buffer[query.len()..length];
    let mut addresses = Vec::new();
    for _ in 0..answers {
        let mut name = 0;
        while rest[name] != 0 && rest[name] < 0xc0 {
            name += usize::from(rest[name]) + 1;
        }
        let data = name + if rest[name] == 0 { 1 } else { 2 } + 10;
        addresses.push(Ipv4Addr::new(rest[data], rest[data + 1], rest[data + 2], rest[data + 3]));
        rest = &rest[data + 4..];
    }
    (code, addresses)
}

async fn until(server: SocketAddr, name: &str, code: u8, addresses: &[&str]) {
    let wanted = (code, addresses.iter().map(|text| text.parse().unwrap()).collect::<Vec<Ipv4Addr>>());
    let end = Instant::now() + LIMIT;
    loop {
        let got = ask(server, name).await;
        if got == wanted {
            return;
        }
        assert!(Instant::now() < end, "{name}: {got:?} instead of {wanted:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until_there(api: &Api, path: &str) -> Value {
    let end = Instant::now() + LIMIT;
    loop {
        let answer = api.get(path).await;
        if answer.status == 200 {
            return answer.json;
        }
        assert!(Instant::now() < end, "{path} is not there: {}", answer.json);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn names_follow_the_objects() {
    let api = Api::start().await;
    let dns = start(&api).await;
    until(dns, "kubernetes.default.svc.cluster.local", 0, &["10.96.0.1"]).await;
    until(dns, "web.default.svc.cluster.local", 3, &[]).await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"clusterIP": "10.96.0.77", "ports": [{"port": 80}]}});
    api.post(SERVICES, &service).await.expect(201);
    until(dns, "web.default.svc.cluster.local", 0, &["10.96.0.77"]).await;
    let peers = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "peers"},
        "spec": {"clusterIP": "None", "ports": [{"port": 80}]}});
    api.post(SERVICES, &peers).await.expect(201);
    until(dns, "peers.default.svc.cluster.local", 3, &[]).await;
    let endpoint =
        |ready: bool| json!([{"addresses": ["10.244.0.5"], "hostname": "web-0", "conditions": {"ready": ready}}]);
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "peers-1", "labels": {"kubernetes.io/service-name": "peers"}}, "endpoints": endpoint(true)});
    api.post(SLICES, &slice).await.expect(201);
    until(dns, "web-0.peers.default.svc.cluster.local", 0, &["10.244.0.5"]).await;
    api.patch(&format!("{SLICES}/peers-1"), "merge-patch", &json!({"endpoints": endpoint(false)})).await.expect(200);
    until(dns, "web-0.peers.default.svc.cluster.local", 3, &[]).await;
    api.delete(&format!("{SERVICES}/web"), &json!({})).await.expect(200);
    until(dns, "web.default.svc.cluster.local", 3, &[]).await;
    let metrics = api.server.metrics.endpoints.metrics_text();
    assert!(metrics.contains(r#"coredns_dns_responses_total{rcode="NXDOMAIN",plugin="kubernetes"}"#), "{metrics}");
}

#[tokio::test]
async fn the_service_is_made_and_kept() {
    let api = Api::start().await;
    let dns = start(&api).await;
    let service = until_there(&api, KUBE_DNS).await;
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.10");
    assert_eq!(service["metadata"]["labels"]["k8s-app"], "kube-dns");
    let slice = format!("{KUBE_DNS_SLICES}/kube-dns-192-0-2-10");
    let made = until_there(&api, &slice).await;
    assert_eq!(made["endpoints"][0]["addresses"], json!(["192.0.2.10"]));
    assert_eq!(made["ports"].as_array().map(Vec::len), Some(3));
    until(dns, "kube-dns.kube-system.svc.cluster.local", 0, &["10.96.0.10"]).await;
    api.delete(KUBE_DNS, &json!({})).await.expect(200);
    until_there(&api, KUBE_DNS).await;
    api.delete(&slice, &json!({})).await.expect(200);
    until_there(&api, &slice).await;
    let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    let wrong = json!({"ports": [{"name": "dns", "port": 1, "protocol": "UDP"}]});
    let changed = api.patch(&slice, "merge-patch", &wrong).await.expect(200);
    let end = Instant::now() + LIMIT;
    while api.get(&slice).await.expect(200)["ports"].as_array().map(Vec::len) != Some(3) {
        assert!(Instant::now() < end, "the ports were not put right");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_ne!(version(&api.get(&slice).await.expect(200)), version(&changed));
}

#[tokio::test]
async fn a_deployed_dns_is_left_alone() {
    let api = Api::start().await;
    let foreign = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns"},
        "spec": {"clusterIP": "10.96.0.10", "selector": {"k8s-app": "kube-dns"}, "ports": [{"port": 53, "protocol": "UDP"}]}});
    api.post("/api/v1/namespaces/kube-system/services", &foreign).await.expect(201);
    let dns = start(&api).await;
    until(dns, "kube-dns.kube-system.svc.cluster.local", 0, &["10.96.0.10"]).await;
    // A change of the Service makes it look once more; the marker shows that it has been seen.
    let moved = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns-marker"},
        "spec": {"clusterIP": "10.96.0.78", "ports": [{"port": 53}]}});
    api.post("/api/v1/namespaces/kube-system/services", &moved).await.expect(201);
    until(dns, "kube-dns-marker.kube-system.svc.cluster.local", 0, &["10.96.0.78"]).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let slices = api.get(KUBE_DNS_SLICES).await.expect(200);
    assert_eq!(slices["items"].as_array().map(Vec::len), Some(0), "{slices}");
}
