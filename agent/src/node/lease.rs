//! The node's heartbeat: a lease renewed on a connection of its own.
//!
//! A renewal that takes longer than [`DEADLINE`] is given up and the connection made anew, so that a dead TCP
//! connection never costs the node its readiness.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::PostParams;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::clock;
use crate::source::api::brief;

/// Namespace of node leases.
const NAMESPACE: &str = "kube-node-lease";
/// Longest time one renewal may take: under the renewal period.
const DEADLINE: Duration = Duration::from_secs(8);
/// Pause after a failed renewal.
const RETRY: Duration = Duration::from_secs(1);

fn lease(node: &str, node_uid: &str, seconds: i32, old: Option<Lease>) -> Lease {
    let mut out = old.unwrap_or_default();
    let now = jiff::Timestamp::from_nanosecond(i128::from(clock::now())).unwrap_or_default();
    out.metadata = ObjectMeta {
        name: Some(node.to_owned()),
        namespace: Some(NAMESPACE.into()),
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: node.to_owned(),
            uid: node_uid.to_owned(),
            ..OwnerReference::default()
        }]),
        ..out.metadata
    };
    out.spec = Some(LeaseSpec {
        holder_identity: Some(node.to_owned()),
        lease_duration_seconds: Some(seconds),
        renew_time: Some(MicroTime(now)),
        ..out.spec.unwrap_or_default()
    });
    out
}

/// Renews until `stop`.
pub async fn run(config: kube::Config, node: String, node_uid: String, seconds: i32, stop: CancellationToken) {
    // A quarter of the validity, as upstream.
    let period = Duration::from_secs(u64::try_from(seconds).unwrap_or(40)) / 4;
    let mut client = None;
    let mut last = None;
    let mut failing = false;
    loop {
        if client.is_none() {
            client = kube_common::client::client(config.clone()).ok();
        }
        let outcome = match &client {
            Some(client) => tokio::time::timeout(DEADLINE, renew(client, &node, &node_uid, seconds, last.take())).await,
            None => Ok(Err("no client can be made from the kubeconfig".into())),
        };
        let problem = match outcome {
            Ok(Ok(lease)) => {
                last = Some(lease);
                None
            }
            Ok(Err(message)) => Some(message),
            Err(_) => Some(format!("no answer within {DEADLINE:?}")),
        };
        let pause = match problem {
            None => {
                if std::mem::take(&mut failing) {
                    info!("the node's lease is renewed again");
                }
                period
            }
            Some(message) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!("cannot renew the node's lease: {message}");
                }
                client = None;
                RETRY
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn renew(
    client: &kube::Client,
    node: &str,
    uid: &str,
    seconds: i32,
    last: Option<Lease>,
) -> Result<Lease, String> {
    let api: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let old = match last {
        Some(lease) => Some(lease),
        None => api.get_opt(node).await.map_err(|e| brief(&e))?,
    };
    let params = PostParams::default();
    let fresh = lease(node, uid, seconds, old.clone());
    let result =
        if old.is_some() { api.replace(node, &params, &fresh).await } else { api.create(&params, &fresh).await };
    result.map_err(|e| brief(&e))
}
