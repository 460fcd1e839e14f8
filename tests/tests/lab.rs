//! The lab itself: nothing left after `down`, nothing done by a second `up`, nothing lost to a kill.

use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::Lab;
use keelson_tests::net::{self, From};
use keelson_tests::snapshot::Snapshot;
use keelson_tests::suite::{self, Test};

fn main() -> ExitCode {
    let tests: &[Test] = &[
        ("the_machine_is_the_same_before_up_and_after_down", same_machine),
        ("a_second_up_says_that_there_is_nothing_to_do", second_up),
        ("an_up_that_was_killed_is_gone_on_with", killed_up),
        ("down_after_kills_leaves_nothing", down_after_kills),
        ("two_labs_live_side_by_side", side_by_side),
        ("a_dead_machine_is_told_and_repaired", dead_machine),
        ("orders_that_make_no_sense_get_one_sentence", wrong_orders),
    ];
    suite::main_without_lab("lab", tests)
}

/// Removes the lab when the test ends, however it ends.
struct Up<'a>(&'a Lab);

impl Drop for Up<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.lab(&["down"]) {
            eprintln!("{error:#}");
        }
    }
}

fn up<'a>(lab: &'a Lab, arguments: &[&str]) -> Result<(Up<'a>, String)> {
    let guard = Up(lab);
    let mut all = vec!["up"];
    all.extend(arguments);
    let text = lab.lab(&all)?;
    Ok((guard, text))
}

/// Compares again and again for a while: the kernel removes namespaces and links a moment later.
fn unchanged(lab: &Lab, before: &Snapshot) -> Result<()> {
    let mut differences = Vec::new();
    lab.until("the machine is as before", 15, || {
        differences = Snapshot::take()?.differences(before);
        Ok(differences.is_empty())
    })
    .with_context(|| format!("{differences:#?}"))
}

fn same_machine(lab: &Lab) -> Result<()> {
    let before = Snapshot::take()?;
    let (guard, text) = up(lab, &[])?;
    ensure!(
        text.contains("is up after") && text.contains("kubectl get nodes") && text.contains("curl http://10.89."),
        "{text}"
    );
    let address = lab.address("node-1")?;
    let pod = lab.wait("the sample answers from outside", 15, || {
        net::answering(From::Host, (address, 30080).into()).map(Some)
    })?;
    ensure!(pod.starts_with("hello-"), "{pod}");
    let during = Snapshot::take()?.differences(&before);
    ensure!(during.len() > 10, "a running lab cannot be seen: {during:#?}");
    lab.lab(&["down"])?;
    unchanged(lab, &before)?;
    ensure!(lab.lab(&["down"])?.contains("nothing to do"));
    drop(guard);
    Ok(())
}

fn second_up(lab: &Lab) -> Result<()> {
    let (_guard, _) = up(lab, &[])?;
    let pids = |lab: &Lab| -> Result<Vec<i64>> {
        let status = lab.status()?;
        let machines = status["machines"].as_array().cloned().unwrap_or_default();
        Ok(machines.iter().filter_map(|machine| machine["pid"].as_i64()).collect())
    };
    let before = pids(lab)?;
    let text = lab.lab(&["up"])?;
    ensure!(text.contains("is up already") && text.contains("nothing to do"), "{text}");
    ensure!(pids(lab)? == before);
    // A program inside a node, and what a service has said.
    ensure!(lab.node("node-1", &["hostname"])? == "node-1\n");
    ensure!(lab.lab(&["logs", "node-1", "containerd"])?.contains("containerd successfully booted"));
    let output = lab.command().args(["node", "node-1", "--", "sh", "-c", "exit 7"]).output()?;
    ensure!(output.status.code() == Some(7), "{output:?}");
    Ok(())
}

fn killed_up(lab: &Lab) -> Result<()> {
    let before = Snapshot::take()?;
    let guard = Up(lab);
    for delay in [150, 600, 1500, 4000] {
        let mut child = lab.command().arg("up").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        std::thread::sleep(Duration::from_millis(delay));
        child.kill()?;
        child.wait()?;
    }
    let text = lab.lab(&["up"])?;
    ensure!(text.contains("half-made lab") || text.contains("is up already"), "{text}");
    ensure!(lab.kubectl(&["get", "nodes"])?.contains(" Ready "));
    // And one that is killed half way can also be removed.
    lab.lab(&["down"])?;
    let mut child = lab.command().arg("up").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    std::thread::sleep(Duration::from_millis(2000));
    child.kill()?;
    child.wait()?;
    lab.lab(&["down"])?;
    unchanged(lab, &before)?;
    drop(guard);
    Ok(())
}

fn down_after_kills(lab: &Lab) -> Result<()> {
    let before = Snapshot::take()?;
    let (guard, _) = up(lab, &[])?;
    for (machine, service) in [("node-1", "containerd"), ("node-1", "agent"), ("control-plane", "control-plane")] {
        lab.service(machine, service, "kill")?;
    }
    for machine in ["node-1", "switch"] {
        let pid = nix::unistd::Pid::from_raw(lab.pid(machine)?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)?;
    }
    lab.lab(&["down"])?;
    unchanged(lab, &before)?;
    drop(guard);
    Ok(())
}

fn side_by_side(lab: &Lab) -> Result<()> {
    let other = Lab::named("test-lab-two")?;
    let (_one, _) = up(lab, &["--no-sample"])?;
    let (two, _) = up(&other, &["--no-sample", "--nodes", "2"])?;
    ensure!(lab.address("node-1")? != other.address("node-1")?);
    ensure!(lab.kubectl(&["get", "nodes", "-o", "name"])? == "node/node-1\n");
    ensure!(other.kubectl(&["get", "nodes", "-o", "name"])? == "node/node-1\nnode/node-2\n");
    drop(two);
    ensure!(lab.kubectl(&["get", "nodes"])?.contains(" Ready "));
    Ok(())
}

fn dead_machine(lab: &Lab) -> Result<()> {
    let (_guard, _) = up(lab, &[])?;
    lab.kubectl(&["create", "configmap", "kept"])?;
    let pid = nix::unistd::Pid::from_raw(lab.pid("node-1")?);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)?;
    lab.until("the status tells it", 10, || {
        let output = lab.command().arg("status").output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(output.status.code() == Some(1) && text.contains("not whole") && text.contains("gone"))
    })?;
    let text = lab.lab(&["up"])?;
    ensure!(text.contains("not whole: repairing"), "{text}");
    lab.kubectl(&["get", "configmap", "kept"])?;
    let address = lab.address("node-1")?;
    lab.wait("the sample answers again", 60, || net::answering(From::Host, (address, 30080).into()).map(Some)).map(drop)
}

fn wrong_orders(lab: &Lab) -> Result<()> {
    for (arguments, sentence) in [
        (&["status"][..], "there is no lab `test-lab`"),
        (&["node", "node-1", "--", "true"], "there is no lab `test-lab`"),
        (&["up", "--nodes", "0"], "a lab has 1 to 200 nodes, not 0"),
        (&["--name", "../x", "up"], "a lab cannot be called \"../x\""),
    ] {
        let mut command = std::process::Command::new(lab.program("lab"));
        if arguments[0] != "--name" {
            command.args(["--name", &lab.name]);
        }
        let output = command.args(arguments).output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && text.contains(sentence), "{arguments:?}: {text}");
        ensure!(text.trim().lines().count() == 1, "{text}");
    }
    Ok(())
}
