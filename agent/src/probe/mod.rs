//! Startup, liveness and readiness probes of one pod.
//!
//! One task per (container instance, probe). Results become [`Verdict`]s that the pod's worker reads; a change wakes
//! it. Rules as in spec: liveness and readiness wait for startup; before the first result readiness fails, liveness
//! passes; containers that the API knew as ready or started keep that after an agent restart until a real probe says
//! otherwise. Upstream counterpart: `pkg/kubelet/prober`.

mod grpc;
pub mod http;
mod slots;
mod task;

pub use slots::ExecSlots;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, Probe};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::pod;
use crate::runtime::{ContainerState, PodRecord};
use crate::sync::Verdict;
use crate::worker::NodeContext;

/// Which of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// Verdicts shared between the tasks and the worker.
#[derive(Clone)]
struct Board {
    verdicts: Arc<Mutex<BTreeMap<String, Verdict>>>,
    changed: Arc<watch::Sender<u64>>,
}

impl Board {
    fn change(&self, id: &str, edit: impl FnOnce(&mut Verdict)) {
        let mut verdicts = self.verdicts.lock();
        let verdict = verdicts.entry(id.to_owned()).or_default();
        let before = *verdict;
        edit(verdict);
        if *verdict != before {
            self.changed.send_modify(|n| *n += 1);
        }
    }

    fn started(&self, id: &str) -> bool {
        self.verdicts.lock().get(id).is_some_and(|v| v.started == Some(true))
    }
}

/// The probes of one pod.
pub struct Probes {
    node: Arc<NodeContext>,
    board: Board,
    tasks: BTreeMap<(String, Kind), CancellationToken>,
    known: BTreeMap<String, (bool, bool)>,
}

impl Probes {
    /// No probe runs yet; `previous` tells which containers were ready and started before.
    #[must_use]
    pub fn new(node: Arc<NodeContext>, previous: &PodStatus) -> Self {
        let lists = [&previous.container_statuses, &previous.init_container_statuses];
        let known = lists
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|s| {
                let id = s.container_id.as_deref()?.split_once("://")?.1;
                Some((id.to_owned(), (s.ready, s.started == Some(true))))
            })
            .collect();
        let board = Board { verdicts: Arc::default(), changed: Arc::new(watch::Sender::new(0)) };
        Self { node, board, tasks: BTreeMap::new(), known }
    }

    /// Changes with every verdict.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.board.changed.subscribe()
    }

    /// The verdicts now.
    #[must_use]
    pub fn verdicts(&self) -> BTreeMap<String, Verdict> {
        self.board.verdicts.lock().clone()
    }

    /// Starts probes of new instances, stops those of ended ones. When the pod ends, only readiness goes on.
    pub fn update(&mut self, pod: &Arc<Pod>, record: &PodRecord, lives: bool) {
        let mut wanted = BTreeSet::new();
        let mut instances = BTreeSet::new();
        let sidecars = pod::init_containers(pod).iter().filter(|c| pod::is_sidecar(c));
        for container in sidecars.chain(pod::main_containers(pod)) {
            let Some(latest) = record.latest(&container.name).filter(|r| r.state == ContainerState::Running) else {
                continue;
            };
            instances.insert(latest.id.clone());
            if !self.board.verdicts.lock().contains_key(&latest.id) {
                let (ready, started) = self.known.remove(&latest.id).unwrap_or_default();
                let seed = Verdict {
                    started: (container.startup_probe.is_none() || started).then_some(true),
                    liveness_failed: false,
                    ready: ready.then_some(true),
                };
                self.board.verdicts.lock().insert(latest.id.clone(), seed);
            }
            for kind in [Kind::Startup, Kind::Liveness, Kind::Readiness] {
                if kind.of(container).is_none() || (!lives && kind != Kind::Readiness) {
                    continue;
                }
                let key = (latest.id.clone(), kind);
                wanted.insert(key.clone());
                let over = kind == Kind::Startup && self.board.started(&latest.id);
                if !over && !self.tasks.contains_key(&key) {
                    let stop = CancellationToken::new();
                    self.tasks.insert(key, stop.clone());
                    let task = task::Task {
                        node: self.node.clone(),
                        pod: pod.clone(),
                        container: container.clone(),
                        id: latest.id.clone(),
                        kind,
                        board: self.board.clone(),
                        started_at: latest.started_at,
                    };
                    tokio::spawn(task.run(stop));
                }
            }
        }
        self.tasks.retain(|key, stop| {
            let keep = wanted.contains(key);
            if !keep {
                stop.cancel();
            }
            keep
        });
        self.board.verdicts.lock().retain(|id, _| instances.contains(id));
    }

    /// Stops all of them.
    pub fn stop(&mut self) {
        for stop in std::mem::take(&mut self.tasks).into_values() {
            stop.cancel();
        }
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.stop();
    }
}
