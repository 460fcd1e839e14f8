//! Units, provisioning, Vagrant.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use keelson_tests::lab::{Lab, run};
use keelson_tests::suite::Skip;

use super::{NODES, shell};

/// `vagrant validate` says that the Vagrantfile is right for both providers' machines.
pub fn vagrantfile(_: &Lab) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vagrant");
    if Command::new("vagrant").arg("--version").output().is_err() {
        return Err(Skip(
            "there is no vagrant on this machine (Debian's packages vagrant and vagrant-libvirt)".to_owned(),
        )
        .into());
    }
    let home = tempfile::tempdir()?;
    for nodes in ["1", "3"] {
        let mut command = Command::new("vagrant");
        command.args(["validate", "--ignore-provider"]).current_dir(&folder).env("KEELSON_NODES", nodes);
        // Nothing of it shall stay: neither in the checkout nor in the home folder.
        command.env("VAGRANT_HOME", home.path().join("home")).env("VAGRANT_DOTFILE_PATH", home.path().join("dot"));
        let said = run(&mut command, None)?;
        ensure!(said.contains("successfully"), "{said}");
    }
    Ok(())
}

/// Each distribution with its kernel and runtime, cgroup v2, units that run and none that failed.
pub fn ready(lab: &Lab) -> Result<()> {
    for (node, release, kernel, runtime) in
        [("node-1", "bookworm", "6.1.", "containerd://1.6."), ("node-2", "trixie", "6.12.", "containerd://1.7.")]
    {
        ensure!(super::ready(lab, node)? == "True");
        let info = lab.json(&["get", "node", node])?["status"]["nodeInfo"].clone();
        let said = |key: &str| info[key].as_str().unwrap_or_default().to_owned();
        ensure!(said("osImage").contains(release), "{info}");
        ensure!(said("kernelVersion").starts_with(kernel), "{info}");
        ensure!(said("containerRuntimeVersion").starts_with(runtime), "{info}");
        let tree = shell(lab, node, "stat -f -c %T /sys/fs/cgroup")?;
        ensure!(tree.trim() == "cgroup2fs", "{node} has {tree}");
        let active = "systemctl is-active containerd keelson-agent keelson-dataplane";
        lab.until("the services are active", 60, || Ok(shell(lab, node, active)? == "active\n".repeat(3)))?;
        let failed = shell(lab, node, "systemctl --failed --no-legend --plain")?;
        ensure!(failed.trim().is_empty(), "{node}: {failed}");
        let boot = shell(lab, node, "systemd-analyze time")?;
        println!("\n  {node}: {}", boot.lines().next().unwrap_or_default());
    }
    let status = shell(
        lab,
        "control-plane",
        "systemctl show -p ActiveState,Type,WatchdogUSec,StatusText keelson-control-plane",
    )?;
    ensure!(status.contains("ActiveState=active") && status.contains("StatusText=running"), "{status}");
    Ok(())
}

/// `provision.sh node` a second time changes nothing and restarts nothing.
pub fn again(lab: &Lab) -> Result<()> {
    let pids = "systemctl show -P MainPID containerd keelson-agent keelson-dataplane";
    for node in NODES {
        let before = shell(lab, node, pids)?;
        let bundle = "/opt/keelson-bundle";
        let address = "$(ip -4 -o addr show eth0 | awk '{print $4}' | cut -d/ -f1)";
        let script = format!(
            "{bundle}/provision.sh node --from {bundle} --credentials {bundle}/credentials --name {node} --address {address}"
        );
        shell(lab, node, &script)?;
        let after = shell(lab, node, pids)?;
        ensure!(before == after, "{node}: {before:?} became {after:?}");
        ensure!(ready_now(lab, node)?, "{node} is not Ready");
    }
    Ok(())
}

/// `lab vm ssh` from a terminal gives a shell with a terminal of its own, of the same size, and the shell's exit code.
pub fn terminal(lab: &Lab) -> Result<()> {
    let order = format!("{:?} --name {} vm ssh node-1; echo code $?", lab.program("lab"), lab.name);
    // `script` is the terminal here. The keys are pressed once and the line stays open, as with a person.
    let keys = "(echo 'tty; stty size; exit 5'; sleep 20) | timeout 120 script -qec";
    let said = run(
        Command::new("bash").args([
            "-c",
            &format!("{keys} \"$0\" /dev/null"),
            &format!("stty rows 33 cols 111; {order}"),
        ]),
        None,
    )?;
    for part in ["/dev/pts/", "33 111", "code 5"] {
        ensure!(said.contains(part), "no {part:?} in {said:?}");
    }
    Ok(())
}

fn ready_now(lab: &Lab, node: &str) -> Result<bool> {
    Ok(super::ready(lab, node)? == "True")
}
