//! The program of the pause image: holds a pod's namespaces open, reaps the orphans of a shared PID namespace, and leaves at once
//! on SIGTERM or SIGINT. Upstream counterpart: `build/pause`.
//!
//! It waits for signals it has blocked instead of handling them, so it needs no handler, no allocation and no second thread.

use std::process::ExitCode;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "-v") {
        println!("pause (keelson) {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGCHLD].into_iter().collect();
    // Blocked signals reach even process 1 of a namespace, for which unhandled ones are dropped.
    if signals.thread_block().is_err() {
        return ExitCode::from(3);
    }
    loop {
        match signals.wait() {
            Ok(Signal::SIGCHLD) => reap(),
            Ok(_) => return ExitCode::SUCCESS,
            // Only EINTR is possible (a debugger attaching).
            Err(_) => {}
        }
    }
}

/// One SIGCHLD may stand for several exits.
fn reap() {
    while !matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(_)) {}
}
