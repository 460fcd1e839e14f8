//! The flight recorder's files: JSON lines in numbered segments, the oldest removed first.
//!
//! Written by one task from a bounded queue; nobody waits for the disk. Nothing is synced: after a power cut the last seconds may
//! be missing, and a torn line is skipped.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::line::Line;

/// Bytes of a segment.
const SEGMENT: u64 = 4 << 20;
/// Segments kept: with a pod start of about 4 KiB these hold 4,000 starts.
const SEGMENTS: usize = 4;
/// Lines written before others get their turn.
const BATCH: usize = 256;

/// What the writer is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Write this.
    Line(Box<Line>),
    /// Say when everything before is in the files.
    Flush(oneshot::Sender<()>),
}

/// The segments of a folder, oldest first.
fn segments(folder: &Path) -> Vec<(u64, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut list: Vec<(u64, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.path();
            let number = path.file_name()?.to_str()?.strip_suffix(".jsonl")?.parse().ok()?;
            Some((number, path))
        })
        .collect();
    list.sort();
    list
}

/// Every line of a folder that `keep` wants, oldest first. The filter on text comes first: it is cheap, reading JSON is not.
pub(super) fn read(folder: &Path, might: impl Fn(&str) -> bool, keep: impl Fn(&Line) -> bool) -> Vec<Line> {
    let mut lines = Vec::new();
    for (_, path) in segments(folder) {
        let Ok(file) = File::open(&path) else { continue };
        for text in BufReader::new(file).lines().map_while(Result::ok).filter(|text| might(text)) {
            lines.extend(serde_json::from_str::<Line>(&text).ok().filter(|line| keep(line)));
        }
    }
    lines
}

struct Files {
    folder: PathBuf,
    number: u64,
    file: File,
    length: u64,
}

impl Files {
    fn open(folder: &Path) -> std::io::Result<Self> {
        // What hooks and probes print may be secret.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
        let number = segments(folder).last().map_or(0, |(number, _)| *number);
        let (mut file, mut length) = append(folder, number)?;
        // A line torn by a crash must not swallow the next one.
        if length > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                length += 1;
            }
        }
        Ok(Self { folder: folder.to_owned(), number, file, length })
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if self.length > SEGMENT {
            self.number += 1;
            (self.file, self.length) = append(&self.folder, self.number)?;
            let list = segments(&self.folder);
            for (_, old) in list.iter().take(list.len().saturating_sub(SEGMENTS)) {
                std::fs::remove_file(old)?;
            }
        }
        self.length += bytes.len() as u64;
        self.file.write_all(bytes)
    }
}

fn append(folder: &Path, number: u64) -> std::io::Result<(File, u64)> {
    let path = folder.join(format!("{number}.jsonl"));
    let file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

/// Writes what comes until `stop`, then what is left.
pub(super) async fn write(folder: PathBuf, mut orders: mpsc::Receiver<Order>, stop: CancellationToken) {
    let mut files = Files::open(&folder).inspect_err(|error| trouble(&folder, error)).ok();
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            biased;
            n = orders.recv_many(&mut batch, BATCH) => if n == 0 { return },
            () = stop.cancelled() => return,
        }
        let (mut bytes, mut waiting) = (Vec::new(), Vec::new());
        for order in batch.drain(..) {
            match order {
                Order::Line(line) => {
                    if serde_json::to_writer(&mut bytes, &line).is_ok() {
                        bytes.push(b'\n');
                    }
                }
                Order::Flush(done) => waiting.push(done),
            }
        }
        let Some(mut open) = files.take() else { continue };
        let written = tokio::task::spawn_blocking(move || {
            let outcome = open.write(&bytes);
            (open, outcome)
        });
        let Ok((open, outcome)) = written.await else { return };
        match outcome {
            Ok(()) => files = Some(open),
            // Explanations are less than the node's work: it goes on without.
            Err(error) => trouble(&folder, &error),
        }
        for done in waiting {
            let _ = done.send(());
        }
    }
}

fn trouble(folder: &Path, error: &std::io::Error) {
    warn!("cannot write {}: {error}; `agent explain` will know nothing of what happens from now on", folder.display());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::line::What;

    fn line(at: i64, uid: &str) -> Line {
        Line { at, uid: uid.into(), ..Line::of_all(What::Lost(1)) }
    }

    fn all(folder: &Path) -> Vec<i64> {
        read(folder, |_| true, |_| true).iter().map(|line| line.at).collect()
    }

    #[tokio::test]
    async fn what_is_written_is_read_and_a_torn_line_costs_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..2 {
            let (tx, rx) = mpsc::channel(8);
            let writer = tokio::spawn(write(folder.path().to_owned(), rx, CancellationToken::new()));
            tx.send(Order::Line(Box::new(line(round, "a")))).await.unwrap();
            let (done, flushed) = oneshot::channel();
            tx.send(Order::Flush(done)).await.unwrap();
            flushed.await.unwrap();
            drop(tx);
            writer.await.unwrap();
            let path = folder.path().join("0.jsonl");
            OpenOptions::new().append(true).open(path).unwrap().write_all(b"{\"at\":5,\"ui").unwrap();
        }
        assert_eq!(all(folder.path()), [0, 1]);
        let wanted = read(folder.path(), |text| text.contains("\"a\""), |line| line.at == 1);
        assert_eq!(wanted.len(), 1);
    }

    #[test]
    fn old_segments_go() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::open(folder.path()).unwrap();
        let big = vec![b'x'; usize::try_from(SEGMENT).unwrap() + 1];
        for _ in 0..SEGMENTS + 3 {
            files.write(&big).unwrap();
        }
        let numbers: Vec<u64> = segments(folder.path()).into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, [3, 4, 5, 6]);
    }
}
