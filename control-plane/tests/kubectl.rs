//! Sessions of the real kubectl with the real `control-plane` program, on loopback: API server, scheduler and controllers, with nodes
//! that only pretend, so that workloads become ready without a container runtime.
//!
//! A session is a file `kubectl/NAME.session`: what one types, and what upstream's kubectl and API server answer (`kubectl/session.rs`
//! tells the notation). One server serves one session. What the server does not do as upstream does yet is marked `## GAP` with its
//! reason there, and has to go on failing, so that the mark cannot outlive its reason.
//!
//! kubectl is `KEELSON_KUBECTL`, else the one that `./dev test` puts beside the labs, else one on PATH, of the version that the sessions are
//! written with or newer. `KEELSON_KUBECTL_WRITE=1` writes what was seen into the files where it differs; read it with care before you
//! believe it.

#[path = "kubectl/cluster.rs"]
mod cluster;
#[path = "../controllers/tests/support/hollow.rs"]
mod hollow;
#[path = "kubectl/session.rs"]
mod session;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

const NO_CORPUS: &str = "no corpus; set KEELSON_SHARED to the folder that holds it";

/// Files that sessions work on: `$FILES`.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubectl")
}

/// Upstream's files for tests of kubectl: `$CORPUS`.
fn corpus() -> Option<PathBuf> {
    let shared = std::env::var_os("KEELSON_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"), PathBuf::from);
    Some(shared.join("corpus/kubectl-cases")).filter(|folder| folder.is_dir())
}

/// Says so in spite of the test harness, which shows nothing of tests that pass, on a line of its own among its dots.
fn skip(test: &str, why: &str) -> anyhow::Result<()> {
    writeln!(std::io::stderr(), "\nSKIPPED {test}: {why}")?;
    Ok(())
}

fn play(name: &str) -> anyhow::Result<()> {
    let test = name.replace('-', "_");
    let needs_corpus = name.starts_with("corpus");
    let Some(kubectl) = cluster::kubectl() else {
        return skip(&test, &format!("no kubectl of version 1.{} or newer; set KEELSON_KUBECTL", cluster::MINOR));
    };
    let corpus = corpus();
    if needs_corpus && corpus.is_none() {
        return skip(&test, NO_CORPUS);
    }
    let cluster = cluster::Cluster::start(Path::new(env!("CARGO_BIN_EXE_control-plane")), &kubectl)?;
    let file = folder().join(format!("{name}.session"));
    session::play(&file, |command| cluster.run(command, corpus.as_deref()))
}

macro_rules! sessions {
    ($($name:ident => $file:literal),+ $(,)?) => {
        const SESSIONS: &[&str] = &[$($file),+];
        $(#[test] fn $name() -> anyhow::Result<()> { play($file) })+
    };
}

sessions! {
    apply => "apply",
    auth => "auth",
    corpus_custom => "corpus-custom",
    corpus_more => "corpus-more",
    corpus_objects => "corpus-objects",
    create => "create",
    delete => "delete",
    describe => "describe",
    drain => "drain",
    edit => "edit",
    explain => "explain",
    get => "get",
    policy => "policy",
    rollout => "rollout",
}

/// Neither a file that no test plays, nor a file of the corpus that no session names.
#[test]
fn every_file_is_used() -> anyhow::Result<()> {
    let mut texts = String::new();
    for entry in std::fs::read_dir(folder())? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".session")) else {
            continue;
        };
        ensure!(SESSIONS.contains(&name), "no test plays {name}.session");
        if name.starts_with("corpus") {
            texts.push_str(&std::fs::read_to_string(&path)?);
        }
    }
    let Some(corpus) = corpus() else {
        return skip("every_file_is_used", NO_CORPUS);
    };
    let mut unused = Vec::new();
    for entry in std::fs::read_dir(corpus)? {
        let name = entry?.file_name().into_string().ok().context("a name")?;
        if !texts.contains(&format!("$CORPUS/{name}")) {
            unused.push(name);
        }
    }
    unused.sort();
    ensure!(unused.is_empty(), "no session names these files of the corpus: {unused:?}");
    Ok(())
}
