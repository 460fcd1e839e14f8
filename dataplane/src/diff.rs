//! `dataplane diff`: what is wanted against what is programmed, both as whole tables.
//!
//! The wanted table is written into memory by the same code that writes the kernel's, so the two can
//! be compared element by element and rule by rule. Left out is what may differ between equal states:
//! which endpoint has which index, which clients stick where, pick chains that nobody uses any more.

use std::collections::{BTreeMap, BTreeSet};

use keelson_netfilter::nft::{Elements, Expr, Family as NftFamily, OwnedData, TableState, Verdict, read_rule};

use crate::model::FrontendKey;
use crate::model::types::{Ep, Family};
use crate::nftables::codec;
use crate::nftables::layout::{LAYOUT_PREFIX, LIST_MAPS, Pick, SET_SOURCE_RANGES, VerdictMap};
use crate::nftables::state::AFFINITY;

type Names = BTreeMap<FrontendKey, String>;

/// What differs between two tables of a family, a line each; empty when nothing does.
#[must_use]
pub fn diff(family: NftFamily, wanted: &TableState, programmed: &TableState, names: &Names) -> Vec<String> {
    let compare = Compare { family: family.into(), names };
    let mut lines = compare.chains(wanted, programmed);
    let empty = Elements::new();
    for set in keys(&wanted.sets, &programmed.sets) {
        match (wanted.sets.get(set), programmed.sets.get(set)) {
            (Some(_), None) => lines.push(format!("set {set} is missing")),
            (None, Some(_)) if set.starts_with(AFFINITY) => {}
            (None, Some(_)) => lines.push(format!("set {set} is nothing of this version's")),
            (old, new) => lines.extend(compare.set(set, old.unwrap_or(&empty), new.unwrap_or(&empty))),
        }
    }
    lines
}

fn keys<'a, V>(a: &'a BTreeMap<String, V>, b: &'a BTreeMap<String, V>) -> BTreeSet<&'a str> {
    a.keys().chain(b.keys()).map(String::as_str).collect()
}

struct Compare<'a> {
    family: Family,
    names: &'a Names,
}

/// A rule whose anonymous map is replaced by where it leads: its name is the kernel's.
fn rule(table: &TableState, bytes: &[u8]) -> String {
    let exprs = match read_rule(bytes) {
        Ok(exprs) => exprs,
        Err(expr) => return format!("foreign instruction {expr}"),
    };
    let text = |expr: &Expr| match expr {
        Expr::LookupVerdict { set, .. } if table.anonymous.contains_key(set) => {
            let to: BTreeSet<String> = table.anonymous[set].values().map(|data| format!("{data:?}")).collect();
            format!("{to:?}")
        }
        other => format!("{other:?}"),
    };
    exprs.iter().map(text).collect::<Vec<_>>().join(" ")
}

/// Words for where a verdict leads.
fn verdict(data: &OwnedData) -> String {
    match data {
        OwnedData::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) => chain.clone(),
        OwnedData::Verdict(Verdict::Drop) => "drop".to_owned(),
        other => format!("{other:?}"),
    }
}

impl Compare<'_> {
    fn chains(&self, wanted: &TableState, programmed: &TableState) -> Vec<String> {
        let mut lines = Vec::new();
        for chain in keys(&wanted.chains, &programmed.chains) {
            let (want, have) = (wanted.chains.get(chain), programmed.chains.get(chain));
            match (want, have) {
                (Some(_), None) if chain.starts_with(LAYOUT_PREFIX) => {
                    lines.push("the constant rules are those of another version or configuration".to_owned());
                }
                (Some(_), None) => lines.push(format!("chain {chain} is missing")),
                // Left from earlier, and led to by nothing; or told of by the elements that lead there.
                (None, Some(_)) if Pick::parse(chain).is_some() || chain.starts_with(AFFINITY) => {}
                (None, Some(_)) if chain.starts_with(LAYOUT_PREFIX) => {}
                (None, Some(_)) => lines.push(format!("chain {chain} is nothing of this version's")),
                (Some(want), Some(have)) => {
                    let texts = |table, rules: &[Vec<u8>]| rules.iter().map(|r| rule(table, r)).collect::<Vec<_>>();
                    let (want, have) = (texts(wanted, want), texts(programmed, have));
                    let same = want.iter().zip(&have).take_while(|(a, b)| a == b).count();
                    if want != have {
                        lines.push(format!(
                            "chain {chain}: {} rules wanted, {} programmed, the first that differs is number {}",
                            want.len(),
                            have.len(),
                            same + 1
                        ));
                    }
                }
                (None, None) => {}
            }
            if want.is_some() && have.is_some() && wanted.hooks.get(chain) != programmed.hooks.get(chain) {
                lines.push(format!("chain {chain} is attached to another hook, or with another priority"));
            }
        }
        lines
    }

    fn set(&self, set: &str, wanted: &Elements, programmed: &Elements) -> Vec<String> {
        // The packet path fills these.
        if set.starts_with(AFFINITY) {
            return Vec::new();
        }
        for node_port in [false, true] {
            if VerdictMap::all(node_port).any(|map| map.name(node_port) == set) {
                return self.verdicts(set, node_port, wanted, programmed);
            }
            if LIST_MAPS.iter().any(|map| map.name(node_port) == set) {
                return self.lists(set, node_port, wanted, programmed);
            }
        }
        let members = |elements| if set == SET_SOURCE_RANGES { self.sources(elements) } else { self.members(elements) };
        let (want, have) = (members(wanted), members(programmed));
        let missing = want.difference(&have).map(|m| format!("set {set}: {m} is missing"));
        let more = have.difference(&want).map(|m| format!("set {set}: {m} is not wanted"));
        missing.chain(more).collect()
    }

    fn frontend(&self, key: &FrontendKey) -> String {
        let at = if key.is_node_port() {
            format!("node port {}", key.port)
        } else {
            std::net::SocketAddr::new(key.addr, key.port).to_string()
        };
        let name = self.names.get(key).map_or_else(String::new, |name| format!(" ({name})"));
        format!("{at}/{}{name}", key.protocol.name())
    }

    fn verdicts(&self, set: &str, node_port: bool, wanted: &Elements, programmed: &Elements) -> Vec<String> {
        let mut lines = Vec::new();
        let all: BTreeSet<_> = wanted.keys().chain(programmed.keys()).collect();
        for element in all {
            let Some((key, _)) = codec::read_key(self.family, node_port, &element.0) else {
                lines.push(format!("{set}: an element with a key that is none of ours"));
                continue;
            };
            let at = self.frontend(&key);
            match (wanted.get(element), programmed.get(element)) {
                (Some(want), None) => lines.push(format!("{set}: {at} is missing, wanted {}", verdict(want))),
                (None, Some(have)) => lines.push(format!("{set}: {at} is not wanted, programmed {}", verdict(have))),
                (Some(want), Some(have)) if want != have => {
                    lines.push(format!("{set}: {at} leads to {}, wanted {}", verdict(have), verdict(want)));
                }
                _ => {}
            }
        }
        lines
    }

    fn lists(&self, set: &str, node_port: bool, wanted: &Elements, programmed: &Elements) -> Vec<String> {
        let (want, have) = (self.by_frontend(node_port, wanted), self.by_frontend(node_port, programmed));
        let mut lines = Vec::new();
        let none = BTreeMap::new();
        let all: BTreeSet<&FrontendKey> = want.keys().chain(have.keys()).collect();
        for key in all {
            let (want, have) = (want.get(key).unwrap_or(&none), have.get(key).unwrap_or(&none));
            let set_of = |list: &BTreeMap<u16, Ep>| list.values().copied().collect::<BTreeSet<Ep>>();
            let (wanted, programmed) = (set_of(want), set_of(have));
            let text = |eps: Vec<&Ep>| {
                let texts = eps.iter().map(|ep| std::net::SocketAddr::new(ep.addr, ep.port).to_string());
                texts.collect::<Vec<_>>().join(" ")
            };
            let missing: Vec<&Ep> = wanted.difference(&programmed).collect();
            let more: Vec<&Ep> = programmed.difference(&wanted).collect();
            if !missing.is_empty() {
                lines.push(format!("{set}: {} lacks {}", self.frontend(key), text(missing)));
            }
            if !more.is_empty() {
                lines.push(format!("{set}: {} still has {}", self.frontend(key), text(more)));
            }
            if have.keys().enumerate().any(|(n, index)| n != usize::from(*index)) {
                lines.push(format!("{set}: {} has a gap in its list", self.frontend(key)));
            }
        }
        lines
    }

    fn by_frontend(&self, node_port: bool, elements: &Elements) -> BTreeMap<FrontendKey, BTreeMap<u16, Ep>> {
        let mut lists: BTreeMap<FrontendKey, BTreeMap<u16, Ep>> = BTreeMap::new();
        for ((key, _), data) in elements {
            let Some((key, rest)) = codec::read_key(self.family, node_port, key) else { continue };
            let OwnedData::Value(value) = data else { continue };
            if let (Some(index), Some(ep)) = (codec::read_index(rest), codec::read_endpoint(self.family, value)) {
                lists.entry(key).or_default().insert(index, ep);
            }
        }
        lists
    }

    /// From where frontends may be reached.
    fn sources(&self, elements: &Elements) -> BTreeSet<String> {
        let source = |((key, _), data): (&(Vec<u8>, bool), &OwnedData)| {
            let (frontend, rest) = codec::read_key(self.family, false, key)?;
            let first = codec::read_address(self.family, rest)?;
            let OwnedData::RangeTo(last) = data else { return None };
            let last = codec::read_address(self.family, codec::read_key(self.family, false, last)?.1)?;
            Some(format!("{} from {first} to {last}", self.frontend(&frontend)))
        };
        elements.iter().map(|element| source(element).unwrap_or_else(|| format!("{element:?}"))).collect()
    }

    /// Members of a plain set, as addresses where they are some.
    fn members(&self, elements: &Elements) -> BTreeSet<String> {
        let member = |(key, end): &(Vec<u8>, bool)| {
            let text =
                codec::read_address(self.family, key).map_or_else(|| format!("{key:?}"), |addr| addr.to_string());
            if *end { format!("the end before {text}") } else { text }
        };
        elements.keys().map(member).collect()
    }
}
