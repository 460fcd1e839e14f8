//! The runner of a suite: one lab, its tests one after the other or several at once, and the lab taken down whatever happens.
//!
//! The last line has the form of cargo's own test summary, so that `./dev test` counts both alike. What became of each test is kept
//! beside the labs ([`crate::results`]), for reports.

use std::collections::VecDeque;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use tokio::signal::unix::{SignalKind, signal};

use crate::lab::{GUESTS, Lab};
use crate::results::{self, Verdict};

/// Longest time for one test; a suite in which one takes longer ends there. `KEELSON_TEST_LIMIT` gives long tests more seconds.
const TEST_LIMIT: Duration = Duration::from_secs(240);

/// A test: its name says which line of the contract it shows.
pub type Test = (&'static str, fn(&Lab) -> Result<()>);

/// A test that cannot run here returns this; it is reported by name with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Skip(pub String);

/// Runs the tests whose names contain one of the arguments (all without one) in a lab with `nodes` nodes.
pub fn main(suite: &str, nodes: u8, tests: &[Test]) -> ExitCode {
    main_with(suite, nodes, &[], tests)
}

/// Like [`main`], with more arguments for `lab up`.
pub fn main_with(suite: &str, nodes: u8, up: &[&str], tests: &[Test]) -> ExitCode {
    run(suite, tests, Order::default(), || Lab::up(suite, nodes, up))
}

/// Like [`main`], with `threads` tests at once; those in `alone`, which disturb the others, one by one after them.
pub fn main_at_once(suite: &str, nodes: u8, threads: usize, tests: &[Test], alone: &[Test]) -> ExitCode {
    let all = [tests, alone].concat();
    run(suite, &all, Order { threads, alone: alone.len() }, || Lab::up(suite, nodes, &[]))
}

/// Like [`main_at_once`], on virtual machines, with more arguments for `lab vm up`.
pub fn main_on_guests(suite: &str, nodes: u8, up: &[&str], tests: &[Test], alone: &[Test]) -> ExitCode {
    let all = [tests, alone].concat();
    run(suite, &all, Order { threads: tests.len(), alone: alone.len() }, || Lab::up_on_guests(suite, nodes, up))
}

/// Like [`main`], for tests that make their labs themselves: the lab they are given does not exist.
pub fn main_without_lab(suite: &str, tests: &[Test]) -> ExitCode {
    if std::env::var_os(GUESTS).is_some() {
        for (name, _) in tests {
            println!("SKIPPED {name}: it makes its labs by itself, of namespaces of this host");
        }
        summary(0, 0, Duration::ZERO);
        return ExitCode::SUCCESS;
    }
    run(suite, tests, Order::default(), || Lab::named(&format!("test-{suite}")))
}

/// How many tests run at once, and how many at the end of the list run alone.
struct Order {
    threads: usize,
    alone: usize,
}

impl Default for Order {
    fn default() -> Self {
        Self { threads: 1, alone: 0 }
    }
}

fn run(suite: &str, tests: &[Test], order: Order, lab: impl FnOnce() -> Result<Lab>) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |(name, _): &&Test| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let (together, alone) = tests.split_at(tests.len() - order.alone);
    let together: Vec<&Test> = together.iter().filter(wanted).collect();
    let alone: Vec<&Test> = alone.iter().filter(wanted).collect();
    let count = together.len() + alone.len();
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in tests {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    if count == 0 {
        summary(0, 0, Duration::ZERO);
        return ExitCode::SUCCESS;
    }
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED {suite}: needs root");
        return ExitCode::SUCCESS;
    }
    let begun = Instant::now();
    println!("suite {suite}: {count} tests");
    let lab = match lab() {
        Ok(lab) => Arc::new(lab),
        Err(error) => {
            println!("the lab did not come up:\n{error:#}");
            summary(0, count, begun.elapsed());
            return ExitCode::FAILURE;
        }
    };
    end_on_signal(&lab);
    let mut ended = several(&together, order.threads, &lab);
    if !ended.iter().any(|(_, outcome)| matches!(outcome, Outcome::Stuck)) {
        ended.extend(several(&alone, 1, &lab));
    }
    if let Err(error) = results::keep(suite, filters.is_empty(), ended.iter().map(|(name, o)| (*name, o.verdict()))) {
        println!("the results could not be kept: {error:#}");
    }
    let mut failures = Vec::new();
    let mut passed = 0;
    for (name, outcome) in ended {
        match outcome {
            Outcome::Passed => passed += 1,
            Outcome::Skipped => {}
            Outcome::Failed(error) => failures.push((name, error)),
            Outcome::Stuck => {
                failures.push((name, anyhow!("not done after {} s\n{}", limit().as_secs(), lab.diagnose())));
            }
        }
    }
    for (name, error) in &failures {
        println!("\n---- {suite}::{name}\n{error:?}");
    }
    // A stuck test still holds the lab, so it is removed by name instead of by the handle.
    let keep = ["KEELSON_TEST_KEEP", "KEELSON_TEST_LAB"].iter().any(|name| std::env::var_os(name).is_some());
    if !keep && let Err(error) = lab.lab(&["down"]) {
        println!("\n---- {suite}::down\n{error:?}");
        failures.push(("down", error));
    }
    summary(passed, failures.len(), begun.elapsed());
    let code = if failures.is_empty() { 0 } else { 101 };
    // Not a return: the thread of a stuck test would be waited for.
    std::process::exit(code)
}

enum Outcome {
    Passed,
    Skipped,
    Failed(anyhow::Error),
    Stuck,
}

impl Outcome {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Passed => Verdict::Passed,
            Self::Skipped => Verdict::Skipped,
            Self::Failed(_) | Self::Stuck => Verdict::Failed,
        }
    }
}

/// Runs tests, so many at once. After one that is stuck no other begins.
fn several<'a>(tests: &[&'a Test], threads: usize, lab: &Arc<Lab>) -> Vec<(&'a str, Outcome)> {
    let queue: Mutex<VecDeque<&'a Test>> = Mutex::new(tests.iter().copied().collect());
    let ended = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(tests.len()) {
            scope.spawn(|| {
                while let Some((name, test)) = next() {
                    let outcome = one(name, *test, lab, threads > 1);
                    if matches!(outcome, Outcome::Stuck) {
                        queue.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    }
                    ended.lock().unwrap_or_else(PoisonError::into_inner).push((*name, outcome));
                }
            });
        }
    });
    ended.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn limit() -> Duration {
    let given = std::env::var("KEELSON_TEST_LIMIT").ok().and_then(|seconds| seconds.parse().ok());
    given.map_or(TEST_LIMIT, Duration::from_secs)
}

/// Runs one test. `whole` prints its line when it has ended, so that lines of others do not come between.
fn one(name: &str, test: fn(&Lab) -> Result<()>, lab: &Arc<Lab>, whole: bool) -> Outcome {
    let begun = Instant::now();
    let head = format!("test {name} ... ");
    if !whole {
        print!("{head}");
        let _ = std::io::stdout().flush();
    }
    let head = if whole { head.as_str() } else { "" };
    let (sender, receiver) = channel();
    let shared = Arc::clone(lab);
    std::thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(|| test(&shared)));
        let result = result.unwrap_or_else(|_| Err(anyhow!("the test panicked; its message is above")));
        // What the cluster looked like is told while it still does.
        let result = result
            .map_err(|error| if error.is::<Skip>() { error } else { anyhow!("{error:#}\n{}", shared.diagnose()) });
        let _ = sender.send(result);
    });
    let result = receiver.recv_timeout(limit());
    let seconds = begun.elapsed().as_secs_f64();
    match result {
        Ok(Ok(())) => {
            println!("{head}ok ({seconds:.1} s)");
            Outcome::Passed
        }
        Ok(Err(error)) if error.is::<Skip>() => {
            println!("{head}skipped\nSKIPPED {name}: {error}");
            Outcome::Skipped
        }
        Ok(Err(error)) => {
            // All of it comes at the end, which may be far.
            println!("{head}FAILED ({seconds:.1} s): {}", error.to_string().lines().next().unwrap_or_default());
            Outcome::Failed(error)
        }
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            println!("{head}STUCK ({seconds:.1} s)");
            Outcome::Stuck
        }
    }
}

fn summary(passed: usize, failed: usize, time: Duration) {
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; finished in {:.2}s",
        time.as_secs_f64()
    );
}

/// A terminated run takes its lab down too. By handlers, not by a signal mask, which every child would inherit.
fn end_on_signal(lab: &Arc<Lab>) {
    let lab = Arc::clone(lab);
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
            return;
        };
        runtime.block_on(async {
            let (Ok(mut terminate), Ok(mut interrupt)) =
                (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
            else {
                return;
            };
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        println!("\nstopped: taking the lab {} down", lab.name);
        // An `up` that is under way holds the lab's lock until it ends.
        let down = lab.wait("the lab is down", 120, || lab.lab(&["down"]).map(Some));
        if let Err(error) = down {
            println!("{error:#}");
        }
        std::process::exit(130);
    });
}
