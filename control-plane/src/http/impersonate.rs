//! Whom a request wants to act as: the `Impersonate-*` headers.
//!
//! Upstream counterpart: `apiserver/pkg/endpoints/filters/impersonation`.

use std::collections::BTreeMap;

use http::HeaderMap;
use keelson_kinds::ApiError;

use super::path::decode;
use crate::auth::{AUTHENTICATED, Attributes, UNAUTHENTICATED, User, service_account_groups};

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";
/// API group of the resources that stand for parts of a user.
const API_GROUP: &str = "authentication.k8s.io";

/// A user as the headers name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// Reads the headers; `None` without any.
///
/// # Errors
/// 400 for headers without a user: they would be ignored, and the request run with the caller's own rights.
pub fn wanted(headers: &HeaderMap) -> Result<Option<Wanted>, ApiError> {
    let unreadable = |name: &str| ApiError::bad_request(format!("the header {name} is no text"));
    let texts = |name: &str| -> Result<Vec<String>, ApiError> {
        let values = headers.get_all(name).iter();
        values.map(|v| v.to_str().map(str::to_owned).map_err(|_| unreadable(name))).collect()
    };
    let one = |name: &str| Ok::<_, ApiError>(texts(name)?.into_iter().next().unwrap_or_default());
    let (name, uid, groups) = (one(USER)?, one(UID)?, texts(GROUP)?);
    let mut extra = BTreeMap::new();
    for header in headers.keys().map(http::HeaderName::as_str) {
        if let Some(key) = header.strip_prefix(EXTRA) {
            extra.insert(decode(key), texts(header)?);
        }
    }
    if name.is_empty() {
        let given = [(!uid.is_empty(), "uid"), (!groups.is_empty(), "groups"), (!extra.is_empty(), "user-extra")];
        let given: Vec<&str> = given.into_iter().filter(|(given, _)| *given).map(|(_, what)| what).collect();
        if given.is_empty() {
            return Ok(None);
        }
        let why = format!("requested {} without impersonating a user", given.join(", "));
        return Err(ApiError::bad_request(why));
    }
    Ok(Some(Wanted { name, uid, groups, extra }))
}

impl Wanted {
    /// Namespace and name, when it is a service account.
    fn account(&self) -> Option<(&str, &str)> {
        let (namespace, name) = self.name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
        (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
    }

    /// Everything that must be allowed, one by one.
    #[must_use]
    pub fn attributes(&self) -> Vec<Attributes> {
        let ask = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| Attributes {
            verb: "impersonate".to_owned(),
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..Attributes::default()
        };
        let mut out = vec![match self.account() {
            Some((namespace, account)) => ask("", "serviceaccounts", "", namespace, account),
            None => ask("", "users", "", "", &self.name),
        }];
        out.extend(self.groups.iter().map(|group| ask("", "groups", "", "", group)));
        for (key, values) in &self.extra {
            out.extend(values.iter().map(|value| ask(API_GROUP, "userextras", key, "", value)));
        }
        if !self.uid.is_empty() {
            out.push(ask(API_GROUP, "uids", "", "", &self.uid));
        }
        out
    }

    /// The user, with the groups that everyone has.
    #[must_use]
    pub fn user(self) -> User {
        let mut groups = self.groups.clone();
        if let Some((namespace, _)) = self.account()
            && groups.is_empty()
        {
            groups = service_account_groups(namespace);
        }
        let has = |group: &str| groups.iter().any(|g| g == group);
        if self.name == User::anonymous().name {
            if !has(UNAUTHENTICATED) {
                groups.push(UNAUTHENTICATED.to_owned());
            }
        } else if !has(AUTHENTICATED) && !has(UNAUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        User { name: self.name, uid: self.uid, groups, extra: self.extra }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        map
    }

    #[test]
    fn parts_without_a_user_are_refused() {
        assert_eq!(wanted(&headers(&[("accept", "x")])).unwrap(), None);
        for name in [UID, GROUP, "impersonate-extra-scopes"] {
            let error = wanted(&headers(&[(name, "x")])).unwrap_err();
            assert!(error.message.contains("without impersonating a user"), "{name}: {error:?}");
        }
    }

    #[test]
    fn every_part_is_asked_for() {
        let given = headers(&[
            (USER, "jane"),
            (UID, "7"),
            (GROUP, "dev"),
            ("Impersonate-Extra-Acme.com%2FProject", "a"),
            ("Impersonate-Extra-Acme.com%2FProject", "b"),
        ]);
        let wanted = wanted(&given).unwrap().unwrap();
        let asked: Vec<String> =
            wanted.attributes().iter().map(|a| format!("{} {} {}", a.group, a.full_resource(), a.name)).collect();
        assert_eq!(
            asked,
            [
                " users jane",
                " groups dev",
                "authentication.k8s.io userextras/acme.com/project a",
                "authentication.k8s.io userextras/acme.com/project b",
                "authentication.k8s.io uids 7"
            ]
        );
        let user = wanted.user();
        assert_eq!(
            (user.uid.as_str(), user.groups.as_slice()),
            ("7", &["dev".to_owned(), AUTHENTICATED.to_owned()][..])
        );
        assert_eq!(user.extra["acme.com/project"], ["a", "b"]);
    }

    #[test]
    fn service_accounts_are_accounts_only_with_two_parts() {
        let of = |name: &str| wanted(&headers(&[(USER, name)])).unwrap().unwrap();
        let account = of("system:serviceaccount:ns:sa");
        assert_eq!(account.attributes()[0].full_resource(), "serviceaccounts");
        assert_eq!(account.user().groups, ["system:serviceaccounts", "system:serviceaccounts:ns", AUTHENTICATED]);
        assert_eq!(of("system:serviceaccount:ns:sa:x").attributes()[0].full_resource(), "users");
        assert_eq!(of("system:anonymous").user().groups, [UNAUTHENTICATED]);
    }
}
