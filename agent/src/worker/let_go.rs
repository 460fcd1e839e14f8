//! The first step of a pod's end: Services let go of it (see [`crate::drain`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{info, warn};

use super::{Desired, Worker};
use crate::clock;
use crate::drain::decide::{self, Outcome, Seen, Situation, Verdict};
use crate::drain::{plane, start};
use crate::flight::line::Step;
use crate::flight::{Doing, Flight};
use crate::pod;
use crate::runtime::{ContainerState, PodRecord};

/// A wait this long is put on disk: the answer that a pod is no endpoint comes sooner, and most pods are none.
const WORTH_A_NOTE: Duration = Duration::from_millis(20);

/// What a wait has taken of a grace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    grace: i64,
    time: Duration,
}

impl Spent {
    /// What was taken of this grace. One that was told later began later.
    pub(super) fn of(self, grace: i64) -> Duration {
        if grace == self.grace { self.time } else { Duration::ZERO }
    }
}

/// Whether anything of the pod could still answer somebody.
fn runs(record: &PodRecord) -> bool {
    record.containers.iter().any(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
}

fn since(from: i64, to: i64) -> Duration {
    Duration::from_nanos(u64::try_from(to.saturating_sub(from)).unwrap_or(0))
}

/// A step of the flight recorder once there is something to wait for.
struct Wait {
    began: i64,
    doing: Option<Doing>,
    noted: bool,
}

impl Wait {
    fn begin(&mut self, flight: &Arc<Flight>, pod: &k8s_openapi::api::core::v1::Pod) {
        self.doing.get_or_insert_with(|| flight.begin_since(pod, None, Step::Drain, self.began));
    }

    /// Puts the start on disk, beside the wait: a slow disk does not make it longer.
    fn note(&mut self, worker: &Worker) {
        if std::mem::replace(&mut self.noted, true) {
            return;
        }
        let (root, uid, began) = (worker.node.settings.root_dir.clone(), worker.uid().to_owned(), self.began);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = start::write(&root, &uid, began) {
                warn!(uid, "cannot note the start of the drain: {error}; an agent started in its middle begins anew");
            }
        });
    }
}

impl Worker {
    /// Waits until Services have let go of the pod, at most as long as [`decide::bound`] says; what that took is part of the grace.
    pub(super) async fn let_go(&self, desired: &mut watch::Receiver<Desired>) -> Spent {
        let node = &self.node;
        let root = &node.settings.root_dir;
        let (begun, first_look) = (clock::now(), Instant::now());
        // The wall clock names the beginning for the next agent; one that is set meanwhile must not make the wait longer.
        let now = move || begun.saturating_add(super::nanos(first_look.elapsed()));
        let earlier = start::read(root, self.uid(), begun);
        let mut wait = Wait { began: earlier.unwrap_or(begun), doing: None, noted: earlier.is_some() };
        // The grace that counts, and since when.
        let first = self.grace();
        let (mut grace, mut told) = (first, wait.began);
        let mut records = node.pleg.subscribe(self.uid());
        let (news, mut seen) = watch::channel(Seen::Silent);
        let uid = node.statuses.api_uid(self.uid()).unwrap_or_else(|| self.uid().to_owned());
        let mut following = std::pin::pin!(plane::follow(&node.drain.socket, &uid, news, now));
        let outcome = loop {
            let want = desired.borrow_and_update().clone();
            let wanted = Worker::grace_of(&want.pod);
            if wanted < grace {
                (grace, told) = (wanted, now());
            }
            let forced = want.removed && !pod::is_static(&want.pod);
            let situation = Situation {
                grace: super::stop::seconds(grace),
                shortened: grace < first || forced && wait.doing.is_some(),
                since: wait.began,
                seen: *seen.borrow_and_update(),
                selected: node.materials.is_selected(&self.pod),
                runs: runs(&self.record()),
                forced,
            };
            let until = match decide::decide(&node.drain, situation, now()) {
                Verdict::Over(outcome) => break outcome,
                Verdict::Until(until) => until,
            };
            let note_at = wait.began.saturating_add(super::nanos(WORTH_A_NOTE));
            if situation.seen != Seen::Silent || now() >= note_at {
                wait.begin(&node.flight, &self.pod);
                wait.note(self);
            }
            let next = if wait.noted { until } else { until.min(note_at) };
            tokio::select! {
                () = &mut following => {}
                Ok(()) = seen.changed() => {}
                Ok(()) = desired.changed() => {}
                Ok(()) = records.changed() => {}
                () = tokio::time::sleep(since(now(), next)) => {}
            }
        };
        let spent = Spent { grace, time: since(told, now()) }.within_bound();
        let took = since(wait.began, now());
        self.let_go_ended(wait, outcome, took, spent)
    }

    fn let_go_ended(&self, wait: Wait, outcome: Outcome, took: Duration, spent: Spent) -> Spent {
        let Some(doing) = wait.doing else {
            // Another agent has counted what it had begun.
            if wait.noted {
                return spent;
            }
            self.node.metrics.drained(Outcome::None.name(), None);
            return Spent::default();
        };
        self.node.metrics.drained(outcome.name(), Some(took));
        let text = match outcome {
            Outcome::Agreed => "programmed, the slices agree, and other nodes had their time",
            Outcome::Late => "not everything agreed in time; it ends all the same",
            Outcome::Fixed => "there is no dataplane to ask: a fixed time",
            Outcome::Cut => "cut short: it has to end sooner",
            Outcome::Ended => "nothing of it runs any more",
            Outcome::None => "no Service has it",
        };
        if outcome == Outcome::Late {
            info!(pod = %pod::display(&self.pod), "Services have not let go of the pod within {took:?}; it ends all the same");
        }
        doing.done(text);
        // Nothing was waited for: whole seconds are not taken for the moment in which that was found out.
        if outcome == Outcome::None { Spent::default() } else { spent }
    }
}

impl Spent {
    /// An agent that was away for longer than the wait would have taken does not take that of the grace: the pod has had no signal yet.
    fn within_bound(self) -> Self {
        Self { time: self.time.min(decide::bound(super::stop::seconds(self.grace))), ..self }
    }
}
