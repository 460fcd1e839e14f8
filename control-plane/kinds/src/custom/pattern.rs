//! Regular expressions of schemas: Go's syntax, matched in linear time, compiled under limits.
//!
//! Go's Perl classes are ASCII, and it takes a brace or a bracket for itself where the `regex` crate would not; [`translate`] rewrites
//! what differs. A pattern that compiles to more than [`PATTERN_LIMIT`] bytes is refused, and so are patterns that together compile to
//! more than [`Patterns::BUDGET`] in one version of a definition. Upstream counterpart: `regexp` in `kube-openapi/pkg/validation/validate`.

use std::collections::HashMap;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};

/// Most bytes of one compiled pattern.
pub(crate) const PATTERN_LIMIT: usize = 1 << 20;
/// Sizes that are tried one after the other, so that a small pattern costs little of the budget.
const STEPS: &[usize] = &[1 << 14, 1 << 17, PATTERN_LIMIT];
/// Most bytes of a cache that matching one text may use.
const MATCH_CACHE: usize = 1 << 19;
/// Go's limit for a counted repetition.
const MAX_REPEAT: u32 = 1000;

/// A pattern as written, and what it compiles to or why it does not.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub(crate) source: String,
    pub(crate) compiled: Result<Arc<Regex>, String>,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Pattern {
    /// Whether `text` has a match; nothing matches a pattern that does not compile.
    pub(crate) fn matches(&self, text: &str) -> bool {
        self.compiled.as_ref().is_ok_and(|regex| regex.is_match(text))
    }
}

/// The patterns of one version of a definition.
#[derive(Debug, Default)]
pub(crate) struct Patterns {
    known: HashMap<String, Pattern>,
    spent: usize,
}

impl Patterns {
    /// Most bytes of all compiled patterns of a version.
    pub(crate) const BUDGET: usize = 16 << 20;

    pub(crate) fn compile(&mut self, source: &str) -> Pattern {
        if let Some(known) = self.known.get(source) {
            return known.clone();
        }
        let compiled = translate(source).and_then(|text| self.build(&text)).map(Arc::new);
        let pattern = Pattern { source: source.to_owned(), compiled };
        self.known.insert(source.to_owned(), pattern.clone());
        pattern
    }

    fn build(&mut self, text: &str) -> Result<Regex, String> {
        for size in STEPS {
            if self.spent + size > Self::BUDGET {
                return Err("error parsing regexp: the patterns of the schema are too large together".to_owned());
            }
            let built = RegexBuilder::new(text).size_limit(*size).dfa_size_limit(MATCH_CACHE).build();
            match built {
                Ok(regex) => {
                    self.spent += size;
                    return Ok(regex);
                }
                Err(regex::Error::CompiledTooBig(_)) => {}
                Err(error) => {
                    let text = error.to_string();
                    let why = text.lines().last().unwrap_or("").trim_start_matches("error: ").to_owned();
                    return Err(format!("error parsing regexp: {why}"));
                }
            }
        }
        self.spent += PATTERN_LIMIT;
        Err("error parsing regexp: expression is too large".to_owned())
    }
}

/// The same expression in the syntax of the `regex` crate.
fn translate(source: &str) -> Result<String, String> {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut inside = false;
    let mut start_of_class = false;
    while let Some(c) = rest.chars().next() {
        let next = &rest[c.len_utf8()..];
        if c == '\\' {
            rest = escape(next, inside, &mut out)?;
            start_of_class = false;
            continue;
        }
        rest = next;
        if inside {
            match c {
                ']' if !start_of_class => {
                    inside = false;
                    out.push(']');
                }
                '[' if next.starts_with(':') => {
                    let end = next.find(":]").ok_or("error parsing regexp: missing closing ]")?;
                    out.push('[');
                    out.push_str(&next[..end + 2]);
                    rest = &next[end + 2..];
                }
                ']' | '[' | '&' | '~' => {
                    out.push('\\');
                    out.push(c);
                }
                '-' if out.ends_with('-') => out.push_str("\\-"),
                _ => out.push(c),
            }
            start_of_class = start_of_class && c == '^' && out.ends_with("[^");
            continue;
        }
        match c {
            '[' => {
                inside = true;
                start_of_class = true;
                out.push('[');
            }
            '{' => match repetition(next)? {
                Some(len) => {
                    out.push('{');
                    out.push_str(&next[..len]);
                    rest = &next[len..];
                }
                None => out.push_str("\\{"),
            },
            '}' => out.push_str("\\}"),
            _ => out.push(c),
        }
    }
    Ok(out)
}

/// What follows a backslash; returns the text behind it.
fn escape<'a>(text: &'a str, inside: bool, out: &mut String) -> Result<&'a str, String> {
    let Some(c) = text.chars().next() else {
        return Err("error parsing regexp: trailing backslash at end of expression".to_owned());
    };
    let rest = &text[c.len_utf8()..];
    let class = match c.to_ascii_lowercase() {
        'd' => Some("0-9"),
        'w' => Some("0-9A-Za-z_"),
        's' => Some("\\t\\n\\x0c\\r "),
        _ => None,
    };
    match (class, c) {
        (Some(class), _) => {
            let set = match (inside, c.is_ascii_uppercase()) {
                (true, false) => class.to_owned(),
                (false, false) => format!("[{class}]"),
                (_, true) => format!("[^{class}]"),
            };
            out.push_str(&set);
        }
        (None, 'b') if !inside => out.push_str("(?-u:\\b)"),
        (None, 'Q') if !inside => {
            let (literal, after) = rest.split_once("\\E").unwrap_or((rest, ""));
            out.push_str(&regex::escape(literal));
            return Ok(after);
        }
        (None, '<' | '>') => out.push(c),
        (None, c) => {
            out.push('\\');
            out.push(c);
        }
    }
    Ok(rest)
}

/// Length of a counted repetition behind its opening brace, closing brace included; nothing if the brace stands for itself.
fn repetition(text: &str) -> Result<Option<usize>, String> {
    let Some(end) = text.find('}') else { return Ok(None) };
    let inner = &text[..end];
    let (low, high) = inner.split_once(',').unwrap_or((inner, ""));
    let digits = |part: &str| part.bytes().all(|c| c.is_ascii_digit());
    if low.is_empty() || !digits(low) || !digits(high) {
        return Ok(None);
    }
    let too_many = |part: &str| !part.is_empty() && part.parse::<u32>().map_or(true, |n| n > MAX_REPEAT);
    if too_many(low) || too_many(high) {
        return Err(format!("error parsing regexp: invalid repeat count: `{{{inner}}}`"));
    }
    Ok(Some(end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, text: &str) -> bool {
        let pattern = Patterns::default().compile(pattern);
        assert!(pattern.compiled.is_ok(), "{pattern:?}");
        pattern.matches(text)
    }

    fn refusal(pattern: &str) -> String {
        Patterns::default().compile(pattern).compiled.expect_err(pattern)
    }

    #[test]
    fn go_syntax_is_understood() {
        assert!(matches("^\\d+$", "12") && !matches("^\\d+$", "\u{664}"));
        assert!(matches("^\\w[\\w.-]*$", "a_b.c-d") && !matches("^\\w+$", "é"));
        assert!(matches("^[^\\s]+$", "a") && !matches("^[^\\s]+$", "a b"));
        assert!(matches("^[\\D]$", "x") && !matches("^[\\D]$", "1"));
        assert!(matches("^{a}$", "{a}") && matches("^a{2,3}$", "aa") && matches("x{,3}", "x{,3}"));
        assert!(
            matches("^[[]$", "[") && matches("^[]a]+$", "]a") && matches("^[^]]$", "a") && matches("^[a&&b]+$", "a&b")
        );
        assert!(matches("^[[:alpha:]]+$", "ab") && matches("^\\Qa.b\\E$", "a.b") && !matches("^\\Qa.b\\E$", "axb"));
        assert!(matches("\\bfoo\\b", "a foo b") && matches("^\\<a\\>$", "<a>"));
        assert!(!matches("^a$", "a\n"), "the end is the end of the text");
    }

    #[test]
    fn what_go_refuses_is_refused() {
        assert_eq!(refusal("a{1001}"), "error parsing regexp: invalid repeat count: `{1001}`");
        assert!(refusal("(").starts_with("error parsing regexp: "));
        assert!(refusal("(?=a)").starts_with("error parsing regexp: "));
        assert_eq!(refusal("a\\"), "error parsing regexp: trailing backslash at end of expression");
    }

    #[test]
    fn large_patterns_are_refused_before_they_cost() {
        assert_eq!(refusal("((a{1000}){1000}){1000}"), "error parsing regexp: expression is too large");
        let mut patterns = Patterns::default();
        let refused =
            (0..100).filter(|i| patterns.compile(&format!("(\\pL{{200}}){{20}}{i}")).compiled.is_err()).count();
        assert!(refused > 0 && patterns.spent <= Patterns::BUDGET, "{refused} {}", patterns.spent);
        // The same pattern again costs nothing.
        let mut patterns = Patterns::default();
        (0..10_000).for_each(|_| assert!(patterns.compile("^a+$").compiled.is_ok()));
    }

    proptest! {
        #[test]
        fn nothing_panics(source in ".{0,30}", text in ".{0,10}") {
            let _ = Patterns::default().compile(&source).matches(&text);
        }

        #[test]
        fn metacharacters_do_not_panic(source in "[\\\\\\[\\]{}()^$.*+?|&~a0-9,:QEdDwW-]{0,20}") {
            let _ = Patterns::default().compile(&source).matches("a0");
        }
    }
}
