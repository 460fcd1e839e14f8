//! Lists, watches and the objects that every namespace has.

use anyhow::{Context, Result, ensure};
use http::Method;
use keelson_tests::api::Watch;
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{name_of, pod};
use serde_json::{Value, json};

tests![
    watches_by_label,
    watch_from_a_version,
    watch_goes_on,
    watch_of_what_leaves_the_selector,
    chunks,
    namespace_patch,
    namespace_update,
    namespace_finalizer,
    namespace_contents,
    service_account_life,
    service_account_update,
    account_token,
    root_certificate,
    automount,
    endpoints_life,
    service_collection,
    services_everywhere,
    limit_ranges,
    unknown_fields,
    table_of_a_review,
];

fn map(name: &str, label: &str, value: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "watch": label } }, "data": { "mutation": value } })
}

fn mutation(value: &'static str) -> impl Fn(&Value) -> bool {
    move |map| map["data"]["mutation"] == value
}

fn watching(space: &Space<'_>, selector: &str, version: &str) -> Result<Watch> {
    space.lab.api()?.watch(&space.url(&format!("configmaps?labelSelector={selector}")), version)
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default()
}

// [sig-api-machinery] Watchers should observe add, update, and delete watch notifications on configmaps [Conformance]
fn watches_by_label(lab: &Lab) -> Result<()> {
    let space = lab.quarter("watch-labels")?;
    let list = space.read("configmaps")?;
    let (a, b) = (watching(&space, "watch=a", version(&list))?, watching(&space, "watch=b", version(&list))?);
    let both = watching(&space, "watch+in+(a,b)", version(&list))?;
    let mut seen = Vec::new();
    for (label, own) in [("a", &a), ("b", &b)] {
        space.make("configmaps", &map(label, label, "0"))?;
        space.merge(&format!("configmaps/{label}"), &json!({ "data": { "mutation": "1" } }))?;
        space.merge(&format!("configmaps/{label}"), &json!({ "data": { "mutation": "2" } }))?;
        space.remove(&format!("configmaps/{label}"))?;
        for watch in [own, &both] {
            // Every notification in order, and none about the other map.
            for (kind, value) in [("ADDED", "0"), ("MODIFIED", "1"), ("MODIFIED", "2"), ("DELETED", "2")] {
                let event = watch.next(20)?;
                ensure!(event["type"] == kind && name_of(&event["object"]) == label, "{event}");
                ensure!(event["object"]["data"]["mutation"] == value, "{event}");
                seen.push(event);
            }
        }
    }
    ensure!(seen.len() == 16);
    for watch in [&a, &b, &both] {
        ensure!(watch.next(0).is_err(), "a watch was told more than there was");
    }
    Ok(())
}

// [sig-api-machinery] Watchers should be able to start watching from a specific resource version [Conformance]
fn watch_from_a_version(lab: &Lab) -> Result<()> {
    let space = lab.quarter("watch-version")?;
    space.make("configmaps", &map("told", "from", "0"))?;
    let first = space.merge("configmaps/told", &json!({ "data": { "mutation": "1" } }))?;
    space.merge("configmaps/told", &json!({ "data": { "mutation": "2" } }))?;
    space.remove("configmaps/told")?;
    let watch = watching(&space, "watch=from", version(&first))?;
    let event = watch.next(20)?;
    ensure!(event["type"] == "MODIFIED" && mutation("2")(&event["object"]), "{event}");
    let event = watch.next(20)?;
    ensure!(event["type"] == "DELETED", "{event}");
    Ok(())
}

// [sig-api-machinery] Watchers should be able to restart watching from the last resource version observed by the previous watch [Conformance]
fn watch_goes_on(lab: &Lab) -> Result<()> {
    let space = lab.quarter("watch-again")?;
    let list = space.read("configmaps")?;
    let watch = watching(&space, "watch=again", version(&list))?;
    space.make("configmaps", &map("told", "again", "0"))?;
    space.merge("configmaps/told", &json!({ "data": { "mutation": "1" } }))?;
    watch.until("ADDED", 20, |_| true)?;
    let last = watch.until("MODIFIED", 20, mutation("1"))?;
    drop(watch);
    space.merge("configmaps/told", &json!({ "data": { "mutation": "2" } }))?;
    let watch = watching(&space, "watch=again", version(&last))?;
    space.remove("configmaps/told")?;
    let event = watch.next(20)?;
    ensure!(event["type"] == "MODIFIED" && mutation("2")(&event["object"]), "{event}");
    let event = watch.next(20)?;
    ensure!(event["type"] == "DELETED", "{event}");
    Ok(())
}

// [sig-api-machinery] Watchers should observe an object deletion if it stops meeting the requirements of the selector [Conformance]
fn watch_of_what_leaves_the_selector(lab: &Lab) -> Result<()> {
    let space = lab.quarter("watch-leaving")?;
    let list = space.read("configmaps")?;
    let watch = watching(&space, "watch=in", version(&list))?;
    let label = |value: &str| space.merge("configmaps/told", &json!({ "metadata": { "labels": { "watch": value } } }));
    let data = |value: &str| space.merge("configmaps/told", &json!({ "data": { "mutation": value } }));
    space.make("configmaps", &map("told", "in", "0"))?;
    data("1")?;
    label("out")?;
    data("2")?;
    label("in")?;
    data("3")?;
    space.remove("configmaps/told")?;
    for (kind, value) in
        [("ADDED", "0"), ("MODIFIED", "1"), ("DELETED", "1"), ("ADDED", "2"), ("MODIFIED", "3"), ("DELETED", "3")]
    {
        let event = watch.next(20)?;
        ensure!(event["type"] == kind && event["object"]["data"]["mutation"] == value, "{kind} {value}: {event}");
    }
    Ok(())
}

// [sig-api-machinery] Servers with support for API chunking should return chunks of results for list calls [Conformance]
fn chunks(lab: &Lab) -> Result<()> {
    const ALL: usize = 60;
    const CHUNK: usize = 17;
    let space = lab.quarter("chunks")?;
    let spec = json!({ "containers": [{ "name": "main", "image": "busybox:1.28" }] });
    for at in 0..ALL {
        let name = format!("template-{at:04}");
        space.make("podtemplates", &json!({ "metadata": { "name": name }, "template": { "spec": spec } }))?;
    }
    let (mut seen, mut token, mut first) = (Vec::new(), String::new(), None);
    loop {
        let list = space.read(&format!("podtemplates?limit={CHUNK}&continue={token}"))?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        ensure!(!items.is_empty() && items.len() <= CHUNK, "a chunk of {}", items.len());
        seen.extend(items.iter().map(|item| name_of(item).to_owned()));
        let at = first.get_or_insert_with(|| version(&list).to_owned());
        ensure!(version(&list) == at, "a chunk of another version: {} instead of {at}", version(&list));
        let left = ALL - seen.len();
        if left == 0 {
            ensure!(list["metadata"].get("continue").is_none(), "{}", list["metadata"]);
            break;
        }
        ensure!(list["metadata"]["remainingItemCount"] == left, "{}", list["metadata"]);
        list["metadata"]["continue"].as_str().context("no token")?.clone_into(&mut token);
    }
    let expected: Vec<String> = (0..ALL).map(|at| format!("template-{at:04}")).collect();
    ensure!(seen == expected, "{seen:?}");
    let whole = space.read("podtemplates")?;
    ensure!(
        whole["items"].as_array().is_some_and(|items| items.len() == ALL)
            && whole["metadata"].get("continue").is_none()
    );
    Ok(())
}

fn namespace(space: &Space<'_>) -> String {
    format!("/api/v1/namespaces/{}", space.name)
}

// [sig-api-machinery] Namespaces [Serial] should patch a Namespace [Conformance]
fn namespace_patch(lab: &Lab) -> Result<()> {
    let space = lab.quarter("namespace-patch")?;
    let patch = json!({ "metadata": { "labels": { "testLabel": "testValue" } } });
    lab.api()?.patch(&namespace(&space), keelson_tests::api::Patch::Strategic, &patch)?;
    let read = lab.api()?.get(&namespace(&space))?;
    ensure!(read["metadata"]["labels"]["testLabel"] == "testValue", "{read}");
    Ok(())
}

/// Replaces a namespace after a change, however often others are faster.
fn changed(space: &Space<'_>, change: impl Fn(&mut Value)) -> Result<Value> {
    space.lab.wait("the namespace is replaced", 20, || {
        let mut object = space.lab.api()?.get(&namespace(space))?;
        change(&mut object);
        space.lab.api()?.replace(&namespace(space), &object).map(Some)
    })
}

// [sig-api-machinery] Namespaces [Serial] should apply an update to a Namespace [Conformance]
fn namespace_update(lab: &Lab) -> Result<()> {
    let space = lab.quarter("namespace-update")?;
    let answer = changed(&space, |object| object["metadata"]["labels"]["updated"] = json!("yes"))?;
    ensure!(answer["metadata"]["labels"]["updated"] == "yes", "{answer}");
    ensure!(lab.api()?.get(&namespace(&space))?["metadata"]["labels"]["updated"] == "yes");
    Ok(())
}

// [sig-api-machinery] Namespaces [Serial] should apply a finalizer to a Namespace [Conformance]
fn namespace_finalizer(lab: &Lab) -> Result<()> {
    const FAKE: &str = "example.com/fakeFinalizer";
    let space = lab.quarter("namespace-finalizer")?;
    let finalizers = |object: &Value| object["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
    let write = |wanted: fn(&mut Vec<Value>)| {
        lab.wait("the finalizers are replaced", 20, || {
            let mut object = lab.api()?.get(&namespace(&space))?;
            let mut all = object["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
            wanted(&mut all);
            object["spec"]["finalizers"] = json!(all);
            lab.api()?.replace(&format!("{}/finalize", namespace(&space)), &object).map(Some)
        })
    };
    let answer = write(|all| all.push(json!(FAKE)))?;
    ensure!(finalizers(&answer).contains(&json!(FAKE)), "{answer}");
    ensure!(finalizers(&lab.api()?.get(&namespace(&space))?).contains(&json!(FAKE)));
    let answer = write(|all| all.retain(|name| name != FAKE))?;
    ensure!(finalizers(&answer) == [json!("kubernetes")], "{answer}");
    Ok(())
}

// [sig-api-machinery] Namespaces [Serial] should ensure that all pods are removed when a namespace is deleted [Conformance]
// [sig-api-machinery] Namespaces [Serial] should ensure that all services are removed when a namespace is deleted [Conformance]
fn namespace_contents(lab: &Lab) -> Result<()> {
    let space = lab.quarter("namespace-contents")?;
    space.started(&pod("inside", json!({ "command": ["sleep", "100000"] })))?;
    let spec = json!({ "ports": [{ "port": 80 }], "selector": { "app": "inside" } });
    space.make("services", &json!({ "metadata": { "name": "inside" }, "spec": spec }))?;
    lab.api()?.delete(&namespace(&space))?;
    lab.until("the namespace is gone", 60, || lab.api()?.absent(&namespace(&space)).map(|()| true))?;
    // A new one of this name has nothing of the old one.
    let again = lab.quarter("namespace-contents")?;
    ensure!(lab.api()?.names(&again.url("pods"))?.is_empty() && lab.api()?.names(&again.url("services"))?.is_empty());
    Ok(())
}

fn account(name: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "test-serviceaccount-static": "true" } } })
}

// [sig-auth] ServiceAccounts should run through the lifecycle of a ServiceAccount [Conformance]
fn service_account_life(lab: &Lab) -> Result<()> {
    let space = lab.quarter("account-life")?;
    let selected = "serviceaccounts?labelSelector=test-serviceaccount-static=true";
    let watch = lab.api()?.watch(&space.url(selected), "")?;
    space.make("serviceaccounts", &account("living"))?;
    watch.until("ADDED", 20, |account| name_of(account) == "living")?;
    let patched = space.amend("serviceaccounts/living", &json!({ "automountServiceAccountToken": false }))?;
    ensure!(patched["automountServiceAccountToken"] == false, "{patched}");
    watch.until("MODIFIED", 20, |account| account["automountServiceAccountToken"] == false)?;
    let everywhere = lab.api()?.get("/api/v1/serviceaccounts?labelSelector=test-serviceaccount-static=true")?;
    let all = everywhere["items"].as_array().cloned().unwrap_or_default();
    let own = all.iter().find(|account| account["metadata"]["namespace"] == space.name.as_str());
    ensure!(own.is_some_and(|account| account["automountServiceAccountToken"] == false), "{all:?}");
    space.remove(selected)?;
    watch.until("DELETED", 20, |account| name_of(account) == "living").map(drop)
}

// [sig-auth] ServiceAccounts should update a ServiceAccount [Conformance]
fn service_account_update(lab: &Lab) -> Result<()> {
    let space = lab.quarter("account-update")?;
    let mut made = space.make("serviceaccounts", &json!({ "metadata": { "name": "updated" } }))?;
    ensure!(made.get("automountServiceAccountToken").is_none(), "{made}");
    made["automountServiceAccountToken"] = json!(true);
    space.put("serviceaccounts/updated", &made)?;
    ensure!(space.read("serviceaccounts/updated")?["automountServiceAccountToken"] == true);
    Ok(())
}

// [sig-auth] ServiceAccounts should create a serviceAccountToken and ensure a successful TokenReview [Conformance]
fn account_token(lab: &Lab) -> Result<()> {
    let space = lab.quarter("account-token")?;
    space.make("serviceaccounts", &json!({ "metadata": { "name": "known" } }))?;
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let answer = space.make("serviceaccounts/known/token", &request)?;
    let token = answer["status"]["token"].as_str().unwrap_or_default();
    ensure!(!token.is_empty(), "{answer}");
    let review = |token: &str| {
        let body =
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": token } });
        lab.api()?.create("/apis/authentication.k8s.io/v1/tokenreviews", &body)
    };
    let told = review(token)?;
    let user = format!("system:serviceaccount:{}:known", space.name);
    ensure!(told["status"]["authenticated"] == true && told["status"].get("error").is_none(), "{told}");
    ensure!(told["status"]["user"]["username"] == user.as_str(), "{told}");
    let told = review(&token[..token.len() - 4])?;
    ensure!(told["status"]["authenticated"] != true, "a token that was cut is known: {told}");
    Ok(())
}

// [sig-auth] ServiceAccounts should guarantee kube-root-ca.crt exist in any namespace [Conformance]
fn root_certificate(lab: &Lab) -> Result<()> {
    let space = lab.quarter("root-certificate")?;
    let path = "configmaps/kube-root-ca.crt";
    let is_there = |what: &str, original: Option<&Value>| {
        lab.wait(what, 30, || {
            let map = space.read(path)?;
            let good = map["data"]["ca.crt"].as_str().is_some_and(|text| text.contains("BEGIN CERTIFICATE"));
            Ok((good && original.is_none_or(|original| *original == map["data"])).then_some(map))
        })
    };
    let first = is_there("it is there", None)?;
    space.remove(path)?;
    let second = is_there("it is there again", Some(&first["data"]))?;
    ensure!(second["metadata"]["uid"] != first["metadata"]["uid"], "it was never deleted");
    space.merge(path, &json!({ "data": { "ca.crt": "" } }))?;
    is_there("it is as before", Some(&first["data"])).map(drop)
}

// [sig-auth] ServiceAccounts should allow opting out of API token automount [Conformance]
fn automount(lab: &Lab) -> Result<()> {
    let space = lab.quarter("automount")?;
    let choices = [("default", Value::Null), ("mount", json!(true)), ("nomount", json!(false))];
    for (name, choice) in &choices {
        let mut account = json!({ "metadata": { "name": format!("account-{name}") } });
        if !choice.is_null() {
            account["automountServiceAccountToken"] = choice.clone();
        }
        space.make("serviceaccounts", &account)?;
    }
    for (of_account, account) in &choices {
        for (of_pod, own) in &choices {
            let mut pod = pod(&format!("pod-{of_account}-{of_pod}"), json!({ "command": ["true"] }));
            pod["spec"]["serviceAccountName"] = json!(format!("account-{of_account}"));
            pod["spec"]["automountServiceAccountToken"] = own.clone();
            // Admission is asked, nothing needs to run.
            pod["spec"]["schedulerName"] = json!("nobody");
            let made = space.make("pods", &pod)?;
            let mounts = made["spec"]["containers"][0]["volumeMounts"].as_array().cloned().unwrap_or_default();
            let mounted =
                mounts.iter().any(|mount| mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount");
            // The pod's word counts, then the account's; without either it is mounted.
            let expected = own.as_bool().or(account.as_bool()).unwrap_or(true);
            ensure!(mounted == expected, "account {of_account}, pod {of_pod}: {mounts:?}");
        }
    }
    Ok(())
}

// [sig-network] Endpoints should test the lifecycle of an Endpoint [Conformance]
fn endpoints_life(lab: &Lab) -> Result<()> {
    let space = lab.quarter("endpoints-life")?;
    let selected = "endpoints?labelSelector=test-endpoint-static=true";
    let subset = |ip: &str, port: u16| json!([{ "addresses": [{ "ip": ip }], "ports": [{ "name": "http", "port": port, "protocol": "TCP" }] }]);
    let object = json!({ "metadata": { "name": "living", "labels": { "test-endpoint-static": "true" } },
        "subsets": subset("10.0.0.24", 80) });
    let watch = lab.api()?.watch(&space.url(selected), "")?;
    space.make("endpoints", &object)?;
    watch.until("ADDED", 20, |endpoints| name_of(endpoints) == "living")?;
    ensure!(lab.api()?.names(&format!("/api/v1/{selected}"))?.contains(&"living".to_owned()));
    let mut read = space.read("endpoints/living")?;
    read["metadata"]["labels"]["test-service"] = json!("updated");
    space.put("endpoints/living", &read)?;
    watch.until("MODIFIED", 20, |endpoints| endpoints["metadata"]["labels"]["test-service"] == "updated")?;
    ensure!(space.read("endpoints/living")?["metadata"]["labels"]["test-service"] == "updated");
    space.amend("endpoints/living", &json!({ "subsets": subset("10.0.0.25", 8080) }))?;
    let patched = space.read("endpoints/living")?;
    ensure!(patched["subsets"] == subset("10.0.0.25", 8080), "{patched}");
    space.remove(selected)?;
    watch.until("DELETED", 20, |endpoints| name_of(endpoints) == "living").map(drop)
}

// [sig-network] Services should delete a collection of services [Conformance]
fn service_collection(lab: &Lab) -> Result<()> {
    let space = lab.quarter("service-set")?;
    for (name, label) in [("one", "first"), ("two", "first"), ("three", "other")] {
        let spec = json!({ "ports": [{ "port": 80 }], "type": "ClusterIP" });
        let labels = json!({ "set": label });
        space.make("services", &json!({ "metadata": { "name": name, "labels": labels }, "spec": spec }))?;
    }
    ensure!(lab.api()?.names(&space.url("services"))?.len() == 3);
    space.remove("services?labelSelector=set=first")?;
    lab.until("one is left", 20, || Ok(lab.api()?.names(&space.url("services"))? == ["three"]))
}

// [sig-network] Services should find a service from listing all namespaces [Conformance]
fn services_everywhere(lab: &Lab) -> Result<()> {
    let list = lab.api()?.get("/api/v1/services")?;
    let all = list["items"].as_array().cloned().unwrap_or_default();
    let found =
        all.iter().any(|service| name_of(service) == "kubernetes" && service["metadata"]["namespace"] == "default");
    ensure!(found, "{list}");
    Ok(())
}

// [sig-scheduling] LimitRange should list, patch and delete a LimitRange by collection [Conformance]
fn limit_ranges(lab: &Lab) -> Result<()> {
    let (one, two) = (lab.quarter("limits-one")?, lab.quarter("limits-two")?);
    let limit = |max: &str| json!({ "limits": [{ "type": "Container", "max": { "memory": max } }] });
    for (space, label) in [(&one, "patched"), (&two, "left")] {
        let labels = json!({ "limits": "both", "which": label });
        space.make(
            "limitranges",
            &json!({ "metadata": { "name": "limits", "labels": labels }, "spec": limit("64Mi") }),
        )?;
    }
    let everywhere = || lab.api()?.names("/api/v1/limitranges?labelSelector=limits=both");
    ensure!(everywhere()?.len() == 2);
    let patched = one.amend("limitranges/limits", &json!({ "spec": limit("128Mi") }))?;
    ensure!(patched["spec"]["limits"][0]["max"]["memory"] == "128Mi", "{patched}");
    one.remove("limitranges?labelSelector=which=patched")?;
    lab.until("one is left", 20, || Ok(everywhere()?.len() == 1))?;
    ensure!(lab.api()?.names(&two.url("limitranges"))? == ["limits"]);
    Ok(())
}

// [sig-api-machinery] FieldValidation should detect unknown metadata fields of a typed object [Conformance]
fn unknown_fields(lab: &Lab) -> Result<()> {
    let space = lab.quarter("unknown-fields")?;
    let object = json!({ "metadata": { "name": "odd", "unknownMeta": "x" }, "data": {} });
    let said =
        lab.api()?.refused(&Method::POST, &space.url("configmaps?fieldValidation=Strict"), Some(&object), 400)?;
    let message = said["message"].as_str().unwrap_or_default();
    ensure!(message.contains("unknown field \"metadata.unknownMeta\""), "{said}");
    lab.api()?.absent(&space.url("configmaps/odd"))
}

// [sig-api-machinery] Servers with support for Table transformation should return a 406 for a backend which does not implement metadata [Conformance]
fn table_of_a_review(lab: &Lab) -> Result<()> {
    let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": { "verb": "list", "resource": "pods" } } });
    let ask = |accept: &str| {
        let url = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        lab.api()?.ask_as(&Method::POST, url, ["application/json", accept], review.to_string().into_bytes())
    };
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let (status, text) = ask(table)?;
    ensure!(status.as_u16() == 406 && text.contains("only the following media types are accepted"), "{status} {text}");
    let (status, text) = ask(&format!("{table}, application/json"))?;
    ensure!(status.as_u16() == 201, "{status} {text}");
    Ok(())
}
