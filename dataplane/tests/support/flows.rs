//! New flows to Services, counted by the kernel before and behind the translation and then dropped: a connection would hide a loss by
//! sending again, and a flow that is never confirmed is new with every packet.

#![allow(dead_code)]

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Netns;

/// Port of the Services.
pub const PORT: u16 = 53;
/// Port of their endpoints, in 10.244.2.0/24.
pub const TARGET: u16 = 5353;
/// Pause until packets under way have been counted.
pub const SETTLE: Duration = Duration::from_millis(200);

/// What the kernel has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// New flows to the Service.
    pub sent: u64,
    /// Those that came out of the translation with an endpoint's address.
    pub served: u64,
    /// Those that came out as they were.
    pub untranslated: u64,
}

impl Counts {
    pub fn read(node: &Netns) -> Self {
        let listing = node.cmd("nft", &["list", "counters", "table", "ip", "race"]);
        let value = |name: &str| {
            let rest = listing.split_once(&format!("counter {name} {{")).unwrap_or_else(|| panic!("{listing}")).1;
            rest.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{listing}"))
        };
        Self { sent: value("sent"), served: value("served"), untranslated: value("untranslated") }
    }

    pub fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            served: self.served - before.served,
            untranslated: self.untranslated - before.untranslated,
        }
    }

    /// Sent, and neither served nor untranslated: dropped by the chain that found no endpoint.
    pub fn dropped(self) -> u64 {
        self.sent - self.served - self.untranslated
    }
}

/// Sends from several sockets until it is told to stop; then every packet has been counted.
pub struct Stream {
    stop: Arc<AtomicBool>,
    threads: Vec<std::sync::mpsc::Receiver<()>>,
}

impl Stream {
    /// Two senders, to all of these addresses in turn, with a pause after each turn.
    pub fn start(client: &Netns, addresses: &[&'static str], pause: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..2).map(|_| {
            let (stop, (done, wait)) = (stop.clone(), std::sync::mpsc::channel());
            let addresses = addresses.to_vec();
            client.spawn(move || {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
                while !stop.load(Ordering::Relaxed) {
                    for address in &addresses {
                        socket.send_to(b"?", (*address, PORT)).expect("send");
                    }
                    if !pause.is_zero() {
                        std::thread::sleep(pause);
                    }
                }
                let _ = done.send(());
            });
            wait
        });
        Self { threads: threads.collect(), stop }
    }

    pub fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.recv().expect("a sender has panicked");
        }
        std::thread::sleep(SETTLE);
    }
}

/// A node and a client, and counters around the translation of what goes to these addresses (in nft's words).
pub fn prepare(to: &str) -> (Netns, Netns) {
    let (node, client) = (Netns::new(), Netns::new());
    node.connect("pod0", "10.244.1.1/30", &client, "eth0", "10.244.1.2/30");
    client.ip("route add default via 10.244.1.1");
    node.sysctl("net/ipv4/ip_forward", "1");
    let rules = format!(
        "table ip race {{
            counter sent {{ }}
            counter served {{ }}
            counter untranslated {{ }}
            chain before {{
                type filter hook prerouting priority -110;
                ct state new ip daddr {to} udp dport {PORT} counter name sent
            }}
            chain behind {{
                type filter hook prerouting priority -90;
                ip daddr 10.244.2.0/24 udp dport {TARGET} counter name served drop
                ip daddr {to} counter name untranslated drop
            }}
        }}"
    );
    node.cmd_in("nft", &["-f", "-"], &rules);
    (node, client)
}
