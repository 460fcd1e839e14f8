//! What people do with kubectl.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use serde_json::{Value, json};

tests![
    logs,
    scale,
    create_and_stop,
    describe,
    expose,
    patch,
    label,
    replace,
    run,
    dry_run,
    diff,
    versions,
    api_versions,
    cluster_info,
    proxy_port,
    proxy_socket,
];

const IMAGE: &str = "keelson.dev/test-server:latest";
const SOON: u64 = 60;

/// A replication controller of test servers.
fn controller(name: &str, replicas: u32) -> String {
    let container = json!({ "name": "server", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "ports": [{ "containerPort": 8080 }],
        "readinessProbe": { "httpGet": { "path": "/healthz", "port": 8080 }, "periodSeconds": 1 } });
    json!({
        "apiVersion": "v1",
        "kind": "ReplicationController",
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "app": name },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "terminationGracePeriodSeconds": 1, "containers": [container] },
            },
        },
    })
    .to_string()
}

/// Creates a controller and gives its pods, once they are ready.
fn running(space: &Space<'_>, name: &str, replicas: u32) -> Result<Vec<String>> {
    space.kubectl_with(&["create", "-f", "-"], &controller(name, replicas))?;
    ready(space, name, replicas as usize)
}

/// Names of exactly so many pods, all of them ready.
fn ready(space: &Space<'_>, app: &str, count: usize) -> Result<Vec<String>> {
    space.lab.wait(&format!("{count} pods of {app} are ready"), SOON, || {
        let pods = space.pods(&format!("app={app}"))?;
        let all = pods.iter().all(|pod| keelson_tests::objects::holds(pod, "Ready"));
        let going = pods.iter().any(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
        let names = pods.iter().map(|pod| keelson_tests::objects::name_of(pod).to_owned()).collect::<Vec<_>>();
        Ok((all && !going && names.len() == count).then_some(names))
    })
}

fn has(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    Ok(())
}

// [sig-cli] Kubectl client Update Demo should create and stop a replication controller [Conformance]
fn create_and_stop(lab: &Lab) -> Result<()> {
    let space = lab.quarter("cli-create")?;
    running(&space, "demo", 2)?;
    let said = space.kubectl_with(&["delete", "--grace-period=0", "--force", "-f", "-"], &controller("demo", 2))?;
    has(&said, &["replicationcontroller \"demo\" force deleted"])?;
    ensure!(space.kubectl(&["get", "rc", "--no-headers"])?.is_empty());
    lab.until("the pods are gone", SOON, || Ok(space.pods("app=demo")?.is_empty()))
}

// [sig-cli] Kubectl client Update Demo should scale a replication controller [Conformance]
fn scale(lab: &Lab) -> Result<()> {
    let space = lab.quarter("cli-scale")?;
    running(&space, "demo", 2)?;
    for count in [1, 2] {
        let said = space.kubectl(&["scale", "rc", "demo", &format!("--replicas={count}"), "--timeout=5m"])?;
        has(&said, &["replicationcontroller/demo scaled"])?;
        ready(&space, "demo", count)?;
    }
    Ok(())
}

// [sig-cli] Kubectl client Kubectl describe should check if kubectl describe prints relevant information for rc and pods [Conformance]
fn describe(lab: &Lab) -> Result<()> {
    let space = lab.quarter("cli-describe")?;
    let pods = running(&space, "described", 1)?;
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "described", "labels": { "app": "described" } },
        "spec": { "selector": { "app": "described" }, "ports": [{ "port": 6379, "targetPort": 8080 }] } });
    space.kubectl_with(&["create", "-f", "-"], &service.to_string())?;
    let pod = space.kubectl(&["describe", "pod", &pods[0]])?;
    let namespace = format!("Namespace:        {}", space.name);
    let parts =
        ["Name:", &namespace, "Node:", "app=described", "Status:           Running", "IP:", "Image:", "Containers:"];
    has(&pod, &parts)?;
    has(&pod, &["State:          Running", "Controlled By:  ReplicationController/described", "Events:", "Started"])?;
    let told = space.kubectl(&["describe", "rc", "described"])?;
    let parts =
        ["Selector:     app=described", "Replicas:     1 current / 1 desired", "Pods Status:  1 Running", IMAGE];
    has(&told, &parts)?;
    has(&told, &["Created pod: described-"])?;
    space.endpoints("described", 1)?;
    let told = space.kubectl(&["describe", "service", "described"])?;
    has(&told, &["Type:", "ClusterIP", "IP:", "6379/TCP", ":8080", "Session Affinity:         None"])?;
    let told = lab.kubectl(&["describe", "node", "node-1"])?;
    let parts =
        ["Labels:", "Conditions:", "KubeletReady", "Addresses:", "Capacity:", "Kubelet Version:", "PodCIDR:", &pods[0]];
    has(&told, &parts)?;
    has(&lab.kubectl(&["describe", "namespace", &space.name])?, &["Name:", &space.name, "Status:       Active"])
}

// [sig-cli] Kubectl client Kubectl expose should create services for rc [Conformance]
fn expose(lab: &Lab) -> Result<()> {
    let space = lab.quarter("cli-expose")?;
    running(&space, "exposed", 1)?;
    let check = |name: &str, port: u16| -> Result<()> {
        let service = space.json(&["get", "service", name])?;
        let ports = &service["spec"]["ports"];
        ensure!(ports[0]["port"] == port && ports[0]["targetPort"] == 8080, "{service}");
        space.endpoints(name, 1)?;
        let from = keelson_tests::net::From::Process(lab.pid("node-1")?);
        let to = (space.cluster_ip(name)?, port).into();
        lab.until("the service answers", SOON, || {
            Ok(keelson_tests::net::get(from, to, "/")?.1.contains("\"hostname\":\"exposed-"))
        })
    };
    space.kubectl(&["expose", "rc", "exposed", "--name=first", "--port=1234", "--target-port=8080"])?;
    check("first", 1234)?;
    space.kubectl(&["expose", "service", "first", "--name=second", "--port=2345", "--target-port=8080"])?;
    check("second", 2345)
}

// [sig-cli] Kubectl client Kubectl patch should add annotations for pods in rc [Conformance]
fn patch(lab: &Lab) -> Result<()> {
    let space = lab.quarter("cli-patch")?;
    for pod in running(&space, "patched", 2)? {
        space.kubectl(&["patch", "pod", &pod, "-p", r#"{"metadata":{"annotations":{"x":"y"}}}"#])?;
    }
    let pods = space.pods("app=patched")?;
    ensure!(pods.len() == 2 && pods.iter().all(|pod| pod["metadata"]["annotations"]["x"] == "y"), "{pods:?}");
    Ok(())
}

/// The pod that a generator of kubectl makes.
fn generated(space: &Space<'_>, name: &str) -> Result<()> {
    space
        .kubectl(&["run", name, &format!("--image={IMAGE}"), "--image-pull-policy=IfNotPresent", "--restart=Never"])
        .map(drop)
}

// [sig-cli] Kubectl client Kubectl label should update the label on a resource [Conformance]
fn label(lab: &Lab) -> Result<()> {
    let space = lab.quarter("cli-label")?;
    generated(&space, "labelled")?;
    space.ready_pod("labelled")?;
    space.kubectl(&["label", "pods", "labelled", "testing-label=testing-label-value"])?;
    let column = ["get", "pod", "labelled", "-L", "testing-label", "--no-headers"];
    has(&space.kubectl(&column)?, &["testing-label-value"])?;
    ensure!(space.pods("testing-label=testing-label-value")?.len() == 1);
    space.kubectl(&["label", "pods", "labelled", "testing-label-"])?;
    ensure!(!space.kubectl(&column)?.contains("testing-label-value"));
    ensure!(space.pods("testing-label")?.is_empty());
    Ok(())
}

// [sig-cli] Kubectl client Kubectl replace should update a single-container pod's image [Conformance]
fn replace(lab: &Lab) -> Result<()> {
    let space = lab.quarter("cli-replace")?;
    generated(&space, "replaced")?;
    let mut pod = space.ready_pod("replaced")?;
    pod["spec"]["containers"][0]["image"] = json!("nginx:1.14.2");
    let said = space.kubectl_with(&["replace", "-f", "-"], &pod.to_string())?;
    has(&said, &["pod/replaced replaced"])?;
    let image = |wanted: &str| {
        space.lab.until(&format!("{wanted} runs"), SOON, || {
            let pod = space.json(&["get", "pod", "replaced"])?;
            let status = &pod["status"]["containerStatuses"][0];
            ensure!(pod["spec"]["containers"][0]["image"] == wanted, "{pod}");
            Ok(status["image"].as_str().is_some_and(|image| image.ends_with(wanted)) && status["ready"] == true)
        })
    };
    // Never restarted: its image is another now, and what runs goes on until somebody forces it.
    ensure!(space.json(&["get", "pod", "replaced"])?["spec"]["containers"][0]["image"] == "nginx:1.14.2");
    let uid = pod["metadata"]["uid"].clone();
    let mut new: Value =
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "replaced" }, "spec": pod["spec"].clone() });
    new["spec"]["nodeName"].take();
    space.kubectl_with(&["replace", "--force", "--grace-period=1", "-f", "-"], &new.to_string())?;
    image("nginx:1.14.2")?;
    ensure!(space.json(&["get", "pod", "replaced"])?["metadata"]["uid"] != uid, "it is the pod from before");
    Ok(())
}

// [sig-cli] Kubectl client Kubectl run pod should create a pod from an image when restart is Never [Conformance]
fn run(lab: &Lab) -> Result<()> {
    let space = lab.quarter("cli-run")?;
    generated(&space, "never")?;
    let pod = space.ready_pod("never")?;
    let containers = pod["spec"]["containers"].as_array().context("no containers")?;
    ensure!(containers.len() == 1 && containers[0]["image"] == IMAGE, "{pod}");
    ensure!(pod["spec"]["restartPolicy"] == "Never", "{pod}");
    Ok(())
}

// [sig-cli] Kubectl client Kubectl server-side dry-run should check if kubectl can dry-run update Pods [Conformance]
fn dry_run(lab: &Lab) -> Result<()> {
    let space = lab.quarter("cli-dry-run")?;
    generated(&space, "dry")?;
    let patch = r#"{"spec":{"containers":[{"name":"dry","image":"busybox:1.28"}]}}"#;
    let said = space.kubectl(&["patch", "pod", "dry", "-p", patch, "--dry-run=server"])?;
    has(&said, &["pod/dry patched"])?;
    let changed = space.kubectl(&[
        "patch",
        "pod",
        "dry",
        "-p",
        patch,
        "--dry-run=server",
        "-o",
        "jsonpath={.spec.containers[0].image}",
    ])?;
    ensure!(changed == "busybox:1.28", "{changed}");
    ensure!(space.json(&["get", "pod", "dry"])?["spec"]["containers"][0]["image"] == IMAGE);
    Ok(())
}

// [sig-cli] Kubectl client Kubectl diff should check if kubectl diff finds a difference for Deployments [Conformance]
fn diff(lab: &Lab) -> Result<()> {
    let space = lab.quarter("cli-diff")?;
    let manifest = keelson_tests::manifests::servers("differing", 1, &[]);
    space.kubectl_with(&["create", "-f", "-"], &manifest)?;
    let said = space.kubectl_fails(&["diff", "-f", "-"], Some(&manifest.replace(IMAGE, "busybox:1.28")))?;
    has(&said, &[&format!("-        image: {IMAGE}"), "+        image: busybox:1.28"])
}

// [sig-cli] Kubectl client Kubectl version should check is all data is printed [Conformance]
fn versions(lab: &Lab) -> Result<()> {
    let version = lab.json(&["version"])?;
    for side in ["clientVersion", "serverVersion"] {
        for field in ["major", "minor", "gitVersion", "gitTreeState", "buildDate", "compiler", "platform"] {
            ensure!(version[side][field].as_str().is_some_and(|text| !text.is_empty()), "{side}.{field}: {version}");
        }
        // Ours is no Go program, and a build outside a checkout knows no commit.
        ensure!(version[side]["gitCommit"].is_string() && version[side]["goVersion"].is_string(), "{side}: {version}");
    }
    has(&lab.kubectl(&["version"])?, &["Client Version: v", "Server Version: v"])
}

// [sig-cli] Kubectl client Kubectl api-versions should check if v1 is in available api versions [Conformance]
fn api_versions(lab: &Lab) -> Result<()> {
    let said = lab.kubectl(&["api-versions"])?;
    ensure!(said.lines().any(|line| line == "v1") && said.lines().any(|line| line == "apps/v1"), "{said}");
    Ok(())
}

// [sig-cli] Kubectl client Kubectl cluster-info should check if Kubernetes control plane services is included in cluster-info [Conformance]
fn cluster_info(lab: &Lab) -> Result<()> {
    has(&lab.kubectl(&["cluster-info"])?, &["Kubernetes control plane", "is running at", "https://"])
}

// [sig-cli] Kubectl logs logs should be able to retrieve and filter logs [Conformance]
fn logs(lab: &Lab) -> Result<()> {
    let space = lab.quarter("cli-logs")?;
    let script = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; done; sleep 100000";
    space.apply(&keelson_tests::manifests::shell("talker", "Never", script))?;
    let get = |more: &[&str]| space.kubectl(&[&["logs", "talker"], more].concat());
    lab.until("everything was said", SOON, || Ok(get(&[])?.contains("line 9\n")))?;
    ensure!(get(&["--tail=1"])? == "line 9\n");
    ensure!(get(&["--limit-bytes=1"])? == "l");
    let stamped = get(&["--tail=1", "--timestamps"])?;
    let (time, rest) = stamped.split_once(' ').context("no timestamp")?;
    ensure!(rest == "line 9\n" && stamped.lines().count() == 1, "{stamped:?}");
    time.parse::<jiff::Timestamp>().with_context(|| format!("{time:?} is no RFC 3339"))?;
    let day = get(&["--since=24h"])?;
    ensure!(day.lines().count() == 9, "{day}");
    lab.until("nothing of the last second is left", 20, || Ok(get(&["--since=1s"])?.is_empty()))
}

/// A proxy that ends with the test.
struct Proxy {
    child: Child,
    said: String,
}

impl Proxy {
    fn start(lab: &Lab, more: &[&str]) -> Result<Self> {
        let mut child = lab.kubectl_spawn(&[&["proxy"], more].concat())?;
        let mut said = String::new();
        BufReader::new(child.stdout.take().context("no pipe")?).read_line(&mut said)?;
        Ok(Self { child, said })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `/api` answers through a proxy.
fn api_through(mut stream: impl Read + Write) -> Result<()> {
    stream.write_all(b"GET /api/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(text.starts_with("HTTP/1.1 200") && text.contains("\"versions\"") && text.contains("\"v1\""), "{text}");
    Ok(())
}

// [sig-cli] Kubectl client Proxy server should support proxy with --port 0 [Conformance]
fn proxy_port(lab: &Lab) -> Result<()> {
    let proxy = Proxy::start(lab, &["--port=0", "--disable-filter"])?;
    let address = proxy.said.trim().strip_prefix("Starting to serve on ").context(proxy.said.clone())?;
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    api_through(stream)
}

// [sig-cli] Kubectl client Proxy server should support --unix-socket=/path [Conformance]
fn proxy_socket(lab: &Lab) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("proxy.sock");
    let _proxy = Proxy::start(lab, &[&format!("--unix-socket={}", path.display())])?;
    let stream = UnixStream::connect(&path)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    api_through(stream)
}
