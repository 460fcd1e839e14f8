//! One TLS provider for all programs: rustls with ring, which builds fast and needs no C toolchain beyond cc.

/// Installs ring as the process-wide provider; harmless when one is installed already.
pub fn install_ring() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
