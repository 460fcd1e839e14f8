//! Workers against the runtime's model.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cgroup::Layout;
use crate::config::kubelet::CgroupDriver;
use crate::materials::Bare;
use crate::runtime::fake::FakeRuntime;
use crate::runtime::{ContainerRecord, ContainerState, RuntimeError};

pub(super) struct Bench {
    pub(super) fake: Arc<FakeRuntime>,
    pub(super) node: Arc<NodeContext>,
    _dir: tempfile::TempDir,
}

/// Two cores and ten pods.
fn ledger() -> Ledger {
    let list = serde_json::from_value(json!({"cpu": "2", "memory": "4Gi", "pods": "10"})).unwrap();
    let allocatable = kube_common::scheduling::resources::Resources::read(Some(&list));
    let facts = crate::admission::NodeFacts { allocatable, ..crate::admission::NodeFacts::default() };
    Ledger::new(facts, watch::Sender::new(None).subscribe())
}

pub(super) fn bench() -> Bench {
    bench_with(drain::Mode::Auto)
}

pub(super) fn bench_with(mode: drain::Mode) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let fake = Arc::new(FakeRuntime::with_images(&["busybox:1"]));
    let runtime: Arc<dyn Runtime> = fake.clone();
    let (recorder, _) = Recorder::new("n", Flight::idle());
    let path = |name: &str| dir.path().join(name);
    let node = Arc::new(NodeContext {
        images: Images::new(runtime.clone(), recorder.clone(), Some(1)),
        exec_slots: ExecSlots::default(),
        pleg: Pleg::new(runtime.clone(), Metrics::default()),
        runtime,
        recorder,
        flight: Flight::idle(),
        metrics: Metrics::default(),
        statuses: Arc::default(),
        materials: Arc::new(Bare),
        cgroups: Cgroups::new(Layout::Unified(path("cgroup")), "", CgroupDriver::Cgroupfs, false),
        ledger: ledger(),
        drain: drain::Settings {
            mode,
            socket: path("plane.sock"),
            allowance: Duration::from_millis(300),
            fixed_wait: Duration::from_millis(700),
        },
        settings: NodeSettings {
            logs_root: path("pods"),
            links_root: path("links"),
            root_dir: path("root"),
            cpu_quota: true,
            cpu_period: Duration::from_millis(100),
            memory_capacity: 1 << 30,
            seccomp_default: false,
            cgroup_v1: true,
            pids_limit: -1,
            allowed_unsafe_sysctls: vec!["kernel.msg*".into()],
        },
        policy: Policy::default(),
        network: watch::Sender::new(None).subscribe(),
        host_ips: watch::Sender::new(vec!["192.0.2.1".into()]).subscribe(),
        sync_period: Duration::from_secs(60),
        started: Instant::now(),
    });
    Bench { fake, node, _dir: dir }
}

fn pod(spec: serde_json::Value) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u1"}, "spec": spec}))
            .unwrap(),
    )
}

pub(super) fn simple() -> Arc<Pod> {
    pod(json!({"terminationGracePeriodSeconds": 5, "containers": [{"name": "m", "image": "busybox:1"}]}))
}

pub(super) struct Running {
    pub(super) desired: watch::Sender<Desired>,
    pub(super) stop: CancellationToken,
    pub(super) task: tokio::task::JoinHandle<Outcome>,
}

impl Running {
    /// The API's deletion with a grace.
    pub(super) fn delete(&self, grace: i64) {
        self.desired.send_modify(|d| {
            let mut p = (*d.pod).clone();
            let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(clock::timestamp());
            p.metadata.deletion_timestamp = Some(now);
            p.metadata.deletion_grace_period_seconds = Some(grace);
            d.pod = Arc::new(p);
        });
    }
}

impl Bench {
    pub(super) fn start(&self, pod: Arc<Pod>) -> Running {
        let (desired, rx) = watch::channel(Desired { pod, removed: false, end: None });
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(self.node.clone(), rx, stop.clone()));
        Running { desired, stop, task }
    }

    /// Waits until the pod's status fulfils a condition; reads the runtime as an event would make the agent do.
    pub(super) async fn until(&self, what: &str, check: impl Fn(&PodStatus) -> bool) -> Arc<PodStatus> {
        self.until_of("u1", what, check).await
    }

    async fn until_of(&self, uid: &str, what: &str, check: impl Fn(&PodStatus) -> bool) -> Arc<PodStatus> {
        for _ in 0..500 {
            let _ = self.node.pleg.refresh(uid).await;
            if let Some(status) = self.node.statuses.get(uid).filter(|s| check(s)) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not reached: {what}; status {:?}", self.node.statuses.get(uid));
    }
}

pub(super) fn phase(want: &'static str) -> impl Fn(&PodStatus) -> bool {
    move |s| s.phase.as_deref() == Some(want)
}

fn restarts(want: i32) -> impl Fn(&PodStatus) -> bool {
    move |s| s.container_statuses.as_ref().is_some_and(|c| c[0].restart_count == want && c[0].ready)
}

#[tokio::test]
async fn starts_restarts_and_ends() {
    let b = bench();
    let r = b.start(simple());
    b.until("running", phase("Running")).await;
    assert_eq!(b.fake.changes(), ["RunPodSandbox 0", "CreateContainer m:0", "StartContainer "]);
    b.fake.exit("m", 1);
    b.until("first restart at once", restarts(1)).await;
    b.fake.exit("m", 1);
    let s = b.until("back-off", |s| {
        s.container_statuses.as_ref().is_some_and(|c| c[0].state.as_ref().is_some_and(|s| s.waiting.is_some()))
    });
    let s = s.await;
    let waiting = s.container_statuses.as_ref().unwrap()[0].state.as_ref().unwrap().waiting.clone().unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
    assert_eq!(waiting.message.as_deref(), Some("back-off 10s restarting failed container=m pod=p_ns(u1)"));
    r.desired.send_modify(|d| d.removed = true);
    assert_eq!(r.task.await.unwrap(), Outcome::Gone);
    assert!(b.node.pleg.all().is_empty());
}

#[tokio::test]
async fn deletion_uses_the_grace_and_removes_everything() {
    let b = bench();
    let r = b.start(simple());
    b.until("running", phase("Running")).await;
    r.delete(7);
    assert_eq!(r.task.await.unwrap(), Outcome::Gone);
    let changes = b.fake.changes();
    // The time since the decision is taken off the grace.
    assert!(changes.iter().any(|c| c == "StopContainer 6" || c == "StopContainer 7"), "{changes:?}");
    assert_eq!(changes.last().map(String::as_str), Some("RemovePodSandbox "));
    assert!(b.node.pleg.all().is_empty());
}

#[tokio::test]
async fn a_stopped_agent_touches_nothing_and_the_next_adopts() {
    let b = bench();
    let r = b.start(simple());
    b.until("running", phase("Running")).await;
    let before = b.fake.changes();
    r.stop.cancel();
    assert_eq!(r.task.await.unwrap(), Outcome::AgentStops);
    let again = b.start(simple());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(b.fake.changes(), before);
    again.stop.cancel();
    again.task.await.unwrap();
}

#[tokio::test]
async fn a_lost_sandbox_is_replaced() {
    let b = bench();
    let r = b.start(simple());
    b.until("running", phase("Running")).await;
    b.fake.lose_sandboxes();
    b.until("running again", restarts(1)).await;
    let changes = b.fake.changes();
    let at = |what: &str| changes.iter().position(|change| change == what);
    assert!(at("RunPodSandbox 1").is_some(), "{changes:?}");
    // Its address must not stay taken as long as the pod lives.
    assert!(at("StopPodSandbox ").is_some_and(|stop| Some(stop) < at("RunPodSandbox 1")), "{changes:?}");
    r.stop.cancel();
}

#[tokio::test]
async fn a_job_ends_and_keeps_its_records() {
    let b = bench();
    let r = b.start(pod(json!({"restartPolicy": "Never", "containers": [{"name": "m", "image": "busybox:1"}]})));
    b.until("running", phase("Running")).await;
    b.fake.exit("m", 0);
    b.until("succeeded", phase("Succeeded")).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let record = b.node.pleg.get("u1").unwrap();
    assert_eq!(record.containers[0].state, ContainerState::Exited);
    assert!(!r.task.is_finished());
    r.desired.send_modify(|d| d.removed = true);
    assert_eq!(r.task.await.unwrap(), Outcome::Gone);
}

#[tokio::test]
async fn pull_and_create_errors_show_in_the_status() {
    let b = bench();
    let missing = b.start(pod(json!({"containers": [{"name": "m", "image": "nowhere:1"}]})));
    let reason = |want: &'static str| {
        move |s: &PodStatus| {
            let state =
                s.container_statuses.as_ref().and_then(|c| c[0].state.as_ref()).and_then(|s| s.waiting.as_ref());
            state.and_then(|w| w.reason.as_deref()) == Some(want)
        }
    };
    b.until("pull fails", reason("ErrImagePull")).await;
    missing.stop.cancel();
    missing.task.await.unwrap();
    let b = bench();
    b.fake.fail("CreateContainer", Some(RuntimeError::Failed { call: "CreateContainer", message: "no space".into() }));
    let r = b.start(simple());
    b.until("create fails", reason("CreateContainerError")).await;
    b.fake.fail("CreateContainer", None);
    b.until("tries again", phase("Running")).await;
    r.stop.cancel();
}

#[tokio::test]
async fn an_unsafe_sysctl_is_refused_before_anything_is_made() {
    let b = bench();
    let with = |name: &str| {
        let sysctls = json!([{"name": name, "value": "1"}]);
        pod(json!({"securityContext": {"sysctls": sysctls}, "containers": [{"name": "m", "image": "busybox:1"}]}))
    };
    let r = b.start(with("kernel.shmmax"));
    let s = b.until("refused", phase("Failed")).await;
    assert_eq!(s.reason.as_deref(), Some("SysctlForbidden"));
    assert_eq!(s.message.as_deref(), Some("Pod was rejected: forbidden sysctl: \"kernel.shmmax\" not allowlisted"));
    assert!(b.fake.changes().is_empty());
    r.desired.send_modify(|d| d.removed = true);
    assert_eq!(r.task.await.unwrap(), Outcome::Gone);
    let b = bench();
    let r = b.start(with("kernel.msgmax"));
    b.until("allowed by the configuration", phase("Running")).await;
    r.stop.cancel();
    r.task.await.unwrap();
}

/// A pod with a UID of its own that asks for CPU.
fn asks(uid: &str, cpu: &str, priority: i32) -> Arc<Pod> {
    let container = json!({"name": "m", "image": "busybox:1", "resources": {"requests": {"cpu": cpu}}});
    let spec = json!({"terminationGracePeriodSeconds": 1, "priority": priority, "containers": [container]});
    let mut pod = Arc::unwrap_or_clone(pod(spec));
    pod.metadata.uid = Some(uid.into());
    pod.metadata.name = Some(uid.into());
    Arc::new(pod)
}

#[tokio::test]
async fn who_does_not_fit_is_refused_and_who_runs_is_never_judged_again() {
    let b = bench();
    let first = b.start(asks("u1", "1500m", 0));
    b.until("running", phase("Running")).await;
    let second = b.start(asks("u2", "1", 0));
    let status = b.until_of("u2", "refused", phase("Failed")).await;
    assert_eq!(status.reason.as_deref(), Some("OutOfcpu"));
    let message =
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000";
    assert_eq!(status.message.as_deref(), Some(message));
    assert_eq!(status.container_statuses, None);
    // An agent that starts anew on a smaller node.
    first.stop.cancel();
    first.task.await.unwrap();
    b.node.ledger.release("u1");
    b.node.ledger.hold(&asks("u3", "2", 0));
    let again = b.start(asks("u1", "1500m", 0));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(b.node.statuses.get("u1").unwrap().phase.as_deref(), Some("Running"));
    for r in [again, second] {
        r.stop.cancel();
    }
}

#[tokio::test]
async fn a_critical_pod_takes_the_place_of_a_weaker_one() {
    let b = bench();
    let weak = b.start(asks("u2", "1500m", 0));
    b.until_of("u2", "running", phase("Running")).await;
    let critical = b.start(asks("u1", "1", 2_000_000_000));
    b.until("running", phase("Running")).await;
    let status = b.node.statuses.get("u2").unwrap();
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("Preempting")));
    let disrupted = status.conditions.as_ref().unwrap().iter().find(|c| c.type_ == "DisruptionTarget").unwrap();
    assert_eq!(disrupted.reason.as_deref(), Some("TerminationByKubelet"));
    for r in [weak, critical] {
        r.stop.cancel();
    }
}

#[tokio::test]
async fn a_reserved_name_raises_the_attempt() {
    let b = bench();
    let r = b.start(simple());
    b.until("running", phase("Running")).await;
    r.stop.cancel();
    r.task.await.unwrap();
    // A cache that has forgotten the sandbox stands for a runtime whose listing lags behind.
    let fresh = Pleg::new(b.fake.clone(), Metrics::default());
    assert!(fresh.get("u1").is_none());
    b.fake.lose_sandboxes();
    let again = b.start(simple());
    b.until("a new sandbox", restarts(1)).await;
    again.stop.cancel();
}

/// A pod with three exec probes, and its running container.
fn probed(number: usize) -> (Arc<Pod>, PodRecord) {
    let uid = format!("u{number}");
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 10});
    let pod = serde_json::from_value(
        json!({"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": {"containers": [
        {"name": "m", "image": "busybox:1", "startupProbe": probe, "livenessProbe": probe, "readinessProbe": probe}]}}),
    )
    .unwrap();
    let container = ContainerRecord {
        id: format!("c{number}"),
        name: "m".into(),
        sandbox_id: "s".into(),
        state: ContainerState::Running,
        created_at: 1,
        started_at: 1,
        ..ContainerRecord::default()
    };
    (Arc::new(pod), PodRecord { uid, containers: vec![container], ..PodRecord::default() })
}

#[tokio::test(start_paused = true)]
async fn probes_of_two_hundred_pods_do_not_stampede() {
    const PODS: usize = 200;
    let b = bench();
    b.fake.set_exec_time(Duration::from_millis(50));
    let slots = b.node.exec_slots.free();
    let mut all = Vec::new();
    for number in 0..PODS {
        let (pod, record) = probed(number);
        let mut probes = Probes::new(b.node.clone(), &PodStatus::default());
        probes.update(&pod, &record, true);
        all.push(probes);
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let execs = b.fake.execs();
    assert!(execs.most <= slots, "{} commands at once, {slots} places", execs.most);
    let ready = |probes: &Probes| probes.verdicts().values().all(|v| v.started == Some(true) && v.ready == Some(true));
    assert_eq!(all.iter().filter(|probes| ready(probes)).count(), PODS);
    // Startup once, then two probes every 10 s and what they waited.
    assert!(execs.all >= PODS * (1 + 2 * 3), "{} commands in a minute", execs.all);
}

#[tokio::test(start_paused = true)]
async fn commands_that_hang_do_not_hold_up_other_pods_probes() {
    let b = bench();
    // 220 probes that hang until their time limit, each period.
    for _ in 0..220 {
        let node = b.node.clone();
        tokio::spawn(async move {
            loop {
                node.exec_slots.run(tokio::time::sleep(Duration::from_secs(1))).await;
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        });
    }
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let began = tokio::time::Instant::now();
        b.node.exec_slots.run(async {}).await;
        longest = longest.max(began.elapsed());
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    // With the fewest places, four: 220 x 0.2 s / 4.
    assert!(longest <= Duration::from_secs(11), "a healthy probe has waited for {longest:?}");
}

#[tokio::test]
async fn the_pod_of_a_changed_manifest_waits_for_the_one_that_an_earlier_agent_left() {
    let b = bench();
    let of = |uid: &str| -> Arc<Pod> {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": uid, "annotations": {"kubernetes.io/config.source": "file"}},
            "spec": {"terminationGracePeriodSeconds": 5, "containers": [{"name": "m", "image": "busybox:1"}]}});
        Arc::new(serde_json::from_value(pod).unwrap())
    };
    let earlier = b.start(of("old"));
    b.until_of("old", "running", phase("Running")).await;
    earlier.stop.cancel();
    earlier.task.await.unwrap();
    let (_folder, statics) = watch::channel(Some([("new".to_owned(), of("new"))].into()));
    // The API server is away: nothing that it could want is ended, but this is not its.
    let (_api, api) = watch::channel(None);
    let (manager, ended) = crate::manager::Manager::new(b.node.clone(), vec![statics], Some(api));
    let stop = CancellationToken::new();
    let managing = tokio::spawn(manager.run(ended, stop.clone()));
    b.until_of("new", "running", phase("Running")).await;
    let changes = b.fake.changes();
    let all: Vec<usize> = (0..changes.len()).filter(|at| changes[*at].starts_with("RunPodSandbox")).collect();
    let removed = changes.iter().position(|change| change.starts_with("RemovePodSandbox"));
    assert!(all.len() == 2 && removed.is_some_and(|at| at < all[1]), "{changes:?}");
    stop.cancel();
    managing.await.unwrap();
}
