//! Making a lab, or making it whole again: every step looks first at what is there.
//!
//! `lab.json` is written before the first thing is made and says which step is under way, so that a killed `up` is
//! known for what it is; the next `up` goes on from there.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::kubectl::Kubectl;
use super::plan::{self, CONTROL_PLANE, Plan, SWITCH};
use super::store::{self, Phase, Places, Record};
use super::{LabError, down, fabric, node, status};
use crate::images::{BuiltApp, BuiltImage, ImageError, ImageInputs, build_apps, build_base};
use crate::machine::control::{self, Request};
use crate::process::Process;
use crate::{fsx, machine};

/// How long the API server may take to be ready: on a first start it makes its keys.
const API_LIMIT: Duration = Duration::from_secs(60);
/// How long a node may take to be Ready.
const NODE_LIMIT: Duration = Duration::from_secs(90);
/// How long the sample may take.
const SAMPLE_LIMIT: Duration = Duration::from_secs(120);
/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(150);
/// A service that ended this often while it was waited for will not come up.
const FAILURES: u32 = 5;
/// The program of the busybox image, from Debian's busybox-static.
const BUSYBOX: &str = "/bin/busybox";
/// The sample.
const SAMPLE: &str = include_str!("../../sample/hello.yaml");

/// What `up` shall do.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Nodes; an existing lab keeps what it has unless this is more.
    pub nodes: Option<u8>,
    /// Without the sample.
    pub no_sample: bool,
    /// Programs to leave out: for trying the others alone.
    pub without: Vec<String>,
    /// Flags of the control plane beside the usual ones; an existing lab keeps those it was made with.
    pub control_plane_args: Vec<String>,
}

/// Makes the lab `name`, or finds that it is there.
pub fn run(places: &Places, name: &str, wish: &Wish) -> Result<(), LabError> {
    let begun = Instant::now();
    if !nix::unistd::geteuid().is_root() {
        return Err(LabError::NotRoot);
    }
    if wish.nodes.is_some_and(|nodes| nodes == 0 || nodes > plan::MAX_NODES) {
        return Err(LabError::Nodes { asked: wish.nodes.unwrap_or(0) });
    }
    let _lock = store::lock(places, name)?;
    let folder = places.lab(name);
    let mut record = prepare(places, name, wish)?;
    if record.phase == Phase::Ready && wish.without.is_empty() && status::gather(places, name)?.healthy() {
        let count = record.nodes;
        println!("The lab `{name}` is up already ({count} node{}): nothing to do.", plural(count));
        return Ok(());
    }
    let plan = status::plan(places, name, &record);
    record.phase = Phase::Starting;
    let mut steps = Steps { folder, record, begun: Instant::now() };
    let images = images(places, &mut steps, wish)?;
    let apps = Apps::begin(places, wish);
    steps.next("programs")?;
    install_programs(places, &plan, wish)?;
    steps.done("copied into the lab");
    let switch = network(&plan, &mut steps)?;
    let kubectl = if wish.has(CONTROL_PLANE) { Some(control_plane(places, &plan, switch, &mut steps)?) } else { None };
    for index in 1..=plan.nodes {
        bring_node(&plan, index, switch, &images, wish, &mut steps)?;
    }
    if let Some(kubectl) = &kubectl
        && wish.has("agent")
    {
        nodes_ready(&plan, kubectl, &mut steps)?;
        if !wish.no_sample {
            sample(&plan, kubectl, &mut steps)?;
        }
    }
    apps.finish(&mut steps)?;
    steps.finish()?;
    println!("\nThe lab `{name}` is up after {:.1} s.", begun.elapsed().as_secs_f64());
    next_steps(&plan, wish);
    Ok(())
}

impl Wish {
    fn has(&self, program: &str) -> bool {
        !self.without.iter().any(|name| name == program)
    }
}

fn plural(count: u8) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Finds the record of the lab or begins one, and says what was found.
fn prepare(places: &Places, name: &str, wish: &Wish) -> Result<Record, LabError> {
    let folder = places.lab(name);
    let owner = folder.display().to_string();
    let found = store::load(&folder)?;
    if let Some(mut record) = found.clone() {
        record.nodes = record.nodes.max(wish.nodes.unwrap_or(1));
        match record.phase {
            Phase::Starting => {
                println!("A half-made lab `{name}` was found (it was stopped at: {}): going on with it.", record.step);
                return Ok(record);
            }
            Phase::Ready => {
                let grown = record.nodes > found.map_or(0, |record| record.nodes);
                if grown {
                    record.phase = Phase::Starting;
                    println!("The lab `{name}` gets {} nodes.", record.nodes);
                } else if !status::gather(places, name)?.healthy() {
                    println!("The lab `{name}` is not whole: repairing it.");
                }
                return Ok(record);
            }
            Phase::Stopping => {
                println!("A half-removed lab `{name}` was found: removing the rest first.");
                down::run(places, name)?;
            }
        }
    } else if folder.exists() || fabric::find(&owner)?.is_some() {
        println!("Remains of a lab `{name}` were found: removing them first.");
        down::run(places, name)?;
    }
    fsx::create_dir(&folder)?;
    let number = fabric::reserve(&owner)?;
    let record = Record {
        number,
        nodes: wish.nodes.unwrap_or(1),
        phase: Phase::Starting,
        step: "beginning".to_owned(),
        control_plane_args: wish.control_plane_args.clone(),
    };
    store::save(&folder, &record)?;
    Ok(record)
}

/// Progress on the terminal and in `lab.json`.
struct Steps {
    folder: std::path::PathBuf,
    record: Record,
    begun: Instant,
}

impl Steps {
    fn next(&mut self, step: &str) -> Result<(), LabError> {
        use std::io::Write;
        step.clone_into(&mut self.record.step);
        self.begun = Instant::now();
        print!("{step:<14} … ");
        // Progress only: a closed terminal is no reason to stop half way.
        let _ = std::io::stdout().flush();
        store::save(&self.folder, &self.record)
    }

    fn done(&self, result: &str) {
        println!("{result} ({:.1} s)", self.begun.elapsed().as_secs_f64());
    }

    fn finish(&mut self) -> Result<(), LabError> {
        self.record.phase = Phase::Ready;
        "done".clone_into(&mut self.record.step);
        store::save(&self.folder, &self.record)
    }
}

/// Makes the images, or finds them made.
pub fn make_images(places: &Places) -> Result<Vec<BuiltImage>, LabError> {
    let program = |name: &str| places.program(name).ok_or_else(|| missing(places, name));
    let inputs =
        ImageInputs { pause: program("pause")?, test_server: program("test-server")?, busybox: BUSYBOX.into() };
    Ok(build_base(&places.images, &inputs)?)
}

/// Makes the images of applications, or finds them made.
pub fn make_apps(places: &Places) -> Result<Vec<BuiltApp>, ImageError> {
    build_apps(&places.images, Path::new(BUSYBOX))
}

/// The images of applications, being made beside the start of the machines: nothing of a lab's own needs them.
struct Apps(Option<std::thread::JoinHandle<Result<Vec<BuiltApp>, ImageError>>>);

impl Apps {
    fn begin(places: &Places, wish: &Wish) -> Self {
        let places = places.clone();
        Self(wish.has("images").then(|| std::thread::spawn(move || make_apps(&places))))
    }

    /// Waits for them. Without them (no network on the first day, say) the rest of the lab works.
    fn finish(self, steps: &mut Steps) -> Result<(), LabError> {
        let Some(thread) = self.0 else { return Ok(()) };
        steps.next("applications")?;
        match thread.join() {
            Ok(Ok(apps)) => {
                let names: Vec<&str> = apps.iter().map(|image| image.name).collect();
                let made = apps.iter().filter(|image| image.rebuilt).count();
                steps.done(&format!("{} ({made} made, {} found made)", names.join(", "), apps.len() - made));
            }
            Ok(Err(error)) => steps.done(&format!("their images cannot be pulled: {error}")),
            Err(_) => steps.done("their images cannot be pulled: making them failed, as told above"),
        }
        Ok(())
    }
}

fn missing(places: &Places, name: &str) -> LabError {
    let folders: Vec<String> = places.programs.iter().map(|folder| folder.display().to_string()).collect();
    LabError::NoProgram { name: name.to_owned(), folders: folders.join(", ") }
}

fn images(places: &Places, steps: &mut Steps, wish: &Wish) -> Result<Vec<BuiltImage>, LabError> {
    if !wish.has("images") {
        return Ok(Vec::new());
    }
    steps.next("images")?;
    let images = make_images(places)?;
    let names: Vec<&str> = images.iter().map(|image| image.name).collect();
    let made = images.iter().filter(|image| image.rebuilt).count();
    steps.done(&format!("{} ({made} made, {} found made)", names.join(", "), images.len() - made));
    Ok(images)
}

/// Copies the programs, so that a later build does not change a running lab.
fn install_programs(places: &Places, plan: &Plan, wish: &Wish) -> Result<(), LabError> {
    let bin = plan.folder.join("bin");
    fsx::create_dir(&bin)?;
    for name in plan::PROGRAMS {
        match places.program(name) {
            Some(path) => fsx::install(&path, &bin.join(name))?,
            None if wish.has(name) => return Err(missing(places, name)),
            None => {}
        }
    }
    if let Some(path) = places.program("test-server") {
        fsx::install(&path, &bin.join("test-server"))?;
    }
    Ok(())
}

/// Starts a machine unless it runs; gives its PID 1.
pub fn ensure_machine(plan: &Plan, name: &str) -> Result<Process, LabError> {
    let folder = plan.machine_folder(name);
    if let Some(process) = machine::running(&folder) {
        return Ok(process);
    }
    let spec = plan.spec(name);
    for part in ["var/lib", "var/log", "var/cache", "run", "log"] {
        fsx::create_dir(&folder.join(part))?;
    }
    for part in ["tmp", "var/tmp"] {
        fsx::create_dir_mode(&folder.join(part), 0o1777)?;
    }
    let text = serde_json::to_string_pretty(&spec).unwrap_or_default();
    let path = folder.join("spec.json");
    fsx::write_atomic(&path, &text)?;
    node::checked(Command::new(plan.folder.join("bin/lab")).arg("machine").arg("--spec").arg(&path))?;
    let log = spec.log("machine");
    let wait = Wait { what: format!("the machine {name} answers"), limit: Duration::from_secs(10), watch: Vec::new() };
    let answer = wait_for(plan, &wait, || {
        let process = machine::running(&folder)?;
        control::ask(&spec.run(), &Request::Status).ok().map(|_| process)
    });
    answer.map_err(|error| match error {
        LabError::Late { what, seconds, .. } => {
            LabError::Late { what, seconds, hint: format!("it said: {}", fsx::tail(&log, 5).join(" | ")) }
        }
        other => other,
    })
}

fn network(plan: &Plan, steps: &mut Steps) -> Result<Process, LabError> {
    steps.next("network")?;
    let switch = ensure_machine(plan, SWITCH)?;
    fabric::join_host(plan, &plan.folder.display().to_string(), switch)?;
    steps.done(&format!("{} with the host at {}", plan.network(), plan.host()));
    Ok(switch)
}

/// A running machine with its link to the switch.
pub fn joined_machine(plan: &Plan, name: &str, switch: Process, address: Ipv4Addr) -> Result<(), LabError> {
    let process = ensure_machine(plan, name)?;
    fabric::join(plan, switch, process, address)
}

fn control_plane(places: &Places, plan: &Plan, switch: Process, steps: &mut Steps) -> Result<Kubectl, LabError> {
    steps.next(CONTROL_PLANE)?;
    let kubectl = Kubectl::find(places, &plan.kubeconfig())?;
    joined_machine(plan, CONTROL_PLANE, switch, plan.control_plane())?;
    node::start(plan, CONTROL_PLANE, CONTROL_PLANE)?;
    let admin = plan.data_dir().join("admin.kubeconfig");
    let wait = Wait {
        what: format!("the API server at {} is ready", plan.server()),
        limit: API_LIMIT,
        watch: vec![(CONTROL_PLANE.to_owned(), CONTROL_PLANE.to_owned())],
    };
    let address = std::net::SocketAddr::from((plan.control_plane(), plan::API_PORT));
    wait_for(plan, &wait, || {
        std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
        let text = fsx::read(&admin).ok()?;
        // It holds the administrator's key.
        fsx::write_private(&plan.kubeconfig(), &text).ok()?;
        kubectl.run(&["get", "--raw", "/readyz"], None).ok()
    })?;
    steps.done(&format!("ready at {}", plan.server()));
    Ok(kubectl)
}

fn bring_node(
    plan: &Plan,
    index: u8,
    switch: Process,
    images: &[BuiltImage],
    wish: &Wish,
    steps: &mut Steps,
) -> Result<(), LabError> {
    let name = plan::node_name(index);
    steps.next(&name)?;
    node::write_files(plan, index)?;
    joined_machine(plan, &name, switch, plan.node(index))?;
    node::start_containerd(plan, &name)?;
    let loaded = node::load_images(plan, &name, images)?;
    if wish.has(CONTROL_PLANE) {
        node::write_credentials(plan, index)?;
    }
    for service in ["agent", "dataplane"] {
        if wish.has(service) {
            node::start(plan, &name, service)?;
        }
    }
    steps.done(&format!("started, {loaded} images loaded"));
    Ok(())
}

fn nodes_ready(plan: &Plan, kubectl: &Kubectl, steps: &mut Steps) -> Result<(), LabError> {
    steps.next("nodes")?;
    let mut watch = vec![(CONTROL_PLANE.to_owned(), CONTROL_PLANE.to_owned())];
    for name in plan.node_names() {
        watch.push((name.clone(), "agent".to_owned()));
        watch.push((name, "dataplane".to_owned()));
    }
    let wait = Wait { what: "every node is Ready".to_owned(), limit: NODE_LIMIT, watch };
    wait_for(plan, &wait, || {
        let list = kubectl.json(&["get", "nodes"]).ok()?;
        let nodes = list.get("items")?.as_array()?;
        let ready = nodes.iter().filter(|node| node_is_ready(node)).count();
        (ready >= usize::from(plan.nodes)).then_some(())
    })?;
    routes_to_pods(plan, kubectl)?;
    steps.done(&format!("{} Ready", plan.nodes));
    Ok(())
}

/// The API server reaches pods (`pods/proxy`, `services/proxy`) from its own machine.
fn routes_to_pods(plan: &Plan, kubectl: &Kubectl) -> Result<(), LabError> {
    let Some(machine) = machine::running(&plan.machine_folder(CONTROL_PLANE)) else { return Ok(()) };
    for index in 1..=plan.nodes {
        let node = kubectl.json(&["get", "node", &plan::node_name(index)])?;
        let pods = node.pointer("/spec/podCIDR").and_then(serde_json::Value::as_str);
        if let Some(pods) = pods.and_then(|text| text.parse().ok()) {
            fabric::route_pods(machine, pods, plan.node(index))?;
        }
    }
    Ok(())
}

/// Whether the Node object's condition Ready is true.
pub fn node_is_ready(node: &serde_json::Value) -> bool {
    let conditions = node.pointer("/status/conditions").and_then(serde_json::Value::as_array);
    conditions.into_iter().flatten().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn sample(plan: &Plan, kubectl: &Kubectl, steps: &mut Steps) -> Result<(), LabError> {
    steps.next("sample")?;
    kubectl.run(&["apply", "-f", "-"], Some(SAMPLE))?;
    let limit = format!("--timeout={}s", SAMPLE_LIMIT.as_secs());
    let rolled = kubectl.run(&["rollout", "status", "deployment/hello", &limit], None);
    if let Err(error) = rolled {
        let pods = kubectl.run(&["get", "pods", "-A", "-o", "wide"], None).unwrap_or_default();
        return Err(LabError::Late {
            what: "the sample's rollout".to_owned(),
            seconds: SAMPLE_LIMIT.as_secs(),
            hint: format!("{error}\n{pods}\n`{}` tells more", hint_command(plan, "kubectl describe pods")),
        });
    }
    steps.done("3 pods behind the service `hello`");
    Ok(())
}

/// What to wait for.
pub struct Wait {
    /// What it is, as it reads before "did not happen".
    pub what: String,
    /// How long.
    pub limit: Duration,
    /// Services whose failing ends the wait: machine and service.
    pub watch: Vec<(String, String)>,
}

/// Asks `probe` again and again until it answers, the time is over, or a watched service keeps failing.
pub fn wait_for<T>(plan: &Plan, wait: &Wait, mut probe: impl FnMut() -> Option<T>) -> Result<T, LabError> {
    let end = Instant::now() + wait.limit;
    loop {
        if let Some(found) = probe() {
            return Ok(found);
        }
        for (machine, service) in &wait.watch {
            give_up_on(plan, machine, service)?;
        }
        if Instant::now() >= end {
            return Err(LabError::Late {
                what: wait.what.clone(),
                seconds: wait.limit.as_secs(),
                hint: format!("`{}` and `./dev logs` tell more", hint_command(plan, "status")),
            });
        }
        std::thread::sleep(POLL);
    }
}

fn give_up_on(plan: &Plan, machine: &str, service: &str) -> Result<(), LabError> {
    let folder = plan.machine_folder(machine);
    let Ok(reply) = control::ask(&folder.join("run"), &Request::Status) else {
        return Ok(());
    };
    let found = reply.services.into_iter().find(|status| status.name == service);
    let Some(status) = found.filter(|status| status.state == "waiting") else {
        return Ok(());
    };
    let recent = status.exits.iter().rev().take_while(|exit| !exit.asked && exit.ran_ms < 10_000).count();
    if recent < FAILURES as usize {
        return Ok(());
    }
    let last = status.exits.last();
    Err(LabError::Failing {
        service: service.to_owned(),
        machine: machine.to_owned(),
        ended: last.map(status::describe_exit).unwrap_or_default(),
        lines: last.map(|exit| exit.last_lines.join("\n")).unwrap_or_default(),
        log: folder.join("log").join(format!("{service}.log")),
    })
}

fn hint_command(plan: &Plan, rest: &str) -> String {
    if plan.name == crate::DEFAULT_NAME { format!("./dev {rest}") } else { format!("lab --name {} {rest}", plan.name) }
}

fn next_steps(plan: &Plan, wish: &Wish) {
    println!("\nTry next:");
    let command = |rest: &str| hint_command(plan, rest);
    if wish.has(CONTROL_PLANE) {
        println!("  {}", command("kubectl get nodes,pods,services -A -o wide"));
    }
    if !wish.no_sample && wish.has("agent") && wish.has(CONTROL_PLANE) {
        println!("  curl http://{}:30080/          # the sample, from outside the node", plan.node(1));
        println!("  {}", command("kubectl scale deployment hello --replicas=5"));
        println!("  {}", command("kubectl logs -f deployment/hello"));
    }
    println!("  {}", command("status"));
    println!("  {}", command("node node-1 -- ip route"));
    println!("  {}", command("down"));
}

/// Installs programs that differ from the lab's copies and restarts what runs them.
pub fn reload(places: &Places, name: &str) -> Result<(), LabError> {
    let _lock = store::lock(places, name)?;
    let plan = status::existing(places, name)?;
    let bin = plan.folder.join("bin");
    for program in plan::PROGRAMS {
        let Some(path) = places.program(program) else {
            continue;
        };
        if std::fs::read(&path).ok() == std::fs::read(bin.join(program)).ok() {
            continue;
        }
        fsx::install(&path, &bin.join(program))?;
        println!("{program} was changed");
        for (machine, _) in plan.machines() {
            let spec = plan.spec(&machine);
            if spec.services.iter().any(|service| service.name == *program) {
                let service = (*program).to_owned();
                control::ask(&spec.run(), &Request::Restart { service })?;
                println!("  restarted on {machine}");
            }
        }
    }
    Ok(())
}
