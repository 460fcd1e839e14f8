//! The real kubectl: found, run for a lab, and its answers read.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::LabError;
use super::store::Places;

/// Says which kubectl to use, before any other place.
pub const VARIABLE: &str = "KEELSON_KUBECTL";
/// Oldest minor version that fits the API server's (upstream: one minor version apart; ours accepts a little more).
const OLDEST_MINOR: u32 = 34;

/// A kubectl and the lab it speaks to.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    way: Option<Way>,
}

/// How it reaches a server that this host has no route to.
#[derive(Clone, Debug)]
struct Way {
    proxy: String,
    cache: PathBuf,
}

impl Kubectl {
    /// The kubectl for a lab's kubeconfig.
    pub fn find(places: &Places, kubeconfig: &Path) -> Result<Self, LabError> {
        let kubeconfig = kubeconfig.to_path_buf();
        if let Some(program) = std::env::var_os(VARIABLE) {
            return Ok(Self { program: program.into(), kubeconfig, way: None });
        }
        let own = places.labs.join(".kubectl");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let candidates = std::iter::once(own.join("kubectl"))
            .chain(std::env::split_paths(&path).map(|folder| folder.join("kubectl")));
        for program in candidates {
            if program.is_file() && recent(&program) {
                return Ok(Self { program, kubeconfig, way: None });
            }
        }
        Err(LabError::NoKubectl(own))
    }

    /// The same through an HTTP proxy (its URL), with a folder of its own for what it keeps about servers.
    #[must_use]
    pub fn through(self, proxy: &str, cache: PathBuf) -> Self {
        Self { way: Some(Way { proxy: proxy.to_owned(), cache }), ..self }
    }

    /// The command with the lab's kubeconfig.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("KUBECONFIG", &self.kubeconfig);
        if let Some(way) = &self.way {
            command.env("HTTPS_PROXY", &way.proxy).env("KUBECACHEDIR", &way.cache);
            // Exceptions are for the networks of this host.
            command.env_remove("NO_PROXY").env_remove("no_proxy");
        }
        command
    }

    /// Runs it and gives what it printed.
    pub fn run(&self, arguments: &[&str], input: Option<&str>) -> Result<String, LabError> {
        let failed = |status: String, output: String| LabError::Command {
            command: format!("kubectl {}", arguments.join(" ")),
            status,
            output,
        };
        let io = |error: std::io::Error| failed("not run".to_owned(), error.to_string());
        let mut child = self
            .command()
            .args(arguments)
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(io)?;
        if let (Some(mut pipe), Some(text)) = (child.stdin.take(), input) {
            pipe.write_all(text.as_bytes()).map_err(io)?;
        }
        let output = child.wait_with_output().map_err(io)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(failed(output.status.to_string(), String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }

    /// Runs it with `-o json` and gives the object.
    pub fn json(&self, arguments: &[&str]) -> Result<Value, LabError> {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        let text = self.run(&all, None)?;
        serde_json::from_str(&text).map_err(|error| LabError::Command {
            command: format!("kubectl {}", all.join(" ")),
            status: "no JSON".to_owned(),
            output: error.to_string(),
        })
    }
}

fn recent(program: &Path) -> bool {
    let output = Command::new(program).args(["version", "--client", "-o", "json"]).output();
    output.is_ok_and(|output| minor(&output.stdout).is_some_and(|minor| minor >= OLDEST_MINOR))
}

/// The minor version in the answer to `version --client -o json`; providers add a `+` to it.
fn minor(text: &[u8]) -> Option<u32> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let text = value.pointer("/clientVersion/minor")?.as_str()?;
    text.trim_end_matches('+').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minor_version_is_read_with_and_without_a_plus() {
        assert_eq!(minor(br#"{"clientVersion":{"major":"1","minor":"37"}}"#), Some(37));
        assert_eq!(minor(br#"{"clientVersion":{"major":"1","minor":"28+"}}"#), Some(28));
        assert_eq!(minor(b"no json"), None);
    }
}
