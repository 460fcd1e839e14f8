//! The garbage collector: what goes with its owner, what stays, and in which order.

use anyhow::{Result, ensure};
use keelson_tests::api::Patch;
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{idle, name_of, pod};
use serde_json::{Value, json};

tests![
    pods_go_with_their_controller,
    pods_are_orphaned,
    sets_go_with_their_deployment,
    sets_are_orphaned,
    owners_stay_until_dependents_are_gone,
    two_owners,
    a_circle,
];

/// Seconds for a collection.
const SOON: u64 = 40;
const CONTROLLERS: &str = "replicationcontrollers";

fn template(name: &str) -> Value {
    let mut spec = pod(name, idle())["spec"].take();
    // Nothing needs to run: what is collected are objects.
    spec["schedulerName"] = json!("nobody");
    spec["restartPolicy"] = json!("Always");
    json!({ "metadata": { "labels": { "app": name } }, "spec": spec })
}

/// A replication controller that has made its pods.
fn controller(space: &Space<'_>, name: &str, replicas: usize) -> Result<Value> {
    let spec = json!({ "replicas": replicas, "selector": { "app": name }, "template": template(name) });
    space.make(CONTROLLERS, &json!({ "metadata": { "name": name }, "spec": spec }))?;
    space.lab.wait(&format!("{name} has made its pods"), SOON, || {
        let read = space.read(&format!("{CONTROLLERS}/{name}"))?;
        let told = read["status"]["replicas"].as_u64().unwrap_or_default();
        Ok((told == replicas as u64 && pods(space)?.len() >= replicas).then_some(read))
    })
}

fn pods(space: &Space<'_>) -> Result<Vec<Value>> {
    Ok(space.read("pods")?["items"].as_array().cloned().unwrap_or_default())
}

fn delete(space: &Space<'_>, path: &str, policy: &str) -> Result<()> {
    space.lab.api()?.delete_with(&space.url(path), &json!({ "propagationPolicy": policy })).map(drop)
}

fn gone(space: &Space<'_>, path: &str) -> Result<()> {
    let url = space.url(path);
    space.lab.until(&format!("{path} is gone"), SOON, || space.lab.api()?.absent(&url).map(|()| true))
}

/// Nothing is taken away from a list for a while.
fn stays(space: &Space<'_>, path: &str, count: usize) -> Result<()> {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while std::time::Instant::now() < end {
        let list = space.read(path)?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let all = items.len() == count && items.iter().all(|item| item["metadata"].get("deletionTimestamp").is_none());
        ensure!(all, "{path}: {count} were to stay: {list}");
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    Ok(())
}

// [sig-api-machinery] Garbage collector should delete pods created by rc when not orphaning [Conformance]
fn pods_go_with_their_controller(lab: &Lab) -> Result<()> {
    let space = lab.quarter("collect-pods")?;
    controller(&space, "owner", 2)?;
    delete(&space, &format!("{CONTROLLERS}/owner"), "Background")?;
    gone(&space, &format!("{CONTROLLERS}/owner"))?;
    lab.until("its pods are gone", SOON, || Ok(pods(&space)?.is_empty()))
}

// [sig-api-machinery] Garbage collector should orphan pods created by rc if delete options say so [Serial] [Conformance]
fn pods_are_orphaned(lab: &Lab) -> Result<()> {
    let space = lab.quarter("orphan-pods")?;
    controller(&space, "owner", 10)?;
    delete(&space, &format!("{CONTROLLERS}/owner"), "Orphan")?;
    gone(&space, &format!("{CONTROLLERS}/owner"))?;
    let owned = pods(&space)?.into_iter().find(|pod| pod["metadata"].get("ownerReferences").is_some());
    ensure!(owned.is_none(), "it still names its owner: {owned:?}");
    stays(&space, "pods", 10)
}

/// A deployment that has made its replica set, and this its pods.
fn deployed(space: &Space<'_>) -> Result<()> {
    let selector = json!({ "matchLabels": { "app": "owner" } });
    let spec = json!({ "replicas": 2, "selector": selector, "template": template("owner") });
    space.make("apps/v1/deployments", &json!({ "metadata": { "name": "owner" }, "spec": spec }))?;
    space.lab.until("it has a replica set and pods", SOON, || {
        let sets = space.read("apps/v1/replicasets")?;
        Ok(sets["items"].as_array().is_some_and(|sets| sets.len() == 1) && pods(space)?.len() == 2)
    })
}

// [sig-api-machinery] Garbage collector should delete RS created by deployment when not orphaning [Conformance]
fn sets_go_with_their_deployment(lab: &Lab) -> Result<()> {
    let space = lab.quarter("collect-sets")?;
    deployed(&space)?;
    delete(&space, "apps/v1/deployments/owner", "Background")?;
    gone(&space, "apps/v1/deployments/owner")?;
    lab.until("the replica set and its pods are gone", SOON, || {
        Ok(lab.api()?.names(&space.url("apps/v1/replicasets"))?.is_empty() && pods(&space)?.is_empty())
    })
}

// [sig-api-machinery] Garbage collector should orphan RS created by deployment when deleteOptions.PropagationPolicy is Orphan [Conformance]
fn sets_are_orphaned(lab: &Lab) -> Result<()> {
    let space = lab.quarter("orphan-sets")?;
    deployed(&space)?;
    delete(&space, "apps/v1/deployments/owner", "Orphan")?;
    gone(&space, "apps/v1/deployments/owner")?;
    stays(&space, "apps/v1/replicasets", 1)?;
    let set = space.read("apps/v1/replicasets")?["items"][0].take();
    ensure!(set["metadata"].get("ownerReferences").is_none(), "it still names its owner: {set}");
    // The pods are the set's as before.
    let pods = pods(&space)?;
    let owned = |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"] == set["metadata"]["uid"];
    ensure!(pods.len() == 2 && pods.iter().all(owned), "{pods:?}");
    Ok(())
}

/// Keeps an object from going, or lets it go.
fn hold(space: &Space<'_>, pod: &str, held: bool) -> Result<Value> {
    let finalizers = if held { json!(["example.com/held"]) } else { json!([]) };
    space.merge(&format!("pods/{pod}"), &json!({ "metadata": { "finalizers": finalizers } }))
}

// [sig-api-machinery] Garbage collector should keep the rc around until all its pods are deleted if the deleteOptions says so [Serial] [Conformance]
fn owners_stay_until_dependents_are_gone(lab: &Lab) -> Result<()> {
    let space = lab.quarter("collect-foreground")?;
    controller(&space, "owner", 10)?;
    let last = name_of(&pods(&space)?[0]).to_owned();
    hold(&space, &last, true)?;
    delete(&space, &format!("{CONTROLLERS}/owner"), "Foreground")?;
    lab.until("one pod is left", SOON, || Ok(pods(&space)?.len() == 1))?;
    let owner = space.read(&format!("{CONTROLLERS}/owner"))?;
    let waits = owner["metadata"]["deletionTimestamp"].is_string()
        && owner["metadata"]["finalizers"].as_array().is_some_and(|all| all.contains(&json!("foregroundDeletion")));
    ensure!(waits, "{}", owner["metadata"]);
    hold(&space, &last, false)?;
    gone(&space, &format!("{CONTROLLERS}/owner"))?;
    ensure!(pods(&space)?.is_empty(), "the controller went before its pods");
    Ok(())
}

// [sig-api-machinery] Garbage collector should not delete dependents that have both valid owner and owner that's waiting for dependents to be deleted [Serial] [Conformance]
fn two_owners(lab: &Lab) -> Result<()> {
    let space = lab.quarter("collect-two-owners")?;
    controller(&space, "going", 10)?;
    let staying = controller(&space, "staying", 0)?;
    let reference = json!({ "apiVersion": "v1", "kind": "ReplicationController", "name": "staying",
        "uid": staying["metadata"]["uid"] });
    let shared: Vec<String> = pods(&space)?.iter().take(5).map(|pod| name_of(pod).to_owned()).collect();
    for name in &shared {
        space.amend(&format!("pods/{name}"), &json!({ "metadata": { "ownerReferences": [reference] } }))?;
    }
    delete(&space, &format!("{CONTROLLERS}/going"), "Foreground")?;
    gone(&space, &format!("{CONTROLLERS}/going"))?;
    let left = pods(&space)?;
    let mut names: Vec<&str> = left.iter().map(name_of).collect();
    let mut wanted: Vec<&str> = shared.iter().map(String::as_str).collect();
    names.sort_unstable();
    wanted.sort_unstable();
    ensure!(names == wanted, "{names:?} instead of {wanted:?}");
    for pod in &left {
        ensure!(pod["metadata"].get("deletionTimestamp").is_none(), "{}", pod["metadata"]);
        let owners = pod["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        ensure!(owners.len() == 1 && owners[0]["uid"] == staying["metadata"]["uid"], "{owners:?}");
    }
    stays(&space, "pods", 5)
}

// [sig-api-machinery] Garbage collector should not be blocked by dependency circle [Conformance]
fn a_circle(lab: &Lab) -> Result<()> {
    let space = lab.quarter("collect-circle")?;
    let names = ["one", "two", "three"];
    let made: Vec<Value> = names.iter().map(|name| space.make("pods", &pod(name, idle()))).collect::<Result<_>>()?;
    for (at, name) in names.iter().enumerate() {
        let owner = &made[(at + 2) % 3];
        let reference = json!({ "apiVersion": "v1", "kind": "Pod", "name": name_of(owner), "uid": owner["metadata"]["uid"],
            "controller": true, "blockOwnerDeletion": true });
        space.amend(&format!("pods/{name}"), &json!({ "metadata": { "ownerReferences": [reference] } }))?;
    }
    delete(&space, "pods/one", "Foreground")?;
    for name in names {
        space.gone(name)?;
    }
    // Both of a circle at once, and one that owns itself.
    let maps = ["left", "right", "own"];
    let map = |name: &str| space.make("configmaps", &json!({ "metadata": { "name": name } }));
    let made: Vec<Value> = maps.iter().map(|name| map(name)).collect::<Result<_>>()?;
    for (name, owner) in [("left", &made[1]), ("right", &made[0]), ("own", &made[2])] {
        let reference = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": name_of(owner), "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": true });
        let held = json!({ "metadata": { "ownerReferences": [reference], "finalizers": ["example.com/held"] } });
        space.merge(&format!("configmaps/{name}"), &held)?;
    }
    for name in maps {
        delete(&space, &format!("configmaps/{name}"), "Foreground")?;
    }
    // Held until all of them wait for one another.
    let free = json!([
        { "op": "test", "path": "/metadata/finalizers/0", "value": "example.com/held" },
        { "op": "remove", "path": "/metadata/finalizers/0" },
    ]);
    for name in maps {
        space.lab.api()?.patch(&space.url(&format!("configmaps/{name}")), Patch::Json, &free)?;
    }
    maps.iter().try_for_each(|name| gone(&space, &format!("configmaps/{name}")))
}
