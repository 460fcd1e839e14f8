//! Spreads endpoints over slices with the fewest changes. Pure.
//!
//! Each watcher of slices receives every changed slice whole, so: endpoints stay where they are, changed ones are
//! changed in place, new ones go first to slices that change anyway, then to the fullest slice with room, then to new
//! slices. An empty slice is only kept as the sign that a service has no endpoints.
//!
//! Upstream counterpart: `staging/src/k8s.io/endpointslice/reconciler.go`.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::model::{Family, Groups, Port, families, is_headless};
use crate::meta::{controller_reference, is_deleting, labels, name_of};

/// Most endpoints of a slice (upstream's `--max-endpoints-per-slice`).
pub const MAX_PER_SLICE: usize = 100;
/// Which service a slice belongs to.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Who makes a slice.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Us, under upstream's name.
pub const MANAGER: &str = "endpointslice-controller.k8s.io";
/// When the change that a slice shows happened.
pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Marks slices of services without a cluster address.
pub const HEADLESS: &str = "service.kubernetes.io/headless";

/// What to write.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// Slices to make.
    pub create: Vec<EndpointSlice>,
    /// Slices to change: before and after.
    pub update: Vec<(EndpointSlice, EndpointSlice)>,
    /// Slices to drop.
    pub delete: Vec<EndpointSlice>,
}

type GroupKey = (Family, Vec<Port>);

/// Compares wanted endpoints with the slices that there are. `trigger` is when the newest change happened, if known.
pub fn plan(service: &Service, wanted: &Groups, existing: &[EndpointSlice], trigger: Option<&str>) -> Plan {
    let mut plan = Plan::default();
    let mut by_group: BTreeMap<GroupKey, Vec<EndpointSlice>> = BTreeMap::new();
    for slice in existing.iter().filter(|s| !is_deleting(*s)) {
        match group_of(service, slice) {
            Some(key) => by_group.entry(key).or_default().push(slice.clone()),
            None => plan.delete.push(slice.clone()),
        }
    }
    for (key, endpoints) in wanted {
        let slices = by_group.remove(key).unwrap_or_default();
        fill(service, key, endpoints, slices, trigger, &mut plan);
    }
    let empty_families = families(service).into_iter().filter(|family| !wanted.keys().any(|(f, _)| f == family));
    let empty_families: Vec<Family> = empty_families.collect();
    for ((family, ports), slices) in by_group {
        // Without any endpoint of a family its first slice without ports stays, emptied, as a sign.
        let mut slices = slices.into_iter();
        if empty_families.contains(&family)
            && ports.is_empty()
            && let Some(sign) = slices.next()
        {
            rewrite(service, sign, Vec::new(), trigger, &mut plan);
        }
        plan.delete.extend(slices);
    }
    for family in empty_families {
        let has_sign = |s: &EndpointSlice| s.address_type == family.text() && s.ports.iter().flatten().next().is_none();
        let kept = existing.iter().filter(|s| !is_deleting(*s)).any(has_sign);
        if !kept {
            plan.create.push(new_slice(service, &(family, Vec::new()), Vec::new(), trigger));
        }
    }
    plan
}

/// The group that a slice serves; `None` if its family is no longer served or not known.
fn group_of(service: &Service, slice: &EndpointSlice) -> Option<GroupKey> {
    let family = families(service).into_iter().find(|f| f.text() == slice.address_type)?;
    let mut ports: Vec<Port> = slice.ports.iter().flatten().map(Port::of).collect();
    ports.sort();
    Some((family, ports))
}

/// What tells endpoints apart: the pod's UID and the address.
fn identity(endpoint: &Endpoint) -> (String, String) {
    let uid = endpoint.target_ref.as_ref().and_then(|r| r.uid.clone()).unwrap_or_default();
    (uid, endpoint.addresses.first().cloned().unwrap_or_default())
}

struct Filling {
    slice: EndpointSlice,
    endpoints: Vec<Endpoint>,
    changed: bool,
}

fn fill(
    service: &Service,
    key: &GroupKey,
    wanted: &[Endpoint],
    slices: Vec<EndpointSlice>,
    trigger: Option<&str>,
    plan: &mut Plan,
) {
    let mut missing: HashMap<(String, String), &Endpoint> = wanted.iter().map(|e| (identity(e), e)).collect();
    let mut fillings: Vec<Filling> = slices
        .into_iter()
        .map(|slice| {
            let before = slice.endpoints.clone().unwrap_or_default();
            let kept = before.iter().filter_map(|e| missing.remove(&identity(e)).map(|new| with_hints(new, e)));
            let endpoints: Vec<Endpoint> = kept.collect();
            let changed = endpoints != before || meta_differs(service, &slice);
            Filling { slice, endpoints, changed }
        })
        .collect();
    // In the order wanted, so that equal inputs give equal slices.
    let mut missing: Vec<Endpoint> =
        wanted.iter().filter(|e| missing.remove(&identity(e)).is_some()).cloned().collect();
    place(&mut fillings, &mut missing);
    for chunk in missing.chunks(MAX_PER_SLICE) {
        plan.create.push(new_slice(service, key, chunk.to_vec(), trigger));
    }
    for filling in fillings {
        if filling.endpoints.is_empty() {
            plan.delete.push(filling.slice);
        } else if filling.changed {
            rewrite(service, filling.slice, filling.endpoints, trigger, plan);
        }
    }
}

/// New endpoints go into slices that change anyway (the fullest first), and what is left, if one slice can take all of
/// it, into the fullest such slice.
fn place(fillings: &mut [Filling], missing: &mut Vec<Endpoint>) {
    let room = |f: &Filling| MAX_PER_SLICE.saturating_sub(f.endpoints.len());
    fillings.sort_by_key(|f| (room(f), name_of(&f.slice).to_owned()));
    for filling in fillings.iter_mut().filter(|f| f.changed && !f.endpoints.is_empty()) {
        let take = room(filling).min(missing.len());
        filling.endpoints.extend(missing.drain(..take));
    }
    if missing.is_empty() {
        return;
    }
    // Slices that lost all their endpoints are refilled before new ones are made.
    for filling in fillings.iter_mut().filter(|f| f.changed && f.endpoints.is_empty()) {
        let take = room(filling).min(missing.len());
        filling.endpoints.extend(missing.drain(..take));
    }
    let rest = missing.len() % MAX_PER_SLICE;
    if rest == 0 {
        return;
    }
    if let Some(filling) = fillings.iter_mut().find(|f| !f.changed && room(f) >= rest) {
        let from = missing.len() - rest;
        filling.endpoints.extend(missing.drain(from..));
        filling.changed = true;
    }
}

/// Hints are another controller's matter here: they stay until topology is implemented.
fn with_hints(new: &Endpoint, old: &Endpoint) -> Endpoint {
    Endpoint { hints: old.hints.clone(), deprecated_topology: old.deprecated_topology.clone(), ..new.clone() }
}

fn wanted_labels(service: &Service) -> BTreeMap<String, String> {
    let mut wanted: BTreeMap<String, String> =
        labels(service).iter().filter(|(key, _)| !is_reserved(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
    wanted.insert(SERVICE_NAME.to_owned(), name_of(service).to_owned());
    wanted.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if is_headless(service) {
        wanted.insert(HEADLESS.to_owned(), String::new());
    }
    wanted
}

fn is_reserved(key: &str) -> bool {
    matches!(key, SERVICE_NAME | MANAGED_BY | HEADLESS)
}

fn meta_differs(service: &Service, slice: &EndpointSlice) -> bool {
    *labels(slice) != wanted_labels(service)
}

fn annotations(known: Option<BTreeMap<String, String>>, trigger: Option<&str>) -> Option<BTreeMap<String, String>> {
    let mut annotations = known.unwrap_or_default();
    match trigger {
        Some(time) => annotations.insert(TRIGGER_TIME.to_owned(), time.to_owned()),
        None => annotations.remove(TRIGGER_TIME),
    };
    (!annotations.is_empty()).then_some(annotations)
}

fn rewrite(service: &Service, before: EndpointSlice, endpoints: Vec<Endpoint>, trigger: Option<&str>, plan: &mut Plan) {
    let known = before.endpoints.clone().unwrap_or_default();
    if known == endpoints && !meta_differs(service, &before) {
        return;
    }
    let mut after = before.clone();
    after.endpoints = Some(endpoints);
    after.metadata.labels = Some(wanted_labels(service));
    after.metadata.annotations = annotations(after.metadata.annotations.take(), trigger);
    plan.update.push((before, after));
}

fn new_slice(service: &Service, key: &GroupKey, endpoints: Vec<Endpoint>, trigger: Option<&str>) -> EndpointSlice {
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", name_of(service))),
            namespace: service.metadata.namespace.clone(),
            labels: Some(wanted_labels(service)),
            annotations: annotations(None, trigger),
            owner_references: Some(vec![controller_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: key.0.text().to_owned(),
        endpoints: Some(endpoints),
        ports: Some(key.1.iter().map(Port::to_api).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ObjectReference;
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    fn service() -> Service {
        serde_json::from_value(json!({"metadata": {"namespace": "d", "name": "web", "uid": "s"},
            "spec": {"clusterIP": "10.96.0.9", "selector": {"app": "web"}}}))
        .unwrap()
    }

    fn endpoint(id: u32, ready: bool) -> Endpoint {
        Endpoint {
            addresses: vec![format!("10.244.{}.{}", id / 250, id % 250)],
            conditions: Some(k8s_openapi::api::discovery::v1::EndpointConditions {
                ready: Some(ready),
                ..Default::default()
            }),
            target_ref: Some(ObjectReference { uid: Some(id.to_string()), ..ObjectReference::default() }),
            ..Endpoint::default()
        }
    }

    fn port(number: i32) -> Port {
        Port { name: "http".to_owned(), number, protocol: "TCP".to_owned(), app_protocol: None }
    }

    fn groups(list: &[(u32, bool, i32)]) -> Groups {
        let mut groups = Groups::new();
        for (id, ready, number) in list {
            groups.entry((Family::V4, vec![port(*number)])).or_default().push(endpoint(*id, *ready));
        }
        groups
    }

    /// Carries a plan out.
    fn apply(slices: &mut Vec<EndpointSlice>, plan: Plan, names: &mut u32) {
        slices.retain(|s| !plan.delete.iter().any(|d| name_of(d) == name_of(s)));
        for (before, after) in plan.update {
            *slices.iter_mut().find(|s| name_of(*s) == name_of(&before)).unwrap() = after;
        }
        for mut new in plan.create {
            *names += 1;
            new.metadata.name = Some(format!("web-{names:05}"));
            slices.push(new);
        }
    }

    fn pass(slices: &mut Vec<EndpointSlice>, wanted: &Groups, names: &mut u32) -> usize {
        let plan = plan(&service(), wanted, slices, None);
        let writes = plan.create.len() + plan.update.len() + plan.delete.len();
        apply(slices, plan, names);
        writes
    }

    fn range(ids: std::ops::Range<u32>) -> Groups {
        groups(&ids.map(|id| (id, true, 80)).collect::<Vec<_>>())
    }

    fn held(slice: &EndpointSlice) -> usize {
        slice.endpoints.as_ref().map_or(0, Vec::len)
    }

    #[test]
    fn a_service_without_endpoints_has_one_empty_slice() {
        let (mut slices, mut names) = (Vec::new(), 0);
        assert_eq!(pass(&mut slices, &Groups::new(), &mut names), 1);
        assert_eq!((slices.len(), held(&slices[0])), (1, 0));
        assert_eq!(pass(&mut slices, &Groups::new(), &mut names), 0);
        assert_eq!(pass(&mut slices, &range(0..1), &mut names), 2);
        assert_eq!((slices.len(), held(&slices[0])), (1, 1));
        pass(&mut slices, &Groups::new(), &mut names);
        assert_eq!((slices.len(), held(&slices[0])), (1, 0));
    }

    #[test]
    fn one_endpoint_more_or_less_is_one_write() {
        let (mut slices, mut names) = (Vec::new(), 0);
        pass(&mut slices, &range(0..250), &mut names);
        assert_eq!(slices.iter().map(held).collect::<Vec<_>>(), [100, 100, 50]);
        assert_eq!(pass(&mut slices, &range(0..251), &mut names), 1);
        assert_eq!(pass(&mut slices, &range(1..251), &mut names), 1);
        assert_eq!(slices.iter().map(held).collect::<Vec<_>>(), [99, 100, 51]);
        // Two new ones do not fit into the first: one write into the last.
        assert_eq!(pass(&mut slices, &range(1..253), &mut names), 1);
        assert_eq!(slices.iter().map(held).collect::<Vec<_>>(), [99, 100, 53]);
    }

    #[test]
    fn labels_and_owner() {
        let mut service = service();
        service.metadata.labels =
            Some([("team".to_owned(), "a".to_owned()), (MANAGED_BY.to_owned(), "me".to_owned())].into());
        service.spec.as_mut().unwrap().cluster_ip = Some("None".to_owned());
        let plan = plan(&service, &range(0..1), &[], Some("2026-01-01T00:00:00Z"));
        let slice = &plan.create[0];
        assert_eq!(labels(slice)[MANAGED_BY], MANAGER);
        assert_eq!(labels(slice)["team"], "a");
        assert_eq!(labels(slice)[HEADLESS], "");
        assert_eq!(labels(slice)[SERVICE_NAME], "web");
        assert_eq!(slice.metadata.owner_references.as_ref().unwrap()[0].controller, Some(true));
        assert_eq!(slice.metadata.annotations.as_ref().unwrap()[TRIGGER_TIME], "2026-01-01T00:00:00Z");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn exact_idempotent_minimal(steps in proptest::collection::vec(proptest::collection::btree_map(0u32..330, (any::<bool>(), prop_oneof![9 => Just(80), 1 => Just(81)]), 0..330), 1..5)) {
            let (mut slices, mut names) = (Vec::new(), 0);
            for step in steps {
                let list: Vec<_> = step.iter().map(|(id, (ready, port))| (*id, *ready, *port)).collect();
                let wanted = groups(&list);
                let before: HashMap<(String, String, i32), String> = slices.iter().flat_map(places).collect();
                pass(&mut slices, &wanted, &mut names);
                // Exactly what is wanted, once each.
                let mut have: Vec<_> = slices.iter().flat_map(|s| {
                    let port = s.ports.as_ref().and_then(|p| p.first()).and_then(|p| p.port).unwrap_or(0);
                    s.endpoints.iter().flatten().map(move |e| (identity(e).0.parse::<u32>().unwrap(), e.conditions.as_ref().unwrap().ready.unwrap(), port))
                }).collect();
                have.sort_unstable();
                prop_assert_eq!(have, list);
                prop_assert!(slices.iter().all(|s| held(s) <= MAX_PER_SLICE));
                // Nothing that stayed was moved.
                let after: HashMap<(String, String, i32), String> = slices.iter().flat_map(places).collect();
                for (what, slice) in &after {
                    if let Some(old) = before.get(what) {
                        prop_assert_eq!(old, slice);
                    }
                }
                prop_assert_eq!(plan(&service(), &wanted, &slices, None), Plan::default());
                let used: BTreeSet<&str> = slices.iter().map(name_of).collect();
                prop_assert_eq!(used.len(), slices.len());
            }
        }
    }

    fn places(slice: &EndpointSlice) -> Vec<((String, String, i32), String)> {
        let port = slice.ports.as_ref().and_then(|p| p.first()).and_then(|p| p.port).unwrap_or(0);
        let name = name_of(slice).to_owned();
        let endpoints = slice.endpoints.iter().flatten();
        endpoints
            .map(|e| {
                let (uid, ip) = identity(e);
                ((uid, ip, port), name.clone())
            })
            .collect()
    }
}
