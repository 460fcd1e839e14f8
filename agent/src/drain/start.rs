//! The start of a pod's wait on disk: an agent that is killed in its middle is followed by one that goes on where it was.
//!
//! One small file in the pod's folder, which goes with it. It is written beside its place, synced, and renamed into it; a file that cannot be read
//! is none. A clock that was set back does not make a wait longer: a start in the future is now.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::volumes::PodDir;

/// The file in the pod's folder.
const FILE: &str = "drain.json";
/// The form of its content.
const VERSION: u32 = 1;
/// Longest content that is read.
const LIMIT: u64 = 1024;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    version: u32,
    /// Nanoseconds since the epoch.
    since_ns: i64,
}

fn path(root_dir: &Path, uid: &str) -> Option<PathBuf> {
    Some(PodDir::new(root_dir, uid)?.path().join(FILE))
}

/// When the wait of a pod began, if it had begun by `now`; both nanoseconds since the epoch.
#[must_use]
pub fn read(root_dir: &Path, uid: &str, now: i64) -> Option<i64> {
    let mut text = String::new();
    File::open(path(root_dir, uid)?).ok()?.take(LIMIT).read_to_string(&mut text).ok()?;
    let content: Content = serde_json::from_str(&text).ok()?;
    (content.version == VERSION).then(|| content.since_ns.min(now))
}

/// Writes it down. Blocks for as long as the disk does.
///
/// # Errors
/// Those of the file system: a pod without a folder has nowhere to keep it.
pub fn write(root_dir: &Path, uid: &str, since: i64) -> io::Result<()> {
    let path = path(root_dir, uid).ok_or(io::ErrorKind::InvalidInput)?;
    let new = path.with_extension("new");
    let content = serde_json::to_vec(&Content { version: VERSION, since_ns: since })?;
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&content)?;
    file.sync_all()?;
    std::fs::rename(&new, &path)?;
    // A power cut needs no more: then nothing of the pod runs, and nothing is waited for.
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_is_not_understood_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(read(root, "u1", 100), None);
        assert!(write(root, "u1", 50).is_err(), "a pod without a folder");
        assert!(!root.join("pods").exists());
        std::fs::create_dir_all(root.join("pods/u1")).unwrap();
        write(root, "u1", 50).unwrap();
        assert_eq!(read(root, "u1", 100), Some(50));
        write(root, "u1", 60).unwrap();
        assert_eq!(read(root, "u1", 100), Some(60));
        // The clock was set back.
        assert_eq!(read(root, "u1", 10), Some(10));
        assert_eq!(std::fs::read_dir(root.join("pods/u1")).unwrap().count(), 1);
        for text in ["", "{", "{\"version\":2,\"sinceNs\":1}", "{\"version\":1}", "\u{0}"] {
            std::fs::write(root.join("pods/u1/drain.json"), text).unwrap();
            assert_eq!(read(root, "u1", 100), None, "{text:?}");
        }
        // A name that leads elsewhere is nobody's.
        assert!(write(root, "../u1", 1).is_err());
        assert_eq!(read(root, "../u1", 1), None);
    }
}
