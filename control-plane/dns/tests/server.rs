//! The built server, asked over UDP and TCP on loopback, with a resolver behind it that misbehaves.

mod support;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, RData, RecordType};
use keelson_dns::forward::resolvers::Source;
use keelson_dns::load::{self, Load};
use support::{FakeResolver, cluster, name, question, send_tcp, send_udp, start, tcp, udp};
use tokio::net::TcpStream;

fn given(resolvers: &[&FakeResolver]) -> Source {
    Source::Given(resolvers.iter().map(|resolver| resolver.address).collect())
}

#[tokio::test]
async fn cluster_names_over_both_transports() -> Result<()> {
    let server = start(cluster(3), Source::Given(Vec::new())).await?;
    let asked = "SERVICE-1.default.svc.Cluster.local.";
    for answer in
        [udp(server.address, asked, RecordType::A, None).await?, tcp(server.address, asked, RecordType::A).await?]
    {
        ensure!(
            answer.metadata.authoritative && answer.metadata.recursion_available && answer.metadata.recursion_desired
        );
        ensure!(answer.answers.len() == 1 && answer.answers[0].ttl == 5, "{answer}");
        ensure!(answer.answers[0].data == RData::A("10.96.1.1".parse()?), "{answer}");
        // The case of the question comes back: clients that vary it check that.
        ensure!(answer.answers[0].name.eq_case(&name(asked)), "{answer}");
        ensure!(answer.edns.is_none());
    }
    let denied = udp(server.address, "nobody.default.svc.cluster.local.", RecordType::A, Some(4096)).await?;
    ensure!(denied.metadata.response_code == ResponseCode::NXDomain && denied.authorities.len() == 1, "{denied}");
    ensure!(denied.edns.as_ref().is_some_and(|edns| edns.max_payload() == 1232), "{denied}");
    let pages = server.pages.metrics_text();
    ensure!(pages.contains(r#"coredns_dns_responses_total{rcode="NXDOMAIN",plugin="kubernetes"} 1"#), "{pages}");
    ensure!(pages.contains(r#"coredns_dns_requests_total{proto="tcp",type="A"} 1"#), "{pages}");
    Ok(())
}

#[tokio::test]
async fn long_answers_are_cut_and_come_whole_over_tcp() -> Result<()> {
    let server = start(cluster(1), Source::Given(Vec::new())).await?;
    let asked = "many.default.svc.cluster.local.";
    let plain = send_udp(server.address, &question(asked, RecordType::A, None).to_vec()?).await?;
    ensure!(plain.len() <= 512, "{}", plain.len());
    let cut = Message::from_vec(&plain)?;
    ensure!(cut.metadata.truncation && !cut.answers.is_empty(), "{cut}");
    let large = udp(server.address, asked, RecordType::A, Some(1232)).await?;
    ensure!(!large.metadata.truncation && large.answers.len() == 60, "{large}");
    let whole = tcp(server.address, asked, RecordType::A).await?;
    ensure!(!whole.metadata.truncation && whole.answers.len() == 60, "{whole}");
    // The addresses beside SRV records are a courtesy: they are left out rather than making the client come again.
    let courtesy = udp(server.address, "service-0.default.svc.cluster.local.", RecordType::SRV, None).await?;
    ensure!(courtesy.additionals.len() == 1, "{courtesy}");
    Ok(())
}

#[tokio::test]
async fn several_questions_on_one_tcp_connection() -> Result<()> {
    let server = start(cluster(2), Source::Given(Vec::new())).await?;
    let mut stream = TcpStream::connect(server.address).await?;
    for number in [0, 1, 7] {
        let asked = question(&format!("service-{number}.default.svc.cluster.local."), RecordType::A, None);
        let answer = send_tcp(&mut stream, &asked).await?;
        ensure!(answer.metadata.id == asked.metadata.id && answer.answers.len() == usize::from(number < 2), "{answer}");
    }
    Ok(())
}

/// Makes a request wrong in one way.
type Change = fn(&mut Message);

#[tokio::test]
async fn bad_requests_get_their_codes() -> Result<()> {
    let server = start(cluster(1), Source::Given(Vec::new())).await?;
    // The codes as they are on the wire: 16 has two names.
    let cases: [(Change, ResponseCode); 5] = [
        (|m| m.metadata.op_code = OpCode::Status, ResponseCode::NotImp),
        (|m| _ = m.queries[0].set_query_class(DNSClass::CH), ResponseCode::Refused),
        (|m| _ = m.queries[0].set_query_type(RecordType::AXFR), ResponseCode::Refused),
        (|m| m.queries.clear(), ResponseCode::FormErr),
        (|m| _ = m.edns.as_mut().unwrap().set_version(1), ResponseCode::BADVERS),
    ];
    for (change, code) in cases {
        let mut asked = question("service-0.default.svc.cluster.local.", RecordType::A, Some(1232));
        change(&mut asked);
        let answer = Message::from_vec(&send_udp(server.address, &asked.to_vec()?).await?)?;
        ensure!(u16::from(answer.metadata.response_code) == u16::from(code), "{answer} instead of {code}");
    }
    // Rubbish is not answered, and does not harm.
    let socket = tokio::net::UdpSocket::bind(support::LOOPBACK).await?;
    socket.send_to(&[1, 2, 3], server.address).await?;
    socket.send_to(&[0xff; 600], server.address).await?;
    ensure!(udp(server.address, "service-0.default.svc.cluster.local.", RecordType::A, None).await?.answers.len() == 1);
    Ok(())
}

#[tokio::test]
async fn other_names_are_asked_once_and_kept() -> Result<()> {
    let resolver = FakeResolver::start().await?;
    let server = start(cluster(1), given(&[&resolver])).await?;
    for _ in 0..3 {
        let answer = udp(server.address, "ok.example.", RecordType::A, None).await?;
        ensure!(
            answer.answers.len() == 1 && !answer.metadata.authoritative && answer.metadata.recursion_available,
            "{answer}"
        );
    }
    ensure!(resolver.count() == 1, "{}", resolver.count());
    for (asked, code) in [("nx.example.", ResponseCode::NXDomain), ("nodata.example.", ResponseCode::NoError)] {
        let before = resolver.count();
        for _ in 0..2 {
            let answer = udp(server.address, asked, RecordType::A, None).await?;
            ensure!(answer.metadata.response_code == code && answer.answers.is_empty(), "{answer}");
            ensure!(answer.authorities.len() == 1, "{answer}");
        }
        ensure!(resolver.count() == before + 1, "{asked}");
    }
    // Ten who ask at the same time for what is slow: one question.
    let before = resolver.count();
    let all = (0..10).map(|_| udp(server.address, "slow.example.", RecordType::A, None));
    for answer in futures::future::join_all(all).await {
        ensure!(answer?.answers.len() == 1);
    }
    ensure!(resolver.count() == before + 1, "{}", resolver.count() - before);
    let pages = server.pages.metrics_text();
    ensure!(pages.contains(r#"coredns_cache_hits_total{type="success"} 2"#), "{pages}");
    ensure!(pages.contains(r#"coredns_cache_hits_total{type="denial"} 2"#), "{pages}");
    ensure!(pages.contains("coredns_proxy_request_duration_seconds_count"), "{pages}");
    Ok(())
}

#[tokio::test]
async fn no_name_of_the_cluster_leaves_it() -> Result<()> {
    let resolver = FakeResolver::start().await?;
    let server = start(cluster(1), given(&[&resolver])).await?;
    for asked in [
        "ok.example.default.svc.cluster.local.",
        "ok.svc.cluster.local.",
        "ok.cluster.local.",
        "9.9.96.10.in-addr.arpa.",
    ] {
        let answer = udp(server.address, asked, RecordType::A, None).await?;
        ensure!(answer.metadata.response_code == ResponseCode::NXDomain, "{answer}");
    }
    ensure!(resolver.count() == 0);
    let alias = udp(server.address, "alias.default.svc.cluster.local.", RecordType::A, None).await?;
    let kinds: Vec<RecordType> = alias.answers.iter().map(hickory_proto::rr::Record::record_type).collect();
    ensure!(kinds == [RecordType::CNAME, RecordType::A] && alias.metadata.authoritative, "{alias}");
    Ok(())
}

#[tokio::test]
async fn a_long_answer_of_a_resolver_is_fetched_over_tcp() -> Result<()> {
    let resolver = FakeResolver::start().await?;
    let server = start(cluster(1), given(&[&resolver])).await?;
    let cut = udp(server.address, "long.example.", RecordType::TXT, None).await?;
    ensure!(cut.metadata.truncation, "{cut}");
    let whole = tcp(server.address, "long.example.", RecordType::TXT).await?;
    ensure!(whole.answers.len() == 100 && !whole.metadata.truncation);
    // Once over UDP, once over TCP, then from the cache.
    ensure!(resolver.count() == 2, "{}", resolver.count());
    Ok(())
}

#[tokio::test]
async fn forged_answers_are_passed_over() -> Result<()> {
    let resolver = FakeResolver::start().await?;
    let server = start(cluster(1), given(&[&resolver])).await?;
    let answer = udp(server.address, "forged.example.", RecordType::A, None).await?;
    ensure!(answer.answers.len() == 1 && answer.answers[0].data == RData::A("192.0.2.7".parse()?), "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_second_resolver_helps_and_failing_ones_end_in_servfail() -> Result<()> {
    let resolver = FakeResolver::start().await?;
    // A port that nobody listens on: bound once and let go.
    let closed = tokio::net::UdpSocket::bind(support::LOOPBACK).await?.local_addr()?;
    let server = start(cluster(1), Source::Given(vec![closed, resolver.address])).await?;
    let begun = Instant::now();
    ensure!(udp(server.address, "ok.example.", RecordType::A, None).await?.answers.len() == 1);
    ensure!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    for asked in ["servfail.example.", "refused.example."] {
        let answer = udp(server.address, asked, RecordType::A, None).await?;
        ensure!(answer.metadata.response_code == ResponseCode::ServFail, "{answer}");
    }
    let begun = Instant::now();
    let silent = udp(server.address, "silent.example.", RecordType::A, None).await?;
    ensure!(silent.metadata.response_code == ResponseCode::ServFail, "{silent}");
    ensure!(begun.elapsed() < Duration::from_secs(5), "a client would have given up: {:?}", begun.elapsed());
    // What is down is not waited for again: the answer comes at once.
    let begun = Instant::now();
    udp(server.address, "silent-2.silent.example.", RecordType::A, None).await?;
    ensure!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    Ok(())
}

#[tokio::test]
async fn without_a_resolver_other_names_are_refused_at_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("resolv.conf");
    std::fs::write(&path, "# none\n")?;
    let server = start(cluster(1), Source::File(path)).await?;
    let begun = Instant::now();
    let answer = udp(server.address, "www.example.com.", RecordType::A, None).await?;
    ensure!(answer.metadata.response_code == ResponseCode::Refused, "{answer}");
    let alias = udp(server.address, "alias.default.svc.cluster.local.", RecordType::A, None).await?;
    ensure!(alias.metadata.response_code == ResponseCode::ServFail && alias.answers.len() == 1, "{alias}");
    ensure!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_every_question_is_answered() -> Result<()> {
    let server = start(cluster(100), Source::Given(Vec::new())).await?;
    let names = (0..200).map(|number| name(&format!("service-{number}.default.svc.cluster.local."))).collect();
    let load = Load {
        server: server.address,
        names,
        kind: RecordType::A,
        questions: 20_000,
        sockets: 20,
        window: 10,
        limit: Duration::from_secs(2),
    };
    let outcome = load::run(&load).await?;
    ensure!(outcome.lost == 0 && outcome.answered() == 20_000, "{} lost, {:?}", outcome.lost, outcome.codes);
    // Half of the names are there.
    ensure!(outcome.codes.get(&0) == Some(&10_000) && outcome.codes.get(&3) == Some(&10_000), "{:?}", outcome.codes);
    Ok(())
}
