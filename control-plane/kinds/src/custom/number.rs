//! Numbers as schemas restrict them: integers by the whole part of a limit, everything else as 64-bit floats.
//!
//! Upstream counterpart: `kube-openapi/pkg/validation/validate/values.go`.

use serde_json::Number;

/// Most bits of a float's whole part that are printed without an exponent, as Go's `%v`.
const PLAIN_BELOW: f64 = 1e21;

/// Whether Go would read the number as an integer.
pub(crate) fn is_int(n: &Number) -> bool {
    n.is_i64()
}

#[expect(clippy::cast_possible_truncation, reason = "limits of integers are cut, as Go's conversion does")]
fn whole(limit: f64) -> i64 {
    limit as i64
}

/// Whether `n` is less than `min`, or equal to it if that is excluded.
pub(crate) fn below(n: &Number, min: f64, exclusive: bool) -> bool {
    match n.as_i64() {
        Some(n) => n < whole(min) || (exclusive && n == whole(min)),
        None => n.as_f64().is_some_and(|n| n < min || (exclusive && n <= min)),
    }
}

/// Whether `n` is more than `max`, or equal to it if that is excluded.
pub(crate) fn above(n: &Number, max: f64, exclusive: bool) -> bool {
    match n.as_i64() {
        Some(n) => n > whole(max) || (exclusive && n == whole(max)),
        None => n.as_f64().is_some_and(|n| n > max || (exclusive && n >= max)),
    }
}

/// Whether `n` is a multiple of `factor`; nothing is one of a factor that is not positive.
pub(crate) fn is_multiple(n: &Number, factor: f64) -> bool {
    /// How far from a whole number a quotient may be.
    const EPSILON: f64 = 1e-9;
    if factor <= 0.0 {
        return false;
    }
    match n.as_i64() {
        Some(n) if factor >= 1.0 => n % whole(factor) == 0,
        _ => n.as_f64().is_some_and(|n| {
            let quotient = if factor < 1.0 { 1.0 / factor * n } else { n / factor };
            (quotient - quotient.round()).abs() <= EPSILON * quotient.abs().max(1.0)
        }),
    }
}

/// A limit as messages show it beside `n`.
pub(crate) fn limit(n: &Number, limit: f64) -> String {
    if n.is_i64() { whole(limit).to_string() } else { go_float(limit) }
}

/// Go's `%v` of a float.
pub(crate) fn go_float(f: f64) -> String {
    if f == 0.0 || (1e-4..PLAIN_BELOW).contains(&f.abs()) {
        return f.to_string();
    }
    let text = format!("{f:e}");
    match text.split_once('e') {
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
        None => text,
    }
}

/// Whether `n` fits its type and format.
pub(crate) fn in_range(n: &Number, kind: &str, format: &str) -> bool {
    match (kind, format) {
        ("integer", "int32") => n.as_f64().is_some_and(|n| n >= f64::from(i32::MIN) && n <= f64::from(i32::MAX)),
        ("number", "float") => n.as_f64().is_some_and(|n| n.abs() <= f64::from(f32::MAX)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(text: &str) -> Number {
        serde_json::from_str(text).expect(text)
    }

    #[test]
    fn limits() {
        assert!(below(&n("0"), 1.0, false) && !below(&n("1"), 1.0, false) && below(&n("1"), 1.0, true));
        assert!(above(&n("1.6"), 1.5, false) && !above(&n("1.5"), 1.5, false) && above(&n("1.5"), 1.5, true));
        assert!(above(&n("2"), 1.5, false) && !above(&n("1"), 1.5, false));
        assert!(is_multiple(&n("9"), 3.0) && !is_multiple(&n("10"), 3.0) && is_multiple(&n("0.3"), 0.1));
        assert!(is_multiple(&n("1"), 0.5) && !is_multiple(&n("1"), 0.0) && !is_multiple(&n("1"), -1.0));
        assert!(in_range(&n("2147483647"), "integer", "int32") && !in_range(&n("2147483648"), "integer", "int32"));
    }

    #[test]
    fn floats_are_printed_as_go_does() {
        for (f, text) in [
            (1.0, "1"),
            (1.5, "1.5"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (1e-5, "1e-05"),
            (-0.25, "-0.25"),
        ] {
            assert_eq!(go_float(f), text);
        }
    }
}
