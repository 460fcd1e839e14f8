//! From a manifest's text to static pods: decoding, checks with positions, upstream's defaults and identity.
//!
//! The checks are the API server's own (`keelson_kinds::static_pod`), and what only a static pod may not have. Upstream
//! counterpart: `pkg/kubelet/config/common.go` and the API defaults of a pod.

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Toleration};
use keelson_kinds::{names, static_pod};
use kube_common::config::{self, ConfigError, Document, Mistake};
use kube_common::yaml::{Node, PathSegment, Position, Value};
use sha2::{Digest, Sha256};

use crate::images;
use crate::pod;

/// Priority classes that every cluster has.
const CLUSTER_CRITICAL: &str = "system-cluster-critical";
const NODE_CRITICAL: &str = "system-node-critical";
/// Nobody else may make classes whose names begin so.
const SYSTEM_CLASSES: &str = "system-";

/// Most unknown fields told of one manifest; more help nobody.
const MAX_UNKNOWN: usize = 50;

/// What a manifest holds.
#[derive(Debug, Default)]
pub struct Manifest {
    /// Its pods, ready to run.
    pub pods: Vec<Pod>,
    /// Fields nobody knows; upstream ignores them silently, we say so.
    pub unknown: Vec<String>,
}

/// Where a manifest comes from; a pod's identity depends on it.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// A file of the node.
    File(&'a Path),
    /// A web server: every node that reads it has the same pods.
    Url(&'a str),
}

impl<'a> Origin<'a> {
    fn path(self) -> &'a Path {
        match self {
            Self::File(path) => path,
            Self::Url(url) => Path::new(url),
        }
    }

    /// The word of the annotation `kubernetes.io/config.source`.
    fn source(self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Url(_) => "http",
        }
    }
}

/// Reads a manifest file.
///
/// # Errors
/// Every mistake with file, line, column and field.
pub fn parse(path: &Path, text: &str, node: &str, seen: &str) -> Result<Manifest, ConfigError> {
    parse_from(Origin::File(path), text, node, seen)
}

/// Reads a manifest.
///
/// # Errors
/// Every mistake with origin, line, column and field.
pub fn parse_from(origin: Origin<'_>, text: &str, node: &str, seen: &str) -> Result<Manifest, ConfigError> {
    let path = origin.path();
    let documents = config::load_documents(path, text)?;
    let mut out = Manifest::default();
    let mut found = Vec::new();
    if documents.is_empty() {
        // Half a file, or a page that says nothing: no reason to end what it gave before.
        let message = "there is no pod in it; remove it, or give an empty v1 PodList, to end what it gave".to_owned();
        let position = Position { line: 1, column: 1 };
        found.push(Mistake { position, field: String::new(), message });
    }
    for document in &documents {
        found.extend(document.duplicates.iter().cloned());
        match decode(document, &mut out.unknown) {
            Ok(pods) => {
                for (mut pod, prefix) in pods {
                    let mistakes = check(document, &pod, &prefix, node);
                    if mistakes.is_empty() {
                        note_class(document, &pod, &prefix, &mut out.unknown);
                        identify(&mut pod, origin, node, seen);
                        out.pods.push(pod);
                    } else {
                        found.extend(mistakes);
                    }
                }
            }
            Err(mistakes) => found.extend(mistakes),
        }
    }
    let more = out.unknown.len().saturating_sub(MAX_UNKNOWN);
    if more > 0 {
        out.unknown.truncate(MAX_UNKNOWN);
        out.unknown.push(format!("{}: and {more} more unknown fields", path.display()));
    }
    if found.is_empty() { Ok(out) } else { Err(config::mistakes(path, found).into()) }
}

type Located = (Pod, Vec<PathSegment>);

fn decode(document: &Document, unknown: &mut Vec<String>) -> Result<Vec<Located>, Vec<Mistake>> {
    let wrong = |path: &[PathSegment], api: &str, kind: &str| {
        let text = format!("a manifest must be a v1 Pod, this is {api:?} {kind:?}");
        document.mistake(&[path, &[PathSegment::Key("kind".into())]].concat(), text)
    };
    match (document.api_version.as_str(), document.kind.as_str()) {
        ("v1", "Pod") => {
            let json = document.node.to_json();
            note_unknown(document, &json, &[], unknown);
            Ok(vec![(config::decode_value::<Pod>(&document.node, json)?, Vec::new())])
        }
        ("v1", "PodList" | "List") => {
            let items = match document.node.get("items").map(Node::resolved) {
                Some(Value::Sequence(items)) => items.as_slice(),
                Some(Value::Null) | None => &[],
                Some(_) => return Err(vec![document.mistake_at("items", "must be a list of pods")]),
            };
            let (mut out, mut found) = (Vec::new(), Vec::new());
            for (index, item) in items.iter().enumerate() {
                let prefix = vec![PathSegment::Key("items".into()), PathSegment::Index(index)];
                let text = |key, default| item.get_str(key).unwrap_or(default);
                let (api, kind) = (text("apiVersion", "v1"), text("kind", "Pod"));
                if (api, kind) != ("v1", "Pod") {
                    found.push(wrong(&prefix, api, kind));
                    continue;
                }
                let json = item.to_json();
                note_unknown(document, &json, &prefix, unknown);
                match config::decode_value::<Pod>(item, json) {
                    Ok(pod) => out.push((pod, prefix)),
                    Err(mistakes) => found.extend(mistakes.into_iter().map(|mistake| Mistake {
                        field: format!("items[{index}].{}", mistake.field).trim_end_matches('.').to_owned(),
                        ..mistake
                    })),
                }
            }
            if found.is_empty() { Ok(out) } else { Err(found) }
        }
        (api, kind) => Err(vec![wrong(&[], api, kind)]),
    }
}

/// A class that only an API server knows has no effect here, as upstream.
fn note_class(document: &Document, pod: &Pod, prefix: &[PathSegment], unknown: &mut Vec<String>) {
    let Some(spec) = &pod.spec else { return };
    let class = spec.priority_class_name.as_deref().unwrap_or_default();
    if class.is_empty() || spec.priority.is_some() || system_priority(class).is_some() {
        return;
    }
    let mut path = prefix.to_vec();
    path.extend(segments("spec.priorityClassName"));
    let text = format!("the priority of class {class:?} is known to the API server only; set spec.priority");
    unknown.push(told(document, &document.mistake(&path, text)));
}

fn told(document: &Document, mistake: &Mistake) -> String {
    format!("{}:{}: {}: {}", document.path.display(), mistake.position, mistake.field, mistake.message)
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
        unknown.push(told(document, &document.mistake(&path, "unknown field")));
    }
}

/// The keys and indexes of a field as errors name it: `spec.containers[0].resources.limits[example.com/x]`.
fn segments(field: &str) -> Vec<PathSegment> {
    let mut out = Vec::new();
    for (index, part) in field.split('[').enumerate() {
        let (inner, rest) =
            if index == 0 { (None, part) } else { part.split_once(']').map_or((None, part), |(i, r)| (Some(i), r)) };
        out.extend(inner.map(|text| match text.parse() {
            Ok(number) => PathSegment::Index(number),
            Err(_) => PathSegment::Key(text.to_owned()),
        }));
        out.extend(rest.split('.').filter(|key| !key.is_empty()).map(|key| PathSegment::Key(key.to_owned())));
    }
    out
}

struct Checker<'a> {
    document: &'a Document,
    prefix: &'a [PathSegment],
    found: Vec<Mistake>,
}

impl Checker<'_> {
    fn fail(&mut self, at: &str, message: impl Into<String>) {
        let mut path = self.prefix.to_vec();
        path.extend(segments(at));
        self.found.push(self.document.mistake(&path, message));
    }

    /// A static pod cannot wait for an API server.
    fn refers(&mut self, at: &str, what: &str) {
        self.fail(at, format!("static pod may not reference {what}: the node must be able to run it alone"));
    }
}

/// Checks what the API server would have checked and what a static pod may not have.
fn check(document: &Document, pod: &Pod, prefix: &[PathSegment], node: &str) -> Vec<Mistake> {
    let mut c = Checker { document, prefix, found: Vec::new() };
    for error in static_pod::validate(&serde_json::to_value(pod).unwrap_or_default(), node) {
        c.fail(&error.field, error.body());
    }
    check_identity(&mut c, pod, node);
    let Some(spec) = &pod.spec else { return c.found };
    let class = spec.priority_class_name.as_deref().unwrap_or_default();
    if class.starts_with(SYSTEM_CLASSES) && system_priority(class).is_none() {
        let text =
            format!("there is no priority class {class:?}; the system's are {NODE_CRITICAL} and {CLUSTER_CRITICAL}");
        c.fail("spec.priorityClassName", text);
    }
    check_references(&mut c, spec);
    for (list, containers) in [("initContainers", pod::init_containers(pod)), ("containers", pod::main_containers(pod))]
    {
        for (i, container) in containers.iter().enumerate() {
            check_container(&mut c, &format!("spec.{list}[{i}]"), container);
        }
    }
    c.found
}

/// What becomes part of folder names and of the mirror pod's name.
fn check_identity(c: &mut Checker<'_>, pod: &Pod, node: &str) {
    let uid = pod::uid(pod);
    if !uid.is_empty() {
        for message in names::dns1123_label(uid) {
            c.fail("metadata.uid", format!("{uid:?}: {message}; leave it out to get one"));
        }
    }
    let length = pod::name(pod).len() + 1 + node.len();
    if length > names::SUBDOMAIN_MAX {
        let most = names::SUBDOMAIN_MAX;
        c.fail(
            "metadata.name",
            format!("with -{node} behind it, it has {length} characters; at most {most} are allowed"),
        );
    }
}

/// References to objects of the API, upstream's `HasAPIObjectReference`.
fn check_references(c: &mut Checker<'_>, spec: &PodSpec) {
    if spec.service_account_name.as_deref().or(spec.service_account.as_deref()).is_some_and(|s| !s.is_empty()) {
        c.refers("spec.serviceAccountName", "serviceaccounts");
    }
    if spec.resource_claims.as_ref().is_some_and(|r| !r.is_empty()) {
        c.refers("spec.resourceClaims", "resourceclaims");
    }
    if spec.image_pull_secrets.as_ref().is_some_and(|s| !s.is_empty()) {
        c.refers("spec.imagePullSecrets", "secrets");
    }
    for (i, v) in spec.volumes.iter().flatten().enumerate() {
        for (used, field, what) in [
            (v.config_map.is_some(), "configMap", "configmaps"),
            (v.secret.is_some(), "secret", "secrets"),
            (v.csi.is_some(), "csi", "csidrivers"),
            (v.glusterfs.is_some(), "glusterfs", "endpoints"),
            (v.persistent_volume_claim.is_some(), "persistentVolumeClaim", "persistentvolumeclaims"),
            (v.ephemeral.is_some(), "ephemeral", "persistentvolumeclaims"),
            (v.azure_file.is_some(), "azureFile", "secrets"),
            (v.cephfs.as_ref().is_some_and(|s| s.secret_ref.is_some()), "cephfs.secretRef", "secrets"),
            (v.cinder.as_ref().is_some_and(|s| s.secret_ref.is_some()), "cinder.secretRef", "secrets"),
            (v.flex_volume.as_ref().is_some_and(|s| s.secret_ref.is_some()), "flexVolume.secretRef", "secrets"),
            (v.iscsi.as_ref().is_some_and(|s| s.secret_ref.is_some()), "iscsi.secretRef", "secrets"),
            (v.rbd.as_ref().is_some_and(|s| s.secret_ref.is_some()), "rbd.secretRef", "secrets"),
        ] {
            if used {
                c.refers(&format!("spec.volumes[{i}].{field}"), what);
            }
        }
        let sources = v.projected.iter().flat_map(|p| p.sources.iter().flatten());
        for (j, source) in sources.enumerate() {
            for (used, field, what) in [
                (source.config_map.is_some(), "configMap", "configmaps"),
                (source.secret.is_some(), "secret", "secrets"),
                (source.service_account_token.is_some(), "serviceAccountToken", "serviceaccounts"),
                (source.cluster_trust_bundle.is_some(), "clusterTrustBundle", "clustertrustbundles"),
                (source.pod_certificate.is_some(), "podCertificate", "podcertificates"),
            ] {
                if used {
                    c.refers(&format!("spec.volumes[{i}].projected.sources[{j}].{field}"), what);
                }
            }
        }
    }
}

fn check_container(c: &mut Checker<'_>, at: &str, container: &Container) {
    for (i, env) in container.env.iter().flatten().enumerate() {
        let source = env.value_from.as_ref();
        if source.is_some_and(|s| s.config_map_key_ref.is_some()) {
            c.refers(&format!("{at}.env[{i}].valueFrom.configMapKeyRef"), "configmaps");
        }
        if source.is_some_and(|s| s.secret_key_ref.is_some()) {
            c.refers(&format!("{at}.env[{i}].valueFrom.secretKeyRef"), "secrets");
        }
    }
    if container.env_from.as_ref().is_some_and(|e| !e.is_empty()) {
        c.refers(&format!("{at}.envFrom"), "configmaps or secrets");
    }
}

/// The priority of one of the system's two classes.
fn system_priority(class: &str) -> Option<i32> {
    match class {
        CLUSTER_CRITICAL => Some(pod::SYSTEM_CRITICAL_PRIORITY),
        NODE_CRITICAL => Some(pod::SYSTEM_CRITICAL_PRIORITY + 1000),
        _ => None,
    }
}

/// Upstream's identity and defaults of a static pod.
fn identify(pod: &mut Pod, origin: Origin<'_>, node: &str, seen: &str) {
    if pod.metadata.uid.as_deref().unwrap_or_default().is_empty() {
        let mut hash = Sha256::new();
        match origin {
            Origin::File(path) => hash.update(format!("host:{node}file:{}", path.display())),
            Origin::Url(url) => hash.update(format!("url:{url}")),
        }
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
    annotations.insert(pod::CONFIG_SOURCE.into(), origin.source().into());
    annotations.insert(pod::CONFIG_SEEN.into(), seen.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node.to_owned());
    let tolerations = spec.tolerations.get_or_insert_default();
    let wanted =
        Toleration { operator: Some("Exists".into()), effect: Some("NoExecute".into()), ..Toleration::default() };
    if !tolerations.contains(&wanted) {
        tolerations.push(wanted);
    }
    if spec.priority.is_none() {
        spec.priority = spec.priority_class_name.as_deref().and_then(system_priority);
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
    /// A pod with `part` in place of `@` at two levels.
    fn pod_with(metadata: &str, spec: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web{metadata}}}\nspec:\n  containers:\n  - name: a\n    \
             image: busybox\n{spec}"
        )
    }

    #[test]
    fn what_the_api_server_would_refuse_is_refused() {
        let probe = "    livenessProbe: {periodSeconds: -1, failureThreshold: -3, exec: {command: [x]}}\n";
        for (metadata, spec, field) in [
            (", namespace: ../../x", "", "metadata.namespace"),
            (", namespace: a.b", "", "metadata.namespace"),
            (", uid: ../../../tmp/x", "", "metadata.uid"),
            (", uid: ..", "", "metadata.uid"),
            (", labels: {'a b': c}", "", "metadata.labels"),
            ("/../x", "", "metadata.name"),
            ("", "  volumes: [{name: a/../../b, emptyDir: {}}]\n", "spec.volumes[0].name"),
            ("", "  volumes: [{name: a, hostPath: {path: /x/../y}}]\n", "spec.volumes[0].hostPath.path"),
            ("", "  - {name: ../b, image: i}\n", "spec.containers[1].name"),
            ("", "  - {name: a, image: i}\n", "spec.containers[1].name"),
            ("", probe, "spec.containers[0].livenessProbe.periodSeconds"),
            ("", probe, "spec.containers[0].livenessProbe.failureThreshold"),
            ("", "  priorityClassName: A_b\n", "spec.priorityClassName"),
            ("", "  priorityClassName: system-mine\n", "spec.priorityClassName"),
            ("", "  imagePullSecrets: [{name: s}]\n", "spec.imagePullSecrets"),
            ("", "  serviceAccount: s\n", "spec.serviceAccountName"),
            ("", "  dnsPolicy: x\n", "spec.dnsPolicy"),
            ("", "    volumeMounts: [{name: x, mountPath: /x}]\n", "spec.containers[0].volumeMounts[0].name"),
            (
                "",
                "    resources: {limits: {example.com/x: many}}\n",
                "spec.containers[0].resources.limits.example.com/x",
            ),
            (
                "",
                "  volumes: [{name: a, projected: {sources: [{serviceAccountToken: {path: t}}]}}]\n",
                "spec.volumes[0].projected.sources[0].serviceAccountToken",
            ),
        ] {
            let text = pod_with(metadata, spec);
            let error = parse_text(&text).expect_err(&text);
            assert!(error.contains(&format!(" {field}: ")), "{field} is not in {error}");
            assert!(error.starts_with("/m/web.yaml:"), "{error}");
        }
        let long = GOOD.replace("web", &"a".repeat(250));
        assert!(parse_text(&long).unwrap_err().contains("metadata.name: with -Node1"));
    }

    #[test]
    fn mistakes_of_a_list_are_found_in_their_item() {
        let text = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n  spec: {containers: [{name: c, image: i}]}\n\
                    - metadata:\n    name: b\n    namespace: ../x\n  spec: {containers: [{name: c, image: i}]}\n";
        let error = parse_text(text).unwrap_err();
        assert!(error.starts_with("/m/web.yaml:8:5: items[1].metadata.namespace: "), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }

    #[test]
    fn a_key_given_twice_hides_no_other_mistake() {
        let error = parse_text(&pod_with(", namespace: a, namespace: b", "  dnsPolicy: x\n")).unwrap_err();
        assert!(error.contains("\"namespace\" is given twice") && error.contains("spec.dnsPolicy"), "{error}");
    }

    #[test]
    fn the_systems_classes_have_their_priority_and_others_are_told() {
        let with = |class: &str| parse_text(&pod_with("", &format!("  priorityClassName: {class}\n"))).unwrap();
        let priority = |m: &Manifest| m.pods[0].spec.as_ref().unwrap().priority;
        assert_eq!(priority(&with(NODE_CRITICAL)), Some(2_000_001_000));
        assert_eq!(priority(&with(CLUSTER_CRITICAL)), Some(2_000_000_000));
        let mine = with("mine");
        assert_eq!(priority(&mine), None);
        assert!(mine.unknown[0].contains("/m/web.yaml:8:3: spec.priorityClassName"), "{:?}", mine.unknown);
    }

    /// In the form in which cluster installers write the control plane's.
    #[test]
    fn a_control_planes_manifest_is_fine() {
        let text = r#"
apiVersion: v1
kind: Pod
metadata:
  annotations: {kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint: "10.0.0.1:6443"}
  creationTimestamp: null
  labels: {component: kube-apiserver, tier: control-plane}
  name: kube-apiserver
  namespace: kube-system
  uid: 6f1d4a1c-8a5c-4a6b-9d9e-0a1b2c3d4e5f
spec:
  containers:
  - command: [kube-apiserver, --secure-port=6443]
    env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
    image: registry.k8s.io/kube-apiserver:v1.37.0
    imagePullPolicy: IfNotPresent
    livenessProbe:
      failureThreshold: 8
      httpGet: {host: 10.0.0.1, path: /livez, port: probe-port, scheme: HTTPS}
      initialDelaySeconds: 10
      periodSeconds: 10
      timeoutSeconds: 15
    name: kube-apiserver
    ports: [{containerPort: 6443, name: probe-port, protocol: TCP}]
    resources: {requests: {cpu: 250m}}
    volumeMounts:
    - {mountPath: /etc/ssl/certs, name: ca-certs, readOnly: true}
    - {mountPath: /scratch, name: scratch}
  hostNetwork: true
  initContainers:
  - {name: log, image: busybox, restartPolicy: Always, startupProbe: {exec: {command: ["true"]}}}
  priority: 2000001000
  priorityClassName: system-node-critical
  securityContext: {seccompProfile: {type: RuntimeDefault}}
  tolerations: [{operator: Exists}]
  volumes:
  - {hostPath: {path: /etc/ssl/certs, type: DirectoryOrCreate}, name: ca-certs}
  - {name: scratch}
  - {name: info, projected: {sources: [{downwardAPI: {items: [{path: n, fieldRef: {fieldPath: metadata.name}}]}}]}}
status: {}
"#;
        let m = parse_text(text).unwrap();
        assert_eq!((m.pods.len(), m.unknown.len()), (1, 0), "{:?}", m.unknown);
        assert_eq!(pod::uid(&m.pods[0]), "6f1d4a1c-8a5c-4a6b-9d9e-0a1b2c3d4e5f");
    }
}
