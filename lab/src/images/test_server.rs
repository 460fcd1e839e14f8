//! The program of the test server's image: tells who it is and what it sees, and misbehaves on request.
//!
//! One thread and hand-written HTTP/1.1, so that it is small, starts at once and holds thousands of connections. Everything that
//! tests of a cluster want to vary is a flag (ports, answer to SIGTERM) or a request (readiness, exit code, delay).
//!
//! | request | answer |
//! |---|---|
//! | any other path | JSON report: pod, namespace, node, podIP, hostname, source, local, method, path, query, headers, served |
//! | `/healthz` | 200 `ok` |
//! | `/readyz` | 200 `ok` or 503 `not ready`; `POST /readyz?ok=false` and `?ok=true` switch it |
//! | `/exit?code=N` | answers, then exits with N; `&message=TEXT` goes to /dev/termination-log first |
//! | `/sleep?ms=N` | the report, N ms later |
//! | `/env` | the environment as JSON |
//! | `/hostname` | the host name as text |
//! | `/bytes?n=N` | N bytes |
//! | `/seen` | the latest requests, oldest first, one a line (`GET /path?query`, `GRPC /service/method`, `WEBHOOK /path`); `CLOSED` for a connection without one |
//!
//! `--effective-uid` serves nothing: it tells as whom the program runs, which a set-user-ID bit may have changed.

#[path = "test_server/echo.rs"]
mod echo;
#[path = "test_server/grpc.rs"]
mod grpc;
#[path = "test_server/http.rs"]
mod http;
#[path = "test_server/respond.rs"]
mod respond;
#[path = "test_server/webhook.rs"]
mod webhook;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Pause after a failed accept (out of file descriptors), so that it does not become a busy loop.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// How long connections that stay idle are kept for their last answer.
const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// Requests that `/seen` tells.
const SEEN_LIMIT: usize = 1000;

/// What SIGTERM and SIGINT do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnTerm {
    /// Exit 0 at once, cutting every connection.
    Immediate,
    /// Accept no more, finish what is in flight, close idle connections, exit 0.
    Graceful,
    /// Accept no more, answer once more on each connection and say that it closes with that, close those that stay idle, exit 0: no client is cut
    /// off between two requests.
    LastAnswer,
    /// Go on, until SIGKILL.
    Ignore,
}

/// Reports its pod, its node and what it sees of a request.
#[derive(Debug, Parser)]
#[command(name = "test-server", version)]
struct Options {
    /// HTTP port; may be given several times.
    #[arg(long = "http", default_value = "8080")]
    http: Vec<u16>,
    /// Port of gRPC's health protocol; may be given several times.
    #[arg(long)]
    grpc: Vec<u16>,
    /// TCP echo port; may be given several times.
    #[arg(long = "tcp-echo")]
    tcp_echo: Vec<u16>,
    /// UDP port whose answer is the pod's name, a space, and what was sent; may be given several times.
    #[arg(long = "udp-echo")]
    udp_echo: Vec<u16>,
    /// HTTPS port of admission webhooks; may be given several times.
    #[arg(long)]
    webhook: Vec<u16>,
    /// Folder of the webhooks' `tls.crt` and `tls.key`.
    #[arg(long, default_value = "/tls")]
    tls: PathBuf,
    /// What SIGTERM does.
    #[arg(long, value_enum, default_value = "immediate")]
    on_term: OnTerm,
    /// Start out not ready.
    #[arg(long)]
    unready: bool,
    /// Print the effective user and exit.
    #[arg(long)]
    effective_uid: bool,
}

/// What all connections share; one thread, so no locks.
struct Server {
    identity: respond::Identity,
    ready: Cell<bool>,
    served: Cell<u64>,
    seen: RefCell<VecDeque<String>>,
    started: Instant,
    closing: CancellationToken,
    /// Answers given from now on are the last ones of their connections.
    last_answers: Cell<bool>,
}

impl Server {
    /// Keeps a line for `/seen`.
    fn saw(&self, line: String) {
        let mut seen = self.seen.borrow_mut();
        if seen.len() == SEEN_LIMIT {
            seen.pop_front();
        }
        seen.push_back(line);
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.effective_uid {
        println!("Effective uid: {}", nix::unistd::geteuid());
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| LocalSet::new().block_on(&runtime, run(options))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("test-server: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> io::Result<()> {
    let server = Rc::new(Server {
        identity: respond::Identity::of_this_pod(),
        ready: Cell::new(!options.unready),
        served: Cell::new(0),
        seen: RefCell::default(),
        started: Instant::now(),
        closing: CancellationToken::new(),
        last_answers: Cell::new(false),
    });
    // Listeners close before connections do.
    let accepting = CancellationToken::new();
    let tracker = TaskTracker::new();
    for &port in &options.http {
        let (listener, server, connections) = (listen(port).await?, Rc::clone(&server), tracker.clone());
        tokio::task::spawn_local(accept_loop(listener, accepting.clone(), move |stream, source| {
            connections.spawn_local(http::serve(stream, source, Rc::clone(&server)));
        }));
    }
    for &port in &options.grpc {
        let (listener, server, connections) = (listen(port).await?, Rc::clone(&server), tracker.clone());
        tokio::task::spawn_local(accept_loop(listener, accepting.clone(), move |stream, _| {
            connections.spawn_local(grpc::serve(stream, Rc::clone(&server)));
        }));
    }
    if !options.webhook.is_empty() {
        let acceptor = webhook::acceptor(&options.tls)?;
        for &port in &options.webhook {
            let (listener, server, connections) = (listen(port).await?, Rc::clone(&server), tracker.clone());
            let acceptor = acceptor.clone();
            tokio::task::spawn_local(accept_loop(listener, accepting.clone(), move |stream, _| {
                connections.spawn_local(webhook::serve(stream, acceptor.clone(), Rc::clone(&server)));
            }));
        }
    }
    for &port in &options.tcp_echo {
        let (listener, closing, connections) = (listen(port).await?, server.closing.clone(), tracker.clone());
        tokio::task::spawn_local(accept_loop(listener, accepting.clone(), move |stream, _| {
            connections.spawn_local(echo::tcp(stream, closing.clone()));
        }));
    }
    for &port in &options.udp_echo {
        tokio::task::spawn_local(echo::udp(echo::bind_udp(port).await?, server.identity.pod.clone()));
    }
    println!(
        "test-server: pod {} on http {:?}, tcp echo {:?}, udp echo {:?}",
        server.identity.pod, options.http, options.tcp_echo, options.udp_echo
    );
    wait_for_end(options.on_term).await?;
    if options.on_term != OnTerm::Immediate {
        println!("test-server: draining {} connections", tracker.len());
        accepting.cancel();
        tracker.close();
        if options.on_term == OnTerm::LastAnswer {
            server.last_answers.set(true);
            let _ = tokio::time::timeout(IDLE_LIMIT, tracker.wait()).await;
        }
        server.closing.cancel();
        tracker.wait().await;
    }
    println!("test-server: bye after {} requests", server.served.get());
    Ok(())
}

async fn wait_for_end(on_term: OnTerm) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if on_term != OnTerm::Ignore {
            return Ok(());
        }
        println!("test-server: SIGTERM ignored, as asked");
    }
}

/// Both families on one socket; IPv4 alone where the kernel has no IPv6.
async fn listen(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await
        }
        other => other,
    }
}

async fn accept_loop(listener: TcpListener, closing: CancellationToken, start: impl Fn(TcpStream, SocketAddr)) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closing.cancelled() => return,
        };
        match accepted {
            Ok((stream, source)) => start(stream, source),
            Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
        }
    }
}
