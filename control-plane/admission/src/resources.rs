//! Amounts by resource, and what a pod as a whole asks for.
//!
//! Upstream counterparts: `k8s.io/apiserver/pkg/quota/v1/resources.go`, `k8s.io/component-helpers/resource`, and the copy of the latter in
//! `plugin/pkg/admission/limitranger`.

use std::collections::BTreeMap;

use keelson_kinds::resource_names::quantity;
use kube_common::quantity::Quantity;
use serde_json::{Map, Value};

use crate::json::{entries, items, text};

/// Amounts by name of the resource.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Reads a resource list; amounts that are none are left out.
#[must_use]
pub fn parse(list: &Value) -> ResourceList {
    entries(list).filter_map(|(name, amount)| Some((name.to_owned(), quantity(amount)?))).collect()
}

/// The list as it stands in an object.
#[must_use]
pub fn to_json(list: &ResourceList) -> Value {
    let fields: Map<String, Value> =
        list.iter().map(|(name, amount)| (name.clone(), Value::String(amount.to_string()))).collect();
    Value::Object(fields)
}

/// `cpu=1,pods=2`.
#[must_use]
pub fn show(list: &ResourceList) -> String {
    list.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(",")
}

/// Adds `more` to `list`.
pub fn add(list: &mut ResourceList, more: &ResourceList) {
    for (name, amount) in more {
        list.entry(name.clone()).and_modify(|sum| *sum = *sum + *amount).or_insert(*amount);
    }
}

/// Raises each amount in `list` to the one in `other`.
pub fn raise(list: &mut ResourceList, other: &ResourceList) {
    for (name, amount) in other {
        list.entry(name.clone()).and_modify(|most| *most = (*most).max(*amount)).or_insert(*amount);
    }
}

/// Which amounts of a container count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Requests,
    Limits,
}

impl Field {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Limits => "limits",
        }
    }
}

/// Sums over containers: what runs together is added up, and what runs before the rest is at least that.
///
/// `of` gives the amounts of a container. A sidecar (an init container that restarts always) runs with all that come after it.
pub(crate) fn over_containers(spec: &Value, mut of: impl FnMut(&Value) -> ResourceList) -> ResourceList {
    let mut sum = ResourceList::new();
    for container in items(&spec["containers"]) {
        add(&mut sum, &of(container));
    }
    let (mut sidecars, mut starting) = (ResourceList::new(), ResourceList::new());
    for container in items(&spec["initContainers"]) {
        let own = of(container);
        if container["restartPolicy"] == "Always" {
            add(&mut sum, &own);
            add(&mut sidecars, &own);
        } else {
            let mut together = own;
            add(&mut together, &sidecars);
            raise(&mut starting, &together);
        }
    }
    raise(&mut sum, &starting);
    sum
}

/// What the spec asks for, without overhead; `cpu` and `memory` of the pod as a whole come before those of its containers.
#[must_use]
pub(crate) fn of_spec(spec: &Value, field: Field) -> ResourceList {
    let mut sum = over_containers(spec, |container| parse(&container["resources"][field.as_str()]));
    let whole = parse(&spec["resources"][field.as_str()]);
    sum.extend(whole.into_iter().filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory")));
    sum
}

/// Whether resources of that name can be given for a pod as a whole.
fn for_whole_pods(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Whether a pod sets resources as a whole.
pub(crate) fn set_as_a_whole(spec: &Value) -> bool {
    let mut names = ["requests", "limits"].into_iter().flat_map(|list| entries(&spec["resources"][list]));
    names.any(|(name, _)| for_whole_pods(name))
}

/// What a pod requests, with overhead; during a resize the most of what it asks for, was promised and has.
#[must_use]
pub fn pod_requests(pod: &Value) -> ResourceList {
    let infeasible = resize_infeasible(pod);
    let asked = |container: &Value| parse(&container["resources"]["requests"]);
    let unless_infeasible = |container: &Value| if infeasible { ResourceList::new() } else { asked(container) };
    let promised = |container: &Value| {
        let promised = &status_of(pod, container)["allocatedResources"];
        if promised.is_object() { parse(promised) } else { unless_infeasible(container) }
    };
    let has = |container: &Value| {
        let has = &status_of(pod, container)["resources"]["requests"];
        if has.is_object() { parse(has) } else { promised(container) }
    };
    let spec = &pod["spec"];
    let mut sum = over_containers(spec, has);
    raise(&mut sum, &over_containers(spec, promised));
    if !infeasible {
        raise(&mut sum, &over_containers(spec, asked));
    }
    sum.extend(parse(&spec["resources"]["requests"]).into_iter().filter(|(name, _)| for_whole_pods(name)));
    add(&mut sum, &parse(&spec["overhead"]));
    sum
}

/// The limits of a pod, with overhead where there is a limit; during a resize the most of what it asks for and has.
#[must_use]
pub fn pod_limits(pod: &Value) -> ResourceList {
    let infeasible = resize_infeasible(pod);
    let asked = |container: &Value| parse(&container["resources"]["limits"]);
    let has = |container: &Value| {
        let has = &status_of(pod, container)["resources"]["limits"];
        match has.is_object() {
            true => parse(has),
            false if infeasible => ResourceList::new(),
            false => asked(container),
        }
    };
    let spec = &pod["spec"];
    let mut sum = over_containers(spec, has);
    if !infeasible {
        raise(&mut sum, &over_containers(spec, asked));
    }
    sum.extend(parse(&spec["resources"]["limits"]).into_iter().filter(|(name, _)| for_whole_pods(name)));
    for (name, overhead) in parse(&spec["overhead"]) {
        if let Some(limit) = sum.get_mut(&name).filter(|limit| !limit.is_zero()) {
            *limit = *limit + overhead;
        }
    }
    sum
}

fn status_of<'a>(pod: &'a Value, container: &Value) -> &'a Value {
    let name = text(&container["name"]);
    let status = &pod["status"];
    let mut all = items(&status["containerStatuses"]).iter().chain(items(&status["initContainerStatuses"]));
    all.find(|status| text(&status["name"]) == name).unwrap_or(&Value::Null)
}

/// Whether the kubelet refused a resize for good: what was asked for does not count then.
fn resize_infeasible(pod: &Value) -> bool {
    let mut conditions = items(&pod["status"]["conditions"]).iter();
    conditions.find(|condition| condition["type"] == "PodResizePending").is_some_and(|c| c["reason"] == "Infeasible")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn shown(list: &ResourceList) -> String {
        show(list)
    }

    #[test]
    fn init_containers_and_sidecars_count_as_they_run() {
        let with = |cpu: &str| json!({"requests": {"cpu": cpu}});
        for (init, want) in [
            (json!([]), "cpu=3"),
            (json!([{"resources": with("2")}]), "cpu=3"),
            (json!([{"resources": with("5")}]), "cpu=5"),
            // A sidecar runs with the pod, and with the init containers after it.
            (json!([{"restartPolicy": "Always", "resources": with("1")}]), "cpu=4"),
            (json!([{"restartPolicy": "Always", "resources": with("1")}, {"resources": with("5")}]), "cpu=6"),
            (json!([{"resources": with("5")}, {"restartPolicy": "Always", "resources": with("1")}]), "cpu=5"),
        ] {
            let spec =
                json!({"containers": [{"resources": with("1")}, {"resources": with("2")}], "initContainers": init});
            assert_eq!(shown(&of_spec(&spec, Field::Requests)), want, "{init}");
            assert_eq!(shown(&pod_requests(&json!({"spec": spec}))), want, "{init}");
        }
    }

    #[test]
    fn the_whole_pods_resources_come_first_and_overhead_is_added() {
        let pod = json!({"spec": {
            "overhead": {"cpu": "250m", "memory": "1Gi"},
            "resources": {"requests": {"cpu": "2", "hugepages-2Mi": "4Mi"}, "limits": {"cpu": "4"}},
            "containers": [{"resources": {"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}, "limits": {"cpu": "1"}}}],
        }});
        assert_eq!(shown(&pod_requests(&pod)), "cpu=2250m,ephemeral-storage=1Gi,hugepages-2Mi=4Mi,memory=1Gi");
        // Overhead sets no limit where there is none.
        assert_eq!(shown(&pod_limits(&pod)), "cpu=4250m");
        assert_eq!(shown(&of_spec(&pod["spec"], Field::Requests)), "cpu=2,ephemeral-storage=1Gi");
        assert!(set_as_a_whole(&pod["spec"]));
        assert!(!set_as_a_whole(&json!({"resources": {"requests": {"ephemeral-storage": "1"}}})));
    }

    #[test]
    fn a_resize_counts_the_most_of_wanted_promised_and_held() {
        let pod = |reason: &str| {
            json!({
                "spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "8"}}}]},
                "status": {
                    "conditions": [{"type": "PodResizePending", "reason": reason}],
                    "containerStatuses": [{"name": "a", "allocatedResources": {"cpu": "2"},
                        "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "5"}}}],
                },
            })
        };
        assert_eq!(shown(&pod_requests(&pod("Deferred"))), "cpu=4");
        assert_eq!(shown(&pod_limits(&pod("Deferred"))), "cpu=8");
        assert_eq!(shown(&pod_requests(&pod("Infeasible"))), "cpu=3");
        assert_eq!(shown(&pod_limits(&pod("Infeasible"))), "cpu=5");
    }

    proptest! {
        #[test]
        fn a_pod_requests_at_least_what_each_container_does(cpu in prop::collection::vec((0i64..5000, 0u8..3), 1..6)) {
            let (mut containers, mut init) = (Vec::new(), Vec::new());
            for (milli, place) in &cpu {
                let resources = json!({"requests": {"cpu": format!("{milli}m")}});
                match place {
                    0 => containers.push(json!({"resources": resources})),
                    1 => init.push(json!({"resources": resources})),
                    _ => init.push(json!({"resources": resources, "restartPolicy": "Always"})),
                }
            }
            let sum = pod_requests(&json!({"spec": {"containers": containers, "initContainers": init}}))["cpu"].milli();
            prop_assert!(cpu.iter().all(|(milli, _)| *milli <= sum));
            prop_assert!(sum <= cpu.iter().map(|(milli, _)| milli).sum());
        }
    }
}
