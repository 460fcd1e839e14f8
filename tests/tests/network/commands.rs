//! The dataplane's commands as an operator uses them on a node.

use anyhow::{Result, ensure};
use keelson_tests::lab::Lab;

/// Runs the program on the node; what it said, and its exit code in the last line.
fn dataplane(lab: &Lab, arguments: &str) -> Result<String> {
    lab.node("node-1", &["sh", "-c", &format!("dataplane {arguments} 2>&1; echo code $?")])
}

/// `diff` finds nothing while all is well, and each thing that somebody took away; `trace` says where a packet goes, whose address it is, and
/// that something else is wanted.
pub fn trace_and_diff(lab: &Lab) -> Result<()> {
    let space = super::three(lab, "commands", "ClusterIP")?;
    let address = space.cluster_ip("web")?;
    super::answers(lab, super::node(lab)?, (address, 80).into())?;
    let config = "--config /etc/keelson/proxy.yaml";
    let trace = || dataplane(lab, &format!("{config} trace --to {address}:80"));
    let diff = || dataplane(lab, &format!("{config} diff"));
    // What other tests leave behind is programmed a moment later.
    lab.until("nothing differs", 10, || {
        let said = diff()?;
        Ok(said.contains("table ip keelson-dataplane: as wanted") && said.ends_with("code 0\n"))
    })?;
    let said = trace()?;
    for part in ["(commands/web:http)", "one of 3 endpoints", "1 of 3: arrives at 10.244.", "want the same", "code 0"] {
        ensure!(said.contains(part), "no {part:?} in {said}");
    }
    let nameless = dataplane(lab, &format!("trace --to {address}:80"))?;
    ensure!(nameless.contains("Names are missing") && nameless.contains("one of 3 endpoints"), "{nameless}");

    lab.service("node-1", "dataplane", "stop")?;
    let harm = format!("delete element ip keelson-dataplane services {{ {address} . tcp . 80 }}");
    let outcome = lab.node("node-1", &["nft", &harm]).and_then(|_| Ok((diff()?, trace()?)));
    lab.service("node-1", "dataplane", "start")?;
    let (differs, elsewhere) = outcome?;
    let line = format!("services: {address}:80/TCP (commands/web:http) is missing, wanted pick-cluster-3");
    ensure!(differs.contains(&line) && differs.ends_with("code 4\n"), "{differs}");
    ensure!(elsewhere.contains("want something else"), "{elsewhere}");
    lab.until("the start has repaired it", 10, || Ok(diff()?.ends_with("code 0\n")))
}
