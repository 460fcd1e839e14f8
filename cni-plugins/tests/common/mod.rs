//! What the tests of the built program share: namespaces of their own, calls, the state of a namespace.
//!
//! Every namespace is held by a `sleep` of this test, which is killed by its ID on drop; with it go links, addresses and routes.

#![allow(dead_code, reason = "not every test file uses everything")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Where Debian's package `containernetworking-plugins` puts the reference.
pub const REFERENCE: &str = "/usr/lib/cni";

/// Says why a test cannot run here, once; `None` means it can.
pub fn cannot_run(name: &str) -> bool {
    let reason = if !nix::unistd::geteuid().is_root() {
        "needs root"
    } else if ["unshare", "nsenter", "ip", "bridge", "nft", "busybox"].iter().any(|tool| which(tool).is_none()) {
        "needs unshare, nsenter (util-linux), ip, bridge (iproute2), nft (nftables) and busybox"
    } else {
        return false;
    };
    say(&format!("SKIPPED {name}: {reason}"));
    true
}

/// The reference plugins are not installed.
pub fn no_reference(name: &str) -> bool {
    let missing = !Path::new(REFERENCE).join("bridge").exists();
    if missing {
        say(&format!(
            "SKIPPED {name}: no reference plugins in {REFERENCE} (apt-get install containernetworking-plugins)"
        ));
    }
    missing
}

/// The kernel's bridges know no VLANs.
pub fn no_vlan_filtering(name: &str) -> bool {
    let probe = Namespace::new();
    let made = probe
        .command("ip")
        .args(["link", "add", "name", "kprobe0", "type", "bridge", "vlan_filtering", "1"])
        .stderr(Stdio::null())
        .status()
        .unwrap();
    if !made.success() {
        say(&format!("SKIPPED {name} (VLAN part): this kernel has no bridge VLAN filtering"));
    }
    !made.success()
}

/// Past the capture of the test harness, which hides what a passing test prints.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn which(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(tool))
        .find(|file| file.exists())
}

/// A folder with the built program under the plugins' names.
pub struct Plugins {
    folder: TempDir,
}

impl Plugins {
    /// Links the built program.
    pub fn ours() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["loopback", "bridge", "host-local", "portmap"] {
            symlink(env!("CARGO_BIN_EXE_keelson-cni"), folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A network namespace held by a process.
pub struct Namespace {
    holder: Child,
}

impl Namespace {
    /// Makes a namespace.
    pub fn new() -> Self {
        let holder = Command::new("unshare").args(["--net", "sleep", "3600"]).spawn().unwrap();
        let namespace = Self { holder };
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::read_link(namespace.path()).map_or(true, |link| link == own) {
            assert!(Instant::now() < deadline, "no namespace was made");
            std::thread::sleep(Duration::from_millis(2));
        }
        namespace
    }

    /// Its path, good for `CNI_NETNS`.
    pub fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.holder.id())
    }

    /// Its holder, for `ip link … netns`.
    pub fn pid(&self) -> String {
        self.holder.id().to_string()
    }

    /// A command that will run inside.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(program.as_ref());
        command
    }

    /// The standard output of a command inside, which must succeed.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The JSON that a command inside prints.
    pub fn json(&self, program: &str, arguments: &[&str]) -> Value {
        let text = self.run(program, arguments);
        if text.trim().is_empty() { json!([]) } else { serde_json::from_str(&text).unwrap() }
    }

    /// A setting below /proc/sys.
    pub fn sysctl(&self, key: &str) -> String {
        self.run("cat", &[&format!("/proc/sys/{key}")]).trim().to_owned()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// One call of a plugin.
#[derive(Clone)]
pub struct Call<'a> {
    /// Folder of the plugins.
    pub plugins: &'a Path,
    /// Which one.
    pub plugin: &'a str,
    /// `CNI_COMMAND`
    pub command: &'a str,
    /// `CNI_CONTAINERID`
    pub container: &'a str,
    /// `CNI_NETNS`
    pub netns: &'a str,
    /// `CNI_IFNAME`
    pub ifname: &'a str,
    /// `CNI_ARGS`
    pub args: &'a str,
}

impl<'a> Call<'a> {
    /// A call for the container `c1` and its `eth0`.
    pub fn new(plugins: &'a Path, plugin: &'a str, command: &'a str, netns: &'a str) -> Self {
        Self { plugins, plugin, command, container: "c1", netns, ifname: "eth0", args: "" }
    }

    /// Starts it in a namespace (or where the test is).
    pub fn spawn(&self, host: Option<&Namespace>, config: &str) -> Child {
        let program = self.plugins.join(self.plugin);
        let mut command = host.map_or_else(|| Command::new(&program), |host| host.command(&program));
        command
            .env("CNI_COMMAND", self.command)
            .env("CNI_CONTAINERID", self.container)
            .env("CNI_NETNS", self.netns)
            .env("CNI_IFNAME", self.ifname)
            .env("CNI_ARGS", self.args)
            .env("CNI_PATH", self.plugins)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A plugin that has failed already reads nothing.
        let _ = child.stdin.take().unwrap().write_all(config.as_bytes());
        child
    }

    /// Runs it to its end.
    pub fn run(&self, host: Option<&Namespace>, config: &Value) -> Outcome {
        Outcome::from(self.spawn(host, &config.to_string()).wait_with_output().unwrap())
    }
}

/// How a call ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Exit status.
    pub code: Option<i32>,
    /// Standard output as JSON; null when empty.
    pub answer: Value,
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        let text = String::from_utf8(output.stdout).unwrap();
        let answer = if text.trim().is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
        };
        Self { code: output.status.code(), answer }
    }
}

impl Outcome {
    /// The answer of a call that must have worked.
    pub fn expect(self, what: &str) -> Value {
        assert_eq!(self.code, Some(0), "{what}: {}", self.answer);
        self.answer
    }

    /// Code and message of a call that must have failed.
    pub fn expect_error(self, what: &str) -> (u64, String) {
        assert_eq!(self.code, Some(1), "{what}: {}", self.answer);
        (self.answer["code"].as_u64().unwrap(), self.answer["msg"].as_str().unwrap().to_owned())
    }
}

/// A configuration with a previous result in it.
pub fn with_previous(config: &Value, result: &Value) -> Value {
    let mut config = config.clone();
    config["prevResult"] = result.clone();
    config
}
