//! What the API server does in a second, and what it takes: one program on loopback, with TLS, over its real store.
//!
//! Creates (each acknowledged after fsync), gets, a list of 5,000 pods, how long an event takes to 1,000 watchers, memory and start. Prints
//! one table, and one flat JSON object on request.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use keelson_tests::process::memory_mib;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde_json::{Map, Value, json};

const CREATES_ALONE: usize = 500;
const CREATES_TOGETHER: usize = 8_000;
const CLIENTS: usize = 64;
const GETS: usize = 20_000;
const PODS: usize = 5_000;
const WATCHERS: usize = 1_000;
/// Events whose way to all watchers is timed.
const EVENTS: usize = 50;
/// Clients of the watchers: a connection takes a hundred streams.
const WATCH_CLIENTS: usize = 20;

struct Server {
    child: Child,
    folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start() -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("control-plane");
        ensure!(program.exists(), "{} is not built: cargo build --release", program.display());
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        // Beside the program, not in /tmp: that may be memory, which has no fsync to wait for.
        let folder = tempfile::tempdir_in(program.parent().context("the program lies in no folder")?)?;
        let child = Command::new(program)
            .args(["serve", "--only", "apiserver", "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1"])
            .args(["--secure-port", &port, "--data-dir"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start the control plane")?;
        Ok(Self { child, folder })
    }

    async fn client(&self) -> Option<Client> {
        let kubeconfig = Kubeconfig::read_from(self.folder.path().join("admin.kubeconfig")).ok()?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.ok()?;
        let client = Client::try_from(config).ok()?;
        client.apiserver_version().await.ok()?;
        Some(client)
    }

    fn rss_mib(&self) -> Result<f64> {
        memory_mib(self.child.id(), "VmRSS")
    }
}

fn map(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.data = Some([("key".to_owned(), "v".repeat(100))].into());
    map
}

fn pod(name: &str) -> Result<Pod> {
    Ok(serde_json::from_value(json!({"metadata": {"name": name, "labels": {"app": "bench"}},
        "spec": {"nodeName": format!("node-{}", name.len()), "containers": [{"name": "main", "image": "busybox",
            "env": [{"name": "A", "value": "b"}], "ports": [{"containerPort": 80}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}}]}}))?)
}

fn percentile(mut times: Vec<Duration>, share: f64) -> f64 {
    times.sort();
    let at = ((times.len() - 1) as f64 * share).round() as usize;
    times[at].as_secs_f64() * 1000.0
}

/// Runs `work` for each number below `count`, from as many clients at once as given; how many a second.
async fn rate<F>(clients: &[Client], count: usize, work: impl Fn(Client, usize) -> F + Sync) -> Result<f64>
where
    F: Future<Output = Result<()>>,
{
    let next = AtomicUsize::new(0);
    let begun = Instant::now();
    try_join_all(clients.iter().map(|client| async {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok::<_, anyhow::Error>(());
            }
            work(client.clone(), number).await?;
        }
    }))
    .await?;
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

async fn fanout(server: &Server) -> Result<f64> {
    let mut clients = Vec::new();
    for _ in 0..WATCH_CLIENTS {
        clients.push(server.client().await.context("a client")?);
    }
    let (seen, mut told) = tokio::sync::mpsc::channel::<(String, Instant)>(WATCHERS * 2);
    let ready = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for number in 0..WATCHERS {
        let api: Api<ConfigMap> = Api::namespaced(clients[number % WATCH_CLIENTS].clone(), "kube-public");
        let (seen, ready) = (seen.clone(), Arc::clone(&ready));
        tasks.push(tokio::spawn(async move {
            let stream = api.watch(&WatchParams::default(), "0").await?;
            ready.fetch_add(1, Ordering::Relaxed);
            let mut stream = stream.boxed();
            while let Some(event) = stream.try_next().await? {
                if let WatchEvent::Added(map) = event {
                    let _ = seen.send((map.metadata.name.unwrap_or_default(), Instant::now())).await;
                }
            }
            Ok::<_, kube::Error>(())
        }));
    }
    while ready.load(Ordering::Relaxed) < WATCHERS {
        ensure!(tasks.iter().all(|task| !task.is_finished()), "a watcher ended before it began");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    while told.try_recv().is_ok() {}
    let api: Api<ConfigMap> = Api::namespaced(clients[0].clone(), "kube-public");
    let mut times = Vec::new();
    for number in 0..EVENTS {
        let name = format!("fan-{number}");
        let begun = Instant::now();
        api.create(&PostParams::default(), &map(&name)).await?;
        for _ in 0..WATCHERS {
            let (about, at) =
                tokio::time::timeout(Duration::from_secs(20), told.recv()).await?.context("watchers ended")?;
            ensure!(about == name, "an event of {about} came where {name} was due");
            times.push(at.duration_since(begun));
        }
    }
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(percentile(times, 0.99))
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json: Option<PathBuf> = match arguments.as_slice() {
        [] => None,
        [flag, file] if flag == "--json" => Some(file.into()),
        _ => anyhow::bail!("usage: bench-api [--json FILE]"),
    };
    kube_common::tls::install_ring();
    let begun = Instant::now();
    let server = Server::start()?;
    let client = loop {
        if let Some(client) = server.client().await {
            break client;
        }
        ensure!(begun.elapsed() < Duration::from_secs(60), "the API server does not answer");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let mut figures = Map::new();
    let mut note = |key: &str, value: f64| {
        println!("{key:22} {value:12.1}");
        figures.insert(key.to_owned(), json!((value * 10.0).round() / 10.0));
    };
    note("start_s", begun.elapsed().as_secs_f64());
    tokio::time::sleep(Duration::from_secs(3)).await;
    note("rss_mib_idle", server.rss_mib()?);
    let maps = |client: Client| -> Api<ConfigMap> { Api::namespaced(client, "default") };
    let create = |client: Client, name: String| async move {
        maps(client).create(&PostParams::default(), &map(&name)).await?;
        Ok(())
    };
    let alone =
        rate(std::slice::from_ref(&client), CREATES_ALONE, |client, n| create(client, format!("alone-{n}"))).await?;
    note("creates_s_1", alone);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(server.client().await.context("a client")?);
    }
    let together = rate(&clients, CREATES_TOGETHER, |client, n| create(client, format!("m-{n}"))).await?;
    note("creates_s_64", together);
    let gets = rate(&clients, GETS, |client, n| async move {
        maps(client).get(&format!("m-{}", n % CREATES_TOGETHER)).await?;
        Ok(())
    });
    note("gets_s", gets.await?);
    note("fanout_1000_p99_ms", fanout(&server).await?);
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(client.clone(), "default");
    accounts.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": "default"}}))?).await?;
    let before = server.rss_mib()?;
    rate(&clients, PODS, |client, n| async move {
        Api::<Pod>::namespaced(client, "default").create(&PostParams::default(), &pod(&format!("pod-{n}"))?).await?;
        Ok(())
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    note("rss_mib_before_pods", before);
    note("rss_mib_5000", server.rss_mib()?);
    let pods: Api<Pod> = Api::all(client.clone());
    let mut lists = Vec::new();
    for _ in 0..10 {
        let begun = Instant::now();
        ensure!(pods.list_metadata(&ListParams::default().limit(1)).await?.items.len() == 1);
        let request = kube::core::Request::new("/api/v1/pods").list(&ListParams::default())?;
        ensure!(client.request_text(request).await?.len() > PODS * 500, "the list is too short");
        lists.push(begun.elapsed());
    }
    note("list_5000_ms", percentile(lists, 0.5));
    if let Some(path) = json {
        std::fs::write(&path, format!("{:#}\n", Value::Object(figures)))
            .with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
