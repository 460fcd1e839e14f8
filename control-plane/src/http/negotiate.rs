//! Content negotiation: which representation an `Accept` header asks for.
//!
//! Upstream counterpart: `apiserver/pkg/endpoints/handlers/negotiation`. What cannot be served falls back to JSON.

/// How objects are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Representation {
    /// The object itself.
    #[default]
    Plain,
    /// `meta.k8s.io/v1` Table.
    Table,
    /// `meta.k8s.io/v1` PartialObjectMetadata or its list.
    Partial,
    /// Aggregated discovery (`apidiscovery.k8s.io/v2`), for `/api` and `/apis` only.
    Discovery,
}

/// The first representation in an `Accept` header that can be served.
#[must_use]
pub fn representation(accept: Option<&str>) -> Representation {
    for range in accept.unwrap_or_default().split(',') {
        let mut parts = range.split(';').map(str::trim);
        if !matches!(parts.next(), Some("application/json" | "*/*" | "application/*")) {
            continue;
        }
        let (mut kind, mut group, mut version) = (None, "", "");
        for part in parts {
            match part.split_once('=') {
                Some(("as", value)) => kind = Some(value),
                Some(("g", value)) => group = value,
                Some(("v", value)) => version = value,
                _ => {}
            }
        }
        match (kind, group, version) {
            (None, ..) => return Representation::Plain,
            (Some("Table"), "meta.k8s.io", "v1") => return Representation::Table,
            (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), "meta.k8s.io", "v1") => {
                return Representation::Partial;
            }
            (Some("APIGroupDiscoveryList"), "apidiscovery.k8s.io", "v2") => return Representation::Discovery,
            _ => {}
        }
    }
    Representation::Plain
}

/// Whether an `Accept` header takes an object itself, and not only another representation of it.
#[must_use]
pub fn takes_the_object(accept: Option<&str>) -> bool {
    let accept = accept.unwrap_or_default();
    accept.trim().is_empty()
        || accept.split(',').any(|range| !range.split(';').any(|part| part.trim().starts_with("as=")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_a_table_only() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert!(!takes_the_object(Some(table)));
        assert!(takes_the_object(Some(&format!("{table},application/json"))));
        assert!(takes_the_object(Some("*/*")) && takes_the_object(Some("")) && takes_the_object(None));
    }

    #[test]
    fn first_servable_range_wins() {
        let cases = [
            ("", Representation::Plain),
            ("application/json", Representation::Plain),
            ("application/vnd.kubernetes.protobuf, */*", Representation::Plain),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                Representation::Table,
            ),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", Representation::Plain),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
                Representation::Partial,
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json",
                Representation::Discovery,
            ),
        ];
        for (accept, wanted) in cases {
            assert_eq!(representation(Some(accept)), wanted, "{accept}");
        }
        assert_eq!(representation(None), Representation::Plain);
    }
}
