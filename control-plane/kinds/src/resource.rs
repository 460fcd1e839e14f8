//! The resource table: one entry per kind that the server knows.
//!
//! Invariants: (group, version, plural) is unique; entries with the same storage prefix are views of the same stored objects, exactly
//! one of which has `storage_version` set (core and events.k8s.io events). Upstream counterpart: `pkg/registry/*/rest`.

use crate::schema::Root;
use crate::strategy::{Rules, Strategy};
use crate::table::{self, Columns};

/// Whether objects live in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In a namespace.
    Namespaced,
    /// In none.
    Cluster,
}

/// What a resource answers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// POST.
    Create,
    /// DELETE of one.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
    /// GET of one.
    Get,
    /// GET of a collection.
    List,
    /// PATCH.
    Patch,
    /// PUT.
    Update,
    /// GET with `watch=true`.
    Watch,
}

impl Verb {
    /// As written in discovery and RBAC rules.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Get => "get",
            Self::List => "list",
            Self::Patch => "patch",
            Self::Update => "update",
            Self::Watch => "watch",
        }
    }
}

/// All eight verbs of a stored resource.
pub const STORED: &[Verb] = &[
    Verb::Create,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Update,
    Verb::Watch,
];

/// A path below one object.
#[derive(Clone, Copy, Debug)]
pub struct Subresource {
    /// Last part of the URL: `status`, `scale`, `log` …
    pub name: &'static str,
    /// Group of the object sent and answered.
    pub group: &'static str,
    /// Version of the object sent and answered.
    pub version: &'static str,
    /// Kind of the object sent and answered.
    pub kind: &'static str,
    /// Verbs.
    pub verbs: &'static [Verb],
}

/// One kind in one version.
pub struct Resource {
    /// API group; empty for core.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Kind of lists.
    pub list_kind: &'static str,
    /// Name in URLs.
    pub plural: &'static str,
    /// Singular name.
    pub singular: &'static str,
    /// Short names that kubectl accepts.
    pub short_names: &'static [&'static str],
    /// Categories, `all` mostly.
    pub categories: &'static [&'static str],
    /// Namespaced or not.
    pub scope: Scope,
    /// Prefix of the storage key, with slashes at both ends; empty if objects are not stored (reviews).
    pub storage_prefix: &'static str,
    /// Verbs; [`STORED`] for stored kinds, `create` only for reviews.
    pub verbs: &'static [Verb],
    /// Paths below an object.
    pub subresources: &'static [Subresource],
    /// Definition name of the schema, e.g. `io.k8s.api.core.v1.Pod`.
    pub schema: &'static str,
    /// Generates that schema and all it refers to.
    pub root: Root,
    /// Defaulting, preparation, validation.
    pub strategy: &'static dyn Strategy,
    /// Table output.
    pub columns: &'static Columns,
    /// Whether stored objects carry this entry's apiVersion and kind (another entry with the same prefix is a view).
    pub storage_version: bool,
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Resource({}/{})", self.api_version(), self.plural)
    }
}

static PLAIN: Rules = Rules::PLAIN;

impl Resource {
    /// What entries start from: a stored, namespaced kind without anything special.
    pub(crate) const BASE: Self = Self {
        group: "",
        version: "",
        kind: "",
        list_kind: "",
        plural: "",
        singular: "",
        short_names: &[],
        categories: &[],
        scope: Scope::Namespaced,
        storage_prefix: "",
        verbs: STORED,
        subresources: &[],
        schema: "",
        root: crate::schema::root::<()>(),
        strategy: &PLAIN,
        columns: &table::CREATED_AT,
        storage_version: true,
    };

    /// `v1` or `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `pods` or `deployments.apps`, as error messages name it.
    #[must_use]
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Whether objects live in a namespace.
    #[must_use]
    pub fn namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    /// Whether objects are stored.
    #[must_use]
    pub fn stored(&self) -> bool {
        !self.storage_prefix.is_empty()
    }

    /// Storage key of one object; `namespace` is ignored for cluster-scoped kinds.
    #[must_use]
    pub fn key(&self, namespace: &str, name: &str) -> String {
        match self.scope {
            Scope::Namespaced => format!("{}{namespace}/{name}", self.storage_prefix),
            Scope::Cluster => format!("{}{name}", self.storage_prefix),
        }
    }

    /// Prefix of all keys of a namespace (or of all namespaces, or of a cluster-scoped kind, with `None`); ends with `/`.
    #[must_use]
    pub fn key_prefix(&self, namespace: Option<&str>) -> String {
        match namespace {
            Some(ns) if self.namespaced() => format!("{}{ns}/", self.storage_prefix),
            _ => self.storage_prefix.to_owned(),
        }
    }

    /// The subresource called `name`.
    #[must_use]
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Whether the resource answers to `verb`.
    #[must_use]
    pub fn allows(&self, verb: Verb) -> bool {
        self.verbs.contains(&verb)
    }
}

/// The whole table of kinds that are compiled in, in discovery order; [`crate::custom::Registry::all`] adds the custom ones.
#[must_use]
pub fn resources() -> &'static [&'static Resource] {
    crate::kinds::ALL
}

/// The entry for a URL, of the kinds that are compiled in.
#[must_use]
pub fn lookup(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    resources().iter().copied().find(|r| r.plural == plural && r.group == group && r.version == version)
}

/// The entry for an object's group, version and kind, of the kinds that are compiled in.
#[must_use]
pub fn by_kind(group: &str, version: &str, kind: &str) -> Option<&'static Resource> {
    resources().iter().copied().find(|r| r.kind == kind && r.group == group && r.version == version)
}
