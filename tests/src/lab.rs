//! A handle on a lab: `lab` and kubectl as a person would call them, with waits that tell what was the matter.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;

use crate::api::Api;
use crate::suite::Skip;

/// How long a client waits for a connection to the API server.
const CONNECT: Duration = Duration::from_secs(5);
/// With this set, a suite uses this lab, which must be up, and leaves it alone afterwards. For work on a suite.
const USE_LAB: &str = "KEELSON_TEST_LAB";
/// With this set to distributions (`debian12`, `debian12,debian13`), a suite of namespaces' labs runs on virtual machines of them instead.
pub const GUESTS: &str = "KEELSON_TEST_GUESTS";
/// What `lab up` deploys by itself, and `lab vm up` does not.
const SAMPLE: &str = include_str!("../../lab/sample/hello.yaml");
/// How much longer than namespaces of this machine translated guests may take for everything.
const GUESTS_PATIENCE: u32 = 4;
/// With this set to a number, every wait is so many times longer than the test says: something else runs beside it.
const PATIENCE: &str = "KEELSON_TEST_PATIENCE";
/// With this set, a suite leaves its lab up for a look at it.
const KEEP_LAB: &str = "KEELSON_TEST_KEEP";
/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(200);
/// Lines of each log that a failure shows.
const LOG_LINES: usize = 15;

/// A lab of this test run.
pub struct Lab {
    /// Its name.
    pub name: String,
    programs: PathBuf,
    ours: bool,
    /// Its machines are virtual ones: `lab vm …` instead of `lab …`.
    guests: bool,
    /// Made when it is asked for.
    api: OnceLock<Api>,
    /// By what every wait is longer than the test says.
    patience: u32,
}

/// The folder with the built programs: that of the profile this test was built with.
pub fn programs() -> Result<PathBuf> {
    let own = std::env::current_exe().context("where this test is")?;
    let folder = own.parent().context("this program lies in no folder")?;
    // Tests lie in `deps` below the programs, benchmarks beside them.
    let profile = if folder.ends_with("deps") { folder.parent() } else { Some(folder) };
    Ok(profile.context("this test lies in no target folder")?.to_path_buf())
}

fn patience_here() -> u32 {
    std::env::var(PATIENCE).ok().and_then(|number| number.parse().ok()).unwrap_or(1).max(1)
}

/// Runs a command to its end; stdout when it succeeds, an error with all of its output when not.
pub fn run(command: &mut Command, input: Option<&str>) -> Result<String> {
    let line = format!("{command:?}");
    let mut child = command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {line}"))?;
    if let (Some(mut pipe), Some(text)) = (child.stdin.take(), input) {
        // A program that does not read all of it says why by itself.
        let _ = pipe.write_all(text.as_bytes());
    }
    let output = child.wait_with_output()?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    bail!("{line}\nended with {}\n{stdout}{}", output.status, String::from_utf8_lossy(&output.stderr))
}

impl Lab {
    /// The lab of this suite, newly made, with more arguments for `lab up`. On guests, if [`GUESTS`] asks for them.
    pub fn up(suite: &str, nodes: u8, more: &[&str]) -> Result<Self> {
        let Ok(os) = std::env::var(GUESTS) else { return Self::make(suite, nodes, more, false, patience_here()) };
        // The control plane on a node: a machine less to translate.
        let all = [&["--compact", "--os", &os], more].concat();
        let lab = Self::make(suite, nodes, &all, true, GUESTS_PATIENCE)?;
        lab.kubectl_with(&["apply", "-f", "-"], SAMPLE)?;
        lab.kubectl(&["rollout", "status", "deployment/hello", "--timeout=300s"])?;
        Ok(lab)
    }

    /// The same for a suite that is made for guests, and knows how long they take.
    pub fn up_on_guests(suite: &str, nodes: u8, more: &[&str]) -> Result<Self> {
        Self::make(suite, nodes, more, true, 1)
    }

    fn make(suite: &str, nodes: u8, more: &[&str], guests: bool, patience: u32) -> Result<Self> {
        if let Ok(name) = std::env::var(USE_LAB) {
            return Ok(Self { name, programs: programs()?, ours: false, guests, api: OnceLock::new(), patience });
        }
        let (programs, api) = (programs()?, OnceLock::new());
        let lab = Self { name: format!("test-{suite}"), programs, ours: true, guests, api, patience };
        // One that an earlier run left behind would not be new.
        run(lab.command().arg("down"), None)?;
        let said = run(lab.command().args(["up", "--nodes", &nodes.to_string()]).args(more), None);
        let said = said.map_err(|error| {
            let report = lab.diagnose();
            anyhow!("{error}\n{report}")
        })?;
        if guests {
            // How long each step took: nobody waits for guests without wanting to know.
            println!("{}", said.split("\n\n").next().unwrap_or_default());
        }
        Ok(lab)
    }

    /// A handle on a lab that this test makes and removes by itself.
    pub fn named(name: &str) -> Result<Self> {
        let (programs, api) = (programs()?, OnceLock::new());
        let patience = patience_here();
        Ok(Self { name: name.to_owned(), programs, ours: true, guests: false, api, patience })
    }

    /// For what needs a namespace or a process of this host.
    fn not_on_guests(&self, what: &str) -> Result<()> {
        if self.guests {
            return Err(Skip(format!("it needs {what} on this host, and its machines are virtual ones")).into());
        }
        Ok(())
    }

    /// This time, as it is for the machines of this lab.
    pub fn patience(&self, time: Duration) -> Duration {
        time * self.patience
    }

    /// The `lab` program for this lab.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.programs.join("lab"));
        command.args(["--name", &self.name]);
        if self.guests {
            command.arg("vm");
        }
        command
    }

    /// A built program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// `lab …`.
    pub fn lab(&self, arguments: &[&str]) -> Result<String> {
        run(self.command().args(arguments), None)
    }

    /// `kubectl …` with this lab's kubeconfig.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        run(self.command().arg("kubectl").args(arguments), None)
    }

    /// `kubectl … -f -` with this text.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        run(self.command().arg("kubectl").args(arguments), Some(input))
    }

    /// A kubectl that is expected to fail: gives what it said.
    pub fn kubectl_fails(&self, arguments: &[&str], input: Option<&str>) -> Result<String> {
        match run(self.command().arg("kubectl").args(arguments), input) {
            Ok(output) => bail!("kubectl {arguments:?} was expected to fail and said: {output}"),
            Err(error) => Ok(error.to_string()),
        }
    }

    /// A kubectl that goes on running, with its output in a pipe.
    pub fn kubectl_spawn(&self, arguments: &[&str]) -> Result<Child> {
        let mut command = self.command();
        command.arg("kubectl").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        Ok(command.spawn()?)
    }

    /// The kubectl that this lab uses.
    pub fn kubectl_program(&self) -> Result<PathBuf> {
        if let Some(program) = std::env::var_os("KEELSON_KUBECTL") {
            return Ok(program.into());
        }
        let own = self.folder()?.with_file_name(".kubectl").join("kubectl");
        Ok(if own.is_file() { own } else { PathBuf::from("kubectl") })
    }

    /// `kubectl … -o json`.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        Ok(serde_json::from_str(&self.kubectl(&all)?)?)
    }

    /// Runs a command in a machine.
    pub fn node(&self, machine: &str, command: &[&str]) -> Result<String> {
        let order = if self.guests { "run" } else { "node" };
        run(self.command().args([order, machine, "--"]).args(command), None)
    }

    /// Starts, stops, restarts or kills a service.
    pub fn service(&self, machine: &str, service: &str, action: &str) -> Result<()> {
        if !self.guests {
            return self.lab(&["service", machine, service, action]).map(drop);
        }
        let unit = unit(service);
        let words: &[&str] = if action == "kill" { &["kill", "-s", "KILL", &unit] } else { &[action, &unit] };
        self.node(machine, &[&["systemctl"], words].concat()).map(drop)
    }

    /// Writes a file of a machine.
    pub fn put(&self, machine: &str, path: &str, text: &str) -> Result<()> {
        if !self.guests {
            return Ok(std::fs::write(self.inside(machine, path)?, text)?);
        }
        // Under a name that nobody reads first: whoever watches the folder sees it whole.
        let script = "new=$(dirname \"$1\")/.new && cat >\"$new\" && mv \"$new\" \"$1\"";
        let words = ["run", machine, "--", "sh", "-c", script, "sh", path];
        run(self.command().args(words), Some(text)).map(drop)
    }

    /// Removes a file of a machine.
    pub fn remove(&self, machine: &str, path: &str) -> Result<()> {
        if !self.guests {
            return Ok(std::fs::remove_file(self.inside(machine, path)?)?);
        }
        self.node(machine, &["rm", path]).map(drop)
    }

    /// Everything that a service has logged.
    pub fn log(&self, machine: &str, service: &str) -> Result<String> {
        if !self.guests {
            return Ok(std::fs::read_to_string(self.folder()?.join(machine).join(format!("log/{service}.log")))?);
        }
        self.node(machine, &["journalctl", "--no-pager", "-q", "-o", "cat", "-u", &unit(service)])
    }

    /// Where a path of a machine of namespaces is on this host.
    fn inside(&self, machine: &str, path: &str) -> Result<PathBuf> {
        Ok(self.folder()?.join(machine).join(path.trim_start_matches('/')))
    }

    /// `lab status -o json`; the exit code says whether all is well, which is not asked here.
    pub fn status(&self) -> Result<Value> {
        let output = self.command().args(["status", "-o", "json"]).output()?;
        serde_json::from_slice(&output.stdout).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn machine(&self, name: &str) -> Result<Value> {
        let status = self.status()?;
        let machines = status["machines"].as_array().context("no machines")?;
        machines.iter().find(|machine| machine["name"] == name).cloned().with_context(|| format!("no machine {name}"))
    }

    /// Pid on the host of a machine's PID 1; its namespaces are the machine's.
    pub fn pid(&self, machine: &str) -> Result<i32> {
        self.not_on_guests("a node's network namespace")?;
        let pid = self.machine(machine)?["pid"].as_i64().unwrap_or(0);
        anyhow::ensure!(pid != 0, "{machine} does not run");
        Ok(i32::try_from(pid)?)
    }

    /// Address of a machine.
    pub fn address(&self, machine: &str) -> Result<Ipv4Addr> {
        Ok(self.machine(machine)?["address"].as_str().unwrap_or_default().parse()?)
    }

    /// One service of a machine, as `lab status` tells it.
    pub fn service_status(&self, machine: &str, service: &str) -> Result<Value> {
        let machine = self.machine(machine)?;
        let services = machine["services"].as_array().context("no services")?;
        services.iter().find(|status| status["name"] == service).cloned().with_context(|| format!("no {service}"))
    }

    /// The lab's folder.
    pub fn folder(&self) -> Result<PathBuf> {
        Ok(PathBuf::from(self.status()?["folder"].as_str().unwrap_or_default()))
    }

    /// A file or folder beside the labs, where `./dev test SUITE` puts what it fetches; skips the test where it is not.
    pub fn fetched(&self, name: &str, variable: &str, what: &str, suite: &str) -> Result<PathBuf> {
        let path = match std::env::var_os(variable) {
            Some(path) => path.into(),
            None => self.folder()?.with_file_name(name),
        };
        if path.exists() {
            return Ok(path);
        }
        let path = path.display();
        let text = format!("{what} is neither at {path} nor named by {variable}; './dev test {suite}' fetches it");
        Err(Skip(text).into())
    }

    /// A client of the API server, as an administrator.
    pub async fn client(&self) -> Result<Client> {
        self.not_on_guests("a way to the API server")?;
        let path = self.status()?["kubeconfig"].as_str().context("the lab has no kubeconfig")?.to_owned();
        let kubeconfig = Kubeconfig::read_from(path)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.connect_timeout = Some(CONNECT);
        Ok(Client::try_from(config)?)
    }

    /// The API server without a kubectl in between, as an administrator.
    pub fn api(&self) -> Result<&Api> {
        if self.api.get().is_none() {
            let api = Api::new(self)?;
            // Another thread's may have come first; either will do.
            let _ = self.api.set(api);
        }
        self.api.get().context("the client was just made")
    }

    /// Waits until `probe` gives something. Errors of the probe count as "not yet" and are told at the end.
    pub fn wait<T>(&self, what: &str, seconds: u64, mut probe: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let (begun, limit) = (Instant::now(), self.patience(Duration::from_secs(seconds)));
        let mut last = None;
        loop {
            match probe() {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(error) if error.is::<Skip>() => return Err(error),
                Err(error) => last = Some(error),
            }
            if begun.elapsed() >= limit {
                let error = last.map(|error| format!("; the last error was: {error:#}")).unwrap_or_default();
                bail!("not within {} s: {what}{error}", limit.as_secs());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits for `condition` of objects; errors count as "not yet".
    pub fn until(&self, what: &str, seconds: u64, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
        self.wait(what, seconds, || Ok(condition()?.then_some(())))
    }

    /// A namespace for one test, removed with the handle.
    pub fn space(&self, name: &str) -> Result<Space<'_>> {
        let manifest = format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n");
        self.kubectl_with(&["apply", "-f", "-"], &manifest)?;
        let space = Space { lab: self, name: name.to_owned() };
        self.wait("the namespace has its service account", 30, || {
            space.kubectl(&["get", "serviceaccount", "default"]).map(Some)
        })?;
        Ok(space)
    }

    /// kubectl's time limit, as long as this lab's machines need.
    pub fn timeout(&self, seconds: u64) -> String {
        format!("--timeout={}s", self.patience(Duration::from_secs(seconds)).as_secs())
    }

    /// Pid on the host of some process of a pod, whose network namespace is the pod's. Found by the pod's cgroup.
    pub fn pod_pid(&self, uid: &str) -> Result<i32> {
        self.not_on_guests("a pod's network namespace")?;
        // An empty text is part of every cgroup's path, and the pid found may be about to be killed.
        anyhow::ensure!(uid.len() >= 32, "{uid:?} identifies no pod or container");
        let other = uid.replace('-', "_");
        for hierarchy in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
            let mut folders = vec![PathBuf::from(hierarchy)];
            while let Some(folder) = folders.pop() {
                let path = folder.to_string_lossy().into_owned();
                if path.contains(uid) || path.contains(&other) {
                    let text = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                    if let Some(pid) = text.lines().find_map(|line| line.parse::<i32>().ok().filter(|pid| *pid > 1)) {
                        return Ok(pid);
                    }
                }
                let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
                folders.extend(
                    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
                );
            }
        }
        bail!("no process is in a cgroup of pod {uid}")
    }

    /// Everything a person would look at first.
    pub fn diagnose(&self) -> String {
        let mut text = String::new();
        let mut add = |title: &str, result: Result<String>| {
            text.push_str(&format!("--- {title}\n{}\n", result.unwrap_or_else(|error| format!("{error:#}"))));
        };
        let output = self.command().arg("status").output();
        add(
            "lab status",
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).map_err(Into::into),
        );
        add("pods", self.kubectl(&["--request-timeout=5s", "get", "pods", "-A", "-o", "wide"]));
        let events = ["--request-timeout=5s", "get", "events", "-A"];
        add("events", self.kubectl(&events).map(|all| last_lines(&all, 2 * LOG_LINES)));
        if self.guests {
            for machine in ["control-plane", "node-1", "node-2"] {
                // A guest that is paused or stuck shall not hold the report up.
                let mut command = Command::new("timeout");
                command.arg("20").arg(self.program("lab")).args(["--name", &self.name, "vm", "run", machine, "--"]);
                command.args(["journalctl", "--no-pager", "-q", "-n", "30", "-u", "keelson-*"]);
                add(machine, run(&mut command, None));
            }
            return text;
        }
        let folder = self.folder().unwrap_or_default();
        for machine in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            for log in std::fs::read_dir(machine.path().join("log")).into_iter().flatten().flatten() {
                let path = log.path();
                if path.to_string_lossy().contains("containerd") {
                    continue;
                }
                let tail = std::fs::read_to_string(&path).map(|all| last_lines(&all, LOG_LINES));
                add(&path.display().to_string(), tail.map_err(Into::into));
            }
        }
        text
    }

    /// Removes it, unless it is somebody else's or shall be kept.
    pub fn down(&mut self) -> Result<()> {
        if !self.ours {
            return Ok(());
        }
        self.ours = false;
        if std::env::var_os(KEEP_LAB).is_some() {
            println!("the lab {} is kept, as {KEEP_LAB} says", self.name);
            return Ok(());
        }
        self.lab(&["down"]).map(drop)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = self.down() {
            eprintln!("{error:#}");
        }
    }
}

/// The unit of a service on a machine with systemd.
fn unit(service: &str) -> String {
    if service == "containerd" { service.to_owned() } else { format!("keelson-{service}") }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// A namespace of one test.
pub struct Space<'a> {
    /// The lab it is in.
    pub lab: &'a Lab,
    /// Its name.
    pub name: String,
}

impl Space<'_> {
    fn arguments<'b>(&'b self, arguments: &[&'b str]) -> Vec<&'b str> {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend(arguments);
        all
    }

    /// `kubectl -n … …`.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.lab.kubectl(&self.arguments(arguments))
    }

    /// `kubectl -n … apply -f -`.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        self.lab.kubectl_with(&self.arguments(&["apply", "-f", "-"]), manifest)
    }

    /// `kubectl -n … …` with input.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        self.lab.kubectl_with(&self.arguments(arguments), input)
    }

    /// A kubectl that is expected to fail.
    pub fn kubectl_fails(&self, arguments: &[&str], input: Option<&str>) -> Result<String> {
        self.lab.kubectl_fails(&self.arguments(arguments), input)
    }

    /// `kubectl -n … … -o json`.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        self.lab.json(&self.arguments(arguments))
    }

    /// Waits for a deployment.
    pub fn rolled_out(&self, deployment: &str) -> Result<()> {
        self.kubectl(&["rollout", "status", &format!("deployment/{deployment}"), &self.lab.timeout(90)]).map(drop)
    }

    /// The pods with these labels.
    pub fn pods(&self, selector: &str) -> Result<Vec<Value>> {
        let list = self.json(&["get", "pods", "-l", selector])?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until a pod is ready and gives it.
    pub fn ready_pod(&self, name: &str) -> Result<Value> {
        self.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), &self.lab.timeout(60)])?;
        self.json(&["get", "pod", name])
    }

    /// Waits until a pod has ended and gives its output.
    pub fn output(&self, pod: &str) -> Result<String> {
        let phase = self.lab.wait(&format!("{pod} ends"), 60, || {
            let phase = self.kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.phase}"])?;
            Ok(["Succeeded", "Failed"].contains(&phase.as_str()).then_some(phase))
        })?;
        let log = self.kubectl(&["logs", pod])?;
        anyhow::ensure!(phase == "Succeeded", "{pod} {phase}: {log}");
        Ok(log)
    }

    /// Pid on the host of a process in a pod's network namespace.
    pub fn pod_pid(&self, pod: &str) -> Result<i32> {
        let pod = self.json(&["get", "pod", pod])?;
        self.lab.pod_pid(pod["metadata"]["uid"].as_str().unwrap_or_default())
    }

    /// A service's cluster address.
    pub fn cluster_ip(&self, service: &str) -> Result<Ipv4Addr> {
        Ok(self.kubectl(&["get", "service", service, "-o", "jsonpath={.spec.clusterIP}"])?.parse()?)
    }

    /// Waits until the service has this many ready endpoints.
    pub fn endpoints(&self, service: &str, count: usize) -> Result<()> {
        let selector = format!("kubernetes.io/service-name={service}");
        self.lab.until(&format!("{service} has {count} endpoints"), 60, || {
            let list = self.json(&["get", "endpointslices", "-l", &selector])?;
            let slices = list["items"].as_array().cloned().unwrap_or_default();
            let ready = slices
                .iter()
                .flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default())
                .filter(|endpoint| endpoint["conditions"]["ready"] != false)
                .count();
            Ok(ready == count)
        })
    }
}

impl Drop for Space<'_> {
    fn drop(&mut self) {
        // Only tidiness: the lab goes as a whole at the end.
        if let Some(api) = self.lab.api.get() {
            let _ = api.delete(&format!("/api/v1/namespaces/{}", self.name));
            return;
        }
        let _ = self.lab.kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}
