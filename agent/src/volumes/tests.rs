//! The manager on real mounts: each test runs in a process of its own with a private mount
//! namespace, so that nothing reaches the machine whatever goes wrong.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::mounts::{KernelMounter, Mounter, mounts_below};
use super::testing::FakeObjects;
use super::*;
use crate::env::fields::NodeFacts;

const INSIDE: &str = "KEELSON_TEST_IN_MOUNT_NAMESPACE";

/// Runs the calling test again in a private mount namespace and says whether this is that run.
fn in_mount_namespace(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED {test}: needs root to mount");
        return false;
    }
    let program = std::env::current_exe().unwrap();
    let run = std::process::Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(program)
        .args(["--exact", &format!("volumes::tests::{test}"), "--nocapture"])
        .env(INSIDE, "1")
        .status();
    match run {
        Ok(status) => assert!(status.success(), "{test} failed in its mount namespace"),
        Err(error) => println!("SKIPPED {test}: cannot run unshare: {error}"),
    }
    false
}

struct World {
    root: tempfile::TempDir,
    objects: Arc<FakeObjects>,
    manager: Arc<VolumeManager>,
    errors: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let objects = FakeObjects::new();
        let errors: Arc<Mutex<Vec<String>>> = Arc::default();
        let told = Arc::clone(&errors);
        let manager = VolumeManager::new(
            root.path(),
            Arc::clone(&objects) as Arc<dyn ObjectReader>,
            Arc::new(KernelMounter::new()),
            Arc::new(move |_, error| told.lock().push(error.to_string())),
        );
        Self { root, objects, manager, errors }
    }

    /// The same node after a restart of the agent.
    fn restarted(&self) -> Arc<VolumeManager> {
        VolumeManager::new(
            self.root.path(),
            Arc::clone(&self.objects) as Arc<dyn ObjectReader>,
            Arc::new(KernelMounter::new()),
            Arc::new(|_, _| {}),
        )
    }

    fn volume(&self, kind: &str, name: &str) -> PathBuf {
        self.root.path().join("pods/u1/volumes").join(kind).join(name)
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let root = self.root.path().canonicalize().unwrap();
        let mounts = mounts_below(&KernelMounter::new(), &root).unwrap();
        mounts.into_iter().map(|m| m.point).collect()
    }
}

fn pod(volumes: serde_json::Value, mounts: serde_json::Value) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "labels": {"a": "b"}},
            "spec": {"serviceAccountName": "sa", "volumes": volumes,
                "containers": [{"name": "c", "volumeMounts": mounts}]}
        }))
        .unwrap(),
    )
}

fn facts() -> NodeFacts {
    NodeFacts { allocatable: [("memory".to_owned(), ApiQuantity("64Mi".into()))].into(), ..NodeFacts::default() }
}

fn fs_type(path: &Path) -> Option<String> {
    let path = path.canonicalize().unwrap();
    let table = KernelMounter::new().table().unwrap();
    table.into_iter().rev().find(|m| m.point == path).map(|m| m.fs_type)
}

async fn eventually(what: &str, check: impl Fn() -> bool) {
    for _ in 0..200 {
        if check() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}");
}

#[tokio::test]
async fn every_kind_from_set_up_to_tear_down() {
    if !in_mount_namespace("every_kind_from_set_up_to_tear_down") {
        return;
    }
    let world = World::new();
    world.objects.set_map("cm", &[("k", "v")]);
    world.objects.set_secret("sec", &[("p", "s3")]);
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    world.objects.set_token(Ok(("tok", soon)));
    let host = world.root.path().join("host");
    let volumes = serde_json::json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "bare"},
        {"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "host", "hostPath": {"path": host, "type": "DirectoryOrCreate"}},
        {"name": "cm", "configMap": {"name": "cm", "defaultMode": 0o600}},
        {"name": "sec", "secret": {"secretName": "sec"}},
        {"name": "down", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "opt", "configMap": {"name": "nope", "optional": true}},
        {"name": "proj", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {"configMap": {"name": "cm", "items": [{"key": "k", "path": "ca/x"}]}}]}},
    ]);
    let mounts = serde_json::json!([
        {"name": "disk", "mountPath": "/disk", "subPath": "a/b"},
        {"name": "cm", "mountPath": "/k", "subPath": "k"},
        {"name": "sec", "mountPath": "sec"},
        {"name": "host", "mountPath": "/h", "readOnly": true, "mountPropagation": "HostToContainer"},
    ]);
    let pod = pod(volumes, mounts);
    world.manager.set_up(&pod, &facts()).await.unwrap();
    let read = |kind: &str, path: &str| fs::read_to_string(world.volume(kind, path)).unwrap();
    assert_eq!(read("kubernetes.io~configmap", "cm/k"), "v");
    assert_eq!(read("kubernetes.io~secret", "sec/p"), "s3");
    assert_eq!(read("kubernetes.io~downward-api", "down/labels"), "a=\"b\"");
    assert_eq!(read("kubernetes.io~projected", "proj/token"), "tok");
    assert_eq!(read("kubernetes.io~projected", "proj/ca/x"), "v");
    assert!(host.is_dir());
    for (kind, name) in [("empty-dir", "mem"), ("secret", "sec"), ("projected", "proj")] {
        let path = world.volume(&format!("kubernetes.io~{kind}"), name);
        assert_eq!(fs_type(&path).as_deref(), Some("tmpfs"), "{name}");
    }
    let mem = world.volume("kubernetes.io~empty-dir", "mem");
    assert!(fs::write(mem.join("big"), vec![0; 2 << 20]).is_err(), "sizeLimit");
    fs::remove_file(mem.join("big")).unwrap();
    let disk = world.volume("kubernetes.io~empty-dir", "disk");
    assert_eq!(fs::metadata(&disk).unwrap().mode() & 0o7777, 0o777);
    assert!(world.volume("kubernetes.io~empty-dir", "bare").is_dir());

    let container = &pod.spec.as_ref().unwrap().containers[0];
    let cri = world.manager.container_mounts(&pod, container, &[]).await.unwrap();
    let sub =
        |index: &str, name: &str| world.root.path().join("pods/u1/volume-subpaths").join(name).join("c").join(index);
    assert_eq!(Path::new(&cri[0].host_path), sub("0", "disk"));
    assert_eq!((cri[2].container_path.as_str(), cri[2].readonly), ("/sec", true));
    assert_eq!((cri[3].readonly, cri[3].propagation), (true, 1));
    fs::write(disk.join("a/b/f"), "x").unwrap();
    assert_eq!(fs::read_to_string(sub("0", "disk").join("f")).unwrap(), "x");
    assert_eq!(fs::read_to_string(sub("1", "cm")).unwrap(), "v");

    // Again, and after a restart: nothing is mounted twice, nothing is lost.
    let before = world.mounts();
    fs::write(mem.join("kept"), "x").unwrap();
    world.manager.set_up(&pod, &facts()).await.unwrap();
    world.manager.container_mounts(&pod, container, &[]).await.unwrap();
    let again = world.restarted();
    again.set_up(&pod, &facts()).await.unwrap();
    assert_eq!(world.mounts(), before);
    assert_eq!(fs::read_to_string(mem.join("kept")).unwrap(), "x");
    let found = again.on_disk().await;
    assert_eq!((found.len(), found[0].uid.as_str(), found[0].mounts), (1, "u1", before.len()));
    assert_eq!(found[0].volumes.len(), 8);

    // A container left links and a foreign mount; a restarted agent cleans up all the same.
    let outside = world.root.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("keep"), "x").unwrap();
    symlink(&outside, disk.join("link")).unwrap();
    fs::create_dir(disk.join("nested")).unwrap();
    KernelMounter::new().tmpfs(&disk.join("nested"), None).unwrap();
    world.restarted().remove_pod("u1").await.unwrap();
    assert!(world.mounts().is_empty());
    assert!(!world.root.path().join("pods/u1").exists());
    assert!(outside.join("keep").exists() && host.is_dir());
    again.remove_pod("u1").await.unwrap();
    assert!(world.objects.held().is_empty());
}

#[tokio::test]
async fn changes_reach_running_pods_at_once() {
    if !in_mount_namespace("changes_reach_running_pods_at_once") {
        return;
    }
    let world = World::new();
    world.objects.set_map("cm", &[("k", "1")]);
    let stop = CancellationToken::new();
    let run = tokio::spawn(Arc::clone(&world.manager).run(stop.clone()));
    let volumes = serde_json::json!([
        {"name": "cm", "configMap": {"name": "cm"}},
        {"name": "late", "configMap": {"name": "late", "optional": true}}]);
    let pod = pod(volumes, serde_json::json!([]));
    let poked = world.manager.changed("u1");
    world.manager.set_up(&pod, &facts()).await.unwrap();
    let file = world.volume("kubernetes.io~configmap", "cm/k");
    assert_eq!(fs::read_to_string(&file).unwrap(), "1");
    world.objects.set_map("cm", &[("k", "2")]);
    eventually("the new value", || fs::read_to_string(&file).unwrap() == "2").await;
    let late = world.volume("kubernetes.io~configmap", "late/x");
    world.objects.set_map("late", &[("x", "y")]);
    eventually("the late map", || late.exists()).await;
    assert_eq!(*poked.borrow(), 2, "whoever waits for an object is told");

    // Down: what is there stays and counts.
    world.objects.set_down(true);
    world.restarted().set_up(&pod, &facts()).await.unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "2");
    world.objects.set_down(false);

    world.manager.tear_down("u1").await.unwrap();
    world.objects.set_map("cm", &[("k", "3")]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!file.exists(), "a removed pod is not refreshed");
    assert!(world.errors.lock().is_empty());
    stop.cancel();
    run.await.unwrap();
}

#[tokio::test]
async fn tokens_are_renewed() {
    if !in_mount_namespace("tokens_are_renewed") {
        return;
    }
    let world = World::new();
    let in_seconds = |s: i64| jiff::Timestamp::now() + jiff::SignedDuration::from_secs(s);
    world.objects.set_token(Ok(("one", in_seconds(1))));
    let stop = CancellationToken::new();
    let run = tokio::spawn(Arc::clone(&world.manager).run(stop.clone()));
    let volumes = serde_json::json!([{"name": "t", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token"}}]}}]);
    let pod = pod(volumes, serde_json::json!([]));
    world.manager.set_up(&pod, &facts()).await.unwrap();
    world.objects.set_token(Ok(("two", in_seconds(3600))));
    let file = world.volume("kubernetes.io~projected", "t/token");
    assert_eq!(fs::read_to_string(&file).unwrap(), "one");
    eventually("the second token", || fs::read_to_string(&file).unwrap() == "two").await;
    assert_eq!(world.objects.issued(), 2);
    stop.cancel();
    run.await.unwrap();
    world.manager.remove_pod("u1").await.unwrap();
}

#[tokio::test]
async fn errors_read_as_upstream() {
    if !in_mount_namespace("errors_read_as_upstream") {
        return;
    }
    let world = World::new();
    world.objects.set_map("cm", &[("k", "v")]);
    let volumes = serde_json::json!([
        {"name": "ok", "emptyDir": {}},
        {"name": "gone", "configMap": {"name": "nope"}},
        {"name": "key", "configMap": {"name": "cm", "items": [{"key": "zz", "path": "x"}]}},
        {"name": "sec", "secret": {"secretName": "nope"}},
        {"name": "proj", "projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "b"}}]}},
        {"name": "git", "gitRepo": {"repository": "x"}},
        {"name": "../esc", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": "/nowhere/x", "type": "File"}}]);
    let pod = pod(volumes, serde_json::json!([{"name": "none", "mountPath": "/x"}]));
    let errors = world.manager.set_up(&pod, &facts()).await.unwrap_err();
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts[..4],
        [
            "MountVolume.SetUp failed for volume \"gone\" : configmap \"nope\" not found",
            "MountVolume.SetUp failed for volume \"key\" : configmap references non-existent config key: zz",
            "MountVolume.SetUp failed for volume \"sec\" : secret \"nope\" not found",
            "MountVolume.SetUp failed for volume \"proj\" : [configmap \"a\" not found, secret \"b\" not found]",
        ]
    );
    assert!(texts[4].contains("CVE-2024-10220") && !errors[4].retryable());
    assert!(texts[5].contains("DNS label"));
    assert!(texts[6].ends_with("hostPath /nowhere/x doesn't exist") && errors[6].retryable());
    assert!(world.volume("kubernetes.io~empty-dir", "ok").is_dir());
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let error = world.manager.container_mounts(&pod, container, &[]).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot find volume \"none\" to mount into container \"c\"");
    world.manager.remove_pod("u1").await.unwrap();
}

#[tokio::test]
async fn fs_group_and_token_owner() {
    if !in_mount_namespace("fs_group_and_token_owner") {
        return;
    }
    let world = World::new();
    world.objects.set_secret("sec", &[("p", "s3")]);
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    world.objects.set_token(Ok(("tok", soon)));
    let volumes = serde_json::json!([
        {"name": "e", "emptyDir": {}},
        {"name": "s", "secret": {"secretName": "sec", "defaultMode": 0o400}},
        {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]);
    let mut with = (*pod(volumes, serde_json::json!([]))).clone();
    with.spec.as_mut().unwrap().security_context =
        serde_json::from_value(serde_json::json!({"fsGroup": 1234, "runAsUser": 77})).unwrap();
    world.manager.set_up(&Arc::new(with), &facts()).await.unwrap();
    let look = |kind: &str, path: &str| {
        let meta = fs::metadata(world.volume(kind, path)).unwrap();
        (meta.mode() & 0o7777, meta.uid(), meta.gid())
    };
    assert_eq!(look("kubernetes.io~empty-dir", "e"), (0o2777, 0, 1234));
    assert_eq!(look("kubernetes.io~secret", "s/p"), (0o440, 0, 1234));
    assert_eq!(look("kubernetes.io~projected", "t/token"), (0o640, 77, 1234));
    world.manager.remove_pod("u1").await.unwrap();
}
