//! Client certificates and service account tokens to users.

use std::collections::BTreeMap;
use std::sync::Arc;

use keelson_kinds::lookup;

use super::{AUTHENTICATED, User};
use crate::cache::Hub;
use crate::pki::Subject;
use crate::pki::token::{Claims, ISSUER, TokenError, TokenKeys};

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
    /// What it is bound to is gone or was replaced.
    #[error("the token is bound to the {kind} {name}, which does not exist any more")]
    Bound {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
}

/// The user of a verified client certificate.
#[must_use]
pub fn certificate_user(subject: &Subject) -> User {
    let mut groups = subject.groups.clone();
    groups.push(AUTHENTICATED.to_owned());
    User { name: subject.user.clone(), groups, ..User::default() }
}

/// The user of a token, and the audiences both sides know.
///
/// # Errors
/// [`AuthenticateError`].
pub fn token_user(
    keys: &TokenKeys,
    hub: &Arc<Hub>,
    token: &str,
    audiences: &[String],
    now: i64,
) -> Result<(User, Vec<String>), AuthenticateError> {
    let claims = keys.verify(token, now)?;
    let own = [ISSUER.to_owned()];
    let wanted = if audiences.is_empty() { &own[..] } else { audiences };
    let shared: Vec<String> = claims.aud.iter().filter(|a| wanted.contains(a)).cloned().collect();
    if shared.is_empty() {
        return Err(AuthenticateError::Audience { wanted: wanted.to_vec(), present: claims.aud });
    }
    check_bound(hub, &claims)?;
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
    let user = User {
        name: claims.sub.clone(),
        uid: claims.kubernetes.serviceaccount.uid.clone(),
        groups: vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            AUTHENTICATED.to_owned(),
        ],
        extra,
    };
    Ok((user, shared))
}

fn check_bound(hub: &Arc<Hub>, claims: &Claims) -> Result<(), AuthenticateError> {
    let bound = &claims.kubernetes;
    let check = |kind: &'static str, plural: &str, namespace: &str, name: &str, uid: &str| {
        let object = lookup("", "v1", plural).and_then(|res| hub.cache(res)?.get(&res.key(namespace, name)));
        match object {
            Some(object) if object.value()["metadata"]["uid"] == uid => Ok(()),
            _ => Err(AuthenticateError::Bound { kind, name: format!("{namespace}/{name}") }),
        }
    };
    let account = &bound.serviceaccount;
    check("service account", "serviceaccounts", &bound.namespace, &account.name, &account.uid)?;
    if let Some(pod) = &bound.pod {
        check("pod", "pods", &bound.namespace, &pod.name, &pod.uid)?;
    }
    if let Some(secret) = &bound.secret {
        check("secret", "secrets", &bound.namespace, &secret.name, &secret.uid)?;
    }
    Ok(())
}
