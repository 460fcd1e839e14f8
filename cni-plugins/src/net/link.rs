//! Interfaces: bridges, veth pairs, bridge ports.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::RawFd;

use futures::TryStreamExt;
use netlink_packet_route::link::{
    BridgeVlanInfoFlags, InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
    State,
};
use rtnetlink::{LinkBridge, LinkBridgePort, LinkBridgeVlan, LinkUnspec, LinkVeth};

use super::{Net, NetError};

const ENODEV: i32 = 19;

/// What is worth knowing about an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Index in its namespace.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Hardware address, lower-case with colons.
    pub mac: String,
    /// MTU.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Operational state is up.
    pub running: bool,
    /// IFF_PROMISC is set on it.
    pub promiscuous: bool,
    /// Kind (`bridge`, `veth`).
    pub kind: String,
    /// Index of the bridge it is a port of.
    pub controller: Option<u32>,
    /// Index of the other end of a veth pair, in that end's namespace.
    pub peer: Option<u32>,
    /// VLAN that a bridge gives to new ports.
    pub default_pvid: Option<u16>,
    /// A bridge looks at VLAN tags.
    pub vlan_filtering: bool,
}

/// The container's end of a veth pair to be.
#[derive(Debug, Clone, Copy)]
pub struct PeerSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its hardware address, or the kernel's choice.
    pub mac: Option<[u8; 6]>,
    /// Its namespace, or the caller's.
    pub netns: Option<RawFd>,
}

/// Settings of a bridge port.
#[derive(Debug, Clone, Copy, Default)]
pub struct PortOptions {
    /// Frames may leave by the port they came in by.
    pub hairpin: bool,
    /// No traffic to other isolated ports.
    pub isolated: bool,
}

/// A random name for the host's end, as the reference makes it.
pub fn random_host_name() -> io::Result<String> {
    Ok(format!("veth{:08x}", u32::from_ne_bytes(random()?)))
}

/// A random hardware address: unicast, locally administered.
pub fn random_mac() -> io::Result<[u8; 6]> {
    let mut mac: [u8; 6] = random()?;
    mac[0] = (mac[0] & 0xfe) | 0x02;
    Ok(mac)
}

fn random<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Net {
    /// The interface of that name.
    pub async fn link(&self, name: &str) -> Result<Option<Link>, NetError> {
        let answer = self.handle.link().get().match_name(name).execute().try_next().await;
        match answer.map_err(|error| NetError::refused(format!("look up interface {name}"), error)) {
            Ok(message) => Ok(message.map(|message| Link::from(&message))),
            Err(error) if error.errno() == Some(ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The interface of that name, which must be there.
    pub async fn existing_link(&self, name: &str) -> Result<Link, NetError> {
        self.link(name).await?.ok_or_else(|| NetError::NoLink(name.to_owned()))
    }

    /// Makes a bridge. An MTU of 0 is the kernel's choice.
    ///
    /// The hardware address is given, since the kernel's own choice lasts only until the first port joins: then the bridge takes
    /// the lowest address of its ports, which come and go.
    pub async fn add_bridge(&self, name: &str, mac: [u8; 6], mtu: u32, vlan_filtering: bool) -> Result<(), NetError> {
        let mut bridge = LinkBridge::new(name).address(mac.to_vec());
        if mtu != 0 {
            bridge = bridge.mtu(mtu);
        }
        if vlan_filtering {
            bridge = bridge.vlan_filtering(true);
        }
        let request = self.handle.link().add(bridge.build());
        request.execute().await.map_err(|error| NetError::refused(format!("add bridge {name}"), error))
    }

    /// Makes a veth pair in one request: this end a port of the bridge, the other end where it belongs.
    pub async fn add_veth(&self, name: &str, mtu: u32, bridge: u32, peer: PeerSpec<'_>) -> Result<(), NetError> {
        let mut other = LinkMessage::default();
        other.attributes.push(LinkAttribute::IfName(peer.name.to_owned()));
        let mut this = LinkVeth::new(name, peer.name).controller(bridge);
        if mtu != 0 {
            this = this.mtu(mtu);
            other.attributes.push(LinkAttribute::Mtu(mtu));
        }
        if let Some(mac) = peer.mac {
            other.attributes.push(LinkAttribute::Address(mac.to_vec()));
        }
        if let Some(netns) = peer.netns {
            other.attributes.push(LinkAttribute::NetNsFd(netns));
        }
        let message = this.set_info_data(InfoData::Veth(InfoVeth::Peer(other))).build();
        let action = || format!("add veth pair {name} and {}", peer.name);
        self.handle.link().add(message).execute().await.map_err(|error| NetError::refused(action(), error))
    }

    /// Sets options of a bridge port and brings it up.
    pub async fn set_up_port(&self, link: &Link, options: PortOptions) -> Result<(), NetError> {
        let mut port = LinkBridgePort::new(link.index).hairpin(options.hairpin).up();
        if options.isolated {
            port = port.isolated(true);
        }
        self.change(port.build(), || format!("set up bridge port {}", link.name)).await
    }

    /// Brings an interface up.
    pub async fn set_up(&self, link: &Link) -> Result<(), NetError> {
        self.change(LinkUnspec::new_with_index(link.index).up().build(), || format!("bring {} up", link.name)).await
    }

    /// Takes an interface down.
    pub async fn set_down(&self, link: &Link) -> Result<(), NetError> {
        self.change(LinkUnspec::new_with_index(link.index).down().build(), || format!("take {} down", link.name)).await
    }

    /// Makes an interface promiscuous.
    pub async fn set_promiscuous(&self, link: &Link) -> Result<(), NetError> {
        let message = LinkUnspec::new_with_index(link.index).promiscuous(true).build();
        self.change(message, || format!("make {} promiscuous", link.name)).await
    }

    /// Fixes a hardware address, so that a bridge no longer takes the lowest of its ports.
    pub async fn set_mac(&self, link: &Link, mac: [u8; 6]) -> Result<(), NetError> {
        let message = LinkUnspec::new_with_index(link.index).address(mac.to_vec()).build();
        self.change(message, || format!("set the hardware address of {} to {}", link.name, format_mac(&mac))).await
    }

    async fn change(&self, message: LinkMessage, action: impl FnOnce() -> String) -> Result<(), NetError> {
        let changed = self.handle.link().change(message).execute().await;
        changed.map_err(|error| NetError::refused(action(), error))
    }

    /// Adds VLANs to a bridge port; untagged and as the port's own where `access` is set.
    pub async fn add_port_vlan(&self, link: &Link, vlan: u16, access: bool) -> Result<(), NetError> {
        let flags = if access {
            BridgeVlanInfoFlags::Pvid | BridgeVlanInfoFlags::Untagged
        } else {
            BridgeVlanInfoFlags::empty()
        };
        let message = LinkBridgeVlan::new(link.index).vlan(vlan, flags).build();
        let changed = self.handle.link().set(message).execute().await;
        changed.map_err(|error| NetError::refused(format!("add VLAN {vlan} to {}", link.name), error))
    }

    /// Removes a VLAN from a bridge port.
    pub async fn remove_port_vlan(&self, link: &Link, vlan: u16) -> Result<(), NetError> {
        let message = LinkBridgeVlan::new(link.index).vlan(vlan, BridgeVlanInfoFlags::empty()).build();
        let changed = self.handle.link().del_with_message(message).execute().await;
        changed.map_err(|error| NetError::refused(format!("remove VLAN {vlan} from {}", link.name), error))
    }

    /// Deletes an interface; one that is gone already is no error.
    pub async fn delete_link(&self, link: &Link) -> Result<(), NetError> {
        let deleted = self.handle.link().del(link.index).execute().await;
        match deleted.map_err(|error| NetError::refused(format!("delete interface {}", link.name), error)) {
            Err(error) if error.errno() == Some(ENODEV) => Ok(()),
            other => other,
        }
    }
}

impl From<&LinkMessage> for Link {
    fn from(message: &LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            up: message.header.flags.contains(LinkFlags::Up),
            promiscuous: message.header.flags.contains(LinkFlags::Promisc),
            ..Self::default()
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Address(mac) => link.mac = format_mac(mac),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::OperState(state) => link.running = *state == State::Up,
                LinkAttribute::Controller(index) => link.controller = Some(*index),
                LinkAttribute::Link(index) => link.peer = Some(*index),
                LinkAttribute::LinkInfo(infos) => link.read_infos(infos),
                _ => {}
            }
        }
        link
    }
}

impl Link {
    fn read_infos(&mut self, infos: &[LinkInfo]) {
        for info in infos {
            match info {
                LinkInfo::Kind(kind) => self.kind = kind_name(kind),
                LinkInfo::Data(InfoData::Bridge(options)) => {
                    for option in options {
                        match option {
                            InfoBridge::VlanDefaultPvid(vlan) => self.default_pvid = Some(*vlan),
                            InfoBridge::VlanFiltering(on) => self.vlan_filtering = *on,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// It is a bridge.
    pub fn is_bridge(&self) -> bool {
        self.kind == "bridge"
    }

    /// It is one end of a veth pair.
    pub fn is_veth(&self) -> bool {
        self.kind == "veth"
    }
}

fn kind_name(kind: &InfoKind) -> String {
    match kind {
        InfoKind::Bridge => "bridge".to_owned(),
        InfoKind::Veth => "veth".to_owned(),
        other => other.to_string(),
    }
}

fn format_mac(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// Reads an Ethernet address with colons.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}
