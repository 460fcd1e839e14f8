//! `lab vm …`: what a person can ask for.

use std::io::IsTerminal;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;

use clap::{Args, Subcommand};

use super::bundle::Bundle;
use super::plan::{self, CONTROL_PLANE};
use super::recipe::Os;
use super::up::{self, VmLab, Wish};
use super::{VmError, boxes, channel, power, report};
use crate::cluster::store::Places;

/// `lab vm …`
#[derive(Subcommand)]
pub enum Order {
    /// Make a cluster on virtual machines, or make it whole again.
    Up(UpOrder),
    /// End the machines and remove them.
    Down,
    /// Tell which machines run.
    Status {
        /// For programs: `json`, with the services of each machine that runs.
        #[arg(short, long)]
        output: Option<StatusFormat>,
    },
    /// Make the base images.
    Box {
        /// Which; both without one.
        #[arg(long, value_delimiter = ',')]
        os: Vec<Os>,
        /// With the packages that the mirror has now, instead of one that is there.
        #[arg(long)]
        fresh: bool,
    },
    /// Run a command in a machine.
    Run {
        /// The machine.
        machine: String,
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// A shell in a machine.
    Ssh {
        /// The machine.
        machine: String,
    },
    /// Copy a file or a folder into a machine.
    Copy {
        /// The machine.
        machine: String,
        /// File or folder here.
        from: PathBuf,
        /// Folder there.
        to: String,
    },
    /// Lead a port of this host to an address of a machine, until this command is ended.
    Forward {
        /// The machine.
        machine: String,
        /// `ADDRESS:PORT` as the machine sees it.
        address: String,
        /// Where to listen.
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
    },
    /// The newest kubectl, with the lab's kubeconfig.
    Kubectl {
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Cut a machine's power.
    Stop {
        /// The machine.
        machine: String,
    },
    /// Boot a machine that is off.
    Start {
        /// The machine.
        machine: String,
    },
    /// Freeze a machine.
    Pause {
        /// The machine.
        machine: String,
    },
    /// Let a frozen machine go on.
    Resume {
        /// The machine.
        machine: String,
    },
    /// Write the folder from which vagrant/provision.sh makes machines.
    Bundle {
        /// The folder [default: `bundle` beside the boxes].
        to: Option<PathBuf>,
    },
}

/// What a status is printed for.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum StatusFormat {
    /// The same form as `lab status -o json`, as far as guests have it.
    Json,
}

/// `lab vm up`
#[derive(Args)]
pub struct UpOrder {
    /// How many workers, beside the control plane [default: 1].
    #[arg(long)]
    nodes: Option<u8>,
    /// debian12 or debian13; several are taken in turn.
    #[arg(long, value_delimiter = ',')]
    os: Vec<Os>,
    /// The first worker runs the control plane too, instead of a machine of its own.
    #[arg(long)]
    compact: bool,
    /// Only the machines, without a cluster in them.
    #[arg(long)]
    bare: bool,
    /// One more flag of the control plane, `--name=value`; may be repeated.
    #[arg(long, allow_hyphen_values = true)]
    control_plane_arg: Vec<String>,
}

/// Does it; gives the exit code.
pub fn run(places: &Places, name: &str, order: Order) -> Result<i32, VmError> {
    let lab = || VmLab::open(places, name);
    match order {
        Order::Up(UpOrder { nodes, os, compact, bare, control_plane_arg }) => {
            up::run(places, name, &Wish { nodes, os, compact, bare, control_plane_args: control_plane_arg })?;
        }
        Order::Down => {
            let gone = up::down(places, name)?;
            println!("{}", if gone { "The machines are gone." } else { "There is no such lab: nothing to do." });
        }
        Order::Status { output: None } => return status(&lab()?),
        Order::Status { output: Some(StatusFormat::Json) } => {
            println!("{:#}", report::report(&lab()?)?);
        }
        Order::Box { os, fresh } => make_boxes(places, &os, fresh)?,
        Order::Run { machine, command } => return channel::attach(&lab()?.machine(&machine)?.1, &command),
        Order::Ssh { machine } => return shell(&lab()?.machine(&machine)?.1),
        Order::Copy { machine, from, to } => copy(&lab()?.machine(&machine)?.1, &from, &to)?,
        Order::Forward { machine, address, listen } => {
            let folder = lab()?.machine(&machine)?.1;
            let listener = TcpListener::bind(listen).map_err(VmError::Local)?;
            println!("{}", listener.local_addr().map_err(VmError::Local)?);
            channel::forward(listener, &folder, &address);
            loop {
                std::thread::park();
            }
        }
        Order::Kubectl { arguments } => return kubectl(places, &lab()?, &arguments),
        Order::Stop { machine } => {
            let was_on = power::off(&lab()?.machine(&machine)?.1)?;
            println!("{machine} {}", if was_on { "is off" } else { "was off already" });
        }
        Order::Start { machine } => {
            up::boot(places, &lab()?, &machine)?;
            println!("{machine} runs");
        }
        Order::Pause { machine } => power::pause(&lab()?.machine(&machine)?.1, true)?,
        Order::Resume { machine } => power::pause(&lab()?.machine(&machine)?.1, false)?,
        Order::Bundle { to } => {
            let to = to.unwrap_or_else(|| plan::root(&places.labs).join("bundle"));
            Bundle::gather(places, &plan::root(&places.labs).join("programs"))?.write(&to)?;
            println!("{}", to.display());
        }
    }
    Ok(0)
}

fn make_boxes(places: &Places, list: &[Os], fresh: bool) -> Result<(), VmError> {
    let list = if list.is_empty() { &Os::ALL } else { list };
    for (os, base, took) in boxes::get_all(&plan::root(&places.labs), list, fresh)? {
        let (made, size, took) = (if base.made { "made" } else { "found made" }, base.size() >> 20, took.as_secs_f64());
        println!("{os} {made}: {} ({size} MiB, {took:.1} s)", base.folder.display());
    }
    Ok(())
}

/// Each machine with its state; 1 when one does not run.
fn status(lab: &VmLab) -> Result<i32, VmError> {
    let mut all_run = true;
    for machine in lab.record.machines() {
        let folder = lab.machine_folder(&machine.name);
        let process = power::running(&folder);
        let state = if process.is_some() { power::state(&folder)? } else { "off".to_owned() };
        all_run &= state == "running";
        let memory =
            process.and_then(|process| resident(process.pid)).map_or_else(String::new, |mib| format!("{mib} MiB"));
        println!("{:<14} {:<9} {:<12} {:<8} {memory}", machine.name, machine.os.to_string(), machine.address, state);
    }
    Ok(i32::from(!all_run))
}

/// Memory of the host that a process has, in MiB.
fn resident(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib >> 10)
}

fn copy(folder: &std::path::Path, from: &std::path::Path, to: &str) -> Result<(), VmError> {
    let name = from.file_name().map(PathBuf::from).unwrap_or_default();
    channel::unpack(folder, to, |archive| {
        if from.is_dir() { archive.append_dir_all(&name, from) } else { archive.append_path_with_name(from, &name) }
    })
}

fn kubectl(places: &Places, lab: &VmLab, arguments: &[String]) -> Result<i32, VmError> {
    if !lab.kubeconfig().exists() {
        return Err(VmError::NoCluster(lab.name.clone()));
    }
    let status = lab.kubectl(places)?.command().args(arguments).status();
    let status = status.map_err(|source| VmError::Spawn { program: format!("kubectl for {CONTROL_PLANE}"), source })?;
    Ok(status.code().unwrap_or(1))
}

/// A shell with a terminal of its own: `script` makes it in the guest, the host's passes every key on.
fn shell(folder: &std::path::Path) -> Result<i32, VmError> {
    if !std::io::stdin().is_terminal() {
        return channel::attach(folder, &["/bin/bash".to_owned()]);
    }
    let stty = |arguments: &[&str]| {
        let output = Command::new("stty").args(arguments).stdin(std::process::Stdio::inherit()).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    };
    let before = stty(&["-g"]);
    let size = stty(&["size"]);
    let (rows, columns) = size.split_once(' ').unwrap_or(("24", "80"));
    let term = std::env::var("TERM").unwrap_or_else(|_| "linux".to_owned());
    let inner = format!("stty rows {rows} cols {columns}; TERM='{}' exec /bin/bash -l", term.replace('\'', ""));
    stty(&["raw", "-echo"]);
    let code = channel::attach(folder, &["/usr/bin/script", "-qec", &inner, "/dev/null"].map(ToOwned::to_owned));
    stty(&[&before]);
    code
}
