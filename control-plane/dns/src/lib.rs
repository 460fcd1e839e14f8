//! The cluster's DNS server.
//!
//! What for: names instead of addresses. `SERVICE.NAMESPACE.svc.DOMAIN` and its relatives are answered from memory, everything else is
//! asked of the resolvers of the machine this runs on, with a cache.
//!
//! Shape: [`model`] holds compact Services and EndpointSlices; [`answer`] is a pure function from a question and the model to a reply;
//! `watch` keeps the model, [`forward`] asks others, `handler` joins them to hickory's server, `publish` keeps the Service through which
//! pods reach all of it.
//!
//! Invariants: no name under the cluster domain is ever asked of another server; a name is denied only when the model is complete.
//!
//! Upstream counterparts: CoreDNS with its plugins `kubernetes` (`pods insecure`), `forward`, `cache`, `loadbalance`, `prometheus`; the
//! Kubernetes DNS specification 1.1.0.

pub mod answer;
pub mod forward;
pub mod load;
pub mod model;

mod handler;
mod metrics;
mod objects;
mod publish;
mod server;
mod watch;

pub use metrics::Metrics;
pub use publish::Published;
pub use server::{BindError, Config, Dns, RunError};
