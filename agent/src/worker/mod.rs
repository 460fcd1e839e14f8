//! One worker per pod UID: the only one that acts on that pod.
//!
//! A worker takes the newest wanted state from a latest-wins mailbox, the newest record from the PLEG cache and the
//! newest probe verdicts, and goes through Sync -> Terminating -> Terminated; it never goes back. It sleeps until one
//! of its inputs changes or its own deadline comes. Stopping the agent stops workers, never containers. Upstream
//! counterpart: `pkg/kubelet/pod_workers.go`.

mod let_go;
#[cfg(test)]
mod let_go_tests;
mod start;
mod stop;
#[cfg(test)]
mod tests;
mod whole;

pub use stop::{remove_container, remove_pod};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use whole::Whole;

use crate::admission::{Ledger, ROOM_LOOK, Refusal, Verdict};
use crate::cgroup::Cgroups;
use crate::clock;
use crate::create::{NodeSettings, sysctl};
use crate::drain;
use crate::events::Recorder;
use crate::flight::line::Step;
use crate::flight::{Doing, Flight};
use crate::images::Images;
use crate::materials::Materials;
use crate::metrics::Metrics;
use crate::pleg::Pleg;
use crate::pod;
use crate::probe::{ExecSlots, Probes};
use crate::runtime::{PodRecord, Runtime};
use crate::status::manager::Statuses;
use crate::status::phase::Phase;
use crate::status::pod::{Facts, NodeEnd, Waiting, pod_status};
use crate::sync::{self, Actions, Memory, Policy, View, backoff};

/// First pause after an error.
const ERROR_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause after errors (upstream's `backOffPeriod`).
const ERROR_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Rounds of deciding and acting in one pass, so that a runtime that lies cannot keep a worker busy for ever.
const MAX_ROUNDS: usize = 16;

/// What all workers of a node share.
pub struct NodeContext {
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// The cache of what it holds.
    pub pleg: Arc<Pleg>,
    /// Images.
    pub images: Images,
    /// Commands of probes that are starting.
    pub exec_slots: ExecSlots,
    /// Events.
    pub recorder: Arc<Recorder>,
    /// What happened to the pods.
    pub flight: Arc<Flight>,
    /// Counters.
    pub metrics: Metrics,
    /// Statuses on their way to the API.
    pub statuses: Arc<Statuses>,
    /// Volumes, environment and the like.
    pub materials: Arc<dyn Materials>,
    /// Pod cgroups.
    pub cgroups: Cgroups,
    /// Who has a place on the node.
    pub ledger: Ledger,
    /// How Services let go of pods.
    pub drain: drain::Settings,
    /// Settings of creation.
    pub settings: NodeSettings,
    /// Settings of decisions.
    pub policy: Policy,
    /// Why the pod network is not ready; `None` when it is.
    pub network: watch::Receiver<Option<String>>,
    /// Addresses of the node.
    pub host_ips: watch::Receiver<Vec<String>>,
    /// Longest time between two looks at a pod.
    pub sync_period: Duration,
    /// Whether the agent has just started and found this pod running (probes are splayed then).
    pub started: Instant,
}

/// What a source or the node wants of a pod.
#[derive(Clone, Debug)]
pub struct Desired {
    /// The pod.
    pub pod: Arc<Pod>,
    /// No source names it any more.
    pub removed: bool,
    /// The node ends it.
    pub end: Option<NodeEnd>,
}

impl Desired {
    /// Whether the pod has to end.
    #[must_use]
    pub fn ends(&self) -> bool {
        self.removed || self.end.is_some() || pod::is_deleted(&self.pod)
    }
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The agent is stopping; the pod runs on.
    AgentStops,
    /// Everything of the pod is gone.
    Gone,
    /// The worker panicked; the pod needs another one.
    Broken,
}

pub(crate) struct Worker {
    node: Arc<NodeContext>,
    pod: Arc<Pod>,
    memory: Memory,
    waiting: BTreeMap<String, Waiting>,
    previous: PodStatus,
    probes: Probes,
    errors: u32,
    /// The record that the last pass ended with.
    seen: Arc<PodRecord>,
    /// The pod object for which volumes were last set up.
    mounted: Option<Arc<Pod>>,
    end: Option<NodeEnd>,
    network_reported: bool,
    /// First sight of a pod that does not run yet.
    fresh: Option<Instant>,
    /// It has its place on the node.
    admitted: bool,
    /// It waits for one.
    admission: Option<Doing>,
    /// It may not run here.
    rejected: bool,
    /// Calls that are never cut short.
    calls: Whole,
}

/// When to look again.
enum Next {
    /// The pod has ended by itself.
    Finished,
    /// At this time at the latest, nanoseconds since the epoch.
    At(i64),
}

/// Runs one pod from first sight to its end.
pub async fn run(node: Arc<NodeContext>, mut desired: watch::Receiver<Desired>, stop: CancellationToken) -> Outcome {
    let pod = desired.borrow().pod.clone();
    let uid = pod::uid(&pod).to_owned();
    let mut records = node.pleg.subscribe(&uid);
    let mut network = node.network.clone();
    let mut objects = node.materials.changed(&uid);
    let mut displaced = node.ledger.displaced();
    let previous = node.statuses.get(&uid).map(|s| (*s).clone()).or_else(|| pod.status.clone()).unwrap_or_default();
    let probes = Probes::new(node.clone(), &previous);
    let mut verdicts = probes.changes();
    let (waiting, backoff) = remembered(&previous);
    let mut worker = Worker {
        node,
        pod,
        memory: Memory { backoff, ..Memory::default() },
        waiting,
        previous,
        probes,
        errors: 0,
        seen: Arc::default(),
        mounted: None,
        end: None,
        network_reported: false,
        fresh: None,
        admitted: false,
        admission: None,
        rejected: false,
        calls: Whole::default(),
    };
    worker.node.flight.seen(&worker.pod);
    worker.fresh = (worker.previous.phase.as_deref() != Some("Running")).then(Instant::now);
    loop {
        let want = desired.borrow_and_update().clone();
        worker.pod = want.pod.clone();
        if want.ends() {
            break;
        }
        records.borrow_and_update();
        verdicts.borrow_and_update();
        let mut watcher = desired.clone();
        let began = Instant::now();
        let next = tokio::select! {
            () = stop.cancelled() => None,
            // Work that only makes the pod run is dropped when the pod has to end.
            _ = watcher.wait_for(Desired::ends) => continue,
            // Nor does it hold up a critical pod.
            Ok(_) = displaced.wait_for(|list| list.contains(&uid)) => Some(Next::Finished),
            next = worker.sync() => Some(next),
        };
        let Some(next) = next else {
            worker.calls.idle().await;
            return Outcome::AgentStops;
        };
        worker.node.metrics.pass("sync", began.elapsed());
        worker.displaced();
        let Next::At(at) = next else { break };
        // What the pass itself has read back is no news; anything newer is.
        if !Arc::ptr_eq(&records.borrow_and_update(), &worker.seen) {
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => return Outcome::AgentStops,
            changed = desired.changed() => if changed.is_err() { return Outcome::AgentStops },
            Ok(()) = records.changed() => {}
            Ok(()) = verdicts.changed() => {}
            Ok(()) = network.changed() => {}
            Ok(_) = displaced.wait_for(|list| list.contains(&uid)) => {}
            // A closed channel says that nothing will ever change.
            Ok(()) = objects.changed() => {}
            () = tokio::time::sleep(clock::until(at)) => {}
        }
    }
    let began = Instant::now();
    let metrics = worker.node.metrics.clone();
    let outcome = worker.end(&mut desired, &stop).await;
    metrics.pass("terminate", began.elapsed());
    outcome
}

/// What the last status tells about waiting containers, so that a restart of the agent neither hides a reason nor
/// forgets a restart delay.
pub(crate) fn remembered(status: &PodStatus) -> (BTreeMap<String, Waiting>, BTreeMap<String, backoff::Backoff>) {
    let (mut waiting, mut delays) = (BTreeMap::new(), BTreeMap::new());
    for container in [&status.container_statuses, &status.init_container_statuses].into_iter().flatten().flatten() {
        let Some(state) = container.state.as_ref().and_then(|s| s.waiting.as_ref()) else { continue };
        let (reason, message) = (state.reason.clone().unwrap_or_default(), state.message.clone().unwrap_or_default());
        if ["ContainerCreating", "PodInitializing", ""].contains(&reason.as_str()) {
            continue;
        }
        let delay = message.strip_prefix("back-off ").and_then(|rest| rest.split(' ').next());
        if let Some(delay) = delay.and_then(|d| kube_common::duration::GoDuration::parse(d).ok()) {
            delays.insert(container.name.clone(), backoff::Backoff { delay: delay.0, updated_at: clock::now() });
        }
        waiting.insert(container.name.clone(), Waiting { reason, message });
    }
    (waiting, delays)
}

impl Worker {
    fn uid(&self) -> &str {
        pod::uid(&self.pod)
    }

    fn record(&self) -> Arc<PodRecord> {
        self.node.pleg.get(self.uid()).unwrap_or_default()
    }

    /// Computes the status and hands it on; returns the phase.
    fn publish(&mut self, record: &PodRecord, terminal: bool) -> Phase {
        let host_ips = self.node.host_ips.borrow().clone();
        let facts = Facts {
            record,
            memory: &self.memory,
            waiting: &self.waiting,
            previous: &self.previous,
            host_ips: &host_ips,
            terminal,
            node_end: self.end.as_ref(),
            now: clock::timestamp(),
        };
        let mut status = pod_status(&self.pod, &facts);
        if self.rejected {
            // Nothing was ever made of it (upstream's `rejectPod`).
            status.container_statuses = None;
            status.init_container_statuses = None;
            status.ephemeral_container_statuses = None;
        }
        let phase = status.phase.as_deref().and_then(Phase::parse).unwrap_or(Phase::Pending);
        if phase == Phase::Running
            && let Some(since) = self.fresh.take()
        {
            self.node.metrics.pod_started(since.elapsed());
        }
        self.node.flight.sees(&self.pod, record, &status);
        if status != self.previous {
            self.node.statuses.set(&self.pod, status.clone());
            self.previous = status;
        } else if self.node.statuses.get(self.uid()).is_none() {
            self.node.statuses.set(&self.pod, status);
        }
        phase
    }

    /// Brings probes and their verdicts up to date with a record.
    fn update_probes(&mut self, record: &PodRecord) {
        self.probes.update(&self.pod, record, !pod::is_deleted(&self.pod));
        self.memory.probes = self.probes.verdicts();
    }

    fn decide(&self, record: &PodRecord) -> Actions {
        let actions = sync::actions(View {
            pod: &self.pod,
            record,
            memory: &self.memory,
            policy: self.node.policy,
            now: clock::now(),
        });
        self.node.flight.wants(&self.pod, &actions);
        actions
    }

    /// One pass: decide and act until nothing is left to do.
    async fn sync(&mut self) -> Next {
        let mut record = self.record();
        self.seen = record.clone();
        self.update_probes(&record);
        let phase = self.publish(&record, false);
        if phase.is_terminal() || self.past_deadline() || self.displaced() {
            return Next::Finished;
        }
        match self.admit(&record) {
            Verdict::Admitted => {}
            Verdict::Soon => return Next::At(clock::now() + nanos(ROOM_LOOK)),
            Verdict::Refused(_) => return Next::Finished,
        }
        let mut actions = self.decide(&record);
        self.note_backing_off(&actions);
        let mut clean = true;
        if actions.is_empty() && record.any_live() && !self.mounted.as_ref().is_some_and(|m| Arc::ptr_eq(m, &self.pod))
        {
            // A pod that was running before this agent, or whose object changed: its volumes follow.
            clean = self.mount().await.is_ok();
        }
        if !actions.is_empty() {
            if let Err(pause) = self.prepare(&actions).await {
                return Next::At(pause);
            }
            for _ in 0..MAX_ROUNDS {
                clean = self.perform(&actions, &record).await;
                match self.node.pleg.refresh(pod::uid(&self.pod)).await {
                    Ok(fresh) => {
                        self.seen = fresh.clone();
                        record = fresh;
                    }
                    Err(error) => {
                        warn!(pod = %pod::display(&self.pod), "cannot read the pod back: {error}");
                        clean = false;
                    }
                }
                self.update_probes(&record);
                if self.publish(&record, false).is_terminal() {
                    return Next::Finished;
                }
                actions = self.decide(&record);
                self.note_backing_off(&actions);
                if actions.is_empty() || !clean {
                    break;
                }
            }
            self.publish(&record, false);
        }
        self.next_look(&actions, clean)
    }

    /// When `activeDeadlineSeconds` is over, nanoseconds since the epoch.
    fn deadline(&self) -> Option<i64> {
        let seconds = self.pod.spec.as_ref()?.active_deadline_seconds?;
        let started = self.previous.start_time.as_ref()?.0.as_second();
        Some(started.saturating_add(seconds).saturating_mul(1_000_000_000))
    }

    /// Whether the pod has used up its time; then it ends as upstream ends it.
    fn past_deadline(&mut self) -> bool {
        let past = self.deadline().is_some_and(|at| clock::now() >= at);
        if past {
            let message = "Pod was active on the node longer than the specified deadline";
            self.node.recorder.pod(&self.pod, "Normal", "DeadlineExceeded", message);
            self.end = Some(NodeEnd { reason: "DeadlineExceeded".into(), message: message.into() });
        }
        past
    }

    /// Whether the pod has to make room for a critical one.
    fn displaced(&mut self) -> bool {
        let displaced = self.node.ledger.displaced().borrow().contains(self.uid());
        if displaced && self.end.is_none() {
            let message = "Preempted in order to admit critical pod";
            self.node.recorder.pod(&self.pod, "Warning", "Preempting", message);
            self.end = Some(NodeEnd { reason: "Preempting".into(), message: message.into() });
        }
        displaced
    }

    /// Whether a pod of which nothing was made yet may run here (upstream's admission).
    fn admit(&mut self, record: &PodRecord) -> Verdict {
        if !record.is_empty() {
            self.node.ledger.hold(&self.pod);
            return Verdict::Admitted;
        }
        if self.admitted {
            return Verdict::Admitted;
        }
        let unsafe_sysctl = sysctl::forbidden(&self.pod, &self.node.settings.allowed_unsafe_sysctls);
        let verdict = match unsafe_sysctl {
            Some(message) => Verdict::Refused(Refusal { reason: sysctl::FORBIDDEN_REASON.into(), message }),
            None => self.node.ledger.ask(&self.pod),
        };
        let doing = self.admission.take().unwrap_or_else(|| self.node.flight.begin(&self.pod, None, Step::Admission));
        match &verdict {
            Verdict::Admitted => {
                self.admitted = true;
                doing.done("");
            }
            Verdict::Soon => self.admission = Some(doing),
            Verdict::Refused(why) => {
                doing.failed(format!("{}: {}", why.reason, why.message));
                self.node.recorder.pod(&self.pod, "Warning", &why.reason, &why.message);
                let message = format!("Pod was rejected: {}", why.message);
                self.end = Some(NodeEnd { reason: why.reason.clone(), message });
                self.rejected = true;
            }
        }
        verdict
    }

    fn next_look(&mut self, actions: &Actions, clean: bool) -> Next {
        let now = clock::now();
        let mut at = now + nanos(self.node.sync_period.mul_f64(1.0 + rand::random::<f64>() / 2.0));
        at = at.min(actions.wake_at().unwrap_or(i64::MAX)).min(self.deadline().unwrap_or(i64::MAX));
        if clean {
            self.errors = 0;
        } else {
            at = at.min(self.retry());
        }
        Next::At(at)
    }

    /// The time of the next try after an error; waiting pulls have their own times.
    fn error_deadline(&mut self) -> i64 {
        let pulls = pod::init_containers(&self.pod)
            .iter()
            .chain(pod::main_containers(&self.pod))
            .filter(|c| self.waiting.get(&c.name).is_some_and(|w| w.reason.contains("ImagePull")))
            .filter_map(|c| self.node.images.next_try(self.uid(), c.image.as_deref().unwrap_or_default()))
            .min();
        if let Some(at) = pulls {
            // The status changes from ErrImagePull to ImagePullBackOff with the next look.
            let soon = self.waiting.values().any(|w| w.reason == "ErrImagePull");
            return if soon { clock::now() + nanos(ERROR_PAUSE_MIN) } else { at };
        }
        let pause = (ERROR_PAUSE_MIN * 2u32.saturating_pow(self.errors.min(8))).min(ERROR_PAUSE_MAX);
        self.errors += 1;
        clock::now() + nanos(pause.mul_f64(1.0 + rand::random::<f64>() / 2.0))
    }

    /// As [`Worker::error_deadline`], and tells it.
    fn retry(&mut self) -> i64 {
        let at = self.error_deadline();
        self.node.flight.retry(&self.pod, at);
        at
    }

    /// Shows in the status which containers wait for a restart and until when.
    fn note_backing_off(&mut self, actions: &Actions) {
        self.waiting
            .retain(|name, w| w.reason != "CrashLoopBackOff" || actions.backing_off.iter().any(|b| &b.name == name));
        for b in &actions.backing_off {
            let delay = backoff::go_text(b.delay);
            let display = pod::display(&self.pod);
            let message = format!("back-off {delay} restarting failed container={} pod={display}", b.name);
            let waiting = Waiting { reason: "CrashLoopBackOff".into(), message };
            if self.waiting.get(&b.name) != Some(&waiting) {
                if let Some((_, container)) = pod::find_container(&self.pod, &b.name) {
                    let text = format!("Back-off restarting failed container {} in pod {display}", b.name);
                    self.node.recorder.container(&self.pod, &container, "Warning", "BackOff", &text);
                }
                self.waiting.insert(b.name.clone(), waiting);
            }
        }
        let record = self.record();
        self.publish(&record, false);
    }

    /// What must be there before a container can start; the error is the time of the next try.
    async fn prepare(&mut self, actions: &Actions) -> Result<(), i64> {
        if actions.start.is_empty() && actions.create_sandbox.is_none() {
            return Ok(());
        }
        let network = self.node.network.borrow().clone();
        if let Some(why) = network.filter(|_| !pod::host_network(&self.pod)) {
            if !std::mem::replace(&mut self.network_reported, true) {
                let text = format!("network is not ready: container runtime network not ready: {why}");
                self.node.recorder.pod(&self.pod, "Warning", "NetworkNotReady", &text);
            }
            return Err(self.retry());
        }
        let settings = &self.node.settings;
        let resources =
            crate::cgroup::resources::of_pod(&self.pod, settings.cpu_quota, settings.cpu_period, settings.pids_limit);
        if let Err(error) = self.node.cgroups.ensure(&self.pod, &resources) {
            let text = format!("error killing pod: failed to create the pod's cgroup: {error}");
            self.node.recorder.pod(&self.pod, "Warning", "FailedCreatePodContainer", &text);
            warn!(pod = %pod::display(&self.pod), "{error}");
            return Err(self.retry());
        }
        match self.mount().await {
            Ok(()) => Ok(()),
            Err(()) => Err(self.retry()),
        }
    }

    /// Sets the pod's volumes up.
    async fn mount(&mut self) -> Result<(), ()> {
        let node = self.node.clone();
        let pod = self.pod.clone();
        let doing = node.flight.begin(&pod, None, Step::Volumes);
        if let Err(error) = node.materials.volumes(&pod).await {
            node.recorder.pod(&pod, "Warning", error.event, &error.message);
            debug!(pod = %pod::display(&pod), "{error}");
            doing.failed(error.message);
            return Err(());
        }
        doing.done("");
        self.mounted = Some(pod);
        Ok(())
    }

    /// Carries actions out; false when something failed and must be tried again.
    async fn perform(&mut self, actions: &Actions, record: &PodRecord) -> bool {
        if actions.kill_pod {
            if record.ready_sandbox().is_none() && actions.create_sandbox.is_some() && !record.sandboxes.is_empty() {
                let text = "Pod sandbox changed, it will be killed and re-created.";
                self.node.recorder.pod(&self.pod, "Normal", "SandboxChanged", text);
            }
            if !self.stop_everything(record, stop::seconds(pod::spec_grace(&self.pod)), Duration::ZERO).await {
                return false;
            }
        }
        for kill in &actions.kill {
            if !self.kill_one(kill, record).await {
                return false;
            }
        }
        let mut sandbox = record.ready_sandbox().cloned();
        if let Some(attempt) = actions.create_sandbox {
            if !record.sandboxes.is_empty() && !actions.kill_pod {
                let text = "Pod sandbox changed, it will be killed and re-created.";
                self.node.recorder.pod(&self.pod, "Normal", "SandboxChanged", text);
            }
            sandbox = self.create_sandbox(attempt).await;
        }
        let Some(sandbox) = sandbox else { return actions.start.is_empty() && actions.create_sandbox.is_none() };
        let mut clean = true;
        for start in &actions.start {
            clean &= self.start_container(start, &sandbox).await;
        }
        clean
    }

    fn log_end(&self, what: &str) {
        info!(pod = %pod::display(&self.pod), "{what}");
    }
}

fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}
