//! OCI image-layout archives (image-spec 1.0) for `ctr images import`.
//!
//! `index.json` lists the one manifest once per name: containerd creates an image for each descriptor that carries the annotation
//! `io.containerd.image.name`, and takes that name as it stands.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};

use super::ImageError;
use super::tree::{Tree, header, sha256_hex};

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";
/// Creation time of every image: a real one would make equal inputs give different bytes.
const EPOCH: &str = "1970-01-01T00:00:00Z";

/// A complete image in memory (the largest, nginx, is about 12 MB).
#[derive(Debug)]
pub struct Image {
    /// Full names (`docker.io/library/nginx:1.14.2`).
    pub names: Vec<String>,
    /// OCI architecture (`amd64`).
    pub architecture: &'static str,
    /// The `config` object of the image configuration (Env, Entrypoint, Cmd …).
    pub config: Value,
    /// Layers, lowest first.
    pub layers: Vec<Tree>,
}

/// The annotation by which containerd names an image.
pub const NAME_ANNOTATION: &str = "io.containerd.image.name";

/// An image as the parts of an OCI image layout.
#[derive(Debug)]
pub struct Layout {
    /// Contents by digest.
    pub blobs: BTreeMap<String, Vec<u8>>,
    /// `index.json`.
    pub index: Value,
}

impl Layout {
    /// Lays an image out.
    pub fn of(image: &Image) -> io::Result<Self> {
        let mut blobs = BTreeMap::new();
        let mut layers = Vec::new();
        for tree in &image.layers {
            layers.push(add_blob(&mut blobs, LAYER_TYPE, tree.to_tar()?));
        }
        let diff_ids: Vec<&Value> = layers.iter().map(|layer| &layer["digest"]).collect();
        let config = json!({
            "architecture": image.architecture,
            "os": "linux",
            "created": EPOCH,
            "config": image.config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = add_blob(&mut blobs, CONFIG_TYPE, serde_json::to_vec(&config)?);
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": layers });
        let manifest = add_blob(&mut blobs, MANIFEST_TYPE, serde_json::to_vec(&manifest)?);
        Ok(Self { blobs, index: index(&manifest, image) })
    }
}

/// Writes the archive to `path` and syncs it.
pub fn write_archive(path: &Path, image: &Image) -> Result<(), ImageError> {
    let file = File::create(path).map_err(ImageError::io("create", path))?;
    write_to(BufWriter::new(file), image)
        .and_then(|mut writer| {
            writer.flush()?;
            writer.get_ref().sync_all()
        })
        .map_err(ImageError::io("write", path))
}

fn write_to<W: Write>(writer: W, image: &Image) -> io::Result<W> {
    let layout = Layout::of(image)?;
    let mut archive = tar::Builder::new(writer);
    append(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    append(&mut archive, "index.json", &serde_json::to_vec(&layout.index)?)?;
    for directory in ["blobs/", "blobs/sha256/"] {
        archive.append_data(&mut header(tar::EntryType::Directory, 0o755, 0), directory, io::empty())?;
    }
    for (digest, data) in &layout.blobs {
        append(&mut archive, &format!("blobs/sha256/{digest}"), data)?;
    }
    archive.into_inner()
}

fn index(manifest: &Value, image: &Image) -> Value {
    let manifests: Vec<Value> = image
        .names
        .iter()
        .map(|name| {
            let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
            let mut descriptor = manifest.clone();
            descriptor["platform"] = json!({ "architecture": image.architecture, "os": "linux" });
            descriptor["annotations"] = json!({ NAME_ANNOTATION: name, "org.opencontainers.image.ref.name": tag });
            descriptor
        })
        .collect();
    json!({ "schemaVersion": 2, "manifests": manifests })
}

/// Keeps a blob under its digest and returns its descriptor.
fn add_blob(blobs: &mut BTreeMap<String, Vec<u8>>, media_type: &str, data: Vec<u8>) -> Value {
    let hex = sha256_hex(&data);
    let descriptor = json!({ "mediaType": media_type, "digest": format!("sha256:{hex}"), "size": data.len() });
    blobs.insert(hex, data);
    descriptor
}

fn append<W: Write>(archive: &mut tar::Builder<W>, path: &str, data: &[u8]) -> io::Result<()> {
    archive.append_data(&mut header(tar::EntryType::Regular, 0o644, data.len()), path, data)
}
