//! What systemd does with our programs: restarts under traffic, the watchdog.

use anyhow::{Result, ensure};
use keelson_tests::lab::Lab;
use serde_json::Value;

use super::{ASK, NODES, pinned, pod, ready, rolled_out, servers_on_both, service_answers, shell};

/// Requests through a Service go on while agent and dataplane are restarted, and the pod is not touched.
pub fn restart_under_traffic(lab: &Lab) -> Result<()> {
    let space = lab.space("restart")?;
    servers_on_both(&space)?;
    for node in NODES {
        let app = format!("web-{node}");
        rolled_out(&space, &app)?;
        space.endpoints(&app, 1)?;
        let before = pod(&space, &app)?;
        let address = service_answers(&space, node, &before, &app)?;
        // Asks until the services have been restarted three times, and counts.
        let script = format!(
            "{ASK}
            (for i in 1 2 3; do systemctl restart keelson-agent keelson-dataplane || touch /run/failed; done; touch /run/done) &
            good=0 refused=0 wrong=0
            while [ ! -e /run/done ]; do
                if ! said=$(ask {address} 80 /hostname 2>&1); then refused=$((refused + 1))
                elif [ \"$said\" = {name} ]; then good=$((good + 1)); else wrong=$((wrong + 1)); fi
            done
            [ ! -e /run/failed ] || echo restart-failed
            rm -f /run/done /run/failed
            echo $good $refused $wrong",
            name = before["metadata"]["name"].as_str().unwrap_or_default(),
        );
        let since = ready_since(lab, node)?;
        let said = shell(lab, node, &script)?;
        let counts: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        // A node that is silent for too long is taken for lost, and its pods out of Services: no fault, but nothing is shown then.
        let kept = ready_since(lab, node)? == since;
        ensure!(
            kept && counts.len() == 3 && counts[0] > 10 && counts[1..] == [0, 0],
            "{node}: answers, refusals and wrong answers: {said}; Ready all the time: {kept}"
        );
        println!("\n  {node}: {} answers during three restarts, none missing", counts[0]);
        same_container(&before, &pod(&space, &app)?)?;
        ensure!(ready(lab, node)? == "True", "{node} is not Ready");
    }
    Ok(())
}

/// Since when a node's Ready condition is as it is.
fn ready_since(lab: &Lab, node: &str) -> Result<String> {
    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].lastTransitionTime}"#;
    lab.kubectl(&["get", "node", node, "-o", path])
}

/// SIGSTOP freezes each program in turn: systemd kills it when its signs of life are missing and starts it again; pods stay.
pub fn watchdog(lab: &Lab) -> Result<()> {
    let space = lab.space("watchdog")?;
    space.apply(&pinned("kept", "node-2"))?;
    rolled_out(&space, "kept")?;
    let before = pod(&space, "kept")?;
    for (machine, service) in
        [("node-2", "keelson-agent"), ("node-2", "keelson-dataplane"), ("control-plane", "keelson-control-plane")]
    {
        // The units' limit is a minute or more; a shorter one from a drop-in shows the same.
        let folder = format!("/run/systemd/system/{service}.service.d");
        let script = format!(
            "set -e
            mkdir -p {folder}; printf '[Service]\\nWatchdogSec=15\\n' >{folder}/short.conf
            systemctl daemon-reload; systemctl restart {service}
            pid=$(systemctl show -P MainPID {service}); kill -STOP $pid
            for i in $(seq 120); do
                now=$(systemctl show -P MainPID {service})
                [ $now != 0 ] && [ $now != $pid ] && systemctl -q is-active {service} && break
                sleep 0.5
            done
            journalctl -u {service} --no-pager -o cat -q -b | grep -c 'Watchdog timeout'
            systemctl show -P NRestarts {service}
            rm -r {folder}; systemctl daemon-reload; systemctl restart {service}"
        );
        let said = shell(lab, machine, &script)?;
        let counts: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        ensure!(
            counts.len() == 2 && counts.iter().all(|count| *count >= 1),
            "{service}: timeouts and restarts: {said}"
        );
    }
    lab.until("node-2 is Ready", 120, || Ok(ready(lab, "node-2")? == "True"))?;
    same_container(&before, &pod(&space, "kept")?)
}

fn same_container(before: &Value, after: &Value) -> Result<()> {
    let container = "/status/containerStatuses/0/containerID";
    ensure!(before.pointer(container) == after.pointer(container), "the container was touched");
    Ok(())
}
