//! Service addresses and node ports: who has which, and what a new or changed Service gets.
//!
//! The stored Services are the truth: the allocator is filled from them and follows them, so a write that failed half-way leaks nothing.
//! What it says is a proposal. An address or port is had by whose transaction stores its claim, a key of its own beside the Service, so two
//! servers over one store never give it away twice. Upstream counterpart: `pkg/registry/core/service/{storage,ipallocator,portallocator}`;
//! there the claims are IPAddress objects and a bitmap.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use keelson_kinds::{ApiError, FieldError, Resource, lookup};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::cache::{EventKind, Filter, Hub};
use crate::server::Server;
use crate::store::{Expect, KeyValue, Op, Revision, Store, StoreError, Txn, TxnOutcome};

/// Below this are the claims of addresses and ports; beside upstream's keys of the same purpose.
const CLAIMS: &str = "/registry/ranges/";
const ADDRESS_CLAIMS: &str = "/registry/ranges/serviceips/";
const PORT_CLAIMS: &str = "/registry/ranges/servicenodeports/";

/// Largest part of a range that automatic allocation leaves to addresses chosen by people; upstream's bound.
const MAX_STATIC_BAND: u128 = 256;
/// Largest part of the port range that automatic allocation leaves alone; upstream's bound.
const MAX_STATIC_PORTS: u16 = 128;

#[derive(Debug, Default)]
struct Taken {
    addresses: HashMap<IpAddr, String>,
    ports: HashMap<(u16, String), String>,
}

/// Hands out addresses and ports.
#[derive(Debug)]
pub struct Allocator {
    cidr: IpNet,
    ports: (u16, u16),
    taken: Mutex<Taken>,
}

fn text<'a>(spec: &'a Value, field: &str) -> &'a str {
    spec[field].as_str().unwrap_or_default()
}

fn wants_address(spec: &Value) -> bool {
    text(spec, "type") != "ExternalName"
}

fn wants_ports(spec: &Value) -> bool {
    match text(spec, "type") {
        "NodePort" => true,
        "LoadBalancer" => spec["allocateLoadBalancerNodePorts"] != Value::Bool(false),
        _ => false,
    }
}

fn wants_health_port(spec: &Value) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

/// Addresses of a spec, `None` left out.
fn addresses(spec: &Value) -> impl Iterator<Item = IpAddr> + '_ {
    let list = spec["clusterIPs"].as_array().into_iter().flatten();
    list.chain(std::iter::once(&spec["clusterIP"])).filter_map(|a| a.as_str()?.parse().ok())
}

fn port_number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|p| u16::try_from(p).ok()).filter(|p| *p != 0)
}

/// Node ports of a spec with their protocols; the health check port counts for every protocol, like upstream's one bitmap does.
fn node_ports(spec: &Value) -> Vec<(u16, String)> {
    let ports = spec["ports"].as_array().into_iter().flatten();
    let mut all: Vec<_> = ports
        .filter_map(|p| Some((port_number(&p["nodePort"])?, p["protocol"].as_str().unwrap_or("TCP").to_owned())))
        .collect();
    if let Some(port) = port_number(&spec["healthCheckNodePort"]) {
        all.push((port, "TCP".to_owned()));
    }
    all
}

/// Whether objects of a kind get addresses.
#[must_use]
pub fn is_service(res: &Resource) -> bool {
    res.group.is_empty() && res.plural == "services"
}

/// How a Service is called as an owner.
#[must_use]
pub fn owner(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// An address or port that one Service can have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// A cluster address.
    Address(IpAddr),
    /// A node port of a protocol.
    Port(u16, String),
}

impl Claim {
    fn key(&self) -> Arc<str> {
        match self {
            Self::Address(address) => format!("{ADDRESS_CLAIMS}{address}").into(),
            Self::Port(port, protocol) => format!("{PORT_CLAIMS}{protocol}/{port}").into(),
        }
    }

    /// The claim that is stored at a key, if one is.
    #[must_use]
    pub fn from_key(key: &str) -> Option<Self> {
        if let Some(address) = key.strip_prefix(ADDRESS_CLAIMS) {
            return address.parse().ok().map(Self::Address);
        }
        let (protocol, port) = key.strip_prefix(PORT_CLAIMS)?.split_once('/')?;
        Some(Self::Port(port.parse().ok()?, protocol.to_owned()))
    }

    fn all(service: &Value) -> BTreeSet<Self> {
        let spec = &service["spec"];
        let ports = node_ports(spec).into_iter().map(|(port, protocol)| Self::Port(port, protocol));
        addresses(spec).map(Self::Address).chain(ports).collect()
    }
}

/// Adds to a transaction that changes a Service what it claims anew and gives up; a claim of somebody else is a conflict.
pub fn claim(txn: &mut Txn, owner: &str, old: Option<&Value>, new: Option<&Value>) {
    let (old, new) = (old.map(Claim::all).unwrap_or_default(), new.map(Claim::all).unwrap_or_default());
    for claim in new.difference(&old) {
        txn.expect.push((claim.key(), Expect::Absent));
        txn.ops.push(Op::Put { key: claim.key(), value: json!(owner).to_string().into() });
    }
    txn.ops.extend(old.difference(&new).map(|claim| Op::Delete { key: claim.key() }));
}

/// Brings the claims in line with the stored Services: makes those of Services from before there were claims, and drops what nobody owns.
///
/// # Errors
/// What the store says.
pub async fn repair_claims(store: &dyn Store, hub: &Hub) -> Result<(), StoreError> {
    let Some(res) = lookup("", "v1", "services") else { return Ok(()) };
    let Some(cache) = hub.cache(res) else { return Ok(()) };
    let stored: Vec<KeyValue> = store.range(CLAIMS, None, None, 0).await?.items;
    let mut claims: BTreeMap<&str, &KeyValue> = stored.iter().map(|item| (&*item.key, item)).collect();
    for service in cache.list(res.storage_prefix, None, &Filter::default(), 0).objects {
        let owner = owner(&service.namespace, &service.name);
        let mut txn =
            Txn { expect: vec![(Arc::clone(&service.key), Expect::ModRevision(service.revision))], ops: vec![] };
        for claim in Claim::all(&service.value()) {
            let key = claim.key();
            match claims.remove(&*key).map(|item| serde_json::from_slice::<String>(&item.value).unwrap_or_default()) {
                None => {
                    txn.expect.push((Arc::clone(&key), Expect::Absent));
                    txn.ops.push(Op::Put { key, value: json!(owner).to_string().into() });
                }
                Some(other) if other != owner => {
                    tracing::error!(service = %owner, %other, %key, "two Services have the same address or port");
                }
                Some(_) => {}
            }
        }
        commit_repair(store, txn).await?;
    }
    for (key, item) in claims {
        let Ok(owner) = serde_json::from_slice::<String>(&item.value) else { continue };
        let Some((namespace, name)) = owner.split_once('/') else { continue };
        let service: Arc<str> = res.key(namespace, name).into();
        // A Service that is there may have got it just now.
        let expect = vec![(service, Expect::Absent), (Arc::clone(&item.key), Expect::ModRevision(item.mod_revision))];
        commit_repair(store, Txn { expect, ops: vec![Op::Delete { key: key.into() }] }).await?;
    }
    Ok(())
}

async fn commit_repair(store: &dyn Store, txn: Txn) -> Result<(), StoreError> {
    if !txn.ops.is_empty()
        && let TxnOutcome::Conflict { key, .. } = store.txn(txn).await?
    {
        tracing::debug!(%key, "a claim changed while it was looked at");
    }
    Ok(())
}

/// Keeps the allocator in line with the stored Services, whoever writes them, until the server stops.
pub async fn follow(server: Arc<Server>, shutdown: CancellationToken) {
    let Some(cache) = lookup("", "v1", "services").and_then(|res| server.hub.cache(res)) else { return };
    let work = async {
        loop {
            // The objects at its start are filled in as well: what was before may have been missed.
            let Ok(mut watcher) = cache.watch(None, Arc::new(Filter::default())) else { return };
            let initial = std::mem::take(&mut watcher.initial);
            let services: Vec<_> = initial.iter().map(|o| (owner(&o.namespace, &o.name), o.value())).collect();
            server.allocator.fill(watcher.revision, &services);
            while let Some((kind, event)) = watcher.next().await {
                let object = &event.object;
                let present = (kind != EventKind::Deleted).then(|| object.value());
                server.allocator.settle(&owner(&object.namespace, &object.name), present.as_ref());
            }
            tokio::task::yield_now().await;
        }
    };
    shutdown.run_until_cancelled(work).await;
}

impl Allocator {
    /// With nothing taken.
    #[must_use]
    pub fn new(cidr: IpNet, ports: (u16, u16)) -> Self {
        Self { cidr, ports, taken: Mutex::new(Taken::default()) }
    }

    /// The address of the `kubernetes` Service: the first of the range.
    #[must_use]
    pub fn first_address(&self) -> IpAddr {
        nth(&self.cidr, 1)
    }

    /// Makes `owner` (namespace/name) have exactly what its stored spec says.
    pub fn settle(&self, owner: &str, service: Option<&Value>) {
        let mut taken = self.taken.lock();
        taken.addresses.retain(|_, o| o != owner);
        taken.ports.retain(|_, o| o != owner);
        let Some(spec) = service.map(|s| &s["spec"]) else { return };
        for address in addresses(spec) {
            taken.addresses.insert(address, owner.to_owned());
        }
        for port in node_ports(spec) {
            taken.ports.insert(port, owner.to_owned());
        }
    }

    /// Forgets everything and takes what these Services have.
    pub fn fill(&self, revision: Revision, services: &[(String, Value)]) {
        *self.taken.lock() = Taken::default();
        for (owner, service) in services {
            self.settle(owner, Some(service));
        }
        tracing::debug!(revision, services = services.len(), "the allocator of service addresses was filled");
    }

    /// Takes note of who has something; of nobody when that is not known any more.
    pub fn note(&self, claim: Claim, owner: Option<String>) {
        let mut taken = self.taken.lock();
        match (claim, owner) {
            (Claim::Address(address), Some(owner)) => drop(taken.addresses.insert(address, owner)),
            (Claim::Address(address), None) => drop(taken.addresses.remove(&address)),
            (Claim::Port(port, protocol), Some(owner)) => drop(taken.ports.insert((port, protocol), owner)),
            (Claim::Port(port, protocol), None) => drop(taken.ports.remove(&(port, protocol))),
        }
    }

    /// Fills in and reserves what a Service needs; an update has been given what it leaves out and holds already. The caller settles
    /// afterwards, whatever happens.
    ///
    /// # Errors
    /// 422 naming the field, 500 when a range is used up.
    pub fn allocate(&self, owner: &str, service: &mut Value) -> Result<(), ApiError> {
        let name = service["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let spec = &mut service["spec"];
        let mut taken = self.taken.lock();
        let mut errors = Vec::new();
        if wants_address(spec) {
            self.address(owner, spec, &mut taken, &mut errors)?;
        }
        self.node_ports(owner, spec, &mut taken, &mut errors)?;
        if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid("", "Service", &name, &errors)) }
    }

    fn address(
        &self,
        owner: &str,
        spec: &mut Value,
        taken: &mut Taken,
        errors: &mut Vec<FieldError>,
    ) -> Result<(), ApiError> {
        let given = match (text(spec, "clusterIP"), spec["clusterIPs"][0].as_str()) {
            ("", Some(first)) => first.to_owned(),
            (one, _) => one.to_owned(),
        };
        let family = if self.cidr.addr().is_ipv4() { "IPv4" } else { "IPv6" };
        let chosen = if given == "None" {
            given
        } else if given.is_empty() {
            let address = self
                .free_address(taken)
                .ok_or_else(|| ApiError::internal("failed to allocate a serviceIP: range is full"))?;
            taken.addresses.insert(address, owner.to_owned());
            address.to_string()
        } else {
            if let Err(why) = self.reserve(owner, &given, taken) {
                errors.push(FieldError::invalid("spec.clusterIPs", json!([given]), why));
            }
            given
        };
        let headless_alone = chosen == "None" && spec["selector"].as_object().is_none_or(serde_json::Map::is_empty);
        if !headless_alone {
            errors.extend(family_errors(spec, family));
        }
        spec["clusterIP"] = json!(chosen);
        spec["clusterIPs"] = json!([chosen]);
        if spec["ipFamilyPolicy"].is_null() {
            // Without a selector the addresses come from elsewhere and may be of either family.
            spec["ipFamilyPolicy"] = json!(if headless_alone { "RequireDualStack" } else { "SingleStack" });
        }
        if spec["ipFamilies"].as_array().is_none_or(Vec::is_empty) {
            let other = if family == "IPv4" { "IPv6" } else { "IPv4" };
            spec["ipFamilies"] = if headless_alone { json!([family, other]) } else { json!([family]) };
        }
        Ok(())
    }

    fn reserve(&self, owner: &str, given: &str, taken: &mut Taken) -> Result<(), String> {
        let address: IpAddr = given.parse().map_err(|_| "must be empty, 'None', or a valid IP address".to_owned())?;
        let last = size(&self.cidr) - 1;
        let inside = self.cidr.contains(&address)
            && address != nth(&self.cidr, 0)
            && (address.is_ipv6() || address != nth(&self.cidr, last));
        if !inside {
            return Err(format!(
                "failed to allocate IP {given}: the provided network does not match the current range"
            ));
        }
        if taken.addresses.get(&address).is_some_and(|o| o != owner) {
            return Err(format!("failed to allocate IP {given}: provided IP is already allocated"));
        }
        taken.addresses.insert(address, owner.to_owned());
        Ok(())
    }

    fn free_address(&self, taken: &Taken) -> Option<IpAddr> {
        // Neither the network's own address nor, with IPv4, its broadcast address; the first is the `kubernetes` Service's.
        let size = size(&self.cidr).min(1 << 20);
        let end = if self.cidr.addr().is_ipv4() { size.checked_sub(2)? } else { size - 1 };
        let band = static_band(size).min(end);
        let free = |n: &u128| *n > 1 && !taken.addresses.contains_key(&nth(&self.cidr, *n));
        let span = (end - band).max(1);
        let start = u128::from(rand::random::<u64>()) % span;
        let upper = (0..=end - band).map(|i| band + (start + i) % (end - band + 1)).find(|n| free(n));
        upper.or_else(|| (2..band).find(free)).map(|n| nth(&self.cidr, n))
    }

    fn node_ports(
        &self,
        owner: &str,
        spec: &mut Value,
        taken: &mut Taken,
        errors: &mut Vec<FieldError>,
    ) -> Result<(), ApiError> {
        let full = || ApiError::internal("failed to allocate a nodePort: range is full");
        let wanted = wants_ports(spec);
        let given_possible = matches!(text(spec, "type"), "NodePort" | "LoadBalancer");
        let health = wants_health_port(spec);
        // Ports named in the request first, so that an automatic one does not take them.
        let ports: &mut [Value] = spec["ports"].as_array_mut().map_or(&mut [], Vec::as_mut_slice);
        for (index, port) in ports.iter().enumerate() {
            let Some(number) = port_number(&port["nodePort"]).filter(|_| given_possible) else { continue };
            let key = (number, port["protocol"].as_str().unwrap_or("TCP").to_owned());
            let path = format!("spec.ports[{index}].nodePort");
            let (first, last) = self.ports;
            if number < first || number > last {
                let why =
                    format!("provided port is not in the valid range. The range of valid ports is {first}-{last}");
                errors.push(FieldError::invalid(path, number, why));
            } else if taken.ports.get(&key).is_some_and(|o| o != owner) {
                errors.push(FieldError::invalid(path, number, "provided port is already allocated"));
            } else {
                taken.ports.insert(key, owner.to_owned());
            }
        }
        if wanted {
            // One number serves a port of both protocols, as upstream pairs them.
            let mut paired: HashMap<u64, u16> = HashMap::new();
            for port in ports.iter_mut() {
                let service_port = port["port"].as_u64().unwrap_or_default();
                if let Some(number) = port_number(&port["nodePort"]) {
                    paired.entry(service_port).or_insert(number);
                    continue;
                }
                let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
                let shared =
                    paired.get(&service_port).copied().filter(|n| !taken.ports.contains_key(&(*n, protocol.clone())));
                let number = shared.or_else(|| self.free_port(taken)).ok_or_else(full)?;
                taken.ports.insert((number, protocol), owner.to_owned());
                paired.insert(service_port, number);
                port["nodePort"] = json!(number);
            }
        }
        if health && port_number(&spec["healthCheckNodePort"]).is_none() {
            let number = self.free_port(taken).ok_or_else(full)?;
            taken.ports.insert((number, "TCP".to_owned()), owner.to_owned());
            spec["healthCheckNodePort"] = json!(number);
        }
        Ok(())
    }

    fn free_port(&self, taken: &Taken) -> Option<u16> {
        let (first, last) = self.ports;
        let size = last - first + 1;
        let band = (size / 32).clamp(16, MAX_STATIC_PORTS).min(size - 1);
        let free =
            |port: &u16| !["TCP", "UDP", "SCTP"].iter().any(|p| taken.ports.contains_key(&(*port, (*p).to_owned())));
        let span = size - band;
        let start = rand::random::<u16>() % span;
        let upper = (0..span).map(|i| first + band + (start + i) % span).find(free);
        upper.or_else(|| (first..first + band).find(free))
    }
}

/// What a Service asks for that a cluster with addresses of one family does not have.
fn family_errors(spec: &Value, family: &str) -> Vec<FieldError> {
    let given = spec["ipFamilies"].as_array().into_iter().flatten().enumerate();
    let mut errors: Vec<FieldError> = given
        .filter(|(_, wanted)| *wanted != family)
        .map(|(i, wanted)| {
            FieldError::invalid(format!("spec.ipFamilies[{i}]"), wanted.clone(), "not configured on this cluster")
        })
        .collect();
    if spec["ipFamilyPolicy"] == "RequireDualStack" {
        let why = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid("spec.ipFamilyPolicy", "RequireDualStack", why));
    }
    errors
}

fn size(cidr: &IpNet) -> u128 {
    let bits = cidr.max_prefix_len() - cidr.prefix_len();
    1u128 << bits.min(127)
}

fn static_band(size: u128) -> u128 {
    if size <= 64 { 0 } else { (size / 16).clamp(16, MAX_STATIC_BAND) }
}

fn nth(cidr: &IpNet, n: u128) -> IpAddr {
    match cidr.network() {
        IpAddr::V4(base) => {
            let offset = u32::try_from(n).unwrap_or(u32::MAX);
            IpAddr::V4(Ipv4Addr::from_bits(base.to_bits().saturating_add(offset)))
        }
        IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from_bits(base.to_bits().saturating_add(n))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn allocator() -> Allocator {
        Allocator::new("10.96.0.0/24".parse().unwrap(), (30000, 30100))
    }

    fn service(kind: &str) -> Value {
        json!({"metadata": {"name": "s"}, "spec": {"type": kind, "selector": {"a": "b"},
            "ports": [{"port": 80, "protocol": "TCP"}]}})
    }

    fn reasons(error: &ApiError) -> String {
        error.message.clone()
    }

    #[test]
    fn addresses_are_distinct_and_come_back() {
        let allocator = allocator();
        let mut seen = HashSet::new();
        let mut last = Value::Null;
        for i in 0..253 {
            let mut s = service("ClusterIP");
            allocator.allocate(&format!("d/{i}"), &mut s).unwrap_or_else(|e| panic!("{i}: {e}"));
            assert!(seen.insert(s["spec"]["clusterIP"].to_string()), "twice");
            assert_eq!(s["spec"]["clusterIPs"][0], s["spec"]["clusterIP"]);
            last = s;
        }
        assert!(allocator.allocate("d/x", &mut service("ClusterIP")).is_err());
        allocator.settle("d/252", None);
        let mut s = service("ClusterIP");
        allocator.allocate("d/x", &mut s).unwrap();
        assert_eq!(s["spec"]["clusterIP"], last["spec"]["clusterIP"]);
    }

    #[test]
    fn a_chosen_address_is_taken_once_and_must_be_inside() {
        let allocator = allocator();
        let mut s = service("ClusterIP");
        s["spec"]["clusterIP"] = json!("10.96.0.10");
        allocator.allocate("d/a", &mut s.clone()).unwrap();
        let error = allocator.allocate("d/b", &mut s.clone()).unwrap_err();
        assert!(reasons(&error).contains("provided IP is already allocated"), "{error}");
        for bad in ["10.97.0.1", "10.96.0.0", "10.96.0.255", "x"] {
            s["spec"]["clusterIP"] = json!(bad);
            assert_eq!(allocator.allocate("d/c", &mut s.clone()).unwrap_err().code, 422, "{bad}");
        }
    }

    #[test]
    fn headless_and_external_take_nothing() {
        let allocator = allocator();
        let mut headless = service("ClusterIP");
        headless["spec"]["clusterIP"] = json!("None");
        allocator.allocate("d/a", &mut headless).unwrap();
        assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
        let mut external = service("ExternalName");
        allocator.allocate("d/b", &mut external).unwrap();
        assert!(external["spec"]["clusterIP"].is_null());
        assert!(allocator.taken.lock().addresses.is_empty());
    }

    #[test]
    fn node_ports_are_unique_per_protocol() {
        let allocator = allocator();
        let mut s = service("NodePort");
        s["spec"]["ports"] =
            json!([{"name": "t", "port": 53, "protocol": "TCP"}, {"name": "u", "port": 53, "protocol": "UDP"}]);
        allocator.allocate("d/a", &mut s).unwrap();
        assert_eq!(s["spec"]["ports"][0]["nodePort"], s["spec"]["ports"][1]["nodePort"]);
        let mut other = service("NodePort");
        other["spec"]["ports"][0]["nodePort"] = s["spec"]["ports"][0]["nodePort"].clone();
        let error = allocator.allocate("d/b", &mut other).unwrap_err();
        assert!(reasons(&error).contains("provided port is already allocated"), "{error}");
        other["spec"]["ports"][0]["nodePort"] = json!(80);
        let error = allocator.allocate("d/b", &mut other).unwrap_err();
        assert!(reasons(&error).contains("The range of valid ports is 30000-30100"), "{error}");
    }

    #[test]
    fn settling_releases_what_the_spec_no_longer_has() {
        let allocator = allocator();
        let mut s = service("NodePort");
        allocator.allocate("d/a", &mut s).unwrap();
        let before = s.clone();
        allocator.allocate("d/a", &mut s).unwrap();
        assert_eq!(s, before, "what is held already stays");
        s["spec"]["type"] = json!("ClusterIP");
        s["spec"]["ports"][0].as_object_mut().unwrap().remove("nodePort");
        allocator.settle("d/a", Some(&s));
        assert!(allocator.taken.lock().ports.is_empty());
        assert_eq!(allocator.taken.lock().addresses.len(), 1);
        allocator.settle("d/a", None);
        assert!(allocator.taken.lock().addresses.is_empty());
    }
}
