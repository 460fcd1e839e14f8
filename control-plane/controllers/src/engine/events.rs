//! Events for people: repeated ones are counted instead of stored again, and floods are cut.
//!
//! What for: `kubectl describe` and `kubectl get events`. kube-runtime's `Recorder` merges events that differ only
//! in their message ("Scaled up … to 1", "… to 3") and keeps whole objects, so this small one is used instead.
//!
//! Invariants: recording never blocks a controller; when the API server is slow, events are dropped (and counted in
//! the log). At most [`MEMORY`] different events are remembered.
//!
//! Upstream counterpart: client-go's `EventCorrelator` (message key, spam filter of 25 per object refilled every 5 min).

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

/// Events that wait to be sent; more are dropped.
const BACKLOG: usize = 1000;
/// Different events remembered for counting (client-go's LRU size).
const MEMORY: usize = 4096;
/// Events that one object may cause at once (client-go's default burst).
const BURST: f64 = 25.0;
/// One more event per object and this time (client-go's default rate).
const REFILL: Duration = Duration::from_secs(300);
/// Longest message the API accepts.
const MESSAGE_LIMIT: usize = 1024;

/// `Normal` or `Warning`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// All is well.
    Normal,
    /// Someone should look.
    Warning,
}

impl Level {
    fn text(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// One thing that happened.
#[derive(Debug, Clone)]
pub struct Note {
    /// The object that it happened to.
    pub about: ObjectReference,
    /// Normal or warning.
    pub level: Level,
    /// Upstream's reason word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// The program that says so, as upstream names it.
    pub component: &'static str,
    /// What it tried to do; empty if upstream leaves it out.
    pub action: &'static str,
}

/// A handle to record events with; cheap to clone.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<Note>,
}

/// An event's reference to an object.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

impl Events {
    /// Starts the task that sends events.
    pub fn start(client: Client, tracker: &TaskTracker, shutdown: CancellationToken) -> Self {
        let (sender, mut receiver) = mpsc::channel::<Note>(BACKLOG);
        tracker.spawn(async move {
            let mut correlator = Correlator::default();
            loop {
                let note = tokio::select! {
                    () = shutdown.cancelled() => return,
                    note = receiver.recv() => note,
                };
                let Some(note) = note else { return };
                send(&client, &mut correlator, note).await;
            }
        });
        Self { sender }
    }

    /// Records what happened; drops it if too much is waiting.
    pub fn record(&self, note: Note) {
        if self.sender.try_send(note).is_err() {
            debug!("event dropped: too many are waiting to be sent");
        }
    }

    /// [`Self::record`] about an object, without an action.
    pub fn about<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        component: &'static str,
        level: Level,
        reason: &'static str,
        message: String,
    ) {
        self.record(Note { about: reference(object), level, reason, message, component, action: "" });
    }
}

/// What to send for a note.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// Nothing: its object caused too many.
    Drop,
    /// A new event.
    Create,
    /// The stored event happened again.
    Count { name: String, count: i32 },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct EventKey {
    uid: String,
    place: String,
    reason: &'static str,
    level: Level,
    component: &'static str,
    message: String,
}

struct Bucket {
    tokens: f64,
    since: Timestamp,
}

/// Which events were sent, and how fast each object may cause more. Pure: time comes from outside.
#[derive(Default)]
struct Correlator {
    sent: HashMap<EventKey, (String, i32)>,
    order: VecDeque<EventKey>,
    buckets: HashMap<(String, &'static str), Bucket>,
}

fn key_of(note: &Note) -> EventKey {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    EventKey {
        uid: part(&note.about.uid),
        place: format!("{}/{}", part(&note.about.namespace), part(&note.about.name)),
        reason: note.reason,
        level: note.level,
        component: note.component,
        message: note.message.clone(),
    }
}

impl Correlator {
    fn judge(&mut self, note: &Note, now: Timestamp) -> Verdict {
        let key = key_of(note);
        if !self.allow(&key, now) {
            return Verdict::Drop;
        }
        match self.sent.get(&key) {
            Some((name, count)) => Verdict::Count { name: name.clone(), count: count + 1 },
            None => Verdict::Create,
        }
    }

    fn remember(&mut self, note: &Note, name: String, count: i32) {
        let key = key_of(note);
        if self.sent.insert(key.clone(), (name, count)).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > MEMORY {
            if let Some(oldest) = self.order.pop_front() {
                self.sent.remove(&oldest);
            }
        }
    }

    fn forget(&mut self, note: &Note) {
        let key = key_of(note);
        self.sent.remove(&key);
        self.order.retain(|known| *known != key);
    }

    fn allow(&mut self, key: &EventKey, now: Timestamp) -> bool {
        if self.buckets.len() > MEMORY {
            self.buckets.retain(|_, bucket| refilled(bucket, now) < BURST);
        }
        let bucket = self
            .buckets
            .entry((format!("{}{}", key.uid, key.place), key.component))
            .or_insert(Bucket { tokens: BURST, since: now });
        bucket.tokens = refilled(bucket, now);
        bucket.since = now;
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }
}

fn refilled(bucket: &Bucket, now: Timestamp) -> f64 {
    let passed = now.duration_since(bucket.since).as_secs_f64().max(0.0);
    (bucket.tokens + passed / REFILL.as_secs_f64()).min(BURST)
}

async fn send(client: &Client, correlator: &mut Correlator, note: Note) {
    let now = Timestamp::now();
    let namespace = note.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    match correlator.judge(&note, now) {
        Verdict::Drop => return,
        Verdict::Create => {}
        Verdict::Count { name, count } => {
            let patch = json!({"count": count, "lastTimestamp": Time(now)});
            match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => return correlator.remember(&note, name, count),
                // Events expire on the server: a new one is made.
                Err(kube::Error::Api(status)) if status.code == 404 => correlator.forget(&note),
                Err(error) => return debug!(%error, "event not counted"),
            }
        }
    }
    let event = build(&note, &namespace, now);
    match api.create(&PostParams::default(), &event).await {
        Ok(created) => correlator.remember(&note, created.metadata.name.unwrap_or_default(), 1),
        // The namespace is being deleted, or is gone.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => debug!(%status, "event refused"),
        Err(error) => warn!(%error, reason = note.reason, "event not sent"),
    }
}

fn build(note: &Note, namespace: &str, now: Timestamp) -> Event {
    let mut message = note.message.clone();
    if message.len() > MESSAGE_LIMIT {
        let end = (0..=MESSAGE_LIMIT - 3).rev().find(|i| message.is_char_boundary(*i));
        message.truncate(end.unwrap_or(0));
        message.push_str("...");
    }
    let name = note.about.name.as_deref().unwrap_or("object");
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: note.about.clone(),
        reason: Some(note.reason.to_owned()),
        message: Some(message),
        type_: Some(note.level.text().to_owned()),
        source: Some(EventSource { component: Some(note.component.to_owned()), host: None }),
        reporting_component: Some(note.component.to_owned()),
        reporting_instance: Some(String::new()),
        action: (!note.action.is_empty()).then(|| note.action.to_owned()),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        event_time: None::<MicroTime>,
        related: None,
        series: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::SignedDuration;

    fn note(name: &str, message: &str) -> Note {
        Note {
            about: ObjectReference { name: Some(name.to_owned()), ..ObjectReference::default() },
            level: Level::Normal,
            reason: "Test",
            message: message.to_owned(),
            component: "test",
            action: "",
        }
    }

    #[test]
    fn the_same_event_is_counted_and_a_new_message_is_a_new_event() {
        let (mut correlator, now) = (Correlator::default(), Timestamp::UNIX_EPOCH);
        assert_eq!(correlator.judge(&note("a", "x"), now), Verdict::Create);
        correlator.remember(&note("a", "x"), "e1".to_owned(), 1);
        let again = Verdict::Count { name: "e1".to_owned(), count: 2 };
        assert_eq!(correlator.judge(&note("a", "x"), now), again);
        assert_eq!(correlator.judge(&note("a", "y"), now), Verdict::Create);
        correlator.forget(&note("a", "x"));
        assert_eq!(correlator.judge(&note("a", "x"), now), Verdict::Create);
    }

    #[test]
    fn a_flood_about_one_object_is_cut_and_others_are_not() {
        let (mut correlator, now) = (Correlator::default(), Timestamp::UNIX_EPOCH);
        let passed = (0..100).filter(|i| correlator.judge(&note("a", &i.to_string()), now) == Verdict::Create);
        assert_eq!(passed.count(), 25);
        assert_eq!(correlator.judge(&note("b", "x"), now), Verdict::Create);
        let later = now + SignedDuration::from_secs(301);
        assert_eq!(correlator.judge(&note("a", "x"), later), Verdict::Create);
    }

    #[test]
    fn memory_is_bounded_and_long_messages_are_cut() {
        let mut correlator = Correlator::default();
        for i in 0..MEMORY + 10 {
            correlator.remember(&note(&i.to_string(), "x"), "e".to_owned(), 1);
        }
        assert_eq!(correlator.sent.len(), MEMORY);
        let event = build(&note("a", &"ä".repeat(2000)), "ns", Timestamp::UNIX_EPOCH);
        assert!(event.message.unwrap().len() <= MESSAGE_LIMIT);
    }
}
