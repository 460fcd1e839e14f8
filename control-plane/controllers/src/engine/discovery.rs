//! Which kinds the server has: for those controllers that work on all of them (namespace, garbage collector).

use kube::Client;
use kube::core::ApiResource;
use kube::discovery::{Discovery, Scope};
use tracing::debug;

/// One kind of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedKind {
    /// Group, version, kind, plural.
    pub resource: ApiResource,
    /// Its objects live in namespaces.
    pub is_namespaced: bool,
    /// What can be done with it.
    pub verbs: Vec<String>,
}

impl ServedKind {
    /// All of these verbs work.
    pub fn supports(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|v| v == verb))
    }
}

/// All kinds, each in its preferred version.
///
/// # Errors
/// The server could not be asked. Retryable.
pub async fn served_kinds(client: &Client) -> Result<Vec<ServedKind>, Box<kube::Error>> {
    let discovery = match Discovery::new(client.clone()).run_aggregated().await {
        Ok(discovery) => discovery,
        Err(error) => {
            debug!(%error, "no aggregated discovery, asking group by group");
            Discovery::new(client.clone()).run().await.map_err(Box::new)?
        }
    };
    let mut kinds = Vec::new();
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            kinds.push(ServedKind {
                is_namespaced: capabilities.scope == Scope::Namespaced,
                verbs: capabilities.operations,
                resource,
            });
        }
    }
    kinds.sort_by(|a, b| (&a.resource.group, &a.resource.plural).cmp(&(&b.resource.group, &b.resource.plural)));
    Ok(kinds)
}
