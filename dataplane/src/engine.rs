//! The engine: model, planner and tables in one place, with one operation that does I/O,
//! [`Engine::sync`]. It blocks; the program calls it off the asynchronous threads.
//!
//! After each sync the kernel holds what the model wants, or [`Engine::sync`] said why not and
//! the next one starts with a listing. Conntrack entries of connectionless protocols that point at
//! endpoints which no longer serve are deleted one by one afterwards.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use keelson_netfilter::conntrack::{Conntrack, ConntrackError, Entry};
use keelson_netfilter::nft::{Family as NftFamily, Nft, NftError};

use crate::model::types::{Ep, Name};
use crate::model::{FrontendKey, Model, NoLocal, Target};
use crate::nftables::layout::{
    Layout, LayoutOptions, LocalSource, SET_LOCAL_SOURCES, SET_NODEPORT_ADDRESSES, SET_SERVICE_CIDRS,
};
use crate::nftables::table::{Ranges, Stats, Table};
use crate::planner::{Changes, Planner, Wanted};

/// A clean-up of conntrack that fails is tried so often; then the flows are left to their timeout.
const CONNTRACK_ATTEMPTS: u32 = 5;

/// How pods of this cluster are recognised as packet sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DetectLocal {
    /// They are not.
    Off,
    /// By the cluster's pod ranges.
    ClusterCidr(Vec<IpNet>),
    /// By this node's pod ranges, from the Node object.
    NodeCidr,
    /// By the bridge they come through.
    Bridge(String),
    /// By the first letters of their interface's name.
    InterfacePrefix(String),
}

/// On which addresses node ports answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The node's primary address of each family.
    Primary,
    /// All of the node's addresses in these ranges.
    Ranges(Vec<IpNet>),
}

/// What the configuration decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Detection of local sources.
    pub detect_local: DetectLocal,
    /// Node port addresses.
    pub node_port_addresses: NodePortAddresses,
    /// Ranges of cluster addresses: unallocated ones are dropped.
    pub service_cidrs: Vec<IpNet>,
    /// Masquerade all traffic to cluster addresses.
    pub masquerade_all: bool,
    /// The mark between the hooks.
    pub masquerade_mark: u32,
}

impl Settings {
    fn layout(&self, family: NftFamily) -> Layout {
        let local_source = match &self.detect_local {
            DetectLocal::Off => LocalSource::Unknown,
            DetectLocal::ClusterCidr(_) | DetectLocal::NodeCidr => LocalSource::Cidrs,
            DetectLocal::Bridge(name) => LocalSource::Interface(name.clone()),
            DetectLocal::InterfacePrefix(prefix) => LocalSource::InterfacePrefix(prefix.clone()),
        };
        let options = LayoutOptions { local_source, masquerade_all: self.masquerade_all, mark: self.masquerade_mark };
        Layout::new(family, options)
    }

    /// Ranges of the interval sets, given what is known of the node.
    #[must_use]
    pub fn ranges(&self, model: &Model) -> Ranges {
        let node = model.node();
        let local = match &self.detect_local {
            DetectLocal::ClusterCidr(nets) => nets.clone(),
            DetectLocal::NodeCidr => node.pod_cidrs.clone(),
            _ => Vec::new(),
        };
        let node_ports = match &self.node_port_addresses {
            NodePortAddresses::Primary => node.primaries().map(IpNet::from).collect(),
            NodePortAddresses::Ranges(nets) => nets.clone(),
        };
        BTreeMap::from([
            (SET_LOCAL_SOURCES, local),
            (SET_SERVICE_CIDRS, self.service_cidrs.clone()),
            (SET_NODEPORT_ADDRESSES, node_ports),
        ])
    }
}

/// What a sync did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Whether everything was compared, not only what changed.
    pub full: bool,
    /// Services looked at.
    pub services: usize,
    /// Elements and transactions.
    pub stats: Stats,
    /// Conntrack entries deleted.
    pub conntrack_deleted: usize,
    /// Conntrack could not be cleaned up: another sync shall try again.
    pub conntrack_pending: bool,
    /// Time it took.
    pub took: Duration,
}

/// Connectionless frontends whose flows are still to be looked at.
#[derive(Debug, Default)]
struct Stale {
    /// With the endpoints they may send to.
    frontends: BTreeMap<FrontendKey, HashSet<Ep>>,
    failures: u32,
}

impl Stale {
    fn add(&mut self, touched: impl IntoIterator<Item = FrontendKey>, changes: &Changes) {
        // Those left over from a failed attempt may have changed since.
        for (key, endpoints) in &mut self.frontends {
            match changes.frontends.get(key) {
                Some(wanted) => *endpoints = allowed(wanted.as_ref()),
                None if changes.full => endpoints.clear(),
                None => {}
            }
        }
        for key in touched {
            self.frontends.insert(key, allowed(changes.frontends.get(&key).and_then(Option::as_ref)));
        }
    }
}

/// See the module's text.
pub struct Engine {
    /// The model; the caller feeds it.
    pub model: Model,
    settings: Settings,
    planner: Planner,
    tables: Vec<Table>,
    conntrack: Option<Box<dyn Conntrack>>,
    stale: Stale,
    /// The rule set's generation after the last sync, if nobody else committed meanwhile.
    generation: Option<u32>,
}

impl Engine {
    /// An engine for the families given, each behind its [`Nft`].
    #[must_use]
    pub fn new(
        node_name: &str,
        settings: Settings,
        families: Vec<(NftFamily, Box<dyn Nft>)>,
        conntrack: Option<Box<dyn Conntrack>>,
    ) -> Self {
        let tables = families.into_iter().map(|(family, nft)| Table::new(settings.layout(family), nft)).collect();
        Self {
            model: Model::new(node_name),
            settings,
            planner: Planner::new(),
            tables,
            conntrack,
            stale: Stale::default(),
            generation: None,
        }
    }

    /// The tables.
    #[must_use]
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// What the configuration decides.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Service ports whose policy leaves them without endpoints here.
    #[must_use]
    pub fn no_local(&self) -> NoLocal {
        self.planner.no_local()
    }

    /// Number of frontends programmed.
    #[must_use]
    pub fn frontends(&self) -> usize {
        self.planner.frontends()
    }

    /// Ranges of cluster addresses; takes effect with the next sync.
    pub fn set_service_cidrs(&mut self, nets: Vec<IpNet>) {
        self.settings.service_cidrs = nets;
    }

    /// After a foreign change: the next sync lists the kernel's state and repairs it.
    pub fn forget(&mut self) {
        for table in &mut self.tables {
            table.forget();
        }
    }

    /// Whether nobody (but this engine) has committed anything since before the last sync.
    pub fn alone_since_sync(&mut self) -> bool {
        let now = self.tables.first_mut().and_then(|t| t.generation().ok());
        now.is_some() && now == self.generation
    }

    /// Works out what changed in the model since the last call.
    fn changes(&mut self) -> (Changes, usize) {
        let full = self.tables.iter().any(Table::needs_full);
        if full {
            self.planner = Planner::new();
            self.model.mark_all_dirty();
        }
        let mut changes = Changes { full, ..Changes::default() };
        let mut queue: BTreeSet<Name> = self.model.take_dirty();
        let services = queue.len();
        while let Some(name) = queue.pop_first() {
            queue.extend(self.planner.update(&name, self.model.plan(&name), &mut changes));
        }
        (changes, services)
    }

    /// Brings the kernel to what the model wants.
    ///
    /// # Errors
    /// See [`NftError`]; the next call starts with a listing.
    pub fn sync(&mut self) -> Result<Report, NftError> {
        let start = Instant::now();
        let (changes, services) = self.changes();
        let ranges = self.settings.ranges(&self.model);
        let mut report = Report { full: changes.full, services, ..Report::default() };
        let mut outcome = Ok(());
        let before = self.tables.first_mut().and_then(|t| t.generation().ok());
        for index in 0..self.tables.len() {
            match self.tables[index].apply(&changes, &ranges) {
                Ok(stats) => report.stats += stats,
                // The other family still gets its changes: they will not be handed out again.
                Err(error) => outcome = Err(error),
            }
        }
        outcome?;
        self.generation = before.map(|g| g.wrapping_add(report.stats.transactions as u32));
        self.clean_conntrack(&changes, &mut report);
        report.took = start.elapsed();
        Ok(report)
    }

    fn clean_conntrack(&mut self, changes: &Changes, report: &mut Report) {
        let touched: BTreeSet<FrontendKey> = self.tables.iter_mut().flat_map(Table::take_connectionless).collect();
        let Some(conntrack) = &mut self.conntrack else { return };
        self.stale.add(touched, changes);
        if self.stale.frontends.is_empty() {
            return;
        }
        match clean(&mut **conntrack, &self.stale.frontends) {
            Ok(deleted) => report.conntrack_deleted = deleted,
            Err(error) => {
                self.stale.failures += 1;
                report.conntrack_pending = self.stale.failures < CONNTRACK_ATTEMPTS;
                let next = if report.conntrack_pending { "it is tried again" } else { "they end by their timeout" };
                tracing::warn!(%error, "stale connectionless flows could not be cleaned up; {next}");
            }
        }
        if !report.conntrack_pending {
            self.stale = Stale::default();
        }
    }
}

/// Endpoints a frontend may send to.
fn allowed(wanted: Option<&Wanted>) -> HashSet<Ep> {
    match wanted.map(|w| &w.target) {
        None | Some(Target::Reject | Target::Drop) => HashSet::new(),
        Some(Target::Cluster(list) | Target::External(list)) => list.iter().copied().collect(),
        Some(Target::ExternalLocal { all, local }) => all.iter().chain(local).copied().collect(),
    }
}

/// Deletes entries whose original destination is a touched frontend and whose answer does not
/// come from one of its endpoints.
fn clean(conntrack: &mut dyn Conntrack, allowed: &BTreeMap<FrontendKey, HashSet<Ep>>) -> Result<usize, ConntrackError> {
    let passes: BTreeSet<_> = allowed.keys().map(|key| (key.family(), key.protocol)).collect();
    let mut deleted = 0;
    for (family, protocol) in passes {
        let mut stale: Vec<Entry> = Vec::new();
        conntrack.list(family.into(), protocol as u8, &mut |entry| {
            let key = |addr| FrontendKey { addr, port: entry.orig.dst_port, protocol };
            let translated = entry.reply.src != entry.orig.dst || entry.reply.src_port != entry.orig.dst_port;
            let answer = Ep { addr: entry.reply.src, port: entry.reply.src_port };
            let frontend = allowed.get(&key(entry.orig.dst)).or_else(|| {
                // A flow to a node port that is not translated belongs to a program of the node.
                translated.then(|| allowed.get(&key(family.unspecified()))).flatten()
            });
            if frontend.is_some_and(|endpoints| !endpoints.contains(&answer)) {
                stale.push(entry);
            }
        })?;
        for entry in stale {
            deleted += usize::from(conntrack.delete(&entry)?);
        }
    }
    Ok(deleted)
}
