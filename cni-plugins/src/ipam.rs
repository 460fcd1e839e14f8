//! Calls of the IPAM plugin that a configuration names.
//!
//! The plugin is looked for in `CNI_PATH`. When what is found there is this very program, under the name of one of its IPAM plugins,
//! the call stays in this process: an exec saved is a millisecond saved. Anything else is run as the specification has it.
//! A name is a name: one with a path in it (CVE-2021-20206) is refused.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::thread::{self, JoinHandle};

use serde::Deserialize;

use crate::config::{self, ConfigError};
use crate::error::{code, config_code};
use crate::host_local::{self, HostLocalError};
use crate::plugin::Plugin;
use crate::skel::{COMMAND, Command, Request};
use crate::types::AddResult;

/// Why the IPAM plugin did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    /// The name is a path, or no name at all.
    #[error("network configuration: `ipam.type`: {0:?} is not the name of a plugin (no slash, not . or ..)")]
    Name(String),
    /// No such program.
    #[error("failed to find plugin {name:?} in path [{}]", paths(path))]
    NotFound {
        /// The plugin.
        name: String,
        /// `CNI_PATH`.
        path: Vec<PathBuf>,
    },
    /// The program could not be run or talked to.
    #[error("cannot run IPAM plugin {}: {source}", program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The program failed and said why in the specification's format; its words are passed on.
    #[error("{message}")]
    Refused {
        /// Its code.
        code: u32,
        /// Its message.
        message: String,
        /// Its details.
        details: String,
    },
    /// The program failed without saying why.
    #[error("IPAM plugin {} failed with {status}: {output:?}", program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it said on standard output.
        output: String,
    },
    /// The program's result makes no sense.
    #[error("IPAM plugin {} answered with an invalid result: {source}", program.display())]
    Answer {
        /// The program.
        program: PathBuf,
        /// What is wrong.
        source: ConfigError,
    },
    /// The plugin in this process failed.
    #[error(transparent)]
    HostLocal(#[from] HostLocalError),
}

impl IpamError {
    /// The specification's code.
    pub fn code(&self) -> u32 {
        match self {
            Self::Name(_) => code::INVALID_CONFIG,
            Self::NotFound { .. } | Self::Run { .. } | Self::Failed { .. } => code::DELEGATE,
            Self::Refused { code, .. } => *code,
            Self::Answer { source, .. } => config_code(source),
            Self::HostLocal(error) => error.code(),
        }
    }
}

fn paths(path: &[PathBuf]) -> String {
    path.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":")
}

/// Addresses from an ADD of an IPAM plugin.
#[derive(Debug)]
#[must_use = "the addresses may be told only after wait()"]
pub struct Added {
    /// What the plugin answered.
    pub result: AddResult,
    durable: Option<JoinHandle<Result<(), HostLocalError>>>,
}

/// What still stands between an answer and its being told.
#[derive(Debug, Default)]
#[must_use = "the addresses may be told only after wait()"]
pub struct Pending(Option<JoinHandle<Result<(), HostLocalError>>>);

impl Added {
    /// The result for configuring an interface, and what to wait for before it is told.
    pub fn split(self) -> (AddResult, Pending) {
        (self.result, Pending(self.durable))
    }
}

impl Pending {
    /// Waits until the addresses are on disk.
    pub fn wait(self) -> Result<(), IpamError> {
        let Some(thread) = self.0 else { return Ok(()) };
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
    }
}

/// Asks the plugin `name` for addresses. In this process the wait for the disk, a third of an ADD, goes on beside the caller's work.
pub fn add(name: &str, request: &Request) -> Result<Added, IpamError> {
    let program = find(name, &request.path)?;
    if in_process(name, &program) {
        let (result, durable) = host_local::take(request)?;
        let spawned = thread::Builder::new().spawn(move || durable.wait());
        let durable = spawned.map_err(|source| IpamError::Run { program, source })?;
        return Ok(Added { result, durable: Some(durable) });
    }
    let output = run(&program, request)?;
    let invalid = |source| IpamError::Answer { program: program.clone(), source };
    let value = config::parse(&output).map_err(invalid)?;
    let result = AddResult::parse(&value).map_err(invalid)?;
    Ok(Added { result, durable: None })
}

/// Calls the plugin `name` with the request's command, which is not ADD.
pub fn call(name: &str, request: &Request) -> Result<(), IpamError> {
    let program = find(name, &request.path)?;
    if !in_process(name, &program) {
        return run(&program, request).map(|_| ());
    }
    match request.command {
        Command::Del => host_local::del(request)?,
        Command::Check => host_local::check(request)?,
        Command::Gc => host_local::gc(request)?,
        Command::Status => host_local::status(request)?,
        Command::Add | Command::Version => {}
    }
    Ok(())
}

fn in_process(name: &str, program: &Path) -> bool {
    name == Plugin::HostLocal.name() && is_this_program(program)
}

fn find(name: &str, path: &[PathBuf]) -> Result<PathBuf, IpamError> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(IpamError::Name(name.to_owned()));
    }
    let candidates = path.iter().map(|folder| folder.join(name));
    candidates
        .into_iter()
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| IpamError::NotFound { name: name.to_owned(), path: path.to_vec() })
}

fn is_this_program(program: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let this = identity(Path::new("/proc/self/exe"));
    this.is_some() && this == identity(program)
}

#[derive(Deserialize)]
struct Failure {
    code: u32,
    #[serde(rename = "msg")]
    message: String,
    #[serde(default)]
    details: String,
}

fn run(program: &Path, request: &Request) -> Result<Vec<u8>, IpamError> {
    let failed = |source| IpamError::Run { program: program.to_owned(), source };
    let mut child = Process::new(program)
        .env(COMMAND, request.command.as_str())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(&request.stdin) {
            // It may well have failed before reading.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(failed(error)),
            _ => {}
        }
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    match serde_json::from_slice::<Failure>(&output.stdout) {
        Ok(Failure { code, message, details }) => Err(IpamError::Refused { code, message, details }),
        Err(_) => Err(IpamError::Failed {
            program: program.to_owned(),
            status: output.status,
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
        }),
    }
}
