//! The table's constant part: maps, chains and rules, and the `pick` chains made on first use.
//!
//! The path of a packet, for one family:
//!
//! ```text
//! nat-prerouting, nat-output -> dispatch
//!   dispatch:   destination . protocol . port   vmap @services   -> pick-CLASS-N | ext-local | affinity-…
//!               node address, protocol . port   vmap @nodeports  -> pick-nodeport-CLASS-N | ext-local-nodeport | …
//!   source-ranges:  from elsewhere: counted drop; else destination . protocol . port  vmap @guarded  -> pick-CLASS-N | ext-local | …
//!   pick-cluster-3:  jump masquerade-nonlocal; dnat to destination . protocol . port . random mod 3 map @endpoints;
//!                    once more with mod 1; counted drop
//! nat-postrouting:   hairpin and marked packets are masqueraded, the mark's bit is cleared
//! filter-input, -forward, -output:  new connections vmap @no-endpoints (reject or drop);
//!                    unknown ports of a cluster address rejected, unallocated addresses dropped
//! ```
//!
//! A pick chain finds its list by the packet's own destination, so one chain serves every service
//! with that number of endpoints. Rules never name a service.

use std::fmt::Write as _;

use keelson_netfilter::nft::{
    Base, BaseChain, Batch, Cmp, Ct, Expr, Family, Field, Hook, Maps, Meta, Reg, Reject, SetDecl, Verdict,
};

use crate::model::stable_id;
use crate::model::types::{Ep, Protocol};
use crate::planner::Class;

/// Name of our table in each family. Foreign tables are never touched.
pub const TABLE: &str = "keelson-dataplane";

const IPS_DST_NAT: u32 = 1 << 5;
const CT_STATE_NEW: u32 = 1 << 3;
const RTN_LOCAL: u32 = 2;
const IPPROTO_TCP: u8 = 6;
/// Priorities: `dstnat` and `srcnat` for NAT; before everybody's filter rules, as upstream has it.
const PRIORITY_DSTNAT: i32 = -100;
const PRIORITY_SRCNAT: i32 = 100;
const PRIORITY_FILTER_FIRST: i32 = -110;
/// On the way out destination NAT must have happened first.
const PRIORITY_OUTPUT_AFTER_DSTNAT: i32 = -90;

/// Verdict maps: what a packet's destination leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VerdictMap {
    /// Second look-up of frontends with source ranges, for sources in them.
    Guarded,
    /// Second look-up of ext-local frontends for pods and the node itself.
    Inside,
    /// Second look-up of ext-local frontends for everybody else.
    Local,
    /// First look-up.
    Services,
    /// Reject or drop, in the filter hooks.
    NoEndpoints,
}

/// Maps that hold endpoints by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ListMap {
    /// Endpoints by the policy of the frontend.
    All,
    /// This node's endpoints of ext-local frontends.
    Local,
}

/// All verdict maps. Those of second look-ups stand first: what leads to them must not be there before they
/// are.
pub const VERDICT_MAPS: [VerdictMap; 5] =
    [VerdictMap::Guarded, VerdictMap::Inside, VerdictMap::Local, VerdictMap::Services, VerdictMap::NoEndpoints];
/// All endpoint maps.
pub const LIST_MAPS: [ListMap; 2] = [ListMap::All, ListMap::Local];

impl VerdictMap {
    /// The maps that exist for addresses, or for node ports: source ranges do not apply to those.
    pub fn all(node_port: bool) -> impl Iterator<Item = Self> {
        VERDICT_MAPS.into_iter().filter(move |map| !(node_port && *map == Self::Guarded))
    }

    /// Whether a chain that the first look-up leads to looks here.
    #[must_use]
    pub fn is_second(self) -> bool {
        matches!(self, Self::Guarded | Self::Inside | Self::Local)
    }

    /// The map's name; node ports have maps of their own, without an address in the key.
    #[must_use]
    pub fn name(self, node_port: bool) -> &'static str {
        match (self, node_port) {
            (Self::Services, false) => "services",
            (Self::Services, true) => "nodeports",
            (Self::Guarded, _) => "guarded",
            (Self::Inside, false) => "ext-local-inside",
            (Self::Inside, true) => "ext-local-inside-nodeports",
            (Self::Local, false) => "ext-local-outside",
            (Self::Local, true) => "ext-local-outside-nodeports",
            (Self::NoEndpoints, false) => "no-endpoints",
            (Self::NoEndpoints, true) => "no-endpoints-nodeports",
        }
    }
}

impl ListMap {
    /// The map's name.
    #[must_use]
    pub fn name(self, node_port: bool) -> &'static str {
        match (self, node_port) {
            (Self::All, false) => "endpoints",
            (Self::All, true) => "nodeport-endpoints",
            (Self::Local, false) => "local-endpoints",
            (Self::Local, true) => "nodeport-local-endpoints",
        }
    }
}

/// Sets of addresses.
pub const SET_CLUSTER_IPS: &str = "cluster-ips";
/// Endpoints on this node, as (source, destination).
pub const SET_HAIRPIN: &str = "hairpin";
/// From where a destination with source ranges may be reached. In a set of its own: the kernel copies a
/// concatenation with intervals at each commit that touches it.
pub const SET_SOURCE_RANGES: &str = "source-ranges";
/// Sources that count as local pods.
pub const SET_LOCAL_SOURCES: &str = "local-sources";
/// The ranges cluster addresses come from.
pub const SET_SERVICE_CIDRS: &str = "service-cidrs";
/// Node addresses on which node ports answer.
pub const SET_NODEPORT_ADDRESSES: &str = "nodeport-addresses";

/// Refuses packets: TCP reset or ICMP port unreachable.
pub const CHAIN_REFUSE: &str = "refuse";
/// Second look-up for ext-local frontends.
pub const CHAIN_EXT_LOCAL: &str = "ext-local";
/// The same for node ports.
pub const CHAIN_EXT_LOCAL_NODEPORT: &str = "ext-local-nodeport";
/// Drops what comes from outside a destination's source ranges, and looks the others up again.
pub const CHAIN_SOURCE_RANGES: &str = "source-ranges-check";
/// Sets the masquerade mark.
pub const CHAIN_MARK: &str = "mark-for-masquerade";
/// Sets it when the source is not local.
pub const CHAIN_MARK_NONLOCAL: &str = "masquerade-nonlocal";
/// nft takes no keyword (`masquerade`) as a name.
const CHAIN_MASQUERADE: &str = "masquerade-marked";
const CHAIN_DISPATCH: &str = "dispatch";
const CHAIN_CLUSTER_IPS: &str = "cluster-ip-check";
/// A chain without rules whose name carries a fingerprint of the constant part.
pub const LAYOUT_PREFIX: &str = "layout-";

/// How a packet's source is recognised as a pod of this cluster or node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalSource {
    /// Not at all: cluster traffic is never masqueraded for its source (unless all is).
    Unknown,
    /// By address, in the set `local-sources`.
    Cidrs,
    /// By the interface it came in by.
    Interface(String),
    /// By a prefix of the interface's name.
    InterfacePrefix(String),
}

/// What the constant part depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutOptions {
    /// Detection of local sources.
    pub local_source: LocalSource,
    /// `masqueradeAll`.
    pub masquerade_all: bool,
    /// The mark's bit, as a mask.
    pub mark: u32,
}

/// A chain that chooses one of N endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pick {
    /// Masquerading and list.
    pub class: Class,
    /// Whether the lists are those of node ports.
    pub node_port: bool,
    /// Number of endpoints.
    pub count: u16,
}

impl Pick {
    /// The chain's name.
    #[must_use]
    pub fn name(&self) -> String {
        let mut name = String::from("pick-");
        if self.node_port {
            name.push_str("nodeport-");
        }
        let _ = write!(name, "{}-{}", class_name(self.class), self.count);
        name
    }

    /// The chain of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_prefix("pick-")?;
        let (node_port, rest) = rest.strip_prefix("nodeport-").map_or((false, rest), |r| (true, r));
        let (class, count) = rest.rsplit_once('-')?;
        Some(Self { class: class_of(class)?, node_port, count: count.parse().ok()? })
    }

    fn list(&self) -> &'static str {
        let list = if self.class == Class::Local { ListMap::Local } else { ListMap::All };
        list.name(self.node_port)
    }
}

/// The word for a class in chain names.
#[must_use]
pub fn class_name(class: Class) -> &'static str {
    match class {
        Class::Cluster => "cluster",
        Class::External => "external",
        Class::Inside => "inside",
        Class::Local => "local",
    }
}

/// The class of a word.
#[must_use]
pub fn class_of(name: &str) -> Option<Class> {
    [Class::Cluster, Class::External, Class::Inside, Class::Local].into_iter().find(|c| class_name(*c) == name)
}

/// A chain: its name, where it is attached, its rules.
pub type ChainDecl = (&'static str, Option<BaseChain>, Rules);

/// Rules of a chain, as expressions.
pub type Rules = Vec<Vec<Expr>>;

/// Writes rules for one family.
#[derive(Debug, Clone)]
pub struct Layout {
    family: Family,
    options: LayoutOptions,
}

fn goto(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Goto(chain.to_owned()))
}

fn jump(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Jump(chain.to_owned()))
}

fn lookup(set: &str, invert: bool) -> Expr {
    Expr::Lookup { set: set.to_owned(), key: Reg(0), invert }
}

impl Layout {
    /// The layout of a family.
    #[must_use]
    pub fn new(family: Family, options: LayoutOptions) -> Self {
        Self { family, options }
    }

    /// The family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    fn addr_field(&self) -> Field {
        if self.family == Family::Ipv4 { Field::Ipv4 } else { Field::Ipv6 }
    }

    fn addr_len(&self) -> u32 {
        if self.family == Family::Ipv4 { 4 } else { 16 }
    }

    fn saddr(&self, into: Reg) -> Expr {
        let offset = if self.family == Family::Ipv4 { 12 } else { 8 };
        Expr::Payload { base: Base::Network, offset, len: self.addr_len(), into }
    }

    fn daddr(&self, into: Reg) -> Expr {
        let offset = if self.family == Family::Ipv4 { 16 } else { 24 };
        Expr::Payload { base: Base::Network, offset, len: self.addr_len(), into }
    }

    /// `[ip daddr .] meta l4proto . th dport` from register 0 on, and the register behind it.
    fn destination(&self, node_port: bool) -> (Vec<Expr>, Reg) {
        let mut exprs = Vec::new();
        let mut reg = Reg(0);
        if !node_port {
            exprs.push(self.daddr(reg));
            reg = reg.after(self.addr_len() as usize);
        }
        exprs.push(Expr::Meta { key: Meta::L4Proto, into: reg });
        reg = reg.after(4);
        exprs.push(Expr::Payload { base: Base::Transport, offset: 2, len: 2, into: reg });
        (exprs, reg.after(4))
    }

    fn vmap(&self, map: VerdictMap, node_port: bool) -> Vec<Expr> {
        let (mut exprs, _) = self.destination(node_port);
        exprs.push(Expr::LookupVerdict { set: map.name(node_port).to_owned(), key: Reg(0) });
        exprs
    }

    fn dnat(&self, reg: Reg) -> Expr {
        Expr::Dnat { family: self.family as u8, addr: reg, port: reg.after(self.addr_len() as usize) }
    }

    fn local_type(source: bool) -> Vec<Expr> {
        vec![
            Expr::FibType { source, into: Reg(0) },
            Expr::Cmp { op: Cmp::Eq, reg: Reg(0), value: RTN_LOCAL.to_ne_bytes().to_vec() },
        ]
    }

    /// `fib daddr type local ip daddr != 127.0.0.0/8 ip daddr @nodeport-addresses`.
    fn to_node_port_address(&self) -> Vec<Expr> {
        let mut exprs = Self::local_type(false);
        match self.family {
            Family::Ipv4 => {
                exprs.push(Expr::Payload { base: Base::Network, offset: 16, len: 1, into: Reg(0) });
                exprs.push(Expr::Cmp { op: Cmp::Neq, reg: Reg(0), value: vec![127] });
                exprs.push(self.daddr(Reg(0)));
            }
            Family::Ipv6 => {
                let localhost = std::net::Ipv6Addr::LOCALHOST.octets().to_vec();
                exprs.push(self.daddr(Reg(0)));
                exprs.push(Expr::Cmp { op: Cmp::Neq, reg: Reg(0), value: localhost });
            }
        }
        exprs.push(lookup(SET_NODEPORT_ADDRESSES, false));
        exprs
    }

    /// Goes on when the source is (or, inverted, is not) a local pod. `None`: cannot be told.
    fn source_is_local_pod(&self, invert: bool) -> Option<Vec<Expr>> {
        let op = if invert { Cmp::Neq } else { Cmp::Eq };
        let interface =
            |value| vec![Expr::Meta { key: Meta::IifName, into: Reg(0) }, Expr::Cmp { op, reg: Reg(0), value }];
        match &self.options.local_source {
            LocalSource::Unknown => None,
            LocalSource::Cidrs => Some(vec![self.saddr(Reg(0)), lookup(SET_LOCAL_SOURCES, invert)]),
            LocalSource::Interface(name) => {
                let mut value = name.as_bytes().to_vec();
                value.resize(16, 0);
                Some(interface(value))
            }
            LocalSource::InterfacePrefix(prefix) => Some(interface(prefix.as_bytes().to_vec())),
        }
    }

    /// Sets and maps.
    #[must_use]
    pub fn sets(&self) -> Vec<SetDecl> {
        let addr = self.addr_field();
        let values: &'static [Field] =
            if addr == Field::Ipv4 { &[Field::Ipv4, Field::Port] } else { &[Field::Ipv6, Field::Port] };
        let mut sets = Vec::new();
        for node_port in [false, true] {
            let mut key = if node_port { vec![] } else { vec![addr] };
            key.extend([Field::Proto, Field::Port]);
            for map in VerdictMap::all(node_port) {
                sets.push(SetDecl::map(map.name(node_port), &key, Maps::Verdicts));
            }
            key.push(Field::Index);
            for list in LIST_MAPS {
                sets.push(SetDecl::map(list.name(node_port), &key, Maps::Values(values)));
            }
        }
        sets.push(SetDecl::set(SET_CLUSTER_IPS, &[addr]));
        let sources = [addr, Field::Proto, Field::Port, addr];
        sets.push(SetDecl::set(SET_SOURCE_RANGES, &sources).intervals());
        sets.push(SetDecl::set(SET_HAIRPIN, &[addr, addr]));
        for name in [SET_LOCAL_SOURCES, SET_SERVICE_CIDRS, SET_NODEPORT_ADDRESSES] {
            sets.push(SetDecl::set(name, &[addr]).intervals());
        }
        sets
    }

    /// Chains with their rules.
    #[must_use]
    pub fn chains(&self) -> Vec<ChainDecl> {
        let base = |kind, hook, priority| Some(BaseChain { kind, hook, priority });
        vec![
            (CHAIN_MARK, None, vec![self.set_mark()]),
            (CHAIN_MARK_NONLOCAL, None, self.mark_nonlocal()),
            (CHAIN_REFUSE, None, self.refuse()),
            (CHAIN_EXT_LOCAL, None, self.ext_local(false)),
            (CHAIN_EXT_LOCAL_NODEPORT, None, self.ext_local(true)),
            (CHAIN_SOURCE_RANGES, None, self.source_ranges()),
            (CHAIN_DISPATCH, None, self.dispatch()),
            (CHAIN_CLUSTER_IPS, None, self.cluster_ip_check()),
            ("nat-prerouting", base("nat", Hook::Prerouting, PRIORITY_DSTNAT), vec![vec![jump(CHAIN_DISPATCH)]]),
            ("nat-output", base("nat", Hook::Output, PRIORITY_DSTNAT), vec![vec![jump(CHAIN_DISPATCH)]]),
            ("nat-postrouting", base("nat", Hook::Postrouting, PRIORITY_SRCNAT), self.postrouting()),
            ("filter-input", base("filter", Hook::Input, PRIORITY_FILTER_FIRST), self.filter(true, false)),
            ("filter-forward", base("filter", Hook::Forward, PRIORITY_FILTER_FIRST), self.filter(false, true)),
            ("filter-output", base("filter", Hook::Output, PRIORITY_OUTPUT_AFTER_DSTNAT), self.filter(true, true)),
        ]
    }

    fn set_mark(&self) -> Vec<Expr> {
        let mark = self.options.mark;
        vec![
            Expr::Meta { key: Meta::Mark, into: Reg(0) },
            Expr::Bitwise { reg: Reg(0), mask: !mark, xor: mark },
            Expr::MetaSet { key: Meta::Mark, from: Reg(0) },
        ]
    }

    fn mark_nonlocal(&self) -> Vec<Vec<Expr>> {
        if self.options.masquerade_all {
            return vec![vec![jump(CHAIN_MARK)]];
        }
        let mut rules = Vec::new();
        if let Some(mut rule) = self.source_is_local_pod(true) {
            rule.push(jump(CHAIN_MARK));
            rules.push(rule);
        }
        rules
    }

    fn refuse(&self) -> Vec<Vec<Expr>> {
        let port_unreachable = if self.family == Family::Ipv4 { 3 } else { 4 };
        vec![
            vec![
                Expr::Meta { key: Meta::L4Proto, into: Reg(0) },
                Expr::Cmp { op: Cmp::Eq, reg: Reg(0), value: vec![IPPROTO_TCP] },
                Expr::Reject(Reject::TcpReset),
            ],
            vec![Expr::Reject(Reject::Icmp(port_unreachable))],
        ]
    }

    fn ext_local(&self, node_port: bool) -> Vec<Vec<Expr>> {
        let mut rules = Vec::new();
        if let Some(mut rule) = self.source_is_local_pod(false) {
            rule.extend(self.vmap(VerdictMap::Inside, node_port));
            rules.push(rule);
        }
        let mut rule = Self::local_type(true);
        rule.push(jump(CHAIN_MARK));
        rules.push(rule);
        let mut rule = Self::local_type(true);
        rule.extend(self.vmap(VerdictMap::Inside, node_port));
        rules.push(rule);
        rules.push(self.vmap(VerdictMap::Local, node_port));
        rules
    }

    /// Stands behind the first look-up, so that a packet to any other destination pays nothing for it.
    fn source_ranges(&self) -> Vec<Vec<Expr>> {
        let (mut rule, source) = self.destination(false);
        rule.push(self.saddr(source));
        rule.push(lookup(SET_SOURCE_RANGES, true));
        rule.extend([Expr::Counter, Expr::Verdict(Verdict::Drop)]);
        vec![rule, self.vmap(VerdictMap::Guarded, false)]
    }

    fn dispatch(&self) -> Vec<Vec<Expr>> {
        let mut node_port = self.to_node_port_address();
        node_port.extend(self.vmap(VerdictMap::Services, true));
        vec![self.vmap(VerdictMap::Services, false), node_port]
    }

    fn cluster_ip_check(&self) -> Vec<Vec<Expr>> {
        vec![
            vec![self.daddr(Reg(0)), lookup(SET_CLUSTER_IPS, false), goto(CHAIN_REFUSE)],
            vec![self.daddr(Reg(0)), lookup(SET_SERVICE_CIDRS, false), Expr::Verdict(Verdict::Drop)],
        ]
    }

    fn postrouting(&self) -> Vec<Vec<Expr>> {
        let mark = self.options.mark;
        let bits = |reg, mask| Expr::Bitwise { reg, mask, xor: 0 };
        let zero = |op| Expr::Cmp { op, reg: Reg(0), value: vec![0; 4] };
        vec![
            vec![
                Expr::Meta { key: Meta::Mark, into: Reg(0) },
                bits(Reg(0), mark),
                zero(Cmp::Neq),
                jump(CHAIN_MASQUERADE),
            ],
            vec![
                Expr::Ct { key: Ct::Status, into: Reg(0) },
                bits(Reg(0), IPS_DST_NAT),
                zero(Cmp::Neq),
                self.saddr(Reg(0)),
                self.daddr(Reg(0).after(self.addr_len() as usize)),
                lookup(SET_HAIRPIN, false),
                Expr::Masquerade,
            ],
        ]
    }

    /// Clears our bit alone, then masquerades.
    fn masquerade(&self) -> Vec<Vec<Expr>> {
        vec![
            vec![
                Expr::Meta { key: Meta::Mark, into: Reg(0) },
                Expr::Bitwise { reg: Reg(0), mask: !self.options.mark, xor: 0 },
                Expr::MetaSet { key: Meta::Mark, from: Reg(0) },
            ],
            vec![Expr::Masquerade],
        ]
    }

    fn filter(&self, node_ports: bool, cluster_ips: bool) -> Vec<Vec<Expr>> {
        let new = || {
            vec![
                Expr::Ct { key: Ct::State, into: Reg(0) },
                Expr::Bitwise { reg: Reg(0), mask: CT_STATE_NEW, xor: 0 },
                Expr::Cmp { op: Cmp::Neq, reg: Reg(0), value: vec![0; 4] },
            ]
        };
        let mut rules = Vec::new();
        let mut rule = new();
        rule.extend(self.vmap(VerdictMap::NoEndpoints, false));
        rules.push(rule);
        if node_ports {
            let mut rule = new();
            rule.extend(self.to_node_port_address());
            rule.extend(self.vmap(VerdictMap::NoEndpoints, true));
            rules.push(rule);
        }
        if cluster_ips {
            let mut rule = new();
            rule.push(jump(CHAIN_CLUSTER_IPS));
            rules.push(rule);
        }
        rules
    }

    /// Rules of a pick chain.
    #[must_use]
    pub fn pick_rules(&self, pick: &Pick) -> Vec<Vec<Expr>> {
        let choose = |modulus: u16| {
            let (mut exprs, index) = self.destination(pick.node_port);
            exprs.push(Expr::Random { modulus: u32::from(modulus), into: index });
            exprs.push(Expr::LookupMap { set: pick.list().to_owned(), key: Reg(0), into: Reg(0) });
            exprs.push(self.dnat(Reg(0)));
            exprs
        };
        let mut rules = Self::class_rules(pick.class);
        rules.push(choose(pick.count));
        // The list may just have shrunk: once more with the index that is always there.
        rules.push(choose(1));
        // A dropped packet is sent again; a refused connection is an error to its client.
        rules.push(vec![Expr::Counter, Expr::Verdict(Verdict::Drop)]);
        rules
    }

    /// What a class does before choosing.
    #[must_use]
    pub fn class_rules(class: Class) -> Vec<Vec<Expr>> {
        match class {
            Class::Cluster => vec![vec![jump(CHAIN_MARK_NONLOCAL)]],
            Class::External => vec![vec![jump(CHAIN_MARK)]],
            Class::Inside | Class::Local => Vec::new(),
        }
    }

    /// `ip saddr @set goto chain`.
    #[must_use]
    pub fn stuck_rule(&self, set: &str, chain: &str) -> Vec<Expr> {
        vec![self.saddr(Reg(0)), lookup(set, false), goto(chain)]
    }

    /// Rules of the chain of one endpoint of a service port with affinity. The first ends early when the
    /// set is full; the packet then is counted and goes its way without sticking.
    #[must_use]
    pub fn sticky_endpoint_rules(&self, set: &str, protocol: Protocol, ep: &Ep) -> Vec<Vec<Expr>> {
        let addr = match ep.addr {
            std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
            std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let port = Reg(0).after(addr.len());
        // nft takes a constant port only behind a protocol match.
        let translate = [
            Expr::Meta { key: Meta::L4Proto, into: Reg(0) },
            Expr::Cmp { op: Cmp::Eq, reg: Reg(0), value: vec![protocol as u8] },
            Expr::Immediate { into: Reg(0), value: addr },
            Expr::Immediate { into: port, value: ep.port.to_be_bytes().to_vec() },
            self.dnat(Reg(0)),
        ];
        let mut sticks = vec![self.saddr(Reg(0)), Expr::SetUpdate { set: set.to_owned(), key: Reg(0) }];
        sticks.extend_from_slice(&translate);
        let mut full = vec![Expr::Counter];
        full.extend(translate);
        vec![sticks, full]
    }

    /// The set of clients that stick to an endpoint.
    #[must_use]
    pub fn sticky_set(&self, name: &str, seconds: u32) -> SetDecl {
        /// Upstream's size; an unsized dynamic set holds no more either.
        const SIZE: u32 = 65_535;
        let dynamic = keelson_netfilter::nft::Dynamic { timeout_ms: u64::from(seconds) * 1000, size: SIZE };
        SetDecl { dynamic: Some(dynamic), ..SetDecl::set(name, &[self.addr_field()]) }
    }

    /// Writes the whole constant part: what is there is kept, rules are replaced.
    pub fn write(&self, batch: &mut Batch) {
        batch.add_table();
        for set in self.sets() {
            batch.add_set(&set);
        }
        let mut chains = self.chains();
        chains.insert(0, (CHAIN_MASQUERADE, None, self.masquerade()));
        for (name, base, _) in &chains {
            batch.add_chain(name, *base);
        }
        for (name, _, rules) in &chains {
            batch.flush_chain(name);
            for rule in rules {
                batch.add_rule(name, rule);
            }
        }
    }

    /// Rules of each constant chain, and the name of the chain that carries the fingerprint.
    #[must_use]
    pub fn expected(&self) -> (Vec<(&'static str, Rules)>, String) {
        let mut batch = Batch::new(self.family, TABLE);
        self.write(&mut batch);
        // A pick chain is part of the layout, too.
        let sample = Pick { class: Class::Cluster, node_port: false, count: 2 };
        batch.add_chain(&sample.name(), None);
        for rule in self.pick_rules(&sample) {
            batch.add_rule(&sample.name(), &rule);
        }
        let fingerprint = format!("{LAYOUT_PREFIX}{:016x}", stable_id(&[batch.finish()]));
        let mut chains: Vec<_> = self.chains().into_iter().map(|(name, _, rules)| (name, rules)).collect();
        chains.push((CHAIN_MASQUERADE, self.masquerade()));
        (chains, fingerprint)
    }
}
