//! A small mutating fuzzer over the entry points of a crate's module `fuzz`. Half a second for each target; as long as
//! `KEELSON_FUZZ_SECONDS` says, with a fresh seed, when it is set. A failure prints the seed, which `KEELSON_FUZZ_SEED` repeats, and
//! the input.

use std::time::{Duration, Instant};

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

/// Runs a target on mutations of the seeds.
pub fn run(target: fn(&[u8]), seeds: Vec<Vec<u8>>) {
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
            if let Err(panic) = std::panic::catch_unwind(|| target(&input)) {
                println!("after {runs} runs, on {}", input.escape_ascii());
                std::panic::resume_unwind(panic);
            }
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
