//! The wait for Services at a pod's end, against a dataplane that answers, hangs, dies and comes back.

use std::path::{Path, PathBuf};

use keelson_dataplane::drain::protocol::{Answer, answer, read_question};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use super::tests::{Bench, Running, bench, bench_with, phase, simple};
use super::*;
use crate::drain::Mode;
use crate::drain::start;

/// What the dataplane does with a question.
#[derive(Clone, Copy)]
enum Manner {
    /// This at once.
    Says(fn() -> Answer),
    /// At work, and agreed after so many milliseconds.
    Agrees(u64),
    /// Takes it and says nothing.
    Hangs,
    /// At work, then nothing more.
    Works,
}

/// A dataplane; it keeps what it was asked.
struct Plane {
    asked: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
    path: PathBuf,
}

fn waiting() -> Answer {
    Answer::Waiting { programmed: true, agreed: false, on: "the slices".into() }
}

async fn attend(stream: UnixStream, manner: Manner, asked: Arc<Mutex<Vec<String>>>) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line).await.unwrap();
    asked.lock().push(read_question(line.trim_ascii_end()).unwrap().into());
    let mut say = async |body: &Answer| stream.write_all(&answer(body)).await.unwrap();
    match manner {
        Manner::Says(body) => return say(&body()).await,
        Manner::Agrees(after) => {
            say(&waiting()).await;
            tokio::time::sleep(Duration::from_millis(after)).await;
            return say(&Answer::Done).await;
        }
        Manner::Works => say(&waiting()).await,
        Manner::Hangs => {}
    }
    std::future::pending::<()>().await;
}

impl Plane {
    fn listen(path: &Path, manner: Manner) -> Self {
        // As a dataplane that starts replaces the socket of one that was killed.
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = asked.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(attend(stream, manner, kept.clone()));
            }
        });
        Self { asked, task, path: path.to_owned() }
    }

    /// Kills it; the file stays.
    async fn kill(self) -> PathBuf {
        self.task.abort();
        let _ = self.task.await;
        self.path
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

/// A pod with a label, by which a Service selects it.
fn selected() -> Arc<Pod> {
    let mut pod = Arc::unwrap_or_clone(simple());
    pod.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
    Arc::new(pod)
}

fn root(b: &Bench) -> &Path {
    &b.node.settings.root_dir
}

async fn running(b: &Bench, pod: Arc<Pod>) -> Running {
    std::fs::create_dir_all(root(b).join("pods/u1")).unwrap();
    let r = b.start(pod);
    b.until("running", phase("Running")).await;
    r
}

/// The seconds that the container was given, once it was stopped.
fn stopped(b: &Bench) -> Option<u64> {
    b.fake.changes().iter().find_map(|change| change.strip_prefix("StopContainer ")?.parse().ok())
}

/// Waits for the signal: how long it took and what it was given.
async fn signal(b: &Bench) -> (Duration, u64) {
    let began = Instant::now();
    loop {
        if let Some(grace) = stopped(b) {
            return (began.elapsed(), grace);
        }
        assert!(began.elapsed() < Duration::from_secs(8), "never stopped: {:?}", b.fake.changes());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Ends a pod with a grace of seven seconds; what [`signal`] says, and all that was asked.
async fn ends(mode: Mode, manner: Option<Manner>, pod: Arc<Pod>) -> (Duration, u64, Vec<String>) {
    let b = bench_with(mode);
    let plane = manner.map(|manner| Plane::listen(&b.node.drain.socket, manner));
    let r = running(&b, pod).await;
    r.delete(7);
    let (took, grace) = signal(&b).await;
    assert_eq!(r.task.await.unwrap(), Outcome::Gone);
    (took, grace, plane.map(|plane| plane.asked()).unwrap_or_default())
}

fn between(took: Duration, least: u64, most: u64) {
    let range = Duration::from_millis(least)..Duration::from_millis(most);
    assert!(range.contains(&took), "{took:?} is not in {range:?}");
}

#[tokio::test]
async fn the_signal_comes_after_the_slices_agree_and_other_nodes_had_their_time() {
    let (took, grace, asked) = ends(Mode::Auto, Some(Manner::Agrees(200)), selected()).await;
    between(took, 500, 4000);
    // What the wait took is a part of the seven seconds.
    assert!((5..=6).contains(&grace) && asked == ["u1"], "{grace} {asked:?}");
}

#[tokio::test]
async fn a_pod_of_no_service_does_not_wait_and_loses_nothing_of_its_grace() {
    let (took, grace, asked) = ends(Mode::Auto, Some(Manner::Says(|| Answer::Unknown)), selected()).await;
    between(took, 0, 1500);
    assert_eq!((grace, asked), (7, vec!["u1".to_owned()]));
}

#[tokio::test]
async fn a_dataplane_that_hangs_costs_the_bound_and_no_more() {
    let (took, grace, _) = ends(Mode::Auto, Some(Manner::Hangs), selected()).await;
    between(took, 1900, 7000);
    assert_eq!(grace, 5);
    let (took, _, _) = ends(Mode::Auto, Some(Manner::Works), simple()).await;
    between(took, 1900, 7000);
    // No Service selects it: it waits for a first word only.
    let (took, _, _) = ends(Mode::Auto, Some(Manner::Hangs), simple()).await;
    between(took, 150, 1800);
    let refused = Manner::Says(|| Answer::Refused { why: "no".into() });
    let (took, _, asked) = ends(Mode::Auto, Some(refused), selected()).await;
    between(took, 1900, 7000);
    assert!(asked.len() > 2, "{asked:?}");
}

#[tokio::test]
async fn without_our_dataplane_only_who_is_told_to_waits() {
    let (took, grace, _) = ends(Mode::Auto, None, selected()).await;
    between(took, 0, 1500);
    assert_eq!(grace, 7);
    let (took, grace, _) = ends(Mode::Always, None, selected()).await;
    between(took, 700, 4000);
    assert!((5..=6).contains(&grace), "{grace}");
    let (took, _, _) = ends(Mode::Always, None, simple()).await;
    between(took, 0, 1500);
    let (took, _, asked) = ends(Mode::Never, Some(Manner::Hangs), selected()).await;
    between(took, 0, 1500);
    assert!(asked.is_empty());
}

#[tokio::test]
async fn a_dataplane_that_dies_costs_the_bound_and_one_that_comes_back_is_asked_again() {
    let b = bench();
    let plane = Plane::listen(&b.node.drain.socket, Manner::Works);
    let r = running(&b, selected()).await;
    r.delete(7);
    tokio::time::sleep(Duration::from_millis(200)).await;
    plane.kill().await;
    let (took, grace) = signal(&b).await;
    between(took, 1200, 7000);
    assert_eq!(grace, 5);
    assert_eq!(r.task.await.unwrap(), Outcome::Gone);

    let b = bench();
    let plane = Plane::listen(&b.node.drain.socket, Manner::Works);
    let r = running(&b, selected()).await;
    r.delete(7);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(plane.asked(), ["u1"]);
    let path = plane.kill().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(stopped(&b), None);
    let next = Plane::listen(&path, Manner::Agrees(100));
    let (took, grace) = signal(&b).await;
    between(took, 200, 4000);
    assert!((5..=6).contains(&grace) && next.asked() == ["u1"], "{grace} {:?}", next.asked());
    assert_eq!(r.task.await.unwrap(), Outcome::Gone);
}

#[tokio::test]
async fn a_shorter_grace_shortens_or_ends_the_wait() {
    for (grace, removed, least, most, left) in [
        (0, false, 0, 1500, 0..=0),
        // Half of two seconds since the beginning; what is left counts from the second deletion.
        (2, false, 100, 4000, 1..=1),
        // The API has no object of it any more; the grace is the pod's own.
        (7, true, 0, 1500, 4..=7),
    ] {
        let b = bench();
        let _plane = Plane::listen(&b.node.drain.socket, Manner::Works);
        let r = running(&b, selected()).await;
        r.delete(7);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(stopped(&b), None);
        if removed {
            r.desired.send_modify(|d| d.removed = true);
        } else {
            r.delete(grace);
        }
        let (took, given) = signal(&b).await;
        between(took, least, most);
        assert!(left.contains(&given), "{given} after a second grace of {grace}");
        assert_eq!(r.task.await.unwrap(), Outcome::Gone);
    }
}

#[tokio::test]
async fn no_grace_means_no_wait() {
    let b = bench();
    let plane = Plane::listen(&b.node.drain.socket, Manner::Works);
    let r = running(&b, selected()).await;
    r.delete(0);
    let (took, _) = signal(&b).await;
    between(took, 0, 1500);
    assert_eq!(plane.asked(), Vec::<String>::new());
    assert_eq!(r.task.await.unwrap(), Outcome::Gone);
}

#[tokio::test]
async fn who_ends_meanwhile_is_not_waited_for() {
    let b = bench();
    let _plane = Plane::listen(&b.node.drain.socket, Manner::Works);
    let r = running(&b, selected()).await;
    r.delete(7);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let began = Instant::now();
    b.fake.exit("m", 0);
    let _ = b.node.pleg.refresh("u1").await;
    assert_eq!(r.task.await.unwrap(), Outcome::Gone);
    between(began.elapsed(), 0, 1800);
}

#[tokio::test]
async fn the_next_agent_goes_on_where_the_last_one_was() {
    let b = bench();
    let _plane = Plane::listen(&b.node.drain.socket, Manner::Works);
    let r = running(&b, selected()).await;
    let began = Instant::now();
    r.delete(7);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let since = start::read(root(&b), "u1", clock::now()).expect("the start is on disk");
    r.stop.cancel();
    assert_eq!(r.task.await.unwrap(), Outcome::AgentStops);
    assert_eq!(stopped(&b), None, "containers live on");
    let again = b.start(r.desired.borrow().pod.clone());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(start::read(root(&b), "u1", clock::now()), Some(since));
    assert_eq!(stopped(&b), None);
    let (_, grace) = signal(&b).await;
    between(began.elapsed(), 1900, 7000);
    assert_eq!(grace, 5);
    assert_eq!(again.task.await.unwrap(), Outcome::Gone);

    // One that comes when the time is over does not wait, and takes no more of the grace than the wait would have.
    let b = bench();
    let plane = Plane::listen(&b.node.drain.socket, Manner::Works);
    let r = running(&b, selected()).await;
    start::write(root(&b), "u1", clock::now() - 3600 * 1_000_000_000).unwrap();
    r.delete(7);
    let (took, grace) = signal(&b).await;
    between(took, 0, 1500);
    assert_eq!((grace, plane.asked().len()), (5, 0));
    assert_eq!(r.task.await.unwrap(), Outcome::Gone);
}

#[tokio::test]
async fn a_static_pod_is_asked_for_by_its_mirror() {
    let b = bench();
    let plane = Plane::listen(&b.node.drain.socket, Manner::Agrees(0));
    let mut pod = Arc::unwrap_or_clone(simple());
    pod.metadata.annotations = Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    let r = running(&b, Arc::new(pod.clone())).await;
    (pod.metadata.uid, pod.metadata.resource_version) = (Some("mirror-1".into()), Some("5".into()));
    b.node.statuses.observe("u1", &pod);
    r.desired.send_modify(|d| d.removed = true);
    let (took, _) = signal(&b).await;
    between(took, 250, 4000);
    assert_eq!(plane.asked(), ["mirror-1"]);
    assert_eq!(r.task.await.unwrap(), Outcome::Gone);
}
