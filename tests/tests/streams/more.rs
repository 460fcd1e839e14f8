//! cp, debug, ephemeral containers, proxies, rights.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, run};

use super::{full, pods};

/// A tree with links, empty files, an executable and names that need quoting.
pub fn tree(root: &Path, files: usize) -> Result<()> {
    const PER_FOLDER: usize = 100;
    for at in 0..files {
        let folder = root.join(format!("folder {}", at / PER_FOLDER));
        if at % PER_FOLDER == 0 {
            fs::create_dir_all(&folder)?;
        }
        fs::write(folder.join(format!("file-{at}.txt")), format!("{at}\n").repeat(at % 50))?;
    }
    Ok(())
}

pub fn copy(lab: &Lab) -> Result<()> {
    let space = pods(lab, "copy")?;
    let files = if full() { 10_000 } else { 1_000 };
    let folder = tempfile::tempdir()?;
    let (there, back) = (folder.path().join("tree"), folder.path().join("back"));
    tree(&there, files)?;
    let begun = Instant::now();
    space.kubectl(&["cp", there.to_str().context("path")?, "box:/tmp/tree"])?;
    let out = begun.elapsed();
    let counted = space.kubectl(&["exec", "box", "--", "sh", "-c", "find /tmp/tree -type f | wc -l"])?;
    ensure!(counted.trim() == files.to_string(), "{counted} files arrived instead of {files}");
    let begun = Instant::now();
    space.kubectl(&["cp", "box:/tmp/tree", back.to_str().context("path")?])?;
    println!("cp: {files} files there in {:.1} s, back in {:.1} s", out.as_secs_f64(), begun.elapsed().as_secs_f64());
    run(Command::new("diff").arg("-r").arg(&there).arg(&back), None).map(drop)
}

pub fn debug(lab: &Lab) -> Result<()> {
    let space = pods(lab, "debug")?;
    // An ephemeral container that sees the target's processes.
    let target = ["debug", "web", "--image=busybox:1.28", "--target=server", "--container=look", "--profile=general"];
    space.kubectl(&[&target[..], &["--", "sleep", "100000"]].concat())?;
    lab.until("the ephemeral container runs", 60, || {
        let path = "jsonpath={.status.ephemeralContainerStatuses[0].state.running.startedAt}";
        Ok(!space.kubectl(&["get", "pod", "web", "-o", path])?.is_empty())
    })?;
    let processes = space.kubectl(&["exec", "web", "-c", "look", "--", "ps"])?;
    ensure!(processes.contains("test-server"), "the target's processes are not seen:\n{processes}");
    // Attached, with its output. Three ways in which containerd 1.6 loses output, with any agent. The pause before: it forwards the
    // input before it has added the output. The pause after: the end of one output ends the input, and without `stdinOnce`, which
    // kubectl does not set here, the end of the input ends the other output, read or not. Open input: the same.
    let copy = ["debug", "box", "-i", "--quiet", "--image=busybox:1.28", "--copy-to=twin", "--container=dbg"];
    let mut command = lab.command();
    command.args(["kubectl", "-n", &space.name]).args(copy).args([
        "--",
        "sh",
        "-c",
        "read a; sleep 1; echo got $a; sleep 1",
    ]);
    let output = super::remote::finish_open(&mut command, b"it\n")?;
    ensure!(String::from_utf8_lossy(&output.stdout).contains("got it"), "{output:?}");
    let twin = space.json(&["get", "pod", "twin"])?;
    ensure!(twin["spec"]["containers"].as_array().map(Vec::len) == Some(2), "{twin}");
    // On a node: its files and its network.
    space.kubectl(&["debug", "node/node-1", "--image=busybox:1.28", "--profile=general", "--", "sleep", "100000"])?;
    let pod = space.kubectl(&["get", "pods", "-o", "name"])?;
    let pod = pod.lines().find(|name| name.contains("node-debugger")).context("no node debugger")?.to_owned();
    space.kubectl(&["wait", "--for=condition=Ready", &pod, "--timeout=60s"])?;
    let host = space.kubectl(&["exec", &pod, "--", "ls", "/host/opt/keelson/bin"])?;
    ensure!(host.contains("agent"), "{host}");
    Ok(())
}

pub fn ephemeral_rules(lab: &Lab) -> Result<()> {
    let space = pods(lab, "ephemeral")?;
    let path = format!("/api/v1/namespaces/{}/pods/box/ephemeralcontainers", space.name);
    let patch = |body: &str| {
        ["patch", "pod", "box", "--subresource=ephemeralcontainers", "--type=strategic", "-p", body]
            .map(ToOwned::to_owned)
    };
    let all = |body: &str| patch(body).to_vec();
    let apply = |body: &str| {
        let arguments = all(body);
        space.kubectl(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let refused = |body: &str, part: &str| -> Result<()> {
        let said = apply(body).err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(said.contains(part), "{part:?} is not in {said:?}");
        Ok(())
    };
    let with = |extra: &str| {
        format!(
            r#"{{"spec":{{"ephemeralContainers":[{{"name":"e","image":"busybox:1.28","command":["sleep","9"]{extra}}}]}}}}"#
        )
    };
    refused(&with(r#","ports":[{"containerPort":80}]"#), "spec.ephemeralContainers[0].ports: Forbidden")?;
    refused(&with(r#","resources":{"limits":{"cpu":"1"}}"#), "spec.ephemeralContainers[0].resources: Forbidden")?;
    refused(
        &with(r#","livenessProbe":{"exec":{"command":["a"]}}"#),
        "spec.ephemeralContainers[0].livenessProbe: Forbidden",
    )?;
    refused(
        &with(r#","targetContainerName":"nobody""#),
        "spec.ephemeralContainers[0].targetContainerName: Not found: \"nobody\"",
    )?;
    refused(&with("").replace("\"e\"", "\"main\""), "spec.ephemeralContainers[0].name: Duplicate value: \"main\"")?;
    apply(&with(""))?;
    let read = lab.kubectl(&["get", "--raw", &path])?;
    ensure!(read.contains("\"ephemeralContainers\"") && read.contains("\"kind\":\"Pod\""), "{read}");
    refused(&with(r#","image":"nginx:1.14.2""#).replacen(r#""image":"busybox:1.28","#, "", 1), "may not be changed")?;
    // Not through the pod itself.
    let said = space.kubectl_fails(&["patch", "pod", "box", "-p", &with("").replace("\"e\"", "\"f\"")], None)?;
    ensure!(said.contains("pod updates may not"), "{said}");
    Ok(())
}

pub fn proxy(lab: &Lab) -> Result<()> {
    let space = pods(lab, "proxy")?;
    space.kubectl(&["expose", "pod", "web", "--port=80", "--target-port=8080", "--name=front"])?;
    space.endpoints("front", 1)?;
    let base = format!("/api/v1/namespaces/{}", space.name);
    let get = |path: &str| lab.kubectl(&["get", "--raw", path]);
    for place in [
        "pods/web",
        "pods/web:8080",
        "pods/http:web:8080",
        "services/front",
        "services/front:80",
        "services/http:front:80",
    ] {
        let report = get(&format!("{base}/{place}/proxy/a%20b/c?x=1&y=2"))?;
        let report: serde_json::Value = serde_json::from_str(&report).with_context(|| format!("{place}: {report}"))?;
        ensure!(
            report["pod"] == "web" && report["query"] == "x=1&y=2" && report["path"] == "/a%20b/c",
            "{place}: {report}"
        );
        let headers = report["headers"].to_string().to_lowercase();
        ensure!(!headers.contains("authorization") && headers.contains("x-forwarded-uri"), "{headers}");
    }
    let large = get(&format!("{base}/pods/web/proxy/bytes?n=5000000"))?;
    ensure!(large.len() == 5_000_000, "{}", large.len());
    ensure!(get("/api/v1/nodes/node-1/proxy/healthz")? == "ok");
    ensure!(get("/api/v1/nodes/node-1:10250/proxy/pods")?.contains("PodList"));
    let fails = |path: String, part: &str| -> Result<()> {
        let said = lab.kubectl_fails(&["get", "--raw", &path], None)?;
        ensure!(said.contains(part), "{path}: {part:?} is not in {said}");
        Ok(())
    };
    fails(format!("{base}/services/front:81/proxy/"), "no service port 81 found for service")?;
    fails(format!("{base}/services/nobody/proxy/"), "services \"nobody\" not found")?;
    fails(format!("{base}/pods/web:1/proxy/"), "error trying to reach service")?;
    fails(format!("{base}/pods/ftp:web:1/proxy/"), "invalid pod request")
}

const ROLES: &str = r#"apiVersion: v1
kind: ServiceAccount
metadata: {name: reader}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: streams-reader}
rules:
  - {apiGroups: [""], resources: [pods, nodes], verbs: [get, list]}
  - {apiGroups: [""], resources: [pods/exec, pods/attach, pods/portforward, pods/proxy, nodes/proxy], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: streams-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: streams-reader}
subjects:
  - {kind: ServiceAccount, name: reader, namespace: rights}
"#;

pub fn rights(lab: &Lab) -> Result<()> {
    let space = pods(lab, "rights")?;
    space.apply(ROLES)?;
    let user = "--as=system:serviceaccount:rights:reader";
    // Who may only read may not run anything, by whatever method.
    let said = space.kubectl_fails(&[user, "exec", "box", "--", "true"], None)?;
    ensure!(said.contains("cannot create resource \"pods/exec\""), "{said}");
    let said = space.kubectl_fails(&[user, "port-forward", "web", ":8080"], None)?;
    ensure!(said.contains("cannot create resource \"pods/portforward\""), "{said}");
    ensure!(lab.kubectl(&[user, "get", "--raw", "/api/v1/nodes/node-1/proxy/healthz"])? == "ok");
    for path in
        ["exec/rights/box/main?command=id&output=1", "/run/rights/box/main", "%65xec/rights/box/main?command=id"]
    {
        let path = format!("/api/v1/nodes/node-1/proxy/{path}");
        let said = lab.kubectl_fails(&[user, "get", "--raw", &path], None)?;
        ensure!(said.contains("cannot create resource \"nodes/proxy\""), "{path}: {said}");
    }
    let read = lab.kubectl(&[user, "get", "--raw", "/api/v1/namespaces/rights/pods/web/proxy/healthz"])?;
    ensure!(read.trim() == "ok", "{read}");
    for name in ["clusterrolebinding/streams-reader", "clusterrole/streams-reader"] {
        lab.kubectl(&["delete", name])?;
    }
    Ok(())
}
