//! What `agent` can be asked to do instead of being the agent.

use std::process::ExitCode;

use clap::Subcommand;

use crate::adopt::command::Adopt;
use crate::config::{self, Flags, LoadError};
use crate::flight::command::{Explain, Pods};

/// Exit code for a wrong configuration.
pub const CONFIG_ERROR: u8 = 3;

/// Questions about this machine.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// What the agent wants of a pod, sees of it, waits for and since when; its last errors and the times of its start
    Explain(Explain),
    /// The pods of this node; live on a terminal
    Pods(Pods),
    /// What would happen to each pod if the agent took this node over from a kubelet, and why
    Adopt(Adopt),
}

/// Carries a command out.
#[must_use]
pub fn run(command: &Command, flags: &Flags) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("agent: cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome: Result<_, LoadError> = runtime.block_on(async {
        Ok(match command {
            Command::Explain(explain) => explain.run(&config::root_dir(flags)?).await,
            Command::Pods(pods) => pods.run(&config::root_dir(flags)?).await,
            Command::Adopt(adopt) => adopt.run(&config::load(flags)?).await,
        })
    });
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(text)) => {
            eprintln!("agent: {text}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("agent: {error}");
            ExitCode::from(CONFIG_ERROR)
        }
    }
}
