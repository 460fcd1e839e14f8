//! What is remembered of a lab on disk: `lab.json` in its folder, and the lock that keeps two commands apart.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::LabError;
use crate::fsx;

/// How far a lab has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// `up` has begun and not ended (or was killed).
    Starting,
    /// `up` has ended well.
    Ready,
    /// `down` has begun and not ended.
    Stopping,
}

/// `lab.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The lab's number on this host: its network and the host's link.
    pub number: u8,
    /// How many nodes it has or shall have.
    pub nodes: u8,
    /// How far it is.
    pub phase: Phase,
    /// What `up` was doing last, for the message after it was killed.
    pub step: String,
    /// Flags of the control plane beside those that every lab has.
    #[serde(default)]
    pub control_plane_args: Vec<String>,
}

/// Where the labs are and what they are made from.
#[derive(Clone, Debug)]
pub struct Places {
    /// Folder with one folder for each lab.
    pub labs: PathBuf,
    /// Folder of the images, shared by all labs.
    pub images: PathBuf,
    /// Where programs are looked for, in order.
    pub programs: Vec<PathBuf>,
}

impl Places {
    /// The folder of a lab.
    pub fn lab(&self, name: &str) -> PathBuf {
        self.labs.join(name)
    }

    /// The first program of this name.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        self.programs.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
    }
}

fn file(folder: &Path) -> PathBuf {
    folder.join("lab.json")
}

/// What is known of the lab in this folder; `None` when there is none.
pub fn load(folder: &Path) -> Result<Option<Record>, LabError> {
    let path = file(folder);
    if !path.exists() {
        return Ok(None);
    }
    let text = fsx::read(&path)?;
    serde_json::from_str(&text).map(Some).map_err(|source| LabError::Record { path, source })
}

/// Writes it down.
pub fn save(folder: &Path, record: &Record) -> Result<(), LabError> {
    let text = serde_json::to_string_pretty(record).unwrap_or_default();
    Ok(fsx::write_atomic(&file(folder), &text)?)
}

/// Keeps other commands that change the lab away until it is dropped. The kernel drops it with the process.
#[derive(Debug)]
pub struct Lock {
    _held: Flock<File>,
}

/// Takes the lock of a lab, or says who has it.
pub fn lock(places: &Places, name: &str) -> Result<Lock, LabError> {
    fsx::create_dir(&places.labs)?;
    let path = places.labs.join(format!(".{name}.lock"));
    let open = OpenOptions::new().create(true).truncate(false).write(true).read(true).open(&path);
    let file = open.map_err(fsx::fail("open", &path))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(held) => Ok(Lock { _held: held }),
        Err(_) => Err(LabError::Busy(name.to_owned())),
    }
}
