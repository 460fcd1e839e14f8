//! What a cluster has without anyone making it: system namespaces, default roles, and the `kubernetes` Service with its endpoints.
//!
//! Upstream counterparts: `pkg/controlplane/controller/{systemnamespaces,kubernetesservice}`, the RBAC post-start hook.

pub mod servers;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use keelson_kinds::decode::{self, FieldValidation};
use keelson_kinds::{ApiError, Resource, lookup, write};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::Fresh;
use crate::auth::defaults;
use crate::cache::{Filter, Watcher};
use crate::server::{Change, Inserted, MAX_CONFLICTS, Server};

/// Upstream's system namespaces.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];
const RBAC: &str = "rbac.authorization.k8s.io";
/// Pause after the endpoints could not be repaired, or watched.
const RETRY: Duration = Duration::from_secs(1);
/// Least time between two repairs, upstream's endpoint interval: somebody who writes the same objects again and again (a controller
/// that takes them for its own) gets no loop of writes.
const REPAIR_PAUSE: Duration = Duration::from_secs(10);
/// The well-known port of the `kubernetes` Service.
const SERVICE_PORT: u16 = 443;

/// Makes what is missing; what exists is left as it is, except the endpoints of this server.
///
/// # Errors
/// What the store or validation says.
pub async fn run(server: &Arc<Server>) -> Result<(), ApiError> {
    if let Some(res) = lookup("", "v1", "namespaces") {
        for name in NAMESPACES {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}});
            ensure(server, res, "", namespace).await?;
        }
    }
    default_roles(server).await?;
    if let Some(res) = lookup("scheduling.k8s.io", "v1", "priorityclasses") {
        for (name, value, description) in [
            (
                "system-cluster-critical",
                2_000_000_000,
                "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
            ),
            (
                "system-node-critical",
                2_000_001_000,
                "Used for system critical pods that must not be moved from their current node.",
            ),
        ] {
            let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
                "metadata": {"name": name}, "description": description});
            ensure(server, res, "", class).await?;
        }
    }
    service_cidr(server).await?;
    kubernetes_service(server).await
}

/// Upstream's roles and bindings are made again at every start. A binding of our own is made once, with its role: an operator who deletes
/// it takes the permission back for good.
async fn default_roles(server: &Arc<Server>) -> Result<(), ApiError> {
    let (Some(roles), Some(bindings)) = (lookup(RBAC, "v1", "clusterroles"), lookup(RBAC, "v1", "clusterrolebindings"))
    else {
        return Ok(());
    };
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let own = |name: &str| name.starts_with(defaults::OWN_PREFIX);
    let kept: Vec<String> = defaults::cluster_roles()
        .iter()
        .map(name)
        .filter(|role| own(role) && server.get(roles, "", role).is_some())
        .collect();
    for role in defaults::cluster_roles() {
        ensure(server, roles, "", role).await?;
    }
    for binding in defaults::cluster_role_bindings() {
        if !kept.contains(&name(&binding)) {
            ensure(server, bindings, "", binding).await?;
        }
    }
    Ok(())
}

/// The range of cluster addresses as an object: dataplanes learn from it which addresses are not allocated.
async fn service_cidr(server: &Arc<Server>) -> Result<(), ApiError> {
    let Some(res) = lookup("networking.k8s.io", "v1", "servicecidrs") else { return Ok(()) };
    let range = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": [server.config.service_cidr.to_string()]}});
    ensure(server, res, "", range).await
}

async fn ensure(server: &Arc<Server>, res: &Resource, namespace: &str, object: Value) -> Result<(), ApiError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if server.get(res, namespace, &name).is_some() {
        return Ok(());
    }
    let mut object = decode::object(res, None, object, FieldValidation::Strict)?.object;
    let fresh = Fresh::new();
    if res.namespaced() {
        object["metadata"]["namespace"] = json!(namespace);
    }
    write::create(res, &mut object, &fresh.context(namespace))?;
    for _ in 0..MAX_CONFLICTS {
        let mut attempt = object.clone();
        if crate::services::is_service(res) {
            server.allocator.allocate(&format!("{namespace}/{name}"), &mut attempt)?;
        }
        let inserted = server.insert(res, namespace, &name, &attempt, Vec::new()).await;
        server.settle_service(res, namespace, &name);
        if !matches!(inserted?, Inserted::Stale) {
            return Ok(());
        }
    }
    Err(ApiError::modified(res, &name))
}

/// Creates the object, or brings the fields `wanted` names up to date.
async fn converge(server: &Arc<Server>, res: &Resource, wanted: Value, fields: &[&str]) -> Result<(), ApiError> {
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let wanted = decode::object(res, None, wanted, FieldValidation::Strict)?.object;
    ensure(server, res, "default", wanted.clone()).await?;
    server
        .change(res, "default", &name, |current| {
            let mut new = current.clone();
            for field in fields {
                new[*field] = wanted[*field].clone();
            }
            Ok(if new == *current { Change::Keep } else { Change::Put(new) })
        })
        .await
        .map(drop)
}

/// `default/kubernetes`: Service at the first address, endpoints at this server and the others over the same store.
async fn kubernetes_service(server: &Arc<Server>) -> Result<(), ApiError> {
    let address = server.config.advertise_address;
    let port = server.config.secure_port;
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    if let Some(res) = lookup("", "v1", "services") {
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels},
            "spec": {"type": "ClusterIP", "clusterIP": server.allocator.first_address().to_string(),
                "sessionAffinity": "None",
                "ports": [{"name": "https", "protocol": "TCP", "port": SERVICE_PORT, "targetPort": port}]}});
        ensure(server, res, "default", service).await?;
    }
    if address.is_loopback() {
        // No pod could reach it there, and endpoints refuse such an address (CVE-2021-25737).
        tracing::warn!(%address, "the advertise address is a loopback address: the kubernetes Service has no endpoints");
        return Ok(());
    }
    let servers = server.others.with(address);
    let ready = |ip: &std::net::IpAddr| json!({"addresses": [ip.to_string()], "conditions": {"ready": true}});
    if let Some(res) = lookup("", "v1", "endpoints") {
        let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints",
            "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{"addresses": servers.iter().map(|ip| json!({"ip": ip.to_string()})).collect::<Vec<_>>(),
                "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}]});
        converge(server, res, endpoints, &["subsets"]).await?;
    }
    if let Some(res) = lookup("discovery.k8s.io", "v1", "endpointslices") {
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
            "endpoints": servers.iter().map(ready).collect::<Vec<_>>(),
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}]});
        converge(server, res, slice, &["endpoints", "ports"]).await?;
    }
    Ok(())
}

/// Repairs `default/kubernetes` whenever someone changes or deletes a part of it, until the server stops.
pub async fn keep_kubernetes_service(server: Arc<Server>) {
    let stop = server.shutdown.clone();
    stop.run_until_cancelled(keep(&server)).await;
}

async fn keep(server: &Arc<Server>) {
    let mut rested = Instant::now();
    loop {
        let mut watchers = kubernetes_watchers(server);
        // What changed while nobody watched.
        repair(server).await;
        while !watchers.is_empty() {
            let changes = watchers.iter_mut().map(|w| Box::pin(w.next()));
            let (change, ..) = futures::future::select_all(changes).await;
            if change.is_none() {
                // Too slow for a burst of changes: watched anew.
                break;
            }
            tokio::time::sleep_until(rested).await;
            for watcher in &mut watchers {
                while watcher.next().now_or_never().flatten().is_some() {}
            }
            repair(server).await;
            rested = Instant::now() + REPAIR_PAUSE;
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn kubernetes_watchers(server: &Server) -> Vec<Watcher> {
    let mut watchers = Vec::new();
    for (group, plural) in [("", "services"), ("", "endpoints"), ("discovery.k8s.io", "endpointslices")] {
        let Some(cache) = lookup(group, "v1", plural).and_then(|res| server.hub.cache(res)) else { continue };
        let filter = Filter {
            namespace: Some("default".into()),
            fields: kube_common::selector::FieldSelector::parse("metadata.name=kubernetes").unwrap_or_default(),
            ..Filter::default()
        };
        match cache.watch(Some(server.hub.revision()), Arc::new(filter)) {
            Ok(watcher) => watchers.push(watcher),
            Err(error) => tracing::warn!(%error, plural, "the kubernetes Service cannot be watched; trying again"),
        }
    }
    watchers
}

async fn repair(server: &Arc<Server>) {
    while let Err(error) = kubernetes_service(server).await {
        tracing::warn!(%error, "cannot repair the kubernetes Service");
        tokio::time::sleep(RETRY).await;
    }
}
