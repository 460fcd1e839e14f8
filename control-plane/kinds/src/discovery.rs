//! Discovery documents, plain and aggregated, and the version document.
//!
//! Everything here works on a table of resources in discovery order: [`crate::resources`], or [`crate::custom::Registry::all`].
//!
//! Upstream counterpart: `apiserver/pkg/endpoints/discovery` and its `aggregated` package.

use serde_json::{Value, json};

use crate::resource::{Resource, Subresource, Verb};

/// The release whose types, defaults and rules are served; build metadata says whose server it is.
pub const GIT_VERSION: &str = "v1.37.0+keelson";
const MAJOR: &str = "1";
const MINOR: &str = "37";

/// Groups in the order of the table, each once, core (empty) included.
#[must_use]
pub fn groups(table: &[&'static Resource]) -> Vec<&'static str> {
    let mut out: Vec<&str> = Vec::new();
    for res in table {
        if !out.contains(&res.group) {
            out.push(res.group);
        }
    }
    out
}

/// Versions of a group, the preferred one first.
#[must_use]
pub fn versions(table: &[&'static Resource], group: &str) -> Vec<&'static str> {
    let mut out: Vec<&str> = Vec::new();
    for res in table.iter().filter(|r| r.group == group) {
        if !out.contains(&res.version) {
            out.push(res.version);
        }
    }
    out
}

/// `/api`. `address` is host:port of this server.
#[must_use]
pub fn api_versions(table: &[&'static Resource], address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": versions(table, ""),
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `/apis`: an `APIGroupList`.
#[must_use]
pub fn api_groups(table: &[&'static Resource]) -> Value {
    let named = groups(table).into_iter().filter(|g| !g.is_empty());
    let groups: Vec<Value> = named.map(|group| group_body(table, group)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn group_body(table: &[&'static Resource], group: &str) -> Value {
    let versions: Vec<Value> =
        versions(table, group).iter().map(|v| json!({"groupVersion": format!("{group}/{v}"), "version": v})).collect();
    json!({"name": group, "preferredVersion": versions.first(), "versions": versions})
}

/// `/apis/GROUP`: an `APIGroup`.
#[must_use]
pub fn api_group(table: &[&'static Resource], group: &str) -> Option<Value> {
    if group.is_empty() || versions(table, group).is_empty() {
        return None;
    }
    let mut body = group_body(table, group);
    body["kind"] = json!("APIGroup");
    body["apiVersion"] = json!("v1");
    Some(body)
}

fn verbs(verbs: &[Verb]) -> Vec<&'static str> {
    verbs.iter().map(|v| v.as_str()).collect()
}

/// `/api/v1` (empty group) and `/apis/GROUP/VERSION`: an `APIResourceList`.
#[must_use]
pub fn api_resources(table: &[&'static Resource], group: &str, version: &str) -> Option<Value> {
    let mut entries = Vec::new();
    for res in table.iter().filter(|r| r.group == group && r.version == version) {
        let mut entry = json!({
            "name": res.plural,
            "singularName": res.singular,
            "namespaced": res.namespaced(),
            "kind": res.kind,
            "verbs": verbs(res.verbs),
        });
        if !res.short_names.is_empty() {
            entry["shortNames"] = json!(res.short_names);
        }
        if !res.categories.is_empty() {
            entry["categories"] = json!(res.categories);
        }
        entries.push(entry);
        entries.extend(res.subresources.iter().map(|sub| plain_subresource(res, sub)));
    }
    if entries.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": entries,
    }))
}

fn plain_subresource(res: &Resource, sub: &Subresource) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", res.plural, sub.name),
        "singularName": "",
        "namespaced": res.namespaced(),
        "kind": sub.kind,
        "verbs": verbs(sub.verbs),
    });
    if (sub.group, sub.version) != (res.group, res.version) {
        entry["group"] = json!(sub.group);
        entry["version"] = json!(sub.version);
    }
    entry
}

/// Aggregated discovery of `/api` (`core` true) or `/apis`: an `apidiscovery.k8s.io/v2` `APIGroupDiscoveryList`.
#[must_use]
pub fn aggregated(table: &[&'static Resource], core: bool) -> Value {
    let items: Vec<Value> = groups(table)
        .into_iter()
        .filter(|g| g.is_empty() == core)
        .map(|group| {
            let versions: Vec<Value> = versions(table, group)
                .into_iter()
                .map(|version| {
                    let entries: Vec<Value> = table
                        .iter()
                        .filter(|r| r.group == group && r.version == version)
                        .map(|r| aggregated_resource(r))
                        .collect();
                    json!({"version": version, "resources": entries, "freshness": "Current"})
                })
                .collect();
            let metadata = if group.is_empty() { json!({}) } else { json!({ "name": group }) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_resource(res: &Resource) -> Value {
    let mut entry = json!({
        "resource": res.plural,
        "responseKind": {"group": res.group, "version": res.version, "kind": res.kind},
        "scope": if res.namespaced() { "Namespaced" } else { "Cluster" },
        "singularResource": res.singular,
        "verbs": verbs(res.verbs),
    });
    if !res.short_names.is_empty() {
        entry["shortNames"] = json!(res.short_names);
    }
    if !res.categories.is_empty() {
        entry["categories"] = json!(res.categories);
    }
    let subresources: Vec<Value> = res
        .subresources
        .iter()
        .map(|sub| {
            json!({
                "subresource": sub.name,
                "responseKind": {"group": sub.group, "version": sub.version, "kind": sub.kind},
                "verbs": verbs(sub.verbs),
            })
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = json!(subresources);
    }
    entry
}

/// `/version`.
#[must_use]
pub fn version() -> Value {
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "emulationMajor": MAJOR,
        "emulationMinor": MINOR,
        "minCompatibilityMajor": MAJOR,
        "minCompatibilityMinor": MINOR,
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("linux/{}", platform()),
    })
}

fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources;

    #[test]
    fn plain_documents() {
        let table = resources();
        let core = api_resources(table, "", "v1").expect("core");
        let names: Vec<&str> =
            core["resources"].as_array().expect("list").iter().filter_map(|r| r["name"].as_str()).collect();
        for name in ["pods", "pods/status", "pods/log", "pods/binding", "services", "nodes", "serviceaccounts/token"] {
            assert!(names.contains(&name), "{name}");
        }
        let apps = api_resources(table, "apps", "v1").expect("apps");
        let scale = apps["resources"].as_array().expect("list").iter().find(|r| r["name"] == "deployments/scale");
        assert_eq!(scale.expect("scale")["group"], "autoscaling");
        assert!(api_resources(table, "apps", "v2").is_none());
        assert_eq!(api_group(table, "apps").expect("apps")["preferredVersion"]["groupVersion"], "apps/v1");
        assert!(api_group(table, "").is_none());
    }

    #[test]
    fn aggregated_documents_hold_every_resource() {
        let count = |doc: &Value| -> usize {
            doc["items"]
                .as_array()
                .expect("items")
                .iter()
                .flat_map(|g| g["versions"].as_array().expect("versions"))
                .map(|v| v["resources"].as_array().expect("resources").len())
                .sum()
        };
        assert_eq!(count(&aggregated(resources(), true)) + count(&aggregated(resources(), false)), resources().len());
    }
}
