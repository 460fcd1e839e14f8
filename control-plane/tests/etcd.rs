//! API servers over etcd: several of them, and an etcd that crashes or is away.

mod common;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::etcd::Etcd;
use common::{Api, config, config_map, plain};
use http::Method;
use keelson_control_plane::run;
use keelson_control_plane::server::Config;
use keelson_control_plane::store::EtcdConfig;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

async fn server(etcd: &Etcd, config: Config) -> Api {
    server_at(&plain(etcd), config).await
}

async fn server_at(etcd: &EtcdConfig, config: Config) -> Api {
    let folder = tempfile::tempdir().unwrap();
    let store = run::open_etcd(folder.path(), etcd).unwrap();
    Api::over(store, config, folder).await
}

async fn pair(etcd: &Etcd, config: Config) -> [Arc<Api>; 2] {
    let other = Config { advertise_address: "10.0.0.10".parse().unwrap(), ..config.clone() };
    [Arc::new(server(etcd, config).await), Arc::new(server(etcd, other).await)]
}

async fn names(api: &Api, path: &str) -> HashSet<String> {
    let list = api.get(path).await.expect(200);
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    list["items"].as_array().unwrap().iter().map(name).collect()
}

/// Repeats a request until it succeeds; how long that took.
async fn until_created(api: &Api, name: &str) -> Duration {
    let begun = Instant::now();
    loop {
        let status = api.post(MAPS, &config_map(name, "1")).await.status.as_u16();
        if matches!(status, 201 | 409) {
            return begun.elapsed();
        }
        assert!(matches!(status, 500 | 503 | 504), "{status}");
        assert!(begun.elapsed() < Duration::from_secs(60), "no write succeeded again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_server_writes_the_other_shows() {
    let Some(etcd) = Etcd::start("what_one_server_writes_the_other_shows") else { return };
    let [a, b] = pair(&etcd, config()).await;
    let mut lines = b.watch(&format!("{MAPS}?watch=true&labelSelector=app%3D1")).await;
    for i in 0..50 {
        let name = format!("m{i}");
        let made = a.post(MAPS, &config_map(&name, "1")).await.expect(201);
        // At once: whoever asks the other server sees it, and may change it.
        let seen = b.get(&format!("{MAPS}/{name}")).await.expect(200);
        assert_eq!(seen["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
        let patched = b.patch(&format!("{MAPS}/{name}"), "merge-patch", &json!({"data": {"k": "2"}})).await.expect(200);
        let seen = a.get(&format!("{MAPS}/{name}")).await.expect(200);
        assert_eq!(seen, patched);
        let mut stale = made.clone();
        stale["data"]["k"] = json!("3");
        a.put(&format!("{MAPS}/{name}"), &stale).await.expect(409);
        assert_eq!(lines.next_name().await, ("ADDED".into(), name.clone()));
        assert_eq!(lines.next_name().await, ("MODIFIED".into(), name.clone()));
        assert_eq!(b.post(MAPS, &config_map(&name, "1")).await.expect(409)["reason"], "AlreadyExists");
    }
    assert!(names(&a, MAPS).await.is_superset(&(0..50).map(|i| format!("m{i}")).collect()));
    // A list in pages stays at its revision while the other server writes.
    let page = b.get(&format!("{MAPS}?limit=10&labelSelector=app%3D1")).await.expect(200);
    a.delete(&format!("{MAPS}/m9"), &json!({})).await.expect(200);
    let token = page["metadata"]["continue"].as_str().unwrap();
    let rest = b.get(&format!("{MAPS}?limit=100&labelSelector=app%3D1&continue={token}")).await.expect(200);
    assert_eq!(page["items"].as_array().unwrap().len() + rest["items"].as_array().unwrap().len(), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_never_give_an_address_or_port_away_twice() {
    let Some(etcd) = Etcd::start("two_servers_never_give_an_address_or_port_away_twice") else { return };
    // 253 addresses and 220 ports for 200 Services: most choices are close to another's.
    let small = Config { service_cidr: "10.96.0.0/24".parse().unwrap(), node_ports: (30000, 30219), ..config() };
    let servers = pair(&etcd, small).await;
    let makers: Vec<_> = (0..20)
        .map(|maker| {
            let api = Arc::clone(&servers[maker % 2]);
            tokio::spawn(async move {
                let mut made = Vec::new();
                for i in 0..10 {
                    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{maker}-{i}")},
                        "spec": {"type": "NodePort", "ports": [{"port": 80}], "selector": {"a": "b"}}});
                    made.push(api.post(SERVICES, &service).await.expect(201));
                }
                made
            })
        })
        .collect();
    let (mut addresses, mut ports) = (HashSet::new(), HashSet::new());
    for maker in makers {
        for service in maker.await.unwrap() {
            assert!(addresses.insert(service["spec"]["clusterIP"].to_string()), "twice: {service}");
            assert!(ports.insert(service["spec"]["ports"][0]["nodePort"].to_string()), "twice: {service}");
        }
    }
    assert_eq!((addresses.len(), ports.len()), (200, 200));
    // A chosen one is refused by the other server, and free again once its owner is deleted here.
    let taken = servers[0].get(&format!("{SERVICES}/s0-0")).await.expect(200)["spec"]["clusterIP"].clone();
    let wish = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "wish"},
        "spec": {"clusterIP": taken, "ports": [{"port": 80}]}});
    let refused = servers[1].post(SERVICES, &wish).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("provided IP is already allocated"), "{refused}");
    servers[0].delete(&format!("{SERVICES}/s0-0"), &json!({})).await.expect(200);
    servers[1].post(SERVICES, &wish).await.expect(201);
    let claims = servers[0].server.store.range("/registry/ranges/serviceips/", None, None, 0).await.unwrap();
    // 199 of the makers', the wish, and that of the `kubernetes` Service.
    assert_eq!(claims.items.len(), 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kubernetes_service_leads_to_all_servers() {
    let Some(etcd) = Etcd::start("the_kubernetes_service_leads_to_all_servers") else { return };
    let [a, b] = pair(&etcd, config()).await;
    let addresses = |endpoints: &Value| -> Vec<String> {
        let list = endpoints["subsets"][0]["addresses"].as_array().cloned().unwrap_or_default();
        list.iter().map(|a| a["ip"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let wait = async |api: &Api, wanted: &[&str]| {
        let begun = Instant::now();
        loop {
            let found = addresses(&api.get("/api/v1/namespaces/default/endpoints/kubernetes").await.expect(200));
            if found == wanted {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{found:?}, not {wanted:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    wait(&a, &["10.0.0.9", "10.0.0.10"]).await;
    drop(b);
    // It says farewell when it stops.
    wait(&a, &["10.0.0.9"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_kill_9_of_etcd() {
    let Some(mut etcd) = Etcd::start("acknowledged_writes_survive_kill_9_of_etcd") else { return };
    let [a, b] = pair(&etcd, config()).await;
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let api = Arc::clone(if writer % 2 == 0 { &a } else { &b });
                tokio::spawn(async move {
                    let mut done = Vec::new();
                    for i in 0.. {
                        let name = format!("r{round}-w{writer}-{i}");
                        if api.post(MAPS, &config_map(&name, "1")).await.status != 201 {
                            break;
                        }
                        done.push(name);
                    }
                    done
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(700)).await;
        etcd.kill();
        for writer in writers {
            acknowledged.extend(writer.await.unwrap());
        }
        etcd.begin();
        until_created(&a, &format!("again-{round}")).await;
        acknowledged.push(format!("again-{round}"));
    }
    assert!(acknowledged.len() > 50, "only {} writes were acknowledged", acknowledged.len());
    for api in [&a, &b] {
        // The caches of both went on: they show all of it, as what etcd itself has.
        let shown = names(api, MAPS).await;
        let lost: Vec<_> = acknowledged.iter().filter(|name| !shown.contains(*name)).collect();
        assert!(lost.is_empty(), "lost {lost:?}");
        let stored = api.server.store.range("/registry/configmaps/default/", None, None, 0).await.unwrap();
        assert_eq!(stored.items.len(), shown.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_members_may_be_killed() {
    let Some(mut members) = Etcd::cluster::<3>("one_of_three_members_may_be_killed") else { return };
    let servers = members.iter().map(Etcd::url).collect();
    let all = EtcdConfig { servers, ..plain(&members[0]) };
    let other = Config { advertise_address: "10.0.0.10".parse().unwrap(), ..config() };
    let (a, b) = (server_at(&all, config()).await, server_at(&all, other).await);
    let mut lines = b.watch(&format!("{MAPS}?watch=true&labelSelector=app%3D1")).await;
    let mut acknowledged = Vec::new();
    for (round, killed) in (0..3).enumerate() {
        // The first in use, and then whoever is next in the list.
        members[killed].kill();
        let name = format!("r{round}");
        let took = until_created(&a, &name).await;
        assert!(took < Duration::from_secs(30), "without member {killed} a write took {took:?}");
        acknowledged.push(name);
        for i in 0..20 {
            let name = format!("r{round}-{i}");
            let api = if i % 2 == 0 { &a } else { &b };
            until_created(api, &name).await;
            acknowledged.push(name);
        }
        // One that was away has the rest of the log before it may answer.
        members[killed].begin();
    }
    for api in [&a, &b] {
        let shown = names(api, MAPS).await;
        let lost: Vec<_> = acknowledged.iter().filter(|name| !shown.contains(*name)).collect();
        assert!(lost.is_empty(), "lost {lost:?}");
    }
    // A watch that began before goes on over all of it: nothing is missing, nothing comes twice.
    let mut seen = Vec::new();
    for _ in &acknowledged {
        seen.push(lines.next_name().await);
    }
    assert!(seen.iter().all(|(kind, _)| kind == "ADDED"), "{seen:?}");
    assert_eq!(seen.into_iter().map(|(_, name)| name).collect::<Vec<_>>(), acknowledged);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_hangs_is_left() {
    let Some(members) = Etcd::cluster::<3>("a_member_that_hangs_is_left") else { return };
    let servers = members.iter().map(Etcd::url).collect();
    let api = server_at(&EtcdConfig { servers, ..plain(&members[0]) }, config()).await;
    let mut lines = api.watch(&format!("{MAPS}?watch=true&labelSelector=app%3D1")).await;
    until_created(&api, "before").await;
    members[0].signal("-STOP");
    // Its connections stay open: only the time tells. A request has 10 s, the log is given up after 15 s of silence.
    let took = until_created(&api, "meanwhile").await;
    assert!(took < Duration::from_secs(45), "a write took {took:?}");
    members[0].signal("-CONT");
    until_created(&api, "after").await;
    for name in ["before", "meanwhile", "after"] {
        assert_eq!(lines.next_name().await, ("ADDED".into(), name.into()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_etcd_is_away_caches_are_read_and_writes_fail() {
    let Some(mut etcd) = Etcd::start("while_etcd_is_away_caches_are_read_and_writes_fail") else { return };
    let api = server(&etcd, config()).await;
    api.post(MAPS, &config_map("before", "1")).await.expect(201);
    let mut lines = api.watch(&format!("{MAPS}?watch=true&labelSelector=app%3D1")).await;
    assert_eq!(lines.next_name().await.1, "before");
    etcd.kill();
    let away = Instant::now();
    while away.elapsed() < Duration::from_secs(20) {
        // From the cache, for who asks for no more; as upstream's, other reads need etcd.
        api.get(&format!("{MAPS}/before?resourceVersion=0")).await.expect(200);
        assert!(names(&api, &format!("{MAPS}?resourceVersion=0")).await.contains("before"));
        let begun = Instant::now();
        let failed = api.post(MAPS, &config_map("during", "1")).await;
        assert!(matches!(failed.status.as_u16(), 500 | 503), "{}", failed.json);
        assert_eq!(failed.json["kind"], "Status");
        assert!(api.get(MAPS).await.status.is_server_error());
        assert!(begun.elapsed() < Duration::from_secs(15), "a failure took {:?}", begun.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    etcd.begin();
    let took = until_created(&api, "after").await;
    assert!(took < Duration::from_secs(15), "the first write came {took:?} after etcd");
    // The watch was not cut off.
    assert_eq!(lines.next_name().await, ("ADDED".into(), "after".into()));
    api.get(&format!("{MAPS}/during")).await.expect(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_for_etcd_is_refused() {
    let Some(etcd) = Etcd::start("what_is_too_large_for_etcd_is_refused") else { return };
    let api = server(&etcd, config()).await;
    // A binary in a Secret: its size in etcd is a third larger. 1.5 MiB is the limit of all that is stored at once.
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"}, "data": {"k": "x".repeat(1_040_000)},
        "binaryData": {}});
    api.post(MAPS, &map).await.expect(201);
    let annotations = json!({"metadata": {"annotations": {"a": "x".repeat(250_000)}, "labels": {}}});
    api.patch(&format!("{MAPS}/large"), "merge-patch", &annotations).await.expect(200);
    let crd_like = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "large"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i", "args": ["x".repeat(1_600_000)]}]}}}});
    let refused = api.send(
        Method::POST,
        "/apis/apps/v1/namespaces/default/deployments",
        "application/json",
        crd_like.to_string(),
    );
    refused.await.expect(413);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_is_never_passed_and_what_is_charged_is_what_is_there() {
    let Some(etcd) = Etcd::start("a_quota_is_never_passed_and_what_is_charged_is_what_is_there") else { return };
    let servers = pair(&etcd, config()).await;
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "20"}}});
    servers[0].post(QUOTAS, &quota).await.expect(201);
    let used = async |api: &Api, wanted: &str| {
        let begun = Instant::now();
        loop {
            let quota = api.get(&format!("{QUOTAS}/q")).await.expect(200);
            if quota["status"]["used"]["count/configmaps"] == wanted {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{}, not {wanted}", quota["status"]);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    used(&servers[1], "0").await;
    for round in 0..3 {
        let makers: Vec<_> = (0..60)
            .map(|maker| {
                let api = Arc::clone(&servers[maker % 2]);
                let body = config_map(&format!("q{round}-{maker}"), "1");
                tokio::spawn(async move { api.post(MAPS, &body).await.status.as_u16() })
            })
            .collect();
        let mut made = Vec::new();
        for maker in makers {
            made.push(maker.await.unwrap());
        }
        assert_eq!(made.iter().filter(|status| **status == 201).count(), 20, "{made:?}");
        assert!(made.iter().all(|status| matches!(status, 201 | 403)), "{made:?}");
        // At once, in whatever order the servers were asked: each charge came with its object.
        for api in &servers {
            let quota = api.get(&format!("{QUOTAS}/q")).await.expect(200);
            assert_eq!(quota["status"]["used"]["count/configmaps"], "20");
        }
        servers[round % 2].delete(MAPS, &json!({})).await.expect(200);
        used(&servers[(round + 1) % 2], "0").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_derives_follows_from_what_another_stored() {
    let Some(etcd) = Etcd::start("what_a_server_derives_follows_from_what_another_stored") else { return };
    let [a, b] = pair(&etcd, config()).await;
    // Kinds: who was told here that one is established finds it there, although the other server has many to look at.
    let kinds = |i: usize| (format!("foo{i}s"), format!("Foo{i}"));
    let definitions = (0..30).map(|i| {
        let (plural, kind) = kinds(i);
        let version = json!({"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind}, "versions": [version]}})
    });
    let [api, other] = [&*a, &*b];
    futures::future::join_all(definitions.enumerate().map(|(i, crd)| async move {
        api.post(CRDS, &crd).await.expect(201);
        let (plural, kind) = kinds(i);
        let path = format!("{CRDS}/{plural}.example.com");
        let begun = Instant::now();
        while !api.get(&path).await.expect(200)["status"]["conditions"].to_string().contains("\"Established\"") {
            assert!(begun.elapsed() < Duration::from_secs(30), "it is not established");
        }
        let object = json!({"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": "x"}});
        let objects = format!("/apis/example.com/v1/namespaces/default/{plural}");
        other.post(&objects, &object).await.expect(201);
        api.get(&format!("{objects}/x")).await.expect(200);
        other.delete(&path, &json!({})).await.expect(200);
        let begun = Instant::now();
        while api.get(&path).await.status != 404 {
            assert!(begun.elapsed() < Duration::from_secs(30), "the definition stays");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let left = api.server.store.range(&format!("/registry/example.com/{plural}/"), None, None, 0).await.unwrap();
        assert_eq!(left.items, [], "an object outlived its definition");
    }))
    .await;
    // Rights.
    let reader = json!({"metadata": {"name": "reader"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]});
    let binding = json!({"metadata": {"name": "reader"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    b.as_user("jane", &[], Method::GET, MAPS, &Value::Null).await.expect(403);
    a.post(&format!("{rbac}/roles"), &reader).await.expect(201);
    a.post(&format!("{rbac}/rolebindings"), &binding).await.expect(201);
    // As upstream's: within the time that the log takes.
    let begun = Instant::now();
    while b.as_user("jane", &[], Method::GET, MAPS, &Value::Null).await.status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(10), "the right did not come");
    }
    // Policies, at once.
    let policy = json!({"metadata": {"name": "p"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]},
        "validations": [{"expression": "object.metadata.name != 'refused'", "message": "not this one"}]}});
    let bound = json!({"metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    let admission = "/apis/admissionregistration.k8s.io/v1";
    a.post(&format!("{admission}/validatingadmissionpolicies"), &policy).await.expect(201);
    a.post(&format!("{admission}/validatingadmissionpolicybindings"), &bound).await.expect(201);
    let refused = b.post(MAPS, &config_map("refused", "1")).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("not this one"), "{refused}");
    // Namespaces, at once.
    a.post("/api/v1/namespaces", &json!({"metadata": {"name": "fresh"}})).await.expect(201);
    b.post("/api/v1/namespaces/fresh/configmaps", &config_map("x", "1")).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_touches_too_many_keys_is_refused() {
    let Some(etcd) = Etcd::start("what_touches_too_many_keys_is_refused") else { return };
    let api = server(&etcd, config()).await;
    let service = |name: &str, ports: u16| {
        let ports: Vec<_> = (0..ports).map(|i| json!({"name": format!("p{i}"), "port": 1000 + i})).collect();
        json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": ports, "selector": {"a": "b"}}})
    };
    let refused = api.post(SERVICES, &service("many", 130)).await.expect(413);
    assert!(refused["message"].as_str().unwrap().contains("keys at once"), "{refused}");
    api.get(&format!("{SERVICES}/many")).await.expect(404);
    api.post(SERVICES, &service("some", 100)).await.expect(201);
}

/// Certificates of an etcd and its clients: flags for etcd, and what a client needs.
fn certificates(folder: &Path) -> Vec<String> {
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).unwrap();
    let authority = |name: &str| {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        write(&format!("{name}.crt"), certificate.pem());
        rcgen::Issuer::new(params, key)
    };
    let issuer = authority("ca");
    authority("other");
    for name in ["server", "client"] {
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = rcgen::KeyPair::generate().unwrap();
        write(&format!("{name}.crt"), params.signed_by(&key, &issuer).unwrap().pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
    let flag = |name: &str, file: &str| [name.to_owned(), folder.join(file).display().to_string()];
    let files =
        [flag("--cert-file", "server.crt"), flag("--key-file", "server.key"), flag("--trusted-ca-file", "ca.crt")];
    files.concat().into_iter().chain(["--client-cert-auth".to_owned()]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_is_reached_with_certificates_and_only_with_the_right_ones() {
    let test = "etcd_is_reached_with_certificates_and_only_with_the_right_ones";
    let Some(etcd) = Etcd::start_secure(test, certificates) else { return };
    let file = |name: &str| Some(etcd.folder().join(name));
    let secure = EtcdConfig {
        ca_file: file("ca.crt"),
        cert_file: file("client.crt"),
        key_file: file("client.key"),
        ..plain(&etcd)
    };
    let api = server_at(&secure, config()).await;
    let mut lines = api.watch(&format!("{MAPS}?watch=true&labelSelector=app%3D1")).await;
    api.post(MAPS, &config_map("m", "1")).await.expect(201);
    assert_eq!(lines.next_name().await, ("ADDED".into(), "m".into()));
    let folder = tempfile::tempdir().unwrap();
    for (what, wrong) in [
        ("another authority", EtcdConfig { ca_file: file("other.crt"), ..secure.clone() }),
        ("no certificate of the client", EtcdConfig { cert_file: None, key_file: None, ..secure.clone() }),
    ] {
        let store = run::open_etcd(folder.path(), &wrong).unwrap();
        let begun = Instant::now();
        let failed = store.revision().await.unwrap_err();
        assert!(failed.retryable(), "{what}: {failed}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}: it took {:?}", begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_finds_no_etcd_does_not_start_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let begun = Instant::now();
    let program = std::process::Command::new(env!("CARGO_BIN_EXE_control-plane"))
        .args(["serve", "--bind-address", "127.0.0.1", "--secure-port", "0", "--only", "apiserver", "--data-dir"])
        .arg(folder.path())
        .arg(format!("--etcd-servers=http://127.0.0.1:{port}"))
        .output();
    let output = program.unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot read from the store: etcd"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(40), "it took {:?}", begun.elapsed());
}

/// Figures for the documentation: `cargo test --workspace --test etcd -- --ignored --nocapture figures`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, judges nothing"]
async fn figures_of_creates() {
    let Some(etcd) = Etcd::start("figures_of_creates") else { return };
    for (store, api) in [("sqlite", Api::start().await), ("etcd", server(&etcd, config()).await)] {
        let api = Arc::new(api);
        for clients in [1, 64] {
            let begun = Instant::now();
            let until = begun + Duration::from_secs(5);
            let workers: Vec<_> = (0..clients)
                .map(|client| {
                    let api = Arc::clone(&api);
                    tokio::spawn(async move {
                        let mut made = 0u32;
                        while Instant::now() < until {
                            api.post(MAPS, &config_map(&format!("c{clients}-{client}-{made}"), "1")).await.expect(201);
                            made += 1;
                        }
                        made
                    })
                })
                .collect();
            let mut made = 0;
            for worker in workers {
                made += worker.await.unwrap();
            }
            println!("{store}: {clients} clients: {:.0} creates/s", f64::from(made) / begun.elapsed().as_secs_f64());
        }
    }
}
