//! What goes on while programs are killed: deployments come, change and go, writes are acknowledged and remembered, requests
//! stream through a Service.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use keelson_tests::net::{self, From};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

/// Most deployments that come and go at a time: with more, two cores do nothing but start containers.
const DEPLOYMENTS: usize = 3;
/// Between two steps of the churn.
const STEP: Duration = Duration::from_millis(400);
/// Between two writes.
const WRITE: Duration = Duration::from_millis(60);
/// Between two requests.
const REQUEST: Duration = Duration::from_millis(50);
/// Before something that failed is tried again.
const AGAIN: Duration = Duration::from_millis(200);
/// How long a call may take before it counts as failed.
const CALL: Duration = Duration::from_secs(5);
/// The code of a watch whose revision is no longer known.
const EXPIRED: u16 = 410;

/// A small generator of random numbers (SplitMix64), so that a run can be repeated by its seed.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// What a stream of requests met.
#[derive(Debug, Default)]
pub struct Requests {
    /// Answered ones.
    pub answered: usize,
    /// What the others ended with.
    pub failures: Vec<String>,
}

/// Requests on new connections, one after the other, until `stop`.
pub fn new_connections(from: From, to: SocketAddr, stop: &AtomicBool) -> Requests {
    stream(stop, || net::answering(from, to).map(drop))
}

/// Echoes on one connection that is kept, until `stop`. A failure ends it.
pub fn kept_connection(mut open: TcpStream, stop: &AtomicBool) -> Requests {
    let mut number = 0_u32;
    let mut broken = false;
    stream(stop, || {
        ensure!(!broken, "the connection is broken");
        number += 1;
        let result = net::echo(&mut open, &format!("{number:08}"));
        broken = result.is_err();
        result
    })
}

fn stream(stop: &AtomicBool, mut request: impl FnMut() -> Result<()>) -> Requests {
    let mut met = Requests::default();
    while !stop.load(Ordering::Relaxed) {
        match request() {
            Ok(()) => met.answered += 1,
            Err(error) => met.failures.push(format!("{error:#}")),
        }
        std::thread::sleep(REQUEST);
    }
    met
}

/// Creates ConfigMaps until `stop` and gives those that were acknowledged, with their revisions.
pub async fn writes(client: Client, space: &str, stop: &AtomicBool) -> Result<Vec<(String, u64)>> {
    let maps: Api<ConfigMap> = Api::namespaced(client, space);
    let mut acknowledged: Vec<(String, u64)> = Vec::new();
    let mut number = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let name = format!("note-{number:05}");
        let map = serde_json::from_value(json!({"metadata": {"name": name}, "data": {"n": number.to_string()}}))?;
        match tokio::time::timeout(CALL, maps.create(&PostParams::default(), &map)).await {
            Ok(Ok(map)) => {
                let revision: u64 = map.metadata.resource_version.unwrap_or_default().parse()?;
                let last = acknowledged.last().map_or(0, |(_, revision)| *revision);
                ensure!(revision > last, "the revision went from {last} back to {revision}");
                acknowledged.push((name, revision));
                tokio::time::sleep(WRITE).await;
            }
            // Not acknowledged: it may be there or not.
            _ => tokio::time::sleep(AGAIN).await,
        }
    }
    Ok(acknowledged)
}

/// Watches ConfigMaps from a revision on until `stop`, going on where it was when the watch breaks; gives the names in order. As with
/// upstream, a server that was started anew may know no history (410): then, as every client does, it lists what it missed.
pub async fn watch(client: Client, space: &str, from: String, stop: &AtomicBool) -> Result<Vec<String>> {
    let maps: Api<ConfigMap> = Api::namespaced(client, space);
    let mut seen = Vec::new();
    let mut revision = from;
    let parameters = WatchParams::default();
    while !stop.load(Ordering::Relaxed) {
        let from = revision.clone();
        let opened = tokio::time::timeout(CALL, maps.watch(&parameters, &from)).await;
        let Ok(Ok(events)) = opened else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let mut events = std::pin::pin!(events);
        while !stop.load(Ordering::Relaxed) {
            // A silent watch is looked up from now and then, to see whether the storm is over.
            let Ok(next) = tokio::time::timeout(CALL, events.next()).await else { continue };
            match next {
                Some(Ok(WatchEvent::Added(map))) => {
                    revision = map.metadata.resource_version.unwrap_or_default();
                    seen.push(map.metadata.name.unwrap_or_default());
                }
                Some(Ok(WatchEvent::Bookmark(mark))) => revision = mark.metadata.resource_version,
                Some(Ok(WatchEvent::Error(error))) => {
                    ensure!(error.code == EXPIRED, "the watch cannot go on from {revision}: {error:?}");
                    if let Ok(Ok(list)) = tokio::time::timeout(CALL, maps.list(&ListParams::default())).await {
                        revision = list.metadata.resource_version.unwrap_or_default();
                        let names = list.items.into_iter().filter_map(|map| map.metadata.name);
                        let missed: Vec<String> = names.filter(|name| !seen.contains(name)).collect();
                        seen.extend(missed);
                    }
                    break;
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break,
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
    Ok(seen)
}

/// Creates, scales and deletes deployments, and deletes pods of theirs, until `stop`. Gives those that are to be there at the
/// end, with their replicas. Every step is repeated until it is acknowledged, so the outcome is known.
pub async fn churn(
    client: Client,
    space: &str,
    mut random: Random,
    stop: &AtomicBool,
) -> Result<BTreeMap<String, u32>> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), space);
    let pods: Api<Pod> = Api::namespaced(client, space);
    let mut wanted: BTreeMap<String, u32> = BTreeMap::new();
    let mut made = 0;
    while !stop.load(Ordering::Relaxed) {
        let pick = wanted.keys().nth(usize::try_from(random.below(wanted.len().max(1) as u64))?).cloned();
        match (random.below(6), pick) {
            (0 | 1, Some(name)) => {
                let replicas = u32::try_from(1 + random.below(3))?;
                let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
                until(|| async { deployments.patch(&name, &PatchParams::default(), &patch).await.map(drop) }, 0)
                    .await?;
                wanted.insert(name, replicas);
            }
            (2, Some(name)) if wanted.len() >= DEPLOYMENTS => {
                let how = DeleteParams::background();
                until(|| async { deployments.delete(&name, &how).await.map(drop) }, 404).await?;
                wanted.remove(&name);
            }
            (3, Some(name)) => {
                let selector = ListParams::default().labels(&format!("app={name}"));
                // One of them, if there is one yet; whether it succeeds does not matter.
                if let Ok(Ok(list)) = tokio::time::timeout(CALL, pods.list(&selector)).await
                    && let Some(pod) = list.items.first().and_then(|pod| pod.metadata.name.as_deref())
                {
                    let _ = tokio::time::timeout(CALL, pods.delete(pod, &DeleteParams::default())).await;
                }
            }
            _ if wanted.len() < DEPLOYMENTS => {
                made += 1;
                let (name, replicas) = (format!("churn-{made}"), u32::try_from(1 + random.below(2))?);
                let deployment = deployment(&name, replicas)?;
                until(|| async { deployments.create(&PostParams::default(), &deployment).await.map(drop) }, 409)
                    .await?;
                wanted.insert(name, replicas);
            }
            _ => {}
        }
        tokio::time::sleep(STEP).await;
    }
    Ok(wanted)
}

fn deployment(name: &str, replicas: u32) -> Result<Deployment> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "main",
                        "image": "busybox:1.28",
                        "command": ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 0.2; done"],
                        "volumeMounts": [{"name": "memory", "mountPath": "/memory"}],
                    }],
                    // Something that has to be unmounted.
                    "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}],
                },
            },
        },
    }))?)
}

/// Repeats a call until it succeeds, or fails with a code that says that it did so before.
async fn until<F: Future<Output = kube::Result<()>>>(mut call: impl FnMut() -> F, done: u16) -> Result<()> {
    const TRIES: usize = 300;
    let mut last = None;
    for _ in 0..TRIES {
        match tokio::time::timeout(CALL, call()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(kube::Error::Api(status))) if status.code == done => return Ok(()),
            Ok(Err(error)) => last = Some(error),
            Err(_) => {}
        }
        tokio::time::sleep(AGAIN).await;
    }
    anyhow::bail!("a call failed {TRIES} times, last with {last:?}")
}
