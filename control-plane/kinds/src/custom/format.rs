//! The `format` of strings in schemas; formats that are not known restrict nothing.
//!
//! Upstream counterparts: `apiextensions-apiserver/pkg/apiserver/validation/formats.go`, `kube-openapi/pkg/validation/strfmt` and the
//! parts of Go's library behind them.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;

use regex::Regex;

use crate::names;

/// Whether `text` has the format; nothing for a format that is not checked. Dashes in the format's name do not count.
pub(crate) fn check(format: &str, text: &str) -> Option<bool> {
    Some(match format.replace('-', "").as_str() {
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|c| c.is_ascii_hexdigit()),
        "uri" => uri(text),
        "email" => email(text),
        "hostname" => hostname(text),
        "ipv4" => ip(text) && text.contains('.'),
        "ipv6" => ip(text) && text.contains(':'),
        "cidr" => cidr(text),
        "mac" => mac(text),
        "uuid" => fixed(&UUID, UUID_TEXT, text),
        "uuid3" => fixed(&UUID3, UUID3_TEXT, text),
        "uuid4" => fixed(&UUID4, UUID4_TEXT, text),
        "uuid5" => fixed(&UUID5, UUID5_TEXT, text),
        "isbn" => isbn10(text) || isbn13(text),
        "isbn10" => isbn10(text),
        "isbn13" => isbn13(text),
        "creditcard" => credit_card(text),
        "ssn" => fixed(&SSN, SSN_TEXT, text),
        "hexcolor" => fixed(&HEX, HEX_TEXT, text),
        "rgbcolor" => fixed(&RGB, RGB_TEXT, text),
        "byte" => fixed(&BASE64, BASE64_TEXT, text),
        "password" => true,
        "date" => date(text),
        "duration" => duration(text),
        "datetime" => date_time(text),
        "k8sshortname" => names::dns1123_label(text).is_empty(),
        "k8slongname" => names::dns1123_subdomain(text).is_empty(),
        _ => return None,
    })
}

type Cell = OnceLock<Option<Regex>>;

static UUID: Cell = OnceLock::new();
static UUID3: Cell = OnceLock::new();
static UUID4: Cell = OnceLock::new();
static UUID5: Cell = OnceLock::new();
static SSN: Cell = OnceLock::new();
static HEX: Cell = OnceLock::new();
static RGB: Cell = OnceLock::new();
static BASE64: Cell = OnceLock::new();
static CARD: Cell = OnceLock::new();
static SCALA: Cell = OnceLock::new();
static CLOCK: Cell = OnceLock::new();

const UUID_TEXT: &str = "^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$";
const UUID3_TEXT: &str = "^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?3[0-9a-fA-F]{3}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$";
const UUID4_TEXT: &str = "^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?4[0-9a-fA-F]{3}-?[89abAB][0-9a-fA-F]{3}-?[0-9a-fA-F]{12}$";
const UUID5_TEXT: &str = "^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?5[0-9a-fA-F]{3}-?[89abAB][0-9a-fA-F]{3}-?[0-9a-fA-F]{12}$";
const SSN_TEXT: &str = "^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$";
const HEX_TEXT: &str = "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$";
const RGB_TEXT: &str = "^rgb\\([ \\t]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[ \\t]*,[ \\t]*\
                        (0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[ \\t]*,[ \\t]*\
                        (0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[ \\t]*\\)$";
const BASE64_TEXT: &str = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$";
const CARD_TEXT: &str = "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|\
                         3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$";
const SCALA_TEXT: &str = "([0-9]+)[ \\t\\r\\n\\x0c]*([A-Za-zµ]+)";
const CLOCK_TEXT: &str = "^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]{1,})?(z|([+-][0-9]{2}:[0-9]{2}))$";

fn regex<'a>(cell: &'a Cell, text: &str) -> Option<&'a Regex> {
    cell.get_or_init(|| Regex::new(text).ok()).as_ref()
}

fn fixed(cell: &Cell, pattern: &str, text: &str) -> bool {
    regex(cell, pattern).is_some_and(|regex| regex.is_match(text))
}

/// Go's `net.ParseIP`.
fn ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// Go's `net.ParseCIDR`.
fn cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let most = if address.parse::<Ipv6Addr>().is_ok() { 128 } else { 32 };
    ip(address) && length.bytes().all(|c| c.is_ascii_digit()) && length.parse::<u32>().is_ok_and(|n| n <= most)
}

/// Go's `net.ParseMAC`: 6, 8 or 20 bytes, in pairs or in fours.
fn mac(text: &str) -> bool {
    let bytes = |separator: char, width: usize| {
        let parts: Vec<&str> = text.split(separator).collect();
        let fit = parts.iter().all(|part| part.len() == width && part.bytes().all(|c| c.is_ascii_hexdigit()));
        fit.then_some(parts.len() * width / 2)
    };
    let found = match text.as_bytes().get(2) {
        Some(b':') => bytes(':', 2),
        Some(b'-') => bytes('-', 2),
        _ => bytes('.', 4),
    };
    matches!(found, Some(6 | 8 | 20))
}

/// Go's `url.ParseRequestURI`: an absolute URI or an absolute path.
fn uri(text: &str) -> bool {
    if text.is_empty() || text.chars().any(|c| c.is_ascii_control()) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let (scheme, rest) = match text.split_once(':') {
        Some((scheme, rest))
            if scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')) =>
        {
            (scheme, rest)
        }
        Some(("", _)) => return false,
        _ => ("", text),
    };
    let path = rest.split('?').next().unwrap_or("");
    if !path.starts_with('/') {
        return !scheme.is_empty();
    }
    let (authority, path) = match path.strip_prefix("//").filter(|_| !scheme.is_empty()) {
        Some(after) => after.split_at(after.find('/').unwrap_or(after.len())),
        None => ("", path),
    };
    escapes(path) && self::authority(authority)
}

fn escapes(text: &str) -> bool {
    text.split('%').skip(1).all(|part| part.len() >= 2 && part.bytes().take(2).all(|c| c.is_ascii_hexdigit()))
}

fn authority(text: &str) -> bool {
    let host = text.rsplit('@').next().unwrap_or("");
    let (name, port) = match host.strip_prefix('[') {
        Some(literal) => match literal.split_once(']') {
            Some((address, port)) => return address.contains(':') && (port.is_empty() || is_port(port)),
            None => return false,
        },
        None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || !c.is_ascii() || "-_.~!$&'()*+,;=:[]<>\"%".contains(c);
    name.chars().all(allowed) && (port.is_empty() || is_port(port))
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|c| c.is_ascii_digit()))
}

/// Go's `mail.ParseAddress`, for what people write: an address, or a name and an address in angle brackets.
fn email(text: &str) -> bool {
    let text = text.trim();
    let address = match text.strip_suffix('>') {
        Some(rest) => match rest.rsplit_once('<') {
            Some((_, address)) => address,
            None => return false,
        },
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let atom = |c: char| c.is_ascii_alphanumeric() || !c.is_ascii() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    let dotted = |part: &str| part.split('.').all(|label| !label.is_empty() && label.chars().all(atom));
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    let literal = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).is_some_and(ip);
    (quoted || dotted(local)) && (literal || dotted(domain))
}

/// One label, or several of which the last has letters only.
fn hostname(text: &str) -> bool {
    let symbol = |c: char| {
        c.is_ascii_alphanumeric() || "$+<=>^`|~".contains(c) || (!c.is_ascii() && !c.is_whitespace() && !c.is_control())
    };
    let labels: Vec<&str> = text.split('.').collect();
    if text.len() > 255 || labels.iter().any(|label| label.len() > names::LABEL_MAX) {
        return false;
    }
    let ends = |label: &str| label.starts_with(symbol) && label.ends_with(symbol);
    match labels.as_slice() {
        [only] => {
            let rest: &str = only.get(only.chars().next().map_or(0, char::len_utf8)..).unwrap_or("");
            only.starts_with(symbol) && rest.strip_prefix('-').unwrap_or(rest).chars().all(symbol)
        }
        [labels @ .., last] => {
            labels.iter().all(|label| ends(label) && label.chars().all(|c| symbol(c) || c == '-'))
                && last.chars().count() >= 2
                && last.chars().all(char::is_alphabetic)
        }
        [] => false,
    }
}

fn digits_of(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace() && *c != '-').collect()
}

fn isbn10(text: &str) -> bool {
    let text = digits_of(text);
    let mut sum = 0;
    if text.len() != 10 {
        return false;
    }
    for (i, c) in text.chars().enumerate() {
        let value = match c {
            'X' if i == 9 => 10,
            c => match c.to_digit(10) {
                Some(digit) => digit,
                None => return false,
            },
        };
        sum += (u32::try_from(i).unwrap_or(0) + 1) * value;
    }
    sum.is_multiple_of(11)
}

fn isbn13(text: &str) -> bool {
    let text = digits_of(text);
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(10)).collect();
    digits.is_some_and(|digits| {
        let sum: u32 = digits.iter().enumerate().map(|(i, d)| if i % 2 == 0 { *d } else { d * 3 }).sum();
        digits.len() == 13 && sum.is_multiple_of(10)
    })
}

fn credit_card(text: &str) -> bool {
    let text: String = text.chars().filter(char::is_ascii_digit).collect();
    let luhn: u32 = text
        .chars()
        .rev()
        .filter_map(|c| c.to_digit(10))
        .enumerate()
        .map(|(i, d)| if i % 2 == 0 { d } else { d * 2 / 10 + d * 2 % 10 })
        .sum();
    fixed(&CARD, CARD_TEXT, &text) && luhn.is_multiple_of(10)
}

fn date(text: &str) -> bool {
    let shape = text.len() == 10
        && text.bytes().enumerate().all(|(i, c)| if matches!(i, 4 | 7) { c == b'-' } else { c.is_ascii_digit() });
    shape && text.parse::<jiff::civil::Date>().is_ok()
}

fn date_time(text: &str) -> bool {
    let text = text.to_lowercase();
    let Some((day, clock)) = text.split_once('t') else { return false };
    let Some(found) = regex(&CLOCK, CLOCK_TEXT).and_then(|regex| regex.captures(clock)) else { return false };
    let most = |i: usize, most: &str| found.get(i).is_some_and(|m| m.as_str() <= most);
    date(day) && most(1, "23") && most(2, "59") && most(3, "59")
}

/// Go's `time.ParseDuration`, or anything with a number and a unit in it.
fn duration(text: &str) -> bool {
    if go_duration(text) {
        return true;
    }
    const WHOLE: &[&str] = &["ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk"];
    const PREFIXES: &[&str] = &["nano", "micro", "milli", "sec", "min", "hour", "day", "week"];
    let Some(regex) = regex(&SCALA, SCALA_TEXT) else { return false };
    let mut found = false;
    for part in regex.captures_iter(text) {
        if part[1].parse::<i64>().is_err() {
            return false;
        }
        let unit = part[2].to_lowercase();
        found |= WHOLE.contains(&unit.as_str()) || PREFIXES.iter().any(|prefix| unit.starts_with(prefix));
    }
    found
}

fn go_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (amount, after) = rest.split_at(number);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let known = matches!(&after[..unit], "ns" | "us" | "µs" | "μs" | "ms" | "s" | "m" | "h");
        if !known || amount.matches('.').count() > 1 || !amount.bytes().any(|c| c.is_ascii_digit()) {
            return false;
        }
        rest = &after[unit..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Format, texts that have it, texts that have not.
    const CASES: &[(&str, &[&str], &[&str])] = &[
        ("date", &["2024-02-29"], &["2023-02-29", "2024-2-9", "20240229", ""]),
        (
            "date-time",
            &["2014-12-15T19:30:20.000Z", "2014-12-15t08:00:00+02:00"],
            &["2014-12-15", "2014-12-15T24:00:00Z", "2014-12-15T08:00:00", "2014-13-15T08:00:00Z"],
        ),
        ("duration", &["1h30m", "0", "-1.5s", "22 ns", "3 weeks", "1d"], &["", "abc", "12", "5 lightyears", "1.2.3"]),
        ("email", &["a@b", "A B <a.b@example.com>", "\"a b\"@c"], &["", "a", "a@", "@b", "a b@c", "a@b@"]),
        ("ipv4", &["10.0.0.1"], &["10.0.0", "256.1.1.1", "::1", "01.1.1.1"]),
        ("ipv6", &["::1", "2001:db8::ffff"], &["10.0.0.1", "::g"]),
        ("cidr", &["10.0.0.0/8", "10.1.2.3/8", "::/0"], &["10.0.0.0", "10.0.0.0/33", "10.0.0.0/+8", "x/8"]),
        (
            "mac",
            &["00:00:5e:00:53:01", "0000.5e00.5301", "02-00-5e-10-00-00-00-01"],
            &["00:00:5e", "00:00:5e:00:53:zz", ""],
        ),
        (
            "uri",
            &["http://a.b/c?d#e", "/a/b", "urn:x", "https://[::1]:80/"],
            &["", "a/b", "http://a b/", "http://a:x/", ":x", "/%zz"],
        ),
        ("hostname", &["a", "a.example.com", "1a.example.com"], &["", "a_b", "-a", "a.1", "a..com", "a.c"]),
        ("uuid", &["123e4567-e89b-12d3-a456-426614174000", "123E4567E89B12D3A456426614174000"], &["123e4567", ""]),
        ("uuid4", &["123e4567-e89b-42d3-a456-426614174000"], &["123e4567-e89b-12d3-a456-426614174000"]),
        ("byte", &["YQ==", "YWJj"], &["", "YQ", "Y-=="]),
        ("hexcolor", &["#fff", "AABBCC"], &["#ff", "xyz"]),
        ("rgbcolor", &["rgb(1, 2,255)"], &["rgb(1,2)", "rgb(1,2,256)"]),
        ("isbn", &["0321751043", "978-0321751041"], &["0321751044", "x"]),
        ("creditcard", &["4111 1111 1111 1111"], &["4111 1111 1111 1112", "1"]),
        ("ssn", &["123-45-6789"], &["123"]),
        ("bsonobjectid", &["507f1f77bcf86cd799439011"], &["507f"]),
        ("k8s-short-name", &["a-1"], &["A", "a.b"]),
        ("k8s-long-name", &["a.b"], &["A"]),
        ("password", &["", "x"], &[]),
    ];

    #[test]
    fn formats_are_upstreams() {
        for (format, good, bad) in CASES {
            for text in *good {
                assert_eq!(check(format, text), Some(true), "{format} {text}");
            }
            for text in *bad {
                assert_eq!(check(format, text), Some(false), "{format} {text}");
            }
        }
        assert_eq!(check("int-or-string", "x"), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".{0,40}") {
            for (format, _, _) in CASES {
                let _ = check(format, &text);
            }
        }
    }
}
