//! Where in a log file to start reading. Works backwards or by halving, so that the size of the
//! file does not matter. All functions block.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use jiff::Timestamp;

use super::line::{StreamFilter, parse, stream_of};

/// Read at once when going backwards.
const BLOCK: u64 = 64 << 10;
/// Enough of a line to know its stream: time, stream, tag.
const HEAD: usize = 128;
/// Files smaller than this are read through.
const SEARCH_FROM: u64 = 1 << 20;
/// The streams of a container are written by two writers: lines this close together may be out of
/// order, so the search steps back this far from what it found.
const DISORDER: u64 = 256 << 10;

/// Offset of the first of the last `lines` lines of the first `end` bytes, counting those that
/// `filter` wants.
pub(super) fn tail(file: &File, end: u64, lines: u64, filter: StreamFilter) -> io::Result<u64> {
    if lines == 0 || end == 0 {
        return Ok(end);
    }
    let mut counted = 0;
    let mut block_end = end;
    // The bytes that follow the block being looked at: a line's head may lie across the border.
    let mut after: Vec<u8> = Vec::new();
    while block_end > 0 {
        let start = block_end.saturating_sub(BLOCK);
        let mut block = vec![0; usize::try_from(block_end - start).unwrap_or_default()];
        file.read_exact_at(&mut block, start)?;
        let own = block.len();
        block.extend_from_slice(&after);
        // A newline at `at` means that a line starts at `at + 1`.
        for at in (0..own).rev() {
            if block[at] != b'\n' {
                continue;
            }
            let line_start = start + at as u64 + 1;
            if line_start < end && wanted(&block[at + 1..], filter) {
                counted += 1;
                if counted == lines {
                    return Ok(line_start);
                }
            }
        }
        block.truncate(own.min(HEAD));
        after = block;
        block_end = start;
    }
    // The file's first line has no newline before it; it is in, whatever the count.
    Ok(0)
}

fn wanted(line: &[u8], filter: StreamFilter) -> bool {
    let head = &line[..line.len().min(HEAD)];
    filter == StreamFilter::All || stream_of(head).is_some_and(|s| filter.accepts(s))
}

/// An offset before which every line is older than `since`, as near as that can be known.
pub(super) fn since(file: &File, end: u64, since: Timestamp) -> io::Result<u64> {
    if end < SEARCH_FROM {
        return Ok(0);
    }
    let (mut low, mut high) = (0, end);
    while high - low > BLOCK {
        let middle = low + (high - low) / 2;
        match next_time(file, middle, high)? {
            Some(time) if time < since => low = middle,
            // Newer, or no line that parses: the start lies before.
            _ => high = middle,
        }
    }
    let back = low.saturating_sub(DISORDER);
    if back == 0 {
        return Ok(0);
    }
    Ok(line_start(file, back, end)?.unwrap_or(0))
}

/// The first line start after `at`.
fn line_start(file: &File, at: u64, end: u64) -> io::Result<Option<u64>> {
    let mut from = at;
    let mut block = vec![0; 16 << 10];
    while from < end {
        let read = file.read_at(&mut block, from)?;
        if read == 0 {
            return Ok(None);
        }
        if let Some(newline) = block[..read].iter().position(|b| *b == b'\n') {
            return Ok(Some(from + newline as u64 + 1));
        }
        from += read as u64;
    }
    Ok(None)
}

/// The time of the first line after `at` that has one.
fn next_time(file: &File, at: u64, end: u64) -> io::Result<Option<Timestamp>> {
    let mut from = at;
    // A few broken lines in a row are passed over.
    for _ in 0..16 {
        let Some(start) = line_start(file, from, end)? else {
            return Ok(None);
        };
        let mut head = [0; HEAD];
        let read = file.read_at(&mut head, start)?;
        if let Ok(line) = parse(&head[..read]) {
            return Ok(Some(line.time));
        }
        from = start;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn file(text: &str) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn huge_file_by_time() {
        let mut text = String::new();
        let base = 1_700_000_000;
        for i in 0..100_000 {
            let time = Timestamp::from_second(base + i).unwrap();
            text.push_str(&format!("{time} stdout F line {i}\n"));
        }
        let file = file(&text);
        let end = text.len() as u64;
        for wanted in [0, 50_000, 99_999] {
            let since_time = Timestamp::from_second(base + wanted).unwrap();
            let at = usize::try_from(since(&file, end, since_time).unwrap()).unwrap();
            let target = text.find(&format!("line {wanted}\n")).unwrap();
            assert!(at <= target && target - at < 600_000, "{wanted}: {at} {target}");
            assert!(at == 0 || text.as_bytes()[at - 1] == b'\n');
        }
    }

    proptest! {
        #[test]
        fn tail_counts_as_a_reader_would(
            lines in prop::collection::vec((any::<bool>(), "[a-z]{0,40}"), 0..60),
            want in 0u64..70, filter in 0usize..3, unfinished in any::<bool>(),
        ) {
            let filter = [StreamFilter::All, StreamFilter::Stdout, StreamFilter::Stderr][filter];
            let mut all: Vec<String> = lines.iter().map(|(out, text)| {
                format!("2016-10-06T00:17:09Z {} F {text}", if *out { "stdout" } else { "stderr" })
            }).collect();
            let mut text = all.iter().map(|l| format!("{l}\n")).collect::<String>();
            if unfinished && text.pop().is_none() {
                all.clear();
            }
            let file = file(&text);
            let at = usize::try_from(tail(&file, text.len() as u64, want, filter).unwrap()).unwrap();
            let matching = |l: &&str| filter == StreamFilter::All || stream_of(l.as_bytes()).is_some_and(|s| filter.accepts(s));
            let got: Vec<&str> = text[at..].lines().filter(matching).collect();
            let total: Vec<&str> = all.iter().map(String::as_str).filter(matching).collect();
            let keep = total.len().saturating_sub(usize::try_from(want).unwrap());
            prop_assert_eq!(got, &total[keep..]);
        }
    }
}
