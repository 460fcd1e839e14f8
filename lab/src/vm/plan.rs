//! What a lab of virtual machines is made of, as a function of its record: names, addresses, sizes. No I/O.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::recipe::Os;

/// The machine with the API server.
pub const CONTROL_PLANE: &str = "control-plane";
/// The first two parts of every network of guests; the third is the lab's number. Only guests know these addresses.
const NETWORK: (u8, u8) = (10, 90);
/// UDP port of lab 1's network on the loopback device, less one.
const FIRST_PORT: u16 = 17700;
/// Most labs of guests at once.
pub const MAX_NUMBER: u8 = 99;
/// Most workers of a lab.
pub const MAX_NODES: u8 = 20;
/// Memory of a control plane in MiB.
const CONTROL_PLANE_MEMORY: u32 = 640;
/// Memory of a worker in MiB.
const NODE_MEMORY: u32 = 768;
/// Memory of a machine that is both, in MiB.
const BOTH_MEMORY: u32 = 1024;

/// What a machine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It runs the API server and no pods.
    ControlPlane,
    /// It runs pods.
    Node,
    /// It does both.
    Both,
}

impl Role {
    /// Whether it runs the API server.
    pub fn is_control_plane(self) -> bool {
        self != Self::Node
    }

    /// Whether it runs pods.
    pub fn is_node(self) -> bool {
        self != Self::ControlPlane
    }
}

/// What is remembered of a lab of guests: `vm.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its number on this host.
    pub number: u8,
    /// The workers' distributions; the control plane has the first worker's.
    pub nodes: Vec<Os>,
    /// The first worker runs the control plane too, which then has no machine of its own.
    #[serde(default)]
    pub compact: bool,
}

/// One machine of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Its place: 0 is a control plane of its own.
    pub index: u8,
    /// Its distribution.
    pub os: Os,
    /// Its address.
    pub address: Ipv4Addr,
    /// Memory in MiB.
    pub memory: u32,
    /// Processors, when the host has some to give: see `qemu::arguments`.
    pub cpus: u8,
}

impl Record {
    /// A lab with `nodes` workers whose distributions are taken from `list` in turn.
    pub fn new(number: u8, nodes: u8, list: &[Os], compact: bool) -> Self {
        let list = if list.is_empty() { &[Os::Debian12] } else { list };
        Self { number, nodes: list.iter().copied().cycle().take(usize::from(nodes)).collect(), compact }
    }

    /// Every machine, the one with the control plane first.
    pub fn machines(&self) -> Vec<Machine> {
        let machine = |name: String, role: Role, index: u8, os: Os| Machine {
            name,
            role,
            index,
            os,
            address: address(self.number, index),
            memory: match role {
                Role::ControlPlane => CONTROL_PLANE_MEMORY,
                Role::Node => NODE_MEMORY,
                Role::Both => BOTH_MEMORY,
            },
            cpus: 2,
        };
        let first = self.nodes.first().copied().unwrap_or(Os::Debian12);
        let own = (!self.compact).then(|| machine(CONTROL_PLANE.to_owned(), Role::ControlPlane, 0, first));
        let nodes = (1u8..).zip(&self.nodes).map(|(index, os)| {
            let role = if self.compact && index == 1 { Role::Both } else { Role::Node };
            machine(format!("node-{index}"), role, index, *os)
        });
        own.into_iter().chain(nodes).collect()
    }

    /// The machine that is meant by this name: `control-plane` is also the name of a node that runs it.
    pub fn machine(&self, name: &str) -> Option<Machine> {
        let control_plane = |machine: &Machine| name == CONTROL_PLANE && machine.role.is_control_plane();
        self.machines().into_iter().find(|machine| machine.name == name || control_plane(machine))
    }
}

impl Machine {
    /// Hardware address, in the range that QEMU uses by habit; the last parts are the lab's and the machine's numbers.
    pub fn mac(&self, number: u8) -> String {
        format!("52:54:00:4b:{number:02x}:{:02x}", self.index)
    }
}

/// The control plane is .10, the workers follow.
fn address(number: u8, index: u8) -> Ipv4Addr {
    Ipv4Addr::new(NETWORK.0, NETWORK.1, number, 10 + index)
}

/// A router that no machine is: a default route must lead somewhere, so that connections to service addresses begin at all.
pub fn gateway(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(NETWORK.0, NETWORK.1, number, 254)
}

/// The port on which a lab's guests exchange their frames.
pub fn port(number: u8) -> u16 {
    FIRST_PORT + u16::from(number)
}

/// The multicast group of a lab; it never leaves the loopback device.
pub fn group(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(239, 192, 90, number)
}

/// Folder of everything that has to do with guests, below the folder of all labs.
pub fn root(labs: &Path) -> PathBuf {
    labs.join(".vm")
}

/// Folder of one lab of guests.
pub fn folder(labs: &Path, name: &str) -> PathBuf {
    root(labs).join("labs").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_have_addresses_of_their_own_and_distributions_in_turn() {
        let machines = Record::new(3, 3, &[Os::Debian12, Os::Debian13], false).machines();
        let names: Vec<&str> = machines.iter().map(|machine| machine.name.as_str()).collect();
        assert_eq!(names, ["control-plane", "node-1", "node-2", "node-3"]);
        let systems: Vec<Os> = machines.iter().map(|machine| machine.os).collect();
        assert_eq!(systems, [Os::Debian12, Os::Debian12, Os::Debian13, Os::Debian12]);
        assert_eq!(machines[2].address.to_string(), "10.90.3.12");
        assert_eq!(machines[2].mac(3), "52:54:00:4b:03:02");
    }

    #[test]
    fn a_compact_lab_has_its_control_plane_on_the_first_node() {
        let record = Record::new(3, 2, &[Os::Debian12, Os::Debian13], true);
        let roles: Vec<(String, Role)> = record.machines().into_iter().map(|m| (m.name, m.role)).collect();
        assert_eq!(roles, [("node-1".to_owned(), Role::Both), ("node-2".to_owned(), Role::Node)]);
        assert_eq!(record.machine(CONTROL_PLANE), record.machine("node-1"));
        assert_eq!(record.machine("node-1").unwrap().address.to_string(), "10.90.3.11");
        assert_eq!(record.machine("node-3"), None);
        let apart = Record { compact: false, ..record };
        assert_ne!(apart.machine(CONTROL_PLANE), apart.machine("node-1"));
    }

    #[test]
    fn labs_share_neither_port_nor_group() {
        assert_eq!((port(1), group(1).to_string()), (17701, "239.192.90.1".to_owned()));
        assert_ne!(port(2), port(1));
    }
}
