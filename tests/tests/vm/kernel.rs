//! The kernel's nf_tables in other versions than this host's: the packet tests of the dataplane, run inside the guests, and what their `nft`
//! makes of a living node's rules.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space, run};
use keelson_tests::manifests;
use keelson_tests::suite::Skip;

use super::{NODES, pinned, rolled_out, shell};

/// Test programs by name, `NAME=PATH` with blanks between them. `./dev test vm` sets it.
const PROGRAMS: &str = "KEELSON_TEST_PROGRAMS";
/// Those that are run here: packets through the rules, the race from N to M endpoints, listing and loading again, faults, minutes of churn.
const WANTED: [&str; 8] = ["packets", "affinity", "sctp", "race", "listing", "walk", "kernel_faults", "endurance"];
/// How long the churn lasts, and how many times slower than a processor of its own a guest may be, in the words of these programs.
const CHURN: &str = "KEELSON_ENDURANCE_SECONDS=300 KEELSON_TEST_PATIENCE=4";

fn programs() -> Result<Vec<(&'static str, PathBuf)>> {
    let list = std::env::var(PROGRAMS).unwrap_or_default();
    let find = |name: &'static str| {
        let path = list.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        path.map(|path| (name, PathBuf::from(path)))
    };
    let found: Vec<_> = WANTED.into_iter().filter_map(find).collect();
    if found.len() < WANTED.len() {
        let why = format!("{PROGRAMS} does not name the test programs {}: `./dev test vm` sets it", WANTED.join(", "));
        return Err(Skip(why).into());
    }
    Ok(found)
}

/// The dataplane's tests with packets pass on the kernels of both guests, each in namespaces of its own there.
pub fn packets(lab: &Lab) -> Result<()> {
    let programs = programs()?;
    let folder = tempfile::tempdir()?;
    for (name, path) in &programs {
        // Under plain names, and without what only a debugger reads: the way into a guest is narrow.
        run(Command::new("strip").arg("-o").arg(folder.path().join(name)).arg(path), None)?;
    }
    let on = |node: &str| -> Result<String> {
        let mut report = String::new();
        let kernel =
            shell(lab, node, "uname -r; nft --version")?.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
        for (name, _) in &programs {
            let path = folder.path().join(name);
            lab.lab(&["copy", node, &path.to_string_lossy(), "/root/tests"])?;
            // One after the other: a translated processor has no room for several with limits on their time.
            let said = shell(lab, node, &format!("{CHURN} /root/tests/{name} --test-threads=1 --nocapture 2>&1"))
                .with_context(|| format!("{name} on {node} ({kernel})"))?;
            ensure!(!said.contains("SKIPPED"), "{name} on {node} skips: {said}");
            let summary = said.lines().find(|line| line.starts_with("test result: ok")).unwrap_or_default();
            ensure!(!summary.is_empty() && !summary.contains(" 0 passed"), "{name} on {node} ran nothing: {said}");
            let race = said.lines().filter(|line| line.contains(" under ") && line.contains(" new flows"));
            report.extend(race.chain([summary]).map(|line| format!("\n  {node}, {kernel}, {name}: {line}")));
        }
        Ok(report)
    };
    let reports: Vec<Result<String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = NODES.iter().map(|node| scope.spawn(|| on(node))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("it panicked"))).collect()
    });
    for report in reports {
        println!("{}", report?);
    }
    Ok(())
}

/// Services of every class, so that the rules of a living node have everything in them.
fn everything(space: &Space<'_>) -> Result<()> {
    for node in NODES {
        space.apply(
            &pinned(&format!("web-{node}"), node)
                .replace("containerPort: 8080", "containerPort: 8080\n              hostPort: 8099"),
        )?;
    }
    let app = "web-node-1";
    let service = |name: &str, kind: &str, more: &str| {
        manifests::service(name, app, kind).replace("spec:\n", &format!("spec:\n{more}"))
    };
    for (name, kind, more) in [
        ("plain", "ClusterIP", ""),
        ("sticky", "ClusterIP", "  sessionAffinity: ClientIP\n"),
        ("ports", "NodePort", ""),
        ("local", "LoadBalancer", "  externalTrafficPolicy: Local\n"),
        ("inner", "ClusterIP", "  internalTrafficPolicy: Local\n"),
        ("balanced", "LoadBalancer", "  loadBalancerSourceRanges: [10.0.0.0/8, 192.168.0.0/16]\n"),
    ] {
        space.apply(&service(name, kind, more))?;
    }
    space.apply(&manifests::service("none", "nobody", "NodePort"))?;
    for (name, address) in [("local", "203.0.113.6"), ("balanced", "203.0.113.7")] {
        let status = format!(r#"{{"status": {{"loadBalancer": {{"ingress": [{{"ip": "{address}"}}]}}}}}}"#);
        space.kubectl(&["patch", "service", name, "--subresource=status", "-p", &status])?;
    }
    for node in NODES {
        rolled_out(space, &format!("web-{node}"))?;
    }
    space.endpoints("balanced", 1)
}

/// Words of a listing in an order of their own (that of elements in a hash is not the same twice), without what passes by itself.
fn normal(listing: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut all = listing.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
    while let Some(word) = all.next() {
        match word {
            // An element's remaining time.
            "expires" => drop(all.next()),
            // What has been counted since.
            "packets" | "bytes" => drop(all.next()),
            _ => words.push(word.to_owned()),
        }
    }
    words.sort();
    words
}

/// Everything that a node's programs have written is listed by its own `nft`, and the listing loads again and is the same.
pub fn listing(lab: &Lab) -> Result<()> {
    let space = lab.space("listing")?;
    everything(&space)?;
    for node in NODES {
        let list = || shell(lab, node, "nft list ruleset");
        let wanted = [
            "table ip keelson-dataplane",
            "table ip keelson-hostports",
            "table ip keelson-egress",
            "203.0.113.6",
            "203.0.113.7",
            "affinity-",
            "8099",
        ];
        lab.until("every class is in the rules", 60, || {
            let listing = list()?;
            let missing: Vec<&&str> = wanted.iter().filter(|part| !listing.contains(**part)).collect();
            ensure!(missing.is_empty(), "not in {node}'s rules: {missing:?}");
            Ok(true)
        })?;
        // The rules may change while they are looked at: pods of other tests end.
        lab.until(&format!("{node}'s listing loads again and is the same"), 60, || {
            let script =
                "set -e; nft list ruleset >/run/rules; unshare -n sh -ec 'nft -f /run/rules; nft list ruleset'";
            let again = shell(lab, node, script)?;
            let first = shell(lab, node, "cat /run/rules; rm /run/rules")?;
            let (first, again) = (normal(&first), normal(&again));
            let lost: Vec<&String> = first.iter().filter(|word| !again.contains(word)).take(20).collect();
            ensure!(first == again, "{} words became {}; lost: {lost:?}", first.len(), again.len());
            Ok(true)
        })?;
    }
    Ok(())
}
