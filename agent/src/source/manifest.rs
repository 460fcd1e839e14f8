//! From a manifest's text to static pods: decoding, checks with positions, upstream's defaults and identity.
//!
//! Upstream counterpart: `pkg/kubelet/config/common.go` and the API defaults of a pod.

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod, Toleration};
use kube_common::config::{self, ConfigError, Document, Mistake};
use kube_common::yaml::PathSegment;
use sha2::{Digest, Sha256};

use crate::images;
use crate::pod;

/// Largest manifest (upstream `maxConfigLength`).
pub const MAX_BYTES: usize = 10 << 20;

/// What a manifest holds.
#[derive(Debug, Default)]
pub struct Manifest {
    /// Its pods, ready to run.
    pub pods: Vec<Pod>,
    /// Fields nobody knows; upstream ignores them silently, we say so.
    pub unknown: Vec<String>,
}

/// Reads a manifest.
///
/// # Errors
/// Every mistake with file, line, column and field.
pub fn parse(path: &Path, text: &str, node: &str, seen: &str) -> Result<Manifest, ConfigError> {
    let documents = config::load_documents(path, text)?;
    let mut out = Manifest::default();
    let mut found = Vec::new();
    for document in &documents {
        match decode(document, &mut out.unknown) {
            Ok(pods) => {
                for (mut pod, prefix) in pods {
                    let mistakes = check(document, &pod, &prefix);
                    if mistakes.is_empty() {
                        identify(&mut pod, path, node, seen);
                        out.pods.push(pod);
                    } else {
                        found.extend(mistakes);
                    }
                }
            }
            Err(mistakes) => found.extend(mistakes),
        }
    }
    if found.is_empty() { Ok(out) } else { Err(config::mistakes(path, found).into()) }
}

type Located = (Pod, Vec<PathSegment>);

fn decode(document: &Document, unknown: &mut Vec<String>) -> Result<Vec<Located>, Vec<Mistake>> {
    let json = document.node.to_json();
    match (document.api_version.as_str(), document.kind.as_str()) {
        ("v1", "Pod") => {
            note_unknown(document, &json, &[], unknown);
            Ok(vec![(config::decode_value::<Pod>(&document.node, json)?, Vec::new())])
        }
        ("v1", "PodList" | "List") => {
            let items = json.get("items").and_then(|i| i.as_array()).cloned().unwrap_or_default();
            let mut out = Vec::new();
            for (index, item) in items.into_iter().enumerate() {
                let prefix = vec![PathSegment::Key("items".into()), PathSegment::Index(index)];
                note_unknown(document, &item, &prefix, unknown);
                let pod = serde_json::from_value(item).map_err(|e| vec![document.mistake(&prefix, e.to_string())])?;
                out.push((pod, prefix));
            }
            Ok(out)
        }
        (api, kind) => {
            Err(vec![document.mistake_at("kind", format!("a manifest must be a v1 Pod, this is {api:?} {kind:?}"))])
        }
    }
}

fn note_unknown(document: &Document, json: &serde_json::Value, prefix: &[PathSegment], unknown: &mut Vec<String>) {
    let mut ignored = Vec::new();
    let _: Result<Pod, _> = serde_ignored::deserialize(json, |path| ignored.push(path.to_string()));
    for field in ignored {
        let mut path = prefix.to_vec();
        path.extend(field.split('.').filter(|p| *p != "?").map(|part| match part.parse() {
            Ok(index) => PathSegment::Index(index),
            Err(_) => PathSegment::Key(part.to_owned()),
        }));
        let mistake = document.mistake(&path, "unknown field");
        unknown.push(format!(
            "{}:{}: {}: {}",
            document.path.display(),
            mistake.position,
            mistake.field,
            mistake.message
        ));
    }
}

/// A DNS label: what container and port names are made of.
fn is_label(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

struct Checker<'a> {
    document: &'a Document,
    prefix: &'a [PathSegment],
    found: Vec<Mistake>,
}

impl Checker<'_> {
    fn fail(&mut self, at: &str, message: impl Into<String>) {
        let mut path = self.prefix.to_vec();
        for part in at.split(['.', '[', ']']).filter(|p| !p.is_empty()) {
            path.push(match part.parse() {
                Ok(index) => PathSegment::Index(index),
                Err(_) => PathSegment::Key(part.to_owned()),
            });
        }
        self.found.push(self.document.mistake(&path, message));
    }
}

/// Checks what the API server would have checked and what a static pod may not have.
fn check(document: &Document, pod: &Pod, prefix: &[PathSegment]) -> Vec<Mistake> {
    let mut c = Checker { document, prefix, found: Vec::new() };
    let name = pod::name(pod);
    if name.is_empty() || name.len() > 253 || !name.split('.').all(is_label) {
        c.fail("metadata.name", format!("{name:?} must be a lower-case DNS name of 1 to 253 characters"));
    }
    let Some(spec) = &pod.spec else {
        c.fail("spec", "is missing");
        return c.found;
    };
    if spec.containers.is_empty() {
        c.fail("spec.containers", "must have at least one container");
    }
    if let Some(policy) = spec.restart_policy.as_deref().filter(|p| !["Always", "OnFailure", "Never"].contains(p)) {
        c.fail("spec.restartPolicy", format!("{policy:?} must be Always, OnFailure or Never"));
    }
    if spec.termination_grace_period_seconds.is_some_and(|g| g < 0) {
        c.fail("spec.terminationGracePeriodSeconds", "must not be negative");
    }
    if spec.service_account_name.as_deref().is_some_and(|s| !s.is_empty()) {
        c.fail("spec.serviceAccountName", "a static pod cannot use a service account");
    }
    if spec.resource_claims.as_ref().is_some_and(|r| !r.is_empty()) {
        c.fail("spec.resourceClaims", "a static pod cannot use resource claims");
    }
    let mut volumes = BTreeSet::new();
    for (i, v) in spec.volumes.iter().flatten().enumerate() {
        let at = format!("spec.volumes[{i}]");
        if !volumes.insert(v.name.clone()) {
            c.fail(&format!("{at}.name"), format!("{:?} is there twice", v.name));
        }
        for (used, field) in [
            (v.config_map.is_some(), "configMap"),
            (v.secret.is_some(), "secret"),
            (v.persistent_volume_claim.is_some(), "persistentVolumeClaim"),
            (v.projected.is_some(), "projected"),
        ] {
            if used {
                c.fail(&format!("{at}.{field}"), "a static pod cannot refer to API objects");
            }
        }
    }
    let mut names = BTreeSet::new();
    let lists = [("initContainers", pod::init_containers(pod)), ("containers", pod::main_containers(pod))];
    for (list, containers) in lists {
        for (i, container) in containers.iter().enumerate() {
            check_container(&mut c, &format!("spec.{list}[{i}]"), container, &mut names, &volumes);
        }
    }
    c.found
}

fn check_container(
    c: &mut Checker<'_>,
    at: &str,
    container: &Container,
    names: &mut BTreeSet<String>,
    volumes: &BTreeSet<String>,
) {
    let name = &container.name;
    if !is_label(name) {
        c.fail(&format!("{at}.name"), format!("{name:?} must be a lower-case DNS label of 1 to 63 characters"));
    } else if !names.insert(name.clone()) {
        c.fail(&format!("{at}.name"), format!("{name:?} is there twice"));
    }
    if container.image.as_deref().unwrap_or_default().is_empty() {
        c.fail(&format!("{at}.image"), "is missing");
    }
    for (i, port) in container.ports.iter().flatten().enumerate() {
        if !(1..=65_535).contains(&port.container_port) {
            let text = format!("{} must be 1 to 65535", port.container_port);
            c.fail(&format!("{at}.ports[{i}].containerPort"), text);
        }
        if port.host_port.is_some_and(|p| !(0..=65_535).contains(&p)) {
            c.fail(&format!("{at}.ports[{i}].hostPort"), "must be 0 to 65535");
        }
    }
    for (i, mount) in container.volume_mounts.iter().flatten().enumerate() {
        if !volumes.contains(&mount.name) {
            c.fail(&format!("{at}.volumeMounts[{i}].name"), format!("no volume is named {:?}", mount.name));
        }
        if !mount.mount_path.starts_with('/') {
            c.fail(&format!("{at}.volumeMounts[{i}].mountPath"), "must be an absolute path");
        }
    }
    for (i, env) in container.env.iter().flatten().enumerate() {
        let source = env.value_from.as_ref();
        if source.is_some_and(|s| s.config_map_key_ref.is_some() || s.secret_key_ref.is_some()) {
            c.fail(&format!("{at}.env[{i}].valueFrom"), "a static pod cannot refer to API objects");
        }
    }
    if container.env_from.as_ref().is_some_and(|e| !e.is_empty()) {
        c.fail(&format!("{at}.envFrom"), "a static pod cannot refer to API objects");
    }
    for (kind, map) in [
        ("requests", container.resources.as_ref().and_then(|r| r.requests.as_ref())),
        ("limits", container.resources.as_ref().and_then(|r| r.limits.as_ref())),
    ] {
        for (key, value) in map.into_iter().flatten() {
            if kube_common::quantity::Quantity::parse(&value.0).is_err() {
                let text = format!("{:?} is no quantity such as 100m or 1Gi", value.0);
                c.fail(&format!("{at}.resources.{kind}.{key}"), text);
            }
        }
    }
}

/// Upstream's identity and defaults of a static pod.
fn identify(pod: &mut Pod, path: &Path, node: &str, seen: &str) {
    if pod.metadata.uid.as_deref().unwrap_or_default().is_empty() {
        let mut hash = Sha256::new();
        hash.update(format!("host:{node}file:{}", path.display()));
        hash.update(serde_json::to_vec(&pod).unwrap_or_default());
        // Upstream's is an MD5: 32 hexadecimal digits.
        pod.metadata.uid = Some(hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect());
    }
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    pod.metadata.name = Some(format!("{}-{}", pod::name(pod), node.to_lowercase()));
    if pod.metadata.namespace.as_deref().unwrap_or_default().is_empty() {
        pod.metadata.namespace = Some("default".into());
    }
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(pod::CONFIG_HASH.into(), uid);
    annotations.insert(pod::CONFIG_SOURCE.into(), "file".into());
    annotations.insert(pod::CONFIG_SEEN.into(), seen.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node.to_owned());
    let tolerations = spec.tolerations.get_or_insert_default();
    let wanted =
        Toleration { operator: Some("Exists".into()), effect: Some("NoExecute".into()), ..Toleration::default() };
    if !tolerations.contains(&wanted) {
        tolerations.push(wanted);
    }
    spec.restart_policy.get_or_insert_with(|| "Always".into());
    spec.dns_policy.get_or_insert_with(|| "ClusterFirst".into());
    spec.termination_grace_period_seconds.get_or_insert(pod::DEFAULT_GRACE_SECONDS);
    spec.enable_service_links.get_or_insert(true);
    spec.security_context.get_or_insert_default();
    spec.scheduler_name.get_or_insert_with(|| "default-scheduler".into());
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let policy = images::policy(container).to_owned();
        container.image_pull_policy = Some(policy);
        container.termination_message_path.get_or_insert_with(|| "/dev/termination-log".into());
        container.termination_message_policy.get_or_insert_with(|| "File".into());
        for port in container.ports.iter_mut().flatten() {
            port.protocol.get_or_insert_with(|| "TCP".into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: a\n    image: busybox\n";

    fn parse_text(text: &str) -> Result<Manifest, String> {
        parse(Path::new("/m/web.yaml"), text, "Node1", "now").map_err(|e| e.to_string())
    }

    #[test]
    fn identity() {
        let m = parse_text(GOOD).unwrap();
        let p = &m.pods[0];
        assert_eq!(pod::name(p), "web-node1");
        assert_eq!(pod::uid(p).len(), 32);
        assert_eq!(pod::annotation(p, pod::CONFIG_SOURCE), Some("file"));
        assert!(pod::is_static(p) && !pod::is_mirror(p));
        assert_eq!(pod::uid(&parse_text(GOOD).unwrap().pods[0]), pod::uid(p));
        assert_ne!(pod::uid(&parse_text(&GOOD.replace("busybox", "nginx")).unwrap().pods[0]), pod::uid(p));
    }

    #[test]
    fn mistakes_have_lines_and_fields() {
        let e = parse_text("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: a\n    image: 5\n    ports: {}\n").unwrap_err();
        assert!(e.contains("/m/web.yaml:7") && e.contains("spec.containers[0].image"), "{e}");
        let e = parse_text(&GOOD.replace("    image: busybox\n", "    ports: [{containerPort: 0}]\n")).unwrap_err();
        assert!(e.contains("containerPort") && e.contains("spec.containers[0].image"), "{e}");
        let e = parse_text("kind: Deployment\napiVersion: apps/v1\n").unwrap_err();
        assert!(e.contains("must be a v1 Pod"), "{e}");
    }

    #[test]
    fn unknown_fields_are_told() {
        let m = parse_text(&GOOD.replace("    image", "    imagee: x\n    image")).unwrap();
        assert_eq!(m.unknown.len(), 1);
        assert!(m.unknown[0].contains("/m/web.yaml:7") && m.unknown[0].contains("imagee"), "{:?}", m.unknown);
    }
}
