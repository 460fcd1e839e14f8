//! Sandboxes that are being made, so that nobody collects their addresses meanwhile.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Most sandboxes that are made at once; more wait. Far above what a runtime does side by side.
const MOST: u32 = 1024;
/// Pause between tries to find a moment without one.
const PAUSE: Duration = Duration::from_secs(1);
/// After so many tries it is left for the next occasion.
const TRIES: u32 = 60;

/// Who makes a sandbox holds one permit, who collects holds all. A collector only ever tries: it must not make those that
/// come after it wait for those that are under way.
#[derive(Debug)]
pub struct Starting(Semaphore);

impl Default for Starting {
    fn default() -> Self {
        Self(Semaphore::new(MOST as usize))
    }
}

/// Held while a sandbox is made, or while nobody may make one.
#[must_use]
#[derive(Debug)]
pub struct Held<'a> {
    _permit: Option<SemaphorePermit<'a>>,
}

impl Starting {
    /// Before a sandbox is made; waits while addresses are collected.
    pub async fn sandbox(&self) -> Held<'_> {
        // Only a closed semaphore gives none, and this one is never closed.
        Held { _permit: self.0.acquire().await.ok() }
    }

    /// A moment in which no sandbox is being made, if one comes soon.
    pub async fn quiet(&self) -> Option<Held<'_>> {
        for _ in 0..TRIES {
            if let Ok(permit) = self.0.try_acquire_many(MOST) {
                return Some(Held { _permit: Some(permit) });
            }
            tokio::time::sleep(PAUSE).await;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn collecting_waits_for_sandboxes_and_holds_them_back() {
        let starting = Starting::default();
        let one = starting.sandbox().await;
        let two = starting.sandbox().await;
        assert!(starting.quiet().await.is_none());
        drop(one);
        assert!(starting.quiet().await.is_none());
        drop(two);
        let quiet = starting.quiet().await.unwrap();
        assert!(tokio::time::timeout(Duration::from_secs(5), starting.sandbox()).await.is_err());
        drop(quiet);
        drop(starting.sandbox().await);
    }
}
