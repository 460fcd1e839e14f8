//! kube-rs as the client: exec with and without a terminal, attach and port-forward over WebSocket.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::SinkExt as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use keelson_tests::lab::Lab;
use kube::api::{Api, AttachParams, AttachedProcess, TerminalSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::remote::noise;
use super::{full, pods};

/// Longest time for one step.
const STEP: Duration = Duration::from_secs(60);
/// The client's buffers; its own default of 1 KiB is for terminals.
const BUFFER: usize = 256 * 1024;

pub fn client(lab: &Lab) -> Result<()> {
    let space = pods(lab, "kube-rs")?;
    space.apply(&keelson_tests::manifests::shell("speaker", "Never", "while true; do echo beat; sleep 1; done"))?;
    space.ready_pod("speaker")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let api: Api<Pod> = Api::namespaced(lab.client().await?, &space.name);
        within(apart(&api)).await.context("output, errors and exit code")?;
        within(half_close(&api)).await.context("the input's end")?;
        within(terminal(&api)).await.context("a terminal")?;
        within(large(&api, if full() { 100_000_000 } else { 10_000_000 })).await.context("large data")?;
        within(attach(&api)).await.context("attach")?;
        within(forward(&api)).await.context("port-forward")
    })
}

async fn within(step: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::time::timeout(STEP, step).await.context("it took too long")?
}

fn params() -> AttachParams {
    AttachParams::default().max_stdin_buf_size(BUFFER).max_stdout_buf_size(BUFFER)
}

async fn exec(api: &Api<Pod>, script: &str, params: &AttachParams) -> Result<AttachedProcess> {
    Ok(api.exec("box", ["sh", "-c", script], params).await?)
}

/// All that a process says on one of its outputs.
async fn all(output: Option<impl AsyncReadExt + Unpin>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    output.context("no such output")?.read_to_end(&mut bytes).await?;
    Ok(bytes)
}

fn exit_code(status: Option<Status>) -> Result<String> {
    let status = status.context("no status")?;
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    let code = causes.into_iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    Ok(code.and_then(|cause| cause.message).unwrap_or_else(|| status.status.unwrap_or_default()))
}

async fn apart(api: &Api<Pod>) -> Result<()> {
    let mut process = exec(api, "echo out; echo err >&2; exit 7", &params()).await?;
    let status = process.take_status().context("no status")?;
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let (stdout, stderr, status) = tokio::join!(all(stdout), all(stderr), status);
    ensure!(stdout? == b"out\n" && stderr? == b"err\n");
    ensure!(exit_code(status)? == "7");
    Ok(process.join().await?)
}

async fn half_close(api: &Api<Pod>) -> Result<()> {
    let mut process = exec(api, "cat; echo after", &params().stdin(true)).await?;
    let mut stdin = process.stdin().context("no stdin")?;
    stdin.write_all(b"before\n").await?;
    stdin.shutdown().await?;
    ensure!(all(process.stdout()).await? == b"before\nafter\n");
    Ok(process.join().await?)
}

async fn terminal(api: &Api<Pod>) -> Result<()> {
    // It says its size each time it changes, and ends with 42 when it is interrupted.
    let script = "trap 'stty size' WINCH; trap 'exit 42' INT; echo ready; while true; do sleep 0.1; done";
    let mut process = exec(api, script, &AttachParams::interactive_tty()).await?;
    let status = process.take_status().context("no status")?;
    let mut sizes = process.terminal_size().context("no terminal")?;
    let (mut stdin, mut stdout) = (process.stdin().context("no stdin")?, process.stdout().context("no stdout")?);
    let mut said = String::new();
    until(&mut stdout, &mut said, "ready").await?;
    sizes.send(TerminalSize { width: 101, height: 37 }).await?;
    until(&mut stdout, &mut said, "37 101").await?;
    stdin.write_all(b"\x03").await?;
    ensure!(exit_code(status.await)? == "42", "{said}");
    Ok(())
}

async fn until(output: &mut (impl AsyncReadExt + Unpin), said: &mut String, wanted: &str) -> Result<()> {
    let mut buffer = [0; 1024];
    while !said.contains(wanted) {
        let read = output.read(&mut buffer).await?;
        ensure!(read > 0, "it ended with {said:?}, without {wanted:?}");
        said.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    Ok(())
}

async fn large(api: &Api<Pod>, size: usize) -> Result<()> {
    let data = noise(size);
    let begun = Instant::now();
    let mut process = exec(api, "cat >/tmp/data; wc -c </tmp/data", &params().stdin(true)).await?;
    let mut stdin = process.stdin().context("no stdin")?;
    stdin.write_all(&data).await?;
    stdin.shutdown().await?;
    let count = all(process.stdout()).await?;
    ensure!(String::from_utf8_lossy(&count).trim() == size.to_string(), "{count:?}");
    let there = begun.elapsed();
    let begun = Instant::now();
    let back = all(exec(api, "cat /tmp/data", &params()).await?.stdout()).await?;
    ensure!(back == data, "{} of {size} bytes came back", back.len());
    let rate = |time: Duration| size as f64 / 1e6 / time.as_secs_f64();
    println!("kube-rs: {} MB in {:.0} MB/s, out {:.0} MB/s", size / 1_000_000, rate(there), rate(begun.elapsed()));
    Ok(())
}

async fn attach(api: &Api<Pod>) -> Result<()> {
    let mut process = api.attach("speaker", &AttachParams::default()).await?;
    let mut said = String::new();
    until(&mut process.stdout().context("no stdout")?, &mut said, "beat\nbeat\n").await
}

async fn forward(api: &Api<Pod>) -> Result<()> {
    let mut forwarder = api.portforward("web", &[9000, 8080]).await?;
    let mut echo = forwarder.take_stream(9000).context("no stream")?;
    let mut http = forwarder.take_stream(8080).context("no stream")?;
    let data = noise(300_000);
    let (mut reading, mut writing) = tokio::io::split(&mut echo);
    let mut back = vec![0; data.len()];
    tokio::try_join!(writing.write_all(&data), reading.read_exact(&mut back))?;
    ensure!(back == data, "the echo is another");
    http.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    until(&mut http, &mut answer, "\r\n\r\n").await?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    drop((echo, http));
    forwarder.join().await.context("the forwarder ends")
}
