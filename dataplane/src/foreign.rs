//! Follows changes of our table by others, for as long as the program runs.
//!
//! Invariant: a change that was not announced is found all the same. When the announcements break
//! off (the socket fails, or goes silent while the kernel's generation moves on) they are
//! subscribed to anew, with growing pauses, and [`Change::Lost`] makes the reader compare once. As
//! long as there is no subscription, every attempt sends one: the reader then compares as often as
//! that, if anybody committed anything.

use std::future::Future;
use std::time::Duration;

use keelson_netfilter::nft::{Change, KernelNft, Monitor, Nft, NftError};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::nftables::layout::TABLE;

/// Pause before the first new subscription; it doubles with each failure…
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// …up to this.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The kernel's generation is compared with the announced one so often. An announcement that is
/// still missing after a whole period is lost.
const CHECK_PERIOD: Duration = Duration::from_secs(60);

/// Where changes are announced.
pub trait Source: Send {
    /// Waits for the next change by others. May be dropped while it waits.
    ///
    /// # Errors
    /// When no more can come.
    fn next(&mut self) -> impl Future<Output = Result<Change, NftError>> + Send;

    /// The generation announced last.
    fn announced(&self) -> u32;

    /// The generation the kernel is at.
    ///
    /// # Errors
    /// See [`NftError`].
    fn current(&mut self) -> Result<u32, NftError>;
}

/// The kernel's announcements.
pub struct KernelSource {
    monitor: Monitor,
    nft: KernelNft,
    /// Changes up to this one are not waited for: the generation at the start, or when some got lost.
    base: u32,
}

impl KernelSource {
    /// Subscribes; changes sent by `own_ports` do not count.
    ///
    /// # Errors
    /// See [`NftError`].
    pub fn open(own_ports: &[u32]) -> Result<Self, NftError> {
        let monitor = Monitor::open(TABLE, own_ports.to_vec())?;
        let mut nft = KernelNft::open()?;
        let base = nft.generation()?;
        Ok(Self { monitor, nft, base })
    }
}

impl Source for KernelSource {
    async fn next(&mut self) -> Result<Change, NftError> {
        let change = self.monitor.next().await?;
        if change == Change::Lost {
            self.base = self.nft.generation()?;
        }
        Ok(change)
    }

    fn announced(&self) -> u32 {
        self.monitor.generation().filter(|seen| is_before(self.base, *seen)).unwrap_or(self.base)
    }

    fn current(&mut self) -> Result<u32, NftError> {
        self.nft.generation()
    }
}

/// Why a subscription ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Failed(#[from] NftError),
    #[error("the kernel is at generation {current}, announcements stop at {announced}")]
    Silent { current: u32, announced: u32 },
}

/// Sends changes until the receiver is gone; several that wait count as one.
pub async fn follow<S: Source>(mut open: impl FnMut() -> Result<S, NftError>, sender: mpsc::Sender<Change>) {
    let mut pause = PAUSE_MIN;
    while !sender.is_closed() {
        let broken = match open() {
            Ok(mut source) => {
                // Nobody watched until now.
                let _ = sender.try_send(Change::Lost);
                let since = Instant::now();
                let broken = read(&mut source, &sender).await;
                if since.elapsed() >= PAUSE_MAX {
                    pause = PAUSE_MIN;
                }
                broken
            }
            Err(error) => error.into(),
        };
        tracing::warn!(error = %broken, ?pause, "changes of the table by others are not announced; trying again");
        let _ = sender.try_send(Change::Lost);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn read<S: Source>(source: &mut S, sender: &mpsc::Sender<Change>) -> Broken {
    let mut check = tokio::time::interval_at(Instant::now() + CHECK_PERIOD, CHECK_PERIOD);
    // A generation whose announcement was still missing at the last check.
    let mut missing: Option<u32> = None;
    loop {
        tokio::select! {
            change = source.next() => match change {
                Ok(change) => {
                    let _ = sender.try_send(change);
                }
                Err(error) => return error.into(),
            },
            _ = check.tick() => {
                let announced = source.announced();
                if let Some(current) = missing.take().filter(|wanted| is_before(announced, *wanted)) {
                    return Broken::Silent { current, announced };
                }
                match source.current() {
                    Ok(current) => missing = (current != announced).then_some(current),
                    Err(error) => return error.into(),
                }
            }
        }
    }
}

/// Generations count up and wrap around.
fn is_before(generation: u32, other: u32) -> bool {
    other.wrapping_sub(generation).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Gives its changes, then waits for ever or fails.
    struct FakeSource {
        changes: VecDeque<Change>,
        fails: bool,
        announced: u32,
        current: Arc<Mutex<u32>>,
    }

    impl Source for FakeSource {
        async fn next(&mut self) -> Result<Change, NftError> {
            match self.changes.pop_front() {
                Some(change) => Ok(change),
                None if self.fails => Err(failure()),
                None => std::future::pending().await,
            }
        }

        fn announced(&self) -> u32 {
            self.announced
        }

        fn current(&mut self) -> Result<u32, NftError> {
            Ok(*self.current.lock().unwrap())
        }
    }

    fn failure() -> NftError {
        NftError::Open { source: std::io::ErrorKind::PermissionDenied.into() }
    }

    fn source(changes: &[Change], fails: bool) -> FakeSource {
        FakeSource { changes: changes.iter().copied().collect(), fails, announced: 7, current: Arc::new(Mutex::new(7)) }
    }

    const FOREIGN: Change = Change::Foreign { pid: 1 };

    #[tokio::test(start_paused = true)]
    async fn a_broken_subscription_is_made_anew_and_compared_once() {
        let (sender, mut changes) = mpsc::channel(8);
        let mut sources = VecDeque::from([
            Ok(source(&[FOREIGN], true)),
            Err(failure()),
            Err(failure()),
            Ok(source(&[FOREIGN, FOREIGN], false)),
        ]);
        let start = Instant::now();
        let open = move || sources.pop_front().unwrap_or_else(|| Err(failure()));
        let task = tokio::spawn(follow(open, sender));
        let mut seen = Vec::new();
        while seen.len() < 8 {
            seen.push(changes.recv().await.unwrap());
        }
        let lost = Change::Lost;
        assert_eq!(seen, [lost, FOREIGN, lost, lost, lost, lost, FOREIGN, FOREIGN]);
        // 1 s, 2 s and 4 s.
        assert_eq!(start.elapsed().as_secs(), 7);
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_subscription_is_found_by_the_generation() {
        let (sender, mut changes) = mpsc::channel(8);
        let quiet = source(&[], false);
        let current = quiet.current.clone();
        let opened = Arc::new(Mutex::new(0));
        let count = opened.clone();
        let mut first = Some(quiet);
        let open = move || {
            *count.lock().unwrap() += 1;
            Ok(first.take().unwrap_or_else(|| source(&[], false)))
        };
        let task = tokio::spawn(follow(open, sender));
        assert_eq!(changes.recv().await, Some(Change::Lost));
        tokio::time::sleep(CHECK_PERIOD * 20).await;
        assert_eq!((*opened.lock().unwrap(), changes.len()), (1, 0), "quiet is not silent");
        *current.lock().unwrap() = 8;
        tokio::time::sleep(CHECK_PERIOD * 3).await;
        assert_eq!((*opened.lock().unwrap(), changes.len()), (2, 2));
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_limit_and_the_task_ends_with_its_reader() {
        let (sender, mut changes) = mpsc::channel(1);
        let task = tokio::spawn(follow(|| Err::<FakeSource, _>(failure()), sender));
        let start = Instant::now();
        for _ in 0..20 {
            assert_eq!(changes.recv().await, Some(Change::Lost));
        }
        let elapsed = start.elapsed();
        assert!(elapsed > PAUSE_MAX * 12 && elapsed < PAUSE_MAX * 20, "{elapsed:?}");
        drop(changes);
        task.await.unwrap();
    }

    #[test]
    fn generations_wrap() {
        assert!(is_before(u32::MAX, 1));
        assert!(!is_before(1, u32::MAX));
        assert!(!is_before(5, 5));
    }
}
