//! Endpoints and endpoint slices.
//!
//! Upstream counterparts: `ValidateEndpoints`, `pkg/apis/discovery/validation`, `pkg/registry/discovery/endpointslice`.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use serde_json::{Value, json};

use crate::error::FieldError;
use crate::strategy::Rules;
use crate::table::{AGE, Columns, NAME, age_of, name_of, text};
use crate::{names, val};

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
/// Most endpoints in a slice.
const MAX_ENDPOINTS: usize = 1000;
/// Most ports in a slice (upstream's `maxPorts`).
const MAX_PORTS: usize = 20_000;
/// Most addresses of one endpoint.
const MAX_ADDRESSES: usize = 100;

fn default_ports(parent: &mut Value) {
    for port in val::list_mut(parent, "ports") {
        val::default(port, "protocol", "TCP");
    }
}

static ENDPOINTS_RULES: Rules = Rules {
    create_on_update: true,
    defaults: |obj| {
        for subset in val::list_mut(obj, "subsets") {
            default_ports(subset);
        }
    },
    validate: validate_endpoints,
    ..Rules::PLAIN
};

fn validate_endpoints(obj: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (i, subset) in val::list(obj, "subsets").iter().enumerate() {
        let at = format!("subsets[{i}]");
        let (ready, not_ready) = (val::list(subset, "addresses"), val::list(subset, "notReadyAddresses"));
        if ready.is_empty() && not_ready.is_empty() {
            errors.push(FieldError::required(at.as_str(), "must specify `addresses` or `notReadyAddresses`"));
        }
        for (name, addresses) in [("addresses", ready), ("notReadyAddresses", not_ready)] {
            for (j, address) in addresses.iter().enumerate() {
                let ip = val::text(address, "ip");
                let field = format!("{at}.{name}[{j}].ip");
                errors.extend(names::ip(ip).into_iter().map(|m| FieldError::invalid(field.as_str(), ip, m)));
                errors.extend(special_ip(ip).map(|m| FieldError::invalid(field.as_str(), ip, m)));
            }
        }
        let ports = val::list(subset, "ports");
        for (j, port) in ports.iter().enumerate() {
            errors.extend(port_errors(port, &format!("{at}.ports[{j}]"), ports.len() > 1));
        }
    }
    errors
}

/// Addresses that no endpoint may have.
fn special_ip(ip: &str) -> Option<&'static str> {
    // As upstream, an IPv4 address in IPv6 clothes is judged as what it is.
    let ip = ip.parse::<std::net::IpAddr>().ok()?.to_canonical();
    if ip.is_unspecified() {
        return Some("may not be unspecified (0.0.0.0 or ::)");
    }
    if ip.is_loopback() {
        return Some("may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let (link_local, multicast) = match ip {
        std::net::IpAddr::V4(v4) => {
            (v4.is_link_local(), v4.octets()[0] == 224 && v4.octets()[1] == 0 && v4.octets()[2] == 0)
        }
        std::net::IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] == 0xff02),
    };
    if link_local {
        return Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    multicast.then_some("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
}

fn port_errors(port: &Value, at: &str, need_name: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = val::text(port, "name");
    if need_name && name.is_empty() {
        errors.push(FieldError::required(format!("{at}.name"), ""));
    } else if !name.is_empty() {
        errors
            .extend(names::dns1123_label(name).into_iter().map(|m| FieldError::invalid(format!("{at}.name"), name, m)));
    }
    let number = val::int(port, "port").unwrap_or(0);
    errors.extend(names::port_number(number).into_iter().map(|m| FieldError::invalid(format!("{at}.port"), number, m)));
    let protocol = val::text(port, "protocol");
    if !PROTOCOLS.contains(&protocol) {
        errors.push(FieldError::not_supported(format!("{at}.protocol"), protocol, PROTOCOLS));
    }
    errors
}

/// Upstream shows three endpoints and counts the rest.
const SHOWN: usize = 3;

static ENDPOINTS_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Endpoints"), AGE],
    cells: |obj, now| vec![name_of(obj), json!(endpoints_text(obj)), age_of(obj, now)],
};

fn endpoints_text(obj: &Value) -> String {
    let mut shown = Vec::new();
    let mut count = 0;
    let mut add = |text: String| {
        if shown.len() < SHOWN {
            shown.push(text);
        }
        count += 1;
    };
    for subset in val::list(obj, "subsets") {
        let ports = val::list(subset, "ports");
        for port in ports {
            let number = val::int(port, "port").unwrap_or(0);
            for address in val::list(subset, "addresses") {
                let ip = val::text(address, "ip");
                add(if ip.contains(':') { format!("[{ip}]:{number}") } else { format!("{ip}:{number}") });
            }
        }
        if ports.is_empty() {
            for address in val::list(subset, "addresses") {
                add(val::text(address, "ip").to_owned());
            }
        }
    }
    match count {
        0 => "<none>".to_owned(),
        n if n > SHOWN => format!("{} + {} more...", shown.join(","), n - SHOWN),
        _ => shown.join(","),
    }
}

kind!(ENDPOINTS: "core" "" "v1" "Endpoints", "endpoints" "endpoints", Namespaced "/registry/services/endpoints/", core::Endpoints,
    ENDPOINTS_RULES, ENDPOINTS_COLUMNS, short_names: &["ep"]);

static SLICE_RULES: Rules = Rules {
    generation: true,
    defaults: |obj| {
        for port in val::list_mut(obj, "ports") {
            // An absent name is the empty name.
            if port.get("name").is_none() {
                val::set(port, "name", "");
            }
            val::default(port, "protocol", "TCP");
        }
    },
    validate: validate_slice,
    validate_update: |new, old, _| super::immutable(new, old, &["addressType"]),
    ..Rules::PLAIN
};

fn validate_slice(obj: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let kind = val::text(obj, "addressType");
    let kinds = ["FQDN", "IPv4", "IPv6"];
    if kind.is_empty() {
        errors.push(FieldError::required("addressType", ""));
    } else if !kinds.contains(&kind) {
        errors.push(FieldError::not_supported("addressType", kind, &kinds));
    }
    let (endpoints, ports) = (val::list(obj, "endpoints"), val::list(obj, "ports"));
    if endpoints.len() > MAX_ENDPOINTS {
        errors.push(FieldError::too_many("endpoints", endpoints.len(), MAX_ENDPOINTS));
        return errors;
    }
    for (i, endpoint) in endpoints.iter().enumerate() {
        errors.extend(endpoint_errors(endpoint, &format!("endpoints[{i}]"), kind));
    }
    if ports.len() > MAX_PORTS {
        errors.push(FieldError::too_many("ports", ports.len(), MAX_PORTS));
        return errors;
    }
    let mut seen = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        let name = val::text(port, "name");
        let at = format!("ports[{i}]");
        if !name.is_empty() {
            errors.extend(
                names::dns1123_label(name).into_iter().map(|m| FieldError::invalid(format!("{at}.name"), name, m)),
            );
        }
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        seen.push(name);
        let protocol = val::text(port, "protocol");
        if !PROTOCOLS.contains(&protocol) {
            errors.push(FieldError::not_supported(format!("{at}.protocol"), protocol, PROTOCOLS));
        }
    }
    errors
}

fn endpoint_errors(endpoint: &Value, at: &str, kind: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let addresses = val::list(endpoint, "addresses");
    if addresses.is_empty() {
        errors.push(FieldError::required(format!("{at}.addresses"), "must contain at least 1 address"));
    } else if addresses.len() > MAX_ADDRESSES {
        errors.push(FieldError::too_many(format!("{at}.addresses"), addresses.len(), MAX_ADDRESSES));
    }
    for (j, address) in addresses.iter().filter_map(Value::as_str).enumerate() {
        let field = format!("{at}.addresses[{j}]");
        let parsed = address.parse::<std::net::IpAddr>().ok();
        let message = match kind {
            "IPv4" if !parsed.is_some_and(|ip| ip.is_ipv4()) => Some("must be a valid IPv4 address".to_owned()),
            "IPv6" if !parsed.is_some_and(|ip| ip.to_canonical().is_ipv6()) => {
                Some("must be a valid IPv6 address".to_owned())
            }
            "FQDN" => names::dns1123_subdomain(address).into_iter().next(),
            _ => None,
        };
        if let Some(message) = message {
            errors.push(FieldError::invalid(field, address, message));
        } else if let Some(message) = special_ip(address) {
            errors.push(FieldError::invalid(field, address, message));
        }
    }
    errors
}

static SLICE_COLUMNS: Columns = Columns {
    columns: &[NAME, text("AddressType"), text("Ports"), text("Endpoints"), AGE],
    cells: |obj, now| {
        let ports: Vec<String> = val::list(obj, "ports")
            .iter()
            .map(|p| val::int(p, "port").map_or_else(|| "*".to_owned(), |n| n.to_string()))
            .collect();
        let addresses: Vec<&str> = val::list(obj, "endpoints")
            .iter()
            .flat_map(|e| val::list(e, "addresses"))
            .filter_map(Value::as_str)
            .collect();
        vec![
            name_of(obj),
            json!(val::text(obj, "addressType")),
            json!(more(&ports, "<unset>")),
            json!(more(&addresses, "<unset>")),
            age_of(obj, now),
        ]
    },
};

fn more<S: AsRef<str>>(items: &[S], none: &str) -> String {
    let shown: Vec<&str> = items.iter().take(SHOWN).map(AsRef::as_ref).collect();
    match items.len() {
        0 => none.to_owned(),
        n if n > SHOWN => format!("{} + {} more...", shown.join(","), n - SHOWN),
        _ => shown.join(","),
    }
}

kind!(SLICES: "discovery" "discovery.k8s.io" "v1" "EndpointSlice", "endpointslices" "endpointslice", Namespaced
    "/registry/endpointslices/", discovery::EndpointSlice, SLICE_RULES, SLICE_COLUMNS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut_as_upstream() {
        let addresses: Vec<Value> = (1..=5).map(|i| json!({"ip": format!("10.0.0.{i}")})).collect();
        let obj = json!({"subsets": [{"addresses": addresses, "ports": [{"port": 80}]}]});
        assert_eq!(endpoints_text(&obj), "10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 2 more...");
        assert_eq!(endpoints_text(&json!({})), "<none>");
    }

    #[test]
    fn special_addresses_are_refused() {
        let refused = |kind: &str, ip: &str| {
            let slice = json!({"addressType": kind, "endpoints": [{"addresses": [ip]}], "ports": []});
            validate_slice(&slice).into_iter().any(|e| e.field == "endpoints[0].addresses[0]")
        };
        for ip in ["0.0.0.0", "127.0.0.1", "127.9.9.9", "169.254.169.254", "224.0.0.1"] {
            assert!(refused("IPv4", ip), "{ip}");
            let subset = json!({"subsets": [{"addresses": [{"ip": ip}]}]});
            assert!(!validate_endpoints(&subset).is_empty(), "{ip}");
        }
        for ip in ["::", "::1", "fe80::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1"] {
            assert!(refused("IPv6", ip), "{ip}");
        }
        let mapped = json!({"subsets": [{"addresses": [{"ip": "::ffff:127.0.0.1"}]}]});
        assert!(!validate_endpoints(&mapped).is_empty());
        assert!(!refused("IPv4", "10.244.0.1") && !refused("IPv6", "fd00::1"));
    }

    #[test]
    fn slices_are_checked() {
        let errors = validate_slice(&json!({
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["::1"]}, {"addresses": []}, {"addresses": ["127.0.0.1"]}],
            "ports": [{"name": "a", "protocol": "TCP"}, {"name": "a", "protocol": "QUIC"}],
        }));
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "endpoints[0].addresses[0]: Invalid value: \"::1\": must be a valid IPv4 address",
                "endpoints[1].addresses: Required value: must contain at least 1 address",
                "endpoints[2].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
                "ports[1].name: Duplicate value: \"a\"",
                "ports[1].protocol: Unsupported value: \"QUIC\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            ]
        );
    }
}
