//! Kinds and documents of other SIGs that the node's suite can show whole, because they are the API alone.

use anyhow::{Context, Result, ensure};
use http::Method;
use keelson_tests::api::Patch;
use keelson_tests::lab::Lab;
use serde_json::{Value, json};

use super::verbs::Kind;

tests![
    flow_schemas,
    priority_levels,
    policies,
    policy_bindings,
    ingresses,
    ingress_classes,
    endpoint_slices,
    csi_drivers,
    csi_nodes,
    csi_capacities,
    storage_classes,
    attributes_classes,
    attachments,
    attachment_status,
    priority_classes,
    events,
    event_collection,
    new_events,
    new_event_collection,
    version,
    preferred_versions,
    group_versions,
];

fn cluster<'a>(api: &'a str, kind: &'a str, plural: &'a str, body: Value) -> Kind<'a> {
    Kind { api, kind, plural, namespace: None, body }
}

fn all_verbs(lab: &Lab, kind: &Kind<'_>) -> Result<()> {
    kind.discovered(lab)?;
    kind.verbs(lab)
}

const FLOW: &str = "flowcontrol.apiserver.k8s.io/v1";

// [sig-api-machinery] API priority and fairness should support FlowSchema API operations [Conformance]
fn flow_schemas(lab: &Lab) -> Result<()> {
    let subject = json!({ "kind": "User", "user": { "name": "nobody-here" } });
    let rule = json!({ "subjects": [subject],
        "nonResourceRules": [{ "verbs": ["get"], "nonResourceURLs": ["/nothing"] }] });
    let spec = json!({ "priorityLevelConfiguration": { "name": "global-default" }, "matchingPrecedence": 9000,
        "distinguisherMethod": { "type": "ByUser" }, "rules": [rule] });
    let kind = cluster(FLOW, "FlowSchema", "flowschemas", json!({ "spec": spec }));
    kind.with_status(lab)?;
    all_verbs(lab, &kind)
}

// [sig-api-machinery] API priority and fairness should support PriorityLevelConfiguration API operations [Conformance]
fn priority_levels(lab: &Lab) -> Result<()> {
    let limited = json!({ "nominalConcurrencyShares": 2, "limitResponse": { "type": "Reject" } });
    let spec = json!({ "type": "Limited", "limited": limited });
    let plural = "prioritylevelconfigurations";
    let kind = cluster(FLOW, "PriorityLevelConfiguration", plural, json!({ "spec": spec }));
    kind.with_status(lab)?;
    all_verbs(lab, &kind)
}

const ADMISSION: &str = "admissionregistration.k8s.io/v1";

// [sig-api-machinery] ValidatingAdmissionPolicy [Privileged:ClusterAdmin] should support ValidatingAdmissionPolicy API operations [Conformance]
fn policies(lab: &Lab) -> Result<()> {
    let rule = json!({ "apiGroups": ["nobody.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["things"] });
    let spec = json!({ "matchConstraints": { "resourceRules": [rule] }, "validations": [{ "expression": "true" }] });
    let plural = "validatingadmissionpolicies";
    let kind = cluster(ADMISSION, "ValidatingAdmissionPolicy", plural, json!({ "spec": spec }));
    kind.with_status(lab)?;
    all_verbs(lab, &kind)
}

// [sig-api-machinery] ValidatingAdmissionPolicy [Privileged:ClusterAdmin] should support ValidatingAdmissionPolicyBinding API operations [Conformance]
fn policy_bindings(lab: &Lab) -> Result<()> {
    let body = json!({ "spec": { "policyName": "nothing.example.com", "validationActions": ["Deny"] } });
    let plural = "validatingadmissionpolicybindings";
    all_verbs(lab, &cluster(ADMISSION, "ValidatingAdmissionPolicyBinding", plural, body))
}

const NETWORKING: &str = "networking.k8s.io/v1";

// [sig-network] Ingress API should support creating Ingress API operations [Conformance]
fn ingresses(lab: &Lab) -> Result<()> {
    let space = lab.quarter("ingresses")?;
    let body = json!({ "spec": { "defaultBackend": { "service": { "name": "none", "port": { "number": 80 } } } } });
    let namespace = Some(space.name.as_str());
    let kind = Kind { api: NETWORKING, kind: "Ingress", plural: "ingresses", namespace, body };
    kind.with_status(lab)?;
    all_verbs(lab, &kind)?;
    let path = "networking.k8s.io/v1/ingresses";
    space.make(path, &kind.object("told", "status"))?;
    let status = format!("{path}/told/status");
    let given = |ip: &str| json!({ "loadBalancer": { "ingress": [{ "ip": ip }] } });
    let patched = space.merge(&status, &json!({ "status": given("169.1.1.1") }))?;
    ensure!(patched["status"] == given("169.1.1.1"), "{patched}");
    let mut ingress = space.read(&status)?;
    ingress["status"] = given("169.1.1.2");
    let updated = space.put(&status, &ingress)?;
    ensure!(updated["status"] == given("169.1.1.2"), "{updated}");
    Ok(())
}

// [sig-network] IngressClass API should support creating IngressClass API operations [Conformance]
fn ingress_classes(lab: &Lab) -> Result<()> {
    let body = json!({ "spec": { "controller": "example.com/controller" } });
    all_verbs(lab, &cluster(NETWORKING, "IngressClass", "ingressclasses", body))
}

// [sig-network] EndpointSlice should support creating EndpointSlice API operations [Conformance]
fn endpoint_slices(lab: &Lab) -> Result<()> {
    let space = lab.quarter("endpoint-slices")?;
    let body = json!({ "addressType": "IPv4", "endpoints": [{ "addresses": ["1.2.3.4", "5.6.7.8"] }] });
    let namespace = Some(space.name.as_str());
    all_verbs(
        lab,
        &Kind { api: "discovery.k8s.io/v1", kind: "EndpointSlice", plural: "endpointslices", namespace, body },
    )
}

const STORAGE: &str = "storage.k8s.io/v1";

// [sig-storage] CSIInlineVolumes should run through the lifecycle of a CSIDriver [Conformance]
fn csi_drivers(lab: &Lab) -> Result<()> {
    let body = json!({ "spec": { "volumeLifecycleModes": ["Ephemeral"] } });
    all_verbs(lab, &cluster(STORAGE, "CSIDriver", "csidrivers", body))
}

// [sig-storage] CSINodes CSI Conformance should run through the lifecycle of a csinode [Conformance]
fn csi_nodes(lab: &Lab) -> Result<()> {
    let driver = json!({ "name": "driver.example.com", "nodeID": "node", "topologyKeys": ["zone"] });
    all_verbs(lab, &cluster(STORAGE, "CSINode", "csinodes", json!({ "spec": { "drivers": [driver] } })))
}

// [sig-storage] CSIStorageCapacity should support CSIStorageCapacities API operations [Conformance]
fn csi_capacities(lab: &Lab) -> Result<()> {
    let space = lab.quarter("csi-capacities")?;
    let body = json!({ "storageClassName": "some-class", "capacity": "1Gi" });
    let namespace = Some(space.name.as_str());
    all_verbs(lab, &Kind { api: STORAGE, kind: "CSIStorageCapacity", plural: "csistoragecapacities", namespace, body })
}

// [sig-storage] StorageClasses CSI Conformance should run through the lifecycle of a StorageClass [Conformance]
fn storage_classes(lab: &Lab) -> Result<()> {
    all_verbs(lab, &cluster(STORAGE, "StorageClass", "storageclasses", json!({ "provisioner": "csi.example.com" })))
}

// [sig-storage] VolumeAttributesClass [FeatureGate:VolumeAttributesClass] should run through the lifecycle of a VolumeAttributesClass [Conformance]
fn attributes_classes(lab: &Lab) -> Result<()> {
    let body = json!({ "driverName": "csi.example.com", "parameters": { "iops": "100" } });
    all_verbs(lab, &cluster(STORAGE, "VolumeAttributesClass", "volumeattributesclasses", body))
}

fn attachment() -> Kind<'static> {
    let spec =
        json!({ "attacher": "csi.example.com", "nodeName": "nobody", "source": { "persistentVolumeName": "none" } });
    cluster(STORAGE, "VolumeAttachment", "volumeattachments", json!({ "spec": spec }))
}

// [sig-storage] VolumeAttachment Conformance should run through the lifecycle of a VolumeAttachment [Conformance]
fn attachments(lab: &Lab) -> Result<()> {
    all_verbs(lab, &attachment())
}

// [sig-storage] VolumeAttachment Conformance should apply changes to a volumeattachment status [Conformance]
fn attachment_status(lab: &Lab) -> Result<()> {
    let (api, kind) = (lab.api()?, attachment());
    api.create(&kind.collection(), &kind.object("told", "status"))?;
    let one = format!("{}/told", kind.collection());
    let status = format!("{one}/status");
    let patched = api.patch(&one, Patch::Merge, &json!({ "metadata": { "labels": { "patched": "true" } } }))?;
    ensure!(patched["metadata"]["labels"]["patched"] == "true", "{patched}");
    ensure!(api.get(&status)?["status"]["attached"] == false, "{}", api.get(&status)?);
    let patched = api.patch(&status, Patch::Merge, &json!({ "status": { "attached": true } }))?;
    ensure!(patched["status"]["attached"] == true, "{patched}");
    let mut read = api.get(&status)?;
    read["status"]["attached"] = json!(false);
    let updated = api.replace(&status, &read)?;
    ensure!(updated["status"]["attached"] == false, "{updated}");
    api.delete(&one)?;
    api.absent(&one)
}

// [sig-scheduling] SchedulerPreemption [Serial] PriorityClass endpoints verify PriorityClass endpoints can be operated with different HTTP methods [Conformance]
fn priority_classes(lab: &Lab) -> Result<()> {
    let kind = cluster("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", json!({ "value": 77 }));
    all_verbs(lab, &kind)?;
    let (api, one) = (lab.api()?, format!("{}/fixed", kind.collection()));
    api.create(&kind.collection(), &kind.object("fixed", "fixed"))?;
    let patched = api.patch(&one, Patch::Merge, &json!({ "description": "patched" }))?;
    ensure!(patched["description"] == "patched", "{patched}");
    let mut changed = api.get(&one)?;
    changed["description"] = json!("updated");
    ensure!(api.replace(&one, &changed)?["description"] == "updated");
    let mut changed = api.get(&one)?;
    changed["value"] = json!(78);
    api.refused(&Method::PUT, &one, Some(&changed), 422)?;
    ensure!(api.patch(&one, Patch::Merge, &json!({ "value": 78 })).is_err(), "the value was patched");
    ensure!(api.get(&one)?["value"] == 77);
    api.delete(&one).map(drop)
}

fn core_event(space: &str, name: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "testevent-constant": "true" } }, "reason": "Test", "type": "Normal",
        "message": "This is a test event", "count": 1, "source": { "component": "test" },
        "involvedObject": { "namespace": space, "kind": "Pod", "name": "nobody" } })
}

// [sig-instrumentation] Events should manage the lifecycle of an event [Conformance]
fn events(lab: &Lab) -> Result<()> {
    let space = lab.quarter("events-core")?;
    let everywhere = || lab.api()?.names("/api/v1/events?labelSelector=testevent-constant=true,alone=yes");
    let mut event = core_event(&space.name, "told");
    event["metadata"]["labels"]["alone"] = json!("yes");
    space.make("events", &event)?;
    ensure!(everywhere()? == ["told"]);
    space.amend("events/told", &json!({ "message": "patched" }))?;
    ensure!(space.read("events/told")?["message"] == "patched");
    let mut read = space.read("events/told")?;
    read["series"] = json!({ "count": 100, "lastObservedTime": "2026-01-02T03:04:05.000006Z" });
    space.put("events/told", &read)?;
    ensure!(space.read("events/told")?["series"] == read["series"], "{}", space.read("events/told")?);
    space.remove("events/told")?;
    ensure!(everywhere()?.is_empty());
    Ok(())
}

// [sig-instrumentation] Events should delete a collection of events [Conformance]
fn event_collection(lab: &Lab) -> Result<()> {
    let space = lab.quarter("events-core-set")?;
    for name in ["one", "two", "three"] {
        space.make("events", &core_event(&space.name, name))?;
    }
    let selected = || lab.api()?.names(&space.url("events?labelSelector=testevent-constant=true"));
    ensure!(selected()?.len() == 3, "{:?}", selected()?);
    space.remove("events?labelSelector=testevent-constant=true")?;
    lab.until("they are gone", 20, || Ok(selected()?.is_empty()))
}

const EVENTS: &str = "events.k8s.io/v1/events";

fn new_event(space: &str, name: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "testevent-set": "true" } }, "reason": "Test", "type": "Normal",
        "note": "This is a test event", "action": "Do", "eventTime": "2026-01-02T03:04:05.000006Z",
        "reportingController": "test-controller", "reportingInstance": "test-node",
        "regarding": { "namespace": space, "kind": "Pod", "name": "nobody" } })
}

// [sig-instrumentation] Events API should ensure that an event can be fetched, patched, deleted, and listed [Conformance]
fn new_events(lab: &Lab) -> Result<()> {
    let space = lab.quarter("events-new")?;
    space.make(EVENTS, &new_event(&space.name, "told"))?;
    let one = format!("{EVENTS}/told");
    let names = |path: &str| lab.api()?.names(path);
    ensure!(names(&space.url(EVENTS))? == ["told"]);
    ensure!(names("/apis/events.k8s.io/v1/events")?.contains(&"told".to_owned()));
    // The same event in the older words.
    ensure!(space.read("events/told")?["message"] == "This is a test event", "{}", space.read("events/told")?);
    space.amend(&one, &json!({ "series": { "count": 2, "lastObservedTime": "2026-01-02T03:04:06.000000Z" } }))?;
    ensure!(space.read(&one)?["series"]["count"] == 2, "{}", space.read(&one)?);
    let mut read = space.read(&one)?;
    read["series"] = json!({ "count": 100, "lastObservedTime": "2026-01-02T03:04:07.000000Z" });
    space.put(&one, &read)?;
    ensure!(space.read(&one)?["series"] == read["series"], "{}", space.read(&one)?);
    space.remove(&one)?;
    ensure!(names(&space.url(EVENTS))?.is_empty());
    lab.api()?.absent(&space.url(&one))
}

// [sig-instrumentation] Events API should delete a collection of events [Conformance]
fn new_event_collection(lab: &Lab) -> Result<()> {
    let space = lab.quarter("events-new-set")?;
    for name in ["one", "two", "three"] {
        space.make(EVENTS, &new_event(&space.name, name))?;
    }
    let selected = || lab.api()?.names(&space.url(&format!("{EVENTS}?labelSelector=testevent-set=true")));
    ensure!(selected()?.len() == 3, "{:?}", selected()?);
    space.remove(&format!("{EVENTS}?labelSelector=testevent-set=true"))?;
    lab.until("they are gone", 20, || Ok(selected()?.is_empty()))
}

// [sig-api-machinery] server version should find the server version [Conformance]
fn version(lab: &Lab) -> Result<()> {
    let version = lab.api()?.get("/version")?;
    for part in ["major", "minor"] {
        let text = version[part].as_str().with_context(|| format!("no {part}: {version}"))?;
        ensure!(text.parse::<u32>().is_ok(), "{part} is no number: {text:?}");
    }
    Ok(())
}

/// All groups but those of custom kinds, which come and go with other tests.
fn groups(lab: &Lab) -> Result<Vec<Value>> {
    let list = lab.api()?.get("/apis")?;
    let mut groups = list["groups"].as_array().cloned().unwrap_or_default();
    groups.retain(|group| group["name"].as_str().is_some_and(|name| !name.ends_with(".example.com")));
    ensure!(!groups.is_empty(), "no groups: {list}");
    Ok(groups)
}

// [sig-api-machinery] Discovery should validate PreferredVersion for each APIGroup [Conformance]
fn preferred_versions(lab: &Lab) -> Result<()> {
    for group in groups(lab)? {
        let name = group["name"].as_str().unwrap_or_default();
        let document = lab.api()?.get(&format!("/apis/{name}"))?;
        let preferred = document["preferredVersion"].clone();
        let versions = document["versions"].as_array().cloned().unwrap_or_default();
        ensure!(preferred["groupVersion"].is_string() && versions.contains(&preferred), "{document}");
        ensure!(group["preferredVersion"] == preferred, "/apis and /apis/{name} do not agree");
    }
    Ok(())
}

// [sig-api-machinery] Discovery should locate the groupVersion and a resource within each APIGroup [Conformance]
fn group_versions(lab: &Lab) -> Result<()> {
    for group in groups(lab)? {
        for version in group["versions"].as_array().into_iter().flatten() {
            let name = version["groupVersion"].as_str().unwrap_or_default();
            let list = lab.api()?.get(&format!("/apis/{name}"))?;
            ensure!(list["kind"] == "APIResourceList" && list["groupVersion"] == name, "{list}");
            let resources = list["resources"].as_array().cloned().unwrap_or_default();
            let valid = |r: &Value| {
                ["name", "kind", "verbs"].iter().all(|key| !r[*key].is_null()) && r["namespaced"].is_boolean()
            };
            ensure!(!resources.is_empty() && resources.iter().all(valid), "{list}");
        }
    }
    Ok(())
}
