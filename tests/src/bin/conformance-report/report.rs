//! The counts, and the entries that do not pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Result, ensure};
use keelson_tests::results::{self, Verdict};

use crate::reasons::{self, Reason};
use crate::sources::{Covered, Test};

/// What is known of an entry.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Passed,
    Failed(String),
    NotRun(String),
    Without(String),
}

/// Entries by SIG.
pub struct Report {
    sigs: BTreeMap<String, Vec<(String, State)>>,
}

impl Report {
    /// Compares; a codename that the list does not know, an entry without test and reason, and a reason without entries are errors.
    pub fn new(codenames: &[String], covered: &Covered, reasons: &[Reason]) -> Result<Self> {
        let mut results = BTreeMap::new();
        for test in covered.values().flatten() {
            if !results.contains_key(&test.suite) {
                results.insert(test.suite.clone(), results::of(&test.suite)?);
            }
        }
        let verdict = |test: &Test| results.get(&test.suite).and_then(|suite| suite.get(&test.name)).copied();
        let sigs = compare(codenames, covered, reasons, verdict)?;
        Ok(Self { sigs })
    }

    /// Whether a test that covers an entry failed.
    pub fn failed(&self) -> bool {
        self.sigs.values().flatten().any(|(_, state)| matches!(state, State::Failed(_)))
    }
}

fn compare(
    codenames: &[String],
    covered: &Covered,
    reasons: &[Reason],
    verdict: impl Fn(&Test) -> Option<Verdict>,
) -> Result<BTreeMap<String, Vec<(String, State)>>> {
    let known: BTreeSet<&String> = codenames.iter().collect();
    let strange: Vec<String> = covered
        .iter()
        .filter(|(codename, _)| !known.contains(codename))
        .map(|(codename, tests)| format!("{} of suite {}: {codename}", tests[0].name, tests[0].suite))
        .collect();
    ensure!(
        strange.is_empty(),
        "the list has no entry with these codenames; copy them from it as they are:\n  {}",
        strange.join("\n  ")
    );
    let mut used = BTreeSet::new();
    let mut bare = Vec::new();
    let mut sigs: BTreeMap<String, Vec<(String, State)>> = BTreeMap::new();
    for codename in codenames {
        let state = if let Some(tests) = covered.get(codename) {
            of_tests(tests, &verdict)
        } else if let Some(reason) = reasons::of(codename, reasons) {
            used.insert(&reason.beginning);
            State::Without(reason.why.clone())
        } else {
            bare.push(codename.as_str());
            continue;
        };
        let sig = codename.split(']').next().unwrap_or_default().trim_start_matches('[').to_owned();
        sigs.entry(sig).or_default().push((codename.clone(), state));
    }
    ensure!(
        bare.is_empty(),
        "these entries have neither a test nor a reason in tests/conformance-reasons.txt:\n  {}",
        bare.join("\n  ")
    );
    let idle: Vec<&str> =
        reasons.iter().filter(|r| !used.contains(&r.beginning)).map(|r| r.beginning.as_str()).collect();
    ensure!(
        idle.is_empty(),
        "every entry that these reasons are for has a test, or there is none: remove them from tests/conformance-reasons.txt:\n  {}",
        idle.join("\n  ")
    );
    Ok(sigs)
}

/// All tests of an entry must pass.
fn of_tests(tests: &[Test], verdict: &impl Fn(&Test) -> Option<Verdict>) -> State {
    let named = |test: &Test| format!("{} of suite {}", test.name, test.suite);
    let failed = tests.iter().find(|test| verdict(test) == Some(Verdict::Failed));
    let missing = tests.iter().find(|test| verdict(test) != Some(Verdict::Passed));
    match (failed, missing) {
        (Some(test), _) => State::Failed(format!("FAILED: {}", named(test))),
        (None, Some(test)) => {
            let how = if verdict(test).is_some() { "was skipped" } else { "has not run" };
            State::NotRun(format!("{} {how}: ./dev test {}", named(test), test.suite.replace('_', "-")))
        }
        (None, None) => State::Passed,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<22} {:>7} {:>9} {:>6} {:>6} {:>7}",
            "SIG", "entries", "with test", "passed", "failed", "not run"
        )?;
        let row = |f: &mut fmt::Formatter<'_>, name: &str, entries: &[&State]| {
            let count = |wanted: fn(&State) -> bool| entries.iter().filter(|state| wanted(state)).count();
            let (passed, failed) = (count(|s| *s == State::Passed), count(|s| matches!(s, State::Failed(_))));
            let idle = count(|s| matches!(s, State::NotRun(_)));
            let with = passed + failed + idle;
            writeln!(f, "{name:<22} {:>7} {with:>9} {passed:>6} {failed:>6} {idle:>7}", entries.len())
        };
        for (sig, entries) in &self.sigs {
            row(f, sig, &entries.iter().map(|(_, state)| state).collect::<Vec<_>>())?;
        }
        row(f, "all", &self.sigs.values().flatten().map(|(_, state)| state).collect::<Vec<_>>())?;
        for (sig, entries) in &self.sigs {
            // One heading for each reason: whole features are missing more often than single entries.
            let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
            for (codename, state) in entries {
                let (State::Failed(why) | State::NotRun(why) | State::Without(why)) = state else { continue };
                match groups.iter_mut().find(|(known, _)| known == why) {
                    Some((_, group)) => group.push(codename),
                    None => groups.push((why, vec![codename])),
                }
            }
            if !groups.is_empty() {
                writeln!(f, "\n{sig}, without a passing test:")?;
            }
            for (why, group) in groups {
                writeln!(f, "  {why}")?;
                for codename in group {
                    writeln!(f, "    {codename}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(codename: &str, names: &[&str]) -> Covered {
        let test = |name: &&str| Test { suite: "s".to_owned(), name: (*name).to_owned() };
        Covered::from([(codename.to_owned(), names.iter().map(test).collect())])
    }

    fn states(covered: &Covered, reasons: &[Reason]) -> Result<Vec<State>> {
        let codenames = ["[sig-a] one".to_owned(), "[sig-a] two".to_owned()];
        let verdict = |test: &Test| match test.name.as_str() {
            "good" => Some(Verdict::Passed),
            "bad" => Some(Verdict::Failed),
            _ => None,
        };
        let sigs = compare(&codenames, covered, reasons, verdict)?;
        Ok(sigs.into_values().flatten().map(|(_, state)| state).collect())
    }

    fn reason(beginning: &str) -> Reason {
        Reason { beginning: beginning.to_owned(), why: "because".to_owned() }
    }

    #[test]
    fn an_entry_passes_with_all_its_tests() {
        let with = |names: &[&str]| states(&covered("[sig-a] one", names), &[reason("[sig-a]")]).unwrap().remove(0);
        assert_eq!(with(&["good"]), State::Passed);
        assert!(matches!(with(&["good", "bad"]), State::Failed(_)));
        assert!(matches!(with(&["good", "unknown"]), State::NotRun(_)));
    }

    #[test]
    fn contradictions_are_errors() {
        let says = |covered: &Covered, reasons: &[Reason]| states(covered, reasons).unwrap_err().to_string();
        assert!(says(&covered("[sig-a] onne", &["good"]), &[reason("[sig-a]")]).contains("onne"));
        assert!(says(&covered("[sig-a] one", &["good"]), &[]).contains("[sig-a] two"));
        let stale = [reason("[sig-a]"), reason("[sig-a] one")];
        assert!(says(&covered("[sig-a] one", &["good"]), &stale).contains("remove them"));
    }
}
