//! Declarations of sets and maps, and the user data that tells the `nft` program how to print
//! their keys.
//!
//! Fixed-size datatypes are named by the key type number alone. A key that contains an `integer`
//! (a random index) has no such name: it is described by expressions in the set's user data, which
//! `nft` prints as `typeof …` and accepts again. The layout of the user data is libnftnl's
//! (`udata.h`) and nft's (`netlink_linearize.c`, `expr_ops.build_udata`): type, length, bytes,
//! numbers in host order.

/// One field of a (possibly concatenated) key or value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// IPv4 address.
    Ipv4,
    /// IPv6 address.
    Ipv6,
    /// Layer 4 protocol number.
    Proto,
    /// Port.
    Port,
    /// A random index as made by [`crate::nft::Expr::Random`]; host order.
    Index,
}

/// Upper bound that is printed for an index; endpoints per service stay below it.
const INDEX_MODULUS: u32 = 65_536;

impl Field {
    /// nft's datatype number (`enum datatypes`).
    pub(crate) fn datatype(self) -> u32 {
        match self {
            Self::Index => 4,
            Self::Ipv4 => 7,
            Self::Ipv6 => 8,
            Self::Proto => 12,
            Self::Port => 13,
        }
    }

    /// Bytes in a key, padded to whole registers.
    #[must_use]
    pub fn padded_len(self) -> usize {
        if self == Self::Ipv6 { 16 } else { 4 }
    }

    /// Bytes of the value itself.
    pub(crate) fn exact_len(self) -> usize {
        match self {
            Self::Proto => 1,
            Self::Port => 2,
            Self::Ipv4 | Self::Index => 4,
            Self::Ipv6 => 16,
        }
    }

    /// The expression `nft` shows for this field: (expression number, its own user data).
    fn expression(self) -> Vec<u8> {
        const EXPR_PAYLOAD: u32 = 7;
        const EXPR_META: u32 = 9;
        const EXPR_NUMGEN: u32 = 0x17;
        const DESC_TRANSPORT: u32 = 11;
        const DESC_IP: u32 = 12;
        const DESC_IP6: u32 = 13;
        const META_L4PROTO: u32 = 16;
        let payload = |desc: u32, field: u32| (EXPR_PAYLOAD, tlvs(&[(0, num(desc)), (1, num(field))]));
        let (kind, data) = match self {
            Self::Ipv4 => payload(DESC_IP, 12),
            Self::Ipv6 => payload(DESC_IP6, 9),
            Self::Port => payload(DESC_TRANSPORT, 2),
            Self::Proto => (EXPR_META, tlvs(&[(0, num(META_L4PROTO))])),
            Self::Index => (EXPR_NUMGEN, tlvs(&[(0, num(1)), (1, num(INDEX_MODULUS)), (2, num(0))])),
        };
        tlvs(&[(0, num(kind)), (1, data)])
    }
}

fn num(value: u32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

fn tlvs(items: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (kind, data) in items {
        out.push(*kind);
        out.push(data.len() as u8);
        out.extend_from_slice(data);
    }
    out
}

/// Length of a concatenation in registers.
fn key_len(fields: &[Field]) -> u32 {
    match fields {
        [one] => one.exact_len() as u32,
        many => many.iter().map(|f| f.padded_len()).sum::<usize>() as u32,
    }
}

/// nft's number of a concatenated datatype: six bits for each field.
fn key_type(fields: &[Field]) -> u32 {
    fields.iter().fold(0, |sum, f| (sum << 6) | f.datatype())
}

/// nft's number of a concatenation.
const EXPR_CONCAT: u32 = 13;

fn typeof_udata(fields: &[Field]) -> Vec<u8> {
    if let [one] = fields {
        return one.expression();
    }
    let parts: Vec<(u8, Vec<u8>)> = fields.iter().enumerate().map(|(i, f)| (i as u8, f.expression())).collect();
    tlvs(&[(0, num(EXPR_CONCAT)), (1, tlvs(&parts))])
}

/// What a set maps its keys to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maps {
    /// Nothing: a plain set.
    Nothing,
    /// A verdict.
    Verdicts,
    /// A concatenation of fields.
    Values(&'static [Field]),
}

/// A set or map to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetDecl {
    /// Name in its table.
    pub name: String,
    /// Key fields.
    pub key: Vec<Field>,
    /// Values.
    pub maps: Maps,
    /// Whether elements are intervals: borders where the key is one field, and ranges (a key and its
    /// end) where it is a concatenation.
    pub interval: bool,
    /// For sets that the packet path fills: time to live and largest number of elements.
    pub dynamic: Option<Dynamic>,
}

/// Limits of a set filled by the packet path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dynamic {
    /// Time to live since the last refresh.
    pub timeout_ms: u64,
    /// Largest number of elements.
    pub size: u32,
}

impl SetDecl {
    /// A plain set.
    #[must_use]
    pub fn set(name: &str, key: &[Field]) -> Self {
        Self { name: name.to_owned(), key: key.to_vec(), maps: Maps::Nothing, interval: false, dynamic: None }
    }

    /// A map.
    #[must_use]
    pub fn map(name: &str, key: &[Field], maps: Maps) -> Self {
        Self { maps, ..Self::set(name, key) }
    }

    /// The same with interval keys.
    #[must_use]
    pub fn intervals(self) -> Self {
        Self { interval: true, ..self }
    }

    pub(crate) fn key_numbers(&self) -> (u32, u32) {
        (key_type(&self.key), key_len(&self.key))
    }

    pub(crate) fn data_numbers(&self) -> Option<(u32, u32)> {
        match self.maps {
            Maps::Nothing => None,
            Maps::Verdicts => Some((crate::uapi::NFT_DATA_VERDICT, 0)),
            Maps::Values(fields) => Some((key_type(fields), key_len(fields))),
        }
    }

    /// User data for `nft`'s listing.
    pub(crate) fn udata(&self) -> Vec<u8> {
        const KEY_BYTE_ORDER: u8 = 0;
        const DATA_BYTE_ORDER: u8 = 1;
        const KEY_TYPEOF: u8 = 3;
        const DATA_TYPEOF: u8 = 4;
        const DATA_INTERVAL: u8 = 6;
        const HOST_ORDER: u32 = 1;
        const NETWORK_ORDER: u32 = 2;
        let mut items = Vec::new();
        items.push((KEY_BYTE_ORDER, num(if self.key.len() == 1 { NETWORK_ORDER } else { 0 })));
        // nft 1.0.6 aborts on a verdict map whose data has a byte order.
        match self.maps {
            Maps::Nothing => {}
            Maps::Verdicts => items.push((DATA_BYTE_ORDER, num(0))),
            Maps::Values(_) => items.push((DATA_BYTE_ORDER, num(HOST_ORDER))),
        }
        if self.key.contains(&Field::Index) {
            items.push((KEY_TYPEOF, typeof_udata(&self.key)));
            if let Maps::Values(fields) = self.maps {
                items.push((DATA_TYPEOF, typeof_udata(fields)));
            }
        } else if self.key.len() > 1 {
            items.push((KEY_TYPEOF, tlvs(&[(0, num(EXPR_CONCAT)), (1, Vec::new())])));
        }
        if self.maps != Maps::Nothing {
            items.push((DATA_INTERVAL, num(0)));
        }
        tlvs(&items)
    }
}

/// User data of an anonymous map from a random index to verdicts.
pub(crate) fn anonymous_index_udata() -> Vec<u8> {
    const EXPR_VERDICT: u32 = 1;
    let verdict = tlvs(&[(0, num(EXPR_VERDICT)), (1, Vec::new())]);
    tlvs(&[(0, num(1)), (1, num(0)), (4, verdict), (6, num(0))])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// User data captured from nft 1.0.6 for
    /// `map endpoints { typeof ip daddr . meta l4proto . th dport . numgen random mod 65536 : ip daddr . th dport; }`.
    #[test]
    #[cfg(target_endian = "little")]
    fn matches_what_nft_writes() {
        let map = SetDecl::map(
            "endpoints",
            &[Field::Ipv4, Field::Proto, Field::Port, Field::Index],
            Maps::Values(&[Field::Ipv4, Field::Port]),
        );
        let hex: String = map.udata().iter().map(|b| format!("{b:02x}")).collect();
        let verdicts = SetDecl::map("services", &[Field::Ipv4, Field::Proto, Field::Port], Maps::Verdicts).udata();
        let verdicts: String = verdicts.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(verdicts, "0004000000000104000000000308".to_owned() + "00040d0000000100" + "060400000000");
        assert_eq!(
            hex,
            "00040000000001040100000003600004\
             0d000000015800140004070000000\
             10c00040c00000001040c000000010e000409000000010600041000000002140004070000000\
             10c00040b000000010402000000031a0004170000000112000401000000010400000100020400000000\
             04340004\
             0d000000012c00140004070000000\
             10c00040c00000001040c00000001140004070000000\
             10c00040b0000000104020000000604000000\
             00"
        );
        assert_eq!(map.key_numbers(), (0x1c_c344, 16));
        assert_eq!(map.data_numbers(), Some((0x1cd, 8)));
    }
}
