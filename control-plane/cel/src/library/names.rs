//! Syntax of names and label values, with upstream's messages.
//!
//! Upstream counterpart: `apimachinery/pkg/util/validation`. Each function gives the messages, none for a good text. They are those
//! of `keelson_kinds::names`, which this crate cannot use: the kinds are what is validated with it.

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;
const LABEL_RE: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED_RE: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_MSG: &str =
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

fn regex_error(message: &str, regex: &str, examples: &[&str]) -> String {
    let shown: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{message} (e.g. {}regex used for validation is '{regex}')", shown.join(" or "))
}

fn max_len(limit: usize, unit: &str) -> String {
    format!("must be no more than {limit} {unit}")
}

fn is_made_of(text: &str, end: impl Fn(u8) -> bool, inside: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|c| end(*c))
        && bytes.last().is_some_and(|c| end(*c))
        && bytes.iter().all(|c| end(*c) || inside(*c))
}

fn is_label(text: &str) -> bool {
    is_made_of(text, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), |c| c == b'-')
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_qualified(text: &str) -> bool {
    is_made_of(text, |c| c.is_ascii_alphanumeric(), |c| matches!(c, b'-' | b'_' | b'.'))
}

/// RFC 1123 label.
pub(crate) fn dns1123_label(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > LABEL_MAX {
        out.push(max_len(LABEL_MAX, "characters"));
    }
    if !is_label(text) {
        if is_subdomain(text) {
            out.push("must not contain dots".to_owned());
        } else {
            let message = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                           and end with an alphanumeric character";
            out.push(regex_error(message, LABEL_RE, &["my-name", "123-abc"]));
        }
    }
    out
}

/// RFC 1123 subdomain.
pub(crate) fn dns1123_subdomain(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        out.push(max_len(SUBDOMAIN_MAX, "characters"));
    }
    if !is_subdomain(text) {
        let message = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
                       start and end with an alphanumeric character";
        out.push(regex_error(message, &format!("{LABEL_RE}(\\.{LABEL_RE})*"), &["example.com"]));
    }
    out
}

/// RFC 1035 label.
pub(crate) fn dns1035_label(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > LABEL_MAX {
        out.push(max_len(LABEL_MAX, "characters"));
    }
    if !(is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())) {
        let message = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
                       character, and end with an alphanumeric character";
        out.push(regex_error(message, "[a-z]([-a-z0-9]*[a-z0-9])?", &["my-name", "abc-123"]));
    }
    out
}

/// One segment of a URL path.
pub(crate) fn path_segment(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    ["/", "%"].iter().filter(|bad| text.contains(**bad)).map(|bad| format!("may not contain '{bad}'")).collect()
}

/// Label keys, condition names.
pub(crate) fn qualified_name(text: &str) -> Vec<String> {
    let examples = ["MyName", "my.name", "123-abc"];
    let mut out = Vec::new();
    let name = match text.split('/').collect::<Vec<_>>().as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                out.push("prefix part must be non-empty".to_owned());
            } else {
                out.extend(dns1123_subdomain(prefix).into_iter().map(|message| format!("prefix part {message}")));
            }
            *name
        }
        _ => {
            let message = regex_error(QUALIFIED_MSG, QUALIFIED_RE, &examples);
            let domain = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a qualified name {message} {domain}")];
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        out.push(format!("name part {}", max_len(LABEL_MAX, "bytes")));
    }
    if !is_qualified(name) {
        out.push(format!("name part {}", regex_error(QUALIFIED_MSG, QUALIFIED_RE, &examples)));
    }
    out
}

/// Label values.
pub(crate) fn label_value(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > LABEL_MAX {
        out.push(max_len(LABEL_MAX, "bytes"));
    }
    if !text.is_empty() && !is_qualified(text) {
        let message = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
                       start and end with an alphanumeric character";
        out.push(regex_error(message, &format!("({QUALIFIED_RE})?"), &["MyValue", "my_value", "12345"]));
    }
    out
}
