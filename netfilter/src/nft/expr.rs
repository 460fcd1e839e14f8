//! nf_tables expressions: the instructions a rule is made of.
//!
//! Only what this project's rules need, encoded the way the `nft` program does it (same register
//! choice, same attribute set), so that any `nft` can list the result. Upstream counterpart:
//! libnftnl's `expr/*.c`.

use crate::uapi::{
    NF_ACCEPT, NF_DROP, NFT_GOTO, NFT_JUMP, NFT_RETURN, NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_EXPR_DATA,
    NFTA_EXPR_NAME, NFTA_LIST_ELEM, NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE,
};
use crate::wire::Writer;

/// A 32-bit register slot, 0 to 15. Slots 0, 4, 8 and 12 are written in their 128-bit names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reg(pub u8);

impl Reg {
    /// The kernel's number (`enum nft_registers`).
    #[must_use]
    pub fn number(self) -> u32 {
        let slot = u32::from(self.0);
        if slot.is_multiple_of(4) { 1 + slot / 4 } else { 8 + slot }
    }

    /// The slot of a kernel register number; none for the verdict register.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            1..=4 => Some(Self(((number - 1) * 4) as u8)),
            8..=23 => Some(Self((number - 8) as u8)),
            _ => None,
        }
    }

    /// The register behind a value of `bytes` bytes stored at this one.
    #[must_use]
    pub fn after(self, bytes: usize) -> Self {
        Self(self.0 + bytes.div_ceil(4) as u8)
    }
}

/// What a rule or a verdict map element decides.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Let the packet pass this base chain.
    Accept,
    /// Discard silently.
    Drop,
    /// Back to the calling chain.
    Return,
    /// Call a chain.
    Jump(String),
    /// Continue in a chain without coming back.
    Goto(String),
}

impl Verdict {
    pub(crate) fn code(&self) -> (i32, Option<&str>) {
        match self {
            Self::Accept => (NF_ACCEPT, None),
            Self::Drop => (NF_DROP, None),
            Self::Return => (NFT_RETURN, None),
            Self::Jump(chain) => (NFT_JUMP, Some(chain)),
            Self::Goto(chain) => (NFT_GOTO, Some(chain)),
        }
    }

    pub(crate) fn from_code(code: i32, chain: Option<&str>) -> Option<Self> {
        Some(match (code, chain) {
            (NF_ACCEPT, _) => Self::Accept,
            (NF_DROP, _) => Self::Drop,
            (NFT_RETURN, _) => Self::Return,
            (NFT_JUMP, Some(chain)) => Self::Jump(chain.to_owned()),
            (NFT_GOTO, Some(chain)) => Self::Goto(chain.to_owned()),
            _ => return None,
        })
    }
}

/// Packet metadata (`enum nft_meta_keys`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meta {
    /// The packet mark.
    Mark = 3,
    /// Name of the interface the packet came in by.
    IifName = 6,
    /// Name of the interface the packet will leave by.
    OifName = 7,
    /// Layer 4 protocol number.
    L4Proto = 16,
}

/// Where a payload offset counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// IP header.
    Network = 1,
    /// TCP, UDP or SCTP header.
    Transport = 2,
}

/// A comparison of a register with a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cmp {
    /// Goes on when equal.
    Eq = 0,
    /// Goes on when different.
    Neq = 1,
}

/// Connection tracking facts (`enum nft_ct_keys`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ct {
    /// State bits; `CT_STATE_NEW` is 8.
    State = 0,
    /// Status bits; `IPS_DST_NAT` is 0x20.
    Status = 2,
}

/// How a packet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// A TCP reset.
    TcpReset,
    /// ICMP destination unreachable with the given code (family specific).
    Icmp(u8),
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Expr {
    /// Loads metadata into a register.
    Meta { key: Meta, into: Reg },
    /// Sets metadata from a register.
    MetaSet { key: Meta, from: Reg },
    /// Loads header bytes into a register.
    Payload { base: Base, offset: u32, len: u32, into: Reg },
    /// Stops the rule unless the comparison holds.
    Cmp { op: Cmp, reg: Reg, value: Vec<u8> },
    /// `reg = (reg & mask) ^ xor`, 32 bits, host order.
    Bitwise { reg: Reg, mask: u32, xor: u32 },
    /// Stops the rule unless the key is in the set (or, inverted, when it is).
    Lookup { set: String, key: Reg, invert: bool },
    /// Looks the key up in a map and stores the value.
    LookupMap { set: String, key: Reg, into: Reg },
    /// Looks the key up in a verdict map and executes the verdict.
    LookupVerdict { set: String, key: Reg },
    /// The same with an anonymous map made in this transaction, named by its number there.
    LookupAnonymousVerdict { set: String, id: u32, key: Reg },
    /// A random number below `modulus`, host order.
    Random { modulus: u32, into: Reg },
    /// Loads a constant.
    Immediate { into: Reg, value: Vec<u8> },
    /// Decides.
    Verdict(Verdict),
    /// Destination NAT to the address and port in registers.
    Dnat { family: u8, addr: Reg, port: Reg },
    /// Source NAT to the address of the outgoing interface, with a fully random port.
    Masquerade,
    /// Refuses the packet.
    Reject(Reject),
    /// Address type (`RTN_*`) of the source or destination by the routing tables.
    FibType { source: bool, into: Reg },
    /// Loads a connection tracking fact.
    Ct { key: Ct, into: Reg },
    /// Counts packets and bytes.
    Counter,
    /// Adds the key to a set or refreshes its timeout.
    SetUpdate { set: String, key: Reg },
}

pub(super) const NAT_DNAT: u32 = 1;
/// `NF_NAT_RANGE_MAP_IPS | NF_NAT_RANGE_PROTO_SPECIFIED`, as the nft program sets it.
const NAT_FLAGS: u32 = 3;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
const MASQ_FULLY_RANDOM: u32 = 0x10;
pub(super) const NG_RANDOM: u32 = 1;
pub(super) const FIB_RESULT_ADDRTYPE: u32 = 3;
pub(super) const FIB_SADDR: u32 = 1;
const FIB_DADDR: u32 = 2;
pub(super) const LOOKUP_INVERT: u32 = 1;
pub(super) const DYNSET_UPDATE: u32 = 1;

/// Writes a nested data attribute holding a plain value.
pub(crate) fn data_value(w: &mut Writer, kind: u16, value: &[u8]) {
    let nest = w.nest(kind);
    w.attr(NFTA_DATA_VALUE, value);
    w.end_nest(nest);
}

/// Writes a nested data attribute holding a verdict.
pub(crate) fn data_verdict(w: &mut Writer, kind: u16, code: i32, chain: Option<&str>) {
    let nest = w.nest(kind);
    let inner = w.nest(NFTA_DATA_VERDICT);
    w.attr(NFTA_VERDICT_CODE, &code.to_be_bytes());
    if let Some(chain) = chain {
        w.attr_str(NFTA_VERDICT_CHAIN, chain);
    }
    w.end_nest(inner);
    w.end_nest(nest);
}

impl Expr {
    fn name(&self) -> &'static str {
        match self {
            Self::Meta { .. } | Self::MetaSet { .. } => "meta",
            Self::Payload { .. } => "payload",
            Self::Cmp { .. } => "cmp",
            Self::Bitwise { .. } => "bitwise",
            Self::Lookup { .. }
            | Self::LookupMap { .. }
            | Self::LookupVerdict { .. }
            | Self::LookupAnonymousVerdict { .. } => "lookup",
            Self::Random { .. } => "numgen",
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::Dnat { .. } => "nat",
            Self::Masquerade => "masq",
            Self::Reject(_) => "reject",
            Self::FibType { .. } => "fib",
            Self::Ct { .. } => "ct",
            Self::Counter => "counter",
            Self::SetUpdate { .. } => "dynset",
        }
    }

    /// Writes the expression as one list element.
    pub(crate) fn write(&self, w: &mut Writer) {
        let element = w.nest(NFTA_LIST_ELEM);
        w.attr_str(NFTA_EXPR_NAME, self.name());
        let data = w.nest(NFTA_EXPR_DATA);
        self.write_data(w);
        w.end_nest(data);
        w.end_nest(element);
    }

    // Attribute numbers are the `NFTA_<EXPR>_*` enums of nf_tables.h, in their order there.
    fn write_data(&self, w: &mut Writer) {
        match self {
            Self::Meta { key, into } => {
                w.attr_u32(2, *key as u32);
                w.attr_u32(1, into.number());
            }
            Self::MetaSet { key, from } => {
                w.attr_u32(2, *key as u32);
                w.attr_u32(3, from.number());
            }
            Self::Payload { base, offset, len, into } => {
                w.attr_u32(1, into.number());
                w.attr_u32(2, *base as u32);
                w.attr_u32(3, *offset);
                w.attr_u32(4, *len);
            }
            Self::Cmp { op, reg, value } => {
                w.attr_u32(1, reg.number());
                w.attr_u32(2, *op as u32);
                data_value(w, 3, value);
            }
            Self::Bitwise { reg, mask, xor } => {
                w.attr_u32(1, reg.number());
                w.attr_u32(2, reg.number());
                w.attr_u32(3, 4);
                data_value(w, 4, &mask.to_ne_bytes());
                data_value(w, 5, &xor.to_ne_bytes());
            }
            Self::Lookup { set, key, invert } => {
                w.attr_u32(2, key.number());
                w.attr_str(1, set);
                w.attr_u32(5, if *invert { LOOKUP_INVERT } else { 0 });
            }
            Self::LookupMap { set, key, into } => {
                w.attr_u32(2, key.number());
                w.attr_u32(3, into.number());
                w.attr_str(1, set);
                w.attr_u32(5, 0);
            }
            Self::LookupVerdict { set, key } => {
                w.attr_u32(2, key.number());
                w.attr_u32(3, 0);
                w.attr_str(1, set);
                w.attr_u32(5, 0);
            }
            Self::LookupAnonymousVerdict { set, id, key } => {
                w.attr_u32(2, key.number());
                w.attr_u32(3, 0);
                w.attr_str(1, set);
                w.attr_u32(4, *id);
                w.attr_u32(5, 0);
            }
            Self::Random { modulus, into } => {
                w.attr_u32(1, into.number());
                w.attr_u32(2, *modulus);
                w.attr_u32(3, NG_RANDOM);
                w.attr_u32(4, 0);
            }
            Self::Immediate { into, value } => {
                w.attr_u32(1, into.number());
                data_value(w, 2, value);
            }
            Self::Verdict(verdict) => {
                w.attr_u32(1, 0);
                let (code, chain) = verdict.code();
                data_verdict(w, 2, code, chain);
            }
            Self::Dnat { family, addr, port } => {
                w.attr_u32(1, NAT_DNAT);
                w.attr_u32(2, u32::from(*family));
                w.attr_u32(3, addr.number());
                w.attr_u32(4, addr.number());
                w.attr_u32(5, port.number());
                w.attr_u32(6, port.number());
                w.attr_u32(7, NAT_FLAGS);
            }
            Self::Masquerade => w.attr_u32(1, MASQ_FULLY_RANDOM),
            Self::Reject(Reject::TcpReset) => {
                w.attr_u32(1, 1);
                w.attr(2, &[0]);
            }
            Self::Reject(Reject::Icmp(code)) => {
                w.attr_u32(1, 0);
                w.attr(2, &[*code]);
            }
            Self::FibType { source, into } => {
                w.attr_u32(3, if *source { FIB_SADDR } else { FIB_DADDR });
                w.attr_u32(2, FIB_RESULT_ADDRTYPE);
                w.attr_u32(1, into.number());
            }
            Self::Ct { key, into } => {
                w.attr_u32(2, *key as u32);
                w.attr_u32(1, into.number());
            }
            Self::Counter => {
                w.attr_u64(1, 0);
                w.attr_u64(2, 0);
            }
            Self::SetUpdate { set, key } => {
                w.attr_u32(4, key.number());
                w.attr_u32(3, DYNSET_UPDATE);
                w.attr_str(1, set);
            }
        }
    }
}
