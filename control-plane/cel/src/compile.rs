//! From text to a checked expression: parse, check names and plain types, insert the meter.
//!
//! Upstream counterpart: cel-go's parser and checker as `admission/plugin/cel/compile.go` calls them. The `cel` crate has no type
//! checker; what is checked here is what the syntax tree makes plain, and the rest is found when the expression is evaluated.

mod check;
mod depth;
mod rewrite;
mod types;

use cel::IdedExpr;
use cel::common::ast::SourceInfo;

use crate::expression::{CompileError, Expect};

pub(crate) use types::Plain;

/// Longest expression, in characters (cel-go's `expressionSizeCodePointLimit`).
const MAX_LENGTH: usize = 100_000;
/// The stack that parsing gets: the parser recurses about ten times for each level of parentheses.
const PARSER_STACK: usize = 32 << 20;
/// Levels of parentheses that the parser accepts. cel-go's 250 would overflow the interpreter's stack.
const MAX_NESTING: u16 = 64;

/// What a compiled text is.
pub(crate) struct Compiled {
    pub ast: IdedExpr,
    /// Levels of the tree.
    pub depth: usize,
    /// What it plainly evaluates to.
    pub plain: Plain,
    /// The declared variables that it reads.
    pub reads: Vec<String>,
}

/// An error at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Issue {
    /// Bytes before it.
    pub at: usize,
    pub message: String,
}

pub(crate) fn compile(text: &str, variables: &[Declared<'_>], expect: Expect) -> Result<Compiled, CompileError> {
    let length = text.chars().count();
    if length > MAX_LENGTH {
        return Err(CompileError::TooLong { length, limit: MAX_LENGTH });
    }
    depth::check(text)?;
    let work = || parse_and_check(text, variables, expect);
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("cel-compile".to_owned()).stack_size(PARSER_STACK);
        let running = builder.spawn_scoped(scope, work).map_err(|error| CompileError::Internal(error.to_string()))?;
        running.join().unwrap_or_else(|_| Err(CompileError::Internal("the parser failed".to_owned())))
    })
}

/// A variable that an expression may read, and what is known of it.
#[derive(Clone, Debug)]
pub(crate) struct Declared<'a> {
    pub name: &'a str,
    pub plain: Plain,
}

fn parse_and_check(text: &str, variables: &[Declared<'_>], expect: Expect) -> Result<Compiled, CompileError> {
    let parser = crate::library::env().parser().max_recursion_depth(MAX_NESTING).enable_ident_escape_syntax(true);
    let (mut ast, source) = parser.parse_with_source_info(text).map_err(|errors| {
        let issues = errors.errors.iter().map(|error| {
            let (line, column) = (usize::try_from(error.pos.0).unwrap_or(1), usize::try_from(error.pos.1).unwrap_or(1));
            render(text, line.max(1), column.max(1), &error.msg)
        });
        CompileError::Invalid(issues.collect::<Vec<_>>().join("\n"))
    })?;
    let depth = depth::of_tree(&ast)?;
    let checked = check::check(&ast, &source, variables, expect);
    if !checked.issues.is_empty() {
        let issues = checked.issues.iter().map(|issue| {
            let (line, column) = position(text, issue.at);
            render(text, line, column, &issue.message)
        });
        return Err(CompileError::Invalid(issues.collect::<Vec<_>>().join("\n")));
    }
    if !expect.admits(&checked.plain) {
        return Err(CompileError::WrongType { expected: expect.words(), found: checked.plain.name() });
    }
    rewrite::rewrite(&mut ast);
    Ok(Compiled { ast, depth, plain: checked.plain, reads: checked.reads })
}

/// Where an expression begins, in bytes.
fn offset_of(source: &SourceInfo, id: u64) -> usize {
    source.offset_for(id).map_or(0, |(start, _)| usize::try_from(start).unwrap_or(0))
}

/// Line and column, from one.
fn position(text: &str, at: usize) -> (usize, usize) {
    let (mut line, mut column) = (1, 1);
    for (_, c) in text.char_indices().take_while(|(byte, _)| *byte < at) {
        if c == '\n' {
            line += 1;
            column = 1;
        } else {
            column += 1;
        }
    }
    (line, column)
}

/// An error as cel-go prints it: the line, and a caret under the place.
fn render(text: &str, line: usize, column: usize, message: &str) -> String {
    let shown = text.split('\n').nth(line - 1).unwrap_or("").replace('\t', " ");
    let dots = ".".repeat(column - 1);
    format!("ERROR: <input>:{line}:{column}: {message}\n | {shown}\n | {dots}^")
}
