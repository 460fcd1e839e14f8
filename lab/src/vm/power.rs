//! The process of a guest: started, looked at, paused, its power cut.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::boxes::BaseImage;
use super::plan::Machine;
use super::qemu::{self, Accelerator};
use super::{VmError, channel, initrd, qcow2};
use crate::fsx;
use crate::process::Process;

/// How long a killed QEMU may take to go.
const GONE: Duration = Duration::from_secs(10);
/// How long QEMU's monitor may take to answer.
const MONITOR_LIMIT: Duration = Duration::from_secs(10);
/// The process by number and start time, so that a reused number is not taken for it.
const PROCESS: &str = "process.json";

/// The guest's QEMU, if it runs.
pub fn running(folder: &Path) -> Option<Process> {
    let text = fs::read_to_string(folder.join(PROCESS)).ok()?;
    serde_json::from_str::<Process>(&text).ok().filter(|process| process.alive())
}

/// Starts the machine's QEMU; the first time its disk is made. False when it ran already.
pub fn on(
    folder: &Path,
    machine: &Machine,
    number: u8,
    base: &BaseImage,
    programs: (&[u8], &[u8]),
    accelerator: Accelerator,
) -> Result<bool, VmError> {
    if running(folder).is_some() {
        return Ok(false);
    }
    fsx::create_dir(folder)?;
    let disk = folder.join(qemu::DISK);
    if !disk.exists() {
        let raw = base.disk();
        let size = fs::metadata(&raw).map_err(fsx::fail("look at", &raw))?.len();
        let header = qcow2::overlay(size, &raw.display().to_string());
        base.note(folder)?;
        fs::write(&disk, header).map_err(fsx::fail("write", &disk))?;
    }
    let (busybox, guest) = programs;
    let archive = folder.join(qemu::INITRD);
    fs::write(&archive, initrd::archive(busybox, guest, &base.modules()?)).map_err(fsx::fail("write", &archive))?;
    let result = Command::new(qemu::PROGRAM)
        .args(qemu::arguments(machine, number, &base.kernel(), accelerator))
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .map_err(VmError::no_qemu)?;
    if !result.status.success() {
        return Err(VmError::Command {
            command: format!("{} for {}", qemu::PROGRAM, machine.name),
            status: result.status,
            output: String::from_utf8_lossy(&result.stderr).trim().to_owned(),
            hint: "a message about an address in use means that another lab has the same number",
        });
    }
    let pid = fsx::read(&folder.join(qemu::PID))?.trim().parse().ok().and_then(Process::of);
    let process =
        pid.ok_or_else(|| VmError::Died { machine: machine.name.clone(), serial: folder.join(qemu::SERIAL) })?;
    fsx::write_atomic(&folder.join(PROCESS), &serde_json::to_string(&process).unwrap_or_default())?;
    Ok(true)
}

/// Cuts the power: QEMU is killed, and what the guest has not flushed to its disk is lost. False when it was off.
pub fn off(folder: &Path) -> Result<bool, VmError> {
    let Some(process) = running(folder) else { return Ok(false) };
    process.signal(Signal::SIGKILL).map_err(|error| VmError::Local(error.into()))?;
    if !process.wait_gone(GONE) {
        return Err(VmError::Undead { folder: folder.to_path_buf(), pid: process.pid });
    }
    Ok(true)
}

/// Stops the guest's processors (its clock goes on when it is resumed), or lets them run again.
pub fn pause(folder: &Path, paused: bool) -> Result<(), VmError> {
    monitor(folder, if paused { "stop" } else { "cont" }).map(drop)
}

/// `running`, `paused` … as QEMU says it.
pub fn state(folder: &Path) -> Result<String, VmError> {
    let answer = monitor(folder, "query-status")?;
    Ok(answer["status"].as_str().unwrap_or("unknown").to_owned())
}

/// One command to QEMU's monitor; its answer.
fn monitor(folder: &Path, command: &str) -> Result<Value, VmError> {
    let failed = |source| VmError::Monitor { folder: folder.to_path_buf(), source };
    let mut stream = channel::connect(folder, qemu::MONITOR).map_err(failed)?;
    stream.set_read_timeout(Some(MONITOR_LIMIT)).map_err(failed)?;
    let mut lines = BufReader::new(stream.try_clone().map_err(failed)?).lines();
    for request in ["qmp_capabilities", command] {
        writeln!(stream, "{}", json!({ "execute": request })).map_err(failed)?;
        let answer = answer(&mut lines).map_err(failed)?;
        if request == command {
            return Ok(answer);
        }
    }
    Ok(Value::Null)
}

/// The next answer; greetings and events are passed over.
fn answer(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> std::io::Result<Value> {
    for line in lines {
        let value: Value = serde_json::from_str(&line?).unwrap_or_default();
        if let Some(result) = value.get("return") {
            return Ok(result.clone());
        }
        if let Some(error) = value.get("error") {
            return Err(std::io::Error::other(error.to_string()));
        }
    }
    Err(std::io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_told_from_greetings_events_and_errors() {
        let lines = |list: &[&str]| list.iter().map(|line| Ok((*line).to_owned())).collect::<Vec<_>>().into_iter();
        let mut good = lines(&[r#"{"QMP": {}}"#, r#"{"event": "STOP"}"#, r#"{"return": {"status": "paused"}}"#]);
        assert_eq!(answer(&mut good).unwrap()["status"], "paused");
        assert!(answer(&mut lines(&[r#"{"error": {"desc": "no"}}"#])).unwrap_err().to_string().contains("no"));
        assert!(answer(&mut lines(&[])).is_err());
    }
}
