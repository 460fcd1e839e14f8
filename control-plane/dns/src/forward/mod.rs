//! Questions that are not the cluster's: from the cache, else from the resolvers of this machine.
//!
//! Invariants: an answer comes within [`DEADLINE`], SERVFAIL at the latest, before a client's own 5 s are over; equal questions under way
//! are asked once; the number of questions waiting and of answers kept is bounded; an answer is kept no longer than its TTL.
//!
//! Upstream counterparts: CoreDNS' plugins `forward` and `cache`.

pub mod cache;
pub mod resolvers;

mod exchange;
mod health;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tracing::{debug, warn};

use crate::metrics::Metrics;
use cache::Cache;
use exchange::{Exchange, ExchangeError};
use health::Health;
use resolvers::{Resolvers, Source};

/// All tries together: stub resolvers give up after 5 s and ask again.
pub const DEADLINE: Duration = Duration::from_millis(4500);
/// One try; CoreDNS' `forward` waits 2 s for an answer, too long for a second resolver and a retry within the deadline.
const TRY: Duration = Duration::from_millis(1500);
/// Questions that may wait for resolvers at once: each costs a socket. More are answered SERVFAIL.
const MAX_WAITING: usize = 1000;

/// A question for a resolver.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Question {
    /// In lower case.
    pub name: Name,
    /// Its type.
    pub kind: RecordType,
    /// Its class.
    pub class: DNSClass,
    /// Whether DNSSEC records are wanted (DO).
    pub dnssec: bool,
    /// Whether the resolver shall not validate (CD).
    pub unchecked: bool,
}

/// A resolver's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Its code.
    pub code: ResponseCode,
    /// Whether the resolver validated it (AD).
    pub authentic: bool,
    /// The answer section.
    pub answers: Vec<Record>,
    /// The authority section.
    pub authority: Vec<Record>,
    /// The additional section.
    pub additional: Vec<Record>,
}

impl Found {
    /// A code alone.
    #[must_use]
    pub fn code(code: ResponseCode) -> Self {
        Self { code, authentic: false, answers: Vec::new(), authority: Vec::new(), additional: Vec::new() }
    }
}

type Waiting = watch::Receiver<Option<Arc<Found>>>;

/// Asks, remembers, and joins equal questions.
pub struct Forwarder {
    resolvers: Resolvers,
    cache: Mutex<Cache>,
    health: Mutex<Health>,
    waiting: Mutex<HashMap<Question, Waiting>>,
    slots: Semaphore,
    metrics: Metrics,
}

/// Takes a question off the list of those under way, however its asking ended.
struct Under<'f> {
    forwarder: &'f Forwarder,
    question: &'f Question,
}

impl Drop for Under<'_> {
    fn drop(&mut self) {
        self.forwarder.waiting.lock().remove(self.question);
    }
}

enum Role {
    Asks(watch::Sender<Option<Arc<Found>>>),
    Waits(Waiting),
}

impl Forwarder {
    /// Over these resolvers, never asking one of `own`, the addresses under which this server itself is reached.
    #[must_use]
    pub fn new(source: Source, own: Vec<SocketAddr>, metrics: Metrics) -> Self {
        Self {
            resolvers: Resolvers::new(source, own),
            cache: Mutex::new(Cache::new(cache::CAPACITY)),
            health: Mutex::new(Health::default()),
            waiting: Mutex::new(HashMap::new()),
            slots: Semaphore::new(MAX_WAITING),
            metrics,
        }
    }

    /// The answer; always one.
    pub async fn resolve(&self, question: &Question) -> Found {
        let entries = {
            let mut cache = self.cache.lock();
            if let Some(found) = cache.get(question, Instant::now()) {
                self.metrics.cache_hit(cache::is_denial(&found));
                return found;
            }
            cache.len()
        };
        self.metrics.cache_miss(entries);
        let role = {
            let mut waiting = self.waiting.lock();
            match waiting.get(question) {
                Some(receiver) => Role::Waits(receiver.clone()),
                None => {
                    let (sender, receiver) = watch::channel(None);
                    waiting.insert(question.clone(), receiver);
                    Role::Asks(sender)
                }
            }
        };
        match role {
            Role::Asks(sender) => {
                let under = Under { forwarder: self, question };
                let found = Arc::new(self.ask(question).await);
                self.cache.lock().put(question, &found, Instant::now());
                // Those who come from now on find it in the cache; those who waited are told.
                drop(under);
                sender.send_replace(Some(Arc::clone(&found)));
                Arc::unwrap_or_clone(found)
            }
            Role::Waits(mut receiver) => match receiver.wait_for(Option::is_some).await.as_deref() {
                Ok(Some(found)) => (**found).clone(),
                Ok(None) | Err(_) => Found::code(ResponseCode::ServFail),
            },
        }
    }

    async fn ask(&self, question: &Question) -> Found {
        let servers = self.resolvers.get();
        if servers.is_empty() {
            // Nobody to ask, ever: say so at once instead of letting the client wait and ask again.
            return Found::code(ResponseCode::Refused);
        }
        let Ok(_slot) = self.slots.try_acquire() else {
            self.metrics.refuse();
            return Found::code(ResponseCode::ServFail);
        };
        let end = Instant::now() + DEADLINE;
        let order = self.health.lock().order(&servers, Instant::now());
        let mut last = Found::code(ResponseCode::ServFail);
        // Twice over the list: one lost datagram must not be the end when there is a single resolver.
        for server in order.iter().chain(&order) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match self.exchange(*server, question, left.min(TRY)).await {
                Ok(found) if matches!(found.code, ResponseCode::NoError | ResponseCode::NXDomain) => return found,
                Ok(found) => last = found,
                Err(error) => debug!(%error, name = %question.name, "no answer from a resolver"),
            }
        }
        // A resolver's refusal is between it and us: the client asked us.
        Found { code: ResponseCode::ServFail, ..last }
    }

    async fn exchange(&self, server: SocketAddr, question: &Question, limit: Duration) -> Result<Found, ExchangeError> {
        let begun = Instant::now();
        let result = Exchange { server, question, limit }.run().await;
        let code = result.as_ref().ok().map(|found| found.code);
        self.metrics.upstream(server.to_string(), code, begun.elapsed());
        let now_down = self.health.lock().note(server, result.is_ok(), Instant::now());
        if now_down {
            warn!(%server, "a resolver has not answered several times: it is asked last until it does");
        }
        result
    }
}
