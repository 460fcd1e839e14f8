//! Reads a container's log file, and follows it.
//!
//! Rotation, as the agent does it, is a rename of the file and a new file of the old name. Between
//! the two, and until the runtime has switched, lines still go to the old file: a follower changes
//! to the new file only once that has content (or the container has ended), and drains the old one
//! before. If more than one rotation was missed, the files in between are read too, as long as they
//! are not compressed.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use inotify::{EventStream, Inotify, WatchMask};
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::line::{self, Stream, StreamFilter};
use super::start;

/// A longer line is skipped: runtimes cut at 16 KiB.
pub const MAX_LINE: usize = 4 << 20;
/// Read from the file at once.
const CHUNK: usize = 64 << 10;
/// Handed to the sink at once, about.
const BATCH: usize = 32 << 10;
/// A follower looks even when nothing was told, in case it was not told (inotify queue overflow,
/// no inotify at all).
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The same when no inotify watch could be had.
const LOOK_WITHOUT_INOTIFY: Duration = Duration::from_millis(500);

/// What of a log is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogOptions {
    /// Only so many lines from the end.
    pub tail: Option<u64>,
    /// At most so many bytes of output.
    pub limit_bytes: Option<u64>,
    /// Nothing older.
    pub since: Option<Timestamp>,
    /// Go on until the container has ended.
    pub follow: bool,
    /// Put the time before each line.
    pub timestamps: bool,
    /// Only one of the streams.
    pub stream: StreamFilter,
}

/// A log that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file cannot be opened.
    #[error("failed to open log file {:?}: {source}", path.display().to_string())]
    Open {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("failed to read log file {:?}: {source}", path.display().to_string())]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}

enum Flow {
    More,
    /// The reader wants no more: limit reached or gone.
    Stop,
}

/// Turns lines into output.
struct Writer {
    options: LogOptions,
    remaining: u64,
    /// Whether the stream is in the middle of a line: `[stdout, stderr]`.
    open: [bool; 2],
    out: Vec<u8>,
    sink: mpsc::Sender<Bytes>,
}

impl Writer {
    fn new(options: LogOptions, sink: mpsc::Sender<Bytes>) -> Self {
        Self { remaining: options.limit_bytes.unwrap_or(u64::MAX), options, open: [false; 2], out: Vec::new(), sink }
    }

    /// One line of the file, with or without its newline.
    fn line(&mut self, raw: &[u8]) {
        let line = match line::parse(raw) {
            Ok(line) => line,
            Err(error) => {
                tracing::debug!(%error, "skipping a log line");
                return;
            }
        };
        let skip =
            self.options.since.is_some_and(|since| line.time < since) || !self.options.stream.accepts(line.stream);
        if skip {
            return;
        }
        let from = self.out.len();
        let open = &mut self.open[usize::from(line.stream == Stream::Stderr)];
        if self.options.timestamps && !*open {
            line::push_fixed_time(&mut self.out, line.time_text);
            self.out.push(b' ');
        }
        *open = line.partial;
        self.out.extend_from_slice(line.content);
        if !line.partial {
            self.out.push(b'\n');
        }
        let added = (self.out.len() - from) as u64;
        if added > self.remaining {
            let keep = usize::try_from(self.remaining).unwrap_or(usize::MAX);
            self.out.truncate(from + keep);
        }
        self.remaining -= added.min(self.remaining);
    }

    async fn flush(&mut self) -> Flow {
        if !self.out.is_empty() {
            let batch = Bytes::from(std::mem::take(&mut self.out));
            if self.sink.send(batch).await.is_err() {
                return Flow::Stop;
            }
        }
        if self.remaining == 0 { Flow::Stop } else { Flow::More }
    }
}

/// An open log file and how far it was read.
struct Source {
    path: PathBuf,
    file: Arc<File>,
    inode: u64,
    position: u64,
    /// Bytes of a line that has no end yet.
    pending: Vec<u8>,
    /// The pending line is too long; its rest is skipped.
    skipping: bool,
}

impl Source {
    fn open(path: &Path) -> Result<Self, LogError> {
        let failed = |source| LogError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let inode = file.metadata().map_err(failed)?.ino();
        Ok(Self {
            path: path.to_owned(),
            file: Arc::new(file),
            inode,
            position: 0,
            pending: Vec::new(),
            skipping: false,
        })
    }

    fn failed(&self, source: io::Error) -> LogError {
        LogError::Read { path: self.path.clone(), source }
    }

    fn length(&self) -> Result<u64, LogError> {
        Ok(self.file.metadata().map_err(|e| self.failed(e))?.len())
    }

    /// Reads on to `limit` (`None`: to the end as it is).
    async fn drain(&mut self, writer: &mut Writer, limit: Option<u64>) -> Result<Flow, LogError> {
        loop {
            let room = limit.map_or(CHUNK as u64, |limit| limit.saturating_sub(self.position));
            let want = usize::try_from(room).unwrap_or(CHUNK).min(CHUNK);
            if want == 0 {
                return Ok(writer.flush().await);
            }
            let (file, position) = (Arc::clone(&self.file), self.position);
            let read = tokio::task::spawn_blocking(move || {
                let mut chunk = vec![0; want];
                let read = file.read_at(&mut chunk, position)?;
                chunk.truncate(read);
                Ok(chunk)
            });
            let chunk =
                read.await.unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into())).map_err(|e| self.failed(e))?;
            if chunk.is_empty() {
                return Ok(writer.flush().await);
            }
            self.position += chunk.len() as u64;
            if let Flow::Stop = self.lines(&chunk, writer).await {
                return Ok(Flow::Stop);
            }
        }
    }

    async fn lines(&mut self, chunk: &[u8], writer: &mut Writer) -> Flow {
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            let whole = piece.ends_with(b"\n");
            if self.skipping {
                self.skipping = !whole;
            } else if whole && self.pending.is_empty() {
                writer.line(piece);
            } else if self.pending.len() + piece.len() > MAX_LINE {
                tracing::debug!(path = %self.path.display(), "skipping a log line that is too long");
                self.pending = Vec::new();
                self.skipping = !whole;
            } else {
                self.pending.extend_from_slice(piece);
                if whole {
                    writer.line(&self.pending);
                    self.pending.clear();
                }
            }
            let full = writer.out.len() >= BATCH || writer.remaining == 0;
            if full && let Flow::Stop = writer.flush().await {
                return Flow::Stop;
            }
        }
        Flow::More
    }

    /// A last line without an end is shown as it is.
    async fn finish(&mut self, writer: &mut Writer) {
        if !self.pending.is_empty() {
            let pending = std::mem::take(&mut self.pending);
            writer.line(&pending);
        }
        writer.flush().await;
    }
}

/// Reads the log at `path` into `sink`. Returns when all is read, the limit is reached, the sink is
/// closed, or, following, when `ended` (the container's end) has come and the rest is read.
///
/// # Errors
/// [`LogError`]; what was read before is in the sink.
pub async fn read(
    path: &Path,
    options: LogOptions,
    ended: BoxFuture<'static, ()>,
    sink: mpsc::Sender<Bytes>,
) -> Result<(), LogError> {
    let follow = options.follow;
    let place = path.to_owned();
    let begin = options.clone();
    let opening = tokio::task::spawn_blocking(move || open_at(&place, &begin));
    let (mut source, end) = opening
        .await
        .unwrap_or_else(|_| Err(LogError::Open { path: path.to_owned(), source: io::ErrorKind::Interrupted.into() }))?;
    let mut writer = Writer::new(options, sink);
    if writer.remaining == 0 {
        return Ok(());
    }
    let limit = if follow { None } else { Some(end) };
    if let Flow::Stop = source.drain(&mut writer, limit).await? {
        return Ok(());
    }
    if !follow {
        source.finish(&mut writer).await;
        return Ok(());
    }
    Follower::new(path, source, writer).run(ended).await
}

fn open_at(path: &Path, options: &LogOptions) -> Result<(Source, u64), LogError> {
    let mut source = Source::open(path)?;
    let end = source.length()?;
    let find = || -> io::Result<u64> {
        let mut at = 0;
        if let Some(lines) = options.tail {
            at = start::tail(&source.file, end, lines, options.stream)?;
        }
        if let Some(since) = options.since {
            at = at.max(start::since(&source.file, end, since)?);
        }
        Ok(at)
    };
    source.position = find().map_err(|e| source.failed(e))?;
    Ok((source, end))
}

struct Follower {
    path: PathBuf,
    source: Source,
    writer: Writer,
    events: Option<EventStream<Vec<u8>>>,
}

impl Follower {
    fn new(path: &Path, source: Source, writer: Writer) -> Self {
        // On the folder: it tells of writes to the file as well as of renames.
        let mask =
            WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::MOVED_FROM | WatchMask::DELETE;
        let watch = |folder: &Path| -> io::Result<EventStream<Vec<u8>>> {
            let inotify = Inotify::init()?;
            inotify.watches().add(folder, mask)?;
            inotify.into_event_stream(vec![0; 4096])
        };
        let events = path.parent().map(watch);
        let events = match events {
            Some(Ok(events)) => Some(events),
            Some(Err(error)) => {
                tracing::warn!(path = %path.display(), %error, "cannot watch the log, looking again and again instead (raise fs.inotify.max_user_instances)");
                None
            }
            None => None,
        };
        Self { path: path.to_owned(), source, writer, events }
    }

    async fn run(mut self, mut ended: BoxFuture<'static, ()>) -> Result<(), LogError> {
        let mut over = false;
        loop {
            if let Flow::Stop = self.source.drain(&mut self.writer, None).await? {
                return Ok(());
            }
            if self.truncated()? {
                self.source.position = 0;
                self.source.pending.clear();
                continue;
            }
            if self.next_file(over).await? {
                continue;
            }
            if over {
                self.source.finish(&mut self.writer).await;
                return Ok(());
            }
            let look = if self.events.is_some() { LOOK_AGAIN } else { LOOK_WITHOUT_INOTIFY };
            let events = &mut self.events;
            let told = async {
                match events {
                    Some(events) => drop(events.next().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut ended => over = true,
                () = told => {}
                () = self.writer.sink.closed() => return Ok(()),
                () = tokio::time::sleep(look) => {}
            }
        }
    }

    fn truncated(&self) -> Result<bool, LogError> {
        Ok(self.source.length()? < self.source.position)
    }

    /// Goes on to the file that came after the one being read, if there is one and it is time.
    async fn next_file(&mut self, over: bool) -> Result<bool, LogError> {
        let (path, inode) = (self.path.clone(), self.source.inode);
        let looking = tokio::task::spawn_blocking(move || successor(&path, inode));
        let Ok(Some((next, expected))) = looking.await else {
            return Ok(false);
        };
        let fresh = next == self.path;
        let mut source = match Source::open(&next) {
            Ok(source) => source,
            // Renamed again since it was seen: the next look finds it under its new name.
            Err(LogError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        if source.inode != expected {
            // Rotated once more between the look and the opening: one file came in between and must be read first.
            return Ok(true);
        }
        if source.inode == self.source.inode || (fresh && !over && source.length()? == 0) {
            return Ok(false);
        }
        // Lines written between the last look and the runtime's switch to the new file.
        if let Flow::Stop = self.source.drain(&mut self.writer, None).await? {
            // The caller's next drain meets the same end.
            return Ok(true);
        }
        self.source.finish(&mut self.writer).await;
        std::mem::swap(&mut self.source, &mut source);
        Ok(true)
    }
}

/// The file that follows the one with `inode` in the series of `path`, with its own inode; `None` while it is the
/// newest, or while there is none of that name.
fn successor(path: &Path, inode: u64) -> Option<(PathBuf, u64)> {
    let now = std::fs::metadata(path);
    if now.as_ref().is_ok_and(|meta| meta.ino() == inode) {
        return None;
    }
    let base = path.file_name()?.to_str()?;
    let mut rotated: Vec<(String, u64)> = std::fs::read_dir(path.parent()?)
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let stamp = name.strip_prefix(base)?.strip_prefix('.')?;
            // Unfinished and compressed files cannot be read on.
            let plain = !stamp.ends_with(".gz") && !stamp.ends_with(".tmp");
            plain.then_some(())?;
            Some((name, entry.metadata().ok()?.ino()))
        })
        .collect();
    // Names end in a time: their order is that of the rotations.
    rotated.sort();
    let mine = rotated.iter().position(|(_, other)| *other == inode);
    let next = mine.and_then(|at| rotated.get(at + 1));
    match next {
        Some((name, inode)) => Some((path.with_file_name(name), *inode)),
        None => now.ok().map(|meta| (path.to_owned(), meta.ino())),
    }
}
