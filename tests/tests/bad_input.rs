//! Bad input: one clear error that names the file, line or field, and everything else goes on.

#[path = "../../control-plane/kinds/tests/cases/mod.rs"]
mod cases;

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use http::Method;
use keelson_tests::lab::Lab;
use keelson_tests::manifests;
use keelson_tests::suite::{self, Test};
use serde_json::{Value, json};

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
        ("pods_with_every_field_wrong_in_turn", wrong_pods),
        ("templates_with_every_field_wrong_in_turn", wrong_templates),
        ("odd_pods_that_are_good", odd_pods),
        ("wrong_pods_as_static_manifests_among_good_ones", wrong_static_pods),
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
    let error: Value = serde_json::from_str(&text).with_context(|| format!("no JSON: {text:?}"))?;
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

/// What a refusal says of each field.
fn causes(refusal: &Value) -> Vec<String> {
    let all = refusal["details"]["causes"].as_array().cloned().unwrap_or_default();
    let text = |cause: &Value, key: &str| cause[key].as_str().unwrap_or_default().to_owned();
    all.iter().map(|cause| format!("{}: {}", text(cause, "field"), text(cause, "message"))).collect()
}

fn wrong_pods(lab: &Lab) -> Result<()> {
    let space = lab.space("wrong-pods")?;
    let path = space.url("pods?fieldValidation=Strict");
    let wrong: Vec<_> = cases::wrong().into_iter().filter(|case| case.is_api).collect();
    println!("{} wrong pods", wrong.len());
    for case in &wrong {
        let refusal = lab.api()?.refused(&Method::POST, &path, Some(&case.pod), 422).context(case.shown.clone())?;
        let said = causes(&refusal);
        let missing = case.says.iter().find(|wanted| !said.contains(wanted));
        ensure!(missing.is_none(), "{}: {missing:?} is not in {said:?}", case.shown);
    }
    for case in cases::undecodable() {
        let refusal = lab.api()?.refused(&Method::POST, &path, Some(&case.pod), 400).context(case.shown.clone())?;
        names(&refusal.to_string().replace("\\\"", "\""), &case.says.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    // kubectl shows the same.
    for case in wrong.iter().skip(10).step_by(50) {
        let error = lab.kubectl_fails(&["create", "-n", &space.name, "-f", "-"], Some(&case.pod.to_string()))?;
        names(&error, &case.fields()).context(case.shown.clone())?;
    }
    goes_on(lab, "after-wrong-pods")
}

fn wrong_templates(lab: &Lab) -> Result<()> {
    let space = lab.space("wrong-templates")?;
    let path = format!("/apis/apps/v1/namespaces/{}/deployments", space.name);
    for case in cases::wrong().into_iter().filter(|case| case.is_template).step_by(5) {
        let mut template = case.pod;
        template["metadata"]["labels"] = json!({"a": "b"});
        let object = json!({
            "metadata": {"name": "d"},
            "spec": {"selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": template["metadata"], "spec": template["spec"]}},
        });
        let refusal = lab.api()?.refused(&Method::POST, &path, Some(&object), 422).context(case.shown.clone())?;
        let said = causes(&refusal);
        let missing = case.says.iter().find(|wanted| !said.contains(&format!("spec.template.{wanted}")));
        ensure!(missing.is_none(), "{}: {missing:?} is not in {said:?}", case.shown);
    }
    goes_on(lab, "after-wrong-templates")
}

fn odd_pods(lab: &Lab) -> Result<()> {
    let space = lab.space("odd-pods")?;
    let path = space.url("pods?dryRun=All&fieldValidation=Strict");
    for case in cases::valid().into_iter().filter(|case| case.is_api) {
        lab.api()?.create(&path, &case.pod).context(case.shown)?;
    }
    for (what, pod) in cases::huge() {
        lab.api()?.create(&path, &pod).context(what)?;
    }
    goes_on(lab, "after-odd-pods")
}

/// What a text says from a word on.
fn after<'a>(text: &'a str, word: &str, most: usize) -> Option<&'a str> {
    let found = &text[text.find(word)?..];
    let end = (0..=found.len().min(most)).rev().find(|end| found.is_char_boundary(*end))?;
    Some(&found[..end])
}

fn wrong_static_pods(lab: &Lab) -> Result<()> {
    let path = |name: &str| format!("/etc/kubernetes/manifests/{name}");
    let wrong: Vec<_> = cases::wrong().into_iter().filter(|case| case.is_static).step_by(5).collect();
    println!("{} wrong manifests", wrong.len());
    let good = |name: &str| manifests::shell(name, "Always", "sleep 10000");
    let hostile = [
        ("h-deep.yaml", format!("a: {}\n", "[".repeat(10_000)), "limit exceeded"),
        ("h-nul.yaml", "kind: \"Pod\0\"\n".to_owned(), "NUL"),
        ("h-twice.yaml", format!("{}kind: Pod\n", good("twice")), "given twice"),
        ("h-large.yaml", "#".repeat((10 << 20) + 1), "10485760"),
        ("h-name.yaml", good(&"n".repeat(100_000)), "no more than 253"),
        ("h-second.yaml", format!("{}---\nkind: Secret\napiVersion: v1\n", good("second")), "must be a v1 Pod"),
    ];
    let mut files: Vec<String> = Vec::new();
    let mut put = |name: String, text: &str| {
        files.push(name.clone());
        lab.put("node-1", &path(&name), text)
    };
    put("a-good.yaml".to_owned(), &good("first-good"))?;
    for (i, case) in wrong.iter().enumerate() {
        put(format!("w-{i}.yaml"), &serde_json::to_string_pretty(&case.pod)?)?;
    }
    for (name, text, _) in &hostile {
        put((*name).to_owned(), text)?;
    }
    put("z-good.yaml".to_owned(), &good("last-good"))?;
    let started = lab.until("the good ones run", 120, || {
        let running = |name: &str| lab.json(&["get", "pod", name]).is_ok_and(|pod| pod["status"]["phase"] == "Running");
        Ok(running("first-good-node-1") && running("last-good-node-1"))
    });
    let log = lab.log("node-1", "agent")?;
    for name in &files {
        lab.remove("node-1", &path(name))?;
    }
    started?;
    for (i, case) in wrong.iter().enumerate() {
        // Where an error has more lines than one, the first has the file; a long key is shortened.
        let told = after(&log, &format!("w-{i}.yaml:"), 200_000);
        let told = told.with_context(|| format!("nothing is said of {}", case.shown))?;
        let field = case.fields()[0].split('[').next().unwrap_or_default().to_owned();
        names(told, &[&field]).with_context(|| case.shown.clone())?;
    }
    for (name, _, part) in &hostile {
        let told = after(&log, &format!("{name}:"), 10_000).with_context(|| format!("nothing is said of {name}"))?;
        names(told, &[part])?;
    }
    goes_on(lab, "after-wrong-static-pods")
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
