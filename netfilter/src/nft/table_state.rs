//! All that a table holds, as the bytes that netlink carries: what the fake keeps, what the kernel
//! lists, and what [`super::walk`] runs on.

use std::collections::BTreeMap;

use super::{BaseChain, Hook, OwnedData};
use crate::uapi::*;
use crate::wire::Attrs;

/// Elements of a set, by key and "ends an interval".
pub type Elements = BTreeMap<(Vec<u8>, bool), OwnedData>;

/// What a look-up must know of a set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetShape {
    /// Bytes of a key.
    pub key_len: usize,
    /// Whether elements are intervals: borders, or ranges of a concatenation.
    pub interval: bool,
    /// Largest number of elements, for a set that the packet path fills.
    pub size: Option<u32>,
}

impl SetShape {
    /// From the attributes of a set's message.
    pub(super) fn read(attrs: Attrs<'_>) -> Self {
        Self {
            key_len: attrs.u32(NFTA_SET_KEY_LEN).unwrap_or(0) as usize,
            interval: attrs.u32(NFTA_SET_FLAGS).unwrap_or(0) & NFT_SET_INTERVAL != 0,
            size: attrs.nested(NFTA_SET_DESC).u32(NFTA_SET_DESC_SIZE),
        }
    }
}

/// Where a chain is attached, from the attributes of its message; none for a chain that is only called.
pub(super) fn read_hook(attrs: Attrs<'_>) -> Option<BaseChain> {
    let hook = attrs.nested(NFTA_CHAIN_HOOK);
    let number = hook.u32(NFTA_HOOK_HOOKNUM)?;
    let hooks = [Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting];
    Some(BaseChain {
        kind: if attrs.str(NFTA_CHAIN_TYPE) == Some("nat") { "nat" } else { "filter" },
        hook: hooks.into_iter().find(|h| *h as u32 == number)?,
        priority: hook.u32(NFTA_HOOK_PRIORITY)? as i32,
    })
}

/// See the module's text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableState {
    /// Chains that the kernel calls by itself.
    pub hooks: BTreeMap<String, BaseChain>,
    /// Expression lists of each chain's rules.
    pub chains: BTreeMap<String, Vec<Vec<u8>>>,
    /// Shapes of all sets, anonymous ones too.
    pub shapes: BTreeMap<String, SetShape>,
    /// Elements of the named sets.
    pub sets: BTreeMap<String, Elements>,
    /// Elements of sets that belong to one rule.
    pub anonymous: BTreeMap<String, Elements>,
}

/// Whether a set belongs to one rule, from the attributes of its message.
pub(super) fn is_anonymous(set: Attrs<'_>) -> bool {
    set.u32(NFTA_SET_FLAGS).unwrap_or(0) & NFT_SET_ANONYMOUS != 0
}

impl TableState {
    /// Takes an object of the table from a listing: of chains, then rules, then sets; elements come apart.
    pub(super) fn take(&mut self, listing: u16, attrs: Attrs<'_>) {
        match listing {
            NFT_MSG_GETCHAIN => {
                if let Some(name) = attrs.str(NFTA_CHAIN_NAME) {
                    self.chains.insert(name.to_owned(), Vec::new());
                    self.hooks.extend(read_hook(attrs).map(|hook| (name.to_owned(), hook)));
                }
            }
            NFT_MSG_GETRULE => {
                if let Some(rules) = attrs.str(NFTA_RULE_CHAIN).and_then(|c| self.chains.get_mut(c)) {
                    rules.push(attrs.get(NFTA_RULE_EXPRESSIONS).unwrap_or(&[]).to_vec());
                }
            }
            _ => {
                if let Some(name) = attrs.str(NFTA_SET_NAME) {
                    self.shapes.insert(name.to_owned(), SetShape::read(attrs));
                    let sets = if is_anonymous(attrs) { &mut self.anonymous } else { &mut self.sets };
                    sets.insert(name.to_owned(), Elements::new());
                }
            }
        }
    }

    /// The elements of a set, named or not.
    #[must_use]
    pub fn elements(&self, set: &str) -> Option<&Elements> {
        self.sets.get(set).or_else(|| self.anonymous.get(set))
    }

    /// What a set says of a key: the data of the element (or interval) that holds it.
    #[must_use]
    pub fn lookup(&self, set: &str, key: &[u8]) -> Option<&OwnedData> {
        let elements = self.elements(set)?;
        let start = (key.to_vec(), false);
        if !self.shapes.get(set).is_some_and(|shape| shape.interval) {
            return elements.get(&start);
        }
        // The last border at or before the key; a start comes before an end of the same key.
        if let Some(data) = elements.get(&start) {
            return Some(data);
        }
        let ((_, end), data) = elements.range(..=(key.to_vec(), true)).next_back()?;
        match data {
            // All fields but the last are equal in both borders, so bytes compare as the field does.
            OwnedData::RangeTo(last) => (key <= last.as_slice()).then_some(data),
            _ => (!end).then_some(data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::{Family, borders};

    #[test]
    fn intervals_hold_their_start_and_not_their_end() {
        let nets: Vec<ipnet::IpNet> = ["10.0.0.0/24", "10.0.2.0/24", "255.0.0.0/8"].map(|n| n.parse().unwrap()).into();
        let mut table = TableState::default();
        let shape = SetShape { key_len: 4, interval: true, size: None };
        table.shapes.insert("nets".to_owned(), shape);
        let elements = borders(&nets, Family::Ipv4).into_iter().map(|border| {
            let data = if border.1 { OwnedData::IntervalEnd } else { OwnedData::None };
            (border, data)
        });
        table.sets.insert("nets".to_owned(), elements.collect());
        for (addr, inside) in [
            ([0, 0, 0, 0], false),
            ([9, 255, 255, 255], false),
            ([10, 0, 0, 0], true),
            ([10, 0, 0, 255], true),
            ([10, 0, 1, 0], false),
            ([10, 0, 2, 9], true),
            ([10, 0, 3, 0], false),
            ([255, 255, 255, 255], true),
        ] {
            assert_eq!(table.lookup("nets", &addr).is_some(), inside, "{addr:?}");
        }
    }
}
