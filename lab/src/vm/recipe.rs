//! What a base image is made of: a distribution, its packages, where they come from. Pure but for reading the host's sources.
//!
//! The image is a plain Debian machine as its installer would leave it, with the packages that `provision.sh` would get: guests have
//! no network to get them from. Nothing of ours is in it.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// To be raised when the way of making an image changes without its inputs.
const FORMAT: u32 = 2;
/// What `vagrant/provision.sh` needs on a node, and what a person wants for a look. `xz-utils` is for images, `e2fsprogs` comes by itself.
const PACKAGES: &[&str] = &[
    "busybox-static",
    "ca-certificates",
    "conntrack",
    "containerd",
    "dbus",
    "iproute2",
    "iptables",
    "kmod",
    "linux-image-cloud-amd64",
    "nftables",
    "procps",
    "runc",
    "systemd-sysv",
    "udev",
];
/// What no test looks at.
const LEFT_OUT: &[&str] = &["/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*"];
/// Units that only cost time in a machine without a network and with a fresh disk. Modules are loaded when they are used all the same; the
/// six that systemd loads in advance took 12 to 14 s of a translated boot.
pub const MASKED: &[&str] = &[
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "modprobe@configfs.service",
    "modprobe@dm_mod.service",
    "modprobe@drm.service",
    "modprobe@efi_pstore.service",
    "modprobe@fuse.service",
    "modprobe@loop.service",
    "serial-getty@ttyS0.service",
];
/// Size of the disk that a guest sees; what it has not written takes no room.
pub const DISK: &str = "6G";
/// Hex digits of a hash in a folder's name.
const DIGITS: usize = 12;

/// A distribution that guests can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Os {
    /// Bookworm: kernel 6.1, containerd 1.6.
    Debian12,
    /// Trixie: kernel 6.12, containerd 1.7.
    Debian13,
}

impl Os {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Debian12, Self::Debian13];

    fn suite(self) -> &'static str {
        match self {
            Self::Debian12 => "bookworm",
            Self::Debian13 => "trixie",
        }
    }
}

impl fmt::Display for Os {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Debian12 => "debian12",
            Self::Debian13 => "debian13",
        })
    }
}

impl FromStr for Os {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|os| os.to_string() == text)
            .ok_or_else(|| format!("there are debian12 and debian13, not {text:?}"))
    }
}

/// Everything that goes into an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The distribution.
    pub os: Os,
    /// Lines of `sources.list`.
    sources: Vec<String>,
}

impl Recipe {
    /// The recipe of a distribution, with packages from where the host gets its own.
    pub fn new(os: Os, mirrors: &Mirrors) -> Self {
        let suite = os.suite();
        let mut sources = vec![format!("deb {} {suite} main", mirrors.main)];
        if let Some(security) = &mirrors.security {
            sources.push(format!("deb {security} {suite}-security main"));
        }
        Self { os, sources }
    }

    /// Arguments of mmdebstrap for a system in the folder `to`.
    pub fn arguments(&self, to: &Path) -> Vec<String> {
        let mut all = vec![
            "--variant=minbase".to_owned(),
            format!("--include={}", PACKAGES.join(",")),
            "--aptopt=APT::Install-Recommends \"false\"".to_owned(),
        ];
        all.extend(LEFT_OUT.iter().map(|path| format!("--dpkgopt=path-exclude={path}")));
        all.push(self.os.suite().to_owned());
        all.push(to.display().to_string());
        all.extend(self.sources.iter().cloned());
        all
    }

    /// Name of the recipe: the same for the same way of making an image, from whatever mirror.
    pub fn key(&self) -> String {
        let text = format!("{FORMAT}\n{}\n{PACKAGES:?}\n{LEFT_OUT:?}\n{MASKED:?}\n{DISK}\n", self.os);
        format!("{}-{}", self.os, digest(&text))
    }
}

/// The content of an image: its packages with their versions.
pub fn content(packages: &str) -> String {
    let mut lines: Vec<&str> = packages.lines().collect();
    lines.sort_unstable();
    digest(&lines.join("\n"))
}

fn digest(text: &str) -> String {
    let hash = Sha256::digest(text.as_bytes());
    hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>()[..DIGITS].to_owned()
}

/// Packages with versions from dpkg's status file: the same list as [`simulated`] gives for the same system.
pub fn installed(status: &str) -> String {
    let mut lines: Vec<String> = status
        .split("\n\n")
        .filter_map(|paragraph| {
            let field = |name: &str| paragraph.lines().find_map(|line| line.strip_prefix(name));
            Some(format!("{} {}", field("Package: ")?, field("Version: ")?))
        })
        .collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Packages with versions from what `apt-get --simulate` tells: `Inst NAME (VERSION …) …`.
pub fn simulated(output: &str) -> String {
    let mut lines: Vec<String> = output
        .lines()
        .filter_map(|line| {
            let rest = &line[line.find("Inst ")? + 5..];
            let (name, rest) = rest.split_once(' ')?;
            let version = &rest[rest.find('(')? + 1..];
            Some(format!("{name} {}", version.split([' ', ')']).next()?))
        })
        .collect();
    lines.sort_unstable();
    lines.dedup();
    lines.join("\n")
}

/// Where packages come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrors {
    /// Debian itself.
    pub main: String,
    /// Its security updates.
    pub security: Option<String>,
}

/// The mirrors in the texts of apt's source lists, in both of their formats.
pub fn mirrors(texts: &[String]) -> Option<Mirrors> {
    let mut found = Vec::new();
    for text in texts {
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["URIs:", uris @ ..] => found.extend(uris.iter().map(|uri| (*uri).to_owned())),
                ["deb", rest @ ..] => {
                    found.extend(rest.iter().find(|word| word.contains("://")).map(|w| (*w).to_owned()));
                }
                _ => {}
            }
        }
    }
    let trimmed = |uri: &String| uri.trim_end_matches('/').to_owned();
    let main = found.iter().map(trimmed).find(|uri| uri.ends_with("/debian"))?;
    let security = found.iter().map(trimmed).find(|uri| uri.ends_with("/debian-security"));
    Some(Mirrors { main, security })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror() -> Mirrors {
        Mirrors { main: "http://mirror.example/debian".to_owned(), security: None }
    }

    #[test]
    fn mirrors_are_found_in_both_formats() {
        let old = "# deb http://no.example/debian x main\ndeb [signed-by=/k] http://a.example/debian/ bookworm main\n";
        let new = "Types: deb\nURIs: http://b.example/debian-security\nSuites: bookworm-security\n";
        let found = mirrors(&[old.to_owned(), new.to_owned()]).unwrap();
        assert_eq!(found.main, "http://a.example/debian");
        assert_eq!(found.security.as_deref(), Some("http://b.example/debian-security"));
        assert_eq!(mirrors(&["deb http://x.example/ubuntu noble main".to_owned()]), None);
    }

    #[test]
    fn the_key_follows_the_way_of_making_and_not_the_mirror() {
        let one = Recipe::new(Os::Debian12, &mirror());
        let other = Recipe::new(Os::Debian12, &Mirrors { main: "http://b.example/debian".to_owned(), security: None });
        assert_eq!(one.key(), other.key());
        assert_ne!(one.key(), Recipe::new(Os::Debian13, &mirror()).key());
        assert!(one.key().starts_with("debian12-"));
    }

    #[test]
    fn the_arguments_name_suite_target_and_sources_in_this_order() {
        let arguments = Recipe::new(Os::Debian13, &mirror()).arguments(Path::new("/to"));
        assert_eq!(arguments[arguments.len() - 3..], ["trixie", "/to", "deb http://mirror.example/debian trixie main"]);
    }

    #[test]
    fn versions_are_read_from_a_simulation() {
        let text = "I: x\nInst runc (1.1.5 Debian:12 [amd64])\nConf runc (1.1.5)\n Inst dbus (1.14-1 Debian:12)\nInst runc (1.1.5 Debian:12 [amd64])\n";
        assert_eq!(simulated(text), "dbus 1.14-1\nrunc 1.1.5");
        let status = "Package: runc\nStatus: install ok installed\nVersion: 1.1.5\n\nPackage: dbus\nDepends: x\nVersion: 1.14-1\n";
        assert_eq!(installed(status), simulated(text));
        assert_ne!(content("a 1\nb 2"), content("a 1\nb 3"));
        assert_eq!(content("a 1\nb 2"), content("b 2\na 1"));
    }

    #[test]
    fn names_of_distributions_are_read_back() {
        for os in Os::ALL {
            assert_eq!(os.to_string().parse(), Ok(os));
        }
        assert!("debian11".parse::<Os>().is_err());
    }
}
