//! How a lab is: its machines, their services, and what became of those that ended.

use std::fmt::Write;

use serde::Serialize;

use super::LabError;
use super::plan::{Plan, SWITCH};
use super::store::{self, Phase, Places, Record};
use crate::machine::control::{self, Reply, Request, ServiceStatus};
use crate::machine::service::{Ended, Exit};
use crate::{fsx, machine};

/// A lab, for people (as text) and tests (as JSON).
#[derive(Debug, Serialize)]
pub struct LabStatus {
    /// Its name.
    pub name: String,
    /// How far `up` came.
    pub phase: Phase,
    /// What `up` did last.
    pub step: String,
    /// Its number.
    pub number: u8,
    /// Its folder.
    pub folder: String,
    /// The administrator's kubeconfig.
    pub kubeconfig: String,
    /// Where the API server is.
    pub server: String,
    /// Its machines in start order.
    pub machines: Vec<MachineStatus>,
}

/// One machine.
#[derive(Debug, Serialize)]
pub struct MachineStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// Pid of its PID 1 on the host, 0 when it does not run.
    pub pid: i32,
    /// Its services; of a machine that has died, as they were last.
    pub services: Vec<ServiceStatus>,
}

impl LabStatus {
    /// Whether all is as it should be.
    pub fn healthy(&self) -> bool {
        let fine = |machine: &MachineStatus| {
            machine.pid != 0 && machine.services.iter().all(|service| service.state == "running")
        };
        self.phase == Phase::Ready && self.machines.iter().all(fine)
    }
}

/// The plan of an existing lab.
pub fn plan(places: &Places, name: &str, record: &Record) -> Plan {
    Plan {
        name: name.to_owned(),
        number: record.number,
        folder: places.lab(name),
        images: places.images.clone(),
        nodes: record.nodes,
        control_plane_args: record.control_plane_args.clone(),
    }
}

/// The plan of the lab `name`, which must exist.
pub fn existing(places: &Places, name: &str) -> Result<Plan, LabError> {
    let record = store::load(&places.lab(name))?.ok_or_else(|| LabError::Absent(name.to_owned()))?;
    Ok(plan(places, name, &record))
}

/// Asks every machine.
pub fn gather(places: &Places, name: &str) -> Result<LabStatus, LabError> {
    let record = store::load(&places.lab(name))?.ok_or_else(|| LabError::Absent(name.to_owned()))?;
    let plan = plan(places, name, &record);
    let machines = plan
        .machines()
        .into_iter()
        .map(|(machine, address)| {
            let folder = plan.machine_folder(&machine);
            let pid = machine::running(&folder).map_or(0, |process| process.pid);
            let services = if pid == 0 { last_known(&folder) } else { asked(&folder) };
            MachineStatus { name: machine, address: address.to_string(), pid, services }
        })
        .collect();
    Ok(LabStatus {
        name: name.to_owned(),
        phase: record.phase,
        step: record.step,
        number: record.number,
        folder: plan.folder.display().to_string(),
        kubeconfig: plan.kubeconfig().display().to_string(),
        server: plan.server(),
        machines,
    })
}

fn asked(folder: &std::path::Path) -> Vec<ServiceStatus> {
    control::ask(&folder.join("run"), &Request::Status).map_or_else(|_| last_known(folder), |reply| reply.services)
}

/// What PID 1 wrote down before it died. Nothing of that runs any more.
fn last_known(folder: &std::path::Path) -> Vec<ServiceStatus> {
    let text = fsx::read(&folder.join("run/state.json")).unwrap_or_default();
    let mut services = serde_json::from_str::<Reply>(&text).map(|reply| reply.services).unwrap_or_default();
    for service in &mut services {
        service.state = "gone".to_owned();
        service.pid = 0;
    }
    services
}

/// The status as text.
pub fn render(status: &LabStatus) -> String {
    let mut text = String::new();
    let phase = match status.phase {
        Phase::Ready if status.healthy() => "ready".to_owned(),
        Phase::Ready => "up, but not whole: `./dev up` repairs it".to_owned(),
        Phase::Starting => format!("half made (at: {}): `./dev up` goes on, `./dev down` cleans up", status.step),
        Phase::Stopping => "half removed: `./dev down` goes on".to_owned(),
    };
    let _ = writeln!(
        text,
        "lab {} is {phase}\nAPI server {}   kubeconfig {}\n",
        status.name, status.server, status.kubeconfig
    );
    let _ = writeln!(
        text,
        "{:<15} {:<14} {:<14} {:<10} {:>7} {:>8}  LAST END",
        "MACHINE", "ADDRESS", "SERVICE", "STATE", "PID", "RESTARTS"
    );
    for machine in &status.machines {
        if machine.services.is_empty() {
            let state = match (machine.pid, machine.name.as_str()) {
                (0, _) => "gone",
                (_, SWITCH) => "running",
                _ => "starting",
            };
            let _ = writeln!(
                text,
                "{:<15} {:<14} {:<14} {state:<10} {:>7}",
                machine.name, machine.address, "-", machine.pid
            );
        }
        for service in &machine.services {
            let last = service.exits.last().map(describe_exit).unwrap_or_default();
            let _ = writeln!(
                text,
                "{:<15} {:<14} {:<14} {:<10} {:>7} {:>8}  {last}",
                machine.name, machine.address, service.name, service.state, service.pid, service.restarts
            );
        }
    }
    for (machine, service) in troubled(status) {
        if let Some(exit) = service.exits.iter().rev().find(|exit| !exit.asked) {
            let _ = writeln!(text, "\n{} on {}: {}", service.name, machine.name, describe_exit(exit));
            for line in &exit.last_lines {
                let _ = writeln!(text, "    {line}");
            }
        }
    }
    text
}

fn troubled(status: &LabStatus) -> impl Iterator<Item = (&MachineStatus, &ServiceStatus)> {
    let all = status.machines.iter().flat_map(|machine| machine.services.iter().map(move |service| (machine, service)));
    all.filter(|(_, service)| service.state != "running")
}

/// How a service ended, in words.
pub fn describe_exit(exit: &Exit) -> String {
    let how = match exit.ended {
        Ended::Code(127) if exit.pid == 0 => "could not be started".to_owned(),
        Ended::Code(code) => format!("exited with code {code}"),
        Ended::Signal(signal) => {
            let name = nix::sys::signal::Signal::try_from(signal).map_or("unknown", nix::sys::signal::Signal::as_str);
            format!("was ended by {name}")
        }
    };
    let asked = if exit.asked { " (asked to)" } else { "" };
    format!("{how}{asked} after {:.1} s", std::time::Duration::from_millis(exit.ran_ms).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_in_words() {
        let exit =
            Exit { at_ms: 0, pid: 4, ended: Ended::Signal(9), asked: false, ran_ms: 1500, last_lines: Vec::new() };
        assert_eq!(describe_exit(&exit), "was ended by SIGKILL after 1.5 s");
    }
}
