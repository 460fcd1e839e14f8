//! What a lab is made of, as a function of its name, number and size: addresses, machines, services. No I/O.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use ipnet::Ipv4Net;

use crate::machine::spec::{Bind, MachineSpec, ServiceSpec};
use crate::machine::{LOG_INSIDE, RUN_INSIDE};

/// The first two parts of every lab's network; the third is the lab's number.
const NETWORK: (u8, u8) = (10, 89);
/// The machine with the bridge.
pub const SWITCH: &str = "switch";
/// The machine with the API server.
pub const CONTROL_PLANE: &str = "control-plane";
/// The bridge in the switch.
pub const BRIDGE: &str = "br0";
/// The link that every other machine has.
pub const LINK: &str = "eth0";
/// Addresses of pods.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16";
/// Addresses of services.
pub const SERVICE_CIDR: &str = "10.96.0.0/16";
/// DNS domain of the cluster.
pub const CLUSTER_DOMAIN: &str = "cluster.local";
/// Address of the DNS Service, which the control plane makes.
pub const CLUSTER_DNS: &str = "10.96.0.10";
/// Port of the API server.
pub const API_PORT: u16 = 6443;
/// Most nodes a lab can have: their addresses end in 11 to 210.
pub const MAX_NODES: u8 = 200;
/// Programs that every machine finds in `/opt/keelson/bin`.
pub const PROGRAMS: &[&str] = &["lab", "control-plane", "agent", "dataplane", "keelson-cni"];
/// Names under which containerd and the agent call the CNI program.
const CNI_NAMES: &[&str] = &["loopback", "bridge", "host-local", "portmap"];

/// One lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Its number on this host, 1 to 250.
    pub number: u8,
    /// Its folder.
    pub folder: PathBuf,
    /// Where the images are.
    pub images: PathBuf,
    /// How many nodes it has.
    pub nodes: u8,
    /// Flags of the control plane beside those that every lab has.
    pub control_plane_args: Vec<String>,
}

impl Plan {
    /// The lab's network.
    pub fn network(&self) -> Ipv4Net {
        network(self.number)
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(NETWORK.0, NETWORK.1, self.number, last)
    }

    /// The host's own address in the lab.
    pub fn host(&self) -> Ipv4Addr {
        self.address(1)
    }

    /// The API server's address.
    pub fn control_plane(&self) -> Ipv4Addr {
        self.address(2)
    }

    /// The switch, which is the gateway of all machines.
    pub fn gateway(&self) -> Ipv4Addr {
        self.address(254)
    }

    /// Node `index`, counted from 1.
    pub fn node(&self, index: u8) -> Ipv4Addr {
        self.address(10 + index)
    }

    /// An address with the length of the lab's network.
    pub fn with_length(&self, address: Ipv4Addr) -> Ipv4Net {
        Ipv4Net::new_assert(address, self.network().prefix_len())
    }

    /// The host's link into the lab.
    pub fn host_link(&self) -> String {
        host_link(self.number)
    }

    /// The cgroup of the whole lab.
    pub fn group(&self) -> PathBuf {
        PathBuf::from(format!("keelson-{}-{}", self.name, self.number))
    }

    /// Where clients find the API server.
    pub fn server(&self) -> String {
        format!("https://{}:{API_PORT}", self.control_plane())
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// The API server's data, on the host.
    pub fn data_dir(&self) -> PathBuf {
        self.machine_folder(CONTROL_PLANE).join("var/lib/keelson")
    }

    /// The folder of a machine.
    pub fn machine_folder(&self, machine: &str) -> PathBuf {
        self.folder.join(machine)
    }

    /// Names of the nodes.
    pub fn node_names(&self) -> Vec<String> {
        (1..=self.nodes).map(node_name).collect()
    }

    /// Every machine, in start order, with its address.
    pub fn machines(&self) -> Vec<(String, Ipv4Addr)> {
        let mut all = vec![(SWITCH.to_owned(), self.gateway()), (CONTROL_PLANE.to_owned(), self.control_plane())];
        all.extend((1..=self.nodes).map(|index| (node_name(index), self.node(index))));
        all
    }

    /// The description of a machine by its name.
    pub fn spec(&self, machine: &str) -> MachineSpec {
        let folder = self.machine_folder(machine);
        let group = self.group().join(machine);
        if machine == SWITCH {
            return MachineSpec {
                hostname: SWITCH.to_owned(),
                folder,
                group,
                rooted: false,
                binds: Vec::new(),
                links: Vec::new(),
                services: Vec::new(),
            };
        }
        let (etc, links, services): (&[&str], _, _) = if machine == CONTROL_PLANE {
            (&["kubernetes"], Vec::new(), vec![self.control_plane_service()])
        } else {
            (&["cni", "containerd", "kubernetes", "keelson"], cni_links(), node_services())
        };
        let mut binds = vec![
            bind(&folder.join("var"), "/var"),
            bind(&folder.join("tmp"), "/tmp"),
            bind(&folder.join("run"), RUN_INSIDE),
            bind(&folder.join("log"), LOG_INSIDE),
            read_only(&self.folder.join("bin"), "/opt/keelson/bin"),
            read_only(&self.images, "/opt/keelson/images"),
        ];
        binds.extend(etc.iter().map(|name| bind(&folder.join("etc").join(name), &format!("/etc/{name}"))));
        let mut all_links = vec![(PathBuf::from("/var/run"), PathBuf::from("/run"))];
        all_links.extend(links);
        MachineSpec { hostname: machine.to_owned(), folder, group, rooted: true, binds, links: all_links, services }
    }

    fn control_plane_service(&self) -> ServiceSpec {
        let address = self.control_plane().to_string();
        let port = API_PORT.to_string();
        let flags = [
            ("--data-dir", "/var/lib/keelson"),
            ("--bind-address", "0.0.0.0"),
            ("--secure-port", &port),
            ("--advertise-address", &address),
            ("--service-cluster-ip-range", SERVICE_CIDR),
            ("--cluster-cidr", CLUSTER_CIDR),
            ("--service-node-port-range", "30000-32767"),
            ("--cluster-domain", CLUSTER_DOMAIN),
            ("--cluster-dns-ip", CLUSTER_DNS),
        ];
        let mut command = vec!["/opt/keelson/bin/control-plane".to_owned(), "serve".to_owned()];
        command.extend(flags.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]));
        command.extend(self.control_plane_args.iter().cloned());
        service(CONTROL_PLANE, command)
    }
}

/// The network of lab `number`.
pub fn network(number: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(NETWORK.0, NETWORK.1, number, 0), 24)
}

/// The host's link of lab `number`; its existence is what reserves the number.
pub fn host_link(number: u8) -> String {
    format!("kl{number}")
}

/// The numbers whose network no route of the host meets, best first. A route that is much wider than a lab (a VPN's
/// 10.0.0.0/8) only counts when nothing better is left: the lab's own route is more exact than it.
pub fn free_numbers(routes: &[Ipv4Net]) -> Vec<u8> {
    const WIDE: u8 = 16;
    let meets = |number: u8, widest: u8| {
        let lab = network(number);
        routes
            .iter()
            .filter(|route| route.prefix_len() >= widest)
            .any(|route| route.contains(&lab) || lab.contains(route))
    };
    let clean: Vec<u8> = (1..=250).filter(|number| !meets(*number, 1)).collect();
    if clean.is_empty() {
        return (1..=250).filter(|number| !meets(*number, WIDE)).collect();
    }
    clean
}

/// Name of node `index`, counted from 1.
pub fn node_name(index: u8) -> String {
    format!("node-{index}")
}

fn bind(from: &Path, to: &str) -> Bind {
    Bind { from: from.to_path_buf(), to: PathBuf::from(to), read_only: false }
}

fn read_only(from: &Path, to: &str) -> Bind {
    Bind { read_only: true, ..bind(from, to) }
}

fn cni_links() -> Vec<(PathBuf, PathBuf)> {
    let program = PathBuf::from("/opt/keelson/bin/keelson-cni");
    CNI_NAMES.iter().map(|name| (Path::new("/opt/cni/bin").join(name), program.clone())).collect()
}

fn service(name: &str, command: Vec<String>) -> ServiceSpec {
    ServiceSpec { name: name.to_owned(), command, environment: BTreeMap::new() }
}

fn node_services() -> Vec<ServiceSpec> {
    let of = |words: &[&str]| words.iter().map(ToString::to_string).collect();
    vec![
        service("registry", of(&["/opt/keelson/bin/lab", "registry", "--images", "/opt/keelson/images"])),
        service("containerd", of(&["containerd", "--config", "/etc/containerd/config.toml"])),
        service("agent", of(&["/opt/keelson/bin/agent", "--config", "/etc/keelson/node.yaml"])),
        service("dataplane", of(&["/opt/keelson/bin/dataplane", "--config", "/etc/keelson/proxy.yaml"])),
    ]
}

/// Whether a lab may have this name: it becomes a folder, a cgroup and part of messages.
pub fn valid_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty() && name.len() <= 40 && name.chars().all(inner) && !name.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            name: "lab".to_owned(),
            number: 7,
            folder: PathBuf::from("/t/lab/lab"),
            images: PathBuf::from("/t/images"),
            nodes: 2,
            control_plane_args: Vec::new(),
        }
    }

    #[test]
    fn addresses_follow_the_number() {
        let plan = plan();
        assert_eq!(plan.server(), "https://10.89.7.2:6443");
        assert_eq!(plan.node(2).to_string(), "10.89.7.12");
        let names: Vec<String> = plan.machines().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["switch", "control-plane", "node-1", "node-2"]);
        let mut addresses: Vec<Ipv4Addr> = plan.machines().into_iter().map(|(_, address)| address).collect();
        addresses.push(plan.host());
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 5);
    }

    #[test]
    fn a_taken_network_is_left_out() {
        let routes = ["10.89.1.0/24", "10.89.3.128/25", "192.0.2.0/24"].map(|route| route.parse().unwrap());
        assert_eq!(free_numbers(&routes)[..3], [2, 4, 5]);
    }

    #[test]
    fn a_very_wide_route_does_not_forbid_labs() {
        let routes = ["10.0.0.0/8", "10.89.1.0/24"].map(|route| route.parse().unwrap());
        assert_eq!(free_numbers(&routes)[0], 2);
    }

    #[test]
    fn names_that_could_leave_the_folder_are_refused() {
        assert!(valid_name("lab") && valid_name("test-2"));
        for name in ["", "..", "a/b", "-x", "A", "a b"] {
            assert!(!valid_name(name), "{name:?}");
        }
    }

    #[test]
    fn a_node_finds_the_plugins_under_their_names() {
        let spec = plan().spec("node-1");
        assert!(spec.links.iter().any(|(name, _)| name == Path::new("/opt/cni/bin/host-local")));
        assert_eq!(spec.group, Path::new("keelson-lab-7/node-1"));
    }
}
