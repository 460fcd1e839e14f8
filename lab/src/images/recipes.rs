//! What is in each image. Shapes follow the images of the same names on Docker Hub and registry.k8s.io.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use serde_json::{Value, json};

use super::debian;
use super::elf::read_static_program;
use super::names;
use super::oci::Image;
use super::packages::{PackageLayer, PackageSet, Unpacked};
use super::tree::{Tree, sha256_hex};
use super::{ImageError, ImageInputs};

/// To be raised when the way an image is put together changes without its inputs.
const FORMAT: u32 = 3;
/// Where programs are looked for in every image.
pub const PATH_ENV: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
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
    /// What it runs on.
    pub platform: Platform,
    /// The `config` object of the image.
    pub config: Value,
    /// Layers, lowest first.
    pub layers: Vec<Layer>,
}

/// A layer of a recipe.
pub enum Layer {
    /// Cheap to have.
    Ready(Tree),
    /// From packages, unpacked when an image is really made.
    Packages(Rc<PackageLayer>),
}

/// What images run on: the machine they are made on.
#[derive(Debug, Clone, Copy)]
pub struct Platform {
    /// OCI's name of the architecture.
    pub oci: &'static str,
    /// Debian's name of its library folder.
    pub triplet: &'static str,
    /// Path of the dynamic loader.
    pub loader: &'static str,
}

impl Platform {
    /// Tells, or says that there are no images for it.
    pub fn of_this_machine() -> Result<Self, ImageError> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self { oci: "amd64", triplet: "x86_64-linux-gnu", loader: "lib64/ld-linux-x86-64.so.2" }),
            "aarch64" => Ok(Self { oci: "arm64", triplet: "aarch64-linux-gnu", loader: "lib/ld-linux-aarch64.so.1" }),
            other => Err(ImageError::Architecture(other)),
        }
    }
}

/// The images that every node has from the start.
pub fn base(inputs: &ImageInputs, debs: &Path) -> Result<Vec<Recipe>, ImageError> {
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
        layers: vec![Layer::Ready(layer)],
    })
}

fn busybox(platform: Platform, base: Tree) -> Recipe {
    Recipe {
        name: "busybox",
        names: names::busybox(),
        platform,
        config: json!({ "Env": [PATH_ENV], "Cmd": ["sh"] }),
        layers: vec![Layer::Ready(base)],
    }
}

fn nginx(platform: Platform, base: Tree, debs: &Path) -> Result<Recipe, ImageError> {
    let packages = PackageSet::fetch(&["nginx", "nginx-common"], debs)?;
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
        layers: vec![
            Layer::Ready(base),
            Layer::Packages(PackageLayer::new(&packages, platform, nginx_files)),
            Layer::Ready(layer),
        ],
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
        layers: vec![Layer::Ready(base), Layer::Ready(layer)],
    })
}

/// A small userland: busybox under all its names, accounts, the usual folders.
pub fn busybox_layer(program: &Path) -> Result<Tree, ImageError> {
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

/// `/etc/passwd` with more lines.
pub fn accounts(more: &str) -> String {
    format!(
        "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\nwww-data:x:33:33:www-data:/var/www:/bin/false\n\
         {more}nobody:x:65534:65534:nobody:/home:/bin/false\n"
    )
}

/// `/etc/group` with more lines.
pub fn groups(more: &str) -> String {
    format!("root:x:0:\ndaemon:x:1:\nwww-data:x:33:\n{more}nogroup:x:65534:\n")
}

impl Recipe {
    /// A hash of all inputs, in hex.
    pub fn key(&self) -> Result<String, ImageError> {
        let mut parts = vec![format!("{FORMAT} {} {} {}", self.platform.oci, self.config, self.names.join(" "))];
        for layer in &self.layers {
            match layer {
                Layer::Ready(tree) => {
                    let tar = tree.to_tar().map_err(ImageError::io("lay out", Path::new(self.name)))?;
                    parts.push(sha256_hex(&tar));
                }
                Layer::Packages(layer) => parts.extend(layer.inputs()),
            }
        }
        Ok(sha256_hex(parts.join("\n").as_bytes()))
    }

    /// Does the dear part and hands out the image.
    pub fn finish(self) -> Result<Image, ImageError> {
        let layers = self.layers.into_iter().map(|layer| match layer {
            Layer::Ready(tree) => Ok(tree),
            Layer::Packages(layer) => layer.tree(),
        });
        let layers = layers.collect::<Result<_, _>>()?;
        Ok(Image { names: self.names, architecture: self.platform.oci, config: self.config, layers })
    }
}

/// nginx, the libraries it needs and its own data files.
fn nginx_files(packages: &Unpacked<'_>) -> Result<Tree, ImageError> {
    let mut layer = Tree::default();
    packages.copy(&mut layer, "usr/sbin/nginx", 0o755)?;
    packages.add_libraries(&mut layer, &["usr/sbin/nginx".to_owned()])?;
    for file in ["mime.types", "fastcgi_params", "scgi_params", "uwsgi_params"] {
        packages.copy(&mut layer, &format!("etc/nginx/{file}"), 0o644)?;
    }
    packages.copy(&mut layer, "usr/share/nginx/html/index.html", 0o644)?;
    layer.file("usr/share/nginx/html/50x.html", 0o644, ERROR_PAGE);
    Ok(layer)
}

const ERROR_PAGE: &str =
    "<!DOCTYPE html>\n<html>\n<head><title>Error</title></head>\n<body><h1>An error occurred.</h1></body>\n</html>\n";
