//! What is in each image. Shapes follow the images of the same names on Docker Hub and registry.k8s.io.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::debian::{self, Package};
use super::elf::read_static_program;
use super::names;
use super::oci::Image;
use super::tree::{Tree, sha256_hex};
use super::{ImageError, ImageInputs};

/// To be raised when the way an image is put together changes without its inputs.
const FORMAT: u32 = 1;
const PATH_ENV: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// User and group that upstream's nginx image runs its workers as.
const NGINX_ID: u32 = 101;

const NGINX_CONF: &str = include_str!("nginx/nginx.conf");
const NGINX_DEFAULT_CONF: &str = include_str!("nginx/default.conf");
const NGINX_ENTRYPOINT: &str = include_str!("nginx/docker-entrypoint.sh");
/// Many exec examples ask for bash.
const BASH: &str = "#!/bin/sh\n# No bash in this image: busybox's shell answers for it.\nexec /bin/sh \"$@\"\n";

/// An image to be: all that is cheap to know is here, what is dear (unpacking) waits for [`Recipe::finish`].
pub struct Recipe {
    /// Short name of the image.
    pub name: &'static str,
    /// Full names.
    pub names: Vec<String>,
    platform: Platform,
    config: Value,
    layers: Vec<Tree>,
    nginx: Option<NginxFiles>,
}

/// Packages to be merged into the last layer.
struct NginxFiles {
    packages: Vec<Package>,
    scratch: PathBuf,
}

#[derive(Clone, Copy)]
struct Platform {
    oci: &'static str,
    triplet: &'static str,
    loader: &'static str,
}

impl Platform {
    fn of_this_machine() -> Result<Self, ImageError> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self { oci: "amd64", triplet: "x86_64-linux-gnu", loader: "lib64/ld-linux-x86-64.so.2" }),
            "aarch64" => Ok(Self { oci: "arm64", triplet: "aarch64-linux-gnu", loader: "lib/ld-linux-aarch64.so.1" }),
            other => Err(ImageError::Architecture(other)),
        }
    }
}

/// Every image of the lab.
pub fn all(inputs: &ImageInputs, debs: &Path) -> Result<Vec<Recipe>, ImageError> {
    let platform = Platform::of_this_machine()?;
    let base = busybox_layer(&inputs.busybox)?;
    Ok(vec![
        pause(platform, &inputs.pause)?,
        busybox(platform, base.clone()),
        nginx(platform, base.clone(), debs)?,
        test_server(platform, base, &inputs.test_server)?,
    ])
}

fn pause(platform: Platform, program: &Path) -> Result<Recipe, ImageError> {
    let mut layer = Tree::default();
    layer.file("pause", 0o755, read_static_program(program)?);
    Ok(Recipe {
        name: "pause",
        names: names::pause(),
        platform,
        config: json!({ "User": "65535:65535", "Env": [PATH_ENV], "Entrypoint": ["/pause"], "WorkingDir": "/" }),
        layers: vec![layer],
        nginx: None,
    })
}

fn busybox(platform: Platform, base: Tree) -> Recipe {
    Recipe {
        name: "busybox",
        names: names::busybox(),
        platform,
        config: json!({ "Env": [PATH_ENV], "Cmd": ["sh"] }),
        layers: vec![base],
        nginx: None,
    }
}

fn nginx(platform: Platform, base: Tree, debs: &Path) -> Result<Recipe, ImageError> {
    let packages = debian::fetch(&["nginx", "nginx-common"], debs)?;
    let mut layer = Tree::default();
    layer.file(
        "etc/passwd",
        0o644,
        accounts(&format!("nginx:x:{NGINX_ID}:{NGINX_ID}:nginx user:/nonexistent:/bin/false\n")),
    );
    layer.file("etc/group", 0o644, groups(&format!("nginx:x:{NGINX_ID}:\n")));
    layer.file("etc/nginx/nginx.conf", 0o644, NGINX_CONF);
    layer.file("etc/nginx/conf.d/default.conf", 0o644, NGINX_DEFAULT_CONF);
    layer.file("docker-entrypoint.sh", 0o755, NGINX_ENTRYPOINT);
    layer.dir("docker-entrypoint.d", 0o755);
    layer.file("bin/bash", 0o755, BASH);
    layer.dir("var/lib/nginx", 0o755);
    layer.dir("var/cache/nginx", 0o755);
    layer.link("var/log/nginx/access.log", "/dev/stdout");
    layer.link("var/log/nginx/error.log", "/dev/stderr");
    Ok(Recipe {
        name: "nginx",
        names: names::nginx(),
        platform,
        config: json!({
            "Env": [PATH_ENV],
            "Entrypoint": ["/docker-entrypoint.sh"],
            "Cmd": ["nginx", "-g", "daemon off;"],
            "ExposedPorts": { "80/tcp": {} },
            "StopSignal": "SIGQUIT",
        }),
        layers: vec![base, layer],
        nginx: Some(NginxFiles { packages, scratch: debs.join(".unpacked") }),
    })
}

fn test_server(platform: Platform, base: Tree, program: &Path) -> Result<Recipe, ImageError> {
    let mut layer = Tree::default();
    layer.file("usr/bin/test-server", 0o755, read_static_program(program)?);
    Ok(Recipe {
        name: "test-server",
        names: names::test_server(),
        platform,
        config: json!({
            "Env": [PATH_ENV],
            "Entrypoint": ["/usr/bin/test-server"],
            "ExposedPorts": { "8080/tcp": {} },
        }),
        layers: vec![base, layer],
        nginx: None,
    })
}

/// A small userland: busybox under all its names, accounts, the usual folders.
fn busybox_layer(program: &Path) -> Result<Tree, ImageError> {
    let mut layer = Tree::default();
    layer.file("bin/busybox", 0o755, read_static_program(program)?);
    let applets = debian::run(Command::new(program).arg("--list"))?;
    for applet in applets.lines().filter(|applet| *applet != "busybox" && !applet.contains('/')) {
        layer.link(&format!("bin/{applet}"), "busybox");
    }
    layer.link("usr/bin/env", "../../bin/env");
    layer.file("etc/passwd", 0o644, accounts(""));
    layer.file("etc/group", 0o644, groups(""));
    layer.file("etc/nsswitch.conf", 0o644, "hosts: files dns\n");
    for folder in ["dev", "home", "proc", "run", "sys", "usr/sbin", "var/log", "var/spool"] {
        layer.dir(folder, 0o755);
    }
    layer.dir("root", 0o700);
    layer.dir("tmp", 0o1777);
    layer.dir("var/tmp", 0o1777);
    layer.link("var/run", "/run");
    Ok(layer)
}

fn accounts(more: &str) -> String {
    format!(
        "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\nwww-data:x:33:33:www-data:/var/www:/bin/false\n\
         {more}nobody:x:65534:65534:nobody:/home:/bin/false\n"
    )
}

fn groups(more: &str) -> String {
    format!("root:x:0:\ndaemon:x:1:\nwww-data:x:33:\n{more}nogroup:x:65534:\n")
}

impl Recipe {
    /// A hash of all inputs, in hex.
    pub fn key(&self) -> Result<String, ImageError> {
        let mut parts = vec![format!("{FORMAT} {} {} {}", self.platform.oci, self.config, self.names.join(" "))];
        for layer in &self.layers {
            let tar = layer.to_tar().map_err(ImageError::io("lay out", Path::new(self.name)))?;
            parts.push(sha256_hex(&tar));
        }
        if let Some(files) = &self.nginx {
            parts.extend(files.packages.iter().map(|package| package.sha256.clone()));
        }
        Ok(sha256_hex(parts.join("\n").as_bytes()))
    }

    /// Does the dear part and hands out the image.
    pub fn finish(mut self) -> Result<Image, ImageError> {
        if let (Some(files), Some(layer)) = (&self.nginx, self.layers.last_mut()) {
            remove_tree(&files.scratch)?;
            let merged = merge_nginx(layer, files, self.platform);
            remove_tree(&files.scratch)?;
            merged?;
        }
        Ok(Image { names: self.names, architecture: self.platform.oci, config: self.config, layers: self.layers })
    }
}

fn remove_tree(path: &Path) -> Result<(), ImageError> {
    if path.exists() {
        fs::remove_dir_all(path).map_err(ImageError::io("remove", path))?;
    }
    Ok(())
}

/// Puts nginx, the libraries it needs and its own data files into the layer.
fn merge_nginx(layer: &mut Tree, files: &NginxFiles, platform: Platform) -> Result<(), ImageError> {
    let root = files.scratch.as_path();
    debian::unpack(&files.packages, root)?;
    layer.copy("usr/sbin/nginx", 0o755, &root.join("usr/sbin/nginx"))?;
    layer.copy(platform.loader, 0o755, &debian::loader_below(root, platform.loader)?)?;
    let folders = ["lib", "usr/lib"].map(|folder| format!("{folder}/{}", platform.triplet));
    for library in debian::libraries(root, platform.loader, &folders, "usr/sbin/nginx")? {
        let name = library.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        layer.copy(&format!("lib/{}/{name}", platform.triplet), 0o755, &library)?;
    }
    for file in ["mime.types", "fastcgi_params", "scgi_params", "uwsgi_params"] {
        layer.copy(&format!("etc/nginx/{file}"), 0o644, &root.join("etc/nginx").join(file))?;
    }
    layer.copy("usr/share/nginx/html/index.html", 0o644, &root.join("usr/share/nginx/html/index.html"))?;
    layer.file("usr/share/nginx/html/50x.html", 0o644, ERROR_PAGE);
    Ok(())
}

const ERROR_PAGE: &str =
    "<!DOCTYPE html>\n<html>\n<head><title>Error</title></head>\n<body><h1>An error occurred.</h1></body>\n</html>\n";
