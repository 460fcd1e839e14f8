//! Health check node ports: for each Service of type LoadBalancer with `externalTrafficPolicy: Local` a small
//! HTTP server, by which load balancers find the nodes that have an endpoint of it.
//!
//! Invariant: what listens is what the last [`NodeHealth::sync`] was told, but for ports that could not be had;
//! those are told once and tried again. Nothing here ever ends the program. Upstream
//! counterpart: `pkg/proxy/healthcheck/service_health.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderValue, StatusCode};
use kube_common::serve::{Endpoints, HealthServer, ListenError, PageAnswer};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::engine::NodePortAddresses;
use crate::health::Health;
use crate::interfaces;
use crate::model::types::{Name, NodeRecord, endpoint_address_allowed};

/// By this header load balancers weigh nodes.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// A port that is served.
struct Open {
    port: u16,
    addresses: Vec<IpAddr>,
    endpoints: Arc<AtomicUsize>,
    stop: CancellationToken,
    servers: Vec<JoinHandle<()>>,
}

impl Open {
    /// Closes, and comes back when the port is free.
    async fn close(self) {
        self.stop.cancel();
        for server in self.servers {
            let _ = server.await;
        }
    }
}

/// See the module's text.
pub struct NodeHealth {
    health: Health,
    stop: CancellationToken,
    open: BTreeMap<Name, Open>,
    /// Ports that could not be had, and were told.
    failed: BTreeMap<Name, u16>,
}

impl NodeHealth {
    /// None open yet; all are closed when the token is cancelled.
    #[must_use]
    pub fn new(health: Health, stop: CancellationToken) -> Self {
        Self { health, stop, open: BTreeMap::new(), failed: BTreeMap::new() }
    }

    /// Number of Services whose port is wanted and cannot be had.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.failed.len()
    }

    /// Whether nothing listens and nothing should.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.failed.is_empty()
    }

    /// Opens, changes and closes servers: `wanted` is the port and the number of local endpoints by Service.
    pub async fn sync(&mut self, wanted: &BTreeMap<Name, (u16, usize)>, addresses: &[IpAddr]) {
        let keep = |name: &Name, open: &Open| {
            wanted.get(name).is_some_and(|(port, _)| *port == open.port) && open.addresses == addresses
        };
        let stale: Vec<Name> = self.open.iter().filter(|(n, o)| !keep(n, o)).map(|(n, _)| n.clone()).collect();
        for name in stale {
            if let Some(open) = self.open.remove(&name) {
                tracing::info!(service = %name, port = open.port, "health check node port closed");
                open.close().await;
            }
        }
        self.failed.retain(|name, port| wanted.get(name).is_some_and(|(wanted, _)| wanted == port));
        for (name, (port, endpoints)) in wanted {
            if let Some(open) = self.open.get(name) {
                open.endpoints.store(*endpoints, Ordering::Relaxed);
            } else if !addresses.is_empty() {
                // Without an address the Node object has not come yet: it is the next change.
                match self.open(name, *port, *endpoints, addresses).await {
                    Ok(()) => drop(self.failed.remove(name)),
                    Err(error) => self.tell(name, *port, &error),
                }
            }
        }
    }

    async fn open(
        &mut self,
        name: &Name,
        port: u16,
        endpoints: usize,
        addresses: &[IpAddr],
    ) -> Result<(), ListenError> {
        let endpoints = Arc::new(AtomicUsize::new(endpoints));
        let mut bound = Vec::with_capacity(addresses.len());
        for addr in addresses {
            let (health, endpoints, name) = (self.health.clone(), endpoints.clone(), name.clone());
            let page = move || answer(&name, endpoints.load(Ordering::Relaxed), health.in_time());
            bound.push(HealthServer::bind(SocketAddr::new(*addr, port), Endpoints::one_page(page)).await?);
        }
        let stop = self.stop.child_token();
        let servers = bound.into_iter().map(|server| tokio::spawn(server.run(stop.clone()))).collect();
        tracing::info!(service = %name, port, "health check node port opened");
        self.open.insert(name.clone(), Open { port, addresses: addresses.to_vec(), endpoints, stop, servers });
        Ok(())
    }

    /// Once for each Service and port, with the reason by which upstream's event is known.
    fn tell(&mut self, name: &Name, port: u16, error: &ListenError) {
        if self.failed.insert(name.clone(), port) == Some(port) {
            return;
        }
        let advice = match self.open.iter().find(|(_, open)| open.port == port) {
            Some((holder, _)) => {
                format!("Service {holder} has this port: give one of them another healthCheckNodePort")
            }
            None if error.source.kind() == std::io::ErrorKind::AddrNotAvailable => {
                "no interface of this machine has that address: see nodePortAddresses".to_owned()
            }
            None => "free the port on this node; it is tried again each few seconds".to_owned(),
        };
        tracing::warn!(
            reason = "FailedToStartServiceHealthcheck",
            service = %name,
            port,
            address = %error.address,
            error = %error.source,
            "the Service's health check node port cannot be opened, so load balancers pass this node by: {advice}"
        );
    }
}

fn answer(service: &Name, endpoints: usize, healthy: bool) -> PageAnswer {
    let (namespace, name) = service.split_once('/').unwrap_or_default();
    let body = serde_json::json!({
        "service": {"namespace": namespace, "name": name},
        "localEndpoints": endpoints,
        "serviceProxyHealthy": healthy,
    });
    let status = if endpoints > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    PageAnswer { headers: vec![(WEIGHT, HeaderValue::from(endpoints))], ..PageAnswer::json(status, body.to_string()) }
}

/// The addresses on which node ports answer, as this node has them now; sorted.
#[must_use]
pub fn addresses(wanted: &NodePortAddresses, node: &NodeRecord) -> Vec<IpAddr> {
    let mut found: BTreeSet<IpAddr> = match wanted {
        NodePortAddresses::Primary => node.primaries().collect(),
        NodePortAddresses::Ranges(nets) => {
            let in_range = |ip: &IpAddr| nets.iter().any(|net| net.contains(ip));
            // Without a list there is none to answer on.
            interfaces::addresses().into_iter().flatten().map(|(_, addr)| addr).filter(in_range).collect()
        }
    };
    // As in the rules: node ports are never for this machine's own loopback.
    found.retain(|ip| endpoint_address_allowed(*ip));
    found.into_iter().collect()
}
