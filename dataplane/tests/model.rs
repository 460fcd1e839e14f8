//! The rules of endpoint choice, one case for each, and the properties that hold for all.

mod support;

use std::sync::Arc;

use keelson_dataplane::model::types::{
    EndpointRecord, Ep, Hints, NodeRecord, Protocol, ServicePort, ServiceRecord, SlicePort, SliceRecord,
};
use keelson_dataplane::model::{FrontendKey, Model, ServicePlan, Target};
use support::{ip, name, port, ready, service, slice};

fn ep(addr: &str, port: u16) -> Ep {
    Ep { addr: ip(addr), port }
}

fn key(addr: &str, port: u16, protocol: Protocol) -> FrontendKey {
    FrontendKey { addr: ip(addr), port, protocol }
}

fn target(plan: &ServicePlan, addr: &str, port: u16) -> Target {
    let found = plan.frontends.iter().find(|f| f.key == key(addr, port, Protocol::Tcp));
    found.unwrap_or_else(|| panic!("no frontend {addr}:{port}")).target.clone()
}

/// An endpoint in one of the states the rules know.
fn endpoint(addr: &str, state: &str, local: bool) -> EndpointRecord {
    let (ready, serving, terminating) = match state {
        "ready" => (true, true, false),
        "not ready" => (false, false, false),
        "serving and terminating" => (false, true, true),
        "terminating" => (false, false, true),
        other => panic!("{other}"),
    };
    EndpointRecord { addr: ip(addr), ready, serving, terminating, local, hints: 0 }
}

fn plan(service: ServiceRecord, endpoints: Vec<EndpointRecord>) -> ServicePlan {
    let mut model = Model::new("node1");
    model.set_service(&name("web"), Some(service));
    model.set_slice(&name("web-1"), Some(slice("web", &[(Protocol::Tcp, 8080)], endpoints)));
    model.plan(&name("web"))
}

fn all_frontends() -> ServiceRecord {
    let mut record = service("10.96.0.10", vec![port(80, 30080, Protocol::Tcp)]);
    record.external_ips = vec![ip("203.0.113.5")];
    record.load_balancer_ips = vec![ip("203.0.113.6")];
    record
}

#[test]
fn cluster_policy() {
    struct Case {
        what: &'static str,
        endpoints: Vec<EndpointRecord>,
        chosen: &'static [&'static str],
    }
    let cases = [
        Case {
            what: "ready ones, wherever they are",
            endpoints: vec![endpoint("10.0.0.1", "ready", true), endpoint("10.0.0.2", "ready", false)],
            chosen: &["10.0.0.1", "10.0.0.2"],
        },
        Case {
            what: "ready ones only",
            endpoints: vec![
                endpoint("10.0.0.1", "ready", true),
                endpoint("10.0.0.2", "not ready", false),
                endpoint("10.0.0.3", "serving and terminating", false),
            ],
            chosen: &["10.0.0.1"],
        },
        Case {
            what: "the terminating ones that serve, when none is ready",
            endpoints: vec![
                endpoint("10.0.0.1", "serving and terminating", true),
                endpoint("10.0.0.2", "terminating", false),
                endpoint("10.0.0.3", "not ready", false),
            ],
            chosen: &["10.0.0.1"],
        },
        Case { what: "none", endpoints: vec![endpoint("10.0.0.1", "not ready", true)], chosen: &[] },
    ];
    for case in cases {
        let plan = plan(all_frontends(), case.endpoints);
        let eps: Vec<Ep> = case.chosen.iter().map(|a| ep(a, 8080)).collect();
        let (cluster, external) = if eps.is_empty() {
            (Target::Reject, Target::Reject)
        } else {
            (Target::Cluster(eps.clone()), Target::External(eps))
        };
        assert_eq!(target(&plan, "10.96.0.10", 80), cluster, "{}", case.what);
        for addr in [("203.0.113.5", 80), ("203.0.113.6", 80), ("0.0.0.0", 30080)] {
            assert_eq!(target(&plan, addr.0, addr.1), external, "{}", case.what);
        }
    }
}

#[test]
fn local_policy() {
    struct Case {
        what: &'static str,
        endpoints: Vec<EndpointRecord>,
        internal: Target,
        external: Target,
    }
    let one = |a| vec![ep(a, 8080)];
    let cases = [
        Case {
            what: "local ready ones",
            endpoints: vec![endpoint("10.0.0.1", "ready", true), endpoint("10.0.0.2", "ready", false)],
            internal: Target::Cluster(one("10.0.0.1")),
            external: Target::ExternalLocal {
                all: vec![ep("10.0.0.1", 8080), ep("10.0.0.2", 8080)],
                local: one("10.0.0.1"),
            },
        },
        Case {
            what: "local terminating ones that serve, when no local one is ready",
            endpoints: vec![
                endpoint("10.0.0.1", "serving and terminating", true),
                endpoint("10.0.0.2", "ready", false),
            ],
            internal: Target::Cluster(one("10.0.0.1")),
            external: Target::ExternalLocal { all: one("10.0.0.2"), local: one("10.0.0.1") },
        },
        Case {
            what: "endpoints elsewhere only: drop",
            endpoints: vec![endpoint("10.0.0.2", "ready", false)],
            internal: Target::Drop,
            external: Target::ExternalLocal { all: one("10.0.0.2"), local: vec![] },
        },
        Case {
            what: "none anywhere: reject",
            endpoints: vec![endpoint("10.0.0.2", "not ready", true)],
            internal: Target::Reject,
            external: Target::Reject,
        },
    ];
    for case in cases {
        let record = ServiceRecord { internal_local: true, external_local: true, ..all_frontends() };
        let plan = plan(record, case.endpoints);
        assert_eq!(target(&plan, "10.96.0.10", 80), case.internal, "{}", case.what);
        assert_eq!(target(&plan, "0.0.0.0", 30080), case.external, "{}", case.what);
        assert_eq!(target(&plan, "203.0.113.6", 80), case.external, "{}", case.what);
    }
}

#[test]
fn topology_hints() {
    let hints = |zones: &[&str], nodes: &[&str]| Hints {
        zones: zones.iter().map(|z| Arc::from(*z)).collect(),
        nodes: nodes.iter().map(|n| Arc::from(*n)).collect(),
    };
    let (a, b) = ("10.0.0.1", "10.0.0.2");
    // (zone of the node, hints of a, hints of b, chosen)
    let cases: [(Option<&str>, Hints, Hints, &[&str]); 7] = [
        (Some("z1"), hints(&["z1"], &[]), hints(&["z2"], &[]), &[a]),
        (Some("z3"), hints(&["z1"], &[]), hints(&["z2"], &[]), &[a, b]),
        (None, hints(&["z1"], &[]), hints(&["z2"], &[]), &[a, b]),
        (Some("z1"), hints(&["z1"], &[]), hints(&[], &[]), &[a, b]),
        (Some("z1"), hints(&["z1", "z2"], &[]), hints(&["z1"], &[]), &[a, b]),
        (Some("z1"), hints(&["z1"], &["node2"]), hints(&["z2"], &["node1"]), &[b]),
        (Some("z1"), hints(&["z1"], &["node2"]), hints(&["z2"], &["node3"]), &[a]),
    ];
    for (number, (zone, of_a, of_b, chosen)) in cases.into_iter().enumerate() {
        let mut model = Model::new("node1");
        model.set_node(NodeRecord { zone: zone.map(Arc::from), ..NodeRecord::default() });
        let with = |addr, hints| EndpointRecord { hints, ..ready(addr, false) };
        let (of_a, of_b) = (model.interner.hints_number(of_a), model.interner.hints_number(of_b));
        model.set_service(&name("web"), Some(all_frontends()));
        model.set_slice(
            &name("web-1"),
            Some(slice("web", &[(Protocol::Tcp, 8080)], vec![with(a, of_a), with(b, of_b)])),
        );
        let eps = chosen.iter().map(|a| ep(a, 8080)).collect();
        assert_eq!(target(&model.plan(&name("web")), "10.96.0.10", 80), Target::Cluster(eps), "case {number}");
    }
}

#[test]
fn named_ports_over_several_slices_and_duplicates() {
    let named =
        |n: &str, p: u16, np: u16| ServicePort { name: Arc::from(n), protocol: Protocol::Tcp, port: p, node_port: np };
    let mut model = Model::new("node1");
    let record = service("10.96.0.10", vec![named("http", 80, 0), named("admin", 81, 0)]);
    model.set_service(&name("web"), Some(record));
    let named_slice = |ports: &[(&str, u16)], endpoints| SliceRecord {
        ports: ports
            .iter()
            .map(|(n, p)| SlicePort { name: Arc::from(*n), protocol: Protocol::Tcp, port: *p })
            .collect(),
        ..slice("web", &[], endpoints)
    };
    // Two slices with different target ports for one name (a rolling change of the container port),
    // one endpoint in both, once ready and once not.
    model.set_slice(
        &name("s1"),
        Some(named_slice(&[("http", 8080), ("admin", 9090)], vec![ready("10.0.0.1", true), ready("10.0.0.2", false)])),
    );
    model.set_slice(&name("s2"), Some(named_slice(&[("http", 8081)], vec![ready("10.0.0.3", false)])));
    model.set_slice(&name("s3"), Some(named_slice(&[("http", 8080)], vec![endpoint("10.0.0.1", "not ready", true)])));
    let plan = model.plan(&name("web"));
    assert_eq!(
        target(&plan, "10.96.0.10", 80),
        Target::Cluster(vec![ep("10.0.0.1", 8080), ep("10.0.0.2", 8080), ep("10.0.0.3", 8081)])
    );
    assert_eq!(target(&plan, "10.96.0.10", 81), Target::Cluster(vec![ep("10.0.0.1", 9090), ep("10.0.0.2", 9090)]));
    assert_eq!(plan.hairpin, [ip("10.0.0.1")]);
}

#[test]
fn families_do_not_mix() {
    let mut model = Model::new("node1");
    let mut record = service("10.96.0.10", vec![port(80, 30080, Protocol::Tcp)]);
    record.cluster_ips.push(ip("fd00::10"));
    model.set_service(&name("web"), Some(record));
    model.set_slice(&name("v4"), Some(slice("web", &[(Protocol::Tcp, 8080)], vec![ready("10.0.0.1", false)])));
    let six = SliceRecord {
        family: keelson_dataplane::model::types::Family::V6,
        ..slice("web", &[(Protocol::Tcp, 8080)], vec![ready("fd01::1", false)])
    };
    model.set_slice(&name("v6"), Some(six));
    let plan = model.plan(&name("web"));
    assert_eq!(target(&plan, "10.96.0.10", 80), Target::Cluster(vec![ep("10.0.0.1", 8080)]));
    assert_eq!(target(&plan, "fd00::10", 80), Target::Cluster(vec![ep("fd01::1", 8080)]));
    assert_eq!(target(&plan, "0.0.0.0", 30080), Target::External(vec![ep("10.0.0.1", 8080)]));
    assert_eq!(target(&plan, "::", 30080), Target::External(vec![ep("fd01::1", 8080)]));
}

#[test]
fn objects_are_decoded_as_the_api_means_them() {
    use k8s_openapi::api::core::v1::Service;
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use keelson_dataplane::model::decode;
    let mut interner = decode::Interner::default();
    let object = |json: serde_json::Value| serde_json::from_value::<Service>(json).unwrap();
    let base = serde_json::json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00::10"],
            "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP", "healthCheckNodePort": 31000,
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}, {"name": "dns", "port": 53, "protocol": "UDP"},
                      {"name": "odd", "port": 70000}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.5"}, {"ip": "203.0.113.6", "ipMode": "Proxy"}]}},
    });
    let record = decode::service(&object(base.clone()), &mut interner).unwrap();
    assert_eq!(record.cluster_ips, [ip("10.96.0.10"), ip("fd00::10")]);
    assert_eq!(record.load_balancer_ips, [ip("203.0.113.5")]);
    assert_eq!((record.external_local, record.internal_local), (true, false));
    assert_eq!((record.affinity_seconds, record.health_check_node_port), (Some(10_800), 31_000));
    assert_eq!(record.ports.iter().map(|p| (p.port, p.node_port)).collect::<Vec<_>>(), [(80, 30080), (53, 0)]);
    for (pointer, value) in [
        ("/spec/clusterIP", serde_json::json!("None")),
        ("/spec/type", serde_json::json!("ExternalName")),
        ("/metadata/labels", serde_json::json!({"service.kubernetes.io/service-proxy-name": "other"})),
    ] {
        let mut changed = base.clone();
        if pointer == "/metadata/labels" {
            changed["metadata"]["labels"] = value;
        } else {
            *changed.pointer_mut(pointer).unwrap() = value;
        }
        assert_eq!(decode::service(&object(changed), &mut interner), None, "{pointer}");
    }
    let slice: EndpointSlice = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "any", "port": null}],
        "endpoints": [
            {"addresses": ["10.0.0.1"], "nodeName": "node1"},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": false, "serving": true, "terminating": true}},
            {"addresses": ["127.0.0.1"]}, {"addresses": ["169.254.169.254"]}, {"addresses": ["224.0.0.1"]},
            {"addresses": ["fd00::1"]}, {"addresses": []}, {"addresses": ["nonsense"]},
        ],
    }))
    .unwrap();
    let record = decode::slice(&slice, "node1", &mut interner).unwrap();
    assert_eq!(&*record.service, "default/web");
    assert_eq!(record.ports.len(), 1);
    assert_eq!(
        record.endpoints.as_ref(),
        [ready("10.0.0.1", true), endpoint("10.0.0.2", "serving and terminating", false)]
    );
}

#[test]
fn source_ranges_come_from_the_field_or_else_from_the_annotation() {
    use k8s_openapi::api::core::v1::Service;
    use keelson_dataplane::model::decode;
    const ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    // (field, annotation, ranges)
    let cases: [(&[&str], Option<&str>, &[&str]); 8] = [
        (&["10.0.0.0/8", "fd00::/64"], None, &["10.0.0.0/8", "fd00::/64"]),
        (&["10.0.0.0/8"], Some("192.168.0.0/16"), &["10.0.0.0/8"]),
        (&[], Some(" 192.168.0.0/16,fd00::/64 , "), &["192.168.0.0/16", "fd00::/64"]),
        (&[], Some(""), &[]),
        (&[], None, &[]),
        // What old API servers let in: spaces, zeros before a number, host bits.
        (&[" 10.1.2.3/8 ", "010.001.000.0/16"], None, &["10.0.0.0/8", "10.1.0.0/16"]),
        (&["10.0.0.0", "10.0.0.0/33", "x/8"], None, &[]),
        (&["0.0.0.0/0"], None, &["0.0.0.0/0"]),
    ];
    for (field, annotation, expected) in cases {
        let mut object = serde_json::json!({
            "metadata": {"name": "web", "namespace": "default", "annotations": {}},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.10", "loadBalancerSourceRanges": field,
                "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.5"}]}},
        });
        if let Some(text) = annotation {
            object["metadata"]["annotations"][ANNOTATION] = serde_json::json!(text);
        }
        let object: Service = serde_json::from_value(object).unwrap();
        let record = decode::service(&object, &mut decode::Interner::default()).unwrap();
        let ranges: Vec<String> = record.source_ranges.iter().map(ToString::to_string).collect();
        assert_eq!(ranges, expected, "{field:?} {annotation:?}");
    }
}

#[test]
fn source_ranges_guard_the_load_balancers_addresses_alone() {
    let record = |ranges: &[&str]| ServiceRecord {
        source_ranges: ranges.iter().map(|r| r.parse().unwrap()).collect(),
        ..all_frontends()
    };
    let guarded = |model: &Model| -> Vec<(String, Vec<String>)> {
        let frontends = model.plan(&name("web")).frontends.into_iter().filter(|f| !f.sources.is_empty());
        frontends.map(|f| (f.key.addr.to_string(), f.sources.iter().map(ToString::to_string).collect())).collect()
    };
    let mut model = Model::new("node1");
    model.set_node(NodeRecord { internal_ips: vec![ip("192.168.7.2")], ..NodeRecord::default() });
    model.set_service(&name("web"), Some(record(&["10.0.0.0/8", "fd00::/64"])));
    assert_eq!(guarded(&model), [("203.0.113.6".to_owned(), vec!["10.0.0.0/8".to_owned()])]);
    model.set_service(&name("web"), Some(record(&["192.168.0.0/16"])));
    let with_own = vec!["192.168.0.0/16".to_owned(), "203.0.113.6/32".to_owned()];
    assert_eq!(guarded(&model), [("203.0.113.6".to_owned(), with_own)]);
    for open in [&["fd00::/64"][..], &["10.0.0.0/8", "0.0.0.0/0"], &[]] {
        model.set_service(&name("web"), Some(record(open)));
        assert!(guarded(&model).is_empty(), "{open:?}");
    }
    // The node's address moves: only Services with ranges are looked at again.
    model.set_service(&name("other"), Some(all_frontends()));
    model.set_service(&name("web"), Some(record(&["192.168.0.0/16"])));
    let _ = model.take_dirty();
    model.set_node(NodeRecord { internal_ips: vec![ip("172.16.0.1")], ..NodeRecord::default() });
    assert_eq!(model.take_dirty(), [name("web")].into());
}

#[test]
fn health_checks_count_ready_endpoints_here_and_a_dual_stack_pod_once() {
    use keelson_dataplane::model::types::Family;
    let mut model = Model::new("node1");
    let record = ServiceRecord { external_local: true, health_check_node_port: 31_000, ..all_frontends() };
    model.set_service(&name("web"), Some(record.clone()));
    assert_eq!(model.health_checks(), [(name("web"), (31_000, 0))].into());
    let ports = [(Protocol::Tcp, 8080), (Protocol::Udp, 8080)];
    let four = vec![
        endpoint("10.0.0.1", "ready", true),
        endpoint("10.0.0.2", "ready", true),
        endpoint("10.0.0.3", "serving and terminating", true),
        endpoint("10.0.0.4", "not ready", true),
        endpoint("10.0.0.5", "ready", false),
    ];
    model.set_slice(&name("v4"), Some(slice("web", &ports, four)));
    let six = vec![endpoint("fd00::1", "ready", true), endpoint("fd00::2", "ready", true)];
    model.set_slice(&name("v6"), Some(SliceRecord { family: Family::V6, ..slice("web", &ports, six) }));
    assert_eq!(model.health_checks(), [(name("web"), (31_000, 2))].into());
    model.set_service(&name("web"), Some(ServiceRecord { health_check_node_port: 0, ..record.clone() }));
    assert!(model.health_checks().is_empty());
    model.set_service(&name("web"), Some(record));
    model.set_service(&name("web"), None);
    assert!(model.health_checks().is_empty());
}

#[test]
fn ports_whose_policy_leaves_them_without_endpoints_here_are_counted() {
    use keelson_dataplane::model::NoLocal;
    let count = |internal_local, external_local, endpoints| {
        plan(ServiceRecord { internal_local, external_local, ..all_frontends() }, endpoints).no_local
    };
    let (here, elsewhere) = (endpoint("10.0.0.1", "ready", true), endpoint("10.0.0.2", "ready", false));
    let none = NoLocal::default();
    assert_eq!(count(true, true, vec![here, elsewhere]), none);
    assert_eq!(count(false, false, vec![elsewhere]), none);
    assert_eq!(count(true, false, vec![elsewhere]), NoLocal { internal: 1, external: 0 });
    assert_eq!(count(false, true, vec![elsewhere]), NoLocal { internal: 0, external: 1 });
    // Without any endpoint the policy is not to blame.
    assert_eq!(count(true, true, vec![]), none);
}

#[test]
fn an_endpoint_record_stays_small() {
    assert!(size_of::<EndpointRecord>() <= 32);
    assert!(size_of::<Ep>() <= 20);
}
