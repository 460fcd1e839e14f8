//! Signals to one cancellation tree: every task of a program hangs below the token made here.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled at the first SIGTERM or SIGINT. A second signal ends the process at
/// once with status 130, for an operator who does not want to wait.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn on_signals() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let trigger = token.clone();
    tokio::spawn(async move {
        let mut next = async || tokio::select! { _ = term.recv() => "SIGTERM", _ = int.recv() => "SIGINT" };
        let name = next().await;
        tracing::info!(signal = name, "shutting down");
        trigger.cancel();
        next().await;
        tracing::warn!("second signal: leaving without waiting");
        std::process::exit(130);
    });
    Ok(token)
}
