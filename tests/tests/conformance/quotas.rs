//! ResourceQuotas: what they count, what they refuse and what they give back.

use anyhow::{Result, ensure};
use http::Method;
use keelson_tests::api::Patch;
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{idle, pod};
use serde_json::{Value, json};

tests![
    promptly,
    life_of_a_service,
    life_of_a_secret,
    life_of_a_pod,
    life_of_a_config_map,
    life_of_a_replication_controller,
    life_of_a_replica_set,
    terminating_scopes,
    best_effort_scopes,
    update_and_delete,
    lifecycle,
    status,
];

const DONGLE: &str = "example.com/dongle";
/// How long the count may lag behind, in seconds.
const SOON: u64 = 20;

/// A limit for everything that the tests make.
fn hard() -> Value {
    json!({ "pods": "5", "services": "10", "services.nodeports": "1", "services.loadbalancers": "1",
        "replicationcontrollers": "10", "resourcequotas": "1", "cpu": "1", "memory": "500Mi", "configmaps": "10",
        "secrets": "10", "persistentvolumeclaims": "10", "ephemeral-storage": "50Gi", "requests.storage": "10Gi",
        "count/replicasets.apps": "5", "requests.example.com/dongle": "3" })
}

fn quota(name: &str, hard: &Value, scopes: &[&str]) -> Value {
    let mut spec = json!({ "hard": hard });
    if !scopes.is_empty() {
        spec["scopes"] = json!(scopes);
    }
    json!({ "metadata": { "name": name }, "spec": spec })
}

/// Waits until the quota says its limits and that these amounts are used.
fn used(space: &Space<'_>, name: &str, wanted: &Value) -> Result<()> {
    let what = format!("{name} counts {wanted}");
    space.lab.until(&what, SOON, || {
        let quota = space.read(&format!("resourcequotas/{name}"))?;
        let all = wanted.as_object().into_iter().flatten().all(|(key, value)| quota["status"]["used"][key] == *value);
        ensure!(all && quota["status"]["hard"] == quota["spec"]["hard"], "{}", quota["status"]);
        Ok(true)
    })
}

/// A namespace with a quota for everything, which has counted itself.
fn limited<'a>(lab: &'a Lab, name: &str, hard: &Value) -> Result<Space<'a>> {
    let space = lab.quarter(name)?;
    space.make("resourcequotas", &quota("test-quota", hard, &[]))?;
    used(&space, "test-quota", &json!({ "resourcequotas": "1" }))?;
    Ok(space)
}

/// A creation that a quota must refuse.
fn too_much(space: &Space<'_>, path: &str, object: &Value) -> Result<()> {
    let said = space.lab.api()?.refused(&Method::POST, &space.url(path), Some(object), 403)?;
    ensure!(said["message"].as_str().is_some_and(|message| message.contains("exceeded quota: ")), "{said}");
    Ok(())
}

/// A pod that nobody places: admission is asked, nothing needs to run.
fn placeless(name: &str, resources: &Value) -> Value {
    let mut container = idle();
    container["resources"] = resources.clone();
    let mut pod = pod(name, container);
    pod["spec"]["schedulerName"] = json!("nobody");
    pod
}

fn kill(space: &Space<'_>, pod: &str) -> Result<()> {
    space.lab.api()?.delete_with(&space.url(&format!("pods/{pod}")), &json!({ "gracePeriodSeconds": 0 })).map(drop)
}

// [sig-api-machinery] ResourceQuota should create a ResourceQuota and ensure its status is promptly calculated. [Conformance]
fn promptly(lab: &Lab) -> Result<()> {
    limited(lab, "quota-promptly", &hard()).map(drop)
}

// [sig-api-machinery] ResourceQuota should create a ResourceQuota and capture the life of a service. [Conformance]
fn life_of_a_service(lab: &Lab) -> Result<()> {
    let space = limited(lab, "quota-services", &hard())?;
    let service = |name: &str, kind: &str| {
        let spec = json!({ "type": kind, "ports": [{ "port": 80, "targetPort": 80 }], "selector": { "app": "none" } });
        json!({ "metadata": { "name": name }, "spec": spec })
    };
    space.make("services", &service("plain", "ClusterIP"))?;
    space.make("services", &service("node-port", "NodePort"))?;
    // It would take a second node port.
    too_much(&space, "services", &service("balanced", "LoadBalancer"))?;
    used(&space, "test-quota", &json!({ "services": "2", "services.nodeports": "1", "services.loadbalancers": "0" }))?;
    space.remove("services/plain")?;
    space.remove("services/node-port")?;
    used(&space, "test-quota", &json!({ "services": "0", "services.nodeports": "0" }))
}

/// One object more than a namespace has by itself is counted, another is too much, and one that goes makes room.
fn life(lab: &Lab, name: &str, plural: &str, object: impl Fn(&str) -> Value) -> Result<()> {
    let space = lab.quarter(name)?;
    if plural == "configmaps" {
        lab.until("the namespace has its certificate", 20, || space.read("configmaps/kube-root-ca.crt").map(|_| true))?;
    }
    let own = lab.api()?.names(&space.url(plural))?.len();
    let mut limits = hard();
    limits[plural] = json!((own + 1).to_string());
    space.make("resourcequotas", &quota("test-quota", &limits, &[]))?;
    used(&space, "test-quota", &json!({ "resourcequotas": "1", plural: own.to_string() }))?;
    space.make(plural, &object("one"))?;
    used(&space, "test-quota", &json!({ plural: (own + 1).to_string() }))?;
    too_much(&space, plural, &object("another"))?;
    space.remove(&format!("{plural}/one"))?;
    used(&space, "test-quota", &json!({ plural: own.to_string() }))
}

// [sig-api-machinery] ResourceQuota should create a ResourceQuota and capture the life of a secret. [Conformance]
fn life_of_a_secret(lab: &Lab) -> Result<()> {
    life(
        lab,
        "quota-secrets",
        "secrets",
        |name| json!({ "metadata": { "name": name }, "stringData": { "data-1": "value-1" } }),
    )
}

// [sig-api-machinery] ResourceQuota should create a ResourceQuota and capture the life of a configMap. [Conformance]
fn life_of_a_config_map(lab: &Lab) -> Result<()> {
    life(lab, "quota-maps", "configmaps", |name| json!({ "metadata": { "name": name }, "data": { "a": "b" } }))
}

// [sig-api-machinery] ResourceQuota should create a ResourceQuota and capture the life of a pod. [Conformance]
fn life_of_a_pod(lab: &Lab) -> Result<()> {
    let space = limited(lab, "quota-pods", &hard())?;
    let requests = json!({ "cpu": "500m", "memory": "252Mi", "ephemeral-storage": "30Gi", DONGLE: "2" });
    let fits = json!({ "requests": requests, "limits": { DONGLE: "2" } });
    let mut made = space.make("pods", &placeless("fits", &fits))?;
    let counted = json!({ "resourcequotas": "1", "pods": "1", "cpu": "500m", "memory": "252Mi",
        "ephemeral-storage": "30Gi", "requests.example.com/dongle": "2" });
    used(&space, "test-quota", &counted)?;
    let large = json!({ "requests": { "cpu": "600m", "memory": "100Mi", "ephemeral-storage": "1Gi" } });
    too_much(&space, "pods", &placeless("large", &large))?;
    let dongles = json!({ "requests": { "cpu": "100m", "memory": "100Mi", "ephemeral-storage": "1Gi", DONGLE: "2" },
        "limits": { DONGLE: "2" } });
    too_much(&space, "pods", &placeless("dongles", &dongles))?;
    // What a pod asks for stays as it was.
    made["spec"]["containers"][0]["resources"]["requests"] =
        json!({ "cpu": "100m", "memory": "100Mi", "ephemeral-storage": "10Gi" });
    lab.api()?.refused(&Method::PUT, &space.url("pods/fits"), Some(&made), 422)?;
    used(&space, "test-quota", &counted)?;
    kill(&space, "fits")?;
    let nothing = json!({ "resourcequotas": "1", "pods": "0", "cpu": "0", "memory": "0", "ephemeral-storage": "0",
        "requests.example.com/dongle": "0" });
    used(&space, "test-quota", &nothing)
}

/// A controller of no pods.
fn controller(name: &str, selector: &Value) -> Value {
    let spec = json!({ "containers": [{ "name": "main", "image": "busybox:1.28" }] });
    let template = json!({ "metadata": { "labels": { "name": name } }, "spec": spec });
    json!({ "metadata": { "name": name }, "spec": { "replicas": 0, "selector": selector, "template": template } })
}

// [sig-api-machinery] ResourceQuota should create a ResourceQuota and capture the life of a replication controller. [Conformance]
fn life_of_a_replication_controller(lab: &Lab) -> Result<()> {
    let space = limited(lab, "quota-controllers", &hard())?;
    used(&space, "test-quota", &json!({ "replicationcontrollers": "0" }))?;
    space.make("replicationcontrollers", &controller("counted", &json!({ "name": "counted" })))?;
    used(&space, "test-quota", &json!({ "replicationcontrollers": "1" }))?;
    space.remove("replicationcontrollers/counted")?;
    used(&space, "test-quota", &json!({ "replicationcontrollers": "0" }))
}

// [sig-api-machinery] ResourceQuota should create a ResourceQuota and capture the life of a replica set. [Conformance]
fn life_of_a_replica_set(lab: &Lab) -> Result<()> {
    let space = limited(lab, "quota-sets", &hard())?;
    used(&space, "test-quota", &json!({ "count/replicasets.apps": "0" }))?;
    space.make("apps/v1/replicasets", &controller("counted", &json!({ "matchLabels": { "name": "counted" } })))?;
    used(&space, "test-quota", &json!({ "count/replicasets.apps": "1" }))?;
    space.remove("apps/v1/replicasets/counted")?;
    used(&space, "test-quota", &json!({ "count/replicasets.apps": "0" }))
}

/// A pod is counted by one quota and not by the other, until it goes.
fn counted_by(space: &Space<'_>, pod: &Value, amounts: &Value, [one, other]: [&str; 2]) -> Result<()> {
    space.make("pods", pod)?;
    used(space, one, amounts)?;
    let zero: serde_json::Map<String, Value> =
        amounts.as_object().into_iter().flatten().map(|(key, _)| (key.clone(), json!("0"))).collect();
    let zero = Value::Object(zero);
    used(space, other, &zero)?;
    kill(space, keelson_tests::objects::name_of(pod))?;
    used(space, one, &zero)
}

// [sig-api-machinery] ResourceQuota should verify ResourceQuota with terminating scopes. [Conformance]
fn terminating_scopes(lab: &Lab) -> Result<()> {
    let space = lab.quarter("quota-terminating")?;
    let limits = json!({ "pods": "5", "requests.cpu": "1", "requests.memory": "500Mi", "limits.cpu": "2",
        "limits.memory": "1Gi" });
    let names = ["quota-terminating", "quota-not-terminating"];
    for (name, scope) in names.iter().zip(["Terminating", "NotTerminating"]) {
        space.make("resourcequotas", &quota(name, &limits, &[scope]))?;
        used(&space, name, &json!({ "pods": "0" }))?;
    }
    let resources =
        json!({ "requests": { "cpu": "500m", "memory": "200Mi" }, "limits": { "cpu": "1", "memory": "400Mi" } });
    let amounts = json!({ "pods": "1", "requests.cpu": "500m", "requests.memory": "200Mi", "limits.cpu": "1",
        "limits.memory": "400Mi" });
    counted_by(&space, &placeless("lasting", &resources), &amounts, [names[1], names[0]])?;
    let mut ending = placeless("ending", &resources);
    ending["spec"]["activeDeadlineSeconds"] = json!(3600);
    counted_by(&space, &ending, &amounts, names)
}

// [sig-api-machinery] ResourceQuota should verify ResourceQuota with best effort scope. [Conformance]
fn best_effort_scopes(lab: &Lab) -> Result<()> {
    let space = lab.quarter("quota-best-effort")?;
    let names = ["quota-besteffort", "quota-not-besteffort"];
    for (name, scope) in names.iter().zip(["BestEffort", "NotBestEffort"]) {
        space.make("resourcequotas", &quota(name, &json!({ "pods": "5" }), &[scope]))?;
        used(&space, name, &json!({ "pods": "0" }))?;
    }
    let one = json!({ "pods": "1" });
    counted_by(&space, &placeless("best", &json!({})), &one, names)?;
    let resources =
        json!({ "requests": { "cpu": "500m", "memory": "200Mi" }, "limits": { "cpu": "1", "memory": "400Mi" } });
    counted_by(&space, &placeless("burstable", &resources), &one, [names[1], names[0]])
}

// [sig-api-machinery] ResourceQuota should be able to update and delete ResourceQuota. [Conformance]
fn update_and_delete(lab: &Lab) -> Result<()> {
    let space = lab.quarter("quota-update")?;
    let made = space.make("resourcequotas", &quota("test-quota", &json!({ "cpu": "1", "memory": "500Mi" }), &[]))?;
    ensure!(made["spec"]["hard"] == json!({ "cpu": "1", "memory": "500Mi" }), "{made}");
    let new = json!({ "cpu": "2", "memory": "1Gi" });
    lab.wait("the quota is replaced", SOON, || {
        let mut read = space.read("resourcequotas/test-quota")?;
        read["spec"]["hard"] = new.clone();
        let answer = space.put("resourcequotas/test-quota", &read)?;
        ensure!(answer["spec"]["hard"] == new, "{answer}");
        Ok(Some(()))
    })?;
    ensure!(space.read("resourcequotas/test-quota")?["spec"]["hard"] == new);
    space.remove("resourcequotas/test-quota")?;
    lab.api()?.absent(&space.url("resourcequotas/test-quota"))
}

// [sig-api-machinery] ResourceQuota should manage the lifecycle of a ResourceQuota [Conformance]
fn lifecycle(lab: &Lab) -> Result<()> {
    let space = lab.quarter("quota-life")?;
    let mut object = quota("living", &json!({ "cpu": "1", "memory": "500Mi" }), &[]);
    object["metadata"]["labels"] = json!({ "quota": "living" });
    space.make("resourcequotas", &object)?;
    ensure!(space.read("resourcequotas/living")?["spec"]["hard"]["memory"] == "500Mi");
    let everywhere = "/api/v1/resourcequotas?labelSelector=quota=living";
    ensure!(lab.api()?.names(everywhere)? == ["living"]);
    let patch = json!({ "metadata": { "labels": { "living": "patched" } }, "spec": { "hard": { "memory": "750Mi" } } });
    let patched = space.amend("resourcequotas/living", &patch)?;
    ensure!(patched["metadata"]["labels"]["living"] == "patched", "{patched}");
    ensure!(patched["spec"]["hard"] == json!({ "cpu": "1", "memory": "750Mi" }), "{patched}");
    space.remove("resourcequotas?labelSelector=living=patched")?;
    lab.until("the collection is gone", SOON, || Ok(lab.api()?.names(everywhere)?.is_empty()))
}

// [sig-api-machinery] ResourceQuota should apply changes to a resourcequota status [Conformance]
fn status(lab: &Lab) -> Result<()> {
    let space = lab.quarter("quota-status")?;
    let first = json!({ "cpu": "500m", "memory": "500Mi" });
    space.make("resourcequotas", &quota("told", &first, &[]))?;
    let path = "resourcequotas/told";
    let is = |hard: &Value| {
        lab.until(&format!("the status says {hard}"), SOON, || Ok(space.read(path)?["status"]["hard"] == *hard))
    };
    is(&first)?;
    // Whatever is written into the status, it is counted again, and the spec is not touched.
    let wrong = json!({ "cpu": "1", "memory": "1Gi" });
    let watch = lab.api()?.watch(&space.url("resourcequotas"), "")?;
    lab.wait("the status is replaced", SOON, || {
        let mut read = space.read(path)?;
        read["status"]["hard"] = wrong.clone();
        let answer = space.put(&format!("{path}/status"), &read)?;
        ensure!(answer["status"]["hard"] == wrong && answer["spec"]["hard"] == first, "{answer}");
        Ok(Some(()))
    })?;
    watch.until("MODIFIED", SOON, |quota| quota["status"]["hard"] == wrong)?;
    is(&first)?;
    let second = json!({ "cpu": "1", "memory": "1Gi" });
    let patched = space.merge(path, &json!({ "spec": { "hard": second } }))?;
    ensure!(patched["spec"]["hard"] == second, "{patched}");
    is(&second)?;
    let url = space.url(&format!("{path}/status"));
    for more in [json!({ "cpu": "2", "memory": "2Gi" }), json!({ "cpu": "3", "memory": "3Gi" })] {
        let answer = lab.api()?.patch(&url, Patch::Merge, &json!({ "status": { "hard": more } }))?;
        ensure!(answer["status"]["hard"] == more && answer["spec"]["hard"] == second, "{answer}");
        is(&second)?;
        let read = lab.api()?.get(&url)?;
        ensure!(read["status"]["hard"] == second && read["spec"]["hard"] == second, "{read}");
    }
    Ok(())
}
