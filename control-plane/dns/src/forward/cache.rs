//! Answers of resolvers, as long as they may be kept. Pure: time comes in.
//!
//! Bounded without order lists: two generations, each at most half of the capacity; what is used moves to the young one, and when that is
//! full the old one goes.
//!
//! Upstream counterpart: CoreDNS' `cache`, whose bounds and longest times these are.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{RData, Record};

use super::{Found, Question};

/// Answers kept; CoreDNS keeps 9984 positive and as many negative ones.
pub const CAPACITY: usize = 10_000;
/// Longest time of a positive answer, and of a negative one.
const MAX_TTL: u32 = 3600;
const MAX_DENIAL_TTL: u32 = 1800;

struct Entry {
    found: Arc<Found>,
    stored: Instant,
    ttl: u32,
}

/// The cache.
pub struct Cache {
    young: HashMap<Question, Entry>,
    old: HashMap<Question, Entry>,
    half: usize,
}

/// Whether the answer says that there is nothing.
#[must_use]
pub fn is_denial(found: &Found) -> bool {
    found.code != ResponseCode::NoError || found.answers.is_empty()
}

/// How many seconds an answer may be kept (RFC 2308): the least TTL of a positive one, the SOA's of a negative one, nothing else at all.
#[must_use]
pub fn lifetime(found: &Found) -> u32 {
    let least = |records: &[Record]| records.iter().map(|record| record.ttl).min();
    match found.code {
        ResponseCode::NoError | ResponseCode::NXDomain => {}
        _ => return 0,
    }
    let soa = found.authority.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    });
    if is_denial(found) {
        let denial = soa.map_or(0, |ttl| ttl.min(MAX_DENIAL_TTL));
        // An alias in front of the denial has its own time.
        return least(&found.answers).map_or(denial, |ttl| ttl.min(denial));
    }
    // An alias that leads to nothing: the time is that of the denial, as far as it is known.
    let limit = soa.unwrap_or(MAX_TTL).min(MAX_TTL);
    least(&found.answers).unwrap_or(0).min(limit)
}

impl Cache {
    /// An empty cache for at most `capacity` answers.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half: (capacity / 2).max(1) }
    }

    /// How many answers are kept, the expired ones that were not asked for again included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The answer with what is left of its TTLs.
    pub fn get(&mut self, question: &Question, now: Instant) -> Option<Found> {
        if let Some(entry) = self.old.remove(question) {
            self.insert(question.clone(), entry);
        }
        let entry = self.young.get(question)?;
        let age = u32::try_from(now.saturating_duration_since(entry.stored).as_secs()).unwrap_or(u32::MAX);
        if age >= entry.ttl {
            self.young.remove(question);
            return None;
        }
        let mut found = (*entry.found).clone();
        let records = found.answers.iter_mut().chain(&mut found.authority).chain(&mut found.additional);
        records.for_each(|record| record.ttl = record.ttl.min(MAX_TTL).saturating_sub(age));
        Some(found)
    }

    /// Keeps an answer, if it may be kept.
    pub fn put(&mut self, question: &Question, found: &Arc<Found>, now: Instant) {
        let ttl = lifetime(found);
        if ttl == 0 {
            return;
        }
        self.old.remove(question);
        self.insert(question.clone(), Entry { found: Arc::clone(found), stored: now, ttl });
    }

    fn insert(&mut self, question: Question, entry: Entry) {
        if self.young.len() >= self.half && !self.young.contains_key(&question) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(question, entry);
    }

    /// Longest time an answer can be kept.
    #[must_use]
    pub const fn longest() -> Duration {
        Duration::from_secs(MAX_TTL as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::rdata::{A, SOA};
    use hickory_proto::rr::{DNSClass, Name, RecordType};
    use proptest::prelude::*;

    fn question(number: usize) -> Question {
        Question {
            name: Name::from_ascii(format!("n{number}.example.")).unwrap(),
            kind: RecordType::A,
            class: DNSClass::IN,
            dnssec: false,
            unchecked: false,
        }
    }

    fn positive(ttl: u32) -> Found {
        let data = RData::A(A::new(192, 0, 2, 1));
        Found { answers: vec![Record::from_rdata(Name::root(), ttl, data)], ..Found::code(ResponseCode::NoError) }
    }

    fn negative(code: ResponseCode, ttl: u32, minimum: u32) -> Found {
        let data = RData::SOA(SOA::new(Name::root(), Name::root(), 1, 1, 1, 1, minimum));
        Found { authority: vec![Record::from_rdata(Name::root(), ttl, data)], ..Found::code(code) }
    }

    #[test]
    fn the_lifetime_is_that_of_the_records() {
        assert_eq!(lifetime(&positive(30)), 30);
        assert_eq!(lifetime(&positive(100_000)), MAX_TTL);
        assert_eq!(lifetime(&negative(ResponseCode::NXDomain, 60, 20)), 20);
        assert_eq!(lifetime(&negative(ResponseCode::NoError, 10, 20)), 10);
        assert_eq!(lifetime(&Found::code(ResponseCode::NXDomain)), 0);
        assert_eq!(lifetime(&Found::code(ResponseCode::ServFail)), 0);
    }

    #[test]
    fn ttls_count_down_and_end() {
        let (mut cache, now) = (Cache::new(10), Instant::now());
        cache.put(&question(1), &Arc::new(positive(30)), now);
        let found = cache.get(&question(1), now + Duration::from_secs(12)).unwrap();
        assert_eq!(found.answers[0].ttl, 18);
        assert_eq!(cache.get(&question(1), now + Duration::from_secs(30)), None);
        assert!(cache.is_empty());
    }

    #[test]
    fn what_is_used_stays_when_the_cache_is_full() {
        let (mut cache, now) = (Cache::new(10), Instant::now());
        for number in 0..1000 {
            cache.put(&question(number), &Arc::new(positive(30)), now);
            assert!(cache.get(&question(0), now).is_some(), "{number}");
        }
        assert!(cache.get(&question(500), now).is_none());
    }

    proptest! {
        #[test]
        fn it_never_grows_over_its_capacity_nor_answers_too_late(
            steps in proptest::collection::vec((0_usize..40, 0_u32..8, 0_u64..3, any::<bool>()), 1..200),
        ) {
            let (mut cache, mut now) = (Cache::new(8), Instant::now());
            let mut stored: HashMap<usize, (Instant, u32)> = HashMap::new();
            for (number, ttl, wait, write) in steps {
                now += Duration::from_secs(wait);
                if write {
                    cache.put(&question(number), &Arc::new(positive(ttl)), now);
                    if ttl > 0 {
                        stored.insert(number, (now, ttl));
                    }
                } else if let Some(found) = cache.get(&question(number), now) {
                    let (at, ttl) = stored[&number];
                    let age = u32::try_from((now - at).as_secs()).unwrap();
                    prop_assert!(age < ttl);
                    prop_assert_eq!(found.answers[0].ttl, ttl - age);
                }
                prop_assert!(cache.len() <= 8);
            }
        }
    }
}
