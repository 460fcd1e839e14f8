//! Where events go: a file, one JSON object a line, turned over when it is large. Upstream counterpart: `--audit-log-path` and its
//! `--audit-log-max…`, in its mode `blocking`: a request goes on when its line is in the file.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::{mpsc, oneshot};

/// Lines that wait for the disk.
const QUEUE: usize = 10_000;
/// What was not written is tried again this often.
const RETRY: Duration = Duration::from_secs(1);

/// The file and its bounds; zero is none.
#[derive(Debug, Clone)]
pub struct Target {
    /// The file, or `-` for the standard output.
    pub path: PathBuf,
    /// It is turned over before it grows beyond this, in MiB.
    pub max_size: u64,
    /// Old files that are kept.
    pub max_backups: usize,
    /// Days after which old files are removed.
    pub max_age: u64,
}

#[derive(Debug)]
struct Line {
    text: String,
    /// Told when it is written, or lost.
    written: Option<oneshot::Sender<()>>,
}

/// Takes lines.
#[derive(Debug, Clone)]
pub struct Sink {
    lines: mpsc::Sender<Line>,
    /// Lines that could not be written.
    pub lost: Counter,
}

impl Sink {
    /// Opens the file, so that a wrong path is told at once, and starts the thread that writes.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(target: Target) -> io::Result<Self> {
        let mut output = Output::open(target)?;
        let lost = Counter::default();
        let counted = lost.clone();
        let (lines, mut queue) = mpsc::channel::<Line>(QUEUE);
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
            let mut batch = Vec::new();
            // What came while the last batch was written is the next.
            while queue.blocking_recv_many(&mut batch, QUEUE) > 0 {
                output.write_all(&batch, &counted);
                for line in batch.drain(..) {
                    let _ = line.written.map(|written| written.send(()));
                }
            }
        })?;
        Ok(Self { lines, lost })
    }

    /// Writes a line: it is in the file afterwards, unless it is counted as lost.
    pub async fn write(&self, text: String) {
        let (written, done) = oneshot::channel();
        // The thread ends with the last sender only.
        if self.lines.send(Line { text, written: Some(written) }).await.is_ok() {
            let _ = done.await;
        }
    }

    /// The same where nobody can wait.
    pub fn write_later(&self, text: String) {
        if let Err(mpsc::error::TrySendError::Full(line)) = self.lines.try_send(Line { text, written: None })
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let lines = self.lines.clone();
            runtime.spawn(async move {
                let _ = lines.send(line).await;
            });
        }
    }
}

enum Output {
    Standard,
    File { target: Target, file: BufWriter<File>, size: u64 },
}

fn append(path: &Path) -> io::Result<(BufWriter<File>, u64)> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let size = file.metadata()?.len();
    Ok((BufWriter::new(file), size))
}

impl Output {
    fn open(target: Target) -> io::Result<Self> {
        if target.path == Path::new("-") {
            return Ok(Self::Standard);
        }
        let (file, size) = append(&target.path)?;
        Ok(Self::File { target, file, size })
    }

    /// Writes lines, and once more those that failed; what fails twice is counted and told.
    fn write_all(&mut self, lines: &[Line], lost: &Counter) {
        if self.write(lines).is_ok() {
            return;
        }
        std::thread::sleep(RETRY);
        if let Err(error) = self.write(lines) {
            lost.inc_by(lines.len() as u64);
            tracing::error!(%error, lines = lines.len(), "audit events were lost: the audit log cannot be written");
        }
    }

    fn write(&mut self, lines: &[Line]) -> io::Result<()> {
        match self {
            Self::Standard => {
                let mut out = io::stdout().lock();
                for line in lines {
                    writeln!(out, "{}", line.text)?;
                }
                out.flush()
            }
            Self::File { target, file, size } => {
                for line in lines {
                    let length = line.text.len() as u64 + 1;
                    if target.max_size > 0 && *size > 0 && *size + length > target.max_size << 20 {
                        file.flush()?;
                        turn_over(target)?;
                        (*file, *size) = append(&target.path)?;
                    }
                    writeln!(file, "{}", line.text)?;
                    *size += length;
                }
                file.flush()
            }
        }
    }
}

/// `audit.log` becomes `audit-2026-12-01T03-04-05.678.log`, upstream's form; the oldest ones go.
fn turn_over(target: &Target) -> io::Result<()> {
    let stamp = jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%S%.3f").to_string();
    std::fs::rename(&target.path, old_name(&target.path, &stamp))?;
    let mut old = old_files(&target.path)?;
    old.sort();
    let excess = if target.max_backups > 0 { old.len().saturating_sub(target.max_backups) } else { 0 };
    let age = Duration::from_secs(target.max_age * 24 * 3600);
    for (at, path) in old.iter().enumerate() {
        let written = path.metadata().and_then(|found| found.modified()).unwrap_or_else(|_| SystemTime::now());
        let is_old = target.max_age > 0 && written.elapsed().is_ok_and(|elapsed| elapsed > age);
        if at < excess || is_old {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let end = path.extension().map(|end| format!(".{}", end.to_string_lossy())).unwrap_or_default();
    (format!("{}-", text(path.file_stem())), end)
}

fn old_name(path: &Path, stamp: &str) -> PathBuf {
    let (start, end) = parts(path);
    path.with_file_name(format!("{start}{stamp}{end}"))
}

fn old_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (start, end) = parts(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stamp = name.strip_prefix(&start).and_then(|rest| rest.strip_suffix(&end));
        // Only what has a stamp is ours.
        if stamp.is_some_and(|stamp| {
            stamp.len() == "2026-12-01T03-04-05.678".len() && stamp.starts_with(|c: char| c.is_ascii_digit())
        }) {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(folder: &Path, max_backups: usize) -> Target {
        Target { path: folder.join("audit.log"), max_size: 1, max_backups, max_age: 0 }
    }

    #[test]
    fn a_large_file_is_turned_over_and_the_oldest_go() {
        let folder = tempfile::tempdir().unwrap();
        let target = target(folder.path(), 2);
        std::fs::write(folder.path().join("audit-of-another.log"), "").unwrap();
        let mut output = Output::open(target.clone()).unwrap();
        let lost = Counter::default();
        for letter in ["a", "b", "c", "d", "e"] {
            output.write_all(&[Line { text: letter.repeat(700 << 10), written: None }], &lost);
            // Names have milliseconds.
            std::thread::sleep(Duration::from_millis(3));
        }
        let first = |path: &Path| std::fs::read_to_string(path).unwrap().chars().next();
        assert_eq!(first(&target.path), Some('e'));
        let mut old = old_files(&target.path).unwrap();
        old.sort();
        assert_eq!(old.iter().map(|path| first(path)).collect::<Vec<_>>(), [Some('c'), Some('d')]);
        assert!(folder.path().join("audit-of-another.log").exists());
        assert_eq!(lost.get(), 0);
        let mode = std::os::unix::fs::PermissionsExt::mode(&target.path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[tokio::test]
    async fn lines_arrive_in_order_and_after_a_restart_behind_the_old_ones() {
        let folder = tempfile::tempdir().unwrap();
        let target = target(folder.path(), 0);
        for round in 0..2 {
            let sink = Sink::open(target.clone()).unwrap();
            for line in 0..100 {
                sink.write(format!("{round} {line}")).await;
            }
            assert_eq!(std::fs::read_to_string(&target.path).unwrap().lines().count(), 100 + 101 * round);
            sink.write_later(format!("{round} last"));
            drop(sink);
            for _ in 0..500 {
                if std::fs::read_to_string(&target.path).unwrap().ends_with(&format!("{round} last\n")) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        let text = std::fs::read_to_string(&target.path).unwrap();
        assert_eq!(text.lines().count(), 202);
        assert_eq!((text.lines().next(), text.lines().nth(101)), (Some("0 0"), Some("1 0")));
        let nowhere = Target { path: folder.path().join("no/such/folder/audit.log"), ..target };
        assert!(Sink::open(nowhere).is_err());
    }
}
