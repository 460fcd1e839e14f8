//! What would happen to one pod when this agent took the node over: the worker's own decision, told in words. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;

use super::statics::Predecessors;
use crate::pod;
use crate::runtime::identity::container_hash;
use crate::runtime::{ContainerRecord, ContainerState, PodRecord, SandboxState};
use crate::source::PodSet;
use crate::status::phase::Phase;
use crate::sync::{self, Actions, KillReason, Memory, Policy, View};
use crate::volumes::foreign_kind;
use crate::worker::remembered;

/// What happens to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// Something that runs is stopped and started anew.
    Restarts,
    /// What runs is stopped.
    Ends,
    /// Nobody wants it, but a source that could is silent.
    NotJudged,
    /// Something that does not run is started, as a kubelet would.
    Starts,
    /// Nothing of it runs, and what is left of it is removed.
    CleanedUp,
    /// It has ended for good and stays as it is.
    Finished,
    /// Everything that runs runs on.
    Kept,
}

impl Fate {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Restarts => "restarts",
            Self::Ends => "ends",
            Self::NotJudged => "not judged",
            Self::Starts => "starts",
            Self::CleanedUp => "cleaned up",
            Self::Finished => "finished",
            Self::Kept => "kept",
        }
    }
}

/// The judgement of one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// Namespace and name.
    pub pod: String,
    /// UID.
    pub uid: String,
    /// What happens.
    pub fate: Fate,
    /// Why, one sentence each.
    pub reasons: Vec<String>,
}

/// What a judgement depends on.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    /// The pod as a source wants it.
    pub wanted: Option<&'a Pod>,
    /// What the runtime holds.
    pub record: Option<&'a PodRecord>,
    /// Sources that could not be read; a pod that nobody wants may come from one of them.
    pub silent: &'a [String],
    /// Manifests that cannot be used; what one of them gave is wanted by nobody.
    pub wrong: &'a [String],
    /// Settings.
    pub policy: Policy,
    /// Now, nanoseconds since the epoch.
    pub now: i64,
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn running(record: &PodRecord) -> usize {
    record.containers.iter().filter(|c| c.state == ContainerState::Running).count()
}

/// What the runtime holds, where static pods come from, and what the sources say.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    /// All pods that shall run.
    pub wanted: &'a PodSet,
    /// All that the runtime holds.
    pub records: &'a [Arc<PodRecord>],
    /// Static pods in the runtime.
    pub predecessors: &'a Predecessors,
    /// Sources that could not be read.
    pub silent: &'a [String],
    /// Manifests that cannot be used; what one of them gave is wanted by nobody.
    pub wrong: &'a [String],
    /// Settings.
    pub policy: Policy,
    /// Now, nanoseconds since the epoch.
    pub now: i64,
}

/// Judges all pods; those that something happens to come first.
#[must_use]
pub fn judge_all(node: Node<'_>) -> Vec<Judgement> {
    let held: BTreeMap<&str, &PodRecord> = node.records.iter().map(|r| (r.uid.as_str(), r.as_ref())).collect();
    let uids: BTreeSet<&str> = node.wanted.keys().map(String::as_str).chain(held.keys().copied()).collect();
    let mut replaced = BTreeMap::new();
    let mut out = Vec::new();
    for uid in uids {
        let wanted = node.wanted.get(uid).map(Arc::as_ref);
        let record = held.get(uid).copied();
        let mut judgement =
            judge(Case { wanted, record, silent: node.silent, wrong: node.wrong, policy: node.policy, now: node.now });
        let other = wanted.filter(|pod| pod::is_static(pod)).and_then(|pod| node.predecessors.other(pod));
        if let Some((old, seen)) = other.filter(|_| judgement.fate == Fate::Starts) {
            judgement.fate = Fate::Restarts;
            let text = format!(
                "its manifest was changed since a kubelet read it at {seen}: the pod that runs (UID {old}) is ended first"
            );
            judgement.reasons = vec![text];
            replaced.insert(old.to_owned(), uid.to_owned());
        }
        out.push(judgement);
    }
    for judgement in &mut out {
        if let Some(by) = replaced.get(&judgement.uid).filter(|_| judgement.fate == Fate::Ends) {
            judgement.reasons = vec![format!("the pod of its manifest takes its place (UID {by})")];
        }
    }
    out.sort_by(|a, b| (a.fate, &a.pod).cmp(&(b.fate, &b.pod)));
    out
}

/// Judges one pod.
#[must_use]
pub fn judge(case: Case<'_>) -> Judgement {
    let empty = PodRecord::default();
    let record = case.record.unwrap_or(&empty);
    let (name, uid, (fate, reasons)) = match case.wanted {
        Some(pod) => (format!("{}/{}", pod::namespace(pod), pod::name(pod)), pod::uid(pod), wanted(pod, record, case)),
        None => (format!("{}/{}", record.namespace, record.name), record.uid.as_str(), unwanted(record, case)),
    };
    Judgement { pod: name, uid: uid.to_owned(), fate, reasons }
}

fn unwanted(record: &PodRecord, case: Case<'_>) -> (Fate, Vec<String>) {
    if !case.silent.is_empty() {
        let silent = case.silent.join(" and ");
        return (
            Fate::NotJudged,
            vec![format!("no source that could be read names it; it runs on until {silent} can be read")],
        );
    }
    if !record.any_live() {
        return (Fate::CleanedUp, vec!["no source names it, and nothing of it runs".into()]);
    }
    let mut reasons = vec![format!("no source names it: {} stopped", plural(running(record), "container"))];
    if !case.wrong.is_empty() {
        reasons.push(format!("it may be the pod of {}, which cannot be used as it is", case.wrong.join(" or of ")));
    }
    (Fate::Ends, reasons)
}

fn wanted(pod: &Pod, record: &PodRecord, case: Case<'_>) -> (Fate, Vec<String>) {
    if pod::is_deleted(pod) {
        let text = "it is being deleted: its termination goes on within what is left of its grace period";
        return (Fate::Ends, vec![text.into()]);
    }
    let status = pod.status.clone().unwrap_or_default();
    if let Some(phase) = status.phase.as_deref().and_then(Phase::parse).filter(|p| p.is_terminal()) {
        return (Fate::Finished, vec![format!("its phase is {}", phase.as_str())]);
    }
    if record.is_empty() {
        return (Fate::Starts, vec!["the runtime holds nothing of it".into()]);
    }
    let (_, backoff) = remembered(&status);
    let memory = Memory { backoff, ..Memory::default() };
    let actions = sync::actions(View { pod, record, memory: &memory, policy: case.policy, now: case.now });
    let mut reasons = explain(pod, record, &actions);
    let stops = actions.kill_pod || !actions.kill.is_empty();
    let starts = !actions.start.is_empty() || actions.create_sandbox.is_some();
    let fate = match (stops, starts) {
        (true, true) => Fate::Restarts,
        (true, false) => Fate::Ends,
        (false, true) => Fate::Starts,
        (false, false) => Fate::Kept,
    };
    if fate == Fate::Kept {
        let count = running(record);
        let run = if count == 1 { "runs" } else { "run" };
        reasons.insert(0, format!("{} {run} on untouched", plural(count, "container")));
    }
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        if let Some(kind) = foreign_kind(volume) {
            let name = &volume.name;
            reasons.push(format!("volume {name} is of kind {kind}, which this agent cannot set up: what runs goes on, nothing of this pod can be started again"));
        }
    }
    (fate, reasons)
}

fn explain(pod: &Pod, record: &PodRecord, actions: &Actions) -> Vec<String> {
    let mut out = Vec::new();
    if actions.create_sandbox.is_some() {
        out.push(format!("its sandbox is made anew: {}", sandbox_reason(pod, record)));
    } else if actions.kill_pod {
        out.push("all its containers are done".into());
    }
    for kill in &actions.kill {
        let container = pod::find_container(pod, &kill.name).map(|(_, container)| container);
        let instance = record.containers.iter().find(|c| c.id == kill.id);
        out.push(match (kill.reason, container, instance) {
            (KillReason::DefinitionChanged, Some(container), Some(instance)) => changed(
                &kill.name,
                container.image.as_deref().unwrap_or_default(),
                container_hash(&container),
                instance,
            ),
            _ => format!("container {} is stopped: {}", kill.name, kill.message),
        });
    }
    for start in actions.start.iter().filter(|start| !actions.kill.iter().any(|kill| kill.name == start.name)) {
        out.push(match record.latest(&start.name) {
            Some(last) if last.state == ContainerState::Exited => {
                format!("container {} is started again: it ended with exit code {}", start.name, last.exit_code)
            }
            Some(last) if last.state == ContainerState::Running => format!("container {} is started anew", start.name),
            Some(_) => format!("container {} is made again: it had not been started", start.name),
            None => format!("container {} is started: the runtime does not hold it", start.name),
        });
    }
    for waits in &actions.backing_off {
        let seconds = waits.delay.as_secs();
        out.push(format!("container {} goes on waiting for its restart (back-off {seconds} s)", waits.name));
    }
    out
}

fn changed(name: &str, image: &str, wanted: u64, instance: &ContainerRecord) -> String {
    let held = instance.hash.unwrap_or_default();
    let runs = if instance.user_image.is_empty() { &instance.image } else { &instance.user_image };
    format!(
        "container {name} is restarted: its record has hash {held:x}, name and image {image:?} give {wanted:x}. It runs {runs:?}: if that is the \
         same image, a kubelet before 1.31 made the record"
    )
}

fn sandbox_reason(pod: &Pod, record: &PodRecord) -> String {
    let ready = record.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).count();
    let host = pod::host_network(pod);
    match record.sandboxes.first() {
        None => "there is none".into(),
        Some(_) if ready == 0 => "it is not ready".into(),
        Some(_) if ready > 1 => format!("{ready} sandboxes are ready"),
        Some(newest) if newest.state != SandboxState::Ready => "the newest one is not ready".into(),
        Some(newest) if newest.host_network != host => "hostNetwork has changed".into(),
        Some(_) => "it has no address".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::Sandbox;

    /// A pod and what a kubelet's containers of it look like in the runtime.
    fn pair(hash: Option<u64>) -> (Pod, PodRecord) {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "m", "image": "web:1"}]}, "status": {"phase": "Running"}}))
        .unwrap();
        let container = &pod::main_containers(&pod)[0];
        let sandbox = Sandbox {
            id: "s".into(),
            attempt: 0,
            state: SandboxState::Ready,
            created_at: 1,
            ips: vec!["10.0.0.2".into()],
            host_network: false,
        };
        let instance = ContainerRecord {
            id: "c".into(),
            name: "m".into(),
            sandbox_id: "s".into(),
            restart_count: 3,
            state: ContainerState::Running,
            created_at: 1,
            started_at: 1,
            image: "docker.io/library/web:1".into(),
            hash: Some(hash.unwrap_or(container_hash(container))),
            ..ContainerRecord::default()
        };
        let record = PodRecord {
            uid: "u".into(),
            name: "p".into(),
            namespace: "n".into(),
            sandboxes: vec![sandbox],
            containers: vec![instance],
        };
        (pod, record)
    }

    fn of(wanted: Option<&Pod>, record: Option<&PodRecord>, silent: &[String]) -> (Fate, String) {
        let judgement = judge(Case {
            wanted,
            record,
            silent,
            wrong: &["/m/bad.yaml".to_owned()],
            policy: Policy::default(),
            now: 10,
        });
        assert_eq!(judgement.pod, "n/p");
        (judgement.fate, judgement.reasons.join("; "))
    }

    #[test]
    fn what_runs_as_wanted_is_kept() {
        let (pod, record) = pair(None);
        assert_eq!(of(Some(&pod), Some(&record), &[]), (Fate::Kept, "1 container runs on untouched".into()));
    }

    #[test]
    fn a_hash_of_another_form_is_told_with_both_images() {
        let (pod, record) = pair(Some(0xabc));
        let (fate, why) = of(Some(&pod), Some(&record), &[]);
        assert_eq!(fate, Fate::Restarts);
        for part in ["hash abc", "\"web:1\"", "docker.io/library/web:1", "before 1.31"] {
            assert!(why.contains(part), "{part} is not in {why}");
        }
        // Where the runtime tells what the pod named, it does not matter.
        let mut told = record;
        told.containers[0].user_image = "web:1".into();
        assert_eq!(of(Some(&pod), Some(&told), &[]).0, Fate::Kept);
    }

    #[test]
    fn pods_that_nobody_wants_end_only_when_everybody_has_been_asked() {
        let (_, mut record) = pair(None);
        let (fate, why) = of(None, Some(&record), &[]);
        assert_eq!(fate, Fate::Ends);
        assert!(why.contains("the pod of /m/bad.yaml"), "{why}");
        let (fate, why) = of(None, Some(&record), &["the API server".into()]);
        assert_eq!(fate, Fate::NotJudged);
        assert!(why.contains("until the API server can be read"), "{why}");
        record.sandboxes[0].state = SandboxState::NotReady;
        record.containers[0].state = ContainerState::Exited;
        assert_eq!(of(None, Some(&record), &[]).0, Fate::CleanedUp);
    }

    #[test]
    fn each_end_and_start_has_its_reason() {
        let (pod, record) = pair(None);
        assert_eq!(of(Some(&pod), None, &[]).0, Fate::Starts);
        let mut lost = record.clone();
        lost.sandboxes[0].state = SandboxState::NotReady;
        let (fate, why) = of(Some(&pod), Some(&lost), &[]);
        assert_eq!(fate, Fate::Restarts);
        assert!(why.starts_with("its sandbox is made anew: it is not ready"), "{why}");
        let mut crashed = record.clone();
        crashed.containers[0].state = ContainerState::Exited;
        crashed.containers[0].exit_code = 3;
        let (fate, why) = of(Some(&pod), Some(&crashed), &[]);
        assert_eq!(fate, Fate::Starts);
        assert!(why.contains("exit code 3"), "{why}");
        let mut done = pod.clone();
        done.status.as_mut().unwrap().phase = Some("Succeeded".into());
        assert_eq!(of(Some(&done), Some(&record), &[]), (Fate::Finished, "its phase is Succeeded".into()));
        let mut foreign = pod;
        let claim = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
        foreign.spec.as_mut().unwrap().volumes = serde_json::from_value(claim).unwrap();
        let (fate, why) = of(Some(&foreign), Some(&record), &[]);
        assert_eq!(fate, Fate::Kept);
        assert!(why.contains("volume data is of kind persistentVolumeClaim"), "{why}");
    }
}
