//! STATUS and GC of the CNI plugins of the managed network. containerd before 2 calls neither.
//!
//! Invariants: only our own network is ever collected, and only while no sandbox is being made: containerd lists a sandbox
//! after its ADD, so that the address of one under way would look like a leak. Upstream counterpart: `libcni`'s
//! `GetStatusNetworkList` and `GCNetworkList`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// The first version of CNI that has STATUS and GC.
const VERSION: &str = "1.1.0";
/// A plugin that has not answered by then hangs; ours take milliseconds.
const LIMIT: Duration = Duration::from_secs(30);
/// Members of a configuration list that go to each of its plugins.
const TYPE: &str = "type";

/// Why a plugin did not do what it was asked. Retryable.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// It is not installed.
    #[error("the CNI plugin {} is missing: install it there, or set network.binDir", path.display())]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// It could not be run.
    #[error("cannot run the CNI plugin {}: {source}", path.display())]
    Run {
        /// The program.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It takes too long.
    #[error("the CNI plugin {plugin} has not answered {command} within {limit:?}")]
    Late {
        /// The plugin.
        plugin: String,
        /// The command.
        command: &'static str,
        /// How long it had.
        limit: Duration,
    },
    /// It said no.
    #[error("the CNI plugin {plugin} answered {command} with code {code}: {message}")]
    Refused {
        /// The plugin.
        plugin: String,
        /// The command.
        command: &'static str,
        /// Its code.
        code: u32,
        /// Its words.
        message: String,
    },
}

/// An attachment that is in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    /// The sandbox.
    pub container: String,
    /// The interface inside.
    pub interface: String,
}

#[derive(Deserialize)]
struct Failure {
    code: u32,
    msg: String,
}

/// The configuration of each plugin of a list, as the runtime would hand it over for `VERSION`'s commands.
fn configurations(list: &Value, more: &Value) -> Vec<(String, Value)> {
    let name = &list["name"];
    let plugins = list["plugins"].as_array().into_iter().flatten();
    plugins
        .filter_map(|plugin| {
            let mut all = plugin.as_object()?.clone();
            all.remove("capabilities");
            all.insert("name".into(), name.clone());
            all.insert("cniVersion".into(), VERSION.into());
            all.extend(more.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
            Some((plugin[TYPE].as_str()?.to_owned(), Value::Object(all)))
        })
        .collect()
}

async fn call(bin_dir: &Path, plugin: &str, command: &'static str, configuration: &Value) -> Result<(), PluginError> {
    let path = bin_dir.join(plugin);
    let fail = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => PluginError::Missing { path: path.clone() },
        _ => PluginError::Run { path: path.clone(), source },
    };
    let mut child = Command::new(&path)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("CNI_COMMAND", command)
        .env("CNI_PATH", bin_dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(fail)?;
    let text = configuration.to_string();
    let talk = async {
        if let Some(mut stdin) = child.stdin.take() {
            // One that fails before reading says why by itself.
            let _ = stdin.write_all(text.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let output = match tokio::time::timeout(LIMIT, talk).await {
        Err(_) => return Err(PluginError::Late { plugin: plugin.to_owned(), command, limit: LIMIT }),
        Ok(output) => output.map_err(fail)?,
    };
    if output.status.success() {
        return Ok(());
    }
    let (code, message) = match serde_json::from_slice::<Failure>(&output.stdout) {
        Ok(failure) => (failure.code, failure.msg),
        Err(_) => (0, format!("{}; {}", output.status, String::from_utf8_lossy(&output.stdout).trim())),
    };
    Err(PluginError::Refused { plugin: plugin.to_owned(), command, code, message })
}

/// Asks every plugin of the list whether an ADD could work.
///
/// # Errors
/// The first that says no.
pub async fn status(bin_dir: &Path, list: &Value) -> Result<(), PluginError> {
    for (plugin, configuration) in configurations(list, &json!({})) {
        call(bin_dir, &plugin, "STATUS", &configuration).await?;
    }
    Ok(())
}

/// Lets every plugin of the list drop what belongs to none of these attachments. Goes on after a failure.
///
/// # Errors
/// The first failure.
pub async fn collect(bin_dir: &Path, list: &Value, valid: &[Attachment]) -> Result<(), PluginError> {
    let valid: Vec<Value> = valid.iter().map(|a| json!({"containerID": a.container, "ifname": a.interface})).collect();
    // The second name is what libcni's first releases with GC sent.
    let more = json!({"cni.dev/valid-attachments": valid, "cni.dev/attachments": valid});
    let mut outcome = Ok(());
    for (plugin, configuration) in configurations(list, &more) {
        let called = call(bin_dir, &plugin, "GC", &configuration).await;
        outcome = outcome.and(called);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A plugin that writes down what it got and answers with `answer`.
    fn plugin(folder: &Path, name: &str, answer: &str) {
        let path = folder.join(name);
        let script =
            format!("#!/bin/sh\necho $CNI_COMMAND >>{0}/calls\ncat >>{0}/{name}.in\n{answer}\n", folder.display());
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn list() -> Value {
        json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
            {"type": "one", "ipam": {"type": "x"}},
            {"type": "two", "capabilities": {"portMappings": true}},
        ]})
    }

    #[tokio::test]
    async fn every_plugin_gets_the_valid_attachments() {
        let folder = tempfile::tempdir().unwrap();
        plugin(folder.path(), "one", "echo '{\"code\": 50, \"msg\": \"no\"}'; exit 1");
        plugin(folder.path(), "two", "exit 0");
        let valid = [Attachment { container: "c1".into(), interface: "eth0".into() }];
        let error = collect(folder.path(), &list(), &valid).await.unwrap_err();
        assert_eq!(error.to_string(), "the CNI plugin one answered GC with code 50: no");
        assert_eq!(fs::read_to_string(folder.path().join("calls")).unwrap(), "GC\nGC\n");
        let got: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("two.in")).unwrap()).unwrap();
        assert_eq!(got["cniVersion"], "1.1.0");
        assert_eq!(got["name"], "net");
        assert_eq!(got["cni.dev/valid-attachments"], json!([{"containerID": "c1", "ifname": "eth0"}]));
    }

    #[tokio::test]
    async fn a_missing_plugin_is_named() {
        let folder = tempfile::tempdir().unwrap();
        plugin(folder.path(), "one", "exit 0");
        let error = status(folder.path(), &list()).await.unwrap_err();
        assert!(error.to_string().contains("/two is missing"), "{error}");
        plugin(folder.path(), "two", "echo nonsense; exit 3");
        let error = status(folder.path(), &list()).await.unwrap_err();
        assert!(error.to_string().contains("exit status: 3; nonsense"), "{error}");
        plugin(folder.path(), "two", "exit 0");
        status(folder.path(), &list()).await.unwrap();
    }
}
