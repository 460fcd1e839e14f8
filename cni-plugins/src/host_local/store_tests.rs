//! The folder: format, takeover from the reference, leftovers.

use std::fs;
use std::net::IpAddr;

use super::{Owner, Store};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn writes_what_the_reference_writes() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), "net").unwrap();
    store.reserve(ip("10.0.0.2"), &Owner::new("abc", "eth0")).unwrap();
    store.set_last(0, ip("10.0.0.2")).unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join("net").join(name)).unwrap();
    assert_eq!(read("10.0.0.2"), "abc\r\neth0");
    assert_eq!(read("last_reserved_ip.0"), "10.0.0.2");
    assert_eq!(store.last(0), Some(ip("10.0.0.2")));
    assert_eq!(store.last(1), None);
    store.unlock().sync(&[ip("10.0.0.2")]).unwrap();
}

#[test]
fn a_taken_address_cannot_be_reserved_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), "net").unwrap();
    store.reserve(ip("fd00::2"), &Owner::new("abc", "eth0")).unwrap();
    assert!(store.reserve(ip("fd00::2"), &Owner::new("def", "eth0")).is_err());
    assert_eq!(store.reservations().unwrap(), [(ip("fd00::2"), Owner::new("abc", "eth0"))]);
}

#[test]
fn reads_old_files_and_clears_empty_ones() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), "net").unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join("net").join(name), text).unwrap();
    write("10.0.0.3", "old-container\n");
    write("10.0.0.4", "");
    write("notes", "not an address");
    let found = store.reservations().unwrap();
    assert_eq!(found, [(ip("10.0.0.3"), Owner::new("old-container", ""))]);
    assert!(found[0].1.same(&Owner::new("old-container", "eth1")));
    assert!(!folder.path().join("net/10.0.0.4").exists());
}

#[test]
fn an_owner_is_a_container_and_an_interface() {
    let reserved = Owner::new("abc", "eth0");
    assert!(reserved.same(&Owner::new("abc", "eth0")));
    assert!(!reserved.same(&Owner::new("abc", "eth1")));
    assert!(!reserved.same(&Owner::new("abcd", "eth0")));
}
