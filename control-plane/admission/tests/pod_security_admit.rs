//! Requests under the labels of a namespace: texts, warnings and audit annotations as clients and logs see them.

use keelson_admission::Change;
use keelson_admission::pod_security::admit::{self, Decision, MAX_PODS};
use keelson_admission::pod_security::{Level, LevelVersion, Policy, Version};
use serde_json::{Value, json};

const FOUR: &str = "allowPrivilegeEscalation != false (container \"a\" must set securityContext.allowPrivilegeEscalation=false), \
                    unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]), \
                    runAsNonRoot != true (pod or container \"a\" must set securityContext.runAsNonRoot=true), \
                    seccompProfile (pod or container \"a\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")";

fn labels(pairs: &[(&str, &str)]) -> Value {
    pairs.iter().map(|(key, value)| (format!("pod-security.kubernetes.io/{key}"), json!(value))).collect()
}

fn pod() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "i:1"}]}})
}

fn notes(decision: &Decision) -> Vec<(&str, &str)> {
    decision.audit_annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

#[test]
fn a_pod_is_refused_warned_about_and_noted() {
    let pod = pod();
    let refused = admit::pod(&labels(&[("enforce", "restricted"), ("warn", "restricted")]), "", Change::Create(&pod));
    assert_eq!(refused.denied, Some(format!("violates PodSecurity \"restricted:latest\": {FOUR}")));
    assert_eq!(refused.warnings, Vec::<String>::new());
    assert_eq!(notes(&refused), [("pod-security.kubernetes.io/enforce-policy", "restricted:latest")]);

    let warned = admit::pod(
        &labels(&[("enforce", "baseline"), ("warn", "restricted"), ("warn-version", "v1.30"), ("audit", "restricted")]),
        "",
        Change::Create(&pod),
    );
    assert_eq!(warned.denied, None);
    assert_eq!(warned.warnings, [format!("would violate PodSecurity \"restricted:v1.30\": {FOUR}")]);
    let audited = format!("would violate PodSecurity \"restricted:latest\": {FOUR}");
    assert_eq!(
        notes(&warned),
        [
            ("pod-security.kubernetes.io/audit-violations", audited.as_str()),
            ("pod-security.kubernetes.io/enforce-policy", "baseline:latest"),
        ]
    );
}

#[test]
fn without_labels_everything_goes() {
    let privileged = json!({"spec": {"hostNetwork": true, "containers": []}});
    for namespace in [Value::Null, json!({}), labels(&[("enforce", "privileged"), ("warn", "privileged")])] {
        let decision = admit::pod(&namespace, "", Change::Create(&privileged));
        assert_eq!((decision.denied.clone(), decision.warnings.len()), (None, 0));
        assert_eq!(notes(&decision), [("pod-security.kubernetes.io/enforce-policy", "privileged:latest")]);
    }
}

#[test]
fn labels_that_cannot_be_read_enforce_the_strictest() {
    let decision = admit::pod(&labels(&[("enforce", "strict"), ("warn", "loud")]), "", Change::Create(&pod()));
    assert!(decision.denied.unwrap().starts_with("violates PodSecurity \"restricted:latest\": "));
    assert_eq!(
        decision.audit_annotations["pod-security.kubernetes.io/error"],
        "Failed to parse policy: [metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": must be one of \
         privileged, baseline, restricted, metadata.labels[pod-security.kubernetes.io/warn]: Invalid value: \"loud\": must be one of \
         privileged, baseline, restricted]"
    );
}

#[test]
fn subresources_other_than_ephemeral_containers_are_let_through() {
    let namespace = labels(&[("enforce", "baseline")]);
    let old = pod();
    let mut new = pod();
    new["spec"]["ephemeralContainers"] = json!([{"name": "debug", "securityContext": {"privileged": true}}]);
    let change = Change::Update { new: &new, old: &old };
    let want = "violates PodSecurity \"baseline:latest\": privileged (container \"debug\" must not set securityContext.privileged=true)";
    assert_eq!(admit::pod(&namespace, "ephemeralcontainers", change).denied.as_deref(), Some(want));
    for subresource in ["status", "binding", "eviction", "exec", "attach", "portforward", "proxy", "log"] {
        assert_eq!(admit::pod(&namespace, subresource, change), Decision::default(), "{subresource}");
    }
}

#[test]
fn updates_of_what_does_not_matter_are_let_through() {
    let namespace = labels(&[("enforce", "restricted")]);
    let seccomp = "container.seccomp.security.alpha.kubernetes.io/a";
    for (pointer, value, refused) in [
        ("/metadata/labels", json!({"a": "b"}), false),
        ("/metadata/annotations", json!({"a": "b"}), false),
        ("/metadata/annotations", json!({seccomp: "unconfined"}), true),
        ("/metadata/annotations", json!({"container.seccomp.security.alpha.kubernetes.io/z": "unconfined"}), false),
        ("/metadata/annotations", json!({"seccomp.security.alpha.kubernetes.io/pod": "x"}), true),
        ("/spec/containers/0/image", json!("i:2"), true),
        ("/spec/containers/0/resources", json!({"requests": {"cpu": "1"}}), false),
        ("/spec/containers", json!([]), false),
        ("/spec/initContainers", json!([{"name": "x"}]), true),
        ("/spec/ephemeralContainers", json!([{"name": "x"}]), true),
        ("/spec/tolerations", json!([]), false),
    ] {
        let old = pod();
        let mut new = pod();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        new.pointer_mut(parent).unwrap()[key] = value.clone();
        let decision = admit::pod(&namespace, "", Change::Update { new: &new, old: &old });
        assert_eq!(decision.denied.is_some(), refused, "{pointer} {value}");
    }
}

#[test]
fn templates_of_controllers_are_warned_about_and_not_refused() {
    let namespace = labels(&[("enforce", "restricted"), ("warn", "baseline"), ("audit", "baseline")]);
    let template = json!({"spec": {"hostPID": true, "containers": [{"name": "a"}]}});
    let plain = json!({"spec": {"template": template}});
    let want = "would violate PodSecurity \"baseline:latest\": host namespaces (hostPID=true)";
    for (group, resource, object) in [
        ("", "podtemplates", json!({"template": template})),
        ("", "replicationcontrollers", plain.clone()),
        ("apps", "deployments", plain.clone()),
        ("apps", "replicasets", plain.clone()),
        ("apps", "statefulsets", plain.clone()),
        ("apps", "daemonsets", plain.clone()),
        ("batch", "jobs", plain.clone()),
        ("batch", "cronjobs", json!({"spec": {"jobTemplate": plain}})),
    ] {
        let decision = admit::controller(&namespace, group, resource, "", &object);
        assert_eq!(
            (decision.denied.clone(), decision.warnings.as_slice()),
            (None, [want.to_owned()].as_slice()),
            "{resource}"
        );
        assert_eq!(notes(&decision), [("pod-security.kubernetes.io/audit-violations", want)]);
        assert_eq!(admit::controller(&namespace, group, resource, "scale", &object), Decision::default());
    }
    assert_eq!(admit::controller(&namespace, "example.com", "deployments", "", &plain), Decision::default());
    assert_eq!(
        admit::controller(&labels(&[("enforce", "restricted")]), "apps", "deployments", "", &plain),
        Decision::default()
    );
    assert_eq!(
        admit::controller(&namespace, "", "replicationcontrollers", "", &json!({"spec": {}})),
        Decision::default()
    );
}

fn namespace(labels: Value) -> Value {
    json!({"metadata": {"name": "n", "labels": labels}})
}

#[test]
fn labels_of_namespaces_are_validated() {
    let bad = namespace(labels(&[("enforce", "strict"), ("audit-version", "1.30"), ("warn", "")]));
    let errors = |change| -> Vec<String> {
        admit::namespace(change).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    };
    let want = [
        "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": must be one of privileged, baseline, restricted",
        "metadata.labels[pod-security.kubernetes.io/audit-version]: Invalid value: \"1.30\": must be \"latest\" or \"v1.x\"",
        "metadata.labels[pod-security.kubernetes.io/warn]: Invalid value: \"\": must be one of privileged, baseline, restricted",
    ];
    assert_eq!(errors(Change::Create(&bad)), want);
    let good = namespace(labels(&[("enforce", "baseline")]));
    assert_eq!(errors(Change::Update { new: &bad, old: &good }), want);
    // What is wrong already may stay, or the namespace could not be changed at all.
    assert_eq!(errors(Change::Update { new: &bad, old: &bad }), Vec::<String>::new());
    assert_eq!(admit::namespace(Change::Create(&good)), Ok(None));
}

#[test]
fn pods_are_looked_at_when_more_is_enforced() {
    let at = |pairs: &[(&str, &str)]| namespace(labels(pairs));
    for (old, new, want) in [
        (at(&[]), at(&[("enforce", "baseline")]), Some("baseline:latest")),
        (
            at(&[("enforce", "baseline")]),
            at(&[("enforce", "restricted"), ("enforce-version", "v1.30")]),
            Some("restricted:v1.30"),
        ),
        (at(&[("enforce", "restricted")]), at(&[("enforce", "baseline")]), None),
        (
            at(&[("enforce", "restricted")]),
            at(&[("enforce", "baseline"), ("enforce-version", "v1.30")]),
            Some("baseline:v1.30"),
        ),
        (at(&[("enforce", "baseline")]), at(&[("enforce", "baseline"), ("warn", "restricted")]), None),
        (at(&[("enforce", "baseline")]), at(&[("enforce-version", "v1.30")]), None),
    ] {
        let found = admit::namespace(Change::Update { new: &new, old: &old }).unwrap();
        assert_eq!(found.map(|level| level.to_string()).as_deref(), want, "{new}");
    }
}

const BASELINE: LevelVersion = LevelVersion { level: Level::Baseline, version: Version::Latest };

fn existing(name: &str, field: &str, owner: Option<&str>) -> Value {
    let owners: Vec<Value> = owner.map(|uid| json!({"controller": true, "uid": uid})).into_iter().collect();
    json!({"metadata": {"name": name, "ownerReferences": owners}, "spec": {field: true, "containers": []}})
}

#[test]
fn existing_pods_are_counted_by_reasons() {
    let pods = [
        existing("c", "hostPID", None),
        existing("b", "hostIPC", None),
        existing("a", "hostNetwork", None),
        json!({"metadata": {"name": "z"}, "spec": {"containers": [{"name": "x", "securityContext": {"privileged": true}}]}}),
        json!({"metadata": {"name": "y"}, "spec": {"containers": [{"name": "x", "securityContext": {"privileged": true}}]}}),
        json!({"metadata": {"name": "w"}, "spec": {"containers": [{"name": "x", "ports": [{"hostPort": 1}]}]}}),
        json!({"metadata": {"name": "fine"}, "spec": {"containers": []}}),
    ];
    assert_eq!(
        admit::existing_pods("my\"ns", BASELINE, &pods, || false),
        [
            "existing pods in namespace \"my\\\"ns\" violate the new PodSecurity enforce level \"baseline:latest\"",
            "a (and 2 other pods): host namespaces",
            "w: hostPort",
            "y (and 1 other pod): privileged",
        ]
    );
    assert_eq!(admit::existing_pods("n", BASELINE, &pods[6..], || false), Vec::<String>::new());
}

#[test]
fn one_pod_of_each_controller_comes_first_and_the_rest_may_be_left_out() {
    let mut pods: Vec<Value> = (0..MAX_PODS).map(|i| existing(&format!("same-{i}"), "none", Some("rs"))).collect();
    pods.push(existing("alone", "hostPID", None));
    pods.push(existing("other", "hostIPC", Some("other")));
    let warnings = admit::existing_pods("n", BASELINE, &pods, || false);
    let all = pods.len();
    assert_eq!(
        warnings,
        [
            format!("new PodSecurity enforce level only checked against the first {MAX_PODS} of {all} existing pods"),
            "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"".to_owned(),
            "alone (and 1 other pod): host namespaces".to_owned(),
        ]
    );
    let mut asked = 0;
    let warnings = admit::existing_pods("n", BASELINE, &pods, || {
        asked += 1;
        asked == 2
    });
    assert_eq!(
        warnings[0],
        format!("new PodSecurity enforce level only checked against the first 2 of {all} existing pods")
    );
}

#[test]
fn the_policy_of_labels() {
    let (policy, errors) =
        Policy::of_labels(&labels(&[("enforce", "baseline"), ("enforce-version", "v1.x"), ("audit", "x")]));
    assert_eq!(policy.enforce.to_string(), "baseline:latest");
    assert_eq!((policy.audit, policy.warn, errors.len()), (LevelVersion::PRIVILEGED, LevelVersion::PRIVILEGED, 2));
}
