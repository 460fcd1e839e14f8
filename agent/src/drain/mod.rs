//! The drain: Services let go of a pod before it gets its signal.
//!
//! The API's slices say that a pod is terminating a moment after the pod's own node knows, and other nodes hear of that another moment later; a
//! program that ends at SIGTERM at once would refuse whoever is sent to it meanwhile. So the worker asks the node's dataplane to treat the pod as
//! terminating at once, waits until that is programmed and the slices say the same, gives other nodes a little longer, and only then runs hooks and
//! signals. What is waited for is decided by [`decide`] alone, which is pure; [`plane`] asks, [`start`] keeps the start on disk. The wait is bounded
//! by [`decide::LIMIT`] and by half of the grace, of which it is a part, whatever the dataplane does. Upstream has no counterpart: there people write
//! `sleep 10` into a preStop hook.

pub mod decide;
pub mod plane;
pub mod start;

use std::path::PathBuf;
use std::time::Duration;

pub use decide::{Outcome, Seen, Situation, Verdict};

/// When pods are drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Where our dataplane runs on the node.
    #[default]
    Auto,
    /// Everywhere: without our dataplane, pods that a Service selects wait for a fixed time.
    Always,
    /// Never.
    Never,
}

/// The node's settings of it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// When.
    pub mode: Mode,
    /// The dataplane's socket.
    pub socket: PathBuf,
    /// What other nodes get after the slices agree.
    pub allowance: Duration,
    /// The wait where nobody can be asked.
    pub fixed_wait: Duration,
}
