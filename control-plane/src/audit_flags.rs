//! Flags of the audit log.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use keelson_control_plane::audit::Audit;
use keelson_control_plane::audit::policy::Policy;
use keelson_control_plane::audit::sink::{Sink, Target};

/// As upstream's flags of these names.
#[derive(Args)]
pub struct Flags {
    /// File that gets a line of JSON for each request that the audit policy names, or `-` for the standard output.
    #[arg(long)]
    audit_log_path: Option<PathBuf>,
    /// File with the audit policy (audit.k8s.io/v1 Policy).
    #[arg(long)]
    audit_policy_file: Option<PathBuf>,
    /// The audit log is turned over at this size in MiB; 0: never.
    #[arg(long, default_value_t = 100)]
    audit_log_maxsize: u64,
    /// Old audit logs that are kept; 0: all.
    #[arg(long, default_value_t = 0)]
    audit_log_maxbackup: usize,
    /// Days after which old audit logs are removed; 0: never.
    #[arg(long, default_value_t = 0)]
    audit_log_maxage: u64,
}

impl Flags {
    /// Opens the log, if one is wanted.
    pub fn open(&self) -> anyhow::Result<Option<Arc<Audit>>> {
        let (path, policy) = match (&self.audit_log_path, &self.audit_policy_file) {
            (Some(path), Some(policy)) => (path.clone(), policy),
            (None, None) => return Ok(None),
            (Some(_), None) => {
                bail!("--audit-log-path needs --audit-policy-file: without a policy nothing is recorded")
            }
            (None, Some(_)) => bail!("--audit-policy-file needs --audit-log-path: there is nowhere to record to"),
        };
        let policy = Policy::read(policy)?;
        let target = Target {
            path,
            max_size: self.audit_log_maxsize,
            max_backups: self.audit_log_maxbackup,
            max_age: self.audit_log_maxage,
        };
        let what = format!("cannot open the audit log {}", target.path.display());
        Ok(Some(Arc::new(Audit::new(policy, Sink::open(target).context(what)?))))
    }
}
