//! Exec, attach and run.

use http::StatusCode;
use http_body_util::{BodyExt as _, Empty};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use keelson_streaming::remotecommand::{self, AcceptError, Command, Options, Session, Status};
use keelson_streaming::upgrade::{self, Wanted};
use keelson_streaming::websocket::{self, WebSocketRole};

use super::{Context, Endpoint, refused, running};
use crate::server::ViewError;
use crate::server::routes::{Answer, text};

fn missing(container: &str) -> Answer {
    text(StatusCode::INTERNAL_SERVER_ERROR, format!("container not found ({container:?})"))
}

fn failed(error: &ViewError) -> Answer {
    let status = match error {
        ViewError::NoContainer { .. } => StatusCode::NOT_FOUND,
        ViewError::NotServed { .. } => StatusCode::NOT_IMPLEMENTED,
        ViewError::Runtime { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    text(status, error.to_string())
}

fn values<'a>(query: &'a [(String, String)], key: &str) -> Vec<&'a str> {
    query.iter().filter(|(known, _)| known == key).map(|(_, value)| value.as_str()).collect()
}

/// Runs a command without streams; its output is the answer.
pub(super) async fn run(context: &Context, container: &str, query: &[(String, String)]) -> Answer {
    let Some(id) = running(&context.pod, container) else { return missing(container) };
    let command: Vec<String> =
        values(query, "cmd").first().copied().unwrap_or_default().split(' ').map(str::to_owned).collect();
    match context.view.run(&id, command.clone()).await {
        Ok(output) if output.exit_code == 0 => text(StatusCode::OK, output.output),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.output).into_owned();
            let message = format!("command '{}' exited with {}: {said}", command.join(" "), output.exit_code);
            text(StatusCode::INTERNAL_SERVER_ERROR, message)
        }
        Err(error) => failed(&error),
    }
}

/// Exec and attach: asks the runtime, switches protocols and leaves the rest to a task.
pub(super) async fn answer(
    context: Context,
    endpoint: Endpoint,
    container: &str,
    wanted: Wanted,
    query: &[(String, String)],
    upgrade: OnUpgrade,
) -> Answer {
    let pairs = query.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let mut options = match Options::from_query(pairs) {
        Ok(options) => options,
        Err(error) => return text(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let (offered, spoken, default) = match &wanted {
        Wanted::Spdy(offered) => (offered, remotecommand::SPDY_PROTOCOLS, remotecommand::SPDY_DEFAULT),
        Wanted::WebSocket(offer) => (&offer.protocols, remotecommand::WEBSOCKET_PROTOCOLS, ""),
    };
    let protocol = match upgrade::negotiate(offered, spoken, default) {
        Ok(protocol) => protocol,
        Err(error) => return refused(&error),
    };
    let Some(id) = running(&context.pod, container) else { return missing(container) };
    let url = if endpoint == Endpoint::Exec {
        let command = values(query, "command").into_iter().map(str::to_owned).collect();
        context.view.exec_url(&id, command, options).await
    } else {
        // A terminal is the container's own, whatever the client thinks.
        options = attachable(&context, container, options);
        context.view.attach_url(&id, options).await
    };
    let url = match url {
        Ok(url) => url,
        Err(error) => return failed(&error),
    };
    let answer = upgrade::switch(&wanted, protocol);
    tokio::spawn(async move {
        let Context { idle, stop, place, .. } = context;
        let session = async {
            let Ok(upgraded) = upgrade.await else { return };
            let client = accept(upgraded, &wanted, protocol, options, idle).await;
            let client = match client {
                Ok(client) => client,
                Err(error) => {
                    tracing::debug!(%error, "a remote command did not begin");
                    return;
                }
            };
            match Command::connect(&url, options, idle).await {
                Ok(command) => {
                    remotecommand::bridge(client, command).await;
                }
                Err(error) => client.finish(&Status::failure(&error.to_string())).await,
            }
        };
        tokio::select! {
            () = Box::pin(session) => {}
            () = stop.cancelled() => {}
        }
        drop(place);
    });
    answer.map(|()| Empty::new().map_err(|never| match never {}).boxed())
}

fn attachable(context: &Context, container: &str, options: Options) -> Options {
    let own = crate::pod::find_container(&context.pod, container);
    let tty = own.is_some_and(|(_, container)| container.tty.unwrap_or(false));
    Options { tty, stderr: options.stderr && !tty, ..options }
}

async fn accept(
    upgraded: Upgraded,
    wanted: &Wanted,
    protocol: &str,
    options: Options,
    idle: std::time::Duration,
) -> Result<Session, AcceptError> {
    let transport = TokioIo::new(upgraded);
    match wanted {
        Wanted::Spdy(_) => Session::spdy(transport, protocol, options, idle).await,
        Wanted::WebSocket(_) => {
            let socket = websocket::stream(transport, WebSocketRole::Server).await;
            Ok(Session::websocket(socket, protocol, options, idle).await)
        }
    }
}
