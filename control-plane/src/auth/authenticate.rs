//! Client certificates and bearer tokens to users.

use std::collections::BTreeMap;
use std::sync::Arc;

use keelson_kinds::lookup;
use serde_json::Value;

use super::{AUTHENTICATED, User, service_account_groups, tokens};
use crate::cache::Hub;
use crate::pki::Subject;
use crate::pki::token::{Claims, ISSUER, Ref, TokenError, TokenKeys};
use crate::server::Server;

/// Why a token did not authenticate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticateError {
    /// The token itself.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// It is for someone else.
    #[error("the token is not for the audiences {wanted:?}, but for {present:?}")]
    Audience {
        /// What this server accepts.
        wanted: Vec<String>,
        /// What the token names.
        present: Vec<String>,
    },
    /// It has the form of a bootstrap token, and there is none like it that may be used.
    #[error("the bootstrap token is not known, has expired or is not for authentication")]
    Bootstrap,
    /// What it is bound to is gone or was replaced.
    #[error("the token is bound to the {kind} {name}, which does not exist any more")]
    Bound {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
}

/// How long after its deletion is due an object still carries tokens; upstream's leeway.
const DELETION_LEEWAY: i64 = 60;

/// The user of a verified client certificate.
#[must_use]
pub fn certificate_user(subject: &Subject) -> User {
    let mut groups = subject.groups.clone();
    groups.push(AUTHENTICATED.to_owned());
    User { name: subject.user.clone(), groups, ..User::default() }
}

/// The user of a bearer token of any sort, and the audiences both sides know.
///
/// # Errors
/// [`AuthenticateError`].
pub fn token_user(
    server: &Server,
    token: &str,
    audiences: &[String],
    now: jiff::Timestamp,
) -> Result<(User, Vec<String>), AuthenticateError> {
    // Tokens without audiences of their own are for this server.
    let for_us = |user| Ok((user, shared_audiences(&[ISSUER.to_owned()], audiences)?));
    if let Some(user) = server.config.static_tokens.user(token) {
        return for_us(user);
    }
    if let Some((id, secret)) = tokens::bootstrap_parts(token) {
        let user = tokens::bootstrap_user(&server.hub, id, secret, now);
        return for_us(user.ok_or(AuthenticateError::Bootstrap)?);
    }
    account_user(&server.tokens, &server.hub, token, audiences, now.as_second())
}

/// Those of `present` that are wanted; without a wish, this server's own.
fn shared_audiences(present: &[String], wanted: &[String]) -> Result<Vec<String>, AuthenticateError> {
    let own = [ISSUER.to_owned()];
    let wanted = if wanted.is_empty() { &own[..] } else { wanted };
    let shared: Vec<String> = present.iter().filter(|audience| wanted.contains(audience)).cloned().collect();
    if shared.is_empty() {
        return Err(AuthenticateError::Audience { wanted: wanted.to_vec(), present: present.to_vec() });
    }
    Ok(shared)
}

/// The user of a service account's token.
fn account_user(
    keys: &TokenKeys,
    hub: &Arc<Hub>,
    token: &str,
    audiences: &[String],
    now: i64,
) -> Result<(User, Vec<String>), AuthenticateError> {
    let claims = keys.verify(token, now)?;
    let shared = shared_audiences(&claims.aud, audiences)?;
    check_bound(hub, &claims, now)?;
    let namespace = &claims.kubernetes.namespace;
    let mut extra = BTreeMap::new();
    let mut note = |key: &str, value: &str| {
        if !value.is_empty() {
            extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
        }
    };
    if let Some(pod) = &claims.kubernetes.pod {
        note("pod-name", &pod.name);
        note("pod-uid", &pod.uid);
    }
    if let Some(node) = &claims.kubernetes.node {
        note("node-name", &node.name);
        note("node-uid", &node.uid);
    }
    note("credential-id", &format!("JTI={}", claims.jti));
    let mut groups = service_account_groups(namespace);
    groups.push(AUTHENTICATED.to_owned());
    let user = User { name: claims.sub.clone(), uid: claims.kubernetes.serviceaccount.uid.clone(), groups, extra };
    Ok((user, shared))
}

/// Everything a token names must still be there: the account, and the pod, secret or node it is bound to. The node that a pod's token
/// names besides its pod is information only.
fn check_bound(hub: &Arc<Hub>, claims: &Claims, now: i64) -> Result<(), AuthenticateError> {
    let bound = &claims.kubernetes;
    let check = |kind: &'static str, plural: &str, namespace: &str, wanted: &Ref| {
        let object = lookup("", "v1", plural).and_then(|res| hub.cache(res)?.get(&res.key(namespace, &wanted.name)));
        match object.map(|object| object.value()) {
            Some(object) if object["metadata"]["uid"] == wanted.uid.as_str() && !is_over(&object, now) => Ok(()),
            _ => {
                let slash = if namespace.is_empty() { "" } else { "/" };
                Err(AuthenticateError::Bound { kind, name: format!("{namespace}{slash}{}", wanted.name) })
            }
        }
    };
    check("service account", "serviceaccounts", &bound.namespace, &bound.serviceaccount)?;
    if let Some(pod) = &bound.pod {
        check("pod", "pods", &bound.namespace, pod)?;
    } else if let Some(node) = &bound.node {
        check("node", "nodes", "", node)?;
    }
    if let Some(secret) = &bound.secret {
        check("secret", "secrets", &bound.namespace, secret)?;
    }
    Ok(())
}

/// Whether an object's deletion was due a while ago: finalizers keep it, tokens end.
fn is_over(object: &Value, now: i64) -> bool {
    let due = object["metadata"]["deletionTimestamp"].as_str().and_then(|t| t.parse::<jiff::Timestamp>().ok());
    due.is_some_and(|due| due.as_second() < now - DELETION_LEEWAY)
}
