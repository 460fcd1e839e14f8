//! Size, memory and CPU time of the programs, as the kernel counts them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use keelson_tests::lab::Lab;
use keelson_tests::process::{memory_mib, status_field};

use super::figures::Figures;

const MIB: f64 = 1024.0 * 1024.0;
/// The unit of times in `/proc/PID/stat`: USER_HZ, which is 100 on every architecture that Rust's standard library knows well.
const TICKS_PER_SECOND: f64 = 100.0;

/// A program that runs in a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its pid on the host.
    pub pid: i32,
}

impl Process {
    /// A service of a machine. `lab status` gives its pid as the machine sees it; on the host it is another.
    pub fn of(lab: &Lab, machine: &str, service: &str) -> Result<Self> {
        let inside = lab.service_status(machine, service)?["pid"].as_i64().unwrap_or(0);
        let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let wanted = namespace(lab.pid(machine)?);
        let pids = fs::read_dir("/proc")?.flatten();
        let found = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()).find(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status_field(&status, "NSpid").and_then(|pids| pids.split_whitespace().last()?.parse().ok()) == Some(inside)
                && namespace(*pid) == wanted
        });
        let pid = found.with_context(|| format!("no process is pid {inside}, the {service} of {machine}"))?;
        Ok(Self { pid })
    }

    /// Resident memory.
    pub fn rss_mib(self) -> Result<f64> {
        memory_mib(self.pid.unsigned_abs(), "VmRSS")
    }

    /// CPU time so far, of all its threads, in seconds.
    pub fn cpu_seconds(self) -> Result<f64> {
        let path = format!("/proc/{}/stat", self.pid);
        let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
        ticks(&stat).map(|ticks| ticks / TICKS_PER_SECOND).with_context(|| format!("no times in {path}"))
    }

    /// Whether it is still there.
    pub fn runs(self) -> bool {
        Path::new(&format!("/proc/{}", self.pid)).exists()
    }
}

/// User and system time. The program's name before them may hold anything, so the fields are counted behind it.
fn ticks(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system) = (fields.next()?, fields.next()?);
    Some(user.parse::<f64>().ok()? + system.parse::<f64>().ok()?)
}

/// How large the programs are on disk.
pub fn sizes(lab: &Lab, figures: &mut Figures) -> Result<()> {
    for name in ["agent", "dataplane", "control-plane", "keelson-cni", "lab"] {
        let path = lab.program(name);
        let size = fs::metadata(&path).with_context(|| path.display().to_string())?.len();
        figures.add(format!("size_mib_{}", name.replace('-', "_")), size as f64 / MIB);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "12 (a ) b) S 1 12 12 0 -1 4194560 100 0 0 0 37 5 0 0 20 0 3 0 100 0 0";
        assert_eq!(ticks(stat), Some(42.0));
        assert_eq!(ticks("12"), None);
    }
}
