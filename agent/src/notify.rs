//! systemd's notification protocol: ready, and signs of life for its watchdog.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Sends one message to the service manager; nothing where there is none.
pub fn send(message: &str) {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else { return };
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    if let (Ok(socket), Ok(address)) = (UnixDatagram::unbound(), address) {
        let _ = socket.send_to_addr(message.as_bytes(), &address);
    }
}

/// Half of the watchdog's limit, when there is one.
fn watchdog_period() -> Option<Duration> {
    let micros = std::env::var("WATCHDOG_USEC").ok()?.parse::<u64>().ok()?;
    (micros > 0).then(|| Duration::from_micros(micros / 2))
}

/// Pings the watchdog while `healthy` says so.
pub async fn watchdog(healthy: impl Fn() -> bool, stop: CancellationToken) {
    let Some(period) = watchdog_period() else { return };
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(period) => {}
        }
        if healthy() {
            send("WATCHDOG=1");
        }
    }
}
