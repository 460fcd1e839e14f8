//! systemd's notification protocol: ready, signs of life for its watchdog, stopping.
//!
//! Invariant: without a service manager (`NOTIFY_SOCKET` unset) everything here does nothing. A sign of life is only sent while
//! the program's own loop turns: a process that is merely scheduled, with its loop stuck, is one that the watchdog shall kill.
//!
//! Upstream counterpart: `k8s.io/kubernetes/pkg/util/watchdog` (kubelet's `SdNotify` and health checkers), sd_notify(3).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The service has started and does its work.
pub const READY: &str = "READY=1";
/// It has begun to stop.
pub const STOPPING: &str = "STOPPING=1";
/// A sign of life.
const ALIVE: &str = "WATCHDOG=1";

/// Sends one message to the service manager; nothing where there is none.
pub fn send(message: &str) {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else { return };
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    if let (Ok(socket), Ok(address)) = (UnixDatagram::unbound(), address) {
        let _ = socket.send_to_addr(message.as_bytes(), &address);
    }
}

/// How often a sign of life is due: half of the manager's limit. `None` when no watchdog is set, or when it is set for another
/// process (the variables are inherited by children).
fn period(micros: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let micros = micros?.parse::<u64>().ok()?;
    (micros > 0).then(|| Duration::from_micros(micros / 2))
}

/// Pings the watchdog while `healthy` says so.
pub async fn watchdog(healthy: impl Fn() -> bool, stop: CancellationToken) {
    let variable = |name| std::env::var(name).ok();
    let (micros, pid) = (variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
    let Some(period) = period(micros.as_deref(), pid.as_deref(), std::process::id()) else { return };
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(period) => {}
        }
        if healthy() {
            send(ALIVE);
        }
    }
}

/// How far a program's main loop is: written by the loop, read by [`report`]. Cheap to clone, one content.
#[derive(Clone, Debug)]
pub struct Progress {
    turned: watch::Sender<Instant>,
    ready: watch::Sender<bool>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { turned: watch::Sender::new(Instant::now()), ready: watch::Sender::new(false) }
    }
}

impl Progress {
    /// The loop has turned once more. To be called at least a few times within the limit given to [`report`], also when idle.
    pub fn turn(&self) {
        self.turned.send_replace(Instant::now());
    }

    /// The program does its work. The first call counts.
    pub fn set_ready(&self) {
        self.ready.send_if_modified(|ready| !std::mem::replace(ready, true));
    }

    /// Since when the loop has not turned.
    #[must_use]
    pub fn idle(&self) -> Duration {
        self.turned.borrow().elapsed()
    }

    /// Returns once [`set_ready`](Self::set_ready) was called.
    pub async fn ready(&self) {
        let mut ready = self.ready.subscribe();
        // The sender lives in `self`: waiting cannot fail.
        let _ = ready.wait_for(|ready| *ready).await;
    }
}

/// Tells the service manager about a program until it stops: `waiting` (what `systemctl status` shows before it is ready), READY,
/// signs of life while the loop has turned within `stuck_after`, STOPPING.
pub async fn report(progress: Progress, waiting: &str, stuck_after: Duration, stop: CancellationToken) {
    send(&format!("STATUS={waiting}"));
    let healthy = || progress.idle() < stuck_after;
    let ready = async {
        progress.ready().await;
        send(&format!("{READY}\nSTATUS=running"));
    };
    tokio::join!(ready_or_stopped(ready, &stop), watchdog(healthy, stop.clone()), async {
        stop.cancelled().await;
        send(&format!("{STOPPING}\nSTATUS=stopping"));
    });
}

async fn ready_or_stopped(ready: impl Future<Output = ()>, stop: &CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = ready => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_of_life_is_due_at_half_the_limit_and_only_for_this_process() {
        assert_eq!(period(Some("30000000"), Some("7"), 7), Some(Duration::from_secs(15)));
        assert_eq!(period(Some("30000000"), None, 7), Some(Duration::from_secs(15)));
        assert_eq!(period(Some("30000000"), Some("8"), 7), None);
        assert_eq!(period(Some("0"), Some("7"), 7), None);
        assert_eq!(period(Some("soon"), None, 7), None);
        assert_eq!(period(None, None, 7), None);
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_is_told_to_who_waits_and_to_who_comes_later() {
        let progress = Progress::default();
        let waiter = tokio::spawn({
            let progress = progress.clone();
            async move { progress.ready().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        progress.set_ready();
        progress.set_ready();
        waiter.await.unwrap();
        progress.ready().await;
    }

    #[tokio::test]
    async fn a_report_ends_with_the_program_ready_or_not() {
        let stop = CancellationToken::new();
        stop.cancel();
        report(Progress::default(), "waiting", Duration::from_secs(1), stop).await;
    }

    #[test]
    fn a_turn_ends_idleness() {
        let progress = Progress::default();
        std::thread::sleep(Duration::from_millis(5));
        let before = progress.idle();
        progress.clone().turn();
        assert!(before >= Duration::from_millis(5) && progress.idle() < before);
    }
}
