//! The kernel behind [`Nft`]: one blocking netlink socket.
//!
//! A transaction is one `sendmsg`; the kernel works it off before the call returns, so all its
//! answers (errors only: no message asks for an acknowledgement) are in the receive queue then.
//! An interrupted dump (`NLM_F_DUMP_INTR`, `EINTR`) is repeated; `ENOBUFS` becomes
//! [`NftError::Overrun`].

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::time::Duration;

use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::table_state::TableState;
use super::{Batch, ElementRef, Family, Listed, Nft, NftError, TableNames, read_rule};
use crate::uapi::*;
use crate::wire::{Attrs, Message, Messages, Writer, text};

/// Large enough for a dump page (the kernel sizes them by the largest read seen, up to 32 KiB)
/// and for the errors of a transaction.
const RECV_BYTES: usize = 64 * 1024;
/// No answer for this long means none will come.
const RECV_TIMEOUT: Duration = Duration::from_secs(20);
/// A dump that is interrupted this often gives way.
const DUMP_ATTEMPTS: u32 = 10;

/// A listing with another number of elements than the kernel counts is made again after this pause…
const RECOUNT_PAUSE: Duration = Duration::from_millis(50);
/// …and so often at most, for all sets of a table together: then something else is wrong with it.
const RECOUNTS: u32 = 60;

/// nf_tables of the network namespace in which this was opened.
pub struct KernelNft {
    socket: Socket,
    port: u32,
    seq: u32,
    send_buffer: usize,
    recv: Vec<u8>,
    /// Listings of sets that were found to be partial since the table's names were listed.
    partial: u32,
}

impl KernelNft {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`NftError::Open`].
    pub fn open() -> Result<Self, NftError> {
        let open = || -> io::Result<(Socket, u32)> {
            let mut socket = Socket::new(NETLINK_NETFILTER)?;
            let port = socket.bind_auto()?.port_number();
            // Old kernels do not know these; without them errors only carry less text.
            let _ = socket.set_ext_ack(true);
            let _ = socket.set_cap_ack(true);
            setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(RECV_TIMEOUT.as_secs() as i64))?;
            // As root the limit of net.core.rmem_max does not hold.
            if setsockopt(&socket, sockopt::RcvBufForce, &(1 << 20)).is_err() {
                let _ = setsockopt(&socket, sockopt::RcvBuf, &(1 << 20));
            }
            Ok((socket, port))
        };
        let (socket, port) = open().map_err(|source| NftError::Open { source })?;
        Ok(Self { socket, port, seq: 0, send_buffer: 0, recv: Vec::with_capacity(RECV_BYTES), partial: 0 })
    }

    /// This socket's netlink port, by which announcements name the sender of a transaction.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Makes the receive buffer small, as it is on a machine whose limits are: for tests of what happens when
    /// the kernel's answers do not fit.
    ///
    /// # Errors
    /// The system's answer.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        Ok(setsockopt(&self.socket, sockopt::RcvBuf, &bytes)?)
    }

    fn receive(&mut self, flags: i32) -> io::Result<()> {
        loop {
            self.recv.clear();
            match self.socket.recv(&mut self.recv, flags) {
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                other => return other.map(|_| ()),
            }
        }
    }

    fn reserve_send(&mut self, bytes: usize) {
        // The kernel charges the buffer for its own bookkeeping as well, and doubles what is asked.
        let wanted = bytes + bytes / 4 + 4096;
        if wanted > self.send_buffer {
            if setsockopt(&self.socket, sockopt::SndBufForce, &wanted).is_err() {
                let _ = setsockopt(&self.socket, sockopt::SndBuf, &wanted);
            }
            self.send_buffer = wanted;
        }
    }

    /// Lets the kernel check a transaction without applying it.
    ///
    /// # Errors
    /// See [`NftError`].
    pub fn check(&mut self, batch: &mut Batch) -> Result<(), NftError> {
        // Without its end mark the kernel validates a transaction and gives it up.
        batch.finish_unmarked();
        let outcome = self.transact(batch);
        batch.reset();
        outcome
    }

    /// Sends a finished transaction and reads what the kernel has against it.
    fn transact(&mut self, batch: &Batch) -> Result<(), NftError> {
        let bytes = batch.finished().len();
        self.reserve_send(bytes);
        loop {
            match self.socket.send(batch.finished(), 0) {
                Ok(_) => break,
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                Err(source) => return Err(NftError::Send { bytes, source }),
            }
        }
        let (mut first, mut overrun): (Option<NftError>, bool) = (None, false);
        loop {
            match self.receive(libc::MSG_DONTWAIT) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let overrun = overrun.then_some(NftError::Overrun);
                    return first.or(overrun).map_or(Ok(()), Err);
                }
                // What did fit is still to be read: nobody shall take it for the answer to the next request.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    overrun = true;
                    continue;
                }
                Err(source) => return Err(NftError::Receive { source }),
            }
            for message in Messages(&self.recv) {
                if message.kind == NLMSG_ERROR
                    && first.is_none()
                    && batch.covers(message.seq)
                    && let Some((errno, detail)) = parse_error(message)
                {
                    let source = io::Error::from_raw_os_error(errno);
                    first = Some(NftError::Refused { what: batch.describe(message.seq), source, detail });
                }
            }
        }
    }

    /// One request, answered by several messages up to `DONE` or an error. `Ok(false)`: interrupted.
    fn dump_once(&mut self, request: &Writer, seq: u32, each: &mut dyn FnMut(Message<'_>)) -> Result<Dump, NftError> {
        self.socket.send(request.as_bytes(), 0).map_err(|source| NftError::Send { bytes: request.len(), source })?;
        let mut interrupted = false;
        loop {
            match self.receive(0) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => return Err(NftError::Overrun),
                Err(source) => return Err(NftError::Receive { source }),
            }
            for message in Messages(&self.recv) {
                if message.seq != seq {
                    continue;
                }
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_DONE if interrupted => return Ok(Dump::Interrupted),
                    NLMSG_DONE => return Ok(Dump::Complete),
                    NLMSG_ERROR => {
                        let Some((errno, detail)) = parse_error(message) else {
                            return Ok(Dump::Complete);
                        };
                        return match errno {
                            libc::ENOENT => Ok(Dump::Missing),
                            libc::EINTR | libc::EAGAIN => Ok(Dump::Interrupted),
                            _ => Err(NftError::Refused {
                                what: "listing".to_owned(),
                                source: io::Error::from_raw_os_error(errno),
                                detail,
                            }),
                        };
                    }
                    _ => each(message),
                }
            }
        }
    }

    fn request(&mut self, kind: u16, flags: u16, family: Family, write: impl FnOnce(&mut Writer)) -> (Writer, u32) {
        self.seq += 1;
        let mut w = Writer::new();
        let m = w.begin((NFNL_SUBSYS_NFTABLES << 8) | kind, NLM_F_REQUEST | flags, self.seq, family as u8, 0);
        write(&mut w);
        w.end(m);
        (w, self.seq)
    }

    /// Whether there is such a table; none when that could not be told.
    fn exists(&mut self, family: Family, table: &str) -> Result<Option<bool>, NftError> {
        let (request, seq) = self.request(NFT_MSG_GETTABLE, NLM_F_DUMP, family, |_| {});
        let mut found = false;
        let outcome = self.dump_once(&request, seq, &mut |m| {
            found |= m.family() == family as u8 && m.attrs().str(NFTA_TABLE_NAME) == Some(table);
        })?;
        Ok((found || outcome != Dump::Interrupted).then_some(found))
    }

    /// Lists a table but for its elements: chains, then rules, then sets. `false`: interrupted, though seen to its end.
    fn skeleton(&mut self, family: Family, table: &str) -> Result<(bool, TableState), NftError> {
        let (mut whole, mut state) = (true, TableState::default());
        for kind in [NFT_MSG_GETCHAIN, NFT_MSG_GETRULE, NFT_MSG_GETSET] {
            let (request, seq) = self.request(kind, NLM_F_DUMP, family, |w| {
                // Only rules can be filtered by table in a dump; for the others the kernel ignores it.
                w.attr_str(1, table);
            });
            let outcome = self.dump_once(&request, seq, &mut |m| {
                let attrs = m.attrs();
                if attrs.str(1) == Some(table) {
                    state.take(kind, attrs);
                }
            })?;
            whole &= outcome != Dump::Interrupted;
        }
        Ok((whole, state))
    }

    /// How many elements a set has, where the kernel tells, and they are one for each key.
    fn count(&mut self, family: Family, table: &str, set: &str) -> Result<Option<usize>, NftError> {
        let (request, seq) = self.request(NFT_MSG_GETSET, NLM_F_ACK, family, |w| {
            w.attr_str(NFTA_TABLE_NAME, table);
            w.attr_str(NFTA_SET_NAME, set);
        });
        let mut count = None;
        self.dump_once(&request, seq, &mut |m| {
            let attrs = m.attrs();
            // Borders of intervals are counted in pairs; what the packet path fills changes meanwhile.
            if attrs.u32(NFTA_SET_FLAGS).unwrap_or(0) & (NFT_SET_INTERVAL | NFT_SET_TIMEOUT) == 0 {
                count = attrs.u32(NFTA_SET_COUNT).map(|n| n as usize);
            }
        })?;
        Ok(count)
    }

    fn dump_table(&mut self, family: Family, table: &str) -> Result<(bool, TableState), NftError> {
        let (mut whole, mut state) = self.skeleton(family, table)?;
        for (name, elements) in state.sets.iter_mut().chain(&mut state.anonymous) {
            loop {
                elements.clear();
                let listed = self.elements(family, table, name, &mut |element| {
                    elements.insert((element.key.to_vec(), element.interval_end()), element.data());
                });
                match listed {
                    Err(NftError::Partial { .. }) => {}
                    Err(NftError::Interrupted { .. }) => break whole = false,
                    other => {
                        other?;
                        break;
                    }
                }
            }
        }
        Ok((whole, state))
    }
}

/// Whether chains have the same rules, whatever their counters have counted meanwhile.
fn same_chains(a: &BTreeMap<String, Vec<Vec<u8>>>, b: &BTreeMap<String, Vec<Vec<u8>>>) -> bool {
    let same = |a: &Vec<u8>, b: &Vec<u8>| a == b || (read_rule(a).is_ok() && read_rule(a) == read_rule(b));
    a.len() == b.len()
        && a.iter().zip(b).all(|((name_a, rules_a), (name_b, rules_b))| {
            name_a == name_b && rules_a.len() == rules_b.len() && rules_a.iter().zip(rules_b).all(|(a, b)| same(a, b))
        })
}

/// Whether two listings are of the same table; what the packet path fills changes meanwhile.
fn same_table(a: &TableState, b: &TableState) -> bool {
    let fixed = |name: &String| a.shapes.get(name).is_none_or(|shape| shape.size.is_none());
    same_chains(&a.chains, &b.chains)
        && a.shapes == b.shapes
        && a.hooks == b.hooks
        && a.anonymous == b.anonymous
        && a.sets.iter().filter(|(name, _)| fixed(name)).eq(b.sets.iter().filter(|(name, _)| fixed(name)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dump {
    Complete,
    Interrupted,
    Missing,
}

/// The error number and the kernel's text of an `NLMSG_ERROR`; none for an acknowledgement.
fn parse_error(message: Message<'_>) -> Option<(i32, Option<String>)> {
    let payload = message.payload;
    let code = i32::from_ne_bytes(payload.get(..4)?.try_into().ok()?);
    if code == 0 {
        return None;
    }
    let detail = (message.flags & NLM_F_ACK_TLVS != 0).then(|| {
        let original = payload.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes) as usize;
        let skip = if message.flags & NLM_F_CAPPED != 0 { NLMSG_HDR_LEN } else { original.next_multiple_of(4) };
        Attrs(payload.get(4 + skip..).unwrap_or(&[])).get(NLMSGERR_ATTR_MSG).and_then(text).map(str::to_owned)
    });
    Some((-code, detail.flatten()))
}

impl Nft for KernelNft {
    fn commit(&mut self, batch: &mut Batch) -> Result<(), NftError> {
        if !batch.is_empty() {
            batch.finish();
            self.transact(batch)?;
        }
        batch.reset();
        Ok(())
    }

    fn names(&mut self, family: Family, table: &str) -> Result<Option<TableNames>, NftError> {
        // Where others never stop committing to their tables, what reads the same twice in a row is taken.
        let mut before = None;
        // A listing of a table begins with its names.
        self.partial = 0;
        for _ in 0..DUMP_ATTEMPTS {
            match self.exists(family, table)? {
                None => continue,
                Some(false) => return Ok(None),
                Some(true) => {}
            }
            let (whole, state) = self.skeleton(family, table)?;
            let names = TableNames { chains: state.chains, sets: state.sets.into_keys().collect() };
            if whole
                || before.as_ref().is_some_and(|before: &TableNames| {
                    same_chains(&before.chains, &names.chains) && before.sets == names.sets
                })
            {
                return Ok(Some(names));
            }
            before = Some(names);
        }
        Err(NftError::Interrupted { table: table.to_owned(), attempts: DUMP_ATTEMPTS })
    }

    fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(ElementRef<'_>),
    ) -> Result<Listed, NftError> {
        let expected = self.count(family, table, set)?;
        // Elements may come twice, and numbers of keys are all that is kept of them: 2 MB for 250,000.
        let (mut seen, numbers): (HashSet<u64>, _) = (HashSet::new(), RandomState::new());
        let (request, seq) = self.request(NFT_MSG_GETSETELEM, NLM_F_DUMP, family, |w| {
            w.attr_str(NFTA_SET_ELEM_LIST_TABLE, table);
            w.attr_str(NFTA_SET_ELEM_LIST_SET, set);
        });
        let outcome = self.dump_once(&request, seq, &mut |m| {
            for (_, element) in m.attrs().nested(NFTA_SET_ELEM_LIST_ELEMENTS) {
                if let Some(element) = ElementRef::parse(element) {
                    if expected.is_some() {
                        seen.insert(numbers.hash_one(element.key));
                    }
                    each(element);
                }
            }
        })?;
        if outcome == Dump::Interrupted {
            return Err(NftError::Interrupted { table: table.to_owned(), attempts: 1 });
        }
        let Some(expected) = expected else { return Ok(Listed::Unknown) };
        if expected == seen.len() {
            return Ok(Listed::Whole);
        }
        self.partial += 1;
        if self.partial > RECOUNTS {
            return Ok(Listed::Part);
        }
        std::thread::sleep(RECOUNT_PAUSE);
        Err(NftError::Partial { set: set.to_owned(), listed: seen.len(), expected })
    }

    fn dump(&mut self, family: Family, table: &str) -> Result<Option<TableState>, NftError> {
        let mut before = None;
        self.partial = 0;
        for _ in 0..DUMP_ATTEMPTS {
            match self.exists(family, table)? {
                None => continue,
                Some(false) => return Ok(None),
                Some(true) => {}
            }
            let (whole, state) = self.dump_table(family, table)?;
            if whole || before.as_ref().is_some_and(|before| same_table(before, &state)) {
                return Ok(Some(state));
            }
            before = Some(state);
        }
        Err(NftError::Interrupted { table: table.to_owned(), attempts: DUMP_ATTEMPTS })
    }

    fn generation(&mut self) -> Result<u32, NftError> {
        let (request, seq) = self.request(NFT_MSG_GETGEN, NLM_F_ACK, Family::Ipv4, |_| {});
        let mut generation = 0;
        self.dump_once(&request, seq, &mut |m| {
            generation = m.attrs().u32(NFTA_GEN_ID).unwrap_or(generation);
        })?;
        Ok(generation)
    }
}
