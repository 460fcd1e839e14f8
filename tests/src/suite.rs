//! The runner of a suite: one lab, its tests one after the other, and the lab taken down whatever happens.
//!
//! The last line has the form of cargo's own test summary, so that `./dev test` counts both alike.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use tokio::signal::unix::{SignalKind, signal};

use crate::lab::{GUESTS, Lab};

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
    run(suite, tests, || Lab::up(suite, nodes, up))
}

/// Like [`main_with`], on virtual machines.
pub fn main_on_guests(suite: &str, nodes: u8, up: &[&str], tests: &[Test]) -> ExitCode {
    run(suite, tests, || Lab::up_on_guests(suite, nodes, up))
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
    run(suite, tests, || Lab::named(&format!("test-{suite}")))
}

fn run(suite: &str, tests: &[Test], lab: impl FnOnce() -> Result<Lab>) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let chosen: Vec<&Test> = tests
        .iter()
        .filter(|(name, _)| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str())))
        .collect();
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in tests {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    if chosen.is_empty() {
        summary(0, 0, Duration::ZERO);
        return ExitCode::SUCCESS;
    }
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED {suite}: needs root");
        return ExitCode::SUCCESS;
    }
    let begun = Instant::now();
    println!("suite {suite}: {} tests", chosen.len());
    let lab = match lab() {
        Ok(lab) => Arc::new(lab),
        Err(error) => {
            println!("the lab did not come up:\n{error:#}");
            summary(0, chosen.len(), begun.elapsed());
            return ExitCode::FAILURE;
        }
    };
    end_on_signal(&lab);
    let mut failures = Vec::new();
    let mut skipped = 0;
    for (name, test) in &chosen {
        match one(name, *test, &lab) {
            Outcome::Passed => {}
            Outcome::Skipped => skipped += 1,
            Outcome::Failed(error) => failures.push((*name, error)),
            Outcome::Stuck => {
                failures.push((*name, anyhow!("not done after {} s\n{}", limit().as_secs(), lab.diagnose())));
                break;
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
    summary(chosen.len() - failures.len().min(chosen.len()) - skipped, failures.len(), begun.elapsed());
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

fn limit() -> Duration {
    let given = std::env::var("KEELSON_TEST_LIMIT").ok().and_then(|seconds| seconds.parse().ok());
    given.map_or(TEST_LIMIT, Duration::from_secs)
}

fn one(name: &str, test: fn(&Lab) -> Result<()>, lab: &Arc<Lab>) -> Outcome {
    use std::io::Write;
    let begun = Instant::now();
    print!("test {name} ... ");
    let _ = std::io::stdout().flush();
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
            println!("ok ({seconds:.1} s)");
            Outcome::Passed
        }
        Ok(Err(error)) if error.is::<Skip>() => {
            println!("skipped\nSKIPPED {name}: {error}");
            Outcome::Skipped
        }
        Ok(Err(error)) => {
            // All of it comes at the end, which may be far.
            println!("FAILED ({seconds:.1} s): {}", error.to_string().lines().next().unwrap_or_default());
            Outcome::Failed(error)
        }
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            println!("STUCK ({seconds:.1} s)");
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
