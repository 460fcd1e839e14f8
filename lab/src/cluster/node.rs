//! Bringing up one node: its files, containerd, images, agent and dataplane.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::plan::{self, Plan};
use super::up::{Wait, wait_for};
use super::{LabError, config};
use crate::fsx;
use crate::images::BuiltImage;
use crate::machine;
use crate::machine::control::{self, Request};

/// How long containerd may take to answer.
const CONTAINERD_LIMIT: Duration = Duration::from_secs(30);
/// Bit of `CAP_SYS_RESOURCE` in a capability set.
const CAP_SYS_RESOURCE: u64 = 1 << 24;

/// Writes the files that do not need the API server.
pub fn write_files(plan: &Plan, index: u8) -> Result<(), LabError> {
    let folder = plan.machine_folder(&plan::node_name(index));
    let etc = folder.join("etc");
    for (path, mode) in [
        ("cni/net.d", 0o755),
        ("containerd/certs.d/_default", 0o755),
        ("keelson", 0o755),
        ("kubernetes/manifests", 0o755),
        ("kubernetes/pki", 0o755),
    ] {
        fsx::create_dir_mode(&etc.join(path), mode)?;
    }
    fsx::write_atomic(&etc.join("containerd/config.toml"), &config::containerd(may_lower_oom_score()))?;
    fsx::write_atomic(&etc.join("containerd/certs.d/_default/hosts.toml"), &config::registries())?;
    fsx::write_atomic(&etc.join("keelson/node.yaml"), &config::node(plan, index))?;
    fsx::write_atomic(&etc.join("keelson/proxy.yaml"), &config::proxy(index))?;
    Ok(())
}

fn may_lower_oom_score() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .is_some_and(|set| set & CAP_SYS_RESOURCE != 0)
}

/// Makes the kubeconfigs of the node's programs, and gives it the cluster's CA.
pub fn write_credentials(plan: &Plan, index: u8) -> Result<(), LabError> {
    let name = plan::node_name(index);
    let etc = plan.machine_folder(&name).join("etc/kubernetes");
    let ca = plan.data_dir().join("pki/ca.crt");
    fsx::install(&ca, &etc.join("pki/ca.crt"))?;
    let node_user = format!("system:node:{name}");
    for (user, group, file) in [
        (node_user.as_str(), "system:nodes", "kubelet.kubeconfig"),
        ("system:kube-proxy", "system:node-proxier", "dataplane.kubeconfig"),
    ] {
        let out = etc.join(file);
        if out.exists() {
            continue;
        }
        let mut command = Command::new(plan.folder.join("bin/control-plane"));
        command
            .arg("kubeconfig")
            .arg("--data-dir")
            .arg(plan.data_dir())
            .args(["--user", user, "--group", group, "--server", &plan.server()])
            .arg("--out")
            .arg(&out);
        checked(&mut command)?;
    }
    Ok(())
}

/// Runs a command to its end; its output matters only when it fails.
pub fn checked(command: &mut Command) -> Result<String, LabError> {
    let line = {
        let mut words = vec![command.get_program().to_string_lossy().into_owned()];
        words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
        words.join(" ")
    };
    let output = command.output().map_err(|error| LabError::Command {
        command: line.clone(),
        status: "not run".to_owned(),
        output: error.to_string(),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(LabError::Command {
        command: line,
        status: output.status.to_string(),
        output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// Starts a service of a machine, unless it runs.
pub fn start(plan: &Plan, machine: &str, service: &str) -> Result<(), LabError> {
    let run = plan.machine_folder(machine).join("run");
    control::ask(&run, &Request::Start { service: service.to_owned() })?;
    Ok(())
}

/// Starts containerd and the registry that it pulls from, and waits until it answers.
pub fn start_containerd(plan: &Plan, name: &str) -> Result<(), LabError> {
    start(plan, name, "registry")?;
    start(plan, name, "containerd")?;
    let folder = plan.machine_folder(name);
    let wait = Wait {
        what: format!("containerd of {name} answers"),
        limit: CONTAINERD_LIMIT,
        watch: vec![(name.to_owned(), "containerd".to_owned())],
    };
    wait_for(plan, &wait, || {
        let process = machine::running(&folder)?;
        UnixStream::connect(process.proc().join("root/run/containerd/containerd.sock")).ok()
    })?;
    Ok(())
}

/// Loads the images that the node does not have yet in this form; gives how many were loaded.
pub fn load_images(plan: &Plan, name: &str, images: &[BuiltImage]) -> Result<usize, LabError> {
    let mark = plan.machine_folder(name).join("var/lib/keelson-images");
    fsx::create_dir(&mark)?;
    let present = in_machine(plan, name, &["ctr", "-n", "k8s.io", "images", "ls", "-q"])?;
    let wanted: Vec<&BuiltImage> = images
        .iter()
        .filter(|image| {
            let all_there = image.names.iter().all(|wanted| present.lines().any(|line| line == wanted));
            !all_there || !mark.join(image.archive.file_name().unwrap_or_default()).exists()
        })
        .collect();
    // Side by side: an import mostly waits for the disk.
    let results: Vec<Result<(), LabError>> = std::thread::scope(|scope| {
        let imports: Vec<_> = wanted.iter().map(|image| scope.spawn(|| import(plan, name, image))).collect();
        imports.into_iter().map(|import| import.join().unwrap_or(Ok(()))).collect()
    });
    results.into_iter().collect::<Result<(), LabError>>()?;
    for image in &wanted {
        fsx::write(&mark.join(image.archive.file_name().unwrap_or_default()), "")?;
    }
    Ok(wanted.len())
}

/// Imports one image. An import that a killed `up` left running may be at the same names: then once more, after it.
fn import(plan: &Plan, name: &str, image: &BuiltImage) -> Result<(), LabError> {
    const TRIES: u32 = 5;
    let archive = Path::new("/opt/keelson/images").join(image.archive.file_name().unwrap_or_default());
    let command = ["ctr", "-n", "k8s.io", "images", "import", &archive.to_string_lossy()];
    for _ in 1..TRIES {
        match in_machine(plan, name, &command) {
            Err(LabError::Command { output, .. }) if output.contains("already exists") => {
                std::thread::sleep(Duration::from_secs(1));
            }
            other => return other.map(drop),
        }
    }
    in_machine(plan, name, &command).map(drop)
}

/// Runs a command in a machine, through a process of its own: only one without threads can enter.
pub fn in_machine(plan: &Plan, machine: &str, command: &[&str]) -> Result<String, LabError> {
    let own: PathBuf = std::env::current_exe().map_err(machine::MachineError::Start)?;
    let mut line = Command::new(own);
    line.arg("enter").arg("--folder").arg(plan.machine_folder(machine)).arg("--").args(command);
    checked(&mut line)
}
