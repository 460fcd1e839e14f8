//! ADD: bridge, veth pair, addresses, routes; undone when a step fails.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use tokio::time::{Instant, sleep};

use super::conf::Conf;
use super::{BridgeError, gateways};
use crate::config::ConfigError;
use crate::error::Error;
use crate::ipam;
use crate::masquerade;
use crate::net::{self, Link, Net, NetError, NetNs, PeerSpec, PortOptions, sysctl};
use crate::skel::{Command, Request};
use crate::types::{AddResult, Interface, Route};

const EEXIST: i32 = 17;
const EOPNOTSUPP: i32 = 95;
/// Tries for a free random name of 32 bits: one is nearly always enough.
const NAME_TRIES: u32 = 10;
/// How long a port may take to come up; the sum of the reference's waits.
const PORT_LIMIT: Duration = Duration::from_millis(2550);
/// How long duplicate address detection may take, as in the reference.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);
/// First and longest pause between two looks at the kernel's state; the first look nearly always suffices.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// What must be taken back when a later step fails.
#[derive(Default)]
struct Undo {
    veth: Option<String>,
    masqueraded: Vec<IpAddr>,
    addresses: bool,
}

/// Attaches a container.
pub fn add(request: &Request) -> Result<AddResult, Error> {
    let conf = Conf::load(request)?;
    let namespace = NetNs::open(&request.netns)?;
    net::runtime()?.block_on(async {
        let host = Net::here()?;
        let inside = Net::inside(&namespace)?;
        let job = Job { request, conf, namespace: &namespace, host, inside };
        let mut undo = Undo::default();
        let outcome = job.run(&mut undo).await;
        if outcome.is_err() {
            job.undo(undo).await;
        }
        outcome
    })
}

struct Job<'a> {
    request: &'a Request,
    conf: Conf,
    namespace: &'a NetNs,
    host: Net,
    inside: Net,
}

impl Job<'_> {
    async fn run(&self, undo: &mut Undo) -> Result<AddResult, Error> {
        // Addresses first: they get to the disk while the kernel makes the interfaces.
        let (mut result, pending) = match &self.conf.ipam {
            Some(plugin) => self.allocate(plugin, undo)?.split(),
            None => Default::default(),
        };
        let bridge = self.ensure_bridge().await?;
        let host_end = self.add_pair(&bridge, undo).await?;
        let container_end = self.inside.existing_link(&self.request.ifname).await?;
        let gateways = gateways::complete(&mut result, &self.conf);
        if self.conf.ipam.is_some() {
            self.configure_inside(&container_end, &result).await?;
        } else if !self.conf.leave_down {
            self.inside.set_up(&container_end).await?;
        }
        if self.conf.masquerade {
            undo.masqueraded = result.ips.iter().map(|ip| ip.address.addr()).collect();
            masquerade::add(&result.ips.iter().map(|ip| ip.address).collect::<Vec<_>>())?;
        }
        let vlan_interface = self.configure_gateways(&bridge, &gateways).await?;
        // The bridge's own address may have changed with its first port.
        let host_end = if self.conf.leave_down { host_end } else { self.wait_for_port(&host_end.name).await? };
        let bridge = self.host.existing_link(&self.conf.bridge).await?;
        let sandbox = self.namespace.path().display().to_string();
        result.interfaces = vec![describe(&bridge, ""), describe(&host_end, ""), describe(&container_end, &sandbox)];
        result.interfaces.extend(vlan_interface.map(|link| describe(&link, "")));
        if !self.conf.dns.is_empty() {
            result.dns = self.conf.dns.clone();
        }
        pending.wait()?;
        Ok(result)
    }

    async fn ensure_bridge(&self) -> Result<Link, Error> {
        let name = &self.conf.bridge;
        let bridge = match self.host.link(name).await? {
            Some(link) => link,
            None => {
                let mac = net::random_mac().map_err(BridgeError::Random)?;
                let added = self.host.add_bridge(name, mac, self.conf.mtu, self.conf.vlan_filtering).await;
                accept_existing(added).map_err(|error| self.explain(error))?;
                self.host.existing_link(name).await?
            }
        };
        if !bridge.is_bridge() {
            return Err(BridgeError::NotABridge(name.clone()).into());
        }
        if self.conf.vlan_filtering && !bridge.vlan_filtering {
            // As in the reference, which leaves an existing bridge as it is; but not without a word.
            eprintln!("keelson-cni: bridge {name} exists without vlan_filtering: VLANs will not be kept apart");
        }
        if self.conf.promiscuous && !bridge.promiscuous {
            self.host.set_promiscuous(&bridge).await?;
        }
        // A pod must not configure the host by router advertisements (CVE-2020-10749).
        sysctl::set_if_there(&format!("net/ipv6/conf/{name}/accept_ra"), "0");
        if !bridge.up {
            self.host.set_up(&bridge).await?;
        }
        Ok(bridge)
    }

    /// Many kernels lack one part of the bridge.
    fn explain(&self, error: NetError) -> Error {
        if self.conf.vlan_filtering && error.errno() == Some(EOPNOTSUPP) {
            return BridgeError::NoVlans(self.conf.bridge.clone()).into();
        }
        error.into()
    }

    /// Makes the pair with the far end in the container, and sets up the port.
    async fn add_pair(&self, bridge: &Link, undo: &mut Undo) -> Result<Link, Error> {
        let ifname = &self.request.ifname;
        if self.inside.link(ifname).await?.is_some() {
            return Err(BridgeError::InterfaceExists(ifname.clone()).into());
        }
        let peer = PeerSpec { name: ifname, mac: self.conf.mac, netns: Some(self.namespace.raw_fd()) };
        let name = self.add_veth(bridge, peer).await?;
        undo.veth = Some(name.clone());
        let link = self.host.existing_link(&name).await?;
        self.set_up_port(bridge, &link, self.conf.port).await?;
        Ok(link)
    }

    async fn add_veth(&self, bridge: &Link, peer: PeerSpec<'_>) -> Result<String, Error> {
        for _ in 0..NAME_TRIES {
            let name = net::random_host_name().map_err(BridgeError::Random)?;
            match self.host.add_veth(&name, self.conf.mtu, bridge.index, peer).await {
                Ok(()) => return Ok(name),
                Err(error) if error.errno() == Some(EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(BridgeError::NoFreeName(NAME_TRIES).into())
    }

    async fn set_up_port(&self, bridge: &Link, link: &Link, options: PortOptions) -> Result<(), Error> {
        sysctl::set_if_there(&format!("net/ipv6/conf/{}/accept_ra", link.name), "0");
        self.host.set_up_port(link, options).await?;
        let tagged = self.conf.vlan.is_some() || !self.conf.trunk.is_empty();
        let default = bridge.default_pvid.filter(|vlan| *vlan != 0 && tagged && !self.conf.preserve_default_vlan);
        if let Some(vlan) = default {
            self.host.remove_port_vlan(link, vlan).await?;
        }
        if let Some(vlan) = self.conf.vlan {
            self.host.add_port_vlan(link, vlan, true).await?;
        }
        for vlan in &self.conf.trunk {
            self.host.add_port_vlan(link, *vlan, false).await?;
        }
        Ok(())
    }

    fn allocate(&self, plugin: &str, undo: &mut Undo) -> Result<ipam::Added, Error> {
        let added = ipam::add(plugin, self.request)?;
        undo.addresses = true;
        if added.result.ips.is_empty() {
            return Err(BridgeError::NoAddress.into());
        }
        let crossed = |route: &&Route| route.gw.is_some_and(|gateway| gateway.is_ipv4() != route.dst.addr().is_ipv4());
        if let Some(route) = added.result.routes.iter().find(crossed) {
            let reason = format!("route {} has a gateway of the other family", route.dst);
            return Err(ConfigError::invalid("ipam.routes", reason).into());
        }
        Ok(added)
    }

    /// Settings before addresses, addresses before up (so that the announcement has something to announce), up before routes.
    async fn configure_inside(&self, link: &Link, result: &AddResult) -> Result<(), Error> {
        let has_v6 = result.ips.iter().any(|ip| ip.address.addr().is_ipv6());
        self.namespace.run(|| set_inside(&link.name, has_v6, self.conf.dad))?;
        for ip in &result.ips {
            self.inside.add_address(link, ip.address).await?;
        }
        self.inside.set_up(link).await?;
        if has_v6 {
            self.settle(link).await?;
        }
        for route in &result.routes {
            let gateway: Option<IpAddr> = gateways::next_hop(route, &result.ips);
            self.inside.add_route(link, route, gateway).await?;
        }
        Ok(())
    }

    async fn settle(&self, link: &Link) -> Result<(), Error> {
        let mut wait = Wait::new(SETTLE_LIMIT);
        while self.inside.has_tentative_address(link).await? {
            if !wait.pause().await {
                return Err(BridgeError::Tentative(link.name.clone(), SETTLE_LIMIT.as_secs()).into());
            }
        }
        Ok(())
    }

    async fn wait_for_port(&self, name: &str) -> Result<Link, Error> {
        let mut wait = Wait::new(PORT_LIMIT);
        loop {
            let link = self.host.existing_link(name).await?;
            if link.running {
                return Ok(link);
            }
            if !wait.pause().await {
                return Err(BridgeError::PortDown(name.to_owned()).into());
            }
        }
    }

    /// Gives the gateways' addresses to the bridge, or to an interface in the bridge's VLAN.
    async fn configure_gateways(&self, bridge: &Link, gateways: &[IpNet]) -> Result<Option<Link>, Error> {
        if gateways.is_empty() {
            return Ok(None);
        }
        let vlan_interface = match self.conf.vlan {
            Some(vlan) => Some(self.ensure_vlan_interface(bridge, vlan).await?),
            None => None,
        };
        let carrier = vlan_interface.as_ref().unwrap_or(bridge);
        for gateway in gateways {
            self.ensure_address(carrier, *gateway).await?;
        }
        if gateways.iter().any(|gateway| gateway.addr().is_ipv4()) {
            sysctl::set("net/ipv4/ip_forward", "1")?;
        }
        if gateways.iter().any(|gateway| gateway.addr().is_ipv6()) {
            sysctl::set("net/ipv6/conf/all/forwarding", "1")?;
        }
        Ok(vlan_interface)
    }

    async fn ensure_vlan_interface(&self, bridge: &Link, vlan: u16) -> Result<Link, Error> {
        let name = format!("{}.{vlan}", bridge.name);
        if let Some(link) = self.host.link(&name).await? {
            return Ok(link);
        }
        let port = self.add_veth(bridge, PeerSpec { name: &name, mac: None, netns: None }).await?;
        let port = self.host.existing_link(&port).await?;
        self.set_up_port(bridge, &port, PortOptions::default()).await?;
        let link = self.host.existing_link(&name).await?;
        self.host.set_up(&link).await?;
        Ok(link)
    }

    async fn ensure_address(&self, link: &Link, wanted: IpNet) -> Result<(), Error> {
        for found in self.host.addresses(link).await? {
            if found == wanted {
                return Ok(());
            }
            // IPv6 subnets may live side by side as long as they do not overlap.
            let same_family = found.addr().is_ipv4() == wanted.addr().is_ipv4();
            let overlap = found.contains(&wanted.addr()) || wanted.contains(&found.addr());
            if same_family && (wanted.addr().is_ipv4() || overlap) {
                if !self.conf.force_address {
                    return Err(BridgeError::OtherAddress { bridge: link.name.clone(), wanted, found }.into());
                }
                self.host.delete_address(link, found).await?;
            }
        }
        self.host.add_address(link, wanted).await?;
        // A bridge that somebody else has made may still change its address with its ports. This fixes the one it had before
        // the container's port joined; a bridge that has lost all its ports may have none.
        let mac = match net::parse_mac(&link.mac) {
            Some(mac) if mac != [0; 6] => mac,
            _ => net::random_mac().map_err(BridgeError::Random)?,
        };
        Ok(self.host.set_mac(link, mac).await?)
    }

    /// Takes everything back. The first error is what the caller hears; these go to the log.
    async fn undo(&self, undo: Undo) {
        if let Some(name) = undo.veth {
            let deleted = match self.host.link(&name).await {
                Ok(Some(link)) => self.host.delete_link(&link).await,
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = deleted {
                eprintln!("keelson-cni: undoing a failed ADD: {error}");
            }
        }
        if !undo.masqueraded.is_empty()
            && let Err(error) = masquerade::remove(&undo.masqueraded)
        {
            eprintln!("keelson-cni: undoing a failed ADD: {error}");
        }
        let Some(plugin) = self.conf.ipam.as_ref().filter(|_| undo.addresses) else { return };
        if let Err(error) = ipam::call(plugin, &self.request.with_command(Command::Del)) {
            eprintln!("keelson-cni: undoing a failed ADD: {error}");
        }
    }
}

/// Another ADD may have been quicker.
fn accept_existing(added: Result<(), NetError>) -> Result<(), NetError> {
    match added {
        Err(error) if error.errno() == Some(EEXIST) => Ok(()),
        other => other,
    }
}

/// Runs inside the container's namespace.
fn set_inside(name: &str, has_v6: bool, dad: bool) {
    // Hairpin mode echoes neighbour solicitations, which looks like a duplicate: no detection unless asked for.
    if dad {
        sysctl::set_if_there(&format!("net/ipv6/conf/{name}/enhanced_dad"), "1");
    }
    sysctl::set_if_there(&format!("net/ipv6/conf/{name}/accept_dad"), if dad { "1" } else { "0" });
    // Neighbours that remember the address's former owner are told.
    sysctl::set_if_there(&format!("net/ipv4/conf/{name}/arp_notify"), "1");
    if has_v6 {
        sysctl::set_if_there(&format!("net/ipv6/conf/{name}/ndisc_notify"), "1");
        for interface in ["lo", name] {
            let key = format!("net/ipv6/conf/{interface}/disable_ipv6");
            if sysctl::get(&key).is_some_and(|value| value != "0") {
                sysctl::set_if_there(&key, "0");
            }
        }
    }
}

fn describe(link: &Link, sandbox: &str) -> Interface {
    Interface { name: link.name.clone(), mac: link.mac.clone(), mtu: Some(link.mtu), sandbox: sandbox.to_owned() }
}

/// Pauses that double up to a limit, until a deadline.
struct Wait {
    deadline: Instant,
    pause: Duration,
}

impl Wait {
    fn new(limit: Duration) -> Self {
        Self { deadline: Instant::now() + limit, pause: FIRST_PAUSE }
    }

    /// False when the time is up.
    async fn pause(&mut self) -> bool {
        if Instant::now() >= self.deadline {
            return false;
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}
