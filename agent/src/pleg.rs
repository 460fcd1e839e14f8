//! Pod lifecycle knowledge: a cache of what the runtime holds, kept true by events, confirmations and relists.
//!
//! - A hint from the event stream leads to a read of that one pod; only the read changes the cache.
//! - A full relist is the truth: every [`RELIST_WITHOUT_EVENTS`] without a stream, else every [`RELIST_WITH_EVENTS`].
//! - A read that began before another read of the same pod is dropped when it comes in later.
//! - A pod whose read hangs delays only itself: each read runs in a task of its own, one per pod at a time.
//!
//! Upstream counterpart: `pkg/kubelet/pleg` (generic and evented) and `pkg/kubelet/container/cache.go`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::metrics::Metrics;
use crate::runtime::events::{Hint, Source};
use crate::runtime::{
    ContainerItem, ContainerRecord, ContainerState, Exit, Filter, PodKey, PodRecord, Runtime, RuntimeError, Sandbox,
    SandboxItem, SandboxState,
};

/// Pause between full relists while no events flow (upstream's generic PLEG).
pub const RELIST_WITHOUT_EVENTS: Duration = Duration::from_secs(1);
/// Pause between full relists while events flow.
pub const RELIST_WITH_EVENTS: Duration = Duration::from_secs(60);
/// Pause between full relists in the first minute of an event stream: a runtime that has just started may still
/// find out what ended while it was away, and tells nobody.
const RELIST_AFTER_CONNECT: Duration = Duration::from_secs(5);
/// Pods read at once by a full relist: one that hangs does not hold up the rest.
const RELIST_READERS: usize = 8;
/// Without a successful relist for this long the node is unhealthy (upstream `relistThreshold`).
pub const UNHEALTHY_AFTER: Duration = Duration::from_secs(180);
/// Pauses between confirmations of an exit that the runtime's own bookkeeping does not show yet.
const CONFIRM_PAUSES: [u64; 8] = [2, 4, 8, 16, 32, 64, 128, 256];

struct Entry {
    tx: watch::Sender<Arc<PodRecord>>,
    read_at: Option<Instant>,
    busy: bool,
    again: bool,
    /// Containers and sandboxes whose end an event announced and the runtime's bookkeeping has not shown yet.
    ended: BTreeMap<String, Exit>,
    /// Containers that met their memory limit, until their end is read.
    out_of_memory: BTreeSet<String>,
}

impl Entry {
    fn new(uid: &str) -> Self {
        let record = PodRecord { uid: uid.to_owned(), ..PodRecord::default() };
        Self {
            tx: watch::Sender::new(Arc::new(record)),
            read_at: None,
            busy: false,
            again: false,
            ended: BTreeMap::new(),
            out_of_memory: BTreeSet::new(),
        }
    }
}

fn bit(source: Source) -> u8 {
    1 << source as u8
}

/// The cache and the machinery that keeps it true.
pub struct Pleg {
    runtime: Arc<dyn Runtime>,
    metrics: Metrics,
    pods: Mutex<HashMap<String, Entry>>,
    index: Mutex<HashMap<String, String>>,
    started: Instant,
    last_relist_ms: AtomicU64,
    /// A bit for each event stream that is open.
    events: AtomicU8,
    /// Counts pods that appear in or vanish from the runtime, for those who look for orphans.
    population: watch::Sender<u64>,
}

impl Pleg {
    /// A cache that knows nothing yet.
    #[must_use]
    pub fn new(runtime: Arc<dyn Runtime>, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            metrics,
            pods: Mutex::new(HashMap::new()),
            index: Mutex::new(HashMap::new()),
            started: Instant::now(),
            last_relist_ms: AtomicU64::new(0),
            events: AtomicU8::new(0),
            population: watch::Sender::new(0),
        })
    }

    /// Follows one pod. The record is empty until the runtime holds something of it.
    #[must_use]
    pub fn subscribe(&self, uid: &str) -> watch::Receiver<Arc<PodRecord>> {
        self.pods.lock().entry(uid.to_owned()).or_insert_with(|| Entry::new(uid)).tx.subscribe()
    }

    /// The record of a pod as last read.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<Arc<PodRecord>> {
        self.pods.lock().get(uid).map(|e| e.tx.borrow().clone())
    }

    /// All records that hold anything.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<PodRecord>> {
        let pods = self.pods.lock();
        pods.values().map(|e| e.tx.borrow().clone()).filter(|r| !r.is_empty()).collect()
    }

    /// Changes whenever a pod appears in the runtime or vanishes from it.
    #[must_use]
    pub fn population(&self) -> watch::Receiver<u64> {
        self.population.subscribe()
    }

    /// Drops a pod nobody follows any more.
    pub fn forget(&self, uid: &str) {
        let mut pods = self.pods.lock();
        if pods.get(uid).is_some_and(|e| {
            let r = e.tx.borrow();
            r.is_empty() && e.tx.receiver_count() == 0
        }) {
            pods.remove(uid);
        }
    }

    /// How long ago the last successful relist was.
    #[must_use]
    pub fn relist_age(&self) -> Duration {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(now.saturating_sub(self.last_relist_ms.load(Ordering::Relaxed)))
    }

    /// Whether an event stream is open.
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.events.load(Ordering::Relaxed) != 0
    }

    /// Whether this event stream is open.
    #[must_use]
    pub fn has_events_of(&self, source: Source) -> bool {
        self.events.load(Ordering::Relaxed) & bit(source) != 0
    }

    /// Reads one pod now and returns what was found. Details of ended containers are taken from the cache.
    ///
    /// # Errors
    /// Whatever the runtime answers; the cache is unchanged then.
    pub async fn refresh(&self, uid: &str) -> Result<Arc<PodRecord>, RuntimeError> {
        let began = Instant::now();
        let (sandboxes, containers) = tokio::try_join!(
            self.runtime.list_sandboxes(Filter::pod(uid)),
            self.runtime.list_containers(Filter::pod(uid))
        )?;
        let record = self.assemble(uid, sandboxes, containers).await?;
        Ok(self.store(uid, record, began))
    }

    async fn assemble(
        &self,
        uid: &str,
        mut sandboxes: Vec<SandboxItem>,
        mut containers: Vec<ContainerItem>,
    ) -> Result<PodRecord, RuntimeError> {
        let known = self.get(uid).unwrap_or_default();
        // Attempts first: a clock that is set back makes the newest look old.
        sandboxes.sort_by_key(|s| std::cmp::Reverse((s.attempt, s.created_at)));
        containers.sort_by_key(|c| std::cmp::Reverse((c.attempt, c.created_at)));
        let key = sandboxes.first().map(|s| &s.pod).or(containers.first().map(|c| &c.pod)).cloned();
        let PodKey { name, namespace, .. } = key.unwrap_or_default();
        let mut record = PodRecord { uid: uid.to_owned(), name, namespace, ..PodRecord::default() };
        for item in sandboxes {
            record.sandboxes.extend(self.sandbox(&known, item).await?);
        }
        for item in containers {
            record.containers.extend(self.container(&known, item).await?);
        }
        Ok(record)
    }

    async fn sandbox(&self, known: &PodRecord, item: SandboxItem) -> Result<Option<Sandbox>, RuntimeError> {
        if let Some(s) = known.sandboxes.iter().find(|s| s.id == item.id && s.state == item.state)
            && (s.state == SandboxState::NotReady || s.host_network || !s.ips.is_empty())
        {
            return Ok(Some(s.clone()));
        }
        match self.runtime.sandbox_status(&item.id).await {
            Ok(s) => Ok(Some(s)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn container(&self, known: &PodRecord, item: ContainerItem) -> Result<Option<ContainerRecord>, RuntimeError> {
        let exit = self.pods.lock().get(&item.pod.uid).and_then(|e| e.ended.get(&item.id).copied());
        if let Some(c) = known.containers.iter().find(|c| c.id == item.id && c.state == item.state && !c.early)
            && exit.is_none_or(|_| c.state == ContainerState::Exited)
            && matches!(c.state, ContainerState::Exited | ContainerState::Running)
        {
            return Ok(Some(c.clone()));
        }
        match self.runtime.container_status(&item.id, exit).await {
            Ok(mut c) => {
                c.sandbox_id = item.sandbox_id;
                Ok(Some(c))
            }
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Puts a read into the cache unless a later one is there already.
    fn store(&self, uid: &str, record: PodRecord, began: Instant) -> Arc<PodRecord> {
        let mut index = self.index.lock();
        let mut pods = self.pods.lock();
        let entry = pods.entry(uid.to_owned()).or_insert_with(|| Entry::new(uid));
        if entry.read_at.is_some_and(|at| at > began) {
            return entry.tx.borrow().clone();
        }
        entry.read_at = Some(began);
        entry.ended.retain(|id, _| unsettled(&record, id));
        entry.out_of_memory.retain(|id| unsettled(&record, id));
        let old = entry.tx.borrow().clone();
        if *old == record {
            return old;
        }
        for id in ids(&old) {
            index.remove(id);
        }
        for id in ids(&record) {
            index.insert(id.to_owned(), uid.to_owned());
        }
        let record = Arc::new(record);
        entry.tx.send_replace(record.clone());
        let (was, is) = (ids(&old).next().is_some(), ids(&record).next().is_some());
        if was != is {
            self.population.send_modify(|n| *n += 1);
        }
        record
    }

    /// Reads everything and refreshes each pod whose listing differs from the cache.
    ///
    /// # Errors
    /// When a listing fails; single pods that fail are logged and read again next time.
    pub async fn relist(self: &Arc<Self>) -> Result<(), RuntimeError> {
        let began = Instant::now();
        let since = (self.last_relist_ms.load(Ordering::Relaxed) > 0).then(|| self.relist_age());
        let (sandboxes, containers) = tokio::try_join!(
            self.runtime.list_sandboxes(Filter::default()),
            self.runtime.list_containers(Filter::default())
        )?;
        let mut listed: BTreeMap<String, (Vec<SandboxItem>, Vec<ContainerItem>)> = BTreeMap::new();
        for s in sandboxes.into_iter().filter(|s| !s.pod.uid.is_empty()) {
            listed.entry(s.pod.uid.clone()).or_default().0.push(s);
        }
        for c in containers.into_iter().filter(|c| !c.pod.uid.is_empty()) {
            listed.entry(c.pod.uid.clone()).or_default().1.push(c);
        }
        let gone: Vec<String> = {
            let pods = self.pods.lock();
            pods.keys().filter(|uid| !listed.contains_key(*uid)).cloned().collect()
        };
        for uid in gone {
            let record = PodRecord { uid: uid.clone(), ..PodRecord::default() };
            self.store(&uid, record, began);
        }
        let changed = listed.into_iter().filter(|(uid, (s, c))| !self.matches(uid, s, c));
        let reads = changed.map(|(uid, (sandboxes, containers))| async move {
            match self.assemble(&uid, sandboxes, containers).await {
                Ok(record) => {
                    self.store(&uid, record, began);
                }
                Err(error) => warn!(uid, "cannot read a pod from the runtime: {error}"),
            }
        });
        futures::stream::iter(reads).buffer_unordered(RELIST_READERS).collect::<()>().await;
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_relist_ms.store(now, Ordering::Relaxed);
        self.metrics.relist(began.elapsed(), since);
        Ok(())
    }

    fn matches(&self, uid: &str, sandboxes: &[SandboxItem], containers: &[ContainerItem]) -> bool {
        let Some(known) = self.get(uid) else { return false };
        let listed: BTreeSet<(&str, u8)> = sandboxes
            .iter()
            .map(|s| (s.id.as_str(), s.state as u8))
            .chain(containers.iter().map(|c| (c.id.as_str(), 16 + c.state as u8)))
            .collect();
        let cached: BTreeSet<(&str, u8)> = known
            .sandboxes
            .iter()
            .map(|s| (s.id.as_str(), s.state as u8))
            .chain(known.containers.iter().map(|c| (c.id.as_str(), 16 + c.state as u8)))
            .collect();
        listed == cached && known.containers.iter().all(|c| !c.early)
    }

    /// Reads a pod in the background; several requests while one runs become one more read.
    fn refresh_soon(self: &Arc<Self>, uid: String, ended: Option<(String, Exit)>) {
        {
            let mut pods = self.pods.lock();
            let entry = pods.entry(uid.clone()).or_insert_with(|| Entry::new(&uid));
            if let Some((id, mut exit)) = ended {
                exit.out_of_memory |= entry.out_of_memory.contains(&id);
                entry.ended.insert(id, exit);
            }
            if std::mem::replace(&mut entry.busy, true) {
                entry.again = true;
                return;
            }
        }
        let this = self.clone();
        tokio::spawn(async move {
            loop {
                this.confirm(&uid).await;
                let mut pods = this.pods.lock();
                let Some(entry) = pods.get_mut(&uid) else { return };
                if !std::mem::take(&mut entry.again) {
                    entry.busy = false;
                    break;
                }
            }
            // The last event of a removed pod may come after everybody forgot it.
            this.forget(&uid);
        });
    }

    /// Reads a pod; after an exit event until the runtime's bookkeeping shows the end too.
    async fn confirm(&self, uid: &str) {
        for pause in CONFIRM_PAUSES.iter().map(Some).chain([None]) {
            let settled = match self.refresh(uid).await {
                Ok(_) => self.settled(uid),
                Err(error) => {
                    debug!(uid, "cannot confirm an event: {error}");
                    false
                }
            };
            let Some(pause) = pause.filter(|_| !settled) else { break };
            tokio::time::sleep(Duration::from_millis(*pause)).await;
        }
        // A container's end stays noted until the bookkeeping agrees: an instance never runs again. What else was
        // announced and cannot be confirmed is left to the relist.
        if let Some(entry) = self.pods.lock().get_mut(uid) {
            let record = entry.tx.borrow().clone();
            entry.ended.retain(|id, _| record.containers.iter().any(|c| &c.id == id && c.early));
        }
    }

    /// Whether the runtime's bookkeeping shows every announced end.
    fn settled(&self, uid: &str) -> bool {
        self.pods.lock().get(uid).is_none_or(|entry| entry.ended.is_empty())
    }

    /// The pod a container or sandbox belongs to.
    #[must_use]
    pub fn owner_of(&self, id: &str) -> Option<String> {
        self.index.lock().get(id).cloned()
    }

    /// A container by its identifier.
    #[must_use]
    pub fn find_container(&self, id: &str) -> Option<ContainerRecord> {
        let record = self.get(&self.owner_of(id)?)?;
        record.containers.iter().find(|c| c.id == id).cloned()
    }

    /// Takes in one hint; true when a full relist is due.
    fn take(self: &Arc<Self>, hint: Hint) -> bool {
        match hint {
            Hint::Connected(source) => {
                self.events.fetch_or(bit(source), Ordering::Relaxed);
                true
            }
            Hint::Lost(source) => {
                self.events.fetch_and(!bit(source), Ordering::Relaxed);
                true
            }
            Hint::Changed(uid) => {
                self.refresh_soon(uid, None);
                false
            }
            Hint::Exited { id, code, at } => {
                let exit = Exit { code, at, out_of_memory: false };
                match self.owner_of(&id) {
                    Some(uid) => self.refresh_soon(uid, Some((id, exit))),
                    // Not in the cache yet: it ended before the read that follows its start. The worker's own read
                    // shows that; a stranger's pod is found by the relist.
                    None => self.refresh_unknown(id, exit),
                }
                false
            }
            Hint::OutOfMemory(id) => {
                if let Some(uid) = self.owner_of(&id) {
                    let mut pods = self.pods.lock();
                    if let Some(entry) = pods.get_mut(&uid) {
                        if let Some(exit) = entry.ended.get_mut(&id) {
                            exit.out_of_memory = true;
                        }
                        entry.out_of_memory.insert(id);
                    }
                }
                false
            }
            Hint::Started(_) => false,
            Hint::Removed(id) => {
                if let Some(uid) = self.owner_of(&id) {
                    self.refresh_soon(uid, None);
                }
                false
            }
        }
    }

    fn refresh_unknown(self: &Arc<Self>, id: String, exit: Exit) {
        let this = self.clone();
        tokio::spawn(async move {
            let filter = Filter { id: Some(id.clone()), pod_uid: None };
            let uid = match this.runtime.list_containers(filter.clone()).await {
                Ok(list) if !list.is_empty() => list.into_iter().next().map(|c| c.pod.uid),
                _ => {
                    this.runtime.list_sandboxes(filter).await.ok().and_then(|l| l.into_iter().next()).map(|s| s.pod.uid)
                }
            };
            if let Some(uid) = uid.filter(|u| !u.is_empty()) {
                this.refresh_soon(uid, Some((id, exit)));
            }
        });
    }

    /// Runs until `stop`: hints as they come, relists by their timer.
    pub async fn run(self: Arc<Self>, mut hints: mpsc::Receiver<Hint>, stop: CancellationToken) {
        let mut failing = false;
        let mut connected: Option<Instant> = None;
        // Without a reader of events the timer alone is left; the stop must be seen meanwhile.
        let mut listening = true;
        loop {
            let pause = match (self.has_events(), connected) {
                (false, _) => RELIST_WITHOUT_EVENTS,
                (true, Some(at)) if at.elapsed() < RELIST_WITH_EVENTS => RELIST_AFTER_CONNECT,
                (true, _) => RELIST_WITH_EVENTS,
            };
            let timer = tokio::time::sleep(pause);
            tokio::pin!(timer);
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = &mut timer => break,
                    hint = hints.recv(), if listening => match hint {
                        Some(hint) => {
                            if matches!(hint, Hint::Connected(_)) {
                                connected = Some(Instant::now());
                            }
                            if self.take(hint) { break }
                        }
                        None => listening = false,
                    }
                }
            }
            let Some(outcome) = stop.run_until_cancelled(self.relist()).await else { return };
            match outcome {
                Ok(()) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!("the runtime answers again");
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        warn!("cannot list pods from the runtime, pods keep running: {error}");
                    }
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(RELIST_WITHOUT_EVENTS) => {}
                    }
                }
            }
        }
    }
}

/// Whether the runtime's bookkeeping does not show the end of a container or sandbox.
fn unsettled(record: &PodRecord, id: &str) -> bool {
    record.containers.iter().any(|c| c.id == id && (c.early || c.state == ContainerState::Running))
        || record.sandboxes.iter().any(|s| s.id == id && s.state == SandboxState::Ready)
}

fn ids(record: &PodRecord) -> impl Iterator<Item = &str> {
    record.sandboxes.iter().map(|s| s.id.as_str()).chain(record.containers.iter().map(|c| c.id.as_str()))
}

#[cfg(test)]
mod tests {
    use k8s_cri::v1 as cri_v1;

    use super::*;
    use crate::runtime::fake::FakeRuntime;
    use crate::runtime::identity::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};

    /// A pod of one running container `c`, in the cache.
    async fn running() -> (Arc<FakeRuntime>, Arc<Pleg>, String) {
        let fake = Arc::new(FakeRuntime::with_images(&[]));
        let labels = [(POD_UID, "u"), (POD_NAME, "p"), (POD_NAMESPACE, "ns"), (CONTAINER_NAME, "c")];
        let labels = labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let sandbox = cri_v1::PodSandboxConfig { labels, ..Default::default() };
        let id = fake.run_sandbox(Box::new(sandbox.clone()), String::new()).await.unwrap();
        let metadata = Some(cri_v1::ContainerMetadata { name: "c".into(), attempt: 0 });
        let config = cri_v1::ContainerConfig { metadata, labels: sandbox.labels.clone(), ..Default::default() };
        let container = fake.create_container(&id, Box::new(config), Box::new(sandbox)).await.unwrap();
        fake.start_container(&container).await.unwrap();
        let pleg = Pleg::new(fake.clone(), Metrics::default());
        pleg.relist().await.unwrap();
        assert_eq!(pleg.get("u").unwrap().containers[0].state, ContainerState::Running);
        (fake, pleg, container)
    }

    async fn shown(pleg: &Pleg, want: impl Fn(&ContainerRecord) -> bool) -> ContainerRecord {
        let mut records = pleg.subscribe("u");
        let found = records.wait_for(|r| r.containers.first().is_some_and(&want));
        tokio::time::timeout(Duration::from_secs(5), found).await.unwrap().unwrap().containers[0].clone()
    }

    #[tokio::test(start_paused = true)]
    async fn an_exit_is_shown_before_the_runtimes_bookkeeping_and_corrected_by_it() {
        let (fake, pleg, id) = running().await;
        pleg.take(Hint::Exited { id, code: 3, at: 7 });
        let early = shown(&pleg, |c| c.state == ContainerState::Exited).await;
        assert_eq!((early.exit_code, early.finished_at, early.reason.as_str(), early.early), (3, 7, "Error", true));
        // Nothing takes it back, however long the bookkeeping needs.
        tokio::time::sleep(Duration::from_secs(2)).await;
        pleg.refresh("u").await.unwrap();
        assert_eq!(pleg.get("u").unwrap().containers[0].state, ContainerState::Exited);
        fake.exit("c", 3);
        pleg.relist().await.unwrap();
        let settled = shown(&pleg, |c| !c.early).await;
        assert!(settled.finished_at > 7, "{settled:?}");
        assert!(pleg.pods.lock()["u"].ended.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_of_cri_leads_to_a_read_and_a_strangers_leaves_nothing() {
        let (fake, pleg, _) = running().await;
        fake.exit("c", 4);
        pleg.take(Hint::Changed("u".into()));
        assert_eq!(shown(&pleg, |c| c.state == ContainerState::Exited).await.exit_code, 4);
        pleg.take(Hint::Changed("gone".into()));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!pleg.pods.lock().contains_key("gone"));
        // One stream is enough; both must be lost for the frequent relist.
        for source in Source::ALL {
            pleg.take(Hint::Connected(source));
        }
        pleg.take(Hint::Lost(Source::Containerd));
        assert!(pleg.has_events());
        assert_eq!(Source::ALL.map(|source| pleg.has_events_of(source)), [false, true]);
        pleg.take(Hint::Lost(Source::Cri));
        assert!(!pleg.has_events());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_is_seen_at_once_also_when_the_reader_of_events_is_gone() {
        let (_fake, pleg, _) = running().await;
        let (tx, rx) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let task = tokio::spawn(pleg.run(rx, stop.clone()));
        tx.send(Hint::Connected(Source::Containerd)).await.unwrap();
        drop(tx);
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
        let began = tokio::time::Instant::now();
        task.await.unwrap();
        assert!(began.elapsed() < Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn the_memory_limit_is_the_reason_in_either_order_of_events() {
        for order in [true, false] {
            let (_fake, pleg, id) = running().await;
            let exit = Hint::Exited { id: id.clone(), code: 137, at: 7 };
            let hints = [Hint::OutOfMemory(id), exit];
            let hints: Vec<Hint> = if order { hints.into() } else { hints.into_iter().rev().collect() };
            for hint in hints {
                pleg.take(hint);
            }
            assert_eq!(shown(&pleg, |c| c.state == ContainerState::Exited).await.reason, "OOMKilled");
        }
    }
}
