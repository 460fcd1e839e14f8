//! `dataplane status`, `diff` and `cleanup`: what is programmed, read from the kernel, how it differs
//! from what is wanted, and its removal. Only `diff` needs the API server and the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use keelson_netfilter::nft::{Family as NftFamily, KernelNft, Nft as _, NftError};

use crate::drain::server;
use crate::model::FrontendKey;
use crate::nftables::layout::{Layout, LayoutOptions, ListMap, LocalSource, TABLE, VerdictMap, class_name};
use crate::nftables::state::{Committed, V};
use crate::nftables::table::{Table, delete_table};
use crate::wanted::Wanted;

/// Frontends with more endpoints than this show only the first ones.
const SHOWN_ENDPOINTS: usize = 4;

fn describe(v: V) -> String {
    match v {
        V::Pick(class, count) => format!("{} {count}", class_name(class)),
        V::ExtLocal => "ext-local".to_owned(),
        V::Sticky(_, class) => format!("{} sticky", class_name(class)),
        V::Guarded => "source-ranges".to_owned(),
        V::Refuse => "refuse".to_owned(),
        V::Drop => "drop".to_owned(),
        V::Foreign => "NOT OURS".to_owned(),
    }
}

/// The table as text.
#[must_use]
pub fn render(committed: &Committed) -> String {
    let keys: BTreeSet<FrontendKey> = committed.verdicts.keys().map(|(_, key)| *key).collect();
    let verdicts: BTreeMap<_, _> = committed.verdicts.iter().collect();
    let mut out = format!("{:<28} {:<5} {:<14} ENDPOINTS\n", "FRONTEND", "PROTO", "ACTION");
    for key in &keys {
        let name = if key.is_node_port() {
            format!("node:{}", key.port)
        } else {
            std::net::SocketAddr::new(key.addr, key.port).to_string()
        };
        let action = [VerdictMap::Services, VerdictMap::Guarded, VerdictMap::NoEndpoints]
            .iter()
            .filter_map(|map| verdicts.get(&(*map, *key)))
            .filter(|v| ***v != V::Guarded)
            .map(|v| describe(**v))
            .collect::<Vec<_>>()
            .join(", ");
        let list = committed.lists.get(&(ListMap::All, *key)).map_or(&[][..], Vec::as_slice);
        let mut endpoints: Vec<String> = list
            .iter()
            .flatten()
            .take(SHOWN_ENDPOINTS)
            .map(|ep| std::net::SocketAddr::new(ep.addr, ep.port).to_string())
            .collect();
        if list.len() > SHOWN_ENDPOINTS {
            endpoints.push(format!("and {} more", list.len() - SHOWN_ENDPOINTS));
        }
        if let Some(local) = committed.lists.get(&(ListMap::Local, *key)) {
            endpoints.push(format!("({} on this node)", local.len()));
        }
        if let Some(sources) = committed.sources.get(key) {
            let shown = sources.iter().take(SHOWN_ENDPOINTS).map(|(first, last)| match first == last {
                true => first.to_string(),
                false => format!("{first}-{last}"),
            });
            let mut shown: Vec<String> = shown.collect();
            if sources.len() > SHOWN_ENDPOINTS {
                shown.push(format!("{} more ranges", sources.len() - SHOWN_ENDPOINTS));
            }
            endpoints.push(format!("(only from {})", shown.join(", ")));
        }
        let _ = writeln!(out, "{name:<28} {:<5} {action:<14} {}", key.protocol.name(), endpoints.join(" "));
    }
    out
}

/// Prints what is programmed in both families.
///
/// # Errors
/// See [`NftError`].
pub fn status() -> Result<String, NftError> {
    let mut out = String::new();
    for family in [NftFamily::Ipv4, NftFamily::Ipv6] {
        // Reading does not depend on the options.
        let options = LayoutOptions { local_source: LocalSource::Unknown, masquerade_all: false, mark: 0 };
        let mut table = Table::new(Layout::new(family, options), Box::new(KernelNft::open()?));
        match table.read()? {
            None => {
                let _ = writeln!(out, "table {} {TABLE}: not there", family.name());
            }
            Some(committed) => {
                let endpoints: usize = committed.lists.values().map(Vec::len).sum();
                let _ = writeln!(
                    out,
                    "table {} {TABLE}: {} verdicts, {endpoints} endpoint elements",
                    family.name(),
                    committed.verdicts.len()
                );
                if !committed.verdicts.is_empty() {
                    out.push_str(&render(&committed));
                }
            }
        }
    }
    Ok(out)
}

/// Compares what is wanted with what the kernel holds; says what differs, and whether anything does.
///
/// # Errors
/// See [`NftError`].
pub fn diff(wanted: &Wanted) -> Result<(String, bool), NftError> {
    let mut nft = KernelNft::open()?;
    let mut out = String::new();
    let mut differs = false;
    for family in [NftFamily::Ipv4, NftFamily::Ipv6] {
        let Some(want) = wanted.tables.table(family, TABLE) else { continue };
        let head = format!("table {} {TABLE}", family.name());
        let Some(have) = nft.dump(family, TABLE)? else {
            differs = true;
            let _ = writeln!(out, "{head}: not there");
            continue;
        };
        let lines = crate::diff::diff(family, &want, &have, &wanted.names);
        if lines.is_empty() {
            let _ = writeln!(out, "{head}: as wanted");
        } else {
            differs = true;
            let _ = writeln!(out, "{head}: {} differences", lines.len());
            lines.iter().for_each(|line| {
                let _ = writeln!(out, "  {line}");
            });
        }
    }
    Ok((out, differs))
}

/// Deletes our tables and nothing else; says what it did.
///
/// # Errors
/// See [`NftError`].
pub fn cleanup() -> Result<String, NftError> {
    let mut nft = KernelNft::open()?;
    let mut out = String::new();
    for family in [NftFamily::Ipv4, NftFamily::Ipv6] {
        let what = if delete_table(&mut nft, family)? { "deleted" } else { "was not there" };
        let _ = writeln!(out, "table {} {TABLE} {what}", family.name());
    }
    // Without it the agent does not wait for a dataplane that will not come back.
    match server::remove_stale(Path::new(server::DEFAULT_SOCKET)) {
        Ok(true) => drop(writeln!(out, "socket {} deleted", server::DEFAULT_SOCKET)),
        Ok(false) => {}
        Err(error) => drop(writeln!(out, "socket kept: {error}")),
    }
    Ok(out)
}
