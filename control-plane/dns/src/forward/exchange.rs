//! One question to one resolver: over UDP from a random port, over TCP when the answer is too long for that.
//!
//! Invariant: an answer is taken only from the address asked, with the identifier and the question that were sent.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::{Found, Question};

/// The size that passes everywhere without fragments (the DNS flag day's).
const EDNS_SIZE: u16 = 1232;
/// What is read at most of a datagram; resolvers keep to the size above.
const BUFFER: usize = 4096;

/// Why a resolver gave no answer. All are worth a try with another resolver.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("the resolver {server} did not answer within {limit:?}")]
    Late { server: SocketAddr, limit: Duration },
    #[error("cannot reach the resolver {server}: {source}")]
    Io { server: SocketAddr, source: io::Error },
    #[error("cannot encode a question for {server}: {source}")]
    Encode { server: SocketAddr, source: hickory_proto::ProtoError },
    #[error("the resolver {server} sent over TCP what is no answer to the question")]
    Nonsense { server: SocketAddr },
}

pub(super) struct Exchange<'q> {
    pub(super) server: SocketAddr,
    pub(super) question: &'q Question,
    pub(super) limit: Duration,
}

impl Exchange<'_> {
    /// Asks, within the limit.
    pub(super) async fn run(&self) -> Result<Found, ExchangeError> {
        match timeout(self.limit, self.ask()).await {
            Ok(result) => result,
            Err(_) => Err(ExchangeError::Late { server: self.server, limit: self.limit }),
        }
    }

    fn io(&self) -> impl Fn(io::Error) -> ExchangeError {
        let server = self.server;
        move |source| ExchangeError::Io { server, source }
    }

    async fn ask(&self) -> Result<Found, ExchangeError> {
        let id = rand::random();
        let message = self.message(id);
        let bytes = message.to_vec().map_err(|source| ExchangeError::Encode { server: self.server, source })?;
        let answer = self.over_udp(id, &bytes).await?;
        if !answer.metadata.truncation {
            return Ok(found(answer));
        }
        self.over_tcp(id, &bytes).await.map(found)
    }

    fn message(&self, id: u16) -> Message {
        let mut query = Query::query(self.question.name.clone(), self.question.kind);
        query.set_query_class(self.question.class);
        let mut message = Message::new(id, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.metadata.checking_disabled = self.question.unchecked;
        message.add_query(query);
        let mut edns = Edns::new();
        edns.set_max_payload(EDNS_SIZE).set_dnssec_ok(self.question.dnssec);
        message.set_edns(edns);
        message
    }

    fn is_answer(&self, id: u16, answer: &Message) -> bool {
        let same = |query: &Query| {
            query.name == self.question.name
                && query.query_type == self.question.kind
                && query.query_class == self.question.class
        };
        answer.metadata.id == id
            && answer.metadata.message_type == MessageType::Response
            && matches!(answer.queries.as_slice(), [query] if same(query))
    }

    async fn over_udp(&self, id: u16, bytes: &[u8]) -> Result<Message, ExchangeError> {
        let local: SocketAddr =
            if self.server.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
        let socket = UdpSocket::bind(local).await.map_err(self.io())?;
        // Connected: the kernel drops what comes from elsewhere, and a closed port is told at once.
        socket.connect(self.server).await.map_err(self.io())?;
        socket.send(bytes).await.map_err(self.io())?;
        let mut buffer = vec![0; BUFFER];
        loop {
            let length = socket.recv(&mut buffer).await.map_err(self.io())?;
            match Message::from_vec(&buffer[..length]) {
                Ok(answer) if self.is_answer(id, &answer) => return Ok(answer),
                // A late answer to somebody else, or a forgery: the right one may still come.
                _ => {}
            }
        }
    }

    async fn over_tcp(&self, id: u16, bytes: &[u8]) -> Result<Message, ExchangeError> {
        let mut stream = TcpStream::connect(self.server).await.map_err(self.io())?;
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend_from_slice(bytes);
        stream.write_all(&framed).await.map_err(self.io())?;
        let length = stream.read_u16().await.map_err(self.io())?;
        let mut buffer = vec![0; usize::from(length)];
        stream.read_exact(&mut buffer).await.map_err(self.io())?;
        let answer = Message::from_vec(&buffer).ok().filter(|answer| self.is_answer(id, answer));
        answer.ok_or(ExchangeError::Nonsense { server: self.server })
    }
}

fn found(answer: Message) -> Found {
    Found {
        code: answer.metadata.response_code,
        authentic: answer.metadata.authentic_data,
        answers: answer.answers,
        authority: answer.authorities,
        additional: answer.additionals,
    }
}
