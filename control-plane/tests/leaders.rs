//! Control planes as processes over one etcd: one leads, also when it is stopped, woken or killed.

mod common;
#[path = "common/program.rs"]
mod program;

use std::path::Path;
use std::time::{Duration, Instant};

use common::etcd::Etcd;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use program::Program;
use serde_json::json;

/// A control plane of its own process; killed with this value.
struct Process {
    program: Program,
    folder: tempfile::TempDir,
}

impl Process {
    fn start(etcd: &Etcd, pki: Option<&Path>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if let Some(pki) = pki {
            let copied = std::process::Command::new("cp").arg("-a").arg(pki).arg(folder.path()).status();
            assert!(copied.unwrap().success());
        }
        let flags = ["--only", "scheduler,controllers", &format!("--etcd-servers={}", etcd.url())];
        let program = Program::start(folder.path(), program::free_port(), &flags);
        Self { program, folder }
    }

    async fn client(&self) -> kube::Client {
        program::client(&program::admin(self.folder.path()).await)
    }

    fn log(&self) -> String {
        program::log(self.folder.path())
    }

    fn signal(&self, name: &str) {
        let sent = std::process::Command::new("kill").args([name, &self.program.0.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
}

const LEASES: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

async fn holders(client: &kube::Client) -> [String; 2] {
    let leases: kube::Api<Lease> = kube::Api::namespaced(client.clone(), "kube-system");
    let mut holders = [String::new(), String::new()];
    for (holder, name) in holders.iter_mut().zip(LEASES) {
        let lease = leases.get_opt(name).await.ok().flatten().and_then(|lease| lease.spec);
        *holder = lease.and_then(|spec| spec.holder_identity).unwrap_or_default();
    }
    holders
}

/// Waits until both leases have holders, other than these; how long that took, and whose they are.
async fn next_leaders(client: &kube::Client, but: &[String; 2]) -> (Duration, [String; 2]) {
    let begun = Instant::now();
    loop {
        let found = holders(client).await;
        if found.iter().zip(but).all(|(found, but)| !found.is_empty() && found != but) {
            return (begun.elapsed(), found);
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody took the lead from {but:?}: {found:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A Deployment that gets exactly one `ReplicaSet` with all its pods.
async fn deploys(client: &kube::Client, name: &str) {
    let deployment: Deployment = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"replicas": 3,
        "selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}}))
    .unwrap();
    kube::Api::default_namespaced(client.clone()).create(&kube::api::PostParams::default(), &deployment).await.unwrap();
    let begun = Instant::now();
    loop {
        let found = counts(client, name).await;
        if found == (1, 3) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{name}: {found:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn counts(client: &kube::Client, name: &str) -> (usize, usize) {
    let wanted = kube::api::ListParams::default().labels(&format!("app={name}"));
    let sets: kube::Api<ReplicaSet> = kube::Api::default_namespaced(client.clone());
    let pods: kube::Api<Pod> = kube::Api::default_namespaced(client.clone());
    (sets.list(&wanted).await.unwrap().items.len(), pods.list(&wanted).await.unwrap().items.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_stopped_stands_by_when_it_wakes_and_the_next_leads_soon_after_kill_9() {
    let test = "a_leader_that_was_stopped_stands_by_when_it_wakes_and_the_next_leads_soon_after_kill_9";
    let Some(etcd) = Etcd::start(test) else { return };
    let mut first = Process::start(&etcd, None);
    let through_first = first.client().await;
    let (_, leaders) = next_leaders(&through_first, &Default::default()).await;
    let mut second = Process::start(&etcd, Some(&first.folder.path().join("pki")));
    let through_second = second.client().await;
    deploys(&through_second, "before").await;
    first.signal("-STOP");
    let (_, next) = next_leaders(&through_second, &leaders).await;
    deploys(&through_second, "while-stopped").await;
    first.signal("-CONT");
    // Longer than it would take to write with what it knew.
    for _ in 0..30 {
        assert_eq!(holders(&through_second).await, next, "it took the lead back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    deploys(&through_first, "after").await;
    for name in ["before", "while-stopped", "after"] {
        assert_eq!(counts(&through_second, name).await, (1, 3), "{name}");
    }
    let stood_by = first.log().matches("the lease could not be renewed in time").count();
    assert!(stood_by >= 1, "{}", first.log());
    second.program.0.kill().unwrap();
    second.program.0.wait().unwrap();
    let (took, _) = next_leaders(&through_first, &next).await;
    assert!(took < Duration::from_secs(17), "the next led after {took:?}");
    deploys(&through_first, "again").await;
    first.signal("-TERM");
    let begun = Instant::now();
    while first.program.0.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not end: {}", first.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
