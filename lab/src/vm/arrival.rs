//! How a guest learns that the host has opened a port: by SIGIO. `poll` cannot wait for it (it answers at once with a hang-up), and looking
//! again and again took a translated guest nearly half a processor.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// The signal, blocked in every thread and waited for in one.
pub struct Signals(SigSet);

impl Signals {
    /// Blocks it in this thread and in those that it will start.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn block() -> io::Result<Self> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGIO);
        set.thread_block()?;
        Ok(Self(set))
    }

    /// Waits for the next one.
    pub fn wait(&self) {
        // Nothing else is in the set; an interruption is as good as a signal.
        let _ = self.0.wait();
    }
}

/// Has the kernel signal this process when the host opens or closes the port, or sends something.
///
/// # Errors
/// What the kernel says.
#[allow(unsafe_code)]
pub fn ask_for_signals(port: &File) -> io::Result<()> {
    let descriptor = port.as_raw_fd();
    // SAFETY: plain calls with numbers, on a descriptor that is open for as long as `port` is borrowed.
    let result = unsafe {
        match libc::fcntl(descriptor, libc::F_SETOWN, libc::getpid()) {
            0 => libc::fcntl(descriptor, libc::F_SETFL, libc::O_RDWR | libc::O_ASYNC),
            failed => failed,
        }
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A count of signals that threads can wait on. Cheap to clone, one content.
#[derive(Clone, Default)]
pub struct Arrivals(Arc<(Mutex<u64>, Condvar)>);

impl Arrivals {
    /// So many signals have come.
    pub fn count(&self) -> u64 {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    pub fn announce(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.1.notify_all();
    }

    /// Returns once there were more than `seen`, or after `limit`.
    pub fn wait_beyond(&self, seen: u64, limit: Duration) {
        let count = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.0.1.wait_timeout_while(count, limit, |count| *count == seen));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_signal_between_the_look_and_the_waiting_is_not_missed() {
        let arrivals = Arrivals::default();
        let seen = arrivals.count();
        arrivals.clone().announce();
        let begun = Instant::now();
        arrivals.wait_beyond(seen, Duration::from_secs(30));
        assert!(begun.elapsed() < Duration::from_secs(10));
        arrivals.wait_beyond(arrivals.count(), Duration::from_millis(1));
    }
}
