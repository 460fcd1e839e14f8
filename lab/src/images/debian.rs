//! Programs from Debian packages, taken without installing them.
//!
//! apt knows the candidate of each package and its SHA-256 without a network; only a package that is not in the folder of earlier
//! downloads is fetched (apt itself verifies it). `dpkg-deb` unpacks into a scratch folder, and the program's own loader, run from
//! there, lists the libraries it needs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ImageError;
use super::tree::sha256_hex;

/// Keeps apt's last answer in the folder of downloads: a stamp of its lists, then a digest and a file per line.
const ANSWER_FILE: &str = ".answer";

/// A package file on disk.
#[derive(Debug, Clone)]
pub struct Package {
    /// The `.deb`.
    pub file: PathBuf,
    /// SHA-256 of the file.
    pub sha256: String,
}

/// The packages `roots`, and every library package they need, downloaded to `folder` where they are not there yet.
///
/// Asking apt takes seconds, so its answer is remembered for as long as its package lists stay the same. Without usable lists the
/// earlier downloads are used.
pub fn fetch(roots: &[&str], folder: &Path) -> Result<Vec<Package>, ImageError> {
    fs::create_dir_all(folder).map_err(ImageError::io("create", folder))?;
    let lists = lists_stamp();
    if let Some(packages) = remembered(folder, &lists)? {
        return Ok(packages);
    }
    match library_closure(roots).and_then(|names| candidates(&names)) {
        Ok(wanted) => {
            let packages: Vec<Package> =
                wanted.into_iter().map(|candidate| candidate.fetch(folder)).collect::<Result<_, _>>()?;
            remember(folder, &lists, &packages)?;
            Ok(packages)
        }
        Err(error) => kept(roots, folder, &error),
    }
}

/// Changes with every `apt-get update` that brought something; empty when there are no lists.
fn lists_stamp() -> String {
    let modified = fs::metadata("/var/lib/apt/lists").and_then(|metadata| metadata.modified());
    modified.map(|time| format!("{time:?}")).unwrap_or_default()
}

/// apt's last answer, if it was given for the same lists and every file is still there.
fn remembered(folder: &Path, lists: &str) -> Result<Option<Vec<Package>>, ImageError> {
    let Ok(text) = fs::read_to_string(folder.join(ANSWER_FILE)) else { return Ok(None) };
    let mut lines = text.lines();
    if lines.next() != Some(lists) {
        return Ok(None);
    }
    let mut packages = Vec::new();
    for line in lines {
        let Some((sha256, name)) = line.split_once(' ') else { return Ok(None) };
        let file = folder.join(name);
        if !has_digest(&file, sha256)? {
            return Ok(None);
        }
        packages.push(Package { file, sha256: sha256.to_owned() });
    }
    Ok((!packages.is_empty()).then_some(packages))
}

fn remember(folder: &Path, lists: &str, packages: &[Package]) -> Result<(), ImageError> {
    let mut text = format!("{lists}\n");
    for package in packages {
        let name = package.file.file_name().unwrap_or_default().to_string_lossy();
        text.push_str(&format!("{} {name}\n", package.sha256));
    }
    let path = folder.join(ANSWER_FILE);
    fs::write(&path, text).map_err(ImageError::io("write", &path))
}

struct Candidate {
    package: String,
    file: String,
    sha256: String,
}

impl Candidate {
    fn fetch(self, folder: &Path) -> Result<Package, ImageError> {
        let file = folder.join(&self.file);
        if !has_digest(&file, &self.sha256)? {
            remove_other_versions(folder, &self.package)?;
            let mut download = Command::new("apt-get");
            // As root apt would switch to the user _apt, who may not write here, and warn.
            download.args(["-q", "-o", "APT::Sandbox::User=root", "download", &self.package]).current_dir(folder);
            run(&mut download)?;
            if !has_digest(&file, &self.sha256)? {
                let what = format!("{} with SHA-256 {} did not appear", file.display(), self.sha256);
                return Err(ImageError::Answer { command: line(&download), what });
            }
        }
        Ok(Package { file, sha256: self.sha256 })
    }
}

fn has_digest(file: &Path, sha256: &str) -> Result<bool, ImageError> {
    if !file.exists() {
        return Ok(false);
    }
    Ok(sha256_hex(&fs::read(file).map_err(ImageError::io("read", file))?) == sha256)
}

fn remove_other_versions(folder: &Path, package: &str) -> Result<(), ImageError> {
    for path in package_files(folder, package)? {
        fs::remove_file(&path).map_err(ImageError::io("remove", &path))?;
    }
    Ok(())
}

fn package_files(folder: &Path, package: &str) -> Result<Vec<PathBuf>, ImageError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(ImageError::io("list", folder))? {
        let path = entry.map_err(ImageError::io("list", folder))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.ends_with(".deb") && name.split('_').next() == Some(package) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// All earlier downloads, provided that the roots are among them.
fn kept(roots: &[&str], folder: &Path, apt: &ImageError) -> Result<Vec<Package>, ImageError> {
    for root in roots {
        if package_files(folder, root)?.is_empty() {
            return Err(ImageError::Package {
                package: (*root).to_owned(),
                apt: apt.to_string(),
                kept: folder.to_owned(),
            });
        }
    }
    let mut packages = Vec::new();
    for entry in fs::read_dir(folder).map_err(ImageError::io("list", folder))? {
        let file = entry.map_err(ImageError::io("list", folder))?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            let sha256 = sha256_hex(&fs::read(&file).map_err(ImageError::io("read", &file))?);
            packages.push(Package { file, sha256 });
        }
    }
    packages.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(packages)
}

/// The roots and, recursively, the library packages among their dependencies.
fn library_closure(roots: &[&str]) -> Result<BTreeSet<String>, ImageError> {
    let mut closure: BTreeSet<String> = BTreeSet::new();
    let mut level: Vec<String> = roots.iter().map(|root| (*root).to_owned()).collect();
    while !level.is_empty() {
        // A whole level at once: apt-cache takes about a second to start.
        let records = run(Command::new("apt-cache").args(["show", "--no-all-versions"]).args(&level))?;
        closure.extend(level);
        level = library_dependencies(&records).into_iter().filter(|name| !closure.contains(name)).collect();
    }
    Ok(closure)
}

/// Library packages named in the `Depends` field of package records (the first of alternatives).
pub(super) fn library_dependencies(record: &str) -> Vec<String> {
    record
        .lines()
        .filter_map(|line| line.strip_prefix("Depends:").or_else(|| line.strip_prefix("Pre-Depends:")))
        .flat_map(|field| field.split(','))
        .filter_map(|dependency| dependency.split(['|', '(', ':']).next())
        .map(|name| name.trim().to_owned())
        .filter(|name| name.starts_with("lib") || name.starts_with("zlib"))
        .collect()
}

/// apt's candidates for packages: file name and digest, without downloading.
fn candidates(packages: &BTreeSet<String>) -> Result<Vec<Candidate>, ImageError> {
    let mut command = Command::new("apt-get");
    command.args(["-q", "--print-uris", "download"]).args(packages);
    let answer = run(&mut command)?;
    let found: Vec<Candidate> = answer.lines().filter_map(candidate).collect();
    if found.len() != packages.len() {
        let what = format!("{} addresses for {} packages", found.len(), packages.len());
        return Err(ImageError::Answer { command: line(&command), what });
    }
    Ok(found)
}

/// One line of `apt-get --print-uris download`: `'URI' FILE SIZE SHA256:DIGEST`.
fn candidate(line: &str) -> Option<Candidate> {
    let mut words = line.split_whitespace().skip(1);
    let file = words.next()?;
    let sha256 = words.nth(1)?.strip_prefix("SHA256:")?;
    let package = file.split('_').next()?;
    // The file name is joined to a folder of ours.
    (!file.contains('/')).then(|| Candidate {
        package: package.to_owned(),
        file: file.to_owned(),
        sha256: sha256.to_owned(),
    })
}

/// Unpacks packages over each other into `root`.
pub fn unpack(packages: &[Package], root: &Path) -> Result<(), ImageError> {
    fs::create_dir_all(root).map_err(ImageError::io("create", root))?;
    for package in packages {
        run(Command::new("dpkg-deb").arg("--extract").arg(&package.file).arg(root))?;
    }
    Ok(())
}

/// The libraries that `program` (below `root`) needs, found below `root` only, by its own loader.
pub fn libraries(
    root: &Path,
    loader: &str,
    library_folders: &[String],
    program: &str,
) -> Result<Vec<PathBuf>, ImageError> {
    let path: Vec<String> = library_folders.iter().map(|folder| root.join(folder).display().to_string()).collect();
    let mut command = Command::new(loader_below(root, loader)?);
    command.args(["--inhibit-cache", "--library-path", &path.join(":"), "--list"]).arg(root.join(program));
    let answer = run(&mut command)?;
    let mut found = Vec::new();
    for entry in answer.lines() {
        let Some((name, target)) = entry.split_once("=>") else { continue };
        let file = target.split(" (0x").next().unwrap_or_default().trim();
        if !Path::new(file).starts_with(root) {
            let what = format!("{} resolved to `{file}`, outside of {}", name.trim(), root.display());
            return Err(ImageError::Answer { command: line(&command), what });
        }
        found.push(PathBuf::from(file));
    }
    Ok(found)
}

/// The loader in the unpacked tree: under its historic path, or under /usr since Debian 13.
pub fn loader_below(root: &Path, loader: &str) -> Result<PathBuf, ImageError> {
    let candidates = [root.join(loader), root.join("usr").join(loader)];
    candidates.into_iter().find(|path| path.exists()).ok_or_else(|| ImageError::Answer {
        command: "dpkg-deb --extract libc6".to_owned(),
        what: format!("{} has no {loader}", root.display()),
    })
}

/// Runs a tool to its end and returns its standard output.
pub fn run(command: &mut Command) -> Result<String, ImageError> {
    // Answers are parsed: keep them English.
    command.env("LC_ALL", "C.UTF-8");
    let output = command.output().map_err(|source| ImageError::Spawn { command: line(command), source })?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(ImageError::Command { command: line(command), status: output.status, stderr });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
