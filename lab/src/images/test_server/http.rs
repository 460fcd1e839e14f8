//! As much HTTP/1.1 as curl, wget, probes and load generators use: keep-alive, `Content-Length` bodies, HEAD.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::Server;
use super::respond::{self, Then};

/// Longest request head; larger ones are cut off.
const HEAD_LIMIT: usize = 32 * 1024;
/// Longest body that is read and thrown away.
const BODY_LIMIT: u64 = 16 * 1024 * 1024;

/// A request's head.
#[derive(Debug, Default)]
pub struct Request {
    /// Method, in capitals.
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// Query without the question mark.
    pub query: String,
    /// Headers in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The other end.
    pub source: Option<SocketAddr>,
    /// This end, as the connection sees it.
    pub local: Option<SocketAddr>,
    keep_alive: bool,
}

impl Request {
    /// The first value of a query parameter; no percent decoding beyond `+` and `%20`.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        let value = pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)?;
        Some(value.replace('+', " ").replace("%20", " "))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Serves one connection to its end.
pub async fn serve(stream: TcpStream, source: SocketAddr, server: Rc<Server>) {
    let local = stream.local_addr().ok();
    // Answers are one write each; waiting for an ACK would only add latency.
    let _ = stream.set_nodelay(true);
    let mut stream = BufReader::new(stream);
    let mut first = true;
    loop {
        let request = tokio::select! {
            request = read_request(&mut stream) => request,
            // An idle connection is closed; one with a request in flight is past this point.
            () = server.closing.cancelled() => return,
        };
        let Some(mut request) = request else {
            if first {
                server.saw("CLOSED".to_owned());
            }
            return;
        };
        first = false;
        let mark = if request.query.is_empty() { "" } else { "?" };
        server.saw(format!("{} {}{mark}{}", request.method, request.path, request.query));
        request.source = Some(source);
        request.local = local;
        server.served.set(server.served.get() + 1);
        let response = respond::respond(&request, &server).await;
        let keep_alive = request.keep_alive && !server.closing.is_cancelled() && !server.last_answers.get();
        let head_only = request.method == "HEAD";
        if stream.write_all(&response.encode(keep_alive, head_only)).await.is_err() {
            return;
        }
        if let Then::Exit(code) = response.then {
            let _ = stream.shutdown().await;
            std::process::exit(code);
        }
        if !keep_alive {
            let _ = stream.shutdown().await;
            return;
        }
    }
}

async fn read_request(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut budget = HEAD_LIMIT;
    let first = read_line(stream, &mut budget).await?;
    let mut words = first.split_whitespace();
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: method.to_ascii_uppercase(),
        path: path.to_owned(),
        query: query.to_owned(),
        ..Request::default()
    };
    loop {
        let line = read_line(stream, &mut budget).await?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let connection = request.header("connection").unwrap_or_default().to_ascii_lowercase();
    let chunked = request.header("transfer-encoding").is_some();
    // A chunked body is not worth a parser here: the connection ends after the answer instead.
    request.keep_alive = !chunked && (connection == "keep-alive" || (version == "HTTP/1.1" && connection != "close"));
    if request.header("expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.ok()?;
    }
    let length: u64 = request.header("content-length").map_or(Some(0), |length| length.parse().ok())?;
    if length > BODY_LIMIT {
        return None;
    }
    let mut body = stream.take(length);
    tokio::io::copy(&mut body, &mut tokio::io::sink()).await.ok()?;
    Some(request)
}

/// One line without its end; `None` at the end of the stream, on an error or over budget.
async fn read_line(stream: &mut BufReader<TcpStream>, budget: &mut usize) -> Option<String> {
    let mut line = Vec::new();
    let mut limited = stream.take(*budget as u64);
    let length = limited.read_until(b'\n', &mut line).await.ok()?;
    if line.pop() != Some(b'\n') {
        return None;
    }
    *budget -= length;
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).ok()
}
