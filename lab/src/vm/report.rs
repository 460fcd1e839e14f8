//! What `lab vm status -o json` tells, in the form of `lab status -o json`: the same tests read both. What systemd does not keep (the
//! output of a service that ended, how long it ran) is left out.

use serde_json::{Value, json};

use super::up::VmLab;
use super::{VmError, channel, power};

/// The services of the lab, and their units.
const UNITS: [(&str, &str); 4] = [
    ("containerd", "containerd.service"),
    ("agent", "keelson-agent.service"),
    ("dataplane", "keelson-dataplane.service"),
    ("control-plane", "keelson-control-plane.service"),
];

/// Each machine, and the services of those that run.
pub fn report(lab: &VmLab) -> Result<Value, VmError> {
    let mut machines = Vec::new();
    for machine in lab.record.machines() {
        let folder = lab.machine_folder(&machine.name);
        let state = if power::running(&folder).is_some() { power::state(&folder)? } else { "off".to_owned() };
        let services = if state == "running" {
            let properties = "Id,LoadState,ActiveState,MainPID,NRestarts,ExecMainStartTimestamp";
            let mut words = vec!["systemctl", "show", "--timestamp=unix", "-p", properties];
            words.extend(UNITS.map(|(_, unit)| unit));
            services(&channel::checked(&folder, &words)?)
        } else {
            Vec::new()
        };
        machines.push(json!({
            "name": machine.name,
            "os": machine.os,
            "address": machine.address,
            "state": state,
            "services": services,
        }));
    }
    Ok(json!({
        "name": lab.name,
        "number": lab.record.number,
        "folder": lab.folder,
        "kubeconfig": lab.kubeconfig(),
        "machines": machines,
    }))
}

/// The services that a machine has, from what `systemctl show` says: a paragraph for each unit.
fn services(text: &str) -> Vec<Value> {
    text.split("\n\n").filter_map(service).collect()
}

fn service(paragraph: &str) -> Option<Value> {
    let value = |name: &str| {
        let mut lines = paragraph.lines().filter_map(|line| line.split_once('='));
        lines.find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    };
    let (name, _) = UNITS.iter().find(|(_, unit)| *unit == value("Id"))?;
    // Every machine knows the names of all; one that is not installed is not its service.
    if value("LoadState") != "loaded" {
        return None;
    }
    let restarts: u64 = value("NRestarts").parse().unwrap_or_default();
    let started = value("ExecMainStartTimestamp").trim_start_matches('@').parse::<u64>().unwrap_or_default();
    // systemd counts only the restarts that nobody asked for; the last was just before the present start.
    let exits = if restarts > 0 { vec![json!({"asked": false, "at_ms": started * 1000})] } else { Vec::new() };
    Some(json!({
        "name": name,
        "state": match value("ActiveState") {
            "active" => "running",
            "inactive" => "stopped",
            other => other,
        },
        "pid": value("MainPID").parse::<i32>().unwrap_or_default(),
        "restarts": restarts,
        "exits": exits,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_those_that_are_installed_and_an_unasked_restart_is_an_exit() {
        let text = "MainPID=7\nNRestarts=0\nId=containerd.service\nLoadState=loaded\nActiveState=active\nExecMainStartTimestamp=@100\n
MainPID=9\nNRestarts=2\nId=keelson-agent.service\nLoadState=loaded\nActiveState=activating\nExecMainStartTimestamp=@200\n
MainPID=0\nNRestarts=0\nId=keelson-control-plane.service\nLoadState=not-found\nActiveState=inactive\nExecMainStartTimestamp=\n";
        let found = services(text);
        assert_eq!(found.len(), 2);
        let common = json!({"name": "containerd", "state": "running", "pid": 7, "restarts": 0, "exits": []});
        assert_eq!(found[0], common);
        assert_eq!((&found[1]["name"], &found[1]["state"]), (&json!("agent"), &json!("activating")));
        assert_eq!(found[1]["exits"], json!([{"asked": false, "at_ms": 200_000}]));
    }
}
