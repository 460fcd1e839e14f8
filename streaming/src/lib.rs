//! Kubernetes' streams: both ends of the remote command and port-forward protocols.
//!
//! - [`spdy`]: SPDY/3.1 frames (a codec without I/O) and connections of streams.
//! - [`websocket`]: the upgrade, the channel protocols (a codec without I/O), SPDY tunnelled in binary messages.
//! - [`upgrade`]: which of them a request asks for.
//! - [`remotecommand`]: exec and attach, versions 1 to 5. [`portforward`]: pairs of streams to connections.
//!
//! Every queue is bounded, so a slow reader slows its writer down and nothing else. A connection ends as a whole: when the peer is gone,
//! idle for too long or breaks the protocol, all of its streams end. Upstream counterparts: `k8s.io/apimachinery/pkg/util/httpstream`,
//! `k8s.io/kubelet/pkg/cri/streaming`, `k8s.io/client-go/tools/remotecommand`.

pub mod fuzz;
pub mod mux;
pub mod portforward;
pub mod remotecommand;
pub mod spdy;
pub mod upgrade;
pub mod websocket;
