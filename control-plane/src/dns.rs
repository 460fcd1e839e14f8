//! Flags of the DNS part, and what follows from them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use ipnet::IpNet;
use keelson_dns::forward::resolvers::{PORT, Source};
use keelson_dns::{Config, Published, answer};

use crate::Serve;

/// Upstream's habit: the tenth address of the service range.
const SERVICE_INDEX: u32 = 10;

/// Flags of the DNS part.
#[derive(Args)]
#[group(id = "dns")]
pub(crate) struct Flags {
    /// Runs without DNS, for a cluster in which another one (CoreDNS) is deployed.
    #[arg(long)]
    no_cluster_dns: bool,
    /// Address of the DNS Service, as in the nodes' clusterDNS; the tenth of the service range if not given.
    #[arg(long)]
    cluster_dns_ip: Option<IpAddr>,
    /// Address that DNS listens on; the address that others reach this server at if not given.
    #[arg(long)]
    dns_bind_address: Option<IpAddr>,
    /// Port that DNS listens on, over UDP and TCP.
    #[arg(long, default_value_t = PORT)]
    dns_port: u16,
    /// Resolvers for names outside of the cluster (ADDRESS or ADDRESS:PORT, separated by commas); those of --dns-resolv-conf if not given.
    #[arg(long, value_delimiter = ',', value_parser = resolver)]
    dns_upstream: Vec<SocketAddr>,
    /// File that names the resolvers for names outside of the cluster.
    #[arg(long, default_value = "/etc/resolv.conf")]
    dns_resolv_conf: PathBuf,
    /// Port of /metrics of the DNS part, at the address it listens on; 0 serves it with the API server only.
    #[arg(long, default_value_t = 9153)]
    dns_metrics_port: u16,
}

fn resolver(text: &str) -> Result<SocketAddr, String> {
    let alone = || text.parse().map(|ip| SocketAddr::new(ip, PORT));
    text.parse().or_else(|_| alone()).map_err(|_| format!("{text} is neither an address nor ADDRESS:PORT"))
}

fn tenth(range: &IpNet) -> IpAddr {
    match range.network() {
        IpAddr::V4(first) => IpAddr::V4(u32::from(first).wrapping_add(SERVICE_INDEX).into()),
        IpAddr::V6(first) => IpAddr::V6(u128::from(first).wrapping_add(SERVICE_INDEX.into()).into()),
    }
}

/// The configuration; `None` when DNS shall not run here.
pub(crate) fn config(args: &Serve) -> anyhow::Result<Option<Config>> {
    let flags = &args.dns;
    if flags.no_cluster_dns {
        return Ok(None);
    }
    let service_address = flags.cluster_dns_ip.unwrap_or_else(|| tenth(&args.service_cluster_ip_range));
    if !args.service_cluster_ip_range.contains(&service_address) {
        bail!(
            "the address of cluster DNS, {service_address}, is not in the service range {}: choose one with --cluster-dns-ip",
            args.service_cluster_ip_range
        );
    }
    let reached = args.advertise_address.unwrap_or(args.bind_address);
    let bind = flags.dns_bind_address.unwrap_or(reached);
    let address = if bind.is_unspecified() { reached } else { bind };
    if address.is_loopback() && flags.dns_bind_address.is_none() {
        // No pod could reach it there, and a port below 1024 of this machine is not taken for nothing.
        tracing::warn!(%address, "the advertise address is a loopback address: cluster DNS does not run");
        return Ok(None);
    }
    let published = Published {
        service_address,
        address: SocketAddr::new(address, flags.dns_port),
        metrics_port: (flags.dns_metrics_port != 0).then_some(flags.dns_metrics_port),
    };
    let resolvers = match flags.dns_upstream.as_slice() {
        [] => Source::File(flags.dns_resolv_conf.clone()),
        given => Source::Given(given.to_vec()),
    };
    let ranges: Vec<IpNet> = args.cluster_cidr.iter().copied().chain([args.service_cluster_ip_range]).collect();
    Ok(Some(Config {
        bind: SocketAddr::new(bind, flags.dns_port),
        domain: args.cluster_domain.clone(),
        ttl: answer::DEFAULT_TTL,
        resolvers,
        ranges,
        // An endpoint cannot be a loopback or an unspecified address.
        published: (!address.is_loopback() && !address.is_unspecified()).then_some(published),
        metrics_bind: (flags.dns_metrics_port != 0).then_some(SocketAddr::new(bind, flags.dns_metrics_port)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn read(more: &[&str]) -> anyhow::Result<Option<Config>> {
        let words = ["control-plane", "serve", "--advertise-address", "192.0.2.2"];
        match crate::Cli::try_parse_from(words.iter().chain(more))?.command {
            crate::Command::Serve(args) => config(&args),
            _ => bail!("another command"),
        }
    }

    #[test]
    fn the_service_gets_the_tenth_address_and_listens_where_others_reach_it() {
        let config = read(&[]).unwrap().unwrap();
        let published = config.published.unwrap();
        assert_eq!(config.bind, "192.0.2.2:53".parse().unwrap());
        assert_eq!(published.service_address, "10.96.0.10".parse::<IpAddr>().unwrap());
        assert_eq!(published.address, config.bind);
        let six = read(&["--service-cluster-ip-range", "fd00:96::/112"]).unwrap().unwrap();
        assert_eq!(six.published.unwrap().service_address, "fd00:96::a".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn it_can_be_turned_off_and_does_not_take_a_port_of_loopback_unasked() {
        assert!(read(&["--no-cluster-dns"]).unwrap().is_none());
        assert!(read(&["--advertise-address", "127.0.0.1"]).is_err(), "given twice");
        let loopback = ["control-plane", "serve", "--bind-address", "127.0.0.1"];
        let crate::Command::Serve(args) = crate::Cli::try_parse_from(loopback).unwrap().command else { panic!() };
        assert!(config(&args).unwrap().is_none());
        let bound = read(&["--dns-bind-address", "127.0.0.1", "--dns-port", "5300"]).unwrap().unwrap();
        assert_eq!((bound.bind, bound.published.is_none()), ("127.0.0.1:5300".parse().unwrap(), true));
    }

    #[test]
    fn resolvers_may_leave_the_port_out_and_mistakes_are_told() {
        let config = read(&["--dns-upstream", "192.0.2.1,[2001:db8::1]:5353"]).unwrap().unwrap();
        let Source::Given(servers) = config.resolvers else { panic!("{:?}", config.resolvers) };
        assert_eq!(servers, ["192.0.2.1:53", "[2001:db8::1]:5353"].map(|text| text.parse().unwrap()));
        assert!(read(&["--dns-upstream", "example.com"]).is_err());
        assert!(read(&["--cluster-dns-ip", "192.0.2.10"]).unwrap_err().to_string().contains("10.96.0.0/16"));
    }
}
