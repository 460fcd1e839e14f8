//! Watches of Services, EndpointSlices and the own node, as one bounded stream of inputs.
//!
//! Objects are passed on one by one and dropped as soon as the receiver has made a record of them.
//! A watch that breaks resumes with backoff and jitter; a relist says which objects are gone by
//! what it does not name ([`Input::Listed`]).

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube_common::backoff::WatchBackoff;
use tokio::sync::mpsc::Sender;

use crate::model::decode::{LABEL_HEADLESS, LABEL_PROXY_NAME};

/// Objects per page of the first list: bounds the memory of decoding.
pub const PAGE: u32 = 250;

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Services.
    Service,
    /// EndpointSlices.
    Slice,
    /// The node.
    Node,
    /// Ranges of cluster addresses.
    ServiceCidr,
}

/// What a watch says.
pub enum Input {
    /// A Service as it is now.
    Service(Box<Service>),
    /// A Service is gone.
    ServiceGone(Box<Service>),
    /// A slice as it is now.
    Slice(Box<EndpointSlice>),
    /// A slice is gone.
    SliceGone(Box<EndpointSlice>),
    /// The node as it is now.
    Node(Box<Node>),
    /// A range as it is now.
    ServiceCidr(Box<ServiceCIDR>),
    /// A range is gone.
    ServiceCidrGone(Box<ServiceCIDR>),
    /// A list begins: what it does not name is gone.
    Listing(Kind),
    /// The list is complete.
    Listed(Kind),
}

/// Forwards one watch until the receiver is gone.
async fn forward<K>(
    api: Api<K>,
    config: watcher::Config,
    kind: Kind,
    sender: Sender<Input>,
    apply: fn(Box<K>) -> Input,
    gone: fn(Box<K>) -> Input,
) where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let mut stream = std::pin::pin!(watch(api, config.page_size(PAGE)).backoff(WatchBackoff::default()));
    let mut complained = false;
    while let Some(event) = stream.next().await {
        let input = match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => apply(Box::new(object)),
            Ok(Event::Delete(object)) => gone(Box::new(object)),
            Ok(Event::Init) => Input::Listing(kind),
            Ok(Event::InitDone) => {
                complained = false;
                Input::Listed(kind)
            }
            Err(error) => {
                // Once for each outage; the stream goes on by itself.
                if complained {
                    tracing::debug!(?kind, %error, "watch failed");
                } else {
                    tracing::warn!(?kind, %error, "watch failed; traffic goes on as programmed, trying again");
                }
                complained = true;
                continue;
            }
        };
        if sender.send(input).await.is_err() {
            return;
        }
    }
}

/// Which Services are ours to serve, as a label selector.
#[must_use]
pub fn services() -> String {
    format!("!{LABEL_PROXY_NAME}")
}

/// Which slices are.
#[must_use]
pub fn slices() -> String {
    format!("!{LABEL_PROXY_NAME},!{LABEL_HEADLESS}")
}

/// The own node, as a field selector.
#[must_use]
pub fn own_node(name: &str) -> String {
    format!("metadata.name={name}")
}

/// Watches until the receiver is gone. `service_cidrs`: whether ServiceCIDR objects are wanted.
pub async fn all(client: kube::Client, node_name: String, service_cidrs: bool, sender: Sender<Input>) {
    let services = watcher::Config::default().labels(&services());
    let slices = watcher::Config::default().labels(&slices());
    let node = watcher::Config::default().fields(&own_node(&node_name));
    // A node that is gone keeps its last record: this program runs on it, after all.
    let keep_node: fn(Box<Node>) -> Input = |_| Input::Listed(Kind::Node);
    let cidrs = async {
        if service_cidrs {
            let api = Api::all(client.clone());
            let config = watcher::Config::default();
            forward(api, config, Kind::ServiceCidr, sender.clone(), Input::ServiceCidr, Input::ServiceCidrGone).await;
        }
    };
    tokio::join!(
        forward(Api::all(client.clone()), services, Kind::Service, sender.clone(), Input::Service, Input::ServiceGone),
        forward(Api::all(client.clone()), slices, Kind::Slice, sender.clone(), Input::Slice, Input::SliceGone),
        forward(Api::all(client.clone()), node, Kind::Node, sender.clone(), Input::Node, keep_node),
        cidrs,
    );
}
