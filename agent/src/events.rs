//! Events about pods and the node, aggregated as upstream's recorder does.
//!
//! A bounded queue takes them (a full queue drops events, never blocks a worker); one task sends them. The same
//! event again raises the count of the first one; more than [`SIMILAR_LIMIT`] differing messages of one reason in
//! ten minutes become one "(combined from similar events)"; one object may send a burst of [`BURST`] and then one
//! every [`REFILL`]. Upstream counterpart: `client-go/tools/record`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Container, Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::clock;
use crate::flight::Flight;
use crate::flight::line::What;
use crate::pod;

/// Events that may wait to be sent.
const QUEUE: usize = 512;
/// Events remembered for counting (upstream `maxLruCacheEntries` is 4096; a node needs fewer).
const REMEMBERED: usize = 1024;
/// Differing messages of one reason before they are combined.
const SIMILAR_LIMIT: u32 = 10;
/// How long similar events count together.
const SIMILAR_WINDOW: Duration = Duration::from_secs(600);
/// Longest time one request may take.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// Events one object may send at once.
const BURST: f64 = 25.0;
/// Time after which one more is allowed.
const REFILL: Duration = Duration::from_secs(300);

/// One event on its way.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    object: ObjectReference,
    kind: String,
    reason: String,
    message: String,
    at: Timestamp,
}

/// Takes events from everywhere.
pub struct Recorder {
    node: String,
    tx: mpsc::Sender<Entry>,
    flight: Arc<Flight>,
}

impl Recorder {
    /// A recorder and the queue its sender reads.
    #[must_use]
    pub fn new(node: &str, flight: Arc<Flight>) -> (Arc<Self>, mpsc::Receiver<Entry>) {
        let (tx, rx) = mpsc::channel(QUEUE);
        (Arc::new(Self { node: node.to_owned(), tx, flight }), rx)
    }

    /// An event about a pod.
    pub fn pod(&self, pod: &Pod, kind: &str, reason: &str, message: &str) {
        self.tell(pod, None, kind, reason, message);
    }

    /// An event about one container of a pod.
    pub fn container(&self, pod: &Pod, container: &Container, kind: &str, reason: &str, message: &str) {
        self.tell(pod, Some(&container.name), kind, reason, message);
    }

    /// An event about this node.
    pub fn node(&self, kind: &str, reason: &str, message: &str) {
        let object = ObjectReference {
            kind: Some("Node".into()),
            name: Some(self.node.clone()),
            uid: Some(self.node.clone()),
            ..ObjectReference::default()
        };
        self.send(object, kind, reason, message);
    }

    fn tell(&self, pod: &Pod, container: Option<&str>, kind: &str, reason: &str, message: &str) {
        let what = if kind == "Warning" { What::Warning } else { What::Event };
        self.flight.note(pod, container, what(reason.to_owned()), message);
        self.send(reference(pod, container), kind, reason, message);
    }

    fn send(&self, object: ObjectReference, kind: &str, reason: &str, message: &str) {
        debug!(kind, reason, message, object = object.name.as_deref().unwrap_or_default(), "event");
        let entry = Entry {
            object,
            kind: kind.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            at: clock::timestamp(),
        };
        let _ = self.tx.try_send(entry);
    }
}

fn reference(pod: &Pod, container: Option<&str>) -> ObjectReference {
    let role = |name: &str| match pod::find_container(pod, name).map(|(role, _)| role) {
        Some(pod::Role::Init | pod::Role::Sidecar) => "initContainers",
        Some(pod::Role::Ephemeral) => "ephemeralContainers",
        _ => "containers",
    };
    // The API knows a static pod by its mirror, whose UID is the manifest's hash.
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: Some(pod::name(pod).to_owned()),
        namespace: Some(pod::namespace(pod).to_owned()),
        uid: Some(pod::uid(pod).to_owned()),
        resource_version: pod.metadata.resource_version.clone(),
        field_path: container.map(|name| format!("spec.{}{{{name}}}", role(name))),
    }
}

struct Known {
    name: String,
    count: i32,
    last: Instant,
}

/// What is counted, combined and throttled. Pure but for the clock it is given.
#[derive(Default)]
struct Correlator {
    known: HashMap<Vec<String>, Known>,
    similar: HashMap<Vec<String>, (u32, Instant, String)>,
    budget: HashMap<String, (f64, Instant)>,
}

/// What to do with one event.
#[derive(Debug, PartialEq)]
enum Plan {
    Drop,
    Create(Entry, Vec<String>),
    Count { name: String, count: i32, entry: Entry },
}

impl Correlator {
    fn plan(&mut self, mut entry: Entry, now: Instant) -> Plan {
        let o = &entry.object;
        let object: Vec<String> = [&o.kind, &o.namespace, &o.name, &o.uid, &o.field_path]
            .into_iter()
            .map(|f| f.clone().unwrap_or_default())
            .collect();
        let mut group = object.clone();
        group.extend([entry.kind.clone(), entry.reason.clone()]);
        let similar = self.similar.entry(group.clone()).or_insert((0, now, String::new()));
        if now.duration_since(similar.1) > SIMILAR_WINDOW {
            *similar = (0, now, String::new());
        }
        if similar.2 != entry.message {
            similar.0 += 1;
            similar.2.clone_from(&entry.message);
        }
        similar.1 = now;
        let mut key = group;
        if similar.0 > SIMILAR_LIMIT {
            entry.message = format!("(combined from similar events): {}", entry.message);
        } else {
            key.push(entry.message.clone());
        }
        if !self.allow(object[..4].join("/"), now) {
            return Plan::Drop;
        }
        self.trim();
        if let Some(known) = self.known.get_mut(&key) {
            known.count += 1;
            known.last = now;
            return Plan::Count { name: known.name.clone(), count: known.count, entry };
        }
        Plan::Create(entry, key)
    }

    fn allow(&mut self, object: String, now: Instant) -> bool {
        let (tokens, last) = self.budget.entry(object).or_insert((BURST, now));
        *tokens = (*tokens + now.duration_since(*last).as_secs_f64() / REFILL.as_secs_f64()).min(BURST);
        *last = now;
        if *tokens < 1.0 {
            return false;
        }
        *tokens -= 1.0;
        true
    }

    fn trim(&mut self) {
        if self.known.len() < REMEMBERED {
            return;
        }
        let mut times: Vec<Instant> = self.known.values().map(|k| k.last).collect();
        times.sort_unstable();
        let cut = times[times.len() / 2];
        self.known.retain(|_, k| k.last > cut);
        self.similar.retain(|_, s| s.1 > cut);
        self.budget.retain(|_, b| b.1 > cut);
    }
}

/// Sends events until `stop`; without a client they are only logged.
pub async fn send(mut rx: mpsc::Receiver<Entry>, client: Option<kube::Client>, node: String, stop: CancellationToken) {
    let mut correlator = Correlator::default();
    loop {
        let entry = tokio::select! {
            () = stop.cancelled() => return,
            entry = rx.recv() => match entry { Some(e) => e, None => return },
        };
        let Some(client) = &client else { continue };
        // On a dead connection the queue would fill and events get lost without a word.
        let delivery = deliver(client, &node, &mut correlator, entry);
        if tokio::time::timeout(REQUEST_DEADLINE, delivery).await.is_err() {
            debug!("an event was not taken within {REQUEST_DEADLINE:?}");
        }
    }
}

async fn deliver(client: &kube::Client, node: &str, correlator: &mut Correlator, entry: Entry) {
    match correlator.plan(entry, Instant::now()) {
        Plan::Drop => {}
        Plan::Create(entry, key) => {
            if let Some(name) = create(client, node, &entry).await {
                correlator.known.insert(key, Known { name, count: 1, last: Instant::now() });
            }
        }
        Plan::Count { name, count, entry } => {
            let api: Api<Event> =
                Api::namespaced(client.clone(), entry.object.namespace.as_deref().unwrap_or("default"));
            let patch = json!({"count": count, "lastTimestamp": Time(entry.at), "message": entry.message});
            match api.patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    let _ = create(client, node, &entry).await;
                }
                Err(error) => debug!("cannot count an event: {error}"),
            }
        }
    }
}

async fn create(client: &kube::Client, node: &str, entry: &Entry) -> Option<String> {
    let namespace = entry.object.namespace.clone().unwrap_or_else(|| "default".into());
    let name = format!("{}.{:x}", entry.object.name.as_deref().unwrap_or_default(), clock::now());
    let event = Event {
        metadata: ObjectMeta { name: Some(name.clone()), namespace: Some(namespace.clone()), ..ObjectMeta::default() },
        involved_object: entry.object.clone(),
        reason: Some(entry.reason.clone()),
        message: Some(entry.message.clone()),
        type_: Some(entry.kind.clone()),
        count: Some(1),
        first_timestamp: Some(Time(entry.at)),
        last_timestamp: Some(Time(entry.at)),
        source: Some(EventSource { component: Some("kubelet".into()), host: Some(node.to_owned()) }),
        reporting_component: Some("kubelet".into()),
        reporting_instance: Some(node.to_owned()),
        ..Event::default()
    };
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    match api.create(&PostParams::default(), &event).await {
        Ok(_) => Some(name),
        Err(error) => {
            debug!("cannot send an event: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(message: &str) -> Entry {
        Entry {
            object: ObjectReference { name: Some("p".into()), ..ObjectReference::default() },
            kind: "Warning".into(),
            reason: "Failed".into(),
            message: message.into(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn repeats_count_and_floods_stop() {
        let (mut c, now) = (Correlator::default(), Instant::now());
        let Plan::Create(_, key) = c.plan(entry("a"), now) else { panic!() };
        c.known.insert(key, Known { name: "e".into(), count: 1, last: now });
        assert!(matches!(c.plan(entry("a"), now), Plan::Count { count: 2, .. }));
        for _ in 0..23 {
            assert_ne!(c.plan(entry("a"), now), Plan::Drop);
        }
        assert_eq!(c.plan(entry("a"), now), Plan::Drop);
        assert_ne!(c.plan(entry("a"), now + REFILL), Plan::Drop);
    }

    #[test]
    fn similar_events_are_combined() {
        let (mut c, now) = (Correlator::default(), Instant::now());
        for i in 0..SIMILAR_LIMIT {
            assert!(matches!(c.plan(entry(&i.to_string()), now), Plan::Create(e, _) if !e.message.starts_with('(')));
        }
        assert!(matches!(c.plan(entry("x"), now), Plan::Create(e, _) if e.message.starts_with("(combined")));
    }
}
