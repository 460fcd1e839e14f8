//! One line of the flight recorder.

use serde::{Deserialize, Serialize};

use crate::clock;

/// A step of a pod's life that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Whether the pod may run here.
    Admission,
    /// Volumes are set up.
    Volumes,
    /// The runtime makes the sandbox, network included.
    Sandbox,
    /// The part of the sandbox until its network was there.
    Network,
    /// The image is looked up and, if need be, pulled.
    Image,
    /// The container is created.
    Create,
    /// The container is started.
    Start,
    /// The postStart hook runs.
    PostStart,
    /// Services let go of the pod, which ends.
    Drain,
    /// The preStop hook runs.
    PreStop,
    /// The container has its signal and ends.
    Stop,
    /// The sandbox is stopped and its network released.
    StopSandbox,
    /// Volumes and cgroup are taken down.
    CleanUp,
}

impl Step {
    /// What it is called in text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Volumes => "volumes",
            Self::Sandbox => "sandbox",
            Self::Network => "network (CNI)",
            Self::Image => "image",
            Self::Create => "create",
            Self::Start => "start",
            Self::PostStart => "postStart hook",
            Self::Drain => "Services to let go of it",
            Self::PreStop => "preStop hook",
            Self::Stop => "stop",
            Self::StopSandbox => "stop of the sandbox",
            Self::CleanUp => "clean-up",
        }
    }
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum What {
    /// The agent has the pod from this source.
    Source(String),
    /// A step began; the number is its own until it ends.
    Begin(Step, u64),
    /// A step ended well after so many nanoseconds.
    End(Step, u64, u64),
    /// A step failed.
    Failed(Step, u64, u64),
    /// A step was given up, because the pod has to end or the agent stops.
    Dropped(Step, u64, u64),
    /// A normal event.
    Event(String),
    /// A warning.
    Warning(String),
    /// What is there, a line for each thing.
    Sees,
    /// What shall be done, a line for each thing.
    Wants,
    /// Something failed; it is tried again at this time, nanoseconds since the epoch.
    Retry(i64),
    /// Every condition of readiness is met.
    Ready,
    /// Nothing is left of the pod.
    Gone,
    /// The agent started: steps that were under way before are not any more.
    AgentStarted,
    /// So many lines were lost, because the disk was too slow.
    Lost(u64),
}

/// Something that happened to a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When, nanoseconds since the epoch.
    pub at: i64,
    /// The pod's UID; empty for what concerns all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Namespace and name of the pod.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// The container, if it concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// What.
    pub what: What,
    /// Details.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

impl Line {
    /// A line about all pods.
    #[must_use]
    pub fn of_all(what: What) -> Self {
        let (uid, pod, text) = (String::new(), String::new(), String::new());
        Self { at: clock::now(), uid, pod, container: None, what, text }
    }
}
