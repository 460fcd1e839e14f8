//! The folder that nodes pull from: an OCI image layout in which images share blobs, with an index for each image.
//!
//! `blobs/sha256/DIGEST` as in the layout's specification; `NAME-KEY.json` is the index of one image under all of its names. The
//! registry reads nothing else, so an image is there as soon as its index is, and not before its blobs are.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::oci::{self, Image};
use super::{ImageError, stale};

/// One such folder.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// A blob or manifest to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// `sha256:` and the digest.
    pub digest: String,
    /// Its media type; generic for anything but a manifest.
    pub media_type: String,
    /// The file that holds it.
    pub file: PathBuf,
}

impl Store {
    /// The store in a folder, which need not exist.
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn blobs(&self) -> PathBuf {
        self.folder.join("blobs/sha256")
    }

    fn record(&self, name: &str, key: &str) -> PathBuf {
        self.folder.join(format!("{name}-{key}.json"))
    }

    /// Whether an image of these inputs is here.
    pub fn has(&self, name: &str, key: &str) -> bool {
        self.record(name, key).exists()
    }

    /// Adds an image, blobs first.
    pub fn put(&self, name: &str, key: &str, image: &Image) -> Result<(), ImageError> {
        let folder = self.blobs();
        fs::create_dir_all(&folder).map_err(ImageError::io("create", &folder))?;
        let layout = oci::Layout::of(image).map_err(ImageError::io("lay out", Path::new(name)))?;
        for (digest, data) in &layout.blobs {
            let path = folder.join(digest);
            if !path.exists() {
                write_whole(&path, data)?;
            }
        }
        write_whole(&self.record(name, key), layout.index.to_string().as_bytes())?;
        stale(&self.folder, name, ".json", &self.record(name, key))
    }

    /// Removes blobs that no image has any more.
    pub fn sweep(&self) -> Result<(), ImageError> {
        let mut used = BTreeSet::new();
        for index in self.indexes()? {
            for manifest in index["manifests"].as_array().into_iter().flatten() {
                let Some(digest) = digest_of(manifest) else { continue };
                if used.insert(digest.clone()) {
                    let manifest = read_json(&self.blobs().join(&digest))?;
                    let parts = manifest["layers"].as_array().into_iter().flatten().chain([&manifest["config"]]);
                    used.extend(parts.filter_map(digest_of));
                }
            }
        }
        let folder = self.blobs();
        for entry in fs::read_dir(&folder).map_err(ImageError::io("list", &folder))? {
            let path = entry.map_err(ImageError::io("list", &folder))?.path();
            if !path.file_name().is_some_and(|name| used.contains(&*name.to_string_lossy())) {
                fs::remove_file(&path).map_err(ImageError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// The manifest that an image name (`docker.io/library/redis:7`) or, below any name, a digest stands for.
    pub fn manifest(&self, repository: &str, reference: &str) -> Result<Option<Found>, ImageError> {
        let full = format!("{repository}:{reference}");
        for index in self.indexes()? {
            for manifest in index["manifests"].as_array().into_iter().flatten() {
                let named = manifest["annotations"][oci::NAME_ANNOTATION] == full.as_str();
                if !named && manifest["digest"] != reference {
                    continue;
                }
                let Some(digest) = digest_of(manifest) else { continue };
                return Ok(Some(Found {
                    digest: format!("sha256:{digest}"),
                    media_type: manifest["mediaType"].as_str().unwrap_or_default().to_owned(),
                    file: self.blobs().join(digest),
                }));
            }
        }
        Ok(None)
    }

    /// A blob by its digest.
    pub fn blob(&self, digest: &str) -> Option<Found> {
        let hex = digest.strip_prefix("sha256:").filter(|hex| is_digest(hex))?;
        let file = self.blobs().join(hex);
        let media_type = "application/octet-stream".to_owned();
        file.is_file().then(|| Found { digest: digest.to_owned(), media_type, file })
    }

    fn indexes(&self) -> Result<Vec<Value>, ImageError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(ImageError::io("list", &self.folder))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.map_err(ImageError::io("list", &self.folder))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                found.push(read_json(&path)?);
            }
        }
        Ok(found)
    }
}

/// The digest of a descriptor without its algorithm, if it can be a file name.
fn digest_of(descriptor: &Value) -> Option<String> {
    let hex = descriptor["digest"].as_str()?.strip_prefix("sha256:")?;
    is_digest(hex).then(|| hex.to_owned())
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

fn read_json(path: &Path) -> Result<Value, ImageError> {
    let data = fs::read(path).map_err(ImageError::io("read", path))?;
    serde_json::from_slice(&data).map_err(|error| ImageError::io("read", path)(error.into()))
}

/// Under its final name a file is complete.
fn write_whole(path: &Path, data: &[u8]) -> Result<(), ImageError> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    fs::write(&partial, data).map_err(ImageError::io("write", &partial))?;
    fs::rename(&partial, path).map_err(ImageError::io("rename", &partial))
}
