//! Switching one machine off and on: a power cut, and a boot from what lay on its disk.
//!
//! Off means SIGKILL for PID 1: the kernel ends every process of the machine, and with them go its mounts, namespaces and
//! links. What no reboot would bring back (cgroups) is removed here; the machine's folders stay as they were at that
//! moment.

use std::net::Ipv4Addr;

use nix::sys::signal::Signal;

use super::plan::{CONTROL_PLANE, Plan, SWITCH};
use super::store::{self, Places};
use super::{LabError, down, fabric, node, status, up};
use crate::process::Process;
use crate::{cgroup, fsx, machine};

/// Programs of a node that are started after containerd, as far as the lab has them.
const NODE_PROGRAMS: &[&str] = &["agent", "dataplane"];

fn address(plan: &Plan, machine: &str) -> Result<Ipv4Addr, LabError> {
    let machines = plan.machines();
    let found = machines.iter().find(|(name, _)| name == machine);
    found.map(|(_, address)| *address).ok_or_else(|| LabError::NoMachine {
        lab: plan.name.clone(),
        machine: machine.to_owned(),
        known: machines.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(", "),
    })
}

fn switch(plan: &Plan) -> Result<Process, LabError> {
    machine::running(&plan.machine_folder(SWITCH)).ok_or_else(|| LabError::NoSwitch(plan.name.clone()))
}

/// The plan of an existing lab and the address of a machine of it that may be switched.
fn chosen(places: &Places, name: &str, machine: &str) -> Result<(Plan, Ipv4Addr), LabError> {
    let plan = status::existing(places, name)?;
    if machine == SWITCH {
        return Err(LabError::Switch(machine.to_owned()));
    }
    let address = address(&plan, machine)?;
    Ok((plan, address))
}

/// Cuts a machine's power. One that is off already is no error.
pub fn off(places: &Places, name: &str, machine: &str) -> Result<(), LabError> {
    let _lock = store::lock(places, name)?;
    let (plan, address) = chosen(places, name, machine)?;
    if let Some(process) = machine::running(&plan.machine_folder(machine)) {
        process
            .signal(Signal::SIGKILL)
            .map_err(|errno| LabError::File(fsx::fail("signal", &process.proc())(errno.into())))?;
        if !process.wait_gone(down::KILL_LIMIT) {
            return Err(LabError::Undead { machine: machine.to_owned(), pid: process.pid });
        }
    }
    cgroup::remove(&plan.group().join(machine))?;
    fabric::unplug(switch(&plan)?, address)
}

/// Boots a machine that is off: its link, then its services in order. One that runs is no error.
pub fn on(places: &Places, name: &str, machine: &str) -> Result<(), LabError> {
    let _lock = store::lock(places, name)?;
    let (plan, address) = chosen(places, name, machine)?;
    up::joined_machine(&plan, machine, switch(&plan)?, address)?;
    if machine == CONTROL_PLANE {
        return node::start(&plan, CONTROL_PLANE, CONTROL_PLANE);
    }
    node::start_containerd(&plan, machine)?;
    for program in NODE_PROGRAMS.iter().filter(|program| plan.folder.join("bin").join(program).exists()) {
        node::start(&plan, machine, program)?;
    }
    Ok(())
}
