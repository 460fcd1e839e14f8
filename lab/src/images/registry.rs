//! The registry of a node: hands the lab's images to containerd, under whatever registry a pod's image names.
//!
//! containerd is told to ask here for every registry (`certs.d/_default`), and then adds `?ns=HOST` to the request. Only pulling is
//! there, as the distribution specification has it: `/v2/`, manifests by name or digest, blobs by digest. One thread for each
//! connection, because containerd keeps a handful; no state but the folder, which is read anew for each name, so that images made
//! while it runs are found.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::store::{Found, Store};
use super::{APPS_STORE, BASE_STORE, ImageError};

/// Where every node's registry listens. Above the ephemeral ports and the node ports, so that nothing takes it by accident.
pub const ADDRESS: &str = "127.0.0.1:61500";
/// containerd opens a few connections for each pull; more at a time means that something is wrong.
const MOST_CONNECTIONS: usize = 64;
/// Longest request head.
const HEAD_LIMIT: u64 = 16 * 1024;
/// An idle connection is closed after this.
const IDLE: Duration = Duration::from_secs(60);

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    /// Whether this is a registry.
    Base,
    /// A manifest: full repository with its registry, and tag or digest.
    Manifest { repository: String, reference: String },
    /// A blob by digest.
    Blob(String),
    /// Nothing that is here.
    Nothing,
}

/// Serves the images below `folder` until the process ends.
pub fn serve(folder: &Path, address: SocketAddr) -> Result<(), ImageError> {
    let listener = TcpListener::bind(address).map_err(ImageError::io("listen for", folder))?;
    println!("registry: {} on {address}", folder.display());
    let stores = Arc::new([Store::at(&folder.join(BASE_STORE)), Store::at(&folder.join(APPS_STORE))]);
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of file descriptors: wait for connections to end.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if open.load(Ordering::Relaxed) >= MOST_CONNECTIONS {
            continue;
        }
        open.fetch_add(1, Ordering::Relaxed);
        let (stores, open) = (Arc::clone(&stores), Arc::clone(&open));
        std::thread::spawn(move || {
            // A client that goes away in the middle is no matter of ours.
            let _ = connection(&stream, &*stores);
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
    Ok(())
}

fn connection(stream: &TcpStream, stores: &[Store]) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while let Some((method, target)) = read_head(&mut reader)? {
        let head_only = method == "HEAD";
        if !head_only && method != "GET" {
            return refuse(stream, "405 Method Not Allowed", "UNSUPPORTED", "this registry only hands out images");
        }
        match find(stores, &target) {
            Ok(Answer::Base) => respond(stream, "200 OK", "application/json", b"{}", head_only)?,
            Ok(Answer::File(found)) => send(stream, &found, head_only)?,
            Ok(Answer::Missing(code)) => {
                println!("registry: {method} {target}: not here");
                refuse(stream, "404 Not Found", code, "the lab has no such image; `lab images` lists those it has")?;
            }
            Err(error) => {
                eprintln!("registry: {method} {target}: {error}");
                return refuse(stream, "500 Internal Server Error", "UNKNOWN", &error.to_string());
            }
        }
    }
    Ok(())
}

enum Answer {
    Base,
    File(Found),
    Missing(&'static str),
}

fn find(stores: &[Store], target: &str) -> Result<Answer, ImageError> {
    match parse(target) {
        Wanted::Base => Ok(Answer::Base),
        Wanted::Blob(digest) => Ok(stores
            .iter()
            .find_map(|store| store.blob(&digest))
            .map_or(Answer::Missing("BLOB_UNKNOWN"), Answer::File)),
        Wanted::Manifest { repository, reference } => {
            for store in stores {
                if let Some(found) = store.manifest(&repository, &reference)? {
                    return Ok(Answer::File(found));
                }
            }
            Ok(Answer::Missing("MANIFEST_UNKNOWN"))
        }
        Wanted::Nothing => Ok(Answer::Missing("NAME_UNKNOWN")),
    }
}

fn parse(target: &str) -> Wanted {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let Some(rest) = path.strip_prefix("/v2/") else { return Wanted::Nothing };
    if rest.is_empty() {
        return Wanted::Base;
    }
    if let Some((_, digest)) = rest.rsplit_once("/blobs/") {
        return Wanted::Blob(digest.to_owned());
    }
    let Some((name, reference)) = rest.rsplit_once("/manifests/") else { return Wanted::Nothing };
    let registry = query.split('&').find_map(|pair| pair.strip_prefix("ns=")).unwrap_or("docker.io");
    // A port's colon is the only thing in a registry's name that is escaped.
    let registry = registry.replace("%3A", ":");
    Wanted::Manifest { repository: format!("{registry}/{name}"), reference: reference.to_owned() }
}

/// Method and target of the next request; `None` at the end of the connection.
fn read_head(reader: &mut impl BufRead) -> io::Result<Option<(String, String)>> {
    let mut reader = reader.take(HEAD_LIMIT);
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut line = String::new();
    while line.trim_end().len() + usize::from(line.is_empty()) > 0 {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
    }
    let mut words = first.split_whitespace().map(ToOwned::to_owned);
    Ok(words.next().zip(words.next()))
}

fn send(mut stream: &TcpStream, found: &Found, head_only: bool) -> io::Result<()> {
    let mut file = File::open(&found.file)?;
    let length = file.metadata()?.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {length}\r\nDocker-Content-Digest: {}\r\n\r\n",
        found.media_type, found.digest
    );
    stream.write_all(head.as_bytes())?;
    if !head_only {
        io::copy(&mut file, &mut stream)?;
    }
    Ok(())
}

fn refuse(stream: &TcpStream, status: &str, code: &str, message: &str) -> io::Result<()> {
    let body = serde_json::json!({ "errors": [{ "code": code, "message": message }] });
    respond(stream, status, "application/json", body.to_string().as_bytes(), false)
}

fn respond(mut stream: &TcpStream, status: &str, kind: &str, body: &[u8], head_only: bool) -> io::Result<()> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut answer = head.into_bytes();
    if !head_only {
        answer.extend_from_slice(body);
    }
    stream.write_all(&answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::oci::Image;
    use crate::images::tree::Tree;

    #[test]
    fn paths_are_names_in_the_registry_that_was_meant() {
        let manifest = |repository: &str, reference: &str| Wanted::Manifest {
            repository: repository.to_owned(),
            reference: reference.to_owned(),
        };
        assert_eq!(parse("/v2/"), Wanted::Base);
        assert_eq!(parse("/v2/library/redis/manifests/7?ns=docker.io"), manifest("docker.io/library/redis", "7"));
        assert_eq!(parse("/v2/a/manifests/b/manifests/c?x=y&ns=h%3A5000"), manifest("h:5000/a/manifests/b", "c"));
        assert_eq!(parse("/v2/library/redis/blobs/sha256:00?ns=x"), Wanted::Blob("sha256:00".to_owned()));
        assert_eq!(parse("/etc/passwd"), Wanted::Nothing);
        assert_eq!(parse("/v2/library/redis/tags/list"), Wanted::Nothing);
    }

    #[test]
    fn a_head_ends_with_an_empty_line() {
        let mut wire: &[u8] = b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\nHEAD /v2/a HTTP/1.1\r\n\r\n";
        assert_eq!(read_head(&mut wire).unwrap(), Some(("GET".to_owned(), "/v2/".to_owned())));
        assert_eq!(read_head(&mut wire).unwrap(), Some(("HEAD".to_owned(), "/v2/a".to_owned())));
        assert_eq!(read_head(&mut wire).unwrap(), None);
        assert_eq!(read_head(&mut &b"GET /v2/ HTTP/1.1\r\nHost"[..]).unwrap(), None);
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn an_image_is_pulled_by_name_and_by_digest_and_goes_with_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(&folder.path().join(APPS_STORE));
        let image = |text: &str| {
            let mut layer = Tree::default();
            layer.file("file", 0o644, text);
            let names = vec!["docker.io/library/redis:7".to_owned()];
            Image { names, architecture: "amd64", config: serde_json::json!({}), layers: vec![layer] }
        };
        store.put("redis", "0011223344556677", &image("one")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let path = folder.path().to_owned();
        std::thread::spawn(move || serve(&path, address));
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            assert!(std::time::Instant::now() < deadline, "the registry does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        let get = |path: &str| ask(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        let answer = get("/v2/library/redis/manifests/7?ns=docker.io");
        let digest = answer.lines().find_map(|line| line.strip_prefix("Docker-Content-Digest: ")).unwrap().to_owned();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"layers\""), "{answer}");
        assert!(get(&format!("/v2/library/redis/manifests/{digest}?ns=docker.io")).contains("\"layers\""));
        let manifest: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        let blob = manifest["layers"][0]["digest"].as_str().unwrap();
        assert!(get(&format!("/v2/library/redis/blobs/{blob}")).contains("one"));
        assert!(get("/v2/library/redis/manifests/8?ns=docker.io").starts_with("HTTP/1.1 404"));
        assert!(get("/v2/library/redis/manifests/7?ns=quay.io").contains("MANIFEST_UNKNOWN"));
        assert!(get("/v2/library/redis/blobs/sha256:../../redis").contains("BLOB_UNKNOWN"));

        store.put("redis", "8899aabbccddeeff", &image("two")).unwrap();
        store.sweep().unwrap();
        assert!(store.blob(blob).is_none() && store.blob(&digest).is_none());
        assert!(get("/v2/library/redis/manifests/7?ns=docker.io").starts_with("HTTP/1.1 200"));
    }
}
