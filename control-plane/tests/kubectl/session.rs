//! Sessions: files of commands and what they print.
//!
//! ```text
//! ## A comment, up to the next command.
//! ## GAP a reason: what is written for the next command is what upstream does, and we do not yet.
//! $ a command, for `sh`
//! > another line of it
//! what it prints on both streams, as a terminal shows it
//! [1]
//! ? a command that is repeated until it prints this
//! ```
//!
//! `[N]` is an exit code other than 0. `…` stands for any text of a line, a line `…` for any number of lines. Two or more spaces are as
//! good as two, because columns are as wide as the longest name; empty lines at the end do not count.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How long `?` repeats; several builds and tests may run beside.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Default, PartialEq, Eq)]
struct Step {
    line: usize,
    /// Comments above it.
    notes: Vec<String>,
    command: String,
    repeated: bool,
    expected: Vec<String>,
}

impl Step {
    fn gap(&self) -> Option<&str> {
        self.notes.iter().find_map(|note| note.strip_prefix("## GAP "))
    }

    fn told(&self) -> String {
        let sign = if self.repeated { '?' } else { '$' };
        format!("{sign} {}", self.command.replace('\n', "\n> "))
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut notes = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("## ") {
            notes.push(line.to_owned());
            continue;
        }
        let begun = line.strip_prefix("$ ").map(|c| (c, false)).or_else(|| line.strip_prefix("? ").map(|c| (c, true)));
        if let Some((command, repeated)) = begun {
            let notes = std::mem::take(&mut notes);
            steps.push(Step { line: index + 1, notes, command: command.to_owned(), repeated, expected: Vec::new() });
            continue;
        }
        if line.is_empty() && (steps.is_empty() || !notes.is_empty()) {
            continue;
        }
        let step = steps.last_mut().filter(|_| notes.is_empty());
        let step = step.with_context(|| format!("line {} is of no command", index + 1))?;
        match line.strip_prefix("> ").or_else(|| (line == ">").then_some("")) {
            Some(more) if step.expected.is_empty() => {
                step.command.push('\n');
                step.command.push_str(more);
            }
            _ => step.expected.push(line.to_owned()),
        }
    }
    for step in &mut steps {
        trim(&mut step.expected);
    }
    Ok(steps)
}

fn trim(lines: &mut Vec<String>) {
    while lines.last().is_some_and(|line| line.trim().is_empty()) {
        lines.pop();
    }
}

/// What is compared of a line.
fn squeezed(line: &str) -> String {
    let mut result = String::with_capacity(line.len());
    let mut spaces = 0;
    for c in line.trim_end().replace('\t', "  ").chars() {
        spaces = if c == ' ' { spaces + 1 } else { 0 };
        if spaces <= 2 {
            result.push(c);
        }
    }
    result
}

fn line_fits(pattern: &str, line: &str) -> bool {
    let (pattern, line) = (squeezed(pattern), squeezed(line));
    let mut parts = pattern.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

fn fits(pattern: &[String], lines: &[String]) -> bool {
    match pattern.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first == "…" => (0..=lines.len()).any(|skipped| fits(rest, &lines[skipped..])),
        Some((first, rest)) => {
            lines.split_first().is_some_and(|(line, others)| line_fits(first, line) && fits(rest, others))
        }
    }
}

type Run<'a> = dyn Fn(&str) -> anyhow::Result<(String, i32)> + 'a;

fn seen(run: &Run<'_>, command: &str) -> anyhow::Result<Vec<String>> {
    let (text, code) = run(command)?;
    let mut lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).collect();
    trim(&mut lines);
    if code != 0 {
        lines.push(format!("[{code}]"));
    }
    Ok(lines)
}

/// Plays a session to its end, then tells all that was not as it is written.
pub fn play(file: &Path, run: impl Fn(&str) -> anyhow::Result<(String, i32)>) -> anyhow::Result<()> {
    let name = file.display();
    let steps = parse(&std::fs::read_to_string(file).with_context(|| name.to_string())?)?;
    let mut wrong = String::new();
    let mut text = String::new();
    for step in &steps {
        let start = Instant::now();
        let mut lines = seen(&run, &step.command)?;
        while step.repeated && step.gap().is_none() && !fits(&step.expected, &lines) && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(100));
            lines = seen(&run, &step.command)?;
        }
        let fit = fits(&step.expected, &lines);
        for note in &step.notes {
            writeln!(text, "{note}")?;
        }
        let kept = if fit || step.gap().is_some() { &step.expected } else { &lines };
        writeln!(text, "{}", step.told())?;
        kept.iter().try_for_each(|line| writeln!(text, "{line}"))?;
        let told = step.told();
        match step.gap() {
            None if !fit => {
                let (expected, lines) = (step.expected.join("\n"), lines.join("\n"));
                writeln!(wrong, "{name}:{}: {told}\n--- expected\n{expected}\n--- seen\n{lines}\n", step.line)?;
            }
            Some(gap) if fit => {
                writeln!(wrong, "{name}:{}: {told}\nis as upstream's now: no gap ({gap})\n", step.line)?;
            }
            _ => {}
        }
    }
    if std::env::var_os("KEELSON_KUBECTL_WRITE").is_some() {
        std::fs::write(file, text)?;
    }
    if !wrong.is_empty() {
        bail!("{wrong}");
    }
    Ok(())
}

#[test]
fn notation() {
    let steps = parse("## GAP not yet\n$ a\n> b\nout\n\n[1]\n\n? c\n").expect("parses");
    assert_eq!((steps[0].command.as_str(), steps[0].gap()), ("a\nb", Some("not yet")));
    assert_eq!(steps[0].expected, ["out", "", "[1]"]);
    assert!(steps[1].repeated && steps[1].expected.is_empty());
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(fits(&lines("a\n…\nb …s"), &lines("a\nx\ny\nb 10s")));
    assert!(fits(&lines("NAME   AGE"), &lines("NAME      AGE")));
    assert!(!fits(&lines("a\nb"), &lines("a\nb\nc")) && !fits(&lines("a …b"), &lines("a c")));
}
