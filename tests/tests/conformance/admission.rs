//! Admission webhooks that are served by a pod behind a Service: whom the API server asks, and what comes of it.

use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{Method, StatusCode};
use keelson_tests::api::Patch;
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{idle, name_of, pod};
use serde_json::{Value, json};

use super::custom::{self, DEFINITIONS, anything, defined, definition};
use super::webhooks::{Configured, all};

tests![
    times_out,
    denies_pods_and_config_maps,
    denies_attach,
    denies_custom_resources,
    denies_definitions,
    mutates_config_maps,
    mutates_pods,
    mutates_custom_resources,
    mutates_another_stored_version,
    mutates_with_pruning,
    mutates_all_but_some,
    mutating_listed,
    validating_listed,
    mutating_changed,
    validating_changed,
];

const SERVER: &str = "webhook-server";
/// The container's port; the Service has another.
const PORT: u16 = 8443;
const SOON: u64 = 20;
const PATIENCE: u64 = 120;

/// What vouches for the server, once it runs. One for all tests: it goes with the lab.
static BUNDLE: Mutex<Option<String>> = Mutex::new(None);

/// Starts the server, unless another test has.
fn served(lab: &Lab) -> Result<String> {
    let mut bundle = BUNDLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(bundle) = bundle.as_ref() {
        return Ok(bundle.clone());
    }
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let certificate = rcgen::CertificateParams::new(vec![format!("{SERVER}.{SERVER}.svc")])?.self_signed(&key)?;
    let space = std::mem::ManuallyDrop::new(lab.quarter(SERVER)?);
    let secret = json!({ "metadata": { "name": "tls" }, "type": "kubernetes.io/tls",
        "stringData": { "tls.crt": certificate.pem(), "tls.key": key.serialize_pem() } });
    space.make("secrets", &secret)?;
    let ports = json!([{ "port": 443, "targetPort": PORT }]);
    let service = json!({ "metadata": { "name": SERVER }, "spec": { "selector": { "app": SERVER }, "ports": ports } });
    space.make("services", &service)?;
    let container = json!({ "name": "server", "image": "keelson.dev/test-server:latest", "imagePullPolicy": "IfNotPresent",
        "args": [format!("--webhook={PORT}")], "volumeMounts": [{ "name": "tls", "mountPath": "/tls" }],
        "readinessProbe": { "tcpSocket": { "port": PORT }, "periodSeconds": 1 } });
    let mut server = pod(SERVER, container);
    server["metadata"]["labels"] = json!({ "app": SERVER });
    server["spec"]["volumes"] = json!([{ "name": "tls", "secret": { "secretName": "tls" } }]);
    space.started(&server)?;
    let made = BASE64_STANDARD.encode(certificate.pem());
    // It is asked through its Service, which knows of the pod a little later.
    let probe = hook(&made, "deny", "", &["configmaps"], &["CREATE"], &space);
    let _probe = Configured::make(lab, "validating", SERVER, &[probe])?;
    space.denied_soon(&Method::POST, "configmaps?dryRun=All", &json!({ "metadata": { "name": "probe" } }))?;
    Ok(bundle.insert(made).clone())
}

/// A webhook of the server, for what happens in a namespace. Its path says what it does (the lab's test server has the table).
fn hook(bundle: &str, path: &str, group: &str, resources: &[&str], operations: &[&str], space: &Space<'_>) -> Value {
    json!({
        "name": format!("{path}.example.com"),
        "clientConfig": { "service": { "namespace": SERVER, "name": SERVER, "path": format!("/{path}") }, "caBundle": bundle },
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 10,
        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": space.name } },
        "rules": [{ "apiGroups": [group], "apiVersions": ["*"], "operations": operations, "resources": resources }],
    })
}

fn map(name: &str, data: &Value) -> Value {
    json!({ "metadata": { "name": name }, "data": data })
}

fn denial(status: StatusCode, text: &str) -> bool {
    status.is_client_error() && text.contains("admission webhook ") && text.contains("denied the request")
}

trait Denied {
    /// A request that a webhook refuses.
    fn denied(&self, method: &Method, path: &str, body: &Value) -> Result<()>;
    /// The same, once the webhook is in force; the request must change nothing before.
    fn denied_soon(&self, method: &Method, path: &str, body: &Value) -> Result<()>;
    /// A creation is answered with these data, once the webhooks are in force.
    fn answered_soon(&self, path: &str, object: &Value, data: &Value) -> Result<()>;
}

impl Denied for Space<'_> {
    fn denied(&self, method: &Method, path: &str, body: &Value) -> Result<()> {
        let kind = if *method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let (status, text) = self.lab.api()?.ask(method, &self.url(path), kind, Some(body))?;
        ensure!(denial(status, &text), "{method} {path} was to be denied by a webhook: {status} {text}");
        Ok(())
    }

    fn denied_soon(&self, method: &Method, path: &str, body: &Value) -> Result<()> {
        self.lab.until("the webhook denies", PATIENCE, || self.denied(method, path, body).map(|()| true))
    }

    fn answered_soon(&self, path: &str, object: &Value, data: &Value) -> Result<()> {
        self.lab.until("the webhooks have their say", SOON, || {
            let made = self.make(&format!("{path}?dryRun=All"), object)?;
            ensure!(made["data"] == *data, "{}", made["data"]);
            Ok(true)
        })
    }
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should honor timeout [Conformance]
fn times_out(lab: &Lab) -> Result<()> {
    let bundle = served(lab)?;
    let space = lab.quarter("webhook-timeout")?;
    // The server answers after 5 s.
    for (seconds, policy, created, why) in [
        (1, "Fail", false, "it is late, and its word is needed"),
        (1, "Ignore", true, "it is late, and its word is not needed"),
        (10, "Fail", true, "it is awaited"),
        (10, "Ignore", true, "it is awaited"),
    ] {
        let mut late = hook(&bundle, "allow-late", "", &["configmaps"], &["CREATE"], &space);
        late["failurePolicy"] = json!(policy);
        late["timeoutSeconds"] = json!(seconds);
        let configured = Configured::make(lab, "validating", "times-out", &[late])?;
        lab.until(why, SOON, || {
            let name = format!("{policy}-{seconds}").to_lowercase();
            let (url, begun) = (space.url("configmaps?dryRun=All"), std::time::Instant::now());
            let (status, text) =
                lab.api()?.ask(&Method::POST, &url, "application/json", Some(&map(&name, &json!({}))))?;
            // Sooner, it was not asked at all yet.
            let took = begun.elapsed();
            ensure!(took.as_millis() >= 900 && status.is_success() == created, "{status} {text} after {took:?}");
            ensure!(created || text.contains("failed calling webhook"), "{text}");
            Ok(true)
        })?;
        let url = configured.url.clone();
        drop(configured);
        lab.api()?.absent(&url)?;
    }
    Ok(())
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should be able to deny pod and configmap creation [Conformance]
fn denies_pods_and_config_maps(lab: &Lab) -> Result<()> {
    let bundle = served(lab)?;
    let (space, other) = (lab.quarter("webhook-denies")?, lab.quarter("webhook-spares")?);
    let hooks = [hook(&bundle, "deny-marked", "", &["pods", "configmaps"], &["CREATE", "UPDATE"], &space), {
        // Whoever hangs denies too, where its word is needed.
        let mut late = hook(&bundle, "allow-late", "", &["pods"], &["CREATE"], &space);
        late["timeoutSeconds"] = json!(2);
        late["objectSelector"] = json!({ "matchLabels": { "webhook": "hang" } });
        late
    }];
    let _configured = Configured::make(lab, "validating", "denies", &hooks)?;
    let marked = json!({ "webhook": "deny" });
    space.denied_soon(&Method::POST, "configmaps?dryRun=All", &map("marked", &marked))?;
    space.denied(&Method::POST, "configmaps", &map("marked", &marked))?;
    let mut one = pod("marked", idle());
    one["metadata"]["labels"] = marked.clone();
    space.denied(&Method::POST, "pods", &one)?;
    one["metadata"]["labels"] = json!({ "webhook": "hang" });
    let said = lab.api()?.refused(&Method::POST, &space.url("pods"), Some(&one), 500)?;
    ensure!(said["message"].as_str().is_some_and(|text| text.contains("failed calling webhook")), "{said}");
    for gone in ["pods/marked", "configmaps/marked"] {
        lab.api()?.absent(&space.url(gone))?;
    }
    // What is there cannot be changed into what is denied.
    let mut made = space.make("configmaps", &map("plain", &json!({ "a": "b" })))?;
    made["data"] = marked.clone();
    space.denied(&Method::PUT, "configmaps/plain", &made)?;
    space.denied(&Method::PATCH, "configmaps/plain", &json!({ "data": marked }))?;
    ensure!(space.read("configmaps/plain")?["data"] == json!({ "a": "b" }));
    // Another namespace is not asked about.
    other.make("configmaps", &map("marked", &json!({ "webhook": "deny" })))?;
    Ok(())
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should be able to deny attaching pod [Conformance]
fn denies_attach(lab: &Lab) -> Result<()> {
    let bundle = served(lab)?;
    let space = lab.quarter("webhook-attach")?;
    space.started(&pod("attached", idle()))?;
    let deny = hook(&bundle, "deny", "", &["pods/attach"], &["CONNECT"], &space);
    let _configured = Configured::make(lab, "validating", "denies-attach", &[deny])?;
    lab.until("attaching is denied", SOON, || {
        let attach = ["-n", &space.name, "attach", "attached", "--request-timeout=3s"];
        let said = lab.kubectl_fails(&attach, None)?;
        Ok(said.contains("denied the request: this webhook denies everything"))
    })?;
    // What is no attach is not asked about.
    let said = lab.kubectl(&["-n", &space.name, "exec", "attached", "--", "echo", "reached"])?;
    ensure!(said.contains("reached"), "{said}");
    Ok(())
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should be able to deny custom resource creation, update and deletion [Conformance]
fn denies_custom_resources(lab: &Lab) -> Result<()> {
    let bundle = served(lab)?;
    let space = lab.quarter("webhook-custom")?;
    let group = "webhook-denies";
    let versions = [custom::version("v1", true, &anything())];
    let things = defined(lab, &definition(group, "Denied", "Namespaced", &versions))?;
    let path = format!("{group}.example.com/v1/denieds");
    let operations = ["CREATE", "UPDATE", "DELETE"];
    let deny = hook(&bundle, "deny-marked", &format!("{group}.example.com"), &["denieds"], &operations, &space);
    let configured = Configured::make(lab, "validating", "denies-custom", &[deny])?;
    let marked = json!({ "data": { "webhook": "deny" } });
    let one = |name: &str, rest: &Value| things.object(0, name, rest);
    space.denied_soon(&Method::POST, &format!("{path}?dryRun=All"), &one("marked", &marked))?;
    space.denied(&Method::POST, &path, &one("marked", &marked))?;
    lab.api()?.absent(&space.url(&format!("{path}/marked")))?;
    space.make(&path, &one("plain", &json!({ "data": { "a": "b" } })))?;
    space.denied(&Method::PATCH, &format!("{path}/plain"), &marked)?;
    ensure!(space.read(&format!("{path}/plain"))?["data"] == json!({ "a": "b" }));
    // One that is marked, made while nobody is asked, cannot be deleted until it is so no more.
    drop(configured);
    lab.until("nobody is asked", SOON, || {
        Ok(space.make(&format!("{path}?dryRun=All"), &one("marked", &marked)).is_ok())
    })?;
    space.make(&path, &one("marked", &marked))?;
    let deny = hook(&bundle, "deny-marked", &format!("{group}.example.com"), &["denieds"], &["DELETE"], &space);
    let _configured = Configured::make(lab, "validating", "denies-custom", &[deny])?;
    let dry = json!({ "dryRun": ["All"] });
    space.denied_soon(&Method::DELETE, &format!("{path}/marked"), &dry)?;
    space.denied(&Method::DELETE, &format!("{path}/marked"), &json!({}))?;
    space.merge(&format!("{path}/marked"), &json!({ "data": { "webhook": "no" } }))?;
    space.remove(&format!("{path}/marked"))?;
    lab.api()?.absent(&space.url(&format!("{path}/marked")))
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should deny crd creation [Conformance]
fn denies_definitions(lab: &Lab) -> Result<()> {
    let bundle = served(lab)?;
    let space = lab.quarter("webhook-definitions")?;
    // Definitions are in no namespace: theirs are chosen by their labels.
    let mut deny = hook(&bundle, "deny", "apiextensions.k8s.io", &["customresourcedefinitions"], &["CREATE"], &space);
    deny["namespaceSelector"] = json!({});
    deny["objectSelector"] = json!({ "matchLabels": { "webhook": "asked" } });
    let _configured = Configured::make(lab, "validating", "denies-definitions", &[deny])?;
    let versions = [custom::version("v1", true, &anything())];
    let mut one = definition("webhook-definitions", "Denied", "Cluster", &versions);
    one["metadata"]["labels"] = json!({ "webhook": "asked" });
    lab.until("the definition is denied", SOON, || {
        let url = format!("{DEFINITIONS}?dryRun=All");
        let (status, text) = lab.api()?.ask(&Method::POST, &url, "application/json", Some(&one))?;
        ensure!(denial(status, &text), "{status} {text}");
        Ok(true)
    })?;
    let (status, text) = lab.api()?.ask(&Method::POST, DEFINITIONS, "application/json", Some(&one))?;
    ensure!(denial(status, &text), "{status} {text}");
    lab.api()?.absent(&format!("{DEFINITIONS}/{}", name_of(&one)))
}

/// Two webhooks, each of which adds to what the one before has done.
fn stages(bundle: &str, group: &str, resource: &str, space: &Space<'_>) -> [Value; 2] {
    ["mark-first", "mark-second"].map(|path| hook(bundle, path, group, &[resource], &["CREATE", "UPDATE"], space))
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate configmap [Conformance]
fn mutates_config_maps(lab: &Lab) -> Result<()> {
    let bundle = served(lab)?;
    let space = lab.quarter("webhook-mutates")?;
    let _configured = Configured::make(lab, "mutating", "mutates", &stages(&bundle, "", "configmaps", &space))?;
    let both = json!({ "start": "yes", "first": "yes", "second": "yes" });
    let one = map("one", &json!({ "start": "yes" }));
    space.answered_soon("configmaps", &one, &both)?;
    space.make("configmaps", &one)?;
    ensure!(space.read("configmaps/one")?["data"] == both);
    let other = space.make("configmaps", &map("other", &json!({ "start": "no" })))?;
    ensure!(other["data"] == json!({ "start": "no" }), "{other}");
    Ok(())
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate pod and apply defaults after mutation [Conformance]
fn mutates_pods(lab: &Lab) -> Result<()> {
    let bundle = served(lab)?;
    let space = lab.quarter("webhook-pods")?;
    let init = hook(&bundle, "init", "", &["pods"], &["CREATE"], &space);
    let _configured = Configured::make(lab, "mutating", "mutates-pods", &[init])?;
    let mut one = pod("one", idle());
    one["spec"]["automountServiceAccountToken"] = json!(true);
    let made = lab.wait("an init container is added", SOON, || {
        let made = space.make("pods?dryRun=All", &one)?;
        Ok(made["spec"]["initContainers"].is_array().then_some(made))
    })?;
    let added = &made["spec"]["initContainers"][0];
    ensure!(added["name"] == "added", "{made}");
    for (field, value) in [
        ("terminationMessagePolicy", "File"),
        ("terminationMessagePath", "/dev/termination-log"),
        ("imagePullPolicy", "IfNotPresent"),
    ] {
        ensure!(added[field] == value, "{field}: {added}");
    }
    ensure!(added["volumeMounts"].as_array().is_some_and(|mounts| !mounts.is_empty()), "no token: {added}");
    Ok(())
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate custom resource [Conformance]
fn mutates_custom_resources(lab: &Lab) -> Result<()> {
    let bundle = served(lab)?;
    let space = lab.quarter("webhook-mutates-custom")?;
    let group = "webhook-mutates";
    let things =
        defined(lab, &definition(group, "Mutated", "Namespaced", &[custom::version("v1", true, &anything())]))?;
    let hooks = stages(&bundle, &format!("{group}.example.com"), "mutateds", &space);
    let _configured = Configured::make(lab, "mutating", "mutates-custom", &hooks)?;
    let path = format!("{group}.example.com/v1/mutateds");
    let one = things.object(0, "one", &json!({ "data": { "start": "yes" } }));
    let both = json!({ "start": "yes", "first": "yes", "second": "yes" });
    space.answered_soon(&path, &one, &both)?;
    space.make(&path, &one)?;
    ensure!(space.read(&format!("{path}/one"))?["data"] == both);
    Ok(())
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate custom resource with different stored version [Conformance]
fn mutates_another_stored_version(lab: &Lab) -> Result<()> {
    let bundle = served(lab)?;
    let space = lab.quarter("webhook-stored")?;
    let group = "webhook-stored";
    let versions = [custom::version("v1", true, &anything()), custom::version("v2", false, &anything())];
    let things = defined(lab, &definition(group, "Stored", "Namespaced", &versions))?;
    let hooks = stages(&bundle, &format!("{group}.example.com"), "storeds", &space);
    let _configured = Configured::make(lab, "mutating", "mutates-stored", &hooks)?;
    let (first, second) = (format!("{group}.example.com/v1/storeds"), format!("{group}.example.com/v2/storeds"));
    let one = things.object(0, "one", &json!({ "data": { "start": "yes" } }));
    let both = json!({ "start": "yes", "first": "yes", "second": "yes" });
    space.answered_soon(&first, &one, &both)?;
    space.make(&first, &one)?;
    // From now on the second version is stored.
    let mut definition = lab.api()?.get(&things.url())?;
    definition["spec"]["versions"][0]["storage"] = json!(false);
    definition["spec"]["versions"][1]["storage"] = json!(true);
    lab.api()?.replace(&things.url(), &definition)?;
    lab.until("the other version is stored", SOON, || {
        Ok(lab.api()?.get(&things.url())?["status"]["storedVersions"] == json!(["v1", "v2"]))
    })?;
    // Touched by the first version, read by the second.
    let patched = space.merge(&format!("{first}/one"), &json!({ "data": { "other": "yes", "second": null } }))?;
    let now = json!({ "start": "yes", "first": "yes", "second": "yes", "other": "yes" });
    ensure!(patched["data"] == now, "{patched}");
    let read = space.read(&format!("{second}/one"))?;
    ensure!(read["data"] == now && read["apiVersion"] == things.api(1), "{read}");
    Ok(())
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate custom resource with pruning [Conformance]
fn mutates_with_pruning(lab: &Lab) -> Result<()> {
    let bundle = served(lab)?;
    let space = lab.quarter("webhook-prunes")?;
    let group = "webhook-prunes";
    let text = json!({ "type": "string" });
    let data = json!({ "type": "object", "properties": { "start": text, "first": text } });
    let schema = json!({ "type": "object", "properties": { "data": data } });
    let things = defined(lab, &definition(group, "Pruned", "Namespaced", &[custom::version("v1", true, &schema)]))?;
    let hooks = stages(&bundle, &format!("{group}.example.com"), "pruneds", &space);
    let _configured = Configured::make(lab, "mutating", "mutates-pruned", &hooks)?;
    let path = format!("{group}.example.com/v1/pruneds");
    let one = things.object(0, "one", &json!({ "data": { "start": "yes" } }));
    // The schema knows nothing of what the second webhook adds.
    let kept = json!({ "start": "yes", "first": "yes" });
    space.answered_soon(&path, &one, &kept)?;
    space.make(&path, &one)?;
    ensure!(space.read(&format!("{path}/one"))?["data"] == kept);
    Ok(())
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate everything except 'skip-me' configmaps [Conformance]
fn mutates_all_but_some(lab: &Lab) -> Result<()> {
    let bundle = served(lab)?;
    let space = lab.quarter("webhook-skips")?;
    let mut first = hook(&bundle, "mark-first", "", &["configmaps"], &["CREATE"], &space);
    first["matchConditions"] = json!([{ "name": "skip-me", "expression": "object.metadata.name != 'skip-me'" }]);
    let _configured = Configured::make(lab, "mutating", "mutates-all-but", &[first])?;
    let start = json!({ "start": "yes" });
    space.answered_soon("configmaps", &map("take-me", &start), &json!({ "start": "yes", "first": "yes" }))?;
    let skipped = space.make("configmaps", &map("skip-me", &start))?;
    ensure!(skipped["data"] == start, "{skipped}");
    Ok(())
}

/// Several configurations, found, and taken away at once, by their label; `shown` tells whether they are in force.
fn listed(lab: &Lab, kind: &str, path: &str, space: &Space<'_>, shown: impl Fn() -> Result<bool>) -> Result<()> {
    let bundle = served(lab)?;
    let one = hook(&bundle, path, "", &["configmaps"], &["CREATE"], space);
    let label = format!("listed-{kind}");
    let names: Vec<String> = (0..5).map(|n| format!("{label}-{n}")).collect();
    let mut made = Vec::new();
    for name in &names {
        made.push(Configured::make(lab, kind, name, std::slice::from_ref(&one))?);
        let labels = json!({ "metadata": { "labels": { "listed": label } } });
        let url = &made.last().context("just made")?.url;
        lab.api()?.patch(url, Patch::Merge, &labels)?;
    }
    let selected = format!("{}?labelSelector=listed%3D{label}", all(kind));
    ensure!(lab.api()?.names(&selected)? == names);
    lab.until("they are in force", SOON, &shown)?;
    lab.api()?.delete(&selected)?;
    ensure!(lab.api()?.names(&selected)?.is_empty());
    lab.until("they are in force no more", SOON, || Ok(!shown()?))
}

fn is_mutated(space: &Space<'_>) -> Result<bool> {
    let made = space.make("configmaps?dryRun=All", &map("probe", &json!({ "start": "yes" })))?;
    Ok(made["data"]["first"] == "yes")
}

fn is_denied(space: &Space<'_>) -> Result<bool> {
    let marked = map("probe", &json!({ "webhook": "deny" }));
    let url = space.url("configmaps?dryRun=All");
    let (status, text) = space.lab.api()?.ask(&Method::POST, &url, "application/json", Some(&marked))?;
    ensure!(status.is_success() || denial(status, &text), "{status} {text}");
    Ok(!status.is_success())
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] listing mutating webhooks should work [Conformance]
fn mutating_listed(lab: &Lab) -> Result<()> {
    let space = lab.quarter("webhook-mutating-listed")?;
    listed(lab, "mutating", "mark-first", &space, || is_mutated(&space))
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] listing validating webhooks should work [Conformance]
fn validating_listed(lab: &Lab) -> Result<()> {
    let space = lab.quarter("webhook-validating-listed")?;
    listed(lab, "validating", "deny-marked", &space, || is_denied(&space))
}

/// A configuration whose rules are replaced, then patched back; `shown` tells whether creations are asked about.
fn changed(lab: &Lab, kind: &str, path: &str, space: &Space<'_>, shown: impl Fn() -> Result<bool>) -> Result<()> {
    let bundle = served(lab)?;
    let one = hook(&bundle, path, "", &["configmaps"], &["CREATE"], space);
    let made = Configured::make(lab, kind, &format!("changed-{kind}"), &[one])?;
    lab.until("creations are asked about", SOON, &shown)?;
    lab.wait("the rules are replaced", SOON, || {
        let mut read = lab.api()?.get(&made.url)?;
        read["webhooks"][0]["rules"][0]["operations"] = json!(["UPDATE"]);
        lab.api()?.replace(&made.url, &read).map(Some)
    })?;
    lab.until("creations are asked about no more", SOON, || Ok(!shown()?))?;
    let back = json!([{ "op": "replace", "path": "/webhooks/0/rules/0/operations", "value": ["CREATE"] }]);
    lab.api()?.patch(&made.url, Patch::Json, &back)?;
    lab.until("creations are asked about again", SOON, &shown)
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] patching/updating a mutating webhook should work [Conformance]
fn mutating_changed(lab: &Lab) -> Result<()> {
    let space = lab.quarter("webhook-mutating-changed")?;
    changed(lab, "mutating", "mark-first", &space, || is_mutated(&space))
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] patching/updating a validating webhook should work [Conformance]
fn validating_changed(lab: &Lab) -> Result<()> {
    let space = lab.quarter("webhook-validating-changed")?;
    changed(lab, "validating", "deny-marked", &space, || is_denied(&space))
}
