//! Static pods from a web address.

use anyhow::{Result, ensure};
use keelson_tests::lab::Lab;
use keelson_tests::manifests;

use super::{containers, status};

const FOLDER: &str = "/etc/keelson/www";
const CONFIG: &str = "/etc/keelson/node.yaml";

fn manifest(image: &str) -> String {
    manifests::shell("fetched", "Always", "echo fetched; sleep 10000").replace("busybox:1.28", image)
}

fn image(lab: &Lab) -> Result<String> {
    let pod = lab.json(&["get", "pod", "fetched-node-1"])?;
    Ok(pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned())
}

/// The pods come, change and go with what the server gives; what it gives wrongly, or not at all, leaves them alone.
pub fn url(lab: &Lab) -> Result<()> {
    let space = lab.space("url")?;
    let server = manifests::shell("web", "Always", &format!("exec httpd -f -p 127.0.0.1:8099 -h {FOLDER}"));
    let server = server
        .replace("spec:\n", &format!("spec:\n  hostNetwork: true\n  volumes: [{{name: www, hostPath: {{path: {FOLDER}, type: DirectoryOrCreate}}}}]\n"))
        + &format!("      volumeMounts: [{{name: www, mountPath: {FOLDER}}}]\n");
    space.apply(&server)?;
    space.ready_pod("web")?;
    let add = "staticPodURL: http://127.0.0.1:8099/pods.yaml\\nhttpCheckFrequency: 1s";
    lab.node("node-1", &["sed", "-i", &format!("s|^staticPodPath: .*$|&\\n{add}|"), CONFIG])?;
    lab.service("node-1", "agent", "restart")?;
    let outcome = follow(lab);
    lab.node("node-1", &["sed", "-i", "/^staticPodURL:/d;/^httpCheckFrequency:/d", CONFIG])?;
    lab.service("node-1", "agent", "restart")?;
    lab.node("node-1", &["rm", "-rf", FOLDER])?;
    outcome?;
    lab.until("it is gone with its source", 60, || {
        Ok(!lab.kubectl(&["get", "pods"])?.contains("fetched-node-1") && containers(lab, "fetched-node-1")? == 0)
    })
}

fn follow(lab: &Lab) -> Result<()> {
    let file = &format!("{FOLDER}/pods.yaml");
    let ready = |what: &str, wanted: &str| {
        lab.wait(what, 60, || {
            let pod = lab.json(&["get", "pod", "fetched-node-1"])?;
            let found = status(&pod)["ready"] == true && image(lab)? == wanted;
            Ok(found.then(|| (pod["metadata"]["uid"].clone(), status(&pod)["containerID"].clone())))
        })
    };
    lab.put("node-1", file, &manifest("busybox:1.28"))?;
    let (_, first) = ready("the pod of the address runs and has its mirror", "busybox:1.28")?;
    let pod = lab.json(&["get", "pod", "fetched-node-1"])?;
    ensure!(pod["metadata"]["annotations"]["kubernetes.io/config.source"] == "http", "{}", pod["metadata"]);
    lab.put("node-1", file, "kind: {")?;
    let path = "jsonpath={.items[?(@.reason==\"InvalidStaticPodManifest\")].message}";
    lab.until("the mistake is told", 30, || {
        Ok(lab.kubectl(&["get", "events", "-A", "-o", path])?.contains("http://127.0.0.1:8099/pods.yaml:"))
    })?;
    lab.remove("node-1", file)?;
    std::thread::sleep(std::time::Duration::from_secs(3));
    ensure!(ready("the pod runs on", "busybox:1.28")?.1 == first, "the pod was touched");
    lab.put("node-1", file, &manifest("busybox:1.36"))?;
    lab.until("the old container is gone", 60, || {
        let pod = lab.json(&["get", "pod", "fetched-node-1"])?;
        Ok(status(&pod)["containerID"] != first)
    })?;
    ready("the changed pod takes its place", "busybox:1.36")?;
    lab.put("node-1", file, "")?;
    lab.until("an empty answer ends it", 60, || Ok(containers(lab, "fetched-node-1")? == 0))
}
