//! `pods/log` over WebSocket: the log's bytes as messages, for clients that cannot read an answer while it grows.

use bytes::Bytes;
use futures::StreamExt as _;
use http::{Response, StatusCode};
use http_body_util::BodyStream;
use hyper_util::rt::TokioIo;
use keelson_kinds::ApiError;
use keelson_streaming::websocket::{self, Format, Offer, WebSocketRole};

use super::Connect;
use crate::api::log;
use crate::http::Call;
use crate::http::body::{self, Body};

pub(super) async fn connect(call: &Call, connect: Connect) -> Result<Response<Body>, ApiError> {
    let offer = Offer::parse(&call.headers).map_err(|error| ApiError::bad_request(error.to_string()))?;
    let Some((protocol, format)) = Format::choose(&offer.protocols) else {
        return Err(ApiError::bad_request(format!(
            "none of the subprotocols {:?} is served here: offer binary.k8s.io, base64.binary.k8s.io or none",
            offer.protocols
        )));
    };
    let client =
        connect.upgrade.ok_or_else(|| ApiError::bad_request("this connection cannot be upgraded: use HTTP/1.1"))?;
    let mut response = Response::new(body::full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    offer.answer(protocol, response.headers_mut());
    // A log that cannot be had is an ordinary answer.
    let frames = BodyStream::new(log::get(call).await?.into_body());
    let chunks = frames.filter_map(|frame| async move { frame.ok()?.into_data().ok() });
    let (stop, place) = (call.server.shutdown.clone(), connect.place);
    tokio::spawn(async move {
        let sending = async {
            let socket = websocket::stream(TokioIo::new(client.await?), WebSocketRole::Server).await;
            websocket::send_all(socket, format, chunks).await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        tokio::select! {
            result = sending => if let Err(error) = result {
                tracing::debug!(%error, "a log over WebSocket broke off");
            },
            () = stop.cancelled() => {}
        }
        drop(place);
    });
    Ok(response)
}
