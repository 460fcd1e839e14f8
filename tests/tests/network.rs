//! Services as clients see them: from the node, from pods and from outside, while endpoints come and go.

#[path = "network/commands.rs"]
mod commands;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::manifests;
use keelson_tests::net::{self, From};
use keelson_tests::suite::{self, Test};

fn main() -> ExitCode {
    let tests: &[Test] = &[
        ("cluster_ip_from_the_node", from_the_node),
        ("cluster_ip_from_a_pod", from_a_pod),
        ("node_port_from_outside_the_node", from_outside),
        ("answers_spread_over_all_endpoints", spread),
        ("a_pod_reaches_itself_through_its_service", hairpin),
        ("a_service_without_endpoints_refuses_at_once", no_endpoints),
        ("scaling_under_a_stream_loses_none", scaling),
        ("an_unready_pod_gets_nothing", readiness),
        ("several_and_named_ports_and_udp", ports),
        ("a_changed_service_is_followed", changes),
        ("trace_and_diff_tell_the_truth", commands::trace_and_diff),
    ];
    suite::main("network", 1, tests)
}

fn node(lab: &Lab) -> Result<From> {
    Ok(From::Process(lab.pid("node-1")?))
}

/// Three servers behind a service.
fn three<'a>(lab: &'a Lab, name: &str, kind: &str) -> Result<Space<'a>> {
    let space = lab.space(name)?;
    space.apply(&manifests::servers("web", 3, &[]))?;
    space.apply(&manifests::service("web", "web", kind))?;
    space.rolled_out("web")?;
    space.endpoints("web", 3)?;
    Ok(space)
}

/// Waits until the service answers: rules follow endpoints after a moment.
fn answers(lab: &Lab, from: From, to: SocketAddr) -> Result<String> {
    lab.wait(&format!("{to} answers"), 15, || net::answering(from, to).map(Some))
}

fn from_the_node(lab: &Lab) -> Result<()> {
    let space = three(lab, "from-node", "ClusterIP")?;
    let to = (space.cluster_ip("web")?, 80).into();
    answers(lab, node(lab)?, to).map(drop)
}

fn from_a_pod(lab: &Lab) -> Result<()> {
    let space = three(lab, "from-pod", "ClusterIP")?;
    let to: SocketAddr = (space.cluster_ip("web")?, 80).into();
    space.apply(&manifests::shell("client", "Always", "sleep 1000"))?;
    let pod = space.ready_pod("client")?;
    let from = From::Process(space.pod_pid("client")?);
    answers(lab, from, to)?;
    let report = net::report(from, to)?;
    let source = report["source"].as_str().unwrap_or_default();
    let address = pod["status"]["podIP"].as_str().context("no pod address")?;
    ensure!(source.starts_with(address), "the server saw {source}, not the pod's {address}");
    // The same from a program inside the pod's container.
    let script = format!("wget -q -O - http://{to}/hostname");
    space.apply(&manifests::shell("inside", "Never", &script))?;
    let name = space.output("inside")?;
    ensure!(name.starts_with("web-"), "{name:?}");
    Ok(())
}

fn from_outside(lab: &Lab) -> Result<()> {
    let space = three(lab, "from-outside", "NodePort")?;
    let port = space.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"])?.parse()?;
    answers(lab, From::Host, (lab.address("node-1")?, port).into())?;
    answers(lab, node(lab)?, (lab.address("node-1")?, port).into()).map(drop)
}

fn spread(lab: &Lab) -> Result<()> {
    let space = three(lab, "spread", "ClusterIP")?;
    let to = (space.cluster_ip("web")?, 80).into();
    let from = node(lab)?;
    answers(lab, from, to)?;
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..150 {
        *counts.entry(net::answering(from, to)?).or_insert(0) += 1;
    }
    // 150 fair draws from three: fewer than 20 for one of them has a chance below one in a million.
    ensure!(counts.len() == 3 && counts.values().all(|count| *count >= 20), "{counts:?}");
    Ok(())
}

fn hairpin(lab: &Lab) -> Result<()> {
    let space = lab.space("hairpin")?;
    space.apply(&manifests::servers("web", 1, &[]))?;
    space.apply(&manifests::service("web", "web", "ClusterIP"))?;
    space.rolled_out("web")?;
    space.endpoints("web", 1)?;
    let pods = space.pods("app=web")?;
    let name = pods[0]["metadata"]["name"].as_str().context("no pod")?;
    let from = From::Process(space.pod_pid(name)?);
    let to = (space.cluster_ip("web")?, 80).into();
    ensure!(answers(lab, from, to)? == name);
    Ok(())
}

/// How long a connection takes to be refused; an error when it is not refused.
fn refused(from: From, to: SocketAddr) -> Result<Duration> {
    let begun = Instant::now();
    let Err(error) = net::connect(from, to) else { anyhow::bail!("{to} takes connections") };
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    ensure!(kind == Some(ErrorKind::ConnectionRefused), "{error:#}");
    Ok(begun.elapsed())
}

fn no_endpoints(lab: &Lab) -> Result<()> {
    let space = lab.space("empty")?;
    space.apply(&manifests::service("web", "nothing-has-this-label", "NodePort"))?;
    space.apply(&manifests::shell("client", "Always", "sleep 1000"))?;
    space.ready_pod("client")?;
    let to = (space.cluster_ip("web")?, 80).into();
    let port: u16 = space.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"])?.parse()?;
    let outside = (lab.address("node-1")?, port).into();
    for (from, to) in [(node(lab)?, to), (From::Process(space.pod_pid("client")?), to), (From::Host, outside)] {
        let time = lab.wait(&format!("{to} refuses"), 15, || refused(from, to).map(Some))?;
        ensure!(time < Duration::from_millis(500), "refused only after {time:?}");
    }
    // Endpoints come: it answers; they go: it refuses again.
    space.apply(&manifests::servers("late", 1, &[]))?;
    space.rolled_out("late")?;
    space.kubectl(&["patch", "service", "web", "-p", r#"{"spec":{"selector":{"app":"late"}}}"#])?;
    answers(lab, node(lab)?, to)?;
    space.kubectl(&["scale", "deployment", "late", "--replicas=0"])?;
    lab.wait("it refuses again", 30, || refused(node(lab)?, to).map(Some)).map(drop)
}

/// Requests one after the other, each on a connection of its own, until told to stop: how many, and what failed.
fn stream(from: From, to: SocketAddr, stop: &AtomicBool) -> (usize, Vec<String>) {
    let (mut count, mut failures) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        if let Err(error) = net::answering(from, to) {
            failures.push(format!("request {count}: {error:#}"));
        }
    }
    (count, failures)
}

fn scaling(lab: &Lab) -> Result<()> {
    let space = lab.space("scaling")?;
    // The server goes on while its pod ends: whoever was sent to it in the last moment is still answered.
    space.apply(&manifests::servers("web", 2, &["--on-term=ignore"]))?;
    space.apply(&manifests::service("web", "web", "NodePort"))?;
    space.rolled_out("web")?;
    space.endpoints("web", 2)?;
    let inside = (space.cluster_ip("web")?, 80).into();
    let port: u16 = space.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"])?.parse()?;
    let outside = (lab.address("node-1")?, port).into();
    let from = node(lab)?;
    answers(lab, from, inside)?;
    answers(lab, From::Host, outside)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let streams = [scope.spawn(|| stream(from, inside, &stop)), scope.spawn(|| stream(From::Host, outside, &stop))];
        let result = [6, 1, 4, 2].iter().try_for_each(|replicas| {
            space.kubectl(&["scale", "deployment", "web", &format!("--replicas={replicas}")])?;
            space.rolled_out("web")?;
            space.endpoints("web", *replicas)
        });
        stop.store(true, Ordering::Relaxed);
        for one in streams {
            let (count, failures) = one.join().map_err(|_| anyhow::anyhow!("the stream panicked"))?;
            ensure!(
                failures.is_empty(),
                "{} of {count} failed: {:#?}",
                failures.len(),
                &failures[..failures.len().min(5)]
            );
            ensure!(count > 100, "only {count} requests were made");
        }
        result
    })
}

fn readiness(lab: &Lab) -> Result<()> {
    let space = lab.space("readiness")?;
    let manifest = manifests::servers("web", 2, &[]).replace(
        "          env:\n",
        "          readinessProbe:\n            httpGet:\n              path: /readyz\n              port: 8080\n            periodSeconds: 1\n            failureThreshold: 1\n          env:\n",
    );
    space.apply(&manifest)?;
    space.apply(&manifests::service("web", "web", "ClusterIP"))?;
    space.rolled_out("web")?;
    space.endpoints("web", 2)?;
    let to = (space.cluster_ip("web")?, 80).into();
    let from = node(lab)?;
    answers(lab, from, to)?;
    let pods = space.pods("app=web")?;
    let address = pods[0]["status"]["podIP"].as_str().context("no address")?.parse::<std::net::Ipv4Addr>()?;
    let name = pods[0]["metadata"]["name"].as_str().context("no name")?;
    let mut stream = net::connect(from, (address, 8080).into())?;
    std::io::Write::write_all(
        &mut stream,
        b"POST /readyz?ok=false HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    )?;
    std::io::Read::read_to_string(&mut stream, &mut String::new())?;
    space.endpoints("web", 1)?;
    lab.until("the unready pod gets nothing", 15, || {
        let seen: BTreeSet<String> = (0..20).map(|_| net::answering(from, to)).collect::<Result<_>>()?;
        Ok(seen.len() == 1 && !seen.contains(name))
    })
}

fn ports(lab: &Lab) -> Result<()> {
    let space = lab.space("ports")?;
    let manifest = manifests::servers("web", 1, &["--http=8080", "--http=8081", "--udp-echo=5353"]).replace(
        "              containerPort: 8080\n",
        "              containerPort: 8080\n            - name: other\n              containerPort: 8081\n            - name: echo\n              containerPort: 5353\n              protocol: UDP\n",
    );
    space.apply(&manifest)?;
    space.apply(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec:\n  selector:\n    app: web\n  ports:\n    - {name: a, port: 80, targetPort: http}\n    - {name: b, port: 81, targetPort: other}\n    - {name: u, port: 53, targetPort: echo, protocol: UDP}\n",
    )?;
    space.rolled_out("web")?;
    space.endpoints("web", 1)?;
    let address = space.cluster_ip("web")?;
    let from = node(lab)?;
    answers(lab, from, (address, 80).into())?;
    answers(lab, from, (address, 81).into())?;
    let echo = lab.wait("the echo", 15, || net::udp(from, (address, 53).into(), "ping").map(Some))?;
    ensure!(echo.starts_with("web-") && echo.ends_with(" ping"), "{echo:?}");
    // A port that the service does not have is refused, although the address is the service's.
    let time = lab.wait("another port is refused", 10, || refused(from, (address, 82).into()).map(Some));
    ensure!(time.is_ok(), "{:?}", time.err());
    Ok(())
}

fn changes(lab: &Lab) -> Result<()> {
    let space = three(lab, "changes", "ClusterIP")?;
    let address = space.cluster_ip("web")?;
    let from = node(lab)?;
    answers(lab, from, (address, 80).into())?;
    space.kubectl(&[
        "patch",
        "service",
        "web",
        "--type=json",
        "-p",
        r#"[{"op":"replace","path":"/spec/ports/0/port","value":8000}]"#,
    ])?;
    answers(lab, from, (address, 8000).into())?;
    lab.wait("the old port refuses", 15, || refused(from, (address, 80).into()).map(Some))?;
    space.kubectl(&["delete", "service", "web"])?;
    lab.until("the address is free", 15, || Ok(net::connect(from, (address, 8000).into()).is_err()))
}
