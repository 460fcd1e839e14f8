//! The kinds, one file for each or for a small group, and the table of them all.
//!
//! To add a kind: write its [`Rules`](crate::strategy::Rules) and [`Columns`](crate::table::Columns), an entry with `kind!`, and name it
//! in [`ALL`].

use serde_json::Value;

use crate::error::FieldError;
use crate::resource::Resource;
use crate::schema::{self, Root};
use crate::val;

/// One entry of the table: names, scope, storage prefix, type, rules, columns, and what else is special.
macro_rules! kind {
    ($name:ident: $package:literal $group:literal $version:literal $kind:literal, $plural:literal $singular:literal, $scope:ident
        $prefix:literal, $module:ident::$ty:ident, $rules:expr, $columns:expr $(, $field:ident: $value:expr)* $(,)?) => {
        pub(crate) static $name: $crate::resource::Resource = $crate::resource::Resource {
            group: $group,
            version: $version,
            kind: $kind,
            list_kind: concat!($kind, "List"),
            plural: $plural,
            singular: $singular,
            scope: $crate::resource::Scope::$scope,
            storage_prefix: $prefix,
            schema: concat!("io.k8s.api.", $package, ".", $version, ".", $kind),
            root: $crate::schema::root::<$module::$ty>(),
            strategy: &$rules,
            columns: &$columns,
            $($field: $value,)*
            ..$crate::resource::Resource::BASE
        };
    };
}

pub mod admission;
pub mod batch;
pub mod config;
pub mod custom_resource_definition;
pub mod endpoints;
pub mod event;
pub mod limit_range;
pub mod namespace;
pub mod networking;
pub mod node;
pub mod pod;
pub mod policy;
pub mod quota;
pub mod rbac;
pub mod resource;
pub mod reviews;
pub mod service;
pub mod stored;
pub mod template;
pub mod volume;
pub mod webhook;
pub mod workload;

/// Verbs of a status subresource.
pub(crate) const STATUS_VERBS: &[crate::resource::Verb] =
    &[crate::resource::Verb::Get, crate::resource::Verb::Patch, crate::resource::Verb::Update];

/// A status subresource.
pub(crate) const fn status(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
) -> crate::resource::Subresource {
    crate::resource::Subresource { name: "status", group, version, kind, verbs: STATUS_VERBS }
}

/// A scale subresource.
pub(crate) const SCALE: crate::resource::Subresource = crate::resource::Subresource {
    name: "scale",
    group: "autoscaling",
    version: "v1",
    kind: "Scale",
    verbs: STATUS_VERBS,
};

/// Every entry, in discovery order: core first, then groups by upstream's priority, plurals in order within a group.
pub(crate) static ALL: &[&Resource] = &[
    &reviews::BINDINGS,
    &config::CONFIG_MAPS,
    &endpoints::ENDPOINTS,
    &event::EVENTS,
    &policy::LIMIT_RANGES,
    &namespace::NAMESPACES,
    &node::NODES,
    &volume::CLAIMS,
    &volume::VOLUMES,
    &pod::PODS,
    &pod::POD_TEMPLATES,
    &workload::REPLICATION_CONTROLLERS,
    &policy::RESOURCE_QUOTAS,
    &config::SECRETS,
    &config::SERVICE_ACCOUNTS,
    &service::SERVICES,
    &event::NEW_EVENTS,
    &reviews::TOKEN_REVIEWS,
    &reviews::SELF_SUBJECT_REVIEWS,
    &reviews::LOCAL_ACCESS_REVIEWS,
    &reviews::SELF_ACCESS_REVIEWS,
    &reviews::SELF_RULES_REVIEWS,
    &reviews::ACCESS_REVIEWS,
    &policy::AUTOSCALERS,
    &batch::CRON_JOBS,
    &batch::JOBS,
    &stored::SIGNING_REQUESTS,
    &networking::INGRESS_CLASSES,
    &networking::INGRESSES,
    &networking::IP_ADDRESSES,
    &networking::NETWORK_POLICIES,
    &networking::SERVICE_CIDRS,
    &policy::DISRUPTION_BUDGETS,
    &rbac::CLUSTER_ROLE_BINDINGS,
    &rbac::CLUSTER_ROLES,
    &rbac::ROLE_BINDINGS,
    &rbac::ROLES,
    &volume::CSI_DRIVERS,
    &volume::CSI_NODES,
    &volume::CSI_CAPACITIES,
    &volume::STORAGE_CLASSES,
    &volume::ATTACHMENTS,
    &volume::ATTRIBUTES_CLASSES,
    &admission::MUTATING_POLICIES,
    &admission::MUTATING_POLICY_BINDINGS,
    &webhook::MUTATING_WEBHOOKS,
    &admission::VALIDATING_POLICIES,
    &admission::VALIDATING_POLICY_BINDINGS,
    &webhook::VALIDATING_WEBHOOKS,
    &custom_resource_definition::DEFINITIONS,
    &stored::PRIORITY_CLASSES,
    &stored::LEASES,
    &stored::RUNTIME_CLASSES,
    &endpoints::SLICES,
    &resource::DEVICE_CLASSES,
    &resource::CLAIMS,
    &resource::CLAIM_TEMPLATES,
    &resource::SLICES,
    &stored::FLOW_SCHEMAS,
    &stored::PRIORITY_LEVELS,
    &workload::REVISIONS,
    &workload::DAEMON_SETS,
    &workload::DEPLOYMENTS,
    &workload::REPLICA_SETS,
    &workload::STATEFUL_SETS,
];

/// Turns an object of another version of the same stored kind into the version of `res`.
pub(crate) fn convert(res: &Resource, obj: &mut Value) {
    if let Some(version) = res.strategy.custom() {
        version.read_back(obj);
    }
    if res.kind == "Event" && matches!(res.group, "" | "events.k8s.io") {
        event::convert(res, obj);
    }
}

/// All types that may be decoded: those of the table and those of subresources.
pub(crate) fn roots() -> impl Iterator<Item = Root> {
    let extra = ["Scale", "Eviction", "TokenRequest", "Binding"];
    ALL.iter().map(|r| r.root).chain(extra.into_iter().filter_map(extra_root))
}

/// The type of a subresource that is no entry of the table.
pub(crate) fn extra_root(kind: &str) -> Option<Root> {
    use k8s_openapi::api::{authentication, autoscaling, core, policy};
    Some(match kind {
        "Scale" => schema::root::<autoscaling::v1::Scale>(),
        "Eviction" => schema::root::<policy::v1::Eviction>(),
        "TokenRequest" => schema::root::<authentication::v1::TokenRequest>(),
        "Binding" => schema::root::<core::v1::Binding>(),
        _ => return None,
    })
}

/// Errors for the dotted paths whose value differs between `new` and `old`.
pub(crate) fn immutable(new: &Value, old: &Value, paths: &[&str]) -> Vec<FieldError> {
    paths
        .iter()
        .filter(|path| !val::same(val::at(new, path), val::at(old, path)))
        .map(|path| {
            FieldError::invalid(*path, val::at(new, path).cloned().unwrap_or(Value::Null), "field is immutable")
        })
        .collect()
}

/// An error if the string at a dotted path is there and not one of `valid`.
pub(crate) fn one_of(obj: &Value, path: &str, valid: &[&str]) -> Option<FieldError> {
    let value = val::text(obj, path);
    (!value.is_empty() && !valid.contains(&value)).then(|| FieldError::not_supported(path, value, valid))
}

/// An error if the integer at a dotted path is negative.
pub(crate) fn not_negative(obj: &Value, path: &str) -> Option<FieldError> {
    val::int(obj, path).filter(|n| *n < 0).map(|n| FieldError::invalid(path, n, "must be greater than or equal to 0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn entries_are_unique_and_their_schemas_exist() {
        let mut seen = HashSet::new();
        for r in ALL {
            assert!(seen.insert((r.group, r.version, r.plural)), "{r:?} twice");
            assert!(seen.insert((r.group, r.version, r.kind)), "{r:?} twice");
            assert!(schema::schemas().get(r.schema).is_some(), "{} is not generated", r.schema);
            assert!(!r.stored() || (r.storage_prefix.starts_with("/registry/") && r.storage_prefix.ends_with('/')));
            for sub in r.subresources {
                if !sub.verbs.is_empty() && sub.kind != "PodPortForwardOptions" && !sub.kind.ends_with("Options") {
                    let own = sub.kind == r.kind;
                    let name = crate::decode::definition_name(sub.group, sub.version, sub.kind);
                    let name = if own { r.schema.to_owned() } else { name };
                    assert!(schema::schemas().get(&name).is_some(), "{name} is not generated");
                }
            }
        }
    }
}
