//! The kinds of networking.k8s.io.
//!
//! Upstream counterparts: `pkg/apis/networking`, its registries and printers.

use k8s_openapi::api::networking::v1 as networking;
use serde_json::{Value, json};

use super::{immutable, status};
use crate::error::FieldError;
use crate::strategy::Rules;
use crate::table::{AGE, Columns, NAME, age_of, name_of, selector_text, text, text_or};
use crate::{meta, names, val};

static INGRESS_RULES: Rules = Rules {
    create: |obj| val::set(obj, "status", json!({"loadBalancer": {}})),
    validate: validate_ingress,
    ..Rules::SPEC
};

fn validate_ingress(obj: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let rules = val::list(obj, "spec.rules");
    if rules.is_empty() && val::at(obj, "spec.defaultBackend").is_none() {
        errors.push(FieldError::invalid(
            "spec",
            Value::Array(Vec::new()),
            "either `defaultBackend` or `rules` must be specified",
        ));
    }
    for (i, rule) in rules.iter().enumerate() {
        let host = val::text(rule, "host");
        if !host.is_empty() {
            let bare = host.strip_prefix("*.").unwrap_or(host);
            errors.extend(
                names::dns1123_subdomain(bare)
                    .into_iter()
                    .map(|m| FieldError::invalid(format!("spec.rules[{i}].host"), host, m)),
            );
        }
        for (j, path) in val::list(rule, "http.paths").iter().enumerate() {
            let at = format!("spec.rules[{i}].http.paths[{j}]");
            let kind = val::text(path, "pathType");
            let valid = ["Exact", "ImplementationSpecific", "Prefix"];
            if kind.is_empty() {
                errors.push(FieldError::required(format!("{at}.pathType"), "pathType must be specified"));
            } else if !valid.contains(&kind) {
                errors.push(FieldError::not_supported(format!("{at}.pathType"), kind, &valid));
            }
            let text = val::text(path, "path");
            if matches!(kind, "Exact" | "Prefix") && !text.starts_with('/') {
                errors.push(FieldError::invalid(format!("{at}.path"), text, "must be an absolute path"));
            }
        }
    }
    errors
}

static INGRESS_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Class"), text("Hosts"), text("Address"), text("Ports"), AGE],
    cells: |obj, now| {
        let hosts: Vec<&str> =
            val::list(obj, "spec.rules").iter().map(|r| val::text(r, "host")).filter(|h| !h.is_empty()).collect();
        let hosts = match hosts.len() {
            0 => "*".to_owned(),
            n if n > 3 => format!("{} + {} more...", hosts[..3].join(","), n - 3),
            _ => hosts.join(","),
        };
        let addresses: Vec<&str> = val::list(obj, "status.loadBalancer.ingress")
            .iter()
            .map(|i| if val::text(i, "ip").is_empty() { val::text(i, "hostname") } else { val::text(i, "ip") })
            .collect();
        let ports = if val::list(obj, "spec.tls").is_empty() { "80" } else { "80, 443" };
        vec![
            name_of(obj),
            text_or(obj, "spec.ingressClassName", "<none>"),
            json!(hosts),
            json!(addresses.join(",")),
            json!(ports),
            age_of(obj, now),
        ]
    },
};

kind!(INGRESSES: "networking" "networking.k8s.io" "v1" "Ingress", "ingresses" "ingress", Namespaced "/registry/ingress/",
    networking::Ingress, INGRESS_RULES, INGRESS_COLUMNS, short_names: &["ing"],
    subresources: &[status("networking.k8s.io", "v1", "Ingress")]);

static CLASS_RULES: Rules = Rules {
    generation: true,
    defaults: |obj| {
        if let Some(parameters) = val::child_mut(val::child(obj, "spec"), "parameters") {
            val::default(parameters, "scope", "Cluster");
        }
    },
    validate_update: |new, old, _| immutable(new, old, &["spec.controller"]),
    ..Rules::PLAIN
};

static CLASS_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Controller"), text("Parameters"), AGE],
    cells: |obj, now| {
        let parameters = val::at(obj, "spec.parameters").map_or_else(
            || "<none>".to_owned(),
            |p| {
                let group = val::text(p, "apiGroup");
                let dot = if group.is_empty() { "" } else { "." };
                format!("{}{dot}{group}/{}", val::text(p, "kind"), val::text(p, "name"))
            },
        );
        vec![name_of(obj), json!(val::text(obj, "spec.controller")), json!(parameters), age_of(obj, now)]
    },
};

kind!(INGRESS_CLASSES: "networking" "networking.k8s.io" "v1" "IngressClass", "ingressclasses" "ingressclass", Cluster
    "/registry/ingressclasses/", networking::IngressClass, CLASS_RULES, CLASS_COLUMNS);

static POLICY_RULES: Rules = Rules {
    generation: true,
    defaults: |obj| {
        let spec = val::child(obj, "spec");
        if val::list(spec, "policyTypes").is_empty() {
            let egress = !val::list(spec, "egress").is_empty();
            val::set(spec, "policyTypes", if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) });
        }
        for direction in ["ingress", "egress"] {
            for rule in val::list_mut(spec, direction) {
                for port in val::list_mut(rule, "ports") {
                    val::default(port, "protocol", "TCP");
                }
            }
        }
    },
    validate: |obj| meta::selector(val::at(obj, "spec.podSelector"), "spec.podSelector"),
    ..Rules::PLAIN
};

static POLICY_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Pod-Selector"), AGE],
    cells: |obj, now| vec![name_of(obj), json!(selector_text(val::at(obj, "spec.podSelector"))), age_of(obj, now)],
};

kind!(NETWORK_POLICIES: "networking" "networking.k8s.io" "v1" "NetworkPolicy", "networkpolicies" "networkpolicy", Namespaced
    "/registry/networkpolicies/", networking::NetworkPolicy, POLICY_RULES, POLICY_COLUMNS, short_names: &["netpol"]);

static CIDR_RULES: Rules = Rules {
    status: true,
    validate: |obj| {
        let mut errors = Vec::new();
        for (i, cidr) in val::list(obj, "spec.cidrs").iter().filter_map(Value::as_str).enumerate() {
            errors.extend(
                names::cidr(cidr).into_iter().map(|m| FieldError::invalid(format!("spec.cidrs[{i}]"), cidr, m)),
            );
        }
        errors
    },
    validate_update: |new, old, _| immutable(new, old, &["spec.cidrs"]),
    ..Rules::PLAIN
};

static CIDR_COLUMNS: Columns = Columns {
    columns: &[NAME, text("CIDRs"), AGE],
    cells: |obj, now| {
        let cidrs: Vec<&str> = val::list(obj, "spec.cidrs").iter().filter_map(Value::as_str).collect();
        vec![name_of(obj), json!(cidrs.join(",")), age_of(obj, now)]
    },
};

kind!(SERVICE_CIDRS: "networking" "networking.k8s.io" "v1" "ServiceCIDR", "servicecidrs" "servicecidr", Cluster
    "/registry/servicecidrs/", networking::ServiceCIDR, CIDR_RULES, CIDR_COLUMNS,
    subresources: &[status("networking.k8s.io", "v1", "ServiceCIDR")]);

static ADDRESS_RULES: Rules = Rules {
    name: names::ip,
    validate: |obj| {
        if val::at(obj, "spec.parentRef").is_none() {
            return vec![FieldError::required("spec.parentRef", "")];
        }
        Vec::new()
    },
    validate_update: |new, old, _| immutable(new, old, &["spec.parentRef"]),
    selectable: &["spec.parentRef.name", "spec.parentRef.resource", "spec.parentRef.namespace"],
    ..Rules::PLAIN
};

static ADDRESS_COLUMNS: Columns = Columns {
    columns: &[NAME, text("ParentRef"), AGE],
    cells: |obj, now| {
        let parent = val::at(obj, "spec.parentRef").unwrap_or(&Value::Null);
        let group = val::text(parent, "group");
        let resource = val::text(parent, "resource");
        let dot = if group.is_empty() { "" } else { "." };
        let namespace = val::text(parent, "namespace");
        let slash = if namespace.is_empty() { "" } else { "/" };
        let shown = format!("{resource}{dot}{group}/{namespace}{slash}{}", val::text(parent, "name"));
        vec![name_of(obj), json!(shown), age_of(obj, now)]
    },
};

kind!(IP_ADDRESSES: "networking" "networking.k8s.io" "v1" "IPAddress", "ipaddresses" "ipaddress", Cluster "/registry/ipaddresses/",
    networking::IPAddress, ADDRESS_RULES, ADDRESS_COLUMNS, short_names: &["ip"]);
