//! What the machine is: addresses, processors, memory, kernel, identifiers. Read once at the start.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

/// Facts that do not change while the agent runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    /// Logical processors.
    pub cpus: i64,
    /// Memory in bytes.
    pub memory: i64,
    /// Kernel release.
    pub kernel: String,
    /// The distribution's name.
    pub os_image: String,
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// The hardware's identifier.
    pub system_uuid: String,
    /// Changes with every boot.
    pub boot_id: String,
    /// Go's name of the architecture.
    pub arch: String,
}

fn first_line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Memory from `/proc/meminfo`, in bytes.
fn memory(meminfo: &str) -> i64 {
    let kib = meminfo
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:"))
        .and_then(|l| l.split_whitespace().next())
        .and_then(|n| n.parse::<i64>().ok());
    kib.unwrap_or(0) * 1024
}

/// `PRETTY_NAME` of os-release.
fn os_image(release: &str) -> String {
    let name = release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches('"').to_owned()
}

/// Go's architecture names, which images and selectors use.
fn go_arch(arch: &str) -> String {
    match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
    .to_owned()
}

impl MachineFacts {
    /// Reads them.
    #[must_use]
    pub fn read() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            cpus: i64::try_from(cpus).unwrap_or(1),
            memory: memory(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default()),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            os_image: os_image(
                &std::fs::read_to_string("/etc/os-release")
                    .or_else(|_| std::fs::read_to_string("/usr/lib/os-release"))
                    .unwrap_or_default(),
            ),
            machine_id: first_line("/etc/machine-id"),
            system_uuid: first_line("/sys/class/dmi/id/product_uuid"),
            boot_id: first_line("/proc/sys/kernel/random/boot_id"),
            arch: go_arch(std::env::consts::ARCH),
        }
    }
}

/// The node's address: that of the route to the rest of the world, else the first global one.
#[must_use]
pub fn default_address() -> Option<IpAddr> {
    // Connecting a datagram socket asks the routing table; nothing is sent.
    let probe = |bind: &str, to: &str| {
        let socket = UdpSocket::bind(bind).ok()?;
        socket.connect(to).ok()?;
        socket.local_addr().ok().map(|a: SocketAddr| a.ip()).filter(|ip| !ip.is_unspecified())
    };
    probe("0.0.0.0:0", "192.0.2.1:9").or_else(|| probe("[::]:0", "[2001:db8::1]:9")).or_else(|| {
        nix::ifaddrs::getifaddrs().ok()?.find_map(|i| {
            let address = i.address?;
            let v4 = address.as_sockaddr_in()?.ip();
            (!v4.is_loopback() && !v4.is_link_local()).then_some(IpAddr::V4(v4))
        })
    })
}

/// Size and free bytes of the file system that holds `path`.
#[must_use]
pub fn disk(path: &Path) -> Option<(u64, u64)> {
    let s = nix::sys::statvfs::statvfs(path).ok()?;
    Some((s.blocks() * s.fragment_size(), s.blocks_available() * s.fragment_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        assert_eq!(memory("MemTotal:       1024 kB\nMemFree: 1 kB\n"), 1 << 20);
        assert_eq!(os_image("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n"), "Debian GNU/Linux 12");
        assert_eq!(go_arch("x86_64"), "amd64");
    }
}
