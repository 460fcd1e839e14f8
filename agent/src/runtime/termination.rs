//! A container's last words: the termination message file, or the end of its log.
//!
//! Upstream counterpart: `getTerminationMessage` in `kuberuntime_container.go`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Most bytes read from the message file.
const MAX_MESSAGE: u64 = 4096;
/// Most bytes taken from the log.
const MAX_LOG_BYTES: usize = 2048;
/// Most lines taken from the log.
const MAX_LOG_LINES: usize = 80;
/// How much of the log's end is looked at; CRI adds a prefix to each line.
const LOG_WINDOW: u64 = 16 << 10;

/// Reads the message; empty when there is none.
#[must_use]
pub fn message(file: Option<&Path>, fall_back_to_log: bool, log: &Path, failed: bool) -> String {
    let text = file.and_then(|path| read_head(path).ok()).unwrap_or_default();
    if text.is_empty() && fall_back_to_log && failed {
        return log_tail(log).unwrap_or_default();
    }
    text
}

fn read_head(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_MESSAGE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn log_tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_WINDOW)))?;
    let mut bytes = Vec::new();
    file.take(LOG_WINDOW).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let start = lines.len().saturating_sub(MAX_LOG_LINES).max(usize::from(length > LOG_WINDOW));
    let mut out = String::new();
    for line in lines.iter().skip(start) {
        // "<time> <stream> <F|P> <text>"
        let mut parts = line.splitn(4, ' ');
        let (full, content) = (parts.nth(2) != Some("P"), parts.next().unwrap_or_default());
        out.push_str(content);
        if full {
            out.push('\n');
        }
    }
    let cut = out.len().saturating_sub(MAX_LOG_BYTES);
    let cut = (cut..=out.len()).find(|i| out.is_char_boundary(*i)).unwrap_or(0);
    Ok(out.split_off(cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_first_then_log() {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("m"), dir.path().join("0.log"));
        std::fs::write(&log, "2026-01-01T00:00:00Z stderr P no \n2026-01-01T00:00:00Z stderr F good\n").unwrap();
        std::fs::write(&file, "").unwrap();
        assert_eq!(message(Some(&file), true, &log, true), "no good\n");
        assert_eq!(message(Some(&file), true, &log, false), "");
        std::fs::write(&file, "x".repeat(5000)).unwrap();
        assert_eq!(message(Some(&file), true, &log, true).len(), 4096);
        assert_eq!(message(None, false, &log, true), "");
    }
}
