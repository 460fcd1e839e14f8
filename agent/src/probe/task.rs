//! One probe of one container instance, again and again.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::http::{self, Answer};
use super::{Board, Kind, grpc};
use crate::clock;
use crate::pod;
use crate::runtime::RuntimeError;
use crate::worker::NodeContext;

/// Immediate tries of one attempt when the attempt itself could not be made (upstream `maxProbeRetries`).
const TRIES: u32 = 3;
/// Probes are splayed over their period when the agent is younger than this: upstream does it at its own start only.
const YOUNG: Duration = Duration::from_secs(10);
/// How probes name themselves, as upstream's of this release.
const USER_AGENT: &str = "kube-probe/1.37";
/// Most bytes of output that are shown.
const MAX_OUTPUT: usize = 10 << 10;

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Result {
    Success,
    Warning(String),
    Failure(String),
    /// The attempt could not be made.
    Unknown(String),
}

pub(super) struct Task {
    pub(super) node: Arc<NodeContext>,
    pub(super) pod: Arc<Pod>,
    pub(super) container: Container,
    pub(super) id: String,
    pub(super) kind: Kind,
    pub(super) board: Board,
    pub(super) started_at: i64,
}

fn seconds(value: Option<i32>, default: u64) -> Duration {
    Duration::from_secs(value.and_then(|v| u64::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(default))
}

impl Task {
    pub(super) async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.work() => {}
        }
    }

    async fn work(&self) {
        let Some(probe) = self.kind.of(&self.container).cloned() else { return };
        let period = seconds(probe.period_seconds, 10);
        let initial = Duration::from_secs(probe.initial_delay_seconds.and_then(|v| u64::try_from(v).ok()).unwrap_or(0));
        let begin = self.started_at.saturating_add(i64::try_from(initial.as_nanos()).unwrap_or(i64::MAX));
        if self.node.started.elapsed() < YOUNG && clock::now() - self.started_at > 10_000_000_000 {
            tokio::time::sleep(period.mul_f64(rand::random())).await;
        }
        tokio::time::sleep(clock::until(begin)).await;
        let (mut same, mut last) = (0, None);
        loop {
            if self.kind == Kind::Startup && self.board.started(&self.id) {
                return;
            }
            if self.kind == Kind::Startup || self.board.started(&self.id) {
                let ok = self.attempt(&probe).await;
                if let Some(ok) = ok {
                    same = if last == Some(ok) { same + 1 } else { 1 };
                    last = Some(ok);
                    let threshold =
                        if ok { probe.success_threshold.unwrap_or(1) } else { probe.failure_threshold.unwrap_or(3) };
                    if same >= threshold.max(1) {
                        self.settle(ok);
                    }
                }
            } else {
                // Readiness and liveness begin right after startup, not at the next period.
                let mut changes = self.board.changed.subscribe();
                let _ = tokio::time::timeout(period, changes.changed()).await;
                continue;
            }
            tokio::time::sleep(period).await;
        }
    }

    fn settle(&self, ok: bool) {
        self.board.change(&self.id, |v| match self.kind {
            Kind::Startup => v.started = Some(ok),
            Kind::Liveness => v.liveness_failed = !ok,
            Kind::Readiness => v.ready = Some(ok),
        });
    }

    /// One attempt; `None` when it says nothing.
    async fn attempt(&self, probe: &Probe) -> Option<bool> {
        let limit = seconds(probe.timeout_seconds, 1);
        let mut result = Result::Unknown(String::new());
        for _ in 0..TRIES {
            result = self.once(probe, limit).await;
            if !matches!(result, Result::Unknown(_)) {
                break;
            }
        }
        let name = self.kind.name();
        match result {
            Result::Success => Some(true),
            Result::Warning(text) => {
                let text = format!("{name} probe warning: {text}");
                self.node.recorder.container(&self.pod, &self.container, "Warning", "ProbeWarning", &text);
                Some(true)
            }
            Result::Failure(text) => {
                let text = format!("{name} probe failed: {text}");
                self.node.recorder.container(&self.pod, &self.container, "Warning", "Unhealthy", &text);
                Some(false)
            }
            Result::Unknown(text) => {
                debug!(pod = %pod::display(&self.pod), container = self.container.name, "{name} probe could not be made: {text}");
                let text = format!("{name} probe errored and resulted in unknown state: {text}");
                self.node.recorder.container(&self.pod, &self.container, "Warning", "Unhealthy", &text);
                // It says nothing of the container: a runtime that is away must not kill healthy ones.
                None
            }
        }
    }

    fn pod_ip(&self) -> Option<String> {
        if pod::host_network(&self.pod) {
            return self.node.host_ips.borrow().first().cloned();
        }
        let record = self.node.pleg.get(pod::uid(&self.pod))?;
        record.ready_sandbox()?.ips.first().cloned()
    }

    async fn once(&self, probe: &Probe, limit: Duration) -> Result {
        if let Some(exec) = &probe.exec {
            return self.exec(exec.command.clone().unwrap_or_default(), limit).await;
        }
        let ip = self.pod_ip();
        if let Some(get) = &probe.http_get {
            let request = http::get(get, &self.container, ip.as_deref(), USER_AGENT);
            return match tokio::time::timeout(limit, request).await {
                Err(_) => Result::Failure(format!(
                    "Get {:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
                    get.path.as_deref().unwrap_or("/")
                )),
                Ok(Ok(Answer::Status(code, _))) if (200..400).contains(&code) => Result::Success,
                Ok(Ok(Answer::Status(code, _))) => {
                    Result::Failure(format!("HTTP probe failed with statuscode: {code}"))
                }
                Ok(Ok(Answer::OtherHost(to))) => {
                    Result::Warning(format!("Probe terminated redirects, Response body: redirect to {to}"))
                }
                Ok(Err(error)) => Result::Failure(error.to_string()),
            };
        }
        if let Some(tcp) = &probe.tcp_socket {
            let Some(host) = tcp.host.clone().filter(|h| !h.is_empty()).or(ip) else {
                return Result::Unknown("the pod has no address yet".into());
            };
            return match http::port(&self.container, &tcp.port) {
                Err(error) => Result::Unknown(error.to_string()),
                Ok(port) => connect(&host, port, limit).await,
            };
        }
        if let Some(action) = &probe.grpc {
            let (Some(host), Ok(port)) = (ip, u16::try_from(action.port)) else {
                return Result::Unknown("the pod has no address yet".into());
            };
            let service = action.service.as_deref().unwrap_or_default();
            return match grpc::check(&host, port, service, USER_AGENT, limit).await {
                Ok(()) => Result::Success,
                Err(text) => Result::Failure(text),
            };
        }
        Result::Unknown("the probe has no handler".into())
    }

    async fn exec(&self, command: Vec<String>, limit: Duration) -> Result {
        match self.node.exec_slots.run(self.node.runtime.exec(&self.id, command.clone(), limit)).await {
            Ok(output) if output.exit_code == 0 => Result::Success,
            Ok(output) => {
                let cut = output.output.len().min(MAX_OUTPUT);
                Result::Failure(String::from_utf8_lossy(&output.output[..cut]).into_owned())
            }
            Err(RuntimeError::Deadline { .. }) => {
                Result::Failure(format!("command timed out: {:?} timed out after {limit:?}", command.join(" ")))
            }
            Err(error) => Result::Unknown(error.to_string()),
        }
    }
}

async fn connect(host: &str, port: u16, limit: Duration) -> Result {
    match tokio::time::timeout(limit, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Result::Success,
        Ok(Err(error)) => Result::Failure(format!("dial tcp {}: {error}", http::authority(host, port))),
        Err(_) => Result::Failure(format!("dial tcp {}: i/o timeout", http::authority(host, port))),
    }
}
