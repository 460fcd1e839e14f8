//! The multi-call CNI program: the base name of `argv[0]` says which plugin it is.

use std::process::ExitCode;

fn main() -> ExitCode {
    keelson_cni_plugins::run(std::env::args_os(), &mut std::io::stdin().lock())
}
