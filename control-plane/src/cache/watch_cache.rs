//! One kind's objects, the window of its last changes, and its watchers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use keelson_kinds::{Resource, table};
use parking_lot::RwLock;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::object::{self, LINE_END, Object};
use super::{EventKind, Filter};
use crate::store::{Event, KeyValue, Revision};

/// Events a watcher may leave unread before it is dropped; upstream's channel sizes go up to 1,000.
const WATCHER_QUEUE: usize = 1024;
/// Events always kept, however old or large: upstream's lower bound.
const WINDOW_MIN_EVENTS: usize = 100;
/// Most events kept.
const WINDOW_MAX_EVENTS: usize = 16_384;
/// Most bytes kept beyond [`WINDOW_MIN_EVENTS`].
const WINDOW_MAX_BYTES: usize = 8 << 20;
/// Events younger than this are kept while the other limits allow: upstream's freshness, a watch after a slow list.
const WINDOW_AGE: Duration = Duration::from_secs(75);

/// One change of one object.
#[derive(Debug)]
pub struct CacheEvent {
    /// Its revision.
    pub revision: Revision,
    /// Its kind for a watcher without a selector.
    pub kind: EventKind,
    /// The object after the change; of a deleted object its last state, with the deletion's revision.
    pub object: Arc<Object>,
    /// The object before the change.
    pub previous: Option<Arc<Object>>,
    line: Bytes,
    at: Instant,
    table: OnceLock<Bytes>,
    partial: OnceLock<Bytes>,
}

impl CacheEvent {
    /// The encoded event as plain JSON; of the natural kind it is shared, of another it is made anew.
    #[must_use]
    pub fn line(&self, kind: EventKind) -> Bytes {
        if kind == self.kind { self.line.clone() } else { line(kind, &self.object.json) }
    }

    /// The encoded event with a `Table` of one row.
    pub fn table_line(&self, kind: EventKind, resource: &Resource) -> Bytes {
        let make = || {
            let value = self.object.value_as(resource);
            let meta = json!({"resourceVersion": self.revision.to_string()});
            let now = jiff::Timestamp::now();
            let table = table::render(resource, &[&value], meta, table::IncludeObject::Metadata, now, true);
            line(kind, table.to_string().as_bytes())
        };
        let shared = kind == self.kind && resource.storage_version;
        if shared { self.table.get_or_init(make).clone() } else { make() }
    }

    /// The encoded event with a `PartialObjectMetadata`.
    pub fn partial_line(&self, kind: EventKind) -> Bytes {
        let make = || line(kind, table::partial(&self.object.value()).to_string().as_bytes());
        if kind == self.kind { self.partial.get_or_init(make).clone() } else { make() }
    }
}

/// An encoded watch event.
pub(crate) fn line(kind: EventKind, object: &[u8]) -> Bytes {
    let start = kind.line_start();
    let mut out = Vec::with_capacity(start.len() + object.len() + LINE_END.len());
    out.extend_from_slice(start);
    out.extend_from_slice(object);
    out.extend_from_slice(LINE_END);
    out.into()
}

struct Registered {
    filter: Arc<Filter>,
    sender: mpsc::Sender<(EventKind, Arc<CacheEvent>)>,
}

struct State {
    objects: BTreeMap<Arc<str>, Arc<Object>>,
    window: VecDeque<Arc<CacheEvent>>,
    window_bytes: usize,
    /// Every event after this revision is in the window.
    window_start: Revision,
    last: Revision,
    watchers: Vec<Registered>,
    /// Nothing feeds this cache any more: a watch of it ends at once.
    closed: bool,
}

/// Objects, recent events and watchers of one kind.
pub struct WatchCache {
    resource: &'static Resource,
    /// What the hub has applied to every cache.
    applied: Arc<AtomicU64>,
    state: RwLock<State>,
}

impl std::fmt::Debug for WatchCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchCache").field("resource", &self.resource).finish_non_exhaustive()
    }
}

/// Objects at one revision.
#[derive(Debug)]
pub struct Snapshot {
    /// Objects in key order.
    pub objects: Vec<Arc<Object>>,
    /// The revision they show.
    pub revision: Revision,
    /// Whether more matching objects follow.
    pub more: bool,
    /// How many matching objects follow, when it was asked for.
    pub remaining: Option<usize>,
}

/// Why a watch cannot start. Retryable by listing first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// Upstream's words.
    #[error("too old resource version: {wanted} ({oldest})")]
    TooOld {
        /// Revision asked for.
        wanted: Revision,
        /// The oldest that could be served.
        oldest: Revision,
    },
}

/// A started watch: what it has missed first, then what comes.
#[derive(Debug)]
pub struct Watcher {
    /// Events between the wanted revision and the start.
    pub backlog: VecDeque<(EventKind, Arc<CacheEvent>)>,
    /// Objects at the start, for watches that begin with the present state.
    pub initial: Vec<Arc<Object>>,
    /// The revision at the start.
    pub revision: Revision,
    receiver: mpsc::Receiver<(EventKind, Arc<CacheEvent>)>,
    cache: Arc<WatchCache>,
}

impl Watcher {
    /// The next event; `None` when the watcher was too slow or the server stops.
    pub async fn next(&mut self) -> Option<(EventKind, Arc<CacheEvent>)> {
        match self.backlog.pop_front() {
            Some(event) => Some(event),
            None => self.receiver.recv().await,
        }
    }

    /// A revision up to which this watcher has seen everything, if it is not behind.
    #[must_use]
    pub fn progress(&self) -> Option<Revision> {
        let before = self.cache.applied.load(Ordering::Acquire);
        let state = self.cache.state.read();
        (self.backlog.is_empty() && self.receiver.is_empty()).then_some(before.max(state.last))
    }
}

impl WatchCache {
    pub(super) fn new(
        resource: &'static Resource,
        applied: Arc<AtomicU64>,
        revision: Revision,
        items: &[KeyValue],
    ) -> Self {
        Self { resource, applied, state: RwLock::new(State::new(resource, revision, items)) }
    }

    /// Shows what the store has at `revision`, of whose way there nothing is known; ends every watch.
    pub(super) fn reload(&self, revision: Revision, items: &[KeyValue]) {
        let mut fresh = State::new(self.resource, revision, items);
        let mut state = self.state.write();
        fresh.closed = state.closed;
        *state = fresh;
    }

    /// The namespaces with objects.
    pub(super) fn namespaces(&self) -> BTreeSet<String> {
        let state = self.state.read();
        state.objects.values().filter(|o| !o.namespace.is_empty()).map(|o| o.namespace.to_string()).collect()
    }

    /// The kind.
    #[must_use]
    pub fn resource(&self) -> &'static Resource {
        self.resource
    }

    /// One object by storage key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Arc<Object>> {
        self.state.read().objects.get(key).cloned()
    }

    /// The revision of the last change of this kind.
    #[must_use]
    pub fn last_change(&self) -> Revision {
        self.state.read().last
    }

    /// How many objects there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.read().objects.len()
    }

    /// Whether there is no object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many watchers there are.
    #[must_use]
    pub fn watchers(&self) -> usize {
        self.state.read().watchers.len()
    }

    /// All objects of a namespace, or of the kind.
    #[must_use]
    pub fn objects(&self, namespace: Option<&str>) -> Vec<Arc<Object>> {
        self.list(&self.resource.key_prefix(namespace), None, &Filter::default(), 0).objects
    }

    /// [`Self::objects`], parsed.
    #[must_use]
    pub fn values(&self, namespace: Option<&str>) -> Vec<Value> {
        self.objects(namespace).iter().map(|object| object.value()).collect()
    }

    /// Matching objects below `prefix`, after `after`, at most `limit` (0: all).
    #[must_use]
    pub fn list(&self, prefix: &str, after: Option<&str>, filter: &Filter, limit: usize) -> Snapshot {
        let before = self.applied.load(Ordering::Acquire);
        let state = self.state.read();
        let start = match after {
            Some(key) => Bound::Excluded(key),
            None => Bound::Included(prefix),
        };
        let mut matching = state
            .objects
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter(|(_, object)| filter.matches(object))
            .map(|(_, object)| object);
        let page = if limit == 0 { usize::MAX } else { limit };
        let objects: Vec<_> = matching.by_ref().take(page).cloned().collect();
        let remaining = matching.count();
        Snapshot {
            objects,
            revision: before.max(state.last),
            more: remaining > 0,
            remaining: (remaining > 0 && !filter.selects()).then_some(remaining),
        }
    }

    /// Starts a watch after `from`; with `None` it begins with the present objects as [`Watcher::initial`].
    ///
    /// # Errors
    /// [`WatchError::TooOld`] when events after `from` are no longer in the window.
    pub fn watch(self: &Arc<Self>, from: Option<Revision>, filter: Arc<Filter>) -> Result<Watcher, WatchError> {
        let (sender, receiver) = mpsc::channel(WATCHER_QUEUE);
        let before = self.applied.load(Ordering::Acquire);
        let mut state = self.state.write();
        let mut backlog = VecDeque::new();
        let mut initial = Vec::new();
        match from {
            Some(wanted) if wanted < state.window_start => {
                return Err(WatchError::TooOld { wanted, oldest: state.window_start });
            }
            Some(wanted) => {
                let first = state.first_after(wanted);
                for event in state.window.range(first..) {
                    if let Some(kind) = filter.transition(event.previous.as_deref(), event) {
                        backlog.push_back((kind, Arc::clone(event)));
                    }
                }
            }
            None => initial = state.objects.values().filter(|o| filter.matches(o)).cloned().collect(),
        }
        state.watchers.retain(|w| !w.sender.is_closed());
        if !state.closed {
            state.watchers.push(Registered { filter, sender });
        }
        let revision = before.max(state.last);
        Ok(Watcher { backlog, initial, revision, receiver, cache: Arc::clone(self) })
    }

    /// Ends every watch.
    pub(super) fn close_watchers(&self) {
        let mut state = self.state.write();
        state.closed = true;
        state.watchers.clear();
    }

    pub(super) fn apply(&self, events: &[&Event]) {
        // Decoding stays outside the lock: readers wait only for the swap.
        let decoded: Vec<_> = events
            .iter()
            .map(|event| {
                event.value.as_ref().map(|stored| {
                    object::decode(self.resource, &event.key, stored, event.revision, EventKind::Modified)
                })
            })
            .collect();
        let mut state = self.state.write();
        for (event, decoded) in events.iter().zip(decoded) {
            let made = match decoded {
                Some(Ok((object, line))) => Some(state.put(object, line)),
                Some(Err(error)) => {
                    tracing::error!(%error, "an object was left out");
                    None
                }
                None => state.remove(event),
            };
            state.last = event.revision;
            if let Some(made) = made {
                state.dispatch(&made);
                state.remember(made);
            }
        }
    }
}

impl State {
    fn new(resource: &Resource, revision: Revision, items: &[KeyValue]) -> Self {
        let mut objects = BTreeMap::new();
        for item in items {
            match object::decode(resource, &item.key, &item.value, item.mod_revision, EventKind::Added) {
                Ok((object, _)) => {
                    objects.insert(Arc::clone(&item.key), Arc::new(object));
                }
                Err(error) => tracing::error!(%error, "an object was left out"),
            }
        }
        Self {
            objects,
            window: VecDeque::new(),
            window_bytes: 0,
            window_start: revision,
            last: revision,
            watchers: Vec::new(),
            closed: false,
        }
    }

    /// The first event in the window that somebody who has seen `wanted` may lack. Who was cut off between two events of one revision
    /// knows it from the first of them, so the others come again.
    fn first_after(&self, wanted: Revision) -> usize {
        let first = self.window.partition_point(|event| event.revision < wanted);
        let known = self.window.get(first).is_some_and(|event| event.revision == wanted);
        first + usize::from(known)
    }

    fn put(&mut self, object: Object, natural: Bytes) -> Arc<CacheEvent> {
        let previous = self.objects.remove(&object.key);
        let kind = if previous.is_some() { EventKind::Modified } else { EventKind::Added };
        let (object, line) = if kind == EventKind::Modified {
            (object, natural)
        } else {
            let line = line(kind, &object.json);
            let json = line.slice(kind.line_start().len()..line.len() - LINE_END.len());
            (Object { json, ..object }, line)
        };
        let object = Arc::new(object);
        self.objects.insert(Arc::clone(&object.key), Arc::clone(&object));
        CacheEvent::shared(kind, object, previous, line)
    }

    fn remove(&mut self, event: &Event) -> Option<Arc<CacheEvent>> {
        let previous = self.objects.remove(&event.key)?;
        let kind = EventKind::Deleted;
        let stored = strip_revision(&previous);
        let line = object::splice(&stored, event.revision, kind.line_start(), LINE_END)?;
        let json = line.slice(kind.line_start().len()..line.len() - LINE_END.len());
        let object = Arc::new(Object {
            key: Arc::clone(&previous.key),
            namespace: previous.namespace.clone(),
            name: previous.name.clone(),
            revision: event.revision,
            json,
            labels: previous.labels.clone(),
            fields: previous.fields.clone(),
        });
        Some(CacheEvent::shared(kind, object, Some(previous), line))
    }

    fn dispatch(&mut self, event: &Arc<CacheEvent>) {
        self.watchers.retain(|watcher| {
            let Some(kind) = watcher.filter.transition(event.previous.as_deref(), event) else {
                return true;
            };
            match watcher.sender.try_send((kind, Arc::clone(event))) {
                Ok(()) => true,
                Err(mpsc::error::TrySendError::Full(_)) => {
                    tracing::warn!(resource = %event.object.key, "a watcher did not keep up and was dropped");
                    false
                }
                Err(mpsc::error::TrySendError::Closed(_)) => false,
            }
        });
    }

    fn remember(&mut self, event: Arc<CacheEvent>) {
        self.window_bytes += event.line.len();
        let now = event.at;
        self.window.push_back(event);
        while self.window.len() > WINDOW_MIN_EVENTS {
            let Some(oldest) = self.window.front() else { break };
            let keep = self.window.len() <= WINDOW_MAX_EVENTS
                && self.window_bytes <= WINDOW_MAX_BYTES
                && now.duration_since(oldest.at) <= WINDOW_AGE;
            if keep {
                break;
            }
            // A revision goes whole.
            let revision = oldest.revision;
            self.window_start = revision;
            let whole = self.window.partition_point(|event| event.revision <= revision);
            self.window_bytes -= self.window.drain(..whole).map(|gone| gone.line.len()).sum::<usize>();
        }
    }
}

impl CacheEvent {
    fn shared(kind: EventKind, object: Arc<Object>, previous: Option<Arc<Object>>, line: Bytes) -> Arc<Self> {
        Arc::new(Self {
            revision: object.revision,
            kind,
            object,
            previous,
            line,
            at: Instant::now(),
            table: OnceLock::new(),
            partial: OnceLock::new(),
        })
    }
}

/// The object's bytes without the spliced resourceVersion.
fn strip_revision(object: &Object) -> Vec<u8> {
    let member = format!("\"resourceVersion\":\"{}\"", object.revision);
    let json = &object.json;
    let Some(at) = json.windows(member.len()).position(|w| w == member.as_bytes()) else { return json.to_vec() };
    let mut end = at + member.len();
    if json.get(end) == Some(&b',') {
        end += 1;
    }
    let mut out = Vec::with_capacity(json.len());
    out.extend_from_slice(&json[..at]);
    out.extend_from_slice(&json[end..]);
    out
}

/// The metadata-only error object of a watch.
#[must_use]
pub(crate) fn error_line(status: &Value) -> Bytes {
    format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n").into()
}
