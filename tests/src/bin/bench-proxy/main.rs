//! `./dev bench proxy`: how long the dataplane takes to program the kernel, and what it weighs.
//!
//! Each case is a process of its own (so that memory is its own) in a network namespace of its own
//! (so that the machine's tables are left alone). The model is fed directly: what is measured is
//! the dataplane and the kernel, not an API server; the cases `watched` run the whole program with an API source in
//! the same process. For comparison the same load is written by
//! `nft -f` in the shape of upstream 1.36: one chain for each service, with one dnat rule through
//! an anonymous map.

mod watched;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use keelson_dataplane::engine::{DetectLocal, Engine, NodePortAddresses, Settings};
use keelson_dataplane::model::types::{
    EndpointRecord, Family, Name, NodeRecord, Protocol, ServicePort, ServiceRecord, SlicePort, SliceRecord,
};
use keelson_netfilter::nft::{Family as NftFamily, KernelNft};
use keelson_tests::process::memory_mib;
use nix::sys::socket::{setsockopt, sockopt};

/// Repetitions of a single change; the median is reported.
const REPEAT: u32 = 101;
/// Rounds of the first-packet latency, each with one Service and with many.
const ROUNDS: usize = 3;
/// Connections for the first-packet latency.
const CONNECTIONS: usize = 2000;

type Results = BTreeMap<String, f64>;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["--case", case] => {
            println!("{}", serde_json::to_string(&run_case(case)?)?);
            Ok(())
        }
        [] => all(None),
        ["--json", file] => all(Some(file)),
        _ => bail!("usage: bench-proxy [--json FILE]"),
    }
}

const CASES: &[&str] = &[
    "1000x2",
    "5000x2",
    "10000x2",
    "30000x2",
    "5000x50",
    "watched-10000x2",
    "watched-5000x50",
    "upstream-shape",
    "first-packet",
];

fn all(json: Option<&str>) -> anyhow::Result<()> {
    let mut results = Results::new();
    let me = std::env::current_exe().context("finding this program")?;
    for case in CASES {
        eprintln!("bench proxy: {case} …");
        let out =
            Command::new(&me).args(["--case", case]).stderr(Stdio::inherit()).output().context("starting a case")?;
        if !out.status.success() {
            bail!("case {case} failed: {}", out.status);
        }
        results.extend(serde_json::from_slice::<Results>(&out.stdout).context("reading a case's results")?);
    }
    print_table(&results);
    if let Some(file) = json {
        std::fs::write(file, serde_json::to_string_pretty(&results)? + "\n")
            .with_context(|| format!("writing {file}"))?;
    }
    Ok(())
}

fn version(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().map(|o| o.stdout).unwrap_or_default();
    String::from_utf8_lossy(&out).trim().to_owned()
}

fn print_table(results: &Results) {
    println!("dataplane, nftables mode; kernel {}, {}", version("uname", &["-r"]), version("nft", &["--version"]));
    println!("{:<34} {:>12}  aim", "what", "measured");
    let aims = BTreeMap::from([
        ("full_s_10000x2", "< 1 s"),
        ("full_s_5000x50", "< 3 s"),
        ("add_service_ms_10000", "< 5 ms"),
        ("add_endpoint_ms_10000", "< 5 ms"),
        ("rss_mib_5000x50", "< 120 MiB"),
        ("first_packet_ratio_30000", "< 1.1"),
    ]);
    for (key, value) in results {
        println!("{key:<34} {value:>12.3}  {}", aims.get(key.as_str()).copied().unwrap_or_default());
    }
}

fn run_case(case: &str) -> anyhow::Result<Results> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
        .context("making a network namespace; the benchmark needs root")?;
    match case {
        "upstream-shape" => upstream_shape(5000, 2),
        "first-packet" => first_packet(30_000),
        _ => {
            let shape = case.strip_prefix("watched-");
            let (services, endpoints) =
                shape.unwrap_or(case).split_once('x').context("a case is SERVICESxENDPOINTS")?;
            let run = if shape.is_some() { watched::case } else { sync_case };
            run(services.parse()?, endpoints.parse()?)
        }
    }
}

fn vip(service: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 0)) + 10 + service)
}

fn endpoint(service: u32, index: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 128, 0, 0)) + service * 64 + index)
}

fn name(service: u32) -> Name {
    format!("bench/service-{service}").into()
}

fn service_record(service: u32) -> ServiceRecord {
    ServiceRecord {
        cluster_ips: vec![IpAddr::V4(vip(service))],
        ports: vec![ServicePort { name: Arc::from(""), protocol: Protocol::Tcp, port: 80, node_port: 0 }],
        ..ServiceRecord::default()
    }
}

fn slice_record(service: u32, addresses: impl IntoIterator<Item = Ipv4Addr>) -> SliceRecord {
    let endpoint = |addr: Ipv4Addr| EndpointRecord {
        addr: addr.into(),
        ready: true,
        serving: true,
        terminating: false,
        local: false,
        hints: 0,
    };
    SliceRecord {
        service: name(service),
        family: Family::V4,
        ports: Box::new([SlicePort { name: Arc::from(""), protocol: Protocol::Tcp, port: 8080 }]),
        endpoints: addresses.into_iter().map(endpoint).collect(),
    }
}

fn set_service(engine: &mut Engine, service: u32, endpoints: u32) {
    engine.model.set_service(&name(service), Some(service_record(service)));
    set_endpoints(engine, service, endpoints);
}

fn set_endpoints(engine: &mut Engine, service: u32, endpoints: u32) {
    let slice: Name = format!("bench/service-{service}-abcde").into();
    let addresses = (0..endpoints).map(|index| endpoint(service, index));
    engine.model.set_slice(&slice, Some(slice_record(service, addresses)));
}

fn remove_service(engine: &mut Engine, service: u32) {
    engine.model.set_service(&name(service), None);
    engine.model.set_slice(&format!("bench/service-{service}-abcde").into(), None);
}

fn new_engine() -> anyhow::Result<Engine> {
    let settings = Settings {
        detect_local: DetectLocal::ClusterCidr(vec!["10.128.0.0/9".parse()?]),
        node_port_addresses: NodePortAddresses::Primary,
        service_cidrs: vec!["10.96.0.0/12".parse()?],
        masquerade_all: false,
        masquerade_mark: 0x4000,
    };
    let mut engine = Engine::new("bench", settings, vec![(NftFamily::Ipv4, Box::new(KernelNft::open()?))], None);
    engine.model.set_node(NodeRecord { internal_ips: vec!["192.168.7.2".parse()?], ..NodeRecord::default() });
    Ok(engine)
}

fn own_memory_mib(field: &str) -> anyhow::Result<f64> {
    memory_mib(std::process::id(), field)
}

/// Median time of a sync after each of several changes, in milliseconds.
fn median_ms(engine: &mut Engine, mut change: impl FnMut(&mut Engine, u32)) -> anyhow::Result<f64> {
    let mut times = Vec::new();
    for round in 0..REPEAT {
        change(engine, round);
        let start = Instant::now();
        engine.sync()?;
        times.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn sync_case(services: u32, endpoints: u32) -> anyhow::Result<Results> {
    let mut engine = new_engine()?;
    for service in 0..services {
        set_service(&mut engine, service, endpoints);
    }
    let start = Instant::now();
    let report = engine.sync()?;
    let full = start.elapsed().as_secs_f64();
    eprintln!("  full sync {full:.3} s: {report:?}");
    let shape = format!("{services}x{endpoints}");
    let mut results = Results::from([(format!("full_s_{shape}"), full)]);
    if services == 10_000 || services == 30_000 || endpoints == 50 {
        let suffix = if endpoints == 50 { shape.clone() } else { services.to_string() };
        let add = median_ms(&mut engine, |e, round| set_service(e, services + round, endpoints))?;
        let grow = median_ms(&mut engine, |e, round| set_endpoints(e, round, endpoints + 1))?;
        let shrink = median_ms(&mut engine, |e, round| set_endpoints(e, round, endpoints))?;
        let remove = median_ms(&mut engine, |e, round| remove_service(e, services + round))?;
        results.insert(format!("add_service_ms_{suffix}"), add);
        results.insert(format!("add_endpoint_ms_{suffix}"), grow);
        results.insert(format!("remove_endpoint_ms_{suffix}"), shrink);
        results.insert(format!("remove_service_ms_{suffix}"), remove);
        for service in 0..100 {
            remove_service(&mut engine, service);
            set_service(&mut engine, services + 1000 + service, endpoints);
        }
        let start = Instant::now();
        engine.sync()?;
        results.insert(format!("rename_100_ms_{suffix}"), start.elapsed().as_secs_f64() * 1000.0);
        for service in 0..100 {
            remove_service(&mut engine, services + 1000 + service);
            set_service(&mut engine, service, endpoints);
        }
        engine.sync()?;
    }
    results.insert(format!("rss_mib_{shape}"), own_memory_mib("VmRSS")?);
    results.insert(format!("rss_peak_mib_{shape}"), own_memory_mib("VmHWM")?);
    // A restart: everything is listed and compared, nothing is written.
    engine.forget();
    let start = Instant::now();
    let report = engine.sync()?;
    results.insert(format!("adopt_s_{shape}"), start.elapsed().as_secs_f64());
    if report.stats.elements != 0 {
        bail!("adoption wrote {} elements", report.stats.elements);
    }
    Ok(results)
}

/// The same services as chains and rules, through the nft program.
fn upstream_shape(services: u32, endpoints: u32) -> anyhow::Result<Results> {
    let mut text = String::from(
        "table ip kube-proxy {\n map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }\n\
         chain mark-for-masquerade { meta mark set meta mark or 0x4000; }\n",
    );
    let mut elements = String::new();
    for service in 0..services {
        let chain = format!("service-{service:08x}-bench/service-{service}/tcp/");
        let choices: Vec<String> = (0..endpoints).map(|i| format!("{i} : {} . 8080", endpoint(service, i))).collect();
        let _ = writeln!(
            text,
            "chain {chain} {{ ip daddr {} tcp dport 80 ip saddr != 10.128.0.0/9 jump mark-for-masquerade; \
             meta l4proto tcp dnat ip to numgen random mod {endpoints} map {{ {} }}; }}",
            vip(service),
            choices.join(", ")
        );
        let _ = write!(elements, "{} . tcp . 80 : goto {chain}, ", vip(service));
    }
    let _ = writeln!(
        text,
        "chain services {{ ip daddr . meta l4proto . th dport vmap @service-ips; }}\n\
         chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}\n}}\n\
         add element ip kube-proxy service-ips {{ {elements} }}"
    );
    let load = |text: &str| -> anyhow::Result<f64> {
        let start = Instant::now();
        let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().context("starting nft")?;
        nft.stdin.take().context("stdin")?.write_all(text.as_bytes())?;
        if !nft.wait()?.success() {
            bail!("nft refused the upstream shape");
        }
        Ok(start.elapsed().as_secs_f64())
    };
    let full = load(&text)?;
    let one = format!(
        "add chain ip kube-proxy one\nadd rule ip kube-proxy one meta l4proto tcp dnat ip to numgen random mod 2 map \
         {{ 0 : 10.1.1.1 . 8080, 1 : 10.1.1.2 . 8080 }}\n\
         add element ip kube-proxy service-ips {{ {} . tcp . 80 : goto one }}\n",
        vip(services)
    );
    let add = load(&one)?;
    Ok(Results::from([
        (format!("upstream_shape_s_{services}x{endpoints}"), full),
        (format!("upstream_shape_add_ms_{services}"), add * 1000.0),
    ]))
}

fn ip(args: &str) -> anyhow::Result<()> {
    let status = Command::new("ip").args(args.split(' ')).status().context("starting ip")?;
    if !status.success() {
        bail!("ip {args} failed");
    }
    Ok(())
}

/// Time to connect through a Service, with one Service and with many.
fn first_packet(services: u32) -> anyhow::Result<Results> {
    ip("link set lo up")?;
    ip("addr add 192.168.7.2/32 dev lo")?;
    ip("route add 10.96.0.0/12 dev lo")?;
    let backend = endpoint(0, 0);
    ip(&format!("addr add {backend}/32 dev lo"))?;
    let listener = TcpListener::bind(SocketAddr::new(backend.into(), 8080)).context("listening")?;
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let mut engine = new_engine()?;
    set_service(&mut engine, 0, 1);
    engine.sync()?;
    let connect = || -> anyhow::Result<f64> {
        let mut times = Vec::new();
        for _ in 0..CONNECTIONS {
            let start = Instant::now();
            let stream =
                TcpStream::connect(SocketAddr::new(vip(0).into(), 80)).context("connecting through the Service")?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
            // Ended by a reset: tens of thousands of ports in TIME-WAIT would meet new connections, and those would wait.
            setsockopt(&stream, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })?;
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    };
    // Alternating, as the machine is shared and noisy.
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        connect()?;
        one.push(connect()?);
        (1..services).for_each(|service| set_service(&mut engine, service, 2));
        engine.sync()?;
        connect()?;
        many.push(connect()?);
        (1..services).for_each(|service| remove_service(&mut engine, service));
        engine.sync()?;
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (one, many) = (median(&mut one), median(&mut many));
    Ok(Results::from([
        ("first_packet_us_1".to_owned(), one),
        (format!("first_packet_us_{services}"), many),
        (format!("first_packet_ratio_{services}"), many / one),
    ]))
}
