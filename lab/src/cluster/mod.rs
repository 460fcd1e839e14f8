//! Labs: making, describing and removing them.

pub mod config;
pub mod down;
pub mod fabric;
pub mod kubectl;
pub mod node;
pub mod plan;
pub mod power;
pub mod status;
pub mod store;
pub mod up;

use std::path::PathBuf;

use crate::fsx::FsError;
use crate::images::ImageError;
use crate::machine::MachineError;
use crate::machine::control::ControlError;
use crate::net::NetError;

/// Why a lab could not be made, asked or removed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file or mount.
    #[error(transparent)]
    File(#[from] FsError),
    /// The images.
    #[error(transparent)]
    Images(#[from] ImageError),
    /// A machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A machine's supervisor.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Links and routes.
    #[error(transparent)]
    Net(#[from] NetError),
    /// `lab.json` is not ours.
    #[error("{} is not a lab's record: {source}; remove its folder when nothing of it runs", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// Somebody else is at it. Retryable.
    #[error("another command is changing the lab `{0}` at this moment: wait for it to end")]
    Busy(String),
    /// No such lab.
    #[error("there is no lab `{0}`: `./dev up` makes it")]
    Absent(String),
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
    /// The lab's network has no life of its own.
    #[error("`{0}` is the lab's network and cannot be switched off alone: `./dev down` ends all of it")]
    Switch(String),
    /// A machine that was killed is still there.
    #[error("process {pid} of {machine} does not end; what keeps it shows `cat /proc/{pid}/stack`")]
    Undead {
        /// The machine.
        machine: String,
        /// Its PID 1 on the host.
        pid: i32,
    },
    /// The lab's network does not run.
    #[error("the network of the lab `{0}` does not run: `./dev up` repairs it")]
    NoSwitch(String),
    /// The name cannot be a lab's.
    #[error("a lab cannot be called {0:?}: lower-case letters, digits and `-`, at most 40")]
    Name(String),
    /// Too many or no nodes.
    #[error("a lab has 1 to {max} nodes, not {asked}", max = plan::MAX_NODES)]
    Nodes {
        /// How many were asked for.
        asked: u8,
    },
    /// Not root.
    #[error("this needs root: namespaces, mounts and cgroups are made (try `sudo ./dev …`)")]
    NotRoot,
    /// A program was not built.
    #[error("the program `{name}` is not in {folders}: build it with `cargo build --release` or use ./dev")]
    NoProgram {
        /// Which program.
        name: String,
        /// Where it was looked for.
        folders: String,
    },
    /// No network number is free.
    #[error("no network of 10.89.0.0/16 is free on this machine: end a lab or a route there")]
    NoNetwork,
    /// A command of the way up failed.
    #[error("`{command}` failed ({status}): {output}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// What it said.
        output: String,
    },
    /// Something did not come up in time.
    #[error("{what} did not happen within {seconds} s; {hint}")]
    Late {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
        /// What is known about it.
        hint: String,
    },
    /// A service ends again and again.
    #[error("{service} on {machine} keeps failing ({ended}); its last words:\n{lines}\nall of it: {}", log.display())]
    Failing {
        /// The service.
        service: String,
        /// Its machine.
        machine: String,
        /// How it ended last.
        ended: String,
        /// Its last lines.
        lines: String,
        /// Its log.
        log: PathBuf,
    },
    /// There is no kubectl.
    #[error("no kubectl of version 1.34 or newer was found on PATH or in {}: ./dev gets one", .0.display())]
    NoKubectl(PathBuf),
    /// Something of the lab could not be removed.
    #[error("not everything of the lab `{lab}` could be removed:\n{problems}")]
    Leftovers {
        /// The lab.
        lab: String,
        /// One line each.
        problems: String,
    },
}
