//! Cron's notation: five fields, names of months and days, `@daily` and the like, `@every 1h30m`. Pure.
//!
//! Times that a change to summer time skips have no job; those that come twice at its end have one.
//!
//! Upstream counterpart: `cron.ParseStandard` of `robfig/cron` v3.

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, Timestamp};
use kube_common::duration::GoDuration;

/// A schedule whose days never come (30 February) is given up after so many years, as upstream's.
const YEARS: i16 = 5;

/// Why a text is no schedule.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ScheduleError {
    /// Not five fields.
    #[error("expected exactly 5 fields, found {found}: [{text}]")]
    FieldCount {
        /// How many there are.
        found: usize,
        /// The schedule.
        text: String,
    },
    /// A field that cannot be read.
    #[error("failed to parse {field} field {text:?}: {reason}")]
    Field {
        /// `minute`, `hour` …
        field: &'static str,
        /// The part of the field.
        text: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// An `@` word that does not exist.
    #[error("unrecognized descriptor: {text}")]
    Descriptor {
        /// The word.
        text: String,
    },
}

/// The zone of this name, from the machine's database; UTC needs none.
///
/// # Errors
/// The database does not have it, or there is none.
pub fn zone(name: &str) -> Result<TimeZone, jiff::Error> {
    if matches!(name, "UTC" | "Etc/UTC") { Ok(TimeZone::UTC) } else { TimeZone::get(name) }
}

/// The values that a field allows, as bits, and whether it says "any".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Field {
    bits: u64,
    is_any: bool,
}

impl Field {
    fn has(self, value: i8) -> bool {
        u32::try_from(value).is_ok_and(|shift| self.bits >> shift & 1 == 1)
    }
}

struct Bounds {
    name: &'static str,
    first: u32,
    last: u32,
    words: &'static [&'static str],
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: [Bounds; 5] = [
    Bounds { name: "minute", first: 0, last: 59, words: &[] },
    Bounds { name: "hour", first: 0, last: 23, words: &[] },
    Bounds { name: "day-of-month", first: 1, last: 31, words: &[] },
    Bounds { name: "month", first: 1, last: 12, words: &MONTHS },
    Bounds { name: "day-of-week", first: 0, last: 6, words: &DAYS },
];

/// When jobs are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// At the times that all fields allow.
    Fields {
        /// 0 to 59.
        minute: Field,
        /// 0 to 23.
        hour: Field,
        /// 1 to 31.
        day: Field,
        /// 1 to 12.
        month: Field,
        /// 0 (Sunday) to 6.
        weekday: Field,
    },
    /// Again and again after this time, in whole seconds.
    Every(Duration),
}

impl Schedule {
    /// Reads a schedule.
    ///
    /// # Errors
    /// The first part that cannot be read.
    pub fn parse(text: &str) -> Result<Self, ScheduleError> {
        let text = text.trim();
        if let Some(word) = text.strip_prefix('@') {
            return Self::descriptor(word, text);
        }
        let parts: Vec<&str> = text.split_whitespace().collect();
        let parts: [&str; 5] = parts
            .try_into()
            .map_err(|parts: Vec<&str>| ScheduleError::FieldCount { found: parts.len(), text: text.to_owned() })?;
        let mut fields = [Field::default(); 5];
        for ((field, bounds), part) in fields.iter_mut().zip(&FIELDS).zip(parts) {
            *field = list(part, bounds)?;
        }
        let [minute, hour, day, month, weekday] = fields;
        Ok(Self::Fields { minute, hour, day, month, weekday })
    }

    fn descriptor(word: &str, text: &str) -> Result<Self, ScheduleError> {
        let fields = match word {
            "yearly" | "annually" => "0 0 1 1 *",
            "monthly" => "0 0 1 * *",
            "weekly" => "0 0 * * 0",
            "daily" | "midnight" => "0 0 * * *",
            "hourly" => "0 * * * *",
            _ => {
                let every = word.strip_prefix("every ").and_then(|every| GoDuration::parse(every.trim()).ok());
                let every = every.ok_or_else(|| ScheduleError::Descriptor { text: text.to_owned() })?;
                return Ok(Self::Every(Duration::from_secs(every.0.as_secs().max(1))));
            }
        };
        Self::parse(fields)
    }

    /// The first time after `after`, in this zone; `None` if there is none within [`YEARS`].
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let Self::Fields { minute, hour, .. } = self else {
            let Self::Every(every) = self else { return None };
            let whole = Timestamp::from_second(after.as_second()).ok()?;
            return whole.checked_add(SignedDuration::try_from(*every).ok()?).ok();
        };
        let start = zone.to_datetime(after);
        let mut date = start.date();
        let last = date.year().checked_add(YEARS)?;
        let mut earliest = Some(start);
        while date.year() <= last {
            if self.allows(date) {
                for h in (0..24).filter(|h| hour.has(*h)) {
                    for m in (0..60).filter(|m| minute.has(*m)) {
                        let time = date.at(h, m, 0, 0);
                        // The hour of the clock that comes twice is not looked at twice.
                        if earliest.is_some_and(|start| time < hour_of(start)) {
                            continue;
                        }
                        if let Some(found) = real(time, zone).filter(|found| *found > after) {
                            return Some(found);
                        }
                    }
                }
            }
            earliest = None;
            date = date.tomorrow().ok()?;
        }
        None
    }

    fn allows(&self, date: jiff::civil::Date) -> bool {
        let Self::Fields { day, month, weekday, .. } = self else { return true };
        let by_day = day.has(date.day());
        let by_weekday = weekday.has(date.weekday().to_sunday_zero_offset());
        // As cron always did: with both given, one is enough.
        let is_day = if day.is_any || weekday.is_any { by_day && by_weekday } else { by_day || by_weekday };
        month.has(date.month()) && is_day
    }
}

fn hour_of(time: DateTime) -> DateTime {
    // An hour back covers every change of clocks.
    time.checked_sub(Span::new().hours(1)).unwrap_or(time)
}

/// The moment that a clock in the zone shows this time for the first time, if it ever does.
fn real(time: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    let moment = zone.to_timestamp(time).ok()?;
    (zone.to_datetime(moment) == time).then_some(moment)
}

fn list(text: &str, bounds: &Bounds) -> Result<Field, ScheduleError> {
    let mut field = Field { bits: 0, is_any: false };
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let one = range(part, bounds)?;
        field.bits |= one.bits;
        field.is_any |= one.is_any;
    }
    if field.bits == 0 {
        return Err(wrong(bounds, text, "it is empty"));
    }
    Ok(field)
}

fn wrong(bounds: &Bounds, text: &str, reason: &'static str) -> ScheduleError {
    ScheduleError::Field { field: bounds.name, text: text.to_owned(), reason }
}

/// `*`, `?`, `n`, `a-b`, each with `/step`; `n/step` goes to the end.
fn range(text: &str, bounds: &Bounds) -> Result<Field, ScheduleError> {
    let (span, step) = match text.split_once('/') {
        None => (text, None),
        Some((span, step)) => {
            let step: u32 = step.parse().map_err(|_| wrong(bounds, text, "the step is no number"))?;
            (span, Some(step))
        }
    };
    if step == Some(0) {
        return Err(wrong(bounds, text, "the step is zero"));
    }
    let is_any = matches!(span, "*" | "?");
    let (first, last) = match span.split_once('-') {
        _ if is_any => (bounds.first, bounds.last),
        Some((first, last)) => (value(first, bounds)?, value(last, bounds)?),
        None if step.is_some() => (value(span, bounds)?, bounds.last),
        None => (value(span, bounds)?, value(span, bounds)?),
    };
    if first < bounds.first || last > bounds.last {
        return Err(wrong(bounds, text, "it is out of range"));
    }
    if first > last {
        return Err(wrong(bounds, text, "it begins after its end"));
    }
    let values = (first..=last).step_by(usize::try_from(step.unwrap_or(1)).unwrap_or(1));
    // "Every second day" is a restriction, "every day" is none.
    Ok(Field { bits: values.fold(0, |bits, value| bits | 1 << value), is_any: is_any && step.unwrap_or(1) == 1 })
}

fn value(text: &str, bounds: &Bounds) -> Result<u32, ScheduleError> {
    if let Some(position) = bounds.words.iter().position(|word| word.eq_ignore_ascii_case(text)) {
        return Ok(bounds.first + u32::try_from(position).unwrap_or(0));
    }
    text.parse().map_err(|_| wrong(bounds, text, "it is neither a number nor a name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(schedule: &str, from: &str, name: &str) -> String {
        let zone = zone(name).unwrap();
        let from = zone.to_timestamp(from.parse().unwrap()).unwrap();
        let next = Schedule::parse(schedule).unwrap().next(from, &zone);
        next.map_or_else(|| "never".to_owned(), |next| zone.to_datetime(next).to_string())
    }

    fn utc(schedule: &str, from: &str) -> String {
        after(schedule, from, "UTC")
    }

    #[test]
    fn fields() {
        assert_eq!(utc("*/15 * * * *", "2026-03-04T10:15:00"), "2026-03-04T10:30:00");
        assert_eq!(utc("*/15 * * * *", "2026-03-04T10:14:59"), "2026-03-04T10:15:00");
        assert_eq!(utc("0 9-17/4 * * *", "2026-03-04T17:30:00"), "2026-03-05T09:00:00");
        assert_eq!(utc("5,10 0 1 jan *", "2026-01-01T00:05:00"), "2026-01-01T00:10:00");
        assert_eq!(utc("0 0 29 2 *", "2026-03-04T00:00:00"), "2028-02-29T00:00:00");
        assert_eq!(utc("0 0 30 2 *", "2026-03-04T00:00:00"), "never");
        assert_eq!(utc("30 5/6 * * *", "2026-03-04T06:00:00"), "2026-03-04T11:30:00");
        assert_eq!(utc("0 12 * * MON-FRI", "2026-03-06T12:00:00"), "2026-03-09T12:00:00");
        // Both a day and a weekday: one is enough.
        assert_eq!(utc("0 0 13 * fri", "2026-03-01T00:00:00"), "2026-03-06T00:00:00");
        assert_eq!(utc("0 0 */2 * fri", "2026-03-01T00:00:00"), "2026-03-03T00:00:00");
    }

    #[test]
    fn words() {
        assert_eq!(utc("@hourly", "2026-03-04T10:15:00"), "2026-03-04T11:00:00");
        assert_eq!(utc("@weekly", "2026-03-04T10:15:00"), "2026-03-08T00:00:00");
        assert_eq!(utc("@every 90s", "2026-03-04T10:15:00"), "2026-03-04T10:16:30");
    }

    #[test]
    fn mistakes() {
        let error = |text: &str| Schedule::parse(text).unwrap_err().to_string();
        assert_eq!(error("* * *"), "expected exactly 5 fields, found 3: [* * *]");
        assert_eq!(error("60 * * * *"), "failed to parse minute field \"60\": it is out of range");
        assert_eq!(error("* * * * 7"), "failed to parse day-of-week field \"7\": it is out of range");
        assert_eq!(error("*/0 * * * *"), "failed to parse minute field \"*/0\": the step is zero");
        assert_eq!(error("5-1 * * * *"), "failed to parse minute field \"5-1\": it begins after its end");
        assert_eq!(error("@often"), "unrecognized descriptor: @often");
    }

    #[test]
    fn changes_of_the_clock() {
        let berlin = "Europe/Berlin";
        if zone(berlin).is_err() {
            println!("SKIPPED changes_of_the_clock: no time zone database on this machine");
            return;
        }
        assert_eq!(after("30 2 * * *", "2026-03-28T12:00:00", berlin), "2026-03-30T02:30:00", "skipped by summer time");
        assert_eq!(after("30 2 * * *", "2026-10-24T12:00:00", berlin), "2026-10-25T02:30:00");
        assert_eq!(after("30 2 * * *", "2026-10-25T02:30:00", berlin), "2026-10-26T02:30:00", "only once");
    }
}
