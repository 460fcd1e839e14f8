//! Syntax of names, labels, annotations, ports and addresses, with upstream's messages.
//!
//! Upstream counterpart: `apimachinery/pkg/util/validation`. Every function returns the list of messages, empty when the text is fine.

use std::net::IpAddr;

/// Longest DNS label.
pub const LABEL_MAX: usize = 63;
/// Longest DNS subdomain.
pub const SUBDOMAIN_MAX: usize = 253;

const LABEL_RE: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_MSG: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
                         end with an alphanumeric character";
const SUBDOMAIN_MSG: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
                             must start and end with an alphanumeric character";
const LABEL_1035_MSG: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
                              alphabetic character, and end with an alphanumeric character";
const QUALIFIED_MSG: &str =
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const QUALIFIED_RE: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE_MSG: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
                               must start and end with an alphanumeric character";

fn regex_error(msg: &str, re: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{msg} (regex used for validation is '{re}')");
    }
    let shown: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{msg} (e.g. {}regex used for validation is '{re}')", shown.join(" or "))
}

/// The message for a text that is longer than `n`.
pub fn max_len(n: usize) -> String {
    format!("must be no more than {n} characters")
}

fn is_label(s: &str) -> bool {
    let b = s.as_bytes();
    let alnum = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    !b.is_empty() && alnum(b[0]) && alnum(b[b.len() - 1]) && b.iter().all(|&c| alnum(c) || c == b'-')
}

fn is_subdomain(s: &str) -> bool {
    s.split('.').all(is_label)
}

fn is_qualified(s: &str) -> bool {
    let b = s.as_bytes();
    !b.is_empty()
        && b[0].is_ascii_alphanumeric()
        && b[b.len() - 1].is_ascii_alphanumeric()
        && b.iter().all(|&c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
}

/// The same in the words of label keys and values.
fn max_bytes(n: usize) -> String {
    format!("must be no more than {n} bytes")
}

/// RFC 1123 label.
pub fn dns1123_label(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    if s.len() > LABEL_MAX {
        out.push(max_len(LABEL_MAX));
    }
    if !is_label(s) {
        if is_subdomain(s) {
            out.push("must not contain dots".to_owned());
        } else {
            out.push(regex_error(LABEL_MSG, LABEL_RE, &["my-name", "123-abc"]));
        }
    }
    out
}

/// RFC 1123 subdomain.
pub fn dns1123_subdomain(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    if s.len() > SUBDOMAIN_MAX {
        out.push(max_len(SUBDOMAIN_MAX));
    }
    if !is_subdomain(s) {
        out.push(regex_error(SUBDOMAIN_MSG, &format!("{LABEL_RE}(\\.{LABEL_RE})*"), &["example.com"]));
    }
    out
}

/// RFC 1123 subdomain whose labels may have underscores in them, as some search paths do.
pub fn dns1123_subdomain_with_underscore(s: &str) -> Vec<String> {
    const MSG: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must \
                       start and end with an alphanumeric character";
    const RE: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
    let is_label = |part: &str| {
        let bytes = part.strip_prefix('_').unwrap_or(part).as_bytes();
        let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        bytes.first().is_some_and(|c| alphanumeric(*c))
            && bytes.last().is_some_and(|c| alphanumeric(*c))
            && bytes.iter().all(|c| alphanumeric(*c) || matches!(c, b'-' | b'_'))
    };
    let mut out = Vec::new();
    if s.len() > SUBDOMAIN_MAX {
        out.push(max_len(SUBDOMAIN_MAX));
    }
    if !s.split('.').all(is_label) {
        out.push(regex_error(MSG, &format!("{RE}(\\.{RE})*"), &["example.com"]));
    }
    out
}

/// Names of HTTP headers.
pub fn http_header(s: &str) -> Vec<String> {
    if !s.is_empty() && s.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
        return Vec::new();
    }
    let message = "a valid HTTP header must consist of alphanumeric characters or '-'";
    vec![regex_error(message, "[-A-Za-z0-9]+", &["X-Header-Name"])]
}

/// RFC 1035 label (services before relaxed names).
pub fn dns1035_label(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    if s.len() > LABEL_MAX {
        out.push(max_len(LABEL_MAX));
    }
    if !(is_label(s) && s.as_bytes()[0].is_ascii_lowercase()) {
        out.push(regex_error(LABEL_1035_MSG, "[a-z]([-a-z0-9]*[a-z0-9])?", &["my-name", "abc-123"]));
    }
    out
}

/// Path segment names (RBAC kinds).
pub fn path_segment(s: &str) -> Vec<String> {
    if s == "." || s == ".." {
        return vec![format!("may not be '{s}'")];
    }
    ["/", "%"].iter().filter(|bad| s.contains(**bad)).map(|bad| format!("may not contain '{bad}'")).collect()
}

/// Label and annotation keys.
pub fn qualified_name(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    let parts: Vec<&str> = s.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                out.push("prefix part must be non-empty".to_owned());
            } else {
                let counted = |m: String| if m == max_len(SUBDOMAIN_MAX) { max_bytes(SUBDOMAIN_MAX) } else { m };
                out.extend(dns1123_subdomain(prefix).into_iter().map(|m| format!("prefix part {}", counted(m))));
            }
            *name
        }
        _ => {
            let msg = regex_error(QUALIFIED_MSG, QUALIFIED_RE, &["MyName", "my.name", "123-abc"]);
            out.push(format!(
                "a qualified name {msg} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ));
            return out;
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        out.push(format!("name part {}", max_bytes(LABEL_MAX)));
    }
    if !is_qualified(name) {
        out.push(format!("name part {}", regex_error(QUALIFIED_MSG, QUALIFIED_RE, &["MyName", "my.name", "123-abc"])));
    }
    out
}

/// Label values.
pub fn label_value(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    if s.len() > LABEL_MAX {
        out.push(max_bytes(LABEL_MAX));
    }
    if !s.is_empty() && !is_qualified(s) {
        let re = format!("({QUALIFIED_RE})?");
        out.push(regex_error(LABEL_VALUE_MSG, &re, &["MyValue", "my_value", "12345"]));
    }
    out
}

/// Names of environment variables: any printable ASCII except `=` (relaxed since 1.34).
pub fn env_var_name(s: &str) -> Vec<String> {
    if s.is_empty() {
        return vec!["environment variable name must be non-empty".to_owned()];
    }
    if s.bytes().all(|c| (b' '..=b'~').contains(&c) && c != b'=') {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()]
}

/// Names of kernel parameters, with dots or slashes: upstream's `IsValidSysctlName`.
pub fn sysctl(s: &str) -> Option<String> {
    let segment = |part: &str| {
        let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let bytes = part.as_bytes();
        bytes.first().is_some_and(|c| alphanumeric(*c))
            && bytes.last().is_some_and(|c| alphanumeric(*c))
            && bytes.iter().all(|c| alphanumeric(*c) || matches!(c, b'-' | b'_'))
    };
    (s.len() > SUBDOMAIN_MAX || !s.split(['.', '/']).all(segment)).then(|| {
        format!(
            "must have at most {SUBDOMAIN_MAX} characters and match regex \
             ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
        )
    })
}

/// Keys of config maps and secrets.
pub fn config_key(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    if s.len() > SUBDOMAIN_MAX {
        out.push(max_len(SUBDOMAIN_MAX));
    }
    if s.is_empty() || !s.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.')) {
        out.push(regex_error(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    if s == "." {
        out.push("must not be '.'".to_owned());
    } else if s == ".." {
        out.push("must not be '..'".to_owned());
    } else if s.starts_with("..") {
        out.push("must not start with '..'".to_owned());
    }
    out
}

/// Port numbers.
pub fn port_number(n: i64) -> Vec<String> {
    if (1..=65535).contains(&n) { Vec::new() } else { vec!["must be between 1 and 65535, inclusive".to_owned()] }
}

/// IANA service names.
pub fn port_name(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    if s.len() > 15 {
        out.push(max_len(15));
    }
    if !s.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-') {
        out.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !s.bytes().any(|c| c.is_ascii_lowercase()) {
        out.push("must contain at least one letter (a-z)".to_owned());
    }
    if s.contains("--") {
        out.push("must not contain consecutive hyphens".to_owned());
    }
    if s.starts_with('-') || s.ends_with('-') {
        out.push("must not begin or end with a hyphen".to_owned());
    }
    out
}

/// IP addresses.
pub fn ip(s: &str) -> Vec<String> {
    if s.parse::<IpAddr>().is_ok() {
        Vec::new()
    } else {
        vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
    }
}

/// CIDRs.
pub fn cidr(s: &str) -> Vec<String> {
    if s.parse::<ipnet::IpNet>().is_ok() {
        Vec::new()
    } else {
        vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()]
    }
}

/// The label a generated name leaves of its prefix: a trailing dash is cut before checking.
pub fn mask_trailing_dash(s: &str) -> String {
    match s.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => format!("{rest}a"),
        _ => s.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_parameters_have_dots_or_slashes() {
        for good in ["kernel.shm_rmid_forced", "net/ipv4/ip_local_port_range", "net.ipv4.conf.eth0/1.x", "a"] {
            assert_eq!(sysctl(good), None, "{good}");
        }
        for bad in ["", "foo-", "bar..", ".a", "A", "a b", &"a".repeat(254)] {
            assert!(sysctl(bad).is_some_and(|message| message.contains("match regex")), "{bad}");
        }
    }

    #[test]
    fn label_messages_are_upstreams() {
        assert_eq!(
            dns1123_label("Bad_Name"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with \
              an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
              '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(dns1123_label(&"a".repeat(64)), ["must be no more than 63 characters"]);
        assert!(dns1123_label("a-1").is_empty());
    }

    #[test]
    fn subdomains() {
        assert!(dns1123_subdomain("a.b-c.1").is_empty());
        for bad in ["", "A", "a..b", "-a", "a-", "a_b"] {
            assert_eq!(dns1123_subdomain(bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn qualified_names() {
        for good in ["a", "A.b_c-1", "example.com/Name", "kubernetes.io/os"] {
            assert!(qualified_name(good).is_empty(), "{good}");
        }
        for bad in ["", "/a", "a/", "a/b/c", "-a", "Ex/a", "a b"] {
            assert!(!qualified_name(bad).is_empty(), "{bad}");
        }
    }

    #[test]
    fn port_names_and_numbers() {
        assert!(port_name("http-2").is_empty());
        assert!(!port_name("80").is_empty());
        assert!(!port_name("a--b").is_empty());
        assert!(!port_name("this-name-is-long").is_empty());
        assert!(port_number(0).len() + port_number(65536).len() == 2 && port_number(65535).is_empty());
    }
}
