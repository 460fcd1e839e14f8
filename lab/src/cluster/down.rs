//! Removing a lab: every process, mount, namespace, link, route, cgroup and file of it.
//!
//! Each step goes on after the failure of another; what could not be removed is reported together. Removing what is not
//! there is no error, so `down` may be repeated after any kill.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::plan::{Plan, SWITCH};
use super::store::{self, Phase, Places};
use super::{LabError, fabric, status};
use crate::process::Process;
use crate::{cgroup, fsx, machine};

/// How long a machine may take to end its services.
const MACHINE_LIMIT: Duration = Duration::from_secs(15);
/// How long a killed PID 1 may take to be gone: the kernel first ends everything below it.
pub const KILL_LIMIT: Duration = Duration::from_secs(20);

/// Removes the lab `name`. False when there was none.
pub fn run(places: &Places, name: &str) -> Result<bool, LabError> {
    let folder = places.lab(name);
    let owner = folder.display().to_string();
    let record = store::load(&folder)?;
    let number = match &record {
        Some(record) => Some(record.number),
        // The folder may be lost (`cargo clean`) while the lab runs: the host's link still says whose it is.
        None => fabric::find(&owner)?,
    };
    if number.is_none() && !folder.exists() {
        return Ok(false);
    }
    let mut problems = Vec::new();
    if let Some(record) = &record {
        let mut stopping = record.clone();
        stopping.phase = Phase::Stopping;
        note(&mut problems, store::save(&folder, &stopping));
        stop_machines(&status::plan(places, name, record), &mut problems);
    }
    if let Some(number) = number {
        let plan = Plan {
            name: name.to_owned(),
            number,
            folder: folder.clone(),
            images: places.images.clone(),
            nodes: 0,
            control_plane_args: Vec::new(),
        };
        note(&mut problems, cgroup::remove(&plan.group()).map_err(LabError::from));
        note(&mut problems, fabric::remove(number, &owner));
    }
    note(&mut problems, remove_files(&folder));
    if problems.is_empty() {
        return Ok(true);
    }
    Err(LabError::Leftovers { lab: name.to_owned(), problems: problems.join("\n") })
}

fn note(problems: &mut Vec<String>, result: Result<(), LabError>) {
    if let Err(error) = result {
        problems.push(error.to_string());
    }
}

/// Nodes first, so that they can still say goodbye to the API server; the switch last.
fn stop_machines(plan: &Plan, problems: &mut Vec<String>) {
    let mut machines = plan.machines();
    machines.sort_by_key(|(name, _)| match name.as_str() {
        SWITCH => 2,
        super::plan::CONTROL_PLANE => 1,
        _ => 0,
    });
    let nodes = usize::from(plan.nodes);
    let running = |machines: &[(String, std::net::Ipv4Addr)]| -> Vec<Process> {
        machines.iter().filter_map(|(name, _)| machine::running(&plan.machine_folder(name))).collect()
    };
    for group in [&machines[..nodes], &machines[nodes..nodes + 1], &machines[nodes + 1..]] {
        let processes = running(group);
        for process in &processes {
            note(problems, stop(*process));
        }
        for process in processes {
            if !process.wait_gone(MACHINE_LIMIT) {
                let _ = process.signal(Signal::SIGKILL);
                if !process.wait_gone(KILL_LIMIT) {
                    problems.push(format!("process {} does not end", process.pid));
                }
            }
        }
    }
}

fn stop(process: Process) -> Result<(), LabError> {
    process.signal(Signal::SIGTERM).map_err(|errno| LabError::File(fsx::fail("signal", &process.proc())(errno.into())))
}

/// The folder goes last; `lab.json` with it, so that an interrupted removal is still known.
fn remove_files(folder: &Path) -> Result<(), LabError> {
    Ok(fsx::remove_tree(folder)?)
}
