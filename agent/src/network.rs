//! The managed pod network: the CNI configuration and the kernel settings that routed pods need.
//!
//! The file is written whole and renamed into place; files of others in the folder are never read or changed.

use std::io;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::config::node::NetworkConfig;

/// Name of the file: early in the order, so that it wins over examples that packages leave.
const FILE: &str = "10-keelson.conflist";
/// Version every runtime in use understands.
const CNI_VERSION: &str = "1.0.0";
/// Kernel settings: path below /proc/sys, whether pods work without it, what it is for.
const SYSCTLS: [(&str, &str); 3] = [
    ("net/ipv4/ip_forward", "without it pods reach nobody outside their node"),
    ("net/bridge/bridge-nf-call-iptables", "without it Services do not work between pods of one node"),
    ("net/ipv6/conf/all/forwarding", "without it IPv6 pods reach nobody outside their node"),
];

/// The network cannot be set up. Retryable.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the CNI configuration {}: {source}", path.display())]
pub struct NetworkError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// The configuration for these pod ranges.
#[must_use]
pub fn conflist(config: &NetworkConfig, ranges: &[IpNet]) -> Value {
    let subnets: Vec<Value> = ranges.iter().map(|r| json!([{"subnet": r.to_string()}])).collect();
    let routes: Vec<Value> =
        ranges.iter().map(|r| json!({"dst": if matches!(r, IpNet::V4(_)) { "0.0.0.0/0" } else { "::/0" }})).collect();
    let mut bridge = json!({
        "type": "bridge",
        "bridge": config.bridge,
        "isGateway": true,
        "hairpinMode": true,
        "ipam": {"type": "host-local", "ranges": subnets, "routes": routes},
    });
    if let (Some(mtu), Some(map)) = (config.mtu, bridge.as_object_mut()) {
        map.insert("mtu".into(), json!(mtu));
    }
    json!({"cniVersion": CNI_VERSION, "name": "keelson", "plugins": [bridge]})
}

/// Writes the configuration; true when it has changed.
///
/// # Errors
/// When the folder or file cannot be written.
pub fn write(config: &NetworkConfig, ranges: &[IpNet]) -> Result<bool, NetworkError> {
    let path = config.conf_dir.join(FILE);
    let fail = |source| NetworkError { path: path.clone(), source };
    let text = format!("{:#}\n", conflist(config, ranges));
    if std::fs::read_to_string(&path).is_ok_and(|now| now == text) {
        return Ok(false);
    }
    std::fs::create_dir_all(&config.conf_dir).map_err(fail)?;
    // The runtime reads every *.conflist: the unfinished file must not have that ending.
    let temporary = config.conf_dir.join(".10-keelson.tmp");
    std::fs::write(&temporary, &text).map_err(fail)?;
    std::fs::rename(&temporary, &path).map_err(fail)?;
    info!(file = %path.display(), ?ranges, "CNI configuration written");
    Ok(true)
}

/// Turns on what the kernel must do for pods; says clearly what is missing.
pub fn enable_forwarding(ranges: &[IpNet]) {
    let v6 = ranges.iter().any(|r| matches!(r, IpNet::V6(_)));
    for (name, why) in SYSCTLS {
        let path = Path::new("/proc/sys").join(name);
        if (name.contains("ipv6") && !v6) || std::fs::read_to_string(&path).is_ok_and(|v| v.trim() == "1") {
            continue;
        }
        if name.contains("bridge-nf") && !path.exists() {
            // No br_netfilter: the kernel has it built in per namespace or not at all.
            warn!("{} is missing (load br_netfilter); {why}", path.display());
            continue;
        }
        if let Err(error) = std::fs::write(&path, "1") {
            warn!("cannot set {} to 1 ({error}); {why}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_written_once() {
        let dir = tempfile::tempdir().unwrap();
        let config = NetworkConfig { conf_dir: dir.path().join("net.d"), ..NetworkConfig::default() };
        let ranges = ["10.244.1.0/24".parse().unwrap()];
        assert!(write(&config, &ranges).unwrap());
        assert!(!write(&config, &ranges).unwrap());
        let text = std::fs::read_to_string(dir.path().join("net.d").join(FILE)).unwrap();
        let v: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(v["plugins"][0]["ipam"]["ranges"][0][0]["subnet"], "10.244.1.0/24");
        assert_eq!(v["plugins"][0]["ipam"]["routes"][0]["dst"], "0.0.0.0/0");
        assert_eq!(v["plugins"][0]["hairpinMode"], true);
    }
}
