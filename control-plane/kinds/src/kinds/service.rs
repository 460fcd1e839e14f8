//! Services.
//!
//! Upstream counterparts: `pkg/apis/core/v1/defaults.go`, `ValidateService`, `ValidateServiceUpdate`, `pkg/registry/core/service`.
//! Addresses and node ports are allocated by the server, after [`crate::write::create`] and before the object is stored; what is to be
//! allocated is said by [`wants`].

use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use super::status;
use crate::error::FieldError;
use crate::resource::{Subresource, Verb};
use crate::strategy::{Part, Rules};
use crate::table::{AGE, Columns, NAME, age_of, name_of, selector_text, text, wide};
use crate::{meta, names, val};

const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
/// Upstream's `DefaultClientIPServiceAffinitySeconds`: three hours.
const AFFINITY_SECONDS: i64 = 10800;
/// Upstream's `MaxClientIPServiceAffinitySeconds`: a day.
const AFFINITY_MAX: i64 = 86400;

static RULES: Rules = Rules {
    status: true,
    create_on_update: true,
    name: names::dns1035_label,
    defaults,
    create: |obj| {
        normalize(obj, None);
        families(obj);
        val::set(obj, "status", json!({"loadBalancer": {}}));
    },
    update: |new, old, part| {
        if part == Part::Main {
            carry_allocations(new, old);
            normalize(new, Some(old));
            drop_by_type(new, old);
            families(new);
        }
    },
    validate,
    validate_update,
    selectable: &["spec.clusterIP", "spec.type"],
    ..Rules::PLAIN
};

fn kind_of(obj: &Value) -> &str {
    val::text(obj, "spec.type")
}

/// Whether a type of service has cluster addresses.
fn needs_cluster_ip(kind: &str) -> bool {
    matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer")
}

/// Whether a service has node ports.
fn needs_node_port(obj: &Value) -> bool {
    match kind_of(obj) {
        "NodePort" => true,
        "LoadBalancer" => val::at(obj, "spec.allocateLoadBalancerNodePorts") != Some(&json!(false)),
        _ => false,
    }
}

fn defaults(obj: &mut Value) {
    let spec = val::child(obj, "spec");
    val::default(spec, "sessionAffinity", "None");
    val::default(spec, "type", "ClusterIP");
    if val::text(spec, "sessionAffinity") == "ClientIP" {
        let client = val::child(val::child(spec, "sessionAffinityConfig"), "clientIP");
        val::default(client, "timeoutSeconds", AFFINITY_SECONDS);
    } else if val::text(spec, "sessionAffinity") == "None" {
        val::remove(spec, "sessionAffinityConfig");
    }
    for port in val::list_mut(spec, "ports") {
        val::default(port, "protocol", "TCP");
        let unset = match port.get("targetPort") {
            None | Some(Value::Null) => true,
            Some(Value::String(s)) => s.is_empty(),
            Some(n) => n.as_i64() == Some(0),
        };
        if unset {
            val::carry_as(port, "port", "targetPort");
        }
    }
    let kind = val::text(spec, "type").to_owned();
    let external = matches!(kind.as_str(), "NodePort" | "LoadBalancer")
        || (kind == "ClusterIP" && !val::list(spec, "externalIPs").is_empty());
    if external {
        val::default(spec, "externalTrafficPolicy", "Cluster");
    }
    if needs_cluster_ip(&kind) {
        val::default(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        val::default(spec, "allocateLoadBalancerNodePorts", true);
    }
}

/// Keeps `clusterIP` and `clusterIPs[0]` the same, whichever the client wrote.
fn normalize(new: &mut Value, old: Option<&Value>) {
    let first = val::list(new, "spec.clusterIPs").first().and_then(Value::as_str).unwrap_or("").to_owned();
    let single = val::text(new, "spec.clusterIP").to_owned();
    let spec = val::child(new, "spec");
    let Some(old) = old else {
        if !single.is_empty() && first.is_empty() {
            val::set(spec, "clusterIPs", json!([single]));
        }
        return;
    };
    // An old client clears or sets the one it knows; the other follows.
    let (old_single, old_list) = (val::text(old, "spec.clusterIP"), val::at(old, "spec.clusterIPs"));
    let same_list = val::same(spec.get("clusterIPs"), old_list);
    if single != old_single && same_list {
        if single.is_empty() {
            val::remove(spec, "clusterIPs");
        } else {
            val::set(spec, "clusterIPs", json!([single]));
        }
    } else if !single.is_empty() && first.is_empty() {
        val::set(spec, "clusterIPs", json!([single]));
    }
}

/// One address family: what a single-stack cluster answers.
fn families(obj: &mut Value) {
    if !needs_cluster_ip(kind_of(obj)) {
        return;
    }
    let first = val::list(obj, "spec.clusterIPs").first().and_then(Value::as_str).unwrap_or("").to_owned();
    let spec = val::child(obj, "spec");
    val::default(spec, "ipFamilyPolicy", "SingleStack");
    if val::list(spec, "ipFamilies").is_empty() {
        val::set(spec, "ipFamilies", json!([if first.contains(':') { "IPv6" } else { "IPv4" }]));
    }
}

/// A client that leaves out what the server allocated gets it back.
fn carry_allocations(new: &mut Value, old: &Value) {
    let both_ips = needs_cluster_ip(kind_of(new)) && needs_cluster_ip(kind_of(old));
    let both_ports = needs_node_port(new) && needs_node_port(old);
    let empty = json!({});
    let before = old.get("spec").unwrap_or(&empty);
    let spec = val::child(new, "spec");
    if both_ips {
        if val::text(spec, "clusterIP").is_empty() {
            val::carry(spec, before, "clusterIP");
        }
        if val::list(spec, "clusterIPs").is_empty() {
            val::carry(spec, before, "clusterIPs");
        }
        for key in ["ipFamilies", "ipFamilyPolicy"] {
            if spec.get(key).is_none() {
                val::carry(spec, before, key);
            }
        }
    }
    if both_ports {
        let mut used: Vec<i64> = val::list(spec, "ports").iter().filter_map(|p| val::int(p, "nodePort")).collect();
        for port in val::list_mut(spec, "ports") {
            if val::int(port, "nodePort").unwrap_or(0) != 0 {
                continue;
            }
            let twin = val::list(before, "ports").iter().find(|p| {
                val::int(p, "port") == val::int(port, "port") && val::text(p, "protocol") == val::text(port, "protocol")
            });
            if let Some(number) = twin.and_then(|p| val::int(p, "nodePort")).filter(|n| *n != 0 && !used.contains(n)) {
                val::set(port, "nodePort", number);
                used.push(number);
            }
        }
    }
    if val::int(spec, "healthCheckNodePort").unwrap_or(0) == 0 && needs_health_port(spec) && needs_health_port(before) {
        val::carry(spec, before, "healthCheckNodePort");
    }
}

fn needs_health_port(spec: &Value) -> bool {
    val::text(spec, "type") == "LoadBalancer" && val::text(spec, "externalTrafficPolicy") == "Local"
}

/// Fields that a change of type makes meaningless go, unless the client changed them in the same update.
fn drop_by_type(new: &mut Value, old: &Value) {
    let empty = json!({});
    let before = old.get("spec").unwrap_or(&empty);
    let (had_ip, has_ip) = (needs_cluster_ip(kind_of(old)), needs_cluster_ip(kind_of(new)));
    let (had_port, has_port) = (needs_node_port(old), needs_node_port(new));
    let external = matches!(kind_of(new), "NodePort" | "LoadBalancer");
    let spec = val::child(new, "spec");
    if had_ip && !has_ip {
        for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            if val::same(spec.get(key), before.get(key)) {
                val::remove(spec, key);
            }
        }
    }
    if had_port && !has_port && !external {
        let ports = |v: &Value| -> Vec<i64> {
            val::list(v, "ports").iter().map(|p| val::int(p, "nodePort").unwrap_or(0)).collect()
        };
        if ports(spec) == ports(before) {
            for port in val::list_mut(spec, "ports") {
                val::remove(port, "nodePort");
            }
        }
    }
    let was_external = matches!(kind_of(old), "NodePort" | "LoadBalancer");
    let unchanged = |spec: &Value, key: &str| val::same(spec.get(key), before.get(key));
    if was_external
        && !external
        && val::list(spec, "externalIPs").is_empty()
        && unchanged(spec, "externalTrafficPolicy")
    {
        val::remove(spec, "externalTrafficPolicy");
    }
    if kind_of(old) == "LoadBalancer" && val::text(spec, "type") != "LoadBalancer" {
        for key in ["allocateLoadBalancerNodePorts", "healthCheckNodePort", "loadBalancerClass"] {
            if val::same(spec.get(key), before.get(key)) {
                val::remove(spec, key);
            }
        }
    }
    if kind_of(old) == "ExternalName" && val::text(spec, "type") != "ExternalName" && unchanged(spec, "externalName") {
        val::remove(spec, "externalName");
    }
}

/// What the server has to allocate for a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// A cluster address: `Some("")` any, `Some("10.96.0.7")` this one; `None` if the service is headless, external or has one.
    pub cluster_ip: Option<String>,
    /// Indices of `spec.ports` and the node port asked for, 0 for any.
    pub node_ports: Vec<(usize, u16)>,
    /// A port for load balancers' health checks.
    pub health_check_port: bool,
}

/// What has to be allocated for `new`, given what `old` (on update) already holds. Two ports with the same number and different
/// protocols may share a node port; the server asks for the second with the number of the first.
#[must_use]
pub fn wants(new: &Value, old: Option<&Value>) -> Wants {
    let mut out = Wants::default();
    let holds_ip = old.map_or("", |o| val::text(o, "spec.clusterIP"));
    let ip = val::text(new, "spec.clusterIP");
    if needs_cluster_ip(kind_of(new)) && ip != "None" && (ip.is_empty() || ip != holds_ip) {
        out.cluster_ip = Some(ip.to_owned());
    }
    if needs_node_port(new) {
        let held: Vec<i64> = old
            .map_or(&[][..], |o| val::list(o, "spec.ports"))
            .iter()
            .filter_map(|p| val::int(p, "nodePort"))
            .collect();
        for (i, port) in val::list(new, "spec.ports").iter().enumerate() {
            let number = val::int(port, "nodePort").unwrap_or(0);
            if number == 0 || !held.contains(&number) {
                out.node_ports.push((i, u16::try_from(number).unwrap_or(0)));
            }
        }
    }
    let spec = new.get("spec").unwrap_or(&Value::Null);
    out.health_check_port = needs_health_port(spec) && val::int(spec, "healthCheckNodePort").unwrap_or(0) == 0;
    out
}

/// Writes an allocated cluster address.
pub fn set_cluster_ip(obj: &mut Value, ip: &str) {
    let spec = val::child(obj, "spec");
    val::set(spec, "clusterIP", ip);
    val::set(spec, "clusterIPs", json!([ip]));
}

/// Writes an allocated node port.
pub fn set_node_port(obj: &mut Value, index: usize, port: u16) {
    if let Some(entry) = val::list_mut(val::child(obj, "spec"), "ports").nth(index) {
        val::set(entry, "nodePort", port);
    }
}

fn validate(obj: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let kind = kind_of(obj);
    let headless = val::text(obj, "spec.clusterIP") == "None"
        || val::list(obj, "spec.clusterIPs").first().is_some_and(|ip| ip == "None");
    if !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported("spec.type", kind, TYPES));
    }
    match kind {
        "LoadBalancer" if headless => {
            errors.push(FieldError::invalid(
                "spec.clusterIPs[0]",
                "None",
                "may not be set to 'None' for LoadBalancer services",
            ));
        }
        "NodePort" if headless => {
            errors.push(FieldError::invalid(
                "spec.clusterIPs[0]",
                "None",
                "may not be set to 'None' for NodePort services",
            ));
        }
        "ExternalName" => external_name(obj, &mut errors),
        _ => {}
    }
    if val::list(obj, "spec.ports").is_empty() && !headless && kind != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    ports(obj, kind, &mut errors);
    errors.extend(meta::labels(obj, "spec.selector"));
    affinity(obj, &mut errors);
    addresses(obj, kind, &mut errors);
    for (path, valid) in [
        ("spec.externalTrafficPolicy", &["Cluster", "Local"][..]),
        ("spec.internalTrafficPolicy", &["Cluster", "Local"]),
    ] {
        errors.extend(super::one_of(obj, path, valid));
    }
    let external = matches!(kind, "NodePort" | "LoadBalancer") || !val::list(obj, "spec.externalIPs").is_empty();
    if !external && !val::text(obj, "spec.externalTrafficPolicy").is_empty() {
        errors.push(FieldError::invalid(
            "spec.externalTrafficPolicy",
            val::text(obj, "spec.externalTrafficPolicy"),
            "may only be set for externally-accessible services",
        ));
    }
    errors
}

fn external_name(obj: &Value, errors: &mut Vec<FieldError>) {
    if !val::list(obj, "spec.clusterIPs").is_empty() {
        errors.push(FieldError::forbidden("spec.clusterIPs", "may not be set for ExternalName services"));
    }
    let name = val::text(obj, "spec.externalName");
    if name.is_empty() {
        errors.push(FieldError::required("spec.externalName", ""));
    } else {
        let bad = names::dns1123_subdomain(name.strip_suffix('.').unwrap_or(name));
        errors.extend(bad.into_iter().map(|m| FieldError::invalid("spec.externalName", name, m)));
    }
}

fn ports(obj: &Value, kind: &str, errors: &mut Vec<FieldError>) {
    let ports = val::list(obj, "spec.ports");
    let (mut seen_names, mut seen_ports, mut seen_nodes) = (Vec::new(), Vec::new(), Vec::new());
    for (i, port) in ports.iter().enumerate() {
        let f = |name: &str| format!("spec.ports[{i}].{name}");
        let name = val::text(port, "name");
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(FieldError::required(f("name"), ""));
            }
        } else {
            errors.extend(names::dns1123_label(name).into_iter().map(|m| FieldError::invalid(f("name"), name, m)));
            if seen_names.contains(&name) {
                errors.push(FieldError::duplicate(f("name"), name));
            }
            seen_names.push(name);
        }
        let number = val::int(port, "port").unwrap_or(0);
        errors.extend(names::port_number(number).into_iter().map(|m| FieldError::invalid(f("port"), number, m)));
        let protocol = val::text(port, "protocol");
        if protocol.is_empty() {
            errors.push(FieldError::required(f("protocol"), ""));
        } else if !PROTOCOLS.contains(&protocol) {
            errors.push(FieldError::not_supported(f("protocol"), protocol, PROTOCOLS));
        }
        match port.get("targetPort") {
            Some(Value::String(target)) => {
                errors.extend(
                    names::port_name(target)
                        .into_iter()
                        .map(|m| FieldError::invalid(f("targetPort"), target.as_str(), m)),
                );
            }
            Some(target) => {
                let target = target.as_i64().unwrap_or(0);
                errors.extend(
                    names::port_number(target).into_iter().map(|m| FieldError::invalid(f("targetPort"), target, m)),
                );
            }
            None => {}
        }
        let node = val::int(port, "nodePort").unwrap_or(0);
        if node != 0 {
            if matches!(kind, "ClusterIP" | "ExternalName") {
                errors.push(FieldError::forbidden(f("nodePort"), format!("may not be used when `type` is '{kind}'")));
            }
            if seen_nodes.contains(&(protocol, node)) {
                errors.push(FieldError::duplicate(f("nodePort"), node));
            }
            seen_nodes.push((protocol, node));
        }
        if seen_ports.contains(&(protocol, number)) {
            errors
                .push(FieldError::duplicate(format!("spec.ports[{i}]"), json!({"protocol": protocol, "port": number})));
        }
        seen_ports.push((protocol, number));
    }
}

fn affinity(obj: &Value, errors: &mut Vec<FieldError>) {
    let affinity = val::text(obj, "spec.sessionAffinity");
    let valid = ["ClientIP", "None"];
    if affinity.is_empty() {
        errors.push(FieldError::required("spec.sessionAffinity", ""));
    } else if !valid.contains(&affinity) {
        errors.push(FieldError::not_supported("spec.sessionAffinity", affinity, &valid));
    } else if affinity == "ClientIP" {
        let seconds = val::int(obj, "spec.sessionAffinityConfig.clientIP.timeoutSeconds").unwrap_or(0);
        if !(1..=AFFINITY_MAX).contains(&seconds) {
            errors.push(FieldError::invalid(
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                seconds,
                format!("must be greater than 0 and less than {AFFINITY_MAX}"),
            ));
        }
    }
}

fn addresses(obj: &Value, kind: &str, errors: &mut Vec<FieldError>) {
    for (i, ip) in val::list(obj, "spec.externalIPs").iter().filter_map(Value::as_str).enumerate() {
        errors.extend(names::ip(ip).into_iter().map(|m| FieldError::invalid(format!("spec.externalIPs[{i}]"), ip, m)));
    }
    let ips = val::list(obj, "spec.clusterIPs");
    if needs_cluster_ip(kind) {
        if ips.len() > 2 {
            errors.push(FieldError::invalid(
                "spec.clusterIPs",
                Value::Array(ips.to_vec()),
                "may only hold up to 2 values",
            ));
        }
        let single = val::text(obj, "spec.clusterIP");
        let first = ips.first().and_then(Value::as_str).unwrap_or("");
        if single != first {
            errors.push(FieldError::invalid(
                "spec.clusterIPs",
                Value::Array(ips.to_vec()),
                "first value must match `clusterIP`",
            ));
        }
        for (i, ip) in ips.iter().filter_map(Value::as_str).enumerate() {
            if ip != "None" {
                errors.extend(
                    names::ip(ip).into_iter().map(|m| FieldError::invalid(format!("spec.clusterIPs[{i}]"), ip, m)),
                );
            }
        }
    }
    for (i, range) in val::list(obj, "spec.loadBalancerSourceRanges").iter().filter_map(Value::as_str).enumerate() {
        let field = format!("spec.loadBalancerSourceRanges[{i}]");
        if kind == "LoadBalancer" {
            errors.extend(names::cidr(range.trim()).into_iter().map(|m| FieldError::invalid(field.as_str(), range, m)));
        } else if i == 0 {
            errors.push(FieldError::forbidden(
                "spec.loadBalancerSourceRanges",
                "may only be used when `type` is 'LoadBalancer'",
            ));
        }
    }
}

fn validate_update(new: &Value, old: &Value, part: Part) -> Vec<FieldError> {
    if part != Part::Main {
        return Vec::new();
    }
    let mut errors = Vec::new();
    let (before, after) = (val::text(old, "spec.clusterIP"), val::text(new, "spec.clusterIP"));
    if needs_cluster_ip(kind_of(new)) && needs_cluster_ip(kind_of(old)) && !before.is_empty() && before != after {
        let shown = val::at(new, "spec.clusterIPs").cloned().unwrap_or_else(|| json!([after]));
        errors.push(FieldError::invalid("spec.clusterIPs[0]", shown, "may not change once set"));
    }
    if kind_of(new) == "LoadBalancer" && kind_of(old) == "LoadBalancer" {
        let (before, after) = (val::at(old, "spec.loadBalancerClass"), val::at(new, "spec.loadBalancerClass"));
        if before != after {
            errors.push(FieldError::invalid(
                "spec.loadBalancerClass",
                after.cloned().unwrap_or(Value::Null),
                "may not change once set",
            ));
        }
    }
    errors
}

static COLUMNS: Columns = Columns {
    columns: &[NAME, text("Type"), text("Cluster-IP"), text("External-IP"), text("Port(s)"), AGE, wide("Selector")],
    cells: |obj, now| {
        let cluster_ip = val::list(obj, "spec.clusterIPs")
            .first()
            .and_then(Value::as_str)
            .or_else(|| Some(val::text(obj, "spec.clusterIP")).filter(|ip| !ip.is_empty()));
        vec![
            name_of(obj),
            json!(kind_of(obj)),
            json!(cluster_ip.unwrap_or("<none>")),
            json!(external_ip(obj)),
            json!(ports_text(obj)),
            age_of(obj, now),
            json!(selector_text(Some(&json!({"matchLabels": val::at(obj, "spec.selector")})))),
        ]
    },
};

fn external_ip(obj: &Value) -> String {
    let mut ips: Vec<&str> = val::list(obj, "spec.externalIPs").iter().filter_map(Value::as_str).collect();
    let or_none = |ips: Vec<&str>, none: &str| if ips.is_empty() { none.to_owned() } else { ips.join(",") };
    match kind_of(obj) {
        "ExternalName" => val::text(obj, "spec.externalName").to_owned(),
        "LoadBalancer" => {
            let mut balanced: Vec<&str> = val::list(obj, "status.loadBalancer.ingress")
                .iter()
                .map(|i| if val::text(i, "ip").is_empty() { val::text(i, "hostname") } else { val::text(i, "ip") })
                .filter(|ip| !ip.is_empty())
                .collect();
            balanced.append(&mut ips);
            or_none(balanced, "<pending>")
        }
        "ClusterIP" | "NodePort" => or_none(ips, "<none>"),
        _ => "<unknown>".to_owned(),
    }
}

fn ports_text(obj: &Value) -> String {
    let ports: Vec<String> = val::list(obj, "spec.ports")
        .iter()
        .map(|p| {
            let (port, protocol) = (val::int(p, "port").unwrap_or(0), val::text(p, "protocol"));
            match val::int(p, "nodePort").unwrap_or(0) {
                0 => format!("{port}/{protocol}"),
                node => format!("{port}:{node}/{protocol}"),
            }
        })
        .collect();
    if ports.is_empty() { "<none>".to_owned() } else { ports.join(",") }
}

kind!(SERVICES: "core" "" "v1" "Service", "services" "service", Namespaced "/registry/services/specs/", core::Service, RULES, COLUMNS,
short_names: &["svc"],
categories: &["all"],
subresources: &[
    Subresource {
        name: "proxy",
        group: "",
        version: "v1",
        kind: "ServiceProxyOptions",
        verbs: &[Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update],
    },
    status("", "v1", "Service"),
]);

#[cfg(test)]
mod tests {
    use super::*;

    fn service(spec: Value) -> Value {
        let mut obj = json!({"metadata": {"name": "s"}, "spec": spec});
        defaults(&mut obj);
        obj
    }

    #[test]
    fn defaults_are_upstreams() {
        let mut obj = service(json!({"ports": [{"port": 80}]}));
        (RULES.create)(&mut obj);
        assert_eq!(
            obj["spec"],
            json!({
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}], "sessionAffinity": "None", "type": "ClusterIP",
                "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            })
        );
        assert_eq!(wants(&obj, None), Wants { cluster_ip: Some(String::new()), ..Wants::default() });
        assert!(validate(&obj).is_empty());
        let obj = service(
            json!({"type": "NodePort", "sessionAffinity": "ClientIP", "ports": [{"port": 80, "targetPort": "web"}]}),
        );
        assert_eq!(obj["spec"]["externalTrafficPolicy"], "Cluster");
        assert_eq!(obj["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10800);
        assert_eq!(wants(&obj, None).node_ports, [(0, 0)]);
    }

    #[test]
    fn an_update_keeps_what_was_allocated() {
        let mut old = service(json!({"type": "NodePort", "ports": [{"port": 80}]}));
        (RULES.create)(&mut old);
        set_cluster_ip(&mut old, "10.96.0.9");
        set_node_port(&mut old, 0, 30080);
        let mut new = service(json!({"type": "NodePort", "ports": [{"port": 80}, {"port": 81, "name": "b"}]}));
        (RULES.update)(&mut new, &old, Part::Main);
        assert_eq!(new["spec"]["clusterIP"], "10.96.0.9");
        assert_eq!(new["spec"]["ports"][0]["nodePort"], 30080);
        assert_eq!(wants(&new, Some(&old)), Wants { node_ports: vec![(1, 0)], ..Wants::default() });
        assert!(validate_update(&new, &old, Part::Main).is_empty());
        let mut back = service(json!({"ports": [{"port": 80, "nodePort": 30080}]}));
        (RULES.update)(&mut back, &old, Part::Main);
        assert!(back["spec"]["ports"][0].get("nodePort").is_none());
        assert!(back["spec"].get("externalTrafficPolicy").is_none());
    }

    #[test]
    fn cluster_ips_do_not_change() {
        let mut old = service(json!({"ports": [{"port": 80}]}));
        set_cluster_ip(&mut old, "10.96.0.9");
        let mut new = service(json!({"ports": [{"port": 80}], "clusterIP": "10.96.0.10"}));
        (RULES.update)(&mut new, &old, Part::Main);
        let errors = validate_update(&new, &old, Part::Main);
        assert_eq!(
            errors[0].to_string(),
            "spec.clusterIPs[0]: Invalid value: [\"10.96.0.10\"]: may not change once set"
        );
    }

    #[test]
    fn mistakes_have_paths() {
        let obj = service(json!({"ports": [{"port": 0}, {"port": 80, "nodePort": 30000, "protocol": "tcp"}]}));
        let texts: Vec<String> = validate(&obj).iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.ports[0].name: Required value",
                "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
                "spec.ports[1].name: Required value",
                "spec.ports[1].protocol: Unsupported value: \"tcp\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
                "spec.ports[1].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
            ]
        );
    }

    #[test]
    fn cells() {
        let obj = json!({"spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.1"], "ports": [
            {"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}});
        assert_eq!(ports_text(&obj), "80:30080/TCP,53/UDP");
        assert_eq!(external_ip(&obj), "<pending>");
    }
}
