//! ConfigMaps and Secrets as objects.

use anyhow::{Result, ensure};
use http::Method;
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{name_of, pod};
use serde_json::{Value, json};

tests![config_map_empty_key, config_map_update, config_map_life, secret_empty_key, secret_patch];

fn empty_key(space: &Space<'_>, kind: &str, field: &str) -> Result<()> {
    let object = json!({ "metadata": { "name": "bad" }, field: { "": "dmFsdWUtMQ==" } });
    let said = space.lab.api()?.refused(&Method::POST, &space.url(kind), Some(&object), 422)?;
    let message = said["message"].as_str().unwrap_or_default();
    ensure!(said["reason"] == "Invalid" && message.contains("a valid config key must consist of"), "{said}");
    space.lab.api()?.absent(&space.url(&format!("{kind}/bad")))
}

// [sig-node] ConfigMap should fail to create ConfigMap with empty key [Conformance]
fn config_map_empty_key(lab: &Lab) -> Result<()> {
    empty_key(&lab.quarter("map-empty-key")?, "configmaps", "data")
}

// [sig-node] Secrets should fail to create secret due to empty secret key [Conformance]
fn secret_empty_key(lab: &Lab) -> Result<()> {
    empty_key(&lab.quarter("secret-empty-key")?, "secrets", "data")
}

// [sig-node] ConfigMap should update ConfigMap successfully [NodeConformance] [Conformance]
fn config_map_update(lab: &Lab) -> Result<()> {
    let space = lab.quarter("map-update")?;
    let mut map = space.make("configmaps", &json!({ "metadata": { "name": "kept" }, "data": {} }))?;
    map["data"] = json!({ "data": "value" });
    let updated = space.put("configmaps/kept", &map)?;
    ensure!(updated["data"]["data"] == "value", "{updated}");
    ensure!(space.read("configmaps/kept")?["data"]["data"] == "value");
    ensure!(updated["metadata"]["resourceVersion"] != map["metadata"]["resourceVersion"], "{updated}");
    // A pod made afterwards sees it.
    let from = json!([{ "configMapRef": { "name": "kept" } }]);
    let said = space.says(&pod("reader", json!({ "command": ["env"], "envFrom": from })))?;
    ensure!(said.contains("data=value\n"), "{said}");
    Ok(())
}

fn everywhere(space: &Space<'_>, kind: &str, selector: &str) -> Result<Vec<Value>> {
    let list = space.lab.api()?.get(&format!("/api/v1/{kind}?labelSelector={selector}"))?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

// [sig-node] ConfigMap should run through a ConfigMap lifecycle [Conformance]
fn config_map_life(lab: &Lab) -> Result<()> {
    let space = lab.quarter("map-life")?;
    let labels = json!({ "test-configmap-static": "true" });
    let map = json!({ "metadata": { "name": "living", "labels": labels }, "data": { "valueName": "value" } });
    let watch = lab.api()?.watch(&space.url("configmaps?labelSelector=test-configmap-static=true"), "")?;
    space.make("configmaps", &map)?;
    watch.until("ADDED", 20, |map| name_of(map) == "living")?;
    let patch = json!({ "metadata": { "labels": { "test-configmap": "patched" } }, "data": { "valueName": "value1" } });
    space.amend("configmaps/living", &patch)?;
    watch.until("MODIFIED", 20, |map| map["data"]["valueName"] == "value1")?;
    let read = space.read("configmaps/living")?;
    ensure!(read["data"]["valueName"] == "value1", "{read}");
    ensure!(read["metadata"]["labels"]["test-configmap"] == "patched", "{read}");
    let all = everywhere(&space, "configmaps", "test-configmap-static=true")?;
    ensure!(all.len() == 1 && all[0]["data"]["valueName"] == "value1", "{all:?}");
    space.remove("configmaps?labelSelector=test-configmap-static=true")?;
    watch.until("DELETED", 20, |map| name_of(map) == "living")?;
    ensure!(everywhere(&space, "configmaps", "test-configmap-static=true")?.is_empty());
    Ok(())
}

// [sig-node] Secrets should patch a secret [Conformance]
fn secret_patch(lab: &Lab) -> Result<()> {
    let space = lab.quarter("secret-patch")?;
    let selector = "testsecret-constant=true";
    ensure!(everywhere(&space, "secrets", selector)?.is_empty());
    let labels = json!({ "testsecret-constant": "true" });
    let secret = json!({ "metadata": { "name": "patched", "labels": labels }, "type": "Opaque",
        "data": { "key": "dmFsdWU=" } });
    space.make("secrets", &secret)?;
    ensure!(everywhere(&space, "secrets", selector)?.len() == 1);
    let patch = json!({ "metadata": { "labels": { "testsecret": "true" } }, "data": { "key": "dmFsdWUx" } });
    space.amend("secrets/patched", &patch)?;
    let read = space.read("secrets/patched")?;
    ensure!(read["data"]["key"] == "dmFsdWUx" && read["metadata"]["labels"]["testsecret"] == "true", "{read}");
    space.remove(&format!("secrets?labelSelector={selector}"))?;
    lab.until("it is gone", 20, || Ok(everywhere(&space, "secrets", selector)?.is_empty()))
}
