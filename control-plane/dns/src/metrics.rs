//! What the server counts. Names, buckets and meaning are CoreDNS' where it has the same thing, so that its dashboards show something;
//! labels that have one value here (`server`, `view`, `zone`) are left out.

use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use kube_common::serve::Endpoints;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// CoreDNS' buckets: 0.25 ms, doubling, 16 times.
const FIRST_BUCKET: f64 = 0.000_25;
const BUCKETS: u16 = 16;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    proto: &'static str,
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    rcode: &'static str,
    plugin: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheLabels {
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpstreamLabels {
    proxy_name: &'static str,
    to: String,
    rcode: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Counters and histograms; cheap to clone, one content.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    responses: Family<ResponseLabels, Counter>,
    duration: Histogram,
    cache_hits: Family<CacheLabels, Counter>,
    cache_misses: Counter,
    cache_entries: Gauge,
    upstream: Histograms<UpstreamLabels>,
    refused: Counter,
}

fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(FIRST_BUCKET, 2.0, BUCKETS))
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            responses: Family::default(),
            duration: histogram(),
            cache_hits: Family::default(),
            cache_misses: Counter::default(),
            cache_entries: Gauge::default(),
            upstream: Family::new_with_constructor(histogram),
            refused: Counter::default(),
        }
    }
}

/// Who made an answer: CoreDNS' label `plugin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The cluster's own names.
    Cluster,
    /// A resolver, or the cache of its answers.
    Forward,
    /// Nobody: the request was refused as such.
    None,
}

impl Metrics {
    /// Adds them to a `/metrics` page.
    pub fn register(&self, endpoints: &Endpoints) {
        endpoints.register(|registry| {
            registry.register("coredns_dns_requests", "DNS requests by transport and type", self.requests.clone());
            registry.register("coredns_dns_responses", "DNS responses by code and source", self.responses.clone());
            registry.register(
                "coredns_dns_request_duration_seconds",
                "Time from a request to its response",
                self.duration.clone(),
            );
            registry.register("coredns_cache_hits", "Forwarded names answered from the cache", self.cache_hits.clone());
            registry.register("coredns_cache_misses", "Forwarded names not in the cache", self.cache_misses.clone());
            registry.register("coredns_cache_entries", "Answers in the cache", self.cache_entries.clone());
            registry.register(
                "coredns_proxy_request_duration_seconds",
                "Time of one exchange with a resolver",
                self.upstream.clone(),
            );
            registry.register(
                "coredns_forward_max_concurrent_rejects",
                "Requests failed at once because too many waited for resolvers",
                self.refused.clone(),
            );
        });
    }

    pub(crate) fn request(&self, proto: &'static str, kind: RecordType) {
        self.requests.get_or_create(&RequestLabels { proto, r#type: type_label(kind) }).inc();
    }

    pub(crate) fn response(&self, code: ResponseCode, origin: Origin, took: Duration) {
        let plugin = match origin {
            Origin::Cluster => "kubernetes",
            Origin::Forward => "forward",
            Origin::None => "",
        };
        self.responses.get_or_create(&ResponseLabels { rcode: code_label(code), plugin }).inc();
        self.duration.observe(took.as_secs_f64());
    }

    pub(crate) fn cache_hit(&self, denial: bool) {
        self.cache_hits.get_or_create(&CacheLabels { r#type: if denial { "denial" } else { "success" } }).inc();
    }

    pub(crate) fn cache_miss(&self, entries: usize) {
        self.cache_misses.inc();
        self.cache_entries.set(i64::try_from(entries).unwrap_or(i64::MAX));
    }

    pub(crate) fn upstream(&self, to: String, code: Option<ResponseCode>, took: Duration) {
        let rcode = code.map_or("", code_label);
        self.upstream.get_or_create(&UpstreamLabels { proxy_name: "forward", to, rcode }).observe(took.as_secs_f64());
    }

    pub(crate) fn refuse(&self) {
        self.refused.inc();
    }
}

/// A closed set, so that clients cannot grow it.
fn code_label(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        ResponseCode::BADVERS => "BADVERS",
        _ => "other",
    }
}

/// CoreDNS' set: what is not in it is `other`.
fn type_label(kind: RecordType) -> &'static str {
    match kind {
        RecordType::A => "A",
        RecordType::AAAA => "AAAA",
        RecordType::CNAME => "CNAME",
        RecordType::HTTPS => "HTTPS",
        RecordType::MX => "MX",
        RecordType::NS => "NS",
        RecordType::PTR => "PTR",
        RecordType::SOA => "SOA",
        RecordType::SRV => "SRV",
        RecordType::TXT => "TXT",
        _ => "other",
    }
}
