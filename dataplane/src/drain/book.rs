//! The questions that are open, beside the loop that owns the model.
//!
//! Pure but for the channels that answers go into. Invariants: an override ends when all slices call its pod terminating or have it no more, and
//! after [`LIFE`] in any case; nothing is answered from half a picture, before the first sync.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::protocol::Answer;
use crate::model::Model;
use crate::model::drain::Standing;
use crate::model::types::Name;

/// Longest life of an override. A pod that ends never comes back, so a long one does no harm; it is there for a slice that nobody looks after, and
/// outlives an API server that is away for some minutes.
pub const LIFE: Duration = Duration::from_secs(600);

/// Slices that an answer names.
const NAMED: usize = 3;

/// A question on its way to the loop.
#[derive(Debug)]
pub struct Request {
    /// UID of the pod.
    pub uid: Box<str>,
    /// Where the answers go; the newest counts.
    pub answers: watch::Sender<Answer>,
}

/// What a question holds before anything is known; it is not told.
#[must_use]
pub fn asked() -> Answer {
    let on = "the dataplane, which has not read all Services and slices yet".to_owned();
    Answer::Waiting { programmed: false, agreed: false, on }
}

#[derive(Debug)]
struct Open {
    until: Instant,
    programmed: bool,
    /// Who wants to know. Empty is fine: the override goes on without them.
    askers: Vec<watch::Sender<Answer>>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Book {
    open: BTreeMap<Box<str>, Open>,
    early: Vec<Request>,
    /// The last sync failed, with these words.
    failure: Option<String>,
}

impl Book {
    /// Takes a question; `true` when a sync is needed for it. `ready`: whether the first sync was made.
    pub fn take(&mut self, request: Request, model: &mut Model, ready: bool, now: Instant) -> bool {
        // Those who gave up meanwhile make room.
        self.early.retain(|early| !early.answers.is_closed());
        if !ready {
            self.early.push(request);
            return false;
        }
        let standing = model.drain(&request.uid);
        match standing {
            Standing::Unknown => drop(request.answers.send_replace(Answer::Unknown)),
            // What the slices say may not be programmed yet, either.
            Standing::Ready(_) | Standing::Unready | Standing::Terminating => {
                let new = !self.open.contains_key(&request.uid);
                let open = self.open.entry(request.uid).or_insert_with(|| Open {
                    until: now + LIFE,
                    programmed: false,
                    askers: Vec::new(),
                });
                request.answers.send_replace(answer(&standing, open.programmed, self.failure.as_deref()));
                open.askers.retain(|asker| !asker.is_closed());
                open.askers.push(request.answers);
                return new;
            }
        }
        false
    }

    /// After a sync of everything that the model knew; `true` when another one is needed.
    pub fn synced(&mut self, model: &mut Model, now: Instant) -> bool {
        self.failure = None;
        self.open.retain(|uid, open| {
            open.programmed = true;
            let standing = model.standing(uid);
            let over = matches!(standing, Standing::Unknown | Standing::Terminating);
            open.tell(&answer(&standing, true, None));
            if over {
                model.end_drain(uid);
            }
            !over
        });
        let mut again = false;
        for request in std::mem::take(&mut self.early) {
            again |= self.take(request, model, true, now);
        }
        again
    }

    /// After a sync that failed.
    pub fn failed(&mut self, model: &Model, why: &str) {
        for (uid, open) in &mut self.open {
            open.tell(&answer(&model.standing(uid), open.programmed, Some(why)));
        }
        self.failure = Some(why.to_owned());
    }

    /// Ends overrides that have lived too long; `true` when a sync is needed for it.
    pub fn expire(&mut self, model: &mut Model, now: Instant) -> bool {
        let before = self.open.len();
        self.open.retain(|uid, open| {
            if now >= open.until {
                tracing::warn!(
                    pod = &**uid,
                    "the slices still do not call this pod terminating; not waiting for them any longer"
                );
                model.end_drain(uid);
            }
            now < open.until
        });
        self.open.len() != before
    }

    /// Pods that are treated as terminating although not all slices say so.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

impl Open {
    fn tell(&mut self, answer: &Answer) {
        self.askers.retain(|asker| !asker.is_closed());
        for asker in &self.askers {
            asker.send_if_modified(|last| {
                let changed = last != answer;
                if changed {
                    last.clone_from(answer);
                }
                changed
            });
        }
        // The override may go on; they have heard all there is.
        if answer.is_final() {
            self.askers.clear();
        }
    }
}

fn answer(standing: &Standing, programmed: bool, failure: Option<&str>) -> Answer {
    let agreed = !matches!(standing, Standing::Ready(_));
    if programmed && agreed && failure.is_none() {
        return Answer::Done;
    }
    let on = match (failure, standing) {
        (Some(why), _) => format!("the kernel's tables, which cannot be written: {why}"),
        (None, Standing::Ready(slices)) if programmed => {
            format!("the slices to call it terminating: {}", names(slices))
        }
        _ => "the kernel's tables".to_owned(),
    };
    Answer::Waiting { programmed: programmed && failure.is_none(), agreed, on }
}

fn names(slices: &[Name]) -> String {
    let mut text = slices.iter().take(NAMED).map(|name| &**name).collect::<Vec<_>>().join(", ");
    if slices.len() > NAMED {
        text.push_str(&format!(" and {} more", slices.len() - NAMED));
    }
    text
}
