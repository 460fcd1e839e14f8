//! Unit tests of the builder: determinism, the cache, the refusal of dynamic programs.

use std::fs;
use std::path::Path;

use super::elf::interpreter;
use super::tree::Tree;
use super::{ImageError, debian, elf, names, oci, stale};

#[test]
fn a_tree_writes_parents_first_and_the_same_bytes_whatever_the_order() {
    let mut one = Tree::default();
    one.file("a/b/file", 0o644, "x");
    one.dir("a", 0o700);
    let mut two = Tree::default();
    two.dir("a", 0o700);
    two.file("a/b/file", 0o644, "x");
    assert_eq!(one.to_tar().unwrap(), two.to_tar().unwrap());

    let tar = one.to_tar().unwrap();
    let mut archive = tar::Archive::new(tar.as_slice());
    let entries: Vec<(String, u32, u64)> = archive
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            (entry.path().unwrap().display().to_string(), header.mode().unwrap(), header.mtime().unwrap())
        })
        .collect();
    let expected = [("a/", 0o700, 0), ("a/b/", 0o755, 0), ("a/b/file", 0o644, 0)];
    assert_eq!(entries, expected.map(|(path, mode, time)| (path.to_owned(), mode, time)));
}

#[test]
fn an_archive_names_its_image_once_per_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut layer = Tree::default();
    layer.file("pause", 0o755, "program");
    let names = vec!["registry.k8s.io/pause:3.10".to_owned(), "registry.k8s.io/pause:3.9".to_owned()];
    let image =
        oci::Image { names: names.clone(), architecture: "amd64", config: serde_json::json!({}), layers: vec![layer] };
    let path = folder.path().join("image.tar");
    oci::write_archive(&path, &image).unwrap();

    let mut archive = tar::Archive::new(fs::File::open(&path).unwrap());
    let index = archive
        .entries()
        .unwrap()
        .map(Result::unwrap)
        .find(|entry| entry.path().unwrap() == Path::new("index.json"))
        .unwrap();
    let index: serde_json::Value = serde_json::from_reader(index).unwrap();
    let found: Vec<&str> = index["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|manifest| manifest["annotations"]["io.containerd.image.name"].as_str().unwrap())
        .collect();
    assert_eq!(found, names);
}

#[test]
fn a_dynamic_program_is_refused_with_its_loader() {
    // The test program itself is linked dynamically.
    let me = std::env::current_exe().unwrap();
    assert!(interpreter(&fs::read(&me).unwrap()).unwrap().unwrap().contains("ld-linux"));
    assert!(matches!(elf::read_static_program(&me), Err(ImageError::NotStatic { .. })));
    assert!(interpreter(b"#!/bin/sh\n").is_err());
    assert!(interpreter(b"\x7fELF\x02\x01").is_err());
}

#[test]
fn only_archives_of_the_same_image_are_stale() {
    let folder = tempfile::tempdir().unwrap();
    let files = [
        "nginx-0011223344556677.tar",
        "nginx-slim-0011223344556677.tar",
        "nginx-notes.tar",
        "pause-0011223344556677.tar",
    ];
    for file in files {
        fs::write(folder.path().join(file), "").unwrap();
    }
    let keep = folder.path().join("nginx-8899aabbccddeeff.tar");
    fs::write(&keep, "").unwrap();
    stale(folder.path(), "nginx", ".tar", &keep).unwrap();
    let left: Vec<bool> = files.iter().map(|file| folder.path().join(file).exists()).collect();
    assert_eq!(left, [false, true, true, true]);
    assert!(keep.exists());
}

#[test]
fn dependencies_are_the_first_library_of_each_alternative() {
    let record = "Package: nginx\nPre-Depends: libfoo0 (>= 1)\nDepends: libc6 (>= 2.34), iproute2, libssl3:any | libssl1.1, zlib1g\n";
    assert_eq!(debian::library_dependencies(record), ["libfoo0", "libc6", "libssl3", "zlib1g"]);
}

#[test]
fn names_are_full_unique_and_leave_out_the_tag_that_must_fail() {
    let all: Vec<String> = [
        names::pause(),
        names::busybox(),
        names::nginx(),
        names::test_server(),
        names::redis(),
        names::redis_follower(),
        names::redis_follower_gke(),
        names::python(),
        names::guestbook(),
    ]
    .concat();
    let unique: std::collections::BTreeSet<&String> = all.iter().collect();
    assert_eq!(unique.len(), all.len());
    assert!(all.iter().all(|name| name.split('/').next().unwrap().contains('.') && name.contains(':')));
    assert!(all.contains(&"docker.io/library/nginx:1.14.2".to_owned()));
    assert!(!all.contains(&"docker.io/library/nginx:1.161".to_owned()));
}

#[test]
fn nodes_have_every_image_under_few_names_from_the_start() {
    assert_eq!(names::imported(&names::pause()), names::pause());
    assert_eq!(names::imported(&names::test_server()), names::test_server());
    let nginx = names::imported(&names::nginx());
    assert_eq!(nginx, ["latest", "1.14.2", "1.25", "1.28"].map(|tag| format!("docker.io/library/nginx:{tag}")));
    let busybox = names::imported(&names::busybox());
    assert!(busybox.contains(&"docker.io/library/busybox:1.28".to_owned()) && busybox.len() < 6, "{busybox:?}");
}
