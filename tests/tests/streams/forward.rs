//! Port-forward with the newest kubectl.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use keelson_tests::lab::{Lab, Space};

use super::pods;
use super::remote::noise;

/// Connections at once.
const CLIENTS: usize = 50;

/// A running port-forward; ended when dropped.
pub struct Forward {
    child: Child,
    /// Local ports, in the order of the remote ones.
    pub ports: Vec<u16>,
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a kubectl that forwards local ports of its choice to `ports` of a pod or service.
pub fn start(command: &mut Command, space: &Space<'_>, to: &str, ports: &[u16]) -> Result<Forward> {
    let kubeconfig = space.lab.folder()?.join("kubeconfig");
    command.arg("--kubeconfig").arg(kubeconfig).args(["-n", &space.name, "port-forward", to]);
    command.args(ports.iter().map(|port| format!(":{port}"))).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no stdout")?).lines();
    let mut forward = Forward { child, ports: Vec::new() };
    while forward.ports.len() < ports.len() {
        let line = lines.next().context("port-forward ended at once")??;
        // Forwarding from 127.0.0.1:40001 -> 8080
        if let Some(port) = line.strip_prefix("Forwarding from 127.0.0.1:").and_then(|rest| rest.split(' ').next()) {
            forward.ports.push(port.parse()?);
        }
    }
    // Reads on, or kubectl would block on its own messages.
    std::thread::spawn(move || lines.for_each(drop));
    Ok(forward)
}

fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

/// Sends, closes the sending half, and reads all of it back after a while.
fn half_closed(port: u16, size: usize) -> Result<()> {
    let data = noise(size);
    let stream = connect(port)?;
    let (mut reading, mut writing) = (stream.try_clone()?, stream);
    let back = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut back = Vec::new();
            reading.read_to_end(&mut back).map(|_| back)
        });
        writing.write_all(&data)?;
        writing.shutdown(Shutdown::Write)?;
        reader.join().map_err(|_| anyhow!("the reader panicked"))?.context("reading back")
    })?;
    ensure!(back == data, "{} of {size} bytes came back", back.len());
    Ok(())
}

/// Many connections at once, each with its own data, half-closed; then HTTP with a slow answer.
pub fn check(forward: &Forward) -> Result<()> {
    let [http, echo] = forward.ports[..] else { anyhow::bail!("two ports were forwarded") };
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..CLIENTS).map(|at| scope.spawn(move || half_closed(echo, 10_000 + 1000 * at))).collect();
        all.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(anyhow!("panicked")))).collect()
    });
    results.into_iter().collect::<Result<()>>()?;
    // The client has nothing more to say; the answer comes later than runtimes usually wait.
    let mut stream = connect(http)?;
    stream.write_all(b"GET /sleep?ms=2500 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"pod\""), "{answer:?}");
    Ok(())
}

pub fn forward(lab: &Lab) -> Result<()> {
    let space = pods(lab, "forward")?;
    let forward = start(&mut Command::new(lab.kubectl_program()?), &space, "pod/web", &[8080, 9000])?;
    check(&forward)?;
    drop(forward);
    space.kubectl(&["expose", "pod", "web", "--port=80", "--target-port=8080"])?;
    space.endpoints("web", 1)?;
    let forward = start(&mut Command::new(lab.kubectl_program()?), &space, "service/web", &[80])?;
    let mut stream = connect(forward.ports[0])?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    Ok(())
}

pub fn unserved(lab: &Lab) -> Result<()> {
    let space = pods(lab, "unserved")?;
    let kubeconfig = lab.folder()?.join("kubeconfig");
    let mut command = Command::new(lab.kubectl_program()?);
    command.arg("--kubeconfig").arg(kubeconfig).args(["-n", &space.name, "port-forward", "pod/box", ":81"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no stdout")?).lines();
    let line = lines.next().context("port-forward ended at once")??;
    let port = line.strip_prefix("Forwarding from 127.0.0.1:").and_then(|rest| rest.split(' ').next());
    let mut stream = connect(port.context(line.clone())?.parse()?)?;
    let mut nothing = Vec::new();
    let _ = stream.read_to_end(&mut nothing);
    ensure!(nothing.is_empty(), "{nothing:?}");
    // kubectl says why and ends, as since 1.28.
    let mut said = String::new();
    child.stderr.take().context("no stderr")?.read_to_string(&mut said)?;
    child.wait()?;
    ensure!(said.contains("failed to connect to localhost:81") && said.contains("refused"), "{said}");
    Ok(())
}
