//! CronJobs: a job at each of the times that a schedule names.
//!
//! [`schedule`] reads cron's notation and knows the next time, [`plan`] decides what to start, stop and forget; both pure.
//! [`shell`] reads caches and acts.
//!
//! Invariants: a job's name is made from its scheduled time, so a time never gets two jobs, whatever is lost in between; of
//! several missed times only the last is made up for.
//!
//! Upstream counterpart: `pkg/controller/cronjob`, and `robfig/cron` for the notation.

pub mod plan;
pub mod schedule;
pub mod shell;
