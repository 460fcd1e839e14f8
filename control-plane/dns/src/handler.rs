//! Between hickory's server and the two sources of answers.
//!
//! Upstream counterpart: CoreDNS' server with its plugin chain.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use hickory_proto::op::{Edns, Header, HeaderCounts, Metadata, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use hickory_server::net::runtime::Time;
use hickory_server::net::xfer::Protocol;
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use parking_lot::RwLock;
use tracing::debug;

use crate::answer::{Answer, Reply, Zone, answer};
use crate::forward::{Forwarder, Question};
use crate::metrics::{Metrics, Origin};
use crate::model::Model;

/// Largest datagram sent, whatever the client could take: larger ones come in fragments, which get lost (the DNS flag day's size).
const MAX_DATAGRAM: u16 = 1232;
/// Every client takes that much (RFC 1035), and clients without EDNS no more.
const MIN_DATAGRAM: u16 = 512;

/// A response before it is encoded.
#[derive(Debug)]
struct Response {
    code: ResponseCode,
    origin: Origin,
    authoritative: bool,
    authentic: bool,
    answers: Vec<Record>,
    authority: Vec<Record>,
    additional: Vec<Record>,
}

impl Response {
    fn code(code: ResponseCode) -> Self {
        Self {
            code,
            origin: Origin::None,
            authoritative: false,
            authentic: false,
            answers: Vec::new(),
            authority: Vec::new(),
            additional: Vec::new(),
        }
    }
}

/// Answers requests.
pub(crate) struct Handler {
    pub(crate) zone: Zone,
    pub(crate) model: Arc<RwLock<Model>>,
    pub(crate) forwarder: Forwarder,
    pub(crate) metrics: Metrics,
    pub(crate) spin: AtomicU32,
}

impl Handler {
    async fn respond(&self, request: &Request) -> Response {
        let metadata = &request.metadata;
        if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
            return Response::code(ResponseCode::BADVERS);
        }
        if metadata.op_code != OpCode::Query {
            return Response::code(ResponseCode::NotImp);
        }
        let [query] = request.queries.queries() else { return Response::code(ResponseCode::FormErr) };
        let kind = query.query_type();
        self.metrics.request(if request.protocol() == Protocol::Udp { "udp" } else { "tcp" }, kind);
        if query.query_class() != DNSClass::IN || matches!(kind, RecordType::AXFR | RecordType::IXFR) {
            return Response::code(ResponseCode::Refused);
        }
        let name = query.original().name();
        let spin = self.spin.fetch_add(1, Ordering::Relaxed);
        let local = answer(&self.zone, &self.model.read(), name, kind, spin);
        match local {
            Answer::Cluster(mut reply) => match reply.follow.take() {
                None => cluster(reply),
                Some(target) => self.follow(reply, request, &target, kind).await,
            },
            Answer::Foreign => self.forward(request, name, kind).await,
        }
    }

    async fn forward(&self, request: &Request, name: &Name, kind: RecordType) -> Response {
        let question = Question {
            name: name.to_lowercase(),
            kind,
            class: DNSClass::IN,
            dnssec: request.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok),
            unchecked: request.metadata.checking_disabled,
        };
        let found = Box::pin(self.forwarder.resolve(&question)).await;
        Response {
            code: found.code,
            origin: Origin::Forward,
            authoritative: false,
            authentic: found.authentic,
            answers: found.answers,
            authority: found.authority,
            additional: found.additional,
        }
    }

    /// An ExternalName service: the alias is ours, what is behind it is not.
    async fn follow(&self, reply: Reply, request: &Request, target: &Name, kind: RecordType) -> Response {
        let mut response = self.forward(request, target, kind).await;
        let mut answers = reply.answers;
        answers.append(&mut response.answers);
        if response.code == ResponseCode::Refused {
            // We refuse what we cannot look up; but for this name we are responsible.
            response.code = ResponseCode::ServFail;
        }
        Response { answers, authoritative: true, ..response }
    }
}

fn cluster(reply: Reply) -> Response {
    Response {
        code: reply.code,
        origin: Origin::Cluster,
        authoritative: true,
        authentic: false,
        answers: reply.answers,
        authority: reply.authority,
        additional: reply.additional,
    }
}

/// At least the bytes that a record takes.
fn size(record: &Record) -> usize {
    use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};
    let mut bytes = Vec::new();
    match record.emit(&mut BinEncoder::new(&mut bytes)) {
        Ok(()) => bytes.len(),
        Err(_) => 0,
    }
}

/// Drops the additional section when the datagram would not hold it: it is a courtesy, and must not make a client ask again over TCP.
fn trim(response: &mut Response, limit: u16) {
    // The largest record of a cluster answer; so few fit for sure.
    const LARGE: usize = 300;
    let records = response.answers.len() + response.authority.len() + response.additional.len();
    if response.additional.is_empty() || records * LARGE + LARGE < usize::from(limit) {
        return;
    }
    let all = response.answers.iter().chain(&response.authority).chain(&response.additional);
    // The header, the question and OPT.
    let rest = 12 + 259 + 11;
    if all.map(size).sum::<usize>() + rest > usize::from(limit) {
        response.additional.clear();
    }
}

#[async_trait::async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut handle: R) -> ResponseInfo {
        let begun = Instant::now();
        let mut response = self.respond(request).await;
        let edns = request.edns.as_ref().map(|asked| {
            let mut edns = Edns::new();
            edns.set_max_payload(asked.max_payload().clamp(MIN_DATAGRAM, MAX_DATAGRAM));
            edns.set_dnssec_ok(asked.flags().dnssec_ok);
            edns
        });
        if request.protocol() == Protocol::Udp {
            trim(&mut response, edns.as_ref().map_or(MIN_DATAGRAM, Edns::max_payload));
        }
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.authoritative = response.authoritative;
        metadata.recursion_available = true;
        metadata.authentic_data = response.authentic;
        metadata.response_code = response.code;
        let message = MessageResponseBuilder::new(&request.queries, edns.as_ref()).build(
            metadata,
            &response.answers,
            &response.authority,
            &[],
            &response.additional,
        );
        let sent = handle.send_response(message).await;
        self.metrics.response(response.code, response.origin, begun.elapsed());
        sent.unwrap_or_else(|error| {
            // The client has gone, or its network: nothing that could be done about it here.
            debug!(%error, client = %request.src(), "cannot send a response");
            ResponseInfo::from(Header { metadata, counts: HeaderCounts::default() })
        })
    }
}
