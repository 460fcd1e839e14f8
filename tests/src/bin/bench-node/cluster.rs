//! The lab's API as a client on the host uses it, and a watch that notes when each pod became what.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use keelson_tests::lab::Lab;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The namespace of everything that is made here.
pub const NAMESPACE: &str = "bench";
/// An image that every lab has.
pub const IMAGE: &str = "busybox:1.28";
/// What its containers do: nothing.
pub const COMMAND: &[&str] = &["sleep", "86400"];
/// Longest time for a step of one pod.
pub const POD_LIMIT: Duration = Duration::from_secs(60);
/// Longest time for many pods at once.
pub const MANY_LIMIT: Duration = Duration::from_secs(240);
/// Creations that are under way at once.
const AT_ONCE: usize = 16;

/// What a watch has seen of a pod, and when.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Its UID.
    pub uid: String,
    /// The identifier of its container, without the runtime's name.
    pub container: String,
    /// The highest restart count.
    pub restarts: i32,
    /// It got its node.
    pub bound: Option<Instant>,
    /// It was running and ready.
    pub ready: Option<Instant>,
    /// It was ready and then not any more.
    pub unready: Option<Instant>,
    /// Its container had ended.
    pub ended: Option<Instant>,
}

impl Seen {
    fn take(&mut self, pod: &Pod, now: Instant) {
        self.uid = pod.metadata.uid.clone().unwrap_or_default();
        if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
            self.bound.get_or_insert(now);
        }
        let Some(status) = &pod.status else { return };
        let conditions = status.conditions.iter().flatten();
        let is_ready = conditions.clone().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        if is_ready && status.phase.as_deref() == Some("Running") {
            self.ready.get_or_insert(now);
        } else if self.ready.is_some() {
            self.unready.get_or_insert(now);
        }
        for container in status.container_statuses.iter().flatten() {
            if let Some(id) = &container.container_id {
                self.container = id.rsplit('/').next().unwrap_or(id).to_owned();
            }
            self.restarts = self.restarts.max(container.restart_count);
            if container.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
                self.ended.get_or_insert(now);
            }
        }
    }
}

/// Pods by name; those that are gone are not in it.
pub type Pods = BTreeMap<String, Seen>;

/// A lab and a client of it.
pub struct Cluster<'a> {
    /// The lab.
    pub lab: &'a Lab,
    /// A client with the administrator's rights.
    pub client: Client,
    /// The pods of [`NAMESPACE`].
    pub pods: Api<Pod>,
    seen: watch::Receiver<Pods>,
    // Ends with the handle: a watch would go on asking a lab that is gone.
    _watch: JoinSet<()>,
}

impl<'a> Cluster<'a> {
    /// A client, the namespace, and the watch.
    pub async fn connect(lab: &'a Lab) -> Result<Self> {
        let path = lab.status()?["kubeconfig"].as_str().context("the lab has no kubeconfig")?.to_owned();
        let kubeconfig = Kubeconfig::read_from(path)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
        let account = async {
            while accounts.get_opt("default").await?.is_none() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(POD_LIMIT, account).await.context("the namespace got no service account")??;
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let (sender, seen) = watch::channel(Pods::new());
        let mut watch = JoinSet::new();
        watch.spawn(follow(pods.clone(), sender));
        Ok(Self { lab, client, pods, seen, _watch: watch })
    }

    /// Waits until `condition` holds for what was seen of a pod and gives that.
    pub async fn until(&self, pod: &str, what: &str, condition: impl Fn(&Seen) -> bool) -> Result<Seen> {
        let done = |pods: &Pods| pods.get(pod).is_some_and(&condition);
        let pods = self.until_all(POD_LIMIT, done).await.with_context(|| format!("{pod}: {what}"))?;
        Ok(pods.get(pod).cloned().unwrap_or_default())
    }

    /// Waits until `condition` holds for all that was seen and gives that.
    pub async fn until_all(&self, limit: Duration, condition: impl Fn(&Pods) -> bool) -> Result<Pods> {
        let mut seen = self.seen.clone();
        let found = tokio::time::timeout(limit, seen.wait_for(condition)).await;
        match found {
            Ok(Ok(pods)) => Ok(pods.clone()),
            Ok(Err(_)) => Err(anyhow!("the watch ended")),
            Err(_) => Err(anyhow!("not within {} s", limit.as_secs())),
        }
    }

    /// What was seen so far.
    pub fn seen(&self) -> Pods {
        self.seen.borrow().clone()
    }

    /// Pid on the host of the process of a pod's only container.
    pub fn process(&self, pod: &Seen) -> Result<i32> {
        // The search is for a cgroup with this in its name, and an empty one is in every name.
        ensure!(!pod.container.is_empty(), "the status names no container");
        self.lab.pod_pid(&pod.container)
    }

    /// Makes a pod.
    pub async fn create(&self, name: &str, volumes: &[(&str, Value)]) -> Result<()> {
        let mounts: Vec<Value> =
            volumes.iter().map(|(name, _)| json!({"name": name, "mountPath": format!("/{name}")})).collect();
        let volumes: Vec<Value> = volumes
            .iter()
            .map(|(name, source)| {
                let mut volume = source.clone();
                volume["name"] = json!(name);
                volume
            })
            .collect();
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "volumes": volumes,
                "containers": [{"name": "main", "image": IMAGE, "command": COMMAND, "volumeMounts": mounts}],
            },
        }))?;
        self.pods.create(&PostParams::default(), &pod).await.with_context(|| format!("creating {name}"))?;
        Ok(())
    }

    /// Makes pods as fast as the API takes them and waits until all are ready; the time from the first creation on.
    pub async fn create_all(&self, names: &[String]) -> Result<Duration> {
        let start = Instant::now();
        let made = stream::iter(names).map(|name| self.create(name, &[])).buffer_unordered(AT_ONCE);
        made.try_collect::<Vec<()>>().await?;
        let ready = |pods: &Pods| names.iter().all(|name| pods.get(name).is_some_and(|pod| pod.ready.is_some()));
        let pods = self.until_all(MANY_LIMIT, ready).await.with_context(|| {
            let missing = self.seen().values().filter(|pod| pod.ready.is_none()).count();
            format!("{missing} of {} pods are not ready", names.len())
        })?;
        let last = names.iter().filter_map(|name| pods.get(name)?.ready).max().unwrap_or(start);
        Ok(last - start)
    }

    /// Removes a pod and waits until it is gone.
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.pods.delete(name, &DeleteParams::default()).await.with_context(|| format!("deleting {name}"))?;
        let gone = self.until_all(POD_LIMIT, |pods| !pods.contains_key(name)).await;
        gone.map(drop).with_context(|| format!("{name} does not go"))
    }

    /// Removes every pod and waits until they are gone.
    pub async fn clear(&self) -> Result<()> {
        self.pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        self.until_all(MANY_LIMIT, BTreeMap::is_empty).await.map(drop).context("pods that do not go")
    }
}

async fn follow(pods: Api<Pod>, sender: watch::Sender<Pods>) {
    let mut events = pin!(watcher(pods, watcher::Config::default()));
    while let Some(event) = events.next().await {
        let now = Instant::now();
        let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
        match event {
            Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => {
                sender.send_modify(|pods| pods.entry(name(&pod)).or_default().take(&pod, now));
            }
            Ok(watcher::Event::Delete(pod)) => sender.send_modify(|pods| drop(pods.remove(&name(&pod)))),
            Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
            Err(error) => {
                eprintln!("bench node: the watch of pods: {error}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}
