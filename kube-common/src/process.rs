//! What every program says of its own process at `/metrics`, under the names of Prometheus' client libraries.
//!
//! Read from `/proc` at each scrape; nothing is kept or polled.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Ticks per second of `/proc/self/stat`: `USER_HZ` is 100 on every architecture that Linux has for servers.
const TICKS: f64 = 100.0;

/// Collects `process_*`.
#[derive(Debug)]
pub struct ProcessCollector;

/// The fields of `/proc/PID/stat` after the command's closing bracket (which may hold spaces): state is field 3.
fn field(stat: &str, number: usize) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(number.checked_sub(3)?)?.parse().ok()
}

/// Seconds of CPU, user and system.
fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) as f64 / TICKS)
}

/// Unix time of the start: boot time plus the start in ticks after boot.
fn start_seconds(stat: &str, system: &str) -> Option<f64> {
    let boot = system.lines().find_map(|l| l.strip_prefix("btime "))?.trim().parse::<u64>().ok()?;
    Some(boot as f64 + field(stat, 22)? as f64 / TICKS)
}

/// A value of `/proc/self/status` given in kB, in bytes.
fn memory(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib * 1024)
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let (stat, status) = (read("/proc/self/stat"), read("/proc/self/status"));
        if let Some(seconds) = cpu_seconds(&stat) {
            let metric = ConstCounter::new(seconds);
            let help = "User and system CPU time spent in seconds";
            metric.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, metric.metric_type())?)?;
        }
        let mut gauge = |name: &str, help: &str, value: Option<f64>| {
            let Some(value) = value else { return Ok(()) };
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        let bytes = |key: &str| memory(&status, key).map(|b| b as f64);
        gauge("process_resident_memory_bytes", "Resident memory size in bytes", bytes("VmRSS"))?;
        gauge("process_virtual_memory_bytes", "Virtual memory size in bytes", bytes("VmSize"))?;
        let start = start_seconds(&stat, &read("/proc/stat"));
        gauge("process_start_time_seconds", "Start time of the process since the Unix epoch in seconds", start)?;
        let files = std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64);
        gauge("process_open_fds", "Open file descriptors", files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_behind_a_command_with_brackets() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 1200 1000 20";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(start_seconds(stat, "cpu 1\nbtime 1000\n"), Some(1012.0));
        assert_eq!(cpu_seconds("garbage"), None);
    }

    #[test]
    fn this_process_shows_itself() {
        let endpoints = crate::serve::Endpoints::new();
        let text = endpoints.metrics_text();
        for name in ["process_cpu_seconds_total ", "process_resident_memory_bytes ", "process_start_time_seconds "] {
            let line = text.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_else(|| panic!("{name} in {text}"));
            assert!(line.parse::<f64>().unwrap() >= 0.0, "{line}");
        }
    }
}
