//! The real API server for a test, and what the tests ask of it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde::de::DeserializeOwned;

const PATIENCE: Duration = Duration::from_secs(30);

/// The API server; killed by its own process id when dropped.
pub struct Server {
    child: Child,
    folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, if it was built.
pub fn program() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let path = test.parent()?.parent()?.join("control-plane");
    // The first skeletons of the program are only a few hundred kilobytes.
    path.metadata().is_ok_and(|m| m.len() > 1_000_000).then_some(path)
}

/// Starts the API server alone, with more flags.
pub fn start(program: &Path, flags: &[&str]) -> anyhow::Result<Server> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let folder = tempfile::tempdir()?;
    let child = Command::new(program)
        .args(["serve", "--only", "apiserver", "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1"])
        .args(["--secure-port", &port.to_string(), "--data-dir"])
        .arg(folder.path())
        .args(flags)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(Server { child, folder })
}

/// A client, once the server answers.
pub async fn connect(server: &Server) -> anyhow::Result<Client> {
    let path = server.folder.path().join("admin.kubeconfig");
    eventually("the API server answers", || async {
        let kubeconfig = Kubeconfig::read_from(&path).ok()?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.ok()?;
        let client = Client::try_from(config).ok()?;
        client.apiserver_version().await.ok()?;
        Some(client)
    })
    .await
}

/// Waits until `probe` has a result.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, probe: impl Fn() -> F) -> anyhow::Result<T> {
    let start = tokio::time::Instant::now();
    loop {
        if let Some(result) = probe().await {
            return Ok(result);
        }
        if start.elapsed() > PATIENCE {
            bail!("not within {PATIENCE:?}: {what}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// An object from JSON.
pub fn parse<K: DeserializeOwned>(value: serde_json::Value) -> anyhow::Result<K> {
    serde_json::from_value(value).context("test object")
}

/// One namespace's API.
pub struct Space {
    pub client: Client,
    pub name: &'static str,
}

impl Space {
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), self.name)
    }

    pub async fn count<K>(&self) -> usize
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        self.api::<K>().list(&ListParams::default()).await.map_or(usize::MAX, |list| list.items.len())
    }
}
