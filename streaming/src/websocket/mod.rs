//! WebSocket, as Kubernetes uses it: numbered channels in messages, or a SPDY connection tunnelled in binary messages.

mod channels;
mod connection;
mod handshake;
mod reader;
mod tunnel;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

pub use self::channels::{ChannelCodec, ChannelError, Item};
pub use self::connection::Channels;
pub use self::handshake::{HandshakeError, Offer, is_upgrade};
pub use self::reader::{Format, send_all};
pub use self::tunnel::Tunnel;

/// Largest message, and largest frame (the default of upstream's server).
const MAX_MESSAGE: usize = 32 << 20;
/// First size of the read buffer; large enough for most messages, small enough for a thousand idle connections.
const READ_BUFFER: usize = 16 << 10;

/// Takes over a transport after the handshake.
pub async fn stream<T>(transport: T, role: Role) -> WebSocketStream<T>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
        .read_buffer_size(READ_BUFFER);
    WebSocketStream::from_raw_socket(transport, role, Some(config)).await
}

pub use tokio_tungstenite::tungstenite::protocol::Role as WebSocketRole;
