//! CNI plugins in one multi-call program: `loopback`, `bridge`, `host-local`, `portmap`.
//!
//! Same configuration keys, same results and the same files on disk as the reference plugins of containernetworking/plugins, so
//! that an existing conflist works unchanged and the two can take over from each other. CNI specification 1.1.0; answers in the
//! format of 0.1.0 to 1.1.0, as the configuration asks.
//!
//! Flow: [`skel`] checks environment and configuration, the plugin does the work over [`net`] (netlink) and [`host_local`] (files),
//! the answer goes to standard output. An ADD costs a fork and an exec, so the start is kept short: no threads before they are
//! needed, IPAM in the same process when `CNI_PATH` leads to this very program.

pub mod bridge;
pub mod config;
pub mod error;
pub mod host_local;
pub mod ipam;
pub mod loopback;
pub mod masquerade;
pub mod net;
pub mod plugin;
pub mod portmap;
pub mod skel;
pub mod types;
pub mod version;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use error::Error;
use plugin::Plugin;
use skel::Command;

/// Name under which the program is nothing in particular.
pub const PROGRAM: &str = "keelson-cni";

/// Runs the plugin that the arguments name: by `argv[0]`, or, called as `keelson-cni`, by the first argument.
pub fn run(mut arguments: impl Iterator<Item = OsString>, stdin: &mut impl Read) -> ExitCode {
    let program = arguments.next().unwrap_or_default();
    let base = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = Plugin::by_name(&base).map(|_| base).or_else(|| arguments.next()?.into_string().ok());
    let Some(plugin) = name.as_deref().and_then(Plugin::by_name) else {
        eprintln!("{}", usage(name.as_deref()));
        return ExitCode::FAILURE;
    };
    let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if environment(skel::COMMAND).is_none() {
        // A person looking at the program, as the reference has it.
        eprintln!("CNI {} plugin (keelson) v{}", plugin.name(), env!("CARGO_PKG_VERSION"));
        eprintln!("CNI protocol versions supported: {}", version::supported().join(", "));
        return ExitCode::SUCCESS;
    }
    let mut bytes = Vec::new();
    match answer(plugin, &environment, stdin, &mut bytes) {
        Ok(text) => finish(&text, ExitCode::SUCCESS),
        Err(error) => finish(&error.to_json(asked_version(&bytes)), ExitCode::FAILURE),
    }
}

/// The version that a configuration asks for, however wrong the rest of it is; the newest when it names none.
fn asked_version(configuration: &[u8]) -> version::Version {
    let json: Option<serde_json::Value> = serde_json::from_slice(configuration).ok();
    json.and_then(|json| version::Version::parse(json.get("cniVersion")?.as_str()?)).unwrap_or(version::Version::V1_1_0)
}

fn usage(name: Option<&str>) -> String {
    let plugins: Vec<&str> = Plugin::ALL.iter().map(|plugin| plugin.name()).collect();
    let complaint = name.map(|name| format!("{PROGRAM}: there is no plugin `{name}`.\n")).unwrap_or_default();
    format!(
        "{complaint}usage: link this program under one of the names {}, or run `{PROGRAM} NAME`, with the CNI environment set and \
         the network configuration on standard input",
        plugins.join(", ")
    )
}

fn answer(
    plugin: Plugin,
    environment: &dyn Fn(&str) -> Option<String>,
    stdin: &mut impl Read,
    bytes: &mut Vec<u8>,
) -> Result<String, Error> {
    let command = Command::from_environment(environment)?;
    if command == Command::Version {
        return Ok(version::report());
    }
    // One byte over the limit is enough to know.
    stdin.take(skel::CONFIG_LIMIT + 1).read_to_end(bytes).map_err(skel::SkelError::Stdin)?;
    let request = skel::Request::new(command, environment, bytes.clone())?;
    let result = plugin.call(&request)?;
    Ok(result.map(|result| result.to_json(request.version)).unwrap_or_default())
}

/// Standard output carries the answer; nothing can be said when it is gone.
fn finish(text: &str, code: ExitCode) -> ExitCode {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    if written.is_ok() { code } else { ExitCode::FAILURE }
}
