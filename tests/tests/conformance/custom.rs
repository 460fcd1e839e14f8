//! CustomResourceDefinitions: themselves, their status, the objects that they define, and where they are discovered.

use anyhow::{Context, Result, ensure};
use http::Method;
use keelson_tests::api::Patch;
use keelson_tests::lab::Lab;
use keelson_tests::objects::{holds, name_of};
use serde_json::{Value, json};

use super::verbs::Kind;

tests![create_and_delete, listing, status, defaults, documents, watching, aggregated_custom, aggregated_custom_raw,];

pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SOON: u64 = 20;
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A schema that lets everything through.
pub fn anything() -> Value {
    json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A served version; the stored one, if it is so.
pub fn version(name: &str, storage: bool, schema: &Value) -> Value {
    json!({ "name": name, "served": true, "storage": storage, "schema": { "openAPIV3Schema": schema } })
}

/// The definition of a kind that no other test uses: the group is made of the test's name.
pub fn definition(group: &str, kind: &str, scope: &str, versions: &[Value]) -> Value {
    let group = format!("{group}.example.com");
    let singular = kind.to_lowercase();
    let plural = format!("{singular}s");
    let names = json!({ "plural": plural, "singular": singular, "kind": kind, "listKind": format!("{kind}List") });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": { "group": group, "scope": scope, "names": names, "versions": versions },
    })
}

/// A definition that is established; removed with the handle.
pub struct Defined<'a> {
    lab: &'a Lab,
    pub made: Value,
}

impl Defined<'_> {
    pub fn url(&self) -> String {
        format!("{DEFINITIONS}/{}", name_of(&self.made))
    }

    /// Group and version of its objects.
    pub fn api(&self, version: usize) -> String {
        let spec = &self.made["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!("{}/{}", text(&spec["group"]), text(&spec["versions"][version]["name"]))
    }

    fn plural(&self) -> &str {
        self.made["spec"]["names"]["plural"].as_str().unwrap_or_default()
    }

    /// Where its objects are: of the cluster, or of a namespace.
    pub fn objects(&self, version: usize, namespace: Option<&str>) -> String {
        let place = namespace.map(|name| format!("/namespaces/{name}")).unwrap_or_default();
        format!("/apis/{}{place}/{}", self.api(version), self.plural())
    }

    pub fn object(&self, version: usize, name: &str, rest: &Value) -> Value {
        let mut object = rest.clone();
        object["apiVersion"] = json!(self.api(version));
        object["kind"] = self.made["spec"]["names"]["kind"].clone();
        object["metadata"]["name"] = json!(name);
        object
    }
}

impl Drop for Defined<'_> {
    fn drop(&mut self) {
        // Only tidiness: the lab goes as a whole at the end.
        if let Ok(api) = self.lab.api() {
            let _ = api.delete(&self.url());
        }
    }
}

/// Creates a definition and waits until its objects can be listed.
pub fn defined<'a>(lab: &'a Lab, definition: &Value) -> Result<Defined<'a>> {
    lab.api()?.create(DEFINITIONS, definition)?;
    let name = name_of(definition);
    let made = lab.wait(&format!("{name} is established"), SOON, || {
        let read = lab.api()?.get(&format!("{DEFINITIONS}/{name}"))?;
        Ok(holds(&read, "Established").then_some(read))
    })?;
    let defined = Defined { lab, made };
    lab.until("its objects are served", SOON, || lab.api()?.get(&defined.objects(0, None)).map(|_| true))?;
    Ok(defined)
}

// [sig-api-machinery] CustomResourceDefinition resources [Privileged:ClusterAdmin] Simple CustomResourceDefinition creating/deleting custom resource definition objects works [Conformance]
fn create_and_delete(lab: &Lab) -> Result<()> {
    let one = defined(lab, &definition("crd-simple", "Simple", "Namespaced", &[version("v1", true, &anything())]))?;
    lab.api()?.delete(&one.url())?;
    lab.until("it is gone", SOON, || lab.api()?.absent(&one.url()).map(|()| true))
}

// [sig-api-machinery] CustomResourceDefinition resources [Privileged:ClusterAdmin] Simple CustomResourceDefinition listing custom resource definition objects works [Conformance]
fn listing(lab: &Lab) -> Result<()> {
    let mut made = Vec::new();
    for at in 0..10 {
        let group = format!("crd-list-{at}");
        let mut one = definition(&group, "Listed", "Cluster", &[version("v1", true, &anything())]);
        one["metadata"]["labels"] = json!({ "test": "crd-list" });
        made.push(defined(lab, &one)?);
    }
    let other = defined(lab, &definition("crd-list-other", "Listed", "Cluster", &[version("v1", true, &anything())]))?;
    let selected = format!("{DEFINITIONS}?labelSelector=test=crd-list");
    let list = lab.api()?.get(&selected)?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    ensure!(items.len() == 10, "{} instead of 10", items.len());
    for item in &items {
        let own = made.iter().find(|one| name_of(&one.made) == name_of(item)).context("a stranger")?;
        ensure!(own.made["spec"] == item["spec"], "{item}");
    }
    lab.api()?.delete(&selected)?;
    lab.until("the collection is gone", SOON, || Ok(lab.api()?.names(&selected)?.is_empty()))?;
    lab.api()?.get(&other.url()).map(drop)
}

// [sig-api-machinery] CustomResourceDefinition resources [Privileged:ClusterAdmin] Simple CustomResourceDefinition getting/updating/patching custom resource definition status sub-resource works [Conformance]
fn status(lab: &Lab) -> Result<()> {
    let one = defined(lab, &definition("crd-status", "Told", "Cluster", &[version("v1", true, &anything())]))?;
    let url = format!("{}/status", one.url());
    let has = |object: &Value, message: &str| {
        object["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(|found| found["message"] == message))
    };
    let updated = lab.wait("the status is replaced", SOON, || {
        let mut read = lab.api()?.get(&url)?;
        ensure!(read["spec"] == one.made["spec"], "{read}");
        let conditions = read["status"]["conditions"].as_array_mut().context("no conditions")?;
        conditions.push(json!({ "type": "", "status": "", "lastTransitionTime": null, "message": "updated" }));
        lab.api()?.replace(&url, &read).map(Some)
    })?;
    ensure!(has(&updated, "updated"), "{updated}");
    let patch = json!([{ "op": "add", "path": "/status/conditions", "value": [{ "message": "patched" }] }]);
    let patched = lab.api()?.patch(&url, Patch::Json, &patch)?;
    ensure!(has(&patched, "patched"), "{patched}");
    Ok(())
}

// [sig-api-machinery] CustomResourceDefinition resources [Privileged:ClusterAdmin] custom resource defaulting for requests and from storage works [Conformance]
fn defaults(lab: &Lab) -> Result<()> {
    let mut schema = anything();
    schema["properties"] = json!({ "a": { "type": "string" }, "b": { "type": "string" } });
    let one = defined(lab, &definition("crd-defaults", "Filled", "Cluster", &[version("v1", true, &schema)]))?;
    let all = one.objects(0, None);
    let first = lab.api()?.create(&all, &one.object(0, "first", &json!({})))?;
    ensure!(first.get("a").is_none() && first.get("b").is_none(), "{first}");
    let place = "/spec/versions/0/schema/openAPIV3Schema/properties";
    let add =
        |field: &str, value: &str| json!({ "op": "add", "path": format!("{place}/{field}/default"), "value": value });
    lab.api()?.patch(&one.url(), Patch::Json, &json!([add("a", "A")]))?;
    lab.until("what was stored has the default", SOON, || {
        let read = lab.api()?.get(&format!("{all}/first"))?;
        ensure!(read.get("a").is_none_or(|a| a == "A"), "{read}");
        Ok(read["a"] == "A")
    })?;
    let second = lab.api()?.create(&all, &one.object(0, "second", &json!({})))?;
    ensure!(second["a"] == "A" && second.get("b").is_none(), "{second}");
    let remove = json!({ "op": "remove", "path": format!("{place}/a/default") });
    lab.api()?.patch(&one.url(), Patch::Json, &json!([remove, add("b", "B")]))?;
    lab.until("the other field has its default", SOON, || Ok(lab.api()?.get(&format!("{all}/second"))?["b"] == "B"))?;
    let read = lab.api()?.get(&format!("{all}/second"))?;
    ensure!(read["a"] == "A", "the default that was stored is lost: {read}");
    Ok(())
}

// [sig-api-machinery] CustomResourceDefinition resources [Privileged:ClusterAdmin] should include custom resource definition resources in discovery documents [Conformance]
fn documents(lab: &Lab) -> Result<()> {
    let api = "apiextensions.k8s.io/v1";
    let kind = Kind {
        api,
        kind: "CustomResourceDefinition",
        plural: "customresourcedefinitions",
        namespace: None,
        body: json!({}),
    };
    kind.discovered(lab)?;
    let group = lab.api()?.get("/apis/apiextensions.k8s.io")?;
    let resources = lab.api()?.get("/apis/apiextensions.k8s.io/v1")?;
    ensure!(group["name"] == "apiextensions.k8s.io" && resources["groupVersion"] == api, "{group} {resources}");
    Ok(())
}

// [sig-api-machinery] CustomResourceDefinition Watch [Privileged:ClusterAdmin] CustomResourceDefinition Watch watch on custom resource definition objects [Conformance]
fn watching(lab: &Lab) -> Result<()> {
    let list = lab.api()?.get(DEFINITIONS)?;
    let definitions =
        lab.api()?.watch(DEFINITIONS, list["metadata"]["resourceVersion"].as_str().unwrap_or_default())?;
    let wanted = definition("crd-watch", "Watched", "Cluster", &[version("v1", true, &anything())]);
    let one = defined(lab, &wanted)?;
    let own = |object: &Value| name_of(object) == name_of(&wanted);
    definitions.until("ADDED", SOON, own)?;
    definitions.until("MODIFIED", SOON, |object| own(object) && holds(object, "Established"))?;
    let all = one.objects(0, None);
    let watches = ["a", "b"].map(|name| lab.api()?.watch(&format!("{all}?fieldSelector=metadata.name={name}"), ""));
    for (name, watch) in ["a", "b"].iter().zip(watches) {
        let (watch, url) = (watch?, format!("{all}/{name}"));
        lab.api()?.create(&all, &one.object(0, name, &json!({ "content": { "key": "value" } })))?;
        watch.until("ADDED", SOON, |object| name_of(object) == *name)?;
        lab.api()?.patch(&url, Patch::Merge, &json!({ "dummy": "test" }))?;
        watch.until("MODIFIED", SOON, |object| object["dummy"] == "test")?;
        lab.api()?.delete(&url)?;
        watch.until("DELETED", SOON, |object| name_of(object) == *name && object["dummy"] == "test")?;
        ensure!(watch.next(0).is_err(), "a watch was told of the other object");
    }
    lab.api()?.delete(&one.url())?;
    definitions.until("DELETED", SOON, own).map(drop)
}

/// An aggregated discovery document.
fn aggregate(lab: &Lab, path: &str, accept: &str) -> Result<Value> {
    let (status, text) = lab.api()?.ask_as(&Method::GET, path, ["application/json", accept], Vec::new())?;
    ensure!(status == 200, "{path}: {status}: {text}");
    let document: Value = serde_json::from_str(&text)?;
    ensure!(document["kind"] == "APIGroupDiscoveryList", "{}", document["kind"]);
    ensure!(document["apiVersion"] == "apidiscovery.k8s.io/v2", "{}", document["apiVersion"]);
    Ok(document)
}

fn entry<'a>(list: &'a Value, key: &str, wanted: &str) -> Result<&'a Value> {
    let found = list.as_array().into_iter().flatten().find(|item| item[key] == wanted);
    found.with_context(|| format!("no {wanted}"))
}

fn shown(document: &Value, (group, version, resource): (&str, &str, &str)) -> Result<()> {
    let items = document["items"].as_array().cloned().unwrap_or_default();
    let of_group = items.iter().find(|item| item["metadata"]["name"].as_str().unwrap_or_default() == group);
    let of_group = of_group.with_context(|| format!("no group {group:?}"))?;
    let of_version = entry(&of_group["versions"], "version", version)?;
    entry(&of_version["resources"], "resource", resource).map(drop)
}

/// What a client with the aggregated interface says: it takes the old documents too.
const CLIENT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

fn custom_is_aggregated(lab: &Lab, group: &str, accept: &str) -> Result<()> {
    let one = definition(group, "Testcrd", "Namespaced", &[version("v1", true, &anything())]);
    let _one = defined(lab, &one)?;
    let group = format!("{group}.example.com");
    lab.until("it is discovered", SOON, || {
        shown(&aggregate(lab, "/apis", accept)?, (&group, "v1", "testcrds")).map(|()| true)
    })
}

// [sig-api-machinery] AggregatedDiscovery should support aggregated discovery interface for CRDs [Conformance]
fn aggregated_custom(lab: &Lab) -> Result<()> {
    custom_is_aggregated(lab, "aggregated-custom", CLIENT)
}

// [sig-api-machinery] AggregatedDiscovery should support raw aggregated discovery request for CRDs [Conformance]
fn aggregated_custom_raw(lab: &Lab) -> Result<()> {
    custom_is_aggregated(lab, "aggregated-custom-raw", AGGREGATED)
}
