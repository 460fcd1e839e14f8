//! The program under test, its pretended nodes, and commands that see nothing but them.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};

use crate::hollow;

const START: Duration = Duration::from_secs(120);
const RENEWAL: Duration = Duration::from_secs(10);
/// Bounds a command, in seconds.
const LIMIT: &str = "300";
/// The minor version of the kubectl that the sessions are written with.
pub const MINOR: u32 = 37;
const NODES: [&str; 2] = ["n1", "n2"];

/// A control plane; killed by its own process id when dropped, its folder removed.
pub struct Cluster {
    child: Child,
    folder: tempfile::TempDir,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The build folder: `deps/TEST` lies in it.
fn built() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.parent()?.to_owned())
}

/// A kubectl of the sessions' version or newer, in the order in which `./dev` looks.
pub fn kubectl() -> Option<PathBuf> {
    let given = std::env::var_os("KEELSON_KUBECTL").map(PathBuf::from);
    let lab = built().and_then(|b| Some(b.parent()?.join("lab/.kubectl/kubectl")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("kubectl"));
    given.into_iter().chain(lab).chain(on_path).find(|candidate| minor(candidate).is_some_and(|minor| minor >= MINOR))
}

fn minor(kubectl: &Path) -> Option<u32> {
    let output = Command::new(kubectl).args(["version", "--client", "-o", "json"]).output().ok()?;
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let minor = version["clientVersion"]["minor"].as_str()?;
    minor.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()
}

impl Cluster {
    pub fn start(program: &Path, kubectl: &Path) -> anyhow::Result<Self> {
        kube_common::tls::install_ring();
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = tempfile::tempdir()?;
        for below in ["bin", "home", "work"] {
            std::fs::create_dir(folder.path().join(below))?;
        }
        std::os::unix::fs::symlink(kubectl, folder.path().join("bin/kubectl"))?;
        let log = std::fs::File::create(folder.path().join("log"))?;
        // However the test ends, the program ends with the thread that began it.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(["serve", "--only", "apiserver,scheduler,controllers"])
            .args(["--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1"])
            .args(["--secure-port", &port.to_string(), "--data-dir"])
            .arg(folder.path().join("data"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let mut cluster = Self { child, folder, runtime: None };
        let client =
            runtime.block_on(cluster.ready()).with_context(|| format!("the program's log:\n{}", cluster.log()))?;
        runtime.block_on(async {
            for name in NODES {
                hollow::register(&client, name).await?;
            }
            anyhow::Ok(())
        })?;
        runtime.spawn(hollow::renew(client.clone(), NODES.map(str::to_owned).to_vec(), RENEWAL));
        runtime.spawn(hollow::run_pods(client));
        cluster.runtime = Some(runtime);
        Ok(cluster)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A client, once there is what every namespace is given, which pods need.
    async fn ready(&mut self) -> anyhow::Result<Client> {
        let start = Instant::now();
        loop {
            let client = self.connect().await;
            if let Some(client) = &client
                && Api::<ServiceAccount>::default_namespaced(client.clone()).get("default").await.is_ok()
                && Api::<ConfigMap>::default_namespaced(client.clone()).get("kube-root-ca.crt").await.is_ok()
            {
                return Ok(client.clone());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the control plane has ended: {status}");
            }
            let what = if client.is_some() { "give its namespace an account" } else { "answer" };
            ensure!(start.elapsed() < START, "the control plane does not {what} within {START:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn connect(&self) -> Option<Client> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig()).ok()?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.ok()?;
        let client = Client::try_from(config).ok()?;
        client.apiserver_version().await.ok()?;
        Some(client)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("data/admin.kubeconfig")
    }

    /// Runs a shell's command: what it printed, both streams as a terminal would show them, and its exit code.
    pub fn run(&self, command: &str, corpus: Option<&Path>) -> anyhow::Result<(String, i32)> {
        let below = |name: &str| self.folder.path().join(name);
        let path = std::env::join_paths(
            [below("bin")].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
        )?;
        let output = Command::new("timeout")
            .args([LIMIT, "sh", "-c", &format!("exec 2>&1\n{command}")])
            .env_clear()
            .env("PATH", path)
            .env("HOME", below("home"))
            .env("TMPDIR", below("work"))
            .env("KUBECONFIG", self.kubeconfig())
            .env("DATA", below("data"))
            .env("FILES", crate::folder().join("files"))
            .envs(corpus.map(|folder| ("CORPUS", folder)))
            .current_dir(below("work"))
            .stdin(Stdio::null())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok((text, output.status.code().unwrap_or(-1)))
    }
}
