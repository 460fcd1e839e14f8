//! Kubernetes quantities: `100m`, `1.5`, `128Mi`, `1e3`.
//!
//! Upstream counterpart: `k8s.io/apimachinery/pkg/api/resource.Quantity`. Values are held as
//! nano-units in 128 bits, which covers upstream's range (its values are capped at 2^63-1) at its
//! finest precision (anything smaller than a nano-unit is rounded up).

use std::fmt;
use std::str::FromStr;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const NANO: i128 = 1_000_000_000;
/// Upstream caps every quantity at 2^63-1 whole units.
const MAX: i128 = i64::MAX as i128 * NANO;

/// The suffix family a quantity was written with; its canonical form keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `n u m k M G T P E` and no suffix.
    DecimalSI,
    /// `Ki Mi Gi Ti Pi Ei`.
    BinarySI,
    /// `1e3`.
    DecimalExponent,
}

/// A quantity of a resource.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nano: i128,
    format: Format,
}

/// Why a text is not a quantity. The wording is upstream's.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum QuantityError {
    /// The text does not match upstream's grammar.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// The number is fine, its suffix is not one of upstream's.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

impl Quantity {
    /// Zero, in decimal form.
    pub const ZERO: Self = Self { nano: 0, format: Format::DecimalSI };

    /// A whole number of units in decimal form.
    #[must_use]
    pub fn from_value(value: i64) -> Self {
        Self { nano: i128::from(value) * NANO, format: Format::DecimalSI }
    }

    /// Thousandths of a unit in decimal form (milli-CPUs).
    #[must_use]
    pub fn from_milli(milli: i64) -> Self {
        Self { nano: i128::from(milli) * (NANO / 1000), format: Format::DecimalSI }
    }

    /// A whole number of bytes in binary form.
    #[must_use]
    pub fn from_bytes(bytes: i64) -> Self {
        Self { nano: i128::from(bytes) * NANO, format: Format::BinarySI }
    }

    /// Reads upstream's notation.
    ///
    /// # Errors
    /// [`QuantityError`] with upstream's wording.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let number_len = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_len);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(QuantityError::Format);
        }
        let (multiplier, divisor, format) = scale(suffix)?;
        let mut nano = combine(whole, fraction, multiplier, divisor);
        // Upstream caps at 2^63-1 and rounds what is finer than a nano-unit away from zero.
        nano = nano.min(MAX);
        Ok(Self { nano: if negative { -nano } else { nano }, format })
    }

    /// The amount in whole units, rounded up (upstream's `Value`).
    #[must_use]
    pub fn value(&self) -> i64 {
        ceil_div(self.nano, NANO)
    }

    /// The amount in thousandths, rounded up (upstream's `MilliValue`); CPU requests are read so.
    #[must_use]
    pub fn milli(&self) -> i64 {
        ceil_div(self.nano, NANO / 1000)
    }

    /// The amount in units as a floating-point number, for ratios and metrics.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn as_f64(&self) -> f64 {
        self.nano as f64 / NANO as f64
    }

    /// Whether the amount is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.nano == 0
    }

    /// Whether the amount is below zero.
    #[must_use]
    pub fn is_negative(&self) -> bool {
        self.nano < 0
    }

    /// Whether the amount is a whole number of units.
    #[must_use]
    pub fn is_integer(&self) -> bool {
        self.nano % NANO == 0
    }
}

fn ceil_div(nano: i128, unit: i128) -> i64 {
    let value = nano.div_euclid(unit) + i128::from(nano.rem_euclid(unit) != 0);
    i64::try_from(value).unwrap_or(if value > 0 { i64::MAX } else { i64::MIN })
}

/// What a suffix multiplies and divides by.
fn scale(suffix: &str) -> Result<(i128, i128, Format), QuantityError> {
    use Format::{BinarySI, DecimalExponent, DecimalSI};
    let decimal = |power: u32| Ok((10i128.pow(power), 1, DecimalSI));
    let binary = |power: u32| Ok((1i128 << (10 * power), 1, BinarySI));
    match suffix {
        "" => decimal(0),
        "n" => Ok((1, NANO, DecimalSI)),
        "u" => Ok((1, 1_000_000, DecimalSI)),
        "m" => Ok((1, 1_000, DecimalSI)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E']).ok_or_else(|| {
                let known = suffix.chars().all(|c| "eEinumkKMGTP+-0123456789".contains(c));
                if known { QuantityError::Suffix } else { QuantityError::Format }
            })?;
            let exponent: i32 = exponent.parse().map_err(|_| QuantityError::Suffix)?;
            // Far beyond the range either way the result is capped or rounded; 20 places decide that.
            let power = 10i128.pow(exponent.unsigned_abs().min(20));
            Ok(if exponent >= 0 { (power, 1, DecimalExponent) } else { (1, power, DecimalExponent) })
        }
    }
}

/// `whole.fraction * multiplier / divisor` in nano-units, capped, rounded up.
fn combine(whole: &str, fraction: &str, multiplier: i128, divisor: i128) -> i128 {
    // 37 digits fit into 128 bits; with more the result is beyond the cap, whatever the suffix.
    let digits = |text: &str| -> i128 {
        let text = text.trim_start_matches('0');
        if text.len() > 37 { i128::MAX } else { text.parse().unwrap_or(0) }
    };
    let whole = digits(whole).saturating_mul(multiplier).saturating_mul(NANO);
    let places = fraction.len().min(18);
    let (kept, dropped) = fraction.split_at(places);
    let denominator = 10i128.pow(u32::try_from(places).unwrap_or(18));
    // At most 10^18 x 10^20, and the remainder's product 10^18 x 10^9: both far from 2^127.
    let product = digits(kept) * multiplier;
    let (units, rest) = (product / denominator, (product % denominator) * NANO);
    let inexact = dropped.bytes().any(|b| b != b'0') || rest % denominator != 0;
    let nano = whole.saturating_add(units * NANO + rest / denominator);
    nano / divisor + i128::from(nano % divisor != 0 || inexact)
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl std::ops::Add for Quantity {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        let format = if self.nano == 0 { other.format } else { self.format };
        Self { nano: self.nano.saturating_add(other.nano).clamp(-MAX, MAX), format }
    }
}

impl std::ops::Sub for Quantity {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        let format = if self.nano == 0 { other.format } else { self.format };
        Self { nano: self.nano.saturating_sub(other.nano).clamp(-MAX, MAX), format }
    }
}

impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, |sum, item| sum + item)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for Quantity {
    /// Upstream's canonical form: the largest suffix of the family that leaves a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DECIMAL: [(&str, i128); 9] = [
            ("E", 10i128.pow(27)),
            ("P", 10i128.pow(24)),
            ("T", 10i128.pow(21)),
            ("G", 10i128.pow(18)),
            ("M", 10i128.pow(15)),
            ("k", 10i128.pow(12)),
            ("", NANO),
            ("m", 1_000_000),
            ("u", 1_000),
        ];
        const BINARY: [(&str, u32); 6] = [("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
        let (sign, amount) = if self.nano < 0 { ("-", -self.nano) } else { ("", self.nano) };
        if amount == 0 {
            return f.write_str("0");
        }
        let whole = amount / NANO;
        match self.format {
            // Upstream writes binary quantities under 1024 and fractional ones in decimal form.
            Format::BinarySI if amount % NANO == 0 && whole >= 1024 => {
                let (suffix, shift) =
                    BINARY.into_iter().find(|(_, shift)| whole % (1i128 << shift) == 0).unwrap_or(("", 0));
                write!(f, "{sign}{}{suffix}", whole >> shift)
            }
            Format::DecimalExponent if amount % NANO == 0 => {
                let power =
                    [18u32, 15, 12, 9, 6, 3, 0].into_iter().find(|power| whole % 10i128.pow(*power) == 0).unwrap_or(0);
                let mantissa = whole / 10i128.pow(power);
                if power == 0 { write!(f, "{sign}{mantissa}") } else { write!(f, "{sign}{mantissa}e{power}") }
            }
            _ => {
                let (suffix, unit) = DECIMAL.into_iter().find(|(_, unit)| amount % unit == 0).unwrap_or(("n", 1));
                write!(f, "{sign}{}{suffix}", amount / unit)
            }
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as \"100m\" or \"128Mi\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
                Quantity::parse(text).map_err(E::custom)
            }
            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Quantity, E> {
                Quantity::parse(&value.to_string()).map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_value(value))
            }
            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Quantity, E> {
                Quantity::parse(&value.to_string()).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_round_up() {
        for (text, value, milli) in [
            ("0", 0, 0),
            ("1", 1, 1000),
            ("100m", 1, 100),
            ("1.5", 2, 1500),
            ("1500m", 2, 1500),
            ("128Mi", 134_217_728, 134_217_728_000),
            ("1e3", 1000, 1_000_000),
            ("1E", 1_000_000_000_000_000_000, i64::MAX),
            ("0.1m", 1, 1),
            ("-1500m", -1, -1500),
            ("+2", 2, 2000),
            (".5", 1, 500),
            ("5.", 5, 5000),
            ("1.5Gi", 1_610_612_736, 1_610_612_736_000),
            ("100n", 1, 1),
            ("99999999999999999999", i64::MAX, i64::MAX),
            ("1e-3", 1, 1),
        ] {
            let quantity = Quantity::parse(text).unwrap();
            assert_eq!((quantity.value(), quantity.milli()), (value, milli), "{text}");
        }
    }

    #[test]
    fn canonical_forms_are_upstreams() {
        for (text, canonical) in [
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1.5", "1500m"),
            ("0.5Gi", "512Mi"),
            ("1024Ki", "1Mi"),
            ("1000", "1k"),
            ("1024", "1024"),
            ("0", "0"),
            ("0Mi", "0"),
            ("1e3", "1e3"),
            ("1e4", "10e3"),
            ("-1", "-1"),
            ("100Mi", "100Mi"),
            ("1500Mi", "1500Mi"),
            ("1.5Ki", "1536"),
            ("100", "100"),
            ("1000000", "1M"),
        ] {
            assert_eq!(Quantity::parse(text).unwrap().to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn refuses_what_upstream_refuses() {
        for text in ["", "-", "abc", "1x", "1.2.3", "1 Mi", "1mi", "Mi", "1e", "1KiB", "--1"] {
            assert!(Quantity::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn printing_keeps_the_amount(whole in 0i64..1_000_000_000_000, milli in 0i64..1000, suffix in prop::sample::select(vec!["", "m", "k", "M", "Ki", "Mi", "Gi"])) {
            let quantity = Quantity::parse(&format!("{whole}.{milli:03}{suffix}")).unwrap();
            prop_assert_eq!(Quantity::parse(&quantity.to_string()).unwrap(), quantity);
        }

        #[test]
        fn never_panics(text in "[-+0-9.eEinumkKMGTP]{0,30}") {
            let _ = Quantity::parse(&text).map(|q| (q.to_string(), q.value(), q.milli()));
        }
    }
}
