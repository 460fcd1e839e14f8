use proptest::prelude::*;
use serde_json::json;

use super::*;

/// 2026-01-01T00:01:00Z.
const NOW: i64 = 1_767_225_660;

fn quota(name: &str, hard: Value, used: Value) -> Value {
    let metadata = json!({"name": name, "resourceVersion": "7"});
    json!({"metadata": metadata, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}})
}

fn scoped(name: &str, hard: Value, used: Value, spec: Value) -> Value {
    let mut quota = quota(name, hard, used);
    crate::json::child(quota.as_object_mut().unwrap(), "spec").extend(spec.as_object().unwrap().clone());
    quota
}

fn request<'a>(resource: &'a str, subresource: &'a str, change: Change<'a>) -> Request<'a> {
    Request { group: "", resource, subresource, change, now: NOW }
}

fn pod(resources: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c1", "resources": resources}]}})
}

fn verdict(quotas: &[Value], request: &Request<'_>) -> String {
    match check(quotas, request) {
        Ok(charges) => charges.iter().map(|c| format!("{} {}", c.quota, show(&c.used))).collect::<Vec<_>>().join("; "),
        Err(error) => error.to_string(),
    }
}

fn create(quotas: &[Value], resource: &str, object: &Value) -> String {
    verdict(quotas, &request(resource, "", Change::Create(object)))
}

#[test]
fn what_is_left_is_charged_and_what_is_too_much_is_refused() {
    let cpu = |amount: &str| pod(json!({"requests": {"cpu": amount}, "limits": {"cpu": amount, "memory": "1Gi"}}));
    for (quota, object, want) in [
        (quota("q", json!({"pods": "2"}), json!({"pods": "1"})), cpu("1"), "q pods=2"),
        (
            quota("q", json!({"pods": "2"}), json!({"pods": "2"})),
            cpu("1"),
            "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2",
        ),
        (
            quota(
                "q",
                json!({"requests.cpu": "2", "limits.memory": "1Gi"}),
                json!({"requests.cpu": "1500m", "limits.memory": "512Mi"}),
            ),
            cpu("1"),
            "exceeded quota: q, requested: limits.memory=1Gi,requests.cpu=1, used: limits.memory=512Mi,requests.cpu=1500m, limited: limits.memory=1Gi,requests.cpu=2",
        ),
        (
            quota(
                "q",
                json!({"requests.cpu": "2", "cpu": "9", "secrets": "0"}),
                json!({"requests.cpu": "1500m", "cpu": "1", "secrets": "5"}),
            ),
            cpu("500m"),
            "q cpu=1500m,requests.cpu=2,secrets=5",
        ),
        // What does not grow may be over its limit already.
        (
            quota("q", json!({"requests.storage": "1", "pods": "2"}), json!({"requests.storage": "9", "pods": "0"})),
            cpu("1"),
            "q pods=1,requests.storage=9",
        ),
        (
            quota(
                "q",
                json!({"limits.cpu": "2", "requests.memory": "1Gi"}),
                json!({"limits.cpu": "0", "requests.memory": "0"}),
            ),
            pod(json!({})),
            "failed quota: q: must specify limits.cpu for: c1; requests.memory for: c1",
        ),
        (
            quota("q", json!({"pods": "2", "requests.cpu": "1"}), json!({"pods": "1"})),
            cpu("1"),
            "status unknown for quota: q, resources: pods,requests.cpu",
        ),
        (json!({"metadata": {"name": "new"}, "spec": {"hard": {"pods": "0"}}}), cpu("1"), ""),
        (quota("q", json!({"services": "0"}), json!({"services": "0"})), cpu("1"), ""),
    ] {
        assert_eq!(create(std::slice::from_ref(&quota), "pods", &object), want, "{quota}");
    }
}

#[test]
fn every_container_has_to_say_unless_the_pod_as_a_whole_does() {
    let quotas = [quota("q", json!({"limits.cpu": "2", "memory": "1Gi"}), json!({"limits.cpu": "0", "memory": "0"}))];
    let says = json!({"limits": {"cpu": "1"}, "requests": {"memory": "1"}});
    let mut object = json!({"spec": {
        "containers": [{"name": "b"}, {"name": "a", "resources": {"limits": {"cpu": "1"}}}, {"name": "said", "resources": says}],
        "initContainers": [{"name": "init"}],
    }});
    let want = "failed quota: q: must specify limits.cpu for: b,init; memory for: a,b,init";
    assert_eq!(create(&quotas, "pods", &object), want);
    object["spec"]["resources"] = json!({"limits": {"cpu": "2"}, "requests": {"memory": "1Mi"}});
    assert_eq!(create(&quotas, "pods", &object), "q limits.cpu=2,memory=1Mi");
}

#[test]
fn several_quotas_are_charged_each_for_itself() {
    let quotas = [
        quota("b", json!({"pods": "9"}), json!({"pods": "1"})),
        quota("a", json!({"count/pods": "9"}), json!({"count/pods": "4"})),
        quota("c", json!({"secrets": "9"}), json!({"secrets": "1"})),
    ];
    assert_eq!(create(&quotas, "pods", &pod(json!({}))), "a count/pods=5; b pods=2");
    let charges = check(&quotas, &request("pods", "", Change::Create(&pod(json!({}))))).unwrap();
    assert_eq!(charges[0].resource_version, "7");
    let mut written = quotas[1].clone();
    charges[0].apply_to(&mut written);
    assert_eq!(written["status"], json!({"hard": {"count/pods": "9"}, "used": {"count/pods": "5"}}));
}

fn shown(resource: &str, object: &Value) -> String {
    show(&usage("", resource, object, NOW))
}

#[test]
fn what_pods_count_for() {
    let requests =
        json!({"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1", "hugepages-2Mi": "2Mi", "example.com/gpu": "2"});
    let object = pod(json!({"requests": requests, "limits": requests}));
    assert_eq!(
        shown("pods", &object),
        "count/pods=1,cpu=1,ephemeral-storage=1,hugepages-2Mi=2Mi,limits.cpu=1,limits.ephemeral-storage=1,limits.memory=1Gi,memory=1Gi,\
         pods=1,requests.cpu=1,requests.ephemeral-storage=1,requests.example.com/gpu=2,requests.hugepages-2Mi=2Mi,requests.memory=1Gi"
    );
    for (fields, counts) in [
        (json!({"status": {"phase": "Running"}}), true),
        (json!({"status": {"phase": "Failed"}}), false),
        (json!({"status": {"phase": "Succeeded"}}), false),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}}), true),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 29}}), false),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), true),
    ] {
        let want = if counts { "count/pods=1,pods=1" } else { "count/pods=1" };
        assert_eq!(shown("pods", &fields), want, "{fields}");
    }
}

#[test]
fn extended_resources_and_huge_pages_have_quotas() {
    let hard = json!({"requests.example.com/gpu": "2", "requests.hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"});
    let used = json!({"requests.example.com/gpu": "1", "requests.hugepages-2Mi": "0", "hugepages-1Gi": "0"});
    let object = |gpus: &str| pod(json!({"requests": {"example.com/gpu": gpus, "hugepages-2Mi": "4Mi", "cpu": "1"}}));
    let quotas = [quota("q", hard, used)];
    assert_eq!(
        create(&quotas, "pods", &object("1")),
        "q hugepages-1Gi=0,requests.example.com/gpu=2,requests.hugepages-2Mi=4Mi"
    );
    let want = "exceeded quota: q, requested: requests.example.com/gpu=2, used: requests.example.com/gpu=1, limited: requests.example.com/gpu=2";
    assert_eq!(create(&quotas, "pods", &object("2")), want);
}

#[test]
fn what_services_count_for() {
    let ports = json!([{"port": 1}, {"port": 2, "nodePort": 30000}]);
    for (spec, balancers, node_ports) in [
        (json!({"ports": ports}), 0, 0),
        (json!({"type": "ClusterIP", "ports": ports}), 0, 0),
        (json!({"type": "NodePort", "ports": ports}), 0, 2),
        (json!({"type": "LoadBalancer", "ports": ports}), 1, 2),
        (json!({"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false}), 1, 1),
    ] {
        let want =
            format!("count/services=1,services=1,services.loadbalancers={balancers},services.nodeports={node_ports}");
        assert_eq!(shown("services", &json!({"spec": spec})), want, "{spec}");
    }
}

#[test]
fn what_claims_count_for() {
    let claim = |spec: Value, status: Value, annotations: Value| json!({"metadata": {"annotations": annotations}, "spec": spec, "status": status});
    let asks = |storage: &str, class: &str| json!({"resources": {"requests": {"storage": storage}}, "storageClassName": class});
    let none = || Value::Null;
    let plain = "count/persistentvolumeclaims=1";
    for (object, want) in [
        (claim(asks("1Gi", ""), none(), none()), format!("{plain},persistentvolumeclaims=1,requests.storage=1Gi")),
        (
            claim(asks("1Gi", "gold"), none(), none()),
            format!(
                "{plain},gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/requests.storage=1Gi,persistentvolumeclaims=1,requests.storage=1Gi"
            ),
        ),
        (
            claim(asks("1Gi", ""), json!({"allocatedResources": {"storage": "2Gi"}}), none()),
            format!("{plain},persistentvolumeclaims=1,requests.storage=2Gi"),
        ),
        (
            claim(asks("3Gi", ""), json!({"allocatedResources": {"storage": "2Gi"}}), none()),
            format!("{plain},persistentvolumeclaims=1,requests.storage=3Gi"),
        ),
        (claim(asks("1500m", ""), none(), none()), format!("{plain},persistentvolumeclaims=1,requests.storage=2")),
        (
            claim(json!({}), none(), json!({"volume.beta.kubernetes.io/storage-class": "old"})),
            format!("{plain},old.storageclass.storage.k8s.io/persistentvolumeclaims=1,persistentvolumeclaims=1"),
        ),
    ] {
        assert_eq!(shown("persistentvolumeclaims", &object), want, "{object}");
    }
}

#[test]
fn everything_else_is_counted() {
    let object = json!({});
    for (group, resource, want) in [
        ("", "configmaps", "configmaps=1,count/configmaps=1"),
        ("", "secrets", "count/secrets=1,secrets=1"),
        ("", "replicationcontrollers", "count/replicationcontrollers=1,replicationcontrollers=1"),
        ("", "resourcequotas", "count/resourcequotas=1,resourcequotas=1"),
        ("", "serviceaccounts", "count/serviceaccounts=1"),
        ("apps", "deployments", "count/deployments.apps=1"),
        ("example.com", "secrets", "count/secrets.example.com=1"),
        ("", "events", ""),
        ("events.k8s.io", "events", ""),
        ("authorization.k8s.io", "localsubjectaccessreviews", ""),
    ] {
        assert_eq!(show(&usage(group, resource, &object, NOW)), want, "{group}/{resource}");
    }
    let quotas = [quota("q", json!({"count/widgets.example.com": "1"}), json!({"count/widgets.example.com": "1"}))];
    let widget = |group| Request { group, ..request("widgets", "", Change::Create(&object)) };
    let want = "exceeded quota: q, requested: count/widgets.example.com=1, used: count/widgets.example.com=1, limited: count/widgets.example.com=1";
    assert_eq!(verdict(&quotas, &widget("example.com")), want);
    assert_eq!(verdict(&quotas, &widget("other.com")), "");
}

#[test]
fn which_writes_cost_quota() {
    let object = json!({});
    let ends = json!({"spec": {"activeDeadlineSeconds": 5}});
    let grown = json!({"status": {"allocatedResources": {"storage": "1"}}});
    let create = Change::Create(&object);
    let update = Change::Update { new: &object, old: &object };
    let to = |new| Change::Update { new, old: &object };
    for (resource, subresource, change, want) in [
        ("pods", "", create, true),
        ("pods", "", update, false),
        ("pods", "", to(&ends), true),
        ("pods", "resize", update, true),
        ("pods", "status", update, false),
        ("pods", "binding", create, false),
        ("services", "", create, true),
        ("services", "", update, true),
        ("services", "status", update, false),
        ("persistentvolumeclaims", "", update, true),
        ("persistentvolumeclaims", "status", update, false),
        ("persistentvolumeclaims", "status", to(&grown), true),
        ("secrets", "", create, true),
        ("secrets", "", update, false),
        ("serviceaccounts", "token", create, false),
        ("events", "", create, false),
    ] {
        assert_eq!(handles(&request(resource, subresource, change)), want, "{resource} {subresource}");
    }
}

#[test]
fn an_update_costs_what_it_adds() {
    let service = |ports: usize, version: &str| {
        let ports: Vec<Value> = (0..ports).map(|port| json!({"port": port})).collect();
        json!({"metadata": {"resourceVersion": version}, "spec": {"type": "NodePort", "ports": ports}})
    };
    let quotas = [quota(
        "q",
        json!({"services": "1", "services.nodeports": "3"}),
        json!({"services": "1", "services.nodeports": "2"}),
    )];
    for (new, old, want) in [
        (service(3, "2"), service(2, "1"), "q services=1,services.nodeports=3"),
        (
            service(4, "2"),
            service(2, "1"),
            "exceeded quota: q, requested: services.nodeports=2, used: services.nodeports=2, limited: services.nodeports=3",
        ),
        (service(2, "2"), service(2, "1"), ""),
        // What shrinks is given back by the controller.
        (service(1, "2"), service(2, "1"), ""),
        // What was never stored was never charged.
        (
            service(1, "2"),
            service(2, ""),
            "exceeded quota: q, requested: services=1, used: services=1, limited: services=1",
        ),
    ] {
        let change = Change::Update { new: &new, old: &old };
        assert_eq!(verdict(&quotas, &request("services", "", change)), want, "{new}");
    }
}

#[test]
fn a_resize_is_charged_and_a_status_is_never_refused() {
    let stored = |cpu: &str| {
        let mut pod = pod(json!({"requests": {"cpu": cpu}}));
        pod["metadata"]["resourceVersion"] = json!("1");
        pod
    };
    let (small, big) = (stored("1"), stored("3"));
    let change = Change::Update { new: &big, old: &small };
    let hard = |most: &str| [quota("q", json!({"requests.cpu": most}), json!({"requests.cpu": "1"}))];
    assert_eq!(verdict(&hard("3"), &request("pods", "resize", change)), "q requests.cpu=3");
    assert_eq!(
        verdict(&hard("2"), &request("pods", "resize", change)),
        "exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=1, limited: requests.cpu=2"
    );
    let claim = |allocated: &str| json!({"metadata": {"resourceVersion": "1"}, "spec": {"resources": {"requests": {"storage": "1"}}}, "status": {"allocatedResources": {"storage": allocated}}});
    let (old, new) = (claim("1"), claim("9"));
    let quotas = [quota("q", json!({"requests.storage": "2"}), json!({"requests.storage": "1"}))];
    let change = Change::Update { new: &new, old: &old };
    assert_eq!(verdict(&quotas, &request("persistentvolumeclaims", "status", change)), "q requests.storage=9");
}

#[test]
fn less_than_nothing_is_refused() {
    let object = pod(json!({"requests": {"cpu": "-1", "memory": "-1"}}));
    assert_eq!(
        create(&[], "pods", &object),
        "quota usage is negative for resource(s): cpu,memory,requests.cpu,requests.memory"
    );
}

#[test]
fn scopes_of_pods() {
    let with = |field: &str, value: Value| {
        let mut pod = pod(json!({}));
        pod["spec"][field] = value;
        pod
    };
    let plain = pod(json!({}));
    let burstable = pod(json!({"requests": {"cpu": "1"}}));
    let ends = with("activeDeadlineSeconds", json!(0));
    let class = with("priorityClassName", json!("high"));
    let term = |term: Value| json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term}]}});
    let near = with("affinity", term(json!({"namespaceSelector": {}})));
    let local = with("affinity", term(json!({"namespaces": []})));
    let selector = |operator: &str, values: &[&str]| json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}});
    for (spec, inside, outside) in [
        (json!({"scopes": ["Terminating"]}), vec![&ends], vec![&plain]),
        (json!({"scopes": ["NotTerminating"]}), vec![&plain], vec![&ends]),
        (json!({"scopes": ["BestEffort"]}), vec![&plain], vec![&burstable]),
        (json!({"scopes": ["NotBestEffort"]}), vec![&burstable], vec![&plain]),
        (json!({"scopes": ["NotBestEffort", "Terminating"]}), vec![], vec![&burstable, &ends]),
        (json!({"scopes": ["PriorityClass"]}), vec![&class], vec![&plain]),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), vec![&near], vec![&local, &plain]),
        (json!({"scopes": ["VolumeAttributesClass"]}), vec![], vec![&plain]),
        (selector("In", &["high", "low"]), vec![&class], vec![&plain]),
        (selector("In", &["low"]), vec![], vec![&class]),
        (selector("NotIn", &["high"]), vec![&plain], vec![&class]),
        (selector("Exists", &[]), vec![&class], vec![&plain]),
        (selector("DoesNotExist", &[]), vec![&plain], vec![&class]),
    ] {
        let quotas = [scoped("q", json!({"pods": "9"}), json!({"pods": "0"}), spec.clone())];
        for pod in inside {
            assert_eq!(create(&quotas, "pods", pod), "q pods=1", "{spec} {pod}");
        }
        for pod in outside {
            assert_eq!(create(&quotas, "pods", pod), "", "{spec} {pod}");
        }
    }
}

#[test]
fn scopes_of_claims_and_of_nothing_else() {
    let selector = |operator: &str, values: &[&str]| json!({"scopeSelector": {"matchExpressions": [{"scopeName": "VolumeAttributesClass", "operator": operator, "values": values}]}});
    let fast =
        json!({"spec": {"volumeAttributesClassName": "fast"}, "status": {"currentVolumeAttributesClassName": "slow"}});
    let target = json!({"status": {"modifyVolumeStatus": {"targetVolumeAttributesClassName": "slow"}}});
    let plain = json!({});
    for (spec, claim, inside) in [
        (selector("In", &["fast"]), &fast, true),
        (selector("In", &["slow"]), &fast, true),
        (selector("In", &["slow"]), &target, true),
        (selector("In", &["slow"]), &plain, false),
        (selector("NotIn", &["slow"]), &plain, true),
        (selector("Exists", &[]), &target, true),
        (selector("Exists", &[]), &plain, false),
        (selector("DoesNotExist", &[]), &plain, true),
        (json!({"scopes": ["Terminating"]}), &plain, false),
    ] {
        let quotas =
            [scoped("q", json!({"persistentvolumeclaims": "9"}), json!({"persistentvolumeclaims": "0"}), spec.clone())];
        assert_eq!(!create(&quotas, "persistentvolumeclaims", claim).is_empty(), inside, "{spec} {claim}");
    }
    let quotas =
        [scoped("q", json!({"services": "0"}), json!({"services": "0"}), json!({"scopes": ["NotTerminating"]}))];
    assert_eq!(create(&quotas, "services", &plain), "");
    let quotas = [scoped(
        "q",
        json!({"pods": "1"}),
        json!({"pods": "0"}),
        json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Near"}]}}),
    )];
    assert_eq!(
        create(&quotas, "pods", &plain),
        "error matching scopes of quota q, err: \"Near\" is not a valid label selector operator"
    );
}

#[test]
fn a_pod_that_enters_a_scope_is_charged_in_full() {
    let stored = |ends: Value| json!({"metadata": {"resourceVersion": "1"}, "spec": {"activeDeadlineSeconds": ends}});
    let (old, new) = (stored(Value::Null), stored(json!(9)));
    let quotas = [
        scoped("ends", json!({"pods": "9"}), json!({"pods": "0"}), json!({"scopes": ["Terminating"]})),
        scoped("stays", json!({"pods": "9"}), json!({"pods": "1"}), json!({"scopes": ["NotTerminating"]})),
        quota("all", json!({"pods": "9"}), json!({"pods": "1"})),
    ];
    assert_eq!(verdict(&quotas, &request("pods", "", Change::Update { new: &new, old: &old })), "ends pods=1");
}

#[test]
fn counting_anew() {
    let pods = [pod(json!({"requests": {"cpu": "1"}})), json!({"status": {"phase": "Failed"}}), pod(json!({}))];
    let secrets: [Value; 0] = [];
    let listings = [
        Listing { group: "", resource: "pods", objects: &pods },
        Listing { group: "", resource: "secrets", objects: &secrets },
        Listing { group: "", resource: "events", objects: &pods },
    ];
    let hard = json!({"pods": "5", "count/pods": "5", "requests.cpu": "2", "secrets": "1", "count/unknown": "1", "services": "1"});
    let mut quota = quota("q", hard.clone(), json!({"services": "4", "gone": "1"}));
    let status = recompute(&quota, &listings, NOW).unwrap();
    let used = json!({"pods": "2", "count/pods": "3", "requests.cpu": "1", "secrets": "0", "services": "4"});
    assert_eq!(status, json!({"hard": hard, "used": used}));
    quota["status"] = status;
    assert_eq!(recompute(&quota, &listings, NOW), None);
    // The same amounts in other words are no change.
    quota["status"]["used"]["requests.cpu"] = json!("1000m");
    assert_eq!(recompute(&quota, &listings, NOW), None);
    quota["spec"]["hard"]["pods"] = json!("6");
    assert_eq!(recompute(&quota, &listings, NOW).unwrap()["hard"]["pods"], "6");
    let scoped = scoped("q", json!({"pods": "5"}), json!({}), json!({"scopes": ["NotBestEffort"]}));
    assert_eq!(recompute(&scoped, &listings, NOW).unwrap()["used"], json!({"pods": "1"}));
    for (group, resource, want) in
        [("", "pods", true), ("", "secrets", true), ("apps", "deployments", false), ("", "events", false)]
    {
        assert_eq!(concerns(&quota, group, resource), want, "{resource}");
    }
}

#[test]
fn kinds_of_the_same_name_in_other_groups_are_others() {
    let widgets = quota("q", json!({"count/widgets.example.com": "1"}), json!({"count/widgets.example.com": "1"}));
    for group in ["", "other.com", "example.com.au", "sub.example.com"] {
        assert!(!concerns(&widgets, group, "widgets"), "{group}");
        let listing = [Listing { group, resource: "widgets", objects: &[] }];
        assert_eq!(recompute(&widgets, &listing, NOW), None, "{group}");
    }
    assert!(concerns(&widgets, "example.com", "widgets"));
}

#[test]
fn what_gives_back() {
    let pod = |phase: &str| json!({"status": {"phase": phase}});
    let service = |kind: &str| json!({"spec": {"type": kind, "ports": [{}]}});
    let of = |resource, old: &Value, new: Option<&Value>| replenishes("", resource, old, new, NOW);
    assert!(of("pods", &pod("Running"), Some(&pod("Failed"))));
    assert!(!of("pods", &pod("Pending"), Some(&pod("Running"))));
    assert!(of("pods", &pod("Failed"), None));
    assert!(of("pods", &json!({}), Some(&json!({"spec": {"activeDeadlineSeconds": 1}}))));
    assert!(of("services", &service("NodePort"), Some(&service("ClusterIP"))));
    assert!(!of("services", &service("ClusterIP"), Some(&service("ExternalName"))));
    assert!(of("secrets", &json!({}), None));
    assert!(!of("events", &json!({}), None));
}

fn some_pod() -> impl Strategy<Value = Value> {
    (0i64..3000, 0i64..3000, prop::option::of(0i64..9), prop::sample::select(vec!["Running", "Failed"])).prop_map(
        |(cpu, init, deadline, phase)| {
            let with = |milli: i64| json!({"name": "c", "resources": {"requests": {"cpu": format!("{milli}m")}}});
            json!({
                "metadata": {"name": "p", "resourceVersion": "1"},
                "spec": {"containers": [with(cpu)], "initContainers": [with(init)], "activeDeadlineSeconds": deadline},
                "status": {"phase": phase},
            })
        },
    )
}

fn some_quotas() -> impl Strategy<Value = Vec<Value>> {
    let one = (
        0i64..6,
        0i64..6000,
        0i64..6,
        0i64..6000,
        prop::option::of(prop::sample::select(vec!["Terminating", "NotTerminating"])),
    );
    prop::collection::vec(one, 1..5).prop_map(|all| {
        let quota = |(index, (pods, cpu, used_pods, used_cpu, scope)): (usize, (i64, i64, i64, i64, Option<&str>))| {
            let list = |pods: i64, cpu: i64| json!({"pods": pods.to_string(), "requests.cpu": format!("{cpu}m")});
            let scopes: Vec<&str> = scope.into_iter().collect();
            scoped(&format!("q{index}"), list(pods, cpu), list(used_pods, used_cpu), json!({"scopes": scopes}))
        };
        all.into_iter().enumerate().map(quota).collect()
    })
}

proptest! {
    #[test]
    fn usage_is_additive(pods in prop::collection::vec(some_pod(), 0..6), split in 0usize..6) {
        let hard = json!({"pods": "1", "requests.cpu": "1", "count/pods": "1"});
        let counted = |objects: &[Value]| {
            let listing = Listing { group: "", resource: "pods", objects };
            parse(&recompute(&quota("q", hard.clone(), json!({})), &[listing], NOW).unwrap()["used"])
        };
        let split = split.min(pods.len());
        let mut sum = counted(&pods[..split]);
        add(&mut sum, &counted(&pods[split..]));
        prop_assert_eq!(sum, counted(&pods));
    }

    #[test]
    fn what_passes_never_holds_more_than_it_may_of_what_grew(quotas in some_quotas(), pod in some_pod()) {
        if let Ok(charges) = check(&quotas, &request("pods", "", Change::Create(&pod))) {
            for charge in charges {
                let quota = quotas.iter().find(|quota| quota["metadata"]["name"] == charge.quota.as_str()).unwrap();
                let (hard, before) = (parse(&quota["status"]["hard"]), parse(&quota["status"]["used"]));
                for (name, used) in &charge.used {
                    prop_assert!(*used == before[name] || (*used > before[name] && *used <= hard[name]), "{}", name);
                }
            }
        }
    }

    #[test]
    fn the_order_of_quotas_does_not_matter(quotas in some_quotas(), pod in some_pod(), rotation in 0usize..5) {
        let mut other = quotas.clone();
        other.rotate_left(rotation % quotas.len());
        let request = request("pods", "", Change::Create(&pod));
        prop_assert_eq!(check(&quotas, &request), check(&other, &request));
    }

    #[test]
    fn charging_one_after_another_is_counting_all(pods in prop::collection::vec(some_pod(), 1..5)) {
        let hard = json!({"pods": "100", "requests.cpu": "100"});
        let mut charged = quota("q", hard.clone(), json!({"pods": "0", "requests.cpu": "0"}));
        for pod in &pods {
            if let Some(charge) = check([&charged], &request("pods", "", Change::Create(pod))).unwrap().pop() {
                charge.apply_to(&mut charged);
            }
        }
        let listing = [Listing { group: "", resource: "pods", objects: &pods }];
        prop_assert_eq!(recompute(&charged, &listing, NOW), None);
    }
}
