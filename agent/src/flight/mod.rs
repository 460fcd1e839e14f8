//! The flight recorder: what happened to each pod, when, and how long it took; what is under way now.
//!
//! Workers tell it where they are: a step is a guard that ends with the step. It keeps in memory only what is open; the rest goes
//! to bounded files in the state directory, which outlive the agent, so that `agent explain` answers for now and for the past
//! from the same lines ([`explain`]). It never fails and never blocks. No upstream counterpart.

pub mod command;
mod disk;
pub mod explain;
pub mod line;
mod sees;
pub mod serve;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::pod;
use crate::runtime::{PodRecord, Sandbox};
use crate::sync::Actions;
use disk::Order;
use line::{Line, Step, What};

/// Lines that may wait for the disk.
const QUEUE: usize = 2048;
/// A step that takes longer than this is told in the pod's status.
pub const SLOW: Duration = Duration::from_secs(10);

/// The folder of the files in the agent's state directory.
#[must_use]
pub fn folder(root_dir: &Path) -> PathBuf {
    root_dir.join("flight")
}

/// A step under way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Open {
    step: Step,
    container: Option<String>,
    since: i64,
}

#[derive(Default)]
struct Track {
    open: BTreeMap<u64, Open>,
    sees: String,
    wants: String,
    ready: bool,
}

/// Takes what workers tell.
pub struct Flight {
    tracks: Mutex<HashMap<String, Track>>,
    lines: mpsc::Sender<Order>,
    lost: AtomicU64,
    next: AtomicU64,
}

/// How a step ended: from the step, its number and the time it took, nanoseconds.
type Ending = fn(Step, u64, u64) -> What;

/// A step under way; how it ends is told by [`Doing::done`] or [`Doing::failed`], otherwise it was given up.
pub struct Doing {
    flight: Arc<Flight>,
    uid: String,
    pod: String,
    container: Option<String>,
    step: Step,
    number: u64,
    began: Instant,
    outcome: Option<(Ending, String)>,
}

impl Doing {
    /// It ended well.
    pub fn done(self, text: impl Into<String>) {
        self.end(What::End, text.into());
    }

    /// It failed.
    pub fn failed(self, why: impl Into<String>) {
        self.end(What::Failed, why.into());
    }

    fn end(mut self, what: Ending, text: String) {
        self.outcome = Some((what, text));
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        if let Some(track) = self.flight.tracks.lock().get_mut(&self.uid) {
            track.open.remove(&self.number);
        }
        let took = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (what, text) = self.outcome.take().unwrap_or((What::Dropped, String::new()));
        let (uid, pod, container) =
            (std::mem::take(&mut self.uid), std::mem::take(&mut self.pod), self.container.take());
        let what = what(self.step, self.number, took);
        self.flight.put(Line { at: clock::now(), uid, pod, container, what, text });
    }
}

/// Namespace and name, as people write them.
fn place(pod: &Pod) -> String {
    format!("{}/{}", pod::namespace(pod), pod::name(pod))
}

impl Flight {
    /// A recorder whose lines nobody reads, for tests.
    #[must_use]
    pub fn idle() -> Arc<Self> {
        Self::with(mpsc::channel(1).0)
    }

    /// A recorder and the task that writes its files.
    pub fn new(root_dir: &Path, stop: CancellationToken) -> (Arc<Self>, impl Future<Output = ()> + Send + use<>) {
        let (lines, orders) = mpsc::channel(QUEUE);
        let flight = Self::with(lines);
        flight.put(Line::of_all(What::AgentStarted));
        (flight, disk::write(folder(root_dir), orders, stop))
    }

    fn with(lines: mpsc::Sender<Order>) -> Arc<Self> {
        // Numbers of steps go on over restarts as the clock does.
        let next = AtomicU64::new(clock::now().cast_unsigned());
        Arc::new(Self { tracks: Mutex::default(), lines, lost: AtomicU64::new(0), next })
    }

    fn put(&self, line: Line) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 && self.lines.try_send(Order::Line(Box::new(Line::of_all(What::Lost(lost))))).is_err() {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
        if self.lines.try_send(Order::Line(Box::new(line))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes something about a pod.
    pub fn note(&self, pod: &Pod, container: Option<&str>, what: What, text: impl Into<String>) {
        let (uid, name) = (pod::uid(pod).to_owned(), place(pod));
        self.put(Line {
            at: clock::now(),
            uid,
            pod: name,
            container: container.map(str::to_owned),
            what,
            text: text.into(),
        });
    }

    /// A pod's worker begins.
    pub fn seen(&self, pod: &Pod) {
        self.tracks.lock().entry(pod::uid(pod).to_owned()).or_default();
        let source = if pod::is_static(pod) { "manifest" } else { "api" };
        let created = pod.metadata.creation_timestamp.as_ref().map(|t| format!("created {}", t.0));
        self.note(pod, None, What::Source(source.into()), created.unwrap_or_default());
    }

    /// A step begins.
    pub fn begin(self: &Arc<Self>, pod: &Pod, container: Option<&str>, step: Step) -> Doing {
        self.begin_since(pod, container, step, clock::now())
    }

    /// A step that began at this time, nanoseconds since the epoch: an agent before this one may have begun it.
    pub fn begin_since(self: &Arc<Self>, pod: &Pod, container: Option<&str>, step: Step, since: i64) -> Doing {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (uid, container) = (pod::uid(pod).to_owned(), container.map(str::to_owned));
        if let Some(track) = self.tracks.lock().get_mut(&uid) {
            track.open.insert(number, Open { step, container: container.clone(), since });
        }
        let (pod, text, what) = (place(pod), String::new(), What::Begin(step, number));
        self.put(Line { at: since, uid: uid.clone(), pod: pod.clone(), container: container.clone(), what, text });
        let past = Duration::from_nanos(u64::try_from(clock::now().saturating_sub(since)).unwrap_or(0));
        let began = Instant::now().checked_sub(past).unwrap_or_else(Instant::now);
        Doing { flight: self.clone(), uid, pod, container, step, number, began, outcome: None }
    }

    /// The part of a sandbox's making until its network was there: the runtime notes the sandbox's creation right after the plugins' ADD.
    pub fn network(&self, pod: &Pod, began: i64, sandbox: &Sandbox) {
        if sandbox.host_network || sandbox.created_at <= began {
            return;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let took = sandbox.created_at.abs_diff(began);
        let (uid, name, text) = (pod::uid(pod).to_owned(), place(pod), String::new());
        let what = What::End(Step::Network, number, took);
        self.put(Line { at: sandbox.created_at, uid, pod: name, container: None, what, text });
    }

    /// What the worker sees now; noted when it has changed.
    pub fn sees(&self, pod: &Pod, record: &PodRecord, status: &PodStatus) {
        let (text, ready) = (sees::text(record, status), sees::is_ready(status));
        let (changed, now_ready) = {
            let mut tracks = self.tracks.lock();
            let Some(track) = tracks.get_mut(pod::uid(pod)) else { return };
            let changed = track.sees != text;
            if changed {
                track.sees.clone_from(&text);
            }
            (changed, !std::mem::replace(&mut track.ready, ready) && ready)
        };
        if changed {
            self.note(pod, None, What::Sees, text);
        }
        if now_ready {
            self.note(pod, None, What::Ready, "");
        }
    }

    /// What the worker decided; noted when it has changed.
    pub fn wants(&self, pod: &Pod, actions: &Actions) {
        let text = sees::wanted(pod, actions);
        {
            let mut tracks = self.tracks.lock();
            let Some(track) = tracks.get_mut(pod::uid(pod)) else { return };
            if track.wants == text {
                return;
            }
            track.wants.clone_from(&text);
        }
        self.note(pod, None, What::Wants, text);
    }

    /// Something failed and is tried again at a time, nanoseconds since the epoch.
    pub fn retry(&self, pod: &Pod, at: i64) {
        self.note(pod, None, What::Retry(at), "");
    }

    /// Nothing is left of a pod.
    pub fn gone(&self, pod: &Pod) {
        self.tracks.lock().remove(pod::uid(pod));
        self.note(pod, None, What::Gone, "");
    }

    /// The longest step of each pod, in words, where it takes longer than [`SLOW`].
    #[must_use]
    pub fn slow(&self) -> HashMap<String, String> {
        let limit = clock::now() - i64::try_from(SLOW.as_nanos()).unwrap_or(i64::MAX);
        let tracks = self.tracks.lock();
        let slow = tracks.iter().filter_map(|(uid, track)| {
            let first = track.open.values().filter(|open| open.since < limit).min_by_key(|open| open.since)?;
            Some((uid.clone(), explain::waiting_for(first.step, first.container.as_deref(), first.since)))
        });
        slow.collect()
    }

    /// The step that a pod is in now, and since when.
    #[must_use]
    pub fn doing(&self, uid: &str) -> Option<(String, i64)> {
        let tracks = self.tracks.lock();
        let open = tracks.get(uid)?.open.values().min_by_key(|open| open.since)?;
        Some((explain::title(open.step, open.container.as_deref()), open.since))
    }

    /// Resolves when everything told before is in the files, or cannot be.
    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.lines.send(Order::Flush(done)).await.is_ok() {
            let _ = flushed.await;
        }
    }
}
