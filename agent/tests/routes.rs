//! Routes to other nodes' pods in a real kernel, both families: a network namespace of the test's own, two links, `ip` to look.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use ipnet::IpNet;
use keelson_agent::network::kernel::{KernelRoutes, Notices, PROTOCOL, RouteError, RouteTable};
use keelson_agent::network::routes::{Found, Step};
use nix::sched::{CloneFlags, unshare};

/// Says why the test cannot run here, past the harness's capture.
fn cannot_run(name: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        let _ = writeln!(std::io::stderr(), "SKIPPED {name}: needs root");
    }
    !root
}

/// Runs on a thread of its own in a new network namespace, with 192.0.2.1/24 and 2001:db8::1/64 on `up0`.
fn in_a_namespace<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send + 'static) {
    let run = move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        for command in [
            "link add up0 type veth peer name far0",
            "addr add 192.0.2.1/24 dev up0",
            "addr add 2001:db8::1/64 dev up0 nodad",
            "link set up0 up",
            "link set far0 up",
        ] {
            ip(command);
        }
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work());
    };
    std::thread::spawn(run).join().unwrap();
}

/// A child is in the namespace of the thread that starts it.
fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn add(range: &str, gateway: &str) -> Step {
    Step::Add(net(range), gateway.parse().unwrap())
}

async fn all(routes: &mut KernelRoutes) -> Vec<(String, String)> {
    let listed = routes.list().await.unwrap();
    let text = |route: &Found| (route.range.to_string(), route.gateway.map(|ip| ip.to_string()).unwrap_or_default());
    listed.iter().map(text).collect()
}

#[test]
fn routes_of_both_families_are_made_changed_and_removed() {
    if cannot_run("routes_of_both_families_are_made_changed_and_removed") {
        return;
    }
    in_a_namespace(|| async {
        let mut routes = KernelRoutes::open().unwrap();
        assert_eq!(all(&mut routes).await, []);
        for (range, gateway, other) in
            [("10.244.1.0/24", "192.0.2.2", "192.0.2.3"), ("fd00:0:0:1::/64", "2001:db8::2", "2001:db8::3")]
        {
            let family = if range.contains(':') { "-6" } else { "-4" };
            routes.apply(&add(range, gateway)).await.unwrap();
            let shown = ip(&format!("{family} route show {range}"));
            assert!(shown.contains(&format!("via {gateway} dev up0 proto {PROTOCOL}")), "{shown}");
            routes.apply(&Step::Replace(net(range), other.parse().unwrap())).await.unwrap();
            assert_eq!(all(&mut routes).await, [(range.to_owned(), other.to_owned())]);
            // Somebody's own route is neither seen nor removed.
            let foreign = if range.contains(':') { "fd00:0:0:9::/64" } else { "203.0.113.0/24" };
            ip(&format!("{family} route add {foreign} via {gateway}"));
            assert_eq!(all(&mut routes).await.len(), 1);
            let pretended = Found { range: net(foreign), gateway: Some(gateway.parse().unwrap()), link: None };
            routes.apply(&Step::Remove(pretended)).await.unwrap();
            assert!(ip(&format!("{family} route show {foreign}")).contains(gateway), "a foreign route was removed");
            let found = routes.list().await.unwrap().remove(0);
            assert!(found.link.is_some());
            for _ in 0..2 {
                routes.apply(&Step::Remove(found.clone())).await.unwrap();
            }
            assert_eq!(all(&mut routes).await, []);
        }
    });
}

#[test]
fn what_cannot_be_is_told_apart() {
    if cannot_run("what_cannot_be_is_told_apart") {
        return;
    }
    in_a_namespace(|| async {
        let mut routes = KernelRoutes::open().unwrap();
        for (range, gateway) in [("10.244.1.0/24", "198.51.100.2"), ("fd00:0:0:1::/64", "2001:db8:9::2")] {
            let error = routes.apply(&add(range, gateway)).await.unwrap_err();
            assert!(matches!(error, RouteError::Unreachable { .. }), "{error}");
        }
        ip("-4 route add 10.244.1.0/24 via 192.0.2.2");
        ip("-6 route add fd00:0:0:1::/64 via 2001:db8::2");
        for (range, gateway) in [("10.244.1.0/24", "192.0.2.2"), ("fd00:0:0:1::/64", "2001:db8::2")] {
            let error = routes.apply(&add(range, gateway)).await.unwrap_err();
            assert!(matches!(error, RouteError::Foreign { .. }), "{error}");
        }
    });
}

#[test]
fn a_foreign_hand_is_noticed_and_pods_coming_and_going_are_not() {
    if cannot_run("a_foreign_hand_is_noticed_and_pods_coming_and_going_are_not") {
        return;
    }
    in_a_namespace(|| async {
        let mut routes = KernelRoutes::open().unwrap();
        let limit = Duration::from_secs(5);
        routes.apply(&add("10.244.1.0/24", "192.0.2.2")).await.unwrap();
        let links: Vec<u32> = routes.list().await.unwrap().iter().filter_map(|route| route.link).collect();
        // What the set-up itself still causes (carrier, addresses) is over after a moment.
        let mut notices = Notices::open().unwrap();
        while tokio::time::timeout(Duration::from_millis(300), notices.next(&links, false)).await.is_ok() {}
        ip("link add veth1 type veth peer name veth2");
        ip("link set veth1 up");
        ip("route add 203.0.113.0/24 via 192.0.2.2");
        ip("route del 203.0.113.0/24");
        ip("link del veth1");
        let woken = tokio::time::timeout(Duration::from_millis(200), notices.next(&links, false)).await;
        assert!(woken.is_err(), "woken by what is not ours");
        for hand in ["route del 10.244.1.0/24", "route replace 10.244.1.0/24 via 192.0.2.9", "link set up0 down"] {
            let _ = routes.apply(&add("10.244.1.0/24", "192.0.2.2")).await;
            let mut notices = Notices::open().unwrap();
            ip(hand);
            tokio::time::timeout(limit, notices.next(&links, false)).await.expect(hand).unwrap();
        }
        // Blocked by somebody's route: its end is of interest.
        ip("link set up0 up");
        ip("route replace 203.0.113.0/24 via 192.0.2.2");
        let mut notices = Notices::open().unwrap();
        ip("route del 203.0.113.0/24");
        tokio::time::timeout(limit, notices.next(&links, true)).await.expect("its end").unwrap();
    });
}
