//! Service variables, and which pods Services select, from an index that watches keep up to date.
//!
//! The index holds only what that needs (a cluster IP, ports, the selector), so that thousands of
//! services cost little; it changes by one service at a time and is never rebuilt for a container.
//! Upstream counterpart: `pkg/kubelet/envvars` over a full service lister.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Service;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube_common::backoff::WatchBackoff;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

/// The one service whose variables every container gets.
const MASTER_SERVICE: (&str, &str) = ("default", "kubernetes");

#[derive(Debug, Clone, PartialEq, Eq)]
struct PortEntry {
    name: Box<str>,
    protocol: Box<str>,
    port: i32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ServiceEntry {
    cluster_ip: Box<str>,
    ports: Box<[PortEntry]>,
}

impl ServiceEntry {
    /// `None` for a service without variables: headless, external name, or no port.
    fn new(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let ip = spec.cluster_ip.as_deref()?;
        let ports = spec.ports.as_deref().unwrap_or_default();
        if ip.is_empty() || ip == "None" || ports.is_empty() {
            return None;
        }
        Some(Self {
            cluster_ip: ip.into(),
            ports: ports
                .iter()
                .map(|p| PortEntry {
                    name: p.name.as_deref().unwrap_or_default().into(),
                    protocol: p.protocol.as_deref().unwrap_or("TCP").into(),
                    port: p.port,
                })
                .collect(),
        })
    }

    fn variables(&self, service: &str, out: &mut Vec<(String, String)>) {
        let prefix = variable_name(service);
        out.push((format!("{prefix}_SERVICE_HOST"), self.cluster_ip.to_string()));
        out.push((format!("{prefix}_SERVICE_PORT"), self.ports[0].port.to_string()));
        for port in self.ports.iter().filter(|p| !p.name.is_empty()) {
            let name = format!("{prefix}_SERVICE_PORT_{}", variable_name(&port.name));
            out.push((name, port.port.to_string()));
        }
        for (index, port) in self.ports.iter().enumerate() {
            let protocol = port.protocol.to_lowercase();
            let host = if self.cluster_ip.contains(':') {
                format!("[{}]", self.cluster_ip)
            } else {
                self.cluster_ip.to_string()
            };
            let url = format!("{protocol}://{host}:{}", port.port);
            if index == 0 {
                out.push((format!("{prefix}_PORT"), url.clone()));
            }
            let base = format!("{prefix}_PORT_{}_{}", port.port, port.protocol.to_uppercase());
            out.push((format!("{base}_PROTO"), protocol));
            out.push((format!("{base}_PORT"), port.port.to_string()));
            out.push((format!("{base}_ADDR"), self.cluster_ip.to_string()));
            out.push((base, url));
        }
    }
}

/// Upper case, `-` and `.` become `_`, a leading digit gets a `_` before it.
fn variable_name(name: &str) -> String {
    let upper = name.replace(['-', '.'], "_").to_uppercase();
    if upper.starts_with(|c: char| c.is_ascii_digit()) { format!("_{upper}") } else { upper }
}

/// Labels that a Service asks for, in one piece: key, zero, value, zero, … Neither can have a zero in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Selector(Box<str>);

impl Selector {
    /// `None` for a service that selects nothing: no selector, or one that names another host.
    fn new(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref().filter(|spec| spec.type_.as_deref() != Some("ExternalName"))?;
        let selector = spec.selector.as_ref().filter(|selector| !selector.is_empty())?;
        Some(Self(selector.iter().flat_map(|(key, value)| [key, "\0", value, "\0"]).collect::<String>().into()))
    }

    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let mut parts = self.0.split_terminator('\0');
        std::iter::from_fn(|| Some((parts.next()?, parts.next()?)))
            .all(|(key, value)| labels.get(key).is_some_and(|label| label == value))
    }
}

/// Services by namespace and name.
#[derive(Debug, Default)]
pub struct ServiceIndex {
    namespaces: HashMap<Box<str>, BTreeMap<Box<str>, ServiceEntry>>,
    /// Selectors, also of services without variables: headless ones have endpoints, too.
    selectors: HashMap<Box<str>, BTreeMap<Box<str>, Selector>>,
    synced: bool,
}

impl ServiceIndex {
    /// An empty index that has seen no list yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a full list has been seen. Until then no pod from the API may start, or it could
    /// miss `KUBERNETES_SERVICE_HOST`.
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// How many services have variables.
    pub fn len(&self) -> usize {
        self.namespaces.values().map(BTreeMap::len).sum()
    }

    /// Whether no service has variables.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// Adds or changes one service.
    pub fn apply(&mut self, service: &Service) {
        let (Some(namespace), Some(name)) = (service.metadata.namespace.as_deref(), service.metadata.name.as_deref())
        else {
            return;
        };
        keep(&mut self.namespaces, namespace, name, ServiceEntry::new(service));
        keep(&mut self.selectors, namespace, name, Selector::new(service));
    }

    /// Forgets one service.
    pub fn remove(&mut self, namespace: &str, name: &str) {
        keep(&mut self.namespaces, namespace, name, None);
        keep(&mut self.selectors, namespace, name, None);
    }

    /// Whether a service of the namespace selects a pod with these labels.
    pub fn selects(&self, namespace: &str, labels: Option<&BTreeMap<String, String>>) -> bool {
        let (Some(selectors), Some(labels)) = (self.selectors.get(namespace), labels) else { return false };
        selectors.values().any(|selector| selector.matches(labels))
    }

    /// Takes the place of everything known, after a complete list.
    pub fn replace(&mut self, mut fresh: Self) {
        fresh.synced = true;
        *self = fresh;
    }

    /// The variables for a container in `namespace`, in a stable order. `links` is the pod's
    /// `enableServiceLinks`.
    pub fn variables(&self, namespace: &str, links: bool) -> Vec<(String, String)> {
        let mut out = Vec::new();
        let (master_namespace, master) = MASTER_SERVICE;
        let own = links.then(|| self.namespaces.get(namespace)).flatten();
        for (name, entry) in own.into_iter().flatten() {
            entry.variables(name, &mut out);
        }
        // A service of that name in the pod's own namespace hides the one of `default`, as upstream.
        if !own.is_some_and(|services| services.contains_key(master))
            && let Some(entry) = self.namespaces.get(master_namespace).and_then(|services| services.get(master))
        {
            entry.variables(master, &mut out);
        }
        out
    }
}

/// Puts an entry into its place, or takes it out; no empty namespace stays.
fn keep<T>(namespaces: &mut HashMap<Box<str>, BTreeMap<Box<str>, T>>, namespace: &str, name: &str, entry: Option<T>) {
    match entry {
        Some(entry) => {
            namespaces.entry(namespace.into()).or_default().insert(name.into(), entry);
        }
        None => {
            let Some(services) = namespaces.get_mut(namespace) else { return };
            services.remove(name);
            if services.is_empty() {
                namespaces.remove(namespace);
            }
        }
    }
}

/// The index as shared by its watch and by the pod workers.
pub type SharedServiceIndex = Arc<RwLock<ServiceIndex>>;

/// Keeps `index` up to date from the API server until `stop`; errors are retried with backoff.
pub async fn watch_services(client: kube::Client, index: SharedServiceIndex, stop: CancellationToken) {
    let api: kube::Api<Service> = kube::Api::all(client);
    let stream = watcher(api, watcher::Config::default()).backoff(WatchBackoff::default());
    let mut stream = std::pin::pin!(stream);
    let mut listed = ServiceIndex::new();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = stream.try_next() => event,
        };
        match event {
            Ok(Some(Event::Init)) => listed = ServiceIndex::new(),
            Ok(Some(Event::InitApply(service))) => listed.apply(&service),
            Ok(Some(Event::InitDone)) => index.write().replace(std::mem::take(&mut listed)),
            Ok(Some(Event::Apply(service))) => index.write().apply(&service),
            Ok(Some(Event::Delete(service))) => {
                let meta = &service.metadata;
                index
                    .write()
                    .remove(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
            }
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "service watch failed, retrying"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(namespace: &str, name: &str, ip: &str, ports: serde_json::Value) -> Service {
        serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": ip, "ports": ports}
        }))
        .unwrap()
    }

    fn index() -> ServiceIndex {
        let mut index = ServiceIndex::new();
        index.apply(&service(
            "default",
            "kubernetes",
            "10.96.0.1",
            serde_json::json!([{"name": "https", "port": 443}]),
        ));
        index.apply(&service(
            "shop",
            "1web-a.b",
            "10.96.0.9",
            serde_json::json!([{"port": 80, "protocol": "TCP"}, {"name": "dns-u", "port": 53, "protocol": "UDP"}]),
        ));
        index.apply(&service("shop", "six", "fd00::9", serde_json::json!([{"port": 80}])));
        index.apply(&service("shop", "headless", "None", serde_json::json!([{"port": 80}])));
        index
    }

    #[test]
    fn variables_as_upstream() {
        let vars: BTreeMap<_, _> = index().variables("shop", true).into_iter().collect();
        let want = [
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("KUBERNETES_SERVICE_PORT", "443"),
            ("KUBERNETES_SERVICE_PORT_HTTPS", "443"),
            ("KUBERNETES_PORT", "tcp://10.96.0.1:443"),
            ("KUBERNETES_PORT_443_TCP", "tcp://10.96.0.1:443"),
            ("KUBERNETES_PORT_443_TCP_PROTO", "tcp"),
            ("KUBERNETES_PORT_443_TCP_PORT", "443"),
            ("KUBERNETES_PORT_443_TCP_ADDR", "10.96.0.1"),
            ("_1WEB_A_B_SERVICE_HOST", "10.96.0.9"),
            ("_1WEB_A_B_SERVICE_PORT", "80"),
            ("_1WEB_A_B_SERVICE_PORT_DNS_U", "53"),
            ("_1WEB_A_B_PORT", "tcp://10.96.0.9:80"),
            ("_1WEB_A_B_PORT_80_TCP", "tcp://10.96.0.9:80"),
            ("_1WEB_A_B_PORT_53_UDP", "udp://10.96.0.9:53"),
            ("_1WEB_A_B_PORT_53_UDP_PROTO", "udp"),
            ("SIX_PORT", "tcp://[fd00::9]:80"),
            ("SIX_PORT_80_TCP_ADDR", "fd00::9"),
        ];
        for (name, value) in want {
            assert_eq!(vars.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(!vars.keys().any(|k| k.starts_with("HEADLESS")));
    }

    #[test]
    fn without_links_only_the_master_service() {
        let vars = index().variables("shop", false);
        assert!(!vars.is_empty() && vars.iter().all(|(k, _)| k.starts_with("KUBERNETES_")));
        assert_eq!(index().variables("other", true), vars);
    }

    #[test]
    fn selectors_name_pods_of_their_namespace() {
        let mut index = ServiceIndex::new();
        let mut add = |namespace: &str, name: &str, spec: serde_json::Value| {
            let meta = serde_json::json!({"namespace": namespace, "name": name});
            index.apply(&serde_json::from_value(serde_json::json!({"metadata": meta, "spec": spec})).unwrap());
        };
        // Headless, and without a port.
        add("shop", "web", serde_json::json!({"clusterIP": "None", "selector": {"app": "web", "tier": ""}}));
        add("shop", "all", serde_json::json!({"clusterIP": "10.96.0.7", "selector": {}}));
        add("shop", "hand", serde_json::json!({"clusterIP": "10.96.0.8", "ports": [{"port": 80}]}));
        add("shop", "cname", serde_json::json!({"type": "ExternalName", "selector": {"app": "cname"}}));
        let labels = |text: &str| -> BTreeMap<String, String> {
            text.split(',').filter_map(|p| p.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
        };
        let selects = |index: &ServiceIndex, text: &str| index.selects("shop", Some(&labels(text)));
        for (text, expected) in [
            ("app=web,tier=", true),
            ("app=web,tier=,more=x", true),
            ("app=web", false),
            ("app=web,tier=front", false),
            ("app=web2,tier=", false),
            ("tier=", false),
            ("app=cname", false),
            ("", false),
        ] {
            assert_eq!(selects(&index, text), expected, "{text}");
        }
        assert!(!index.selects("other", Some(&labels("app=web,tier="))) && !index.selects("shop", None));
        index.remove("shop", "web");
        assert!(!selects(&index, "app=web,tier="));
        // What a Service selects can change, and end.
        let select = |app: &str| serde_json::json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {"selector": {"app": app}}});
        index.apply(&serde_json::from_value(select("a")).unwrap());
        assert!(selects(&index, "app=a"));
        index.apply(&serde_json::from_value(select("b")).unwrap());
        assert!(!selects(&index, "app=a") && selects(&index, "app=b"));
        let mut none = select("b");
        none["spec"] = serde_json::json!({});
        index.apply(&serde_json::from_value(none).unwrap());
        assert!(!selects(&index, "app=b"));
    }

    #[test]
    fn changes_one_service_at_a_time() {
        let mut index = index();
        assert_eq!(index.len(), 3);
        index.apply(&service("shop", "six", "None", serde_json::json!([{"port": 80}])));
        index.remove("shop", "1web-a.b");
        assert_eq!(index.len(), 1);
        assert!(!index.synced());
        index.replace(ServiceIndex::new());
        assert!(index.synced() && index.is_empty());
    }
}
