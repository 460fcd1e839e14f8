//! Bare calls to a node's container runtime.

use anyhow::Result;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};

use crate::lab::Lab;

/// Connects to a runtime's socket.
pub async fn connect(socket: String) -> Result<Channel> {
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The address is not used: the connector knows where to go.
    Ok(Endpoint::from_static("http://runtime").connect_with_connector(connector).await?)
}

/// Connects to the containerd of a machine. Its socket lies in the machine's own `/run`, which the host sees through PID 1.
pub async fn containerd(lab: &Lab, machine: &str) -> Result<Channel> {
    connect(format!("/proc/{}/root/run/containerd/containerd.sock", lab.pid(machine)?)).await
}
