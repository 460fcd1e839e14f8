//! Requests from where they matter: the host, a node, a pod. A socket belongs to the network namespace it was made in,
//! so a thread goes there, connects, and hands the connection back.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;

/// How long a connection or an answer may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The machine the tests run on: outside every node.
    Host,
    /// The network namespace of this process.
    Process(i32),
}

/// Runs `work` in a network namespace, on a thread that ends there.
pub fn within<T: Send>(from: From, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let From::Process(pid) = from else {
        return work();
    };
    let run = move || {
        let path = format!("/proc/{pid}/ns/net");
        let namespace = File::open(&path).with_context(|| path.clone())?;
        setns(&namespace, CloneFlags::CLONE_NEWNET).with_context(|| format!("entering {path}"))?;
        work()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap_or_else(|_| anyhow::bail!("the thread panicked")))
}

/// A connection.
pub fn connect(from: From, to: SocketAddr) -> Result<TcpStream> {
    within(from, move || {
        let stream = TcpStream::connect_timeout(&to, LIMIT).with_context(|| format!("connecting to {to}"))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(stream)
    })
}

/// `GET path` on a connection of its own: the status and the body.
pub fn get(from: From, to: SocketAddr, path: &str) -> Result<(u16, String)> {
    request(from, to, "GET", path)
}

/// A request without a body on a connection of its own: the status and the body of the answer.
pub fn request(from: From, to: SocketAddr, method: &str, path: &str) -> Result<(u16, String)> {
    let mut stream = connect(from, to)?;
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text).with_context(|| format!("reading from {to}"))?;
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("no HTTP answer: {text:?}"))?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((status.with_context(|| format!("no status in {head:?}"))?, body.to_owned()))
}

/// The report of a test server.
pub fn report(from: From, to: SocketAddr) -> Result<Value> {
    let (status, body) = get(from, to, "/")?;
    anyhow::ensure!(status == 200, "status {status}: {body}");
    serde_json::from_str(&body).with_context(|| format!("no JSON: {body:?}"))
}

/// The pod that answers.
pub fn answering(from: From, to: SocketAddr) -> Result<String> {
    let report = report(from, to)?;
    Ok(report["pod"].as_str().with_context(|| format!("no pod in {report}"))?.to_owned())
}

/// Sends a text on a connection to an echo server and waits for it to come back.
pub fn echo(stream: &mut TcpStream, text: &str) -> Result<()> {
    stream.write_all(text.as_bytes())?;
    let mut buffer = vec![0; text.len()];
    stream.read_exact(&mut buffer).with_context(|| format!("waiting for the echo of {text:?}"))?;
    anyhow::ensure!(buffer == text.as_bytes(), "{text:?} came back as {:?}", String::from_utf8_lossy(&buffer));
    Ok(())
}

/// Sends a datagram and gives the answer.
pub fn udp(from: From, to: SocketAddr, text: &str) -> Result<String> {
    within(from, move || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.connect(to)?;
        socket.send(text.as_bytes())?;
        let mut buffer = [0_u8; 1500];
        let length = socket.recv(&mut buffer).with_context(|| format!("no answer from {to}"))?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    })
}
