//! Making a lab of guests: boxes, machines, the cluster in them. Again: makes it whole.

use std::fs::{self, File};
use std::net::{TcpListener, UdpSocket};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use super::boxes::{self, BaseImage};
use super::bundle::{self, Bundle};
use super::plan::{self, CONTROL_PLANE, Machine, Record, Role};
use super::qemu::Accelerator;
use super::recipe::Os;
use super::{BUSYBOX, VmError, accel, channel, power, proxy, qemu};
use crate::cluster::kubectl::Kubectl;
use crate::cluster::store::Places;
use crate::cluster::up::node_is_ready;
use crate::fsx;

/// File with the record.
const RECORD: &str = "vm.json";
/// How long a guest may take until its channel answers: three on two busy cores, translated.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// How long nodes may take to be Ready after they were set up.
const READY_LIMIT: Duration = Duration::from_secs(240);
/// Static program that is the guest's end of the channel.
const GUEST: &str = "lab-guest";
/// The drive with the bundle, as a guest sees it.
const BUNDLE_DRIVE: &str = "/dev/vdb";
/// Port of the API server.
const API_PORT: u16 = 6443;
/// Folder of the lab with what kubectl keeps about the server, which goes with the lab.
const KUBECTL_CACHE: &str = "kubectl-cache";
/// Folder of the lab with its programs as guests get them.
const PROGRAMS: &str = "programs";
/// Where the control plane puts what nodes need to join.
const JOIN: &str = "/var/lib/keelson/join";

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// How many workers; those that are there, or one.
    pub nodes: Option<u8>,
    /// Distributions, in turn.
    pub os: Vec<Os>,
    /// The first worker runs the control plane too. A lab that is there stays as it is.
    pub compact: bool,
    /// Only machines, without a cluster in them.
    pub bare: bool,
    /// More flags of the control plane.
    pub control_plane_args: Vec<String>,
}

/// A lab that exists.
#[derive(Clone, Debug)]
pub struct VmLab {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// What it consists of.
    pub record: Record,
}

impl VmLab {
    /// The lab of this name.
    pub fn open(places: &Places, name: &str) -> Result<Self, VmError> {
        let folder = plan::folder(&places.labs, name);
        let path = folder.join(RECORD);
        let Ok(text) = fs::read_to_string(&path) else { return Err(VmError::Absent(name.to_owned())) };
        let record = serde_json::from_str(&text).map_err(|source| VmError::Record { path, source })?;
        Ok(Self { name: name.to_owned(), folder, record })
    }

    /// The folder of a machine.
    pub fn machine_folder(&self, machine: &str) -> PathBuf {
        self.folder.join(machine)
    }

    /// A machine by name, with its folder.
    pub fn machine(&self, name: &str) -> Result<(Machine, PathBuf), VmError> {
        let machine = self.record.machine(name).ok_or_else(|| {
            let known: Vec<String> = self.record.machines().into_iter().map(|machine| machine.name).collect();
            VmError::NoMachine { lab: self.name.clone(), machine: name.to_owned(), known: known.join(", ") }
        })?;
        let folder = self.machine_folder(&machine.name);
        Ok((machine, folder))
    }

    /// The administrator's kubeconfig; its server is only reachable from guests.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// A kubectl that reaches the API server, as long as this process lives.
    pub fn kubectl(&self, places: &Places) -> Result<Kubectl, VmError> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(VmError::Local)?;
        let address = listener.local_addr().map_err(VmError::Local)?;
        let (machine, folder) = self.machine(CONTROL_PLANE)?;
        proxy::serve(listener, &folder, &format!("{}:{API_PORT}", machine.address));
        let kubectl = Kubectl::find(places, &self.kubeconfig())?;
        Ok(kubectl.through(&format!("http://{address}"), self.folder.join(KUBECTL_CACHE)))
    }
}

/// Keeps two commands apart.
pub fn lock(folder: &Path) -> Result<Flock<File>, VmError> {
    fsx::create_dir(folder)?;
    let path = folder.join("lock");
    let file = File::create(&path).map_err(fsx::fail("open", &path))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| VmError::Busy(fsx::name(folder)))
}

/// Makes the lab.
pub fn run(places: &Places, name: &str, wish: &Wish) -> Result<(), VmError> {
    let folder = plan::folder(&places.labs, name);
    let _lock = lock(&folder)?;
    let lab = record(places, name, &folder, wish)?;
    let begun = Instant::now();
    let machines = lab.record.machines();
    let prepared = prepare(places, &lab, &machines)?;
    let bundle = if wish.bare { Bundle::default() } else { Bundle::gather(places, &folder.join(PROGRAMS))? };
    bundle.write_archive(&folder.join(qemu::BUNDLE))?;
    let mut started = Vec::new();
    for (machine, base, accelerator) in prepared {
        if start(places, &lab, &machine, &base, accelerator)? {
            started.push(machine.name);
        }
    }
    each(&machines, |machine| {
        channel::ask(&lab.machine_folder(&machine.name), &["true"], &[], BOOT_LIMIT)?;
        println!("{:<14} answers after {:.1} s", machine.name, begun.elapsed().as_secs_f64());
        if wish.bare {
            return Ok(());
        }
        let fresh = started.contains(&machine.name);
        hand_over(&lab.machine_folder(&machine.name), &bundle.part(machine.role), fresh)?;
        println!("{:<14} has its programs after {:.1} s", machine.name, begun.elapsed().as_secs_f64());
        Ok(())
    })?;
    if wish.bare {
        return Ok(());
    }
    let kubectl = provision(places, &lab, &machines, wish, begun)?;
    wait_ready(&lab, &kubectl, begun)?;
    println!("\nTry next:");
    println!("  lab --name {name} vm kubectl get nodes -o wide");
    println!("  lab --name {name} vm ssh node-1");
    println!("  lab --name {name} vm down");
    Ok(())
}

fn record(places: &Places, name: &str, folder: &Path, wish: &Wish) -> Result<VmLab, VmError> {
    let known = match VmLab::open(places, name) {
        Ok(lab) => Some(lab.record),
        Err(VmError::Absent(_)) => None,
        Err(error) => return Err(error),
    };
    let nodes = wish.nodes.unwrap_or_else(|| known.as_ref().map_or(1, |known| known.nodes.len() as u8));
    if nodes == 0 || nodes > plan::MAX_NODES {
        return Err(VmError::Nodes(nodes));
    }
    let mut record = Record::new(known.as_ref().map_or(0, |known| known.number), nodes, &wish.os, wish.compact);
    if let Some(known) = known {
        record.compact = known.compact;
        // A machine keeps its distribution, and none is taken away.
        let kept = known.nodes.len().min(record.nodes.len());
        record.nodes[..kept].copy_from_slice(&known.nodes[..kept]);
        record.nodes.extend(known.nodes.iter().skip(record.nodes.len()));
    } else {
        record.number = free_number(places)?;
    }
    let text = serde_json::to_string_pretty(&record).unwrap_or_default();
    fsx::write_atomic(&folder.join(RECORD), &text)?;
    Ok(VmLab { name: name.to_owned(), folder: folder.to_path_buf(), record })
}

/// A number that no lab of this folder has and whose network nobody on this host uses.
fn free_number(places: &Places) -> Result<u8, VmError> {
    let labs = plan::root(&places.labs).join("labs");
    let taken: Vec<u8> = fs::read_dir(&labs)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| VmLab::open(places, &entry.file_name().to_string_lossy()).ok())
        .map(|lab| lab.record.number)
        .collect();
    (1..=plan::MAX_NUMBER)
        .filter(|number| !taken.contains(number))
        .find(|number| UdpSocket::bind(("0.0.0.0", plan::port(*number))).is_ok())
        .ok_or(VmError::NoNumber)
}

type Prepared = (Machine, BaseImage, Accelerator);

/// The boxes of the machines, and what runs them.
fn prepare(places: &Places, lab: &VmLab, machines: &[Machine]) -> Result<Vec<Prepared>, VmError> {
    let root = plan::root(&places.labs);
    let known = |machine: &Machine| boxes::of_machine(&lab.machine_folder(&machine.name));
    let mut wanted: Vec<Os> =
        machines.iter().filter(|machine| known(machine).is_none()).map(|machine| machine.os).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let bases = boxes::get_all(&root, &wanted, false)?;
    for (os, base, took) in &bases {
        let made = if base.made { "made" } else { "found made" };
        println!("{os:<14} box {made} ({:.1} s, {} MiB)", took.as_secs_f64(), base.size() >> 20);
    }
    let of = |os| bases.iter().find(|(known, ..)| *known == os).map(|(_, base, _)| base.clone());
    let chosen: Vec<(Machine, BaseImage)> = machines
        .iter()
        .filter_map(|machine| Some((machine.clone(), known(machine).or_else(|| of(machine.os))?)))
        .collect();
    let kernel = chosen.first().map(|(_, base)| base.kernel()).ok_or(VmError::Nodes(0))?;
    let accelerator = accel::choose(&root, &kernel)?;
    println!("{:<14} {} machines on {accelerator:?}", lab.name, machines.len());
    Ok(chosen.into_iter().map(|(machine, base)| (machine, base, accelerator)).collect())
}

fn start(
    places: &Places,
    lab: &VmLab,
    machine: &Machine,
    base: &BaseImage,
    accelerator: Accelerator,
) -> Result<bool, VmError> {
    let busybox = fs::read(BUSYBOX).map_err(fsx::fail("read", Path::new(BUSYBOX)))?;
    let path = places.program(GUEST).ok_or(VmError::NoGuest)?;
    let guest = fs::read(&path).map_err(fsx::fail("read", &path))?;
    power::on(&lab.machine_folder(&machine.name), machine, lab.record.number, base, (&busybox, &guest), accelerator)
}

/// Boots one machine that is off, and waits until it answers.
pub fn boot(places: &Places, lab: &VmLab, name: &str) -> Result<(), VmError> {
    let (machine, folder) = lab.machine(name)?;
    for (machine, base, accelerator) in prepare(places, lab, std::slice::from_ref(&machine))? {
        start(places, lab, &machine, &base, accelerator)?;
    }
    channel::ask(&folder, &["true"], &[], BOOT_LIMIT).map(drop)
}

/// Does something for every machine at once; the first error.
fn each(machines: &[Machine], work: impl Fn(&Machine) -> Result<(), VmError> + Sync) -> Result<(), VmError> {
    let results: Vec<Result<(), VmError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = machines.iter().map(|machine| scope.spawn(|| work(machine))).collect();
        // A panic is a fault of this program and shows as one.
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    results.into_iter().collect()
}

/// Unpacks a bundle in a machine: from its drive if that is the present one, else over the channel.
fn hand_over(folder: &Path, part: &Bundle, from_drive: bool) -> Result<(), VmError> {
    if !from_drive {
        return channel::unpack(folder, bundle::INSIDE, |to| part.append(to));
    }
    let mut words = vec!["tar", "-x", "-C", bundle::INSIDE, "-f", BUNDLE_DRIVE];
    words.extend(part.names());
    channel::checked(folder, &["mkdir", "-p", bundle::INSIDE])?;
    channel::checked(folder, &words).map(drop)
}

fn provision(
    places: &Places,
    lab: &VmLab,
    machines: &[Machine],
    wish: &Wish,
    begun: Instant,
) -> Result<Kubectl, VmError> {
    let seconds = || begun.elapsed().as_secs_f64();
    let script = format!("{}/provision.sh", bundle::INSIDE);
    let (first, control_plane) = lab.machine(CONTROL_PLANE)?;
    // What a node needs no credentials for is done while the control plane comes up.
    each(machines, |machine| {
        let folder = lab.machine_folder(&machine.name);
        if machine.role.is_control_plane() {
            let address = machine.address.to_string();
            let options = wish.control_plane_args.join(" ");
            let words = ["control-plane", "--from", bundle::INSIDE, "--address", &address, "--options", &options];
            channel::checked(&folder, &[&[script.as_str()], &words[..]].concat())?;
            println!("{:<14} has a control plane after {:.1} s", machine.name, seconds());
        }
        if machine.role == Role::Node {
            channel::checked(&folder, &[&script, "prepare", "--from", bundle::INSIDE])?;
            println!("{:<14} is prepared after {:.1} s", machine.name, seconds());
        }
        Ok(())
    })?;
    let text = channel::checked(&control_plane, &["cat", "/var/lib/keelson/control-plane/admin.kubeconfig"])?;
    // It holds the administrator's key.
    fsx::write_private(&lab.kubeconfig(), &text)?;
    let server = format!("https://{}:{API_PORT}", first.address);
    let workers: Vec<Machine> = machines.iter().filter(|machine| machine.role.is_node()).cloned().collect();
    let mut words = vec![script.as_str(), "credentials", "--to", JOIN, "--server", &server];
    words.extend(workers.iter().map(|machine| machine.name.as_str()));
    channel::checked(&control_plane, &words)?;
    each(&workers, |machine| {
        let folder = lab.machine_folder(&machine.name);
        join(&control_plane, &folder, &machine.name)?;
        let (name, address) = (machine.name.as_str(), machine.address.to_string());
        let credentials = format!("{}/credentials", bundle::INSIDE);
        let mut words = vec![script.as_str(), "node", "--from", bundle::INSIDE, "--credentials", &credentials];
        words.extend(["--name", name, "--address", &address]);
        channel::checked(&folder, &words)?;
        println!("{name:<14} set up after {:.1} s", seconds());
        Ok(())
    })?;
    lab.kubectl(places)
}

/// Carries a node's credentials from the control plane to it.
fn join(control_plane: &Path, node: &Path, name: &str) -> Result<(), VmError> {
    let from = format!("{JOIN}/{name}");
    let archive = channel::ask(control_plane, &["tar", "-c", "-C", &from, "."], &[], channel::ANSWER_LIMIT)?;
    let script = format!("umask 077; mkdir -p {0}/credentials && tar -x -C {0}/credentials", bundle::INSIDE);
    let outcome = channel::ask(node, &["sh", "-c", &script], &archive.output, channel::ANSWER_LIMIT)?;
    if archive.code == 0 && outcome.code == 0 {
        return Ok(());
    }
    Err(VmError::InGuest {
        machine: name.to_owned(),
        command: format!("carrying {from} to the node"),
        code: archive.code.max(outcome.code),
        output: String::from_utf8_lossy(&[archive.errors, outcome.errors].concat()).into_owned(),
    })
}

fn wait_ready(lab: &VmLab, kubectl: &Kubectl, begun: Instant) -> Result<(), VmError> {
    let wanted = lab.record.nodes.len();
    let end = Instant::now() + READY_LIMIT;
    loop {
        let list = kubectl.json(&["--request-timeout=20s", "get", "nodes"]);
        let count = list
            .as_ref()
            .ok()
            .and_then(|list| list["items"].as_array())
            .map_or(0, |nodes| nodes.iter().filter(|node| node_is_ready(node)).count());
        if count >= wanted {
            println!("{:<14} {count} nodes Ready after {:.1} s", lab.name, begun.elapsed().as_secs_f64());
            return Ok(());
        }
        if Instant::now() >= end {
            let known = list.map_or_else(|error| error.to_string(), |_| format!("{count} of {wanted} are"));
            return Err(VmError::NotReady {
                known,
                log: format!("lab --name {} vm run node-1 -- journalctl -u keelson-agent", lab.name),
            });
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Ends every machine and removes the lab; false when there is none.
pub fn down(places: &Places, name: &str) -> Result<bool, VmError> {
    let folder = plan::folder(&places.labs, name);
    if !folder.exists() {
        return Ok(false);
    }
    let _lock = lock(&folder)?;
    for entry in fs::read_dir(&folder).map_err(fsx::fail("list", &folder))?.flatten() {
        if entry.path().join(qemu::PID).exists() {
            power::off(&entry.path())?;
        }
    }
    fsx::remove_tree(&folder)?;
    Ok(true)
}
