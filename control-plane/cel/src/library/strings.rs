//! Functions on text whose cost is not the length of their argument: metered, and linear where the `cel` crate's are not.
//!
//! Upstream counterpart: cel-go's `ext.Strings` version 2. Offsets count characters.

use cel::ExecutionError;
use cel::common::types::{CelString, Kind, STRING_TYPE};

use super::{Args, Out, Registry, failed, lists, out_int, out_text, text, whole};
use crate::budget::{charge, charge_text};

pub(crate) const INDEX_OF: &str = "@indexOf";
pub(crate) const LAST_INDEX_OF: &str = "@lastIndexOf";
pub(crate) const REPLACE: &str = "@replace";
pub(crate) const JOIN: &str = "@join";
pub(crate) const TEMPLATE: &str = "@template";

/// The largest precision that a format may ask for (`%.Nf`); upstream's cost limit has the same purpose.
const MAX_PRECISION: usize = 100;

pub(super) fn register(registry: &mut Registry) {
    for arity in [2, 3] {
        registry.hidden_dyn(INDEX_OF, arity, index_of);
        registry.hidden_dyn(LAST_INDEX_OF, arity, last_index_of);
    }
    for arity in [3, 4] {
        registry.hidden_dyn(REPLACE, arity, replace);
    }
    for arity in [1, 2] {
        registry.hidden_dyn(JOIN, arity, join);
    }
    registry.hidden_dyn(TEMPLATE, 1, template);
    // Kubernetes' `library/jsonpatch.go`: a key as a segment of a JSON pointer.
    registry.global("jsonpatch.escapeKey", &[&STRING_TYPE], |args| {
        let key = text(&args, 0)?;
        charge_text(key.len())?;
        out_text(key.replace('~', "~0").replace('/', "~1"))
    });
}

/// The byte offset of the character at `at`; the end for the one after the last.
fn byte_offset(text: &str, at: usize) -> Option<usize> {
    text.char_indices().map(|(byte, _)| byte).chain([text.len()]).nth(at)
}

fn characters(text: &str) -> i64 {
    i64::try_from(text.chars().count()).unwrap_or(i64::MAX)
}

/// The offset argument: inside the text, unless nothing is searched for.
fn offset(args: &Args<'_, '_>, haystack: &str, needle: &str) -> Result<Option<usize>, ExecutionError> {
    if args.len() < 3 {
        return Ok(None);
    }
    let at = whole(args, 2)?;
    if at < 0 || (at >= characters(haystack) && !needle.is_empty()) {
        return Err(failed(format!("index out of range: {at}")));
    }
    Ok(usize::try_from(at).ok())
}

fn index_of<'b, 'v>(args: Args<'b, 'v>) -> Out<'b, 'v> {
    if args[0].get_type().kind() == Kind::List && args.len() == 2 {
        return lists::index_of(&args);
    }
    let (haystack, needle) = (text(&args, 0)?, text(&args, 1)?);
    charge_text(haystack.len())?;
    let from = offset(&args, haystack, needle)?.unwrap_or(0);
    let start = byte_offset(haystack, from).unwrap_or(haystack.len());
    let found = haystack[start..].find(needle).map(|at| characters(&haystack[..start + at]));
    out_int(found.unwrap_or(-1))
}

fn last_index_of<'b, 'v>(args: Args<'b, 'v>) -> Out<'b, 'v> {
    if args[0].get_type().kind() == Kind::List && args.len() == 2 {
        return lists::last_index_of(&args);
    }
    let (haystack, needle) = (text(&args, 0)?, text(&args, 1)?);
    charge_text(haystack.len())?;
    // The match may begin at the offset, and so end after it.
    let end = match offset(&args, haystack, needle)? {
        None => haystack.len(),
        Some(at) => byte_offset(haystack, at).map_or(haystack.len(), |at| (at + needle.len()).min(haystack.len())),
    };
    let end = (end..=haystack.len()).find(|end| haystack.is_char_boundary(*end)).unwrap_or(haystack.len());
    let found = haystack[..end].rfind(needle).map(|at| characters(&haystack[..at]));
    out_int(found.unwrap_or(-1))
}

fn replace<'b, 'v>(args: Args<'b, 'v>) -> Out<'b, 'v> {
    let (subject, from, to) = (text(&args, 0)?, text(&args, 1)?, text(&args, 2)?);
    charge_text(subject.len())?;
    let limit = match args.len() {
        3 => usize::MAX,
        _ => usize::try_from(whole(&args, 3)?).unwrap_or(usize::MAX),
    };
    let hits = subject.matches(from).take(limit).count();
    charge_text(hits.saturating_mul(to.len()))?;
    out_text(subject.replacen(from, to, limit))
}

fn join<'b, 'v>(args: Args<'b, 'v>) -> Out<'b, 'v> {
    let separator = if args.len() == 2 { text(&args, 1)? } else { "" };
    let mismatch = || ExecutionError::no_such_overload("join", vec![args[0].get_type().name().to_owned()]);
    let mut items = args[0].as_iterable().ok_or_else(mismatch)?.iter();
    let mut out = String::new();
    let mut first = true;
    while let Some(item) = items.next() {
        let item = item.downcast_ref::<CelString>().ok_or_else(mismatch)?.inner();
        charge_text(item.len() + separator.len())?;
        if !std::mem::take(&mut first) {
            out.push_str(separator);
        }
        out.push_str(item);
    }
    out_text(out)
}

/// Lets the format of `format()` pass, unless it asks for an unreasonable precision.
fn template<'b, 'v>(mut args: Args<'b, 'v>) -> Out<'b, 'v> {
    let format = text(&args, 0)?;
    charge_text(format.len())?;
    let mut clauses = 0;
    for clause in format.split('%').skip(1) {
        clauses += 1;
        let digits = clause.strip_prefix('.').unwrap_or("");
        let digits = &digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())];
        if !digits.is_empty() && digits.parse::<usize>().map_or(true, |precision| precision > MAX_PRECISION) {
            return Err(failed(format!("precision must be at most {MAX_PRECISION}")));
        }
    }
    charge(clauses)?;
    Ok(args.remove(0))
}
