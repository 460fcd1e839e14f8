//! Other clients: Debian's kubectl 1.20 (SPDY), the Python client (WebSocket channels). `./dev test` fetches both.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space, run};

use super::remote::{finish, text, there_and_back};
use super::{forward, full, more, pods};

pub fn old_kubectl(lab: &Lab) -> Result<()> {
    let program =
        lab.fetched(".kubectl-1.20/usr/bin/kubectl", "KEELSON_OLD_KUBECTL", "Debian's kubectl 1.20", "streams")?;
    let space = pods(lab, "old-kubectl")?;
    let kubeconfig = lab.folder()?.join("kubeconfig");
    let kubectl = |arguments: &[&str], input: &[u8]| {
        let mut command = Command::new(&program);
        command.arg("--kubeconfig").arg(&kubeconfig).args(["-n", &space.name]).args(arguments);
        finish(&mut command, input)
    };
    let output = kubectl(&["exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 7"], b"")?;
    ensure!(output.status.code() == Some(7) && output.stdout == b"out\n", "{output:?}");
    ensure!(text(&output.stderr).starts_with("err\n"), "{output:?}");
    let output = kubectl(&["exec", "-i", "box", "--", "sh", "-c", "cat; echo after"], b"before\n")?;
    ensure!(output.stdout == b"before\nafter\n", "{output:?}");
    // It explains and validates from OpenAPI v2.
    let output = kubectl(&["explain", "deployment.spec.replicas"], b"")?;
    ensure!(text(&output.stdout).contains("Number of desired pods"), "{output:?}");
    let output = kubectl(&["apply", "-f", "-"], b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: old}\ndada: {}\n")?;
    ensure!(text(&output.stderr).contains("unknown field \"dada\""), "{output:?}");
    there_and_back("kubectl 1.20", if full() { 100_000_000 } else { 10_000_000 }, kubectl)?;
    let mut terminal = Command::new("python3");
    terminal.args(["-c", include_str!("terminal.py")]).arg(&program).arg("--kubeconfig").arg(&kubeconfig);
    run(terminal.args(["-n", &space.name, "exec", "-it", "box", "--", "sh"]), None)?;
    let forwarding = forward::start(&mut Command::new(&program), &space, "pod/web", &[8080, 9000])?;
    forward::check(&forwarding)?;
    drop(forwarding);
    let folder = tempfile::tempdir()?;
    more::tree(&folder.path().join("tree"), 200)?;
    let here = folder.path().join("tree").display().to_string();
    let output = kubectl(&["cp", &here, "box:/tmp/tree"], b"")?;
    ensure!(output.status.success(), "{output:?}");
    let back = folder.path().join("back").display().to_string();
    let output = kubectl(&["cp", "box:/tmp/tree", &back], b"")?;
    ensure!(output.status.success(), "{output:?}");
    run(Command::new("diff").args(["-r", &here, &back]), None).map(drop)
}

fn with_python(lab: &Lab) -> Result<Command> {
    let packages = lab.fetched(".python-client", "KEELSON_PYTHON_CLIENT", "the Python client", "streams")?;
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", packages).env("KUBECONFIG", lab.folder()?.join("kubeconfig"));
    Ok(command)
}

pub fn python(lab: &Lab) -> Result<()> {
    let mut command = with_python(lab)?;
    let space = pods(lab, "python")?;
    let size = if full() { "100000000" } else { "10000000" };
    let said = run(command.args(["-c", include_str!("client.py"), &space.name, size]), None)?;
    print!("{said}");
    Ok(())
}

/// When the node's lease was last renewed.
fn renewed(lab: &Lab) -> Result<String> {
    lab.kubectl(&["get", "lease", "-n", "kube-node-lease", "node-1", "-o", "jsonpath={.spec.renewTime}"])
}

pub fn idle(lab: &Lab) -> Result<()> {
    let mut command = with_python(lab)?;
    let space = pods(lab, "idle")?;
    let count = if full() { "1000" } else { "200" };
    let node = lab.address("node-1")?.to_string();
    command.args(["-c", include_str!("idle.py"), &space.name, count, &node]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = command.spawn()?;
    let result = while_held(&space, &mut holder, count);
    let _ = holder.kill();
    let _ = holder.wait();
    result
}

/// What a user sees while the streams are held.
fn while_held(space: &Space<'_>, holder: &mut Child, count: &str) -> Result<()> {
    let mut line = String::new();
    BufReader::new(holder.stdout.as_mut().context("no stdout")?).read_line(&mut line)?;
    ensure!(line.trim() == "open", "the streams did not open: {line:?}");
    let before = renewed(space.lab)?;
    let begun = Instant::now();
    space.apply(&keelson_tests::manifests::shell("fresh", "Never", "echo fresh"))?;
    ensure!(space.output("fresh")? == "fresh\n");
    let pod = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let output = super::remote::kubectl(space, &["exec", "box", "--", "echo", "hi"], b"")?;
    ensure!(output.stdout == b"hi\n", "{output:?}");
    println!("with {count} idle streams: a pod ran in {pod:.1} s, exec took {:.2} s", begun.elapsed().as_secs_f64());
    // Leases are renewed every 10 s.
    space.lab.until("the lease is renewed", 15, || Ok(renewed(space.lab)? != before))
}
