//! The conditions of a pod, with upstream's reasons and messages.
//!
//! Upstream counterpart: `pkg/kubelet/status/generate.go`.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::phase::Phase;
use crate::pod;

const COMPLETED: &str = "PodCompleted";
const FAILED: &str = "PodFailed";
const UNKNOWN: &str = "UnknownContainerStatuses";
const NOT_READY: &str = "ContainersNotReady";
const NOT_INITIALIZED: &str = "ContainersNotInitialized";
const GATES_NOT_READY: &str = "ReadinessGatesNotReady";

/// The types that the agent writes (upstream `PodConditionByKubelet`).
pub const OURS: [&str; 7] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "PodResizePending",
    "PodResizeInProgress",
];

/// Told by whoever ends a pod that would have gone on.
pub const DISRUPTION: &str = "DisruptionTarget";
/// Its reason when that is the node.
pub const DISRUPTED_BY_NODE: &str = "TerminationByKubelet";

/// A condition without times.
struct Verdict {
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Verdict {
    fn yes() -> Self {
        Self { status: true, reason: None, message: None }
    }

    fn no(reason: &'static str, message: Option<String>) -> Self {
        Self { status: false, reason: Some(reason), message }
    }
}

/// Everything the conditions follow from.
pub struct Inputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its phase.
    pub phase: Phase,
    /// Init containers and sidecars.
    pub init: &'a [ContainerStatus],
    /// Main containers.
    pub main: &'a [ContainerStatus],
    /// Whether the sandbox is there with its network.
    pub sandbox_ready: bool,
    /// Whether the node itself has decided the pod's end (not the API by a deletion).
    pub node_ends_it: bool,
    /// Why the node ends it for the sake of others, if it does.
    pub disrupted: Option<&'a str>,
    /// The conditions as last known, for transition times.
    pub previous: &'a [PodCondition],
    /// Now.
    pub now: &'a Time,
}

/// All conditions: ours computed, those of others as the API has them.
#[must_use]
pub fn conditions(inputs: &Inputs<'_>) -> Vec<PodCondition> {
    let containers = containers_ready(inputs);
    let ready = ready(inputs, &containers);
    let ours = [
        (
            "PodReadyToStartContainers",
            if inputs.sandbox_ready { Verdict::yes() } else { Verdict { status: false, reason: None, message: None } },
        ),
        ("Initialized", initialized(inputs)),
        ("Ready", ready),
        ("ContainersReady", containers),
        ("PodScheduled", Verdict::yes()),
    ];
    let mut out: Vec<PodCondition> = ours.into_iter().map(|(name, v)| finish(inputs, name, v)).collect();
    if let Some(message) = inputs.disrupted {
        let verdict = Verdict { status: true, reason: Some(DISRUPTED_BY_NODE), message: Some(message.to_owned()) };
        out.push(finish(inputs, DISRUPTION, verdict));
    }
    let theirs = of_others(inputs.pod).filter(|c| inputs.disrupted.is_none() || c.type_ != DISRUPTION);
    out.extend(theirs.cloned());
    out
}

/// Conditions of the API's object that others set: readiness gates, `DisruptionTarget`.
pub fn of_others(pod: &Pod) -> impl Iterator<Item = &PodCondition> {
    let all = pod.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    all.filter(|condition| !OURS.contains(&condition.type_.as_str()))
}

fn finish(inputs: &Inputs<'_>, name: &str, verdict: Verdict) -> PodCondition {
    let status = if verdict.status { "True" } else { "False" };
    let previous = inputs.previous.iter().find(|c| c.type_ == name && c.status == status);
    PodCondition {
        type_: name.to_owned(),
        status: status.to_owned(),
        reason: verdict.reason.map(str::to_owned),
        message: verdict.message,
        last_transition_time: previous
            .and_then(|c| c.last_transition_time.clone())
            .or_else(|| Some(inputs.now.clone())),
        last_probe_time: None,
        observed_generation: inputs.pod.metadata.generation,
    }
}

fn list(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

fn containers_ready(inputs: &Inputs<'_>) -> Verdict {
    match inputs.phase {
        Phase::Succeeded => return Verdict::no(COMPLETED, None),
        Phase::Failed => return Verdict::no(FAILED, None),
        Phase::Pending | Phase::Running => {}
    }
    let sidecars = pod::init_containers(inputs.pod).iter().filter(|c| pod::is_sidecar(c)).map(|c| (c, inputs.init));
    let mains = pod::main_containers(inputs.pod).iter().map(|c| (c, inputs.main));
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    for (container, statuses) in sidecars.chain(mains) {
        match statuses.iter().find(|s| s.name == container.name) {
            None => unknown.push(container.name.as_str()),
            Some(s) if !s.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    if inputs.main.is_empty() {
        return Verdict::no(UNKNOWN, None);
    }
    not_ok(NOT_READY, "unready", &unknown, &unready)
}

fn not_ok(reason: &'static str, word: &str, unknown: &[&str], bad: &[&str]) -> Verdict {
    let mut messages = Vec::new();
    if !unknown.is_empty() {
        messages.push(format!("containers with unknown status: {}", list(unknown)));
    }
    if !bad.is_empty() {
        messages.push(format!("containers with {word} status: {}", list(bad)));
    }
    if messages.is_empty() { Verdict::yes() } else { Verdict::no(reason, Some(messages.join(", "))) }
}

fn initialized(inputs: &Inputs<'_>) -> Verdict {
    let inits = pod::init_containers(inputs.pod);
    if inits.is_empty() {
        return match inputs.phase {
            Phase::Succeeded => Verdict { status: true, reason: Some(COMPLETED), message: None },
            _ => Verdict::yes(),
        };
    }
    if inputs.phase == Phase::Succeeded {
        return Verdict { status: true, reason: Some(COMPLETED), message: None };
    }
    // Once main containers run, initialisation is over even when records of it are gone.
    if inputs
        .main
        .iter()
        .any(|s| s.started == Some(true) || s.last_state.as_ref().is_some_and(|l| l.terminated.is_some()))
    {
        return Verdict::yes();
    }
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for container in inits {
        match inputs.init.iter().find(|s| s.name == container.name) {
            None => unknown.push(container.name.as_str()),
            Some(s) => {
                let done = if pod::is_sidecar(container) { s.started == Some(true) } else { s.ready };
                if !done {
                    incomplete.push(container.name.as_str());
                }
            }
        }
    }
    not_ok(NOT_INITIALIZED, "incomplete", &unknown, &incomplete)
}

fn ready(inputs: &Inputs<'_>, containers: &Verdict) -> Verdict {
    if !containers.status {
        return Verdict { status: false, reason: containers.reason, message: containers.message.clone() };
    }
    if inputs.node_ends_it {
        return Verdict::no(NOT_READY, Some("the pod is being terminated by the node".into()));
    }
    let gates = inputs.pod.spec.as_ref().and_then(|s| s.readiness_gates.as_deref()).unwrap_or_default();
    let mut messages = Vec::new();
    for gate in gates {
        match of_others(inputs.pod).find(|c| c.type_ == gate.condition_type) {
            None => messages.push(format!(
                "corresponding condition of pod readiness gate {:?} does not exist.",
                gate.condition_type
            )),
            Some(c) if c.status != "True" => messages.push(format!(
                "the status of pod readiness gate {:?} is not \"True\", but {}",
                gate.condition_type, c.status
            )),
            Some(_) => {}
        }
    }
    if messages.is_empty() { Verdict::yes() } else { Verdict::no(GATES_NOT_READY, Some(messages.join(", "))) }
}
