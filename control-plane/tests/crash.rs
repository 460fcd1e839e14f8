//! The built program: what it acknowledged survives kill -9, a second start keeps everything.

#[path = "common/program.rs"]
mod program;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, PostParams};
use kube::config::Kubeconfig;
use program::{Program, free_port};
use serde_json::json;

async fn client(data: &Path) -> kube::Client {
    program::client(&program::admin(data).await)
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "v"}})).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut acknowledged: Vec<String> = Vec::new();
    let mut newest = 0u64;
    for round in 0..3 {
        let mut program = Program::start(folder.path(), port, &[]);
        let maps: Api<ConfigMap> = Api::namespaced(client(folder.path()).await, "default");
        let list = maps.list(&ListParams::default()).await.unwrap();
        let revision: u64 = list.metadata.resource_version.unwrap().parse().unwrap();
        assert!(revision >= newest, "revision went from {newest} back to {revision}");
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let maps = maps.clone();
                tokio::spawn(async move {
                    let mut done = Vec::new();
                    for i in 0.. {
                        let name = format!("r{round}-w{writer}-{i}");
                        match maps.create(&PostParams::default(), &map(&name)).await {
                            Ok(made) => done.push((name, made.metadata.resource_version.unwrap())),
                            Err(_) => break,
                        }
                    }
                    done
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(700)).await;
        program.0.kill().unwrap();
        program.0.wait().unwrap();
        for writer in writers {
            for (name, version) in writer.await.unwrap() {
                newest = newest.max(version.parse().unwrap());
                acknowledged.push(name);
            }
        }
    }
    assert!(acknowledged.len() > 50, "only {} writes were acknowledged", acknowledged.len());
    let _program = Program::start(folder.path(), port, &[]);
    let maps: Api<ConfigMap> = Api::namespaced(client(folder.path()).await, "default");
    let present: std::collections::HashSet<String> =
        maps.list(&ListParams::default()).await.unwrap().items.into_iter().filter_map(|m| m.metadata.name).collect();
    let lost: Vec<_> = acknowledged.iter().filter(|name| !present.contains(*name)).collect();
    assert!(lost.is_empty(), "lost {lost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_ends_it_cleanly_and_a_second_start_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut program = Program::start(folder.path(), port, &[]);
    let maps: Api<ConfigMap> = Api::namespaced(client(folder.path()).await, "default");
    maps.create(&PostParams::default(), &map("kept")).await.unwrap();
    let ca = std::fs::read(folder.path().join("pki/ca.crt")).unwrap();
    Command::new("kill").args(["-TERM", &program.0.id().to_string()]).status().unwrap();
    let mut status = None;
    for _ in 0..200 {
        status = program.0.try_wait().unwrap();
        if status.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(status.expect("it ended").success());
    let _program = Program::start(folder.path(), port, &[]);
    let maps: Api<ConfigMap> = Api::namespaced(client(folder.path()).await, "default");
    assert!(maps.get_opt("kept").await.unwrap().is_some());
    assert_eq!(std::fs::read(folder.path().join("pki/ca.crt")).unwrap(), ca);
}

#[test]
fn kubeconfig_issues_a_client_certificate_offline() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("node.kubeconfig");
    let issue = || {
        Command::new(env!("CARGO_BIN_EXE_control-plane"))
            .args([
                "kubeconfig",
                "--user",
                "system:node:a",
                "--group",
                "system:nodes",
                "--server",
                "https://10.0.0.1:6443",
            ])
            .arg("--data-dir")
            .arg(folder.path())
            .arg("--out")
            .arg(&out)
            .output()
            .unwrap()
    };
    let refused = issue();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no certificate authority yet"));
    let names = keelson_control_plane::pki::ServingNames::default();
    keelson_control_plane::pki::Pki::open(folder.path(), &names).unwrap();
    assert!(issue().status.success());
    let config = Kubeconfig::read_from(&out).unwrap();
    assert_eq!(config.auth_infos[0].name, "system:node:a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_a_file_are_users() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.csv");
    let flags = ["--token-auth-file", file.to_str().unwrap()];
    std::fs::write(&file, "secret-of-alice,alice\n").unwrap();
    let refused = program::command(folder.path(), free_port(), &flags).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("line 1 of the token file") && !said.contains("secret"),
        "{said}"
    );
    std::fs::write(&file, "secret-of-alice,alice,1,\"system:masters,dev\"\nsecret-of-bob,bob,2\n").unwrap();
    let port = free_port();
    let _program = Program::start(folder.path(), port, &flags);
    let mut config = program::admin(folder.path()).await;
    let mut lists = async |token: &str| {
        config.auth_info = kube::config::AuthInfo { token: Some(token.to_owned().into()), ..Default::default() };
        let maps: Api<ConfigMap> = Api::namespaced(program::client(&config), "default");
        maps.list(&ListParams::default()).await.map(|_| ()).map_err(|error| match error {
            kube::Error::Api(status) => status.code,
            other => panic!("{other}"),
        })
    };
    assert_eq!(lists("secret-of-alice").await, Ok(()));
    assert_eq!(lists("secret-of-bob").await, Err(403));
    assert_eq!(lists("secret-of-carol").await, Err(401));
}
