//! Times as objects carry them, and ages as tables show them.
//!
//! Upstream counterparts: `metav1.Time`, `metav1.MicroTime`, `apimachinery/pkg/util/duration`.

use jiff::Timestamp;

/// RFC 3339 in UTC with whole seconds.
#[must_use]
pub fn seconds(t: Timestamp) -> String {
    t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// RFC 3339 in UTC with microseconds.
#[must_use]
pub fn micro(t: Timestamp) -> String {
    t.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Reads either form.
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Whole seconds from `then` to `now`; negative if `then` is later.
pub(crate) fn between(then: Timestamp, now: Timestamp) -> i64 {
    now.as_second() - then.as_second()
}

/// A duration of `seconds` in upstream's short form: `5s`, `2m5s`, `3h2m`, `2d3h`, `17d`, `2y35d`.
#[must_use]
pub fn human(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let pair = |big: i64, big_unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{big}{big_unit}") } else { format!("{big}{big_unit}{small}{small_unit}") }
    };
    match seconds {
        s if s < -1 => "<invalid>".to_owned(),
        s if s < 0 => "0s".to_owned(),
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => pair(s / MINUTE, "m", s % MINUTE, "s"),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => pair(s / HOUR, "h", s % HOUR / MINUTE, "m"),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => pair(s / DAY, "d", s % DAY / HOUR, "h"),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => pair(s / YEAR, "y", s % YEAR / DAY, "d"),
        s => format!("{}y", s / YEAR),
    }
}

/// The age of something stamped `then`, `<unknown>` if it is not.
pub(crate) fn age(then: &str, now: Timestamp) -> String {
    parse(then).map_or_else(|| "<unknown>".to_owned(), |t| human(between(t, now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_durations_are_upstreams() {
        for (s, text) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (3 * 3600 - 1, "179m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 120, "3h2m"),
            (8 * 3600 + 59, "8h"),
            (47 * 3600, "47h"),
            (48 * 3600, "2d"),
            (51 * 3600, "2d3h"),
            (8 * 86400, "8d"),
            (800 * 86400, "2y70d"),
            (3650 * 86400, "10y"),
        ] {
            assert_eq!(human(s), text, "{s}");
        }
    }

    #[test]
    fn times_have_upstreams_precision() {
        let t: Timestamp = "2026-01-02T03:04:05.678901234+01:00".parse().expect("time");
        assert_eq!(seconds(t), "2026-01-02T02:04:05Z");
        assert_eq!(micro(t), "2026-01-02T02:04:05.678901Z");
    }
}
