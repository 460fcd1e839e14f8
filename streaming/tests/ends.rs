//! Both ends of the protocols against each other, over a pipe in memory.

use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use keelson_streaming::mux::pump;
use keelson_streaming::portforward::{self, Dial};
use keelson_streaming::remotecommand::{Command, Options, SPDY_PROTOCOLS, Session, Status, bridge};
use keelson_streaming::spdy::{Connection, Headers, Limits, OpenError, Role};
use keelson_streaming::websocket::{self, Tunnel, WebSocketRole};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

const IDLE: Duration = Duration::from_secs(3600);
const ALL: Options = Options { stdin: true, stdout: true, stderr: true, tty: false };
const LIMITS: Limits = Limits { streams: 1000, idle: IDLE };

/// A server that echoes its input, complains once, and ends with 7.
async fn echo(session: Session) {
    let mut session = session;
    let (stdin, stdout) = (session.stdin.take().unwrap(), session.stdout.take().unwrap());
    session.stderr.take().unwrap().send("oh".into()).await.unwrap();
    pump(stdin, stdout).await;
    session.finish(&Status::exit(7)).await;
}

#[tokio::test]
async fn every_version_over_spdy() {
    for protocol in SPDY_PROTOCOLS {
        let (client, server) = duplex(1 << 10);
        let serving =
            tokio::spawn(async move { echo(Session::spdy(server, protocol, ALL, IDLE).await.unwrap()).await });
        let mut command = Command::open(client, protocol, ALL, IDLE).await.unwrap();
        let stdin = command.stdin.take().unwrap();
        let sent = Bytes::from(vec![b'x'; 300_000]);
        let (sent_too, mut stdout) = (sent.clone(), command.stdout.take().unwrap());
        tokio::spawn(async move {
            stdin.send(sent_too).await.unwrap();
            stdin.finish().await;
        });
        assert_eq!(stdout.read_to_end(1 << 20).await, sent);
        assert_eq!(command.stderr.take().unwrap().read_to_end(100).await, b"oh");
        let status = command.outcome().await;
        let expected = Status::exit(7);
        if *protocol == "v4.channel.k8s.io" {
            assert_eq!(status, expected);
        } else {
            assert_eq!(status.to_text(), expected.to_text(), "{protocol}");
        }
        command.close().await;
        serving.await.unwrap();
    }
}

async fn websocket_client(io: DuplexStream) -> WebSocketStream<DuplexStream> {
    websocket::stream(io, WebSocketRole::Client).await
}

/// Everything a client gets, by channel, until the server closes.
async fn gather(socket: &mut WebSocketStream<DuplexStream>) -> [Vec<u8>; 4] {
    let mut all: [Vec<u8>; 4] = Default::default();
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Binary(bytes) = message {
            all[usize::from(bytes[0])].extend_from_slice(&bytes[1..]);
        }
    }
    all
}

#[tokio::test]
async fn version_5_closes_standard_input_alone() {
    let (client, server) = duplex(1 << 10);
    let serving = tokio::spawn(async move {
        let socket = websocket::stream(server, WebSocketRole::Server).await;
        echo(Session::websocket(socket, "v5.channel.k8s.io", ALL, IDLE).await).await;
    });
    let mut socket = websocket_client(client).await;
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::Binary(Bytes::from_static(&[1])), "it stands");
    socket.send(Message::Binary(Bytes::from_static(b"\0hello"))).await.unwrap();
    socket.send(Message::Binary(Bytes::from_static(&[255, 0]))).await.unwrap();
    let [_, out, err, status] = gather(&mut socket).await;
    assert_eq!((out, err, Status::from_json(&status).exit_code()), (b"hello".to_vec(), b"oh".to_vec(), Some(7)));
    serving.await.unwrap();
}

#[tokio::test]
async fn a_bridge_joins_websocket_and_spdy() {
    // This client reads only when it has sent everything: the echo has to find room.
    let (client, server) = duplex(1 << 20);
    let (near, far) = duplex(1 << 10);
    tokio::spawn(async move { echo(Session::spdy(far, SPDY_PROTOCOLS[0], ALL, IDLE).await.unwrap()).await });
    let bridging = tokio::spawn(async move {
        let socket = websocket::stream(server, WebSocketRole::Server).await;
        let session = Session::websocket(socket, "v5.channel.k8s.io", ALL, IDLE).await;
        bridge(session, Command::open(near, SPDY_PROTOCOLS[0], ALL, IDLE).await.unwrap()).await
    });
    let mut socket = websocket_client(client).await;
    for _ in 0..100 {
        socket.send(Message::Binary([&[0u8][..], &[b'y'; 5000]].concat().into())).await.unwrap();
    }
    socket.send(Message::Binary(Bytes::from_static(&[255, 0]))).await.unwrap();
    let [_, out, _, status] = gather(&mut socket).await;
    assert_eq!((out.len(), Status::from_json(&status).exit_code()), (500_000, Some(7)));
    assert!(bridging.await.unwrap(), "the client heard the end");
}

/// As containerd's library does when there is input that nobody read.
#[tokio::test]
async fn a_status_counts_without_the_end_of_its_stream() {
    let (near, far) = duplex(1 << 16);
    let mut server = Connection::new(far, Role::Server, LIMITS);
    let serving = tokio::spawn(async move {
        let mut held = Vec::new();
        while held.len() < 4 {
            held.push(server.accept().await.unwrap());
        }
        held[0].sender.send(Status::exit(3).to_json()).await.unwrap();
        // Nothing is finished, nothing is read.
        std::future::pending::<()>().await;
    });
    let mut command = Command::open(near, SPDY_PROTOCOLS[0], ALL, IDLE).await.unwrap();
    assert_eq!(command.outcome().await.exit_code(), Some(3));
    serving.abort();
}

#[tokio::test]
async fn a_client_that_vanishes_closes_the_commands_input() {
    let (client, server) = duplex(1 << 10);
    let (near, far) = duplex(1 << 10);
    let input = tokio::spawn(async move {
        let mut session = Session::spdy(far, SPDY_PROTOCOLS[0], ALL, IDLE).await.unwrap();
        let gone = session.gone();
        session.stdin.take().unwrap().read_to_end(100).await;
        gone.await;
    });
    let bridging = tokio::spawn(async move {
        let socket = websocket::stream(server, WebSocketRole::Server).await;
        let session = Session::websocket(socket, "v4.channel.k8s.io", ALL, IDLE).await;
        bridge(session, Command::open(near, SPDY_PROTOCOLS[0], ALL, IDLE).await.unwrap()).await
    });
    let mut socket = websocket_client(client).await;
    socket.next().await.unwrap().unwrap();
    drop(socket);
    assert!(!bridging.await.unwrap(), "nobody heard the end");
    input.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_ends_and_a_busy_one_does_not() {
    let (client, server) = duplex(1 << 10);
    let limits = Limits { streams: 10, idle: Duration::from_secs(60) };
    let mut server = Connection::new(server, Role::Server, limits);
    let mut client = Connection::new(client, Role::Client, LIMITS);
    let serving = tokio::spawn(async move {
        let mut stream = server.accept().await.unwrap();
        let mut seen = 0;
        while let Some(bytes) = stream.receiver.recv().await {
            seen += bytes.len();
        }
        (seen, tokio::time::Instant::now())
    });
    let stream = client.open(Headers::new([("a", "b")])).await.unwrap();
    let begun = tokio::time::Instant::now();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(50)).await;
        stream.sender.send("x".into()).await.unwrap();
    }
    let (seen, ended) = serving.await.unwrap();
    assert_eq!((seen, (ended - begun).as_secs()), (5, 310));
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused() {
    let (client, server) = duplex(1 << 10);
    let mut server = Connection::new(server, Role::Server, Limits { streams: 2, idle: IDLE });
    let mut client = Connection::new(client, Role::Client, LIMITS);
    let holding = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Some(stream) = server.accept().await {
            held.push(stream);
        }
    });
    let _held = (client.open(Headers::default()).await.unwrap(), client.open(Headers::default()).await.unwrap());
    assert!(matches!(client.open(Headers::default()).await, Err(OpenError::Refused(3))));
    drop(client);
    holding.await.unwrap();
}

/// Echoes on port 7, refuses others.
#[derive(Clone)]
struct EchoPort;

impl Dial for EchoPort {
    type Connection = DuplexStream;

    async fn dial(&self, port: u16) -> Result<DuplexStream, String> {
        if port != 7 {
            return Err(format!("nobody serves port {port}"));
        }
        let (near, mut far) = duplex(1 << 10);
        tokio::spawn(async move {
            let mut all = Vec::new();
            far.read_to_end(&mut all).await.unwrap();
            far.write_all(&all).await.unwrap();
        });
        Ok(near)
    }
}

async fn one_forward(client: &mut Connection, at: usize, port: &str) -> (Vec<u8>, Vec<u8>) {
    let id = at.to_string();
    let headers = |kind| Headers::new([("streamType", kind), ("port", port), ("requestID", &id)]);
    let mut error = client.open(headers("error")).await.unwrap();
    error.sender.finish().await;
    let mut data = client.open(headers("data")).await.unwrap();
    data.sender.send(Bytes::from(vec![b'z'; 1000 + at])).await.unwrap();
    // Half-closed before anything came back.
    data.sender.finish().await;
    (data.receiver.read_to_end(10_000).await, error.receiver.read_to_end(1000).await)
}

#[tokio::test]
async fn ports_plain_and_tunnelled() {
    for tunnelled in [false, true] {
        let (client, server) = duplex(1 << 10);
        let serving = tokio::spawn(async move {
            if tunnelled {
                let socket = websocket::stream(server, WebSocketRole::Server).await;
                portforward::serve_spdy(Tunnel::new(socket), EchoPort, LIMITS).await;
            } else {
                portforward::serve_spdy(server, EchoPort, LIMITS).await;
            }
        });
        let mut client = if tunnelled {
            Connection::new(Tunnel::new(websocket_client(client).await), Role::Client, LIMITS)
        } else {
            Connection::new(client, Role::Client, LIMITS)
        };
        for at in 0..20 {
            let (back, error) = one_forward(&mut client, at, "7").await;
            assert_eq!((back.len(), error.as_slice()), (1000 + at, &b""[..]), "tunnelled: {tunnelled}");
        }
        let (back, error) = one_forward(&mut client, 99, "8").await;
        assert_eq!((back.len(), String::from_utf8(error).unwrap().as_str()), (0, "nobody serves port 8"));
        client.into_link().close().await;
        serving.await.unwrap();
    }
}

#[tokio::test]
async fn ports_by_channels() {
    let (client, server) = duplex(1 << 10);
    tokio::spawn(async move {
        let socket = websocket::stream(server, WebSocketRole::Server).await;
        portforward::serve_channels(socket, "v4.channel.k8s.io", &[7, 8], EchoPort, IDLE).await;
    });
    let mut socket = websocket_client(client).await;
    let mut all: [Vec<u8>; 4] = Default::default();
    while all[3].len() < 22 {
        let Message::Binary(bytes) = socket.next().await.unwrap().unwrap() else { continue };
        all[usize::from(bytes[0])].extend_from_slice(&bytes[1..]);
    }
    assert_eq!((all[0].as_slice(), all[1].as_slice(), all[2].as_slice()), (&[7, 0][..], &[7, 0][..], &[8, 0][..]));
    assert_eq!(all[3], b"\x08\0nobody serves port 8");
}
