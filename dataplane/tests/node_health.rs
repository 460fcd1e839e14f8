//! Health check node ports: what they answer, and that they come and go with their Services.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use keelson_dataplane::engine::NodePortAddresses;
use keelson_dataplane::health::Health;
use keelson_dataplane::model::types::{Name, NodeRecord};
use keelson_dataplane::node_health::{NodeHealth, addresses};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

const LOOPBACK: [IpAddr; 1] = [IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)];

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn wanted(list: &[(&str, u16, usize)]) -> BTreeMap<Name, (u16, usize)> {
    list.iter().map(|(name, port, n)| (Name::from(*name), (*port, *n))).collect()
}

async fn get(port: u16) -> Option<(u16, String)> {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    stream.write_all(b"GET /any HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    Some((text.split(' ').nth(1)?.parse().ok()?, text.to_lowercase()))
}

fn node_health(timeout: Duration) -> (NodeHealth, Health) {
    let health = Health::new(timeout);
    health.synced();
    (NodeHealth::new(health.clone(), CancellationToken::new()), health)
}

#[tokio::test]
async fn a_port_answers_as_long_as_its_service_is_there() {
    let (mut ports, health) = node_health(Duration::ZERO);
    let (a, b) = (free_port(), free_port());
    ports.sync(&wanted(&[("default/web", a, 2)]), &LOOPBACK).await;
    let (status, text) = get(a).await.unwrap();
    assert_eq!(status, 200);
    for part in [
        "content-type: application/json\r\n",
        "x-content-type-options: nosniff\r\n",
        "x-load-balancing-endpoint-weight: 2\r\n",
        r#""localendpoints":2"#,
        r#""service":{"name":"web","namespace":"default"}"#,
        r#""serviceproxyhealthy":true"#,
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    // No endpoint here: the load balancer shall look elsewhere. One: it may come back.
    ports.sync(&wanted(&[("default/web", a, 0)]), &LOOPBACK).await;
    let (status, text) = get(a).await.unwrap();
    assert_eq!(status, 503);
    assert!(text.contains("weight: 0\r\n") && text.contains(r#""localendpoints":0"#), "{text}");
    ports.sync(&wanted(&[("default/web", a, 1)]), &LOOPBACK).await;
    assert_eq!(get(a).await.unwrap().0, 200);
    // A sync that is overdue: what this node would do is not known.
    health.queued();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let (status, text) = get(a).await.unwrap();
    assert_eq!(status, 503);
    assert!(text.contains(r#""localendpoints":1,"#) && text.contains(r#""serviceproxyhealthy":false"#), "{text}");
    health.synced();
    // A node about to go fails /healthz, and not this: connections may still be taken.
    health.set_node_leaving(true);
    assert_eq!(get(a).await.unwrap().0, 200);
    // Another port, then none.
    ports.sync(&wanted(&[("default/web", b, 1)]), &LOOPBACK).await;
    assert_eq!((get(a).await.is_none(), get(b).await.unwrap().0), (true, 200));
    ports.sync(&wanted(&[]), &LOOPBACK).await;
    assert!(get(b).await.is_none() && ports.is_idle());
}

#[tokio::test]
async fn a_port_that_is_taken_is_told_once_and_had_when_it_is_free() {
    let (mut ports, _) = node_health(Duration::from_secs(60));
    let port = free_port();
    let other = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    for _ in 0..3 {
        ports.sync(&wanted(&[("default/web", port, 1)]), &LOOPBACK).await;
        assert_eq!(ports.failed(), 1);
    }
    drop(other);
    ports.sync(&wanted(&[("default/web", port, 1)]), &LOOPBACK).await;
    assert_eq!((ports.failed(), get(port).await.unwrap().0), (0, 200));
}

#[tokio::test]
async fn of_two_services_with_one_port_the_second_gets_it_when_the_first_is_gone() {
    let (mut ports, _) = node_health(Duration::from_secs(60));
    let (port, free) = (free_port(), free_port());
    ports.sync(&wanted(&[("default/b", port, 1)]), &LOOPBACK).await;
    ports.sync(&wanted(&[("default/a", port, 1), ("default/b", port, 1)]), &LOOPBACK).await;
    assert_eq!(ports.failed(), 1);
    assert!(get(port).await.unwrap().1.contains(r#""name":"b""#), "who has it keeps it");
    // The first one moves to another port, and the second takes over, in one step.
    ports.sync(&wanted(&[("default/a", port, 1), ("default/b", free, 1)]), &LOOPBACK).await;
    assert_eq!(ports.failed(), 0);
    assert!(get(port).await.unwrap().1.contains(r#""name":"a""#));
    assert!(get(free).await.unwrap().1.contains(r#""name":"b""#));
    // They swap.
    ports.sync(&wanted(&[("default/a", free, 1), ("default/b", port, 1)]), &LOOPBACK).await;
    assert!(get(port).await.unwrap().1.contains(r#""name":"b""#) && ports.failed() == 0);
}

#[tokio::test]
async fn servers_move_with_the_nodes_addresses() {
    let (mut ports, _) = node_health(Duration::from_secs(60));
    let port = free_port();
    let want = wanted(&[("default/web", port, 1)]);
    ports.sync(&want, &[]).await;
    assert!(get(port).await.is_none() && ports.failed() == 0, "no address yet is no failure");
    ports.sync(&want, &["127.0.0.9".parse().unwrap()]).await;
    assert!(get(port).await.is_none());
    ports.sync(&want, &LOOPBACK).await;
    assert_eq!(get(port).await.unwrap().0, 200);
}

#[test]
fn addresses_are_those_of_node_ports() {
    let ips = |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|t| t.parse().unwrap()).collect() };
    let node = NodeRecord { internal_ips: ips(&["192.168.7.2", "fd00:7::2", "192.168.7.9"]), ..NodeRecord::default() };
    assert_eq!(addresses(&NodePortAddresses::Primary, &node), ips(&["192.168.7.2", "fd00:7::2"]));
    let ranges = |text: &str| NodePortAddresses::Ranges(vec![text.parse().unwrap()]);
    // This machine has a loopback address, which is none of them.
    assert!(addresses(&ranges("127.0.0.0/8"), &node).is_empty());
    assert!(addresses(&ranges("0.0.0.0/0"), &node).iter().all(|ip| ip.is_ipv4() && !ip.is_loopback()));
}
