//! What was measured: a table for people, one flat JSON object for tools, and the reasons for what is missing.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value};

/// The aims, by key; see the benchmarks' description.
const AIMS: &[(&str, &str)] = &[
    ("agent_share_p99_ms", "< 15"),
    ("exit_to_status_p99_ms", "< 20"),
    ("restart_to_status_s", "< 1"),
    ("rss_mib_0", "< 15"),
    ("rss_mib_10", "< 20"),
    ("rss_mib_110", "< 30"),
    ("cpu_core_110", "< 0.005"),
];

/// Figures in the order in which they were taken.
#[derive(Default)]
pub struct Figures {
    rows: Vec<(String, f64)>,
    notes: Vec<String>,
    failed: bool,
}

impl Figures {
    /// A figure.
    pub fn add(&mut self, key: impl Into<String>, value: f64) {
        self.rows.push((key.into(), value));
    }

    /// Median and 99th percentile of some times, as `PREFIX_p50_ms` and `PREFIX_p99_ms`.
    pub fn quantiles(&mut self, prefix: &str, times: &[Duration]) {
        for (quantile, share) in [("p50", 0.50), ("p99", 0.99)] {
            if let Some(time) = percentile(times, share) {
                self.add(format!("{prefix}_{quantile}_ms"), time.as_secs_f64() * 1e3);
            }
        }
    }

    /// Something to know about the figures.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Figures that were not taken, on purpose.
    pub fn left_out(&mut self, keys: &str, reason: &str) {
        self.note(format!("left out: {keys}: {reason}"));
    }

    /// The end of a scenario: its failure is kept for the report.
    pub fn settle(&mut self, keys: &str, outcome: Result<()>) {
        if let Err(error) = outcome {
            eprintln!("bench node: failed: {error:#}");
            self.note(format!("FAILED, so not all of {keys} are here: {error:#}"));
            self.failed = true;
        }
    }

    /// Whether a scenario failed.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// One flat object, with the versions.
    pub fn json(&self) -> Value {
        let versions = versions().into_iter().map(|(name, version)| (name.to_owned(), Value::from(version)));
        let rows = self.rows.iter().map(|(key, value)| (key.clone(), Value::from((value * 1e6).round() / 1e6)));
        Value::Object(versions.chain(rows).collect::<Map<_, _>>())
    }

    /// The table.
    pub fn print(&self) {
        let versions: Vec<String> = versions().into_iter().map(|(name, version)| format!("{name} {version}")).collect();
        println!("one node: {}", versions.join(", "));
        println!("{:<32} {:>12}  aim", "what", "measured");
        for (key, value) in &self.rows {
            let aim = AIMS.iter().find(|(name, _)| name == key).map_or("", |(_, aim)| aim);
            println!("{key:<32} {value:>12.3}  {aim}");
        }
        for note in &self.notes {
            println!("{note}");
        }
    }
}

/// The nearest-rank percentile.
pub fn percentile(times: &[Duration], share: f64) -> Option<Duration> {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

fn versions() -> [(&'static str, String); 3] {
    [
        ("kernel", first_line("uname", &["-r"], 0)),
        ("containerd", first_line("containerd", &["--version"], 2)),
        ("runc", first_line("runc", &["--version"], 2)),
    ]
}

/// One word of the first line that a program prints.
fn first_line(program: &str, arguments: &[&str], word: usize) -> String {
    let output = Command::new(program).args(arguments).output().map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&output);
    let line = text.lines().next().unwrap_or("unknown");
    line.split_whitespace().nth(word).unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let times: Vec<Duration> = (1..=30).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 0.5), Some(Duration::from_millis(15)));
        assert_eq!(percentile(&times, 0.99), Some(Duration::from_millis(30)));
        assert_eq!(percentile(&[], 0.5), None);
    }
}
