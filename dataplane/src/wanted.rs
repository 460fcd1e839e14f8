//! What the API server's objects want programmed, worked out once and without touching the kernel:
//! what `dataplane diff` and `dataplane trace` compare the kernel's tables with.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use keelson_netfilter::nft::{FakeNft, Family as NftFamily, Nft};
use kube::api::{Api, ListParams};

use crate::config::Config;
use crate::engine::Engine;
use crate::model::decode;
use crate::model::types::Name;
use crate::model::{FrontendKey, Model};
use crate::watch;

/// Everything, synced into tables in memory.
pub struct Wanted {
    /// The tables.
    pub tables: FakeNft,
    /// Whose each frontend is: `namespace/name` and the port's name.
    pub names: BTreeMap<FrontendKey, String>,
}

/// Why it could not be worked out.
#[derive(Debug, thiserror::Error)]
pub enum WantedError {
    /// The API server did not answer.
    #[error("listing {what}: {source}")]
    List {
        /// The kind of objects.
        what: &'static str,
        /// The cause.
        source: Box<kube::Error>,
    },
    /// The tables in memory did not take it: a mistake of this program.
    #[error("working out what is wanted: {0}")]
    Sync(#[from] keelson_netfilter::nft::NftError),
}

/// Lists page by page; each object is handed over and dropped.
async fn each<K>(
    api: &Api<K>,
    params: ListParams,
    what: &'static str,
    take: &mut dyn FnMut(K),
) -> Result<(), WantedError>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut params = params.limit(watch::PAGE);
    loop {
        let list = api.list(&params).await.map_err(|source| WantedError::List { what, source: Box::new(source) })?;
        list.items.into_iter().for_each(&mut *take);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Lists the API server's objects and works out what a dataplane on this node programs for them.
///
/// # Errors
/// See [`WantedError`].
pub async fn wanted(config: &Config, client: kube::Client, node_name: &str) -> Result<Wanted, WantedError> {
    let tables = FakeNft::default();
    let families = [NftFamily::Ipv4, NftFamily::Ipv6];
    let fakes = families.map(|family| (family, Box::new(tables.clone()) as Box<dyn Nft>));
    let mut engine = Engine::new(node_name, config.settings.clone(), fakes.into(), None);
    let model = &mut engine.model;
    let services = ListParams::default().labels(&watch::services());
    let slices = ListParams::default().labels(&watch::slices());
    each(&Api::<Service>::all(client.clone()), services, "Services", &mut |object| {
        let record = decode::service(&object, &mut model.interner);
        model.set_service(&decode::object_name(&object.metadata), record);
    })
    .await?;
    each(&Api::<EndpointSlice>::all(client.clone()), slices, "EndpointSlices", &mut |object| {
        let record = decode::slice(&object, node_name, &mut model.interner);
        model.set_slice(&decode::object_name(&object.metadata), record);
    })
    .await?;
    let node = ListParams::default().fields(&watch::own_node(node_name));
    each(&Api::<Node>::all(client.clone()), node, "the Node", &mut |object| {
        let record = decode::node(&object, &mut model.interner);
        model.set_node(record);
    })
    .await?;
    if config.settings.service_cidrs.is_empty() {
        let mut nets = Vec::new();
        // Upstream too runs without: they are newer than what some API servers know.
        let api = Api::<ServiceCIDR>::all(client);
        let mut take = |object: ServiceCIDR| nets.extend(decode::service_cidr(&object));
        match each(&api, ListParams::default(), "ServiceCIDRs", &mut take).await {
            Err(WantedError::List { source, .. }) if matches!(&*source, kube::Error::Api(s) if s.code == 404) => {}
            other => other?,
        }
        engine.set_service_cidrs(nets);
    }
    engine.sync()?;
    let names = names(&engine.model);
    Ok(Wanted { tables, names })
}

/// The names of frontends. Of several Services that claim one, the first has it.
fn names(model: &Model) -> BTreeMap<FrontendKey, String> {
    let mut services: Vec<&Name> = model.services().map(|(name, _)| name).collect();
    services.sort_unstable();
    let mut names = BTreeMap::new();
    for name in services {
        for (key, port) in model.frontends(name) {
            let text = if port.is_empty() { name.to_string() } else { format!("{name}:{port}") };
            names.entry(key).or_insert(text);
        }
    }
    names
}
