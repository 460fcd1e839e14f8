//! This machine's addresses.

use std::io;
use std::net::IpAddr;

/// All addresses, each with the name of its interface.
///
/// # Errors
/// When the kernel does not list them.
pub fn addresses() -> io::Result<impl Iterator<Item = (String, IpAddr)>> {
    Ok(nix::ifaddrs::getifaddrs()?.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let addr = v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))?;
        Some((interface.interface_name, addr))
    }))
}
