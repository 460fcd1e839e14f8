//! SCTP by raw INIT chunks: kernels without SCTP sockets still track and translate it.

mod support;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use keelson_dataplane::model::types::ServiceRecord;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, recvfrom, sendto, setsockopt, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use support::lab::*;
use support::*;

/// There where the kernel tracks the protocol.
const TRACKING: &str = "/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_closed";
const SOURCE_PORT: u16 = 41_000;
/// A chunk is sent again when it is lost, as a client would.
const ATTEMPTS: usize = 5;

fn raw(addr: IpAddr) -> OwnedFd {
    let family = if addr.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Raw, SockFlag::empty(), SockProtocol::Sctp).expect("raw socket");
    setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::milliseconds(400)).expect("timeout");
    fd
}

/// CRC32c, bit by bit: RFC 9260, appendix A.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(crc & 1)))
    })
}

fn init(destination: u16) -> Vec<u8> {
    let mut packet = Vec::new();
    for port in [SOURCE_PORT, destination] {
        packet.extend(port.to_be_bytes());
    }
    packet.extend([0; 8]); // Verification tag, checksum.
    packet.extend([1, 0, 0, 20]); // INIT, its length.
    packet.extend(0x0102_0304_u32.to_be_bytes()); // Initiate tag.
    packet.extend(65_536_u32.to_be_bytes()); // Window.
    packet.extend([0, 1, 0, 1]); // Streams.
    packet.extend(1_u32.to_be_bytes()); // First sequence number.
    let sum = crc32c(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&sum);
    packet
}

/// Source address, source port and destination port of what a receiver gets.
type Got = (IpAddr, u16, u16);

fn receive(fd: &OwnedFd) -> Option<Got> {
    let mut buf = [0; 2048];
    let (length, from) = recvfrom::<SockaddrStorage>(fd.as_raw_fd(), &mut buf).ok()?;
    let from = from?;
    let source = from
        .as_sockaddr_in()
        .map(|a| IpAddr::V4(a.ip()))
        .or_else(|| from.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))?;
    // A raw socket of IPv4 gets the IP header, too.
    let header = if source.is_ipv4() { usize::from(buf[0] & 15) * 4 } else { 0 };
    let packet = buf.get(header..length)?;
    let port = |at: usize| Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?));
    Some((source, port(0)?, port(2)?))
}

/// What b and c get of a chunk.
fn send(lab: &Lab, from: Origin, addr: &str, port: u16) -> [Option<Got>; 2] {
    let to = SocketAddr::new(ip(addr), port);
    for _ in 0..ATTEMPTS {
        let sockets = [&lab.b, &lab.c].map(|ns| ns.run(move || raw(to.ip())));
        lab.ns(from).run(move || {
            let fd = raw(to.ip());
            // The port is in the packet; a raw socket's address has none.
            let target = SockaddrStorage::from(SocketAddr::new(to.ip(), 0));
            sendto(fd.as_raw_fd(), &init(port), &target, MsgFlags::empty()).expect("send");
        });
        let got = sockets.map(|fd| receive(&fd));
        if got.iter().any(Option::is_some) {
            return got;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    [None, None]
}

#[test]
fn associations_begin_at_an_endpoint_with_the_right_source() {
    if skip("associations_begin_at_an_endpoint_with_the_right_source") {
        return;
    }
    if !std::path::Path::new(TRACKING).exists() {
        println!("SKIPPED associations_begin_at_an_endpoint_with_the_right_source: this kernel tracks no SCTP");
        return;
    }
    let mut lab = Lab::new();
    lab.set("web", dual_service(), "c");
    let seen = |source: &str, got: [Option<Got>; 2], context: &str| {
        let [None, Some((from, _, to))] = got else { panic!("{context}: {got:?}") };
        assert_eq!((from, to), (ip(source), 9090), "{context}");
    };
    for a in BOTH {
        seen(a.client, send(&lab, Origin::Client, a.vip, 90), "cluster class");
        seen(a.towards_c, send(&lab, Origin::External, a.vip, 90), "cluster class from outside");
        for (addr, port) in [(a.node, 30_090), (a.external_ip, 90), (a.lb_ip, 90)] {
            seen(a.towards_c, send(&lab, Origin::External, addr, port), addr);
        }
    }
    // The endpoint goes: the flow of the same ports follows to the other one.
    lab.endpoints("web", "b");
    for a in BOTH {
        let got = send(&lab, Origin::Client, a.vip, 90);
        assert!(matches!(got, [Some((from, SOURCE_PORT, 9090)), None] if from == ip(a.client)), "{got:?}");
    }
    // Source kept by the local policy; nothing comes from where it may not.
    let ranges = ["192.168.7.1/32", "fd00:7::1/128"].map(|r| r.parse().unwrap()).to_vec();
    lab.set("web", ServiceRecord { external_local: true, source_ranges: ranges, ..dual_service() }, "b");
    for a in BOTH {
        let got = send(&lab, Origin::External, a.lb_ip, 90);
        assert!(matches!(got, [Some((from, SOURCE_PORT, 9090)), None] if from == ip(a.external)), "{got:?}");
        assert_eq!(send(&lab, Origin::Client, a.lb_ip, 90), [None, None]);
    }
}
