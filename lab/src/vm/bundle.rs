//! The folder from which `provision.sh` makes machines: programs, images, units, configuration. The same for guests and for Vagrant.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::VmError;
use super::plan::Role;
use crate::cluster::store::Places;
use crate::cluster::{LabError, up};
use crate::fsx;

/// Where the bundle lies in a machine.
pub const INSIDE: &str = "/opt/keelson-bundle";
/// Programs of a node.
const NODE: &[&str] = &["agent", "dataplane", "keelson-cni"];
/// Programs of a control plane.
const CONTROL_PLANE: &[&str] = &["control-plane"];

/// Text files of the repository, so that `lab` needs no checkout to make machines.
const TEXTS: &[(&str, &str, u32)] = &[
    ("provision.sh", include_str!("../../../vagrant/provision.sh"), 0o755),
    ("systemd/keelson-agent.service", include_str!("../../../packaging/systemd/keelson-agent.service"), 0o644),
    ("systemd/keelson-dataplane.service", include_str!("../../../packaging/systemd/keelson-dataplane.service"), 0o644),
    (
        "systemd/keelson-control-plane.service",
        include_str!("../../../packaging/systemd/keelson-control-plane.service"),
        0o644,
    ),
    ("systemd/keelson.slice", include_str!("../../../packaging/systemd/keelson.slice"), 0o644),
    ("config/node.yaml", include_str!("../../../packaging/config/node.yaml"), 0o644),
    ("config/proxy.yaml", include_str!("../../../packaging/config/proxy.yaml"), 0o644),
];

/// What goes into a bundle.
#[derive(Clone, Debug, Default)]
pub struct Bundle {
    /// Name below the bundle's folder, and the file on this machine.
    files: Vec<(String, PathBuf)>,
}

impl Bundle {
    /// Finds the programs and makes the images. `work` is a folder for what is made on the way.
    pub fn gather(places: &Places, work: &Path) -> Result<Self, VmError> {
        let mut files = Vec::new();
        fsx::create_dir(work)?;
        for name in NODE.iter().chain(CONTROL_PLANE) {
            let path = places.program(name).ok_or_else(|| missing(places, name))?;
            files.push((format!("bin/{name}"), stripped(&path, &work.join(name))));
        }
        for image in up::make_images(places)? {
            files.push((format!("images/{}", fsx::name(&image.archive)), image.archive));
        }
        Ok(Self { files })
    }

    /// What a machine of this kind needs of it.
    pub fn part(&self, role: Role) -> Self {
        let mine = |name: &str| match name.strip_prefix("bin/") {
            Some(program) if CONTROL_PLANE.contains(&program) => role.is_control_plane(),
            _ => role.is_node(),
        };
        Self { files: self.files.iter().filter(|(name, _)| mine(name)).cloned().collect() }
    }

    /// Adds everything to an archive.
    pub fn append(&self, to: &mut tar::Builder<&mut dyn Write>) -> io::Result<()> {
        for (name, text, mode) in TEXTS {
            let mut header = tar::Header::new_gnu();
            header.set_mode(*mode);
            header.set_size(text.len() as u64);
            to.append_data(&mut header, name, text.as_bytes())?;
        }
        self.files.iter().try_for_each(|(name, path)| to.append_path_with_name(path, name))
    }

    /// Writes it as an archive, so that a machine that reads the one before goes on reading it.
    pub fn write_archive(&self, path: &Path) -> Result<(), VmError> {
        let temporary = path.with_extension("new");
        let mut file = std::fs::File::create(&temporary).map_err(fsx::fail("write", &temporary))?;
        let mut builder = tar::Builder::new(&mut file as &mut dyn Write);
        self.append(&mut builder).and_then(|()| builder.finish()).map_err(fsx::fail("write", &temporary))?;
        drop(builder);
        std::fs::rename(&temporary, path).map_err(fsx::fail("name", path))?;
        Ok(())
    }

    /// Names of everything in it.
    pub fn names(&self) -> Vec<&str> {
        TEXTS.iter().map(|(name, ..)| *name).chain(self.files.iter().map(|(name, _)| name.as_str())).collect()
    }

    /// Writes it as a folder.
    pub fn write(&self, folder: &Path) -> Result<(), VmError> {
        use std::os::unix::fs::PermissionsExt;
        let parent = |path: &Path| fsx::create_dir(path.parent().unwrap_or(folder));
        // What an earlier bundle had and this one has not would be used as well.
        for part in ["bin", "images", "systemd", "config"] {
            fsx::remove_tree(&folder.join(part))?;
        }
        for (name, text, mode) in TEXTS {
            let path = folder.join(name);
            parent(&path)?;
            fsx::write_atomic(&path, text)?;
            let permissions = std::fs::Permissions::from_mode(*mode);
            std::fs::set_permissions(&path, permissions).map_err(fsx::fail("set permissions of", &path))?;
        }
        for (name, from) in &self.files {
            let path = folder.join(name);
            parent(&path)?;
            fsx::install(from, &path)?;
        }
        Ok(())
    }
}

/// The program without what only a debugger reads, most of it in the development profile: a guest would read and write it all. Itself where
/// there is no `strip`.
fn stripped(program: &Path, to: &Path) -> PathBuf {
    let outcome = Command::new("strip").arg("-o").arg(to).arg(program).stdin(Stdio::null()).output();
    if outcome.is_ok_and(|output| output.status.success()) { to.to_path_buf() } else { program.to_path_buf() }
}

fn missing(places: &Places, name: &str) -> LabError {
    let folders: Vec<String> = places.programs.iter().map(|folder| folder.display().to_string()).collect();
    LabError::NoProgram { name: name.to_owned(), folders: folders.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_gets_the_programs_of_its_kind_and_a_node_the_images() {
        let names = ["bin/agent", "bin/control-plane", "images/pause-1.tar"];
        let bundle = Bundle { files: names.iter().map(|name| ((*name).to_owned(), PathBuf::from("/x"))).collect() };
        let part = |role| bundle.part(role).files.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(part(Role::ControlPlane), ["bin/control-plane"]);
        assert_eq!(part(Role::Node), ["bin/agent", "images/pause-1.tar"]);
        assert_eq!(part(Role::Both), names);
    }

    #[test]
    fn every_word_to_fill_in_is_known_to_the_script() {
        let script = TEXTS[0].1;
        for (name, text, _) in TEXTS.iter().filter(|(name, ..)| name.starts_with("config/")) {
            for word in text
                .split('@')
                .skip(1)
                .step_by(2)
                .filter(|word| word.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
            {
                assert!(script.contains(&format!("s|@{word}@|")), "{name}: @{word}@");
            }
        }
    }
}
