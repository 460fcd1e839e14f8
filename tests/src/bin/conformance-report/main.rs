//! `./dev conformance`: of upstream's conformance list, what has a passing test here, by SIG, and why the rest has none.
//!
//! The list is upstream's `test/conformance/testdata/conformance.yaml`, by argument or where the repository's neighbours keep it. A test
//! covers the entries whose codenames stand in comments above it; whether it passed is what its suite recorded when it last ran. Reasons
//! stand in `tests/conformance-reasons.txt`.
//!
//! Exit codes: 0 nothing is wrong, 1 a test that covers an entry failed, 2 something cannot be read or contradicts the list.

mod reasons;
mod report;
mod sources;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

/// Where the list lies when it is not given, seen from the repository.
const LIST: &str = "../shared/corpus/conformance.yaml";

fn main() -> ExitCode {
    match run() {
        Ok(failed) => ExitCode::from(u8::from(failed)),
        Err(error) => {
            eprintln!("conformance: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let repository = tests.parent().context("the tests lie in no repository")?;
    let given: Vec<String> = std::env::args().skip(1).collect();
    let list = match given.as_slice() {
        [] => repository.join(LIST),
        [path] => PathBuf::from(path),
        _ => bail!("usage: conformance-report [CONFORMANCE_YAML]"),
    };
    let codenames = codenames(&list)?;
    let covered = sources::covered(&tests.join("tests"))?;
    let reasons = reasons::read(&tests.join("conformance-reasons.txt"))?;
    let report = report::Report::new(&codenames, &covered, &reasons)?;
    // Whoever reads only the beginning has closed the pipe; that is no error.
    let _ = write!(std::io::stdout(), "{report}");
    Ok(report.failed())
}

/// Codenames in the list's order.
fn codenames(list: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(list).with_context(|| {
        format!(
            "there is no conformance list at {}: give the path of upstream's test/conformance/testdata/conformance.yaml",
            list.display()
        )
    })?;
    let documents = kube_common::yaml::parse_documents(&text).with_context(|| format!("reading {}", list.display()))?;
    let entries = documents.first().map(kube_common::yaml::Node::to_json).unwrap_or_default();
    let entries = entries.as_array().with_context(|| format!("{} holds no list", list.display()))?;
    let names: Vec<String> = entries.iter().filter_map(|entry| entry["codename"].as_str().map(str::to_owned)).collect();
    ensure!(names.len() == entries.len() && !names.is_empty(), "an entry of {} has no codename", list.display());
    Ok(names)
}
