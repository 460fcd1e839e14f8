//! The CNI configuration of the managed network: a bridge with addresses from the node's pod ranges, and host ports.
//!
//! The file is written whole and renamed into place; files of others in the folder are never read or changed.

use std::io;
use std::path::PathBuf;

use ipnet::IpNet;
use serde_json::{Value, json};
use tracing::info;

use crate::config::node::NetworkConfig;

/// Name of the file: early in the order, so that it wins over examples that packages leave.
const FILE: &str = "10-keelson.conflist";
/// The network's name: addresses and results on disk go by it.
pub const NETWORK: &str = "keelson";
/// Version every runtime in use understands.
const CNI_VERSION: &str = "1.0.0";
/// The network cannot be set up. Retryable.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the CNI configuration {}: {source}", path.display())]
pub struct NetworkError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// The configuration for these pod ranges; without an MTU pods get the kernel's default.
#[must_use]
pub fn conflist(config: &NetworkConfig, mtu: Option<u32>, ranges: &[IpNet]) -> Value {
    let subnets: Vec<Value> = ranges.iter().map(|r| json!([{"subnet": r.to_string()}])).collect();
    let routes: Vec<Value> =
        ranges.iter().map(|r| json!({"dst": if matches!(r, IpNet::V4(_)) { "0.0.0.0/0" } else { "::/0" }})).collect();
    let mut bridge = json!({
        "type": "bridge",
        "bridge": config.bridge,
        "isGateway": true,
        "hairpinMode": true,
        // After the node was given other ranges the bridge must not keep the old gateway's address.
        "forceAddress": true,
        "ipam": {"type": "host-local", "ranges": subnets, "routes": routes},
    });
    if let (Some(mtu), Some(map)) = (mtu, bridge.as_object_mut()) {
        map.insert("mtu".into(), json!(mtu));
    }
    let ports = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    json!({"cniVersion": CNI_VERSION, "name": NETWORK, "plugins": [bridge, ports]})
}

/// Writes the configuration; true when it has changed.
///
/// # Errors
/// When the folder or file cannot be written.
pub fn write(config: &NetworkConfig, mtu: Option<u32>, ranges: &[IpNet]) -> Result<bool, NetworkError> {
    let path = config.conf_dir.join(FILE);
    let fail = |source| NetworkError { path: path.clone(), source };
    let text = format!("{:#}\n", conflist(config, mtu, ranges));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_written_once() {
        let dir = tempfile::tempdir().unwrap();
        let config = NetworkConfig { conf_dir: dir.path().join("net.d"), ..NetworkConfig::default() };
        let ranges = ["10.244.1.0/24".parse().unwrap()];
        assert!(write(&config, None, &ranges).unwrap());
        assert!(!write(&config, None, &ranges).unwrap());
        let text = std::fs::read_to_string(dir.path().join("net.d").join(FILE)).unwrap();
        let v: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(v["plugins"][0]["ipam"]["ranges"][0][0]["subnet"], "10.244.1.0/24");
        assert_eq!(v["plugins"][0]["ipam"]["routes"][0]["dst"], "0.0.0.0/0");
        assert_eq!(v["plugins"][0]["hairpinMode"], true);
        assert_eq!(v["plugins"][0]["mtu"], Value::Null);
        assert_eq!(v["plugins"][1]["type"], "portmap");
        assert_eq!(v["plugins"][1]["capabilities"]["portMappings"], true);
    }
}
