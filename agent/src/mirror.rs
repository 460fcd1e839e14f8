//! Mirror pods: the API's shadow of static pods.
//!
//! Created when missing, made again when they differ, deleted when their static pod is gone. Edits to a mirror never
//! reach the static pod. Upstream counterpart: `pkg/kubelet/pod/mirror_client.go`.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::manager::View;
use crate::pod;

/// Pause before a failed step is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Longest time one request may take.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);

/// What to do for the mirrors. Pure.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// Mirrors to delete: namespace, name, UID.
    pub delete: Vec<(String, String, String)>,
    /// Static pods whose mirror is missing.
    pub create: Vec<Pod>,
}

/// Compares static pods and mirrors; nothing before the API has spoken.
#[must_use]
pub fn plan(view: &View, node: &str, node_uid: &str) -> Plan {
    let mut out = Plan::default();
    let Some(mirrors) = &view.mirrors else { return out };
    for (name, mirror) in mirrors {
        let wanted = view.statics.iter().find(|s| &pod::full_name(s) == name);
        let same =
            wanted.is_some_and(|s| pod::annotation(s, pod::CONFIG_HASH) == pod::annotation(mirror, pod::CONFIG_MIRROR));
        // A mirror that somebody deleted has nobody else who would finish that.
        if !same || pod::is_deleted(mirror) {
            out.delete.push((pod::namespace(mirror).into(), pod::name(mirror).into(), pod::uid(mirror).into()));
        }
    }
    for pod in &view.statics {
        if !mirrors.contains_key(&pod::full_name(pod)) {
            out.create.push(mirror_of(pod, node, node_uid));
        }
    }
    out
}

fn mirror_of(pod: &Pod, node: &str, node_uid: &str) -> Pod {
    let mut mirror = pod.clone();
    let hash = pod::annotation(pod, pod::CONFIG_HASH).unwrap_or_default().to_owned();
    let m = &mut mirror.metadata;
    m.uid = None;
    m.annotations.get_or_insert_default().insert(pod::CONFIG_MIRROR.into(), hash);
    m.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.to_owned(),
        uid: node_uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    mirror.status = None;
    mirror
}

/// Keeps mirrors until `stop`; waits until the node's UID is known.
pub async fn run(
    client: kube::Client,
    node: String,
    mut node_uid: watch::Receiver<Option<String>>,
    mut view: watch::Receiver<View>,
    stop: CancellationToken,
) {
    let uid = tokio::select! {
        () = stop.cancelled() => return,
        uid = node_uid.wait_for(Option::is_some) => uid.ok().and_then(|u| u.clone()).unwrap_or_default(),
    };
    loop {
        let todo = plan(&view.borrow_and_update(), &node, &uid);
        let clean = carry_out(&client, todo).await;
        tokio::select! {
            () = stop.cancelled() => return,
            changed = view.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY), if !clean => {}
        }
    }
}

async fn carry_out(client: &kube::Client, plan: Plan) -> bool {
    let mut clean = true;
    for (namespace, name, uid) in plan.delete {
        let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
            ..DeleteParams::default()
        };
        match tokio::time::timeout(REQUEST_DEADLINE, api.delete(&name, &params)).await {
            Ok(Ok(_)) => info!(pod = name, "mirror pod deleted"),
            Ok(Err(kube::Error::Api(s))) if s.code == 404 || s.code == 409 => {}
            other => {
                debug!(pod = name, "cannot delete a mirror pod: {other:?}");
                clean = false;
            }
        }
    }
    for pod in plan.create {
        let api: Api<Pod> = Api::namespaced(client.clone(), pod::namespace(&pod));
        match tokio::time::timeout(REQUEST_DEADLINE, api.create(&PostParams::default(), &pod)).await {
            Ok(Ok(_)) => info!(pod = pod::name(&pod), "mirror pod created"),
            // The watch is behind: it comes with the next change.
            Ok(Err(kube::Error::Api(s))) if s.code == 409 => clean = false,
            Ok(Err(error)) => {
                warn!(pod = pod::name(&pod), "cannot create a mirror pod: {}", crate::source::api::brief(&error));
                clean = false;
            }
            Err(_) => clean = false,
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    fn static_pod(hash: &str) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": "p-n", "namespace": "default", "uid": hash,
                "annotations": {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": hash}},
                "spec": {"containers": [{"name": "a"}]}}))
            .unwrap(),
        )
    }

    #[test]
    fn missing_unequal_and_left_over() {
        let mut view = View { statics: vec![static_pod("h1")], ..View::default() };
        assert_eq!(plan(&view, "n", "u"), Plan::default());
        view.mirrors = Some(Default::default());
        let p = plan(&view, "n", "u");
        assert_eq!(pod::annotation(&p.create[0], pod::CONFIG_MIRROR), Some("h1"));
        assert_eq!(p.create[0].metadata.uid, None);
        let mut mirror = p.create.into_iter().next().unwrap();
        mirror.metadata.uid = Some("m".into());
        let mirrors = [(pod::full_name(&mirror), Arc::new(mirror))].into();
        view.mirrors = Some(mirrors);
        assert_eq!(plan(&view, "n", "u"), Plan::default());
        // One that somebody deleted waits for the node: it goes, and comes back with the next look.
        let mirrors = view.mirrors.as_mut().unwrap();
        let mirror = mirrors.values_mut().next().unwrap();
        Arc::make_mut(mirror).metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        assert_eq!(plan(&view, "n", "u").delete.len(), 1);
        view.statics = vec![static_pod("h2")];
        assert_eq!(plan(&view, "n", "u").delete.len(), 1);
        view.statics.clear();
        assert_eq!(plan(&view, "n", "u").delete, [("default".into(), "p-n".into(), "m".into())]);
    }
}
