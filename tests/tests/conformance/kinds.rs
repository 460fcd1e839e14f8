//! Kinds that are little more than storage: every verb of the API on each.

use anyhow::{Result, ensure};
use keelson_tests::api::Patch;
use keelson_tests::lab::Lab;
use keelson_tests::objects::name_of;
use serde_json::{Value, json};

use super::verbs::Kind;

tests![
    runtime_classes,
    leases,
    node,
    pod_templates,
    pod_template_replaced,
    pod_template_collection,
    device_classes,
    resource_claims,
    resource_claim_templates,
    resource_slices,
];

// [sig-node] RuntimeClass should support RuntimeClasses API operations [Conformance]
fn runtime_classes(lab: &Lab) -> Result<()> {
    let body = json!({ "handler": "some-handler" });
    let kind = Kind { api: "node.k8s.io/v1", kind: "RuntimeClass", plural: "runtimeclasses", namespace: None, body };
    kind.discovered(lab)?;
    kind.verbs(lab)
}

// [sig-node] Lease lease API should be available [Conformance]
fn leases(lab: &Lab) -> Result<()> {
    let space = lab.quarter("leases")?;
    let leases = "coordination.k8s.io/v1/leases";
    let (one, two) = (format!("{leases}/lease"), format!("{leases}/lease2"));
    let spec = json!({ "holderIdentity": "holder", "leaseDurationSeconds": 30, "leaseTransitions": 0,
        "acquireTime": "2026-01-02T03:04:05.000006Z", "renewTime": "2026-01-02T03:04:06.500000Z" });
    let lease = |name: &str, labels: Value, spec: &Value| {
        json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "labels": labels }, "spec": spec })
    };
    space.make(leases, &lease("lease", json!({}), &spec))?;
    let mut read = space.read(&one)?;
    ensure!(read["spec"] == spec, "{}", read["spec"]);
    let other = json!({ "holderIdentity": "holder2", "leaseDurationSeconds": 60, "leaseTransitions": 1,
        "acquireTime": "2026-01-02T03:05:05.000000Z", "renewTime": "2026-01-02T03:05:06.000000Z" });
    read["spec"] = other.clone();
    space.put(&one, &read)?;
    ensure!(space.read(&one)?["spec"] == other);
    space.amend(&one, &json!({ "spec": { "leaseDurationSeconds": 70 } }))?;
    let mut patched = other;
    patched["leaseDurationSeconds"] = json!(70);
    ensure!(space.read(&one)?["spec"] == patched);
    space.make(leases, &lease("lease2", json!({ "deletecollection": "true" }), &spec))?;
    let names = |path: &str| lab.api()?.names(&space.url(path));
    ensure!(names(leases)? == ["lease", "lease2"]);
    space.remove(&format!("{leases}?labelSelector=deletecollection=true"))?;
    lab.api()?.absent(&space.url(&two))?;
    ensure!(names(leases)? == ["lease"]);
    space.remove(&one)?;
    lab.api()?.absent(&space.url(&one))
}

// [sig-node] Node Lifecycle should run through the lifecycle of a node [Conformance]
fn node(lab: &Lab) -> Result<()> {
    let api = lab.api()?;
    let (nodes, one) = ("/api/v1/nodes", "/api/v1/nodes/fake-node");
    // Nobody runs it, so nothing shall be put on it.
    let node = json!({ "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "fake-node" }, "spec": { "unschedulable": true },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
    let made = api.create(nodes, &node)?;
    ensure!(name_of(&made) == "fake-node" && name_of(&api.get(one)?) == "fake-node", "{made}");
    let patched = api.patch(one, Patch::Strategic, &json!({ "metadata": { "labels": { "fake-node": "patched" } } }))?;
    ensure!(patched["metadata"]["labels"]["fake-node"] == "patched", "{patched}");
    ensure!(api.names(&format!("{nodes}?labelSelector=fake-node=patched"))? == ["fake-node"]);
    lab.until("the label is replaced", 20, || {
        let mut node = api.get(one)?;
        node["metadata"]["labels"]["fake-node"] = json!("updated");
        api.replace(one, &node).map(|node| node["metadata"]["labels"]["fake-node"] == "updated")
    })?;
    ensure!(api.names(&format!("{nodes}?labelSelector=fake-node=updated"))? == ["fake-node"]);
    let watch = api.watch(&format!("{nodes}?fieldSelector=metadata.name=fake-node"), "")?;
    api.delete(one)?;
    watch.until("DELETED", 20, |node| name_of(node) == "fake-node")?;
    api.absent(one)
}

fn template(space: &str) -> Kind<'_> {
    let spec = json!({ "containers": [{ "name": "nginx", "image": "nginx:1.25" }] });
    let body = json!({ "template": { "metadata": { "labels": { "app": "web" } }, "spec": spec } });
    Kind { api: "v1", kind: "PodTemplate", plural: "podtemplates", namespace: Some(space), body }
}

// [sig-node] PodTemplates should run the lifecycle of PodTemplates [Conformance]
fn pod_templates(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-templates")?;
    template(&space.name).verbs(lab)?;
    // What is in it can be patched too.
    let kind = template(&space.name);
    space.make("podtemplates", &kind.object("patched", "life"))?;
    let patch = json!({ "metadata": { "labels": { "test": "later" } },
        "template": { "spec": { "containers": [{ "name": "nginx", "image": "busybox:1.28" }] } } });
    space.amend("podtemplates/patched", &patch)?;
    let read = space.read("podtemplates/patched")?;
    ensure!(read["template"]["spec"]["containers"][0]["image"] == "busybox:1.28", "{read}");
    let everywhere = lab.api()?.names("/api/v1/podtemplates?labelSelector=test=later")?;
    ensure!(everywhere == ["patched"], "{everywhere:?}");
    space.remove("podtemplates/patched")?;
    ensure!(lab.api()?.names("/api/v1/podtemplates?labelSelector=test=later")?.is_empty());
    Ok(())
}

// [sig-node] PodTemplates should replace a pod template [Conformance]
fn pod_template_replaced(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-template-put")?;
    let mut made = space.make("podtemplates", &template(&space.name).object("replaced", "put"))?;
    made["metadata"]["annotations"] = json!({ "updated": "true" });
    let answer = space.put("podtemplates/replaced", &made)?;
    let read = space.read("podtemplates/replaced")?;
    ensure!(answer == read && read["metadata"]["annotations"]["updated"] == "true", "{read}");
    Ok(())
}

// [sig-node] PodTemplates should delete a collection of pod templates [Conformance]
fn pod_template_collection(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-template-set")?;
    let kind = template(&space.name);
    for name in ["test-podtemplate-1", "test-podtemplate-2", "test-podtemplate-3"] {
        space.make("podtemplates", &kind.object(name, "set"))?;
    }
    space.make("podtemplates", &kind.object("other", "other"))?;
    let selected = "podtemplates?labelSelector=test=set";
    ensure!(lab.api()?.names(&space.url(selected))?.len() == 3);
    space.remove(selected)?;
    lab.until("the set is gone", 20, || Ok(lab.api()?.names(&space.url(selected))?.is_empty()))?;
    ensure!(lab.api()?.names(&space.url("podtemplates"))? == ["other"]);
    Ok(())
}

const RESOURCE: &str = "resource.k8s.io/v1";

fn request() -> Value {
    json!({ "devices": { "requests": [{ "name": "req-0", "exactly": { "deviceClassName": "some-class" } }] } })
}

// [sig-node] [DRA] CRUD Tests resource.k8s.io/v1 DeviceClass [Conformance]
fn device_classes(lab: &Lab) -> Result<()> {
    let selector = json!({ "cel": { "expression": "device.driver == \"driver.example.com\"" } });
    let body = json!({ "spec": { "selectors": [selector] } });
    let kind = Kind { api: RESOURCE, kind: "DeviceClass", plural: "deviceclasses", namespace: None, body };
    kind.discovered(lab)?;
    kind.verbs(lab)
}

// [sig-node] [DRA] CRUD Tests resource.k8s.io/v1 ResourceClaim [Conformance]
fn resource_claims(lab: &Lab) -> Result<()> {
    let space = lab.quarter("resource-claims")?;
    let namespace = Some(space.name.as_str());
    let body = json!({ "spec": request() });
    let kind = Kind { api: RESOURCE, kind: "ResourceClaim", plural: "resourceclaims", namespace, body };
    kind.discovered(lab)?;
    kind.verbs(lab)?;
    // The status is written apart from the rest; the spec stays as it was made.
    let claims = "resource.k8s.io/v1/resourceclaims";
    let mut claim = space.make(claims, &kind.object("claim", "status"))?;
    let reserved = json!({ "resource": "pods", "name": "some-pod", "uid": "0b6ee0b1-4a6b-4a0e-9a3c-3c8f0d6a7b11" });
    claim["status"] = json!({ "allocation": { "devices": {} }, "reservedFor": [reserved] });
    let written = space.put(&format!("{claims}/claim/status"), &claim)?;
    ensure!(written["status"]["reservedFor"][0]["name"] == "some-pod", "{written}");
    let mut read = space.read(&format!("{claims}/claim/status"))?;
    ensure!(read == written, "{read}");
    read["spec"]["devices"]["requests"][0]["name"] = json!("other");
    let url = space.url(&format!("{claims}/claim"));
    let said = lab.api()?.refused(&http::Method::PUT, &url, Some(&read), 422)?;
    ensure!(said["message"].as_str().is_some_and(|message| message.contains("field is immutable")), "{said}");
    Ok(())
}

// [sig-node] [DRA] CRUD Tests resource.k8s.io/v1 ResourceClaimTemplate [Conformance]
fn resource_claim_templates(lab: &Lab) -> Result<()> {
    let space = lab.quarter("resource-claim-templates")?;
    let namespace = Some(space.name.as_str());
    let body = json!({ "spec": { "spec": request() } });
    let kind = Kind { api: RESOURCE, kind: "ResourceClaimTemplate", plural: "resourceclaimtemplates", namespace, body };
    kind.discovered(lab)?;
    kind.verbs(lab)
}

// [sig-node] [DRA] CRUD Tests resource.k8s.io/v1 ResourceSlice [Conformance]
fn resource_slices(lab: &Lab) -> Result<()> {
    let pool = json!({ "name": "pool", "generation": 1, "resourceSliceCount": 1 });
    let body = json!({ "spec": { "driver": "driver.example.com", "pool": pool, "nodeName": "some-node",
        "devices": [{ "name": "device-0" }] } });
    let kind = Kind { api: RESOURCE, kind: "ResourceSlice", plural: "resourceslices", namespace: None, body };
    kind.discovered(lab)?;
    kind.verbs(lab)?;
    // What a driver's node component asks for.
    let slices = kind.collection();
    lab.api()?.create(&slices, &kind.object("selected", "selected"))?;
    let found =
        lab.api()?.names(&format!("{slices}?fieldSelector=spec.nodeName=some-node,spec.driver=driver.example.com"))?;
    ensure!(found == ["selected"], "{found:?}");
    ensure!(lab.api()?.names(&format!("{slices}?fieldSelector=spec.nodeName=another"))?.is_empty());
    lab.api()?.delete(&format!("{slices}/selected")).map(drop)
}
