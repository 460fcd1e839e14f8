//! A small mutating fuzzer over the entry points of `keelson_streaming::fuzz`. Half a second for each target; as long as
//! `KEELSON_FUZZ_SECONDS` says, with a fresh seed, when it is set. A failure prints the seed, which `KEELSON_FUZZ_SEED` repeats.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use keelson_streaming::fuzz;
use keelson_streaming::spdy::{Encoder, Headers};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

const DEFAULT_TIME: Duration = Duration::from_millis(500);
const DEFAULT_SEED: u64 = 1;
const MAX_INPUT: usize = 4096;
/// Inputs that mutations start from.
const MAX_CORPUS: usize = 256;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn mutate(rng: &mut StdRng, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    const ODD: [u8; 8] = [0, 1, 3, 0x7f, 0x80, 0x81, 0xfe, 0xff];
    for _ in 0..rng.random_range(1..6) {
        let at = if input.is_empty() { 0 } else { rng.random_range(0..input.len()) };
        match rng.random_range(0..7) {
            0 if !input.is_empty() => input[at] ^= 1 << rng.random_range(0..8),
            1 if !input.is_empty() => input[at] = ODD[rng.random_range(0..ODD.len())],
            2 if !input.is_empty() => drop(input.remove(at)),
            3 => input.insert(at, rng.random_range(0..=u8::MAX)),
            4 => input.truncate(at),
            5 => {
                let other = &corpus[rng.random_range(0..corpus.len())];
                input.splice(at..at, other.iter().copied());
            }
            _ => {
                let other = &corpus[rng.random_range(0..corpus.len())];
                let from = rng.random_range(0..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
        input.truncate(MAX_INPUT);
    }
}

fn run(target: fn(&[u8]), seeds: Vec<Vec<u8>>) {
    let time = number("KEELSON_FUZZ_SECONDS").map_or(DEFAULT_TIME, Duration::from_secs);
    let fresh = || if time == DEFAULT_TIME { DEFAULT_SEED } else { rand::random() };
    let seed = number("KEELSON_FUZZ_SEED").unwrap_or_else(fresh);
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut corpus, begun, mut runs) = (seeds, Instant::now(), 0u64);
    while begun.elapsed() < time {
        for _ in 0..100 {
            let mut input = corpus[rng.random_range(0..corpus.len())].clone();
            mutate(&mut rng, &mut input, &corpus);
            target(&input);
            // Without a view of the code's paths, chance decides what is kept.
            if rng.random_range(0..1000) == 0 {
                if corpus.len() < MAX_CORPUS {
                    corpus.push(input);
                } else {
                    let at = rng.random_range(0..corpus.len());
                    corpus[at] = input;
                }
            }
            runs += 1;
        }
    }
    println!("{runs} runs");
}

#[test]
fn spdy_frames() {
    let mut encoder = Encoder::default();
    let mut wire = BytesMut::new();
    let headers = Headers::new([("streamtype", "data"), ("port", "8080"), ("requestid", "1")]);
    encoder.syn_stream(1, &headers, false, &mut wire);
    encoder.syn_reply(1, &Headers::default(), &mut wire);
    encoder.syn_stream(3, &headers, true, &mut wire);
    let mut plain = BytesMut::new();
    Encoder::data(1, b"some bytes", &mut plain);
    Encoder::fin(1, &mut plain);
    Encoder::rst_stream(1, 3, &mut plain);
    Encoder::ping(1, &mut plain);
    Encoder::go_away(1, &mut plain);
    let with_step = |step: u8, bytes: &[u8]| [&[step][..], bytes].concat();
    run(fuzz::spdy, vec![with_step(255, &wire), with_step(3, &plain), with_step(7, &[&wire[..], &plain[..]].concat())]);
}

#[test]
fn channel_messages() {
    run(fuzz::channels, vec![b"\x00hello".to_vec(), b"1aGVsbG8=".to_vec(), vec![255, 0], vec![4], Vec::new()]);
}
