//! Registers the node and reports its status: computed every ten seconds, sent on change or every five minutes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::facts::{self, MachineFacts};
use super::status::{self, Inputs};
use super::{Readiness, lease};
use crate::clock;
use crate::config::Config;
use crate::network::routes::pod_ranges;
use crate::pleg::{Pleg, UNHEALTHY_AFTER};
use crate::runtime::{ImageRecord, Runtime, RuntimeVersion};
use crate::source::api::brief;
use crate::status::patch;

/// Longest time one request may take.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// First pause before a failed registration is tried again.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// Longest pause.
const RETRY_MAX: Duration = Duration::from_secs(7);
/// Pause between looks for the pod range while it is missing and needed.
const RANGE_PAUSE: Duration = Duration::from_secs(1);

/// Reports one node.
pub struct Reporter {
    /// Configuration.
    pub config: Arc<Config>,
    /// Node name.
    pub name: String,
    /// The machine.
    pub facts: MachineFacts,
    /// Addresses of the node.
    pub addresses: Vec<String>,
    /// The runtime.
    pub runtime: Arc<dyn Runtime>,
    /// Its version.
    pub version: RuntimeVersion,
    /// The pod cache.
    pub pleg: Arc<Pleg>,
    /// Readiness.
    pub readiness: watch::Receiver<Readiness>,
    /// The node's UID once registered.
    pub uid: watch::Sender<Option<String>>,
    /// The node's pod ranges, `None` until the API server has told.
    pub ranges: watch::Sender<Option<Vec<ipnet::IpNet>>>,
    /// Somebody needs the node object as it is now.
    pub stale: Arc<Notify>,
    /// The node object, for others in this process.
    pub object: watch::Sender<Option<Arc<Node>>>,
}

impl Reporter {
    async fn compute(&self, previous: Option<&NodeStatus>) -> NodeStatus {
        let mut images: Vec<ImageRecord> = self.runtime.list_images().await.unwrap_or_default();
        images.sort_by_key(|i| std::cmp::Reverse(i.size));
        let readiness = self.readiness.borrow().clone();
        let age = self.pleg.relist_age();
        let pleg = (age > UNHEALTHY_AFTER).then(|| {
            format!("PLEG is not healthy: pleg was last seen active {age:?} ago; threshold is {UNHEALTHY_AFTER:?}")
        });
        status::status(&Inputs {
            config: &self.config,
            name: &self.name,
            facts: &self.facts,
            addresses: &self.addresses,
            runtime: &self.version,
            readiness: &readiness,
            pleg,
            images: &images,
            disk: facts::disk(&self.config.node.root_dir).map_or(0, |(size, _)| size),
            port: self.config.kubelet.port,
            previous,
            now: &Time(clock::timestamp()),
        })
    }

    fn take(&self, node: &Node) {
        self.uid.send_if_modified(|old| {
            let changed = *old != node.metadata.uid;
            old.clone_from(&node.metadata.uid);
            changed
        });
        let ranges = Some(pod_ranges(node));
        self.ranges.send_if_modified(|old| {
            let changed = *old != ranges;
            old.clone_from(&ranges);
            changed
        });
        let mut slim = node.clone();
        slim.metadata.managed_fields = None;
        if let Some(status) = &mut slim.status {
            status.images = None;
        }
        self.object.send_replace(Some(Arc::new(slim)));
    }

    fn without_range(&self) -> bool {
        self.ranges.borrow().as_ref().is_none_or(Vec::is_empty)
    }

    async fn register(&self, api: &Api<Node>) -> Result<Node, String> {
        let fail = |e: kube::Error| brief(&e);
        if let Some(existing) = api.get_opt(&self.name).await.map_err(fail)? {
            return self.adopt(api, existing).await;
        }
        if !self.config.kubelet.register_node {
            return Err(format!("node {:?} does not exist and registerNode is false", self.name));
        }
        let status = self.compute(None).await;
        let node = status::node(&self.config, &self.name, &self.facts, status);
        let made = api.create(&PostParams::default(), &node).await.map_err(fail)?;
        info!(node = self.name, "node registered");
        Ok(made)
    }

    /// Brings the labels of a node that is there already up to date.
    async fn adopt(&self, api: &Api<Node>, existing: Node) -> Result<Node, String> {
        let wanted = status::labels(&self.config, &self.name, &self.facts);
        let have = existing.metadata.labels.clone().unwrap_or_default();
        if wanted.iter().all(|(k, v)| have.get(k) == Some(v)) {
            return Ok(existing);
        }
        let body = json!({"metadata": {"labels": wanted}});
        api.patch(&self.name, &PatchParams::default(), &Patch::Merge(&body)).await.map_err(|e| brief(&e))
    }

    async fn send(&self, api: &Api<Node>, old: &Value, new: &Value) -> Result<Node, String> {
        let status = patch::diff(old, new).unwrap_or_else(|| json!({}));
        let body = json!({"status": status});
        let params = PatchParams::default();
        let body = Patch::Strategic(body);
        let request = api.patch_status(&self.name, &params, &body);
        match tokio::time::timeout(REQUEST_DEADLINE, request).await {
            Ok(result) => result.map_err(|e| brief(&e)),
            Err(_) => Err(format!("no answer within {REQUEST_DEADLINE:?}")),
        }
    }

    /// Registers and reports until `stop`.
    pub async fn run(mut self, client: kube::Client, config: kube::Config, stop: CancellationToken) {
        let api: Api<Node> = Api::all(client);
        let mut pause = RETRY_MIN;
        let node = loop {
            let outcome = tokio::select! {
                () = stop.cancelled() => return,
                outcome = tokio::time::timeout(REQUEST_DEADLINE, self.register(&api)) => outcome,
            };
            match outcome.unwrap_or_else(|_| Err(format!("no answer within {REQUEST_DEADLINE:?}"))) {
                Ok(node) => break node,
                Err(error) if pause == RETRY_MIN => warn!("cannot register the node yet: {error}"),
                Err(error) => debug!("cannot register the node yet: {error}"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        };
        self.take(&node);
        let uid = node.metadata.uid.clone().unwrap_or_default();
        let seconds = self.config.kubelet.node_lease_duration_seconds;
        tokio::spawn(lease::run(config, self.name.clone(), uid, seconds, stop.child_token()));
        self.report(&api, node.status.unwrap_or_default(), stop).await;
    }

    async fn report(&mut self, api: &Api<Node>, mut known: NodeStatus, stop: CancellationToken) {
        let update = self.config.kubelet.node_status_update_frequency.0;
        let every = self.config.kubelet.node_status_report_frequency.0;
        let managed = self.config.node.network.mode == crate::config::NetworkMode::Managed;
        let mut sent: Option<Instant> = None;
        let mut failing = false;
        loop {
            self.readiness.borrow_and_update();
            // What is stored counts, as upstream has it: a control plane that has missed this node for a while has written Unknown into
            // it, and what this agent sent before that is no reason to be silent.
            if sent.is_some()
                && let Ok(Ok(node)) = tokio::time::timeout(REQUEST_DEADLINE, api.get(&self.name)).await
            {
                self.take(&node);
                known = node.status.unwrap_or_default();
            }
            let fresh = self.compute(Some(&known)).await;
            let due = sent.is_none_or(|at| at.elapsed() >= every);
            let old = json!(known);
            let new = patch::node_status(&old, json!(fresh));
            if due || status::differs(&old, &new) {
                match self.send(api, &old, &new).await {
                    Ok(node) => {
                        self.take(&node);
                        known = node.status.unwrap_or(fresh);
                        sent = Some(Instant::now());
                        failing = false;
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut failing, true) {
                            warn!("cannot report the node's status: {error}");
                        }
                    }
                }
            }
            let pause = if managed && self.without_range() { RANGE_PAUSE } else { update };
            tokio::select! {
                () = stop.cancelled() => return,
                _ = self.readiness.changed() => {}
                () = self.stale.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// The node's addresses: configured, else found.
#[must_use]
pub fn addresses(configured: Option<IpAddr>) -> Vec<String> {
    configured.or_else(facts::default_address).map(|ip| ip.to_string()).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;
    use crate::metrics::Metrics;
    use crate::runtime::fake::FakeRuntime;

    /// An API server with one node: what is stored, and how often its status was written.
    #[derive(Clone, Default)]
    struct Store(Arc<Mutex<(Value, usize)>>);

    impl Store {
        fn ready(&self) -> Value {
            let mut store = self.0.lock();
            let list = store.0["status"]["conditions"].as_array_mut().expect("conditions");
            list.iter().find(|condition| condition["type"] == "Ready").expect("Ready")["status"].clone()
        }

        fn writes(&self) -> usize {
            self.0.lock().1
        }

        /// Takes in a patch as far as this test needs it: conditions by their type, other fields as a whole.
        fn patch(&self, patch: &Value) {
            let mut store = self.0.lock();
            store.1 += 1;
            for (field, value) in patch["status"].as_object().into_iter().flatten().filter(|(k, _)| !k.starts_with('$'))
            {
                let stored = &mut store.0["status"][field];
                let Some(changes) = value.as_array().filter(|_| field == "conditions" && stored.is_array()) else {
                    *stored = value.clone();
                    continue;
                };
                for change in changes {
                    let list = stored.as_array_mut().expect("a list");
                    match list.iter_mut().find(|condition| condition["type"] == change["type"]) {
                        Some(known) => {
                            let fields = change.as_object().expect("a condition").clone();
                            known.as_object_mut().expect("a condition").extend(fields);
                        }
                        None => list.push(change.clone()),
                    }
                }
            }
        }

        fn client(&self) -> kube::Client {
            let store = self.clone();
            let service = tower::service_fn(move |request: http::Request<Body>| {
                let store = store.clone();
                async move {
                    assert!(request.uri().path().starts_with("/api/v1/nodes/n"), "{}", request.uri());
                    if request.method() == http::Method::PATCH {
                        let bytes = request.into_body().collect().await?.to_bytes();
                        store.patch(&serde_json::from_slice(&bytes).expect("a patch"));
                    }
                    let text = store.0.lock().0.to_string();
                    Ok::<_, kube::Error>(http::Response::new(Body::from(text.into_bytes())))
                }
            });
            kube::Client::new(service, "default")
        }
    }

    fn reporter(readiness: &watch::Sender<Readiness>) -> Reporter {
        let runtime = Arc::new(FakeRuntime::with_images(&[]));
        Reporter {
            config: Arc::new(Config::default()),
            name: "n".into(),
            facts: MachineFacts { cpus: 2, memory: 4 << 30, ..MachineFacts::default() },
            addresses: vec!["192.0.2.1".into()],
            runtime: runtime.clone(),
            version: RuntimeVersion { name: "containerd".into(), version: "1.7.24".into() },
            pleg: Pleg::new(runtime, Metrics::default()),
            readiness: readiness.subscribe(),
            uid: watch::Sender::new(None),
            ranges: watch::Sender::new(Some(vec!["10.244.0.0/24".parse().expect("a range")])),
            stale: Arc::default(),
            object: watch::Sender::new(None),
        }
    }

    async fn until(what: &str, mut done: impl FnMut() -> bool) {
        for _ in 0..300 {
            if done() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("not within 30 s: {what}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_control_plane_has_written_into_the_status_is_answered_at_the_next_turn() {
        let store = Store::default();
        store.0.lock().0 = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u"},
            "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]}, "status": {"conditions": []}});
        let (stop, api) = (CancellationToken::new(), Api::all(store.client()));
        let readiness = watch::Sender::new(Readiness::default());
        let (mut reporter, until_stop) = (reporter(&readiness), stop.clone());
        let task = tokio::spawn(async move { reporter.report(&api, NodeStatus::default(), until_stop).await });
        until("the first report", || store.writes() == 1).await;
        assert_eq!(store.ready(), "True");
        // Nothing changes: nothing is written, well into the time that a change may take to be seen.
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(store.writes(), 1);
        // As a control plane does with a node it has not heard of. The agent's own view is as it was.
        store.patch(&json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}));
        until("Ready is True again", || store.ready() == "True").await;
        assert_eq!(store.writes(), 3);
        stop.cancel();
        task.await.expect("the reporter");
    }
}
