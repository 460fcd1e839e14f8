//! Who a request is from and what it may do.
//!
//! Authentication: client certificates (CN is the user, O the groups), tokens of service accounts, of a file and for bootstrapping. Authorization: `system:masters` may do
//! everything, nodes what the Node rule grants, everyone what the stored RBAC objects grant. Upstream counterpart:
//! `apiserver/pkg/authentication` and `authorization`, `plugin/pkg/auth/authorizer`.

pub mod authenticate;
pub mod cover;
pub mod defaults;
pub mod node;
pub mod rbac;
pub mod tokens;

use std::collections::BTreeMap;

/// Group of the administrators: upstream's privileged group.
pub const MASTERS: &str = "system:masters";
/// Group of everyone who showed who they are.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Group of everyone else.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The groups of the ServiceAccounts of a namespace, besides that of everyone who showed who they are.
#[must_use]
pub fn service_account_groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

/// A user as authentication found it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Uid, if known.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Extra facts, for instance the pod a token is bound to.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user of this program itself, with full rights.
    #[must_use]
    pub fn internal(name: &str) -> Self {
        Self { name: name.to_owned(), groups: vec![MASTERS.to_owned(), AUTHENTICATED.to_owned()], ..Self::default() }
    }

    /// Someone who showed nothing.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { name: "system:anonymous".into(), groups: vec![UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// Whether the user is in a group.
    #[must_use]
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

/// What a request wants to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Verb, lower case.
    pub verb: String,
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural name; empty for other URLs.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// Namespace.
    pub namespace: String,
    /// Object name; of a list or watch the one its field selector names.
    pub name: String,
    /// The node that the field selector of a list or watch requires in `spec.nodeName`.
    pub node_name: String,
    /// URL path, when it is no resource.
    pub path: String,
}

impl Attributes {
    /// `pods/log` or `pods`.
    #[must_use]
    pub fn full_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

/// The answer of authorization.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may go on.
    pub allowed: bool,
    /// Why, for people.
    pub reason: String,
}

/// Upstream's words for a refusal.
#[must_use]
pub fn refusal(user: &User, attributes: &Attributes) -> String {
    if attributes.resource.is_empty() {
        return format!("User \"{}\" cannot {} path \"{}\"", user.name, attributes.verb, attributes.path);
    }
    let place = if attributes.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace \"{}\"", attributes.namespace)
    };
    format!(
        "User \"{}\" cannot {} resource \"{}\" in API group \"{}\" {place}",
        user.name,
        attributes.verb,
        attributes.full_resource(),
        attributes.group
    )
}
