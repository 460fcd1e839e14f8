//! Upstream's node conformance list on a lab node: what each entry describes, in our own words and code.
//!
//! The comment above a test holds the codenames of the entries that it covers; `./dev conformance` counts them (CONTRIBUTING.md).
//! Tests run at once, each in its own namespace, by the API alone.

/// The tests of a file under their paths.
macro_rules! tests {
    ($($test:ident),* $(,)?) => {
        pub const TESTS: &[keelson_tests::suite::Test] = &[$((concat!(module_path!(), "::", stringify!($test)), $test)),*];
    };
}

#[path = "conformance/admission.rs"]
mod admission;
#[path = "conformance/cli.rs"]
mod cli;
#[path = "conformance/collector.rs"]
mod collector;
#[path = "conformance/containers.rs"]
mod containers;
#[path = "conformance/custom.rs"]
mod custom;
#[path = "conformance/data.rs"]
mod data;
#[path = "conformance/downward.rs"]
mod downward;
#[path = "conformance/environment.rs"]
mod environment;
#[path = "conformance/ephemeral.rs"]
mod ephemeral;
#[path = "conformance/expansion.rs"]
mod expansion;
#[path = "conformance/fields.rs"]
mod fields;
#[path = "conformance/generation.rs"]
mod generation;
#[path = "conformance/hooks.rs"]
mod hooks;
#[path = "conformance/identity.rs"]
mod identity;
#[path = "conformance/init.rs"]
mod init;
#[path = "conformance/kinds.rs"]
mod kinds;
#[path = "conformance/kubelet.rs"]
mod kubelet;
#[path = "conformance/machinery.rs"]
mod machinery;
#[path = "conformance/openapi.rs"]
mod openapi;
#[path = "conformance/operations.rs"]
mod operations;
#[path = "conformance/pods.rs"]
mod pods;
#[path = "conformance/policies.rs"]
mod policies;
#[path = "conformance/probes.rs"]
mod probes;
#[path = "conformance/quotas.rs"]
mod quotas;
#[path = "conformance/runtime_class.rs"]
mod runtime_class;
#[path = "conformance/security.rs"]
mod security;
#[path = "conformance/taints.rs"]
mod taints;
#[path = "conformance/termination.rs"]
mod termination;
#[path = "conformance/verbs.rs"]
mod verbs;
#[path = "conformance/volumes.rs"]
mod volumes;
#[path = "conformance/webhooks.rs"]
mod webhooks;

use std::process::ExitCode;

use keelson_tests::suite;

/// Tests that run at once: most of their time is waiting, and two cores shall not be what they wait for.
const THREADS: usize = 10;

fn main() -> ExitCode {
    // The longest first, so that they overlap with all others.
    let together = [
        openapi::TESTS,
        admission::TESTS,
        cli::TESTS,
        identity::TESTS,
        probes::TESTS,
        expansion::TESTS,
        termination::TESTS,
        volumes::TESTS,
        init::TESTS,
        hooks::TESTS,
        ephemeral::TESTS,
        generation::TESTS,
        collector::TESTS,
        webhooks::TESTS,
        fields::TESTS,
        pods::TESTS,
        kubelet::TESTS,
        containers::TESTS,
        environment::TESTS,
        downward::TESTS,
        security::TESTS,
        runtime_class::TESTS,
        data::TESTS,
        kinds::TESTS,
        operations::TESTS,
        custom::TESTS,
        quotas::TESTS,
        policies::TESTS,
        machinery::TESTS,
    ];
    suite::main_at_once("conformance", 1, THREADS, &together.concat(), taints::TESTS)
}
