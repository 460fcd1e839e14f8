//! All controllers and the scheduler on the real API server, with nodes that only pretend.
//!
//! Needs the program `control-plane` in the same build folder (`cargo build -p keelson-control-plane`); without it the
//! test says that it was skipped.

#[path = "support/hollow.rs"]
mod hollow;
#[path = "support/server.rs"]
mod server;

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, Event, Namespace, Node, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use keelson_controllers::{Config, run_all};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::{Api, Client};
use serde_json::json;
use server::{Space, connect, eventually, parse, program, start};
use tokio_util::sync::CancellationToken;

/// As often as real agents.
const LEASE_RENEWAL: Duration = Duration::from_secs(10);

fn deployment(name: &str, replicas: i32, image: &str) -> serde_json::Value {
    json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": image, "ports": [{"name": "http", "containerPort": 8080}]}]}}}})
}

impl Space {
    async fn rolled_out(&self, name: &str, replicas: i32) -> anyhow::Result<Deployment> {
        let api: Api<Deployment> = self.api();
        eventually(&format!("{name} is complete with {replicas}"), || async {
            let found = api.get(name).await.ok()?;
            let status = found.status.clone()?;
            let is_complete = status.observed_generation >= found.metadata.generation
                && [status.replicas, status.updated_replicas, status.available_replicas]
                    .iter()
                    .all(|n| *n == Some(replicas));
            is_complete.then_some(found)
        })
        .await
    }

    async fn patch(&self, name: &str, patch: serde_json::Value) -> anyhow::Result<()> {
        self.api::<Deployment>().patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
        Ok(())
    }

    async fn delete(&self, name: &str, policy: PropagationPolicy) -> anyhow::Result<()> {
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        self.api::<Deployment>().delete(name, &params).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_on_the_real_api_server() -> anyhow::Result<()> {
    let Some(program) = program() else {
        println!(
            "SKIPPED controllers_on_the_real_api_server: no control-plane program beside the tests (cargo build -p keelson-control-plane)"
        );
        return Ok(());
    };
    kube_common::tls::install_ring();
    let server = start(&program, &[])?;
    let client = connect(&server).await?;
    let stop = CancellationToken::new();
    let config =
        Config { cluster_cidrs: vec!["10.244.0.0/16".parse()?], root_ca_pem: "the CA".to_owned(), ..Config::default() };
    let running = tokio::spawn(run_all(client.clone(), config, stop.clone()));
    let pretending = tokio::spawn(hollow::run_pods(client.clone()));
    let renewing = tokio::spawn(hollow::renew(client.clone(), vec!["n1".to_owned(), "n2".to_owned()], LEASE_RENEWAL));
    let space = Space { client: client.clone(), name: "default" };

    a_pod_waits_for_a_node_and_says_so(&space).await?;
    namespaces_get_their_defaults(&client).await?;
    rollouts(&space).await?;
    services_follow_pods(&space).await?;
    owners_and_dependents(&space).await?;
    a_namespace_is_emptied(&client).await?;

    stop.cancel();
    tokio::time::timeout(Duration::from_secs(5), running).await.context("controllers end when told to")???;
    pretending.abort();
    renewing.abort();
    Ok(())
}

async fn a_pod_waits_for_a_node_and_says_so(space: &Space) -> anyhow::Result<()> {
    let pods: Api<Pod> = space.api();
    let pod = parse(json!({"metadata": {"name": "first"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}))?;
    pods.create(&PostParams::default(), &pod).await?;
    let waits = |pod: &Pod| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|c| c.reason.as_deref() == Some("Unschedulable"))?.message.clone()
    };
    let message = eventually("the pod is unschedulable", || async { waits(&pods.get("first").await.ok()?) }).await?;
    assert_eq!(message, "no nodes available to schedule pods");
    let events: Api<Event> = space.api();
    eventually("an event says so", || async {
        let list = events.list(&ListParams::default()).await.ok()?;
        list.items.into_iter().find(|e| e.reason.as_deref() == Some("FailedScheduling"))
    })
    .await?;
    for name in ["n1", "n2"] {
        hollow::register(&space.client, name).await?;
    }
    eventually("a new node takes it", || async { pods.get("first").await.ok()?.spec?.node_name }).await?;
    let nodes: Api<Node> = Api::all(space.client.clone());
    let ranges = eventually("both nodes have ranges", || async {
        let list = nodes.list(&ListParams::default()).await.ok()?;
        let ranges: Option<Vec<String>> = list.items.into_iter().map(|n| n.spec?.pod_cidr).collect();
        ranges
    })
    .await?;
    assert_ne!(ranges[0], ranges[1]);
    pods.delete("first", &DeleteParams::default()).await?;
    Ok(())
}

async fn namespaces_get_their_defaults(client: &Client) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &parse(json!({"metadata": {"name": "work"}}))?).await?;
    let space = Space { client: client.clone(), name: "work" };
    eventually("the account default", || async { space.api::<ServiceAccount>().get("default").await.ok() }).await?;
    let map = || async { space.api::<ConfigMap>().get("kube-root-ca.crt").await.ok()?.data };
    let data = eventually("the CA", map).await?;
    assert_eq!(data["ca.crt"], "the CA");
    space.api::<ConfigMap>().delete("kube-root-ca.crt", &DeleteParams::default()).await?;
    eventually("the CA comes back", map).await?;
    Ok(())
}

async fn rollouts(space: &Space) -> anyhow::Result<()> {
    let api: Api<Deployment> = space.api();
    api.create(&PostParams::default(), &parse(deployment("web", 3, "v1"))?).await?;
    let revision =
        |d: &Deployment| d.metadata.annotations.as_ref().map(|a| a["deployment.kubernetes.io/revision"].clone());
    assert_eq!(revision(&space.rolled_out("web", 3).await?).as_deref(), Some("1"));
    let image = |image: &str| json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
    space.patch("web", image("v2")).await?;
    assert_eq!(revision(&space.rolled_out("web", 3).await?).as_deref(), Some("2"));
    space.patch("web", image("v1")).await?;
    let back = space.rolled_out("web", 3).await?;
    assert_eq!(revision(&back).as_deref(), Some("3"));
    assert_eq!(space.count::<ReplicaSet>().await, 2, "the old set was taken again");
    space.patch("web", json!({"spec": {"replicas": 5}})).await?;
    space.rolled_out("web", 5).await?;
    let pods = space.api::<Pod>().list(&ListParams::default().labels("app=web")).await?;
    let victim = pods.items[0].metadata.name.clone().context("a name")?;
    space.api::<Pod>().delete(&victim, &DeleteParams::default()).await?;
    eventually("the pod is gone", || async { space.api::<Pod>().get(&victim).await.is_err().then_some(()) }).await?;
    // The status may still be from before.
    eventually("it has a successor", || async {
        let pods = space.api::<Pod>().list(&ListParams::default().labels("app=web")).await.ok()?;
        (pods.items.len() == 5).then_some(())
    })
    .await?;
    space.rolled_out("web", 5).await?;
    Ok(())
}

async fn services_follow_pods(space: &Space) -> anyhow::Result<()> {
    let services: Api<Service> = space.api();
    let service = parse(
        json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}}),
    )?;
    services.create(&PostParams::default(), &service).await?;
    let ready = |count: usize| async move {
        let slices = space
            .api::<EndpointSlice>()
            .list(&ListParams::default().labels("kubernetes.io/service-name=web"))
            .await
            .ok()?;
        let endpoints: Vec<_> = slices.items.iter().flat_map(|s| s.endpoints.iter().flatten()).collect();
        let all_ready = endpoints.iter().all(|e| e.conditions.as_ref().is_some_and(|c| c.ready == Some(true)));
        let port = slices.items.first()?.ports.as_ref()?.first().and_then(|p| p.port);
        (endpoints.len() == count && all_ready && port == Some(8080)).then_some(())
    };
    eventually("five endpoints", || ready(5)).await?;
    space.patch("web", json!({"spec": {"replicas": 2}})).await?;
    eventually("two endpoints", || ready(2)).await?;
    let endpoints: Api<Endpoints> = space.api();
    eventually("two addresses", || async {
        let subsets = endpoints.get("web").await.ok()?.subsets?;
        (subsets.first()?.addresses.as_ref()?.len() == 2).then_some(())
    })
    .await?;
    services.delete("web", &DeleteParams::default()).await?;
    eventually("slices go with their service", || async {
        let slices = space
            .api::<EndpointSlice>()
            .list(&ListParams::default().labels("kubernetes.io/service-name=web"))
            .await
            .ok()?;
        slices.items.is_empty().then_some(())
    })
    .await
}

async fn owners_and_dependents(space: &Space) -> anyhow::Result<()> {
    let nothing_left =
        || async { (space.count::<ReplicaSet>().await == 0 && space.count::<Pod>().await == 0).then_some(()) };
    space.delete("web", PropagationPolicy::Background).await?;
    eventually("sets and pods go after their deployment", nothing_left).await?;

    let api: Api<Deployment> = space.api();
    api.create(&PostParams::default(), &parse(deployment("last", 2, "v1"))?).await?;
    space.rolled_out("last", 2).await?;
    space.delete("last", PropagationPolicy::Foreground).await?;
    eventually("the deployment goes", || async { api.get("last").await.is_err().then_some(()) }).await?;
    assert!(nothing_left().await.is_some(), "with foreground deletion the dependents go first");

    api.create(&PostParams::default(), &parse(deployment("stays", 2, "v1"))?).await?;
    space.rolled_out("stays", 2).await?;
    space.delete("stays", PropagationPolicy::Orphan).await?;
    eventually("the deployment goes", || async { api.get("stays").await.is_err().then_some(()) }).await?;
    let sets = space.api::<ReplicaSet>().list(&ListParams::default()).await?;
    assert!(sets.items[0].metadata.owner_references.as_ref().is_none_or(Vec::is_empty));
    assert_eq!(space.count::<Pod>().await, 2);
    api.create(&PostParams::default(), &parse(deployment("stays", 2, "v1"))?).await?;
    space.rolled_out("stays", 2).await?;
    assert_eq!(space.count::<ReplicaSet>().await, 1, "the orphan was adopted");
    space.delete("stays", PropagationPolicy::Background).await?;
    eventually("nothing is left", nothing_left).await
}

async fn a_namespace_is_emptied(client: &Client) -> anyhow::Result<()> {
    let space = Space { client: client.clone(), name: "work" };
    space.api::<Deployment>().create(&PostParams::default(), &parse(deployment("web", 2, "v1"))?).await?;
    space.rolled_out("web", 2).await?;
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    space.api::<ConfigMap>().create(&PostParams::default(), &parse(held)?).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.delete("work", &DeleteParams::default()).await?;
    eventually("what remains is said", || async {
        let conditions = namespaces.get("work").await.ok()?.status?.conditions?;
        conditions.into_iter().find(|c| c.type_ == "NamespaceFinalizersRemaining" && c.status == "True")
    })
    .await?;
    assert_eq!(space.count::<Pod>().await, 0);
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    space.api::<ConfigMap>().patch("held", &PatchParams::default(), &free).await?;
    eventually("the namespace goes", || async { namespaces.get("work").await.is_err().then_some(()) }).await
}
