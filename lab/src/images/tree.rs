//! The files of one image layer, and their one and only tar form.
//!
//! Paths are relative and sorted by the map; every parent folder is written before what is in it. Owner root, time zero.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::ImageError;

/// Permission bits of a folder nobody asked something else for.
const DIR_MODE: u32 = 0o755;

/// One path of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A folder with its permission bits.
    Dir(u32),
    /// A file with its permission bits and contents.
    File(u32, Vec<u8>),
    /// A symbolic link to a target.
    Link(String),
}

/// The files of one layer by path, without a leading slash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree(BTreeMap<String, Entry>);

impl Tree {
    /// Adds a folder.
    pub fn dir(&mut self, path: &str, mode: u32) {
        self.insert(path, Entry::Dir(mode));
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, mode: u32, data: impl Into<Vec<u8>>) {
        self.insert(path, Entry::File(mode, data.into()));
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.insert(path, Entry::Link(target.to_owned()));
    }

    /// Adds a file with the contents of one on this machine (links are followed).
    pub fn copy(&mut self, path: &str, mode: u32, from: &Path) -> Result<(), ImageError> {
        let data = fs::read(from).map_err(ImageError::io("read", from))?;
        self.file(path, mode, data);
        Ok(())
    }

    fn insert(&mut self, path: &str, entry: Entry) {
        let mut parent = path;
        while let Some((up, _)) = parent.rsplit_once('/') {
            self.0.entry(up.to_owned()).or_insert(Entry::Dir(DIR_MODE));
            parent = up;
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// The layer as an uncompressed tar, whose digest is also the layer's `diff_id`.
    pub fn to_tar(&self) -> io::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            match entry {
                Entry::Dir(mode) => {
                    let mut header = header(tar::EntryType::Directory, *mode, 0);
                    archive.append_data(&mut header, format!("{path}/"), io::empty())?;
                }
                Entry::File(mode, data) => {
                    let mut header = header(tar::EntryType::Regular, *mode, data.len());
                    archive.append_data(&mut header, path, data.as_slice())?;
                }
                Entry::Link(target) => {
                    let mut header = header(tar::EntryType::Symlink, 0o777, 0);
                    archive.append_link(&mut header, path, target)?;
                }
            }
        }
        archive.into_inner()
    }
}

/// A header without anything that differs from one build to the next.
pub fn header(kind: tar::EntryType, mode: u32, size: usize) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// SHA-256 in lower-case hex.
pub fn sha256_hex(data: &[u8]) -> String {
    Sha256::digest(data).iter().fold(String::new(), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
