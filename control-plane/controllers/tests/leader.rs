//! Two processes' worth of controllers and schedulers on the real API server: one leads, the other stands by.
//!
//! Needs the program `control-plane` in the same build folder; without it the tests say that they were skipped.

#[path = "support/server.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use keelson_controllers::{Config, Election, LEASE_DURATION, lead, run_all};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;
use server::{Server, Space, connect, eventually, parse, program, start};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const NAME: &str = "kube-controller-manager";

/// Who began and ended to work, when.
type Log = Arc<Mutex<Vec<(&'static str, &'static str, Instant)>>>;

struct Candidate {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

fn candidate(client: Client, identity: &'static str, log: &Log) -> Candidate {
    let stop = CancellationToken::new();
    let (log, shutdown) = (Arc::clone(log), stop.clone());
    let task = tokio::spawn(async move {
        let election = Election { name: NAME, identity: identity.to_owned() };
        let work = |client: Client, stop: CancellationToken| {
            let log = Arc::clone(&log);
            async move {
                log.lock().push((identity, "began", Instant::now()));
                let ended = run_all(client, Config::default(), stop).await;
                log.lock().push((identity, "ended", Instant::now()));
                ended
            }
        };
        lead(client, election, shutdown, work).await.unwrap();
    });
    Candidate { stop, task }
}

async fn holder(client: &Client) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    leases.get_opt(NAME).await.ok()??.spec?.holder_identity
}

async fn held_by(client: &Client, who: &str) -> anyhow::Result<()> {
    eventually(&format!("{who} leads"), || async { (holder(client).await? == who).then_some(()) }).await
}

/// The controllers work: a Deployment gets its ReplicaSet.
async fn works(space: &Space, name: &str) -> anyhow::Result<()> {
    let deployment: Deployment = parse(json!({"metadata": {"name": name}, "spec": {"replicas": 1,
        "selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}}))?;
    let before = space.count::<ReplicaSet>().await;
    space.api::<Deployment>().create(&PostParams::default(), &deployment).await?;
    eventually("a ReplicaSet is made", || async { (space.count::<ReplicaSet>().await > before).then_some(()) }).await
}

async fn ready(test: &str) -> anyhow::Result<Option<(Server, Client)>> {
    let Some(program) = program() else {
        println!("SKIPPED {test}: no control-plane program beside the tests");
        return Ok(None);
    };
    kube_common::tls::install_ring();
    let server = start(&program, &[])?;
    let client = connect(&server).await?;
    Ok(Some((server, client)))
}

fn times(log: &Log, who: &str, what: &str) -> Vec<Instant> {
    log.lock().iter().filter(|(w, e, _)| *w == who && *e == what).map(|(_, _, at)| *at).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_leads_when_the_leader_is_killed_and_at_once_when_it_ends() -> anyhow::Result<()> {
    let Some((_server, client)) = ready("the_next_leads_when_the_leader_is_killed").await? else { return Ok(()) };
    let space = Space { client: client.clone(), name: "default" };
    let log = Log::default();
    let a = candidate(client.clone(), "a", &log);
    held_by(&client, "a").await?;
    let b = candidate(client.clone(), "b", &log);
    works(&space, "first").await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(times(&log, "b", "began").is_empty(), "the other stands by");
    // As a crash: nothing is given back. Work that it spawned ends with it.
    a.task.abort();
    let killed = Instant::now();
    held_by(&client, "b").await?;
    let took = killed.elapsed();
    // The lease counts from its last renewal, before the end; what is more is for a busy machine.
    assert!(took <= LEASE_DURATION + Duration::from_secs(2), "the next led after {took:?}");
    works(&space, "second").await?;
    let began = times(&log, "b", "began")[0];
    assert!(began.duration_since(killed) > Duration::from_secs(10), "it did not wait for the lease to run out");
    // A clean end gives the lead back: the next tries every 2 s.
    let c = candidate(client.clone(), "c", &log);
    tokio::time::sleep(Duration::from_secs(3)).await;
    b.stop.cancel();
    b.task.await?;
    let ended = times(&log, "b", "ended")[0];
    held_by(&client, "c").await?;
    assert!(ended.elapsed() < Duration::from_secs(6), "it waited although the lead was given back");
    eventually("c works", || async { times(&log, "c", "began").first().copied() }).await?;
    assert!(times(&log, "c", "began")[0] >= ended, "two led at once");
    works(&space, "third").await?;
    c.stop.cancel();
    c.task.await?;
    assert_eq!(holder(&client).await.unwrap_or_default(), "", "it was not given back at the end");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_loses_the_lead_ends_its_work_and_stands_by() -> anyhow::Result<()> {
    let Some((_server, client)) = ready("who_loses_the_lead_ends_its_work_and_stands_by").await? else { return Ok(()) };
    let log = Log::default();
    let a = candidate(client.clone(), "a", &log);
    held_by(&client, "a").await?;
    eventually("a works", || async { times(&log, "a", "began").first().copied() }).await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    eventually("the lease is somebody else's", || async {
        let mut lease = leases.get(NAME).await.ok()?;
        lease.spec.as_mut()?.holder_identity = Some("thief".to_owned());
        leases.replace(NAME, &PostParams::default(), &lease).await.ok()
    })
    .await?;
    let stolen = Instant::now();
    eventually("a ends", || async { times(&log, "a", "ended").first().copied() }).await?;
    assert!(stolen.elapsed() < Duration::from_secs(8), "it worked on for {:?}", stolen.elapsed());
    // The thief does not renew it: it runs out.
    held_by(&client, "a").await?;
    assert!(stolen.elapsed() > Duration::from_secs(12));
    eventually("a works again", || async { (times(&log, "a", "began").len() == 2).then_some(()) }).await?;
    a.stop.cancel();
    a.task.await?;
    Ok(())
}
