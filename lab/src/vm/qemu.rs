//! The command line of QEMU for a guest. Pure.
//!
//! Paths other than the box's are relative to the machine's folder, which is QEMU's working folder: a socket's path may have 107 bytes only.

use std::path::Path;

use super::plan::{self, Machine};

/// The program.
pub const PROGRAM: &str = "qemu-system-x86_64";
/// Ports of the command channel: as many commands and connections at once.
pub const PORTS: usize = 12;
/// Socket of QEMU's monitor.
pub const MONITOR: &str = "monitor";
/// What the guest's kernel and systemd print.
pub const SERIAL: &str = "serial.log";
/// QEMU's own process number.
pub const PID: &str = "qemu.pid";
/// The overlay with everything that the machine has written.
pub const DISK: &str = "disk.qcow2";
/// A tar archive with everything to set a machine up from, as the second drive: a hundred times faster than the channel. In the lab's folder.
pub const BUNDLE: &str = "bundle.tar";
/// The initrd.
pub const INITRD: &str = "initrd";
/// Translated code that one guest may keep, in MiB. QEMU's own choice is a gigabyte.
const TRANSLATION_CACHE: u32 = 192;

/// What makes a translated guest quicker: no defences against a processor that is not there, a clock that is read without QEMU (its time
/// stamp counter is one for all processors, though the kernel doubts it), no clearing of memory in advance, no watching for lockups.
const SPEED: &str = "mitigations=off tsc=reliable init_on_alloc=0 audit=0 nowatchdog";

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor.
    Kvm,
    /// QEMU's translator: on every machine, and 10 to 20 times slower.
    Tcg,
}

impl Accelerator {
    /// QEMU's arguments.
    pub fn arguments(self) -> Vec<String> {
        match self {
            Self::Kvm => vec!["-accel".to_owned(), "kvm".to_owned(), "-cpu".to_owned(), "host".to_owned()],
            Self::Tcg => {
                let accel = format!("tcg,thread=multi,tb-size={TRANSLATION_CACHE}");
                // Everything that this translator knows (`max`) is slower: wide registers are helpers' work, one lane after the other (40 MB
                // through sha256sum 8.0 s of the host's time, 2.8 s with this one; containerd's start 3.0 s, 2.5 s), and five levels of
                // page tables are walked in software. A model by name stays the same with another QEMU, too.
                vec!["-accel".to_owned(), accel, "-cpu".to_owned(), "Nehalem".to_owned()]
            }
        }
    }
}

/// Socket of a port.
pub fn port(number: usize) -> String {
    format!("port-{number}")
}

/// QEMU's arguments for a machine of lab `number`.
pub fn arguments(machine: &Machine, number: u8, kernel: &Path, accelerator: Accelerator) -> Vec<String> {
    // Translated processors that wait for each other (loading a module takes interrupts to all of them) wait for the host's scheduler.
    let cpus = if accelerator == Accelerator::Tcg { 1 } else { machine.cpus };
    let (name, memory) = (&machine.name, machine.memory);
    let mut all = words("-no-user-config -nodefaults -display none -machine pc -daemonize");
    all.extend(accelerator.arguments());
    all.extend(words(&format!("-name {name} -m {memory} -smp {cpus} -pidfile {PID} -initrd {INITRD}")));
    all.extend(["-kernel".to_owned(), kernel.display().to_string()]);
    all.extend(["-append".to_owned(), kernel_line(machine, number)]);
    all.extend(words(&format!("-chardev file,id=serial,path={SERIAL},append=on -serial chardev:serial")));
    all.extend(words(&format!("-qmp unix:{MONITOR},server=on,wait=off")));
    all.extend(words(&format!("-drive file={DISK},format=qcow2,if=none,id=disk,discard=unmap")));
    all.extend(words("-device virtio-blk-pci,drive=disk -device virtio-rng-pci"));
    all.extend(words(&format!("-drive file=../{BUNDLE},format=raw,if=none,id=bundle,readonly=on")));
    all.extend(words("-device virtio-blk-pci,drive=bundle"));
    let (group, port_number, mac) = (plan::group(number), plan::port(number), machine.mac(number));
    all.extend(words(&format!("-netdev socket,id=net,mcast={group}:{port_number},localaddr=127.0.0.1")));
    all.extend(words(&format!("-device virtio-net-pci,netdev=net,mac={mac}")));
    all.extend(words(&format!("-device virtio-serial-pci,max_ports={}", PORTS + 1)));
    for number in 0..PORTS {
        let path = port(number);
        all.extend(words(&format!("-chardev socket,id=port{number},path={path},server=on,wait=off")));
        all.extend(words(&format!("-device virtserialport,chardev=port{number},name=keelson.{number}")));
    }
    all
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(ToOwned::to_owned).collect()
}

fn kernel_line(machine: &Machine, number: u8) -> String {
    format!(
        "console=ttyS0 quiet rw root=/dev/vda net.ifnames=0 panic=-1 {SPEED} systemd.hostname={} keelson.address={}/24 keelson.gateway={}",
        machine.name,
        machine.address,
        plan::gateway(number),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::plan::Record;
    use crate::vm::recipe::Os;

    #[test]
    fn a_guest_has_its_own_disk_address_and_channel_and_nothing_of_the_host() {
        let machine = Record::new(2, 1, &[Os::Debian12], false).machines().remove(1);
        let line = arguments(&machine, 2, Path::new("/box/vmlinuz"), Accelerator::Tcg).join(" ");
        assert!(line.contains("-netdev socket,id=net,mcast=239.192.90.2:17702,localaddr=127.0.0.1"), "{line}");
        assert!(line.contains("keelson.address=10.90.2.11/24"), "{line}");
        assert!(line.contains("name=keelson.11") && !line.contains("name=keelson.12"), "{line}");
        assert!(line.contains("-kernel /box/vmlinuz"), "{line}");
        for other in ["tap", "bridge", "netdev user"] {
            assert!(!line.contains(other), "{line}");
        }
    }

    #[test]
    fn the_accelerator_is_chosen_once() {
        assert_eq!(Accelerator::Kvm.arguments(), ["-accel", "kvm", "-cpu", "host"]);
        assert!(Accelerator::Tcg.arguments()[1].starts_with("tcg,"));
    }
}
