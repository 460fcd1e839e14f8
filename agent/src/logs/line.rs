//! One line of the CRI log format: `<RFC 3339 time> <stdout|stderr> <tags> <content>`.
//!
//! The first tag says whether the line is whole (`F`) or a part (`P`) that the next line of the
//! same stream continues; further tags, separated by `:`, are ignored.

use std::str::FromStr as _;

use jiff::Timestamp;

/// An output stream of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Which streams are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamFilter {
    /// Both.
    #[default]
    All,
    /// Standard output only.
    Stdout,
    /// Standard error only.
    Stderr,
}

impl StreamFilter {
    /// Whether `stream` is wanted.
    pub fn accepts(self, stream: Stream) -> bool {
        match self {
            Self::All => true,
            Self::Stdout => stream == Stream::Stdout,
            Self::Stderr => stream == Stream::Stderr,
        }
    }
}

/// A parsed line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// The time as written.
    pub time_text: &'a str,
    /// The time.
    pub time: Timestamp,
    /// The stream.
    pub stream: Stream,
    /// Whether the next line of the stream goes on with this one.
    pub partial: bool,
    /// What the container wrote, without the newline that ends the log's line.
    pub content: &'a [u8],
}

/// What is wrong with a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// No time.
    #[error("timestamp is not found")]
    NoTime,
    /// A time that does not parse.
    #[error("unexpected timestamp format")]
    BadTime,
    /// No stream or another word.
    #[error("unexpected stream type")]
    BadStream,
    /// No tag.
    #[error("log tag is not found")]
    NoTag,
}

/// Splits off the stream alone, for counting lines without parsing them.
pub(super) fn stream_of(line: &[u8]) -> Option<Stream> {
    let (_, rest) = split(line)?;
    stream_named(split(rest)?.0)
}

fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == b' ')?;
    Some((&text[..at], &text[at + 1..]))
}

fn stream_named(name: &[u8]) -> Option<Stream> {
    match name {
        b"stdout" => Some(Stream::Stdout),
        b"stderr" => Some(Stream::Stderr),
        _ => None,
    }
}

/// Parses one line; a newline at its end is not part of the content.
///
/// # Errors
/// [`LineError`]; such lines are skipped by readers.
pub fn parse(line: &[u8]) -> Result<Line<'_>, LineError> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let (time_text, rest) = split(line).ok_or(LineError::NoTime)?;
    let time_text = std::str::from_utf8(time_text).map_err(|_| LineError::BadTime)?;
    let time = Timestamp::from_str(time_text).map_err(|_| LineError::BadTime)?;
    let (stream, rest) = split(rest).ok_or(LineError::BadStream)?;
    let stream = stream_named(stream).ok_or(LineError::BadStream)?;
    let (tags, content) = split(rest).ok_or(LineError::NoTag)?;
    Ok(Line {
        time_text,
        time,
        stream,
        partial: tags.split(|byte| *byte == b':').next() == Some(b"P".as_slice()),
        content,
    })
}

/// Appends the time with exactly nine digits after the point, as users see it.
pub(super) fn push_fixed_time(out: &mut Vec<u8>, text: &str) {
    let digits = |c: char| c.is_ascii_digit();
    let zone_at = text.find(['Z', 'z', '+']).or_else(|| {
        // A minus that is not one of the date's.
        text.get(11..).and_then(|t| t.find('-')).map(|at| at + 11)
    });
    let (clock, zone) = text.split_at(zone_at.unwrap_or(text.len()));
    let (seconds, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let fraction = fraction.trim_end_matches(|c| !digits(c));
    out.extend_from_slice(seconds.as_bytes());
    out.push(b'.');
    let shown = &fraction.as_bytes()[..fraction.len().min(9)];
    out.extend_from_slice(shown);
    out.extend(std::iter::repeat_n(b'0', 9 - shown.len()));
    out.extend_from_slice(zone.as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines() {
        let line = parse(b"2016-10-06T00:17:09.669794202Z stdout F log content 1\n").unwrap();
        assert_eq!((line.stream, line.partial, line.content), (Stream::Stdout, false, &b"log content 1"[..]));
        let line = parse(b"2016-10-06T02:17:09.66+02:00 stderr P:x:y  a\r").unwrap();
        assert_eq!((line.stream, line.partial, line.content), (Stream::Stderr, true, &b" a\r"[..]));
        assert_eq!(parse(b"2016-10-06T00:17:09Z stdout F \n").unwrap().content, b"");
        for (bad, error) in [
            (&b""[..], LineError::NoTime),
            (b"xx stdout F a", LineError::BadTime),
            (b"\xff\xfe stdout F a", LineError::BadTime),
            (b"2016-10-06T00:17:09Z stdlog F a", LineError::BadStream),
            (b"2016-10-06T00:17:09Z stdout F", LineError::NoTag),
        ] {
            assert_eq!(parse(bad), Err(error), "{bad:?}");
        }
    }

    #[test]
    fn times_are_shown_with_nine_digits() {
        for (text, want) in [
            ("2016-10-06T00:17:09.66Z", "2016-10-06T00:17:09.660000000Z"),
            ("2016-10-06T00:17:09Z", "2016-10-06T00:17:09.000000000Z"),
            ("2016-10-06T00:17:09.123456789+02:00", "2016-10-06T00:17:09.123456789+02:00"),
            ("2016-10-06T00:17:09.1-07:00", "2016-10-06T00:17:09.100000000-07:00"),
        ] {
            let mut out = Vec::new();
            push_fixed_time(&mut out, text);
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
    }

    proptest! {
        #[test]
        fn anything_parses_or_not_but_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = (parse(&bytes), stream_of(&bytes));
        }

        #[test]
        fn shown_times_parse_back(nanos in 0i128..4_000_000_000_000_000_000) {
            let time = Timestamp::from_nanosecond(nanos).unwrap();
            let mut out = Vec::new();
            push_fixed_time(&mut out, &time.to_string());
            let back = Timestamp::from_str(std::str::from_utf8(&out).unwrap()).unwrap();
            prop_assert_eq!(back, time);
        }
    }
}
