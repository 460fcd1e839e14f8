//! The whole program against an API server in this process: lists in pages, watches, decodes, programs. So what the kernel is not asked for
//! is in it, too: JSON, the reflectors, the wait for more changes of the same burst (3 ms).

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use keelson_dataplane::config::{Config, default_config};
use keelson_netfilter::nft::{KernelNft, Nft as _};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{REPEAT, Results, endpoint, own_memory_mib, vip};

const HEALTHZ: &str = "127.0.0.1:10256";
/// Longer than any of it takes.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between changes: the program is idle again.
const PAUSE: Duration = Duration::from_millis(20);

type Body = BoxBody<Bytes, Infallible>;

fn metadata(name: &str, labels: &Value) -> Value {
    json!({"name": name, "namespace": "bench", "uid": name, "resourceVersion": "1", "labels": labels,
        "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {"example.com/owner": "the bench, as long as annotations are"}})
}

fn service(number: u32) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(&format!("service-{number}"), &json!({"app": "bench"})),
        "spec": {"type": "ClusterIP", "clusterIP": vip(number), "clusterIPs": [vip(number)], "selector": {"app": "bench"},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}]}})
}

fn slice(number: u32, endpoints: u32) -> Value {
    let labels = json!({"kubernetes.io/service-name": format!("service-{number}"), "app": "bench"});
    let endpoint = |index| {
        let pod = format!("service-{number}-pod-{index}");
        json!({"addresses": [endpoint(number, index)], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{}", index % 100), "zone": "zone-a",
            "targetRef": {"kind": "Pod", "namespace": "bench", "name": pod, "uid": pod}})
    };
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": metadata(&format!("service-{number}-abcde"), &labels),
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>()})
}

/// Open watches by the last part of their path.
#[derive(Clone, Default)]
struct Watches(Arc<Mutex<HashMap<String, mpsc::UnboundedSender<Bytes>>>>);

impl Watches {
    fn open(&self, kind: &str) -> mpsc::UnboundedReceiver<Bytes> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(kind.to_owned(), sender);
        receiver
    }

    fn send(&self, kind: &str, event: &str, object: &Value) -> anyhow::Result<()> {
        let watches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!("{}\n", json!({"type": event, "object": object}));
        watches
            .get(kind)
            .with_context(|| format!("{kind} are not watched"))?
            .send(line.into())
            .context("the watch has ended")
    }

    fn are_open(&self) -> bool {
        let watches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ["services", "endpointslices"].iter().all(|kind| watches.contains_key(*kind))
    }
}

/// A page of a list: items are made as they are asked for, so that the source holds none.
fn page(kind: &str, query: &HashMap<String, String>, services: u32, endpoints: u32) -> Value {
    let number = |key: &str| query.get(key).and_then(|text| text.parse::<u32>().ok());
    let (first, total) = (number("continue").unwrap_or(0), if kind == "nodes" { 0 } else { services });
    let last = first.saturating_add(number("limit").unwrap_or(u32::MAX)).min(total);
    let item = |n| if kind == "services" { service(n) } else { slice(n, endpoints) };
    let next = if last < total { last.to_string() } else { String::new() };
    json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1", "continue": next},
        "items": (first..last).map(item).collect::<Vec<_>>()})
}

fn answer(uri: &http::Uri, watches: &Watches, services: u32, endpoints: u32) -> http::Response<Body> {
    let kind = uri.path().rsplit('/').next().unwrap_or_default();
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let query: HashMap<String, String> = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    let body = if query.get("watch").is_some_and(|value| value == "true") {
        let events = watches.open(kind);
        let stream = futures::stream::unfold(events, |mut events| async { Some((events.recv().await?, events)) });
        http_body_util::BodyExt::boxed(StreamBody::new(stream.map(|line| Ok(Frame::data(line)))))
    } else {
        Full::from(page(kind, &query, services, endpoints).to_string()).boxed()
    };
    http::Response::new(body)
}

fn config() -> anyhow::Result<Config> {
    let mut config = default_config();
    config.hostname_override = Some("bench".to_owned());
    config.healthz = Some(HEALTHZ.parse()?);
    config.metrics = None;
    config.settings.service_cidrs = vec!["10.96.0.0/12".parse()?];
    config.drain_socket = None;
    Ok(config)
}

fn healthy() -> bool {
    use std::io::{Read as _, Write as _};
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(HEALTHZ)?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text.starts_with("HTTP/1.1 200"))
    };
    ask().unwrap_or(false)
}

fn until(what: &str, mut done: impl FnMut() -> bool) -> anyhow::Result<Duration> {
    let start = Instant::now();
    while !done() {
        ensure!(start.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(start.elapsed())
}

/// From an event to the kernel's new rule set, in milliseconds: the median of many.
fn median_ms(nft: &mut KernelNft, mut send: impl FnMut(u32) -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut times = Vec::new();
    for round in 0..REPEAT {
        std::thread::sleep(PAUSE);
        let (before, start) = (nft.generation()?, Instant::now());
        send(round)?;
        while nft.generation()? == before {
            ensure!(start.elapsed() < PATIENCE, "change {round} does not arrive");
            std::thread::sleep(Duration::from_micros(50));
        }
        times.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// One size.
pub fn case(services: u32, endpoints: u32) -> anyhow::Result<Results> {
    super::ip("link set lo up")?;
    kube_common::tls::install_ring();
    let watches = Watches::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let shutdown = CancellationToken::new();
    let source = watches.clone();
    let api = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let response = answer(request.uri(), &source, services, endpoints);
        async move { Ok::<_, Infallible>(response) }
    });
    let before = own_memory_mib("VmRSS")?;
    let start = Instant::now();
    let guard = runtime.enter();
    let client = kube::Client::new(api, "default");
    let running = runtime.spawn(keelson_dataplane::run(config()?, client, shutdown.clone()));
    drop(guard);
    until("the first sync", healthy)?;
    let full = start.elapsed().as_secs_f64();
    until("the watches", || watches.are_open())?;
    let shape = format!("{services}x{endpoints}");
    let mut nft = KernelNft::open()?;
    let grow = median_ms(&mut nft, |round| watches.send("endpointslices", "MODIFIED", &slice(round, endpoints + 1)))?;
    let shrink = median_ms(&mut nft, |round| watches.send("endpointslices", "MODIFIED", &slice(round, endpoints)))?;
    let results = Results::from([
        (format!("watched_full_s_{shape}"), full),
        (format!("watched_add_endpoint_ms_{shape}"), grow),
        (format!("watched_remove_endpoint_ms_{shape}"), shrink),
        (format!("watched_rss_mib_{shape}"), own_memory_mib("VmRSS")?),
        (format!("watched_rss_peak_mib_{shape}"), own_memory_mib("VmHWM")?),
        (format!("watched_rss_before_mib_{shape}"), before),
    ]);
    shutdown.cancel();
    runtime.block_on(running).context("the dataplane's task")?.context("the dataplane")?;
    Ok(results)
}
