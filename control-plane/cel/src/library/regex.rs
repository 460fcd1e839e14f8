//! `find`, `findAll` and `matches`, with compiled expressions kept.
//!
//! Upstream counterpart: `apiserver/pkg/cel/library/regex.go`. Go's RE2 and Rust's `regex` are the same dialect but for a few escapes.

use std::cell::RefCell;
use std::collections::HashMap;

use cel::ExecutionError;
use cel::common::types::{INT_TYPE, STRING_TYPE};
use cel::common::value::CowVal;
use regex::{Regex, RegexBuilder};

use super::{Args, Out, Registry, failed, out_bool, out_text, text, text_list, whole};
use crate::budget::{charge, text_units};

pub(crate) const MATCHES: &str = "@matches";

/// The largest program that an expression may compile to; Go has a limit of its own (1,000 repetitions).
const MAX_PROGRAM_BYTES: usize = 1 << 20;
/// How many compiled expressions each thread keeps.
const KEPT: usize = 64;
/// Characters of an expression for one cost unit (upstream's `RegexStringLengthCostFactor` of 0.25).
const CHARS_PER_UNIT: usize = 4;

thread_local! {
    static COMPILED: RefCell<HashMap<String, Regex>> = RefCell::new(HashMap::new());
}

pub(super) fn register(registry: &mut Registry) {
    registry.hidden(MATCHES, &[&STRING_TYPE, &STRING_TYPE], |args| {
        let regex = prepared(text(&args, 1)?, text(&args, 0)?)?;
        out_bool(regex.is_match(text(&args, 0)?))
    });
    registry.member("find", &STRING_TYPE, &[&STRING_TYPE], |args| {
        let subject = text(&args, 0)?;
        let found = prepared(text(&args, 1)?, subject)?.find(subject).map(|hit| hit.as_str().to_owned());
        out_text(found.unwrap_or_default())
    });
    registry.member("findAll", &STRING_TYPE, &[&STRING_TYPE], find_all);
    registry.member("findAll", &STRING_TYPE, &[&STRING_TYPE, &INT_TYPE], find_all);
}

/// Compiles an expression.
///
/// # Errors
/// In the library's words; a bad literal is found when the expression is compiled.
pub(crate) fn compile(pattern: &str) -> Result<Regex, ExecutionError> {
    COMPILED.with_borrow_mut(|compiled| {
        if let Some(regex) = compiled.get(pattern) {
            return Ok(regex.clone());
        }
        let regex = RegexBuilder::new(pattern).size_limit(MAX_PROGRAM_BYTES).build();
        let regex = regex.map_err(|error| failed(format!("Illegal regex: {error}")))?;
        if compiled.len() >= KEPT {
            compiled.clear();
        }
        compiled.insert(pattern.to_owned(), regex.clone());
        Ok(regex)
    })
}

fn prepared(pattern: &str, subject: &str) -> Result<Regex, ExecutionError> {
    let per_unit = u64::try_from(pattern.len() / CHARS_PER_UNIT).unwrap_or(u64::MAX).saturating_add(1);
    charge(text_units(subject.len()).saturating_mul(per_unit))?;
    compile(pattern)
}

fn find_all<'b, 'v>(args: Args<'b, 'v>) -> Out<'b, 'v> {
    let subject = text(&args, 0)?;
    let limit = if args.len() == 3 { usize::try_from(whole(&args, 2)?).unwrap_or(usize::MAX) } else { usize::MAX };
    let regex = prepared(text(&args, 1)?, subject)?;
    let hits: Vec<String> = regex.find_iter(subject).take(limit).map(|hit| hit.as_str().to_owned()).collect();
    charge(u64::try_from(hits.len()).unwrap_or(u64::MAX))?;
    Ok(CowVal::owned(text_list(hits)))
}
