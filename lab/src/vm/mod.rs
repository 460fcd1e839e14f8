//! A cluster on virtual machines: guests in QEMU with systemd, cgroup v2 and kernels of their own (docs/vm.md).
//!
//! Invariants:
//! - nothing of the host's network is touched: guests exchange frames over a multicast socket on the loopback device, and the host reaches
//!   them over virtio-serial alone ([`channel`]);
//! - what makes a machine a guest of the lab is in its initrd; its disk is a plain Debian machine, set up by `vagrant/provision.sh`;
//! - a base image never changes once it has its name; a machine is an overlay on it.

mod accel;
mod boxes;
mod bundle;
mod channel;
mod initrd;
mod orders;
mod plan;
mod power;
mod proxy;
mod qcow2;
mod qemu;
mod recipe;
mod report;
mod up;
mod wire;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::cluster::LabError;
use crate::fsx::FsError;

pub use orders::{Order, run};

/// A static busybox, for initrds.
const BUSYBOX: &str = "/bin/busybox";

/// Search path with the folders of administrators' programs, which are not on everybody's.
fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

/// Why something about guests failed.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// A file.
    #[error(transparent)]
    File(#[from] FsError),
    /// A part that namespaces' labs share: images, programs, kubectl.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A program is not installed.
    #[error("the program `{program}` is missing: `apt-get install {package}` or `./dev vm` brings it")]
    Missing {
        /// The program.
        program: &'static str,
        /// Its Debian package.
        package: &'static str,
    },
    /// A program could not be started.
    #[error("cannot run {program}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A program failed.
    #[error("`{command}` failed ({status}): {output}\n{hint}")]
    Command {
        /// What was run.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// Its last lines.
        output: String,
        /// What to look at.
        hint: &'static str,
    },
    /// Packages come from nowhere.
    #[error("/etc/apt names no mirror of Debian (an address that ends in /debian): guests are made of its packages")]
    NoMirror,
    /// An image without a kernel.
    #[error("{} holds no kernel: the package linux-image-cloud-amd64 has changed", .0.display())]
    NoKernel(PathBuf),
    /// A kernel without a module.
    #[error("the guest's kernel has no module {0}: the list in vm/initrd.rs does not fit it")]
    NoModule(String),
    /// The guest's end of the channel was not built.
    #[error(
        "the static program `lab-guest` was not built: use ./dev, or `cargo build -p keelson-lab --bin lab-guest` (in the checkout: its .cargo/config.toml links it statically)"
    )]
    NoGuest,
    /// QEMU has ended at once.
    #[error("the QEMU of {machine} has ended at once; {} may tell why", serial.display())]
    Died {
        /// The machine.
        machine: String,
        /// Its serial log.
        serial: PathBuf,
    },
    /// A killed QEMU is still there.
    #[error("process {pid} of {} does not end; `cat /proc/{pid}/stack` shows what keeps it", folder.display())]
    Undead {
        /// The machine's folder.
        folder: PathBuf,
        /// The process.
        pid: i32,
    },
    /// The guest does not answer. Retryable when it is booting.
    #[error("{machine} does not answer within {seconds} s: paused or stuck? {} has its last words", serial.display())]
    Silent {
        /// The machine.
        machine: String,
        /// How long.
        seconds: u64,
        /// Its serial log.
        serial: PathBuf,
    },
    /// No way to the guest's channel.
    #[error("cannot reach the channel of {}: {source}; `lab vm status` tells whether the machine runs", folder.display())]
    Channel {
        /// The machine's folder.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A session ended before its end.
    #[error("the connection to the guest was lost ({0}): it has rebooted or lost its power")]
    Lost(io::Error),
    /// The guest says no.
    #[error("the guest cannot do it: {0}")]
    Refused(String),
    /// This side's files.
    #[error("{0}")]
    Local(io::Error),
    /// QEMU's monitor.
    #[error("the monitor of {} does not do it: {source}; `lab vm status` tells whether the machine runs", folder.display())]
    Monitor {
        /// The machine's folder.
        folder: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A command in a guest failed.
    #[error("on {machine}, `{command}` ended with {code}: {output}")]
    InGuest {
        /// The machine.
        machine: String,
        /// The command.
        command: String,
        /// Its exit code.
        code: i32,
        /// What it said.
        output: String,
    },
    /// `vm.json` is not ours.
    #[error("{} is not a record of this program: {source}; remove its folder when nothing of it runs", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// No such lab.
    #[error("there is no lab of guests `{0}`: `lab vm up` makes it")]
    Absent(String),
    /// Machines without a cluster.
    #[error("the lab `{0}` has no cluster (it was made with --bare, or `up` did not get so far): `lab vm up` makes it")]
    NoCluster(String),
    /// No such machine.
    #[error("the lab `{lab}` has no machine `{machine}`; it has: {known}")]
    NoMachine {
        /// The lab.
        lab: String,
        /// What was asked for.
        machine: String,
        /// What there is.
        known: String,
    },
    /// Somebody else is at it. Retryable.
    #[error("another command is changing the lab `{0}` at this moment: wait for it to end")]
    Busy(String),
    /// Too many or no workers.
    #[error("a lab of guests has 1 to {max} workers, not {0}", max = plan::MAX_NODES)]
    Nodes(u8),
    /// Every number is taken.
    #[error("no number is free for another lab of guests: end one with `lab --name NAME vm down`")]
    NoNumber,
    /// The cluster did not come up.
    #[error("not every node is Ready: {known}; look at `{log}`")]
    NotReady {
        /// What is known.
        known: String,
        /// Where to look.
        log: String,
    },
}

impl VmError {
    fn no_qemu(source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::NotFound {
            return Self::Missing { program: qemu::PROGRAM, package: "qemu-system-x86" };
        }
        Self::Spawn { program: qemu::PROGRAM.to_owned(), source }
    }
}
