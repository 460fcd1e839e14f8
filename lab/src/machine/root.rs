//! The file system of a machine: a small tmpfs root with the host's programs, folders of its own on the standard paths,
//! and a fresh `/proc`, `/sys` (with the host's cgroup mounts) and `/run`.
//!
//! Invariants: nothing of the host is written to, no mount of the machine is seen on the host, and mounts made inside
//! are shared inside, as kubelet and containerd need it. Machine-wide kernel settings that are not per namespace are
//! read-only, so that a node under test cannot change those of the host.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, umount2};
use nix::unistd::{chdir, pivot_root};

use super::spec::MachineSpec;
use crate::fsx::{self, FsError};

/// What a machine takes from the host's `/etc`; the rest is its own.
const ETC: &[&str] = &[
    "alternatives",
    "ca-certificates",
    "debian_version",
    "ethertypes",
    "group",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "protocols",
    "services",
    "ssl",
    "timezone",
];
/// Links or folders at the top that programs are found by.
const PROGRAM_FOLDERS: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Settings below these are the kernel's, not a namespace's.
const SHARED_SETTINGS: &[&str] = &["kernel", "vm", "fs"];

/// Builds the root and makes it the root of this process. Runs as PID 1 of new mount, PID, network and UTS namespaces.
pub fn enter(spec: &MachineSpec) -> Result<(), FsError> {
    fsx::propagation(Path::new("/"), MsFlags::MS_PRIVATE)?;
    let root = spec.folder.join("root");
    fsx::create_dir(&root)?;
    nix::mount::mount(Some("machine"), &root, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
        .map_err(std::io::Error::from)
        .map_err(fsx::fail("mount", &root))?;
    programs(&root)?;
    etc(spec, &root)?;
    kernel_folders(&root)?;
    for (folder, mode) in [("root", 0o700), ("home", 0o755), ("mnt", 0o755), ("opt", 0o755), ("srv", 0o755)] {
        fsx::create_dir_mode(&root.join(folder), mode)?;
    }
    for bind in &spec.binds {
        let target = inside(&root, &bind.to);
        fsx::create_dir(&bind.from)?;
        fsx::bind(&bind.from, &target)?;
        if bind.read_only {
            fsx::remount_read_only(&target)?;
        }
    }
    for (name, target) in &spec.links {
        let name = inside(&root, name);
        if let Some(parent) = name.parent() {
            fsx::create_dir(parent)?;
        }
        fsx::remove_tree(&name)?;
        symlink(target, &name).map_err(fsx::fail("make link", &name))?;
    }
    switch(&root)?;
    fsx::propagation(Path::new("/"), MsFlags::MS_SHARED)
}

fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn programs(root: &Path) -> Result<(), FsError> {
    let usr = root.join("usr");
    fsx::bind(Path::new("/usr"), &usr)?;
    fsx::remount_read_only(&usr)?;
    for name in PROGRAM_FOLDERS {
        let host = Path::new("/").join(name);
        let Ok(data) = fs::symlink_metadata(&host) else {
            continue;
        };
        let target = root.join(name);
        if data.is_symlink() {
            let to = fs::read_link(&host).map_err(fsx::fail("read link", &host))?;
            symlink(to, &target).map_err(fsx::fail("make link", &target))?;
        } else {
            fsx::bind(&host, &target)?;
            fsx::remount_read_only(&target)?;
        }
    }
    Ok(())
}

fn etc(spec: &MachineSpec, root: &Path) -> Result<(), FsError> {
    let etc = root.join("etc");
    fsx::create_dir(&etc)?;
    for name in ETC {
        let from = Path::new("/etc").join(name);
        if fs::symlink_metadata(&from).is_ok() {
            fsx::copy_tree(&from, &etc.join(name))?;
        }
    }
    fsx::write(&etc.join("hostname"), &format!("{}\n", spec.hostname))?;
    let hosts = format!("127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\t{}\n", spec.hostname);
    fsx::write(&etc.join("hosts"), &hosts)?;
    // No name server: a lab has no way out, and a lookup shall fail at once instead of waiting for one.
    fsx::write(&etc.join("resolv.conf"), "# A lab machine has no name server.\n")?;
    let id = machine_id(&spec.folder);
    fsx::write(&etc.join("machine-id"), &format!("{id}\n"))
}

/// 32 hexadecimal digits that stay the same for a machine and differ between machines.
fn machine_id(folder: &Path) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(folder.as_os_str().as_encoded_bytes());
    digest.iter().take(16).fold(String::new(), |mut text, byte| {
        use std::fmt::Write;
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn kernel_folders(root: &Path) -> Result<(), FsError> {
    let proc = root.join("proc");
    fsx::mount_fs("proc", &proc, None)?;
    for name in SHARED_SETTINGS {
        let path = proc.join("sys").join(name);
        fsx::bind(&path, &path)?;
        fsx::remount_read_only(&path)?;
    }
    // A fresh sysfs shows the links of this network namespace; the cgroup mounts of the host come back on it.
    let sys = root.join("sys");
    fsx::mount_fs("sysfs", &sys, None)?;
    fsx::bind(Path::new("/sys/fs/cgroup"), &sys.join("fs/cgroup"))?;
    let dev = root.join("dev");
    fsx::bind(Path::new("/dev"), &dev)?;
    if dev.join("shm").is_dir() {
        fsx::mount_fs("tmpfs", &dev.join("shm"), Some("mode=1777"))?;
    }
    if dev.join("mqueue").is_dir() {
        fsx::mount_fs("mqueue", &dev.join("mqueue"), None)?;
    }
    let run = root.join("run");
    fsx::mount_fs("tmpfs", &run, Some("mode=755"))?;
    fsx::create_dir_mode(&run.join("lock"), 0o1777)
}

fn switch(root: &Path) -> Result<(), FsError> {
    let fail = |source: nix::errno::Errno| fsx::fail("change the root to", root)(source.into());
    chdir(root).map_err(fail)?;
    // The old root lands on top of the new one and is let go at once: no folder is needed for it.
    pivot_root(".", ".").map_err(fail)?;
    umount2(".", MntFlags::MNT_DETACH).map_err(fail)?;
    chdir("/").map_err(fail)
}
