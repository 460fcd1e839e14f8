//! From a question to a reply, without I/O.
//!
//! Rules: the DNS specification 1.1.0 for Kubernetes; where it is silent, what CoreDNS' `kubernetes` plugin answers; where that denies a
//! name that has names below it (`_tcp.SERVICE…`, `dns.DOMAIN`), RFC 8020: such a name exists and has no data.
//!
//! Invariants: a negative reply carries the zone's SOA, whose minimum is the TTL of records; a name is denied only by a complete model,
//! otherwise the reply is SERVFAIL.

use std::collections::HashSet;
use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use ipnet::IpNet;

use crate::answer::reverse::Reverse;
use crate::model::{Model, Port, Service, ServiceKind, dashed, undashed};

mod reverse;
#[cfg(test)]
mod tests;

/// CoreDNS' default for the `kubernetes` plugin.
pub const DEFAULT_TTL: u32 = 5;
/// Version of the DNS specification, and its TTL in the specification's example and in CoreDNS.
const SCHEMA_VERSION: &str = "1.1.0";
const SCHEMA_TTL: u32 = 28_800;
/// Longest chain of ExternalName services followed, CoreDNS' bound.
const MAX_CHAIN: usize = 8;
/// SOA timers of CoreDNS; nothing transfers this zone.
const SOA_TIMERS: (i32, i32, i32) = (7200, 1800, 86_400);

/// The cluster domain and what is said about it.
#[derive(Debug, Clone)]
pub struct Zone {
    domain: Name,
    /// The domain's labels in lower case, first one first.
    labels: Vec<Box<[u8]>>,
    name_server: Name,
    hostmaster: Name,
    ttl: u32,
    /// Addresses of `ns.dns.DOMAIN`.
    addresses: Vec<IpAddr>,
    /// Ranges that belong to the cluster: nobody else knows names for addresses in them.
    ranges: Vec<IpNet>,
}

/// A cluster domain that is none. Not retryable.
#[derive(Debug, thiserror::Error)]
#[error("the cluster domain {domain:?} is no domain name: {reason}")]
pub struct DomainError {
    /// What was given.
    pub domain: String,
    /// Why not.
    pub reason: String,
}

impl Zone {
    /// The zone of `domain`.
    ///
    /// # Errors
    /// [`DomainError`].
    pub fn new(domain: &str, ttl: u32, addresses: Vec<IpAddr>, ranges: Vec<IpNet>) -> Result<Self, DomainError> {
        let fail = |reason: String| DomainError { domain: domain.to_owned(), reason };
        let trimmed = domain.trim_end_matches('.');
        if trimmed.is_empty() {
            return Err(fail("it is empty; the usual one is cluster.local".to_owned()));
        }
        let parse = |text: String| Name::from_ascii(text).map_err(|error| fail(error.to_string()));
        let name = parse(format!("{}.", trimmed.to_ascii_lowercase()))?;
        Ok(Self {
            labels: name.iter().map(Into::into).collect(),
            name_server: parse(format!("ns.dns.{name}"))?,
            hostmaster: parse(format!("hostmaster.{name}"))?,
            domain: name,
            ttl,
            addresses,
            ranges,
        })
    }

    /// The cluster domain.
    #[must_use]
    pub fn domain(&self) -> &Name {
        &self.domain
    }

    fn soa(&self, apex: &Name, model: &Model) -> Record {
        let (refresh, retry, expire) = SOA_TIMERS;
        let data = SOA::new(
            self.name_server.clone(),
            self.hostmaster.clone(),
            model.serial(),
            refresh,
            retry,
            expire,
            self.ttl,
        );
        Record::from_rdata(apex.clone(), self.ttl, RData::SOA(data))
    }

    /// A name below `svc.DOMAIN`.
    fn service_name(&self, key: &str, label: Option<&str>) -> Option<Name> {
        let labels = label.into_iter().chain(key.split('.')).map(str::as_bytes);
        let labels = labels.chain(std::iter::once(&b"svc"[..])).chain(self.labels.iter().map(AsRef::as_ref));
        Name::from_labels(labels).ok()
    }
}

/// What to send back.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// NOERROR, NXDOMAIN or SERVFAIL.
    pub code: ResponseCode,
    /// The answer section.
    pub answers: Vec<Record>,
    /// The authority section: the SOA of a negative reply.
    pub authority: Vec<Record>,
    /// The additional section: addresses of SRV targets and name servers.
    pub additional: Vec<Record>,
    /// The name outside of the cluster that the last answer, a CNAME, leads to; whoever asked wants it followed.
    pub follow: Option<Name>,
}

impl Reply {
    fn new(code: ResponseCode) -> Self {
        Self { code, answers: Vec::new(), authority: Vec::new(), additional: Vec::new(), follow: None }
    }

    fn records(answers: Vec<Record>) -> Self {
        Self { answers, ..Self::new(ResponseCode::NoError) }
    }
}

/// Whose question it was.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The cluster's.
    Cluster(Reply),
    /// Somebody else's: ask a resolver.
    Foreign,
}

/// What there is at a name that exists.
enum Found {
    /// Nothing: no record of any type, or none of the type asked for.
    NoData,
    Records {
        answers: Vec<Record>,
        additional: Vec<Record>,
    },
    Alias(Name),
}

/// The answer to a question for `name` and `kind`; several addresses come rotated by `spin`.
#[must_use]
pub fn answer(zone: &Zone, model: &Model, name: &Name, kind: RecordType, spin: u32) -> Answer {
    let lower = name.to_lowercase();
    let labels: Vec<&[u8]> = lower.iter().collect();
    if let Some(relative) = below(&labels, &zone.labels) {
        let mut reply = forward(zone, model, name, relative, kind);
        rotate(&mut reply.answers, spin);
        return Answer::Cluster(reply);
    }
    match reverse::parse(&labels) {
        Some(question) => pointers(zone, model, name, &question, kind),
        None => Answer::Foreign,
    }
}

/// The labels in front of `zone`, if the name is in it.
fn below<'l, 'n>(labels: &'l [&'n [u8]], zone: &[Box<[u8]>]) -> Option<&'l [&'n [u8]]> {
    let at = labels.len().checked_sub(zone.len())?;
    let (relative, domain) = labels.split_at(at);
    domain.iter().zip(zone).all(|(a, b)| **a == **b).then_some(relative)
}

fn forward(zone: &Zone, model: &Model, name: &Name, relative: &[&[u8]], kind: RecordType) -> Reply {
    let mut answers = Vec::new();
    let mut owner = name.clone();
    let mut found = lookup(zone, model, name, relative, kind);
    for _ in 0..MAX_CHAIN {
        match found {
            None => return denied(zone, model, answers),
            Some(Found::NoData) => {
                return Reply {
                    answers,
                    authority: vec![zone.soa(&zone.domain, model)],
                    ..Reply::new(ResponseCode::NoError)
                };
            }
            Some(Found::Records { answers: more, additional }) => {
                answers.extend(more);
                return Reply { additional, ..Reply::records(answers) };
            }
            Some(Found::Alias(target)) => {
                answers.push(Record::from_rdata(owner, zone.ttl, RData::CNAME(CNAME(target.clone()))));
                if kind == RecordType::CNAME {
                    return Reply::records(answers);
                }
                let lower = target.to_lowercase();
                let labels: Vec<&[u8]> = lower.iter().collect();
                match below(&labels, &zone.labels) {
                    Some(relative) => found = lookup(zone, model, &target, relative, kind),
                    None => return Reply { follow: Some(target), ..Reply::records(answers) },
                }
                owner = target;
            }
        }
    }
    // Services that point at each other in a circle.
    Reply { answers, ..Reply::new(ResponseCode::ServFail) }
}

fn denied(zone: &Zone, model: &Model, answers: Vec<Record>) -> Reply {
    if !model.is_complete() {
        return Reply::new(ResponseCode::ServFail);
    }
    // RFC 6604: the code is that of the end of the chain.
    Reply { answers, authority: vec![zone.soa(&zone.domain, model)], ..Reply::new(ResponseCode::NXDomain) }
}

/// `None` when the name does not exist.
fn lookup(zone: &Zone, model: &Model, name: &Name, relative: &[&[u8]], kind: RecordType) -> Option<Found> {
    match relative {
        [] => Some(apex(zone, model, kind)),
        [b"dns-version"] => Some(version(name, kind)),
        [b"ns", b"dns"] => Some(typed(name, zone.ttl, &zone.addresses, kind)),
        [b"dns" | b"svc" | b"pod"] => Some(Found::NoData),
        [namespace, b"svc" | b"pod"] => {
            text(namespace).is_some_and(|ns| model.has_namespace(ns)).then_some(Found::NoData)
        }
        [label, namespace, b"pod"] => {
            text(namespace).filter(|ns| model.has_namespace(ns))?;
            Some(typed(name, zone.ttl, &[undashed(label)?], kind))
        }
        [service, namespace, b"svc"] => below_service(zone, model, name, (service, namespace), Part::Service, kind),
        [label, service, namespace, b"svc"] => {
            let part = if label.starts_with(b"_") { Part::Protocol(&label[1..]) } else { Part::Endpoint(label) };
            below_service(zone, model, name, (service, namespace), part, kind)
        }
        [port, protocol, service, namespace, b"svc"] => {
            let part = Part::Port(port.strip_prefix(b"_")?, protocol.strip_prefix(b"_")?);
            below_service(zone, model, name, (service, namespace), part, kind)
        }
        _ => None,
    }
}

/// A label as it could stand in a Kubernetes name; a dot inside of one would be taken for a border between two.
fn text(label: &[u8]) -> Option<&str> {
    std::str::from_utf8(label).ok().filter(|text| !text.contains('.'))
}

fn apex(zone: &Zone, model: &Model, kind: RecordType) -> Found {
    match kind {
        RecordType::SOA => Found::Records { answers: vec![zone.soa(&zone.domain, model)], additional: Vec::new() },
        RecordType::NS => Found::Records {
            answers: vec![Record::from_rdata(zone.domain.clone(), zone.ttl, RData::NS(NS(zone.name_server.clone())))],
            additional: zone.addresses.iter().map(|ip| address(&zone.name_server, zone.ttl, *ip)).collect(),
        },
        _ => Found::NoData,
    }
}

fn version(name: &Name, kind: RecordType) -> Found {
    if kind != RecordType::TXT {
        return Found::NoData;
    }
    let data = RData::TXT(TXT::new(vec![SCHEMA_VERSION.to_owned()]));
    Found::Records { answers: vec![Record::from_rdata(name.clone(), SCHEMA_TTL, data)], additional: Vec::new() }
}

fn address(name: &Name, ttl: u32, address: IpAddr) -> Record {
    let data = match address {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    };
    Record::from_rdata(name.clone(), ttl, data)
}

/// The addresses of the family asked for.
fn typed(name: &Name, ttl: u32, addresses: &[IpAddr], kind: RecordType) -> Found {
    let wanted = |ip: &&IpAddr| match kind {
        RecordType::A => ip.is_ipv4(),
        RecordType::AAAA => ip.is_ipv6(),
        _ => false,
    };
    let mut seen = HashSet::new();
    let answers: Vec<Record> =
        addresses.iter().filter(wanted).filter(|ip| seen.insert(**ip)).map(|ip| address(name, ttl, *ip)).collect();
    if answers.is_empty() { Found::NoData } else { Found::Records { answers, additional: Vec::new() } }
}

/// What of a service is asked for.
#[derive(Clone, Copy)]
enum Part<'q> {
    Service,
    /// `_PROTOCOL.SERVICE…`: exists when a port's name is below it.
    Protocol(&'q [u8]),
    Endpoint(&'q [u8]),
    Port(&'q [u8], &'q [u8]),
}

impl Part<'_> {
    fn takes(self, port: &Port) -> bool {
        match self {
            Self::Service | Self::Endpoint(_) => true,
            Self::Protocol(protocol) => !port.name.is_empty() && port.protocol.label() == protocol,
            Self::Port(name, protocol) => {
                !port.name.is_empty() && port.name.as_bytes() == name && port.protocol.label() == protocol
            }
        }
    }

    /// Whether only ports with a name will do.
    fn needs_port(self) -> bool {
        matches!(self, Self::Protocol(_) | Self::Port(..))
    }
}

/// An address with a port, and the label of the endpoint if it is one.
struct Host {
    address: IpAddr,
    port: Option<u16>,
    label: Option<String>,
}

fn below_service(
    zone: &Zone,
    model: &Model,
    name: &Name,
    (service, namespace): (&[u8], &[u8]),
    part: Part<'_>,
    kind: RecordType,
) -> Option<Found> {
    let namespace = text(namespace).filter(|ns| model.has_namespace(ns))?;
    let key = format!("{}.{namespace}", text(service)?);
    let known = model.service(&key)?;
    let srv = kind == RecordType::SRV;
    let hosts = match (&known.kind, part) {
        (ServiceKind::External(target), Part::Service) => return target.as_deref().cloned().map(Found::Alias),
        (ServiceKind::External(_), _) => return None,
        (ServiceKind::Cluster { addresses, ports }, Part::Service | Part::Protocol(_) | Part::Port(..)) => {
            cluster_hosts(addresses, ports, part, srv)
        }
        (ServiceKind::Cluster { .. } | ServiceKind::Headless, _) => endpoint_hosts(model, &key, known, part, srv),
    }?;
    if matches!(part, Part::Protocol(_)) {
        return Some(Found::NoData);
    }
    if srv {
        return Some(service_records(zone, name, &key, &hosts));
    }
    let addresses: Vec<IpAddr> = hosts.iter().map(|host| host.address).collect();
    Some(typed(name, zone.ttl, &addresses, kind))
}

/// `None` when no port is taken: the name does not exist.
fn cluster_hosts(addresses: &[IpAddr], ports: &[Port], part: Part<'_>, srv: bool) -> Option<Vec<Host>> {
    let taken: Vec<&Port> = ports.iter().filter(|port| part.takes(port)).collect();
    if taken.is_empty() && part.needs_port() {
        return None;
    }
    if !srv {
        return Some(addresses.iter().map(|ip| Host { address: *ip, port: None, label: None }).collect());
    }
    let hosts = taken
        .iter()
        .flat_map(|port| addresses.iter().map(|ip| Host { address: *ip, port: Some(port.number), label: None }));
    Some(hosts.collect())
}

/// `None` when no endpoint is taken: the name does not exist.
fn endpoint_hosts(model: &Model, key: &str, service: &Service, part: Part<'_>, srv: bool) -> Option<Vec<Host>> {
    let asked = match part {
        Part::Endpoint(label) => Some((label, undashed(label))),
        _ => None,
    };
    let mut hosts = Vec::new();
    for slice in model.slices(key) {
        let taken: Vec<&Port> = slice.ports.iter().filter(|port| part.takes(port)).collect();
        if taken.is_empty() && part.needs_port() {
            continue;
        }
        for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.ready || service.publish_not_ready) {
            if asked.is_some_and(|(label, address)| !endpoint.is_called(label, address)) {
                continue;
            }
            if !srv || taken.is_empty() {
                hosts.push(Host { address: endpoint.address, port: None, label: None });
                continue;
            }
            let label = endpoint.label();
            let host =
                |port: &&Port| Host { address: endpoint.address, port: Some(port.number), label: Some(label.clone()) };
            hosts.extend(taken.iter().map(host));
        }
    }
    (!hosts.is_empty()).then_some(hosts)
}

fn service_records(zone: &Zone, name: &Name, key: &str, hosts: &[Host]) -> Found {
    let with_port = hosts.iter().filter_map(|host| Some((host, host.port?)));
    // CoreDNS' weights: a hundred shared out among all of them.
    let weight = 100_u16.checked_div(u16::try_from(hosts.len()).unwrap_or(u16::MAX)).unwrap_or(100).max(1);
    let (mut answers, mut additional) = (Vec::new(), Vec::new());
    let (mut targets, mut addresses) = (HashSet::new(), HashSet::new());
    for (host, port) in with_port {
        let Some(target) = zone.service_name(key, host.label.as_deref()) else { continue };
        if targets.insert((host.label.as_deref(), port)) {
            let data = RData::SRV(SRV::new(0, weight, port, target.clone()));
            answers.push(Record::from_rdata(name.clone(), zone.ttl, data));
        }
        if addresses.insert((host.label.as_deref(), host.address)) {
            additional.push(address(&target, zone.ttl, host.address));
        }
    }
    if answers.is_empty() { Found::NoData } else { Found::Records { answers, additional } }
}

fn pointers(zone: &Zone, model: &Model, name: &Name, question: &Reverse, kind: RecordType) -> Answer {
    let negative =
        |code| Answer::Cluster(Reply { authority: vec![zone.soa(&question.apex(), model)], ..Reply::new(code) });
    let within = |net: &IpNet| zone.ranges.iter().any(|range| range.contains(net));
    let address = match question {
        // A part of an address: names below it may exist, and only here when the range is the cluster's.
        Reverse::Part(net) if within(net) => return negative(ResponseCode::NoError),
        Reverse::Part(_) => return Answer::Foreign,
        Reverse::Address(address) => *address,
    };
    let names = names_of(zone, model, address);
    if names.is_empty() {
        return match within(&IpNet::from(address)) {
            true if !model.is_complete() => Answer::Cluster(Reply::new(ResponseCode::ServFail)),
            true => negative(ResponseCode::NXDomain),
            false => Answer::Foreign,
        };
    }
    if kind != RecordType::PTR {
        return negative(ResponseCode::NoError);
    }
    let record = |target| Record::from_rdata(name.clone(), zone.ttl, RData::PTR(PTR(target)));
    Answer::Cluster(Reply::records(names.into_iter().map(record).collect()))
}

/// The service at the address, else the endpoints there, one name for each service they are behind.
fn names_of(zone: &Zone, model: &Model, address: IpAddr) -> Vec<Name> {
    let exposed = |key: &&str| key.split_once('.').is_some_and(|(_, namespace)| model.has_namespace(namespace));
    if let Some(key) = model.service_at(address).filter(exposed) {
        return zone.service_name(key, None).into_iter().collect();
    }
    let keys: HashSet<&str> = model.endpoints_at(address).filter(exposed).collect();
    let mut names = Vec::new();
    for key in keys {
        let Some(service) = model.service(key) else { continue };
        let endpoints = model.slices(key).iter().flat_map(|slice| slice.endpoints.iter());
        let here = endpoints.filter(|e| e.address == address && (e.ready || service.publish_not_ready));
        let labels: HashSet<String> =
            here.map(|e| e.hostname.as_deref().map_or_else(|| dashed(address), str::to_owned)).collect();
        names.extend(labels.iter().filter_map(|label| zone.service_name(key, Some(label))));
    }
    names.sort();
    names
}

/// Turns runs of addresses of one name, so that clients which take the first do not all take the same.
fn rotate(records: &mut [Record], spin: u32) {
    let is_address = |record: &Record| matches!(record.record_type(), RecordType::A | RecordType::AAAA);
    let first = records.iter().position(is_address).unwrap_or(records.len());
    let addresses = &mut records[first..];
    if addresses.len() > 1 {
        addresses.rotate_left(spin as usize % addresses.len());
    }
}
