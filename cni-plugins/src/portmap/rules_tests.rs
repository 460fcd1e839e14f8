use keelson_netfilter::nft::FakeNft;

use super::super::conf::Protocol;
use super::*;

fn mapping(host_ip: Option<&str>, host_port: u16) -> Mapping {
    Mapping { protocol: Protocol::Tcp, host_ip: host_ip.map(|ip| ip.parse().unwrap()), host_port, container_port: 80 }
}

fn wanted<'a>(mappings: &'a [Mapping], address: &str) -> Wanted<'a> {
    Wanted {
        mappings: mappings.iter().collect(),
        conditions: &[],
        address: address.parse().unwrap(),
        snat: true,
        masquerade_all: false,
        mark_bit: 13,
    }
}

#[test]
fn names_tell_networks_and_containers_apart() {
    let long = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let name = chain_name("net", long, "eth0");
    assert!(name.starts_with(&network_prefix("net")) && name.contains("0123456789abc") && name.len() < 64, "{name}");
    let others =
        [chain_name("net", long, "eth1"), chain_name("net2", long, "eth0"), chain_name("net", &long[1..], "eth0")];
    assert!(others.iter().all(|other| *other != name));
}

#[test]
fn a_port_changes_hands_and_the_former_owner_takes_nothing_along() {
    let mut nft = FakeNft::default();
    let (a, b) = (chain_name("net", "a", "eth0"), chain_name("net", "b", "eth0"));
    let ports = [mapping(None, 8080), mapping(Some("192.0.2.1"), 8081)];
    Table::new(&mut nft, true).put(&a, &wanted(&ports, "10.1.0.7/24")).unwrap();
    let mut table = Table::new(&mut nft, true);
    assert_eq!(table.missing(&a, &wanted(&ports, "10.1.0.7/24")).unwrap(), None);
    let moved = [mapping(None, 8080)];
    table.put(&b, &wanted(&moved, "10.1.0.8/24")).unwrap();
    assert_eq!(table.missing(&a, &wanted(&ports, "10.1.0.7/24")).unwrap().as_deref(), Some("8080/tcp"));
    table.remove(&BTreeSet::from([a.clone()])).unwrap();
    assert_eq!(table.missing(&b, &wanted(&moved, "10.1.0.8/24")).unwrap(), None);
    assert_eq!(table.elements().unwrap().len(), 1);
    assert_eq!(table.chains_of("net").unwrap(), BTreeSet::from([b.clone()]));
    assert_eq!(table.chains_of("other").unwrap(), BTreeSet::new());
    // Twice is fine, and so is a table that was never made.
    table.remove(&BTreeSet::from([a])).unwrap();
    Table::new(&mut nft, false).remove(&BTreeSet::from([b])).unwrap();
}

#[test]
fn an_add_after_another_of_the_same_container_leaves_only_the_new_ports() {
    let mut nft = FakeNft::default();
    let chain = chain_name("net", "a", "eth0");
    let mut table = Table::new(&mut nft, false);
    table.put(&chain, &wanted(&[mapping(None, 1), mapping(None, 2)], "fd00::7/64")).unwrap();
    table.put(&chain, &wanted(&[mapping(Some("::"), 2), mapping(Some("fd00::1"), 3)], "fd00::7/64")).unwrap();
    let maps: Vec<&str> = table.elements().unwrap().keys().map(|(map, _)| *map).collect();
    assert_eq!(maps, [HOST_IP_PORTS, PORTS]);
}

#[test]
fn without_snat_nothing_is_marked() {
    let ports = [mapping(None, 8080)];
    let mut wanted = wanted(&ports, "10.1.0.7/24");
    assert_eq!(rules(&wanted, &ports[0]).len(), 3);
    wanted.masquerade_all = true;
    assert_eq!(rules(&wanted, &ports[0]).len(), 2);
    wanted.snat = false;
    assert_eq!(rules(&wanted, &ports[0]).len(), 1);
}
