//! Entry points for fuzzing: any bytes may come, nothing may panic, take long or break an invariant.
//!
//! They take bytes, so that any fuzzer can drive them; `tests/fuzz.rs` does with one of its own.

mod decisions;
mod hostile;

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use keelson_kinds::decode::{self, FieldValidation, Format};
use keelson_kinds::{WriteContext, lookup, static_pod, write};

pub use decisions::actions;

use crate::pod;
use crate::source::manifest;

const FILE: &str = "/m/p.yaml";
const NODE: &str = "node-1";

/// Bytes as choices; when they are used up every choice is the first.
pub(crate) struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        let number = (usize::from(self.byte()) << 8) | usize::from(self.byte());
        number % bound.max(1)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn is_used_up(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads bytes as a manifest.
///
/// # Panics
/// When what is accepted is not what the API server would accept, or a refusal does not name the file: that is what a fuzzer
/// looks for.
pub fn manifest(input: &[u8]) {
    judge(&String::from_utf8_lossy(input));
}

/// Reads a good pod with hostile values in some places, which the bytes choose, as a manifest.
///
/// # Panics
/// As [`manifest`].
pub fn pods(input: &[u8]) {
    judge(&hostile::pod(&mut Choices(input)).to_string());
}

fn judge(text: &str) {
    let read = || manifest::parse(Path::new(FILE), text, NODE, "now");
    let found = match read() {
        Ok(found) => found,
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with(&format!("{FILE}:")), "the error does not begin with the file: {said}");
            return;
        }
    };
    assert_eq!(found.pods, read().map(|again| again.pods).unwrap_or_default(), "read twice it is something else");
    for pod in &found.pods {
        assert!(pod::is_static(pod) && pod::name(pod).ends_with(NODE), "{}", pod::name(pod));
        assert!(!pod::uid(pod).contains(['/', '.']) && !pod::uid(pod).is_empty(), "{}", pod::uid(pod));
        let json = serde_json::to_value(pod).unwrap_or_default();
        let mistakes = static_pod::validate(&json, NODE);
        assert!(mistakes.is_empty(), "what became of the manifest is wrong: {mistakes:?}");
        mirror(pod);
    }
}

/// What a node runs the API server has to be able to show.
fn mirror(pod: &Pod) {
    let Some(pods) = lookup("", "v1", "pods") else { return };
    let bytes = serde_json::to_vec(pod).unwrap_or_default();
    let mut object = match decode::body(pods, None, &bytes, Format::Json, FieldValidation::Strict) {
        Ok(decoded) => decoded.object,
        Err(error) => panic!("the mirror is no pod: {error}"),
    };
    let namespace = pod::namespace(pod).to_owned();
    let ctx = WriteContext { now: jiff::Timestamp::UNIX_EPOCH, uid: "u", suffix: "bcdfg", namespace: &namespace };
    if let Err(error) = write::create(pods, &mut object, &ctx) {
        // What only a new object may not have, and a manifest may: it is left out of the mirror.
        assert!(error.message.contains("resourceVersion"), "the mirror is refused: {error}");
    }
}
