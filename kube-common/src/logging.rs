//! Logs on standard error, one line per event, as systemd's journal and `./dev logs` expect.

use tracing_subscriber::EnvFilter;

/// Starts logging. `verbosity` is upstream's `--v`: 0-1 info, 2-4 info with our own debug lines from 4, above that
/// debug and trace of our crates. `RUST_LOG` wins when it is set.
///
/// Call it once, at the start of `main`; a second call is ignored.
pub fn init(verbosity: u8) {
    // hickory's server writes two lines for each DNS query at level info.
    let default = match verbosity {
        0..=3 => "info,kube=warn,kube_client=warn,kube_runtime=warn,hyper=warn,h2=warn,tower=warn,hickory_server=warn",
        4..=5 => {
            "debug,kube=info,kube_client=info,kube_runtime=info,hyper=info,h2=info,tower=info,rustls=info,hickory_server=warn"
        }
        _ => "trace,h2=debug,hyper=debug,tower=debug,hickory_server=warn",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let _ =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(terminal).with_writer(std::io::stderr).try_init();
}
