//! Every verb of the API on a kind, whatever it is.

use anyhow::{Context, Result, ensure};
use keelson_tests::api::Patch;
use keelson_tests::lab::Lab;
use keelson_tests::objects::name_of;
use serde_json::{Value, json};

/// A kind, where its objects are, and what they are made of beside metadata.
pub struct Kind<'a> {
    /// Group and version; the version alone for the core.
    pub api: &'a str,
    pub kind: &'a str,
    pub plural: &'a str,
    pub namespace: Option<&'a str>,
    pub body: Value,
}

impl Kind<'_> {
    pub fn collection(&self) -> String {
        let root = if self.api.contains('/') { "/apis" } else { "/api" };
        let place = self.namespace.map(|name| format!("/namespaces/{name}")).unwrap_or_default();
        format!("{root}/{}{place}/{}", self.api, self.plural)
    }

    pub fn object(&self, name: &str, label: &str) -> Value {
        let mut object = self.body.clone();
        object["apiVersion"] = json!(self.api);
        object["kind"] = json!(self.kind);
        object["metadata"] = json!({ "name": name, "labels": { "test": label } });
        object
    }

    /// The group, its version and the resource are in the discovery documents.
    pub fn discovered(&self, lab: &Lab) -> Result<()> {
        let (group, _) = self.api.split_once('/').context("a group")?;
        let groups = lab.api()?.get("/apis")?;
        let named = |list: &Value, key: &str, wanted: &str| {
            list.as_array().is_some_and(|all| all.iter().any(|entry| entry[key] == wanted))
        };
        ensure!(named(&groups["groups"], "name", group), "/apis does not name {group}");
        let versions = lab.api()?.get(&format!("/apis/{group}"))?;
        ensure!(named(&versions["versions"], "groupVersion", self.api), "{versions}");
        let resources = lab.api()?.get(&format!("/apis/{}", self.api))?;
        let all = resources["resources"].as_array().cloned().unwrap_or_default();
        let found = all.iter().find(|entry| entry["name"] == self.plural).context("not discovered")?;
        for verb in ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"] {
            ensure!(found["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|v| v == verb)), "{verb}: {found}");
        }
        Ok(())
    }

    /// Its status is a resource of its own.
    pub fn with_status(&self, lab: &Lab) -> Result<()> {
        let resources = lab.api()?.get(&format!("/apis/{}", self.api))?;
        let all = resources["resources"].as_array().cloned().unwrap_or_default();
        let name = format!("{}/status", self.plural);
        let found =
            all.iter().find(|entry| entry["name"] == name).with_context(|| format!("{name} is not discovered"))?;
        for verb in ["get", "patch", "update"] {
            ensure!(found["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|v| v == verb)), "{verb}: {found}");
        }
        Ok(())
    }

    /// create, get, list (in one namespace and in all), watch, patch, update, delete, deletecollection.
    pub fn verbs(&self, lab: &Lab) -> Result<()> {
        let api = lab.api()?;
        let all = self.collection();
        // A name and a label that no other test uses.
        let label = format!("verbs-{}", self.plural);
        let (name, selected) = (format!("{label}-1"), format!("{all}?labelSelector=test={label}"));
        let one = format!("{all}/{name}");
        ensure!(api.names(&selected)?.is_empty(), "{selected} is not empty");
        let list = api.get(&selected)?;
        let version = list["metadata"]["resourceVersion"].as_str().context("a list without a version")?;
        let watch = api.watch(&selected, version)?;
        let made = api.create(&all, &self.object(&name, &label))?;
        ensure!(made["metadata"]["uid"].is_string() && made["kind"] == self.kind, "{made}");
        for (key, value) in self.body.as_object().into_iter().flatten() {
            ensure!(holds_all(&made[key], value), "{key}: {} instead of {value}", made[key]);
        }
        let same = api.refused(&http::Method::POST, &all, Some(&self.object(&name, &label)), 409)?;
        ensure!(same["reason"] == "AlreadyExists", "{same}");
        watch.until("ADDED", 20, |object| name_of(object) == name)?;
        ensure!(api.get(&one)? == made, "what is read is not what was made");
        ensure!(api.names(&selected)? == [name.as_str()]);
        if self.namespace.is_some() {
            let everywhere = selected.replacen(&format!("/namespaces/{}", self.namespace.unwrap_or_default()), "", 1);
            ensure!(api.names(&everywhere)? == [name.as_str()], "{everywhere}");
        }
        let patched = api.patch(&one, Patch::Merge, &json!({ "metadata": { "labels": { "patched": "true" } } }))?;
        ensure!(patched["metadata"]["labels"]["patched"] == "true", "{patched}");
        watch.until("MODIFIED", 20, |object| object["metadata"]["labels"]["patched"] == "true")?;
        let mut new = api.get(&one)?;
        new["metadata"]["labels"]["updated"] = json!("true");
        let updated = api.replace(&one, &new)?;
        ensure!(updated["metadata"]["labels"]["updated"] == "true", "{updated}");
        watch.until("MODIFIED", 20, |object| object["metadata"]["labels"]["updated"] == "true")?;
        ensure!(api.names(&format!("{selected},patched=true,updated=true"))? == [name.as_str()]);
        // The version that was read first is too old by now.
        let old = api.refused(&http::Method::PUT, &one, Some(&made), 409)?;
        ensure!(old["reason"] == "Conflict", "{old}");
        api.create(&all, &self.object(&format!("{label}-2"), &label))?;
        api.create(&all, &self.object(&format!("{label}-3"), &label))?;
        api.delete(&one)?;
        watch.until("DELETED", 20, |object| name_of(object) == name)?;
        api.absent(&one)?;
        ensure!(api.names(&selected)?.len() == 2);
        api.delete(&selected)?;
        lab.until("the collection is gone", 20, || Ok(api.names(&selected)?.is_empty()))
    }
}

/// Whether `found` has everything that `wanted` says; defaults may come on top.
fn holds_all(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| found.get(key).is_some_and(|found| holds_all(found, value)))
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, wanted)| holds_all(found, wanted))
        }
        _ => found == wanted,
    }
}
