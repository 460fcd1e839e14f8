//! Clients of the API server whose connections notice that the other end is gone.
//!
//! A watch is a connection on which the client never says anything. When the server's machine loses its power, or something on the way forgets
//! the connection, nothing ends it: kube's own client waits until the watch's time is over, five minutes, and its node works on with what it
//! knew, while its lease is renewed over another connection (upstream k/k 48638, 87615). TCP asks the other end from time to time instead.

use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt;
use kube::client::retry::RetryPolicy;
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

/// Silence after which the other end is asked, time between two questions, and how many may stay without an answer: 25 s in all.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
/// Longest time for which sent data may stay without an answer.
const USER_TIMEOUT: Duration = Duration::from_secs(25);

/// A client for a configuration. One with a proxy or a credential plugin (`exec`) is kube's own and does not notice.
///
/// # Errors
/// When its certificates or its credentials cannot be used.
pub fn client(config: kube::Config) -> Result<kube::Client, kube::Error> {
    // Through a proxy the connection is the proxy's; a credential plugin tells how long a client is good for.
    if config.proxy_url.is_some() || config.auth_info.exec.is_some() {
        return kube::Client::try_from(config);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
    // Around TLS too: a server that takes connections and says nothing keeps TCP alive.
    let mut tls = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    tls.set_connect_timeout(config.connect_timeout);
    tls.set_read_timeout(config.read_timeout);
    tls.set_write_timeout(config.write_timeout);
    tls.set_reset_reader_on_write(config.reset_reader_on_write);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build(tls));
    Ok(kube::Client::new(service, config.default_namespace))
}
