//! Echo on TCP and UDP.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio_util::sync::CancellationToken;

const TCP_BUFFER: usize = 4096;
/// Largest UDP payload.
const UDP_BUFFER: usize = 65_536;

/// Sends back what comes in, until the other side or the server ends it.
pub async fn tcp(mut stream: TcpStream, closing: CancellationToken) {
    let mut buffer = vec![0; TCP_BUFFER];
    loop {
        let read = tokio::select! {
            read = stream.read(&mut buffer) => read,
            () = closing.cancelled() => return,
        };
        match read {
            Ok(0) | Err(_) => return,
            Ok(length) => {
                if stream.write_all(&buffer[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Both families on one socket; IPv4 alone where the kernel has no IPv6.
pub async fn bind_udp(port: u16) -> io::Result<UdpSocket> {
    match UdpSocket::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            UdpSocket::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await
        }
        other => other,
    }
}

/// Answers each datagram with the pod's name, a space and the datagram.
pub async fn udp(socket: UdpSocket, pod: String) {
    let mut buffer = vec![0; UDP_BUFFER];
    loop {
        // Errors here are answers to earlier datagrams (ICMP unreachable): not ours to handle.
        let Ok((length, source)) = socket.recv_from(&mut buffer).await else { continue };
        let mut answer = format!("{pod} ").into_bytes();
        answer.extend_from_slice(&buffer[..length]);
        let _ = socket.send_to(&answer, source).await;
    }
}
