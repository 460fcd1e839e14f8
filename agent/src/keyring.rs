//! Credentials for registries in docker's configuration format, from secrets of a pod and from the node's own files. Pure but for
//! [`of_node`].
//!
//! A key is a host with an optional port and path (`registry.example:5000/team`); labels of the host may hold `*`. The longest
//! key that fits comes first. Upstream counterpart: `pkg/credentialprovider/keyring.go`.

use std::path::{Path, PathBuf};

use base64::Engine;
use k8s_cri::v1::AuthConfig;
use serde_json::Value;

/// The registry of names without one.
const DEFAULT_REGISTRY: &str = "index.docker.io";
/// Names of that registry.
const DEFAULT_NAMES: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// Host with port, and path with its leading slash (or nothing).
fn split(location: &str) -> (&str, &str) {
    location.find('/').map_or((location, ""), |at| location.split_at(at))
}

/// The image's registry and path: `nginx` is `index.docker.io/library/nginx`, as docker has it.
fn location(image: &str) -> (String, String) {
    let (head, tail) = split(image);
    let named = head.contains(['.', ':']) || head == "localhost";
    match (named && !tail.is_empty(), DEFAULT_NAMES.contains(&head)) {
        (true, false) => (head.to_owned(), tail.to_owned()),
        (true, true) => (DEFAULT_REGISTRY.to_owned(), tail.to_owned()),
        (false, _) if tail.is_empty() => (DEFAULT_REGISTRY.to_owned(), format!("/library/{image}")),
        (false, _) => (DEFAULT_REGISTRY.to_owned(), format!("/{image}")),
    }
}

/// A key without scheme and without the API's version, which old clients wrote.
fn key(text: &str) -> (String, String) {
    let text = text.trim_start_matches("https://").trim_start_matches("http://");
    let (host, path) = split(text);
    let path = ["/v1/", "/v2/"].iter().find(|version| path.starts_with(**version)).map_or(path, |_| &path[3..]);
    let host = if DEFAULT_NAMES.contains(&host) { DEFAULT_REGISTRY } else { host };
    (host.to_owned(), path.trim_end_matches('/').to_owned())
}

/// `*` stands for any run of characters.
fn label_fits(pattern: &str, label: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == label,
        Some((before, after)) => label
            .strip_prefix(before)
            .is_some_and(|rest| (0..=rest.len()).any(|at| rest.is_char_boundary(at) && label_fits(after, &rest[at..]))),
    }
}

fn host_fits(pattern: &str, host: &str) -> bool {
    fn port(text: &str) -> (&str, Option<&str>) {
        text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)))
    }
    let ((pattern, wanted), (host, given)) = (port(pattern), port(host));
    let (patterns, labels): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), host.split('.').collect());
    wanted == given && patterns.len() == labels.len() && patterns.iter().zip(labels).all(|(p, l)| label_fits(p, l))
}

/// No address goes with it, as with upstream: it is for this one pull, and containerd takes `HOST:PORT` for no URL.
fn auth(entry: &Value) -> AuthConfig {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (mut username, mut password) = (text("username"), text("password"));
    if username.is_empty()
        && let Ok(bytes) = base64::engine::general_purpose::STANDARD.decode(text("auth"))
        && let Some((name, secret)) = String::from_utf8_lossy(&bytes).split_once(':')
    {
        (username, password) = (name.to_owned(), secret.trim_end_matches('\0').to_owned());
    }
    AuthConfig { username, password, identity_token: text("identitytoken"), ..AuthConfig::default() }
}

/// The credentials of a docker configuration (`config.json` or `.dockercfg`) that fit an image, the closest first.
#[must_use]
pub fn lookup(file: &[u8], image: &str) -> Vec<AuthConfig> {
    let Ok(json) = serde_json::from_slice::<Value>(file) else { return Vec::new() };
    let map = json.get("auths").unwrap_or(&json).as_object().cloned().unwrap_or_default();
    let (host, path) = location(image);
    let mut found: Vec<(String, AuthConfig)> = map
        .iter()
        .filter_map(|(text, entry)| {
            let (pattern, prefix) = key(text);
            let fits = host_fits(&pattern, &host) && path.starts_with(&prefix);
            fits.then(|| (format!("{pattern}{prefix}"), auth(entry)))
        })
        .collect();
    found.sort_by(|a, b| b.0.cmp(&a.0));
    found.into_iter().map(|(_, auth)| auth).collect()
}

/// The node's own credentials for an image: the files that upstream reads, read anew each time, because operators change them.
#[must_use]
pub fn of_node(root_dir: &Path, image: &str) -> Vec<AuthConfig> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let docker = home.map(|home| home.join(".docker"));
    let mut folders = vec![root_dir.to_owned()];
    folders.extend(docker);
    folders.push("/.docker".into());
    // The first file that is there counts.
    let file = folders.iter().find_map(|folder| std::fs::read(folder.join("config.json")).ok());
    file.map(|bytes| lookup(&bytes, image)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(file: &str, image: &str) -> Vec<String> {
        lookup(file.as_bytes(), image).into_iter().map(|auth| auth.username).collect()
    }

    #[test]
    fn credentials_fit_their_registry() {
        let file = r#"{"auths": {"https://index.docker.io/v1/": {"auth": "YTpi"}, "reg.example:5000": {"username": "u", "password": "p"},
            "reg.example:5000/team": {"username": "t"}, "*.wild.example": {"username": "w"}, "docker.io/library/redis": {"username": "r"}}}"#;
        assert_eq!(lookup(file.as_bytes(), "nginx")[0].password, "b");
        for (image, expected) in [
            ("nginx:1", vec!["a"]),
            ("docker.io/library/nginx", vec!["a"]),
            ("redis", vec!["r", "a"]),
            ("reg.example:5000/x:1", vec!["u"]),
            ("reg.example:5000/team/x@sha256:0", vec!["t", "u"]),
            ("reg.example/x", vec![]),
            ("a.wild.example/x", vec!["w"]),
            ("a.b.wild.example/x", vec![]),
            ("other.example/x", vec![]),
        ] {
            assert_eq!(users(file, image), expected, "{image}");
        }
        assert!(users("{", "x").is_empty());
        assert_eq!(users(r#"{"old.example": {"auth": "YTpi"}}"#, "old.example/x"), ["a"]);
    }

    #[test]
    fn the_nodes_own_file_is_read() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("config.json"), r#"{"auths": {"reg.example": {"username": "n"}}}"#).unwrap();
        assert_eq!(of_node(root.path(), "reg.example/x")[0].username, "n");
        assert!(of_node(root.path(), "other.example/x").is_empty());
    }
}
