//! Keeps the Service that pods reach the DNS server through, and this server's part of its endpoints.
//!
//! The Service has upstream's name, label and ports, so that dashboards and network policies find it, and no selector: its endpoints
//! are the control planes themselves, each with a slice of its own. A Service of that name with a selector belongs to a DNS that somebody
//! deployed: it is left alone.
//!
//! Upstream counterpart: kubeadm's `addons/dns` manifests.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::watch::Shared;

/// Upstream's names.
const NAMESPACE: &str = "kube-system";
const SERVICE: &str = "kube-dns";
/// Who made the slices, so that no endpoints controller takes them for its own.
const MANAGED_BY: &str = "dns.keelson.dev";
/// The port of the Service, whatever the server listens on.
const SERVICE_PORT: u16 = 53;
/// CoreDNS' port for metrics.
pub(crate) const METRICS_PORT: u16 = 9153;
/// Pauses after the objects could not be written: doubling.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// How pods find this server.
#[derive(Debug, Clone)]
pub struct Published {
    /// Address of the Service.
    pub service_address: IpAddr,
    /// Where this server listens, as others reach it.
    pub address: SocketAddr,
    /// Port of the metrics at the same address.
    pub metrics_port: Option<u16>,
}

/// Whether a change of this object may need repair.
pub(crate) fn concerns(namespace: &str, name: &str) -> bool {
    namespace == NAMESPACE && name.starts_with(SERVICE)
}

impl Published {
    fn slice_name(&self) -> String {
        format!("{SERVICE}-{}", crate::model::dashed(self.address.ip()).trim_matches('-'))
    }

    fn service(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": SERVICE, "namespace": NAMESPACE,
                "labels": {"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"},
                "annotations": {"prometheus.io/port": METRICS_PORT.to_string(), "prometheus.io/scrape": "true"}},
            "spec": {"clusterIP": self.service_address.to_string(), "ports": [
                {"name": "dns", "port": SERVICE_PORT, "protocol": "UDP", "targetPort": self.address.port()},
                {"name": "dns-tcp", "port": SERVICE_PORT, "protocol": "TCP", "targetPort": self.address.port()},
                {"name": "metrics", "port": METRICS_PORT, "protocol": "TCP",
                    "targetPort": self.metrics_port.unwrap_or(METRICS_PORT)}]}})
    }

    fn slice(&self) -> Value {
        let mut ports = vec![
            json!({"name": "dns", "port": self.address.port(), "protocol": "UDP"}),
            json!({"name": "dns-tcp", "port": self.address.port(), "protocol": "TCP"}),
        ];
        if let Some(port) = self.metrics_port {
            ports.push(json!({"name": "metrics", "port": port, "protocol": "TCP"}));
        }
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": self.slice_name(), "namespace": NAMESPACE,
                "labels": {crate::objects::SERVICE_NAME: SERVICE, "endpointslice.kubernetes.io/managed-by": MANAGED_BY}},
            "addressType": if self.address.is_ipv4() { "IPv4" } else { "IPv6" },
            "endpoints": [{"addresses": [self.address.ip().to_string()],
                "conditions": {"ready": true, "serving": true, "terminating": false}}],
            "ports": ports})
    }
}

/// Writes the objects once the model is complete, and again whenever one of them changed, until cancelled.
pub(crate) async fn keep(client: Client, published: Published, shared: Shared, shutdown: CancellationToken) {
    let keeper = Keeper {
        services: Api::namespaced(client.clone(), NAMESPACE),
        slices: Api::namespaced(client, NAMESPACE),
        published,
    };
    let mut said = None;
    let mut retry = FIRST_RETRY;
    loop {
        if !shared.model.read().is_complete() {
            if wait(&shared.attention, None, &shutdown).await {
                continue;
            }
            return;
        }
        let pause = match keeper.ensure().await {
            Ok(state) => {
                if said.as_ref() != Some(&state) {
                    state.tell(&keeper.published);
                    said = Some(state);
                }
                retry = FIRST_RETRY;
                None
            }
            Err(error) => {
                warn!(%error, "cannot write the Service {NAMESPACE}/{SERVICE} or its endpoints, next try in {retry:?}");
                let pause = retry;
                retry = (retry * 2).min(LONGEST_RETRY);
                Some(pause)
            }
        };
        if !wait(&shared.attention, pause, &shutdown).await {
            return;
        }
    }
}

/// Waits for a change, at most for `pause`; false when it is over.
async fn wait(attention: &Arc<tokio::sync::Notify>, pause: Option<Duration>, shutdown: &CancellationToken) -> bool {
    let after = async {
        match pause {
            Some(pause) => tokio::time::sleep(pause).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => false,
        () = attention.notified() => true,
        () = after => true,
    }
}

/// What was found or made.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Published,
    /// The Service is there with another address.
    Elsewhere(String),
    /// The Service selects pods.
    Foreign,
}

impl State {
    fn tell(&self, published: &Published) {
        let wanted = published.service_address;
        match self {
            Self::Published => info!(service = %wanted, endpoint = %published.address, "cluster DNS is published"),
            Self::Elsewhere(address) => warn!(
                "the Service {NAMESPACE}/{SERVICE} has the address {address}, not {wanted}: give nodes `clusterDNS: [{address}]`, \
                 or delete the Service to have it made again"
            ),
            Self::Foreign => warn!(
                "the Service {NAMESPACE}/{SERVICE} selects pods, so another DNS serves the cluster: this one is not published; \
                 --no-cluster-dns turns it off"
            ),
        }
    }
}

struct Keeper {
    services: Api<Service>,
    slices: Api<EndpointSlice>,
    published: Published,
}

impl Keeper {
    async fn ensure(&self) -> Result<State, kube::Error> {
        let service = match self.services.get_opt(SERVICE).await? {
            Some(service) => service,
            None => self.create(&self.services, &self.published.service()).await?,
        };
        let spec = service.spec.unwrap_or_default();
        if spec.selector.is_some_and(|selector| !selector.is_empty()) {
            return Ok(State::Foreign);
        }
        self.ensure_slice().await?;
        let address = spec.cluster_ip.unwrap_or_default();
        if address == self.published.service_address.to_string() {
            return Ok(State::Published);
        }
        Ok(State::Elsewhere(address))
    }

    async fn ensure_slice(&self) -> Result<(), kube::Error> {
        let wanted = self.published.slice();
        let name = self.published.slice_name();
        let Some(found) = self.slices.get_opt(&name).await? else {
            self.create(&self.slices, &wanted).await?;
            return Ok(());
        };
        let found = serde_json::to_value(&found).map_err(kube::Error::SerdeError)?;
        let labels = &wanted["metadata"]["labels"];
        let same = ["endpoints", "ports"].iter().all(|field| found[field] == wanted[field])
            && labels
                .as_object()
                .is_some_and(|l| l.iter().all(|(key, value)| found["metadata"]["labels"][key] == *value));
        if !same {
            let patch =
                json!({"metadata": {"labels": labels}, "endpoints": wanted["endpoints"], "ports": wanted["ports"]});
            self.slices.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        Ok(())
    }

    async fn create<K>(&self, api: &Api<K>, object: &Value) -> Result<K, kube::Error>
    where
        K: kube::Resource + Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
        api.create(&PostParams::default(), &object).await
    }
}
