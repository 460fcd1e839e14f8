//! Exec and attach with the newest kubectl.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space, run};

use super::{full, pods};

/// `kubectl exec …` with the given input; whatever its exit code.
pub fn kubectl(space: &Space<'_>, arguments: &[&str], input: &[u8]) -> Result<Output> {
    finish(space.lab.command().args(["kubectl", "-n", &space.name]).args(arguments), input)
}

/// Runs a command with input to its end.
pub fn finish(command: &mut Command, input: &[u8]) -> Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut pipe = child.stdin.take().context("no stdin")?;
    let output = std::thread::scope(|scope| {
        // A program that does not read all of it is no mistake.
        scope.spawn(move || drop(pipe.write_all(input)));
        child.wait_with_output()
    })?;
    Ok(output)
}

/// Like [`finish`], with input that stays open until the program ends, as a person's does.
pub fn finish_open(command: &mut Command, input: &[u8]) -> Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut pipe = child.stdin.take().context("no stdin")?;
    pipe.write_all(input)?;
    let output = child.wait_with_output();
    drop(pipe);
    Ok(output?)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn plain(lab: &Lab) -> Result<()> {
    let space = pods(lab, "exec")?;
    let output = kubectl(&space, &["exec", "box", "--", "echo", "hi"], b"")?;
    ensure!(output.status.success() && output.stdout == b"hi\n", "{output:?}");
    let output =
        kubectl(&space, &["exec", "box", "-c", "main", "--", "sh", "-c", "echo out; echo err >&2; exit 7"], b"")?;
    ensure!(output.status.code() == Some(7) && output.stdout == b"out\n", "{output:?}");
    ensure!(text(&output.stderr) == "err\ncommand terminated with exit code 7\n", "{output:?}");
    // Arguments arrive as they are.
    let odd = "a b&c=d%20+é";
    let output = kubectl(&space, &["exec", "box", "--", "printf", "%s|%s", odd, ""], b"")?;
    ensure!(text(&output.stdout) == format!("{odd}|"), "{output:?}");
    Ok(())
}

pub fn refused(lab: &Lab) -> Result<()> {
    let space = pods(lab, "refused")?;
    let says = |arguments: &[&str], part: &str| -> Result<()> {
        let said = space.kubectl_fails(arguments, None)?;
        ensure!(said.contains(part), "{arguments:?}: {part:?} is not in {said}");
        Ok(())
    };
    says(&["exec", "box", "--", "/no/such/program"], "no such file or directory")?;
    says(&["exec", "nobody", "--", "true"], "pods \"nobody\" not found")?;
    says(&["exec", "box", "-c", "other", "--", "true"], "container other is not valid for pod box")
}

/// Plays a terminal: resizes, interrupts, ends with an exit code.
const TERMINAL: &str = include_str!("terminal.py");

pub fn terminal(lab: &Lab) -> Result<()> {
    let space = pods(lab, "terminal")?;
    let mut command = Command::new("python3");
    command.args(["-c", TERMINAL]).arg(lab.program("lab")).args(["--name", &lab.name, "kubectl", "-n", &space.name]);
    command.args(["exec", "-it", "box", "--", "sh"]);
    run(&mut command, None).map(drop)
}

/// Bytes that do not compress and differ from run to run.
pub fn noise(size: usize) -> Vec<u8> {
    let mut state = (u64::from(std::process::id()) << 32) | 0x9e37_79b9;
    let mut out = Vec::with_capacity(size + 8);
    while out.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(size);
    out
}

/// Moves data in and out again with any kubectl; prints how fast.
pub fn there_and_back(
    name: &str,
    size: usize,
    mut kubectl: impl FnMut(&[&str], &[u8]) -> Result<Output>,
) -> Result<()> {
    let data = noise(size);
    let begun = Instant::now();
    let output = kubectl(&["exec", "-i", "box", "--", "sh", "-c", "cat >/tmp/data; wc -c </tmp/data"], &data)?;
    let there = begun.elapsed();
    ensure!(text(&output.stdout).trim() == size.to_string(), "{:?} {}", output.status, text(&output.stderr));
    let begun = Instant::now();
    let output = kubectl(&["exec", "box", "--", "cat", "/tmp/data"], b"")?;
    let back = begun.elapsed();
    ensure!(
        output.status.success() && output.stdout == data,
        "{} bytes came back instead of {size}",
        output.stdout.len()
    );
    let rate = |time: Duration| size as f64 / 1e6 / time.as_secs_f64();
    println!("{name}: {} MB in {:.0} MB/s, out {:.0} MB/s", size / 1_000_000, rate(there), rate(back));
    Ok(())
}

pub fn large(lab: &Lab) -> Result<()> {
    let space = pods(lab, "large")?;
    let size = if full() { 100_000_000 } else { 20_000_000 };
    there_and_back("kubectl", size, |arguments, input| kubectl(&space, arguments, input))
}

pub fn early_end(lab: &Lab) -> Result<()> {
    let space = pods(lab, "early-end")?;
    // The client's input ends, the command goes on.
    let script = "cat; sleep 1; echo after";
    let output = kubectl(&space, &["exec", "-i", "box", "--", "sh", "-c", script], b"before\n")?;
    ensure!(output.stdout == b"before\nafter\n", "{output:?}");
    // The command does not read it all. As much as a pipe holds: with more, containerd 1.6 stops reading the connection and
    // never sends the status (docs/STATUS.md).
    let begun = Instant::now();
    let output = kubectl(&space, &["exec", "-i", "box", "--", "head", "-c", "3"], &noise(60_000))?;
    ensure!(output.status.success() && output.stdout.len() == 3, "{output:?}");
    ensure!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
    Ok(())
}

/// Open descriptors of the agent.
fn descriptors(lab: &Lab) -> Result<usize> {
    let count = lab.node("node-1", &["sh", "-c", "ls /proc/$(pidof -s agent)/fd | wc -l"])?;
    Ok(count.trim().parse()?)
}

pub fn vanished(lab: &Lab) -> Result<()> {
    let space = pods(lab, "vanished")?;
    let before = descriptors(lab)?;
    let program = lab.kubectl_program()?;
    let kubeconfig = lab.folder()?.join("kubeconfig");
    let mut clients = Vec::new();
    for at in 0..5 {
        let script = format!("cat >/dev/null; touch /tmp/gone-{at}");
        // Without `lab` in between: it is kubectl that is killed.
        let mut command = Command::new(&program);
        command.arg("--kubeconfig").arg(&kubeconfig).args(["-n", &space.name, "exec", "-i", "box", "--"]);
        command.args(["sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        clients.push(command.spawn()?);
    }
    lab.until("the commands run", 30, || {
        let output = space.kubectl(&["exec", "box", "--", "sh", "-c", "pidof cat | wc -w"])?;
        Ok(output.trim() == "5")
    })?;
    for client in &mut clients {
        client.kill()?;
        client.wait()?;
    }
    lab.until("the commands see the end of their input", 30, || {
        let output = space.kubectl(&["exec", "box", "--", "sh", "-c", "ls /tmp | grep -c gone"])?;
        Ok(output.trim() == "5")
    })?;
    lab.until("the agent has let go of everything", 30, || Ok(descriptors(lab)? <= before + 1))
}

const READER: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: reader
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
    - name: main
      image: busybox:1.28
      stdin: true
      stdinOnce: true
      command: ["sh", "-c", "while read line; do echo got $line; done; echo end; exit 5"]
"#;

pub fn attach(lab: &Lab) -> Result<()> {
    let space = lab.space("attach")?;
    space.apply(READER)?;
    space.ready_pod("reader")?;
    let output = kubectl(&space, &["attach", "-i", "reader"], b"one\ntwo\n")?;
    let said = text(&output.stdout);
    ensure!(said.contains("got one\ngot two\n"), "{output:?}");
    // Input is there once: after the first client's end the container reads its end.
    lab.until("the container has ended", 30, || {
        let code = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}";
        Ok(space.kubectl(&["get", "pod", "reader", "-o", code])? == "5")
    })?;
    ensure!(space.kubectl(&["logs", "reader"])? == "got one\ngot two\nend\n");
    // kubectl run attaches as well, and gives the container's exit code.
    let run = ["run", "once", "--image=busybox:1.28", "-i", "--rm", "--restart=Never", "--quiet", "--"];
    let output = kubectl(&space, &[&run[..], &["sh", "-c", "read a; sleep 1; echo $a; exit 3"]].concat(), b"word\n")?;
    ensure!(output.status.code() == Some(3) && text(&output.stdout).contains("word"), "{output:?}");
    Ok(())
}
