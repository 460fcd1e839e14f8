//! gRPC health checks (`grpc.health.v1`), without TLS as upstream. Upstream counterpart: `pkg/probe/grpc`.

use std::time::Duration;

use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::http::authority;

/// Asks a service for its health; `Err` says why it is not well.
pub(super) async fn check(
    host: &str,
    port: u16,
    service: &str,
    user_agent: &'static str,
    limit: Duration,
) -> Result<(), String> {
    let address = authority(host, port);
    let asked = tokio::time::timeout(limit, ask(&address, service, user_agent, limit)).await;
    asked.unwrap_or_else(|_| Err(format!("timeout: health rpc did not complete within {limit:?}")))
}

async fn ask(address: &str, service: &str, user_agent: &'static str, limit: Duration) -> Result<(), String> {
    let failed = |error: &tonic::transport::Error| {
        let cause = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source()).last();
        format!(
            "error: failed to connect service at {address:?}: {}",
            cause.map_or_else(|| error.to_string(), ToString::to_string)
        )
    };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| failed(&error))?;
    let endpoint = endpoint.user_agent(user_agent).map_err(|error| failed(&error))?;
    let channel = endpoint.connect().await.map_err(|error| failed(&error))?;
    let request = HealthCheckRequest { service: service.to_owned() };
    match HealthClient::new(channel).check(request).await {
        Ok(answer) => match answer.into_inner().status() {
            ServingStatus::Serving => Ok(()),
            other => Err(format!("service unhealthy (responded with {:?})", other.as_str_name())),
        },
        Err(status) => Err(match status.code() {
            Code::Unimplemented => format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                status.message()
            ),
            Code::DeadlineExceeded => format!("timeout: health rpc did not complete within {limit:?}"),
            _ => format!("error: health rpc probe failed: {status}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    async fn probe(port: u16) -> String {
        check("127.0.0.1", port, "", "kube-probe/test", Duration::from_millis(300)).await.unwrap_err()
    }

    #[tokio::test]
    async fn who_does_not_answer_is_told_apart_from_who_is_not_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let silent = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        assert_eq!(probe(port).await, "timeout: health rpc did not complete within 300ms");
        // Its connection is not kept.
        silent.await.unwrap();
        let said = probe(port).await;
        assert!(said.starts_with("error: failed to connect service at \"127.0.0.1:"), "{said}");
        assert!(said.contains("refused"), "{said}");
    }
}
