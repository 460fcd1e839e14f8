//! Validation of volumes whose files come from objects of the API.
//!
//! Upstream counterpart: `validateProjectionSources`, `validateKeyToPath`, `validateDownwardAPIVolumeFile`. Some of its paths leave an
//! index out.

use std::collections::HashSet;

use serde_json::Value;

use super::{check, env};
use crate::error::FieldError;
use crate::{meta, names, val};

const KEY_TYPES: &[&str] = &["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
/// Shortest lifetime of a token and of a certificate, longest of the latter: anybody's 91 days, the system's one day, in seconds.
const MIN_TOKEN: i64 = 600;
const MAX_TOKEN: i64 = 1 << 32;
const MIN_CERTIFICATE: i64 = 3600;
const MAX_CERTIFICATE: i64 = 91 * 86_400;
const MAX_OWN_CERTIFICATE: i64 = 86_400;

/// Validates the `items` of a config map's or secret's volume.
pub(super) fn items(source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for (i, item) in val::list(source, "items").iter().enumerate() {
        let at = format!("{at}.items[{i}]");
        check::required(val::text(item, "key"), &format!("{at}.key"), errors);
        let path = val::text(item, "path");
        check::required(path, &format!("{at}.path"), errors);
        check::not_reserved(path, &format!("{at}.path"), errors);
        check::mode(item, "mode", &at, errors);
    }
}

/// Validates a file that shows a field of the pod.
pub(super) fn downward(file: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let path = val::text(file, "path");
    check::required(path, &format!("{at}.path"), errors);
    check::not_reserved(path, &format!("{at}.path"), errors);
    match (val::at(file, "fieldRef"), val::at(file, "resourceFieldRef")) {
        (Some(field), other) => {
            env::field_ref(field, &format!("{at}.fieldRef"), env::FILE_FIELDS, errors);
            if other.is_some() {
                let message = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(FieldError::invalid(at, "resource", message));
            }
        }
        (None, Some(field)) => env::resource_field_ref(field, &format!("{at}.resourceFieldRef"), true, errors),
        (None, None) => errors.push(FieldError::required(at, "one of fieldRef and resourceFieldRef is required")),
    }
    check::mode(file, "mode", at, errors);
}

/// Validates a projected volume.
pub(super) fn validate(volume: &Value, at: &str, errors: &mut Vec<FieldError>) {
    check::mode(volume, "defaultMode", at, errors);
    let mut paths = Paths { at, seen: HashSet::new() };
    for (i, source) in val::list(volume, "sources").iter().enumerate() {
        let source_at = format!("{at}.sources[{i}]");
        let mut count = 0;
        let mut given = |kind: &str| {
            let found = val::at(source, kind);
            count += usize::from(found.is_some());
            found.map(|inner| (inner, format!("{source_at}.{kind}")))
        };
        for kind in ["secret", "configMap"] {
            if let Some((object, at)) = given(kind) {
                let name = val::text(object, "name");
                check::required(name, &format!("{at}.name"), errors);
                items(object, &at, errors);
                for item in val::list(object, "items") {
                    paths.take(val::text(item, "path"), name, errors);
                }
            }
        }
        if let Some((object, at)) = given("downwardAPI") {
            for file in val::list(object, "items") {
                downward(file, &at, errors);
                let path = val::text(file, "path");
                paths.take(path, path, errors);
            }
        }
        if let Some((token, token_at)) = given("serviceAccountToken") {
            self::token(token, &token_at, at, errors);
        }
        if let Some((bundle, at)) = given("clusterTrustBundle") {
            trust_bundle(bundle, &at, errors);
            let path = val::text(bundle, "path");
            paths.take_any(path, path, errors);
        }
        if let Some((certificate, at)) = given("podCertificate") {
            self::certificate(certificate, &at, &mut paths, errors);
        }
        if count > 1 {
            let message = format!("{} per source", check::MORE_THAN_ONE_VOLUME);
            errors.push(FieldError::forbidden(source_at, message));
        }
    }
}

/// The paths of the sources so far: two may not write the same file.
struct Paths<'a> {
    at: &'a str,
    seen: HashSet<&'a str>,
}

impl<'a> Paths<'a> {
    /// Takes a path, if there is one; `shown` is what the message shows.
    fn take(&mut self, path: &'a str, shown: &str, errors: &mut Vec<FieldError>) {
        if !path.is_empty() {
            self.take_any(path, shown, errors);
        }
    }

    fn take_any(&mut self, path: &'a str, shown: &str, errors: &mut Vec<FieldError>) {
        if !self.seen.insert(path) {
            errors.push(FieldError::invalid(self.at, shown, "conflicting duplicate paths"));
        }
    }
}

fn token(token: &Value, at: &str, volume_at: &str, errors: &mut Vec<FieldError>) {
    let seconds = val::int(token, "expirationSeconds").unwrap_or(0);
    let mut wrong = |message: &str| {
        errors.push(FieldError::invalid(format!("{at}.expirationSeconds"), seconds, message));
    };
    if seconds < MIN_TOKEN {
        wrong("may not specify a duration less than 10 minutes");
    }
    if seconds > MAX_TOKEN {
        wrong("may not specify a duration larger than 2^32 seconds");
    }
    let (path, at) = (val::text(token, "path"), format!("{volume_at}.path"));
    check::required(path, &at, errors);
    check::not_reserved(path, &at, errors);
}

fn trust_bundle(bundle: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let selector = val::at(bundle, "labelSelector");
    match (check::present(bundle, "name"), check::present(bundle, "signerName")) {
        (Some(_), Some(_)) => {
            let message = "only one of name and signerName may be used";
            errors.push(FieldError::invalid(at, bundle.clone(), message));
        }
        (Some(name), None) => {
            let name_at = format!("{at}.name");
            if name.is_empty() {
                errors.push(FieldError::required(name_at.as_str(), "must be a valid object name"));
            }
            // The names of a signer's bundles begin with the signer's.
            let own = name.rsplit_once(':').map_or(name, |(_, own)| own);
            for message in names::dns1123_subdomain(own) {
                let message = format!("not a valid clustertrustbundlename: {message}");
                errors.push(FieldError::invalid(name_at.as_str(), name, message));
            }
            if let Some(selector) = selector {
                let message = "labelSelector must be unset if name is specified";
                errors.push(FieldError::invalid(format!("{at}.labelSelector"), selector.clone(), message));
            }
        }
        (None, Some(signer)) => {
            let signer_at = format!("{at}.signerName");
            if signer.is_empty() {
                errors.push(FieldError::required(signer_at.as_str(), "must be a valid signer name"));
            }
            signer_name(signer, &signer_at, errors);
            errors.extend(meta::selector(selector, &format!("{at}.labelSelector")));
        }
        (None, None) => errors.push(FieldError::required(at, "either name or signerName must be specified")),
    }
    let path = val::text(bundle, "path");
    check::required(path, &format!("{at}.path"), errors);
    check::not_reserved(path, &format!("{at}.path"), errors);
}

fn certificate<'a>(certificate: &'a Value, at: &str, paths: &mut Paths<'a>, errors: &mut Vec<FieldError>) {
    let signer = val::text(certificate, "signerName");
    signer_name(signer, &format!("{at}.signerName"), errors);
    let annotations = val::map(certificate, "userAnnotations");
    errors.extend(meta::annotations_at(annotations, &format!("{at}.userAnnotations")));
    for (key, _) in annotations.into_iter().flatten().filter(|(key, _)| !key.contains('/')) {
        let message = "must be a domain-prefixed key (such as \"acme.io/foo\")";
        errors.push(FieldError::invalid(format!("{at}.userAnnotations"), key.as_str(), message));
    }
    check::supported(val::text(certificate, "keyType"), KEY_TYPES, &format!("{at}.keyType"), errors);
    if let Some(seconds) = val::int(certificate, "maxExpirationSeconds") {
        let at = format!("{at}.maxExpirationSeconds");
        let host = signer.split('/').next().unwrap_or_default();
        let is_own = host == "kubernetes.io" || host.ends_with(".kubernetes.io");
        let most = if is_own { MAX_OWN_CERTIFICATE } else { MAX_CERTIFICATE };
        let mut wrong = |bound: String| {
            let message = format!("if provided, maxExpirationSeconds must be {bound}");
            errors.push(FieldError::invalid(at.as_str(), seconds, message));
        };
        if seconds < MIN_CERTIFICATE {
            wrong(format!(">= {MIN_CERTIFICATE}"));
        }
        if seconds > most {
            wrong(format!("<= {most}"));
        }
    }
    let mut count = 0;
    for key in ["credentialBundlePath", "keyPath", "certificateChainPath"] {
        let path = val::text(certificate, key);
        if !path.is_empty() {
            count += 1;
            check::not_reserved(path, &format!("{at}.{key}"), errors);
            paths.take(path, path, errors);
        }
    }
    if count == 0 {
        let message = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.push(FieldError::required(at, message));
    }
}

/// The name of a signer: a domain, a slash and a path with dots in it.
fn signer_name(signer: &str, at: &str, errors: &mut Vec<FieldError>) {
    const MAX_DOMAIN: usize = names::SUBDOMAIN_MAX;
    const MAX: usize = MAX_DOMAIN + 1 + names::SUBDOMAIN_MAX + 1 + names::LABEL_MAX;
    if signer.is_empty() {
        errors.push(FieldError::required(at, ""));
        return;
    }
    let parts: Vec<&str> = signer.split('/').collect();
    let [domain, path] = parts.as_slice() else {
        let message = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(FieldError::invalid(at, signer, message));
        return;
    };
    if domain.len() > MAX_DOMAIN {
        errors.push(FieldError::too_long(at, MAX_DOMAIN));
    }
    // The first label that is wrong speaks for the rest.
    let mut labels = |text: &str, check: check::Check| {
        let wrong = text.split('.').map(|label| (label, check(label))).find(|(_, messages)| !messages.is_empty());
        for message in wrong.iter().flat_map(|(_, messages)| messages) {
            let label = wrong.as_ref().map_or("", |(label, _)| *label);
            let message = format!("validating label {}: {message}", crate::error::go_quote(label));
            errors.push(FieldError::invalid(at, text, message));
        }
    };
    labels(domain, names::dns1123_label);
    labels(path, names::dns1123_subdomain);
    if !domain.contains('.') {
        let message = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(at, *domain, message));
    }
    if signer.len() > MAX {
        errors.push(FieldError::too_long(at, MAX));
    }
}

/// A pod without a service account has no token to show: the admission of service accounts runs before.
pub(super) fn tokens(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    if !val::text(spec, "serviceAccountName").is_empty() {
        return;
    }
    for (i, volume) in val::list(spec, "volumes").iter().enumerate() {
        for (j, source) in val::list(volume, "projected.sources").iter().enumerate() {
            if val::at(source, "serviceAccountToken").is_some() {
                let at = format!("{at}.volumes[{i}].projected.sources[{j}].serviceAccountToken");
                errors.push(FieldError::forbidden(at, "must not be specified when serviceAccountName is not set"));
            }
        }
    }
}
