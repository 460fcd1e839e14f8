//! The part of etcd's gRPC interface that a store needs: `KV` and `Watch` of `etcdserverpb`, as in etcd's `rpc.proto` and `kv.proto`.
//!
//! Written by hand: it is four calls, and the crates that have all of them compile them with `protoc` and its include files. Fields that are
//! not used are left out, which protobuf allows; a `oneof` is a row of optional fields of which one is set.

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";
const COMPACT: &str = "/etcdserverpb.KV/Compact";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// Both ends of the range of all keys.
pub(super) const ALL: &[u8] = b"\0";

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(int64, tag = "4")]
    pub version: i64,
    #[prost(bytes = "bytes", tag = "5")]
    pub value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub limit: i64,
    #[prost(int64, tag = "4")]
    pub revision: i64,
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
}

/// One of them.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestOp {
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeRequest>,
    #[prost(message, optional, tag = "2")]
    pub put: Option<PutRequest>,
    #[prost(message, optional, tag = "3")]
    pub delete: Option<DeleteRangeRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseOp {
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeResponse>,
}

/// Equality (result 0) of the version or the revision of a key's last write; 0 where there is no key.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    /// 0: version, 2: revision of the last write.
    #[prost(int32, tag = "2")]
    pub target: i32,
    #[prost(bytes = "bytes", tag = "3")]
    pub key: Bytes,
    #[prost(int64, optional, tag = "4")]
    pub version: Option<i64>,
    #[prost(int64, optional, tag = "6")]
    pub mod_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CompactionRequest {
    #[prost(int64, tag = "1")]
    pub revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CompactionResponse {}

#[derive(Clone, PartialEq, Message)]
struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    create: Option<WatchCreateRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCreateRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchResponse {
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<WatchEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchEvent {
    /// 0: put, 1: delete.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

/// Calls over one connection.
#[derive(Debug, Clone)]
pub(super) struct Client {
    channel: Channel,
}

impl Client {
    pub(super) fn new(channel: Channel) -> Self {
        Self { channel }
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Status> {
        // Lists and catching up are larger than gRPC's usual 4 MiB.
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }

    async fn unary<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let codec = ProstCodec::<Q, A>::default();
        let request = led(Request::new(message));
        let answer = self.grpc().await?.unary(request, PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.unary(RANGE, request).await
    }

    pub(super) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        self.unary(TXN, request).await
    }

    pub(super) async fn compact(&self, request: CompactionRequest) -> Result<CompactionResponse, Status> {
        self.unary(COMPACT, request).await
    }

    pub(super) async fn watch(&self, create: WatchCreateRequest) -> Result<Streaming<WatchResponse>, Status> {
        // The side that asks stays open: etcd ends a watch with it.
        let asked = futures::stream::once(std::future::ready(WatchRequest { create: Some(create) }));
        let asked = futures::StreamExt::chain(asked, futures::stream::pending());
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        let request = led(Request::new(asked));
        let answer = self.grpc().await?.streaming(request, PathAndQuery::from_static(WATCH), codec).await?;
        Ok(answer.into_inner())
    }
}

/// A member without a leader is to say so at once, also on a watch that is open: its answers may be old and its log stands still.
fn led<T>(mut request: Request<T>) -> Request<T> {
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}
