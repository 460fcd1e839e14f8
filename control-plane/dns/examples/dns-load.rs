//! Asks a DNS server many questions and says how it did: `dns-load SERVER:PORT NAME[,NAME…] [QUESTIONS [SOCKETS [WINDOW]]]`.
//!
//! With `self` for the server it measures this crate on loopback with 5,000 services, and the memory of its model.

use std::time::Duration;

use anyhow::{Context, Result};
use hickory_proto::rr::{Name, RecordType};
use keelson_dns::forward::resolvers::Source;
use keelson_dns::load::{self, Load};

#[path = "../tests/support/mod.rs"]
mod support;

const SERVICES: u32 = 5000;

fn resident() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|line| line.starts_with("VmRSS")).context("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).context("no number")?.parse()?)
}

async fn measure(title: &str, load: &Load) -> Result<()> {
    let outcome = load::run(load).await?;
    println!(
        "{title}: {} answers, {} lost, {:.0}/s, p50 {:?}, p99 {:?}, codes {:?}",
        outcome.answered(),
        outcome.lost,
        outcome.rate(),
        outcome.permille(500),
        outcome.permille(990),
        outcome.codes
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |index: usize, default: usize| arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(default);
    let server =
        arguments.first().context("usage: dns-load SERVER:PORT NAME[,NAME…] [QUESTIONS [SOCKETS [WINDOW]]]")?;
    let mut load = Load {
        server: support::LOOPBACK,
        names: Vec::new(),
        kind: RecordType::A,
        questions: number(2, 200_000),
        sockets: number(3, 20),
        window: number(4, 10),
        limit: Duration::from_secs(2),
    };
    if server != "self" {
        load.server = server.parse().context("not an address with a port")?;
        let names = arguments.get(1).context("which names?")?.split(',');
        load.names = names.map(Name::from_ascii).collect::<Result<_, _>>()?;
        return measure("asked", &load).await;
    }
    let before = resident()?;
    let model = support::cluster(SERVICES);
    println!("model with {SERVICES} services and as many endpoints: {} KiB", resident()? - before);
    let running = support::start(model, Source::Given(Vec::new())).await?;
    load.server = running.address;
    let all = |suffix: &str| {
        let names = (0..SERVICES).map(|n| Name::from_ascii(format!("service-{n}.default.svc.cluster.local.{suffix}")));
        names.collect::<Result<Vec<_>, _>>()
    };
    load.names = all("")?;
    measure("A", &load).await?;
    load.names = all("default.svc.cluster.local.")?;
    measure("NXDOMAIN", &load).await?;
    load.window = 1;
    load.sockets = 1;
    load.questions /= 10;
    measure("NXDOMAIN one after the other", &load).await
}
