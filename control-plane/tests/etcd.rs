//! API servers over etcd: several of them, and an etcd that crashes or is away.

mod common;
#[path = "common/etcd.rs"]
mod process;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Api, config, config_map};
use http::Method;
use keelson_control_plane::run;
use keelson_control_plane::server::Config;
use keelson_control_plane::store::EtcdConfig;
use process::Etcd;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";

async fn server(etcd: &Etcd, config: Config) -> Api {
    let folder = tempfile::tempdir().unwrap();
    let etcd = EtcdConfig {
        servers: vec![etcd.url()],
        prefix: "/registry".into(),
        ca_file: None,
        cert_file: None,
        key_file: None,
    };
    let store = run::open_etcd(folder.path(), &etcd).unwrap();
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
