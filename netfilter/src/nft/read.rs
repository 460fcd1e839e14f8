//! Expressions read back from their bytes: the counterpart of [`Expr::write`], for bytes that this
//! crate wrote and for those that the kernel lists (which carry a few attributes more).

use super::expr::{DYNSET_UPDATE, FIB_RESULT_ADDRTYPE, FIB_SADDR, LOOKUP_INVERT, NAT_DNAT, NG_RANDOM};
use super::{Base, Cmp, Ct, Expr, Meta, Reg, Reject, Verdict};
use crate::uapi::*;
use crate::wire::Attrs;

/// Reads a rule's expression list.
///
/// # Errors
/// The name of the first expression that is none of ours.
pub fn read_rule(list: &[u8]) -> Result<Vec<Expr>, String> {
    Attrs(list)
        .map(|(_, expr)| {
            let name = || Attrs(expr).str(NFTA_EXPR_NAME).unwrap_or("?").to_owned();
            Expr::read(expr).ok_or_else(name)
        })
        .collect()
}

fn reg(attrs: Attrs<'_>, kind: u16) -> Option<Reg> {
    Reg::from_number(attrs.u32(kind)?)
}

fn value(attrs: Attrs<'_>, kind: u16) -> Option<&[u8]> {
    attrs.nested(kind).get(NFTA_DATA_VALUE)
}

fn word(attrs: Attrs<'_>, kind: u16) -> Option<u32> {
    value(attrs, kind)?.try_into().ok().map(u32::from_ne_bytes)
}

fn meta(number: u32) -> Option<Meta> {
    [Meta::Mark, Meta::IifName, Meta::OifName, Meta::L4Proto].into_iter().find(|key| *key as u32 == number)
}

impl Expr {
    /// Reads one list element. `None`: it is nothing that this crate writes.
    #[must_use]
    pub fn read(element: &[u8]) -> Option<Self> {
        let data = Attrs(element).nested(NFTA_EXPR_DATA);
        Some(match Attrs(element).str(NFTA_EXPR_NAME)? {
            "meta" => match reg(data, 3) {
                Some(from) => Self::MetaSet { key: meta(data.u32(2)?)?, from },
                None => Self::Meta { key: meta(data.u32(2)?)?, into: reg(data, 1)? },
            },
            "payload" => {
                let base = [Base::Network, Base::Transport].into_iter().find(|b| Some(*b as u32) == data.u32(2))?;
                Self::Payload { base, offset: data.u32(3)?, len: data.u32(4)?, into: reg(data, 1)? }
            }
            "cmp" => {
                let op = [Cmp::Eq, Cmp::Neq].into_iter().find(|op| Some(*op as u32) == data.u32(2))?;
                Self::Cmp { op, reg: reg(data, 1)?, value: value(data, 3)?.to_vec() }
            }
            "bitwise" if reg(data, 1) == reg(data, 2) => {
                Self::Bitwise { reg: reg(data, 1)?, mask: word(data, 4)?, xor: word(data, 5)? }
            }
            "lookup" => read_lookup(data)?,
            "numgen" if data.u32(3) == Some(NG_RANDOM) && data.u32(4).unwrap_or(0) == 0 => {
                Self::Random { modulus: data.u32(2)?, into: reg(data, 1)? }
            }
            "immediate" => {
                let verdict = data.nested(2).nested(NFTA_DATA_VERDICT);
                match verdict.u32(NFTA_VERDICT_CODE) {
                    Some(code) => Self::Verdict(Verdict::from_code(code as i32, verdict.str(NFTA_VERDICT_CHAIN))?),
                    None => Self::Immediate { into: reg(data, 1)?, value: value(data, 2)?.to_vec() },
                }
            }
            "nat" if data.u32(1) == Some(NAT_DNAT) => {
                Self::Dnat { family: data.u32(2)? as u8, addr: reg(data, 3)?, port: reg(data, 5)? }
            }
            "masq" => Self::Masquerade,
            "reject" => match data.u32(1)? {
                0 => Self::Reject(Reject::Icmp(*data.get(2)?.first()?)),
                1 => Self::Reject(Reject::TcpReset),
                _ => return None,
            },
            "fib" if data.u32(2) == Some(FIB_RESULT_ADDRTYPE) => {
                Self::FibType { source: data.u32(3) == Some(FIB_SADDR), into: reg(data, 1)? }
            }
            "ct" => {
                let key = [Ct::State, Ct::Status].into_iter().find(|key| Some(*key as u32) == data.u32(2))?;
                Self::Ct { key, into: reg(data, 1)? }
            }
            "counter" => Self::Counter,
            "dynset" if data.u32(3) == Some(DYNSET_UPDATE) => {
                Self::SetUpdate { set: data.str(1)?.to_owned(), key: reg(data, 4)? }
            }
            _ => return None,
        })
    }
}

fn read_lookup(data: Attrs<'_>) -> Option<Expr> {
    let (set, key) = (data.str(1)?.to_owned(), reg(data, 2)?);
    Some(match (data.u32(3), data.u32(4)) {
        (None, _) => Expr::Lookup { set, key, invert: data.u32(5).unwrap_or(0) & LOOKUP_INVERT != 0 },
        // Register 0 is the verdict register.
        (Some(0), Some(id)) if set.contains('%') => Expr::LookupAnonymousVerdict { set, id, key },
        (Some(0), _) => Expr::LookupVerdict { set, key },
        (Some(into), _) => Expr::LookupMap { set, key, into: Reg::from_number(into)? },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Writer;
    use proptest::prelude::*;

    fn all() -> Vec<Expr> {
        let (r, s) = (Reg(0), || "set".to_owned());
        vec![
            Expr::Meta { key: Meta::L4Proto, into: Reg(5) },
            Expr::MetaSet { key: Meta::Mark, from: r },
            Expr::Payload { base: Base::Transport, offset: 2, len: 2, into: Reg(8) },
            Expr::Cmp { op: Cmp::Neq, reg: r, value: vec![1, 2, 3] },
            Expr::Bitwise { reg: r, mask: !0x4000, xor: 0x4000 },
            Expr::Lookup { set: s(), key: r, invert: true },
            Expr::Lookup { set: s(), key: r, invert: false },
            Expr::LookupMap { set: s(), key: r, into: Reg(4) },
            Expr::LookupVerdict { set: s(), key: r },
            Expr::LookupAnonymousVerdict { set: "__map%d".to_owned(), id: 9, key: r },
            Expr::Random { modulus: 3, into: Reg(3) },
            Expr::Immediate { into: Reg(1), value: vec![0, 80] },
            Expr::Verdict(Verdict::Drop),
            Expr::Verdict(Verdict::Accept),
            Expr::Verdict(Verdict::Return),
            Expr::Verdict(Verdict::Jump(s())),
            Expr::Verdict(Verdict::Goto(s())),
            Expr::Dnat { family: 10, addr: r, port: Reg(4) },
            Expr::Masquerade,
            Expr::Reject(Reject::TcpReset),
            Expr::Reject(Reject::Icmp(3)),
            Expr::FibType { source: true, into: r },
            Expr::FibType { source: false, into: r },
            Expr::Ct { key: Ct::Status, into: r },
            Expr::Counter,
            Expr::SetUpdate { set: s(), key: r },
        ]
    }

    #[test]
    fn every_expression_reads_back() {
        let mut w = Writer::new();
        for expr in all() {
            expr.write(&mut w);
        }
        assert_eq!(read_rule(w.as_bytes()), Ok(all()));
    }

    proptest! {
        #[test]
        fn bytes_that_were_damaged_do_no_harm(at in 0usize..2000, with in any::<u8>()) {
            let mut w = Writer::new();
            all().iter().for_each(|expr| expr.write(&mut w));
            let mut bytes = w.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = with;
            let _ = read_rule(&bytes);
        }
    }
}
