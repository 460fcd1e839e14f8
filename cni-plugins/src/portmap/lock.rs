//! One lock for each network namespace: the namespace's own file. What is locked is exactly what the lock protects, there is
//! no path to agree on, and the kernel gives it back when a holder is killed.

use std::fs::File;
use std::io;

use nix::fcntl::{Flock, FlockArg};

/// Waits for the lock of the network namespace that this thread is in; held until dropped.
pub fn take() -> io::Result<Flock<File>> {
    let file = File::open("/proc/thread-self/ns/net")?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno.into())
}
