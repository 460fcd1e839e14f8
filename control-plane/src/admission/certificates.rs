//! Certificate signing requests: who asks is who is authenticated, not who the object says; who approves and signs needs the right to.
//!
//! Upstream counterparts: the strategy and validation of `certificates.k8s.io`, and the admission plugins CertificateSubjectRestriction,
//! CertificateApproval and CertificateSigning.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use keelson_kinds::{ApiError, FieldError};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::{self, PemObject};
use serde_json::{Value, json};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use crate::api::review;
use crate::auth::{Attributes, MASTERS};
use crate::http::Call;
use crate::pki::Subject;

/// Signs client certificates for anyone.
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// Signs client certificates of agents.
pub(super) const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signs serving certificates of agents.
pub(super) const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";

/// Why `spec.request` is no request. Not retryable with the same bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    Pem,
    #[error("{0}")]
    Content(String),
    #[error("the signature of the request does not fit its key: {0}")]
    Signature(String),
}

/// Whom a request is for, once its signature is checked.
pub(super) fn parse(csr: &Value) -> Result<Subject, RequestError> {
    let text = csr["spec"]["request"].as_str().unwrap_or_default();
    let pem = STANDARD.decode(text).map_err(|_| RequestError::Pem)?;
    let der = CertificateSigningRequestDer::from_pem_slice(&pem).map_err(|error| match error {
        pem::Error::NoItemsFound => RequestError::Pem,
        other => RequestError::Content(format!("{other:?}")),
    })?;
    let content = |error: &dyn std::fmt::Display| RequestError::Content(error.to_string());
    let (rest, request) = X509CertificationRequest::from_der(der.as_ref()).map_err(|e| content(&e))?;
    if !rest.is_empty() {
        return Err(RequestError::Content("trailing data after the request".to_owned()));
    }
    request.verify_signature().map_err(|e| RequestError::Signature(e.to_string()))?;
    let subject = &request.certification_request_info.subject;
    let texts = |found: &mut dyn Iterator<Item = Option<String>>| found.flatten().collect::<Vec<_>>();
    let common = texts(&mut subject.iter_common_name().map(|n| n.as_str().ok().map(str::to_owned)));
    let groups = texts(&mut subject.iter_organization().map(|n| n.as_str().ok().map(str::to_owned)));
    Ok(Subject { user: common.into_iter().next().unwrap_or_default(), groups })
}

/// A new request: says who asks, and refuses what nobody may ask for.
pub(super) fn create(call: &Call, csr: &mut Value) -> Result<(), ApiError> {
    if csr["spec"].is_object() {
        let user = &call.user;
        csr["spec"]["username"] = json!(user.name);
        csr["spec"]["groups"] = json!(user.groups);
        for (field, absent, value) in
            [("uid", user.uid.is_empty(), json!(user.uid)), ("extra", user.extra.is_empty(), json!(user.extra))]
        {
            if !absent {
                csr["spec"][field] = value;
            } else if let Some(spec) = csr["spec"].as_object_mut() {
                spec.remove(field);
            }
        }
    }
    let name = csr["metadata"]["name"].as_str().unwrap_or_default();
    let subject = parse(csr).map_err(|error| {
        let error = FieldError::invalid("spec.request", csr["spec"]["request"].clone(), error.to_string());
        ApiError::invalid(call.res.group, call.res.kind, name, &[error])
    })?;
    if csr["spec"]["signerName"] == CLIENT && subject.groups.iter().any(|group| group == MASTERS) {
        let why = format!("use of {CLIENT} signer with {MASTERS} group is not allowed");
        return Err(ApiError::forbidden(call.res, name, &why));
    }
    Ok(())
}

/// A change: conditions through `approval` are an approver's, a certificate through `status` is a signer's.
pub(super) fn update(call: &Call, new: &Value, old: &Value) -> Result<(), ApiError> {
    let verb = match call.subresource.as_str() {
        "approval" => "approve",
        "status" if signs(new, old) => "sign",
        _ => return Ok(()),
    };
    let signer = old["spec"]["signerName"].as_str().unwrap_or_default();
    let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
    let may = |name: &str| {
        let attributes = Attributes {
            verb: verb.to_owned(),
            group: call.res.group.to_owned(),
            version: "*".to_owned(),
            resource: "signers".to_owned(),
            name: name.to_owned(),
            ..Attributes::default()
        };
        review::decide(&call.server, &call.user, &attributes).allowed
    };
    if may(signer) || may(&format!("{domain}/*")) {
        return Ok(());
    }
    let why = format!("user not permitted to {verb} requests with signerName \"{signer}\"");
    Err(ApiError::forbidden(call.res, &call.name, &why))
}

/// Whether a status update issues a certificate or says that issuing failed.
fn signs(new: &Value, old: &Value) -> bool {
    let failed = |csr: &Value| -> Vec<Value> {
        let conditions = csr["status"]["conditions"].as_array().into_iter().flatten();
        conditions.filter(|c| c["type"] == "Failed").cloned().collect()
    };
    new["status"]["certificate"] != old["status"]["certificate"] || failed(new) != failed(old)
}
