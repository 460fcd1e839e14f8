//! What a node holds for its pods, in its container runtime and in its kernel: sandboxes, containers, addresses, mounts,
//! cgroups, links, processes. What is there for no pod is a leak, what is there twice is a double start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::{
    Container, ContainerState, ListContainersRequest, ListPodSandboxRequest, PodSandbox, PodSandboxState,
};

use crate::lab::Lab;

/// Upstream's label of a pod's UID on everything in the runtime.
const UID: &str = "io.kubernetes.pod.uid";
/// Upstream's label of a container's name.
const NAME: &str = "io.kubernetes.container.name";
/// The folder of the addresses that are handed out.
const ADDRESSES: &str = "var/lib/cni/networks/keelson";

/// What one node holds.
#[derive(Debug, Default)]
pub struct Inventory {
    /// Its node.
    pub node: String,
    /// Sandboxes: ID to pod UID and whether it is ready.
    pub sandboxes: BTreeMap<String, (String, bool)>,
    /// Running containers: ID to pod UID and name.
    pub running: BTreeMap<String, (String, String)>,
    /// Containers that do not run: ID to pod UID.
    pub ended: BTreeMap<String, String>,
    /// Addresses that are taken, and the sandbox each was given to.
    pub addresses: BTreeMap<String, String>,
    /// Everything that belongs to a pod by the UID in its name: mounts, cgroups, folders.
    pub of_pods: BTreeSet<String>,
    /// Mounts and network namespaces that belong to a container or sandbox by the ID in their name.
    pub of_containers: BTreeSet<String>,
    /// Links on the pods' bridge.
    pub links: usize,
    /// Shims, the runtime's processes that each hold one pod.
    pub shims: usize,
}

impl Inventory {
    /// Looks at everything of a node.
    pub fn of(lab: &Lab, node: &str) -> Result<Self> {
        let pid = lab.pid(node)?;
        let (sandboxes, containers) = runtime(pid)?;
        let mut found = Self { node: node.to_owned(), ..Self::default() };
        for sandbox in sandboxes {
            let ready = sandbox.state == PodSandboxState::SandboxReady as i32;
            let uid = sandbox.labels.get(UID).cloned().unwrap_or_default();
            found.sandboxes.insert(sandbox.id, (uid, ready));
        }
        for container in containers {
            let uid = container.labels.get(UID).cloned().unwrap_or_default();
            if container.state == ContainerState::ContainerRunning as i32 {
                let name = container.labels.get(NAME).cloned().unwrap_or_default();
                found.running.insert(container.id, (uid, name));
            } else {
                found.ended.insert(container.id, uid);
            }
        }
        let folder = lab.folder()?.join(node);
        found.addresses = addresses(&folder.join(ADDRESSES))?;
        found.of_pods = folders_of_pods(&folder.join("var/lib/kubelet/pods"))?;
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).context("the node's mounts")?;
        for mount in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
            if mount.contains("/kubelet/pods/") {
                found.of_pods.insert(format!("mount {mount}"));
            } else if mount.contains("/io.containerd.") {
                found.of_containers.insert(format!("mount {mount}"));
            }
        }
        let number = lab.status()?["number"].as_i64().context("the lab has no number")?;
        cgroups(&format!("keelson-{}-{number}/{node}", lab.name), &mut found);
        let links = lab.node(node, &["ip", "-o", "link", "show", "type", "veth"])?;
        // The node's own link to the lab is no part of a bridge of its own.
        found.links = links.lines().filter(|line| line.contains(" master ")).count();
        found.shims = shims(pid)?;
        Ok(found)
    }

    /// What is here for no pod of these, or more often than once: nothing on a healthy node that has settled.
    pub fn faults(&self, pods: &BTreeSet<String>) -> Vec<String> {
        let mut faults = Vec::new();
        let mut say = |what: String| faults.push(format!("{}: {what}", self.node));
        let mut seen = BTreeSet::new();
        for (id, (uid, name)) in &self.running {
            if !pods.contains(uid) {
                say(format!("container {id} ({name}) runs for no pod"));
            } else if !seen.insert((uid, name)) {
                say(format!("{name} of pod {uid} runs twice"));
            }
        }
        for (id, uid) in self.ended.iter().filter(|(_, uid)| !pods.contains(*uid)) {
            say(format!("container {id} of no pod ({uid}) is left"));
        }
        let mut ready = BTreeSet::new();
        for (id, (uid, is_ready)) in &self.sandboxes {
            if !pods.contains(uid) {
                say(format!("sandbox {id} of no pod ({uid}) is left"));
            } else if *is_ready && !ready.insert(uid) {
                say(format!("pod {uid} has two sandboxes"));
            }
        }
        for uid in pods.iter().filter(|uid| !ready.contains(uid)) {
            say(format!("pod {uid} has no sandbox"));
        }
        let live: BTreeSet<&String> =
            self.sandboxes.iter().filter(|(_, (_, ready))| *ready).map(|(id, _)| id).collect();
        for (address, sandbox) in self.addresses.iter().filter(|(_, sandbox)| !live.contains(sandbox)) {
            say(format!("{address} is kept for {sandbox}, which is gone"));
        }
        for sandbox in live.iter().filter(|id| !self.addresses.values().any(|holder| holder == **id)) {
            say(format!("sandbox {sandbox} has no address"));
        }
        for thing in self.of_pods.iter().filter(|thing| !pods.iter().any(|uid| thing.contains(uid.as_str()))) {
            say(format!("left of a pod: {thing}"));
        }
        let ids: Vec<&String> = self.sandboxes.keys().chain(self.running.keys()).chain(self.ended.keys()).collect();
        for thing in self.of_containers.iter().filter(|thing| !ids.iter().any(|id| thing.contains(id.as_str()))) {
            say(format!("left of a container: {thing}"));
        }
        for (what, count) in [("links on the bridge", self.links), ("shims", self.shims)] {
            if count != live.len() {
                say(format!("{count} {what} for {} sandboxes", live.len()));
            }
        }
        faults
    }
}

/// Lists what the runtime has, over its socket, which the host sees through the machine's process 1.
fn runtime(pid: i32) -> Result<(Vec<PodSandbox>, Vec<Container>)> {
    let socket = format!("/proc/{pid}/root/run/containerd/containerd.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        let mut calls = RuntimeServiceClient::new(crate::runtime::connect(socket).await?);
        let sandboxes = calls.list_pod_sandbox(ListPodSandboxRequest::default()).await?.into_inner().items;
        let containers = calls.list_containers(ListContainersRequest::default()).await?.into_inner().containers;
        anyhow::Ok((sandboxes, containers))
    })
}

/// Files of the address keeper: each is named after an address and begins with the sandbox's ID.
fn addresses(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.parse::<std::net::IpAddr>().is_ok() {
            // One that is being given back at this moment is gone.
            let Ok(text) = fs::read_to_string(entry.path()) else { continue };
            found.insert(name, text.lines().next().unwrap_or_default().trim().to_owned());
        }
    }
    Ok(found)
}

fn folders_of_pods(folder: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    Ok(entries.flatten().map(|entry| format!("folder {}", entry.path().display())).collect())
}

/// Cgroups of pods and of their containers, in every hierarchy.
fn cgroups(group: &str, found: &mut Inventory) {
    let roots = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut folders: Vec<PathBuf> =
        roots.chain([PathBuf::from("/sys/fs/cgroup")]).map(|root| root.join(group)).collect();
    while let Some(folder) = folders.pop() {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = format!("cgroup {}", folder.display());
        if name.starts_with("pod") && name.len() > 30 {
            found.of_pods.insert(path);
        } else if name.len() == 64 {
            found.of_containers.insert(path);
        }
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        folders.extend(
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
    }
}

/// Counts the shims in the machine of process 1 `pid` that hold a process. One without is containerd's own leftover: it was killed, or its
/// client was, between the start of the shim and that of the container.
fn shims(pid: i32) -> Result<usize> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace(&pid.to_string()).context("the machine's process 1 is gone")?;
    let mut count = 0;
    for entry in fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(|first: char| first.is_ascii_digit()) {
            continue;
        }
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let program = String::from_utf8_lossy(&command).split('\0').next().unwrap_or_default().to_owned();
        let shim = program.ends_with("containerd-shim-runc-v2") && namespace(&name).as_ref() == Some(&own);
        if shim && has_children(&entry.path()) {
            count += 1;
        }
    }
    Ok(count)
}

fn has_children(process: &Path) -> bool {
    let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    threads
        .into_iter()
        .any(|thread| fs::read_to_string(thread.path().join("children")).is_ok_and(|pids| !pids.trim().is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "11111111-2222-3333-4444-555555555555";

    fn healthy() -> Inventory {
        let text = |text: &str| text.to_owned();
        Inventory {
            node: text("node-1"),
            sandboxes: BTreeMap::from([(text("s1"), (text(POD), true))]),
            running: BTreeMap::from([(text("c1"), (text(POD), text("main")))]),
            ended: BTreeMap::new(),
            addresses: BTreeMap::from([(text("10.244.0.2"), text("s1"))]),
            of_pods: BTreeSet::from([format!("mount /var/lib/kubelet/pods/{POD}/volumes/x")]),
            of_containers: BTreeSet::from([text(
                "mount /run/containerd/io.containerd.runtime.v2.task/k8s.io/c1/rootfs",
            )]),
            links: 1,
            shims: 1,
        }
    }

    #[test]
    fn a_settled_node_has_no_faults() {
        assert_eq!(healthy().faults(&BTreeSet::from([POD.to_owned()])), Vec::<String>::new());
    }

    #[test]
    fn everything_of_a_deleted_pod_is_told() {
        assert_eq!(healthy().faults(&BTreeSet::new()).len(), 3);
    }

    #[test]
    fn doubles_and_lost_things_are_told() {
        let pods = BTreeSet::from([POD.to_owned()]);
        let mut node = healthy();
        node.running.insert("c2".to_owned(), (POD.to_owned(), "main".to_owned()));
        node.sandboxes.insert("s2".to_owned(), (POD.to_owned(), true));
        // Two of everything, and the second sandbox has neither address nor link nor shim.
        let faults = node.faults(&pods);
        assert!(faults.iter().any(|fault| fault.contains("runs twice")), "{faults:?}");
        assert!(faults.iter().any(|fault| fault.contains("two sandboxes")), "{faults:?}");
        assert!(faults.iter().any(|fault| fault.contains("s2 has no address")), "{faults:?}");
        assert!(faults.iter().any(|fault| fault.contains("1 links")), "{faults:?}");
        let mut node = healthy();
        node.addresses.insert("10.244.0.3".to_owned(), "s0".to_owned());
        node.of_containers.insert("mount /run/containerd/io.containerd.grpc.v1.cri/sandboxes/s0/shm".to_owned());
        assert_eq!(node.faults(&pods).len(), 2);
    }
}
