//! Applications of several parts on two nodes, put together by names: what people run first on a cluster.

#[path = "apps/dns.rs"]
mod dns;
#[path = "apps/guestbook.rs"]
mod guestbook;
#[path = "apps/web.rs"]
mod web;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::suite::{self, Test};
use serde_json::Value;

fn main() -> ExitCode {
    let tests: &[Test] = &[
        ("the_examples_guestbook_runs_as_it_is", guestbook::of_the_examples),
        ("a_guestbook_by_names_and_one_by_variables", guestbook::own),
        ("nginx_in_front_of_python_by_name", web::front_and_back),
        ("names_resolve_under_load_from_pods_of_both_nodes", dns::load),
        ("members_of_a_stateful_set_find_each_other_by_name", dns::members),
    ];
    suite::main("apps", 2, tests)
}

/// The node port of a service, at every node.
fn doors(lab: &Lab, space: &Space<'_>, service: &str) -> Result<Vec<SocketAddr>> {
    let port = space.kubectl(&["get", "service", service, "-o", "jsonpath={.spec.ports[0].nodePort}"])?;
    let port: u16 = port.parse().with_context(|| format!("{service} has no node port: {port:?}"))?;
    ["node-1", "node-2"].iter().map(|node| Ok((lab.address(node)?, port).into())).collect()
}

/// The nodes that pods are on.
fn nodes(pods: &[Value]) -> BTreeSet<String> {
    pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str().map(ToOwned::to_owned)).collect()
}
