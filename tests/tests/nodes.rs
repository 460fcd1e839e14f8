//! Several nodes: pods reach each other, Services and node ports work on each, routes follow nodes, and a node that loses
//! its power comes back clean.

#[path = "nodes/drain.rs"]
mod drain;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::manifests;
use keelson_tests::net::{self, From};
use keelson_tests::suite::{self, Test};
use serde_json::Value;

/// Silence after which a node is NotReady, shortened from 50 s. The agent renews its lease every 10 s.
const GRACE_SECONDS: u64 = 14;
/// How long pods stay on a lost node, shortened from 300 s.
const TOLERATION_SECONDS: u64 = 2;
/// The routing protocol number of the agent's routes (`network::kernel::PROTOCOL`).
const PROTOCOL: &str = "107";
/// How long something that is dropped is waited for.
const DROPPED: Duration = Duration::from_millis(1500);

fn main() -> ExitCode {
    let tests: &[Test] = &[
        ("pods_reach_each_other_across_nodes", pods),
        ("a_service_whose_endpoint_is_on_the_other_node", services),
        ("node_ports_of_every_node_keep_or_hide_the_source", node_ports),
        ("host_ports", host_ports),
        ("a_node_port_goes_before_a_host_port", precedence),
        ("routes_that_somebody_removes_come_back", repair),
        ("what_pods_send_out_of_the_cluster_has_the_nodes_address", egress),
        ("a_rolling_update_under_load_fails_no_request", drain::rolling_update),
        ("without_the_drain_the_same_update_fails_some", drain::without),
        ("a_rolling_update_cuts_no_kept_connection", drain::kept_connections),
        ("a_drain_goes_on_where_a_killed_agent_left_it", drain::killed),
        ("an_agent_restart_keeps_routes_and_removes_stale_ones", restart),
        ("a_node_joins_and_leaves", third_node),
        ("a_node_that_loses_its_power_is_replaced_and_comes_back_clean", power_cut),
        ("nodes_hear_of_news_soon_after_the_control_plane_lost_its_power", dead_connections),
    ];
    let grace = format!("--control-plane-arg=--node-monitor-grace-period={GRACE_SECONDS}s");
    let toleration = format!("--control-plane-arg=--default-unreachable-toleration-seconds={TOLERATION_SECONDS}");
    let not_ready = format!("--control-plane-arg=--default-not-ready-toleration-seconds={TOLERATION_SECONDS}");
    suite::main_with("nodes", 2, &["--no-sample", &grace, &toleration, &not_ready], tests)
}

/// The pods of a manifest go to this node.
fn on(node: &str, manifest: &str) -> String {
    let selector = format!("nodeSelector:\n{{0}}  kubernetes.io/hostname: {node}\n{{0}}terminationGracePeriodSeconds:");
    let indent = if manifest.contains("      terminationGracePeriodSeconds:") { "      " } else { "  " };
    manifest.replace("terminationGracePeriodSeconds:", &selector.replace("{0}", indent))
}

/// A server with one pod on a node: its name and address.
fn server(space: &Space<'_>, name: &str, node: &str) -> Result<(String, Ipv4Addr)> {
    space.apply(&on(node, &manifests::servers(name, 1, &["--http=8080", "--udp-echo=5353"])))?;
    space.rolled_out(name)?;
    let pod = one_pod(space, name)?;
    ensure!(pod["spec"]["nodeName"] == node, "{}", pod["spec"]["nodeName"]);
    Ok((text(&pod, "/metadata/name")?, text(&pod, "/status/podIP")?.parse()?))
}

fn one_pod(space: &Space<'_>, app: &str) -> Result<Value> {
    let pods = space.pods(&format!("app={app}"))?;
    pods.into_iter()
        .find(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .with_context(|| format!("no pod of {app}"))
}

fn text(value: &Value, path: &str) -> Result<String> {
    Ok(value.pointer(path).and_then(Value::as_str).with_context(|| format!("no {path}"))?.to_owned())
}

/// A pod that only is, on a node: where its requests come from, and its address.
fn client(space: &Space<'_>, name: &str, node: &str) -> Result<(From, Ipv4Addr)> {
    space.apply(&on(node, &manifests::shell(name, "Always", "sleep 1000")))?;
    let pod = space.ready_pod(name)?;
    Ok((From::Process(space.pod_pid(name)?), text(&pod, "/status/podIP")?.parse()?))
}

/// The source address that a server sees.
fn source(from: From, to: SocketAddr) -> Result<Ipv4Addr> {
    let report = net::report(from, to)?;
    let seen: SocketAddr = text(&report, "/source")?.parse()?;
    match seen.ip().to_canonical() {
        std::net::IpAddr::V4(ip) => Ok(ip),
        std::net::IpAddr::V6(other) => anyhow::bail!("{other} is no IPv4 address"),
    }
}

/// Waits until the server sees this source.
fn seen_as(lab: &Lab, what: &str, from: From, to: SocketAddr, expected: Ipv4Addr) -> Result<()> {
    lab.wait(&format!("{what}: {to} sees {expected}"), 20, || {
        let seen = source(from, to)?;
        ensure!(seen == expected, "it sees {seen}");
        Ok(Some(()))
    })
}

fn pods(lab: &Lab) -> Result<()> {
    let space = lab.space("pods")?;
    for (node, other) in [("node-1", "node-2"), ("node-2", "node-1")] {
        let (_, address) = server(&space, &format!("web-on-{other}"), other)?;
        let (from, own) = client(&space, &format!("client-on-{node}"), node)?;
        seen_as(lab, "a pod", from, (address, 8080).into(), own)?;
        // A packet as large as the link takes, and larger ones in parts.
        let (status, body) = net::get(from, (address, 8080).into(), "/bytes?n=3000000")?;
        ensure!(status == 200 && body.len() >= 3_000_000, "{status}, {} bytes", body.len());
        let echo = net::udp(from, (address, 5353).into(), &"x".repeat(1400))?;
        ensure!(echo.ends_with("xxx"), "{echo:?}");
        // The node's own processes reach pods of the other, by the node's own address.
        seen_as(lab, "the node", From::Process(lab.pid(node)?), (address, 8080).into(), lab.address(node)?)?;
    }
    Ok(())
}

fn services(lab: &Lab) -> Result<()> {
    let space = lab.space("services")?;
    let (name, _) = server(&space, "web", "node-2")?;
    space.apply(&manifests::service("web", "web", "ClusterIP"))?;
    space.apply(
        &manifests::service("echo", "web", "ClusterIP")
            .replace("port: 80\n      targetPort: http", "port: 53\n      targetPort: 5353\n      protocol: UDP"),
    )?;
    space.endpoints("web", 1)?;
    let to = (space.cluster_ip("web")?, 80).into();
    let (from, own) = client(&space, "client", "node-1")?;
    seen_as(lab, "a pod of the other node", from, to, own)?;
    ensure!(net::answering(from, to)? == name);
    let echo = (space.cluster_ip("echo")?, 53).into();
    let answer = lab.wait("the echo answers", 15, || net::udp(from, echo, "ping").map(Some))?;
    ensure!(answer.starts_with(&name) && answer.ends_with(" ping"), "{answer:?}");
    let node = From::Process(lab.pid("node-1")?);
    seen_as(lab, "the other node itself", node, to, lab.address("node-1")?)?;
    // Named after its node: the endpoint's topology.
    let slices = space.json(&["get", "endpointslices", "-l", "kubernetes.io/service-name=web"])?;
    ensure!(slices["items"][0]["endpoints"][0]["nodeName"] == "node-2", "{slices}");
    Ok(())
}

/// The lab's own address on the host: the first of its network.
fn host_address(lab: &Lab) -> Result<Ipv4Addr> {
    let [a, b, c, _] = lab.address("node-1")?.octets();
    Ok(Ipv4Addr::new(a, b, c, 1))
}

/// The address of a node's bridge: the first of its pod range.
fn bridge_address(lab: &Lab, node: &str) -> Result<Ipv4Addr> {
    let [a, b, c, _] = pod_range(lab, node)?.split('/').next().unwrap_or_default().parse::<Ipv4Addr>()?.octets();
    Ok(Ipv4Addr::new(a, b, c, 1))
}

fn pod_range(lab: &Lab, node: &str) -> Result<String> {
    let range = lab.kubectl(&["get", "node", node, "-o", "jsonpath={.spec.podCIDR}"])?;
    ensure!(!range.is_empty(), "{node} has no podCIDR");
    Ok(range)
}

/// Nothing comes back: neither an answer nor a refusal.
fn dropped(to: SocketAddr) -> Result<()> {
    match TcpStream::connect_timeout(&to, DROPPED) {
        Err(error) if error.kind() == ErrorKind::TimedOut => Ok(()),
        Err(error) => anyhow::bail!("{to}: {error}"),
        Ok(_) => anyhow::bail!("{to} takes connections"),
    }
}

fn refused(from: From, to: SocketAddr) -> Result<()> {
    let Err(error) = net::connect(from, to) else { anyhow::bail!("{to} takes connections") };
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    ensure!(kind == Some(ErrorKind::ConnectionRefused), "{error:#}");
    Ok(())
}

fn node_ports(lab: &Lab) -> Result<()> {
    let space = lab.space("node-ports")?;
    server(&space, "web", "node-2")?;
    space.apply(&manifests::service("web", "web", "NodePort"))?;
    space.endpoints("web", 1)?;
    let port: u16 = space.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"])?.parse()?;
    let (without, with) = ((lab.address("node-1")?, port).into(), (lab.address("node-2")?, port).into());
    // Policy Cluster: each node answers, and hides the source, for the answer has to come back the same way.
    seen_as(lab, "a node without an endpoint", From::Host, without, lab.address("node-1")?)?;
    seen_as(lab, "the node with the endpoint", From::Host, with, bridge_address(lab, "node-2")?)?;
    let (pod, own) = client(&space, "client", "node-1")?;
    for to in [without, with] {
        lab.wait(&format!("{to} answers a pod"), 15, || net::answering(pod, to).map(Some))?;
    }
    space.kubectl(&["patch", "service", "web", "-p", r#"{"spec":{"externalTrafficPolicy":"Local"}}"#])?;
    seen_as(lab, "the node with the endpoint, Local", From::Host, with, host_address(lab)?)?;
    lab.wait("a node without an endpoint drops", 20, || dropped(without).map(Some))?;
    // A pod's traffic is the cluster's own: any node, any endpoint, and its address is kept.
    seen_as(lab, "a pod, Local, its own node", pod, without, own)?;
    space.kubectl(&["patch", "service", "web", "-p", r#"{"spec":{"externalTrafficPolicy":"Cluster"}}"#])?;
    seen_as(lab, "a node without an endpoint, Cluster again", From::Host, without, lab.address("node-1")?)
}

/// A server pod with host ports on a node.
fn with_host_ports(name: &str, node: &str, ports: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels: {{app: {name}}}\nspec:\n  nodeSelector: \
         {{kubernetes.io/hostname: {node}}}\n  terminationGracePeriodSeconds: 1\n  containers:\n    - name: server\n      \
         image: keelson.dev/test-server:latest\n      imagePullPolicy: IfNotPresent\n      args: [\"--http=8080\", \
         \"--udp-echo=5353\"]\n      ports: {ports}\n"
    )
}

fn host_ports(lab: &Lab) -> Result<()> {
    let space = lab.space("host-ports")?;
    let (one, two) = (lab.address("node-1")?, lab.address("node-2")?);
    let ports = format!(
        "[{{containerPort: 8080, hostPort: 18080}}, {{containerPort: 5353, hostPort: 18053, protocol: UDP}}, \
         {{containerPort: 8080, hostPort: 18081, hostIP: 127.0.0.1}}, {{containerPort: 8080, hostPort: 18082, hostIP: {two}}}]"
    );
    space.apply(&with_host_ports("web", "node-2", &ports))?;
    let pod = space.ready_pod("web")?;
    ensure!(pod["status"]["hostIP"] == two.to_string());
    // The client's address is kept.
    seen_as(lab, "from outside", From::Host, (two, 18080).into(), host_address(lab)?)?;
    ensure!(source(From::Host, (two, 18082).into())? == host_address(lab)?);
    let echo = net::udp(From::Host, (two, 18053).into(), "ping")?;
    ensure!(echo.ends_with(" ping"), "{echo:?}");
    let node = From::Process(lab.pid("node-2")?);
    ensure!(net::answering(node, (Ipv4Addr::LOCALHOST, 18081).into())? == "web");
    refused(From::Host, (two, 18081).into())?;
    refused(From::Host, (one, 18080).into())?;
    let own = From::Process(space.pod_pid("web")?);
    ensure!(net::answering(own, (two, 18080).into())? == "web", "a pod reaches itself through its host port");
    let (other, address) = client(&space, "client", "node-1")?;
    seen_as(lab, "a pod of the other node", other, (two, 18080).into(), address)?;
    // The port is taken: the scheduler knows.
    space.apply(&with_host_ports("second", "node-2", "[{containerPort: 8080, hostPort: 18080}]"))?;
    lab.wait("the second pod waits for the port", 15, || {
        let pod = space.json(&["get", "pod", "second"])?;
        let conditions = pod["status"]["conditions"].to_string();
        Ok(conditions.contains("free ports for the requested pod ports").then_some(()))
    })?;
    space.kubectl(&["delete", "pod", "web", "--wait=true"])?;
    space.ready_pod("second")?;
    lab.wait("the port has its next owner", 15, || {
        Ok((net::answering(From::Host, (two, 18080).into())? == "second").then_some(()))
    })?;
    lab.wait("the other ports are closed", 15, || refused(From::Host, (two, 18082).into()).map(Some))
}

fn precedence(lab: &Lab) -> Result<()> {
    let space = lab.space("precedence")?;
    let (name, _) = server(&space, "web", "node-2")?;
    space.apply(&with_host_ports("direct", "node-2", "[{containerPort: 8080, hostPort: 31999}]"))?;
    space.ready_pod("direct")?;
    let to = (lab.address("node-2")?, 31999).into();
    lab.wait("the host port answers", 15, || Ok((net::answering(From::Host, to)? == "direct").then_some(())))?;
    let service =
        manifests::service("web", "web", "NodePort").replace("port: 80\n", "port: 80\n      nodePort: 31999\n");
    space.apply(&service)?;
    lab.wait("the node port goes first", 20, || Ok((net::answering(From::Host, to)? == name).then_some(())))?;
    space.kubectl(&["delete", "service", "web"])?;
    lab.wait("the host port is back", 20, || Ok((net::answering(From::Host, to)? == "direct").then_some(())))
}

/// The agent's routes on a node: range to gateway.
fn routes(lab: &Lab, node: &str) -> Result<BTreeMap<String, String>> {
    let text = lab.node(node, &["ip", "-j", "route", "show", "proto", PROTOCOL])?;
    let list: Value = serde_json::from_str(if text.trim().is_empty() { "[]" } else { &text })?;
    let list = list.as_array().context("no list")?;
    list.iter().map(|route| Ok((text_of(route, "dst")?, text_of(route, "gateway")?))).collect()
}

fn text_of(value: &Value, key: &str) -> Result<String> {
    Ok(value[key].as_str().with_context(|| format!("no {key} in {value}"))?.to_owned())
}

/// The routes that a node must have to the pods of these.
fn expected(lab: &Lab, others: &[&str]) -> Result<BTreeMap<String, String>> {
    others.iter().map(|other| Ok((pod_range(lab, other)?, lab.address(other)?.to_string()))).collect()
}

fn repair(lab: &Lab) -> Result<()> {
    let wanted = expected(lab, &["node-2"])?;
    ensure!(routes(lab, "node-1")? == wanted, "{:?}", routes(lab, "node-1")?);
    let range = pod_range(lab, "node-2")?;
    let mut slowest = Duration::ZERO;
    for _ in 0..3 {
        lab.node("node-1", &["ip", "route", "del", &range])?;
        let begun = Instant::now();
        lab.wait("the route is back", 5, || Ok((routes(lab, "node-1")? == wanted).then_some(())))?;
        slowest = slowest.max(begun.elapsed());
    }
    ensure!(slowest < Duration::from_secs(1), "only after {slowest:?}");
    // Also when all of them go at once, and the kernel says nothing: with the link.
    lab.node("node-1", &["sh", "-c", "ip link set eth0 down && ip link set eth0 up"])?;
    lab.wait("the routes are back with the link", 5, || Ok((routes(lab, "node-1")? == wanted).then_some(())))?;
    let [a, b, c, _] = lab.address("node-1")?.octets();
    lab.node("node-1", &["ip", "route", "replace", "default", "via", &Ipv4Addr::new(a, b, c, 254).to_string()])?;
    // What is not ours is never touched: somebody's route in the way stays, with a word about it.
    lab.node("node-1", &["ip", "route", "replace", "blackhole", &range, "proto", "static"])?;
    lab.wait("the event tells of it", 20, || {
        let events = lab.kubectl(&["get", "events", "-A", "--field-selector=reason=FailedToCreateRoute"])?;
        Ok(events.contains("there is a route to").then_some(()))
    })?;
    ensure!(lab.node("node-1", &["ip", "route", "show", &range])?.contains("blackhole"));
    lab.node("node-1", &["ip", "route", "del", "blackhole", &range])?;
    lab.wait("ours is back", 20, || Ok((routes(lab, "node-1")? == wanted).then_some(())))
}

fn egress(lab: &Lab) -> Result<()> {
    let space = lab.space("egress")?;
    let (from, _) = client(&space, "client", "node-1")?;
    let listener = TcpListener::bind((host_address(lab)?, 0))?;
    let to = listener.local_addr()?;
    let masqueraded = || -> Result<Option<()>> {
        let _kept = net::connect(from, to)?;
        let (_, peer) = listener.accept()?;
        ensure!(peer.ip() == lab.address("node-1")?, "the server outside sees {peer}");
        Ok(Some(()))
    };
    lab.wait("a server outside sees the node", 10, masqueraded)?;
    // Somebody's hand is undone, and what nft lists can be loaded again.
    let listing = lab.node("node-1", &["nft", "list", "table", "ip", "keelson-egress"])?;
    ensure!(listing.contains(&pod_range(lab, "node-2")?) || listing.contains("10.244.0.0/23"), "{listing}");
    lab.node(
        "node-1",
        &["sh", "-c", "nft list table ip keelson-egress >/tmp/egress && nft -c -f /tmp/egress && rm /tmp/egress"],
    )?;
    lab.node("node-1", &["nft", "delete", "table", "ip", "keelson-egress"])?;
    lab.wait("the table is back", 5, || {
        let tables = lab.node("node-1", &["nft", "list", "tables", "ip"])?;
        Ok(tables.contains("keelson-egress").then_some(()))
    })?;
    masqueraded().map(drop)
}

fn restart(lab: &Lab) -> Result<()> {
    let wanted = expected(lab, &["node-2"])?;
    let gateway = lab.address("node-2")?.to_string();
    let foreign = ["ip", "route", "add", "203.0.113.0/24", "via", gateway.as_str()];
    lab.node("node-1", &foreign)?;
    lab.service("node-1", "agent", "stop")?;
    ensure!(routes(lab, "node-1")? == wanted, "the stop took routes along: {:?}", routes(lab, "node-1")?);
    // A node that left while the agent was away.
    lab.node("node-1", &["ip", "route", "add", "10.244.200.0/24", "via", &gateway, "proto", PROTOCOL])?;
    lab.service("node-1", "agent", "start")?;
    lab.wait("the stale route is gone", 15, || Ok((routes(lab, "node-1")? == wanted).then_some(())))?;
    ensure!(
        lab.node("node-1", &["ip", "route", "show", "203.0.113.0/24"])?.contains(&gateway),
        "a foreign route is gone"
    );
    lab.node("node-1", &["ip", "route", "del", "203.0.113.0/24"])?;
    Ok(())
}

fn has_condition(object: &Value, name: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == name && one["status"] == "True")
}

fn is_ready(lab: &Lab, node: &str) -> Result<bool> {
    Ok(has_condition(&lab.json(&["get", "node", node])?, "Ready"))
}

fn third_node(lab: &Lab) -> Result<()> {
    let space = lab.space("third")?;
    lab.lab(&["add-node"])?;
    lab.until("node-3 is Ready", 30, || is_ready(lab, "node-3"))?;
    for (node, others) in
        [("node-1", ["node-2", "node-3"]), ("node-2", ["node-1", "node-3"]), ("node-3", ["node-1", "node-2"])]
    {
        let wanted = expected(lab, &others)?;
        lab.wait(&format!("{node} has its routes"), 10, || Ok((routes(lab, node)? == wanted).then_some(())))?;
    }
    let (_, address) = server(&space, "web", "node-3")?;
    let (from, own) = client(&space, "client", "node-1")?;
    seen_as(lab, "a pod of the first node", from, (address, 8080).into(), own)?;
    lab.lab(&["stop", "node-3"])?;
    lab.kubectl(&["delete", "node", "node-3"])?;
    for (node, other) in [("node-1", "node-2"), ("node-2", "node-1")] {
        let wanted = expected(lab, &[other])?;
        lab.wait(&format!("{node} has lost a route"), 5, || Ok((routes(lab, node)? == wanted).then_some(())))?;
    }
    Ok(())
}

/// Addresses handed out on a node, with their owners.
fn handed_out(lab: &Lab, node: &str) -> Result<BTreeMap<String, String>> {
    let script =
        "cd /var/lib/cni/networks/keelson && for f in [0-9]*; do echo \"$f $(head -n 1 $f | tr -d '\\r')\"; done";
    let lines = lab.node(node, &["sh", "-c", script])?;
    Ok(lines.lines().filter_map(|line| line.split_once(' ')).map(|(ip, id)| (ip.to_owned(), id.to_owned())).collect())
}

/// Sandboxes of a node whose process runs, by ID.
fn sandboxes(lab: &Lab, node: &str) -> Result<BTreeSet<String>> {
    let list = |arguments: &[&str]| -> Result<BTreeSet<String>> {
        let mut command = vec!["ctr", "-n", "k8s.io"];
        command.extend(arguments);
        Ok(lab
            .node(node, &command)?
            .lines()
            .map(|line| line.split_whitespace().next().unwrap_or_default().to_owned())
            .collect())
    };
    let sandboxes = list(&["containers", "ls", "-q", "labels.\"io.cri-containerd.kind\"==sandbox"])?;
    let running = list(&["tasks", "ls"])?;
    Ok(sandboxes.intersection(&running).cloned().collect())
}

fn power_cut(lab: &Lab) -> Result<()> {
    let space = lab.space("power")?;
    // One that may go elsewhere, one that stays whatever happens, one that is not started again.
    server(&space, "web", "node-2")?;
    space.kubectl(&["patch", "deployment", "web", "-p", r#"{"spec":{"template":{"spec":{"nodeSelector":null}}}}"#])?;
    space.kubectl(&["scale", "deployment", "web", "--replicas=3"])?;
    space.rolled_out("web")?;
    space.apply(&manifests::service("web", "web", "NodePort"))?;
    space.endpoints("web", 3)?;
    let stay = on("node-2", &manifests::shell("stay", "Always", "sleep 1000"));
    let forever = "spec:\n  tolerations: [{operator: Exists}]\n";
    space.apply(&stay.replace("spec:\n", forever))?;
    let once = on("node-2", &manifests::shell("once", "Never", "sleep 1000")).replace("spec:\n", forever);
    space.apply(&once)?;
    let before = space.ready_pod("stay")?;
    space.ready_pod("once")?;
    lab.lab(&["stop", "node-2"])?;
    let begun = Instant::now();
    lab.until("node-2 is NotReady", GRACE_SECONDS + 15, || Ok(!is_ready(lab, "node-2")?))?;
    let noticed = begun.elapsed();
    lab.wait("the pods are replaced", 40, || {
        let pods = space.pods("app=web")?;
        let here = |pod: &&Value| pod["spec"]["nodeName"] == "node-1" && has_condition(pod, "Ready");
        Ok((pods.iter().filter(here).count() == 3).then_some(()))
    })?;
    println!("(NotReady after {:.1} s, replaced after {:.1} s)", noticed.as_secs_f64(), begun.elapsed().as_secs_f64());
    space.endpoints("web", 3)?;
    let port: u16 = space.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"])?.parse()?;
    let to = (lab.address("node-1")?, port).into();
    lab.wait("only pods of the living node are asked", 15, || {
        (0..20).try_for_each(|_| net::answering(From::Host, to).map(drop)).map(Some)
    })?;
    leave_traces(lab)?;
    lab.lab(&["start", "node-2"])?;
    lab.until("node-2 is Ready", 60, || is_ready(lab, "node-2"))?;
    comes_back(lab, &space, &before)
}

/// A machine without power ends no connection: the watches of the nodes hang on one that will never say anything again, while their leases,
/// which are written all the time, are renewed.
fn dead_connections(lab: &Lab) -> Result<()> {
    const SECONDS: u64 = 40;
    let space = lab.space("hear")?;
    server(&space, "web", "node-1")?;
    space.apply(&manifests::service("web", "web", "ClusterIP"))?;
    // The kernel of a machine in namespaces lives on and would close what its processes had open: the nodes must not hear that.
    let deaf = format!(
        "add table ip deaf; add chain ip deaf in {{ type filter hook input priority 0; }}; add rule ip deaf in ip saddr {} drop",
        lab.address("control-plane")?
    );
    let nodes = ["node-1", "node-2"];
    nodes.iter().try_for_each(|node| lab.node(node, &["nft", &deaf]).map(drop))?;
    let cut = lab.lab(&["stop", "control-plane"]).and_then(|_| lab.lab(&["start", "control-plane"]));
    nodes.iter().try_for_each(|node| lab.node(node, &["nft", "delete table ip deaf"]).map(drop))?;
    cut?;
    lab.wait("the API server answers", 60, || lab.kubectl(&["get", "--raw", "/readyz"]).map(Some))?;
    let begun = Instant::now();
    // Without the scheduler, which the new control plane has just started.
    for node in nodes {
        let shell = manifests::shell(&format!("news-{node}"), "Always", "sleep 1000");
        space.apply(&shell.replace("spec:\n", &format!("spec:\n  nodeName: {node}\n")))?;
    }
    space.apply(&manifests::service("late", "web", "ClusterIP"))?;
    let late = (space.cluster_ip("late")?, 80).into();
    for node in nodes {
        lab.until("the agent hears of a new pod", SECONDS, || {
            let pod = space.json(&["get", "pod", &format!("news-{node}")])?;
            Ok(has_condition(&pod, "Ready"))
        })?;
        let from = From::Process(lab.pid(node)?);
        lab.wait("the dataplane hears of a new service", SECONDS, || net::answering(from, late).map(Some))?;
    }
    println!("(everything was heard of {:.1} s after the API server was back)", begun.elapsed().as_secs_f64());
    Ok(())
}

/// What a power cut in the middle of an ADD leaves: an address on disk whose sandbox nobody knows. It is written while the
/// machine is off.
fn leave_traces(lab: &Lab) -> Result<()> {
    let folder = lab.folder()?.join("node-2/var/lib/cni/networks/keelson");
    ensure!(folder.is_dir(), "{} is no folder", folder.display());
    let range = pod_range(lab, "node-2")?.replace(".0/24", ".250");
    Ok(std::fs::write(folder.join(range), "0123456789abcdef\r\neth0")?)
}

fn comes_back(lab: &Lab, space: &Space<'_>, before: &Value) -> Result<()> {
    let stay = lab.wait("the pod that stays runs again", 60, || {
        let pod = space.json(&["get", "pod", "stay"])?;
        let status = &pod["status"]["containerStatuses"][0];
        Ok((status["ready"] == true && status["restartCount"].as_i64() > Some(0)).then_some(pod))
    })?;
    ensure!(stay["metadata"]["uid"] == before["metadata"]["uid"]);
    lab.wait("the pod that is not restarted has failed", 30, || {
        let phase = space.kubectl(&["get", "pod", "once", "-o", "jsonpath={.status.phase}"])?;
        Ok((phase == "Failed").then_some(()))
    })?;
    lab.wait("the replaced pods are gone", 30, || Ok((space.pods("app=web")?.len() == 3).then_some(())))?;
    let wanted = expected(lab, &["node-1"])?;
    lab.wait("its routes are back", 10, || Ok((routes(lab, "node-2")? == wanted).then_some(())))?;
    // Addresses on disk are those of the sandboxes that run, no more and no fewer.
    lab.wait("no address has leaked", 40, || {
        let (addresses, live) = (handed_out(lab, "node-2")?, sandboxes(lab, "node-2")?);
        let owners: BTreeSet<String> = addresses.values().cloned().collect();
        ensure!(owners == live, "addresses {addresses:?}, sandboxes {live:?}");
        Ok(Some(()))
    })?;
    let (from, own) = client(space, "client", "node-1")?;
    let (_, address) = server(space, "after", "node-2")?;
    seen_as(lab, "a pod of the other node, after all", from, (address, 8080).into(), own)
}
