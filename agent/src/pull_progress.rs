//! Says that a pull goes on: how long, how much of what the runtime downloads is here, and when nothing comes in.
//!
//! A registry that stalls is told from one that is slow. Upstream has no counterpart: there a pull is silent until it ends.

use std::fmt::Write as _;
use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::runtime::{Download, Runtime};
use crate::sync::backoff::go_text;

/// A pull that takes so long is told; then again after twice the time…
const FIRST: Duration = Duration::from_secs(10);
/// …but at least so often.
const MOST: Duration = Duration::from_secs(60);

/// Does `work`, the pull of an image, and tells of it while it takes long.
pub async fn watched<T>(runtime: &dyn Runtime, image: &str, tell: impl Fn(&str), work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    let began = Instant::now();
    let mut pause = FIRST;
    let mut last: Option<(Download, Instant)> = None;
    loop {
        let told = async {
            tokio::time::sleep(pause).await;
            // Without it the time alone is told.
            runtime.downloads().await.ok()
        };
        let download = tokio::select! {
            done = &mut work => return done,
            download = told => download,
        };
        let now = Instant::now();
        if let Some(download) = download.filter(|d| last.is_none_or(|(before, _)| before != *d)) {
            last = Some((download, now));
        }
        let still = download.and(last).map(|(download, since)| (download, now - since));
        tell(&text(image, now - began, still));
        pause = (pause * 2).min(MOST);
    }
}

/// `download`: how much there is, and for how long no byte has been added.
fn text(image: &str, took: Duration, download: Option<(Download, Duration)>) -> String {
    let mut out = format!("Still pulling image {image:?} after {}", seconds(took));
    if let Some((download, still)) = download.filter(|(download, _)| download.total > 0) {
        let (done, total) = (mebibytes(download.done), mebibytes(download.total));
        let _ = write!(out, ": {done} of {total} MiB of what is being downloaded are here");
        if !still.is_zero() {
            let _ = write!(out, ", nothing came in for {}", seconds(still));
        }
    }
    out
}

fn seconds(time: Duration) -> String {
    go_text(Duration::from_secs(time.as_secs()))
}

fn mebibytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::runtime::fake::FakeRuntime;

    async fn told(downloads: &[Download], length: u64) -> Vec<String> {
        let runtime = FakeRuntime::default();
        runtime.set_downloads(downloads);
        let lines = Mutex::new(Vec::new());
        let tell = |text: &str| lines.lock().unwrap().push(text.to_owned());
        watched(&runtime, "web:1", tell, tokio::time::sleep(Duration::from_secs(length))).await;
        lines.into_inner().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_quick_pull_is_silent() {
        assert_eq!(told(&[], 9).await, Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_one_is_told_with_what_is_here() {
        let half = Download { done: 5 << 20, total: 10 << 20 };
        let more = Download { done: (6 << 20) + (1 << 19), total: 10 << 20 };
        assert_eq!(
            told(&[half, more, more, more], 140).await,
            [
                "Still pulling image \"web:1\" after 10s: 5.0 of 10.0 MiB of what is being downloaded are here",
                "Still pulling image \"web:1\" after 30s: 6.5 of 10.0 MiB of what is being downloaded are here",
                "Still pulling image \"web:1\" after 1m10s: 6.5 of 10.0 MiB of what is being downloaded are here, nothing came in for 40s",
                "Still pulling image \"web:1\" after 2m10s: 6.5 of 10.0 MiB of what is being downloaded are here, nothing came in for 1m40s",
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_cannot_tell_leaves_the_time() {
        assert_eq!(told(&[], 11).await, ["Still pulling image \"web:1\" after 10s"]);
    }
}
