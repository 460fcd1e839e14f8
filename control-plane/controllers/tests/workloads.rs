//! The controllers of replication controllers, daemon sets, stateful sets, jobs and cron jobs, and what happens to the pods of
//! a node that falls silent: on the real API server, with nodes that only pretend.
//!
//! Needs the program `control-plane` in the same build folder, as `cluster.rs` does.

#[path = "support/hollow.rs"]
mod hollow;
#[path = "support/server.rs"]
mod server;

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim, Pod, ReplicationController, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::ClusterRole;
use keelson_controllers::{Config, run_all};
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use server::{Space, connect, eventually, parse, program, start};
use tokio_util::sync::CancellationToken;

/// Long enough for a late lease on a busy machine, short enough to wait for.
const GRACE: Duration = Duration::from_secs(6);

const RENEWAL: Duration = Duration::from_secs(1);

fn template(app: &str, image: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "c", "image": image,
        "ports": [{"containerPort": 80}]}]}})
}

impl Space {
    async fn make<K>(&self, value: Value) -> anyhow::Result<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Serialize
            + std::fmt::Debug,
    {
        Ok(self.api::<K>().create(&PostParams::default(), &parse(value)?).await?)
    }

    async fn change<K>(&self, name: &str, patch: Value) -> anyhow::Result<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        Ok(self.api::<K>().patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await?)
    }

    /// The pods with this label that were not deleted, by name.
    async fn pods(&self, app: &str) -> Vec<Pod> {
        let list = self.api::<Pod>().list(&ListParams::default().labels(&format!("app={app}"))).await;
        let mut pods = list.map_or_else(|_| Vec::new(), |list| list.items);
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        pods.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        pods
    }

    async fn event(&self, about: &str, reason: &str) -> anyhow::Result<String> {
        eventually(&format!("an event {reason} about {about}"), || async {
            let list = self.api::<Event>().list(&ListParams::default()).await.ok()?;
            let mut found = list.items.into_iter();
            let is_it =
                |e: &Event| e.reason.as_deref() == Some(reason) && e.involved_object.name.as_deref() == Some(about);
            found.find(is_it)?.message
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workloads_on_the_real_api_server() -> anyhow::Result<()> {
    let Some(program) = program() else {
        println!(
            "SKIPPED workloads_on_the_real_api_server: no control-plane program beside the tests (cargo build -p keelson-control-plane)"
        );
        return Ok(());
    };
    kube_common::tls::install_ring();
    let flags = ["--default-unreachable-toleration-seconds", "1", "--default-not-ready-toleration-seconds", "1"];
    let server = start(&program, &flags)?;
    let client = connect(&server).await?;
    let stop = CancellationToken::new();
    let config = Config { node_monitor_grace_period: GRACE, ..Config::default() };
    let running = tokio::spawn(run_all(client.clone(), config, stop.clone()));
    for name in ["n1", "n2"] {
        hollow::register(&client, name).await?;
    }
    let pretending = tokio::spawn(hollow::run_pods(client.clone()));
    let renewing = tokio::spawn(hollow::renew(client.clone(), vec!["n1".to_owned(), "n3".to_owned()], RENEWAL));
    let lost_later = tokio::spawn(hollow::renew(client.clone(), vec!["n2".to_owned()], RENEWAL));
    let space = Space { client: client.clone(), name: "default" };

    tokio::try_join!(
        replication_controllers(&space),
        daemon_sets(&space),
        stateful_sets(&space),
        jobs(&space),
        cron_jobs(&space),
        budgets(&space),
        roles(&space)
    )?;
    lost_later.abort();
    a_silent_node_loses_its_pods(&space).await?;

    stop.cancel();
    tokio::time::timeout(Duration::from_secs(5), running).await.context("controllers end when told to")???;
    pretending.abort();
    renewing.abort();
    Ok(())
}

async fn replication_controllers(space: &Space) -> anyhow::Result<()> {
    let wish = json!({"metadata": {"name": "old"}, "spec": {"replicas": 2, "template": template("old", "v1")}});
    space.make::<ReplicationController>(wish).await?;
    let api: Api<ReplicationController> = space.api();
    let ready = |count: i32| async move {
        let status = self_status(&space.api::<ReplicationController>().get("old").await.ok()?)?;
        (status == (count, count)).then_some(())
    };
    eventually("two replicas are available", || ready(2)).await?;
    space.change::<ReplicationController>("old", json!({"spec": {"replicas": 1}})).await?;
    eventually("one replica is left", || ready(1)).await?;
    api.delete("old", &DeleteParams::background()).await?;
    eventually("its pod goes", || async { space.pods("old").await.is_empty().then_some(()) }).await
}

fn self_status(controller: &ReplicationController) -> Option<(i32, i32)> {
    let status = controller.status.as_ref()?;
    Some((status.replicas, status.available_replicas.unwrap_or(0)))
}

async fn daemon_sets(space: &Space) -> anyhow::Result<()> {
    let wish = json!({"metadata": {"name": "daemon"}, "spec": {"selector": {"matchLabels": {"app": "daemon"}}, "template": template("daemon", "v1")}});
    space.make::<DaemonSet>(wish).await?;
    let api: Api<DaemonSet> = space.api();
    let rolled_out = |nodes: i32| {
        let api = api.clone();
        async move {
            let set = api.get("daemon").await.ok()?;
            let status = set.status?;
            let counts = [status.desired_number_scheduled, status.updated_number_scheduled?, status.number_available?];
            (status.observed_generation == set.metadata.generation && counts == [nodes; 3]).then_some(())
        }
    };
    eventually("a pod on each node", || rolled_out(2)).await?;
    let nodes = |pods: Vec<Pod>| {
        let mut nodes: Vec<String> = pods.into_iter().filter_map(|p| p.spec?.node_name).collect();
        nodes.sort();
        nodes
    };
    assert_eq!(nodes(space.pods("daemon").await), ["n1", "n2"]);
    hollow::register(&space.client, "n3").await?;
    eventually("a new node gets its pod", || rolled_out(3)).await?;
    let image = |image: &str| json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
    space.change::<DaemonSet>("daemon", image("v2")).await?;
    eventually("the update goes through", || rolled_out(3)).await?;
    let pods = space.pods("daemon").await;
    assert!(pods.iter().all(|p| p.spec.as_ref().is_some_and(|s| s.containers[0].image.as_deref() == Some("v2"))));
    space.change::<DaemonSet>("daemon", image("v1")).await?;
    eventually("and back", || rolled_out(3)).await?;
    let list = space.api::<ControllerRevision>().list(&ListParams::default().labels("app=daemon")).await?;
    let mut numbers: Vec<_> = list.items.iter().filter_map(|r| r.revision).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [2, 3], "the first revision has a new number");
    Api::<Node>::all(space.client.clone()).delete("n3", &DeleteParams::default()).await?;
    eventually("one node less", || rolled_out(2)).await
}

async fn stateful_sets(space: &Space) -> anyhow::Result<()> {
    let service = json!({"metadata": {"name": "db"}, "spec": {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 80}]}});
    space.make::<Service>(service).await?;
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let wish = json!({"metadata": {"name": "db"}, "spec": {"serviceName": "db", "replicas": 3, "volumeClaimTemplates": [claim],
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
        "selector": {"matchLabels": {"app": "db"}}, "template": template("db", "v1")}});
    space.make::<StatefulSet>(wish).await?;
    let rolled_out = |count: i32, updated: i32| async move {
        let set = space.api::<StatefulSet>().get("db").await.ok()?;
        let status = set.status?;
        let is_done = status.observed_generation == set.metadata.generation
            && (status.replicas, status.available_replicas) == (count, Some(count))
            && status.updated_replicas.unwrap_or(0) == updated;
        is_done.then_some(status.current_revision == status.update_revision)
    };
    eventually("three members", || rolled_out(3, 3)).await?;
    let pods = space.pods("db").await;
    let names: Vec<_> = pods.iter().filter_map(|p| p.metadata.name.as_deref()).collect();
    assert_eq!(names, ["db-0", "db-1", "db-2"]);
    let times: Vec<_> = pods.iter().map(|p| p.metadata.creation_timestamp.clone()).collect();
    assert!(times.is_sorted());
    let spec = pods[2].spec.clone().context("a spec")?;
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("db-2"), Some("db")));
    let labels = pods[2].metadata.labels.clone().context("labels")?;
    assert_eq!(
        (labels["apps.kubernetes.io/pod-index"].as_str(), labels["statefulset.kubernetes.io/pod-name"].as_str()),
        ("2", "db-2")
    );
    assert!(space.api::<PersistentVolumeClaim>().get("data-db-2").await.is_ok());
    eventually("slices name the members", || async {
        let of_service = ListParams::default().labels("kubernetes.io/service-name=db");
        let slices = space.api::<EndpointSlice>().list(&of_service).await.ok()?;
        let mut names: Vec<_> =
            slices.items.iter().flat_map(|s| s.endpoints.iter().flatten()).filter_map(|e| e.hostname.clone()).collect();
        names.sort();
        (names == ["db-0", "db-1", "db-2"]).then_some(())
    })
    .await?;
    let image = json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 2}}, "template": {"spec": {"containers": [{"name": "c", "image": "v2"}]}}}});
    space.change::<StatefulSet>("db", image).await?;
    assert!(!eventually("the last is updated", || rolled_out(3, 1)).await?);
    let images: Vec<_> =
        space.pods("db").await.iter().filter_map(|p| p.spec.as_ref()?.containers[0].image.clone()).collect();
    assert_eq!(images, ["v1", "v1", "v2"]);
    space.change::<StatefulSet>("db", json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})).await?;
    assert!(eventually("all are updated", || rolled_out(3, 3)).await?);
    space.change::<StatefulSet>("db", json!({"spec": {"replicas": 1}})).await?;
    eventually("the highest go", || rolled_out(1, 1)).await?;
    assert_eq!(space.count::<PersistentVolumeClaim>().await, 3, "claims stay");
    space.api::<StatefulSet>().delete("db", &DeleteParams::background()).await?;
    eventually("claims go with the set", || async {
        let left = space.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.ok()?;
        left.items.iter().all(|c| c.metadata.deletion_timestamp.is_some()).then_some(())
    })
    .await
}

/// A job whose pods end as `hollow` says.
fn job(name: &str, hollow: &str, spec: &Value) -> Value {
    let mut job = json!({"metadata": {"name": name}, "spec": {"template": {"metadata": {"labels": {"app": name, "hollow": hollow}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        job["spec"][key] = value.clone();
    }
    job
}

async fn ends(space: &Space, name: &str, how: &str) -> anyhow::Result<Job> {
    eventually(&format!("job {name} is {how}"), || async {
        let job = space.api::<Job>().get(name).await.ok()?;
        let conditions = job.status.as_ref()?.conditions.clone()?;
        conditions.iter().any(|c| c.type_ == how && c.status == "True").then_some(job)
    })
    .await
}

async fn jobs(space: &Space) -> anyhow::Result<()> {
    space.make::<Job>(job("good", "succeed", &json!({"completions": 3, "parallelism": 2}))).await?;
    let good = ends(space, "good", "Complete").await?.status.context("a status")?;
    assert_eq!((good.succeeded, good.failed, good.active), (Some(3), None, None));
    assert!(good.completion_time.is_some());
    let pods = space.pods("good").await;
    assert!(pods.len() == 3 && pods.iter().all(|p| p.metadata.finalizers.as_ref().is_none_or(Vec::is_empty)));
    assert_eq!(space.event("good", "Completed").await?, "Job completed");

    space.make::<Job>(job("bad", "fail", &json!({"backoffLimit": 0}))).await?;
    let bad = ends(space, "bad", "Failed").await?.status.context("a status")?;
    assert_eq!((bad.failed, bad.succeeded), (Some(1), None));
    assert_eq!(space.event("bad", "BackoffLimitExceeded").await?, "Job has reached the specified backoff limit");

    let indexed =
        json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed", "ttlSecondsAfterFinished": 2});
    space.make::<Job>(job("indexed", "succeed", &indexed)).await?;
    let done = ends(space, "indexed", "Complete").await?;
    assert_eq!(done.status.and_then(|s| s.completed_indexes).as_deref(), Some("0-2"));
    let hosts: Vec<_> = space.pods("indexed").await.into_iter().filter_map(|p| p.spec?.hostname).collect();
    assert_eq!(hosts, ["indexed-0", "indexed-1", "indexed-2"]);
    eventually("an ended job goes after its time", || async {
        space.api::<Job>().get("indexed").await.is_err().then_some(())
    })
    .await?;

    space.make::<Job>(job("waits", "", &json!({"suspend": true, "activeDeadlineSeconds": 600}))).await?;
    space.event("waits", "Suspended").await?;
    assert!(space.pods("waits").await.is_empty());
    space.change::<Job>("waits", json!({"spec": {"suspend": false}})).await?;
    eventually("it goes on", || async { (space.pods("waits").await.len() == 1).then_some(()) }).await?;
    let first = space.pods("waits").await[0].metadata.uid.clone();
    space.change::<Job>("waits", json!({"spec": {"suspend": true}})).await?;
    eventually("it waits again", || async { space.pods("waits").await.is_empty().then_some(()) }).await?;
    space.change::<Job>("waits", json!({"spec": {"suspend": false}})).await?;
    let next = eventually("and goes on", || async { space.pods("waits").await.pop()?.metadata.uid }).await?;
    assert_ne!(first, Some(next));
    let status = space.api::<Job>().get("waits").await?.status.context("a status")?;
    assert_eq!(status.failed, None, "pods of a suspended job have not failed");
    space.change::<Job>("waits", json!({"spec": {"activeDeadlineSeconds": 1}})).await?;
    ends(space, "waits", "Failed").await?;
    let foreground =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Foreground), ..DeleteParams::default() };
    space.api::<Job>().delete("waits", &foreground).await?;
    space.api::<Job>().delete("good", &DeleteParams::background()).await?;
    eventually("jobs go with their pods", || async {
        (space.api::<Job>().get("waits").await.is_err() && space.pods("good").await.is_empty()).then_some(())
    })
    .await
}

async fn cron_jobs(space: &Space) -> anyhow::Result<()> {
    let mut template = job("", "succeed", &json!({}));
    template["spec"]["template"]["metadata"]["labels"]["app"] = json!("cron");
    let wish = json!({"metadata": {"name": "cron"}, "spec": {"schedule": "@every 1s", "successfulJobsHistoryLimit": 0,
        "jobTemplate": {"spec": template["spec"]}}});
    space.make::<CronJob>(wish).await?;
    space.event("cron", "SawCompletedJob").await?;
    space.event("cron", "SuccessfulDelete").await?;
    let cron = space.api::<CronJob>().get("cron").await?;
    assert!(cron.status.is_some_and(|s| s.last_schedule_time.is_some() && s.last_successful_time.is_some()));
    space.api::<CronJob>().delete("cron", &DeleteParams::background()).await?;
    eventually("its jobs go", || async {
        let jobs = space.api::<Job>().list(&ListParams::default()).await.ok()?;
        (!jobs.items.iter().any(|j| j.metadata.name.as_deref().is_some_and(|n| n.starts_with("cron-")))).then_some(())
    })
    .await
}

/// A budget grants one eviction of three pods, and another one once the first pod's successor is ready.
async fn budgets(space: &Space) -> anyhow::Result<()> {
    let wish = json!({"metadata": {"name": "kept"}, "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "kept"}}, "template": template("kept", "v1")}});
    space.make::<Deployment>(wish).await?;
    let budget = json!({"metadata": {"name": "kept"}, "spec": {"maxUnavailable": "30%", "selector": {"matchLabels": {"app": "kept"}}}});
    space.make::<PodDisruptionBudget>(budget).await?;
    let numbers = |wanted: [i32; 4]| async move {
        let status = space.api::<PodDisruptionBudget>().get("kept").await.ok()?.status?;
        let present =
            [status.expected_pods, status.desired_healthy, status.current_healthy, status.disruptions_allowed];
        (present.map(|number| number.unwrap_or(-1)) == wanted).then_some(())
    };
    eventually("one of three may go", || numbers([3, 2, 3, 1])).await?;
    let evict = async |pod: &Pod| {
        let name = pod.metadata.name.clone().unwrap_or_default();
        space.api::<Pod>().evict(&name, &EvictParams::default()).await.map_err(|error| error.to_string())
    };
    let pods = space.pods("kept").await;
    evict(&pods[0]).await.map_err(anyhow::Error::msg)?;
    eventually("a second one may go", || async { evict(&pods[1]).await.ok() }).await?;
    let ready = space.pods("kept").await.iter().filter(|pod| is_ready(pod)).count();
    assert!(ready >= 2, "the second was let go before the first one's successor was ready: {ready} are ready");
    eventually("all are there again", || numbers([3, 2, 3, 1])).await?;
    space.api::<Deployment>().delete("kept", &DeleteParams::background()).await?;
    space.api::<PodDisruptionBudget>().delete("kept", &DeleteParams::default()).await?;
    eventually("its pods go", || async { space.pods("kept").await.is_empty().then_some(()) }).await
}

/// What an operator labels for `view` is in `view`, `edit` and `admin`, and goes with its role.
async fn roles(space: &Space) -> anyhow::Result<()> {
    let roles: Api<ClusterRole> = Api::all(space.client.clone());
    let role = parse(
        json!({"metadata": {"name": "foo-view", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["foos"], "verbs": ["get"]}]}),
    )?;
    roles.create(&PostParams::default(), &role).await?;
    let has = |name: &'static str, wanted: bool| {
        let roles = roles.clone();
        async move {
            let rules = roles.get(name).await.ok()?.rules.unwrap_or_default();
            let foos = rules.iter().any(|rule| rule.resources.iter().flatten().any(|resource| resource == "foos"));
            let pods = rules.iter().any(|rule| rule.resources.iter().flatten().any(|resource| resource == "pods"));
            (foos == wanted && pods).then_some(())
        }
    };
    for name in ["view", "edit", "admin"] {
        eventually(&format!("{name} takes the rule in"), || has(name, true)).await?;
    }
    roles.delete("foo-view", &DeleteParams::default()).await?;
    for name in ["view", "edit", "admin"] {
        eventually(&format!("{name} gives the rule up"), || has(name, false)).await?;
    }
    Ok(())
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn a_silent_node_loses_its_pods(space: &Space) -> anyhow::Result<()> {
    let wish = json!({"metadata": {"name": "web"}, "spec": {"replicas": 4, "template": template("web", "v1")}});
    space.make::<ReplicationController>(wish).await?;
    let nodes: Api<Node> = Api::all(space.client.clone());
    let ready = |node: &Node| {
        let conditions = node.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|c| c.type_ == "Ready").map(|c| c.status.clone())
    };
    eventually("the node is lost", || async {
        (ready(&nodes.get("n2").await.ok()?).as_deref() == Some("Unknown")).then_some(())
    })
    .await?;
    let keys = eventually("it is tainted", || async {
        let taints = nodes.get("n2").await.ok()?.spec?.taints?;
        let keys: Vec<String> = taints.into_iter().map(|t| format!("{}:{}", t.key, t.effect)).collect();
        (keys.len() == 2).then_some(keys)
    })
    .await?;
    assert!(keys.contains(&"node.kubernetes.io/unreachable:NoExecute".to_owned()), "{keys:?}");
    eventually("all its pods are elsewhere", || async {
        let pods = space.pods("web").await;
        let on_first = pods.iter().filter(|p| p.spec.as_ref().is_some_and(|s| s.node_name.as_deref() == Some("n1")));
        (on_first.count() == 4 && pods.len() == 4).then_some(())
    })
    .await?;
    let on_lost = |pods: Vec<Pod>| {
        let is_there = |p: &Pod| p.spec.as_ref().is_some_and(|s| s.node_name.as_deref() == Some("n2"));
        pods.into_iter().filter(is_there).filter_map(|p| p.metadata.uid).collect::<Vec<_>>()
    };
    let daemons = on_lost(space.pods("daemon").await);
    assert_eq!(daemons.len(), 1, "daemon pods stay");
    hollow::register(&space.client, "n2").await?;
    eventually("the node comes back without taints", || async {
        let spec = nodes.get("n2").await.ok()?.spec;
        spec.and_then(|s| s.taints).is_none_or(|taints| taints.is_empty()).then_some(())
    })
    .await?;
    eventually("the daemon set is complete", || async {
        let status = space.api::<DaemonSet>().get("daemon").await.ok()?.status?;
        (status.desired_number_scheduled == 2).then_some(())
    })
    .await?;
    assert_eq!(on_lost(space.pods("daemon").await), daemons, "the same pod as before");
    Ok(())
}
