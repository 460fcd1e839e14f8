//! A server on loopback, a client, and a resolver that misbehaves by the name it is asked for.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, SOA, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use keelson_dns::forward::resolvers::Source;
use keelson_dns::model::{self, Endpoint, Model, Port, Protocol, Service, ServiceKind, Slice};
use keelson_dns::{Config, Dns};
use parking_lot::RwLock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_util::sync::{CancellationToken, DropGuard};

pub const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

/// A cluster with `services` services of one address, one headless one with 60 endpoints, and an alias.
pub fn cluster(services: u32) -> Model {
    let mut model = Model::new(1);
    model.set_namespace("default", true);
    let http = Port { name: "http".into(), protocol: Protocol::Tcp, number: 80 };
    for number in 0..services {
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 1, 0)) + number);
        let kind = ServiceKind::Cluster { addresses: [address.into()].into(), ports: [http.clone()].into() };
        let key = format!("service-{number}.default");
        model.set_service(&key, Some(Service { kind, publish_not_ready: false }));
        let pod = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 200, 0, 0)) + number);
        let endpoints = [Endpoint { address: pod.into(), hostname: None, ready: true }];
        let slice = Slice { name: "e".into(), ports: [http.clone()].into(), endpoints: endpoints.into() };
        model.set_slice(&format!("default/service-{number}-e"), Some((&key, slice)));
    }
    model.set_service("many.default", Some(Service { kind: ServiceKind::Headless, publish_not_ready: false }));
    let pod = |last: u8| Endpoint { address: Ipv4Addr::new(10, 244, 0, last).into(), hostname: None, ready: true };
    let slice = Slice { name: "many".into(), ports: [http].into(), endpoints: (1..=60).map(pod).collect() };
    model.set_slice("default/many", Some(("many.default", slice)));
    let alias = ServiceKind::External(Some(Box::new(name("ok.example."))));
    model.set_service("alias.default", Some(Service { kind: alias, publish_not_ready: false }));
    for source in [model::Source::Namespaces, model::Source::Services, model::Source::Slices] {
        model.set_listed(source);
    }
    model
}

/// A running server; it ends when this is dropped.
pub struct Running {
    pub address: SocketAddr,
    pub model: Arc<RwLock<Model>>,
    pub pages: kube_common::serve::Endpoints,
    _stop: DropGuard,
}

pub async fn start(model: Model, resolvers: Source) -> Result<Running> {
    let config = Config {
        bind: LOOPBACK,
        domain: "cluster.local".to_owned(),
        ttl: 5,
        resolvers,
        ranges: vec!["10.96.0.0/16".parse()?],
        published: None,
        metrics_bind: None,
    };
    let pages = kube_common::serve::Endpoints::new();
    let dns = Dns::bind(config, Some(&pages)).await?;
    let address = dns.local_addr()?;
    let model = Arc::new(RwLock::new(model));
    let stop = CancellationToken::new();
    tokio::spawn(dns.serve(Arc::clone(&model), stop.clone()));
    Ok(Running { address, model, pages, _stop: stop.drop_guard() })
}

pub fn question(text: &str, kind: RecordType, edns: Option<u16>) -> Message {
    let mut message = Message::new(rand::random(), MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name(text), kind));
    if let Some(size) = edns {
        let mut edns = Edns::new();
        edns.set_max_payload(size);
        message.set_edns(edns);
    }
    message
}

pub async fn send_udp(server: SocketAddr, bytes: &[u8]) -> Result<Vec<u8>> {
    let socket = UdpSocket::bind(LOOPBACK).await?;
    socket.connect(server).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; 65_535];
    let length =
        tokio::time::timeout(Duration::from_secs(6), socket.recv(&mut buffer)).await.context("no answer")??;
    buffer.truncate(length);
    Ok(buffer)
}

pub async fn udp(server: SocketAddr, text: &str, kind: RecordType, edns: Option<u16>) -> Result<Message> {
    let asked = question(text, kind, edns);
    let answer = Message::from_vec(&send_udp(server, &asked.to_vec()?).await?)?;
    anyhow::ensure!(
        answer.metadata.id == asked.metadata.id && answer.queries == asked.queries,
        "another's answer: {answer}"
    );
    Ok(answer)
}

pub async fn send_tcp(stream: &mut TcpStream, message: &Message) -> Result<Message> {
    let bytes = message.to_vec()?;
    stream.write_u16(u16::try_from(bytes.len())?).await?;
    stream.write_all(&bytes).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; usize::from(length)];
    stream.read_exact(&mut buffer).await?;
    Ok(Message::from_vec(&buffer)?)
}

pub async fn tcp(server: SocketAddr, text: &str, kind: RecordType) -> Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    send_tcp(&mut stream, &question(text, kind, None)).await
}

/// A resolver on UDP and TCP. What it does is said by the first label: `ok`, `nx`, `nodata`, `servfail`, `refused`, `silent`, `long` (too
/// long for UDP), `forged` (wrong answers before the right one), `slow` (answers after half a second).
pub struct FakeResolver {
    pub address: SocketAddr,
    pub asked: Arc<AtomicUsize>,
    _stop: DropGuard,
}

impl FakeResolver {
    pub async fn start() -> Result<Self> {
        let (socket, listener) = loop {
            let socket = UdpSocket::bind(LOOPBACK).await?;
            // The port may be taken by TCP.
            if let Ok(listener) = TcpListener::bind(socket.local_addr()?).await {
                break (Arc::new(socket), listener);
            }
        };
        let address = socket.local_addr()?;
        let (asked, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        tokio::spawn(stop.clone().run_until_cancelled_owned(serve_udp(socket, Arc::clone(&asked))));
        tokio::spawn(stop.clone().run_until_cancelled_owned(serve_tcp(listener, Arc::clone(&asked))));
        Ok(Self { address, asked, _stop: stop.drop_guard() })
    }

    pub fn count(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, asked: Arc<AtomicUsize>) {
    let mut buffer = vec![0; 4096];
    while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
        let Ok(request) = Message::from_vec(&buffer[..length]) else { continue };
        asked.fetch_add(1, Ordering::SeqCst);
        let socket = Arc::clone(&socket);
        tokio::spawn(async move {
            for answer in answers(&request, true).await {
                let _ = socket.send_to(&answer.to_vec().unwrap(), from).await;
            }
        });
    }
}

async fn serve_tcp(listener: TcpListener, asked: Arc<AtomicUsize>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let Ok(length) = stream.read_u16().await else { continue };
        let mut buffer = vec![0; usize::from(length)];
        if stream.read_exact(&mut buffer).await.is_err() {
            continue;
        }
        let Ok(request) = Message::from_vec(&buffer) else { continue };
        asked.fetch_add(1, Ordering::SeqCst);
        for answer in answers(&request, false).await {
            let bytes = answer.to_vec().unwrap();
            let _ = stream.write_u16(u16::try_from(bytes.len()).unwrap()).await;
            let _ = stream.write_all(&bytes).await;
        }
    }
}

async fn answers(request: &Message, over_udp: bool) -> Vec<Message> {
    let query = request.queries[0].clone();
    let mut answer = Message::new(request.metadata.id, MessageType::Response, OpCode::Query);
    answer.metadata.recursion_available = true;
    answer.add_query(query.clone());
    let first = query.name.iter().next().map(|label| String::from_utf8_lossy(label).into_owned());
    let record = |data| Record::from_rdata(query.name.clone(), 60, data);
    let address = record(RData::A(A::new(192, 0, 2, 7)));
    let soa = Record::from_rdata(
        name("example."),
        60,
        RData::SOA(SOA::new(name("ns.example."), name("root.example."), 1, 1, 1, 1, 30)),
    );
    match first.as_deref().unwrap_or_default() {
        "silent" => return Vec::new(),
        "servfail" => answer.metadata.response_code = ResponseCode::ServFail,
        "refused" => answer.metadata.response_code = ResponseCode::Refused,
        "nx" => {
            answer.metadata.response_code = ResponseCode::NXDomain;
            answer.add_authority(soa);
        }
        "nodata" => {
            answer.add_authority(soa);
        }
        "long" if over_udp => answer.metadata.truncation = true,
        "long" => {
            for number in 0..100 {
                answer.add_answer(record(RData::TXT(TXT::new(vec![format!("{number:0>50}")]))));
            }
        }
        "forged" => {
            let mut forged = answer.clone();
            forged.metadata.id ^= 1;
            forged.add_answer(record(RData::A(A::new(198, 51, 100, 1))));
            let mut other = Message::new(request.metadata.id, MessageType::Response, OpCode::Query);
            other.add_query(Query::query(name("other.example."), RecordType::A));
            answer.add_answer(address);
            return vec![forged, other, answer];
        }
        "slow" => {
            tokio::time::sleep(Duration::from_millis(500)).await;
            answer.add_answer(address);
        }
        _ => {
            answer.add_answer(address);
        }
    }
    vec![answer]
}
