//! What an ADD of bridge + host-local costs, beside the reference plugins, in one run.
//!
//! Both sets are called in turn, from a network namespace of this program's own, each for a fresh container namespace (whose making is
//! not counted): wall time from the start of the plugin's process to its end. Prints one table, and one flat JSON object on request.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Map, Value, json};

/// Where Debian's package `containernetworking-plugins` puts the reference.
const REFERENCE: &str = "/usr/lib/cni";
const ROUNDS: usize = 200;
/// First calls find cold caches and no bridge.
const WARM_UP: usize = 5;

struct Options {
    program: PathBuf,
    json: Option<PathBuf>,
    rounds: usize,
}

/// One set of plugins and what it took.
struct Contender {
    name: &'static str,
    plugins: PathBuf,
    config: String,
    adds: Vec<Duration>,
    dels: Vec<Duration>,
}

fn main() -> Result<()> {
    let options = options()?;
    ensure!(nix::unistd::geteuid().is_root(), "bench-cni makes network namespaces: run it as root");
    ensure!(
        options.program.exists(),
        "{} is not built: cargo rustc --release -p keelson-cni-plugins --bin keelson-cni -- -C target-feature=+crt-static",
        options.program.display()
    );
    let folder = tempfile::tempdir()?;
    let plugins = folder.path().join("bin");
    fs::create_dir(&plugins)?;
    for name in ["bridge", "host-local", "loopback"] {
        symlink(&options.program, plugins.join(name))?;
    }
    // Single-threaded so far: the whole program, and what it starts, lives in this namespace.
    unshare(CloneFlags::CLONE_NEWNET).context("make a network namespace")?;
    let mut contenders = vec![Contender::new("keelson", plugins, folder.path(), 1)];
    if Path::new(REFERENCE).join("bridge").exists() {
        contenders.push(Contender::new("reference", REFERENCE.into(), folder.path(), 2));
    } else {
        println!("SKIPPED reference: no plugins in {REFERENCE} (apt-get install containernetworking-plugins)");
    }
    for round in 0..WARM_UP + options.rounds {
        for contender in &mut contenders {
            contender.round(round)?;
        }
    }
    let figures = report(&contenders);
    if let Some(path) = &options.json {
        fs::write(path, format!("{figures:#}\n")).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn options() -> Result<Options> {
    let beside = std::env::current_exe()?.with_file_name("keelson-cni");
    let mut options = Options { program: beside, json: None, rounds: ROUNDS };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--json" => options.json = Some(value()?.into()),
            "--program" => options.program = value()?.into(),
            "--rounds" => options.rounds = value()?.parse().context("--rounds")?,
            _ => bail!("usage: bench-cni [--json FILE] [--rounds N] [--program KEELSON-CNI]"),
        }
    }
    ensure!(options.rounds > 0, "--rounds must be at least 1");
    Ok(options)
}

impl Contender {
    fn new(name: &'static str, plugins: PathBuf, folder: &Path, net: u8) -> Self {
        let config = json!({
            "cniVersion": "1.0.0", "name": name, "type": "bridge", "bridge": format!("kbench{net}"),
            "isDefaultGateway": true, "hairpinMode": true, "mtu": 1500,
            "ipam": { "type": "host-local", "dataDir": folder.join("data"), "ranges": [[{ "subnet": format!("10.{net}.0.0/16") }]] },
        });
        Self { name, plugins, config: config.to_string(), adds: Vec::new(), dels: Vec::new() }
    }

    fn round(&mut self, round: usize) -> Result<()> {
        let namespace = namespace()?;
        let netns = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        let container = format!("c{round}");
        let add = self.call("ADD", &container, &netns)?;
        let del = self.call("DEL", &container, &netns)?;
        if round >= WARM_UP {
            self.adds.push(add);
            self.dels.push(del);
        }
        Ok(())
    }

    fn call(&self, command: &str, container: &str, netns: &str) -> Result<Duration> {
        let start = Instant::now();
        let mut child = Command::new(self.plugins.join("bridge"))
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", container)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.plugins)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the plugin")?;
        child.stdin.take().context("standard input")?.write_all(self.config.as_bytes())?;
        let output = child.wait_with_output()?;
        let took = start.elapsed();
        ensure!(output.status.success(), "{} {command}: {}", self.name, String::from_utf8_lossy(&output.stdout));
        Ok(took)
    }
}

/// A network namespace that lives as long as its file is open.
fn namespace() -> Result<File> {
    let made = std::thread::spawn(|| -> Result<File> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        Ok(File::open("/proc/thread-self/ns/net")?)
    });
    made.join().map_err(|_| anyhow::anyhow!("the thread that makes a namespace panicked"))?
}

fn report(contenders: &[Contender]) -> Value {
    let mut figures = Map::new();
    println!(
        "{:<12} {:>6} {:>12} {:>12} {:>12} {:>12}",
        "plugins", "calls", "ADD p50 ms", "ADD p99 ms", "DEL p50 ms", "DEL p99 ms"
    );
    for contender in contenders {
        let prefix = if contender.name == "keelson" { "" } else { "reference_" };
        let mut row = format!("{:<12} {:>6}", contender.name, contender.adds.len());
        for (what, times) in [("add", &contender.adds), ("del", &contender.dels)] {
            for (quantile, share) in [("p50", 0.50), ("p99", 0.99)] {
                let value = percentile(times, share);
                row.push_str(&format!(" {value:>12.2}"));
                figures.insert(format!("{prefix}{what}_{quantile}_ms"), value.into());
            }
        }
        println!("{row}");
    }
    if let [ours, reference] = contenders {
        let ratio = percentile(&ours.adds, 0.5) / percentile(&reference.adds, 0.5);
        println!("ADD p50 is {ratio:.2} of the reference's");
        figures.insert("add_ratio".into(), ratio.into());
    }
    Value::Object(figures)
}

/// In milliseconds.
fn percentile(times: &[Duration], share: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let last = sorted.len() - 1;
    // Nearest rank: sizes are small enough for any float.
    let index = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, last + 1) - 1;
    sorted[index].as_secs_f64() * 1e3
}
