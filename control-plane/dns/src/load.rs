//! A load for a DNS server: so many questions from so many sockets, and what became of them.
//!
//! For tests and benchmarks. Each socket has a window of questions under way; one that is not answered in time counts as lost and is not
//! asked again.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use hickory_proto::op::{Header, Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

/// What to ask.
#[derive(Debug, Clone)]
pub struct Load {
    /// Whom.
    pub server: SocketAddr,
    /// These names in turn.
    pub names: Vec<Name>,
    /// The type of all questions.
    pub kind: RecordType,
    /// How many questions in all.
    pub questions: usize,
    /// From how many sockets.
    pub sockets: usize,
    /// How many under way on each socket.
    pub window: usize,
    /// How long an answer may take.
    pub limit: Duration,
}

/// What became of the questions.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Answers by code, as the wire has it (0 NOERROR, 2 SERVFAIL, 3 NXDOMAIN).
    pub codes: HashMap<u16, usize>,
    /// Questions without an answer in time.
    pub lost: usize,
    /// How long all of it took.
    pub took: Duration,
    /// Times of the answers, in ascending order.
    pub times: Vec<Duration>,
}

impl Outcome {
    /// Answers of any code.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.times.len()
    }

    /// Answers per second.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    pub fn rate(&self) -> f64 {
        self.answered() as f64 / self.took.as_secs_f64().max(f64::EPSILON)
    }

    /// The time within which this share of a thousand was answered.
    #[must_use]
    pub fn permille(&self, share: usize) -> Duration {
        let index = (self.times.len() * share / 1000).min(self.times.len().saturating_sub(1));
        self.times.get(index).copied().unwrap_or_default()
    }
}

/// Asks.
///
/// # Errors
/// A socket could not be made.
pub async fn run(load: &Load) -> io::Result<Outcome> {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    let sockets = load.sockets.max(1);
    for index in 0..sockets {
        let share = load.questions / sockets + usize::from(index < load.questions % sockets);
        tasks.spawn(one_socket(load.clone(), index, share));
    }
    let mut all = Outcome::default();
    while let Some(joined) = tasks.join_next().await {
        let part = joined.map_err(io::Error::other)??;
        all.lost += part.lost;
        all.times.extend(part.times);
        for (code, count) in part.codes {
            *all.codes.entry(code).or_default() += count;
        }
    }
    all.took = begun.elapsed();
    all.times.sort_unstable();
    Ok(all)
}

fn question(load: &Load, number: usize, id: u16) -> io::Result<Vec<u8>> {
    let name = load.names.get(number % load.names.len().max(1)).cloned().unwrap_or_default();
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, load.kind));
    message.to_vec().map_err(io::Error::other)
}

async fn one_socket(load: Load, index: usize, questions: usize) -> io::Result<Outcome> {
    let local: SocketAddr =
        if load.server.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(load.server).await?;
    let mut outcome = Outcome::default();
    let mut under_way: HashMap<u16, Instant> = HashMap::new();
    let (mut sent, mut buffer) = (0, vec![0; 4096]);
    while sent < questions || !under_way.is_empty() {
        while sent < questions && under_way.len() < load.window.clamp(1, usize::from(u16::MAX)) {
            #[allow(
                clippy::cast_possible_truncation,
                reason = "identifiers come round; none is in use after 65,536 questions"
            )]
            let id = sent as u16;
            under_way.insert(id, Instant::now());
            socket.send(&question(&load, index + sent * load.sockets.max(1), id)?).await?;
            sent += 1;
        }
        match tokio::time::timeout(load.limit, socket.recv(&mut buffer)).await {
            Ok(received) => {
                let Ok(header) = Header::read(&mut BinDecoder::new(&buffer[..received?])) else { continue };
                if let Some(asked) = under_way.remove(&header.metadata.id) {
                    outcome.times.push(asked.elapsed());
                    *outcome.codes.entry(header.metadata.response_code.into()).or_default() += 1;
                }
            }
            // Nothing came for the whole time: what is under way will not come.
            Err(_) => {
                outcome.lost += under_way.len();
                under_way.clear();
            }
        }
        if outcome.times.len() % 1024 == 0 {
            let late = under_way.len();
            under_way.retain(|_, asked| asked.elapsed() < load.limit);
            outcome.lost += late - under_way.len();
        }
    }
    Ok(outcome)
}
