//! URLs to resources, and query parameters.
//!
//! Upstream counterpart: `apiserver/pkg/endpoints/request/requestinfo.go`. Path segments are decoded once, after the split, so an
//! encoded slash stays part of its segment and is refused by name validation.

/// What a URL means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A resource, perhaps one object of it.
    Resource(ResourcePath),
    /// Anything else: discovery, health, version.
    Plain,
}

/// A resource URL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResourcePath {
    /// Group, empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Namespace, if the URL has one.
    pub namespace: Option<String>,
    /// Plural name.
    pub resource: String,
    /// Object name.
    pub name: Option<String>,
    /// Subresource.
    pub subresource: Option<String>,
}

impl ResourcePath {
    /// How many non-empty segments of the URL lead to the subresource, it included.
    #[must_use]
    pub fn segments(&self) -> usize {
        let root = if self.group.is_empty() { 2 } else { 3 };
        let namespace = if self.namespace.is_some() { 2 } else { 0 };
        root + namespace + 1 + usize::from(self.name.is_some()) + usize::from(self.subresource.is_some())
    }
}

/// Subresources of a namespace, which look like resources within it.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

/// Reads a path.
#[must_use]
pub fn parse(path: &str) -> Target {
    let mut segments: Vec<String> = path.split('/').filter(|s| !s.is_empty()).map(decode).collect();
    let (group, version, rest) = match segments.first().map(String::as_str) {
        Some("api") if segments.len() >= 3 => (String::new(), segments[1].clone(), segments.split_off(2)),
        Some("apis") if segments.len() >= 4 => (segments[1].clone(), segments[2].clone(), segments.split_off(3)),
        _ => return Target::Plain,
    };
    let mut parsed = ResourcePath { group, version, ..ResourcePath::default() };
    let mut rest = rest.into_iter().peekable();
    let mut resource = rest.next().unwrap_or_default();
    if resource == "namespaces" && (parsed.group.is_empty() || rest.len() >= 2) {
        let namespace = rest.next();
        match (namespace, rest.next()) {
            (namespace, None) => {
                parsed.name.clone_from(&namespace);
            }
            (Some(name), Some(sub)) if NAMESPACE_SUBRESOURCES.contains(&sub.as_str()) && rest.peek().is_none() => {
                parsed.name = Some(name);
                parsed.subresource = Some(sub);
            }
            (namespace, Some(inner)) => {
                parsed.namespace = namespace;
                resource = inner;
                parsed.name = rest.next();
                parsed.subresource = rest.next();
            }
        }
    } else {
        parsed.name = rest.next();
        parsed.subresource = rest.next();
    }
    parsed.resource = resource;
    if rest.next().is_some() && !matches!(parsed.subresource.as_deref(), Some("proxy")) {
        return Target::Plain;
    }
    Target::Resource(parsed)
}

/// Query parameters in order.
#[derive(Debug, Clone, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=b&c=d`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|p| !p.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(&key.replace('+', " ")), decode(&value.replace('+', " ")))
        });
        Self(pairs.collect())
    }

    /// The first value of a parameter, empty if absent.
    #[must_use]
    pub fn get(&self, key: &str) -> &str {
        self.0.iter().find(|(k, _)| k == key).map_or("", |(_, v)| v.as_str())
    }

    /// Whether the parameter is there, even without a value.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(k, _)| k == key)
    }

    /// All values of a parameter.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// All parameters in order.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// A boolean as upstream reads it: anything but `false` and `0` is true when the parameter is there.
    #[must_use]
    pub fn flag(&self, key: &str) -> bool {
        self.has(key) && !matches!(self.get(key), "false" | "0")
    }
}

/// Decodes `%XX`; what is no valid escape or UTF-8 stays as it is.
pub(crate) fn decode(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        if let Some(byte) = hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
            out.push(byte);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

/// Encodes what may not stand in a query value.
#[must_use]
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn resource(path: &str) -> (String, Option<String>, String, Option<String>, Option<String>) {
        match parse(path) {
            Target::Resource(r) => (r.group, r.namespace, r.resource, r.name, r.subresource),
            Target::Plain => panic!("{path} is no resource"),
        }
    }

    fn s(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn resource_paths() {
        assert_eq!(resource("/api/v1/pods"), (String::new(), None, "pods".into(), None, None));
        assert_eq!(resource("/api/v1/nodes/a/status"), (String::new(), None, "nodes".into(), s("a"), s("status")));
        assert_eq!(
            resource("/api/v1/namespaces/d/pods/p/log"),
            (String::new(), s("d"), "pods".into(), s("p"), s("log"))
        );
        assert_eq!(resource("/api/v1/namespaces"), (String::new(), None, "namespaces".into(), None, None));
        assert_eq!(resource("/api/v1/namespaces/d"), (String::new(), None, "namespaces".into(), s("d"), None));
        assert_eq!(
            resource("/api/v1/namespaces/d/finalize"),
            (String::new(), None, "namespaces".into(), s("d"), s("finalize"))
        );
        assert_eq!(
            resource("/apis/apps/v1/namespaces/d/deployments/x/scale"),
            ("apps".into(), s("d"), "deployments".into(), s("x"), s("scale"))
        );
        assert_eq!(resource("/api/v1/nodes/a%2Fb").3, s("a/b"));
    }

    #[test]
    fn plain_paths() {
        for path in ["/", "/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/healthz", "/openapi/v3/api/v1"] {
            assert_eq!(parse(path), Target::Plain, "{path}");
        }
        assert_eq!(parse("/api/v1/namespaces/d/pods/p/log/x"), Target::Plain);
    }

    #[test]
    fn queries() {
        let query = Query::parse("labelSelector=a%3Db%2Cc&watch=1&x=y+z&dryRun=All&dryRun=B&empty");
        assert_eq!(query.get("labelSelector"), "a=b,c");
        assert_eq!(query.get("x"), "y z");
        assert!(query.flag("watch") && query.flag("empty") && !query.flag("none"));
        assert_eq!(query.all("dryRun").collect::<Vec<_>>(), ["All", "B"]);
    }

    proptest! {
        #[test]
        fn never_panics(path in ".{0,60}") {
            let _ = parse(&path);
            let _ = Query::parse(&path);
        }

        #[test]
        fn encoding_round_trips(text in ".{0,30}") {
            prop_assert_eq!(decode(&encode(&text)), text);
        }
    }
}
