//! Go durations (`1m30s`, `250ms`, `1.5h`) as upstream's configuration files write them.
//!
//! Upstream counterpart: `metav1.Duration`, which is Go's `time.ParseDuration`.

use std::fmt;
use std::time::Duration;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration in Go's notation. Negative values are refused: no setting of ours takes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(pub Duration);

/// Why a text is not a Go duration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("invalid duration {text:?}: {reason}; write for example 30s, 1m30s or 500ms")]
pub struct DurationError {
    text: String,
    reason: &'static str,
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

impl GoDuration {
    /// A duration of whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Parses Go's notation: decimal numbers with a unit each, `ns us µs ms s m h`; `0` alone is allowed.
    ///
    /// # Errors
    /// When the text is empty, negative, lacks a unit, or exceeds Go's range of 2^63-1 ns.
    pub fn parse(text: &str) -> Result<Self, DurationError> {
        let fail = |reason| DurationError { text: text.to_owned(), reason };
        let mut rest = text.strip_prefix('+').unwrap_or(text);
        if rest.starts_with('-') {
            return Err(fail("it is negative"));
        }
        if rest == "0" {
            return Ok(Self::default());
        }
        if rest.is_empty() {
            return Err(fail("it is empty"));
        }
        let mut total: u128 = 0;
        while !rest.is_empty() {
            let number_len =
                rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(|| fail("a unit is missing"))?;
            let (number, tail) = rest.split_at(number_len);
            let unit_len = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_len);
            let scale: u128 = match unit {
                "ns" => 1,
                "us" | "µs" | "μs" => 1_000,
                "ms" => 1_000_000,
                "s" => NANOS_PER_SECOND,
                "m" => 60 * NANOS_PER_SECOND,
                "h" => 3_600 * NANOS_PER_SECOND,
                _ => return Err(fail("the unit is not one of ns, us, ms, s, m, h")),
            };
            total = total
                .checked_add(scaled(number, scale).ok_or_else(|| fail("a number is malformed"))?)
                .filter(|nanos| *nanos <= i64::MAX as u128)
                .ok_or_else(|| fail("it is larger than 292 years"))?;
            rest = tail;
        }
        let nanos = u64::try_from(total).map_err(|_| fail("it is larger than 292 years"))?;
        Ok(Self(Duration::from_nanos(nanos)))
    }
}

/// `number` (decimal, with or without a fraction) times `scale`, cut to whole units as Go does.
fn scaled(number: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
    // Beyond 18 places a fraction cannot change a whole nanosecond.
    let fraction = &fraction[..fraction.len().min(18)];
    let part = digits(fraction)?.checked_mul(scale)? / 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    digits(whole)?.checked_mul(scale)?.checked_add(part)
}

impl From<Duration> for GoDuration {
    fn from(value: Duration) -> Self {
        Self(value)
    }
}

impl From<GoDuration> for Duration {
    fn from(value: GoDuration) -> Self {
        value.0
    }
}

impl fmt::Display for GoDuration {
    /// Go's canonical form: `1h0m0s`, `1m30s`, `1.5s`, `250ms`, `0s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        if nanos < NANOS_PER_SECOND {
            let (scale, unit) = match nanos {
                0..1_000 => (1, "ns"),
                1_000..1_000_000 => (1_000, "µs"),
                _ => (1_000_000, "ms"),
            };
            return write!(f, "{}{unit}", decimal(nanos, scale));
        }
        let seconds = self.0.as_secs();
        let (hours, minutes) = (seconds / 3600, seconds % 3600 / 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}s", decimal(nanos % (60 * NANOS_PER_SECOND), NANOS_PER_SECOND))
    }
}

fn decimal(value: u128, scale: u128) -> String {
    let width = scale.ilog10() as usize;
    let text = format!("{}.{:0width$}", value / scale, value % scale);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = GoDuration;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"30s\" or \"1m30s\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<GoDuration, E> {
                GoDuration::parse(text).map_err(E::custom)
            }
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<GoDuration, E> {
                if number == 0 {
                    Ok(GoDuration::default())
                } else {
                    Err(E::custom(format!("the number {number} lacks a unit; write for example \"{number}s\"")))
                }
            }
        }
        deserializer.deserialize_any(Text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, nanos) in [
            ("0", 0),
            ("30s", 30_000_000_000),
            ("1m30s", 90_000_000_000),
            ("1.5h", 5_400_000_000_000),
            ("250ms", 250_000_000),
            (".5s", 500_000_000),
            ("1h2m3s4ms5us6ns", 3_723_004_005_006),
            ("+5s", 5_000_000_000),
        ] {
            assert_eq!(GoDuration::parse(text).map(|d| d.0.as_nanos()), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses_and_negatives() {
        for text in ["", "3", "-1s", "1x", "s", "1s2", ".s", "1..5s", "9999999h", "+"] {
            assert!(GoDuration::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn prints_as_go_prints() {
        for (text, canonical) in [
            ("90s", "1m30s"),
            ("1h", "1h0m0s"),
            ("1500ms", "1.5s"),
            ("0.25s", "250ms"),
            ("0", "0s"),
            ("1500ns", "1.5µs"),
        ] {
            assert_eq!(GoDuration::parse(text).map(|d| d.to_string()), Ok(canonical.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn printing_and_reading_agree(nanos in 0u64..i64::MAX as u64) {
            let duration = GoDuration(Duration::from_nanos(nanos));
            prop_assert_eq!(GoDuration::parse(&duration.to_string()), Ok(duration));
        }

        #[test]
        fn never_panics(text in ".{0,40}") {
            let _ = GoDuration::parse(&text);
        }
    }
}
