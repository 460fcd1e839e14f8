//! Bad input: one clear error that names the file, line or field, and everything else goes on.

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::Lab;
use keelson_tests::manifests;
use keelson_tests::suite::{self, Test};

fn main() -> ExitCode {
    let tests: &[Test] = &[
        ("a_manifest_with_a_wrong_type", wrong_type),
        ("a_manifest_with_an_unknown_field", unknown_field),
        ("a_manifest_with_a_5_mb_annotation", huge_annotation),
        ("an_invalid_name_and_a_missing_selector", invalid_values),
        ("a_garbled_node_yaml", garbled_node),
        ("a_garbled_proxy_yaml", garbled_proxy),
        ("a_cni_conflist_with_a_wrong_type", wrong_cni),
        ("a_garbled_static_manifest_among_good_ones", garbled_manifest),
    ];
    suite::main("bad-input", 1, tests)
}

fn names(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "the error does not name {part:?}:\n{}", &text[..text.len().min(3000)]);
    }
    Ok(())
}

/// The cluster goes on: the sample answers and a pod can be made.
fn goes_on(lab: &Lab, space: &str) -> Result<()> {
    let space = lab.space(space)?;
    space.apply(&manifests::shell("fine", "Never", "echo fine"))?;
    ensure!(space.output("fine")? == "fine\n");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let recent = u64::try_from(now.as_millis())?.saturating_sub(10_000);
    let status = lab.status()?;
    for machine in status["machines"].as_array().context("no machines")? {
        for service in machine["services"].as_array().context("no services")? {
            let exits = service["exits"].as_array().cloned().unwrap_or_default();
            let crashed = exits.iter().any(|exit| exit["asked"] == false && exit["at_ms"].as_u64() >= Some(recent));
            ensure!(service["state"] == "running" && !crashed, "{service}");
        }
    }
    Ok(())
}

fn wrong_type(lab: &Lab) -> Result<()> {
    let manifest = manifests::servers("web", 1, &[]).replace("replicas: 1", "replicas: three");
    let error = lab.kubectl_fails(&["apply", "-f", "-"], Some(&manifest))?;
    names(&error, &["Deployment", "replicas"])?;
    let error = lab.kubectl_fails(&["apply", "--validate=false", "-f", "-"], Some(&manifest))?;
    names(&error, &["replicas"])?;
    goes_on(lab, "after-wrong-type")
}

fn unknown_field(lab: &Lab) -> Result<()> {
    let manifest = manifests::servers("web", 1, &[]).replace("replicas: 1", "replicas: 1\n  replicaz: 2");
    let error = lab.kubectl_fails(&["apply", "-f", "-"], Some(&manifest))?;
    names(&error, &["unknown field \"spec.replicaz\""])?;
    let text = lab.kubectl_with(&["apply", "--validate=warn", "--dry-run=server", "-f", "-"], &manifest)?;
    names(&text, &["web created"])?;
    goes_on(lab, "after-unknown")
}

fn huge_annotation(lab: &Lab) -> Result<()> {
    let annotation = "a".repeat(5 << 20);
    let manifest =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: huge\n  annotations:\n    big: {annotation}\n");
    let error = lab.kubectl_fails(&["create", "-f", "-"], Some(&manifest))?;
    ensure!(
        error.contains("Too long") || error.contains("too large") || error.contains("too long"),
        "{}",
        &error[..error.len().min(2000)]
    );
    let annotation = "a".repeat(300 << 10);
    let manifest =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: big\n  annotations:\n    big: {annotation}\n");
    let error = lab.kubectl_fails(&["create", "-f", "-"], Some(&manifest))?;
    names(&error, &["metadata.annotations", "262144"])?;
    goes_on(lab, "after-huge")
}

fn invalid_values(lab: &Lab) -> Result<()> {
    let manifest = manifests::servers("Web_1", 1, &[]);
    let error = lab.kubectl_fails(&["create", "-f", "-"], Some(&manifest))?;
    names(&error, &["metadata.name", "Web_1", "RFC 1123"])?;
    let manifest =
        manifests::servers("web", 1, &[]).replace("      app: web\n  template", "      app: other\n  template");
    let error = lab.kubectl_fails(&["create", "-f", "-"], Some(&manifest))?;
    names(&error, &["spec.template.metadata.labels", "selector"])?;
    goes_on(lab, "after-invalid")
}

/// Runs a program that must refuse its configuration: what it said.
fn refuses(program: &std::path::Path, config: &std::path::Path) -> Result<String> {
    let mut child = Command::new(program)
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    for _ in 0..50 {
        if child.try_wait()?.is_some() {
            let output = child.wait_with_output()?;
            ensure!(!output.status.success(), "it took the configuration");
            return Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned());
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    child.kill()?;
    anyhow::bail!("it runs with a configuration that is none")
}

fn garbled_node(lab: &Lab) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("node.yaml");
    std::fs::write(
        &file,
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: many\nsyncFrequencyy: 1m\n---\napiVersion: keelson.dev/v1alpha1\nkind: NodeConfig\nnodeName: 7\nnetwork:\n  mode: sometimes\n",
    )?;
    let error = refuses(&lab.program("agent"), &file)?;
    // All mistakes at once, each with its place.
    names(&error, &["node.yaml:3", "maxPods", "node.yaml:4", "syncFrequencyy", "node.yaml:10", "network.mode"])?;
    std::fs::write(&file, "kind: KubeletConfiguration\napiVersion: [\n")?;
    names(&refuses(&lab.program("agent"), &file)?, &["node.yaml:"])?;
    names(&refuses(&lab.program("agent"), &folder.path().join("none.yaml"))?, &["none.yaml"])?;
    goes_on(lab, "after-node-yaml")
}

fn garbled_proxy(lab: &Lab) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("proxy.yaml");
    std::fs::write(
        &file,
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: magic\nclusterCidr: 10.0.0.0/8\n",
    )?;
    names(&refuses(&lab.program("dataplane"), &file)?, &["proxy.yaml:3", "mode", "proxy.yaml:4", "clusterCidr"])
}

fn wrong_cni(lab: &Lab) -> Result<()> {
    let plugin = lab.folder()?.join("bridge-by-hand");
    let _ = std::fs::remove_file(&plugin);
    std::os::unix::fs::symlink(lab.program("keelson-cni"), &plugin)?;
    let plugin = plugin.with_file_name("bridge");
    let _ = std::fs::remove_file(&plugin);
    std::os::unix::fs::symlink(lab.program("keelson-cni"), &plugin)?;
    let mut child = Command::new(&plugin)
        .envs([
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "test"),
            ("CNI_NETNS", "/proc/self/ns/net"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let config = r#"{"cniVersion":"1.0.0","name":"x","type":"bridge","mtu":"big","ipam":{"type":"host-local"}}"#;
    child.stdin.take().context("no pipe")?.write_all(config.as_bytes())?;
    let output = child.wait_with_output()?;
    std::fs::remove_file(&plugin)?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(!output.status.success(), "it took {config}");
    let error: serde_json::Value = serde_json::from_str(&text).with_context(|| format!("no JSON: {text:?}"))?;
    ensure!(error["cniVersion"] == "1.0.0" && error["code"].is_u64(), "{error}");
    names(&error.to_string(), &["mtu"])?;
    // A bad list in the node's folder, before ours by name: pods that are to come say why they do not; when it is gone
    // again they start.
    let list = "/etc/cni/net.d/00-bad.conflist";
    lab.put("node-1", list, r#"{"cniVersion":"1.0.0","name":"bad","plugins":[{"type":"bridge","bridge":7}]}"#)?;
    let space = lab.space("bad-cni")?;
    space.apply(&manifests::shell("held", "Never", "echo fine"))?;
    let told = lab.until("an event names the field", 40, || {
        let events = space.kubectl(&["get", "events"])?;
        Ok(events.contains("FailedCreatePodSandBox") && events.contains("bridge"))
    });
    lab.remove("node-1", list)?;
    told?;
    ensure!(space.output("held")? == "fine\n");
    Ok(())
}

fn garbled_manifest(lab: &Lab) -> Result<()> {
    let path = |name: &str| format!("/etc/kubernetes/manifests/{name}");
    let good = manifests::shell("good", "Always", "sleep 10000");
    let bad = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: bad\nspec:\n  containers: 7\n";
    lab.put("node-1", &path("a-bad.yaml"), bad)?;
    lab.put("node-1", &path("b-bomb.yaml"), &bomb())?;
    lab.put("node-1", &path("c-good.yaml"), &good)?;
    let started = lab.until("the good one runs", 60, || {
        let pod = lab.json(&["get", "pod", "good-node-1"])?;
        Ok(pod["status"]["phase"] == "Running")
    });
    let log = lab.log("node-1", "agent")?;
    for name in ["a-bad.yaml", "b-bomb.yaml", "c-good.yaml"] {
        lab.remove("node-1", &path(name))?;
    }
    started?;
    names(&log, &["a-bad.yaml:6", "spec.containers", "b-bomb.yaml"])?;
    goes_on(lab, "after-manifest")
}

/// Nine levels of nine aliases each.
fn bomb() -> String {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let below = vec![format!("*a{}", level - 1); 9].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    text
}
