//! Whether KVM truly works here. On some hosts `/dev/kvm` opens and a guest then hangs on it, so a guest that only prints a line is
//! tried, with a time limit; the answer is kept until the host boots again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::VmError;
use super::qemu::{self, Accelerator};
use super::{BUSYBOX, initrd};
use crate::fsx;

/// With KVM the probe ends in about a second.
const LIMIT: Duration = Duration::from_secs(15);
/// The file with the answer.
const ANSWER: &str = "accelerator";
/// What the probe's guest prints.
const SIGN: &str = "KEELSON-GUEST-RUNS";
/// Changes with every boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The accelerator to use. `folder` keeps the answer; `kernel` is that of any box.
pub fn choose(folder: &Path, kernel: &Path) -> Result<Accelerator, VmError> {
    let boot = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    let file = folder.join(ANSWER);
    if let Some(known) = std::fs::read_to_string(&file).ok().and_then(|text| parse(&text, boot.trim())) {
        return Ok(known);
    }
    let found =
        if usable(Path::new("/dev/kvm")) && runs(folder, kernel)? { Accelerator::Kvm } else { Accelerator::Tcg };
    let word = if found == Accelerator::Kvm { "kvm" } else { "tcg" };
    fsx::write_atomic(&file, &format!("{word} {}\n", boot.trim()))?;
    Ok(found)
}

fn parse(text: &str, boot: &str) -> Option<Accelerator> {
    match text.trim().split_once(' ')? {
        ("kvm", at) if at == boot => Some(Accelerator::Kvm),
        ("tcg", at) if at == boot => Some(Accelerator::Tcg),
        _ => None,
    }
}

fn usable(device: &Path) -> bool {
    std::fs::OpenOptions::new().read(true).write(true).open(device).is_ok()
}

/// Whether a guest on KVM gets as far as printing a line within the limit.
fn runs(folder: &Path, kernel: &Path) -> Result<bool, VmError> {
    let archive = folder.join("probe.initrd");
    let busybox = std::fs::read(BUSYBOX).map_err(fsx::fail("read", Path::new(BUSYBOX)))?;
    std::fs::write(&archive, initrd::probe(&busybox)).map_err(fsx::fail("write", &archive))?;
    let serial = folder.join("probe.log");
    fsx::remove_tree(&serial)?;
    let mut child = Command::new(qemu::PROGRAM)
        .args(Accelerator::Kvm.arguments())
        .args([
            "-no-user-config",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
            "-m",
            "256",
            "-append",
            "console=ttyS0 quiet panic=-1",
        ])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(&archive)
        .arg("-serial")
        .arg(format!("file:{}", serial.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(VmError::no_qemu)?;
    let end = Instant::now() + LIMIT;
    let mut seen = false;
    while !seen && Instant::now() < end && !matches!(child.try_wait(), Ok(Some(_))) {
        std::thread::sleep(Duration::from_millis(100));
        seen = std::fs::read_to_string(&serial).is_ok_and(|text| text.contains(SIGN));
    }
    seen |= std::fs::read_to_string(&serial).is_ok_and(|text| text.contains(SIGN));
    let _ = child.kill();
    let _ = child.wait();
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_for_the_boot_it_was_found_in() {
        assert_eq!(parse("kvm abc\n", "abc"), Some(Accelerator::Kvm));
        assert_eq!(parse("tcg abc\n", "abc"), Some(Accelerator::Tcg));
        assert_eq!(parse("kvm abc\n", "def"), None);
        assert_eq!(parse("", "abc"), None);
    }
}
