//! Where events go: a file, one JSON object a line, turned over when it is large. Upstream counterpart: `--audit-log-path` and its
//! `--audit-log-max…`, in its mode `blocking`: a request goes on when its line is in the file, or is lost.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::{mpsc, oneshot};

/// Lines that wait for the disk.
const QUEUE: usize = 1000;
/// A request waits so long for a disk that hangs; then it goes on, and its line follows when it can.
const PATIENCE: Duration = Duration::from_secs(10);

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

    /// Writes a line: it is in the file afterwards, unless it is counted as lost or the disk hangs.
    pub async fn write(&self, text: String) {
        let (written, done) = oneshot::channel();
        let handed_over = async {
            // The thread ends with the last sender only.
            if self.lines.send(Line { text, written: Some(written) }).await.is_ok() {
                let _ = done.await;
            }
        };
        if tokio::time::timeout(PATIENCE, handed_over).await.is_err() {
            tracing::error!("the audit log takes longer than {} s for a line", PATIENCE.as_secs());
        }
    }

    /// Waits until what was handed over before is written.
    pub async fn flush(&self) {
        self.write(String::new()).await;
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
    File(Appended),
}

struct Appended {
    target: Target,
    file: File,
    size: u64,
    /// The last write broke off: what it left is no line.
    torn: bool,
}

fn append(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

impl Output {
    fn open(target: Target) -> io::Result<Self> {
        if target.path == Path::new("-") {
            return Ok(Self::Standard);
        }
        let (file, size) = append(&target.path)?;
        Ok(Self::File(Appended { target, file, size, torn: false }))
    }

    /// Writes lines. Those that cannot be written are counted and told, and not tried again: a request waits for each.
    fn write_all(&mut self, lines: &[Line], lost: &Counter) {
        let mut rest: Vec<&str> = lines.iter().map(|line| line.text.as_str()).filter(|text| !text.is_empty()).collect();
        while !rest.is_empty() {
            let result = match self {
                Self::Standard => {
                    let text: String = rest.drain(..).flat_map(|line| [line, "\n"]).collect();
                    let mut out = io::stdout().lock();
                    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| (error, 1))
                }
                Self::File(file) => file.write_some(&mut rest),
            };
            if let Err((error, lines)) = result {
                lost.inc_by(lines);
                tracing::error!(%error, lines, "audit events may be lost: the audit log cannot be written");
            }
        }
    }
}

impl Appended {
    /// Writes as many lines as go into the file before it is to be turned over, and takes them from `rest`. Tells how many failed.
    fn write_some(&mut self, rest: &mut Vec<&str>) -> Result<(), (io::Error, u64)> {
        let limit = self.target.max_size << 20;
        let fits = |size: u64, line: &str| limit == 0 || size == 0 || size + line.len() as u64 <= limit;
        let mut turned = Ok(());
        if !fits(self.size, rest[0]) {
            // Where that fails, the old file goes on.
            turned = self.turn_over().map_err(|error| (error, 0));
        }
        let mut text = if self.torn { "\n".to_owned() } else { String::new() };
        let mut count = 0;
        for line in rest.iter() {
            if count > 0 && !fits(self.size + text.len() as u64, line) {
                break;
            }
            text.push_str(line);
            text.push('\n');
            count += 1;
        }
        rest.drain(..count);
        self.file.write_all(text.as_bytes()).map_err(|error| {
            self.torn = true;
            (error, count as u64)
        })?;
        self.torn = false;
        self.size += text.len() as u64;
        turned
    }

    /// `audit.log` becomes `audit-2026-12-01T03-04-05.678.log`, upstream's form; the oldest ones go.
    fn turn_over(&mut self) -> io::Result<()> {
        let path = &self.target.path;
        let stamp = jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%S%.3f").to_string();
        match std::fs::rename(path, old_name(path, &stamp)) {
            // Somebody else has moved it away.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
        (self.file, self.size) = append(path)?;
        self.torn = false;
        if let Err(error) = clean_up(&self.target) {
            tracing::warn!(%error, "old audit logs stay");
        }
        Ok(())
    }
}

fn clean_up(target: &Target) -> io::Result<()> {
    let mut old = old_files(&target.path)?;
    old.sort();
    let excess = if target.max_backups > 0 { old.len().saturating_sub(target.max_backups) } else { 0 };
    let age = Duration::from_secs(target.max_age.saturating_mul(24 * 3600));
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
        // Somebody else's rotation is lived through.
        std::fs::rename(&target.path, folder.path().join("moved")).unwrap();
        let write = |output: &mut Output, text: String| output.write_all(&[Line { text, written: None }], &lost);
        write(&mut output, "f".repeat(700 << 10));
        write(&mut output, "g".repeat(700 << 10));
        assert_eq!((first(&target.path), lost.get()), (Some('g'), 0));
        let mode = std::os::unix::fs::PermissionsExt::mode(&target.path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_line_that_breaks_off_spoils_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let target = target(folder.path(), 0);
        let lost = Counter::default();
        let mut output = Output::open(target.clone()).unwrap();
        let write = |output: &mut Output, text: &str| {
            output.write_all(&[Line { text: text.to_owned(), written: None }], &lost);
        };
        write(&mut output, "one");
        // A file that cannot be written, as a full disk's.
        let Output::File(appended) = &mut output else { panic!() };
        let whole = std::mem::replace(&mut appended.file, File::open(&target.path).unwrap());
        write(&mut output, "two");
        assert_eq!(lost.get(), 1);
        let Output::File(appended) = &mut output else { panic!() };
        appended.file = whole;
        write(&mut output, "three");
        assert_eq!(std::fs::read_to_string(&target.path).unwrap(), "one\n\nthree\n");
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
