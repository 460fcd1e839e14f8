//! A steady load on a service, and what failed of it: so many requests a second, on a connection each or on connections that are kept.
//!
//! The rate is kept whatever the answers do (an open load): a server that refuses is asked no less. Bounded: a fixed number of threads, time limits
//! on every call, and nobody makes up for more than a second of delay.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::net::{self, From};

/// Longest time for a connection, or for an answer.
const LIMIT: Duration = Duration::from_secs(5);
/// Delay that is made up for; requests beyond it are left out.
const BEHIND: Duration = Duration::from_secs(1);
/// Failures that are told one by one.
const TOLD: usize = 10;

/// What connections are used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// One request.
    Once,
    /// Requests one after the other, until the server says or shows that it closes.
    Kept,
}

/// A load from one place.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Where it comes from.
    pub from: From,
    /// Whom it asks.
    pub to: SocketAddr,
    /// Requests a second.
    pub rate: u32,
    /// Threads, each with one connection at a time.
    pub threads: u32,
    /// How connections are used.
    pub usage: Use,
}

/// What became of it.
#[derive(Debug, Default)]
pub struct Report {
    /// Requests made.
    pub made: usize,
    /// Connections made.
    pub connections: usize,
    /// How many failed, by the call and the kernel's word for it.
    pub failures: BTreeMap<String, usize>,
    /// The first of them, with their time since the beginning.
    pub first: Vec<String>,
    /// The longest answer.
    pub slowest: Duration,
}

impl Report {
    /// How many failed.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.failures.values().sum()
    }

    fn fail(&mut self, at: Duration, what: String) {
        if self.first.len() < TOLD {
            self.first.push(format!("{:.3} s: {what}", at.as_secs_f64()));
        }
        *self.failures.entry(what).or_default() += 1;
    }

    /// Both together.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.made += other.made;
        self.connections += other.connections;
        for (what, count) in other.failures {
            *self.failures.entry(what).or_default() += count;
        }
        self.first.extend(other.first);
        self.slowest = self.slowest.max(other.slowest);
        self
    }
}

/// The kernel's word for an error.
fn word(call: &str, error: &Error) -> String {
    match error.raw_os_error() {
        Some(code) => format!("{call}: {:?}", nix::errno::Errno::from_raw(code)),
        None => format!("{call}: {error}"),
    }
}

/// Runs loads until `stop`, all at once.
///
/// # Errors
/// When a place cannot be entered; requests that fail are in the report.
pub fn run(loads: &[Load], stop: &AtomicBool) -> Result<Report> {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let start = |load: Load, number: u32| {
            scope.spawn(move || net::within(load.from, move || Ok(worker(load, number, begun, stop))))
        };
        let workers: Vec<_> =
            loads.iter().flat_map(|load| (0..load.threads).map(move |number| start(*load, number))).collect();
        workers.into_iter().try_fold(Report::default(), |all, worker| {
            let one = worker.join().map_err(|_| anyhow::anyhow!("a thread of the load panicked"))??;
            Ok(all.and(one))
        })
    })
}

/// One thread's share.
fn worker(load: Load, number: u32, begun: Instant, stop: &AtomicBool) -> Report {
    let pause = Duration::from_secs(1) * load.threads / load.rate;
    let mut due = begun + pause * number / load.threads;
    let mut report = Report::default();
    let mut kept = None;
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        if due > now {
            // Short sleeps, so that a stop is seen soon.
            std::thread::sleep((due - now).min(Duration::from_millis(50)));
            continue;
        }
        due = due.max(now.checked_sub(BEHIND).unwrap_or(now)) + pause;
        report.made += 1;
        let asked = Instant::now();
        if let Err(what) = one(load, &mut kept, &mut report.connections) {
            report.fail(begun.elapsed(), what);
            kept = None;
        }
        report.slowest = report.slowest.max(asked.elapsed());
    }
    report
}

/// One request.
fn one(load: Load, kept: &mut Option<TcpStream>, connections: &mut usize) -> Result<(), String> {
    // A server may close a connection that is idle: that is no failure, if it has done so before the request.
    if kept.as_ref().is_some_and(is_closed) {
        *kept = None;
    }
    let mut stream = match kept.take() {
        Some(stream) => stream,
        None => {
            *connections += 1;
            connect(load.to).map_err(|error| word("connect", &error))?
        }
    };
    let connection = if load.usage == Use::Once { "close" } else { "keep-alive" };
    let request = format!("GET /hostname HTTP/1.1\r\nHost: {}\r\nConnection: {connection}\r\n\r\n", load.to);
    stream.write_all(request.as_bytes()).map_err(|error| word("write", &error))?;
    let (status, goes_on) = answer(&mut stream).map_err(|error| word("read", &error))?;
    if status != "200" {
        return Err(format!("status {status}"));
    }
    *kept = goes_on.then_some(stream);
    Ok(())
}

fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn is_closed(stream: &TcpStream) -> bool {
    let mut byte = [0];
    let looked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut byte));
    let open = looked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    !open || stream.set_nonblocking(false).is_err()
}

/// Reads one answer whole: its status, and whether the connection goes on.
fn answer(stream: &mut TcpStream) -> std::io::Result<(String, bool)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let value = |name: &str| {
                head.lines().find_map(|line| line.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name)))
            };
            let length = value("content-length").and_then(|(_, text)| text.parse::<usize>().ok()).unwrap_or(0);
            if bytes.len() >= end + 4 + length {
                let goes_on = value("connection").is_some_and(|(_, text)| text.eq_ignore_ascii_case("keep-alive"));
                return Ok((head.split(' ').nth(1).unwrap_or("none").to_owned(), goes_on));
            }
        }
        match stream.read(&mut chunk)? {
            0 => return Err(Error::new(ErrorKind::UnexpectedEof, format!("the end after {} bytes", bytes.len()))),
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Serves each connection with these answers, one for each request, and closes.
    fn server(answers: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                for answer in answers {
                    let mut buffer = [0; 1024];
                    if stream.read(&mut buffer).unwrap_or(0) == 0 {
                        break;
                    }
                    let _ = stream.write_all(answer.as_bytes());
                }
            }
        });
        address
    }

    fn load(to: SocketAddr, usage: Use) -> Report {
        let stop = AtomicBool::new(false);
        let load = Load { from: From::Host, to, rate: 100, threads: 2, usage };
        std::thread::scope(|scope| {
            let running = scope.spawn(|| run(&[load], &stop).unwrap());
            std::thread::sleep(Duration::from_millis(500));
            stop.store(true, Ordering::Relaxed);
            running.join().unwrap()
        })
    }

    const GOES_ON: &str = "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok";
    const LAST: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";

    #[test]
    fn what_goes_well_is_counted() {
        let report = load(server(&[LAST]), Use::Once);
        assert_eq!(report.failed(), 0, "{report:?}");
        assert!((5..=100).contains(&report.made) && report.connections == report.made, "{report:?}");
        let report = load(server(&[GOES_ON, GOES_ON, LAST]), Use::Kept);
        assert_eq!(report.failed(), 0, "{report:?}");
        assert!(report.connections <= report.made / 3 + 2, "{report:?}");
    }

    #[test]
    fn every_failure_is_counted_by_its_name() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let report = load(closed, Use::Once);
        assert_eq!(report.failures.keys().collect::<Vec<_>>(), ["connect: ECONNREFUSED"]);
        assert_eq!(report.failed(), report.made);
        let report = load(server(&["HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"]), Use::Once);
        assert!(report.failures.contains_key("status 503"), "{report:?}");
        let report = load(server(&["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal"]), Use::Once);
        assert!(report.failures.keys().all(|what| what.starts_with("read: ")) && report.failed() > 0, "{report:?}");
    }
}
