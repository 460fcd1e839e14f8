//! Base images ("boxes"): one folder for each, `OS-RECIPE-CONTENT`, with the disk, the kernel, the modules of the initrd, and the list of
//! packages. A box under its final name is complete and never changes: overlays of machines refer to it.

use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use super::recipe::{self, Mirrors, Os, Recipe};
use super::{VmError, initrd};
use crate::fsx;

/// The raw image.
const DISK: &str = "disk.raw";
/// The kernel.
const KERNEL: &str = "vmlinuz";
/// The modules that the initrd loads, named by their order.
const MODULES: &str = "modules";
/// `NAME VERSION` of every package.
const LIST: &str = "packages";

/// File in a machine's folder with the folder of its box: the overlay needs that very disk, and its modules that kernel, also when the recipe
/// has changed since.
const OF_MACHINE: &str = "box";

/// The box that a machine was made with, if it has been.
pub fn of_machine(folder: &Path) -> Option<BaseImage> {
    let path = PathBuf::from(fs::read_to_string(folder.join(OF_MACHINE)).ok()?);
    path.is_dir().then_some(BaseImage { folder: path, made: false })
}

/// A complete box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseImage {
    /// Its folder.
    pub folder: PathBuf,
    /// False when it was there already.
    pub made: bool,
}

impl BaseImage {
    /// Notes that the machine with this folder is made with it.
    pub fn note(&self, machine: &Path) -> Result<(), VmError> {
        Ok(fsx::write_atomic(&machine.join(OF_MACHINE), &self.folder.display().to_string())?)
    }

    /// The kernel.
    pub fn kernel(&self) -> PathBuf {
        self.folder.join(KERNEL)
    }

    /// The raw disk.
    pub fn disk(&self) -> PathBuf {
        self.folder.join(DISK)
    }

    /// Name and content of the initrd's modules, in loading order.
    pub fn modules(&self) -> Result<Vec<(String, Vec<u8>)>, VmError> {
        let folder = self.folder.join(MODULES);
        let mut files: Vec<PathBuf> =
            fs::read_dir(&folder).map_err(fsx::fail("list", &folder))?.flatten().map(|entry| entry.path()).collect();
        files.sort();
        let read = |path: &PathBuf| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let name = name.split_once('-').map_or_else(|| name.to_string(), |(_, name)| name.to_owned());
            Ok((name, fs::read(path).map_err(fsx::fail("read", path))?))
        };
        files.iter().map(read).collect()
    }

    /// Bytes on the host's disk.
    pub fn size(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(self.disk()).map_or(0, |data| data.blocks() * 512)
    }
}

/// A box of each of these distributions, at the same time: nearly all of it is one processor's work. With how long each took.
pub fn get_all(root: &Path, list: &[Os], fresh: bool) -> Result<Vec<(Os, BaseImage, Duration)>, VmError> {
    let make = |os: Os| {
        let begun = Instant::now();
        get(root, os, fresh).map(|base| (os, base, begun.elapsed()))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = list.iter().map(|os| scope.spawn(move || make(*os))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// The box of a distribution: one that is there, or a new one. With `fresh`, one with the packages that the mirror has now.
pub fn get(root: &Path, os: Os, fresh: bool) -> Result<BaseImage, VmError> {
    let boxes = root.join("boxes");
    fsx::create_dir(&boxes)?;
    let _lock = lock(&boxes.join(format!(".{os}.lock")))?;
    let recipe = Recipe::new(os, &host_mirrors()?);
    if !fresh && let Some(folder) = newest(&boxes, &recipe.key()) {
        return Ok(BaseImage { folder, made: false });
    }
    need("mmdebstrap", "mmdebstrap")?;
    need("mke2fs", "e2fsprogs")?;
    let named = |packages: &str| boxes.join(format!("{}-{}", recipe.key(), recipe::content(packages)));
    if fresh {
        let folder = named(&versions(&recipe)?);
        if folder.is_dir() {
            return Ok(BaseImage { folder, made: false });
        }
    }
    let work = boxes.join(format!(".{os}.new"));
    fsx::remove_tree(&work)?;
    fsx::create_dir(&work.join(MODULES))?;
    let packages = make(&recipe, &work)?;
    fsx::write(&work.join(LIST), &packages)?;
    let folder = named(&packages);
    // Overlays may refer to a box of this content that is there already.
    if folder.is_dir() {
        fsx::remove_tree(&work)?;
        return Ok(BaseImage { folder, made: false });
    }
    fs::rename(&work, &folder).map_err(fsx::fail("name", &folder))?;
    Ok(BaseImage { folder, made: true })
}

fn lock(path: &Path) -> Result<Flock<fs::File>, VmError> {
    let file = fs::File::create(path).map_err(fsx::fail("open", path))?;
    // Somebody else may be making the same box: then it is there afterwards.
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| fsx::fail("lock", path)(error.into()).into())
}

fn newest(boxes: &Path, key: &str) -> Option<PathBuf> {
    let prefix = format!("{key}-");
    let mut found: Vec<_> = fs::read_dir(boxes)
        .ok()?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    found.sort();
    found.pop().map(|(_, path)| path)
}

/// Where this host gets its packages.
fn host_mirrors() -> Result<Mirrors, VmError> {
    let folder = Path::new("/etc/apt/sources.list.d");
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.insert(0, "/etc/apt/sources.list".into());
    let texts: Vec<String> = files.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    recipe::mirrors(&texts).ok_or(VmError::NoMirror)
}

fn need(program: &'static str, package: &'static str) -> Result<(), VmError> {
    if std::env::split_paths(&super::path()).map(|folder| folder.join(program)).any(|path| path.is_file()) {
        return Ok(());
    }
    Err(VmError::Missing { program, package })
}

/// The packages and versions that an image would get now.
fn versions(recipe: &Recipe) -> Result<String, VmError> {
    let mut command = Command::new("mmdebstrap");
    command.args(["--simulate", "--verbose"]).args(recipe.arguments(Path::new("/dev/null")));
    let output = output(&mut command, "look at the `deb` lines of /etc/apt and at the network")?;
    Ok(recipe::simulated(&output))
}

/// Runs a command; its output, standard error included.
fn output(command: &mut Command, hint: &'static str) -> Result<String, VmError> {
    let result = run(command, hint)?;
    let mut text = String::from_utf8_lossy(&result.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&result.stderr));
    Ok(text)
}

/// Runs a command that must succeed.
fn run(command: &mut Command, hint: &'static str) -> Result<Output, VmError> {
    let line = command.get_program().to_string_lossy().into_owned();
    // The kernel's package would otherwise make an initrd that nobody uses.
    let result = command.env("INITRD", "No").env("PATH", super::path()).stdin(Stdio::null()).output();
    let result = result.map_err(|source| VmError::Spawn { program: line.clone(), source })?;
    if result.status.success() {
        return Ok(result);
    }
    let text = [result.stdout, result.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(12)..].join("\n");
    Err(VmError::Command { command: line, status: result.status, output: tail, hint })
}

/// Makes everything but the list of packages, which is given.
fn make(recipe: &Recipe, work: &Path) -> Result<String, VmError> {
    let system = work.join("system");
    let mut command = Command::new("mmdebstrap");
    command.arg("--mode=root").args(recipe.arguments(&system));
    output(&mut command, "look at the network, and for room on the disk")?;
    let packages = recipe::installed(&fsx::read(&system.join("var/lib/dpkg/status"))?);
    settle(&system)?;
    let (kernel, release) = kernel(&system)?;
    fs::copy(&kernel, work.join(KERNEL)).map_err(fsx::fail("copy", &kernel))?;
    modules(&system.join("usr/lib/modules").join(&release), &work.join(MODULES))?;
    let mut format = Command::new("mke2fs");
    format.args(["-q", "-t", "ext4", "-L", "root", "-J", "size=32", "-m", "1", "-d"]);
    format.arg(&system).arg(work.join(DISK)).arg(recipe::DISK);
    output(&mut format, "look for room on the disk")?;
    fsx::remove_tree(&system)?;
    Ok(packages)
}

/// What an installer would ask: units that are off, journals that are kept, a machine id that each machine makes at its first boot.
fn settle(system: &Path) -> Result<(), VmError> {
    let units = system.join("etc/systemd/system");
    for unit in recipe::MASKED {
        let path = units.join(unit);
        fsx::remove_tree(&path)?;
        std::os::unix::fs::symlink("/dev/null", &path).map_err(fsx::fail("make link", &path))?;
    }
    fsx::create_dir(&system.join("var/log/journal"))?;
    fsx::write(&system.join("etc/machine-id"), "")?;
    fsx::write(&system.join("etc/fstab"), "/dev/vda / ext4 rw,relatime 0 1\n")?;
    fsx::write(&system.join("etc/hosts"), "127.0.0.1 localhost\n::1 localhost\n")?;
    fsx::write(&system.join("etc/resolv.conf"), "# A guest of the lab has no name server.\n")?;
    // Files as new as /usr: what systemd would make of a new /usr at the first boot, the packages have made already.
    let usr = fs::metadata(system.join("usr")).and_then(|data| data.modified());
    let usr = usr.map_err(fsx::fail("look at", system))?;
    for path in ["etc/.updated", "var/.updated"] {
        let path = system.join(path);
        let file = fs::File::create(&path).map_err(fsx::fail("write", &path))?;
        file.set_modified(usr).map_err(fsx::fail("set the time of", &path))?;
    }
    // A hostname of the image would win over the kernel's command line.
    fsx::remove_tree(&system.join("etc/hostname"))?;
    Ok(())
}

/// The kernel's file and its release.
fn kernel(system: &Path) -> Result<(PathBuf, String), VmError> {
    let boot = system.join("boot");
    let found = fs::read_dir(&boot).map_err(fsx::fail("list", &boot))?.flatten().find_map(|entry| {
        let release = entry.file_name().to_str()?.strip_prefix("vmlinuz-")?.to_owned();
        Some((entry.path(), release))
    });
    found.ok_or(VmError::NoKernel(boot))
}

fn modules(from: &Path, to: &Path) -> Result<(), VmError> {
    let dependencies = fsx::read(&from.join("modules.dep"))?;
    let builtin = fsx::read(&from.join("modules.builtin"))?;
    let files = initrd::order(&dependencies, &builtin, initrd::MODULES).map_err(VmError::NoModule)?;
    for (place, file) in (10_u32..).zip(&files) {
        let path = from.join(file);
        let target = to.join(format!("{place}-{}.ko", initrd::module_name(file)));
        if file.ends_with(".xz") {
            let bytes = unpacked(&path)?;
            fs::write(&target, bytes).map_err(fsx::fail("write", &target))?;
        } else {
            fs::copy(&path, &target).map_err(fsx::fail("copy", &path))?;
        }
    }
    Ok(())
}

/// The content of an xz file.
fn unpacked(path: &Path) -> Result<Vec<u8>, VmError> {
    need("xz", "xz-utils")?;
    let hint = "the packages' files are damaged, or the disk is full: `lab vm box --fresh` makes the image anew";
    Ok(run(Command::new("xz").arg("-dc").arg(path), hint)?.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_keeps_the_box_it_was_made_with() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of_machine(folder.path()), None);
        let base = BaseImage { folder: folder.path().join("debian12-old"), made: true };
        base.note(folder.path()).unwrap();
        assert_eq!(of_machine(folder.path()), None, "a box that is gone is none");
        fs::create_dir(&base.folder).unwrap();
        assert_eq!(of_machine(folder.path()), Some(BaseImage { made: false, ..base }));
    }

    #[test]
    fn a_module_that_cannot_be_unpacked_is_an_error_and_no_empty_module() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("virtio.ko.xz");
        fs::write(&path, "no such format").unwrap();
        match unpacked(&path) {
            Err(VmError::Command { command, output, .. }) => {
                assert!(command == "xz" && output.contains("virtio"), "{output}");
            }
            // Where there is no xz, that is said.
            Err(VmError::Missing { program: "xz", .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}
