//! Why entries have no test: a table of beginnings of codenames, each with its reason.

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// A line of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Reason {
    /// What a codename begins with.
    pub beginning: String,
    /// Why such entries have no test.
    pub why: String,
}

/// Reads the table.
pub fn read(path: &Path) -> Result<Vec<Reason>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

/// `BEGINNING | REASON`, one a line; `#` begins a comment.
fn parse(text: &str) -> Result<Vec<Reason>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (beginning, why) = line.split_once(" | ").with_context(|| format!("{line:?} has no ` | `"))?;
            let reason = Reason { beginning: beginning.trim().to_owned(), why: why.trim().to_owned() };
            ensure!(reason.beginning.starts_with("[sig-") && !reason.why.is_empty(), "{line:?} is no reason");
            Ok(reason)
        })
        .collect()
}

/// The reason whose beginning is the longest that fits.
pub fn of<'a>(codename: &str, reasons: &'a [Reason]) -> Option<&'a Reason> {
    let fitting = reasons.iter().filter(|reason| codename.starts_with(&reason.beginning));
    fitting.max_by_key(|reason| reason.beginning.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_counts() {
        let table = parse("# words\n\n[sig-a] | general\n[sig-a] One | special\n").unwrap();
        assert_eq!(of("[sig-a] One thing", &table).unwrap().why, "special");
        assert_eq!(of("[sig-a] Two", &table).unwrap().why, "general");
        assert_eq!(of("[sig-b] Two", &table), None);
        assert!(parse("[sig-a] no reason").is_err());
    }
}
