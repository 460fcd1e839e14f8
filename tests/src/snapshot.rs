//! What a lab could leave behind on a machine, written down as lines that can be compared.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

/// With this set, only differences that name a lab count: other people work on the machine at the same time.
const NOISY: &str = "KEELSON_TEST_NOISY";
/// Folders whose entries are compared: where programs of a node would write if they could.
const FOLDERS: &[&str] = &[
    "/",
    "/etc",
    "/etc/cni",
    "/etc/containerd",
    "/opt",
    "/run",
    "/run/netns",
    "/run/containerd",
    "/tmp",
    "/var/lib",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log",
    "/var/log/pods",
    "/var/log/containers",
    "/dev/shm",
    "/usr/local/bin",
];
/// Kernel settings that a node agent changes and that are not per namespace.
const SETTINGS: &[&str] = &[
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/hostname",
    "kernel/keys/root_maxkeys",
    "vm/overcommit_memory",
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "net/netfilter/nf_conntrack_max",
];

/// The machine at one moment.
#[derive(Debug)]
pub struct Snapshot(BTreeSet<String>);

impl Snapshot {
    /// Looks at everything.
    pub fn take() -> Result<Self> {
        let mut lines = BTreeSet::new();
        processes(&mut lines)?;
        for line in fs::read_to_string("/proc/self/mountinfo")?.lines() {
            // Without the numbers, which say nothing about what is mounted.
            lines.insert(format!("mount {}", line.splitn(4, ' ').last().unwrap_or_default()));
        }
        for (kind, program, arguments) in [
            ("link", "ip", &["-o", "link"][..]),
            ("address", "ip", &["-o", "address"]),
            ("route", "ip", &["route", "show", "table", "all"]),
            ("route6", "ip", &["-6", "route", "show", "table", "all"]),
            ("rule", "ip", &["rule"]),
            ("nft", "nft", &["list", "tables"]),
        ] {
            let output = Command::new(program).args(arguments).output()?;
            lines.extend(String::from_utf8_lossy(&output.stdout).lines().map(|line| format!("{kind} {}", line.trim())));
        }
        cgroups(&mut lines);
        for folder in FOLDERS {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                lines.insert(format!("file {}", entry.path().display()));
            }
        }
        for setting in SETTINGS {
            if let Ok(value) = fs::read_to_string(Path::new("/proc/sys").join(setting)) {
                lines.insert(format!("setting {setting} = {}", value.trim()));
            }
        }
        Ok(Self(lines))
    }

    /// What is here and was not in `before`, and the other way round.
    pub fn differences(&self, before: &Self) -> Vec<String> {
        let noisy = std::env::var_os(NOISY).is_some();
        let more = self.0.difference(&before.0).map(|line| format!("+ {line}"));
        let less = before.0.difference(&self.0).map(|line| format!("- {line}"));
        more.chain(less).filter(|line| !noisy || line.contains("test-lab")).collect()
    }
}

/// Processes by command line (their pids change), and every namespace any process is in. Kernel threads come and go.
fn processes(lines: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let folder = entry.path();
        if entry.file_name().to_string_lossy().parse::<u32>().is_err() {
            continue;
        }
        let command = fs::read(folder.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.trim().is_empty() {
            continue;
        }
        lines.insert(format!("process {command}"));
        for kind in ["net", "mnt", "pid", "uts", "ipc"] {
            if let Ok(namespace) = fs::read_link(folder.join("ns").join(kind)) {
                lines.insert(format!("namespace {} of {command}", namespace.display()));
            }
        }
    }
    Ok(())
}

fn cgroups(lines: &mut BTreeSet<String>) {
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        lines.insert(format!("cgroup {}", folder.display()));
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        folders.extend(
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
    }
}
