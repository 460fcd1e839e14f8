//! The API server's pods of this node.
//!
//! A watch with a field selector; objects are slimmed before they are kept. While the server cannot be reached the
//! last set stays. Upstream counterpart: `pkg/kubelet/config/apiserver.go`.

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube_common::backoff::WatchBackoff;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::PodSet;
use crate::pod;

/// Drops what the agent never reads, and says where the pod comes from: what its author wrote there is not believed,
/// or anybody could make the agent take a pod for one of its own manifests.
fn slim(mut pod: Pod) -> Arc<Pod> {
    if !pod::is_mirror(&pod) {
        pod.metadata.annotations.get_or_insert_default().insert(pod::CONFIG_SOURCE.into(), "api".into());
    }
    pod.metadata.managed_fields = None;
    pod.metadata.self_link = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    Arc::new(pod)
}

/// An error of the API in one line; the client's own text repeats the whole status object.
#[must_use]
pub fn brief(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// An error of a watch in one line.
#[must_use]
pub fn brief_watch(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(e) | watcher::Error::WatchStartFailed(e) | watcher::Error::WatchFailed(e) => {
            brief(e)
        }
        other => other.to_string(),
    }
}

fn key(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

/// All pods of a node, once.
///
/// # Errors
/// What the API server answers.
pub async fn list(client: kube::Client, node: &str) -> Result<PodSet, kube::Error> {
    let api: Api<Pod> = Api::all(client);
    let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
    Ok(api.list(&params).await?.items.into_iter().map(|pod| (key(&pod), slim(pod))).collect())
}

/// Watches until `stop`.
pub async fn run(client: kube::Client, node: String, out: watch::Sender<Option<PodSet>>, stop: CancellationToken) {
    let api: Api<Pod> = Api::all(client);
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let stream = watcher::watcher(api, config).backoff(WatchBackoff::default());
    tokio::pin!(stream);
    let mut fresh = PodSet::new();
    let mut failing = false;
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = stream.next() => event,
        };
        match event {
            None => return,
            Some(Err(error)) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!("cannot watch pods, running pods stay: {}", brief_watch(&error));
                }
                continue;
            }
            Some(Ok(Event::Init)) => fresh.clear(),
            Some(Ok(Event::InitApply(pod))) => {
                fresh.insert(key(&pod), slim(pod));
            }
            Some(Ok(Event::InitDone)) => {
                let set = std::mem::take(&mut fresh);
                info!(pods = set.len(), "the API server's pods are known");
                out.send_replace(Some(set));
            }
            Some(Ok(Event::Apply(pod))) => {
                out.send_modify(|set| {
                    set.get_or_insert_default().insert(key(&pod), slim(pod));
                });
            }
            Some(Ok(Event::Delete(pod))) => {
                out.send_modify(|set| {
                    set.get_or_insert_default().remove(&key(&pod));
                });
            }
        }
        if std::mem::take(&mut failing) {
            info!("watching pods again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_of_the_api_is_never_a_static_one() {
        for source in ["file", "http", "api"] {
            let annotations = json!({(pod::CONFIG_SOURCE): source});
            let pod = serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap();
            assert!(!pod::is_static(&slim(pod)), "{source}");
        }
        assert!(!pod::is_static(&slim(Pod::default())));
    }
}
