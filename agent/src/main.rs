//! The program `agent`. Exit codes: 0 stopped by a signal; 1 failed while running; 2 wrong flags; 3 wrong
//! configuration; 4 the node's files or sockets cannot be set up; 130 second signal while stopping.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use keelson_agent::agent;
use keelson_agent::command::{self, CONFIG_ERROR};
use keelson_agent::config::{self, Flags};
use keelson_agent::embedded;
use keelson_agent::flight;
use keelson_agent::node_materials::NodeMaterials;
use keelson_agent::view;

const START_ERROR: u8 = 4;
/// How long a stop waits for blocking calls.
const BLOCKING_LIMIT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let flags = Flags::parse();
    if let Some(command) = &flags.command {
        return command::run(command, &flags);
    }
    kube_common::logging::init(flags.verbosity);
    kube_common::tls::install_ring();
    let config = match config::load(&flags) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("agent: {error}");
            return ExitCode::from(CONFIG_ERROR);
        }
    };
    let dataplane = match embedded::configuration(&config) {
        Ok(dataplane) => dataplane,
        Err(error) => {
            eprintln!("agent: {error}");
            return ExitCode::from(CONFIG_ERROR);
        }
    };
    // Two workers: one may be busy computing while the other keeps deadlines. More only cost memory.
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("agent: cannot start the runtime: {error}");
            return ExitCode::from(START_ERROR);
        }
    };
    let outcome = runtime.block_on(async {
        let stop = kube_common::shutdown::on_signals()?;
        let materials = Box::new(|inputs: &agent::MaterialsInputs| NodeMaterials::start(inputs) as _);
        let mut extensions: Vec<agent::Extension> = vec![Box::new(view::serve), Box::new(flight::serve::start)];
        extensions.extend(dataplane.map(|config| Box::new(embedded::serve(config)) as _));
        agent::run(config, materials, extensions, stop).await?;
        anyhow::Ok(())
    });
    // A blocking call that hangs (a mount, a slow disk) must not hold the process.
    runtime.shutdown_timeout(BLOCKING_LIMIT);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agent: {error:#}");
            ExitCode::from(START_ERROR)
        }
    }
}
