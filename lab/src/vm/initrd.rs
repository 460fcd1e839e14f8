//! The initrd of a guest: busybox, the virtio modules, `lab-guest`, and a script that mounts the disk and hands over to systemd.
//!
//! Everything that makes a plain Debian a guest of the lab (its address, the command channel) is here and goes to `/run`, so that the
//! disk holds a machine as any other. Written by hand in cpio's `newc` format, uncompressed: unpacking costs more than reading.

/// Modules for disk, network, channel and entropy, by name; [`order`] finds what they need.
pub const MODULES: &[&str] = &["virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "virtio-rng"];

/// What runs first. `keelson.address` and `keelson.gateway` come from the kernel's command line.
const INIT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
for module in /modules/*; do
    $b insmod "$module" || echo "initrd: insmod $module failed"
done
for word in $($b cat /proc/cmdline); do
    case $word in
    keelson.address=*) address=${word#*=} ;;
    keelson.gateway=*) gateway=${word#*=} ;;
    esac
done
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 200 ]; do
    $b sleep 0.05
    tries=$((tries + 1))
done
$b ip link set lo up
$b ip addr add "$address" dev eth0
$b ip link set eth0 up
$b ip route add default via "$gateway"
$b mount -t ext4 -o rw /dev/vda /root || echo "initrd: cannot mount the disk"
$b mount -t tmpfs -o mode=755,nosuid,nodev run /root/run
units=/root/run/systemd/system
$b mkdir -p /root/run/keelson $units/basic.target.wants
$b cp /lab-guest /root/run/keelson/lab-guest
$b cat >$units/lab-guest.service <<'END'
[Unit]
Description=Command channel of the lab
DefaultDependencies=no
After=systemd-udevd.service
[Service]
ExecStart=/run/keelson/lab-guest
Restart=always
OOMScoreAdjust=-900
KillMode=process
END
$b ln -s ../lab-guest.service $units/basic.target.wants/lab-guest.service
$b mount -o move /dev /root/dev
$b umount /proc
exec $b switch_root /root /sbin/init
"#;

/// What runs first when it is only to be found out whether a guest runs at all.
const PROBE: &str = "#!/bin/busybox sh\n/bin/busybox echo KEELSON-GUEST-RUNS\n/bin/busybox poweroff -f\n";

/// A file of the archive.
struct Entry<'a> {
    name: &'a str,
    mode: u32,
    data: &'a [u8],
}

/// The archive of a guest. `modules`: name and content, in loading order.
pub fn archive(busybox: &[u8], guest: &[u8], modules: &[(String, Vec<u8>)]) -> Vec<u8> {
    build(INIT, busybox, &[("lab-guest", guest)], modules)
}

/// The archive of the probe.
pub fn probe(busybox: &[u8]) -> Vec<u8> {
    build(PROBE, busybox, &[], &[])
}

fn build(init: &str, busybox: &[u8], programs: &[(&str, &[u8])], modules: &[(String, Vec<u8>)]) -> Vec<u8> {
    const FOLDER: u32 = 0o40755;
    const PROGRAM: u32 = 0o100_755;
    let mut entries: Vec<Entry<'_>> =
        ["bin", "dev", "modules", "proc", "root"].map(|name| Entry { name, mode: FOLDER, data: &[] }).into();
    entries.push(Entry { name: "init", mode: PROGRAM, data: init.as_bytes() });
    entries.push(Entry { name: "bin/busybox", mode: PROGRAM, data: busybox });
    entries.extend(programs.iter().map(|(name, data)| Entry { name, mode: PROGRAM, data }));
    let names: Vec<String> =
        (10..).zip(modules).map(|(place, (name, _)): (u32, _)| format!("modules/{place}-{name}.ko")).collect();
    entries.extend(names.iter().zip(modules).map(|(name, (_, data))| Entry { name, mode: 0o100_644, data }));
    let mut bytes = Vec::new();
    for (number, entry) in (1..).zip(&entries) {
        append(&mut bytes, number, entry);
    }
    append(&mut bytes, 0, &Entry { name: "TRAILER!!!", mode: 0, data: &[] });
    bytes
}

fn append(to: &mut Vec<u8>, number: u32, entry: &Entry<'_>) {
    let (name, size) = (entry.name.len() as u32 + 1, entry.data.len() as u32);
    // Inode, mode, owner, group, links, time, size, device (two), special device (two), name's length, no checksum.
    let fields = [number, entry.mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name, 0];
    to.extend(b"070701");
    for field in fields {
        to.extend(format!("{field:08x}").bytes());
    }
    to.extend(entry.name.bytes());
    to.push(0);
    pad(to);
    to.extend(entry.data);
    pad(to);
}

fn pad(to: &mut Vec<u8>) {
    while !to.len().is_multiple_of(4) {
        to.push(0);
    }
}

/// The files of `wanted` and of what they need, each after what it needs, from the texts of `modules.dep` and `modules.builtin`. Names use
/// `-` and `_` alike.
///
/// # Errors
/// The first module that the kernel does not have.
pub fn order(dependencies: &str, builtin: &str, wanted: &[&str]) -> Result<Vec<String>, String> {
    let mut files = Vec::new();
    for name in wanted {
        let same = |path: &str| module_name(path) == name.replace('-', "_");
        if builtin.lines().any(same) {
            continue;
        }
        let line = dependencies.lines().find(|line| line.split_once(':').is_some_and(|(path, _)| same(path)));
        let (path, needs) = line.and_then(|line| line.split_once(':')).ok_or_else(|| (*name).to_owned())?;
        // depmod lists the nearest first, so the last is needed by all before it.
        let mut all: Vec<&str> = needs.split_whitespace().rev().collect();
        all.push(path);
        for path in all {
            if !files.iter().any(|known| known == path) {
                files.push(path.to_owned());
            }
        }
    }
    Ok(files)
}

/// `kernel/drivers/virtio/virtio-rng.ko.xz` → `virtio_rng`.
pub fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDENCIES: &str = "kernel/drivers/net/virtio_net.ko.xz: kernel/net/core/failover.ko.xz kernel/v/virtio_ring.ko.xz kernel/v/virtio.ko.xz
kernel/net/core/failover.ko.xz:
kernel/v/virtio.ko.xz:
kernel/v/virtio_ring.ko.xz: kernel/v/virtio.ko.xz
kernel/h/virtio-rng.ko.xz: kernel/v/virtio.ko.xz
";

    #[test]
    fn modules_come_after_what_they_need_and_once() {
        let files = order(DEPENDENCIES, "", &["virtio_net", "virtio_rng"]).unwrap();
        let names: Vec<String> = files.iter().map(|file| module_name(file)).collect();
        assert_eq!(names, ["virtio", "virtio_ring", "failover", "virtio_net", "virtio_rng"]);
        assert_eq!(order(DEPENDENCIES, "", &["virtio_blk"]), Err("virtio_blk".to_owned()));
    }

    #[test]
    fn what_the_kernel_has_built_in_is_not_loaded() {
        let builtin = "kernel/drivers/virtio/virtio_pci.ko\n";
        assert_eq!(order(DEPENDENCIES, builtin, &["virtio_pci"]), Ok(Vec::new()));
    }

    #[test]
    fn the_archive_is_aligned_and_ends_with_its_trailer() {
        let bytes = archive(b"busybox", b"guest", &[("virtio".to_owned(), b"module".to_vec())]);
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.starts_with("070701"));
        assert!(text.contains("modules/10-virtio.ko\0"));
        assert!(text.contains("TRAILER!!!\0"));
        // Each header tells the size of its file.
        let at = text.find("bin/busybox\0").unwrap();
        assert_eq!(&text[at - 56..at - 48], "00000007");
    }
}
