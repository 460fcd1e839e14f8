//! Pods of a stock kubelet: records as it writes them, taken over by the agent without a restart.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, ImageStatusRequest, LinuxContainerConfig,
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount, NamespaceMode, NamespaceOption, PodSandboxConfig,
    PodSandboxMetadata, RunPodSandboxRequest, StartContainerRequest,
};
use keelson_tests::lab::Lab;
use keelson_tests::{manifests, runtime};
use serde_json::{Value, json};

const NODE: &str = "node-1";
const IMAGE: &str = "busybox:1.28";
const CONFIG: &str = "/etc/keelson/node.yaml";
const ROOT: &str = "/var/lib/kubelet/pods";
/// In the form of a kubelet's hash of a manifest.
const STATIC_UID: &str = "5c2fd2b0d3d64fa1e3a1ff0c2b8a1d47";

/// kubelet's hash of a container since 1.31: FNV-1a over Go's dump of the JSON of image and name.
fn hash(name: &str, image: &str) -> String {
    let json = format!("{{\"image\":\"{image}\",\"name\":\"{name}\"}}");
    let numbers: Vec<String> = json.bytes().map(|byte| byte.to_string()).collect();
    let dump = format!("([]uint8)[{}]", numbers.join(" "));
    let hash = dump.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:x}")
}

fn strings(value: Value) -> Result<HashMap<String, String>> {
    Ok(serde_json::from_value(value)?)
}

/// A pod of which a kubelet has made a sandbox and a running container.
struct Made {
    namespace: String,
    name: String,
    uid: String,
    /// The pod's own annotations with those of its source.
    annotations: Value,
}

/// Makes it as kubelet does; the container's ID.
async fn make(lab: &Lab, pod: &Made, host_network: bool) -> Result<String> {
    let channel = runtime::containerd(lab, NODE).await?;
    let mut calls = RuntimeServiceClient::new(channel.clone());
    let named = ImageSpec { image: IMAGE.to_owned(), ..ImageSpec::default() };
    let request = ImageStatusRequest { image: Some(named), verbose: false };
    let image = ImageServiceClient::new(channel).image_status(request).await?.into_inner().image;
    let text = lab.node(NODE, &["cat", CONFIG])?;
    let group = text.lines().find_map(|line| line.strip_prefix("cgroupRoot: ")).unwrap_or_default().trim_matches('/');
    let Made { namespace, name, uid, annotations } = pod;
    let logs = format!("/var/log/pods/{namespace}_{name}_{uid}");
    let words = format!("{ROOT}/{uid}/containers/main/1b2c3d4e");
    let data = format!("{ROOT}/{uid}/volumes/kubernetes.io~empty-dir/data");
    let mains = format!("{ROOT}/{uid}/containers/main");
    lab.node(NODE, &["mkdir", "-p", &format!("{logs}/main"), &data, &mains])?;
    lab.put(NODE, &words, "")?;
    lab.put(NODE, &format!("{ROOT}/{uid}/etc-hosts"), "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n")?;
    lab.put(NODE, &format!("{data}/kept"), "written under the kubelet\n")?;
    let identity =
        json!({"io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": namespace, "io.kubernetes.pod.uid": uid});
    let mut labels = strings(identity.clone())?;
    labels.insert("app".into(), "kept".into());
    let network = if host_network { NamespaceMode::Node } else { NamespaceMode::Pod } as i32;
    let namespaces = NamespaceOption { network, pid: NamespaceMode::Container as i32, ..NamespaceOption::default() };
    let sandbox = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.clone(),
            uid: uid.clone(),
            namespace: namespace.clone(),
            attempt: 0,
        }),
        hostname: if host_network { String::new() } else { name.clone() },
        log_directory: logs,
        labels,
        annotations: strings(annotations.clone())?,
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: format!("/{group}/kubepods/besteffort/pod{uid}"),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces),
                ..Default::default()
            }),
            ..LinuxPodSandboxConfig::default()
        }),
        ..PodSandboxConfig::default()
    };
    let request = RunPodSandboxRequest { config: Some(sandbox.clone()), runtime_handler: String::new() };
    let pod_sandbox_id = calls.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id;
    let mut labels = strings(identity)?;
    labels.insert("io.kubernetes.container.name".into(), "main".into());
    let mount = |host_path: String, container_path: &str| Mount {
        host_path,
        container_path: container_path.to_owned(),
        ..Mount::default()
    };
    let container = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
        image: Some(ImageSpec {
            image: image.context("the image is not on the node")?.id,
            user_specified_image: IMAGE.to_owned(),
            ..ImageSpec::default()
        }),
        command: vec!["sleep".to_owned(), "100000".to_owned()],
        labels,
        annotations: strings(json!({
            "io.kubernetes.container.hash": hash("main", IMAGE),
            "io.kubernetes.container.restartCount": "0",
            "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "io.kubernetes.container.terminationMessagePolicy": "File",
            "io.kubernetes.pod.terminationGracePeriod": "1",
        }))?,
        mounts: vec![
            mount(data, "/data"),
            mount(format!("{ROOT}/{uid}/etc-hosts"), "/etc/hosts"),
            mount(words, "/dev/termination-log"),
        ],
        log_path: "main/0.log".to_owned(),
        linux: Some(LinuxContainerConfig::default()),
        ..ContainerConfig::default()
    };
    let request = CreateContainerRequest { pod_sandbox_id, config: Some(container), sandbox_config: Some(sandbox) };
    let container_id = calls.create_container(request).await?.into_inner().container_id;
    calls.start_container(StartContainerRequest { container_id: container_id.clone() }).await?;
    Ok(container_id)
}

/// A manifest whose container has a volume.
fn manifest(name: &str, more: &str) -> String {
    let shell = manifests::shell(name, "Always", "ignored")
        .replace("command: [\"sh\", \"-c\", \"ignored\"]", "command: [\"sleep\", \"100000\"]");
    let head = format!("spec:\n  volumes: [{{name: data, emptyDir: {{}}}}]\n{more}");
    shell.replace("spec:\n", &head) + "      volumeMounts: [{name: data, mountPath: /data}]\n"
}

fn fates(lab: &Lab) -> Result<HashMap<String, (String, String)>> {
    let text = lab.node(NODE, &["/opt/keelson/bin/agent", "adopt", "--dry-run", "--config", CONFIG, "-o", "json"])?;
    let answer: Value = serde_json::from_str(&text)?;
    ensure!(answer["unreadable"] == json!([]), "{answer:#}");
    let pods = answer["pods"].as_array().context("no pods")?;
    Ok(pods
        .iter()
        .map(|pod| {
            let text = |field: &str| pod[field].as_str().unwrap_or_default().to_owned();
            (format!("{} {}", text("pod"), text("uid")), (text("fate"), pod["reasons"].to_string()))
        })
        .collect())
}

pub fn kubelets_pods(lab: &Lab) -> Result<()> {
    let space = lab.space("adopted")?;
    let manifest_file = "/etc/kubernetes/manifests/kept.yaml";
    lab.service(NODE, "agent", "stop")?;
    let outcome = (|| {
        space.apply(&manifest("kept", &format!("  nodeName: {NODE}\n  automountServiceAccountToken: false\n")))?;
        space.apply(&manifest("edited", &format!("  nodeName: {NODE}\n  automountServiceAccountToken: false\n")))?;
        lab.put(NODE, manifest_file, &manifest("kept", "  hostNetwork: true\n"))?;
        let of = |name: &str| -> Result<Made> {
            let uid = space.json(&["get", "pod", name])?["metadata"]["uid"].as_str().context("no UID")?.to_owned();
            let annotations = json!({"kubernetes.io/config.seen": "2026-01-31T12:00:00.000000001Z", "kubernetes.io/config.source": "api"});
            Ok(Made { namespace: "adopted".into(), name: name.into(), uid, annotations })
        };
        let (kept, edited) = (of("kept")?, of("edited")?);
        let seen = jiff::Timestamp::now().to_string();
        let from_file = Made {
            namespace: "default".into(),
            name: format!("kept-{NODE}"),
            uid: STATIC_UID.into(),
            annotations: json!({"kubernetes.io/config.hash": STATIC_UID, "kubernetes.io/config.seen": seen, "kubernetes.io/config.source": "file"}),
        };
        let orphan = Made {
            namespace: "adopted".into(),
            name: "orphan".into(),
            uid: "0a0b0c0d-orphan".into(),
            annotations: json!({}),
        };
        let runner = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ids = runner.block_on(async {
            let mut ids = Vec::new();
            for (pod, host) in [(&kept, false), (&edited, false), (&from_file, true), (&orphan, true)] {
                ids.push(Box::pin(make(lab, pod, host)).await.with_context(|| pod.name.clone())?);
            }
            anyhow::Ok(ids)
        })?;
        space.kubectl(&["set", "image", "pod/edited", "main=keelson.dev/test-server:latest"])?;
        let before = super::tasks(lab)?;
        let fates = fates(lab)?;
        for (pod, fate, why) in [
            (&kept, "kept", "1 container runs on untouched"),
            (&edited, "restarts", "container main is restarted"),
            (&from_file, "kept", "1 container runs on untouched"),
            (&orphan, "ends", "no source names it"),
        ] {
            let key = format!("{}/{} {}", pod.namespace, pod.name, pod.uid);
            let (found, reasons) = fates.get(&key).with_context(|| format!("{key} is not in {fates:?}"))?;
            ensure!(found == fate && reasons.contains(why), "{key}: {found}, {reasons}");
        }
        ensure!(before == super::tasks(lab)?, "the dry run has changed something");
        Ok(ids)
    })();
    lab.service(NODE, "agent", "start")?;
    let ids: Vec<String> = outcome?;
    let runs = |what: &str, name: &str, namespace: &str, id: &str| {
        lab.until(what, 60, || {
            let pod = lab.json(&["get", "pod", name, "-n", namespace])?;
            let status = &pod["status"]["containerStatuses"][0];
            Ok(status["ready"] == true
                && status["restartCount"] == 0
                && status["containerID"] == format!("containerd://{id}"))
        })
    };
    runs("the kubelet's container is the pod's", "kept", "adopted", &ids[0])?;
    runs("the kubelet's static pod runs on", &format!("kept-{NODE}"), "default", &ids[2])?;
    let mirror = lab.json(&["get", "pod", &format!("kept-{NODE}")])?;
    ensure!(mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] == STATIC_UID, "{}", mirror["metadata"]);
    lab.until("the edited one runs its new image", 60, || {
        let pod = space.json(&["get", "pod", "edited"])?;
        Ok(pod["status"]["containerStatuses"][0]["restartCount"] == 1)
    })?;
    lab.until("the orphan is gone", 60, || {
        Ok(!lab.node(NODE, &["ctr", "-n", "k8s.io", "tasks", "ls"])?.contains(&ids[3]))
    })?;
    // What it wrote is there, a command runs in it, and the agent that comes next finds the same.
    ensure!(space.kubectl(&["exec", "kept", "--", "cat", "/data/kept"])? == "written under the kubelet\n");
    lab.service(NODE, "agent", "restart")?;
    runs("it runs on after a restart of the agent", "kept", "adopted", &ids[0])?;
    runs("so does the static pod", &format!("kept-{NODE}"), "default", &ids[2])?;
    // An edit makes it another pod.
    lab.put(NODE, manifest_file, &manifest("kept", "  hostNetwork: true\n  enableServiceLinks: false\n"))?;
    lab.until("the edited manifest takes its place", 60, || {
        let mirror = lab.json(&["get", "pod", &format!("kept-{NODE}")]).unwrap_or_default();
        let hash = &mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"];
        Ok(hash.is_string() && hash != STATIC_UID && mirror["status"]["containerStatuses"][0]["ready"] == true)
    })?;
    lab.remove(NODE, manifest_file)?;
    lab.until("it is gone with its manifest", 60, || Ok(!lab.kubectl(&["get", "pods"])?.contains("kept-")))?;
    ensure!(!lab.node(NODE, &["ls", ROOT])?.contains(STATIC_UID), "the folder of the static pod is left");
    Ok(())
}
