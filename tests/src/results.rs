//! What became of the tests, kept beside the labs: `target/lab/.results/SUITE.json`, a test's name and its verdict.
//!
//! A run of a whole suite replaces its file, a run of some tests changes only theirs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::lab::programs;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should.
    Passed,
    /// With an error, or not at all.
    Failed,
    /// It could not run here.
    Skipped,
}

/// A suite's file.
fn path(suite: &str) -> Result<PathBuf> {
    let programs = programs()?;
    let target = programs.parent().context("the programs lie in no target folder")?;
    Ok(target.join("lab/.results").join(format!("{suite}.json")))
}

/// What is known of a suite's tests; nothing before its first run.
///
/// # Errors
/// A file that cannot be read.
pub fn of(suite: &str) -> Result<BTreeMap<String, Verdict>> {
    let path = path(suite)?;
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .with_context(|| format!("{} holds no results: remove it and run the suite again", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// Keeps the verdicts of a run; `whole` forgets the tests that are not in it.
///
/// # Errors
/// A file that cannot be written.
pub fn keep<'a>(suite: &str, whole: bool, verdicts: impl Iterator<Item = (&'a str, Verdict)>) -> Result<()> {
    let mut all = if whole { BTreeMap::new() } else { of(suite)? };
    all.extend(verdicts.map(|(name, verdict)| (name.to_owned(), verdict)));
    let path = path(suite)?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    std::fs::write(&path, serde_json::to_vec_pretty(&all)?).with_context(|| format!("writing {}", path.display()))
}
