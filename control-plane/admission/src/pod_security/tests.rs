use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;

const NOTHING: Value = Value::Null;

fn at(level: Level, version: &str) -> LevelVersion {
    LevelVersion { level, version: Version::parse(version).unwrap() }
}

/// What one check says of a pod, at a version.
fn says(check: &str, version: &str, metadata: &Value, spec: &Value) -> String {
    let level = if BASELINE.iter().any(|c| c.id == check) { Level::Baseline } else { Level::Restricted };
    let found = evaluate(at(level, version), metadata, spec);
    let found: Vec<Violation> = found.into_iter().filter(|violation| violation.check == check).collect();
    details(&found)
}

/// A pod of two containers, an init and an ephemeral one, with these security contexts.
fn contexts(pod: Value, init: Value, a: Value, b: Value, ephemeral: Value) -> Value {
    let named = |name: &str, context: Value| json!({"name": name, "securityContext": context});
    json!({
        "securityContext": pod,
        "initContainers": [named("init", init)],
        "containers": [named("a", a), named("b", b)],
        "ephemeralContainers": [named("debug", ephemeral)],
    })
}

fn one(context: Value) -> Value {
    json!({"containers": [{"name": "a", "securityContext": context}]})
}

#[test]
fn checks_are_in_upstreams_order() {
    for table in [BASELINE.as_slice(), RESTRICTED.as_slice()] {
        assert!(table.is_sorted_by(|a, b| a.id < b.id));
        for check in table {
            assert!(check.forms.is_sorted_by(|a, b| a.0 < b.0) && !check.forms.is_empty(), "{}", check.id);
            assert!(check.replaces.is_empty() || BASELINE.iter().any(|c| c.id == check.replaces), "{}", check.id);
        }
    }
}

#[test]
fn every_container_is_looked_at_and_named_in_order() {
    let bad = || json!({"privileged": true});
    for (spec, want) in [
        (contexts(NOTHING, NOTHING, bad(), NOTHING, NOTHING), r#"container "a""#),
        (contexts(NOTHING, bad(), bad(), bad(), bad()), r#"containers "init", "a", "b", "debug""#),
    ] {
        let want = format!("privileged ({want} must not set securityContext.privileged=true)");
        assert_eq!(says("privileged", "latest", &NOTHING, &spec), want);
    }
    assert_eq!(says("privileged", "latest", &NOTHING, &one(json!({"privileged": false}))), "");
}

#[test]
fn app_armor_profiles() {
    let profile = |kind: &str| json!({"appArmorProfile": {"type": kind}});
    let spec =
        contexts(profile("Unconfined"), profile("Localhost"), profile("Made up"), NOTHING, profile("RuntimeDefault"));
    let key = "container.apparmor.security.beta.kubernetes.io/";
    let metadata = json!({"annotations": {
        format!("{key}a"): "unconfined", format!("{key}b"): "runtime/default", format!("{key}c"): "localhost/x", format!("{key}d"): "",
    }});
    assert_eq!(
        says("appArmorProfile", "v1.0", &metadata, &spec),
        format!(
            "forbidden AppArmor profiles (pod and container \"a\" and annotation must not set AppArmor profile type to \
             \"Made up\", \"Unconfined\", \"{key}a=\"unconfined\"\")"
        )
    );
    let want = r#"forbidden AppArmor profile (container "a" must not set AppArmor profile type to "Unconfined")"#;
    assert_eq!(says("appArmorProfile", "latest", &NOTHING, &one(profile("Unconfined"))), want);
}

#[test]
fn capabilities_that_are_added() {
    let add = |names: &[&str]| json!({"capabilities": {"add": names}});
    let spec = contexts(NOTHING, NOTHING, add(&["SYS_TIME", "CHOWN"]), add(&["BPF"]), add(&["KILL"]));
    let want = r#"non-default capabilities (containers "a", "b" must not include "BPF", "SYS_TIME" in securityContext.capabilities.add)"#;
    assert_eq!(says("capabilities_baseline", "latest", &NOTHING, &spec), want);
    // At the restricted level another check takes its place, from 1.22 on.
    let ids = |version| -> Vec<&str> {
        evaluate(at(Level::Restricted, version), &NOTHING, &spec).iter().map(|v| v.check).collect()
    };
    assert!(ids("v1.21").contains(&"capabilities_baseline") && !ids("v1.21").contains(&"capabilities_restricted"));
    assert!(!ids("v1.22").contains(&"capabilities_baseline") && ids("v1.22").contains(&"capabilities_restricted"));
}

#[test]
fn capabilities_that_are_not_dropped() {
    let context = |drop: &[&str], add: &[&str]| json!({"capabilities": {"drop": drop, "add": add}});
    let spec = contexts(
        NOTHING,
        context(&["ALL"], &["NET_BIND_SERVICE"]),
        context(&["CHOWN", "KILL"], &[]),
        context(&["ALL"], &["CHOWN"]),
        NOTHING,
    );
    let want = "unrestricted capabilities (containers \"a\", \"debug\" must set securityContext.capabilities.drop=[\"ALL\"]; \
                container \"b\" must not include \"CHOWN\" in securityContext.capabilities.add)";
    assert_eq!(says("capabilities_restricted", "latest", &NOTHING, &spec), want);
}

#[test]
fn namespaces_volumes_and_ports_of_the_host() {
    let spec = json!({
        "hostPID": true, "hostNetwork": true, "hostIPC": false,
        "volumes": [{"name": "x", "hostPath": {"path": "/"}}, {"name": "y", "emptyDir": {}}, {"name": "z", "hostPath": {"path": "/"}}],
        "containers": [
            {"name": "a", "ports": [{"hostPort": 0}, {"containerPort": 1}]},
            {"name": "b", "ports": [{"hostPort": 9}, {"hostPort": 10}]},
        ],
    });
    for (check, want) in [
        ("hostNamespaces", "host namespaces (hostNetwork=true, hostPID=true)"),
        ("hostPathVolumes", r#"hostPath volumes (volumes "x", "z")"#),
        ("hostPorts", r#"hostPort (container "b" uses hostPorts 10, 9)"#),
    ] {
        assert_eq!(says(check, "v1.0", &NOTHING, &spec), want);
    }
}

#[test]
fn hosts_of_probes_and_handlers_from_1_34_on() {
    let spec = json!({"containers": [
        {"name": "b", "livenessProbe": {"httpGet": {"host": "h1"}}, "lifecycle": {"preStop": {"tcpSocket": {"host": "h0"}}}},
        {"name": "a", "startupProbe": {"tcpSocket": {"host": "h1"}}, "readinessProbe": {"httpGet": {"host": ""}}},
        {"name": "c", "readinessProbe": {"httpGet": {"port": 1}}},
    ]});
    let want = r#"probe or lifecycle host (containers "a", "b" use probe or lifecycle hosts "h0", "h1")"#;
    assert_eq!(says("hostProbesAndHostLifecycle", "v1.34", &NOTHING, &spec), want);
    assert_eq!(says("hostProbesAndHostLifecycle", "v1.33", &NOTHING, &spec), "");
    let spec = json!({"containers": [{"name": "a", "lifecycle": {"postStart": {"httpGet": {"host": "h"}}}}]});
    let want = r#"probe or lifecycle host (container "a" uses probe or lifecycle host "h")"#;
    assert_eq!(says("hostProbesAndHostLifecycle", "latest", &NOTHING, &spec), want);
}

#[test]
fn unmasked_proc_is_for_user_namespaces_at_baseline_from_1_35_on() {
    let mut spec =
        contexts(NOTHING, NOTHING, json!({"procMount": "Unmasked"}), json!({"procMount": "Default"}), NOTHING);
    let want = r#"procMount (container "a" must not set securityContext.procMount to "Unmasked")"#;
    assert_eq!(says("procMount", "latest", &NOTHING, &spec), want);
    spec["hostUsers"] = json!(false);
    assert_eq!(says("procMount", "v1.35", &NOTHING, &spec), "");
    assert_eq!(says("procMount", "v1.34", &NOTHING, &spec), want);
    assert_eq!(says("procMount_restricted", "latest", &NOTHING, &spec), want);
    // Never both at once.
    for (version, check) in [("v1.34", "procMount"), ("v1.35", "procMount_restricted")] {
        let found = evaluate(at(Level::Restricted, version), &NOTHING, &spec);
        let by: Vec<&str> = found.iter().filter(|v| v.reason == "procMount").map(|v| v.check).collect();
        assert_eq!(by, [check]);
    }
}

#[test]
fn selinux_types_users_and_roles() {
    let options = |options: Value| json!({"seLinuxOptions": options});
    let of =
        |pod: Value, a: Value| says("seLinuxOptions", "latest", &NOTHING, &contexts(pod, NOTHING, a, NOTHING, NOTHING));
    for (pod, a, want) in [
        (
            options(json!({"type": "x"})),
            options(json!({"type": "y", "level": "s0"})),
            r#"pod and container "a" set forbidden securityContext.seLinuxOptions: types "x", "y""#,
        ),
        (
            options(json!({"user": "u"})),
            NOTHING,
            "pod set forbidden securityContext.seLinuxOptions: user may not be set",
        ),
        (
            NOTHING,
            options(json!({"role": "r", "user": "u", "type": "t"})),
            r#"container "a" set forbidden securityContext.seLinuxOptions: type "t"; user may not be set; role may not be set"#,
        ),
    ] {
        assert_eq!(of(pod, a), format!("seLinuxOptions ({want})"));
    }
    let engine = one(options(json!({"type": "container_engine_t"})));
    assert_eq!(says("seLinuxOptions", "v1.31", &NOTHING, &engine), "");
    assert!(says("seLinuxOptions", "v1.30", &NOTHING, &engine).contains(r#"type "container_engine_t""#));
}

#[test]
fn seccomp_annotations_before_1_19_and_fields_from_then_on() {
    let pod_key = "seccomp.security.alpha.kubernetes.io/pod";
    let metadata = json!({"annotations": {
        pod_key: "unconfined",
        "container.seccomp.security.alpha.kubernetes.io/a": "a\"b",
        "container.seccomp.security.alpha.kubernetes.io/other": "unconfined",
    }});
    let spec = one(json!({"seccompProfile": {"type": "Unconfined"}}));
    let want = format!(
        "seccompProfile (forbidden annotations container.seccomp.security.alpha.kubernetes.io/a=\"a\\\"b\", {pod_key}=\"unconfined\")"
    );
    assert_eq!(says("seccompProfile_baseline", "v1.18", &metadata, &spec), want);
    let want = r#"seccompProfile (container "a" must not set securityContext.seccompProfile.type to "Unconfined")"#;
    assert_eq!(says("seccompProfile_baseline", "v1.19", &metadata, &spec), want);
    for value in ["runtime/default", "docker/default", "localhost/x"] {
        let metadata = json!({"annotations": {pod_key: value}});
        assert_eq!(says("seccompProfile_baseline", "v1.0", &metadata, &spec), "", "{value}");
    }
}

#[test]
fn seccomp_profiles_have_to_be_set_at_restricted() {
    let profile = |kind: &str| json!({"seccompProfile": {"type": kind}});
    let must = r#"must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost""#;
    let not = "must not set securityContext.seccompProfile.type to";
    let of = |spec: &Value| says("seccompProfile_restricted", "latest", &NOTHING, spec);
    for (spec, want) in [
        (one(NOTHING), format!(r#"pod or container "a" {must}"#)),
        (
            contexts(NOTHING, profile("Localhost"), NOTHING, profile("RuntimeDefault"), NOTHING),
            format!(r#"pod or containers "a", "debug" {must}"#),
        ),
        (
            contexts(profile("Unconfined"), NOTHING, profile("x"), NOTHING, NOTHING),
            format!(r#"pod and container "a" {not} "Unconfined", "x""#),
        ),
        (one(json!({"seccompProfile": {}})), format!(r#"container "a" {not} """#)),
    ] {
        assert_eq!(of(&spec), format!("seccompProfile ({want})"));
    }
    assert_eq!(of(&contexts(profile("Localhost"), NOTHING, NOTHING, NOTHING, NOTHING)), "");
}

#[test]
fn sysctls_become_safe_over_time() {
    let spec =
        |name: &str| json!({"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced"}, {"name": name}]}});
    for (name, since) in
        [("net.ipv4.ip_local_reserved_ports", 27), ("net.ipv4.tcp_fin_timeout", 29), ("net.ipv4.tcp_wmem", 32)]
    {
        let before = says("sysctls", &format!("v1.{}", since - 1), &NOTHING, &spec(name));
        assert_eq!(before, format!("forbidden sysctls ({name})"));
        assert_eq!(says("sysctls", &format!("v1.{since}"), &NOTHING, &spec(name)), "");
    }
    assert_eq!(says("sysctls", "latest", &NOTHING, &spec("a")), "forbidden sysctls (a)");
}

#[test]
fn windows_pods() {
    let host = json!({"windowsOptions": {"hostProcess": true}});
    let spec = contexts(host.clone(), NOTHING, host, NOTHING, NOTHING);
    let want = r#"hostProcess (pod and container "a" must not set securityContext.windowsOptions.hostProcess=true)"#;
    assert_eq!(says("windowsHostProcess", "latest", &NOTHING, &spec), want);
    // What Windows does not have is not asked of its pods, from 1.25 on.
    let spec = json!({"os": {"name": "windows"}, "containers": [{"name": "a"}]});
    let of = |version| reasons(&evaluate(at(Level::Restricted, version), &NOTHING, &spec));
    assert_eq!(of("v1.25"), "runAsNonRoot != true");
    assert_eq!(
        of("v1.24"),
        "allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile"
    );
}

#[test]
fn volumes_at_restricted() {
    let spec = json!({"volumes": [
        {"name": "plain"}, {"name": "a", "image": {}}, {"name": "b", "csi": {"driver": "x"}},
        {"name": "c", "nfs": {}}, {"name": "d", "hostPath": {}}, {"name": "e", "newKind": {}}, {"name": "f", "nfs": {}},
    ]});
    let want = r#"restricted volume types (volumes "c", "d", "e", "f" use restricted volume types "hostPath", "nfs", "unknown")"#;
    assert_eq!(details(&evaluate(at(Level::Restricted, "v1.0"), &NOTHING, &spec)), want);
    let spec = json!({"volumes": [{"name": "c", "nfs": {}}]});
    let want = r#"restricted volume types (volume "c" uses restricted volume type "nfs")"#;
    assert_eq!(says("restrictedVolumes", "latest", &NOTHING, &spec), want);
}

#[test]
fn running_as_root() {
    let non_root = |yes: bool| json!({"runAsNonRoot": yes});
    let of = |spec: &Value| says("runAsNonRoot", "latest", &NOTHING, spec);
    for (spec, want) in [
        (one(NOTHING), r#"pod or container "a" must set securityContext.runAsNonRoot=true"#),
        (
            contexts(non_root(false), NOTHING, non_root(false), non_root(true), NOTHING),
            r#"pod and container "a" must not set securityContext.runAsNonRoot=false"#,
        ),
        (
            contexts(non_root(true), NOTHING, non_root(false), NOTHING, NOTHING),
            r#"container "a" must not set securityContext.runAsNonRoot=false"#,
        ),
        (
            contexts(NOTHING, non_root(true), non_root(true), non_root(true), NOTHING),
            r#"pod or container "debug" must set securityContext.runAsNonRoot=true"#,
        ),
    ] {
        assert_eq!(of(&spec), format!("runAsNonRoot != true ({want})"));
    }
    assert_eq!(of(&contexts(non_root(true), NOTHING, NOTHING, NOTHING, NOTHING)), "");
    let user = |id: i64| json!({"runAsUser": id});
    let mut spec = contexts(user(0), user(1), user(0), NOTHING, user(0));
    let want = r#"runAsUser=0 (pod and containers "a", "debug" must not set runAsUser=0)"#;
    assert_eq!(says("runAsUser", "v1.23", &NOTHING, &spec), want);
    assert_eq!(says("runAsUser", "v1.22", &NOTHING, &spec), "");
    // Root in a user namespace is not root, from 1.35 on.
    spec["hostUsers"] = json!(false);
    assert_eq!(says("runAsUser", "v1.34", &NOTHING, &spec), want);
    assert_eq!(says("runAsUser", "v1.35", &NOTHING, &spec), "");
    assert!(!says("runAsNonRoot", "v1.34", &NOTHING, &spec).is_empty());
    assert_eq!(says("runAsNonRoot", "v1.35", &NOTHING, &spec), "");
}

#[test]
fn the_plainest_pod_breaks_four_rules_of_restricted_and_none_of_baseline() {
    let spec = json!({"containers": [{"name": "a", "image": "i"}]});
    assert_eq!(
        details(&evaluate(at(Level::Restricted, "latest"), &NOTHING, &spec)),
        "allowPrivilegeEscalation != false (container \"a\" must set securityContext.allowPrivilegeEscalation=false), \
         unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]), \
         runAsNonRoot != true (pod or container \"a\" must set securityContext.runAsNonRoot=true), \
         seccompProfile (pod or container \"a\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
    );
    assert_eq!(evaluate(at(Level::Baseline, "latest"), &NOTHING, &spec), []);
    assert_eq!(evaluate(at(Level::Privileged, "latest"), &NOTHING, &one(json!({"privileged": true}))), []);
    assert_eq!(says("allowPrivilegeEscalation", "v1.7", &NOTHING, &spec), "");
    assert_ne!(says("allowPrivilegeEscalation", "v1.8", &NOTHING, &spec), "");
}

#[test]
fn restricted_grew_over_the_versions() {
    let spec = json!({"containers": [{"name": "a"}]});
    let at_version = |minor: u64| reasons(&evaluate(at(Level::Restricted, &format!("v1.{minor}")), &NOTHING, &spec));
    let (root, escalation) = ("runAsNonRoot != true", "allowPrivilegeEscalation != false");
    for (first, last, want) in [
        (0, 7, root.to_owned()),
        (8, 18, format!("{escalation}, {root}")),
        (19, 21, format!("{escalation}, {root}, seccompProfile")),
        (22, 35, format!("{escalation}, unrestricted capabilities, {root}, seccompProfile")),
    ] {
        assert_eq!((at_version(first), at_version(last)), (want.clone(), want), "v1.{first}");
    }
}

#[test]
fn versions_and_levels() {
    for (text, want) in [
        ("latest", Some("latest")),
        ("v1.0", Some("v1.0")),
        ("v1.35", Some("v1.35")),
        ("v1.99", Some("v1.99")),
        ("v1.01", None),
        ("v1.", None),
        ("v2.0", None),
        ("1.30", None),
        ("v1.30.1", None),
        ("v1.-1", None),
        ("v1.99999999999999999999999", None),
        ("Latest", None),
    ] {
        assert_eq!(Version::parse(text).map(|version| version.to_string()).as_deref(), want, "{text}");
    }
    assert!(Version::parse("v1.99") < Version::parse("latest"));
    assert_eq!((Level::parse("baseline"), Level::parse("Baseline")), (Some(Level::Baseline), None));
}

/// JSON that is a pod in places, and anything in others.
fn anything() -> impl Strategy<Value = Value> {
    let keys = [
        "spec",
        "metadata",
        "annotations",
        "securityContext",
        "containers",
        "initContainers",
        "ephemeralContainers",
        "name",
        "volumes",
        "capabilities",
        "add",
        "drop",
        "seccompProfile",
        "type",
        "ports",
        "hostPort",
        "sysctls",
        "runAsUser",
        "runAsNonRoot",
        "os",
        "hostUsers",
        "privileged",
        "procMount",
        "seLinuxOptions",
        "livenessProbe",
        "httpGet",
        "host",
        "image",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-zA-Z/\"é]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 80, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(keys.to_vec()), inner), 0..6).prop_map(|fields| {
                let fields: Map<String, Value> =
                    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
                Value::from(fields)
            }),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_makes_it_panic_and_restricted_is_at_least_baseline(metadata in anything(), spec in anything(), minor in 0u64..40) {
        let of = |level| evaluate(LevelVersion { level, version: Version::Minor(minor) }, &metadata, &spec);
        prop_assert!(of(Level::Privileged).is_empty());
        // Windows pods and user namespaces are let off some checks that the stricter level has in place of those of the laxer one.
        let lenient = spec["os"]["name"] == "windows";
        prop_assert!(lenient || of(Level::Baseline).is_empty() || !of(Level::Restricted).is_empty());
        let object = json!({"metadata": metadata, "spec": spec});
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "baseline"});
        for change in [crate::Change::Create(&object), crate::Change::Update { new: &object, old: &spec }] {
            let _ = admit::pod(&labels, "", change);
            let _ = admit::namespace(change);
        }
        let _ = admit::existing_pods("n", LevelVersion { level: Level::Baseline, version: Version::Latest }, [&object, &spec], || false);
    }

    #[test]
    fn a_newer_version_than_the_newest_is_the_newest(spec in anything(), minor in 35u64..1000) {
        let of = |version| evaluate(LevelVersion { level: Level::Restricted, version }, &Value::Null, &spec);
        prop_assert_eq!(of(Version::Minor(minor)), of(Version::Latest));
    }
}
