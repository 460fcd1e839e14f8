//! `dataplane trace`: what happens to a packet, step by step and in words.
//!
//! The packet walks through the table that the kernel holds, as listed now; the names, and what the
//! objects of the API server want, come from the API server where it can be reached. Where the two
//! lead to different ends, that is said: something is not programmed, or somebody changed it.

mod args;
mod machine;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use keelson_netfilter::nft::walk::{Fate, Packet, WalkError, Walked, World, walk};
use keelson_netfilter::nft::{Family as NftFamily, KernelNft, Nft, NftError, TableState};

pub use args::{End, Question, QuestionError};
pub use machine::Machine;

use crate::model::FrontendKey;
use crate::model::types::Family;
use crate::nftables::layout::TABLE;
use crate::nftables::state::AFFINITY;
use crate::wanted::Wanted;

/// So many ends of a random choice are listed by address.
const SHOWN_ENDS: usize = 8;

/// Why a trace was not possible.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The question is none.
    #[error(transparent)]
    Question(#[from] QuestionError),
    /// The kernel's table cannot be listed.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// The table is not what this program writes.
    #[error("the way through table {TABLE} cannot be told")]
    Walk(#[from] WalkError),
    /// Addresses of this machine cannot be listed.
    #[error("listing this machine's addresses: {0}")]
    Machine(std::io::Error),
    /// Nothing is programmed.
    #[error("there is no table {} {TABLE}: is the dataplane running on this node?", .0.name())]
    NoTable(NftFamily),
}

/// What a walk needs of the machine, with all random numbers decided.
struct Decided<'a> {
    machine: &'a Machine,
    index: u32,
    /// The largest modulus asked for.
    modulus: u32,
}

impl World for Decided<'_> {
    fn is_local(&self, addr: IpAddr) -> bool {
        self.machine.is_local(addr)
    }

    fn random(&mut self, modulus: u32) -> u32 {
        self.modulus = self.modulus.max(modulus);
        self.index
    }
}

/// The ends that random choices lead to, each with the number of indexes that lead there, in an order that is always the same.
pub type Ends = BTreeMap<String, (Fate, u32)>;

/// Walks once for each outcome of the random choice: the first walk, and every end.
///
/// # Errors
/// See [`WalkError`].
pub fn outcomes(table: &TableState, packet: &Packet, machine: &Machine) -> Result<(Walked, Ends), WalkError> {
    let once = |index| {
        let mut world = Decided { machine, index, modulus: 1 };
        walk(table, packet, &mut world).map(|walked| (walked, world.modulus))
    };
    let (first, mut modulus) = once(0)?;
    let mut ends = Ends::from([(format!("{:?}", first.fate), (first.fate, 1))]);
    let mut index = 1;
    while index < modulus {
        let (walked, asked) = once(index)?;
        modulus = modulus.max(asked);
        ends.entry(format!("{:?}", walked.fate)).or_insert((walked.fate, 0)).1 += 1;
        index += 1;
    }
    Ok((first, ends))
}

/// Where a packet ends, in words.
fn end(fate: &Fate, packet: &Packet, machine: &Machine) -> String {
    match fate {
        Fate::Dropped => "is dropped: the sender hears nothing and tries again until it gives up".to_owned(),
        Fate::Refused(_) => "is refused: the sender hears at once that nobody is there".to_owned(),
        Fate::Arrives { at, masqueraded } => {
            let source = if *masqueraded {
                match machine.source_towards(at.ip()) {
                    Some(addr) => format!("with this node's address {addr} as its source"),
                    None => "with an address of this node as its source".to_owned(),
                }
            } else {
                format!("with its own source {}", packet.source.ip())
            };
            format!("arrives at {at} {source}")
        }
    }
}

/// Answers a question, from a table of the kernel and from what is wanted, if that is known.
///
/// # Errors
/// See [`TraceError`].
pub fn answer(
    question: &Question,
    machine: &Machine,
    programmed: &TableState,
    wanted: Result<&Wanted, String>,
) -> Result<String, TraceError> {
    let packet = question.packet(machine)?;
    let family = Family::of(packet.destination.ip()).into();
    let none = BTreeMap::new();
    let names = wanted.as_ref().map_or(&none, |w| &w.names);
    let mut out = String::new();
    let _ = writeln!(out, "{}", words::question(&packet, names));
    let (walked, ends) = outcomes(programmed, &packet, machine)?;
    for line in words::steps(&walked, &packet, names) {
        let _ = writeln!(out, "  {line}");
    }
    let total: u32 = ends.values().map(|(_, n)| n).sum();
    if ends.len() == 1 {
        let _ = writeln!(out, "The packet {}.", end(&walked.fate, &packet, machine));
    } else {
        let _ = writeln!(out, "The packet, by chance one of these:");
        for (fate, times) in ends.values().take(SHOWN_ENDS) {
            let _ = writeln!(out, "  {times} of {total}: {}", end(fate, &packet, machine));
        }
        if ends.len() > SHOWN_ENDS {
            let _ = writeln!(out, "  and {} more", ends.len() - SHOWN_ENDS);
        }
    }
    match wanted {
        Err(why) => {
            let _ = writeln!(out, "Names are missing, and what is wanted was not compared: {why}.");
        }
        Ok(wanted) => compare(&mut out, family, &packet, machine, wanted, &ends, programmed)?,
    }
    Ok(out)
}

/// Says so when what is wanted leads to other ends than what is programmed.
fn compare(
    out: &mut String,
    family: NftFamily,
    packet: &Packet,
    machine: &Machine,
    wanted: &Wanted,
    ends: &Ends,
    programmed: &TableState,
) -> Result<(), TraceError> {
    let Some(mut table) = wanted.tables.table(family, TABLE) else { return Ok(()) };
    // Who sticks where is known to the kernel alone.
    for (set, clients) in table.sets.iter_mut().filter(|(set, _)| set.starts_with(AFFINITY)) {
        if let Some(held) = programmed.sets.get(set) {
            clients.clone_from(held);
        }
    }
    let (_, others) = outcomes(&table, packet, machine)?;
    let keys = |ends: &Ends| ends.keys().cloned().collect::<BTreeSet<_>>();
    if keys(ends) == keys(&others) {
        let _ = writeln!(out, "The objects of the API server want the same.");
        return Ok(());
    }
    let _ = writeln!(out, "The objects of the API server want something else; `dataplane diff` has all of it:");
    for (fate, times) in others.values().take(SHOWN_ENDS) {
        let total: u32 = others.values().map(|(_, n)| n).sum();
        let _ = writeln!(out, "  {times} of {total}: {}", end(fate, packet, machine));
    }
    Ok(())
}

/// Asks this machine's kernel.
///
/// # Errors
/// See [`TraceError`].
pub fn trace(question: &Question, wanted: Result<&Wanted, String>) -> Result<String, TraceError> {
    let machine = Machine::this().map_err(TraceError::Machine)?;
    let family = Family::of(question.to.addr).into();
    let table = KernelNft::open()?.dump(family, TABLE)?.ok_or(TraceError::NoTable(family))?;
    answer(question, &machine, &table, wanted)
}

/// The frontend that a destination is.
fn frontend(addr: SocketAddr, protocol: u8, node_port: bool) -> Option<FrontendKey> {
    let protocol = crate::model::types::Protocol::from_number(protocol)?;
    let ip = if node_port { Family::of(addr.ip()).unspecified() } else { addr.ip() };
    Some(FrontendKey { addr: ip, port: addr.port(), protocol })
}
