//! Variables from ConfigMaps, Secrets and services.

use anyhow::{Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{pod, server};
use serde_json::{Value, json};

tests![config_map_prefixes, config_map_key, config_map_whole, secret_prefixes, secret_key, secret_whole, services,];

/// Prefixes that no shell would take as names: a digit first, a dash, signs, a blank.
const PREFIXES: [&str; 4] = ["1-", "$_-", "p.!@# ", "~{}|:;,?"];

fn config_map(space: &Space<'_>) -> Result<Value> {
    let data = json!({ "data-1": "value-1", "data-2": "value-2" });
    space.make("configmaps", &json!({ "metadata": { "name": "source" }, "data": data }))
}

fn secret(space: &Space<'_>) -> Result<Value> {
    let data = json!({ "data-1": "value-1", "data-2": "value-2" });
    space.make("secrets", &json!({ "metadata": { "name": "source" }, "stringData": data }))
}

/// The environment that a container sees, without a shell in between, which would drop odd names.
fn environment(space: &Space<'_>, more: Value) -> Result<Vec<String>> {
    let mut container = json!({ "command": ["env"] });
    for (key, value) in more.as_object().into_iter().flatten() {
        container[key] = value.clone();
    }
    Ok(space.says(&pod("shows", container))?.lines().map(str::to_owned).collect())
}

fn has(environment: &[String], lines: &[String]) -> Result<()> {
    for line in lines {
        ensure!(environment.contains(line), "{line:?} is not in {environment:#?}");
    }
    Ok(())
}

fn prefixed(space: &Space<'_>, source: &str) -> Result<()> {
    let from: Vec<Value> =
        PREFIXES.iter().map(|prefix| json!({ "prefix": prefix, source: { "name": "source" } })).collect();
    let seen = environment(space, json!({ "envFrom": from }))?;
    for prefix in PREFIXES {
        has(&seen, &[format!("{prefix}data-1=value-1"), format!("{prefix}data-2=value-2")])?;
    }
    // The one character that no name can hold.
    let bad = pod("bad", json!({ "envFrom": [{ "prefix": "a=", source: { "name": "source" } }] }));
    let said = space.lab.api()?.refused(&http::Method::POST, &space.url("pods"), Some(&bad), 422)?;
    ensure!(said["message"].as_str().unwrap_or_default().contains("envFrom[0].prefix"), "{said}");
    Ok(())
}

// [sig-node] ConfigMap should be consumable as environment variable names with various prefixes [Conformance]
fn config_map_prefixes(lab: &Lab) -> Result<()> {
    let space = lab.quarter("env-map-prefixes")?;
    config_map(&space)?;
    prefixed(&space, "configMapRef")
}

// [sig-node] ConfigMap should be consumable via environment variable [NodeConformance] [Conformance]
fn config_map_key(lab: &Lab) -> Result<()> {
    let space = lab.quarter("env-map-key")?;
    config_map(&space)?;
    let from = json!({ "configMapKeyRef": { "name": "source", "key": "data-1" } });
    let seen = environment(&space, json!({ "env": [{ "name": "TOLD", "valueFrom": from }] }))?;
    has(&seen, &["TOLD=value-1".to_owned()])
}

// [sig-node] ConfigMap should be consumable via the environment [NodeConformance] [Conformance]
fn config_map_whole(lab: &Lab) -> Result<()> {
    let space = lab.quarter("env-map-whole")?;
    config_map(&space)?;
    let from =
        json!([{ "configMapRef": { "name": "source" } }, { "prefix": "p_", "configMapRef": { "name": "source" } }]);
    let seen = environment(&space, json!({ "envFrom": from }))?;
    has(&seen, &["data-1=value-1", "data-2=value-2", "p_data-1=value-1", "p_data-2=value-2"].map(str::to_owned))
}

// [sig-node] Secrets should be consumable as environment variable names variable names with various prefixes [Conformance]
fn secret_prefixes(lab: &Lab) -> Result<()> {
    let space = lab.quarter("env-secret-prefixes")?;
    secret(&space)?;
    prefixed(&space, "secretRef")
}

// [sig-node] Secrets should be consumable from pods in env vars [NodeConformance] [Conformance]
fn secret_key(lab: &Lab) -> Result<()> {
    let space = lab.quarter("env-secret-key")?;
    secret(&space)?;
    let from = json!({ "secretKeyRef": { "name": "source", "key": "data-1" } });
    let seen = environment(&space, json!({ "env": [{ "name": "TOLD", "valueFrom": from }] }))?;
    has(&seen, &["TOLD=value-1".to_owned()])
}

// [sig-node] Secrets should be consumable via the environment [NodeConformance] [Conformance]
fn secret_whole(lab: &Lab) -> Result<()> {
    let space = lab.quarter("env-secret-whole")?;
    secret(&space)?;
    let from = json!([{ "secretRef": { "name": "source" } }, { "prefix": "p_", "secretRef": { "name": "source" } }]);
    let seen = environment(&space, json!({ "envFrom": from }))?;
    has(&seen, &["data-1=value-1", "data-2=value-2", "p_data-1=value-1", "p_data-2=value-2"].map(str::to_owned))
}

// [sig-node] Pods should contain environment variables for services [NodeConformance] [Conformance]
fn services(lab: &Lab) -> Result<()> {
    let space = lab.quarter("env-services")?;
    space.started(&pod("server", server(&[])))?;
    let spec = json!({ "selector": { "app": "server" }, "ports": [{ "port": 8765, "targetPort": 8080 }] });
    let service = space.make("services", &json!({ "metadata": { "name": "fooservice" }, "spec": spec }))?;
    let address = service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    ensure!(!address.is_empty(), "the service has no address: {service}");
    let seen = environment(&space, json!({}))?;
    has(
        &seen,
        &[
            format!("FOOSERVICE_SERVICE_HOST={address}"),
            "FOOSERVICE_SERVICE_PORT=8765".to_owned(),
            format!("FOOSERVICE_PORT=tcp://{address}:8765"),
            "FOOSERVICE_PORT_8765_TCP_PORT=8765".to_owned(),
            "FOOSERVICE_PORT_8765_TCP_PROTO=tcp".to_owned(),
            format!("FOOSERVICE_PORT_8765_TCP=tcp://{address}:8765"),
            format!("FOOSERVICE_PORT_8765_TCP_ADDR={address}"),
        ],
    )
}
