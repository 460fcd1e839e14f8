//! Which test covers which entry: codenames in comments of the suites.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A test, as its suite's results name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Test {
    /// The suite.
    pub suite: String,
    /// The name in its table.
    pub name: String,
}

/// Tests by codename.
pub type Covered = BTreeMap<String, Vec<Test>>;

/// Reads the suites: `SUITE.rs`, and `SUITE/MODULE.rs` below it.
pub fn covered(folder: &Path) -> Result<Covered> {
    let mut covered = Covered::new();
    for path in sources(folder)? {
        let module = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let above = path.parent().filter(|parent| *parent != folder);
        let suite = above.and_then(|parent| parent.file_name()?.to_str()).unwrap_or(module);
        let table = read(&folder.join(format!("{suite}.rs")))?;
        for (codename, function) in marks(&read(&path)?).with_context(|| path.display().to_string())? {
            let name =
                registered(&table, module, &function).unwrap_or_else(|| format!("{suite}::{module}::{function}"));
            covered.entry(codename).or_default().push(Test { suite: suite.to_owned(), name });
        }
    }
    Ok(covered)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// All sources, one folder deep, in order.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let list = |folder: &Path| -> Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    };
    let mut all = Vec::new();
    for path in list(folder)? {
        if path.is_dir() {
            all.extend(list(&path)?);
        } else {
            all.push(path);
        }
    }
    all.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    Ok(all)
}

/// Codenames in the comments of a source, each with the function that follows.
fn marks(text: &str) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut waiting: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("//").map(|rest| rest.trim_start_matches('/').trim()) {
            if comment.starts_with("[sig-") && comment.ends_with("[Conformance]") {
                waiting.push(comment.to_owned());
            }
            continue;
        }
        let function = line.strip_prefix("pub ").unwrap_or(line).strip_prefix("fn ");
        if let Some(name) = function.and_then(|rest| rest.split(['(', '<']).next()) {
            found.extend(waiting.drain(..).map(|codename| (codename, name.to_owned())));
        } else if let Some(codename) = waiting.first() {
            bail!("no function follows the comment {codename:?}: put it right above its test");
        }
    }
    match waiting.first() {
        Some(codename) => bail!("no function follows the comment {codename:?}: put it right above its test"),
        None => Ok(found),
    }
}

/// The name under which a suite's table has a function: `("name", module::function)`, or `("name", function)` in the suite's own file.
fn registered(table: &str, module: &str, function: &str) -> Option<String> {
    // rustfmt may have put a long entry on several lines.
    let flat = table.split_whitespace().collect::<Vec<_>>().join(" ").replace("( \"", "(\"");
    let mut rest = flat.as_str();
    while let Some((_, after)) = rest.split_once("(\"") {
        let (name, after) = after.split_once('"')?;
        let target = after.strip_prefix(", ").and_then(|target| target.split([')', ',']).next()).unwrap_or_default();
        if target == function || target == format!("{module}::{function}") {
            return Some(name.to_owned());
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_belong_to_the_function_below() {
        let text =
            "// [sig-a] one [Conformance]\n// words\n/// [sig-b] two [Conformance]\npub fn test(lab: &Lab) {\n}\n";
        let mark = |codename: &str| (codename.to_owned(), "test".to_owned());
        assert_eq!(marks(text).unwrap(), [mark("[sig-a] one [Conformance]"), mark("[sig-b] two [Conformance]")]);
        assert!(marks("// [sig-a] one [Conformance]\nconst A: u8 = 1;\n").is_err());
        assert!(marks("// [sig-a] one [Conformance]\n").is_err());
    }

    #[test]
    fn names_come_from_the_table() {
        let table = "let tests = &[(\"a_b\", probes::run), (\n    \"own\",\n    own,\n)];";
        assert_eq!(registered(table, "probes", "run").as_deref(), Some("a_b"));
        assert_eq!(registered(table, "suite", "own").as_deref(), Some("own"));
        assert_eq!(registered(table, "hooks", "run"), None);
    }
}
