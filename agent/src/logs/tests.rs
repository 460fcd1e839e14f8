//! Reading and following real files.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use tokio::sync::{mpsc, oneshot};

use super::*;

const LOG: &str = "2016-10-06T00:17:01Z stdout F one\n\
    2016-10-06T00:17:02.5Z stderr F two\n\
    garbage\n\
    2016-10-06T00:17:03Z stdout P thr\n\
    2016-10-06T00:17:03Z stdout F ee\n\
    2016-10-06T00:17:04Z stdout F four\n";

async fn collect(text: &[u8], options: LogOptions) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    fs::write(&path, text).unwrap();
    let (sink, mut out) = mpsc::channel::<Bytes>(1);
    let gather = async {
        let mut all = Vec::new();
        while let Some(part) = out.recv().await {
            all.extend_from_slice(&part);
        }
        all
    };
    let ended = Box::pin(std::future::pending());
    let (result, all) = tokio::join!(read(&path, options, ended, sink), gather);
    result.unwrap();
    String::from_utf8_lossy(&all).into_owned()
}

#[tokio::test]
async fn options() {
    let all = LogOptions::default();
    assert_eq!(collect(LOG.as_bytes(), all.clone()).await, "one\ntwo\nthree\nfour\n");
    let tail = |n| LogOptions { tail: Some(n), ..all.clone() };
    assert_eq!(collect(LOG.as_bytes(), tail(1)).await, "four\n");
    assert_eq!(collect(LOG.as_bytes(), tail(0)).await, "");
    assert_eq!(collect(LOG.as_bytes(), tail(99)).await, "one\ntwo\nthree\nfour\n");
    let since = LogOptions { since: Some("2016-10-06T00:17:03Z".parse().unwrap()), timestamps: true, ..all.clone() };
    assert_eq!(
        collect(LOG.as_bytes(), since).await,
        "2016-10-06T00:17:03.000000000Z three\n2016-10-06T00:17:04.000000000Z four\n"
    );
    let limit = LogOptions { limit_bytes: Some(6), ..all.clone() };
    assert_eq!(collect(LOG.as_bytes(), limit).await, "one\ntw");
    let stderr = LogOptions { stream: StreamFilter::Stderr, tail: Some(5), ..all.clone() };
    assert_eq!(collect(LOG.as_bytes(), stderr).await, "two\n");
    assert_eq!(collect(b"2016-10-06T00:17:01Z stdout F cut", all).await, "cut\n");
}

#[tokio::test]
async fn a_missing_file_is_named() {
    let (sink, _out) = mpsc::channel(1);
    let ended = Box::pin(std::future::pending());
    let path = PathBuf::from("/nowhere/0.log");
    let error = read(&path, LogOptions::default(), ended, sink).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/0.log"), "{error}");
}

/// A container whose log is written, rotated and ended by the test.
struct Container {
    dir: tempfile::TempDir,
    file: File,
    line: u32,
    rotations: u32,
    end: Option<oneshot::Sender<()>>,
    out: mpsc::Receiver<Bytes>,
    task: tokio::task::JoinHandle<Result<(), LogError>>,
}

impl Container {
    fn start(options: LogOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let file = File::create(&path).unwrap();
        let (end, ended) = oneshot::channel();
        let (sink, out) = mpsc::channel(4);
        let options = LogOptions { follow: true, ..options };
        let task = tokio::spawn(async move {
            let ended = Box::pin(async move { drop(ended.await) });
            read(&path, options, ended, sink).await
        });
        Self { dir, file, line: 0, rotations: 0, end: Some(end), out, task }
    }

    fn write(&mut self, lines: u32) {
        for _ in 0..lines {
            self.line += 1;
            let text = format!("{} stdout F {}\n", Timestamp::now(), self.line);
            self.file.write_all(text.as_bytes()).unwrap();
        }
    }

    fn rename(&mut self) {
        self.rotations += 1;
        let to = format!("0.log.20260101-00000{}", self.rotations);
        fs::rename(self.dir.path().join("0.log"), self.dir.path().join(to)).unwrap();
    }

    fn create(&mut self) -> File {
        let mut options = OpenOptions::new();
        options.create_new(true).append(true);
        options.open(self.dir.path().join("0.log")).unwrap()
    }

    async fn expect(&mut self, last: u32) {
        let mut text = String::new();
        while !text.ends_with(&format!("{last}\n")) {
            let part = tokio::time::timeout(Duration::from_secs(5), self.out.recv()).await;
            let part = part.unwrap_or_else(|_| panic!("nothing after {text:?}, waiting for {last}"));
            text.push_str(std::str::from_utf8(&part.expect("log goes on")).unwrap());
        }
    }

    /// Ends the container and gives everything that had not been read.
    async fn finish(mut self) -> String {
        drop(self.end.take());
        let mut text = String::new();
        while let Some(part) = self.out.recv().await {
            text.push_str(std::str::from_utf8(&part).unwrap());
        }
        self.task.await.unwrap().unwrap();
        text
    }
}

fn numbers(from: u32, to: u32) -> String {
    (from..=to).map(|n| format!("{n}\n")).collect()
}

#[tokio::test]
async fn follow_until_the_end() {
    let mut container = Container::start(LogOptions::default());
    container.write(3);
    container.expect(3).await;
    container.file.write_all(b"2016-10-06T00:17:01Z stdout F un").unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    container.file.write_all(b"finished 4\n").unwrap();
    container.expect(4).await;
    container.write(2);
    assert_eq!(container.finish().await, numbers(4, 5));
}

#[tokio::test]
async fn follow_across_rotation() {
    let mut container = Container::start(LogOptions::default());
    for round in 0..3 {
        container.write(5);
        container.rename();
        container.write(2);
        let next = container.create();
        // The runtime still writes to the old file for a moment.
        container.write(1);
        tokio::time::sleep(Duration::from_millis(20)).await;
        container.write(1);
        container.file = next;
        container.write(1);
        container.expect(10 * (round + 1)).await;
    }
    // Two rotations while nobody looks.
    container.write(1);
    container.rename();
    container.file = container.create();
    container.write(1);
    container.rename();
    container.file = container.create();
    container.write(1);
    assert_eq!(container.finish().await, numbers(31, 33));
}

#[tokio::test]
async fn follow_stops_when_the_reader_goes() {
    let mut container = Container::start(LogOptions::default());
    container.write(1);
    container.expect(1).await;
    container.out.close();
    let task = tokio::time::timeout(Duration::from_secs(5), container.task);
    task.await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn follow_with_a_limit_ends_there() {
    let mut container = Container::start(LogOptions { limit_bytes: Some(3), ..LogOptions::default() });
    container.write(5);
    container.task.await.unwrap().unwrap();
    assert_eq!(container.out.recv().await.unwrap(), "1\n2");
}

#[test]
fn whose_log() {
    let pod = |status: serde_json::Value| -> Pod {
        let mut status = status;
        status["name"] = "c".into();
        for (key, value) in [("image", "i"), ("imageID", "")] {
            status[key] = value.into();
        }
        status["ready"] = false.into();
        status["restartCount"] = 0.into();
        serde_json::from_value(serde_json::json!({"metadata": {"name": "p"},
            "status": {"containerStatuses": [status]}}))
        .unwrap()
    };
    let text = |status: serde_json::Value, previous| match container_id(&pod(status), "c", previous) {
        Ok(id) => id,
        Err(error) => error.to_string(),
    };
    let running = serde_json::json!({"containerID": "containerd://abc", "state": {"running": {}},
        "lastState": {"terminated": {"exitCode": 1, "containerID": "containerd://old"}}});
    assert_eq!(text(running.clone(), false), "abc");
    assert_eq!(text(running, true), "old");
    let waiting = |reason: &str| serde_json::json!({"state": {"waiting": {"reason": reason}}});
    assert_eq!(
        text(waiting("ContainerCreating"), false),
        "container \"c\" in pod \"p\" is waiting to start: ContainerCreating"
    );
    assert_eq!(
        text(waiting("ImagePullBackOff"), false),
        "container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image"
    );
    assert_eq!(text(waiting("x"), true), "previous terminated container \"c\" in pod \"p\" not found");
    let backoff = serde_json::json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "containerID": "containerd://old"}}});
    assert_eq!(text(backoff, false), "old");
    let never = serde_json::json!({"state": {"terminated": {"exitCode": 1}}});
    assert_eq!(text(never, false), "container \"c\" in pod \"p\" is terminated");
    let none = container_id(&pod(waiting("x")), "other", false).unwrap_err();
    assert_eq!(none.to_string(), "container \"other\" in pod \"p\" is not available");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the file holds, reading ends without error and within the limit.
    #[test]
    fn any_bytes(
        parts in prop::collection::vec(prop_oneof![
            Just(b"2016-10-06T00:17:01Z stdout F ok\n".to_vec()),
            Just(b"2016-10-06T00:17:01Z stdout P part\n".to_vec()),
            prop::collection::vec(any::<u8>(), 0..40),
        ], 0..40),
        tail in prop::option::of(0u64..50), limit in prop::option::of(0u64..200), timestamps in any::<bool>(),
    ) {
        let text: Vec<u8> = parts.concat();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let options = LogOptions { tail, limit_bytes: limit, timestamps, ..LogOptions::default() };
        let got = runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("0.log");
            fs::write(&path, &text).unwrap();
            let (sink, mut out) = mpsc::channel::<Bytes>(64);
            read(&path, options, Box::pin(std::future::pending()), sink).await.unwrap();
            let mut all = Vec::new();
            while let Some(part) = out.recv().await {
                all.extend_from_slice(&part);
            }
            all
        });
        prop_assert!(limit.is_none_or(|limit| got.len() as u64 <= limit));
        if let Some(tail) = tail {
            let lines = got.split(|b| *b == b'\n').filter(|l| !l.is_empty()).count();
            prop_assert!(lines as u64 <= tail + 1);
        }
    }
}
