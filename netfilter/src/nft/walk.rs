//! The path of a packet through one table, worked out in memory.
//!
//! It runs on the bytes that were sent to (or listed from) the kernel, never on what whoever wrote
//! them had in mind: headers are bytes, registers are bytes, a rule is its encoded expressions. So a
//! wrong offset, register or byte order shows here as it would in the kernel.
//!
//! A walk is of the first packet of a connection: `nat` chains see it once, at the first hook that has
//! one for it. Upstream counterpart: `nf_tables_core.c` (`nft_do_chain`), `nf_nat_core.c`.

use std::net::{IpAddr, SocketAddr};

use super::{Base, Cmp, Ct, Expr, Hook, Meta, OwnedData, Reg, Reject, TableState, Verdict, read_rule};

/// The kernel's limit of nested calls (`NFT_JUMP_STACK_SIZE`).
const MAX_DEPTH: usize = 16;
/// A chain that leads to itself is refused by the kernel; bytes of a fake could.
const MAX_RULES: usize = 10_000;
const REGISTERS: usize = 64;
const IFNAMSIZ: usize = 16;
const RTN_UNICAST: u32 = 1;
const RTN_LOCAL: u32 = 2;
const CT_STATE_NEW: u32 = 1 << 3;
const IPS_DST_NAT: u32 = 1 << 5;

/// The first packet of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Interface it comes in by; none for one that the machine sends itself.
    pub interface: Option<String>,
    /// Source.
    pub source: SocketAddr,
    /// Destination; of the same family.
    pub destination: SocketAddr,
    /// Layer 4 protocol number.
    pub protocol: u8,
    /// Packet mark.
    pub mark: u32,
}

/// What the packet meets that is not in the table.
pub trait World {
    /// Whether an address is one of the machine's.
    fn is_local(&self, addr: IpAddr) -> bool;

    /// The random number below `modulus`.
    fn random(&mut self, modulus: u32) -> u32;
}

/// One thing that happened on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A base chain was entered.
    Hook(Hook),
    /// A set or map had the key.
    Found {
        /// The set's name.
        set: String,
        /// The key.
        key: Vec<u8>,
        /// What it maps to.
        data: OwnedData,
    },
    /// A chain was called, or gone to.
    Into(String),
    /// One of so many was chosen.
    Chosen {
        /// Of how many.
        modulus: u32,
        /// Which.
        index: u32,
    },
    /// The packet's mark was changed.
    Mark(u32),
    /// The client was noted in a set.
    Noted(String),
    /// The destination was translated.
    Dnat(SocketAddr),
    /// The source was translated to the outgoing interface's address.
    Masquerade,
    /// Refused.
    Reject(Reject),
    /// Discarded.
    Drop,
}

/// A step of the walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The chain.
    pub chain: String,
    /// Number of the rule in it, from 0.
    pub rule: usize,
    /// What happened.
    pub what: What,
}

/// Where the packet ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It goes to an address.
    Arrives {
        /// The address, after translation.
        at: SocketAddr,
        /// Whether the source was translated.
        masqueraded: bool,
    },
    /// It is answered with an error.
    Refused(Reject),
    /// It disappears.
    Dropped,
}

/// A walk's end and steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walked {
    /// Where the packet ends.
    pub fate: Fate,
    /// The mark that it leaves with.
    pub mark: u32,
    /// The way there.
    pub steps: Vec<Step>,
}

/// Why a walk cannot be told to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WalkError {
    /// A rule has an instruction that this program never writes.
    #[error(
        "rule {rule} of chain {chain} has the instruction '{expr}', which is none of ours: the table was changed by somebody else"
    )]
    Foreign {
        /// The chain.
        chain: String,
        /// Number of the rule, from 0.
        rule: usize,
        /// The instruction's name.
        expr: String,
    },
    /// A verdict leads to a chain that is not there.
    #[error("chain {0} does not exist, though something leads to it")]
    NoChain(String),
    /// Calls are nested too deep, or lead in a circle.
    #[error("chains lead in a circle, or more than {MAX_DEPTH} deep, at {0}")]
    TooDeep(String),
}

/// Sends a packet through a table. A client that would be noted in a set is not: one packet meets nothing of what it leaves behind.
///
/// # Errors
/// See [`WalkError`].
pub fn walk(table: &TableState, packet: &Packet, world: &mut dyn World) -> Result<Walked, WalkError> {
    let mut walker = Walker {
        table,
        world,
        packet: packet.clone(),
        regs: [0; REGISTERS],
        dnat: false,
        masqueraded: false,
        steps: Vec::new(),
        rules: 0,
    };
    let fate = walker.path()?;
    Ok(Walked { fate, mark: walker.packet.mark, steps: walker.steps })
}

struct Walker<'a> {
    table: &'a TableState,
    world: &'a mut dyn World,
    packet: Packet,
    regs: [u8; REGISTERS],
    dnat: bool,
    masqueraded: bool,
    steps: Vec<Step>,
    rules: usize,
}

/// What a rule or chain leads to.
enum Flow {
    /// The next rule.
    Next,
    /// A verdict for this chain.
    Verdict(Verdict),
    /// The packet's end at this hook.
    End(Ended),
}

enum Ended {
    Accepted,
    Dropped,
    Refused(Reject),
}

impl Walker<'_> {
    fn path(&mut self) -> Result<Fate, WalkError> {
        let own = self.packet.interface.is_none();
        let first = if own { Hook::Output } else { Hook::Prerouting };
        if let Some(fate) = self.hook(first)? {
            return Ok(fate);
        }
        // Routed by the destination that it has now.
        let local = self.world.is_local(self.packet.destination.ip());
        let rest: &[Hook] = match (own, local) {
            // By the loopback device: its NAT is settled when it comes in.
            (true, true) => &[Hook::Postrouting, Hook::Input],
            (true, false) => &[Hook::Postrouting],
            (false, true) => &[Hook::Input],
            (false, false) => &[Hook::Forward, Hook::Postrouting],
        };
        for hook in rest {
            if let Some(fate) = self.hook(*hook)? {
                return Ok(fate);
            }
        }
        Ok(Fate::Arrives { at: self.packet.destination, masqueraded: self.masqueraded })
    }

    fn hook(&mut self, hook: Hook) -> Result<Option<Fate>, WalkError> {
        let mut chains: Vec<(i32, String)> = (self.table.hooks.iter())
            .filter(|(_, base)| base.hook == hook)
            .map(|(name, base)| (base.priority, name.clone()))
            .collect();
        chains.sort();
        for (_, chain) in chains {
            self.step(&chain, 0, What::Hook(hook));
            match self.base_chain(&chain)? {
                Ended::Accepted => {}
                Ended::Dropped => return Ok(Some(Fate::Dropped)),
                Ended::Refused(how) => return Ok(Some(Fate::Refused(how))),
            }
        }
        Ok(None)
    }

    /// Runs a chain and what it calls, with the kernel's own stack of places to come back to.
    fn base_chain(&mut self, base: &str) -> Result<Ended, WalkError> {
        let mut stack: Vec<(String, usize)> = Vec::new();
        let (mut chain, mut rule) = (base.to_owned(), 0);
        loop {
            let rules = self.table.chains.get(&chain).ok_or_else(|| WalkError::NoChain(chain.clone()))?;
            let Some(bytes) = rules.get(rule) else {
                match stack.pop() {
                    Some(back) => (chain, rule) = back,
                    None => return Ok(Ended::Accepted),
                }
                continue;
            };
            self.rules += 1;
            if self.rules > MAX_RULES {
                return Err(WalkError::TooDeep(chain));
            }
            let exprs = read_rule(bytes).map_err(|expr| WalkError::Foreign { chain: chain.clone(), rule, expr })?;
            match self.rule(&chain, rule, &exprs) {
                Flow::Next => rule += 1,
                Flow::End(end) => return Ok(end),
                Flow::Verdict(Verdict::Accept) => return Ok(Ended::Accepted),
                Flow::Verdict(Verdict::Drop) => {
                    self.step(&chain, rule, What::Drop);
                    return Ok(Ended::Dropped);
                }
                Flow::Verdict(Verdict::Return) => match stack.pop() {
                    Some(back) => (chain, rule) = back,
                    None => return Ok(Ended::Accepted),
                },
                Flow::Verdict(Verdict::Jump(to)) => {
                    if stack.len() == MAX_DEPTH {
                        return Err(WalkError::TooDeep(chain));
                    }
                    self.step(&chain, rule, What::Into(to.clone()));
                    stack.push((std::mem::replace(&mut chain, to), rule + 1));
                    rule = 0;
                }
                Flow::Verdict(Verdict::Goto(to)) => {
                    self.step(&chain, rule, What::Into(to.clone()));
                    (chain, rule) = (to, 0);
                }
            }
        }
    }

    fn step(&mut self, chain: &str, rule: usize, what: What) {
        self.steps.push(Step { chain: chain.to_owned(), rule, what });
    }

    fn rule(&mut self, chain: &str, rule: usize, exprs: &[Expr]) -> Flow {
        for expr in exprs {
            match self.expr(chain, rule, expr) {
                // An instruction that breaks ends its rule.
                None => return Flow::Next,
                Some(Flow::Next) => {}
                Some(flow) => return flow,
            }
        }
        Flow::Next
    }

    fn expr(&mut self, chain: &str, rule: usize, expr: &Expr) -> Option<Flow> {
        match expr {
            Expr::Meta { key, into } => self.meta(*key, *into),
            Expr::MetaSet { from, .. } => {
                self.packet.mark = self.word(*from);
                self.step(chain, rule, What::Mark(self.packet.mark));
            }
            Expr::Payload { base, offset, len, into } => {
                let header = self.header(*base);
                let (start, len) = (*offset as usize, *len as usize);
                let bytes = header.get(start..start + len)?.to_vec();
                self.store(*into, &bytes);
            }
            Expr::Cmp { op, reg, value } => {
                let equal = self.bytes(*reg, value.len())? == value;
                (equal == (*op == Cmp::Eq)).then_some(())?;
            }
            Expr::Bitwise { reg, mask, xor } => {
                let word = (self.word(*reg) & mask) ^ xor;
                self.store(*reg, &word.to_ne_bytes());
            }
            Expr::Lookup { set, key, invert } => {
                let key = self.key(set, *key)?;
                let found = self.table.lookup(set, &key).cloned();
                (found.is_some() != *invert).then_some(())?;
                if let Some(data) = found {
                    self.step(chain, rule, What::Found { set: set.clone(), key, data });
                }
            }
            Expr::LookupMap { set, key, into } => {
                let key = self.key(set, *key)?;
                let OwnedData::Value(value) = self.table.lookup(set, &key)?.clone() else { return None };
                let data = OwnedData::Value(value.clone());
                self.step(chain, rule, What::Found { set: set.clone(), key, data });
                self.store(*into, &value);
            }
            Expr::LookupVerdict { set, key } => {
                let key = self.key(set, *key)?;
                let OwnedData::Verdict(verdict) = self.table.lookup(set, &key)?.clone() else { return None };
                let data = OwnedData::Verdict(verdict.clone());
                self.step(chain, rule, What::Found { set: set.clone(), key, data });
                return Some(Flow::Verdict(verdict));
            }
            // Only before it is committed has an anonymous map no name.
            Expr::LookupAnonymousVerdict { .. } => return None,
            Expr::Random { modulus, into } => {
                let index = self.world.random(*modulus) % (*modulus).max(1);
                self.step(chain, rule, What::Chosen { modulus: *modulus, index });
                self.store(*into, &index.to_ne_bytes());
            }
            Expr::Immediate { into, value } => self.store(*into, value),
            Expr::Verdict(verdict) => return Some(Flow::Verdict(verdict.clone())),
            Expr::Dnat { addr, port, .. } => return Some(self.dnat(chain, rule, *addr, *port)),
            Expr::Masquerade => {
                self.masqueraded = true;
                self.step(chain, rule, What::Masquerade);
                return Some(Flow::Verdict(Verdict::Accept));
            }
            Expr::Reject(how) => {
                self.step(chain, rule, What::Reject(*how));
                return Some(Flow::End(Ended::Refused(*how)));
            }
            Expr::FibType { source, into } => {
                let end = if *source { self.packet.source } else { self.packet.destination };
                let kind = if self.world.is_local(end.ip()) { RTN_LOCAL } else { RTN_UNICAST };
                self.store(*into, &kind.to_ne_bytes());
            }
            Expr::Ct { key: Ct::State, into } => self.store(*into, &CT_STATE_NEW.to_ne_bytes()),
            Expr::Ct { key: Ct::Status, into } => {
                let status = if self.dnat { IPS_DST_NAT } else { 0 };
                self.store(*into, &status.to_ne_bytes());
            }
            Expr::Counter => {}
            Expr::SetUpdate { set, key } => {
                let key = (self.key(set, *key)?, false);
                let full = self.table.shapes.get(set).and_then(|shape| shape.size);
                let elements = self.table.sets.get(set)?;
                if !elements.contains_key(&key) && full.is_some_and(|size| elements.len() >= size as usize) {
                    return None;
                }
                self.step(chain, rule, What::Noted(set.clone()));
            }
        }
        Some(Flow::Next)
    }

    fn meta(&mut self, key: Meta, into: Reg) {
        match key {
            Meta::Mark => self.store(into, &self.packet.mark.to_ne_bytes()),
            Meta::L4Proto => self.store(into, &[self.packet.protocol]),
            Meta::IifName | Meta::OifName => {
                // Where it leaves by is not known here, and none of our rules asks.
                let name = if key == Meta::IifName { self.packet.interface.as_deref() } else { None };
                let mut bytes = name.unwrap_or_default().as_bytes().to_vec();
                bytes.resize(IFNAMSIZ, 0);
                self.store(into, &bytes);
            }
        }
    }

    fn dnat(&mut self, chain: &str, rule: usize, addr: Reg, port: Reg) -> Flow {
        let number = self.bytes(port, 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_be_bytes);
        let ip = match self.packet.destination {
            SocketAddr::V4(_) => self.bytes(addr, 4).and_then(|b| <[u8; 4]>::try_from(b).ok()).map(IpAddr::from),
            SocketAddr::V6(_) => self.bytes(addr, 16).and_then(|b| <[u8; 16]>::try_from(b).ok()).map(IpAddr::from),
        };
        let Some(ip) = ip else { return Flow::Next };
        let to = SocketAddr::new(ip, number);
        self.packet.destination = to;
        self.dnat = true;
        self.step(chain, rule, What::Dnat(to));
        Flow::Verdict(Verdict::Accept)
    }

    /// The header bytes that rules look at; what they do not is zero.
    fn header(&self, base: Base) -> Vec<u8> {
        let (from, to) = (self.packet.source, self.packet.destination);
        match (base, from.ip(), to.ip()) {
            (Base::Transport, ..) => [from.port().to_be_bytes(), to.port().to_be_bytes()].concat(),
            (Base::Network, IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut header = vec![0; 12];
                (header[0], header[9]) = (0x45, self.packet.protocol);
                [header, from.octets().to_vec(), to.octets().to_vec()].concat()
            }
            (Base::Network, from, to) => {
                let v6 = |ip| match ip {
                    IpAddr::V6(v6) => v6.octets(),
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                };
                let mut header = vec![0; 8];
                (header[0], header[6]) = (0x60, self.packet.protocol);
                [header, v6(from).to_vec(), v6(to).to_vec()].concat()
            }
        }
    }

    fn at(reg: Reg) -> usize {
        usize::from(reg.0) * 4
    }

    fn bytes(&self, reg: Reg, len: usize) -> Option<&[u8]> {
        self.regs.get(Self::at(reg)..Self::at(reg) + len)
    }

    fn word(&self, reg: Reg) -> u32 {
        self.bytes(reg, 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
    }

    fn key(&self, set: &str, reg: Reg) -> Option<Vec<u8>> {
        Some(self.bytes(reg, self.table.shapes.get(set)?.key_len)?.to_vec())
    }

    /// Values fill whole registers, as in the kernel.
    fn store(&mut self, reg: Reg, value: &[u8]) {
        let (start, padded) = (Self::at(reg), value.len().next_multiple_of(4));
        if let Some(target) = self.regs.get_mut(start..start + padded) {
            target.fill(0);
            target[..value.len()].copy_from_slice(value);
        }
    }
}
