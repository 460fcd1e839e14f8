//! Images of applications: redis with a follower, Python, the guestbook's front end.
//!
//! They are made beside the cluster's start and pulled by the nodes that need them, so that a lab without them does not wait.

use std::path::Path;
use std::rc::Rc;

use serde_json::json;

use super::ImageError;
use super::names;
use super::packages::{PackageLayer, PackageSet, Unpacked};
use super::recipes::{Layer, PATH_ENV, Platform, Recipe, accounts, busybox_layer, groups};
use super::tree::Tree;

const REDIS_ENTRYPOINT: &str = include_str!("redis/docker-entrypoint.sh");
const REDIS_FOLLOW: &str = include_str!("redis/follow.sh");
const GUESTBOOK: &str = include_str!("guestbook/guestbook.py");

/// User and group of redis in upstream's image.
const REDIS_ID: u32 = 999;
const REDIS_PORT: &str = "6379/tcp";
/// Version of Debian's Python, which is part of its paths.
const PYTHON: &str = "python3.11";
const LIBRARY: &str = "usr/lib/python3.11";
/// Parts of the standard library that no server in a container uses: tests, window systems, the interactive help's text.
const PYTHON_UNUSED: &[&str] = &[
    "test/",
    "idlelib/",
    "tkinter/",
    "turtledemo/",
    "turtle.py",
    "lib2to3/",
    "pydoc_data/",
    "ensurepip/",
    "unittest/test/",
];
/// Extension modules that are left out with what they are linked with: terminals, sound, old databases, East Asian codecs, tests.
const MODULES_UNUSED: &[&str] = &[
    "_codecs_",
    "_ctypes_test",
    "_curses",
    "_dbm",
    "_gdbm",
    "_test",
    "_tkinter",
    "_xx",
    "audioop",
    "nis",
    "ossaudiodev",
    "readline",
    "xx",
];

/// The images of applications.
pub fn all(busybox: &Path, debs: &Path) -> Result<Vec<Recipe>, ImageError> {
    let platform = Platform::of_this_machine()?;
    let base = busybox_layer(busybox)?;
    let roots = ["redis-server", "redis-tools", "python3.11-minimal", "libpython3.11-stdlib"];
    let packages = PackageSet::fetch(&roots, debs)?;
    let redis = PackageLayer::new(&packages, platform, redis_files);
    let python = PackageLayer::new(&packages, platform, python_files);
    Ok(vec![
        redis_server(platform, &base, &redis),
        redis_follower(platform, &base, &redis, "redis-follower", "redis-master", names::redis_follower()),
        redis_follower(platform, &base, &redis, "redis-follower-gke", "redis-leader", names::redis_follower_gke()),
        python_base(platform, &base, &python),
        guestbook(platform, &base, &python),
    ])
}

fn redis_accounts() -> Tree {
    let mut layer = Tree::default();
    layer.file("etc/passwd", 0o644, accounts(&format!("redis:x:{REDIS_ID}:{REDIS_ID}::/data:/bin/false\n")));
    layer.file("etc/group", 0o644, groups(&format!("redis:x:{REDIS_ID}:\n")));
    // For root as well as for whatever user a pod asks for.
    layer.dir("data", 0o1777);
    layer
}

fn redis_server(platform: Platform, base: &Tree, redis: &Rc<PackageLayer>) -> Recipe {
    let mut layer = redis_accounts();
    layer.file("usr/local/bin/docker-entrypoint.sh", 0o755, REDIS_ENTRYPOINT);
    Recipe {
        name: "redis",
        names: names::redis(),
        platform,
        config: json!({
            "Env": [PATH_ENV],
            "Entrypoint": ["docker-entrypoint.sh"],
            "Cmd": ["redis-server"],
            "ExposedPorts": { REDIS_PORT: {} },
            "WorkingDir": "/data",
        }),
        layers: vec![Layer::Ready(base.clone()), Layer::Packages(Rc::clone(redis)), Layer::Ready(layer)],
    }
}

fn redis_follower(
    platform: Platform,
    base: &Tree,
    redis: &Rc<PackageLayer>,
    name: &'static str,
    leader: &str,
    names: Vec<String>,
) -> Recipe {
    let mut layer = redis_accounts();
    layer.file("run.sh", 0o755, REDIS_FOLLOW);
    Recipe {
        name,
        names,
        platform,
        config: json!({
            "Env": [PATH_ENV, format!("REDIS_LEADER={leader}")],
            "Cmd": ["/run.sh"],
            "ExposedPorts": { REDIS_PORT: {} },
            "WorkingDir": "/data",
        }),
        layers: vec![Layer::Ready(base.clone()), Layer::Packages(Rc::clone(redis)), Layer::Ready(layer)],
    }
}

fn python_base(platform: Platform, base: &Tree, python: &Rc<PackageLayer>) -> Recipe {
    Recipe {
        name: "python",
        names: names::python(),
        platform,
        config: json!({ "Env": [PATH_ENV, "LANG=C.UTF-8"], "Cmd": ["python3"] }),
        layers: vec![Layer::Ready(base.clone()), Layer::Packages(Rc::clone(python))],
    }
}

fn guestbook(platform: Platform, base: &Tree, python: &Rc<PackageLayer>) -> Recipe {
    let mut layer = Tree::default();
    layer.file("app/guestbook.py", 0o644, GUESTBOOK);
    Recipe {
        name: "guestbook",
        names: names::guestbook(),
        platform,
        config: json!({
            "Env": [PATH_ENV, "LANG=C.UTF-8"],
            "Cmd": ["python3", "/app/guestbook.py"],
            "ExposedPorts": { "80/tcp": {} },
            "WorkingDir": "/app",
        }),
        layers: vec![Layer::Ready(base.clone()), Layer::Packages(Rc::clone(python)), Layer::Ready(layer)],
    }
}

/// Server and command line of redis, which tells by the name it is called by what it shall be.
fn redis_files(packages: &Unpacked<'_>) -> Result<Tree, ImageError> {
    let mut layer = Tree::default();
    for program in ["redis-check-rdb", "redis-cli", "redis-benchmark"] {
        packages.copy(&mut layer, &format!("usr/bin/{program}"), 0o755)?;
    }
    for name in ["redis-server", "redis-check-aof", "redis-sentinel"] {
        layer.link(&format!("usr/bin/{name}"), "redis-check-rdb");
    }
    let programs = ["usr/bin/redis-check-rdb", "usr/bin/redis-cli", "usr/bin/redis-benchmark"].map(ToOwned::to_owned);
    packages.add_libraries(&mut layer, &programs)?;
    Ok(layer)
}

/// The interpreter and what servers use of its library, compiled: without that every container compiles for itself at its start.
fn python_files(packages: &Unpacked<'_>) -> Result<Tree, ImageError> {
    let mut layer = Tree::default();
    let interpreter = format!("usr/bin/{PYTHON}");
    packages.copy(&mut layer, &interpreter, 0o755)?;
    for name in ["usr/bin/python3", "usr/bin/python", "usr/local/bin/python3", "usr/local/bin/python"] {
        layer.link(name, &format!("/{interpreter}"));
    }
    compile(packages, &interpreter)?;
    let mut linked = vec![interpreter];
    for file in packages.files(LIBRARY)? {
        let name = &file[LIBRARY.len() + 1..];
        let module = name.strip_prefix("lib-dynload/");
        let unused = PYTHON_UNUSED.iter().any(|prefix| name.starts_with(prefix))
            || module.is_some_and(|module| MODULES_UNUSED.iter().any(|prefix| module.starts_with(prefix)));
        if unused {
            continue;
        }
        packages.copy(&mut layer, &file, 0o644)?;
        if module.is_some() {
            linked.push(file);
        }
    }
    packages.add_libraries(&mut layer, &linked)?;
    Ok(layer)
}

/// Compiles in a form that depends on the sources only, not on when and where it is done.
fn compile(packages: &Unpacked<'_>, interpreter: &str) -> Result<(), ImageError> {
    let (root, library) = (packages.root.display().to_string(), packages.path(LIBRARY).display().to_string());
    let mut arguments = vec!["-S", "-m", "compileall", "-q", "-q", "--invalidation-mode", "unchecked-hash"];
    arguments.extend(["-s", &root, "-p", "/", "-x", "/(test|lib2to3|pydoc_data|turtle)", &library]);
    packages.run(interpreter, &arguments, &[("PYTHONHOME", &packages.path("usr"))]).map(drop)
}
