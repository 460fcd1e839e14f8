//! Names of resources: their syntax, and which of them upstream knows for what.
//!
//! Upstream counterparts: `pkg/apis/core/helper`, `apimachinery/pkg/util/validation.IsQualifiedName`.

/// Longest name part of a qualified name.
const NAME_MAX: usize = 63;
/// Longest DNS subdomain.
const PREFIX_MAX: usize = 253;

const NAME_MSG: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
                        character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                        '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const PREFIX_MSG: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
                          start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
                          '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// What is wrong with a qualified name: nothing, if it is one.
pub(crate) fn qualified(name: &str) -> Vec<String> {
    let mut out = Vec::new();
    let parts: Vec<&str> = name.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                out.push("prefix part must be non-empty".to_owned());
            } else {
                if prefix.len() > PREFIX_MAX {
                    out.push(format!("prefix part must be no more than {PREFIX_MAX} bytes"));
                }
                if !is_subdomain(prefix) {
                    out.push(format!("prefix part {PREFIX_MSG}"));
                }
            }
            *name
        }
        _ => {
            let optional = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a qualified name {NAME_MSG} {optional}")];
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".to_owned());
    } else if name.len() > NAME_MAX {
        out.push(format!("name part must be no more than {NAME_MAX} bytes"));
    }
    if !is_name(name) {
        out.push(format!("name part {NAME_MSG}"));
    }
    out
}

fn bounded(text: &str, inner: impl Fn(u8) -> bool, ends: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let at_ends = bytes.first().is_some_and(|&b| ends(b)) && bytes.last().is_some_and(|&b| ends(b));
    at_ends && bytes.iter().all(|&b| inner(b))
}

fn is_name(text: &str) -> bool {
    bounded(text, |b| b.is_ascii_alphanumeric() || b"-_.".contains(&b), |b| b.is_ascii_alphanumeric())
}

fn is_subdomain(text: &str) -> bool {
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.split('.').all(|label| bounded(label, |b| letter(b) || b == b'-', letter))
}

/// Resources of which containers can ask.
pub(crate) fn of_containers(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
}

/// What quotas count in whole pieces, by its short names.
const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Unqualified names that quotas know.
pub(crate) fn of_quotas(name: &str) -> bool {
    const AMOUNTS: [&str; 10] = [
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
        "requests.storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
    ];
    let huge_pages = name.starts_with("hugepages-") || name.starts_with("requests.hugepages-");
    AMOUNTS.contains(&name) || COUNTED.contains(&name) || huge_pages
}

/// Unqualified names that exist at all.
pub(crate) fn standard(name: &str) -> bool {
    name == "storage" || of_quotas(name)
}

/// Names without a domain, and those of Kubernetes' own.
pub(crate) fn native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Names of devices and the like.
pub(crate) fn extended(name: &str) -> bool {
    !native(name) && !name.starts_with("requests.") && qualified(&format!("requests.{name}")).is_empty()
}

/// Whether only whole amounts make sense.
pub(crate) fn whole(name: &str) -> bool {
    COUNTED.contains(&name) || extended(name)
}

/// Whether limits may be above requests.
pub(crate) fn overcommit(name: &str) -> bool {
    native(name) && !name.starts_with("hugepages-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualified_names() {
        for good in ["cpu", "a.b_c-d", "example.com/gpu", "count/deployments.apps", "A/1"] {
            assert_eq!(qualified(good).is_empty(), good != "A/1", "{good}");
        }
        assert_eq!(qualified(""), ["name part must be non-empty".to_owned(), format!("name part {NAME_MSG}")]);
        assert_eq!(qualified("/a"), ["prefix part must be non-empty"]);
        assert_eq!(qualified(&format!("a/{}", "b".repeat(64))), ["name part must be no more than 63 bytes"]);
        assert_eq!(qualified(&format!("{}/b", "a".repeat(254))), ["prefix part must be no more than 253 bytes"]);
        assert!(qualified("a/b/c")[0].starts_with("a qualified name must consist of"));
        assert!(qualified("a/b/c")[0].ends_with("(e.g. 'example.com/MyName')"));
        assert!(
            qualified("-a")[0].contains("regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')")
        );
    }

    #[test]
    fn kinds_of_resources() {
        for (name, in_containers, in_quotas, is_extended, in_whole, over) in [
            ("cpu", true, true, false, false, true),
            ("pods", false, true, false, true, true),
            ("storage", false, false, false, false, true),
            ("hugepages-2Mi", true, true, false, false, false),
            ("requests.hugepages-2Mi", false, true, false, false, true),
            ("example.com/gpu", false, false, true, true, false),
            ("requests.example.com/gpu", false, false, false, false, false),
            ("kubernetes.io/x", false, false, false, false, true),
            ("count/deployments.apps", false, false, true, true, false),
            ("made-up", false, false, false, false, true),
        ] {
            assert_eq!(
                (of_containers(name), of_quotas(name), extended(name), whole(name), overcommit(name)),
                (in_containers, in_quotas, is_extended, in_whole, over),
                "{name}"
            );
        }
        assert!(standard("storage") && standard("cpu") && !standard("made-up"));
    }
}
