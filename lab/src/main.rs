//! `lab`: a Kubernetes cluster on this machine, made of this repository's programs.
//!
//! Each machine of the cluster is a set of namespaces with a supervisor in it; see [`machine`] for one machine and
//! [`cluster`] for how they become a lab. `./dev` is the front door.

mod cgroup;
mod cluster;
mod fsx;
mod images;
mod machine;
mod net;
mod process;
mod vm;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};

use cluster::kubectl::Kubectl;
use cluster::store::Places;
use cluster::{LabError, down, plan, power, status, store, up};
use machine::control::{self, Request};

/// Name of the lab when none is given.
const DEFAULT_NAME: &str = "lab";
/// More folders with programs, before those beside `lab` itself; separated by `:`.
const PROGRAMS_VARIABLE: &str = "KEELSON_PROGRAMS";

#[derive(Parser)]
#[command(name = "lab", version, about = "A Kubernetes cluster on this machine, in namespaces")]
struct Cli {
    /// Which lab.
    #[arg(long, global = true, default_value = DEFAULT_NAME)]
    name: String,
    /// Folder of all labs [default: `lab` beside the build profile's folder].
    #[arg(long, global = true)]
    root: Option<PathBuf>,
    /// Where programs are looked for first; may be repeated.
    #[arg(long, global = true)]
    programs: Vec<PathBuf>,
    #[command(subcommand)]
    command: Order,
}

#[derive(Subcommand)]
enum Order {
    /// Make the cluster, or make it whole again.
    Up(Up),
    /// Remove everything of it.
    Down,
    /// Tell how it is; exit code 1 when something of it does not run.
    Status {
        /// `json` for programs.
        #[arg(short, long)]
        output: Option<Output>,
    },
    /// Show what a service has printed.
    Logs {
        /// The machine: node-1, control-plane.
        machine: String,
        /// agent, dataplane, containerd, control-plane, machine.
        service: String,
        /// Go on as it grows.
        #[arg(short, long)]
        follow: bool,
    },
    /// Run a command in a node (or in another machine of the lab).
    Node {
        /// The machine.
        machine: String,
        /// The command; a shell without one.
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// The newest kubectl, with the lab's kubeconfig.
    Kubectl {
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Make the offline images.
    Images,
    /// Start, stop or signal a service of a machine.
    Service {
        /// The machine.
        machine: String,
        /// The service.
        service: String,
        /// What to do.
        action: ServiceAction,
        /// The signal of `kill`.
        #[arg(short, long, default_value_t = libc::SIGKILL)]
        signal: i32,
    },
    /// Add nodes to the cluster, which keeps running.
    AddNode {
        /// How many.
        #[arg(long, default_value_t = 1)]
        count: u8,
    },
    /// Cut the power of a machine: everything in it dies at once, its disk stays.
    Stop {
        /// The machine.
        machine: String,
    },
    /// Boot a machine that was stopped or has died.
    Start {
        /// The machine.
        machine: String,
    },
    /// Take programs that were built since `up` and restart the services that run them.
    Reload,
    /// The same on virtual machines: systemd, cgroup v2, other kernels.
    Vm {
        #[command(subcommand)]
        order: vm::Order,
    },
    #[command(hide = true)]
    Machine(SpecFile),
    #[command(hide = true)]
    MachineInit(SpecFile),
    #[command(hide = true)]
    Registry {
        #[arg(long)]
        images: PathBuf,
        #[arg(long, default_value = images::registry::ADDRESS)]
        listen: std::net::SocketAddr,
    },
    #[command(hide = true)]
    Enter {
        #[arg(long)]
        folder: PathBuf,
        #[arg(last = true)]
        command: Vec<String>,
    },
}

#[derive(Args)]
struct Up {
    /// How many nodes [default: 1].
    #[arg(long)]
    nodes: Option<u8>,
    /// Do not deploy the sample.
    #[arg(long)]
    no_sample: bool,
    /// Leave out control-plane, agent, dataplane, keelson-cni or images; for trying the others alone.
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    /// One more flag of the control plane, `--name=value`; may be repeated. Only when the lab is made.
    #[arg(long, allow_hyphen_values = true)]
    control_plane_arg: Vec<String>,
}

#[derive(Args)]
struct SpecFile {
    #[arg(long)]
    spec: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Json,
}

#[derive(Clone, Copy, ValueEnum)]
enum ServiceAction {
    Start,
    Stop,
    Restart,
    Kill,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    // These run before anything could start a thread: they change this process's namespaces.
    match &cli.command {
        Order::Machine(file) => return Ok(machine::launch(&file.spec).map(|()| ExitCode::SUCCESS)?),
        Order::MachineInit(file) => return Ok(machine::init(&file.spec).map(|()| ExitCode::SUCCESS)?),
        Order::Enter { folder, command } => return Ok(code(machine::execute(folder, command)?)),
        _ => {}
    }
    if !plan::valid_name(&cli.name) {
        bail!(LabError::Name(cli.name));
    }
    let places = places(&cli)?;
    let name = cli.name.as_str();
    match cli.command {
        Order::Up(wish) => {
            let wish = up::Wish {
                nodes: wish.nodes,
                no_sample: wish.no_sample,
                without: wish.without,
                control_plane_args: wish.control_plane_arg,
            };
            up::run(&places, name, &wish)?;
        }
        Order::Down => {
            let _lock = store::lock(&places, name)?;
            if down::run(&places, name)? {
                println!("The lab `{name}` is gone.");
            } else {
                println!("There is no lab `{name}`: nothing to do.");
            }
        }
        Order::Status { output } => return report(&places, name, output.is_some()),
        Order::Logs { machine, service, follow } => return logs(&places, name, &machine, &service, follow),
        Order::Node { machine, command } => {
            let folder = machine_folder(&places, name, &machine)?;
            let shell = vec!["/bin/sh".to_owned()];
            return Ok(code(machine::execute(&folder, if command.is_empty() { &shell } else { &command })?));
        }
        Order::Kubectl { arguments } => {
            use std::os::unix::process::CommandExt;
            let plan = status::existing(&places, name)?;
            let error = Kubectl::find(&places, &plan.kubeconfig())?.command().args(arguments).exec();
            bail!("cannot run kubectl: {error}");
        }
        Order::Images => {
            for image in up::make_images(&places)? {
                let made = if image.rebuilt { "made" } else { "found made" };
                println!("{:<12} {made}: {} ({} names)", image.name, image.archive.display(), image.names.len());
            }
            for image in up::make_apps(&places)? {
                let made = if image.rebuilt { "made" } else { "found made" };
                println!("{:<18} {made}, to be pulled ({} names)", image.name, image.names);
            }
        }
        Order::Service { machine, service, action, signal } => {
            let folder = machine_folder(&places, name, &machine)?;
            let request = match action {
                ServiceAction::Start => Request::Start { service },
                ServiceAction::Stop => Request::Stop { service },
                ServiceAction::Restart => Request::Restart { service },
                ServiceAction::Kill => Request::Signal { service, signal },
            };
            control::ask(&folder.join("run"), &request)?;
        }
        Order::AddNode { count } => {
            let plan = status::existing(&places, name)?;
            let wish = up::Wish {
                nodes: Some(plan.nodes.saturating_add(count)),
                no_sample: true,
                without: Vec::new(),
                control_plane_args: Vec::new(),
            };
            up::run(&places, name, &wish)?;
        }
        Order::Stop { machine } => {
            power::off(&places, name, &machine)?;
            println!("{machine} is off");
        }
        Order::Start { machine } => {
            power::on(&places, name, &machine)?;
            println!("{machine} runs");
        }
        Order::Reload => up::reload(&places, name)?,
        Order::Vm { order } => return Ok(code(vm::run(&places, name, order)?)),
        Order::Registry { images, listen } => images::registry::serve(&images, listen)?,
        Order::Machine(_) | Order::MachineInit(_) | Order::Enter { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// The labs lie beside the folders of the build profiles: `target/release/lab` makes `target/lab`.
fn places(cli: &Cli) -> Result<Places> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let beside = own.parent().unwrap_or(Path::new("/")).to_path_buf();
    let target = beside.parent().unwrap_or(Path::new("/")).to_path_buf();
    let labs = match &cli.root {
        Some(root) => std::path::absolute(root).context("cannot tell where --root is")?,
        None => target.join("lab"),
    };
    let mut programs = cli.programs.clone();
    if let Some(more) = std::env::var_os(PROGRAMS_VARIABLE) {
        programs.extend(std::env::split_paths(&more));
    }
    programs.push(beside);
    let images = labs.join(".images");
    Ok(Places { labs, images, programs })
}

fn machine_folder(places: &Places, name: &str, machine: &str) -> Result<PathBuf, LabError> {
    let plan = status::existing(places, name)?;
    let known: Vec<String> = plan.machines().into_iter().map(|(name, _)| name).collect();
    if known.iter().any(|name| name == machine) {
        return Ok(plan.machine_folder(machine));
    }
    Err(LabError::NoMachine { lab: name.to_owned(), machine: machine.to_owned(), known: known.join(", ") })
}

fn report(places: &Places, name: &str, json: bool) -> Result<ExitCode> {
    let status = status::gather(places, name)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print!("{}", status::render(&status));
    }
    Ok(if status.healthy() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn logs(places: &Places, name: &str, machine: &str, service: &str, follow: bool) -> Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    let log = machine_folder(places, name, machine)?.join("log").join(format!("{service}.log"));
    if !log.exists() {
        bail!("{machine} has no log of {service} (there would be {})", log.display());
    }
    let mut command = if follow {
        let mut tail = Command::new("tail");
        tail.args(["-n", "+1", "-F"]);
        tail
    } else {
        Command::new("cat")
    };
    let error = command.arg(&log).exec();
    bail!("cannot show {}: {error}", log.display());
}

fn code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
