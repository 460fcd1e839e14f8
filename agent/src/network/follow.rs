//! Keeps the kernel's routes to other nodes' pods as the Node objects want them.
//!
//! A watch on Nodes says what is wanted, the kernel's notices say when somebody else touched it. Before the first whole list
//! nothing is removed: pods of a restarted agent go on, also while the API server is away. A change that fails is told once
//! (log and event) and tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};
use kube_common::backoff::WatchBackoff;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::egress::Plan;
use super::kernel::{KernelRoutes, Notices, RouteTable};
use super::routes::{self, NodeNet, Own, Step, Wanted};
use super::tell;
use crate::events::Recorder;
use crate::source::api::brief_watch;

/// Notices come in bursts, and somebody who fights for a route must not keep this node busy.
const SETTLE: Duration = Duration::from_millis(50);
/// Pause before a failed change is tried again without anything having happened.
const RETRY: Duration = Duration::from_secs(15);

/// What the follower is told from outside.
pub struct Inputs {
    /// The API server.
    pub client: kube::Client,
    /// Name of this node.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its pod ranges.
    pub ranges: watch::Receiver<Vec<IpNet>>,
    /// Who is masqueraded, told here.
    pub egress: watch::Sender<Option<Plan>>,
    /// Events.
    pub recorder: Arc<Recorder>,
}

/// What is known, wanted and told.
struct Follower<T> {
    table: T,
    own: Own,
    nodes: BTreeMap<String, NodeNet>,
    /// The list of nodes is whole.
    complete: bool,
    /// Links that our routes go out by.
    links: Vec<u32>,
    told: BTreeSet<String>,
    recorder: Arc<Recorder>,
    egress: watch::Sender<Option<Plan>>,
}

impl<T: RouteTable> Follower<T> {
    fn new(table: T, own: Own, recorder: Arc<Recorder>, egress: watch::Sender<Option<Plan>>) -> Self {
        let (nodes, told) = (BTreeMap::new(), BTreeSet::new());
        Self { table, own, nodes, complete: false, links: Vec::new(), told, recorder, egress }
    }

    /// A node is there or has changed; true when that matters.
    fn apply(&mut self, node: &Node) -> bool {
        let net = NodeNet::of(node);
        self.nodes.insert(node.name_any(), net.clone()).as_ref() != Some(&net)
    }

    /// Brings the kernel to what is wanted; true when everything could be done.
    async fn sync(&mut self) -> bool {
        if !self.complete {
            return true;
        }
        let wanted = routes::wanted(&self.nodes, &self.own);
        tell(&self.egress, Some(Plan::of(&self.nodes, &self.own, &wanted)));
        let mut trouble = refusals(&wanted);
        let found = match self.table.list().await {
            Ok(found) => found,
            Err(error) => {
                self.tell(BTreeSet::from([error.to_string()]));
                return false;
            }
        };
        let mut settled = true;
        let steps = routes::steps(&wanted.routes, &found);
        for step in &steps {
            match self.table.apply(step).await {
                Ok(()) => log(step, &wanted),
                Err(error) => {
                    settled = false;
                    let (range, node) = concerned(step, &wanted);
                    trouble.insert(format!("no route to {range}, the pods of node {node}: {error}"));
                }
            }
        }
        // Once more, for the links of routes that were just made.
        let found = if steps.is_empty() { found } else { self.table.list().await.unwrap_or(found) };
        self.links = found.iter().filter_map(|route| route.link).collect::<BTreeSet<u32>>().into_iter().collect();
        self.tell(trouble);
        settled
    }

    /// Logs and reports what was not said before; what is over may be said again later.
    fn tell(&mut self, trouble: BTreeSet<String>) {
        for text in trouble.difference(&self.told) {
            warn!("{text}");
            self.recorder.node("Warning", "FailedToCreateRoute", text);
        }
        self.told = trouble;
    }
}

fn refusals(wanted: &Wanted) -> BTreeSet<String> {
    let text = |(node, range, why): &(String, IpNet, routes::Refused)| {
        format!("no route to {range}, the pods of node {node}: {why}")
    };
    wanted.refused.iter().map(text).collect()
}

fn concerned<'a>(step: &Step, wanted: &'a Wanted) -> (IpNet, &'a str) {
    let range = match step {
        Step::Remove(route) => route.range,
        Step::Add(range, _) | Step::Replace(range, _) => *range,
    };
    (range, wanted.routes.get(&range).map_or("(gone)", |(_, node)| node.as_str()))
}

fn log(step: &Step, wanted: &Wanted) {
    let node = |range: &IpNet| wanted.routes.get(range).map(|(_, node)| node.clone()).unwrap_or_default();
    match step {
        Step::Remove(route) => info!(range = %route.range, "route removed"),
        Step::Add(range, gateway) => info!(%range, %gateway, node = node(range), "route made"),
        Step::Replace(range, gateway) => info!(%range, %gateway, node = node(range), "route changed"),
    }
}

/// Follows until `stop`. Opens its sockets in the network namespace of the calling thread.
pub async fn run(inputs: Inputs, stop: CancellationToken) {
    let (table, notices) = match KernelRoutes::open().and_then(|table| Ok((table, Notices::open()?))) {
        Ok(both) => both,
        Err(error) => {
            warn!("no routes to other nodes' pods: {error}");
            inputs.recorder.node("Warning", "FailedToCreateRoute", &error.to_string());
            return;
        }
    };
    let own = Own { name: inputs.name.clone(), ranges: Vec::new(), addresses: inputs.addresses.clone() };
    let follower = Follower::new(table, own, inputs.recorder.clone(), inputs.egress.clone());
    follow(follower, notices, inputs, stop).await;
}

async fn follow<T: RouteTable>(
    mut follower: Follower<T>,
    mut notices: Notices,
    mut inputs: Inputs,
    stop: CancellationToken,
) {
    let api: Api<Node> = Api::all(inputs.client.clone());
    let stream = watcher::watcher(api, watcher::Config::default()).backoff(WatchBackoff::default());
    tokio::pin!(stream);
    let mut fresh: BTreeMap<String, NodeNet> = BTreeMap::new();
    let mut failing = false;
    let mut settled = true;
    follower.own.ranges = inputs.ranges.borrow_and_update().clone();
    loop {
        let links = follower.links.clone();
        let dirty = tokio::select! {
            () = stop.cancelled() => return,
            event = stream.next() => match event {
                None => return,
                Some(Ok(event)) => {
                    if std::mem::take(&mut failing) {
                        info!("watching nodes again");
                    }
                    observe(&mut follower, &mut fresh, event)
                }
                Some(Err(error)) => {
                    if !std::mem::replace(&mut failing, true) {
                        warn!("cannot watch nodes, routes stay as they are: {}", explain(&error));
                    }
                    false
                }
            },
            changed = inputs.ranges.changed() => {
                if changed.is_err() {
                    return;
                }
                follower.own.ranges = inputs.ranges.borrow_and_update().clone();
                true
            }
            noticed = notices.next(&links, !settled) => {
                if let Err(error) = noticed {
                    warn!("{error}; opening another socket");
                    match Notices::open() {
                        Ok(opened) => notices = opened,
                        Err(error) => warn!("{error}"),
                    }
                }
                tokio::time::sleep(SETTLE).await;
                true
            }
            () = tokio::time::sleep(RETRY), if !settled => true,
        };
        if dirty {
            debug!(nodes = follower.nodes.len(), "looking at the routes");
            settled = follower.sync().await;
        }
    }
}

/// Takes an event of the watch in; true when routes may have to change.
fn observe<T: RouteTable>(
    follower: &mut Follower<T>,
    fresh: &mut BTreeMap<String, NodeNet>,
    event: Event<Node>,
) -> bool {
    match event {
        Event::Init => {
            fresh.clear();
            false
        }
        Event::InitApply(node) => {
            fresh.insert(node.name_any(), NodeNet::of(&node));
            false
        }
        Event::InitDone => {
            let nodes = std::mem::take(fresh);
            let changed = !follower.complete || follower.nodes != nodes;
            follower.nodes = nodes;
            follower.complete = true;
            changed
        }
        Event::Apply(node) => follower.apply(&node),
        Event::Delete(node) => follower.nodes.remove(&node.name_any()).is_some(),
    }
}

/// A stock API server lets a node read only itself; say what is to be done.
fn explain(error: &watcher::Error) -> String {
    let text = brief_watch(error);
    if text.contains("forbidden") || text.contains("cannot list resource \"nodes\"") {
        return format!("{text} (the managed network needs the ClusterRole in docs/network.md)");
    }
    text
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
