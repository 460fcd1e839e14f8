//! The managed pod network of a node: CNI configuration, kernel settings, routes to the other nodes' pods, and the health
//! and tidiness of the plugins.
//!
//! `NodeConfig.network.mode: managed` only; in external mode the agent touches nothing of this. Design: docs/network.md.
//!
//! Invariants: nothing is taken away before the API server has said what shall be there; foreign files and routes are never
//! touched; addresses are collected only while no sandbox is being made ([`starting`]).

pub mod collect;
pub mod conflist;
pub mod egress;
pub mod follow;
pub mod kernel;
pub mod plugins;
pub mod routes;
pub mod starting;
pub mod sysctl;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::config::Config;
use crate::events::Recorder;
use crate::node::Readiness;
use starting::Starting;

/// Pause between looks at a network that is well: a file or a setting may have been changed.
const HEALTHY_PAUSE: Duration = Duration::from_secs(60);
/// Pause while something is wrong.
const UNHEALTHY_PAUSE: Duration = Duration::from_secs(2);

/// What the managed network needs of the rest of the agent.
pub struct Managed {
    /// Configuration.
    pub config: Arc<Config>,
    /// Name of the node.
    pub name: String,
    /// The API server's client, if there is one.
    pub client: Option<kube::Client>,
    /// Addresses of the node.
    pub addresses: Vec<IpAddr>,
    /// The node's pod ranges; `None` until somebody knows.
    pub ranges: watch::Receiver<Option<Vec<IpNet>>>,
    /// What is wrong with the network, told here.
    pub trouble: watch::Sender<Option<String>>,
    /// Asks for a look at the runtime's readiness.
    pub poke: Arc<Notify>,
    /// Readiness of the runtime.
    pub readiness: watch::Receiver<Readiness>,
    /// Sandboxes that are being made.
    pub starting: Arc<Starting>,
    /// Events.
    pub recorder: Arc<Recorder>,
}

/// Tells a value if it is another than before; whether it was.
fn tell<T: PartialEq>(to: &watch::Sender<T>, value: T) -> bool {
    to.send_if_modified(|now| {
        let changed = *now != value;
        *now = value;
        changed
    })
}

impl Managed {
    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let (known, known_rx) = watch::channel(Vec::new());
        let (egress, plan) = watch::channel(None);
        let routes = async {
            match self.client.clone() {
                Some(client) => {
                    let inputs = follow::Inputs {
                        client,
                        name: self.name.clone(),
                        addresses: self.addresses.clone(),
                        ranges: known_rx,
                        egress,
                        recorder: self.recorder.clone(),
                    };
                    follow::run(inputs, stop.clone()).await;
                }
                None => self.alone(known_rx, egress, &stop).await,
            }
        };
        let masquerade = async {
            if self.config.node.network.egress_masquerade {
                egress::run(plan, stop.clone()).await;
            }
        };
        let collector = collect::Collector {
            config: self.config.clone(),
            ranges: self.ranges.clone(),
            readiness: self.readiness.clone(),
            starting: self.starting.clone(),
        };
        tokio::join!(
            self.keep_configured(known, stop.clone()),
            Box::pin(routes),
            Box::pin(masquerade),
            Box::pin(collector.run(stop.clone()))
        );
    }

    /// Without an API server there are no other nodes.
    async fn alone(
        &self,
        mut ranges: watch::Receiver<Vec<IpNet>>,
        egress: watch::Sender<Option<egress::Plan>>,
        stop: &CancellationToken,
    ) {
        loop {
            let ranges_now = ranges.borrow_and_update().clone();
            let own = routes::Own { name: self.name.clone(), ranges: ranges_now, addresses: self.addresses.clone() };
            tell(&egress, Some(egress::Plan::of(&BTreeMap::new(), &own, &routes::Wanted::default())));
            tokio::select! {
                () = stop.cancelled() => return,
                changed = ranges.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn keep_configured(&self, known: watch::Sender<Vec<IpNet>>, stop: CancellationToken) {
        let mut ranges = self.ranges.clone();
        loop {
            let now = ranges.borrow_and_update().clone();
            let trouble = match &now {
                None => None,
                Some(now) => {
                    tell(&known, now.clone());
                    self.configure(now).await
                }
            };
            let pause = if trouble.is_some() { UNHEALTHY_PAUSE } else { HEALTHY_PAUSE };
            if tell(&self.trouble, trouble) {
                self.poke.notify_one();
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = ranges.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Brings files and settings in order; what is wrong, in the words of a readiness condition.
    async fn configure(&self, ranges: &[IpNet]) -> Option<String> {
        let not_ready =
            |message: String| Some(format!("NetworkReady=false reason:NetworkPluginNotReady message:{message}"));
        let network = &self.config.node.network;
        if ranges.is_empty() {
            let why = if self.client.is_some() {
                "this node has no podCIDR yet: the control plane's node-ipam gives it one (has it a cluster CIDR, and parts of it left?)"
            } else {
                "without an API server the pod range comes from podCIDR in KubeletConfiguration, which is not set"
            };
            return not_ready(why.to_owned());
        }
        sysctl::enable_forwarding(ranges);
        let mtu = network.mtu.or_else(|| sysctl::uplink_mtu(&self.addresses));
        match conflist::write(network, mtu, ranges) {
            Ok(true) => self.poke.notify_one(),
            Ok(false) => {}
            Err(error) => {
                warn!("{error}");
                return not_ready(error.to_string());
            }
        }
        let list = conflist::conflist(network, mtu, ranges);
        match plugins::status(&network.bin_dir, &list).await {
            Ok(()) => None,
            Err(error) => not_ready(error.to_string()),
        }
    }
}
