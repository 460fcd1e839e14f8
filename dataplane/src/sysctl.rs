//! Kernel settings outside nf_tables: conntrack limits and the OOM score. All of them are tolerated
//! to fail: in a child network namespace some are read-only, and root may lack a capability.

use std::path::Path;

use crate::config::Config;

/// Upstream's `conntrack.maxPerCore` and `conntrack.min`.
const DEFAULT_MAX_PER_CORE: u32 = 32_768;
const DEFAULT_MIN: u32 = 131_072;

fn read(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn write(name: &str, value: u64, only_raise: bool) {
    let path = Path::new("/proc/sys/net/netfilter").join(name);
    let now = read(&path);
    if now == Some(value) || (only_raise && now.is_some_and(|now| now >= value)) {
        return;
    }
    if let Err(error) = std::fs::write(&path, value.to_string()) {
        tracing::info!(path = %path.display(), value, %error, "kernel setting left as it is");
    }
}

/// Applies what the configuration asks for.
pub fn apply(config: &Config) {
    let conntrack = &config.conntrack;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let per_core = u64::from(conntrack.max_per_core.unwrap_or(DEFAULT_MAX_PER_CORE));
    if per_core > 0 {
        let max = (per_core * cores).max(u64::from(conntrack.min.unwrap_or(DEFAULT_MIN)));
        write("nf_conntrack_max", max, true);
    }
    let timeouts = [
        ("nf_conntrack_tcp_timeout_established", conntrack.tcp_established_timeout, 24 * 3600),
        ("nf_conntrack_tcp_timeout_close_wait", conntrack.tcp_close_wait_timeout, 3600),
        ("nf_conntrack_udp_timeout", conntrack.udp_timeout, 0),
        ("nf_conntrack_udp_timeout_stream", conntrack.udp_stream_timeout, 0),
    ];
    for (name, wanted, default) in timeouts {
        let seconds = wanted.map_or(default, |d| d.0.as_secs());
        if seconds > 0 {
            write(name, seconds, false);
        }
    }
    if conntrack.tcp_be_liberal {
        write("nf_conntrack_tcp_be_liberal", 1, false);
    }
}

/// Sets the own OOM score.
pub fn oom_score(wanted: i32) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", wanted.to_string()) {
        tracing::info!(wanted, %error, "OOM score left as it is");
    }
}
