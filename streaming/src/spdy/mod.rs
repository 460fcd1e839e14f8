//! SPDY/3.1, as far as Kubernetes uses it.
//!
//! Flow control: none, like upstream's `moby/spdystream`, which neither sends nor obeys WINDOW_UPDATE. A peer that stops reading is felt
//! through TCP; all streams of the connection then wait together.

mod connection;
mod frame;
mod headers;

pub use self::connection::{Connection, Limits, OpenError, Role, Stream};
pub use self::frame::{DecodeError, Decoder, Encoder, Frame, REFUSED_STREAM};
pub use self::headers::{HeaderError, Headers};
