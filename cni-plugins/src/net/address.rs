//! Addresses of an interface.

use std::net::{IpAddr, Ipv4Addr};

use futures::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope};

use super::{Link, Net, NetError};

const EEXIST: i32 = 17;
/// Shorter IPv4 prefixes have a broadcast address.
const LAST_PREFIX_WITH_BROADCAST: u8 = 30;

impl Net {
    /// The addresses of an interface, link-local ones included.
    pub async fn addresses(&self, link: &Link) -> Result<Vec<IpNet>, NetError> {
        Ok(self.address_messages(link).await?.iter().filter_map(own_address).collect())
    }

    /// An address of the interface is still being checked for duplicates, so it cannot be used yet.
    pub async fn has_tentative_address(&self, link: &Link) -> Result<bool, NetError> {
        Ok(self.address_messages(link).await?.iter().any(is_tentative))
    }

    async fn address_messages(&self, link: &Link) -> Result<Vec<AddressMessage>, NetError> {
        let request = self.handle.address().get().set_link_index_filter(link.index);
        let messages: Result<Vec<AddressMessage>, _> = request.execute().try_collect().await;
        let mut messages =
            messages.map_err(|error| NetError::refused(format!("list the addresses of {}", link.name), error))?;
        // Without strict checking the kernel lists those of every interface.
        messages.retain(|message| message.header.index == link.index);
        Ok(messages)
    }

    /// Adds an address; one that is there already is no error.
    pub async fn add_address(&self, link: &Link, address: IpNet) -> Result<(), NetError> {
        let mut request = self.handle.address().add(link.index, address.addr(), address.prefix_len());
        *request.message_mut() = address_message(link.index, address);
        let added = request.execute().await;
        match added.map_err(|error| NetError::refused(format!("add address {address} to {}", link.name), error)) {
            Err(error) if error.errno() == Some(EEXIST) => Ok(()),
            other => other,
        }
    }

    /// Removes an address.
    pub async fn delete_address(&self, link: &Link, address: IpNet) -> Result<(), NetError> {
        let request = self.handle.address().del(address_message(link.index, address));
        let deleted = request.execute().await;
        deleted.map_err(|error| NetError::refused(format!("remove address {address} from {}", link.name), error))
    }
}

fn address_message(index: u32, address: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = if address.addr().is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.index = index;
    message.header.prefix_len = address.prefix_len();
    message.header.scope = AddressScope::Universe;
    message.attributes.push(AddressAttribute::Address(address.addr()));
    message.attributes.push(AddressAttribute::Local(address.addr()));
    if let Some(broadcast) = broadcast(address) {
        message.attributes.push(AddressAttribute::Broadcast(broadcast));
    }
    message
}

fn broadcast(address: IpNet) -> Option<Ipv4Addr> {
    match address {
        IpNet::V4(net) if net.prefix_len() <= LAST_PREFIX_WITH_BROADCAST => Some(net.broadcast()),
        IpNet::V4(_) | IpNet::V6(_) => None,
    }
}

/// IPv4 has its own address in IFA_LOCAL and may have a peer's in IFA_ADDRESS; IPv6 only has the latter.
fn own_address(message: &AddressMessage) -> Option<IpNet> {
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
    let local = find(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = local.or_else(|| {
        find(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })?;
    IpNet::new(address, message.header.prefix_len).ok()
}

fn is_tentative(message: &AddressMessage) -> bool {
    let long = message.attributes.iter().any(
        |attribute| matches!(attribute, AddressAttribute::Flags(flags) if flags.contains(AddressFlags::Tentative)),
    );
    long || message.header.flags.contains(AddressHeaderFlags::Tentative)
}
