//! What the server knows of the cluster, in the least memory that answers every question.
//!
//! Invariants: keys are lower case (`service.namespace`, as both stand in a query); the reverse indexes hold exactly the addresses of the
//! services and slices beside them. No I/O, no clock.
//!
//! Upstream counterpart: CoreDNS' `plugin/kubernetes/object` and its informers' indexes.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::Name;

/// Transport protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// As it stands in an SRV query, without the underscore.
    #[must_use]
    pub fn label(self) -> &'static [u8] {
        match self {
            Self::Tcp => b"tcp",
            Self::Udp => b"udp",
            Self::Sctp => b"sctp",
        }
    }
}

/// A port of a service or of a slice's endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Empty for the unnamed one.
    pub name: Box<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub number: u16,
}

/// What kind of answer a service gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceKind {
    /// Its own addresses.
    Cluster {
        /// One per family.
        addresses: Box<[IpAddr]>,
        /// Its ports.
        ports: Box<[Port]>,
    },
    /// The addresses of its endpoints.
    Headless,
    /// Another name; `None` when what was given cannot be one (an address).
    External(Option<Box<Name>>),
}

/// A service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// What it answers with.
    pub kind: ServiceKind,
    /// `publishNotReadyAddresses`: endpoints count whether ready or not.
    pub publish_not_ready: bool,
}

/// An address behind a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// The pod's hostname, if its subdomain is this service.
    pub hostname: Option<Box<str>>,
    /// Whether it takes part (an absent condition means yes).
    pub ready: bool,
}

impl Endpoint {
    /// The label that stands for it before the service's name: its hostname, else its address with dashes.
    #[must_use]
    pub fn label(&self) -> String {
        match &self.hostname {
            Some(hostname) => hostname.to_string(),
            None => dashed(self.address),
        }
    }

    /// Whether `label` stands for it.
    #[must_use]
    pub fn is_called(&self, label: &[u8], address: Option<IpAddr>) -> bool {
        match &self.hostname {
            Some(hostname) => hostname.as_bytes() == label,
            None => address == Some(self.address),
        }
    }
}

/// An address as a label: dots and colons become dashes.
#[must_use]
pub fn dashed(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

/// The address that a label with dashes means.
#[must_use]
pub fn undashed(label: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(label).ok()?;
    // Upstream's rule: three single dashes make an IPv4 address, anything else is tried as IPv6.
    if text.matches('-').count() == 3 && !text.contains("--") {
        text.replace('-', ".").parse().ok().map(IpAddr::V4)
    } else {
        text.replace('-', ":").parse().ok().map(IpAddr::V6)
    }
}

/// One EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// The object's name.
    pub name: Box<str>,
    /// Ports of all its endpoints.
    pub ports: Box<[Port]>,
    /// Its endpoints.
    pub endpoints: Box<[Endpoint]>,
}

/// The kinds that must have been listed once before a name may be denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Namespaces.
    Namespaces,
    /// Services.
    Services,
    /// EndpointSlices.
    Slices,
}

/// The whole of it.
#[derive(Debug, Default)]
pub struct Model {
    namespaces: HashSet<Box<str>>,
    services: HashMap<Arc<str>, Service>,
    slices: HashMap<Arc<str>, Vec<Slice>>,
    /// `namespace/slice` to the key of its service.
    owners: HashMap<Box<str>, Arc<str>>,
    service_addresses: HashMap<IpAddr, Arc<str>>,
    /// One entry for each time the address stands in a slice of that service.
    endpoint_addresses: HashMap<IpAddr, Vec<Arc<str>>>,
    listed: [bool; 3],
    serial: u32,
}

impl Model {
    /// An empty model whose zone serial begins at `serial`.
    #[must_use]
    pub fn new(serial: u32) -> Self {
        Self { serial, ..Self::default() }
    }

    /// Marks a kind as listed.
    pub fn set_listed(&mut self, source: Source) {
        self.listed[source as usize] = true;
    }

    /// Whether every kind has been listed once.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.listed.iter().all(|listed| *listed)
    }

    /// The zone's serial: grows with each change.
    #[must_use]
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// Whether the namespace exists.
    #[must_use]
    pub fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name)
    }

    /// The service with this key (`service.namespace`).
    #[must_use]
    pub fn service(&self, key: &str) -> Option<&Service> {
        self.services.get(key)
    }

    /// The slices of a service.
    #[must_use]
    pub fn slices(&self, key: &str) -> &[Slice] {
        self.slices.get(key).map_or(&[], Vec::as_slice)
    }

    /// The service that has this address.
    #[must_use]
    pub fn service_at(&self, address: IpAddr) -> Option<&str> {
        self.service_addresses.get(&address).map(AsRef::as_ref)
    }

    /// The services behind which this address stands; one may come several times.
    pub fn endpoints_at(&self, address: IpAddr) -> impl Iterator<Item = &str> {
        self.endpoint_addresses.get(&address).into_iter().flatten().map(AsRef::as_ref)
    }

    /// How many services there are.
    #[must_use]
    pub fn service_count(&self) -> usize {
        self.services.len()
    }

    fn changed(&mut self) {
        self.serial = self.serial.wrapping_add(1);
    }

    /// The shared copy of a key, so that each is kept once.
    fn key(&self, key: &str) -> Arc<str> {
        let known = self.services.get_key_value(key).map(|(key, _)| key);
        let known = known.or_else(|| self.slices.get_key_value(key).map(|(key, _)| key));
        known.map_or_else(|| Arc::from(key), Arc::clone)
    }

    /// Adds a namespace or takes it out.
    pub fn set_namespace(&mut self, name: &str, exists: bool) {
        let changed = if exists { self.namespaces.insert(name.into()) } else { self.namespaces.remove(name) };
        if changed {
            self.changed();
        }
    }

    /// Puts a service in the place of what was known under its key, or takes that out.
    pub fn set_service(&mut self, key: &str, service: Option<Service>) {
        if self.services.get(key) == service.as_ref() {
            return;
        }
        let key = self.key(key);
        if let Some(Service { kind: ServiceKind::Cluster { addresses, .. }, .. }) = self.services.get(&key) {
            for address in addresses {
                // Another service may have taken the address over already.
                if self.service_addresses.get(address) == Some(&key) {
                    self.service_addresses.remove(address);
                }
            }
        }
        if let Some(Service { kind: ServiceKind::Cluster { addresses, .. }, .. }) = &service {
            for address in addresses {
                self.service_addresses.insert(*address, Arc::clone(&key));
            }
        }
        match service {
            Some(service) => drop(self.services.insert(key, service)),
            None => drop(self.services.remove(&key)),
        }
        self.changed();
    }

    /// Puts a slice in the place of what was known under `namespace/slice`, or takes that out. `service` is the key it belongs to.
    pub fn set_slice(&mut self, slice_key: &str, slice: Option<(&str, Slice)>) {
        let owner = self.owners.get(slice_key).cloned();
        let name = slice_key.split_once('/').map_or(slice_key, |(_, name)| name);
        if let (Some(owner), Some((service, new))) = (&owner, &slice)
            && **owner == **service
            && self.slices(owner).contains(new)
        {
            return;
        }
        if owner.is_none() && slice.is_none() {
            return;
        }
        if let Some(owner) = owner {
            self.forget_slice(&owner, name);
            if slice.is_none() {
                self.owners.remove(slice_key);
            }
        }
        if let Some((service, slice)) = slice {
            let key = self.key(service);
            for endpoint in &slice.endpoints {
                self.endpoint_addresses.entry(endpoint.address).or_default().push(Arc::clone(&key));
            }
            self.slices.entry(Arc::clone(&key)).or_default().push(slice);
            self.owners.insert(slice_key.into(), key);
        }
        self.changed();
    }

    fn forget_slice(&mut self, owner: &Arc<str>, name: &str) {
        let Some(list) = self.slices.get_mut(owner) else { return };
        let Some(index) = list.iter().position(|slice| *slice.name == *name) else { return };
        let slice = list.swap_remove(index);
        if list.is_empty() {
            self.slices.remove(owner);
        }
        for endpoint in &slice.endpoints {
            let Some(keys) = self.endpoint_addresses.get_mut(&endpoint.address) else { continue };
            if let Some(index) = keys.iter().position(|key| key == owner) {
                keys.swap_remove(index);
            }
            if keys.is_empty() {
                self.endpoint_addresses.remove(&endpoint.address);
            }
        }
    }

    /// After a list: takes out every object of the kind whose key was not in it.
    pub fn keep_only(&mut self, source: Source, keys: &HashSet<String>) {
        let gone = |known: &str| !keys.contains(known);
        match source {
            Source::Namespaces => {
                let names: Vec<_> = self.namespaces.iter().filter(|name| gone(name)).cloned().collect();
                names.iter().for_each(|name| self.set_namespace(name, false));
            }
            Source::Services => {
                let names: Vec<_> = self.services.keys().filter(|key| gone(key)).cloned().collect();
                names.iter().for_each(|key| self.set_service(key, None));
            }
            Source::Slices => {
                let names: Vec<_> = self.owners.keys().filter(|key| gone(key)).cloned().collect();
                names.iter().for_each(|key| self.set_slice(key, None));
            }
        }
        self.set_listed(source);
    }
}
