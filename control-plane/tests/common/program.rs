//! The built program, with a store of its own, on a port of this machine.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};

/// What the program says, in its folder.
const LOG: &str = "stderr.log";

/// Dies with its handle.
pub struct Program(pub Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// An API server over a folder, with further flags; not started.
pub fn command(data: &Path, port: u16, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_control-plane"));
    command.args(["serve", "--only", "apiserver", "--bind-address", "127.0.0.1", "--secure-port", &port.to_string()]);
    command.arg("--data-dir").arg(data).args(more);
    command
}

impl Program {
    pub fn start(data: &Path, port: u16, more: &[&str]) -> Self {
        let log = std::fs::File::create(data.join(LOG)).unwrap();
        Self(command(data, port, more).stderr(log).stdout(Stdio::null()).spawn().unwrap())
    }
}

/// The administrator's way to the program, once it is ready.
pub async fn admin(data: &Path) -> kube::Config {
    ready(data, || Kubeconfig::read_from(data.join("admin.kubeconfig")).ok()).await
}

/// A user's, by a certificate that the program's command makes.
pub async fn user(data: &Path, address: SocketAddr, user: &str, group: &str) -> kube::Config {
    let path = data.join(format!("{}.kubeconfig", user.replace(':', "-")));
    ready(data, || {
        let issue = Command::new(env!("CARGO_BIN_EXE_control-plane"))
            .args(["kubeconfig", "--user", user, "--group", group, "--server", &format!("https://{address}")])
            .arg("--data-dir")
            .arg(data)
            .arg("--out")
            .arg(&path)
            .output()
            .unwrap();
        issue.status.success().then(|| Kubeconfig::read_from(&path).unwrap())
    })
    .await
}

async fn ready(data: &Path, kubeconfig: impl Fn() -> Option<Kubeconfig>) -> kube::Config {
    kube_common::tls::install_ring();
    for _ in 0..1200 {
        if let Some(kubeconfig) = kubeconfig()
            && let Ok(config) = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await
            && client(&config).apiserver_version().await.is_ok()
        {
            return config;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the program did not become ready: {}", log(data));
}

/// What the program has said.
pub fn log(data: &Path) -> String {
    std::fs::read_to_string(data.join(LOG)).unwrap_or_default()
}

/// A client with connections of its own.
pub fn client(config: &kube::Config) -> kube::Client {
    kube::Client::try_from(config.clone()).unwrap()
}
