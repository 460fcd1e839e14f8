//! What the kernel tells of a process.

use std::fs;

use anyhow::{Context, Result};

/// A field of `/proc/<pid>/status`, by its name without the colon.
#[must_use]
pub fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// A memory field of a process, such as `VmRSS`, in MiB.
///
/// # Errors
/// If the process is gone, or has no such field.
pub fn memory_mib(pid: u32, field: &str) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| path.clone())?;
    let kib = status_field(&status, field).and_then(|value| value.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.with_context(|| format!("no {field} in {path}"))? / 1024.0)
}
