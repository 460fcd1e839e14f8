//! CRI's calls for streams: they only give URLs of the runtime's own streaming server.

use std::path::PathBuf;

use futures::FutureExt;
use k8s_cri::v1 as api;
use keelson_streaming::remotecommand::Options;

use super::cri::{CriRuntime, READ_DEADLINE};
use super::{Call, RuntimeError};

impl CriRuntime {
    pub(super) fn exec_stream<'a>(&'a self, id: &'a str, command: Vec<String>, options: Options) -> Call<'a, String> {
        async move {
            self.execs.stream(id);
            let request = api::ExecRequest {
                container_id: id.into(),
                cmd: command,
                tty: options.tty,
                stdin: options.stdin,
                stdout: options.stdout,
                stderr: options.stderr,
            };
            let answer = self
                .call("Exec", READ_DEADLINE, {
                    let mut client = self.runtime.clone();
                    async move { client.exec(request).await }
                })
                .await?;
            Ok(answer.url)
        }
        .boxed()
    }

    pub(super) fn attach_stream<'a>(&'a self, id: &'a str, options: Options) -> Call<'a, String> {
        async move {
            let request = api::AttachRequest {
                container_id: id.into(),
                tty: options.tty,
                stdin: options.stdin,
                stdout: options.stdout,
                stderr: options.stderr,
            };
            let answer = self
                .call("Attach", READ_DEADLINE, {
                    let mut client = self.runtime.clone();
                    async move { client.attach(request).await }
                })
                .await?;
            Ok(answer.url)
        }
        .boxed()
    }

    pub(super) fn sandbox_network<'a>(&'a self, id: &'a str) -> Call<'a, PathBuf> {
        async move {
            let request = api::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: true };
            let answer = self
                .call("PodSandboxStatus", READ_DEADLINE, {
                    let mut client = self.runtime.clone();
                    async move { client.pod_sandbox_status(request).await }
                })
                .await?;
            let info = answer.info.get("info").map(String::as_str).unwrap_or_default();
            network_namespace(info).ok_or_else(|| RuntimeError::Failed {
                call: "PodSandboxStatus",
                message: format!("the runtime does not tell the network namespace of sandbox {id}"),
            })
        }
        .boxed()
    }
}

/// The namespace in a runtime's verbose answer: containerd and CRI-O both put the OCI specification there. Without a path in it, that of
/// the sandbox's process.
fn network_namespace(info: &str) -> Option<PathBuf> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array();
    let network = namespaces.and_then(|all| all.iter().find(|namespace| namespace["type"] == "network"));
    if let Some(path) = network.and_then(|namespace| namespace["path"].as_str()).filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let pid = info["pid"].as_u64().filter(|pid| *pid > 0)?;
    Some(format!("/proc/{pid}/ns/net").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_namespace_of_a_verbose_answer() {
        let of = |text: &str| network_namespace(text).map(|path| path.display().to_string());
        let full = r#"{"pid": 7, "runtimeSpec": {"linux": {"namespaces": [{"type": "pid"},
            {"type": "network", "path": "/var/run/netns/cni-1"}]}}}"#;
        assert_eq!(of(full).as_deref(), Some("/var/run/netns/cni-1"));
        assert_eq!(of(r#"{"pid": 7}"#).as_deref(), Some("/proc/7/ns/net"));
        assert_eq!(of(r#"{"pid": 0}"#), None);
        assert_eq!(of(""), None);
    }
}
