//! Streams through real clients: the newest kubectl (WebSocket), Debian's 1.20 (SPDY only), the Python client and kube-rs
//! (WebSocket channels).
//!
//! `KEELSON_TEST_FULL=1` runs the heavy cases in the size the contract names (100 MB each way, 10,000 files, 1,000 idle streams).

#[path = "streams/clients.rs"]
mod clients;
#[path = "streams/forward.rs"]
mod forward;
#[path = "streams/kube_rs.rs"]
mod kube_rs;
#[path = "streams/more.rs"]
mod more;
#[path = "streams/remote.rs"]
mod remote;

use std::process::ExitCode;

use anyhow::Result;
use keelson_tests::lab::{Lab, Space};
use keelson_tests::suite::{self, Test};

fn main() -> ExitCode {
    let tests: &[Test] = &[
        ("exec_keeps_output_errors_and_exit_code_apart", remote::plain),
        ("exec_of_what_cannot_run_says_so", remote::refused),
        ("exec_with_a_terminal_resizes_and_interrupts", remote::terminal),
        ("exec_moves_large_data_both_ways", remote::large),
        ("stdin_that_ends_early_on_either_side", remote::early_end),
        ("a_client_that_vanishes_leaves_nothing", remote::vanished),
        ("attach_to_a_running_container_and_run", remote::attach),
        ("port_forward_fifty_at_once_and_half_closed", forward::forward),
        ("port_forward_to_a_port_nobody_serves", forward::unserved),
        ("cp_of_a_tree_and_back", more::copy),
        ("debug_with_a_target_a_copy_and_a_node", more::debug),
        ("ephemeral_containers_are_only_added", more::ephemeral_rules),
        ("proxy_to_pods_services_and_nodes", more::proxy),
        ("rights_follow_the_effect", more::rights),
        ("kubectl_1_20_by_spdy", clients::old_kubectl),
        ("the_python_client_by_websocket", clients::python),
        ("kube_rs_by_websocket", kube_rs::client),
        ("idle_streams_and_slow_clients_hurt_nobody", clients::idle),
    ];
    suite::main("streams", 1, tests)
}

/// Whether the heavy cases run in full size.
pub fn full() -> bool {
    std::env::var_os("KEELSON_TEST_FULL").is_some()
}

/// A namespace with a pod `box` (a shell), and `web` (the test server with an echo on port 9000), both ready.
pub fn pods<'a>(lab: &'a Lab, name: &str) -> Result<Space<'a>> {
    let space = lab.space(name)?;
    space.apply(PODS)?;
    for pod in ["box", "web"] {
        space.ready_pod(pod)?;
    }
    Ok(space)
}

const PODS: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: box
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: main
      image: busybox:1.28
      command: ["sleep", "100000"]
---
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels:
    app: web
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: server
      image: keelson.dev/test-server:latest
      imagePullPolicy: IfNotPresent
      args: ["--tcp-echo", "9000"]
      ports:
        - name: http
          containerPort: 8080
"#;
