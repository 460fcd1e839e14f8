//! Real machines: guests with systemd, cgroup v2 and kernels of their own, set up by `vagrant/provision.sh`.
//!
//! With `KEELSON_TEST_FULL=1`: a control plane and a node on Debian 12, a second node on Debian 13, and every test. Without: two guests, one of
//! each, of which the first is the control plane too, and the quick tests; the others are reported as skipped.
//!
//! The last stage of `./dev test`: guests are translated where KVM does not work, and fill the processors.

#[path = "vm/kernel.rs"]
mod kernel;
#[path = "vm/outage.rs"]
mod outage;
#[path = "vm/packaging.rs"]
mod packaging;
#[path = "vm/pods.rs"]
mod pods;
#[path = "vm/runtime.rs"]
mod runtime;
#[path = "vm/service.rs"]
mod service;

use std::net::Ipv4Addr;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::suite::{self, Test};
use serde_json::Value;

/// Both nodes.
const NODES: [&str; 2] = ["node-1", "node-2"];
/// How long pods stay on a lost node, shortened from 300 s.
const TOLERATION_SECONDS: u64 = 10;

/// Everything, and on a control plane of its own.
const FULL: &str = "KEELSON_TEST_FULL";
/// What a change should pass before it is merged. All at once: most of the time is spent on waiting for what one guest or the other does.
const QUICK: &[Test] = &[
    ("vagrant_takes_the_vagrantfile", packaging::vagrantfile),
    ("both_distributions_are_set_up_and_ready", packaging::ready),
    ("limits_are_in_the_unified_cgroup_tree", pods::limits),
    ("pods_and_services_across_guests", pods::network),
    ("events_of_containers_come_by_cri", runtime::events),
];
/// What takes longer, or restarts what others need.
const LONG: &[Test] = &[
    ("an_end_is_seen_by_events_of_cri_alone", runtime::events_alone),
    ("setting_a_node_up_again_restarts_nothing", packaging::again),
    ("logs_and_commands", pods::logs),
    ("a_shell_has_a_terminal", packaging::terminal),
    ("packets_and_races_on_the_kernels_of_both_guests", kernel::packets),
    ("the_rules_of_a_node_are_listed_and_load_again", kernel::listing),
    ("a_restart_of_the_services_cuts_no_connection", service::restart_under_traffic),
    ("a_stopped_program_is_killed_by_the_watchdog", service::watchdog),
    ("a_reboot_brings_pods_back_and_leaks_no_address", outage::reboot),
    ("a_power_cut_loses_no_acknowledged_write", outage::power_cut),
    ("a_node_frozen_for_two_minutes_is_replaced_and_comes_back_clean", outage::frozen),
];

fn main() -> ExitCode {
    let listing = std::env::args().any(|argument| argument == "--list");
    let full = listing || std::env::var_os(FULL).is_some();
    let missing = missing();
    if !missing.is_empty() && !listing {
        for (name, _) in [QUICK, LONG].concat() {
            println!("SKIPPED {name}: there is no {missing} on this machine, and apt could not get it");
        }
        println!("\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        return ExitCode::SUCCESS;
    }
    if !full {
        for (name, _) in LONG {
            println!("SKIPPED {name}: it takes long on translated machines; {FULL}=1 runs it");
        }
    }
    let toleration = format!("--control-plane-arg=--default-unreachable-toleration-seconds={TOLERATION_SECONDS}");
    let not_ready = format!("--control-plane-arg=--default-not-ready-toleration-seconds={TOLERATION_SECONDS}");
    let mut up = vec!["--os", "debian12,debian13", &toleration, &not_ready];
    if !full {
        up.push("--compact");
    }
    suite::main_on_guests("vm", 2, &up, QUICK, if full { LONG } else { &[] })
}

/// Programs without which there is no guest.
fn missing() -> String {
    let absent = |program: &&str| {
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_err()
    };
    let list: Vec<&str> = ["qemu-system-x86_64", "mmdebstrap"].into_iter().filter(absent).collect();
    list.join(" and no ")
}

/// Runs a shell script in a machine.
fn shell(lab: &Lab, machine: &str, script: &str) -> Result<String> {
    lab.node(machine, &["bash", "-c", script])
}

/// A node's Ready condition: `True`, `False`, `Unknown`.
fn ready(lab: &Lab, node: &str) -> Result<String> {
    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    lab.kubectl(&["--request-timeout=10s", "get", "node", node, "-o", path])
}

/// A deployment of one test server that stays on a node, also while that is away: a reboot takes longer than the toleration above.
fn pinned(name: &str, node: &str) -> String {
    let servers = keelson_tests::manifests::servers(name, 1, &["--http=8080"]);
    servers.replace(
        "      containers:",
        &format!("      nodeName: {node}\n      tolerations: [{{operator: Exists}}]\n      containers:"),
    )
}

/// A pinned server `web-NODE` on each node, behind a Service of its own.
fn servers_on_both(space: &Space<'_>) -> Result<()> {
    for node in NODES {
        let app = format!("web-{node}");
        space.apply(&pinned(&app, node))?;
        space.apply(&keelson_tests::manifests::service(&app, &app, "ClusterIP"))?;
    }
    Ok(())
}

/// Waits until the Service leads to this pod, asked from a node; its address.
fn service_answers(space: &Space<'_>, node: &str, pod: &Value, service: &str) -> Result<Ipv4Addr> {
    let address = space.cluster_ip(service)?;
    space.lab.until("the Service answers", 60, || {
        let said = shell(space.lab, node, &format!("{ASK} ask {address} 80 /hostname"))?;
        Ok(said.trim() == pod["metadata"]["name"])
    })?;
    Ok(address)
}

/// The only pod of an app that is not being deleted.
fn pod(space: &Space<'_>, app: &str) -> Result<Value> {
    let pods = space.pods(&format!("app={app}"))?;
    let mut living = pods.into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    let first = living.next().with_context(|| format!("no pod of {app}"))?;
    ensure!(living.next().is_none(), "more than one pod of {app}");
    Ok(first)
}

/// Waits for a rollout as long as translated machines need.
fn rolled_out(space: &Space<'_>, name: &str) -> Result<()> {
    space.kubectl(&["rollout", "status", &format!("deployment/{name}"), "--timeout=240s"]).map(drop)
}

/// A script that asks an HTTP server for a path and prints the answer's last line: `ask ADDRESS PORT PATH`. Bash alone: each program that is
/// started takes a translated machine a good part of a second.
const ASK: &str = r#"ask() { exec 3<>"/dev/tcp/$1/$2" && printf 'GET %s HTTP/1.0\r\n\r\n' "$3" >&3 || return 1; last=
while IFS= read -r -t 10 line <&3 || [ -n "$line" ]; do last=$line; done; exec 3>&-; echo "$last"; }
"#;
