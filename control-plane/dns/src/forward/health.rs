//! Which resolver to ask first: those that answer, in the order they were given; those that are down last, and now and then.
//!
//! Pure; upstream counterpart: the `max_fails` rule of CoreDNS' `forward`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// CoreDNS' `max_fails`.
const MAX_FAILS: u32 = 2;
/// How often a resolver that is down is tried while every one is down.
const PROBE: Duration = Duration::from_secs(1);

#[derive(Debug, Default, Clone, Copy)]
struct State {
    failures: u32,
    probed: Option<Instant>,
}

/// Failures in a row of each resolver.
#[derive(Debug, Default)]
pub(super) struct Health {
    states: HashMap<SocketAddr, State>,
}

impl Health {
    fn is_down(&self, server: SocketAddr) -> bool {
        self.states.get(&server).is_some_and(|state| state.failures > MAX_FAILS)
    }

    /// Whom to ask, in this order. Empty when all are down and have just been tried.
    pub(super) fn order(&mut self, servers: &[SocketAddr], now: Instant) -> Vec<SocketAddr> {
        // A resolver that is no longer used needs no memory.
        self.states.retain(|server, _| servers.contains(server));
        let (mut order, down): (Vec<_>, Vec<_>) = servers.iter().copied().partition(|server| !self.is_down(*server));
        for server in down {
            let state = self.states.entry(server).or_default();
            if state.probed.is_none_or(|probed| now.saturating_duration_since(probed) >= PROBE) {
                state.probed = Some(now);
                order.push(server);
            }
        }
        order
    }

    /// Notes the outcome; true when the resolver has just gone down.
    pub(super) fn note(&mut self, server: SocketAddr, answered: bool, now: Instant) -> bool {
        let was_down = self.is_down(server);
        let state = self.states.entry(server).or_default();
        if answered {
            *state = State::default();
            return false;
        }
        state.failures = state.failures.saturating_add(1);
        let is_down = state.failures > MAX_FAILS;
        if is_down && !was_down {
            state.probed = Some(now);
        }
        is_down && !was_down
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolver_that_is_down_comes_last_and_not_at_every_time() {
        let [a, b] = ["192.0.2.1:53", "192.0.2.2:53"].map(|text| text.parse().unwrap());
        let (mut health, now) = (Health::default(), Instant::now());
        assert_eq!(health.order(&[a, b], now), [a, b]);
        let downs: Vec<bool> = (0..4).map(|_| health.note(a, false, now)).collect();
        assert_eq!(downs, [false, false, true, false]);
        assert_eq!(health.order(&[a, b], now), [b]);
        let later = now + PROBE;
        assert_eq!(health.order(&[a, b], later), [b, a]);
        assert_eq!(health.order(&[a, b], later), [b]);
        health.note(a, true, later);
        assert_eq!(health.order(&[a, b], later), [a, b]);
    }

    #[test]
    fn with_all_down_one_try_a_second_is_left() {
        let a = "192.0.2.1:53".parse().unwrap();
        let (mut health, now) = (Health::default(), Instant::now());
        for _ in 0..=MAX_FAILS {
            health.note(a, false, now);
        }
        assert!(health.order(&[a], now).is_empty());
        assert_eq!(health.order(&[a], now + PROBE), [a]);
    }
}
