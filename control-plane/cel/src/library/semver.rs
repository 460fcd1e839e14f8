//! Semantic versions.
//!
//! Upstream counterpart: `apiserver/pkg/cel/library/semverlib.go` version 1.

use cel::ExecutionError;
use cel::common::types::{BOOL_TYPE, CelBool, STRING_TYPE};
use cel::common::value::CowVal;
use semver::Version;

use super::quantity::order;
use super::{Args, Registry, arg, failed, out_bool, out_int, text};
use crate::value::opaque::opaque;

opaque!(
    /// A version.
    SemverVal(Version), SEMVER, "kubernetes.Semver"
);

pub(super) fn register(registry: &mut Registry) {
    registry.named_type(&SEMVER);
    for types in [&[&STRING_TYPE][..], &[&STRING_TYPE, &BOOL_TYPE]] {
        registry.global("semver", types, |args| Ok(CowVal::owned(SemverVal(parse(&args)?.map_err(failed)?))));
        registry.global("isSemver", types, |args| out_bool(parse(&args)?.is_ok()));
    }
    let both = [&SEMVER];
    registry.member("isGreaterThan", &SEMVER, &both, |args| out_bool(compare(&args)? > 0));
    registry.member("isLessThan", &SEMVER, &both, |args| out_bool(compare(&args)? < 0));
    registry.member("compareTo", &SEMVER, &both, |args| out_int(compare(&args)?));
    registry.member("major", &SEMVER, &[], |args| out_int(part(version(&args, 0)?.major)));
    registry.member("minor", &SEMVER, &[], |args| out_int(part(version(&args, 0)?.minor)));
    registry.member("patch", &SEMVER, &[], |args| out_int(part(version(&args, 0)?.patch)));
}

fn part(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn version<'b>(args: &'b Args<'_, '_>, at: usize) -> Result<&'b Version, ExecutionError> {
    arg::<SemverVal>(args, at).map(|value| &value.0)
}

fn compare(args: &Args<'_, '_>) -> Result<i64, ExecutionError> {
    Ok(order(version(args, 0)?.cmp_precedence(version(args, 1)?)))
}

/// The version in the first argument, normalized if the second says so. The outer error is a wrong type.
fn parse(args: &Args<'_, '_>) -> Result<Result<Version, String>, ExecutionError> {
    let raw = text(args, 0)?;
    let normalize = args.len() == 2 && *arg::<CelBool>(args, 1)?.inner();
    let normalized = if normalize { normal(raw) } else { Ok(raw.to_owned()) };
    Ok(normalized.and_then(|text| Version::parse(&text).map_err(|error| error.to_string())))
}

/// Without a leading `v` and leading zeros, with minor and patch.
fn normal(raw: &str) -> Result<String, String> {
    let mut parts: Vec<String> = raw.strip_prefix('v').unwrap_or(raw).splitn(3, '.').map(str::to_owned).collect();
    for part in &mut parts {
        let trimmed = part.trim_start_matches('0');
        if part.len() > 1 && trimmed.len() < part.len() {
            let digits = trimmed.starts_with(|c: char| c.is_ascii_digit());
            *part = if digits { trimmed.to_owned() } else { format!("0{trimmed}") };
        }
    }
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err("short version cannot contain PreRelease/Build meta data".to_owned());
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}
