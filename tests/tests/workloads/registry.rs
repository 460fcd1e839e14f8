//! Pulls from a registry that wants credentials, and from one that stalls: Debian's `docker-registry` in the node's network.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::manifests;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{contains, events, status};

const ADDRESS: &str = "127.0.0.1:5000";
/// The password `secret` of `tester`, by bcrypt.
const HTPASSWD: &str = "tester:$2b$04$yFem53OLmdFsp/StDTLXTe8uMNiJTtxugVqPw6hgVPoDqaR2LMJQq\n";

/// A registry; it ends with the handle.
struct Registry {
    process: Child,
    _files: tempfile::TempDir,
}

impl Registry {
    fn start(lab: &Lab) -> Result<Self> {
        let program = lab.fetched(
            ".docker-registry/usr/bin/docker-registry",
            "KEELSON_DOCKER_REGISTRY",
            "Debian's docker-registry",
            "workloads",
        )?;
        let files = tempfile::tempdir()?;
        let path = |name: &str| files.path().join(name);
        std::fs::write(path("htpasswd"), HTPASSWD)?;
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: {ADDRESS}}}\nauth: {{htpasswd: {{realm: tests, path: {}}}}}\n",
            path("storage").display(),
            path("htpasswd").display()
        );
        std::fs::write(path("config.yml"), config)?;
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", lab.pid("node-1")?))
            .arg(program)
            .arg("serve")
            .arg(path("config.yml"));
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { process, _files: files })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.process.id().cast_signed()), signal)?)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Pushes busybox under a name of the registry, and forgets that name on the node.
fn push(lab: &Lab, image: &str) -> Result<()> {
    let ctr = |arguments: &[&str]| lab.node("node-1", &[&["ctr", "-n", "k8s.io", "images"], arguments].concat());
    ctr(&["tag", "--force", "docker.io/library/busybox:1.28", image])?;
    lab.wait("the registry takes the image", 30, || {
        ctr(&["push", "--plain-http", "--user", "tester:secret", image]).map(Some)
    })?;
    ctr(&["rm", image]).map(drop)
}

/// A pod with an image that is pulled always, and secrets for it.
fn pod(name: &str, image: &str, secret: Option<&str>) -> String {
    let secrets = secret
        .map(|secret| format!("spec:\n  imagePullSecrets: [{{name: {secret}}}]\n"))
        .unwrap_or_else(|| "spec:\n".into());
    manifests::shell(name, "Never", "echo ran")
        .replace("spec:\n", &secrets)
        .replace("image: busybox:1.28\n", &format!("image: {image}\n      imagePullPolicy: Always\n"))
}

fn refused(space: &Space<'_>, name: &str) -> Result<()> {
    space.lab.until(&format!("{name} is refused by the registry"), 60, || {
        let waiting = status(&space.json(&["get", "pod", name])?)["state"]["waiting"].clone();
        let told = waiting["message"].as_str().unwrap_or_default().contains("401 Unauthorized")
            || waiting["message"].as_str().unwrap_or_default().contains("authorization failed");
        Ok(told && ["ErrImagePull", "ImagePullBackOff"].contains(&waiting["reason"].as_str().unwrap_or_default()))
    })
}

fn secret(space: &Space<'_>, name: &str, password: &str) -> Result<()> {
    let (server, password) = (format!("--docker-server={ADDRESS}"), format!("--docker-password={password}"));
    space
        .kubectl(&["create", "secret", "docker-registry", name, &server, "--docker-username=tester", &password])
        .map(drop)
}

pub fn registry(lab: &Lab) -> Result<()> {
    let space = lab.space("registry")?;
    let registry = Registry::start(lab)?;
    let hosts = lab.folder()?.join("node-1/etc/containerd/certs.d").join(ADDRESS);
    std::fs::create_dir_all(&hosts)?;
    std::fs::write(hosts.join("hosts.toml"), format!("server = \"http://{ADDRESS}\"\n"))?;
    let outcome = pulls(lab, &space, &registry);
    let node_file = lab.folder()?.join("node-1/var/lib/kubelet/config.json");
    let _ = std::fs::remove_file(&node_file);
    outcome
}

fn pulls(lab: &Lab, space: &Space<'_>, registry: &Registry) -> Result<()> {
    let image = format!("{ADDRESS}/private/app:1");
    push(lab, &image)?;
    secret(space, "right", "secret")?;
    secret(space, "wrong", "guess")?;
    space.apply(&pod("nameless", &image, None))?;
    space.apply(&pod("guessing", &image, Some("wrong")))?;
    space.apply(&pod("unsure", &image, Some("missing")))?;
    space.apply(&pod("known", &image, Some("right")))?;
    ensure!(space.output("known")? == "ran\n");
    for name in ["nameless", "guessing", "unsure"] {
        refused(space, name)?;
    }
    contains(
        &events(space)?,
        &["FailedToRetrieveImagePullSecret: Unable to retrieve some image pull secrets (missing)"],
    )?;
    space.kubectl(&["delete", "pod", "guessing", "unsure", "--timeout=60s"])?;

    // The node's own credentials do for pods without any; the one that waits gets them with its next try.
    let auths = serde_json::json!({"auths": {(ADDRESS): {"username": "tester", "password": "secret"}}});
    let file = lab.folder()?.join("node-1/var/lib/kubelet/config.json");
    std::fs::write(&file, auths.to_string())?;
    space.apply(&pod("by-node", &image, None))?;
    ensure!(space.output("by-node")? == "ran\n");
    ensure!(space.output("nameless")? == "ran\n");

    stalls(lab, space, registry, &file)
}

/// A registry that takes connections and says nothing holds back nobody who needs no pull, and not the end of who waits for it.
fn stalls(lab: &Lab, space: &Space<'_>, registry: &Registry, _: &Path) -> Result<()> {
    let image = format!("{ADDRESS}/private/app:2");
    push(lab, &image)?;
    registry.signal(Signal::SIGSTOP)?;
    let outcome = (|| {
        for name in ["slow", "given-up"] {
            space.apply(&pod(name, &image, None))?;
        }
        lab.until("both wait for the pull", 30, || {
            Ok(events(space)?.matches("Pulling: Pulling image \"127.0.0.1:5000/private/app:2\"").count() >= 2)
        })?;
        space.apply(&manifests::shell("other", "Never", "echo ran"))?;
        ensure!(space.output("other")? == "ran\n");
        space
            .kubectl(&["delete", "pod", "given-up", "--timeout=30s"])
            .context("a pod that waits for a pull does not go")?;
        let told = lab.node("node-1", &["/opt/keelson/bin/agent", "explain", "slow", "-n", &space.name])?;
        ensure!(told.contains("waits   image of main, since "), "{told}");
        lab.until("the pull is told to go on", 30, || {
            Ok(events(space)?.contains(&format!("Pulling: Still pulling image \"{image}\" after 10s")))
        })
    })();
    registry.signal(Signal::SIGCONT)?;
    outcome?;
    ensure!(space.output("slow")? == "ran\n");
    Ok(())
}
